/* Faults on purpose: in firmware for tests alone (cmake -DPROVOKE=ON), to see that each is reported. */
#ifndef APP_PROVOKE_H
#define APP_PROVOKE_H

#include <stdint.h>

/* Payload of COMMAND_PROVOKE, u32; then an address u32, where one is written to. No answer comes. */
enum provocation {
    PROVOKE_WRITE = 0,
    PROVOKE_STACK_OVERFLOW = 1,
    PROVOKE_UNDEFINED_INSTRUCTION = 2,
    PROVOKE_BUS_FAULT = 3,
    PROVOKE_LOCKUP = 4,
    PROVOKE_HANG = 5,
    PROVOKE_HARD_FAULT = 6,
    PROVOKE_DATA_AS_CODE = 7,
    PROVOKE_DIVISION_BY_ZERO = 8,
    PROVOKE_STACK_CREEP = 9,
};

void app_provoke(uint32_t which, uint32_t address);

#endif
