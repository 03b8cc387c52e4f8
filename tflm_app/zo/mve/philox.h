/* Philox4x32-10 of four counters at once, one in each lane; zo/philox.c has it one by one. */
#ifndef ZO_MVE_PHILOX_H
#define ZO_MVE_PHILOX_H

#include <arm_mve.h>

#include "zo/philox.h"

/* val[i]: word i of counter (block, stream, 0, 0) under the key key1:key0, for each lane. vst4q of it writes the four
 * words of the first lane, then those of the second, and so on. */
static inline uint32x4x4_t philox4x32_lanes(uint32x4_t key0, uint32x4_t key1, uint32x4_t block, uint32_t stream)
{
    const uint32_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
    const uint32x4_t m0 = vdupq_n_u32(multiplier0), m1 = vdupq_n_u32(multiplier1);
    uint32x4_t c0 = block, c1 = vdupq_n_u32(stream), c2 = vdupq_n_u32(0), c3 = vdupq_n_u32(0);
    for (int round = 0; round < 10; round++) {
        uint32x4_t high0 = vmulhq_u32(c0, m0), high1 = vmulhq_u32(c2, m1);
        uint32x4_t low0 = vmulq_n_u32(c0, multiplier0), low1 = vmulq_n_u32(c2, multiplier1);
        c0 = veorq_u32(veorq_u32(c1, key0), high1);
        c1 = low1;
        c2 = veorq_u32(veorq_u32(c3, key1), high0);
        c3 = low0;
        key0 = vaddq_n_u32(key0, 0x9E3779B9u);
        key1 = vaddq_n_u32(key1, 0xBB67AE85u);
    }
    return (uint32x4x4_t){{c0, c1, c2, c3}};
}

/* Four blocks of one stream, in order, from this one on: 16 words. */
static inline void philox4x32_blocks(uint64_t key, uint32_t block, uint32_t stream, uint32_t out[16])
{
    uint32x4_t key0 = vdupq_n_u32((uint32_t)key), key1 = vdupq_n_u32((uint32_t)(key >> 32));
    vst4q_u32(out, philox4x32_lanes(key0, key1, vidupq_n_u32(block, 1), stream));
}

#endif
