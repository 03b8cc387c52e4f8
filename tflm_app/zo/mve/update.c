/* Four directions at a time: what they add to a weight is one of sixteen sums, and the four signs say which. The signs
 * of sixteen weights in one direction are a predicate as they come; under it a bit is added to sixteen indices, by
 * which the sums are then gathered. Sums of sixteen weights over all directions stay in four registers.
 *
 * Stack: 3.4 KiB, which the signs and sums of 64 directions take, and a run. */
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

/* Sums of a chunk of weights: lane l of of[k] is that of weight 4 l + k. */
struct chunk_sums {
    int32x4_t of[4];
};

/* Assembler, because GCC 12 keeps a zero in one of the eight vector registers, all of which this takes. */
static inline struct chunk_sums add_groups(struct chunk_sums a, const struct sums_and_signs *s, uint32_t chunk)
{
    const uint16_t *signs = &s->signs[0].of[0][chunk];
    const struct group_sums *sums = s->sums;
    uint32_t groups = s->groups;
    int32x4_t index, pairs, quad, sum;
#define START                                                                                                          \
    "mov r5, #1\n"                                                                                                     \
    "mov r6, #2\n"                                                                                                     \
    "mov r7, #4\n"                                                                                                     \
    "mov r8, #8\n"                                                                                                     \
    "dls lr, %[groups]\n"                                                                                              \
    "1: vmov.i32 %q[index], #0\n"
#define ADD_BIT(BIT)                                                                                                   \
    "ldrh r4, [%[signs]], #16\n"                                                                                       \
    "vmsr p0, r4\n"                                                                                                    \
    "vpst\n"                                                                                                           \
    "vaddt.i8 %q[index], %q[index], " BIT "\n"
#define WIDEN                                                                                                          \
    "vmovlb.u8 %q[pairs], %q[index]\n"                                                                                 \
    "vmovlt.u8 %q[index], %q[index]\n"
#define ADD_SUMS(A, HALF, PAIRS)                                                                                       \
    "vmovl" HALF ".u16 %q[quad], %q[" PAIRS "]\n"                                                                      \
    "vldrw.u32 %q[sum], [%[sums], %q[quad], uxtw #2]\n"                                                                \
    "vadd.i32 %q[" A "], %q[" A "], %q[sum]\n"
#define NEXT                                                                                                           \
    "add %[sums], %[sums], %[bytes]\n"                                                                                 \
    "le lr, 1b\n"
    __asm(START ADD_BIT("r5") ADD_BIT("r6") ADD_BIT("r7") ADD_BIT("r8") WIDEN ADD_SUMS("a0", "b", "pairs")
              ADD_SUMS("a1", "b", "index") ADD_SUMS("a2", "t", "pairs") ADD_SUMS("a3", "t", "index") NEXT
          : [a0] "+t"(a.of[0]), [a1] "+t"(a.of[1]), [a2] "+t"(a.of[2]), [a3] "+t"(a.of[3]), [index] "=&t"(index),
            [pairs] "=&t"(pairs), [quad] "=&t"(quad), [sum] "=&t"(sum), [signs] "+r"(signs), [sums] "+r"(sums)
          : [groups] "r"(groups), [bytes] "i"(sizeof *sums), "m"(*s)
          : "r4", "r5", "r6", "r7", "r8", "lr", "p0", "cc");
#undef START
#undef ADD_BIT
#undef WIDEN
#undef ADD_SUMS
#undef NEXT
    return a;
}

/* The terms of a chunk of weights that their sums start with. */
static inline struct chunk_sums rounding_of(const struct sums_and_signs *s, uint32_t chunk)
{
    uint16x8x2_t terms = vld2q_u16(s->rounding + CHUNK * chunk); /* of even weights, of odd ones */
    return (struct chunk_sums){{
        vreinterpretq_s32_u32(vmovlbq_u16(terms.val[0])),
        vreinterpretq_s32_u32(vmovlbq_u16(terms.val[1])),
        vreinterpretq_s32_u32(vmovltq_u16(terms.val[0])),
        vreinterpretq_s32_u32(vmovltq_u16(terms.val[1])),
    }};
}

/* One chunk of weights at w, of which some lanes are to change. Assembler, because GCC 12 moves every predicate from
 * and to the core's registers: a comparison under one narrows it for what follows. */
static inline void update_chunk(int8_t *w, struct chunk_sums a, uint32_t lanes, int32_t limit,
                                struct zo_update_result *result)
{
    int8x16_t old, new, other;
    __asm volatile("vmsr p0, %[lanes]\n"
                   "vpst\n"
                   "vldrbt.8 %q[old], [%[w]]\n"
                   "vshrnb.i32 %q[even], %q[even], #16\n"
                   "vshrnt.i32 %q[even], %q[even2], #16\n"
                   "vshrnb.i32 %q[odd], %q[odd], #16\n"
                   "vshrnt.i32 %q[odd], %q[odd2], #16\n"
                   "vmovlb.s8 %q[new], %q[old]\n"
                   "vsub.i16 %q[even], %q[new], %q[even]\n"
                   "vmovlt.s8 %q[new], %q[old]\n"
                   "vsub.i16 %q[odd], %q[new], %q[odd]\n"
                   "vqmovnb.s16 %q[new], %q[even]\n"
                   "vqmovnt.s16 %q[new], %q[odd]\n"
                   "vdup.8 %q[other], %[limit]\n"
                   "vmin.s8 %q[new], %q[new], %q[other]\n"
                   "vneg.s8 %q[other], %q[other]\n"
                   "vmax.s8 %q[new], %q[new], %q[other]\n"
                   "vmov.i8 %q[other], #1\n"
                   "vpsttt\n"
                   "vstrbt.8 %q[new], [%[w]]\n"
                   "vcmpt.i8 ne, %q[new], %q[old]\n"
                   "vaddvat.u8 %[changed], %q[other]\n"
                   "vabs.s8 %q[new], %q[new]\n"
                   "vmsr p0, %[lanes]\n"
                   "vpstt\n"
                   "vcmpt.i8 eq, %q[new], %[limit]\n"
                   "vaddvat.u8 %[at_rail], %q[other]\n"
                   : [even] "+&t"(a.of[0]), [odd] "+&t"(a.of[1]), [old] "=&t"(old), [new] "=&t"(new),
                     [other] "=&t"(other), [changed] "+&Te"(result->changed), [at_rail] "+&Te"(result->at_rail)
                   : [w] "r"(w), [lanes] "r"(lanes), [limit] "r"(limit), [even2] "t"(a.of[2]), [odd2] "t"(a.of[3])
                   : "p0", "memory");
}

static inline void update_run(const struct zo_run *run, const struct sums_and_signs *s, int32_t limit,
                              struct zo_update_result *result)
{
    uint32_t chunk = run->index % BLOCK / CHUNK, lanes = 0xFFFFu << run->index % CHUNK & 0xFFFF;
    int8_t *w = run->w - run->index % CHUNK, *end = run->w + run->count;
    for (; w < end; w += CHUNK, chunk++, lanes = 0xFFFF) {
        if (end - w < CHUNK)
            lanes &= 0xFFFFu >> (CHUNK - (end - w));
        update_chunk(w, add_groups(rounding_of(s, chunk), s, chunk), lanes, limit, result);
    }
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
        make_signs(update, run.index / BLOCK, s.signs);
        if (update->rounding == ZO_STOCHASTIC)
            make_rounding(update->rounding_seed, run.index / BLOCK * BLOCK, s.rounding);
        update_run(&run, &s, weights->limit, &result);
    }
    return result;
}
