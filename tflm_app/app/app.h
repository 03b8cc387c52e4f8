/* The application: one context, one loop that answers one command after the other. */
#ifndef APP_APP_H
#define APP_APP_H

#include <stdbool.h>
#include <stdint.h>

#include "app/status.h"
#include "image/image.h"
#include "link/frame.h"
#include "port/port.h"
#include "runners/runner.h"

enum { APP_PROTOCOL_VERSION = 3 };

/* Labelled images that stay on the device, one after the other: pixels become network inputs when they arrive. */
struct sample_store {
    uint16_t *labels;
    int8_t *inputs;
    uint32_t capacity, count; /* samples; slots 0 .. count - 1 are filled */
};

struct batch_loss {
    uint64_t loss; /* Q16 nats, summed over the batch */
    uint32_t correct;
};

/* What a board spends its time on, as far as it is training. */
enum phase { PHASE_PERTURB, PHASE_FORWARD, PHASE_LOSS, PHASE_UPDATE, PHASE_CRC, PHASES, PHASE_NONE = PHASES };

struct phase_clock {
    uint64_t ticks[PHASES + 1]; /* since the image was loaded */
    uint64_t since;
    enum phase now; /* of worker 0 */
};

struct app {
    struct frame_link link;
    struct frame request;
    uint32_t answered_crc; /* of the request that reply answers */
    uint8_t reply_type;
    uint32_t bulk_left; /* bytes that still follow the request */
    uint64_t last_sign; /* when the host last heard that its command is executed */
    uint32_t reply_size;
    _Alignas(8) uint8_t reply[BOARD_MAX_PAYLOAD];

    bool loading, loaded;
    uint32_t load_size, load_at, load_crc;
    struct port_region *image_region; /* of the image that was begun last */
    struct image image;
    struct runner runner;
    uint8_t *work[BOARD_MAX_WORKERS];
    uint32_t workers;
    struct sample_store samples;

    uint32_t batch[BOARD_MAX_BATCH]; /* slots */
    uint32_t batch_size;
    struct batch_loss partial[BOARD_MAX_WORKERS];
    const int8_t *traced; /* output of op traced_op for the first sample of the batch, NULL: not there (any more) */
    uint32_t traced_op;
    struct phase_clock clock;
    int8_t *logits; /* where the forward passes of a LOGITS command leave theirs, else NULL */
};

/* Answer commands until the link closes. */
void app_run(struct app *app);

/* Execute the command in app->request and leave the answer in app->reply (commands.c). */
void app_execute(struct app *app);

/* A long command makes progress, as its watchdog and its host have to know. Between samples and walks over the weights,
 * never by another worker than the first. */
void app_alive(struct app *app);

/* Bytes that follow the frame of a command, on links that take them. Whether the command took them, was refused or
 * repeated: none are left when it is answered. */
void app_expect_bulk(struct app *app);
void app_receive_bulk(struct app *app, uint8_t *to, uint32_t size); /* the next size of them */
void app_skip_bulk(struct app *app);

/* Image and memory (load.c). */
bool app_weights_apart(void); /* whether images for this runner have their weights in memory of their own */
struct status app_load_begin(struct app *app, uint32_t size, uint32_t crc);
struct status app_load_data(struct app *app, uint32_t offset, const uint8_t *data, uint32_t size);
struct status app_load_bulk(struct app *app, uint32_t offset, uint32_t size);
struct status app_load_end(struct app *app);

/* From now on, time counts for this phase. */
static inline void app_enter(struct app *app, enum phase phase)
{
    uint64_t now = port_now();
    app->clock.ticks[app->clock.now] += now - app->clock.since;
    app->clock.since = now;
    app->clock.now = phase;
}

/* Forward passes over the batch (evaluate.c). */
struct batch_loss app_evaluate(struct app *app);
void app_trace(struct app *app, uint32_t op); /* leaves app->traced and app->traced_op */

/* Ticks of ops in a pass over the first block of the batch, and its samples; 0: the runner cannot (evaluate.c). */
uint32_t app_profile(struct app *app, uint32_t first, uint32_t count, uint64_t *ticks);

#endif
