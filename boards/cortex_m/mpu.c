/* Memory protection (PMSAv8: DDI 0553, chapter B12). */
#include "cortex_m.h"

#define MPU_CTRL  REGISTER(0xE000ED94u)
#define MPU_RNR   REGISTER(0xE000ED98u)
#define MPU_RBAR  REGISTER(0xE000ED9Cu)
#define MPU_RLAR  REGISTER(0xE000EDA0u)
#define MPU_MAIR0 REGISTER(0xE000EDC0u)

enum {
    CTRL_ENABLE = 1 << 0,
    CTRL_DEFAULT_MAP = 1 << 2, /* behind the regions, for privileged code */
    RBAR_NO_EXECUTE = 1 << 0,
    RBAR_PRIVILEGED_READ_ONLY = 2 << 1,
    RBAR_PRIVILEGED_READ_WRITE = 0 << 1,
    RLAR_ENABLE = 1 << 0,
    MAIR_NORMAL_WRITE_BACK = 0xFF, /* attribute 0: inner and outer write-back, read and write allocate */
};

void mpu_set_region(uint32_t number, uintptr_t base, uintptr_t end, enum mpu_access access, int executable)
{
    MPU_MAIR0 = MAIR_NORMAL_WRITE_BACK;
    MPU_RNR = number;
    MPU_RBAR = base | (access == MPU_READ_ONLY ? RBAR_PRIVILEGED_READ_ONLY : RBAR_PRIVILEGED_READ_WRITE) |
               (executable ? 0 : RBAR_NO_EXECUTE);
    MPU_RLAR = ((end - 1) & ~(uintptr_t)31) | RLAR_ENABLE;
}

void mpu_disable(void)
{
    MPU_CTRL = 0;
    __asm volatile("dsb\n isb" ::: "memory");
}

void mpu_enable(void)
{
    MPU_CTRL = CTRL_ENABLE | CTRL_DEFAULT_MAP;
    __asm volatile("dsb\n isb" ::: "memory");
}
