#include "zo/philox.h"
#include "zo/weights.h"

enum { BLOCK = 128 }; /* signs in one Philox block */

static void add_signs(int8_t *w, uint32_t bits, uint32_t count, int step)
{
    for (uint32_t i = 0; i < count; i++)
        w[i] = (int8_t)(w[i] - step + (int)(bits >> i & 1) * 2 * step);
}

static void perturb_segment(int8_t *w, uint32_t index, uint32_t count, uint64_t seed, int step)
{
    uint32_t words[4];
    uint32_t have = UINT32_MAX; /* the block that words holds */
    while (count) {
        uint32_t bit = index % 32;
        uint32_t run = 32 - bit < count ? 32 - bit : count;
        if (index / BLOCK != have) {
            have = index / BLOCK;
            philox4x32(seed, have, PHILOX_SIGNS, words);
        }
        uint32_t bits = words[index / 32 % 4] >> bit;
        if (run == 32)
            add_signs(w, bits, 32, step); /* constant count: the compiler vectorises it */
        else
            add_signs(w, bits, run, step);
        w += run;
        index += run;
        count -= run;
    }
}

void zo_perturb(const struct zo_weights *weights, uint64_t seed, int step)
{
    uint32_t index = 0;
    for (uint32_t s = 0; s < weights->segment_count; s++) {
        const struct zo_segment *segment = &weights->segments[s];
        perturb_segment(weights->base + segment->offset, index, segment->count, seed, step);
        index += segment->count;
    }
}
