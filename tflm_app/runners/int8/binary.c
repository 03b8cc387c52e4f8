/* Functions of two inputs, of which either may be a constant, and may have one element along an axis where the output
 * has more. */
#include "runners/int8/kernels.h"
#include "runners/int8/requantize.h"

enum { LEFT_SHIFT = 20 }; /* reference/integer_ops/add.h, reference/sub.h: more bits for the common scale */

struct operand {
    const int8_t *data;
    uint32_t step_h, step_w, step_c;
    int32_t zero_point;
};

static struct operand operand_of(const struct plan *plan, uint32_t tensor, uint32_t constant,
                                 struct kernel_memory memory)
{
    const struct plan_tensor *t = &plan->tensors[tensor];
    return (struct operand){
        .data = constant == PLAN_NO_CONSTANT ? activation(memory, t) : (const int8_t *)plan->model + constant,
        .step_h = t->h > 1 ? t->w * t->c : 0,
        .step_w = t->w > 1 ? t->c : 0,
        .step_c = t->c > 1 ? 1 : 0,
        .zero_point = t->zero_point,
    };
}

/* The combination of two operands less their zero points, before the output's multiplier. */
typedef int32_t combine_function(const struct plan_binary *p, int32_t x, int32_t y);

static int32_t common_scale(int32_t x, struct plan_scale scale)
{
    return rescale(x * (1 << LEFT_SHIFT), scale.multiplier, scale.shift);
}

static int32_t sum(const struct plan_binary *p, int32_t x, int32_t y)
{
    return common_scale(x, p->in0) + common_scale(y, p->in1);
}

static int32_t difference(const struct plan_binary *p, int32_t x, int32_t y)
{
    return common_scale(x, p->in0) - common_scale(y, p->in1);
}

static int32_t product(const struct plan_binary *p, int32_t x, int32_t y)
{
    (void)p;
    return x * y;
}

static int32_t smaller(const struct plan_binary *p, int32_t x, int32_t y)
{
    (void)p;
    return x < y ? x : y;
}

static int32_t larger(const struct plan_binary *p, int32_t x, int32_t y)
{
    (void)p;
    return x > y ? x : y;
}

/* reference/prelu.h: each side has a multiplier of its own, the output's is 1. */
static int32_t sloped(const struct plan_binary *p, int32_t x, int32_t y)
{
    return x >= 0 ? rescale(x, p->in0.multiplier, p->in0.shift) : rescale(x * y, p->in1.multiplier, p->in1.shift);
}

static inline void binary(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory,
                          combine_function *combine)
{
    const struct plan_binary *p = (const struct plan_binary *)op;
    const struct plan_tensor *out = tensor_out(plan, op);
    struct operand a = operand_of(plan, op->in0, p->constant0, memory);
    struct operand b = operand_of(plan, op->in1, p->constant1, memory);
    struct plan_scale scale = p->out;
    int8_t *output = activation(memory, out);
    for (uint32_t y = 0; y < out->h; y++)
        for (uint32_t x = 0; x < out->w; x++) {
            const int8_t *left = a.data + y * a.step_h + x * a.step_w;
            const int8_t *right = b.data + y * b.step_h + x * b.step_w;
            for (uint32_t c = 0; c < out->c; c++, left += a.step_c, right += b.step_c) {
                int32_t combined = combine(p, *left - a.zero_point, *right - b.zero_point);
                *output++ =
                    clamp_int8(rescale(combined, scale.multiplier, scale.shift) + out->zero_point, op->min, op->max);
            }
        }
}

void broadcast_add(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    binary(plan, op, memory, sum);
}

void sub(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    binary(plan, op, memory, difference);
}

void mul(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    binary(plan, op, memory, product);
}

void minimum(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    binary(plan, op, memory, smaller);
}

void maximum(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    binary(plan, op, memory, larger);
}

void prelu(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    binary(plan, op, memory, sloped);
}
