/* The registers of the STM32N657 that the firmware uses, by the names of ST's reference manual RM0486, at their secure
 * addresses. Where each was read: docs/stm32n6.md, "Sources"; in short
 *   [D]  embassy-rs/stm32-data, data/registers/ and data/extra/STM32N6.yaml
 *   [H]  the register map in ST's CMSIS device header stm32n657xx.h (facts only: no line of it is here)
 *   [V]  ST's SVD of the chip; [U] Umbra, a secure boot for the NUCLEO-N657X0-Q
 *   [Z]  Zephyr, dts/arm/st/n6/stm32n6.dtsi
 *   [A]  Arm v8-M Architecture Reference Manual (DDI 0553), Cortex-M55 TRM (101051) */
#ifndef REGISTERS_H
#define REGISTERS_H

#include "cortex_m.h"

/* -- Reset and clock control: 0x56028000 [H Z]; offsets and bits [D H]. -SR sets the bits written as 1, -CR clears. */

#define RCC(offset) REGISTER(0x56028000u + (offset))

#define RCC_SR        RCC(0x004)
#define RCC_CFGR1     RCC(0x020)
#define RCC_HSICFGR   RCC(0x048)
#define RCC_CCIPR13   RCC(0x174)
#define RCC_MEMENR    RCC(0x24C)
#define RCC_AHB2ENR   RCC(0x254)
#define RCC_AHB3ENR   RCC(0x258)
#define RCC_AHB4ENR   RCC(0x25C)
#define RCC_AHB5ENR   RCC(0x260)
#define RCC_APB2ENR   RCC(0x26C)
#define RCC_CSR       RCC(0x800)
#define RCC_AHB5RSTSR RCC(0xA20)
#define RCC_MISCENSR  RCC(0xA48)
#define RCC_MEMENSR   RCC(0xA4C)
#define RCC_AHB2ENSR  RCC(0xA54)
#define RCC_AHB3ENSR  RCC(0xA58)
#define RCC_AHB4ENSR  RCC(0xA5C)
#define RCC_AHB5ENSR  RCC(0xA60)
#define RCC_APB2ENSR  RCC(0xA6C)
#define RCC_AHB5RSTCR RCC(0x1220)

enum {
    RCC_HSION = 1 << 3,                 /* CSR; HSIRDY in SR has the same place */
    RCC_CFGR1_CPUSW = 3 << 16,          /* 0: HSI, 3: IC1; CPUSWS, 4 bits higher, is what is in use */
    RCC_CFGR1_SYSSW = 3 << 24,          /* 0: HSI, 3: IC2, IC6 and IC11; SYSSWS likewise */
    RCC_CFGR1_STATUS_SHIFT = 4,         /* from a switch to its status */
    RCC_HSICFGR_HSIDIV = 3 << 7,        /* 0: not divided */
    RCC_CCIPR13_USART1SEL = 7 << 0,     /* kernel clock of USART1 */
    RCC_USART1SEL_HSI = 6,              /* HSI after HSIDIV */
    RCC_MISCEN_DBG = 1 << 0,            /* DBGMCU's registers */
    RCC_MEMEN_AXISRAM3_TO_6 = 0xF << 0, /* [D H Z] */
    RCC_MEMEN_AXISRAM1_AND_2 = 3 << 7,  /* on after reset; written for safety */
    RCC_MEMEN_CACHEAXIRAM = 1 << 10,    /* [H U] */
    RCC_AHB2EN_RAMCFG = 1 << 12,        /* [D H Z] */
    RCC_AHB3EN_RIFSC = 1 << 9,          /* [H] */
    RCC_AHB4EN_GPIOE = 1 << 4,          /* [D H Z] */
    RCC_APB2EN_USART1 = 1 << 4,         /* [D H Z] */
    RCC_AHB5_CACHEAXI = 1 << 30,        /* of AHB5EN and AHB5RST [H U] */
};

#define RCC_AHB5_NPU (1u << 31) /* of AHB5EN and AHB5RST [H U] */

/* PLLs: n from 1 to 4; dividers of their outputs (ICs): n from 1 to 20 [D H]. */
#define RCC_CFGR2       RCC(0x024)
#define RCC_PLLCFGR1(n) RCC(0x080 + 16 * ((n) - 1))
#define RCC_PLLCFGR2(n) RCC(0x084 + 16 * ((n) - 1)) /* fraction of the multiplier */
#define RCC_PLLCFGR3(n) RCC(0x088 + 16 * ((n) - 1))
#define RCC_ICCFGR(n)   RCC(0x0C4 + 4 * ((n) - 1))
#define RCC_DIVENSR     RCC(0xA40)
#define RCC_CCR         RCC(0x1000) /* clears the bits of CR that are written as 1 */

