/* What ST's LL_ATON takes from ST's device header and CMSIS, and nothing else of them: places, interrupts,
 * instructions. Sources: docs/stm32n6.md, [H Z] for the numbers, [A] for the NVIC. */
#ifndef STM32N6XX_H
#define STM32N6XX_H

#include <stdint.h>

#define NPU_BASE_NS 0x480E0000u
#define NPU_BASE_S  0x580E0000u

#define CPU_IN_SECURE_STATE /* LL_ATON takes NPU_BASE_S */

/* Of ST's drivers, of which there are none here; from 0.2.0 on interrupts have the names below. */
#define __STM32N6xx_HAL_VERSION 0x01000000u

typedef enum { NPU0_IRQn = 53, NPU1_IRQn, NPU2_IRQn, NPU3_IRQn } IRQn_Type;

#define NVIC_WORD(base, number) (*(volatile uint32_t *)((base) + 4u * ((uint32_t)(number) / 32)))

static inline void NVIC_EnableIRQ(IRQn_Type number)
{
    NVIC_WORD(0xE000E100u, number) = 1u << (uint32_t)number % 32;
}

static inline void NVIC_DisableIRQ(IRQn_Type number)
{
    NVIC_WORD(0xE000E180u, number) = 1u << (uint32_t)number % 32;
    __asm volatile("dsb\n isb" ::: "memory");
}

static inline void __DSB(void)
{
    __asm volatile("dsb" ::: "memory");
}

static inline void __WFE(void)
{
    __asm volatile("wfe" ::: "memory");
}

#endif
