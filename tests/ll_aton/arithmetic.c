/* Stand-in (README.md): the arithmetic that public builds were decoded to: the accumulator is rounded and shifted to
 * int16, which saturates; a scale of 16 bits for each channel, to int16 again; an offset with the bias in it, to int8.
 * How silicon rounds is not known. */
#include <math.h>

#include "arithmetic.h"

enum {
    MAX_SHIFT = 6,     /* of the accumulator; public builds have 2 to 6 */
    MAX_FRACTION = 7,  /* bits behind the point of a scaled value */
    OFFSET_SHIFT = 20, /* of the sum with the offset */
};

/* One op as loops: fully connected is a window of 1x1. */
struct op_shape {
    struct plan_window window;
    const struct plan_filter *filter;
    uint32_t in_h, in_w, in_c, out_h, out_w, out_c;
    uint32_t multiplier; /* output channels for an input channel, 0: all input channels for each */
};

/* A layer as compiled: nothing of it follows when weights change. */
struct layer {
    int accumulator_shift, scale_shift, fraction;
};

bool npu_has(const struct plan_op *op)
{
    return op->kind == PLAN_CONV_2D || op->kind == PLAN_DEPTHWISE_CONV_2D || op->kind == PLAN_FULLY_CONNECTED;
}

static struct op_shape shape_of(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    if (op->kind == PLAN_FULLY_CONNECTED) {
        uint32_t rows = plan_elements(out) / out->c;
        const struct plan_window one = {1, 1, 1, 1, 1, 1, 0, 0};
        const struct plan_filter *filter = &((const struct plan_fully_connected *)op)->filter;
        return (struct op_shape){one, filter, rows, 1, plan_elements(in) / rows, rows, 1, out->c, 0};
    }
    const struct plan_conv *conv = (const struct plan_conv *)op;
    uint32_t multiplier = op->kind == PLAN_DEPTHWISE_CONV_2D ? out->c / in->c : 0;
    return (struct op_shape){conv->window, &conv->filter, in->h, in->w, in->c, out->h, out->w, out->c, multiplier};
}

static double scale_of(const struct plan *plan, const struct op_shape *s, uint32_t c)
{
    const int32_t *scales = plan->pool + s->filter->scales;
    return ldexp(scales[c], scales[s->out_c + c] - 31);
}

static double bias_of(const struct plan *plan, const struct op_shape *s, uint32_t c)
{
    if (s->filter->bias == PLAN_NO_BIAS)
        return 0;
    return ((const int32_t *)(plan->model + s->filter->bias))[c] * scale_of(plan, s, c);
}

/* Shifts that leave room for accumulators whose output is not clipped, for what they are scaled to, and for the largest
 * scale in 16 bits. */
static struct layer layer_of(const struct plan *plan, const struct op_shape *s)
{
    double reach = 0, scaled = 0, largest = 0;
    for (uint32_t c = 0; c < s->out_c; c++) {
        double scale = scale_of(plan, s, c);
        double span = 256 + fabs(bias_of(plan, s, c));
        if (scale > 0)
            reach = fmax(reach, span / scale);
        scaled = fmax(scaled, span);
        largest = fmax(largest, scale);
    }
    struct layer layer = {0, 0, MAX_FRACTION};
    while (layer.fraction > 0 && ldexp(scaled, layer.fraction) > 32767)
        layer.fraction--;
    while (layer.accumulator_shift < MAX_SHIFT && reach > ldexp(32767, layer.accumulator_shift))
        layer.accumulator_shift++;
    while (largest > 0 && ldexp(largest, layer.accumulator_shift + layer.fraction + layer.scale_shift + 1) < 32767)
        layer.scale_shift++;
    return layer;
}

static int64_t clamp(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

static int64_t rounded_shift(int64_t x, int shift)
{
    return shift > 0 ? (x + (1ll << (shift - 1))) >> shift : x;
}

static int32_t accumulate(const struct op_shape *s, const int8_t *in, int32_t zero, const int8_t *weights, uint32_t y,
                          uint32_t x, uint32_t c)
{
    const struct plan_window *w = &s->window;
    uint32_t depth = s->multiplier ? 1 : s->in_c, first = s->multiplier ? c / s->multiplier : 0;
    int32_t sum = 0;
    for (uint32_t kh = 0; kh < w->kernel_h; kh++)
        for (uint32_t kw = 0; kw < w->kernel_w; kw++) {
            uint32_t ih = y * w->stride_h + kh * w->dilation_h - w->pad_top;
            uint32_t iw = x * w->stride_w + kw * w->dilation_w - w->pad_left;
            if (ih >= s->in_h || iw >= s->in_w)
                continue;
            const int8_t *pixel = in + ((size_t)ih * s->in_w + iw) * s->in_c + first;
            uint32_t tap = kh * w->kernel_w + kw;
            const int8_t *filter = s->multiplier ? weights + (size_t)tap * s->out_c + c
                                                 : weights + ((size_t)c * w->kernel_h * w->kernel_w + tap) * depth;
            for (uint32_t i = 0; i < depth; i++)
                sum += filter[i] * (pixel[i] - zero);
        }
    return sum;
}

void npu_run(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory, int8_t *out)
{
    struct op_shape s = shape_of(plan, op);
    struct layer layer = layer_of(plan, &s);
    const int8_t *in = activation(memory, tensor_in(plan, op));
    const int8_t *weights = filter_weights(plan, s.filter, memory);
    int32_t zero_in = tensor_in(plan, op)->zero_point, zero_out = tensor_out(plan, op)->zero_point;
    for (uint32_t c = 0; c < s.out_c; c++) {
        int fraction = layer.accumulator_shift + layer.fraction + layer.scale_shift;
        int64_t scale = llrint(ldexp(scale_of(plan, &s, c), fraction));
        int64_t offset = llrint(ldexp(bias_of(plan, &s, c) + zero_out, OFFSET_SHIFT));
        for (uint32_t y = 0; y < s.out_h; y++)
            for (uint32_t x = 0; x < s.out_w; x++) {
                int64_t v = accumulate(&s, in, zero_in, weights, y, x, c);
                v = clamp(rounded_shift(v, layer.accumulator_shift), -32768, 32767);
                v = clamp(rounded_shift(v * scale, layer.scale_shift), -32768, 32767);
                v = rounded_shift(v * (1 << (OFFSET_SHIFT - layer.fraction)) + offset, OFFSET_SHIFT);
                out[((size_t)y * s.out_w + x) * s.out_c + c] = (int8_t)clamp(v, op->min, op->max);
            }
    }
}
