#include <string.h>

#include "runners/int8/kernels.h"

void pad(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_pad *p = (const struct plan_pad *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    memset(output, p->value, plan_elements(out));
    for (uint32_t y = 0; y < in->h; y++)
        for (uint32_t x = 0; x < in->w; x++, input += in->c)
            memcpy(output + ((y + p->before_h) * out->w + x + p->before_w) * out->c + p->before_c, input, in->c);
}
