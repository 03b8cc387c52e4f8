#include "runners/int8/requantize.h"

#include "runners/int8/kernels.h"

void requantize_channels(const struct plan *plan, const struct plan_op *op, const struct plan_filter *filter,
                         const int32_t *restrict acc, uint32_t channels, int8_t *restrict out)
{
    const int32_t *multipliers = plan->pool + filter->scales;
    const int32_t *shifts = multipliers + channels;
    int32_t zero_point = tensor_out(plan, op)->zero_point, min = op->min, max = op->max;
    for (uint32_t c = 0; c < channels; c++)
        out[c] = clamp_int8(rescale(acc[c], multipliers[c], shifts[c]) + zero_point, min, max);
}
