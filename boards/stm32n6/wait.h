/* Waiting for a register with a limit: hardware that never answers stops nothing. */
#ifndef WAIT_H
#define WAIT_H

#include <stdbool.h>
#include <stdint.h>

enum { WAIT_READS = 1 << 14 }; /* at 64 MHz milliseconds, at 600 MHz some tenths of one */

static inline bool wait_for(volatile uint32_t *at, uint32_t mask, uint32_t value)
{
    for (uint32_t i = 0; i < WAIT_READS; i++)
        if ((*at & mask) == value)
            return true;
    return false;
}

#endif