#define RCC_PLLON(n) (1u << (7 + (n))) /* CR; PLLRDY in SR has the same place */
#define RCC_ICEN(n)  (1u << ((n) - 1)) /* DIVENR */

enum {
    RCC_CFGR2_PRESCALERS = 0x777077, /* of AHB, APB5, 4, 2, 1; 0: not divided */
    RCC_CFGR2_HPRE_2 = 1 << 20,      /* AHB at half of AXI; so after reset */
    RCC_PLLCFGR1_DIVN_SHIFT = 8,
    RCC_PLLCFGR1_DIVM_SHIFT = 20,
    RCC_PLLCFGR1_BYP = 1 << 27,     /* the source, 0: HSI, goes through */
    RCC_PLLCFGR3_MODSSRST = 1 << 0, /* spread spectrum held in reset */
    RCC_PLLCFGR3_MODSSDIS = 1 << 2, /* and disabled */
    RCC_PLLCFGR3_PDIV2_SHIFT = 24,
    RCC_PLLCFGR3_PDIV1_SHIFT = 27,
    RCC_PLLCFGR3_PDIVEN = 1 << 30, /* output */
    RCC_ICCFGR_INT_SHIFT = 16,     /* divides by so much and one */
    RCC_ICCFGR_SEL_SHIFT = 28,     /* 0: PLL1 */
};

/* What the PSRAM on XSPI1 takes [D H Z]; bits of AHB5 are clocks and resets. */
#define RCC_CCIPR6 RCC(0x158)

enum {
    RCC_CCIPR6_XSPI1SEL = 3 << 0, /* 0: AHB's clock */
    RCC_MISCEN_XSPIPHYCOMP = 1 << 3,
    RCC_AHB4EN_GPIOO = 1 << 14,
    RCC_AHB4EN_GPIOP = 1 << 15,
    RCC_AHB4EN_PWR = 1 << 18,
    RCC_AHB5_XSPI1 = 1 << 5,
    RCC_AHB5_XSPI2 = 1 << 12,
    RCC_AHB5_XSPIM = 1 << 13,
};

/* -- RAM configuration: 0x52023000, 0x80 a memory, AXISRAM1 first [H Z] ------------------------------------------ */

#define RAMCFG_AXISRAM_CR(n) REGISTER(0x52023000u + 0x80u * ((n) - 1)) /* n: 1 to 6 */

enum { RAMCFG_CR_SRAMSD = 1 << 20 }; /* shut down: after reset so for AXISRAM3 to 6 [H] */

/* -- RIF's security controller: 0x54024000 [H U]; registers and bits [D H U] --------------------------------------- */

#define RIFSC_RISC_SECCFGR(n)  REGISTER(0x54024010u + 4 * (n)) /* a bit a peripheral: for secure access alone */
#define RIFSC_RISC_PRIVCFGR(n) REGISTER(0x54024030u + 4 * (n)) /* for privileged access alone */
#define RIFSC_RIMC_ATTR(n)     REGISTER(0x54024C10u + 4 * (n)) /* of accesses by master n */

enum {
    RIFSC_NPU_MASTER = 1,          /* n of RIMC_ATTR [H U] */
    RIFSC_NPU_WORD = 3,            /* n of RISC_SECCFGR and RISC_PRIVCFGR, */
    RIFSC_NPU = 1 << 10,           /* and the bit in it [H U] */
    RIFSC_RIMC_MCID_1 = 1 << 4,    /* compartment 1, as the CPU is */
    RIFSC_RIMC_MSEC = 1 << 8,      /* secure */
    RIFSC_RIMC_MPRIV = 1 << 9,     /* privileged */
    RIFSC_RIMC_ATTRIBUTES = 0x370, /* all of these */
};

/* -- CACHEAXI, the NPU's cache: 0x580DFC00 [H]; registers and bits [H V] ----------------------------------------- */

#define CACHEAXI_CR1        REGISTER(0x580DFC00u)
#define CACHEAXI_SR         REGISTER(0x580DFC04u)
#define CACHEAXI_FCR        REGISTER(0x580DFC0Cu)
#define CACHEAXI_CR2        REGISTER(0x580DFD00u)
#define CACHEAXI_CMDRSADDRR REGISTER(0x580DFD04u) /* first address of a command, */
#define CACHEAXI_CMDREADDRR REGISTER(0x580DFD08u) /* and last, in lines of 64 bytes */

