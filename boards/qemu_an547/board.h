/* The machine: QEMU's mps3-an547 (Arm DAI 0547, "Application Note AN547"). */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

/* The 64-bit system counter at 32 MHz: with -icount shift=5, 1.024 ticks an instruction. */
void counter_start(void);
uint64_t counter_now(void);

_Noreturn void board_exit(int code);

#endif
