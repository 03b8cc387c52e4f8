/* TRANSPOSE_CONV (reference/integer_ops/transpose_conv.h), by output pixel: TFLM scatters, the sums are the same. */
#include "runners/int8/kernels.h"

size_t transpose_conv_scratch(const struct plan *plan, const struct plan_op *op)
{
    return tensor_out(plan, op)->c * sizeof(int32_t);
}

/* Whether tap k of the filter brings an input to output position `at` of an axis, and which. */
static bool input_of(uint32_t at, uint32_t pad, uint32_t k, uint32_t stride, uint32_t size, uint32_t *input)
{
    uint32_t from = at + pad - k;
    *input = from / stride;
    return at + pad >= k && from % stride == 0 && *input < size;
}

static int32_t dot(const int8_t *restrict weights, const int8_t *restrict in, uint32_t depth, int32_t zero_point)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < depth; i++)
        sum += (in[i] - zero_point) * weights[i];
    return sum;
}

void transpose_conv(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_conv *conv = (const struct plan_conv *)op;
    const struct plan_window *w = &conv->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    const int8_t *weights = (const int8_t *)plan->model + conv->filter.weights; /* [out][kernel_h][kernel_w][in] */
    int8_t *output = activation(memory, out);
    int32_t *acc = memory.scratch;
    uint32_t depth = w->kernel_h * w->kernel_w * in->c;
    for (uint32_t y = 0; y < out->h; y++)
        for (uint32_t x = 0; x < out->w; x++, output += out->c) {
            load_bias(plan, &conv->filter, out->c, acc);
            for (uint32_t ky = 0; ky < w->kernel_h; ky++)
                for (uint32_t kx = 0; kx < w->kernel_w; kx++) {
                    uint32_t in_y, in_x;
                    if (!input_of(y, w->pad_top, ky, w->stride_h, in->h, &in_y) ||
                        !input_of(x, w->pad_left, kx, w->stride_w, in->w, &in_x))
                        continue;
                    const int8_t *pixel = input + (in_y * in->w + in_x) * in->c;
                    const int8_t *tap = weights + (ky * w->kernel_w + kx) * in->c;
                    for (uint32_t c = 0; c < out->c; c++)
                        acc[c] += dot(tap + c * depth, pixel, in->c, in->zero_point);
                }
            requantize_channels(plan, op, &conv->filter, acc, out->c, output);
        }
}
