/* All that a board provides. A board is a port.c, a board_config.h (limits) and a board.cmake. */
#ifndef PORT_H
#define PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* BOARD_NAME, BOARD_MAX_PAYLOAD, BOARD_MAX_BATCH, BOARD_MAX_WORKERS */
#include "board_config.h"

/* What memory is for. Purposes may share one region: the app takes from each in this order. PORT_WEIGHTS is asked for
 * by builds with a compiled network alone: a region of its own, at the address of that network's pool of weights. */
enum port_purpose { PORT_IMAGE, PORT_WORK, PORT_SAMPLES, PORT_WEIGHTS, PORT_PURPOSES };

struct port_region {
    uint8_t *base; /* 64-byte aligned */
    size_t size;
    size_t used; /* the app's */
};

struct port_region *port_region(enum port_purpose purpose);

/* Where an image of so many bytes is to lie: PORT_IMAGE's region, or one that suits it better. */
struct port_region *port_image_region(size_t size);

/* Link. read blocks for at least one byte and returns 0 when the link is closed; write sends everything. */
size_t port_read(uint8_t *to, size_t max);
void port_write(const uint8_t *from, size_t size);

/* Whether the link loses and damages nothing and has no limit to what is under way: then bytes may come in bulk. */
bool port_link_is_reliable(void);

/* Run fn(context, 0 .. workers - 1), at the same time where the board can, and wait for all of them. */
unsigned port_workers(void);
void port_parallel(void (*fn)(void *context, unsigned worker), void *context);

/* A clock that only goes forward, and its rate. */
uint64_t port_now(void);
uint32_t port_ticks_per_second(void);

/* A long command makes progress: where the board has a watchdog, it waits again from here. */
void port_alive(void);

/* Bytes of stack that were in use at some time, of all that is there; 0, 0 where the board does not count them. */
struct port_stack {
    size_t used, size;
} port_stack(void);

#endif
