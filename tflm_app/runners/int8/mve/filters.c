/* Dot products of four filters with two pixels: 6 loads for 8 x 16 products. The inputs are raw, so their zero point
 * takes zero point * (sum of the filter's weights) off; the weights change every pass, so their sums are made in every
 * pass, as dot products with a pixel of ones that goes with the first pixel. */
#include "runners/int8/mve/filters.h"

#include <stddef.h>

enum { QUAD = 4, QUAD_CONSTANTS = 3 * QUAD }; /* of four channels: bias less the zero point's part, multiplier, shift */

static uint32_t blocks(uint32_t depth)
{
    return (depth + 15) / 16;
}

static size_t constants_bytes(uint32_t channels)
{
    return (size_t)(channels + QUAD - 1) / QUAD * QUAD_CONSTANTS * sizeof(int32_t);
}

static bool is_one_pixel(const struct plan_tensor *out)
{
    return out->h * out->w == 1;
}

size_t filters_scratch(const struct plan_tensor *out, uint32_t depth)
{
    return (is_one_pixel(out) ? 0 : constants_bytes(out->c)) + 32 * blocks(depth);
}

struct filters filters_of(const struct plan *plan, const struct plan_op *op, const struct plan_filter *filter,
                          uint32_t stride, uint32_t first, uint32_t depth, void *scratch)
{
    static const int32_t no_bias[QUAD];
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    bool has_bias = filter->bias != PLAN_NO_BIAS, one_pixel = is_one_pixel(out);
    int8_t *inputs = (int8_t *)scratch + (one_pixel ? 0 : constants_bytes(out->c));
    mve_fill(inputs + 32 * (blocks(depth) - 1), 0, 32); /* what the last block has beyond depth stays 0 */
    return (struct filters){
        .weights = (const int8_t *)plan->model + filter->weights + first,
        .stride = stride,
        .depth = depth,
        .channels = out->c,
        .next = stride - 16 * blocks(depth),
        .inputs = inputs,
        .end = inputs + 32 * blocks(depth),
        .bias = has_bias ? (const int32_t *)(plan->model + filter->bias) : no_bias,
        .bias_step = has_bias ? QUAD * sizeof(int32_t) : 0,
        .multipliers = plan->pool + filter->scales,
        .shifts = plan->pool + filter->scales + out->c,
        .constants = one_pixel ? NULL : scratch,
        .minus_zero = -in->zero_point,
        .zero = out->zero_point,
        .min = op->min,
        .max = op->max,
    };
}

/* Where a pass over the filters is: in memory, because the loop takes every register but the stack pointer. */
struct progress {
    struct filters filters;
    int8_t *out0, *out1;
    uint32_t quads;
};

_Static_assert(offsetof(struct filters, end) == offsetof(struct filters, inputs) + 4 &&
                   offsetof(struct filters, shifts) == offsetof(struct filters, multipliers) + 4 &&
                   offsetof(struct progress, out1) == offsetof(struct progress, out0) + 4,
               "these are loaded in pairs");

/* Products of 16 inputs of both pixels with four filters: every even register sums, every odd one points. */
#define BLOCK(MLA)                                                                                                     \
    "vldrb.8 q1, [r9, #16]\n"                                                                                          \
    "vldrb.8 q0, [r9], #32\n"                                                                                          \
    "vldrb.8 q2, [r1], #16\n" MLA ".s8 r0, q0, q2\n" MLA ".s8 r8, q1, q2\n"                                            \
    "vldrb.8 q2, [r3], #16\n" MLA ".s8 r2, q0, q2\n" MLA ".s8 r10, q1, q2\n"                                           \
    "vldrb.8 q2, [r5], #16\n" MLA ".s8 r4, q0, q2\n" MLA ".s8 r12, q1, q2\n"                                           \
    "vldrb.8 q2, [r7], #16\n" MLA ".s8 r6, q0, q2\n" MLA ".s8 lr, q1, q2\n"

