/* Commands and their payloads (docs/protocol.md). Little-endian, naturally aligned; the host packs the same. */
#ifndef APP_COMMANDS_H
#define APP_COMMANDS_H

#include <stdint.h>

enum command {
    COMMAND_HELLO = 0x01,
    COMMAND_LOAD_BEGIN = 0x10,
    COMMAND_LOAD_DATA = 0x11,
    COMMAND_LOAD_END = 0x12,
    COMMAND_READ = 0x13,
    COMMAND_LOAD_BULK = 0x14,
    COMMAND_PIXELS = 0x20,
    COMMAND_LABELS = 0x21,
    COMMAND_SELECT = 0x22,
    COMMAND_PIXELS_BULK = 0x23,
    COMMAND_LOGITS = 0x30,
    COMMAND_LOSS = 0x31,
    COMMAND_PROBE = 0x32,
    COMMAND_UPDATE = 0x33,
    COMMAND_WEIGHTS_CRC = 0x34,
    COMMAND_TRACE = 0x35,
    COMMAND_PROFILE = 0x36,
    COMMAND_SET_WEIGHT = 0x37,
    COMMAND_PROVOKE = 0x7F, /* in firmware for tests alone (app/provoke.h) */
};

enum reply {
    REPLY_OK = 0x80,      /* or'ed with the command */
    REPLY_BUSY = 0xFD,    /* the command is still executed: its answer follows */
    REPLY_DAMAGED = 0xFE, /* what arrived is no frame: send it again */
    REPLY_REFUSED = 0xFF, /* payload: struct refusal */
};

struct refusal {
    uint32_t code, a, b; /* enum status_code and its numbers */
};

/* Bytes by purpose, for people and for the decision whether a model fits. */
struct memory_report {
    uint32_t weights;     /* trainable, in place */
    uint32_t model;       /* the rest of the image */
    uint32_t activations; /* of all workers */
    uint32_t scratch;     /* the kernels', of all workers */
    uint32_t packed;      /* copies of weights in another layout */
    uint32_t training;    /* everything that training needs beside its batch: loss table, directions, sums */
    uint32_t batch;       /* slots of the selected samples */
    uint32_t samples;     /* the sample store as far as it is filled */
    uint32_t link;        /* buffers */
    uint32_t stack;       /* as far as it was ever used; 0 where the board does not count */
};

/* Purposes with the same number share a region. */
struct region_report {
    uint32_t number, size;
};

enum { REGIONS_REPORTED = 4 }; /* image, work, samples, weights of a compiled network (size 0: there is none) */

struct hello_reply {
    uint16_t protocol, runner;
    uint32_t max_payload, max_batch, workers;
    uint32_t bulk; /* 1: LOAD_BULK and PIXELS_BULK work */
    uint32_t stack_size, ticks_per_second;
    struct region_report regions[REGIONS_REPORTED];
    uint32_t network; /* id of the network compiled into the firmware; 0: none, or unknown */
    uint32_t loaded;  /* 0 or 1; what follows is 0 without an image */
    uint32_t image_crc, weights_crc, weights, mu_max, classes, sample_bytes, sample_capacity;
    struct memory_report memory;
    char board[16], runner_name[16]; /* zero-padded */
};

struct load_begin {
    uint32_t size, crc;
};

struct load_data {
    uint32_t offset; /* bytes follow */
};

/* LOAD_BULK: of the image; PIXELS_BULK: of the sample store. The bytes follow the frame as they are, outside of it. */
struct bulk {
    uint32_t offset, size;
};

struct read_request {
    uint32_t offset, size;
};

struct pixels {
    uint32_t offset; /* in the sample store, in bytes; pixels follow */
};

struct labels {
    uint32_t first; /* slot; uint16 labels follow */
};

struct loss_reply {
    uint64_t loss;
    uint32_t correct, reserved;
};

enum { PROBE_BOTH_SIDES = 0, PROBE_PLUS = 1 };

struct probe_request {
    uint64_t seed;
    uint32_t mu, sides;
};

struct probe_reply {
    struct loss_reply plus, minus; /* minus is 0 for PROBE_PLUS */
};

struct update_request {
    uint64_t rounding_seed;
    uint32_t rounding, directions; /* uint64 seeds[directions], int32 coefficients[directions] follow */
};

struct update_reply {
    uint32_t changed, at_rail, weights_crc;
};

struct trace_request {
    uint32_t op, offset; /* number in the plan, first byte of its output */
};

struct profile_request {
    uint32_t op; /* the first whose ticks are wanted; beyond the last: none, and no pass is made */
};

struct profile_reply {
    uint64_t phases[5];    /* enum phase (app/app.h): ticks since the image was loaded */
    uint32_t samples, ops; /* of the pass that was made; in the plan. Ticks follow, uint64 an op */
};

struct set_weight_request {
    uint32_t index; /* in the order of the image's TRAIN section */
    int32_t value;
};

struct set_weight_reply {
    int32_t before;
};

#endif
