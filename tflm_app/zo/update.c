#include "zo/philox.h"
#include "zo/weights.h"

enum { RUN = 128, WORD = 32 }; /* weights whose signs are one Philox block, one word */

/* What is added before the shift by 16: one half, or 16 random bits a weight; index is a multiple of RUN. */
static void set_rounding(const struct zo_update *update, uint32_t index, int32_t a[RUN])
{
    if (update->rounding == ZO_NEAREST) {
        for (uint32_t i = 0; i < RUN; i++)
            a[i] = 1 << 15;
        return;
    }
    for (uint32_t i = 0; i < RUN; i += 8) {
        uint32_t words[4];
        philox4x32(update->rounding_seed, (index + i) / 8, PHILOX_ROUNDING, words);
        for (uint32_t h = 0; h < 8; h++)
            a[i + h] = (int32_t)(words[h / 2] >> 16 * (h % 2) & 0xFFFF);
    }
}

/* a[i] += sum over directions of c_j * z_j for the weights index .. index + RUN - 1. */
static void add_weighted_signs(const struct zo_update *update, uint32_t index, int32_t a[RUN])
{
    for (uint32_t j = 0; j < update->directions; j++) {
        uint32_t words[4];
        philox4x32(update->seeds[j], index / RUN, PHILOX_SIGNS, words);
        int32_t c = update->coefficients[j];
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < WORD; i++)
                a[w * WORD + i] += (int32_t)(words[w] >> i & 1) * 2 * c - c;
    }
}

static int8_t saturate(int32_t x)
{
    return (int8_t)(x > INT8_MAX ? INT8_MAX : x < INT8_MIN ? INT8_MIN : x);
}

/* First as int8 allows, then as the limit does: what is done to bytes alone is done to many at once. */
static void update_run(int8_t *w, const int32_t *a, uint32_t count, int8_t limit, struct zo_update_result *result)
{
    int8_t new[RUN];
    for (uint32_t i = 0; i < count; i++)
        new[i] = saturate(w[i] - (a[i] >> 16));
    uint8_t changed = 0, at_rail = 0;
    for (uint32_t i = 0; i < count; i++) {
        int8_t clamped = new[i] > limit ? limit : new[i] < -limit ? (int8_t)-limit : new[i];
        changed += clamped != w[i];
        at_rail += (clamped == limit) | (clamped == -limit);
        w[i] = clamped;
    }
    result->changed += changed;
    result->at_rail += at_rail;
}

struct zo_update_result zo_apply_update(const struct zo_weights *weights, const struct zo_update *update)
{
    struct zo_update_result result = {0, 0};
    for (struct zo_run run = {0}; zo_next_run(weights, &run, RUN);) {
        int32_t a[RUN];
        uint32_t skip = run.index % RUN;
        set_rounding(update, run.index - skip, a);
        add_weighted_signs(update, run.index - skip, a);
        update_run(run.w, a + skip, run.count, (int8_t)weights->limit, &result);
    }
    return result;
}
