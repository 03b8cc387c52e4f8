#include "runners/int8/mve/mve.h"

/* Constants of an input: (x - zero point) * 2^20 is x * 2^20 + offset. */
struct operand {
    int32_t offset, multiplier;
    int32x4_t shift;
};

static struct operand operand_of(const struct plan_tensor *t, struct plan_scale scale)
{
    return (struct operand){-t->zero_point * (1 << 20), scale.multiplier, vdupq_n_s32(scale.shift)};
}

static inline int32x4_t rescale_by(int32x4_t x, int32_t multiplier, int32x4_t shift, bool clamped)
{
    x = vqrdmulhq_n_s32(x, multiplier);
    if (!clamped)
        x = vaddq_s32(x, vshrq_n_s32(vandq_s32(x, shift), 31));
    return vrshlq_s32(x, shift);
}

static inline int32x4_t to_common_scale(int32x4_t x, struct operand operand)
{
    return rescale_by(vaddq_n_s32(vshlq_n_s32(x, 20), operand.offset), operand.multiplier, operand.shift, false);
}

static inline void add_all(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory, bool clamped)
{
    const struct plan_add *p = (const struct plan_add *)op;
    const struct plan_tensor *a = tensor_in(plan, op), *b = &plan->tensors[op->in1], *out = tensor_out(plan, op);
    const int8_t *x = activation(memory, a), *y = activation(memory, b);
    int8_t *output = activation(memory, out);
    struct operand in0 = operand_of(a, p->in0), in1 = operand_of(b, p->in1);
    int32_t multiplier = p->out.multiplier, zero = out->zero_point;
    int32x4_t shift = vdupq_n_s32(p->out.shift), min = vdupq_n_s32(op->min), max = vdupq_n_s32(op->max);
    uint32_t count = plan_elements(out);
    for (; count >= 4; count -= 4, x += 4, y += 4, output += 4) {
        int32x4_t sum = vaddq_s32(to_common_scale(vldrbq_s32(x), in0), to_common_scale(vldrbq_s32(y), in1));
        sum = vaddq_n_s32(rescale_by(sum, multiplier, shift, clamped), zero);
        vstrbq_s32(output, vminq_s32(vmaxq_s32(sum, min), max));
    }
    if (count) {
        mve_pred16_t rest = vctp32q(count);
        int32x4_t sum =
            vaddq_s32(to_common_scale(vldrbq_z_s32(x, rest), in0), to_common_scale(vldrbq_z_s32(y, rest), in1));
        sum = vaddq_n_s32(rescale_by(sum, multiplier, shift, clamped), zero);
        vstrbq_p_s32(output, vminq_s32(vmaxq_s32(sum, min), max), rest);
    }
}

void mve_add(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    if (op->min >= tensor_out(plan, op)->zero_point)
        add_all(plan, op, memory, true);
    else
        add_all(plan, op, memory, false);
}