/* q0, q1: dot products of the quad at r1 with pixels 0 and 1. The first 16 products have no sum to add to. */
#define DOT_PRODUCTS                                                                                                   \
    "1: ldr r3, %[stride]\n"                                                                                           \
    "ldrd r9, r11, %[inputs]\n"                                                                                        \
    "add r5, r1, r3, lsl #1\n"                                                                                         \
    "add r7, r5, r3\n"                                                                                                 \
    "add r3, r1, r3\n" BLOCK("vmladav") "cmp r9, r11\n"                                                                \
                                        "beq 3f\n"                                                                     \
                                        "2:\n" BLOCK("vmladava") "cmp r9, r11\n"                                       \
                                                                 "bne 2b\n"                                            \
                                                                 "3: vmov d0, r0, r2\n"                                \
                                                                 "vmov d1, r4, r6\n"                                   \
                                                                 "vmov d2, r8, r10\n"                                  \
                                                                 "vmov d3, r12, lr\n"

/* Bias (less the zero point's part), multipliers and shifts to q2, q3, q4: from constants, or made of the sums in q0.
 */
#define LOAD_CONSTANTS                                                                                                 \
    "ldr r0, %[constants]\n"                                                                                           \
    "vldrw.32 q2, [r0], #16\n"                                                                                         \
    "vldrw.32 q3, [r0], #16\n"                                                                                         \
    "vldrw.32 q4, [r0], #16\n"                                                                                         \
    "str r0, %[constants]\n"
#define MAKE_CONSTANTS                                                                                                 \
    "ldr r0, %[bias]\n"                                                                                                \
    "ldr r2, %[bias_step]\n"                                                                                           \
    "ldr r4, %[minus_zero]\n"                                                                                          \
    "vldrw.32 q2, [r0]\n"                                                                                              \
    "add r0, r0, r2\n"                                                                                                 \
    "str r0, %[bias]\n"                                                                                                \
    "vmla.s32 q2, q0, r4\n"                                                                                            \
    "ldrd r0, r2, %[multipliers]\n"                                                                                    \
    "vldrw.32 q3, [r0], #16\n"                                                                                         \
    "vldrw.32 q4, [r2], #16\n"                                                                                         \
    "strd r0, r2, %[multipliers]\n"
#define STORE_CONSTANTS                                                                                                \
    "ldr r0, %[constants]\n"                                                                                           \
    "vstrw.32 q2, [r0], #16\n"                                                                                         \
    "vstrw.32 q3, [r0], #16\n"                                                                                         \
    "vstrw.32 q4, [r0], #16\n"                                                                                         \
    "str r0, %[constants]\n"

/* Rescaling and the output's range, see mve_rescale; q5, q6, q7: zero point, min and max. */
#define REQUANTIZE(Q, TIES)                                                                                            \
    "vqrdmulh.s32 " Q ", " Q ", q3\n" TIES(Q) "vrshl.s32 " Q ", " Q ", q4\n"                                           \
                                              "vadd.i32 " Q ", " Q ", q5\n"                                            \
                                              "vmax.s32 " Q ", " Q ", q6\n"                                            \
                                              "vmin.s32 " Q ", " Q ", q7\n"
#define TIES_DO_NOT_MATTER(Q)
#define TIES_AWAY_FROM_ZERO(Q)                                                                                         \
    "vand q2, " Q ", q4\n"                                                                                             \
    "vshr.s32 q2, q2, #31\n"                                                                                           \
    "vadd.i32 " Q ", " Q ", q2\n"

#define PAIR(TIES)                                                                                                     \
    LOAD_CONSTANTS                                                                                                     \
    "vadd.i32 q0, q0, q2\n"                                                                                            \
    "vadd.i32 q1, q1, q2\n" REQUANTIZE("q0", TIES) REQUANTIZE("q1", TIES) "ldrd r2, r4, %[out0]\n"                     \
                                                                          "vstrb.32 q0, [r2], #4\n"                    \
                                                                          "vstrb.32 q1, [r4], #4\n"                    \
                                                                          "strd r2, r4, %[out0]\n"
#define FIRST(STORE, TIES)                                                                                             \
    MAKE_CONSTANTS STORE "vadd.i32 q1, q1, q2\n" REQUANTIZE("q1", TIES) "ldr r4, %[out1]\n"                            \
                                                                        "vstrb.32 q1, [r4], #4\n"                      \
                                                                        "str r4, %[out1]\n"

