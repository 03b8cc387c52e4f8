/* The two things that zeroth-order training does to weights, in place: perturb and update.
 *
 * Weights are walked in index order: the segments of the image's TRAIN section, one after the other. Random bits belong
 * to an index (docs/method.md), so the result does not depend on how the segments lie in memory. */
#ifndef ZO_WEIGHTS_H
#define ZO_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "zo/layout.h"

enum { ZO_MAX_DIRECTIONS = 64, ZO_MAX_COEFFICIENT = 1 << 24 };
enum zo_rounding { ZO_NEAREST = 0, ZO_STOCHASTIC = 1 };

struct zo_segment {
    uint32_t offset; /* of its first weight, from the base of the weights */
    uint32_t count;
};

struct zo_weights {
    int8_t *base;
    const struct zo_segment *segments;
    uint32_t segment_count;
    int32_t limit;                  /* weights stay within +-limit after an update */
    const struct zo_layout *layout; /* where weights lie from the base on; NULL: in index order, by the offsets */
};

struct zo_update {
    enum zo_rounding rounding;
    uint64_t rounding_seed;
    uint32_t directions; /* q */
    const uint64_t *seeds;
    const int32_t *coefficients; /* Q16 LSB, |c| <= ZO_MAX_COEFFICIENT */
};

struct zo_update_result {
    uint32_t changed;
    uint32_t at_rail; /* weights at +-limit afterwards */
};

/* w += step * z(seed), without saturation: headroom (|w| <= 127 - mu_max) makes +mu, -2 mu, +mu exact. */
void zo_perturb(const struct zo_weights *weights, uint64_t seed, int step);

/* From the probe that the weights hold to another, with the fewest passes. Step 0: none. */
void zo_change_probe(const struct zo_weights *weights, uint64_t from_seed, int from_step, uint64_t seed, int step);

/* w -= round(sum over j of c_j z_j), clamped to +-limit: all directions in one pass, no gradient buffer. */
struct zo_update_result zo_apply_update(const struct zo_weights *weights, const struct zo_update *update);

/* A walk over the weights in runs that stay within one segment and, by their index, within one block of so many: what
 * shares the words of a Philox block. Starts as {0}; w, index and count are of the run that zo_next_run found. Weights
 * with a layout are gathered into a row, and written back when the next run is asked for: a walk goes to its end. */
enum { ZO_LONGEST_BLOCK = 512 };

/* 1 in builds whose weights may have a layout: the others do without the code, and without the row on their stack. */
#ifndef ZO_LAYOUTS
#define ZO_LAYOUTS 0
#endif

struct zo_run {
    int8_t *w;
    uint32_t index, count;
    uint32_t next, left;          /* the next segment; weights of this one behind the run */
    bool reads;                   /* nothing is written back */
    const struct zo_entry *entry; /* the first of this segment in the layout */
    int8_t row[ZO_LAYOUTS ? ZO_LONGEST_BLOCK : 1];
};

bool zo_next_run(const struct zo_weights *weights, struct zo_run *run, uint32_t block);

uint32_t zo_weights_crc(const struct zo_weights *weights);

/* Gives the weight of an index, which has to exist, another value, and returns the one that it had. */
int8_t zo_set_weight(const struct zo_weights *weights, uint32_t index, int8_t value);

#endif
