# What boards with a Cortex-M share: include() it from board.cmake.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
# The loops of runners/int8/mve take every register, the frame pointer as well. -g: a fault is reported with its line.
# -fcallgraph-info: callers, callees and frames, for the worst-case stack (docs/memory.md).
add_compile_options(-ffunction-sections -fdata-sections -fomit-frame-pointer -g -fcallgraph-info=su)

set(CORTEX_M_DIR ${CMAKE_CURRENT_LIST_DIR})
include_directories(${CORTEX_M_DIR})
set(CORTEX_M_SOURCES ${CORTEX_M_DIR}/startup.c ${CORTEX_M_DIR}/fault.c ${CORTEX_M_DIR}/mpu.c)

function(add_firmware name script)
  add_executable(${name} ${ARGN})
  target_link_options(${name} PRIVATE -nostartfiles --specs=nano.specs -T${script} -Wl,--gc-sections)
  file(GLOB scripts ${BOARD_DIR}/*.ld) # one may include another
  set_target_properties(${name} PROPERTIES LINK_DEPENDS "${scripts}" SUFFIX .elf)
endfunction()

option(PROVOKE "firmware for tests: faults by command, an impatient watchdog" OFF)
function(let_faults_be_provoked name)
  if(PROVOKE)
    target_sources(${name} PRIVATE ${CORTEX_M_DIR}/provoke.c)
    target_compile_definitions(${name} PRIVATE PROVOKE BOARD_WATCHDOG_SECONDS=2)
  endif()
endfunction()
