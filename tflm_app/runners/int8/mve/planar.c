#include "runners/int8/mve/planar.h"

#include <string.h>

enum { LANES = 16, OUTPUTS = 4 }; /* taps of a window; windows at a time, side by side */

/* The part of the input that any window sees, with padding. */
struct plane {
    uint32_t rows, pitch;
    uint32_t top, left;                   /* padding */
    uint32_t copied_rows, copied_columns; /* of the input */
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static struct plane plane_of(const struct plan *plan, const struct plan_conv *conv)
{
    const struct plan_window *w = &conv->window;
    const struct plan_tensor *in = tensor_in(plan, &conv->op), *out = tensor_out(plan, &conv->op);
    uint32_t rows = (out->h - 1) * w->stride_h + (w->kernel_h - 1) * w->dilation_h + 1;
    uint32_t columns = (out->w - 1) * w->stride_w + (w->kernel_w - 1) * w->dilation_w + 1;
    return (struct plane){
        .rows = rows,
        .pitch = columns,
        .top = w->pad_top,
        .left = w->pad_left,
        .copied_rows = least(in->h, rows - w->pad_top),
        .copied_columns = least(in->w, columns - w->pad_left),
    };
}

/* Gathering loads have 8-bit offsets from tap to tap, 16-bit ones from pixel to pixel. */
bool planar_usable(const struct plan *plan, const struct plan_conv *conv)
{
    const struct plan_window *w = &conv->window;
    const struct plan_tensor *in = tensor_in(plan, &conv->op), *out = tensor_out(plan, &conv->op);
    const int32_t *shifts = plan->pool + conv->filter.scales + out->c;
    if (in->c != out->c || out->w < OUTPUTS || w->kernel_h * w->kernel_w > LANES || in->c * 7 > UINT16_MAX)
        return false;
    for (uint32_t c = 0; c < out->c; c++)
        if (shifts[c] >= 0)
            return false;
    uint32_t furthest = (w->kernel_h - 1) * w->dilation_h * plane_of(plan, conv).pitch +
                        (w->kernel_w - 1) * w->dilation_w + (OUTPUTS - 1) * w->stride_w;
    return furthest <= UINT8_MAX;
}

size_t planar_scratch(const struct plan *plan, const struct plan_conv *conv)
{
    struct plane plane = plane_of(plan, conv);
    return (size_t)plane.rows * plane.pitch + LANES; /* the weights of a channel */
}

/* rows of count bytes, step bytes apart in the input, to rows of bytes side by side; offsets: lane * step. */
static inline void copy_channel(int8_t *to, uint32_t to_pitch, const int8_t *from, uint32_t from_pitch, uint32_t step,
                                uint32_t count, uint32_t rows, uint16x8_t offsets)
{
    const int8_t *source;
    int8_t *target;
    __asm volatile("1: mov %[source], %[from]\n"
                   "mov %[target], %[to]\n"
                   "wlstp.16 lr, %[count], 3f\n"
                   "2: vldrb.s16 q0, [%[source], %q[offsets]]\n"
                   "add %[source], %[source], %[step], lsl #3\n"
                   "vstrb.16 q0, [%[target]], #8\n"
                   "letp lr, 2b\n"
                   "3: add %[from], %[from], %[from_pitch]\n"
                   "add %[to], %[to], %[to_pitch]\n"
                   "subs %[rows], %[rows], #1\n"
                   "bne 1b\n"
                   : [to] "+r"(to), [from] "+r"(from), [rows] "+r"(rows), [source] "=&r"(source), [target] "=&l"(target)
                   : [count] "r"(count), [step] "r"(step), [from_pitch] "r"(from_pitch), [to_pitch] "r"(to_pitch),
                     [offsets] "w"(offsets)
                   : "q0", "lr", "cc", "memory");
}

/* Dot products of the weights with four windows: taps[i] are the offsets of window i. */
static inline int32x4_t dot_4(const int8_t *plane, uint8x16_t taps0, uint8x16_t taps1, uint8x16_t taps2,
                              uint8x16_t taps3, int8x16_t weights)
{
    int32x4_t products;
    int32_t s0, s1, s2, s3;
    __asm volatile(
        "vldrb.u8 %q[p], [%[plane], %q[t0]]\n"
        "vmladav.s8 %[s0], %q[p], %q[w]\n"
        "vldrb.u8 %q[p], [%[plane], %q[t1]]\n"
        "vmladav.s8 %[s1], %q[p], %q[w]\n"
        "vldrb.u8 %q[p], [%[plane], %q[t2]]\n"
        "vmladav.s8 %[s2], %q[p], %q[w]\n"
        "vldrb.u8 %q[p], [%[plane], %q[t3]]\n"
        "vmladav.s8 %[s3], %q[p], %q[w]\n"
        "vmov %e[p], %[s0], %[s1]\n"
        "vmov %f[p], %[s2], %[s3]\n"
        : [p] "=&w"(products), [s0] "=&Te"(s0), [s1] "=&Te"(s1), [s2] "=&Te"(s2), [s3] "=&Te"(s3)
        : [plane] "r"(plane), [t0] "w"(taps0), [t1] "w"(taps1), [t2] "w"(taps2), [t3] "w"(taps3), [w] "w"(weights));
    return products;
}

/* What a channel is requantised with; the vectors are read from here each time, registers are full without them. */
struct channel {
    int32x4_t max;
    uint32x4_t pixels; /* offsets of four outputs */
    int32_t bias, multiplier, shift, zero, min;
};

struct grid {
    uint32_t rows, columns;         /* outputs */
    uint32_t row_step, column_step; /* bytes in the plane */
    uint32_t channels;
};

static inline void apply(const struct channel *channel, const struct grid *grid, const int8_t *plane,
                         const uint8x16_t *taps, int8x16_t weights, int8_t *out, bool clamped)
{
    const int32_t bias = channel->bias, multiplier = channel->multiplier, shift = channel->shift, zero = channel->zero;
    const int32x4_t min = vdupq_n_s32(channel->min);
    const uint8x16_t taps0 = taps[0], taps1 = taps[1], taps2 = taps[2], taps3 = taps[3];
    const uint32_t columns = grid->columns, step = OUTPUTS * grid->column_step, out_step = OUTPUTS * grid->channels;
    const uint32_t back = (uint32_t)-columns % OUTPUTS; /* of a row's last four, so many are of the four before too */
    for (uint32_t rows = grid->rows; rows; rows--, plane += grid->row_step, out += columns * grid->channels) {
        const int8_t *at = plane;
        int8_t *to = out;
        for (uint32_t left = (columns + OUTPUTS - 1) / OUTPUTS; left; left--, at += step, to += out_step) {
            if (back && left == 1) {
                at -= back * grid->column_step;
                to -= back * grid->channels;
            }
            int32x4_t acc = vaddq_n_s32(dot_4(at, taps0, taps1, taps2, taps3, weights), bias);
            acc = vqrdmulhq_n_s32(acc, multiplier);
            if (!clamped) /* ties away from zero, see mve_rescale */
                acc = vaddq_s32(acc, vshrq_n_s32(acc, 31));
            acc = vmaxq_s32(vaddq_n_s32(vrshlq_n_s32(acc, shift), zero), min);
            __asm("" : "+r"(channel)); /* load again */
            acc = vminq_s32(acc, vldrwq_s32((const int32_t *)&channel->max));
            vstrbq_scatter_offset_s32(to, vldrwq_u32((const uint32_t *)&channel->pixels), acc);
        }
    }
}

/* Offsets of the taps of the i-th of four windows; unused lanes have weight 0. */
static uint8x16_t tap_offsets(const struct plan_window *w, uint32_t pitch, uint32_t i)
{
    uint8_t offsets[LANES] = {0};
    for (uint32_t ky = 0; ky < w->kernel_h; ky++)
        for (uint32_t kx = 0; kx < w->kernel_w; kx++)
            offsets[ky * w->kernel_w + kx] =
                (uint8_t)(ky * w->dilation_h * pitch + kx * w->dilation_w + i * w->stride_w);
    return vldrbq_u8(offsets);
}

void planar_depthwise(const struct plan *plan, const struct plan_conv *conv, struct kernel_memory memory)
{
    const struct plan_window *w = &conv->window;
    const struct plan_op *op = &conv->op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const struct plane plane = plane_of(plan, conv);
    const uint32_t channels = out->c, taps = w->kernel_h * w->kernel_w;
    const int8_t *input = activation(memory, in), *weights = (const int8_t *)plan->model + conv->filter.weights;
    const int32_t *bias = conv->filter.bias == PLAN_NO_BIAS ? NULL : (const int32_t *)(plan->model + conv->filter.bias);
    const int32_t *multipliers = plan->pool + conv->filter.scales, *shifts = multipliers + channels;
    int8_t *output = activation(memory, out), *filter = memory.scratch, *bytes = filter + LANES;
    const struct grid grid = {out->h, out->w, w->stride_h * plane.pitch, w->stride_w, channels};
    const uint16x8_t offsets = vidupq_n_u16(0, 1), steps = vmulq_n_u16(offsets, (uint16_t)channels);
    uint8x16_t tap_at[OUTPUTS];
    for (uint32_t i = 0; i < OUTPUTS; i++)
        tap_at[i] = tap_offsets(w, plane.pitch, i);
    struct channel channel = {
        .max = vdupq_n_s32(op->max),
        .pixels = vmulq_n_u32(vidupq_n_u32(0, 1), channels),
        .zero = out->zero_point,
        .min = op->min,
    };
    mve_fill(filter, 0, LANES);
    mve_fill(bytes, (int8_t)in->zero_point, plane.rows * plane.pitch);
    int8_t *inside = bytes + plane.top * plane.pitch + plane.left;
    for (uint32_t c = 0; c < channels; c++) {
        copy_channel(inside, plane.pitch, input + c, in->w * channels, channels, plane.copied_columns,
                     plane.copied_rows, steps);
        copy_channel(filter, 0, weights + c, 0, channels, taps, 1, steps);
        int8x16_t filter_taps = vldrbq_s8(filter);
        channel.bias = (bias ? bias[c] : 0) - in->zero_point * vaddvq_s8(filter_taps);
        channel.multiplier = multipliers[c];
        channel.shift = shifts[c];
        if (op->min >= out->zero_point)
            apply(&channel, &grid, bytes, tap_at, filter_taps, output + c, true);
        else
            apply(&channel, &grid, bytes, tap_at, filter_taps, output + c, false);
    }
}
