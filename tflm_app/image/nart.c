#include "image/nart.h"

#include <stdbool.h>
#include <stddef.h>

enum { HEADER_WORDS = 5, MAX_FINE = 256 }; /* the most that group, multiple and depth may be */
#define LIMIT (1u << 31)

_Static_assert(sizeof(struct zo_entry) == 80 && sizeof(struct nart_pool) == 16, "as in the section");

/* Every check has a number, which the refusal carries. */
#define REQUIRE(number, condition)                                                                                     \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return (number);                                                                                           \
    } while (0)

static bool within(uint32_t value, uint32_t most)
{
    return value >= 1 && value <= most;
}

/* The product of dimensions, or LIMIT where it is no less. */
static uint32_t elements(const uint32_t dims[ZO_AXES])
{
    uint64_t product = 1;
    for (int axis = 0; axis < ZO_AXES; axis++) {
        product *= dims[axis];
        if (product >= LIMIT)
            return LIMIT;
    }
    return (uint32_t)product;
}

static uint32_t live(const struct zo_entry *e)
{
    return e->box[ZO_O].count * e->box[ZO_H].count * e->box[ZO_W].count * e->box[ZO_I].count;
}

static uint32_t check_pool(const struct nart_pool *pools, uint32_t number)
{
    const struct nart_pool *p = &pools[number];
    REQUIRE(3, p->size < LIMIT && (uint64_t)p->address + p->size <= 1ull << 32 && p->cacheable <= 1 && !p->reserved);
    for (const struct nart_pool *other = pools; other < p; other++)
        REQUIRE(4, p->address >= (uint64_t)other->address + other->size ||
                       other->address >= (uint64_t)p->address + p->size);
    return 0;
}

/* Whether the parameters make sense for the box, and those that the family does not have are 0. */
static uint32_t check_parameters(const struct zo_entry *e)
{
    static const uint8_t used[ZO_FAMILIES] = {[ZO_PLAIN] = 0, [ZO_BLOCKED] = 2, [ZO_DEEP] = 4, [ZO_INFLATED] = 1};
    REQUIRE(7, e->family < ZO_FAMILIES);
    for (int n = used[e->family]; n < 4; n++)
        REQUIRE(8, e->p[n] == 0);
    bool blocks = within(e->p[0], e->box[ZO_O].count) && within(e->p[1], e->box[ZO_I].count);
    switch (e->family) {
    case ZO_BLOCKED:
        REQUIRE(9, blocks);
        return 0;
    case ZO_DEEP:
        REQUIRE(9, blocks && within(e->p[2], MAX_FINE) && within(e->p[3], MAX_FINE));
        REQUIRE(9, e->box[ZO_H].count == 1 && e->box[ZO_W].count == 1);
        return 0;
    case ZO_INFLATED:
        REQUIRE(9, e->box[ZO_O].count == 1 && within(e->p[0], MAX_FINE));
        return 0;
    default:
        return 0;
    }
}

static uint32_t check_entry(const struct nart *nart, const struct zo_entry *e)
{
    uint32_t all = elements(e->filter);
    REQUIRE(5, all >= 1 && all < LIMIT);
    for (int axis = 0; axis < ZO_AXES; axis++)
        REQUIRE(6, e->box[axis].count >= 1 && (uint64_t)e->box[axis].first + e->box[axis].count <= e->filter[axis]);
    uint32_t failed = check_parameters(e);
    if (failed)
        return failed;
    REQUIRE(10, e->pool < nart->pool_count && e->offset + zo_entry_size(e) <= nart->pools[e->pool].size);
    return 0;
}

static bool overlap(const struct zo_entry *a, const struct zo_entry *b)
{
    return a->pool == b->pool && a->offset < b->offset + zo_entry_size(b) && b->offset < a->offset + zo_entry_size(a);
}

static bool share_weights(const struct zo_entry *a, const struct zo_entry *b)
{
    bool shared = true;
    for (int axis = 0; axis < ZO_AXES; axis++)
        shared = shared && a->box[axis].first < b->box[axis].first + b->box[axis].count &&
                 b->box[axis].first < a->box[axis].first + a->box[axis].count;
    return shared;
}

/* The entries from `first` on are boxes of one filter, the segment's, and hold each of its weights once. */
static uint32_t check_segment(const struct zo_entry *first, const struct zo_entry *end, uint32_t count)
{
    uint64_t held = 0;
    for (const struct zo_entry *e = first; e < end; e++) {
        for (int axis = 0; axis < ZO_AXES; axis++)
            REQUIRE(12, e->filter[axis] == first->filter[axis]);
        held += live(e);
        for (const struct zo_entry *before = first; before < e; before++)
            REQUIRE(13, !share_weights(before, e));
    }
    REQUIRE(13, held == elements(first->filter));
    REQUIRE(14, held == count);
    return 0;
}

/* Segments come in order without a gap. */
static struct status check_segments(const struct nart *nart, const struct zo_segment *segments, uint32_t segment_count)
{
    const struct zo_entry *e = nart->layout.entries, *end = e + nart->layout.count;
    for (uint32_t s = 0; s < segment_count; s++) {
        const struct zo_entry *first = e;
        while (e < end && e->segment == s)
            e++;
        uint32_t failed = e == first ? 11 : check_segment(first, e, segments[s].count);
        if (failed)
            return STATUS(STATUS_IMAGE_NART, s, failed);
    }
    return e == end ? STATUS(STATUS_OK, 0, 0) : STATUS(STATUS_IMAGE_NART, segment_count, 11);
}

struct status nart_open(struct nart *nart, const uint32_t *words, uint32_t size, const struct zo_segment *segments,
                        uint32_t segment_count)
{
    if (size < HEADER_WORDS * 4 || words[0] != NART_VERSION)
        return STATUS(STATUS_IMAGE_NART, 0, 1);
    uint32_t pools = words[1], entries = words[2];
    if (!within(pools, NART_MAX_POOLS) || !within(entries, NART_MAX_ENTRIES) ||
        size != HEADER_WORDS * 4 + pools * sizeof(struct nart_pool) + entries * sizeof(struct zo_entry))
        return STATUS(STATUS_IMAGE_NART, 0, 2);
    nart->crc = words[3];
    nart->network = words[4];
    nart->pools = (const struct nart_pool *)(words + HEADER_WORDS);
    nart->pool_count = pools;
    nart->layout = (struct zo_layout){(const struct zo_entry *)(nart->pools + pools), entries};
    for (uint32_t n = 0; n < pools; n++) {
        uint32_t failed = check_pool(nart->pools, n);
        if (failed)
            return STATUS(STATUS_IMAGE_NART, n, failed);
    }
    for (uint32_t n = 0; n < entries; n++) {
        const struct zo_entry *e = &nart->layout.entries[n];
        uint32_t failed = check_entry(nart, e);
        if (failed)
            return STATUS(STATUS_IMAGE_NART, n, failed);
        for (uint32_t other = 0; other < n; other++)
            if (overlap(&nart->layout.entries[other], e))
                return STATUS(STATUS_IMAGE_NART, n, 15);
    }
    return check_segments(nart, segments, segment_count);
}
