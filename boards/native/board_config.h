/* Limits of the native board: a host process has memory to spare. */
#ifndef BOARD_CONFIG_H
#define BOARD_CONFIG_H

#define BOARD_NAME             "native"
#define BOARD_MAX_PAYLOAD      (64 * 1024)
#define BOARD_MAX_BATCH        1024
#define BOARD_TICKS_PER_SECOND 1000000000
#define BOARD_CRC_TABLES       /* 8 KiB */

#ifdef BOARD_WEIGHTS_ADDRESS /* a build with a compiled network, of which there is one instance */
#define BOARD_WEIGHTS_BYTES (4 * 448 * 1024)
#define BOARD_MAX_WORKERS   1
#else
#define BOARD_MAX_WORKERS 64
#endif

#endif
