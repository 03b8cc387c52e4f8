/* From reset to main, and what happens when something goes wrong: words on the host's console and an exit code. */
#include <stdint.h>
#include <string.h>

#include "semihosting.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define SCB_CCR           REGISTER(0xE000ED14u)
#define SCB_SHCSR         REGISTER(0xE000ED24u)
#define SCB_CFSR          REGISTER(0xE000ED28u)
#define SCB_CPACR         REGISTER(0xE000ED88u)

enum {
    CCR_LOW_OVERHEAD_LOOPS = 1 << 19,
    SHCSR_SEPARATE_FAULTS = 0xF << 16, /* memory, bus, usage, secure */
    CPACR_FPU_AND_MVE = 0xF << 20,
    EXIT_FAULT = 70,
};

extern uint32_t stack_top[], bss_start[], bss_end[], data_start[], data_end[], data_load[];

int main(void);

__attribute__((used)) static void start(void)
{
    SCB_CPACR |= CPACR_FPU_AND_MVE;
    SCB_CCR |= CCR_LOW_OVERHEAD_LOOPS;
    SCB_SHCSR |= SHCSR_SEPARATE_FAULTS;
    __asm volatile("dsb\n isb" ::: "memory");
    memcpy(data_start, data_load, (uintptr_t)data_end - (uintptr_t)data_start);
    memset(bss_start, 0, (uintptr_t)bss_end - (uintptr_t)bss_start);
    semihosting_exit(main());
}

/* The stack limit is set before C runs: an overflow is a fault, never a silent write into .bss. */
__attribute__((naked)) void reset(void)
{
    __asm("ldr r0, =bss_end\n msr msplim, r0\n b start");
}

static void print_hex(const char *name, uint32_t value)
{
    char text[] = "00000000";
    for (int i = 7; i >= 0; i--, value >>= 4)
        text[i] = "0123456789abcdef"[value & 15];
    semihosting_print(name);
    semihosting_print(text);
}

struct exception_frame {
    uint32_t r0, r1, r2, r3, r12, lr, pc, xpsr;
};

__attribute__((used)) static void report_fault(const struct exception_frame *frame)
{
    print_hex("fault: pc ", frame->pc);
    print_hex(" lr ", frame->lr);
    print_hex(" cfsr ", SCB_CFSR);
    semihosting_print("\n");
    semihosting_exit(EXIT_FAULT);
}

__attribute__((naked)) static void fault(void)
{
    __asm("tst lr, #4\n ite eq\n mrseq r0, msp\n mrsne r0, psp\n b report_fault");
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, reset, fault, fault, fault, fault, fault, fault, [11] = fault, fault, [14] = fault, fault,
};
