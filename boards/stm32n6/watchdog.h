/* The independent watchdog. Once started it never stands still: it is fed while the board waits, too. */
#ifndef WATCHDOG_H
#define WATCHDOG_H

#include "registers.h"

/* Its interrupt comes half a second before the reset, with time for a report of where the core was. */
static inline void watchdog_start(uint32_t seconds)
{
    uint32_t ticks = seconds * IWDG_LSI_HZ / 1024;
    IWDG_KR = IWDG_KEY_START;
    IWDG_KR = IWDG_KEY_WRITE;
    IWDG_PR = IWDG_DIVIDE_1024;
    IWDG_RLR = ticks < IWDG_RLR_MOST ? ticks : IWDG_RLR_MOST;
    IWDG_EWCR = IWDG_EWCR_EWIE | IWDG_EWCR_EWIC | (IWDG_LSI_HZ / 1024 / 2);
    while (IWDG_SR & IWDG_SR_UPDATING)
        continue;
    IWDG_KR = IWDG_KEY_RELOAD;
    NVIC_ISER(BOARD_WATCHDOG_IRQ) = 1u << BOARD_WATCHDOG_IRQ % 32;
}

static inline void watchdog_feed(void)
{
    IWDG_KR = IWDG_KEY_RELOAD;
}

#endif
