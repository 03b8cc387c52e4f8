/* What does not depend on the instruction set, and the AVX2 set's packing in plain C. */
#include <string.h>

#include "runners/int8/requantize.h"
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
                       uint32_t first, const int32_t *sums, int32_t input, uint32_t depth, bool all)
{
    const struct plan_filter *filter = filter_of(op);
    uint32_t channels = tensor_out(plan, op)->c;
    const int32_t *multipliers = plan->pool + filter->scales, *shifts = multipliers + channels;
    const int32_t *bias = (const int32_t *)(plan->model + filter->bias);
    int32_t zero_point = tensor_out(plan, op)->zero_point;
    if (all)
        memset(constants, 0, sizeof *constants);
    for (uint32_t i = 0; i < LANES && first + i < channels; i++) {
        uint32_t c = first + i;
        int32_t b = filter->bias == PLAN_NO_BIAS ? 0 : bias[c], right = -shifts[c];
        constants->start[i] = BIAS + (uint32_t)b - (uint32_t)input * (uint32_t)sums[i];
        if (!all)
            continue;
        int64_t largest = (b < 0 ? -(int64_t)b : b) + (int64_t)depth * 255 * 128;
        if (right < 0 || right > MAX_SHIFT || largest >= 1 << 30) {
            constants->general = 1;
            continue;
        }
        constants->multiplier[i] = (uint32_t)multipliers[c] << 1;
        constants->shift[i] = (uint32_t)right;
        constants->sign_shift[i] = right > 0 ? 31 : 32;
        (i % 2 ? constants->offset_odd : constants->offset_even)[i / 2] =
            rescale_offset((struct plan_scale){multipliers[c], shifts[c]}, zero_point);
    }
}

size_t packed_bytes(const struct plan *plan, const struct plan_op *op, struct reading reading, bool plain_depthwise)
{
    if (op->kind == PLAN_CONV_2D || op->kind == PLAN_FULLY_CONNECTED) {
        struct product_shape shape = product_shape(plan, op, reading);
        return shape.panels * panel_bytes(shape);
    }
    if (op->kind != PLAN_DEPTHWISE_CONV_2D)
        return 0;
    const struct plan_window *w = &((const struct plan_conv *)op)->window;
    if (plain_depthwise || depthwise_is_plain(plan, op))
        return ((size_t)w->kernel_h * w->kernel_w * tensor_out(plan, op)->c + 63) / 64 * 64;
    struct depthwise_shape shape = depthwise_shape(plan, op);
    return shape.blocks * depthwise_block_bytes(shape);
}

/* to[i] = the weights first .. first + count - 1 of a filter, perturbed. */
static void perturbed_copy(const struct image *image, const struct plan_filter *filter, uint32_t first, uint32_t count,
                           const struct packing *packing, int8_t *to)
{
    struct filter_index index = filter_index(image, filter);
    const int8_t *weights = (const int8_t *)image->plan.model + filter->weights + first;
    uint32_t words[4], have = UINT32_MAX;
    memcpy(to, weights, count);
    if (!index.trainable || !packing->step)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = index.first + first + i;
        if (at / BLOCK != have) {
            have = at / BLOCK;
            philox4x32(packing->seed, have, PHILOX_SIGNS, words);
        }
        to[i] = (int8_t)(to[i] + (words[at / 32 % 4] >> at % 32 & 1 ? packing->step : -packing->step));
    }
}

static void pack_panel(const struct image *image, const struct plan_op *op, struct product_shape shape,
                       const struct packing *packing, uint32_t first, uint8_t *panel)
{
    static _Thread_local int8_t row[MAX_SIGNS / LANES];
    uint32_t channels = shape.channels - first < LANES ? shape.channels - first : LANES, depth = product_depth(shape);
    uint8_t *to = panel + sizeof(struct channel_constants);
    int32_t sums[LANES] = {0};
    memset(to, 0, (size_t)padded_depth(shape) * LANES);
    for (uint32_t c = 0; c < channels; c++) {
        perturbed_copy(image, filter_of(op), (first + c) * depth, depth, packing, row);
        for (uint32_t k = 0; k < depth; k++) {
            uint32_t at = k / shape.segment_depth * shape.segment_steps * DEPTH_STEP + k % shape.segment_depth;
            to[at / 4 * 64 + c * 4 + at % 4] = (uint8_t)row[k];
            sums[c] += row[k];
        }
    }
    channel_constants((struct channel_constants *)panel, &image->plan, op, first, sums,
                      tensor_in(&image->plan, op)->zero_point, depth, packing->first);
}

size_t packed_bytes_avx2(const struct plan *plan, const struct plan_op *op)
{
    return packed_bytes(plan, op, AVX2_READING, true);
}

void pack_avx2(const struct image *image, const struct plan_op *op, const struct packing *packing, uint8_t *packed)
{
    const struct plan *plan = &image->plan;
    if (op->kind == PLAN_CONV_2D || op->kind == PLAN_FULLY_CONNECTED) {
        struct product_shape shape = product_shape(plan, op, AVX2_READING);
        for (uint32_t p = packing->worker; p < shape.panels; p += packing->workers)
            pack_panel(image, op, shape, packing, p * LANES, packed + p * panel_bytes(shape));
    } else if (op->kind == PLAN_DEPTHWISE_CONV_2D && packing->worker == 0) {
        const struct plan_window *w = &((const struct plan_conv *)op)->window;
        perturbed_copy(image, filter_of(op), 0, w->kernel_h * w->kernel_w * tensor_out(plan, op)->c, packing,
                       (int8_t *)packed);
    }
}

void each_sample(kernel *run, const struct plan *plan, const struct plan_op *op, struct kernel_memory memory)
{
    for (memory.sample = 0; memory.sample < memory.samples; memory.sample++)
        run(plan, op, memory);
}

void requantize_general(const struct plan *plan, const struct plan_op *op, const int32_t *acc, uint32_t first,
                        uint32_t channels, int8_t *out)
{
    const int32_t *multipliers = plan->pool + filter_of(op)->scales, *shifts = multipliers + tensor_out(plan, op)->c;
    int32_t zero_point = tensor_out(plan, op)->zero_point;
    for (uint32_t i = 0; i < channels; i++) {
        int32_t sum = (int32_t)((uint32_t)acc[i] - BIAS);
        out[i] = clamp_int8(rescale(sum, multipliers[first + i], shifts[first + i]) + zero_point, op->min, op->max);
    }
}
