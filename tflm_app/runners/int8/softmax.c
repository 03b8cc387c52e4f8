/* SOFTMAX in fixed point (reference/softmax.h; gemmlowp fixedpoint.h: exp_on_negative_values,
 * one_over_one_plus_x_for_x_in_0_1). Qm.n below: m integer bits, n fraction bits, one sign bit. */
#include "runners/int8/kernels.h"
#include "runners/int8/requantize.h"

enum { DIFF_FRACTION = 26, SUM_INTEGER_BITS = 12 }; /* Q5.26 differences, Q12.19 sum */

static int32_t saturating_shift_left(int32_t x, int shift)
{
    int64_t shifted = (int64_t)x * (1 << shift);
    return shifted > INT32_MAX ? INT32_MAX : shifted < INT32_MIN ? INT32_MIN : (int32_t)shifted;
}

/* exp(a) for a in [-1/4, 0), Q0.31: Taylor series around -1/8. */
static int32_t exp_small(int32_t a)
{
    const int32_t exp_minus_eighth = 1895147668, one_third = 715827883;
    int32_t x = a + (1 << 28); /* a + 1/8 */
    int32_t x2 = doubling_high_mul(x, x), x3 = doubling_high_mul(x2, x), x4 = doubling_high_mul(x2, x2);
    int32_t x4_quarter = rounding_shift_right(x4, 2);
    int32_t tail = rounding_shift_right(doubling_high_mul(x4_quarter + x3, one_third) + x2, 1);
    return exp_minus_eighth + doubling_high_mul(exp_minus_eighth, x + tail);
}

/* exp(a) for a <= 0 in Q5.26, as Q0.31: the fraction by series, the rest by one factor a bit. */
static int32_t exp_negative(int32_t a)
{
    static const int32_t factors[] = {1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242};
    const int32_t quarter = 1 << (DIFF_FRACTION - 2);
    if (a == 0)
        return INT32_MAX;
    int32_t fraction = (a & (quarter - 1)) - quarter; /* in [-1/4, 0) */
    int32_t result = exp_small((int32_t)((uint32_t)fraction << (31 - DIFF_FRACTION)));
    int32_t rest = fraction - a;
    for (int i = 0; i < 7; i++) /* exp(-1/4), exp(-1/2), ... exp(-16) */
        if (rest & quarter << i)
            result = doubling_high_mul(result, factors[i]);
    return result;
}

/* 1 / (1 + a) for a in [0, 1], Q0.31: Newton-Raphson division. */
static int32_t one_over_one_plus(int32_t a)
{
    const int32_t q2_one = 1 << 29, q2_48_17 = 1515870810, q2_minus_32_17 = -1010580540;
    int32_t half_denominator = (int32_t)(((int64_t)a + INT32_MAX + 1) / 2); /* (a + 1) / 2, RoundingHalfSum */
    int32_t x = q2_48_17 + doubling_high_mul(half_denominator, q2_minus_32_17);
    for (int i = 0; i < 3; i++) {
        int32_t error = q2_one - doubling_high_mul(half_denominator, x);
        x += saturating_shift_left(doubling_high_mul(x, error), 2);
    }
    return saturating_shift_left(x, 1);
}

static void softmax_row(const struct plan_softmax *p, const int8_t *in, int8_t *out, uint32_t count)
{
    int32_t max = -128;
    for (uint32_t i = 0; i < count; i++)
        max = in[i] > max ? in[i] : max;
    int32_t sum = 0; /* Q12.19 */
    for (uint32_t i = 0; i < count; i++)
        if (in[i] - max >= p->diff_min)
            sum += rounding_shift_right(exp_negative(rescale(in[i] - max, p->scale.multiplier, p->scale.shift)),
                                        SUM_INTEGER_BITS);
    int headroom = 0; /* leading zeros of sum */
    while (!((uint32_t)sum << headroom & 0x80000000u))
        headroom++;
    int32_t shifted = (int32_t)(((uint32_t)sum << headroom) - 0x80000000u);
    int32_t scale = one_over_one_plus(shifted);
    int32_t exponent = SUM_INTEGER_BITS - headroom + 31 - 8;
    for (uint32_t i = 0; i < count; i++) {
        out[i] = -128;
        if (in[i] - max >= p->diff_min) {
            int32_t exponential = exp_negative(rescale(in[i] - max, p->scale.multiplier, p->scale.shift));
            int32_t product = doubling_high_mul(scale, exponential);
            /* 512 equal logits and more: nothing is left (TFLM's shift is undefined there) */
            out[i] = exponent > 31 ? -128 : clamp_int8(rounding_shift_right(product, exponent) - 128, -128, 127);
        }
    }
}

void softmax(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    for (uint32_t row = 0; row < in->h * in->w; row++, input += in->c, output += in->c)
        softmax_row((const struct plan_softmax *)op, input, output, in->c);
}
