/* MAX_POOL_2D and MEAN over height and width with AVX-512, 64 channels at a time. */
#include <immintrin.h>

#include "runners/int8/x86/requantize_avx512.h"

static inline __mmask64 first_bytes(uint32_t count)
{
    return count >= 64 ? ~0ull : (1ull << count) - 1;
}

size_t max_pool_2d_avx512_scratch(const struct plan *plan, const struct plan_op *op)
{
    return (size_t)tensor_in(plan, op)->w * tensor_in(plan, op)->c + 64;
}

/* First down the columns, whole rows at a time, then along the row. */
void max_pool_2d_avx512(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_window *w = &((const struct plan_pool *)op)->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out), *highest = memory.scratch;
    size_t row_bytes = (size_t)in->w * in->c;
    __m512i min = _mm512_set1_epi8((char)op->min), max = _mm512_set1_epi8((char)op->max);
    for (uint32_t row = 0; row < memory.samples * out->h; row++) {
        struct span rows = clip(row % out->h, w->stride_h, w->pad_top, w->kernel_h, in->h);
        const int8_t *first = input + (size_t)(row / out->h) * plan_elements(in) + rows.start * row_bytes;
        for (size_t i = 0; i < row_bytes; i += 64) { /* may read 63 bytes behind the rows */
            __m512i best = min;
            for (uint32_t y = 0; y < rows.count; y++)
                best = _mm512_max_epi8(best, _mm512_loadu_si512(first + y * row_bytes + i));
            _mm512_store_si512(highest + i, best);
        }
        for (uint32_t x = 0; x < out->w; x++, output += out->c) {
            struct span columns = clip(x, w->stride_w, w->pad_left, w->kernel_w, in->w);
            const int8_t *leftmost = highest + (size_t)columns.start * in->c;
            for (uint32_t c = 0; c < out->c; c += 64) {
                __mmask64 valid = first_bytes(out->c - c);
                __m512i best = min;
                for (uint32_t i = 0; i < columns.count; i++)
                    best = _mm512_max_epi8(best, _mm512_maskz_loadu_epi8(valid, leftmost + (size_t)i * in->c + c));
                _mm512_mask_storeu_epi8(output + c, valid, _mm512_min_epi8(best, max));
            }
        }
    }
}

void mean_avx512(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_mean *p = (const struct plan_mean *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct plan_scale scale = p->scale;
    int left = scale.shift > 0 && scale.shift < 8 ? scale.shift : 0; /* as means of one pixel have */
    scale.shift -= left;
    if (p->axes != 3 || !scale_fits(scale) || p->count > 1u << 22) {
        each_sample(mean, plan, op, memory);
        return;
    }
    struct rescale_lanes lanes = rescale_all(scale, out->zero_point);
    struct output_range range = {0};
    const __m512i bias = _mm512_set1_epi32((int32_t)BIAS);
    __m512i start = _mm512_set1_epi32(-in->zero_point * (int32_t)p->count);
    const int8_t *from = activation(memory, in);
    int8_t *to = activation(memory, out);
    for (uint32_t sample = 0; sample < memory.samples; sample++, from += plan_elements(in), to += in->c) {
        for (uint32_t c = 0; c < in->c; c += 64) {
            __m512i sums[4] = {start, start, start, start};
            __mmask64 valid = first_bytes(in->c - c);
            for (uint32_t i = 0; i < p->count; i++) {
                __m512i x = _mm512_maskz_loadu_epi8(valid, from + (size_t)i * in->c + c);
                sums[0] = _mm512_add_epi32(sums[0], _mm512_cvtepi8_epi32(_mm512_castsi512_si128(x)));
                sums[1] = _mm512_add_epi32(sums[1], _mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(x, 1)));
                sums[2] = _mm512_add_epi32(sums[2], _mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(x, 2)));
                sums[3] = _mm512_add_epi32(sums[3], _mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(x, 3)));
            }
            for (int i = 0; i < 4; i++)
                sums[i] = rescale_avx512(_mm512_add_epi32(_mm512_slli_epi32(sums[i], left), bias), &lanes);
            _mm512_mask_storeu_epi8(to + c, valid, narrow(sums, &range));
        }
    }
}
