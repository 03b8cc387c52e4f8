/* Frames: COBS(type, sequence, payload, CRC-32) and a zero byte. Stop-and-wait; docs/protocol.md.
 *
 * COBS: Cheshire & Baker, "Consistent Overhead Byte Stuffing", IEEE/ACM Trans. Networking 7(2), 1999. */
#ifndef LINK_FRAME_H
#define LINK_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "port/port.h"

enum { FRAME_HEAD = 2, FRAME_OVERHEAD = 6 }; /* type and sequence; the same and the CRC */

enum frame_event { FRAME_RECEIVED, FRAME_DAMAGED, FRAME_CLOSED };

/* A received frame. The payload is aligned so that commands can be read as structures of up to 8-byte words. */
struct frame {
    uint32_t size, crc; /* of the payload; of type, sequence and payload */
    uint8_t padding[8 - FRAME_HEAD];
    uint8_t type, sequence;
    _Alignas(8) uint8_t payload[BOARD_MAX_PAYLOAD + 4]; /* and the CRC */
};

struct frame_link {
    uint8_t input[256]; /* bytes read and not yet decoded */
    size_t have, at;
};

/* Wait for the next frame. DAMAGED: something arrived that is no frame; its sender should send again. */
enum frame_event frame_receive(struct frame_link *link, struct frame *frame);

/* The next size bytes as they come, outside of frames. False when the link closed meanwhile. */
bool frame_receive_raw(struct frame_link *link, uint8_t *to, size_t size);

void frame_send(uint8_t type, uint8_t sequence, const uint8_t *payload, size_t size);

#endif
