/* ADD, 64 elements at a time (the arithmetic of add.c). */
#include <immintrin.h>
#include <string.h>

#include "runners/int8/x86/requantize_avx512.h"

enum { LEFT_SHIFT = 20 };

static inline __m512i widened(const int8_t *at, __m512i zero, bool half, const struct rescale_lanes *lanes)
{
    __m512i v = _mm512_sub_epi32(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)), zero);
    /* a scale of one half: what the larger of the two inputs has */
    return half ? _mm512_slli_epi32(v, LEFT_SHIFT - 1) : rescale_avx512(_mm512_slli_epi32(v, LEFT_SHIFT), lanes);
}

static inline void add_all(const struct plan *plan, const struct plan_op *op, const int8_t *x, const int8_t *y,
                           int8_t *to, size_t count, bool half0, bool half1)
{
    const struct plan_add *p = (const struct plan_add *)op;
    struct rescale_lanes lanes0 = rescale_all(p->in0, 0), lanes1 = rescale_all(p->in1, 0);
    struct rescale_lanes lanes2 = rescale_all(p->out, tensor_out(plan, op)->zero_point);
    struct output_range range = output_range(op);
    __m512i zero0 = _mm512_set1_epi32(plan->tensors[op->in0].zero_point);
    __m512i zero1 = _mm512_set1_epi32(plan->tensors[op->in1].zero_point);
    for (size_t i = 0; i < count; i += 64) {
        int8_t tail0[64], tail1[64];
        const int8_t *a = x + i, *b = y + i;
        size_t n = count - i < 64 ? count - i : 64;
        if (n < 64) {
            a = memcpy(tail0, a, n);
            b = memcpy(tail1, b, n);
        }
        __m512i v[4];
        for (int j = 0; j < 4; j++)
            v[j] = rescale_avx512(_mm512_add_epi32(widened(a + 16 * j, zero0, half0, &lanes0),
                                                   widened(b + 16 * j, zero1, half1, &lanes1)),
                                  &lanes2);
        _mm512_mask_storeu_epi8(to + i, n < 64 ? (1ull << n) - 1 : ~0ull, narrow(v, &range));
    }
}

void add_avx512(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_add *p = (const struct plan_add *)op;
    if (!scale_fits(p->in0) || !scale_fits(p->in1) || !scale_fits(p->out)) {
        for (memory.sample = 0; memory.sample < memory.samples; memory.sample++)
            add(plan, op, memory);
        return;
    }
    const int8_t *x = activation(memory, tensor_in(plan, op)), *y = activation(memory, &plan->tensors[op->in1]);
    int8_t *to = activation(memory, tensor_out(plan, op));
    size_t count = (size_t)memory.samples * plan_elements(tensor_out(plan, op));
    bool half0 = p->in0.multiplier == 1 << 30 && p->in0.shift == 0;
    bool half1 = p->in1.multiplier == 1 << 30 && p->in1.shift == 0;
    if (half0)
        add_all(plan, op, x, y, to, count, true, false);
    else if (half1)
        add_all(plan, op, x, y, to, count, false, true);
    else
        add_all(plan, op, x, y, to, count, false, false);
}
