/* DEPTHWISE_CONV_2D with a multiplier of 1, eight channels of a window at a time, over the taps inside the input. */
#include "runners/int8/mve/mve.h"
#include "runners/int8/mve/planar.h"

enum { GROUP = 8 }; /* channels: the even and the odd ones have an accumulator each */

/* A tap inside the input, as offsets from the window's first byte and from the first weight. */
struct tap {
    int32_t input, weight;
};

static bool usable(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    return in->c == out->c && in->c >= GROUP && mve_shifts_right(plan, &conv->filter, out->c);
}

size_t mve_depthwise_conv_2d_scratch(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    const struct plan_window *w = &conv->window;
    if (planar_usable(plan, conv))
        return planar_scratch(plan, conv);
    return usable(plan, op) ? (size_t)w->kernel_h * w->kernel_w * sizeof(struct tap)
                            : depthwise_conv_2d_scratch(plan, op);
}

struct depthwise {
    uint32_t channels;
    const int8_t *weights;
    const int32_t *bias, *multipliers, *shifts;
    int32_t input_zero, output_zero, min, max;
    struct tap *taps;
};

static inline int32x4x2_t load_group(const int32_t *from)
{
    return vld2q_s32(from);
}

/* All channels of one output pixel. */
static inline void window(const struct depthwise *d, const int8_t *input, uint32_t taps, int8_t *out, bool clamped)
{
    const int16_t less = (int16_t)-d->input_zero;
    for (uint32_t done = 0; done < d->channels; done += GROUP) {
        /* the last eight may be some of the eight before: they are computed twice */
        uint32_t c = done + GROUP <= d->channels ? done : d->channels - GROUP;
        const int8_t *x = input + c, *w = d->weights + c;
        const struct tap *tap = d->taps;
        int32x4x2_t acc = {{vdupq_n_s32(0), vdupq_n_s32(0)}};
        if (d->bias)
            acc = load_group(d->bias + c);
        for (uint32_t i = 0; i < taps; i++, tap++) {
            int16x8_t value = vaddq_n_s16(vldrbq_s16(x + tap->input), less), weight = vldrbq_s16(w + tap->weight);
            acc.val[0] = vaddq_s32(acc.val[0], vmullbq_int_s16(value, weight));
            acc.val[1] = vaddq_s32(acc.val[1], vmulltq_int_s16(value, weight));
        }
        int32x4x2_t multipliers = load_group(d->multipliers + c), shifts = load_group(d->shifts + c);
        int32x4_t even = mve_rescale(acc.val[0], multipliers.val[0], shifts.val[0], clamped);
        int32x4_t odd = mve_rescale(acc.val[1], multipliers.val[1], shifts.val[1], clamped);
        int16x8_t both = vqmovntq_s32(vqmovnbq_s32(vdupq_n_s16(0), even), odd);
        both = vqaddq_n_s16(both, (int16_t)d->output_zero);
        both = vminq_s16(vmaxq_s16(both, vdupq_n_s16((int16_t)d->min)), vdupq_n_s16((int16_t)d->max));
        vstrbq_s16(out + c, both);
    }
}

/* The taps of a window that begins at (top, left) inside the input. */
static uint32_t find_taps(const struct plan_window *w, const struct plan_tensor *in, int32_t top, int32_t left,
                          struct tap *taps)
{
    uint32_t count = 0;
    for (uint32_t ky = 0; ky < w->kernel_h; ky++) {
        int32_t y = (int32_t)(ky * w->dilation_h);
        if (top + y < 0 || top + y >= (int32_t)in->h)
            continue;
        for (uint32_t kx = 0; kx < w->kernel_w; kx++) {
            int32_t x = (int32_t)(kx * w->dilation_w);
            if (left + x < 0 || left + x >= (int32_t)in->w)
                continue;
            taps[count++] =
                (struct tap){(y * (int32_t)in->w + x) * (int32_t)in->c, (int32_t)((ky * w->kernel_w + kx) * in->c)};
        }
    }
    return count;
}

void mve_depthwise_conv_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    if (planar_usable(plan, conv)) {
        planar_depthwise(plan, conv, memory);
        return;
    }
    if (!usable(plan, op)) {
        depthwise_conv_2d(plan, op, memory);
        return;
    }
    const struct plan_window *w = &conv->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    struct depthwise d = {
        .channels = out->c,
        .weights = (const int8_t *)plan->model + conv->filter.weights,
        .bias = conv->filter.bias == PLAN_NO_BIAS ? NULL : (const int32_t *)(plan->model + conv->filter.bias),
        .multipliers = plan->pool + conv->filter.scales,
        .shifts = plan->pool + conv->filter.scales + out->c,
        .input_zero = in->zero_point,
        .output_zero = out->zero_point,
        .min = op->min,
        .max = op->max,
        .taps = memory.scratch,
    };
    int32_t extent_w = (int32_t)((w->kernel_w - 1) * w->dilation_w);
    for (uint32_t y = 0; y < out->h; y++) {
        int32_t top = (int32_t)(y * w->stride_h) - (int32_t)w->pad_top;
        uint32_t taps = 0;
        bool inside = false; /* the window before had all its columns, so its taps are those of this row */
        for (uint32_t x = 0; x < out->w; x++, output += out->c) {
            int32_t left = (int32_t)(x * w->stride_w) - (int32_t)w->pad_left;
            bool now_inside = left >= 0 && left + extent_w < (int32_t)in->w;
            if (!(inside && now_inside))
                taps = find_taps(w, in, top, left, d.taps);
            inside = now_inside;
            const int8_t *from = input + (top * (int32_t)in->w + left) * (int32_t)in->c;
            if (d.min >= d.output_zero)
                window(&d, from, taps, output, true);
            else
                window(&d, from, taps, output, false);
        }
    }
}
