#include "runners/int8/mve/planar.h"

#include <stddef.h>

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

/* What apply needs of a channel, read from here each time: registers are full without it. */
struct channel {
    int32_t max[4];
    uint32_t pixels[4]; /* offsets of four outputs */
    int32_t bias, multiplier, shift, zero;
    uint32_t blocks;       /* of four outputs, in a row */
    uint32_t gap, out_gap; /* bytes from a row's last block to the next row, in the plane and in the output */
};

_Static_assert(offsetof(struct channel, bias) == 32 && offsetof(struct channel, gap) == 52, "apply counts on it");

/* Outputs of rows of blocks. taps: offsets of the windows of a block; step, out_step: from block to block. Negative
 * numbers' ties are rounded away from zero as in mve_rescale. */
static inline void apply(const struct channel *channel, const int8_t *plane, uint32_t step, int8_t *out,
                         uint32_t out_step, uint32_t rows, const uint8x16_t *taps, int8x16_t weights, int32x4_t min,
                         bool clamped)
{
    int32x4_t acc, other;
    int32_t s0, s1, s2, s3;
#define TAP(i) "vldrb.u8 %q[acc], [%[plane], %q[t" #i "]]\nvmladav.s8 %[s" #i "], %q[acc], %q[weights]\n"
#define APPLY(TIES)                                                                                                    \
    __asm volatile("1: ldr %[s0], [%[channel], #48]\n"                                                                 \
                   "dls lr, %[s0]\n"                                                                                   \
                   "2: " TAP(0) TAP(1) TAP(2) TAP(3) /* */                                                             \
                   "vmov %e[acc], %[s0], %[s1]\n"                                                                      \
                   "vmov %f[acc], %[s2], %[s3]\n"                                                                      \
                   "ldrd %[s0], %[s1], [%[channel], #32]\n"                                                            \
                   "vadd.i32 %q[acc], %q[acc], %[s0]\n"                                                                \
                   "vqrdmulh.s32 %q[acc], %q[acc], %[s1]\n" TIES "ldrd %[s2], %[s3], [%[channel], #40]\n"              \
                   "vrshl.s32 %q[acc], %[s2]\n"                                                                        \
                   "vadd.i32 %q[acc], %q[acc], %[s3]\n"                                                                \
                   "vldrw.32 %q[other], [%[channel]]\n"                                                                \
                   "vmax.s32 %q[acc], %q[acc], %q[min]\n"                                                              \
                   "vmin.s32 %q[acc], %q[acc], %q[other]\n"                                                            \
                   "vldrw.32 %q[other], [%[channel], #16]\n"                                                           \
                   "vstrb.32 %q[acc], [%[out], %q[other]]\n"                                                           \
                   "add %[plane], %[plane], %[step]\n"                                                                 \
                   "add %[out], %[out], %[out_step]\n"                                                                 \
                   "le lr, 2b\n"                                                                                       \
                   "ldrd %[s0], %[s1], [%[channel], #52]\n"                                                            \
                   "add %[plane], %[plane], %[s0]\n"                                                                   \
                   "add %[out], %[out], %[s1]\n"                                                                       \
                   "subs %[rows], %[rows], #1\n"                                                                       \
                   "bne 1b\n"                                                                                          \
                   : [acc] "=&w"(acc), [other] "=&w"(other), [s0] "=&Te"(s0), [s1] "=&Te"(s1), [s2] "=&Te"(s2),        \
                     [s3] "=&Te"(s3), [plane] "+r"(plane), [out] "+r"(out), [rows] "+r"(rows)                          \
                   : [channel] "r"(channel), [step] "r"(step), [out_step] "r"(out_step), [t0] "w"(taps[0]),            \
                     [t1] "w"(taps[1]), [t2] "w"(taps[2]), [t3] "w"(taps[3]), [weights] "w"(weights), [min] "w"(min)   \
                   : "lr", "cc", "memory")
    if (clamped)
        APPLY("");
    else
        APPLY("vshr.s32 %q[other], %q[acc], #31\nvadd.i32 %q[acc], %q[acc], %q[other]\n");
#undef APPLY
#undef TAP
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

static inline void depthwise(const struct plan *plan, const struct plan_conv *conv, struct kernel_memory memory,
                             bool clamped)
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
    const uint16x8_t offsets = vidupq_n_u16(0, 1), steps = vmulq_n_u16(offsets, (uint16_t)channels);
    uint8x16_t tap_at[OUTPUTS];
    for (uint32_t i = 0; i < OUTPUTS; i++)
        tap_at[i] = tap_offsets(w, plane.pitch, i);
    const uint32_t row_step = w->stride_h * plane.pitch, step = OUTPUTS * w->stride_w, out_step = OUTPUTS * channels;
    const uint32_t blocks = out->w / OUTPUTS, last = out->w - OUTPUTS, row_bytes = out->w * channels;
    const int32x4_t min = vdupq_n_s32(op->min);
    struct channel channel = {
        .max = {op->max, op->max, op->max, op->max},
        .pixels = {0, channels, 2 * channels, 3 * channels},
        .zero = out->zero_point,
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
        channel.blocks = blocks;
        channel.gap = row_step - blocks * step;
        channel.out_gap = row_bytes - blocks * out_step;
        apply(&channel, bytes, step, output + c, out_step, out->h, tap_at, filter_taps, min, clamped);
        if (out->w % OUTPUTS) { /* the last four of each row, of which some are done already */
            channel.blocks = 1;
            channel.gap = row_step - step;
            channel.out_gap = row_bytes - out_step;
            apply(&channel, bytes + last * w->stride_w, step, output + c + last * channels, out_step, out->h, tap_at,
                  filter_taps, min, clamped);
        }
    }
}

void planar_depthwise(const struct plan *plan, const struct plan_conv *conv, struct kernel_memory memory)
{
    if (conv->op.min >= tensor_out(plan, &conv->op)->zero_point)
        depthwise(plan, conv, memory, true);
    else
        depthwise(plan, conv, memory, false);
}
