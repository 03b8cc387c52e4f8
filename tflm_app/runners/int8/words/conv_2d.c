/* CONV_2D: patches of four output pixels as int32 (input less its zero point), the four of a tap side by side; then
 * four dot products a filter, so that a weight is taken out of its word once for all of them. */
#include "runners/int8/words/words.h"

enum { PIXELS = 4 };

static uint32_t depth_of(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_window *w = &((const struct plan_conv *)op)->window;
    return w->kernel_h * w->kernel_w * tensor_in(plan, op)->c;
}

size_t words_conv_2d_scratch(const struct plan *plan, const struct plan_op *op)
{
    return PIXELS * sizeof(int32_t) * ((size_t)tensor_out(plan, op)->c + depth_of(plan, op));
}

/* The bytes under tap (ky, kx) of the window of output pixel (y, x), or NULL for padding. */
static const int8_t *tap(const struct plan_window *w, const struct plan_tensor *in, const int8_t *input, uint32_t y,
                         uint32_t x, uint32_t ky, uint32_t kx)
{
    int32_t in_y = (int32_t)(y * w->stride_h + ky * w->dilation_h) - (int32_t)w->pad_top;
    int32_t in_x = (int32_t)(x * w->stride_w + kx * w->dilation_w) - (int32_t)w->pad_left;
    bool inside = in_y >= 0 && in_y < (int32_t)in->h && in_x >= 0 && in_x < (int32_t)in->w;
    return inside ? input + ((uint32_t)in_y * in->w + (uint32_t)in_x) * in->c : NULL;
}

/* The inputs under the window of output pixel (y, x), every PIXELS-th of patch; padding is the zero point, so 0 here.
 */
static void gather(const struct plan_window *w, const struct plan_tensor *in, const int8_t *input, uint32_t y,
                   uint32_t x, int32_t *patch)
{
    for (uint32_t ky = 0; ky < w->kernel_h; ky++)
        for (uint32_t kx = 0; kx < w->kernel_w; kx++) {
            const int8_t *from = tap(w, in, input, y, x, ky, kx);
            for (uint32_t c = 0; c < in->c; c++, patch += PIXELS)
                *patch = from ? from[c] - in->zero_point : 0;
        }
}

/* The same of the one output pixel that there is, as it is. */
static void gather_bytes(const struct plan_window *w, const struct plan_tensor *in, const int8_t *input, int8_t *patch)
{
    for (uint32_t ky = 0; ky < w->kernel_h; ky++)
        for (uint32_t kx = 0; kx < w->kernel_w; kx++, patch += in->c) {
            const int8_t *from = tap(w, in, input, 0, 0, ky, kx);
            if (from)
                memcpy(patch, from, in->c);
            else
                memset(patch, in->zero_point, in->c);
        }
}

/* acc[p * channels] += weights . patch p. */
static void dot_products(const int8_t *restrict weights, const int32_t *restrict patches, uint32_t depth,
                         uint32_t channels, int32_t *restrict acc)
{
    int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    uint32_t i = 0;
    for (; i + 4 <= depth; i += 4) {
        uint32_t word = load_word(weights + i);
        for (int k = 0; k < 4; k++, patches += PIXELS) {
            int32_t w = byte_of(word, k);
            s0 += w * patches[0];
            s1 += w * patches[1];
            s2 += w * patches[2];
            s3 += w * patches[3];
        }
    }
    for (; i < depth; i++, patches += PIXELS) {
        int32_t w = weights[i];
        s0 += w * patches[0];
        s1 += w * patches[1];
        s2 += w * patches[2];
        s3 += w * patches[3];
    }
    acc[0] += s0;
    acc[channels] += s1;
    acc[2 * channels] += s2;
    acc[3 * channels] += s3;
}

void words_conv_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    uint32_t depth = depth_of(plan, op), channels = out->c, pixels = out->h * out->w;
    int32_t *acc = memory.scratch, *patches = acc + (size_t)PIXELS * channels;
    const int8_t *weights = (const int8_t *)plan->model + conv->filter.weights;
    int8_t *output = activation(memory, out);

    if (pixels == 1) {
        int8_t *patch = (int8_t *)patches;
        gather_bytes(&conv->window, in, activation(memory, in), patch);
        load_bias(plan, &conv->filter, channels, acc);
        words_filters(weights, patch, depth, in->zero_point, channels, acc);
        requantize_channels(plan, op, &conv->filter, acc, channels, output);
        return;
    }
    memset(patches, 0, PIXELS * depth * sizeof *patches);
    for (uint32_t pixel = 0; pixel < pixels; pixel += PIXELS) {
        uint32_t count = pixels - pixel < PIXELS ? pixels - pixel : PIXELS;
        for (uint32_t p = 0; p < count; p++)
            gather(&conv->window, in, activation(memory, in), (pixel + p) / out->w, (pixel + p) % out->w, patches + p);
        for (uint32_t p = 0; p < PIXELS; p++)
            load_bias(plan, &conv->filter, channels, acc + p * channels);
        for (uint32_t c = 0; c < channels; c++)
            dot_products(weights + c * depth, patches, depth, channels, acc + c);
        for (uint32_t p = 0; p < count; p++, output += channels)
            requantize_channels(plan, op, &conv->filter, acc + p * channels, channels, output);
    }
}
