/* The int8 kernels: bit-equal to TFLM's reference kernels (tensorflow/lite/kernels/internal/reference). */
#ifndef RUNNERS_INT8_KERNELS_H
#define RUNNERS_INT8_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "image/image.h"

/* Where one invocation works. Its samples lie one after the other in each tensor: a tensor that the plan puts at offset
 * `at` of a one-sample arena begins at block * at, so what does not overlap for one sample does not for a block. */
struct kernel_memory {
    int8_t *activations;
    void *scratch;         /* 64-byte aligned */
    const uint8_t *packed; /* this op's weights as kernel_set.pack left them */
    uint32_t block;        /* samples the arena has room for */
    uint32_t sample;       /* the one that a kernel of single samples works on */
    uint32_t samples;      /* those that a kernel of whole blocks works on */
};

typedef void kernel(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory);

/* What packing is to make of the weights w, and which share of it. */
struct packing {
    uint64_t seed; /* w + step * z(seed) */
    int step;
    bool first; /* nothing was packed before: what does not depend on weights is to be made too */
    unsigned worker, workers;
};

/* Kernels that belong together. Which set runs is decided at build time on a microcontroller, at start on a host. */
struct kernel_set {
    const char *name; /* "int8 " and which: the runner's name for people */
    struct {
        kernel *run;
        bool whole_block; /* takes all samples of the block at once */
        size_t (*scratch)(const struct plan *plan, const struct plan_op *op);
    } ops[PLAN_KINDS];
    /* Bytes of work memory that a block of samples may take: 0 for one sample at a time. */
    size_t block_bytes;
    /* Packing, NULL for kernels that read the weights in place. packed_bytes is a multiple of 64. */
    size_t (*packed_bytes)(const struct plan *plan, const struct plan_op *op);
    void (*pack)(const struct image *image, const struct plan_op *op, const struct packing *packing, uint8_t *packed);
};

extern const struct kernel_set portable_kernels;

/* The set that this build, on this machine, runs fastest. */
const struct kernel_set *kernel_set_choose(void);

kernel conv_2d, depthwise_conv_2d, fully_connected, add, mean, max_pool_2d, average_pool_2d, pad, softmax, quantize,
    relu6, table, broadcast_add, sub, mul, place, pick, transpose_conv, minimum, maximum, prelu;

/* acc[c] += filter c . (in - zero point), for a number of channels. */
typedef void filters(const int8_t *weights, const int8_t *in, uint32_t depth, int32_t zero_point, uint32_t channels,
                     int32_t *acc);

filters dot_filters;

/* FULLY_CONNECTED with these dot products. */
void fully_connected_by(filters *add_products, const struct plan *plan, const struct plan_op *op,
                        struct kernel_memory memory);

/* Scratch bytes of the kernels that need any. */
size_t conv_2d_scratch(const struct plan *plan, const struct plan_op *op);
size_t depthwise_conv_2d_scratch(const struct plan *plan, const struct plan_op *op);
size_t fully_connected_scratch(const struct plan *plan, const struct plan_op *op);
size_t mean_scratch(const struct plan *plan, const struct plan_op *op);
size_t transpose_conv_scratch(const struct plan *plan, const struct plan_op *op);
size_t average_pool_2d_scratch(const struct plan *plan, const struct plan_op *op);

/* What every set runs in plain C: ops that take little time. One sample at a time. */
#define PLAIN_OPS                                                                                                      \
    [PLAN_PAD] = {pad, false, NULL}, [PLAN_SOFTMAX] = {softmax, false, NULL},                                          \
    [PLAN_QUANTIZE] = {quantize, false, NULL}, [PLAN_RELU6] = {relu6, false, NULL},                                    \
    [PLAN_TABLE] = {table, false, NULL}, [PLAN_BROADCAST_ADD] = {broadcast_add, false, NULL},                          \
    [PLAN_SUB] = {sub, false, NULL}, [PLAN_MUL] = {mul, false, NULL}, [PLAN_PLACE] = {place, false, NULL},             \
    [PLAN_PICK] = {pick, false, NULL}, [PLAN_TRANSPOSE_CONV] = {transpose_conv, false, transpose_conv_scratch},        \
    [PLAN_MINIMUM] = {minimum, false, NULL}, [PLAN_MAXIMUM] = {maximum, false, NULL},                                  \
    [PLAN_PRELU] = {prelu, false, NULL}

/* The part of a pool's window that lies inside the input, along one axis. */
struct span {
    uint32_t start, count;
};

static inline struct span clip(uint32_t at, uint32_t stride, uint32_t pad, uint32_t kernel, uint32_t size)
{
    int32_t first = (int32_t)(at * stride) - (int32_t)pad, end = first + (int32_t)kernel;
    first = first < 0 ? 0 : first;
    end = end > (int32_t)size ? (int32_t)size : end;
    return (struct span){(uint32_t)first, (uint32_t)(end - first)};
}

/* The first byte of a tensor: of this sample, which is that of the block where sample is 0. */
static inline int8_t *activation(struct kernel_memory memory, const struct plan_tensor *t)
{
    return memory.activations + (size_t)t->at * memory.block + (size_t)memory.sample * plan_elements(t);
}

static inline const struct plan_tensor *tensor_in(const struct plan *plan, const struct plan_op *op)
{
    return &plan->tensors[op->in0];
}

static inline const struct plan_tensor *tensor_out(const struct plan *plan, const struct plan_op *op)
{
    return &plan->tensors[op->out];
}

/* The weights in their own order: in the model, or a copy of them. */
static inline const int8_t *filter_weights(const struct plan *plan, const struct plan_filter *filter,
                                           struct kernel_memory memory)
{
    return (const int8_t *)(memory.packed ? memory.packed : plan->model + filter->weights);
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
