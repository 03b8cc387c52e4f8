#include "runners/int8/kernels.h"

size_t depthwise_conv_2d_scratch(const struct plan *plan, const struct plan_op *op)
{
    return tensor_out(plan, op)->c * sizeof(int32_t);
}

/* acc += (in - zero point) * weights over the channels of one input pixel; each input channel feeds multiplier outputs.
 */
static void accumulate(const int8_t *restrict in, const int8_t *restrict weights, uint32_t channels,
                       uint32_t multiplier, int32_t zero_point, int32_t *restrict acc)
{
    if (multiplier == 1) {
        for (uint32_t c = 0; c < channels; c++)
            acc[c] += (in[c] - zero_point) * weights[c];
        return;
    }
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t m = 0; m < multiplier; m++)
            acc[c * multiplier + m] += (in[c] - zero_point) * weights[c * multiplier + m];
}

void depthwise_conv_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    const struct plan_window *w = &conv->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    const int8_t *weights = filter_weights(plan, &conv->filter, memory);
    int8_t *output = activation(memory, out);
    int32_t *acc = memory.scratch;
    for (uint32_t y = 0; y < out->h; y++) {
        for (uint32_t x = 0; x < out->w; x++, output += out->c) {
            load_bias(plan, &conv->filter, out->c, acc);
            for (uint32_t ky = 0; ky < w->kernel_h; ky++) {
                int32_t in_y = (int32_t)(y * w->stride_h + ky * w->dilation_h) - (int32_t)w->pad_top;
                if (in_y < 0 || in_y >= (int32_t)in->h)
                    continue;
                for (uint32_t kx = 0; kx < w->kernel_w; kx++) {
                    int32_t in_x = (int32_t)(x * w->stride_w + kx * w->dilation_w) - (int32_t)w->pad_left;
                    if (in_x < 0 || in_x >= (int32_t)in->w)
                        continue;
                    accumulate(input + ((uint32_t)in_y * in->w + (uint32_t)in_x) * in->c,
                               weights + (ky * w->kernel_w + kx) * out->c, in->c, out->c / in->c, in->zero_point, acc);
                }
            }
            requantize_channels(plan, op, &conv->filter, acc, out->c, output);
        }
    }
}
