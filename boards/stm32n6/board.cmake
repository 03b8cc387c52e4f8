# NUCLEO-N657X0-Q and STM32N6570-DK, without an SDK: -DVARIANT=nucleo|dk [-DBAUD=921600] [-DCLOCKS=pll|hsi]
# [-DCPU=cortex-m33].
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
set(VARIANT_SOURCES "")
if(VARIANT STREQUAL "dk")
  set(VARIANT_SOURCES ${BOARD_DIR}/psram.c)
endif()
add_firmware(zo_board ${BOARD_DIR}/stm32n6.ld ${APP_SOURCES} ${CORTEX_M_SOURCES}
  ${BOARD_DIR}/board.c ${BOARD_DIR}/clocks.c ${BOARD_DIR}/port.c ${BOARD_DIR}/uart.c ${VARIANT_SOURCES})
target_link_options(zo_board PRIVATE -Wl,-n) # a debugger loads code and data, no ELF header
let_faults_be_provoked(zo_board)
