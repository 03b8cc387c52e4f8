/* QUANTIZE from int8 to int8, RELU (the same with a lower bound), and RELU6 where both scales are equal. */
#include "runners/int8/kernels.h"
#include "runners/int8/requantize.h"

void quantize(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    struct plan_scale scale = ((const struct plan_quantize *)op)->scale;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    for (uint32_t i = 0; i < plan_elements(out); i++)
        output[i] = clamp_int8(rescale(input[i] - in->zero_point, scale.multiplier, scale.shift) + out->zero_point,
                               op->min, op->max);
}

void relu6(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const int8_t *input = activation(memory, tensor_in(plan, op));
    int8_t *output = activation(memory, tensor_out(plan, op));
    for (uint32_t i = 0; i < plan_elements(tensor_out(plan, op)); i++)
        output[i] = clamp_int8(input[i], op->min, op->max);
}
