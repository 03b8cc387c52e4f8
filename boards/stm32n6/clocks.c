/* PLL1 multiplies HSI to 2.4 GHz, which four dividers (ICs) bring down: core 600 MHz, AXI 400, AHB and APB 200, NPU and
 * AXISRAM3 to 6 800. So much is allowed without overdrive, at the voltage that both boards' supplies give after reset:
 * neither that nor PWR is touched (docs/stm32n6.md, "Clocks"). */
#include "clocks.h"

#include "board_config.h"
#include "registers.h"
#include "wait.h"

enum {
    PLL_DIVIDE = 4,     /* 16 MHz, of 1 to 50 */
    PLL_MULTIPLY = 150, /* 2,400 MHz, of at most 3,200 */
    PLL_MHZ = BOARD_HSI_HZ / 1000000 / PLL_DIVIDE * PLL_MULTIPLY,
    CORE_MHZ = 600,
    AXI_MHZ = 400,
    NPU_MHZ = 800,
    AXISRAM3_TO_6_MHZ = 800,
};

static uint32_t core_hertz = BOARD_HSI_HZ;

uint32_t clocks_core_hertz(void)
{
    return core_hertz;
}

uint32_t clocks_ahb_hertz(void)
{
    return (core_hertz == BOARD_HSI_HZ ? BOARD_HSI_HZ : AXI_MHZ * 1000000u) / 2;
}

/* Both switches, or one, to HSI or to what PLL1 feeds. */
static bool switch_to(uint32_t switches, uint32_t source)
{
    RCC_CFGR1 = (RCC_CFGR1 & ~switches) | source;
    return wait_for(&RCC_CFGR1, switches << RCC_CFGR1_STATUS_SHIFT, source << RCC_CFGR1_STATUS_SHIFT);
}

/* 64 MHz for core and buses, with nothing that a board could lack. */
static bool run_on_hsi(void)
{
    RCC_CSR = RCC_HSION;
    if (!wait_for(&RCC_SR, RCC_HSION, RCC_HSION) || !switch_to(RCC_CFGR1_CPUSW | RCC_CFGR1_SYSSW, 0))
        return false;
    RCC_HSICFGR &= ~RCC_HSICFGR_HSIDIV; /* now that no PLL of it is in use */
    return true;
}

/* As all PLLs are after reset: off, HSI goes through. */
static bool bypass_pll(unsigned n)
{
    RCC_CCR = RCC_PLLON(n);
    if (!wait_for(&RCC_SR, RCC_PLLON(n), 0))
        return false;
    RCC_PLLCFGR1(n) = RCC_PLLCFGR1_BYP;
    RCC_PLLCFGR3(n) |= RCC_PLLCFGR3_PDIVEN;
    return true;
}

static bool start_pll1(void)
{
    if (!bypass_pll(1))
        return false;
    RCC_PLLCFGR1(1) = PLL_DIVIDE << RCC_PLLCFGR1_DIVM_SHIFT | PLL_MULTIPLY << RCC_PLLCFGR1_DIVN_SHIFT;
    RCC_PLLCFGR2(1) = 0;
    RCC_PLLCFGR3(1) = RCC_PLLCFGR3_MODSSRST | RCC_PLLCFGR3_MODSSDIS | 1 << RCC_PLLCFGR3_PDIV1_SHIFT |
                      1 << RCC_PLLCFGR3_PDIV2_SHIFT | RCC_PLLCFGR3_PDIVEN;
    RCC_CSR = RCC_PLLON(1);
    if (wait_for(&RCC_SR, RCC_PLLON(1), RCC_PLLON(1)))
        return true;
    bypass_pll(1);
    return false;
}

/* From PLL1. A divider changes its source only while the old one runs as well. */
static bool start_divider(unsigned n, uint32_t mhz)
{
    unsigned old = (RCC_ICCFGR(n) >> RCC_ICCFGR_SEL_SHIFT & 3) + 1;
    bool runs = RCC_SR & RCC_PLLON(old) || RCC_PLLCFGR1(old) & RCC_PLLCFGR1_BYP;
    if (!runs && !bypass_pll(old))
        return false;
    RCC_ICCFGR(n) = (PLL_MHZ / mhz - 1) << RCC_ICCFGR_INT_SHIFT;
    RCC_DIVENSR = RCC_ICEN(n);
    return true;
}

/* The system's switch takes IC2, IC6 and IC11. */
static bool run_on_pll(void)
{
    return start_divider(1, CORE_MHZ) && start_divider(2, AXI_MHZ) && start_divider(6, NPU_MHZ) &&
           start_divider(11, AXISRAM3_TO_6_MHZ) && switch_to(RCC_CFGR1_CPUSW, RCC_CFGR1_CPUSW) &&
           switch_to(RCC_CFGR1_SYSSW, RCC_CFGR1_SYSSW);
}

/* The buses' prescalers first: no bus ever runs faster than it may. */
void clocks_start(void)
{
    RCC_CFGR2 = (RCC_CFGR2 & ~RCC_CFGR2_PRESCALERS) | RCC_CFGR2_HPRE_2;
    if (!run_on_hsi() || !BOARD_PLL || !start_pll1())
        return;
    if (run_on_pll())
        core_hertz = CORE_MHZ * 1000000u;
    else
        run_on_hsi();
}
