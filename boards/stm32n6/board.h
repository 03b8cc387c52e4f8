/* The machine: an STM32N657. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

/* Clocks, watchdog, the line to the host, memories, caches, and the NPU where the runner is one of its; first thing in
 * main. */
void board_start(void);

/* Ticks of the core's clock since board_start. */
uint64_t clock_now(void);

_Noreturn void board_exit(int code);

#endif
