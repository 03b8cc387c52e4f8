/* The end of every product: 16 accumulators at a time to int8, bit-equal to requantize.h. */
#ifndef RUNNERS_INT8_X86_REQUANTIZE_AVX512_H
#define RUNNERS_INT8_X86_REQUANTIZE_AVX512_H

#include <immintrin.h>

#include "runners/int8/x86/packed.h"

/* struct channel_constants in registers. */
struct rescale_lanes {
    __m512i multiplier, multiplier_odd, offset_even, offset_odd, shift, sign_shift;
};

static inline struct rescale_lanes rescale_lanes(const struct channel_constants *c)
{
    __m512i m = _mm512_load_si512(c->multiplier);
    return (struct rescale_lanes){m,
                                  _mm512_srli_epi64(m, 32),
                                  _mm512_load_si512(c->offset_even),
                                  _mm512_load_si512(c->offset_odd),
                                  _mm512_load_si512(c->shift),
                                  _mm512_load_si512(c->sign_shift)};
}

/* One scale for all lanes: not for shifts to the left or by more than MAX_SHIFT. */
static inline bool scale_fits(struct plan_scale scale)
{
    return scale.shift <= 0 && scale.shift >= -MAX_SHIFT;
}

static inline struct rescale_lanes rescale_all(struct plan_scale scale, int32_t zero_point)
{
    __m512i m = _mm512_set1_epi32((int32_t)((uint32_t)scale.multiplier << 1));
    __m512i offset = _mm512_set1_epi64((long long)rescale_offset(scale, zero_point));
    return (struct rescale_lanes){
        m, m, offset, offset, _mm512_set1_epi32(-scale.shift), _mm512_set1_epi32(scale.shift < 0 ? 31 : 32)};
}

/* rescale(u - BIAS) + zero point */
static inline __m512i rescale_avx512(__m512i u, const struct rescale_lanes *r)
{
    __m512i even = _mm512_add_epi64(_mm512_mul_epu32(u, r->multiplier), r->offset_even);
    __m512i odd = _mm512_mul_epu32(_mm512_shuffle_epi32(u, (_MM_PERM_ENUM)0xF5), r->multiplier_odd);
    odd = _mm512_add_epi64(odd, r->offset_odd);
    __m512i high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, (_MM_PERM_ENUM)0xF5);
    return _mm512_srav_epi32(_mm512_add_epi32(high, _mm512_srlv_epi32(u, r->sign_shift)), r->shift);
}

struct output_range {
    __m512i min, max;
    bool clamp; /* beyond what saturation to int8 does */
};

static inline struct output_range output_range(const struct plan_op *op)
{
    return (struct output_range){_mm512_set1_epi8((char)op->min), _mm512_set1_epi8((char)op->max),
                                 op->min != -128 || op->max != 127};
}

/* Four vectors of 16 to 64 bytes in their order. */
static inline __m512i narrow(const __m512i v[4], const struct output_range *range)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    if (range->clamp)
        bytes = _mm512_min_epi8(_mm512_max_epi8(bytes, range->min), range->max);
    return _mm512_permutexvar_epi32(order, bytes);
}

/* 16 bytes each of up to four rows. */
static inline void store_rows(__m512i bytes, uint32_t rows, __mmask16 valid, int8_t *out, size_t stride)
{
    _mm_mask_storeu_epi8(out, valid, _mm512_castsi512_si128(bytes));
    if (rows > 1)
        _mm_mask_storeu_epi8(out + stride, valid, _mm512_extracti32x4_epi32(bytes, 1));
    if (rows > 2)
        _mm_mask_storeu_epi8(out + 2 * stride, valid, _mm512_extracti32x4_epi32(bytes, 2));
    if (rows > 3)
        _mm_mask_storeu_epi8(out + 3 * stride, valid, _mm512_extracti32x4_epi32(bytes, 3));
}

/* acc[rows][16] of one panel to out[row * stride]; rows is rounded up to 4 when acc is read. add_start: acc lacks the
 * start values. */
static inline void requantize_panel(const struct plan *plan, const struct plan_op *op,
                                    const struct channel_constants *constants, const int32_t *acc, uint32_t rows,
                                    uint32_t first, uint32_t channels, int8_t *out, size_t stride, bool add_start)
{
    __m512i start = add_start ? _mm512_load_si512(constants->start) : _mm512_setzero_si512();
    if (constants->general) {
        for (uint32_t r = 0; r < rows; r++) {
            int32_t sums[LANES];
            _mm512_storeu_si512(sums, _mm512_add_epi32(_mm512_load_si512(acc + r * LANES), start));
            requantize_general(plan, op, sums, first, channels, out + r * stride);
        }
        return;
    }
    struct rescale_lanes lanes = rescale_lanes(constants);
    struct output_range range = output_range(op);
    __mmask16 valid = (__mmask16)((1u << channels) - 1);
    for (uint32_t r = 0; r < rows; r += 4, acc += 4 * LANES, out += 4 * stride) {
        __m512i v[4];
        for (int i = 0; i < 4; i++) {
            v[i] = _mm512_load_si512(acc + i * LANES);
            v[i] = rescale_avx512(add_start ? _mm512_add_epi32(v[i], start) : v[i], &lanes);
        }
        store_rows(narrow(v, &range), rows - r, valid, out, stride);
    }
}

#endif
