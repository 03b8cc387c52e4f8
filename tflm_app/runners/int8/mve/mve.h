/* What the Helium kernels share. They compute what the portable ones do, bit for bit. */
#ifndef RUNNERS_INT8_MVE_MVE_H
#define RUNNERS_INT8_MVE_MVE_H

#include <arm_mve.h>
#include <stdbool.h>

#include "runners/int8/kernels.h"

kernel mve_conv_2d, mve_depthwise_conv_2d, mve_fully_connected, mve_add, mve_mean, mve_max_pool_2d, mve_average_pool_2d;

size_t mve_conv_2d_scratch(const struct plan *plan, const struct plan_op *op);
size_t mve_depthwise_conv_2d_scratch(const struct plan *plan, const struct plan_op *op);
size_t mve_fully_connected_scratch(const struct plan *plan, const struct plan_op *op);
size_t mve_mean_scratch(const struct plan *plan, const struct plan_op *op);

/* x * multiplier / 2^31, then to the right by -shift (shift <= 0), rounded twice as in requantize.h. vrshl rounds ties
 * up where TFLite rounds them away from zero: one less for what is negative (and shifted at all) makes them equal.
 * clamped: the caller clamps what is negative to 0 or more, so ties of negative numbers do not matter. */
static inline int32x4_t mve_rescale(int32x4_t x, int32x4_t multiplier, int32x4_t shift, bool clamped)
{
    x = vqrdmulhq_s32(x, multiplier);
    if (!clamped)
        x = vaddq_s32(x, vshrq_n_s32(vandq_s32(x, shift), 31));
    return vrshlq_s32(x, shift);
}

/* No output channel is scaled to the left. */
static inline bool mve_shifts_right(const struct plan *plan, const struct plan_filter *filter, uint32_t channels)
{
    const int32_t *shifts = plan->pool + filter->scales + channels;
    int32_t most = shifts[0];
    for (uint32_t c = 1; c < channels; c++)
        most = shifts[c] > most ? shifts[c] : most;
    return most <= 0;
}

/* memcpy in one tail-predicated loop, which GCC 12 does not make of intrinsics. */
static inline void mve_copy(int8_t *to, const int8_t *from, uint32_t count)
{
    __asm volatile("wlstp.8 lr, %[count], 2f\n"
                   "1: vldrb.8 q0, [%[from]], #16\n"
                   "vstrb.8 q0, [%[to]], #16\n"
                   "letp lr, 1b\n"
                   "2:"
                   : [to] "+r"(to), [from] "+r"(from)
                   : [count] "r"(count)
                   : "q0", "lr", "memory");
}

static inline void mve_fill(int8_t *to, int8_t value, uint32_t count)
{
    __asm volatile("vdup.8 q0, %[value]\n"
                   "wlstp.8 lr, %[count], 2f\n"
                   "1: vstrb.8 q0, [%[to]], #16\n"
                   "letp lr, 1b\n"
                   "2:"
                   : [to] "+r"(to)
                   : [value] "r"(value), [count] "r"(count)
                   : "q0", "lr", "memory");
}

#endif
