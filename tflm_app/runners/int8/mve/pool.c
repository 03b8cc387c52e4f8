/* MAX_POOL_2D, 16 channels at a time, and AVERAGE_POOL_2D, four at a time. */
#include "runners/int8/mve/mve.h"

/* A window of one output pixel, and where its channels go. */
struct area {
    const int8_t *from;
    uint32_t rows, columns, row_bytes, channels;
    int32_t min, max;
    int8_t *to;
};

static void largest(const struct area *a)
{
    const int8_t *from = a->from;
    int8_t *to = a->to;
    for (int32_t left = (int32_t)a->channels; left > 0; left -= 16, from += 16, to += 16) {
        mve_pred16_t lanes = vctp8q((uint32_t)left);
        int8x16_t best = vdupq_n_s8((int8_t)a->min);
        const int8_t *row = from;
        for (uint32_t y = 0; y < a->rows; y++, row += a->row_bytes) {
            const int8_t *at = row;
            for (uint32_t x = 0; x < a->columns; x++, at += a->channels)
                best = vmaxq_s8(best, vldrbq_z_s8(at, lanes));
        }
        vstrbq_p_s8(to, vminq_s8(best, vdupq_n_s8((int8_t)a->max)), lanes);
    }
}

/* sum / count rounded to nearest, ties away from zero: the quotient in float32 is at most one off, the rest says so.
 * Sums are below 2^23 (2^15 * 2^15 windows would not be, but no such window lies inside an input of 2^27 bytes). */
static int32x4_t rounded_quotient(int32x4_t sum, int32_t count, float reciprocal)
{
    int32x4_t dividend = vaddq_n_s32(vabsq_s32(sum), count / 2);
    int32x4_t quotient = vcvtq_s32_f32(vmulq_n_f32(vcvtq_f32_s32(dividend), reciprocal));
    int32x4_t rest = vmlaq_n_s32(dividend, quotient, -count);
    quotient = vsubq_m_n_s32(quotient, quotient, 1, vcmpltq_n_s32(rest, 0));
    quotient = vaddq_m_n_s32(quotient, quotient, 1, vcmpgeq_n_s32(rest, count));
    return vnegq_m_s32(quotient, quotient, vcmpltq_n_s32(sum, 0));
}

static void average(const struct area *a)
{
    const int8_t *from = a->from;
    int8_t *to = a->to;
    int32_t count = (int32_t)(a->rows * a->columns);
    float reciprocal = 1.0f / (float)count;
    for (int32_t left = (int32_t)a->channels; left > 0; left -= 4, from += 4, to += 4) {
        mve_pred16_t lanes = vctp32q((uint32_t)left);
        int32x4_t sum = vdupq_n_s32(0);
        const int8_t *row = from;
        for (uint32_t y = 0; y < a->rows; y++, row += a->row_bytes) {
            const int8_t *at = row;
            for (uint32_t x = 0; x < a->columns; x++, at += a->channels)
                sum = vaddq_s32(sum, vldrbq_z_s32(at, lanes));
        }
        int32x4_t mean = rounded_quotient(sum, count, reciprocal);
        vstrbq_p_s32(to, vminq_s32(vmaxq_s32(mean, vdupq_n_s32(a->min)), vdupq_n_s32(a->max)), lanes);
    }
}

static void pool(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory,
                 void (*reduce)(const struct area *area))
{
    const struct plan_window *w = &((const struct plan_pool *)op)->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    struct area area = {
        .row_bytes = in->w * in->c,
        .channels = in->c,
        .min = op->min,
        .max = op->max,
        .to = activation(memory, out),
    };
    for (uint32_t y = 0; y < out->h; y++) {
        struct span rows = clip(y, w->stride_h, w->pad_top, w->kernel_h, in->h);
        for (uint32_t x = 0; x < out->w; x++, area.to += in->c) {
            struct span columns = clip(x, w->stride_w, w->pad_left, w->kernel_w, in->w);
            area.rows = rows.count;
            area.columns = columns.count;
            area.from = input + (rows.start * in->w + columns.start) * in->c;
            reduce(&area);
        }
    }
}

void mve_max_pool_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    pool(plan, op, memory, largest);
}

void mve_average_pool_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_window *w = &((const struct plan_pool *)op)->window;
    if ((uint64_t)w->kernel_h * w->kernel_w > 1 << 15)
        average_pool_2d(plan, op, memory); /* its sums may be too large for float32 */
    else
        pool(plan, op, memory, average);
}
