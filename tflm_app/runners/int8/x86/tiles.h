/* AMX: may its tiles be used here, and their configuration. */
#ifndef RUNNERS_INT8_X86_TILES_H
#define RUNNERS_INT8_X86_TILES_H

#include <cpuid.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The processor has them, and the kernel permits them to all threads of this process from now on
 * (Documentation/arch/x86/xstate.rst). */
static inline bool tiles_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (AMX_TILE | AMX_INT8)) != (AMX_TILE | AMX_INT8))
        return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* All 8 tiles are 16 rows of 64 bytes. */
static inline void configure_tiles(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_per_row[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes_per_row[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

#endif
