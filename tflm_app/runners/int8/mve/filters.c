/* Dot products of four filters with two pixels: 6 loads for 8 x 16 products. The inputs are raw, so their zero point
 * takes zero point * (sum of the filter's weights) off; the weights change every pass, so their sums are made in every
 * pass, as dot products with a pixel of ones that goes with the first pixel. */
#include "runners/int8/mve/filters.h"

#include <string.h>

enum { QUAD = 4, QUAD_CONSTANTS = 3 * QUAD }; /* of four channels: bias less the zero point's part, multiplier, shift */

static uint32_t blocks(uint32_t depth)
{
    return (depth + 15) / 16;
}

static size_t constants_bytes(uint32_t channels)
{
    return (size_t)(channels + QUAD - 1) / QUAD * QUAD_CONSTANTS * sizeof(int32_t);
}

size_t filters_scratch(uint32_t depth, uint32_t channels, bool one_pixel)
{
    return (one_pixel ? 0 : constants_bytes(channels)) + 32 * blocks(depth);
}

struct filters filters_of(const struct plan *plan, const struct plan_op *op, const struct plan_filter *filter,
                          uint32_t depth, bool one_pixel, void *scratch)
{
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct filters filters = {
        .weights = (const int8_t *)plan->model + filter->weights,
        .stride = depth,
        .depth = depth,
        .channels = out->c,
        .bias = filter->bias == PLAN_NO_BIAS ? NULL : (const int32_t *)(plan->model + filter->bias),
        .multipliers = plan->pool + filter->scales,
        .shifts = plan->pool + filter->scales + out->c,
        .input_zero = in->zero_point,
        .output_zero = out->zero_point,
        .min = op->min,
        .max = op->max,
        .constants = one_pixel ? NULL : scratch,
        .inputs = (int8_t *)scratch + (one_pixel ? 0 : constants_bytes(out->c)),
    };
    return filters;
}

void filters_start(const struct filters *filters)
{
    mve_fill(filters->inputs + 32 * (blocks(filters->depth) - 1), 0, 32);
}

/* a, b: dot products of filters weights + 0, 1, 2, 3 * stride with pixels 0 and 1 up to end. Every even register sums,
 * every odd one points; the first 16 products have no sum to add to. */
static inline void dot_4x2(const int8_t *weights, uint32_t stride, const int8_t *inputs, const int8_t *end,
                           int32x4_t *a, int32x4_t *b)
{
#define BLOCK(MLA)                                                                                                     \
    "vldrb.8 q1, [r9, #16]\n"                                                                                          \
    "vldrb.8 q0, [r9], #32\n"                                                                                          \
    "vldrb.8 q2, [r1], #16\n" MLA ".s8 r0, q0, q2\n" MLA ".s8 r8, q1, q2\n"                                            \
    "vldrb.8 q2, [r3], #16\n" MLA ".s8 r2, q0, q2\n" MLA ".s8 r10, q1, q2\n"                                           \
    "vldrb.8 q2, [r5], #16\n" MLA ".s8 r4, q0, q2\n" MLA ".s8 r12, q1, q2\n"                                           \
    "vldrb.8 q2, [r7], #16\n" MLA ".s8 r6, q0, q2\n" MLA ".s8 lr, q1, q2\n"
    register const int8_t *w0 __asm("r1") = weights;
    register uint32_t w1 __asm("r3") = stride;
    register const int8_t *x __asm("r9") = inputs;
    register const int8_t *stop __asm("r11") = end;
    __asm volatile("add r5, r1, r3, lsl #1\n"
                   "add r7, r5, r3\n"
                   "add r3, r1, r3\n" BLOCK("vmladav") /* */
                   "cmp r9, r11\n"
                   "beq 2f\n"
                   "1:\n" BLOCK("vmladava") /* */
                   "cmp r9, r11\n"
                   "bne 1b\n"
                   "2: vmov %e[a], r0, r2\n"
                   "vmov %f[a], r4, r6\n"
                   "vmov %e[b], r8, r10\n"
                   "vmov %f[b], r12, lr\n"
                   : "+r"(w0), "+r"(w1), "+r"(x), [a] "=&w"(*a), [b] "=&w"(*b)
                   : "r"(stop)
                   : "r0", "r2", "r4", "r5", "r6", "r7", "r8", "r10", "r12", "lr", "q0", "q1", "q2", "cc");
#undef BLOCK
}

