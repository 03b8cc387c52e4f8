# A Cortex-M55 in emulation: QEMU's mps3-an547.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
# The loops of runners/int8/mve take every register, the frame pointer as well. -g: a fault is reported with its line.
# -fcallgraph-info: callers, callees and frames, for the worst-case stack (docs/memory.md).
add_compile_options(-ffunction-sections -fdata-sections -fomit-frame-pointer -g -fcallgraph-info=su)

set(CORTEX_M_DIR ${BOARD_DIR}/../cortex_m)
include_directories(${CORTEX_M_DIR})
set(AN547_LINK_SCRIPT ${BOARD_DIR}/an547.ld)
add_library(an547 OBJECT ${BOARD_DIR}/board.c ${CORTEX_M_DIR}/startup.c ${CORTEX_M_DIR}/fault.c ${CORTEX_M_DIR}/mpu.c)

function(add_firmware name)
  add_executable(${name} ${ARGN} $<TARGET_OBJECTS:an547>)
  target_link_options(${name} PRIVATE -nostartfiles --specs=nano.specs -T${AN547_LINK_SCRIPT} -Wl,--gc-sections)
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${AN547_LINK_SCRIPT} SUFFIX .elf)
endfunction()

add_firmware(zo_board ${APP_SOURCES} ${BOARD_DIR}/port.c)

option(PROVOKE "firmware for tests: faults by command, an impatient watchdog" OFF)
if(PROVOKE)
  target_sources(zo_board PRIVATE ${CORTEX_M_DIR}/provoke.c)
  target_compile_definitions(zo_board PRIVATE PROVOKE BOARD_WATCHDOG_SECONDS=2)
endif()

list(FILTER APP_SOURCES EXCLUDE REGEX "/tflm_app/app/") # no commands, no link
add_firmware(m55_bench ${APP_SOURCES} ${BOARD_DIR}/bench.c)
add_firmware(m55_zo ${APP_SOURCES} ${BOARD_DIR}/zo_cases.c)
