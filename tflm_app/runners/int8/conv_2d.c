/* CONV_2D: patches of a few output pixels as int16 (input less its zero point), then one dot product a filter. */
#include <string.h>

#include "runners/int8/kernels.h"

enum { PIXELS = 4 }; /* at a time: each weight is loaded once for all of them */

struct conv_shape {
    uint32_t depth; /* of a dot product: kernel_h * kernel_w * channels */
    uint32_t channels;
};

static struct conv_shape shape_of(const struct plan *plan, const struct plan_conv *conv)
{
    uint32_t area = conv->window.kernel_h * conv->window.kernel_w;
    return (struct conv_shape){area * tensor_in(plan, &conv->op)->c, tensor_out(plan, &conv->op)->c};
}

size_t conv_2d_scratch(const struct plan *plan, const struct plan_op *op)
{
    struct conv_shape shape = shape_of(plan, (const struct plan_conv *)op);
    return PIXELS * ((size_t)shape.channels * sizeof(int32_t) + (size_t)shape.depth * sizeof(int16_t));
}

static void copy_less(const int8_t *restrict from, uint32_t count, int32_t zero_point, int16_t *restrict to)
{
    for (uint32_t i = 0; i < count; i++)
        to[i] = (int16_t)(from[i] - zero_point);
}

/* The inputs under the window of output pixel (y, x); padding is the zero point, so 0 here. */
static void gather(const struct plan_window *w, const struct plan_tensor *in, const int8_t *input, uint32_t y,
                   uint32_t x, int16_t *patch)
{
    int32_t top = (int32_t)(y * w->stride_h) - (int32_t)w->pad_top;
    int32_t left = (int32_t)(x * w->stride_w) - (int32_t)w->pad_left;
    for (uint32_t ky = 0; ky < w->kernel_h; ky++) {
        int32_t in_y = top + (int32_t)(ky * w->dilation_h);
        for (uint32_t kx = 0; kx < w->kernel_w; kx++, patch += in->c) {
            int32_t in_x = left + (int32_t)(kx * w->dilation_w);
            if (in_y < 0 || in_y >= (int32_t)in->h || in_x < 0 || in_x >= (int32_t)in->w)
                memset(patch, 0, in->c * sizeof *patch);
            else
                copy_less(input + ((uint32_t)in_y * in->w + (uint32_t)in_x) * in->c, in->c, in->zero_point, patch);
        }
    }
}

/* acc[p][channel] += weights . patch[p], for PIXELS patches. */
static void dot_products(const int8_t *restrict weights, const int16_t *restrict patches, uint32_t depth,
                         uint32_t channels, int32_t *restrict acc)
{
    const int16_t *p0 = patches, *p1 = p0 + depth, *p2 = p1 + depth, *p3 = p2 + depth;
    for (uint32_t c = 0; c < channels; c++, weights += depth) {
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (uint32_t i = 0; i < depth; i++) {
            int16_t w = weights[i];
            s0 += (int32_t)w * p0[i];
            s1 += (int32_t)w * p1[i];
            s2 += (int32_t)w * p2[i];
            s3 += (int32_t)w * p3[i];
        }
        acc[c] += s0;
        acc[channels + c] += s1;
        acc[2 * channels + c] += s2;
        acc[3 * channels + c] += s3;
    }
}

void conv_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    struct conv_shape shape = shape_of(plan, conv);
    int32_t *acc = memory.scratch;
    int16_t *patches = (int16_t *)(acc + (size_t)PIXELS * shape.channels);
    const int8_t *weights = (const int8_t *)plan->model + conv->filter.weights;
    int8_t *output = activation(memory, out);
    uint32_t pixels = out->h * out->w;

    memset(patches, 0, PIXELS * shape.depth * sizeof *patches);
    for (uint32_t pixel = 0; pixel < pixels; pixel += PIXELS) {
        uint32_t count = pixels - pixel < PIXELS ? pixels - pixel : PIXELS;
        for (uint32_t p = 0; p < count; p++)
            gather(&conv->window, in, activation(memory, in), (pixel + p) / out->w, (pixel + p) % out->w,
                   patches + p * shape.depth);
        for (uint32_t p = 0; p < PIXELS; p++)
            load_bias(plan, &conv->filter, shape.channels, acc + p * shape.channels);
        dot_products(weights, patches, shape.depth, shape.channels, acc);
        for (uint32_t p = 0; p < count; p++, output += shape.channels)
            requantize_channels(plan, op, &conv->filter, acc + p * shape.channels, shape.channels, output);
    }
}
