/* The int8 kernels: bit-equal to TFLM's reference kernels (tensorflow/lite/kernels/internal/reference). */
#ifndef RUNNERS_INT8_KERNELS_H
#define RUNNERS_INT8_KERNELS_H

#include <stddef.h>

#include "image/plan.h"

/* Where one invocation works: the activations of a worker and the kernels' scratch memory beside them. */
struct kernel_memory {
    int8_t *activations;
    void *scratch; /* 64-byte aligned */
};

typedef void kernel(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory);

kernel conv_2d, depthwise_conv_2d, fully_connected, add, mean, max_pool_2d, average_pool_2d, pad, softmax, quantize,
    relu6;

/* Scratch bytes of the kernels that need any. */
size_t conv_2d_scratch(const struct plan *plan, const struct plan_op *op);
size_t depthwise_conv_2d_scratch(const struct plan *plan, const struct plan_op *op);
size_t fully_connected_scratch(const struct plan *plan, const struct plan_op *op);
size_t mean_scratch(const struct plan *plan, const struct plan_op *op);

static inline const struct plan_tensor *tensor_in(const struct plan *plan, const struct plan_op *op)
{
    return &plan->tensors[op->in0];
}

static inline const struct plan_tensor *tensor_out(const struct plan *plan, const struct plan_op *op)
{
    return &plan->tensors[op->out];
}

/* acc[c] = bias, or 0. */
static inline void load_bias(const struct plan *plan, const struct plan_filter *filter, uint32_t channels, int32_t *acc)
{
    const int32_t *bias = (const int32_t *)(plan->model + filter->bias);
    for (uint32_t c = 0; c < channels; c++)
        acc[c] = filter->bias == PLAN_NO_BIAS ? 0 : bias[c];
}

/* out[c] = clamp(rescale(acc[c]) + zero point): the end of every op with weights. */
void requantize_channels(const struct plan *plan, const struct plan_op *op, const struct plan_filter *filter,
                         const int32_t *acc, uint32_t channels, int8_t *out);

#endif
