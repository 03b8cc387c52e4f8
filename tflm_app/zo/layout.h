/* Weights that lie in another order than that of their index: boxes of filters in buffers of a compiled network
 * (docs/neural_art.md). What is here trusts its input; image/nart.c checks it. */
#ifndef ZO_LAYOUT_H
#define ZO_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

enum zo_family { ZO_PLAIN, ZO_BLOCKED, ZO_DEEP, ZO_INFLATED, ZO_FAMILIES };
enum { ZO_O, ZO_H, ZO_W, ZO_I, ZO_AXES }; /* output channels, rows, columns, input channels */

/* An entry of the NART section as it lies there. */
struct zo_entry {
    uint32_t segment, pool, offset, family;
    struct {
        uint32_t first, count;
    } box[ZO_AXES];
    uint32_t filter[ZO_AXES];
    uint32_t p[4]; /* of the family */
};

/* Sorted by segment; the boxes of a segment hold each of its weights once. */
struct zo_layout {
    const struct zo_entry *entries;
    uint32_t count;
};

/* Bytes of an entry's buffer. */
uint64_t zo_entry_size(const struct zo_entry *entry);

/* Exchange `count` weights of a segment, from index `position` in it, with a row of bytes: into the row, or back to
 * where they lie, without a byte beside them. entries: the first of the segment. */
void zo_layout_gather(const struct zo_entry *entries, const int8_t *base, uint32_t position, uint32_t count,
                      int8_t *row);
void zo_layout_scatter(const struct zo_entry *entries, int8_t *base, uint32_t position, uint32_t count,
                       const int8_t *row);

#endif