#define FOR_QUADS(OUTPUTS)                                                                                             \
    __asm volatile(                                                                                                    \
        "ldr r0, %[zero]\n"                                                                                            \
        "ldr r2, %[min]\n"                                                                                             \
        "ldr r4, %[max]\n"                                                                                             \
        "vdup.32 q5, r0\n"                                                                                             \
        "vdup.32 q6, r2\n"                                                                                             \
        "vdup.32 q7, r4\n"                                                                                             \
        "ldr r1, %[weights]\n" DOT_PRODUCTS OUTPUTS "ldr r6, %[next]\n"                                                \
        "ldr r8, %[quads]\n"                                                                                           \
        "add r1, r7, r6\n"                                                                                             \
        "subs r8, r8, #1\n"                                                                                            \
        "str r8, %[quads]\n"                                                                                           \
        "bne 1b\n"                                                                                                     \
        :                                                                                                              \
        : [weights] "m"(p.filters.weights), [stride] "m"(p.filters.stride), [next] "m"(p.filters.next),                \
          [inputs] "m"(p.filters.inputs), [out0] "m"(p.out0), [out1] "m"(p.out1),                                      \
          [constants] "m"(p.filters.constants), [bias] "m"(p.filters.bias), [multipliers] "m"(p.filters.multipliers),  \
          [bias_step] "m"(p.filters.bias_step), [quads] "m"(p.quads), [minus_zero] "m"(p.filters.minus_zero),          \
          [zero] "m"(p.filters.zero), [min] "m"(p.filters.min), [max] "m"(p.filters.max)                               \
        : "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "lr", "q0", "q1", "q2",     \
          "q3", "q4", "q5", "q6", "q7", "cc", "memory")

enum part { NEXT_PAIR, FIRST_OF_MANY, ONLY_ONE };

/* Of channels that are no multiple of four, the last four are some of the four before as well: computed twice. */
static inline void apply(const struct filters *filters, int8_t *out0, int8_t *out1, enum part part, bool clamped)
{
    struct progress p = {*filters, out0, out1, filters->channels / QUAD};
    __asm volatile("" : : "r"(&p) : "memory"); /* from here on p is in memory, as it is, and the loops change it */
    for (;;) {
        if (part == NEXT_PAIR && clamped)
            FOR_QUADS(PAIR(TIES_DO_NOT_MATTER));
        else if (part == NEXT_PAIR)
            FOR_QUADS(PAIR(TIES_AWAY_FROM_ZERO));
        else if (part == FIRST_OF_MANY && clamped)
            FOR_QUADS(FIRST(STORE_CONSTANTS, TIES_DO_NOT_MATTER));
        else if (part == FIRST_OF_MANY)
            FOR_QUADS(FIRST(STORE_CONSTANTS, TIES_AWAY_FROM_ZERO));
        else if (clamped)
            FOR_QUADS(FIRST("", TIES_DO_NOT_MATTER));
        else
            FOR_QUADS(FIRST("", TIES_AWAY_FROM_ZERO));
        uint32_t done = (uint32_t)(p.out1 - out1), last = filters->channels - QUAD;
        if (done == filters->channels)
            return;
        p.filters.weights = filters->weights + last * filters->stride;
        p.filters.bias = filters->bias + last * (filters->bias_step / sizeof(int32_t)) / QUAD;
        p.filters.multipliers = filters->multipliers + last;
        p.filters.shifts = filters->shifts + last;
        p.out0 = out0 + last;
        p.out1 = out1 + last;
        p.quads = 1;
    }
}

/* What is negative before the output's zero point is added ends at min in any case. */
static bool is_clamped(const struct filters *f)
{
    return f->min >= f->zero;
}

void filters_apply_first(const struct filters *f, int8_t *out)
{
    for (uint32_t i = 0; i < blocks(f->depth); i++)
        vstrbq_s8(f->inputs + 32 * i, vdupq_n_s8(1));
    uint32_t rest = f->depth % 16;
    if (rest)
        mve_fill(f->inputs + 32 * (f->depth / 16) + rest, 0, 16 - rest);
    if (is_clamped(f))
        apply(f, out, out, f->constants ? FIRST_OF_MANY : ONLY_ONE, true);
    else
        apply(f, out, out, f->constants ? FIRST_OF_MANY : ONLY_ONE, false);
}

void filters_apply(const struct filters *f, int8_t *out0, int8_t *out1)
{
    if (is_clamped(f))
        apply(f, out0, out1, NEXT_PAIR, true);
    else
        apply(f, out0, out1, NEXT_PAIR, false);
}
