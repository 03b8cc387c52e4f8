/* ADD, 64 elements at a time (the arithmetic of add.c). */
#include <immintrin.h>
#include <string.h>

#include "runners/int8/x86/requantize_avx512.h"

enum { LEFT_SHIFT = 20 };

/* An input on the common scale. */
struct operand {
    const int8_t *at;
    bool half; /* its scale is one half, as that of the coarser input is: no need to multiply */
    __m512i offset;
    struct rescale_lanes lanes;
};

static struct operand operand(const int8_t *at, const struct plan_tensor *tensor, struct plan_scale scale)
{
    struct operand o = {.at = at, .half = scale.multiplier == 1 << 30 && scale.shift == 0};
    uint32_t zero = (uint32_t)tensor->zero_point;
    o.offset = _mm512_set1_epi32((int32_t)(BIAS - (zero << (LEFT_SHIFT - o.half))));
    o.lanes = rescale_all(scale, 0);
    return o;
}

/* Plus BIAS if half. */
static inline __m512i widened(const struct operand *o, const int8_t *at, bool half)
{
    __m512i v = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at));
    v = _mm512_add_epi32(_mm512_slli_epi32(v, LEFT_SHIFT - half), o->offset);
    return half ? v : rescale_avx512(v, &o->lanes);
}

/* half: whether x is of scale one half; y never is. */
static inline void add_all(const struct plan *plan, const struct plan_op *op, const struct operand *x,
                           const struct operand *y, int8_t *to, size_t count, bool half)
{
    struct rescale_lanes lanes = rescale_all(((const struct plan_add *)op)->out, tensor_out(plan, op)->zero_point);
    struct output_range range = output_range(op);
    const __m512i bias = _mm512_set1_epi32((int32_t)BIAS);
    for (size_t i = 0; i < count; i += 64) {
        int8_t tail0[64], tail1[64];
        const int8_t *a = x->at + i, *b = y->at + i;
        size_t n = count - i < 64 ? count - i : 64;
        if (n < 64) {
            a = memcpy(tail0, a, n);
            b = memcpy(tail1, b, n);
        }
        __m512i v[4];
        for (int j = 0; j < 4; j++) {
            __m512i sum = _mm512_add_epi32(widened(x, a + 16 * j, half), widened(y, b + 16 * j, false));
            v[j] = rescale_avx512(half ? sum : _mm512_add_epi32(sum, bias), &lanes);
        }
        _mm512_mask_storeu_epi8(to + i, n < 64 ? (1ull << n) - 1 : ~0ull, narrow(v, &range));
    }
}

void add_avx512(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_add *p = (const struct plan_add *)op;
    if (!scale_fits(p->in0) || !scale_fits(p->in1) || !scale_fits(p->out)) {
        each_sample(add, plan, op, memory);
        return;
    }
    struct operand x = operand(activation(memory, tensor_in(plan, op)), tensor_in(plan, op), p->in0);
    struct operand y = operand(activation(memory, &plan->tensors[op->in1]), &plan->tensors[op->in1], p->in1);
    int8_t *to = activation(memory, tensor_out(plan, op));
    size_t count = (size_t)memory.samples * plan_elements(tensor_out(plan, op));
    if (x.half && y.half) { /* equal scales: one of them the long way */
        y.half = false;
        y.offset = _mm512_set1_epi32((int32_t)(BIAS - ((uint32_t)plan->tensors[op->in1].zero_point << LEFT_SHIFT)));
    }
    if (x.half)
        add_all(plan, op, &x, &y, to, count, true);
    else if (y.half)
        add_all(plan, op, &y, &x, to, count, true);
    else
        add_all(plan, op, &x, &y, to, count, false);
}
