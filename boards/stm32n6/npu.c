/* Clocks, reset, access rights and cache of the NPU. What runs on it, and how, is LL_ATON's. */
#include "npu.h"

#include "ll_aton/npu_cache.h"
#include "registers.h"

/* The cache is a memory with a clock of its own. Nothing here sleeps, so clocks for sleep are left alone. */
static void start_clocks(void)
{
    RCC_MEMENSR = RCC_MEMEN_CACHEAXIRAM;
    RCC_AHB3ENSR = RCC_AHB3EN_RIFSC;
    RCC_AHB5ENSR = RCC_AHB5_NPU | RCC_AHB5_CACHEAXI;
    (void)RCC_MEMENR;
    (void)RCC_AHB3ENR;
    (void)RCC_AHB5ENR;
}

/* Whatever ran before. */
static void reset(void)
{
    RCC_AHB5RSTSR = RCC_AHB5_NPU | RCC_AHB5_CACHEAXI;
    __asm volatile("dsb" ::: "memory");
    RCC_AHB5RSTCR = RCC_AHB5_NPU | RCC_AHB5_CACHEAXI;
    __asm volatile("dsb" ::: "memory");
}

/* As a master the NPU gets the rights of the CPU, which reaches all memories; its registers are for such accesses
 * alone. */
static void set_rights(void)
{
    const uint32_t attributes = RIFSC_RIMC_MCID_1 | RIFSC_RIMC_MSEC | RIFSC_RIMC_MPRIV;
    RIFSC_RIMC_ATTR(RIFSC_NPU_MASTER) = (RIFSC_RIMC_ATTR(RIFSC_NPU_MASTER) & ~RIFSC_RIMC_ATTRIBUTES) | attributes;
    RIFSC_RISC_SECCFGR(RIFSC_NPU_WORD) |= RIFSC_NPU;
    RIFSC_RISC_PRIVCFGR(RIFSC_NPU_WORD) |= RIFSC_NPU;
    __asm volatile("dsb" ::: "memory");
}

void npu_start(void)
{
    start_clocks();
    reset();
    set_rights();
    npu_cache_enable();
}
