#include "runners/int8/kernels.h"

size_t fully_connected_scratch(const struct plan *plan, const struct plan_op *op)
{
    return tensor_out(plan, op)->c * sizeof(int32_t);
}

static int32_t dot(const int8_t *restrict weights, const int8_t *restrict in, uint32_t depth, int32_t zero_point)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < depth; i++)
        sum += (in[i] - zero_point) * weights[i];
    return sum;
}

void dot_filters(const int8_t *weights, const int8_t *in, uint32_t depth, int32_t zero_point, uint32_t channels,
                 int32_t *acc)
{
    for (uint32_t c = 0; c < channels; c++)
        acc[c] += dot(weights + c * depth, in, depth, zero_point);
}

void fully_connected_by(filters *add_products, const struct plan *plan, const struct plan_op *op,
                        struct kernel_memory memory)
{
    const struct plan_fully_connected *fc = (const struct plan_fully_connected *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    uint32_t rows = plan_elements(out) / out->c, depth = plan_elements(in) / rows;
    const int8_t *input = activation(memory, in);
    const int8_t *weights = (const int8_t *)plan->model + fc->filter.weights;
    int8_t *output = activation(memory, out);
    int32_t *acc = memory.scratch;
    for (uint32_t row = 0; row < rows; row++, input += depth, output += out->c) {
        load_bias(plan, &fc->filter, out->c, acc);
        add_products(weights, input, depth, in->zero_point, out->c, acc);
        requantize_channels(plan, op, &fc->filter, acc, out->c, output);
    }
}

void fully_connected(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    fully_connected_by(dot_filters, plan, op, memory);
}
