/* The CMSDK watchdog of the 32 kHz domain (Arm DDI 0479, "APB watchdog"): counts down, then raises the NMI. */
#ifndef WATCHDOG_H
#define WATCHDOG_H

#include "cortex_m.h"

#define WATCHDOG_LOAD    REGISTER(0x5802E000)
#define WATCHDOG_CONTROL REGISTER(0x5802E008)
#define WATCHDOG_CLEAR   REGISTER(0x5802E00C)
#define WATCHDOG_LOCK    REGISTER(0x5802EC00)

enum { WATCHDOG_UNLOCK = 0x1ACCE551, WATCHDOG_INTERRUPT = 1, WATCHDOG_HZ = 32000 };

static inline void watchdog_start(uint32_t seconds)
{
    WATCHDOG_LOCK = WATCHDOG_UNLOCK;
    WATCHDOG_LOAD = seconds * WATCHDOG_HZ;
    WATCHDOG_CONTROL = WATCHDOG_INTERRUPT;
}

/* Counts from the start again. */
static inline void watchdog_feed(void)
{
    WATCHDOG_CLEAR = 1;
}

static inline void watchdog_stop(void)
{
    WATCHDOG_CONTROL = 0;
}

#endif
