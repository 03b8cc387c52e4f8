/* The NART section: where a compiled network has its weights (docs/neural_art.md). */
#ifndef IMAGE_NART_H
#define IMAGE_NART_H

#include <stdint.h>

#include "app/status.h"
#include "zo/weights.h"

enum { NART_VERSION = 2, NART_MAX_POOLS = 16, NART_MAX_ENTRIES = 4096 };

struct nart_pool {
    uint32_t address, size, cacheable, reserved;
};

struct nart {
    uint32_t crc;     /* of the pools as compiled */
    uint32_t network; /* id of the compiled network, 0: unknown */
    const struct nart_pool *pools;
    uint32_t pool_count;
    struct zo_layout layout;
};

/* Check a section of so many bytes against the segments of the image, and fill in nart: what converters/neural_art/
 * section.py refuses is refused. */
struct status nart_open(struct nart *nart, const uint32_t *words, uint32_t size, const struct zo_segment *segments,
                        uint32_t segment_count);

#endif