enum {
    CACHEAXI_CR1_EN = 1 << 0,
    CACHEAXI_CR1_CACHEINV = 1 << 1, /* forget all */
    CACHEAXI_SR_BUSYF = 1 << 0,     /* forgetting all, as after reset */
    CACHEAXI_SR_BUSYCMDF = 1 << 3,
    CACHEAXI_SR_CMDENDF = 1 << 4, /* the same bits of FCR clear the flags of an end */
    CACHEAXI_FCR_BSYENDF = 1 << 1,
    CACHEAXI_CR2_STARTCMD = 1 << 0,
    CACHEAXI_CR2_CLEAN = 1 << 1,
    CACHEAXI_CR2_CLEAN_INVALIDATE = 3 << 1,
};

/* -- GPIO port E: 0x56021000 [H Z]; two or four bits a pin [D] --------------------------------------------------- */

#define GPIOE_MODER REGISTER(0x56021000u)
#define GPIOE_PUPDR REGISTER(0x5602100Cu)
#define GPIOE_AFRL  REGISTER(0x56021020u)

enum { GPIO_MODE_ALTERNATE = 2, GPIO_PULL_UP = 1, GPIO_AF_USART1 = 7 };

/* -- GPIO ports O and P: 0x56023800, 0x56023C00 [H Z]; as port E ------------------------------------------------- */

#define GPIOO_MODER   REGISTER(0x56023800u)
#define GPIOO_OSPEEDR REGISTER(0x56023808u) /* 3: the fastest */
#define GPIOO_AFRL    REGISTER(0x56023820u)
#define GPIOP_MODER   REGISTER(0x56023C00u)
#define GPIOP_OSPEEDR REGISTER(0x56023C08u)
#define GPIOP_AFRL    REGISTER(0x56023C20u)
#define GPIOP_AFRH    REGISTER(0x56023C24u) /* pins 8 to 15 */

/* -- Power: 0x56024800 [H]; bits [D H] --------------------------------------------------------------------------- */

#define PWR_SVMCR3 REGISTER(0x5602483Cu)

enum { PWR_SVMCR3_VDDIO2SV = 1 << 8 }; /* the supply of ports O and P is valid */

/* -- XSPI1: 0x58025000 [H Z]; registers and bits [D H] ----------------------------------------------------------- */

#define XSPI1_CR   REGISTER(0x58025000u)
#define XSPI1_DCR1 REGISTER(0x58025008u)
#define XSPI1_DCR2 REGISTER(0x5802500Cu) /* divides by so much and one */
#define XSPI1_DCR3 REGISTER(0x58025010u)
#define XSPI1_DCR4 REGISTER(0x58025014u) /* cycles after which NCS is released */
#define XSPI1_SR   REGISTER(0x58025020u)
#define XSPI1_FCR  REGISTER(0x58025024u) /* clears flags of SR */
#define XSPI1_DLR  REGISTER(0x58025040u) /* bytes less one */
#define XSPI1_AR   REGISTER(0x58025048u)
#define XSPI1_DR   (*(volatile uint8_t *)0x58025050u) /* by bytes */
#define XSPI1_CCR  REGISTER(0x58025100u)
#define XSPI1_TCR  REGISTER(0x58025108u)
#define XSPI1_IR   REGISTER(0x58025110u)
#define XSPI1_WCCR REGISTER(0x58025180u) /* as the three before, for writes to the memory that is mapped */
#define XSPI1_WTCR REGISTER(0x58025188u)
#define XSPI1_WIR  REGISTER(0x58025190u)

enum {
    XSPI_CR_EN = 1 << 0,
    XSPI_CR_ABORT = 1 << 1,
    XSPI_CR_NOPREF = 1 << 25, /* [H] */
    XSPI_CR_WRITE = 0 << 28,
    XSPI_CR_READ = 1 << 28,
    XSPI_CR_MAPPED = 3 << 28,
    XSPI_DCR1_CSHT_SHIFT = 8,        /* NCS is high for so many cycles and one */
    XSPI_DCR1_DEVSIZE_SHIFT = 16,    /* 2 to the power of so much and one, bytes */
    XSPI_DCR1_APMEMORY_16 = 6 << 24, /* AP Memory, sixteen data lines [H] */
    XSPI_DCR3_CSBOUND_SHIFT = 16,    /* NCS is released where 2 to the power of so much divides the address */
    XSPI_SR_TCF = 1 << 1,            /* complete */
    XSPI_SR_FTF = 1 << 2,            /* there is a byte to take */
    XSPI_SR_BUSY = 1 << 5,
    XSPI_CCR_COMMAND = 0x3C04,           /* one byte on eight lines; 32 bits of address, both edges */
    XSPI_CCR_DATA_8 = 4 << 24 | 1 << 27, /* both edges */
    XSPI_CCR_DATA_16 = 5 << 24 | 1 << 27,
    XSPI_CCR_DQSE = 1 << 29, /* data strobes */
    XSPI_TCR_DHQC = 1 << 28, /* outputs a quarter of a cycle later; the number of dummy cycles is at 0 */
};

