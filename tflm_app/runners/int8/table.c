/* Element-wise functions of one int8 input: the converter has computed all 256 values. */
#include "runners/int8/kernels.h"

void table(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const int8_t *values = (const int8_t *)(plan->pool + ((const struct plan_table *)op)->values) + 128;
    const int8_t *input = activation(memory, tensor_in(plan, op));
    int8_t *output = activation(memory, tensor_out(plan, op));
    for (uint32_t i = 0; i < plan_elements(tensor_out(plan, op)); i++)
        output[i] = values[input[i]];
}
