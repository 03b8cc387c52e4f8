# NUCLEO-N657X0-Q and STM32N6570-DK, without an SDK: -DVARIANT=nucleo|dk [-DBAUD=921600] [-DCLOCKS=pll|hsi]
# [-DCPU=cortex-m33]. With the NPU (runners/neural_art), -DWEIGHTS_ADDRESS=0x34200000 -DWEIGHTS_BYTES=458752: its pool of
# weights.
set(VARIANT nucleo CACHE STRING "nucleo (NUCLEO-N657X0-Q) or dk (STM32N6570-DK)")
if(NOT VARIANT MATCHES "^(nucleo|dk)$")
  message(FATAL_ERROR "VARIANT=${VARIANT}: nucleo or dk")
endif()
set(BAUD 921600 CACHE STRING "of USART1, the link to the host")
set(CLOCKS pll CACHE STRING "pll: 600 MHz; hsi: 64 MHz, for a doubtful board")
if(NOT CLOCKS MATCHES "^(pll|hsi)$")
  message(FATAL_ERROR "CLOCKS=${CLOCKS}: pll or hsi")
endif()
string(TOUPPER ${VARIANT} VARIANT_NAME)
add_compile_definitions(BOARD_VARIANT_${VARIANT_NAME} BOARD_BAUD=${BAUD}
  BOARD_PLL=$<STREQUAL:${CLOCKS},pll>)

include(${BOARD_DIR}/../cortex_m/firmware.cmake)
set(SCRIPT ${BOARD_DIR}/stm32n6.ld)
set(MORE_SOURCES "")
if(VARIANT STREQUAL "dk")
  list(APPEND MORE_SOURCES ${BOARD_DIR}/psram.c)
endif()
if(NEURAL_ART_DIR OR LL_ATON_STAND_IN)
  set(WEIGHTS_ADDRESS 0 CACHE STRING "where the compiled network has its weights")
  set(WEIGHTS_BYTES 0 CACHE STRING "size of that pool")
  if(NOT WEIGHTS_ADDRESS OR NOT WEIGHTS_BYTES)
    message(FATAL_ERROR "WEIGHTS_ADDRESS and WEIGHTS_BYTES are missing: address and size_bytes of the pool of weights "
      "in network_c_info.json (python -m pipeline.firmware --npu finds them).")
  endif()
  add_compile_definitions(BOARD_WEIGHTS_ADDRESS=${WEIGHTS_ADDRESS}u BOARD_WEIGHTS_BYTES=${WEIGHTS_BYTES}u)
  set(SCRIPT ${BOARD_DIR}/stm32n6_npu.ld)
  list(APPEND MORE_SOURCES ${BOARD_DIR}/npu.c ${BOARD_DIR}/cache.c)
endif()
add_firmware(zo_board ${SCRIPT} ${APP_SOURCES} ${CORTEX_M_SOURCES}
  ${BOARD_DIR}/board.c ${BOARD_DIR}/clocks.c ${BOARD_DIR}/port.c ${BOARD_DIR}/uart.c ${MORE_SOURCES})
target_link_options(zo_board PRIVATE -L${BOARD_DIR}) # where scripts include others from
target_link_options(zo_board PRIVATE -Wl,-n) # a debugger loads code and data, no ELF header
let_faults_be_provoked(zo_board)
