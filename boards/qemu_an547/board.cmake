# A Cortex-M55 in emulation: QEMU's mps3-an547.
include(${BOARD_DIR}/../cortex_m/firmware.cmake)
set(AN547_LINK_SCRIPT ${BOARD_DIR}/an547.ld)
add_library(an547 OBJECT ${BOARD_DIR}/board.c ${CORTEX_M_SOURCES})

add_firmware(zo_board ${AN547_LINK_SCRIPT} ${APP_SOURCES} ${BOARD_DIR}/port.c $<TARGET_OBJECTS:an547>)
let_faults_be_provoked(zo_board)

list(FILTER APP_SOURCES EXCLUDE REGEX "/tflm_app/app/") # no commands, no link
add_firmware(m55_bench ${AN547_LINK_SCRIPT} ${APP_SOURCES} ${BOARD_DIR}/bench.c $<TARGET_OBJECTS:an547>)
add_firmware(m55_zo ${AN547_LINK_SCRIPT} ${APP_SOURCES} ${BOARD_DIR}/zo_cases.c $<TARGET_OBJECTS:an547>)
target_compile_definitions(m55_zo PRIVATE ZO_LAYOUTS=1)
