/* The int8 peak of one core of this machine: multiply-accumulates a second from registers, nothing else. For
 * `python -m pipeline.bench`, which states shares of it. Prints one line an instruction set: name and GMAC/s. */
#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 15, LOOPS = 20000, VECTORS = 12 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 8 products of 16 x 16 x 64, accumulated in 4 tiles. */
__attribute__((target("amx-tile,amx-int8"))) static double amx(void)
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
    __asm__ volatile("" ::"r"(&config) : "memory"); /* GCC 12 does not see what the next line reads */
    _tile_loadconfig(&config);
    for (int i = 0; i < LOOPS; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return 4.0 * LOOPS * 16 * 16 * 64;
}

__attribute__((target("avx512f,avx512vnni"))) static double vnni(void)
{
    __m512i sum[VECTORS], a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2), all = _mm512_setzero_si512();
    for (int i = 0; i < VECTORS; i++)
        sum[i] = all;
    for (int i = 0; i < LOOPS; i++)
#pragma GCC unroll 12
        for (int j = 0; j < VECTORS; j++)
            __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum[j]) : "v"(a), "v"(b));
    for (int i = 0; i < VECTORS; i++)
        all = _mm512_add_epi32(all, sum[i]);
    volatile int sink = _mm512_reduce_add_epi32(all);
    (void)sink;
    return (double)VECTORS * LOOPS * 64;
}

/* Words, since bytes saturate: 16 products an instruction, and one to add them up. */
__attribute__((target("avx2"))) static double avx2(void)
{
    __m256i sum[VECTORS], a = _mm256_set1_epi16(1), b = _mm256_set1_epi16(2), all = _mm256_setzero_si256();
    for (int i = 0; i < VECTORS; i++)
        sum[i] = all;
    for (int i = 0; i < LOOPS; i++)
#pragma GCC unroll 12
        for (int j = 0; j < VECTORS; j++) {
            __m256i t;
            __asm__ volatile("vpmaddwd %2, %1, %0" : "=x"(t) : "x"(a), "x"(b));
            sum[j] = _mm256_add_epi32(sum[j], t);
        }
    for (int i = 0; i < VECTORS; i++)
        all = _mm256_add_epi32(all, sum[i]);
    volatile int sink = _mm256_extract_epi32(all, 0);
    (void)sink;
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
    unsigned a, b, c, d;
    bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) && (d >> 25 & 1);
    if (tiles && syscall(SYS_arch_prctl, 0x1023, 18) == 0)
        measure("amx", amx);
    if (__builtin_cpu_supports("avx512vnni"))
        measure("vnni", vnni);
    if (__builtin_cpu_supports("avx2"))
        measure("avx2", avx2);
    return 0;
}
