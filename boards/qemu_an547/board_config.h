/* Limits of the emulated board. Frames are as small as a microcontroller with a UART would have them. */
#ifndef BOARD_CONFIG_H
#define BOARD_CONFIG_H

#define BOARD_NAME             "qemu_an547"
#define BOARD_MAX_PAYLOAD      1024
#define BOARD_MAX_BATCH        256 /* slots: as many as one frame holds */
#define BOARD_MAX_WORKERS      1
#define BOARD_TICKS_PER_SECOND 32000000 /* the system counter */

#define BOARD_STACK_BYTES 8192
#define BOARD_UART_IRQ    33 /* UART0 received something */

#endif
