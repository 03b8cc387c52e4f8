/* Packing: what does not depend on the instruction set, and the AVX2 set's packing in plain C. */
#include <string.h>

#include "runners/int8/x86/packed.h"
#include "zo/philox.h"

enum { BLOCK = 128 };

struct filter_index filter_index(const struct image *image, const struct plan_filter *filter)
{
    const struct zo_weights *weights = &image->weights;
    const int8_t *at = (const int8_t *)image->plan.model + filter->weights;
    uint32_t first = 0;
    for (uint32_t s = 0; s < weights->segment_count; s++) {
        if (weights->base + weights->segments[s].offset == at)
            return (struct filter_index){true, first};
        first += weights->segments[s].count;
    }
    return (struct filter_index){false, 0};
}

void channel_constants(struct channel_constants *constants, const struct plan *plan, const struct plan_op *op,
                       const struct plan_filter *filter, uint32_t first, const int32_t *sums, int32_t input,
                       uint32_t depth)
{
    uint32_t channels = tensor_out(plan, op)->c;
    const int32_t *multipliers = plan->pool + filter->scales, *shifts = multipliers + channels;
    const int32_t *bias = (const int32_t *)(plan->model + filter->bias);
    memset(constants, 0, sizeof *constants);
    for (uint32_t i = 0; i < LANES && first + i < channels; i++) {
        uint32_t c = first + i;
        int32_t b = filter->bias == PLAN_NO_BIAS ? 0 : bias[c], right = -shifts[c];
        int64_t largest = (b < 0 ? -(int64_t)b : b) + (int64_t)depth * 255 * 128;
        if (right < 0 || right > 24 || largest >= 1 << 30)
            constants->general = 1;
        constants->start[i] = b - input * sums[i];
        constants->wrapped |= (uint32_t)(multipliers[c] >= 1 << 30) << i;
        constants->multiplier[i] = (int32_t)((uint32_t)multipliers[c] << 1);
        constants->shift[i] = right;
        constants->half[i] = right > 0 && right <= 24 ? 1 << (right - 1) : 0;
        constants->sign_shift[i] = right > 0 ? 31 : 32;
    }
}

void sign_bits_portable(uint64_t seed, uint32_t first, uint32_t count, uint32_t *bits)
{
    uint32_t end = (first + count + BLOCK - 1) / BLOCK;
    for (uint32_t block = first / BLOCK; block < end; block++, bits += 4)
        philox4x32(seed, block, PHILOX_SIGNS, bits);
}
