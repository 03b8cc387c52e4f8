/* Why a command was refused. The host turns each code into a sentence (pipeline/targets/client.py has the same list).
 */
#ifndef APP_STATUS_H
#define APP_STATUS_H

#include <stdint.h>

enum status_code {
    STATUS_OK = 0,
    STATUS_UNKNOWN_COMMAND = 1, /* command */
    STATUS_BAD_LENGTH = 2,      /* payload bytes received, expected (or least) */
    STATUS_NO_IMAGE = 3,
    STATUS_LOAD_ORDER = 4,         /* offset received, expected */
    STATUS_IMAGE_TOO_LARGE = 5,    /* bytes needed, there */
    STATUS_IMAGE_NOT_AN_IMAGE = 6, /* first word */
    STATUS_IMAGE_VERSION = 7,      /* found, supported */
    STATUS_IMAGE_RUNNER = 8,       /* found, supported */
    STATUS_IMAGE_DAMAGED = 9,      /* CRC-32 computed, expected */
    STATUS_IMAGE_SECTION = 10,     /* tag of a section that is missing or out of bounds */
    STATUS_IMAGE_PLAN = 11,        /* op (or tensor) number, number of the check (image/plan.c) */
    STATUS_IMAGE_TRAIN = 12,       /* segment, number of the check */
    STATUS_MEMORY = 13,            /* bytes needed for activations, there */
    STATUS_SAMPLES_RANGE = 14,     /* end of the range, capacity or count */
    STATUS_LABEL_RANGE = 15,       /* label, classes */
    STATUS_BATCH_EMPTY = 16,
    STATUS_BATCH_TOO_LARGE = 17, /* samples, limit */
    STATUS_MU_RANGE = 18,        /* mu, largest */
    STATUS_DIRECTIONS = 19,      /* q, largest */
    STATUS_COEFFICIENT = 20,     /* direction */
    STATUS_ROUNDING = 21,        /* mode */
    STATUS_READ_RANGE = 22,      /* end of the range, size */
    STATUS_TRACE_RANGE = 23,     /* op or offset, number of ops or bytes */
    STATUS_TRACE_MISSING = 24,   /* the runner can only run the whole network */
    STATUS_RUNNER = 25,          /* bytes that were free, 0: not prepared, 1: prepared, but not run */
    STATUS_BULK = 26,            /* the link cannot take it */
    STATUS_PROFILE_MISSING = 27, /* the runner can only run the whole network */
    STATUS_IMAGE_NART = 28,      /* pool, entry or segment, number of the check (image/nart.c) */
    STATUS_WEIGHTS_ADDRESS = 29, /* where the network was compiled for, where the board has them */
    STATUS_NETWORK = 30,         /* bytes of the compiled network's input or output, of the image's */
    STATUS_WEIGHT_INDEX = 31,    /* index, weights */
    STATUS_WEIGHT_VALUE = 32,    /* value, largest */
    STATUS_OTHER_NETWORK = 33,   /* id of the image's compiled network, of the firmware's */
};

/* A code and up to two numbers that its sentence mentions. */
struct status {
    enum status_code code;
    uint32_t a, b;
};

#define STATUS(code_, a_, b_) ((struct status){(code_), (uint32_t)(a_), (uint32_t)(b_)})

#endif
