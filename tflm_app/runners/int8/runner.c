/* The in-tree runner: executes the PLAN section with the kernels of this folder. */
#include "runners/runner.h"

#include "runners/int8/kernels.h"

enum { ALIGN = 64 };

const char *runner_name(void)
{
    return "int8";
}

static size_t align_up(size_t size)
{
    return (size + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t scratch_of(const struct plan *plan, const struct plan_op *op)
{
    switch (op->kind) {
    case PLAN_CONV_2D:
        return conv_2d_scratch(plan, op);
    case PLAN_DEPTHWISE_CONV_2D:
        return depthwise_conv_2d_scratch(plan, op);
    case PLAN_FULLY_CONNECTED:
        return fully_connected_scratch(plan, op);
    case PLAN_MEAN:
        return mean_scratch(plan, op);
    default:
        return 0;
    }
}

void runner_init(struct runner *runner, const struct image *image)
{
    const struct plan *plan = &image->plan;
    const struct plan_op *op = (const struct plan_op *)plan->ops;
    size_t scratch = 0;
    for (uint32_t i = 0; i < plan->op_count; i++, op = plan_next(op)) {
        size_t need = scratch_of(plan, op);
        scratch = need > scratch ? need : scratch;
    }
    runner->image = image;
    runner->memory = (struct runner_memory){align_up(plan->arena), align_up(scratch)};
}

int8_t *runner_input(const struct runner *runner, uint8_t *work)
{
    const struct plan *plan = &runner->image->plan;
    return (int8_t *)work + plan->tensors[plan->input].at;
}

const int8_t *runner_output(const struct runner *runner, uint8_t *work)
{
    const struct plan *plan = &runner->image->plan;
    return (const int8_t *)work + plan->tensors[plan->output].at;
}

void runner_invoke(const struct runner *runner, uint8_t *work)
{
    static kernel *const kernels[PLAN_KINDS] = {
        [PLAN_CONV_2D] = conv_2d,
        [PLAN_DEPTHWISE_CONV_2D] = depthwise_conv_2d,
        [PLAN_FULLY_CONNECTED] = fully_connected,
        [PLAN_ADD] = add,
        [PLAN_MEAN] = mean,
        [PLAN_MAX_POOL_2D] = max_pool_2d,
        [PLAN_AVERAGE_POOL_2D] = average_pool_2d,
        [PLAN_PAD] = pad,
        [PLAN_SOFTMAX] = softmax,
        [PLAN_QUANTIZE] = quantize,
        [PLAN_RELU6] = relu6,
    };
    const struct plan *plan = &runner->image->plan;
    struct kernel_memory memory = {(int8_t *)work, work + runner->memory.activations};
    const struct plan_op *op = (const struct plan_op *)plan->ops;
    for (uint32_t i = 0; i < plan->op_count; i++, op = plan_next(op))
        kernels[op->kind](plan, op, memory);
}

void runner_weights_written(struct runner *runner)
{
    (void)runner; /* the kernels read the weights where they are and keep nothing */
}
