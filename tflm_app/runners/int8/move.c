/* Ops that only move bytes. */
#include <string.h>

#include "runners/int8/kernels.h"

/* One input of a CONCATENATION to its place in the output. */
void place(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_place *p = (const struct plan_place *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    for (uint32_t y = 0; y < in->h; y++)
        for (uint32_t x = 0; x < in->w; x++, input += in->c)
            memcpy(output + ((y + p->at_h) * out->w + x + p->at_w) * out->c + p->at_c, input, in->c);
}

/* Rows, columns and a range of channels: RESIZE_NEAREST_NEIGHBOR, STRIDED_SLICE, SLICE and SPLIT. */
void pick(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    const struct plan_pick *p = (const struct plan_pick *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int32_t *rows = plan->pool + p->indices, *columns = rows + out->h;
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    for (uint32_t y = 0; y < out->h; y++)
        for (uint32_t x = 0; x < out->w; x++, output += out->c)
            memcpy(output, input + ((uint32_t)rows[y] * in->w + (uint32_t)columns[x]) * in->c + p->first_c, out->c);
}
