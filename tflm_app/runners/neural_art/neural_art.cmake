# The runner that is a network compiled for the Neural-ART NPU. Network and runtime are the user's: NEURAL_ART_DIR is what
# `stedgeai generate` wrote, ST_NPU_DIR the folder `Npu` of the runtime of the same version (docs/neural_art.md).
set(NEURAL_ART_NAME "network" CACHE STRING "name of the network: stedgeai's --name")
set(RUNNER_SOURCES ${CMAKE_CURRENT_LIST_DIR}/runner.c)
add_compile_definitions(NEURAL_ART_NAME=${NEURAL_ART_NAME} ZO_LAYOUTS=1)

if(LL_ATON_STAND_IN AND BOARD STREQUAL "native")
  # Arithmetic is that of the in-tree kernels.
  set(STAND_IN_DIR ${CMAKE_CURRENT_SOURCE_DIR}/../tests/ll_aton)
  file(GLOB STAND_IN_SOURCES CONFIGURE_DEPENDS ${STAND_IN_DIR}/*.c runners/int8/*.c)
  list(FILTER STAND_IN_SOURCES EXCLUDE REGEX "/int8/runner\\.c$")
  list(APPEND RUNNER_SOURCES ${STAND_IN_SOURCES})
  include_directories(${STAND_IN_DIR})
  add_compile_definitions("NEURAL_ART_ID=stand_in_network_id()") # the network is a file that it reads when it starts
  link_libraries(m)
  add_compile_definitions(BOARD_WEIGHTS_ADDRESS=0x34200000)
elseif(LL_ATON_STAND_IN)
  # The NPU is a model outside of the firmware (tests/stm32n6_npu.py).
  set(STAND_IN_DIR ${CMAKE_CURRENT_SOURCE_DIR}/../tests/ll_aton_firmware)
  list(APPEND RUNNER_SOURCES ${STAND_IN_DIR}/runtime.c)
  include_directories(${STAND_IN_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/../tests/ll_aton ${BOARD_DIR}/ll_aton)
else()
  include(${CMAKE_CURRENT_LIST_DIR}/ll_aton.cmake)
endif()
