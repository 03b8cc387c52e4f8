/* The PLAN section: the ops of the network with everything TFLM would derive when it prepares. All words are 32 bits,
 * little-endian; converters/plan.py writes them, docs/device_image.md describes them. */
#ifndef IMAGE_PLAN_H
#define IMAGE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "app/status.h"

enum plan_kind {
    PLAN_CONV_2D = 1,
    PLAN_DEPTHWISE_CONV_2D,
    PLAN_FULLY_CONNECTED,
    PLAN_ADD,
    PLAN_MEAN,
    PLAN_MAX_POOL_2D,
    PLAN_AVERAGE_POOL_2D,
    PLAN_PAD,
    PLAN_SOFTMAX,
    PLAN_QUANTIZE,
    PLAN_RELU6,
    PLAN_TABLE, /* any function of one int8 value */
    PLAN_BROADCAST_ADD,
    PLAN_SUB,
    PLAN_MUL,
    PLAN_PLACE, /* one input of a concatenation */
    PLAN_PICK,  /* rows, columns and a range of channels */
    PLAN_TRANSPOSE_CONV,
    PLAN_MINIMUM,
    PLAN_MAXIMUM,
    PLAN_PRELU,
    PLAN_KINDS
};

#define PLAN_NO_BIAS     0xFFFFFFFFu
#define PLAN_NO_CONSTANT 0xFFFFFFFFu

/* An int8 activation [h, w, c] at an offset in the arena. */
struct plan_tensor {
    uint32_t at, h, w, c;
    int32_t zero_point;
};

struct plan_op {
    uint32_t kind, words; /* words: length of the record */
    uint32_t in0, in1, out;
    int32_t min, max; /* activation range */
};

struct plan_window {
    uint32_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
};

struct plan_filter {
    uint32_t weights, bias; /* offsets in the TFLITE section */
    uint32_t scales;        /* index in the constant pool: multipliers, then shifts, one a channel */
};

struct plan_scale {
    int32_t multiplier, shift;
};

struct plan_conv { /* CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV */
    struct plan_op op;
    struct plan_window window;
    struct plan_filter filter;
};

struct plan_fully_connected {
    struct plan_op op;
    struct plan_filter filter;
};

struct plan_add {
    struct plan_op op;
    struct plan_scale in0, in1, out;
};

struct plan_mean {
    struct plan_op op;
    uint32_t axes; /* bit 0 height, 1 width, 2 channels */
    uint32_t count;
    struct plan_scale scale;
};

struct plan_pool {
    struct plan_op op;
    struct plan_window window;
};

struct plan_pad {
    struct plan_op op;
    uint32_t before_h, after_h, before_w, after_w, before_c, after_c;
    int32_t value;
};

struct plan_softmax {
    struct plan_op op;
    struct plan_scale scale;
    int32_t diff_min;
};

struct plan_quantize {
    struct plan_op op;
    struct plan_scale scale;
};

struct plan_table {
    struct plan_op op;
    uint32_t values; /* index in the constant pool: 256 int8, of -128 to 127 */
};

struct plan_binary { /* BROADCAST_ADD, SUB, MUL, MINIMUM, MAXIMUM, PRELU */
    struct plan_op op;
    struct plan_scale in0, in1, out;
    uint32_t constant0, constant1; /* offset of an operand in the TFLITE section, or PLAN_NO_CONSTANT */
};

struct plan_place {
    struct plan_op op;
    uint32_t at_h, at_w, at_c; /* in the output */
};

struct plan_pick {
    struct plan_op op;
    uint32_t indices; /* index in the constant pool: an input row for each of the output's, then the columns */
    uint32_t first_c;
};

struct plan {
    uint32_t tensor_count, op_count, input, output; /* input, output: tensor numbers */
    uint32_t arena;                                 /* bytes of activations */
    const struct plan_tensor *tensors;
    const uint32_t *ops;  /* records, one after the other */
    const int32_t *pool;  /* constants */
    const uint8_t *model; /* the TFLITE section, which holds weights and biases */
};

/* Check the section against the model it points into, and fill in plan. */
struct status plan_open(struct plan *plan, const uint32_t *words, uint32_t count, const uint8_t *model,
                        uint32_t model_size);

/* Whether size bytes at offset are exactly the filter of an op that can be trained, and no op's bias. */
bool plan_has_filter(const struct plan *plan, uint32_t offset, uint32_t size);

static inline uint32_t plan_elements(const struct plan_tensor *t)
{
    return t->h * t->w * t->c;
}

static inline const struct plan_op *plan_next(const struct plan_op *op)
{
    return (const struct plan_op *)((const uint32_t *)op + op->words);
}

static inline const struct plan_op *plan_op_at(const struct plan *plan, uint32_t number)
{
    const struct plan_op *op = (const struct plan_op *)plan->ops;
    while (number--)
        op = plan_next(op);
    return op;
}

#endif