struct constants {
    int32x4_t bias, multiplier, shift;
};

struct range {
    int32x4_t zero, min, max;
};

static inline void store(int32x4_t acc, struct constants constants, struct range range, bool clamped, int8_t *out)
{
    acc = mve_rescale(vaddq_s32(acc, constants.bias), constants.multiplier, constants.shift, clamped);
    acc = vaddq_s32(acc, range.zero);
    vstrbq_s32(out, vminq_s32(vmaxq_s32(acc, range.min), range.max));
}

/* Of channels that are no multiple of four, the last four are some of the four before as well: computed twice. */
static inline void apply(const struct filters *f, int8_t *out0, int8_t *out1, bool first, bool clamped)
{
    struct range range = {vdupq_n_s32(f->output_zero), vdupq_n_s32(f->min), vdupq_n_s32(f->max)};
    const int8_t *inputs = f->inputs, *end = inputs + 32 * blocks(f->depth), *weights = f->weights;
    const uint32_t stride = f->stride;
    int32_t *scratch = f->constants;
    int32_t left = (int32_t)f->channels;
    __asm volatile("" ::: "memory"); /* the inputs are in memory before dot_4x2, which GCC does not see reading it */
    for (; left > 0; left -= QUAD, weights += QUAD * stride, out0 += QUAD, out1 += QUAD, scratch += QUAD_CONSTANTS) {
        if (left < QUAD) {
            uint32_t back = QUAD - (uint32_t)left;
            weights -= back * stride;
            out0 -= back;
            out1 -= back;
        }
        struct constants constants;
        int32x4_t a, b;
        dot_4x2(weights, stride, inputs, end, &a, &b);
        if (first) {
            uint32_t at = f->channels - (uint32_t)(left < QUAD ? QUAD : left);
            constants.bias = f->bias ? vldrwq_s32(f->bias + at) : vdupq_n_s32(0);
            constants.bias = vmlaq_n_s32(constants.bias, a, -f->input_zero);
            constants.multiplier = vldrwq_s32(f->multipliers + at);
            constants.shift = vldrwq_s32(f->shifts + at);
            if (f->constants) {
                vstrwq_s32(scratch, constants.bias);
                vstrwq_s32(scratch + QUAD, constants.multiplier);
                vstrwq_s32(scratch + 2 * QUAD, constants.shift);
            }
        } else {
            constants.bias = vldrwq_s32(scratch);
            constants.multiplier = vldrwq_s32(scratch + QUAD);
            constants.shift = vldrwq_s32(scratch + 2 * QUAD);
            store(a, constants, range, clamped, out0);
        }
        store(b, constants, range, clamped, out1);
    }
}

/* What is negative before the output's zero point is added ends at min in any case. */
static bool is_clamped(const struct filters *f)
{
    return f->min >= f->output_zero;
}

void filters_apply_first(const struct filters *f, int8_t *out)
{
    for (uint32_t i = 0; i < blocks(f->depth); i++)
        vstrbq_s8(f->inputs + 32 * i, vdupq_n_s8(1));
    uint32_t rest = f->depth % 16;
    if (rest)
        mve_fill(f->inputs + 32 * (f->depth / 16) + rest, 0, 16 - rest);
    if (is_clamped(f))
        apply(f, NULL, out, true, true);
    else
        apply(f, NULL, out, true, false);
}

void filters_apply(const struct filters *f, int8_t *out0, int8_t *out1)
{
    if (is_clamped(f))
        apply(f, out0, out1, false, true);
    else
        apply(f, out0, out1, false, false);
}
