# A Cortex-M55 in emulation: QEMU's mps3-an547. So far the bench alone, which counts the instructions of a network.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
# The loops of runners/int8/mve take every register, the frame pointer as well.
add_compile_options(-ffunction-sections -fdata-sections -fomit-frame-pointer)

set(AN547_LINK_SCRIPT ${BOARD_DIR}/an547.ld)
add_library(an547 OBJECT ${BOARD_DIR}/startup.c)

list(FILTER APP_SOURCES EXCLUDE REGEX "/tflm_app/app/") # no commands, no link
add_executable(m55_bench ${APP_SOURCES} ${BOARD_DIR}/bench.c $<TARGET_OBJECTS:an547>)
target_link_options(m55_bench PRIVATE -nostartfiles --specs=nano.specs -T${AN547_LINK_SCRIPT} -Wl,--gc-sections)
set_target_properties(m55_bench PROPERTIES LINK_DEPENDS ${AN547_LINK_SCRIPT} SUFFIX .elf)
