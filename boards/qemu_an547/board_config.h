/* Limits of the emulated board. */
#ifndef BOARD_CONFIG_H
#define BOARD_CONFIG_H

#define BOARD_NAME        "qemu_an547"
#define BOARD_MAX_PAYLOAD (4 * 1024)
#define BOARD_MAX_BATCH   1024
#define BOARD_MAX_WORKERS 1

#endif
