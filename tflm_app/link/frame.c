#include "link/frame.h"

#include <string.h>

#include "link/crc32.h"

_Static_assert(offsetof(struct frame, payload) - offsetof(struct frame, type) == FRAME_HEAD, "a frame is contiguous");

static bool next_byte(struct frame_link *link, uint8_t *byte)
{
    if (link->at == link->have) {
        link->have = port_read(link->input, sizeof link->input);
        link->at = 0;
        if (link->have == 0)
            return false;
    }
    *byte = link->input[link->at++];
    return true;
}

/* size bytes of type, sequence, payload and CRC have arrived. */
static enum frame_event check(struct frame *frame, size_t size)
{
    if (size < FRAME_OVERHEAD || size > BOARD_MAX_PAYLOAD + FRAME_OVERHEAD)
        return FRAME_DAMAGED;
    const uint8_t *crc = &frame->type + size - 4;
    frame->size = (uint32_t)size - FRAME_OVERHEAD;
    frame->crc = (uint32_t)crc[0] | (uint32_t)crc[1] << 8 | (uint32_t)crc[2] << 16 | (uint32_t)crc[3] << 24;
    return frame->crc == crc32_update(0, &frame->type, size - 4) ? FRAME_RECEIVED : FRAME_DAMAGED;
}

enum frame_event frame_receive(struct frame_link *link, struct frame *frame)
{
    uint8_t *to = (uint8_t *)frame + offsetof(struct frame, type);
    size_t size = 0;      /* decoded bytes, counted on when they no longer fit */
    uint8_t run = 0;      /* bytes that follow before the next code byte */
    bool zero = false;    /* a zero stands before the next code byte's bytes */
    bool started = false; /* zeros between frames are idle, not empty frames */
    for (uint8_t byte; next_byte(link, &byte);) {
        if (byte == 0) {
            if (started)
                return run == 0 ? check(frame, size) : FRAME_DAMAGED;
            continue;
        }
        started = true;
        bool code = run == 0;
        if (!code || zero) {
            if (size < BOARD_MAX_PAYLOAD + FRAME_OVERHEAD)
                to[size] = code ? 0 : byte;
            size++;
        }
        if (code) {
            run = byte - 1;
            zero = byte != 0xFF;
        } else {
            run--;
        }
    }
    return FRAME_CLOSED;
}

bool frame_receive_raw(struct frame_link *link, uint8_t *to, size_t size)
{
    size_t buffered = link->have - link->at < size ? link->have - link->at : size;
    memcpy(to, link->input + link->at, buffered);
    link->at += buffered;
    for (size_t at = buffered; at < size;) {
        size_t got = port_read(to + at, size - at);
        if (got == 0)
            return false;
        at += got;
    }
    return true;
}

struct encoder {
    uint8_t out[512]; /* encoded and not yet written */
    size_t code;      /* where the current run's code byte goes; the run follows it */
    size_t end;
};

/* The run is complete: write what there is once another one of 254 might not fit. */
static void end_run(struct encoder *e)
{
    e->out[e->code] = (uint8_t)(e->end - e->code);
    if (e->end > sizeof e->out - 256) {
        port_write(e->out, e->end);
        e->end = 0;
    }
    e->code = e->end++;
}

static void encode(struct encoder *e, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (data[i] != 0)
            e->out[e->end++] = data[i];
        if (data[i] == 0 || e->end - e->code == 255)
            end_run(e);
    }
}

void frame_send(uint8_t type, uint8_t sequence, const uint8_t *payload, size_t size)
{
    const uint8_t head[FRAME_HEAD] = {type, sequence};
    uint32_t crc = crc32_update(crc32_update(0, head, sizeof head), payload, size);
    const uint8_t tail[4] = {(uint8_t)crc, (uint8_t)(crc >> 8), (uint8_t)(crc >> 16), (uint8_t)(crc >> 24)};
    struct encoder e = {.code = 0, .end = 1};
    encode(&e, head, sizeof head);
    encode(&e, payload, size);
    encode(&e, tail, sizeof tail);
    e.out[e.code] = (uint8_t)(e.end - e.code);
    e.out[e.end++] = 0;
    port_write(e.out, e.end);
}
