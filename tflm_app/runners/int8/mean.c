#include <string.h>

#include "runners/int8/kernels.h"
#include "runners/int8/requantize.h"

size_t mean_scratch(const struct plan *plan, const struct plan_op *op)
{
    return plan_elements(tensor_out(plan, op)) * sizeof(int32_t);
}

/* Sums over the reduced axes, then 1/count within the multiplier (reference/reduce.h, QuantizedMeanOrSum). */
void mean(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_mean *p = (const struct plan_mean *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    int32_t *sums = memory.scratch;
    uint32_t step_c = p->axes & 4 ? 0 : 1, kept_c = p->axes & 4 ? 1 : in->c;
    uint32_t step_w = p->axes & 2 ? 0 : kept_c, kept_w = p->axes & 2 ? 1 : in->w;
    uint32_t step_h = p->axes & 1 ? 0 : kept_c * kept_w;
    memset(sums, 0, mean_scratch(plan, op));
    for (uint32_t y = 0; y < in->h; y++)
        for (uint32_t x = 0; x < in->w; x++)
            for (uint32_t c = 0; c < in->c; c++)
                sums[y * step_h + x * step_w + c * step_c] += *input++;
    for (uint32_t i = 0; i < plan_elements(out); i++) {
        int32_t centred = sums[i] - in->zero_point * (int32_t)p->count;
        output[i] = clamp_int8(rescale(centred, p->scale.multiplier, p->scale.shift) + out->zero_point, -128, 127);
    }
}
