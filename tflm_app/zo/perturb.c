#include "zo/philox.h"
#include "zo/weights.h"

enum { BLOCK = 128 }; /* signs in one Philox block */

static void add_signs(int8_t *w, uint32_t bits, uint32_t count, int step)
{
    for (uint32_t i = 0; i < count; i++)
        w[i] = (int8_t)(w[i] - step + (int)(bits >> i & 1) * 2 * step);
}

static void perturb_run(int8_t *w, uint32_t bit, uint32_t count, const uint32_t words[4], int step)
{
    while (count) {
        uint32_t start = bit % 32;
        uint32_t run = 32 - start < count ? 32 - start : count;
        uint32_t bits = words[bit / 32] >> start;
        if (run == 32)
            add_signs(w, bits, 32, step); /* constant count: the compiler vectorises it */
        else
            add_signs(w, bits, run, step);
        w += run;
        bit += run;
        count -= run;
    }
}

void zo_perturb(const struct zo_weights *weights, uint64_t seed, int step)
{
    for (struct zo_run run = {0}; zo_next_run(weights, &run, BLOCK);) {
        uint32_t words[4];
        philox4x32(seed, run.index / BLOCK, PHILOX_SIGNS, words);
        perturb_run(run.w, run.index % BLOCK, run.count, words, step);
    }
}
