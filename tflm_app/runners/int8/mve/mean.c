/* MEAN over height and width, four channels at a time; other axes are left to the portable kernel. */
#include "runners/int8/mve/mve.h"

enum { HEIGHT_AND_WIDTH = 3 };

static bool usable(const struct plan_op *op)
{
    const struct plan_mean *p = (const struct plan_mean *)op;
    return p->axes == HEIGHT_AND_WIDTH;
}

size_t mve_mean_scratch(const struct plan *plan, const struct plan_op *op)
{
    return usable(op) ? 0 : mean_scratch(plan, op);
}

void mve_mean(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    if (!usable(op)) {
        mean(plan, op, memory);
        return;
    }
    const struct plan_mean *p = (const struct plan_mean *)op;
    const struct plan_tensor *in = tensor_in(plan, op), *out = tensor_out(plan, op);
    const int8_t *input = activation(memory, in);
    int8_t *output = activation(memory, out);
    int32_t left_shift = p->scale.shift > 0 ? p->scale.shift : 0;
    int32x4_t multiplier = vdupq_n_s32(p->scale.multiplier), shift = vdupq_n_s32(p->scale.shift - left_shift);
    int32_t start = -in->zero_point * (int32_t)p->count, zero = out->zero_point;
    uint32_t channels = in->c, pixels = in->h * in->w;
    for (int32_t left = (int32_t)channels; left > 0; left -= 4, input += 4, output += 4) {
        mve_pred16_t lanes = vctp32q((uint32_t)left);
        int32x4_t sum = vdupq_n_s32(start);
        const int8_t *from = input;
        for (uint32_t i = 0; i < pixels; i++, from += channels)
            sum = vaddq_s32(sum, vldrbq_z_s32(from, lanes));
        sum = vaddq_n_s32(mve_rescale(vshlq_r_s32(sum, left_shift), multiplier, shift, false), zero);
        vstrbq_p_s32(output, vminq_s32(vmaxq_s32(sum, vdupq_n_s32(-128)), vdupq_n_s32(127)), lanes);
    }
}
