#include "zo/philox.h"
#include "zo/weights.h"

enum { RUN = 128, WORD = 32 }; /* weights whose signs are one Philox block, one word */

/* a[i] = sum over directions of c_j * z_j for the weights index .. index + RUN - 1 (index a multiple of RUN). */
static void weighted_signs(const struct zo_update *update, uint32_t index, int32_t a[RUN])
{
    for (int i = 0; i < RUN; i++)
        a[i] = 0;
    for (uint32_t j = 0; j < update->directions; j++) {
        uint32_t words[4];
        philox4x32(update->seeds[j], index / RUN, PHILOX_SIGNS, words);
        int32_t c = update->coefficients[j];
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < WORD; i++)
                a[w * WORD + i] += (int32_t)(words[w] >> i & 1) * 2 * c - c;
    }
}

/* What is added before the shift by 16: one half, or 16 random bits a weight. */
static void rounding_terms(const struct zo_update *update, uint32_t index, int32_t r[RUN])
{
    for (uint32_t i = 0; i < RUN; i += 8) {
        uint32_t words[4] = {0x80008000u, 0x80008000u, 0x80008000u, 0x80008000u};
        if (update->rounding == ZO_STOCHASTIC)
            philox4x32(update->rounding_seed, (index + i) / 8, PHILOX_ROUNDING, words);
        for (uint32_t h = 0; h < 8; h++)
            r[i + h] = (int32_t)(words[h / 2] >> 16 * (h % 2) & 0xFFFF);
    }
}

static void update_run(int8_t *w, const int32_t *a, const int32_t *r, uint32_t count, int32_t limit,
                       struct zo_update_result *result)
{
    for (uint32_t i = 0; i < count; i++) {
        int32_t old = w[i];
        int32_t new = old - ((a[i] + r[i]) >> 16);
        new = new > limit ? limit : new < -limit ? -limit : new;
        result->changed += new != old;
        result->at_rail += new == limit || new == -limit;
        w[i] = (int8_t)new;
    }
}

struct zo_update_result zo_apply_update(const struct zo_weights *weights, const struct zo_update *update)
{
    struct zo_update_result result = {0, 0};
    int32_t a[RUN], r[RUN];
    for (struct zo_run run = {0}; zo_next_run(weights, &run, RUN);) {
        uint32_t skip = run.index % RUN;
        weighted_signs(update, run.index - skip, a);
        rounding_terms(update, run.index - skip, r);
        update_run(run.w, a + skip, r + skip, run.count, weights->limit, &result);
    }
    return result;
}
