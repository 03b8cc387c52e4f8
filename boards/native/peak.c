/* The int8 peak of one core of this machine: multiply-accumulates a second from registers, nothing else. For
 * `python -m pipeline.bench`, which states shares of it. Prints one line an instruction set: name and GMAC/s. */
#include <immintrin.h>
#include <stdio.h>
#include <time.h>

#include "runners/int8/x86/tiles.h"

enum { ROUNDS = 15, LOOPS = 20000, VECTORS = 12 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Products of 16 x 16 x 64, accumulated in 4 tiles. */
__attribute__((target("amx-tile,amx-int8"))) static double amx(void)
{
    configure_tiles();
    for (int i = 0; i < LOOPS; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return 4.0 * LOOPS * 16 * 16 * 64;
}

/* Twelve registers that do not wait for each other, by name: compilers would keep an array of them in memory. */
#define TWELVE(op) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13) op(14) op(15)

static double vnni(void)
{
#define DPBUSD(r) "vpdpbusd %%zmm1, %%zmm0, %%zmm" #r "\n"
    for (int i = 0; i < LOOPS; i++)
        __asm__ volatile(TWELVE(DPBUSD)::: "memory");
    return (double)VECTORS * LOOPS * 64;
}

/* Words, since bytes saturate: 16 products an instruction, and one to add them up. */
static double avx2(void)
{
#define MADD(r) "vpmaddwd %%ymm1, %%ymm0, %%ymm3\nvpaddd %%ymm3, %%ymm" #r ", %%ymm" #r "\n"
    for (int i = 0; i < LOOPS; i++)
        __asm__ volatile(TWELVE(MADD)::: "memory");
    return (double)VECTORS * LOOPS * 16;
}

static void measure(const char *name, double (*run)(void))
{
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double start = now(), macs = run(), rate = macs / (now() - start);
        best = rate > best ? rate : best;
    }
    printf("%s %.1f\n", name, best * 1e-9);
}

int main(void)
{
    if (tiles_permitted())
        measure("amx", amx);
    if (__builtin_cpu_supports("avx512vnni"))
        measure("vnni", vnni);
    if (__builtin_cpu_supports("avx2"))
        measure("avx2", avx2);
    return 0;
}
