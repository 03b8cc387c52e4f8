/* The chip from the boot ROM's hands to the app: interrupts, clocks, memories, protection, caches, the end. */
#include "board.h"

#include <stdbool.h>
#include <string.h>

#include "board_config.h"
#include "clocks.h"
#include "fault.h"
#include "npu.h"
#include "psram.h"
#include "registers.h"
#include "uart.h"
#include "watchdog.h"

/* -- Memory protection ------------------------------------------------------------------------------------------- */

extern uint8_t vectors_start[], text_start[], text_end[], code_end[], axisram1_end[], axisram2_start[], axisram2_end[],
    axisram36_start[], axisram36_end[];

enum { NULL_PAGE_BYTES = 64 << 10, SIGNED_HEADER_BYTES = 1024 };

/* Null pointers point at the ITCM's non-secure alias, which nothing uses. */
void board_protect_memory(void)
{
    mpu_disable(); /* the boot ROM may have used it */
    mpu_set_region(0, 0, NULL_PAGE_BYTES, MPU_READ_ONLY, false);
    mpu_set_region(1, (uintptr_t)vectors_start - SIGNED_HEADER_BYTES, (uintptr_t)text_start, MPU_READ_ONLY, false);
    mpu_set_region(2, (uintptr_t)text_start, (uintptr_t)text_end, MPU_READ_ONLY, true);
    mpu_set_region(3, (uintptr_t)text_end, (uintptr_t)code_end, MPU_READ_ONLY, false);
    mpu_set_region(4, (uintptr_t)code_end, (uintptr_t)axisram1_end, MPU_READ_WRITE, false);
    mpu_set_region(5, (uintptr_t)axisram2_start, (uintptr_t)axisram2_end, MPU_READ_WRITE, false);
    mpu_set_region(6, (uintptr_t)axisram36_start, (uintptr_t)axisram36_end, MPU_READ_WRITE, false);
    mpu_enable();
}

/* -- The board's clock ------------------------------------------------------------------------------------------- */

/* SysTick counts down 24 bits of the core's clock; how often it went through them is counted here. */
static volatile uint32_t clock_rounds;

enum { CLOCK_ROUND = 1 << 24 };

void board_tick(void)
{
    clock_rounds++;
}

static void start_clock(void)
{
    SYST_RVR = CLOCK_ROUND - 1;
    SYST_CVR = 0;
    SYST_CSR = SYST_CSR_ENABLE | SYST_CSR_INTERRUPT | SYST_CSR_CORE_CLOCK;
}

/* With interrupts masked, a round that ended is either counted or pending. A round ends at 0; the cycle after that
 * reloads the counter. */
uint64_t clock_now(void)
{
    __asm volatile("cpsid i" ::: "memory");
    uint32_t left = SYST_CVR, rounds = clock_rounds;
    if (SCB_ICSR & ICSR_PENDSTSET) {
        left = SYST_CVR;
        rounds++;
    }
    __asm volatile("cpsie i" ::: "memory");
    return (uint64_t)rounds * CLOCK_ROUND + (CLOCK_ROUND - left) % CLOCK_ROUND;
}

/* -- Memories ---------------------------------------------------------------------------------------------------- */

/* AXISRAM3 to 6 have neither clock nor power after reset. The CPU is secure, privileged and of compartment 1: RIF's
 * reset state lets it into all of them, so nothing of it is touched. */
static void power_memories(void)
{
    RCC_MEMENSR = RCC_MEMEN_AXISRAM1_AND_2 | RCC_MEMEN_AXISRAM3_TO_6;
    RCC_AHB2ENSR = RCC_AHB2EN_RAMCFG;
    (void)RCC_MEMENR;
    (void)RCC_AHB2ENR;
    for (unsigned n = 3; n <= 6; n++) {
        RAMCFG_AXISRAM_CR(n) &= ~RAMCFG_CR_SRAMSD;
        (void)RAMCFG_AXISRAM_CR(n);
    }
}

/* Every line of the data cache is forgotten by set and way (DDI 0553, "DCISW"): its bits are random at first. */
static void forget_data(void)
{
    SCB_CSSELR = 0; /* level 1, data */
    __asm volatile("dsb" ::: "memory");
    uint32_t shape = SCB_CCSIDR;
    uint32_t sets = (shape >> 13 & 0x7FFF) + 1, ways = (shape >> 3 & 0x3FF) + 1;
    uint32_t line_shift = (shape & 7) + 4, way_shift = ways > 1 ? (uint32_t)__builtin_clz(ways - 1) : 0;
    for (uint32_t set = 0; set < sets; set++)
        for (uint32_t way = 0; way < ways; way++)
            SCB_DCISW = way << way_shift | set << line_shift;
}

/* A data cache that is on already holds what this program has written: it stays as it is. */
static void start_caches(void)
{
    MEMSYSCTL_MSCR |= MSCR_ICACTIVE | MSCR_DCACTIVE;
    __asm volatile("dsb\n isb" ::: "memory");
    SCB_ICIALLU = 0;
    if (!(SCB_CCR & CCR_DATA_CACHE))
        forget_data();
    __asm volatile("dsb\n isb" ::: "memory");
    SCB_CCR |= CCR_INSTRUCTION_CACHE | CCR_DATA_CACHE;
    __asm volatile("dsb\n isb" ::: "memory");
}

/* -- Start and end ----------------------------------------------------------------------------------------------- */

void board_start(void)
{
    SAU_CTRL = 0; /* all memory is secure */
    clocks_start();
    start_clock();
    /* A core that a debugger holds is not reset. */
    RCC_MISCENSR = RCC_MISCEN_DBG;
    DBGMCU_APB4FZ1 |= DBGMCU_APB4FZ1_IWDG;
    /* From here on faults and hangs are told over the line. */
    watchdog_start(BOARD_WATCHDOG_SECONDS);
    uart_start();
    power_memories();
    start_caches();
#ifdef BOARD_VARIANT_DK
    psram_start();
#endif
#ifdef BOARD_NPU_IRQ
    npu_start();
#endif
}

void board_print(const char *text)
{
    uart_write((const uint8_t *)text, strlen(text));
}

_Noreturn static void system_reset(void)
{
    uart_flush();
    __asm volatile("dsb" ::: "memory");
    SCB_AIRCR = (uint32_t)AIRCR_SYSTEM_RESET;
    __asm volatile("dsb" ::: "memory");
    for (;;)
        continue;
}

void board_end_after_fault(void)
{
    system_reset();
}

void board_exit(int code)
{
    (void)code;
    system_reset();
}
