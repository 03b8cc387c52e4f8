/* Maintenance of both caches, in the place of ST's mcu_cache.c and npu_cache.c. */
#include "ll_aton/mcu_cache.h"
#include "ll_aton/npu_cache.h"
#include "registers.h"

enum { LINE = 32 }; /* bytes of a line of the CPU's data cache */

/* The barriers: what was stored before is in the cache, and what follows finds the operation done (DDI 0553). */
static void by_line(volatile uint32_t *operation, uint32_t start, uint32_t end)
{
    __asm volatile("dsb" ::: "memory");
    for (uint32_t line = start & ~(LINE - 1u); line < end; line += LINE)
        *operation = line;
    __asm volatile("dsb\n isb" ::: "memory");
}

void mcu_cache_clean_range(uint32_t start, uint32_t end)
{
    by_line(&SCB_DCCMVAC, start, end);
}

void mcu_cache_invalidate_range(uint32_t start, uint32_t end)
{
    by_line(&SCB_DCIMVAC, start, end);
}

void mcu_cache_clean_invalidate_range(uint32_t start, uint32_t end)
{
    by_line(&SCB_DCCIMVAC, start, end);
}

static void wait_for_npu_cache(void)
{
    while (CACHEAXI_SR & (CACHEAXI_SR_BUSYF | CACHEAXI_SR_BUSYCMDF))
        continue;
}

/* After a reset the cache forgets all its lines by itself, and is enabled when it has done. */
void npu_cache_enable(void)
{
    wait_for_npu_cache();
    CACHEAXI_CR1 |= CACHEAXI_CR1_EN;
}

void npu_cache_invalidate(void)
{
    wait_for_npu_cache();
    CACHEAXI_FCR = CACHEAXI_FCR_BSYENDF | CACHEAXI_SR_CMDENDF;
    CACHEAXI_CR2 = 0;
    CACHEAXI_CR1 |= CACHEAXI_CR1_CACHEINV;
    wait_for_npu_cache();
}

static void npu_command(uint32_t command, uint32_t start, uint32_t end)
{
    if (start >= end)
        return;
    wait_for_npu_cache();
    CACHEAXI_FCR = CACHEAXI_FCR_BSYENDF | CACHEAXI_SR_CMDENDF;
    CACHEAXI_CMDRSADDRR = start;
    CACHEAXI_CMDREADDRR = end - 1;
    CACHEAXI_CR2 = command;
    CACHEAXI_CR2 = command | CACHEAXI_CR2_STARTCMD;
    while (!(CACHEAXI_SR & CACHEAXI_SR_CMDENDF))
        continue;
}

void npu_cache_clean_range(uint32_t start, uint32_t end)
{
    npu_command(CACHEAXI_CR2_CLEAN, start, end);
}

void npu_cache_clean_invalidate_range(uint32_t start, uint32_t end)
{
    npu_command(CACHEAXI_CR2_CLEAN_INVALIDATE, start, end);
}
