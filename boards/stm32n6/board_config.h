/* Limits of the STM32N6's boards. */
#ifndef BOARD_CONFIG_H
#define BOARD_CONFIG_H

#ifdef BOARD_VARIANT_DK
#define BOARD_NAME "stm32n6-dk" /* STM32N6570-DK */
#else
#define BOARD_NAME "stm32n6-nucleo" /* NUCLEO-N657X0-Q */
#endif

#define BOARD_MAX_PAYLOAD 1024
#define BOARD_MAX_BATCH   256 /* slots: as many as one frame holds */
#define BOARD_MAX_WORKERS 1
#define BOARD_HSI_HZ      64000000

#ifndef BOARD_BAUD
#define BOARD_BAUD 921600
#endif

#ifndef BOARD_WATCHDOG_SECONDS
#define BOARD_WATCHDOG_SECONDS 120 /* for one sample's forward pass, or one update; at most 131: the host waits 140 */
#endif

#ifndef BOARD_SMALL_IMAGE_BYTES
#define BOARD_SMALL_IMAGE_BYTES (1792 << 10) /* of AXISRAM3 to 6: larger images lie in PSRAM */
#endif

#define BOARD_STACK_BYTES  8192
#define BOARD_TICK         /* SysTick extends the clock to 64 bits */
#define BOARD_UART_IRQ     159
#define BOARD_WATCHDOG_IRQ 18

/* A build with the NPU has BOARD_WEIGHTS_ADDRESS and BOARD_WEIGHTS_BYTES, where the network was compiled to have its
 * weights. All memory but AXISRAM1 belongs to that network. */
#ifdef BOARD_WEIGHTS_ADDRESS
#define BOARD_NPU_IRQ 53
#endif

#endif
