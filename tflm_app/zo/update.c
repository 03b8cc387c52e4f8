#include "zo/philox.h"
#include "zo/weights.h"

enum { RUN = 128, WORD = 32 }; /* weights whose signs are one Philox block, one word */

/* What is added before the shift by 16, one half or 16 random bits a weight, and the signs as if all were -1; index is
 * a multiple of RUN. */
static void set_start(const struct zo_update *update, uint32_t index, int32_t all_minus, int32_t a[RUN])
{
    if (update->rounding == ZO_NEAREST) {
        for (uint32_t i = 0; i < RUN; i++)
            a[i] = all_minus + (1 << 15);
        return;
    }
    for (uint32_t i = 0; i < RUN; i += 8) {
        uint32_t words[4];
        philox4x32(update->rounding_seed, (index + i) / 8, PHILOX_ROUNDING, words);
        for (uint32_t h = 0; h < 8; h++)
            a[i + h] = all_minus + (int32_t)(words[h / 2] >> 16 * (h % 2) & 0xFFFF);
    }
}

/* Where a sign is +1, twice its coefficient; no sum on the way is larger than that of all |c_j|. */
static void add_signs(const struct zo_update *update, uint32_t index, int32_t a[RUN])
{
    for (uint32_t j = 0; j < update->directions; j++) {
        uint32_t words[4];
        philox4x32(update->seeds[j], index / RUN, PHILOX_SIGNS, words);
        int32_t twice = 2 * update->coefficients[j];
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < WORD; i++)
                a[w * WORD + i] += (int32_t)(words[w] >> i & 1) * twice;
    }
}

/* One comparison for the many that are within. */
static int32_t clamp(int32_t x, int32_t limit)
{
    if ((uint32_t)(x + limit) <= 2 * (uint32_t)limit)
        return x;
    return x < 0 ? -limit : limit;
}

/* What is done to bytes alone is done to many at once: they are counted by themselves. */
static void update_run(int8_t *w, const int32_t *a, uint32_t count, int32_t limit, struct zo_update_result *result)
{
    int8_t new[RUN];
    for (uint32_t i = 0; i < count; i++)
        new[i] = (int8_t)clamp(w[i] - (a[i] >> 16), limit);
    const int8_t most = (int8_t)limit, least = (int8_t)-limit;
    uint8_t changed = 0, at_rail = 0; /* RUN at most */
    for (uint32_t i = 0; i < count; i++) {
        changed += new[i] != w[i];
        at_rail += new[i] == most;
        at_rail += new[i] == least;
        w[i] = new[i];
    }
    result->changed += changed;
    result->at_rail += at_rail;
}

struct zo_update_result zo_apply_update(const struct zo_weights *weights, const struct zo_update *update)
{
    struct zo_update_result result = {0, 0};
    int32_t all_minus = 0;
    for (uint32_t j = 0; j < update->directions; j++)
        all_minus -= update->coefficients[j];
    for (struct zo_run run = {0}; zo_next_run(weights, &run, RUN);) {
        int32_t a[RUN];
        uint32_t skip = run.index % RUN;
        set_start(update, run.index - skip, all_minus, a);
        add_signs(update, run.index - skip, a);
        update_run(run.w, a + skip, run.count, weights->limit, &result);
    }
    return result;
}
