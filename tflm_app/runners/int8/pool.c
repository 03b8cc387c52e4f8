/* MAX_POOL_2D and AVERAGE_POOL_2D (reference/integer_ops/pooling.h): padding takes no part. */
#include <string.h>

#include "runners/int8/kernels.h"
#include "runners/int8/requantize.h"

/* out[c] = the largest of in[y][x][c]. */
static void largest(const int8_t *restrict in, struct span rows, size_t row_stride, struct span columns,
                    uint32_t channels, int8_t *restrict out)
{
    memset(out, -128, channels);
    for (uint32_t y = 0; y < rows.count; y++)
        for (uint32_t x = 0; x < columns.count; x++) {
            const int8_t *restrict pixel = in + y * row_stride + (size_t)x * channels;
            for (uint32_t c = 0; c < channels; c++)
                out[c] = pixel[c] > out[c] ? pixel[c] : out[c];
        }
}

/* sums[c] = the sum of in[y][x][c]. */
static void add_up(const int8_t *restrict in, struct span rows, size_t row_stride, struct span columns,
                   uint32_t channels, int32_t *restrict sums)
{
    memset(sums, 0, channels * sizeof *sums);
    for (uint32_t y = 0; y < rows.count; y++)
        for (uint32_t x = 0; x < columns.count; x++) {
            const int8_t *restrict pixel = in + y * row_stride + (size_t)x * channels;
            for (uint32_t c = 0; c < channels; c++)
                sums[c] += pixel[c];
        }
}

static void pool(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory, int32_t *sums)
{
    const struct plan_window *w = &((const struct plan_pool *)op)->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    int32_t min = op->min, max = op->max;
    for (uint32_t y = 0; y < out->h; y++)
        for (uint32_t x = 0; x < out->w; x++, output += out->c) {
            struct span rows = clip(y, w->stride_h, w->pad_top, w->kernel_h, in->h);
            struct span columns = clip(x, w->stride_w, w->pad_left, w->kernel_w, in->w);
            const int8_t *window = input + ((size_t)rows.start * in->w + columns.start) * in->c;
            if (sums) {
                /* the mean, rounded to nearest, ties away from zero */
                int32_t count = (int32_t)(rows.count * columns.count);
                add_up(window, rows, (size_t)in->w * in->c, columns, in->c, sums);
                for (uint32_t c = 0; c < out->c; c++)
                    output[c] = clamp_int8((sums[c] > 0 ? sums[c] + count / 2 : sums[c] - count / 2) / count, min, max);
            } else {
                largest(window, rows, (size_t)in->w * in->c, columns, in->c, output);
                for (uint32_t c = 0; c < out->c; c++)
                    output[c] = clamp_int8(output[c], min, max);
            }
        }
}

void max_pool_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    pool(plan, op, memory, NULL);
}

size_t average_pool_2d_scratch(const struct plan *plan, const struct plan_op *op)
{
    return tensor_out(plan, op)->c * sizeof(int32_t);
}

void average_pool_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    pool(plan, op, memory, memory.scratch);
}