/* -- USART1: 0x52001000, interrupt 159 [H Z]; registers and bits [D H] ------------------------------------------- */

#define USART1_CR1   REGISTER(0x52001000u)
#define USART1_CR2   REGISTER(0x52001004u)
#define USART1_CR3   REGISTER(0x52001008u)
#define USART1_BRR   REGISTER(0x5200100Cu)
#define USART1_ISR   REGISTER(0x5200101Cu)
#define USART1_ICR   REGISTER(0x52001020u)
#define USART1_RDR   REGISTER(0x52001024u)
#define USART1_TDR   REGISTER(0x52001028u)
#define USART1_PRESC REGISTER(0x5200102Cu)

enum {
    USART_CR1_UE = 1 << 0,
    USART_CR1_RE = 1 << 2,
    USART_CR1_TE = 1 << 3,
    USART_CR1_RXFNEIE = 1 << 5,
    USART_CR1_FIFOEN = 1 << 29,
    USART_ISR_ERRORS = 0xF, /* parity, framing, noise, overrun; the same bits of ICR clear them */
    USART_ISR_RXFNE = 1 << 5,
    USART_ISR_TC = 1 << 6,
    USART_ISR_TXFNF = 1 << 7,
    USART_ISR_TEACK = 1 << 21,
    USART_ISR_REACK = 1 << 22,
};

/* -- Independent watchdog: 0x56004800, interrupt 18 [H Z]; registers [D H]; clocked by LSI ----------------------- */

#define IWDG_KR   REGISTER(0x56004800u)
#define IWDG_PR   REGISTER(0x56004804u)
#define IWDG_RLR  REGISTER(0x56004808u)
#define IWDG_SR   REGISTER(0x5600480Cu)
#define IWDG_EWCR REGISTER(0x56004814u)

enum {
    IWDG_KEY_START = 0xCCCC,
    IWDG_KEY_WRITE = 0x5555,
    IWDG_KEY_RELOAD = 0xAAAA,
    IWDG_DIVIDE_1024 = 8, /* PR */
    IWDG_RLR_MOST = 0xFFF,
    IWDG_SR_UPDATING = 0xF, /* PR, RLR, WINR, EWCR are on their way into the other clock domain */
    IWDG_EWCR_EWIC = 1 << 14,
    IWDG_EWCR_EWIE = 1 << 15,
    IWDG_LSI_HZ = 32000,
};

/* -- DBGMCU: 0x54001000 [H O] -------------------------------------------------------------------------------------- */

#define DBGMCU_APB4FZ1 REGISTER(0x5400101Cu)

enum { DBGMCU_APB4FZ1_IWDG = 1 << 18 }; /* the watchdog stands still while a debugger holds the core [D H] */

/* -- The core [A] ------------------------------------------------------------------------------------------------ */

#define SYST_CSR       REGISTER(0xE000E010u)
#define SYST_RVR       REGISTER(0xE000E014u)
#define SYST_CVR       REGISTER(0xE000E018u)
#define NVIC_ISER(n)   REGISTER(0xE000E100u + 4 * ((n) / 32))
#define SCB_ICSR       REGISTER(0xE000ED04u)
#define SCB_AIRCR      REGISTER(0xE000ED0Cu)
#define SCB_CCR        REGISTER(0xE000ED14u)
#define SCB_CCSIDR     REGISTER(0xE000ED80u)
#define SCB_CSSELR     REGISTER(0xE000ED84u)
#define SAU_CTRL       REGISTER(0xE000EDD0u)
#define SCB_ICIALLU    REGISTER(0xE000EF50u)
#define SCB_DCIMVAC    REGISTER(0xE000EF5Cu)
#define SCB_DCISW      REGISTER(0xE000EF60u)
#define SCB_DCCMVAC    REGISTER(0xE000EF68u)
#define SCB_DCCIMVAC   REGISTER(0xE000EF70u)
#define MEMSYSCTL_MSCR REGISTER(0xE001E000u)

enum {
    SYST_CSR_ENABLE = 1 << 0,
    SYST_CSR_INTERRUPT = 1 << 1,
    SYST_CSR_CORE_CLOCK = 1 << 2,
    ICSR_PENDSTSET = 1 << 26,
    AIRCR_SYSTEM_RESET = 0x05FA0004,
    CCR_DATA_CACHE = 1 << 16,
    CCR_INSTRUCTION_CACHE = 1 << 17,
    MSCR_DCACTIVE = 1 << 12,
    MSCR_ICACTIVE = 1 << 13,
};

#endif
