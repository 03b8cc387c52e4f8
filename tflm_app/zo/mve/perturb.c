/* Sixteen weights at a time: their signs are a predicate as they come. */
#include <arm_mve.h>

#include "zo/mve/philox.h"
#include "zo/weights.h"

enum { BLOCK = 4 * 128, CHUNK = 16 }; /* signs that are made at once; signs in a predicate */

/* The lanes first .. last - 1 of sixteen. */
static mve_pred16_t lanes_of(uint32_t first, uint32_t last)
{
    return (mve_pred16_t)((0xFFFFu << first) & (0xFFFFu >> (16 - last)));
}

static void perturb_run(const struct zo_run *run, const uint16_t *signs, int step)
{
    int8x16_t plus = vdupq_n_s8((int8_t)step), minus = vdupq_n_s8((int8_t)-step);
    uint32_t first = run->index % CHUNK;
    int8_t *w = run->w - first, *end = run->w + run->count;
    signs += run->index % BLOCK / CHUNK;
    if (first) {
        mve_pred16_t lanes = lanes_of(first, end - w < CHUNK ? (uint32_t)(end - w) : CHUNK);
        vstrbq_p_s8(w, vaddq_s8(vldrbq_z_s8(w, lanes), vpselq_s8(plus, minus, *signs++)), lanes);
        w += CHUNK;
    }
    for (; end - w >= CHUNK; w += CHUNK)
        vstrbq_s8(w, vaddq_s8(vldrbq_s8(w), vpselq_s8(plus, minus, *signs++)));
    if (end > w) {
        mve_pred16_t lanes = lanes_of(0, (uint32_t)(end - w));
        vstrbq_p_s8(w, vaddq_s8(vldrbq_z_s8(w, lanes), vpselq_s8(plus, minus, *signs)), lanes);
    }
}

void zo_perturb(const struct zo_weights *weights, uint64_t seed, int step)
{
    for (struct zo_run run = {0}; zo_next_run(weights, &run, BLOCK);) {
        uint32_t words[BLOCK / 32];
        philox4x32_blocks(seed, run.index / BLOCK * 4, PHILOX_SIGNS, words);
        perturb_run(&run, (const uint16_t *)words, step);
    }
}
