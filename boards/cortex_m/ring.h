/* Bytes from a receive interrupt to the reader. It holds a whole frame: the host sends no more before it has its
 * answer. A full ring drops what comes: the frame is damaged then, and sent again. */
#ifndef RING_H
#define RING_H

#include "link/frame.h"

enum { RING_BYTES = 2048 };

_Static_assert(RING_BYTES > BOARD_MAX_PAYLOAD + FRAME_OVERHEAD + BOARD_MAX_PAYLOAD / 254 + 8, "a frame fits");

struct ring {
    volatile uint8_t bytes[RING_BYTES];
    volatile uint32_t head, tail; /* written by the interrupt, by the reader */
};

static inline void ring_put(struct ring *ring, uint8_t byte)
{
    if (ring->head - ring->tail < RING_BYTES)
        ring->bytes[ring->head++ % RING_BYTES] = byte;
}

/* What has arrived, at most max bytes. */
static inline size_t ring_take(struct ring *ring, uint8_t *to, size_t max)
{
    size_t count = 0;
    while (count < max && ring->head != ring->tail)
        to[count++] = ring->bytes[ring->tail++ % RING_BYTES];
    return count;
}

#endif
