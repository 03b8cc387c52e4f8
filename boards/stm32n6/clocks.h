/* The clock tree: from HSI through PLL1 to what the chip may do at the voltage that its core has after reset. */
#ifndef CLOCKS_H
#define CLOCKS_H

#include <stdint.h>

/* Whatever the boot ROM left. Where PLL1 does not lock, everything runs from HSI. */
void clocks_start(void);

/* Of the core and so of SysTick. */
uint32_t clocks_core_hertz(void);

/* Of AHB and APB. */
uint32_t clocks_ahb_hertz(void);

#endif
