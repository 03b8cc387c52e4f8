/* MAX_POOL_2D and AVERAGE_POOL_2D (reference/integer_ops/pooling.h): padding takes no part. */
#include "runners/int8/kernels.h"
#include "runners/int8/requantize.h"

typedef int32_t pool_function(const int8_t *in, uint32_t rows, uint32_t row_stride, uint32_t columns,
                              uint32_t channels);

static int32_t largest(const int8_t *in, uint32_t rows, uint32_t row_stride, uint32_t columns, uint32_t channels)
{
    int32_t best = -128;
    for (uint32_t y = 0; y < rows; y++)
        for (uint32_t x = 0; x < columns; x++) {
            int32_t value = in[y * row_stride + x * channels];
            best = value > best ? value : best;
        }
    return best;
}

/* Rounded to nearest, ties away from zero. */
static int32_t average(const int8_t *in, uint32_t rows, uint32_t row_stride, uint32_t columns, uint32_t channels)
{
    int32_t sum = 0, count = (int32_t)(rows * columns);
    for (uint32_t y = 0; y < rows; y++)
        for (uint32_t x = 0; x < columns; x++)
            sum += in[y * row_stride + x * channels];
    return (sum > 0 ? sum + count / 2 : sum - count / 2) / count;
}

/* The part of a window that lies inside the input, along one axis. */
static void clip(uint32_t at, uint32_t stride, uint32_t pad, uint32_t kernel, uint32_t size, uint32_t *start,
                 uint32_t *count)
{
    int32_t first = (int32_t)(at * stride) - (int32_t)pad, end = first + (int32_t)kernel;
    first = first < 0 ? 0 : first;
    end = end > (int32_t)size ? (int32_t)size : end;
    *start = (uint32_t)first;
    *count = (uint32_t)(end - first);
}

static void pool(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory, pool_function *reduce)
{
    const struct plan_window *w = &((const struct plan_pool *)op)->window;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    for (uint32_t y = 0; y < out->h; y++)
        for (uint32_t x = 0; x < out->w; x++) {
            uint32_t top, rows, left, columns;
            clip(y, w->stride_h, w->pad_top, w->kernel_h, in->h, &top, &rows);
            clip(x, w->stride_w, w->pad_left, w->kernel_w, in->w, &left, &columns);
            const int8_t *window = input + (top * in->w + left) * in->c;
            for (uint32_t c = 0; c < out->c; c++)
                *output++ = clamp_int8(reduce(window + c, rows, in->w * in->c, columns, in->c), op->min, op->max);
        }
}

void max_pool_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    pool(plan, op, memory, largest);
}

void average_pool_2d(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    pool(plan, op, memory, average);
}
