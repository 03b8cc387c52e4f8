#include "runners/int8/mve/filters.h"

static bool usable(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_fully_connected *fc = (const struct plan_fully_connected *)op;
    uint32_t channels = tensor_out(plan, op)->c;
    return channels >= FILTERS_LEAST && mve_shifts_right(plan, &fc->filter, channels);
}

static uint32_t depth_of(const struct plan *plan, const struct plan_op *op)
{
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    return plan_elements(in) / (plan_elements(out) / out->c);
}

size_t mve_fully_connected_scratch(const struct plan *plan, const struct plan_op *op)
{
    return usable(plan, op) ? filters_scratch(tensor_out(plan, op), depth_of(plan, op))
                            : fully_connected_scratch(plan, op);
}

void mve_fully_connected(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    if (!usable(plan, op)) {
        fully_connected(plan, op, memory);
        return;
    }
    const struct plan_fully_connected *fc = (const struct plan_fully_connected *)op;
    const struct plan_tensor *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, tensor_in(plan, op));
    int8_t *output = activation(memory, out), *end = output + plan_elements(out);
    uint32_t depth = depth_of(plan, op);
    struct filters filters = filters_of(plan, op, &fc->filter, depth, 0, depth, memory.scratch);
    for (; output < end; output += out->c, input += depth) {
        filters_input(&filters, input, 1);
        filters_apply_first(&filters, output);
    }
}
