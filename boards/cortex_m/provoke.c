#include "app/provoke.h"

#include "cortex_m.h"

enum { LARGE_FRAME = 200 };

static void write_to(uintptr_t address)
{
    *(volatile uint32_t *)address = 1;
}

/* Deeper and deeper; the compiler cannot make a loop of it, since every level's array is used after the call. */
static uint32_t overflow_stack(uint32_t depth)
{
    volatile uint8_t frame[LARGE_FRAME];
    frame[depth % LARGE_FRAME] = (uint8_t)depth;
    return depth == UINT32_MAX ? 0 : overflow_stack(depth + 1) + frame[depth % LARGE_FRAME];
}

/* In small steps: in the end there is no room for what the core saves when it takes the exception. */
__attribute__((noinline)) static uint32_t creep_over_stack(uint32_t depth)
{
    volatile uint32_t word = depth;
    return depth == UINT32_MAX ? 0 : creep_over_stack(depth + 1) + word;
}

static void hang(void)
{
    for (volatile uint32_t i = 0;; i++)
        continue;
}

void app_provoke(uint32_t which, uint32_t address)
{
    static uint16_t code[] = {0x4770}; /* bx lr */
    switch (which) {
    case PROVOKE_WRITE:
        write_to(address);
        break;
    case PROVOKE_STACK_OVERFLOW:
        overflow_stack(0);
        break;
    case PROVOKE_STACK_CREEP:
        creep_over_stack(0);
        break;
    case PROVOKE_UNDEFINED_INSTRUCTION:
        __asm volatile("udf #0");
        break;
    case PROVOKE_BUS_FAULT:
        write_to(0xE0100000); /* nothing is there */
        break;
    case PROVOKE_LOCKUP:
        __asm volatile("cpsid f\n udf #0"); /* a fault that may not be taken */
        break;
    case PROVOKE_HANG:
        hang();
        break;
    case PROVOKE_HARD_FAULT:
        __asm volatile("cpsid i\n bkpt #1"); /* without a debugger */
        break;
    case PROVOKE_DATA_AS_CODE:
        ((void (*)(void))((uintptr_t)code | 1))();
        break;
    case PROVOKE_DIVISION_BY_ZERO:
        __asm volatile("udiv r0, r0, %0" ::"r"(0) : "r0");
        break;
    default:
        break;
    }
}
