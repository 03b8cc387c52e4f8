/* Four directions at a time: what they add to a weight is one of sixteen sums, and the four signs say which. The signs
 * of sixteen weights in one direction are a predicate as they come; under it a bit is added to sixteen indices, by which
 * the sums are then gathered. Sums of sixteen weights over all directions stay in four registers.
 *
 * Stack: about 2.5 KiB. */
#include <arm_mve.h>

#include "zo/mve/philox.h"
#include "zo/weights.h"

enum {
    BLOCK = 128, /* signs of one direction in a Philox block */
    CHUNK = 16,
    GROUP = 4, /* directions */
    MAX_GROUPS = ZO_MAX_DIRECTIONS / GROUP,
};

struct group_sums {
    int32_t sum[1 << GROUP]; /* of +-c_j: + where bit j of the index is set */
};

struct group_signs {
    uint16_t of[GROUP][BLOCK / CHUNK];
};

struct sums_and_signs {
    uint32_t groups;
    struct group_sums sums[MAX_GROUPS];
    struct group_signs signs[MAX_GROUPS]; /* of one block */
    uint16_t rounding[BLOCK];             /* what is added before the shift by 16 */
};

/* Every direction doubles the sums: with -c, then with +c. Those that the last group lacks have coefficient 0. */
static void make_sums(const struct zo_update *update, struct group_sums *sums)
{
    for (uint32_t first = 0; first < update->directions; first += GROUP, sums++) {
        sums->sum[0] = 0;
        for (uint32_t j = 0; j < GROUP; j++) {
            int32_t c = first + j < update->directions ? update->coefficients[first + j] : 0;
            for (uint32_t i = 0; i < 1u << j; i++) {
                sums->sum[i + (1 << j)] = sums->sum[i] + c;
                sums->sum[i] -= c;
            }
        }
    }
}

static void make_signs(const struct zo_update *update, uint32_t block, struct group_signs *signs)
{
    const uint32x4_t low = vidupq_n_u32(0, 8), high = vaddq_n_u32(low, 4); /* halves of a seed */
    for (uint32_t j = 0; j < update->directions; j += GROUP, signs++) {
        mve_pred16_t there = vctp32q(update->directions - j);
        const uint32_t *seeds = (const uint32_t *)(update->seeds + j);
        uint32x4_t key0 = vldrwq_gather_offset_z_u32(seeds, low, there);
        uint32x4_t key1 = vldrwq_gather_offset_z_u32(seeds, high, there);
        vst4q_u32((uint32_t *)signs->of, philox4x32_lanes(key0, key1, vdupq_n_u32(block), PHILOX_SIGNS));
    }
}

static void make_rounding(uint64_t seed, uint32_t index, uint16_t *rounding)
{
    for (uint32_t i = 0; i < BLOCK; i += 32)
        philox4x32_blocks(seed, (index + i) / 8, PHILOX_ROUNDING, (uint32_t *)(rounding + i));
}

/* One chunk of weights at w, of which some lanes are to change. Lane l of a_k sums for weight 4 l + k. */
static inline void update_chunk(int8_t *w, uint32_t chunk, mve_pred16_t lanes, const struct sums_and_signs *s,
                                int8_t limit, struct zo_update_result *result)
{
    uint32x4x2_t rounding = vld2q_u32((const uint32_t *)(s->rounding + CHUNK * chunk));
    const uint32x4_t low = vdupq_n_u32(0xFFFF);
    int32x4_t a0 = vreinterpretq_s32_u32(vandq_u32(rounding.val[0], low));
    int32x4_t a1 = vreinterpretq_s32_u32(vshrq_n_u32(rounding.val[0], 16));
    int32x4_t a2 = vreinterpretq_s32_u32(vandq_u32(rounding.val[1], low));
    int32x4_t a3 = vreinterpretq_s32_u32(vshrq_n_u32(rounding.val[1], 16));
    for (uint32_t g = 0; g < s->groups; g++) {
        const int32_t *sums = s->sums[g].sum;
        uint8x16_t index = vdupq_n_u8(0);
        for (uint32_t j = 0; j < GROUP; j++)
            index = vaddq_m_n_u8(index, index, (uint8_t)(1 << j), s->signs[g].of[j][chunk]);
        uint16x8_t even = vmovlbq_u8(index), odd = vmovltq_u8(index);
        a0 = vaddq_s32(a0, vldrwq_gather_shifted_offset_s32(sums, vmovlbq_u16(even)));
        a1 = vaddq_s32(a1, vldrwq_gather_shifted_offset_s32(sums, vmovlbq_u16(odd)));
        a2 = vaddq_s32(a2, vldrwq_gather_shifted_offset_s32(sums, vmovltq_u16(even)));
        a3 = vaddq_s32(a3, vldrwq_gather_shifted_offset_s32(sums, vmovltq_u16(odd)));
    }
    int16x8_t even = vshrnbq_n_s32(vuninitializedq_s16(), a0, 16), odd = vshrnbq_n_s32(vuninitializedq_s16(), a1, 16);
    even = vshrntq_n_s32(even, a2, 16);
    odd = vshrntq_n_s32(odd, a3, 16);
    int8x16_t old = vldrbq_z_s8(w, lanes);
    int8x16_t new = vqmovnbq_s16(vuninitializedq_s8(), vsubq_s16(vmovlbq_s8(old), even));
    new = vqmovntq_s16(new, vsubq_s16(vmovltq_s8(old), odd));
    new = vmaxq_s8(vminq_s8(new, vdupq_n_s8(limit)), vdupq_n_s8((int8_t)-limit));
    vstrbq_p_s8(w, new, lanes);
    uint8x16_t one = vdupq_n_u8(1);
    result->changed = vaddvaq_p_u8(result->changed, one, vcmpneq_m_s8(new, old, lanes));
    result->at_rail = vaddvaq_p_u8(result->at_rail, one, vcmpeqq_m_n_s8(vabsq_s8(new), limit, lanes));
}

struct zo_update_result zo_apply_update(const struct zo_weights *weights, const struct zo_update *update)
{
    struct zo_update_result result = {0, 0};
    struct sums_and_signs s;
    s.groups = (update->directions + GROUP - 1) / GROUP;
    make_sums(update, s.sums);
    for (uint32_t i = 0; i < BLOCK; i++)
        s.rounding[i] = 1 << 15;
    for (struct zo_run run = {0}; zo_next_run(weights, &run, BLOCK);) {
        uint32_t first = run.index % BLOCK, last = first + run.count;
        make_signs(update, run.index / BLOCK, s.signs);
        if (update->rounding == ZO_STOCHASTIC)
            make_rounding(update->rounding_seed, run.index - first, s.rounding);
        for (uint32_t at = first / CHUNK * CHUNK; at < last; at += CHUNK) {
            uint32_t from = first > at ? first - at : 0, to = last - at < CHUNK ? last - at : CHUNK;
            update_chunk(run.w + at - first, at / CHUNK, mve_lanes(from, to), &s, (int8_t)weights->limit, &result);
        }
    }
    return result;
}
