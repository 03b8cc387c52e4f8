#include "runners/int8/kernels.h"
#include "runners/int8/requantize.h"

/* Both inputs to a common scale with 20 more bits, then to the output's (reference/integer_ops/add.h). */
void add(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    enum { LEFT_SHIFT = 20 };
    const struct plan_add *p = (const struct plan_add *)op;
    const struct plan_tensor *a = tensor_in(plan, op), *b = &plan->tensors[op->in1], *out = tensor_out(plan, op);
    const int8_t *x = activation(memory, a), *y = activation(memory, b);
    int8_t *output = activation(memory, out);
    struct plan_scale s0 = p->in0, s1 = p->in1, s2 = p->out;
    int32_t zero0 = a->zero_point, zero1 = b->zero_point, zero2 = out->zero_point, min = op->min, max = op->max;
    uint32_t count = plan_elements(out);
    for (uint32_t i = 0; i < count; i++) {
        int32_t left = rescale((x[i] - zero0) * (1 << LEFT_SHIFT), s0.multiplier, s0.shift);
        int32_t right = rescale((y[i] - zero1) * (1 << LEFT_SHIFT), s1.multiplier, s1.shift);
        output[i] = clamp_int8(rescale(left + right, s2.multiplier, s2.shift) + zero2, min, max);
    }
}
