/* A Cortex-M55 from reset to main (Arm v8-M Architecture Reference Manual, DDI 0553; Cortex-M55 TRM, 101051).
 *
 * Thread mode runs on a process stack with a limit, handlers on a stack of their own: an overflow of the first is a
 * fault that still can be reported. */
#include <stdint.h>
#include <string.h>

#include "board_config.h" /* BOARD_STACK_BYTES; BOARD_..._IRQ, BOARD_TICK where there are such */
#include "cortex_m.h"
#include "fault.h"

enum { HANDLER_STACK_BYTES = 1024 };

#define SYST_CSR     REGISTER(0xE000E010u)
#define NVIC_ICER(i) REGISTER(0xE000E180u + 4 * (i))
#define NVIC_ICPR(i) REGISTER(0xE000E280u + 4 * (i))
#define SCB_ICSR     REGISTER(0xE000ED04u)
#define SCB_CCR      REGISTER(0xE000ED14u)
#define SCB_SHCSR    REGISTER(0xE000ED24u)

enum {
    NVIC_WORDS = 16, /* of 32 interrupts each: what the architecture has at most */
    ICSR_PENDSTCLR = 1 << 25,
    ICSR_PENDSVCLR = 1 << 27,
    CCR_DIVIDE_BY_ZERO_TRAP = 1 << 4,
    CCR_LOW_OVERHEAD_LOOPS = 1 << 19,
    SHCSR_SEPARATE_FAULTS = 0xF << 16, /* memory, bus, usage, secure */
};

uint32_t process_stack[BOARD_STACK_BYTES / 4] __attribute__((section(".stack"), aligned(8)));
uint32_t handler_stack[HANDLER_STACK_BYTES / 4] __attribute__((section(".stack"), aligned(8)));

extern uint32_t bss_start[], bss_end[], data_start[], data_end[], data_load[];

int main(void);
_Noreturn void board_exit(int code); /* port.c */

enum { STACK_FILL = 0x5AC4F111 }; /* what the process stack holds where it was never used */

size_t process_stack_used(void)
{
    const uint32_t *low = process_stack;
    while (low < process_stack + BOARD_STACK_BYTES / 4 && *low == STACK_FILL)
        low++;
    return (size_t)((const uint8_t *)(process_stack + BOARD_STACK_BYTES / 4) - (const uint8_t *)low);
}

/* There are no handlers for what something before this program may have enabled. */
static void silence_interrupts(void)
{
    SYST_CSR = 0;
    SCB_ICSR = ICSR_PENDSTCLR | ICSR_PENDSVCLR;
    for (int i = 0; i < NVIC_WORDS; i++) {
        NVIC_ICER(i) = UINT32_MAX;
        NVIC_ICPR(i) = UINT32_MAX;
    }
}

/* On the handlers' stack still. */
__attribute__((used)) static void prepare(void)
{
    silence_interrupts();
    SCB_CCR |= CCR_LOW_OVERHEAD_LOOPS | CCR_DIVIDE_BY_ZERO_TRAP;
    SCB_SHCSR |= SHCSR_SEPARATE_FAULTS;
    memcpy(data_start, data_load, (uintptr_t)data_end - (uintptr_t)data_start);
    memset(bss_start, 0, (uintptr_t)bss_end - (uintptr_t)bss_start);
    for (size_t i = 0; i < BOARD_STACK_BYTES / 4; i++)
        process_stack[i] = STACK_FILL;
    board_protect_memory();
    __asm volatile("dsb\n isb" ::: "memory");
}

__attribute__((used)) static void run(void)
{
    board_exit(main());
}

/* As after a reset, also where a debugger or a boot ROM jumped here: no interrupts, privileged thread mode, the
 * handlers' stack, these vectors. FPU and Helium come before any C: the compiler may use them anywhere. Then the
 * stacks: 2 in CONTROL is "thread mode on PSP". */
__attribute__((naked)) void reset(void)
{
    __asm("cpsid i\n cpsie f\n mov r0, #0\n msr basepri, r0\n msr control, r0\n isb\n msr msplim, r0\n"
          "ldr r0, =0xE000ED08\n ldr r1, =vectors\n str r1, [r0]\n" /* VTOR */
          "ldr r0, [r1]\n msr msp, r0\n"
          "ldr r0, =0xE000ED88\n" /* CPACR */
          "ldr r1, [r0]\n orr r1, #0xF00000\n str r1, [r0]\n dsb\n isb\n"
          "ldr r0, =handler_stack\n msr msplim, r0\n"
          "bl prepare\n"
          "ldr r0, =process_stack\n msr psplim, r0\n"
          "add r0, %0\n msr psp, r0\n"
          "mov r0, #2\n msr control, r0\n isb\n cpsie i\n mov lr, #0\n" /* nobody called */
          "b run" ::"i"(BOARD_STACK_BYTES));
}

__attribute__((weak)) void board_uart_interrupt(void); /* not in firmware without a link */
void board_tick(void);

__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    handler_stack + HANDLER_STACK_BYTES / 4,
    reset,
    [2] = fault_handler,  /* NMI: the watchdog of some boards */
    [3] = fault_handler,  /* HardFault */
    [4] = fault_handler,  /* MemManage */
    [5] = fault_handler,  /* BusFault */
    [6] = fault_handler,  /* UsageFault */
    [7] = fault_handler,  /* SecureFault */
    [11] = fault_handler, /* SVCall, DebugMonitor, PendSV, SysTick: not in use */
    [12] = fault_handler,
    [14] = fault_handler,
#ifdef BOARD_TICK
    [15] = board_tick, /* SysTick */
#else
    [15] = fault_handler,
#endif
#ifdef BOARD_WATCHDOG_IRQ
    [16 + BOARD_WATCHDOG_IRQ] = fault_handler, /* where it is no NMI */
#endif
#ifdef BOARD_UART_IRQ
    [16 + BOARD_UART_IRQ] = board_uart_interrupt,
#endif
#ifdef BOARD_NPU_IRQ
    [16 + BOARD_NPU_IRQ] = fault_handler, /* an error: what ends well is polled for */
#endif
};
