/* The device image in memory (docs/device_image.md). Everything is checked once, here; what uses it later trusts it. */
#ifndef IMAGE_IMAGE_H
#define IMAGE_IMAGE_H

#include <stdint.h>

#include "app/status.h"
#include "image/nart.h"
#include "image/plan.h"
#include "zo/loss.h"
#include "zo/weights.h"

enum { IMAGE_VERSION = 1 };

/* What an image is for: its sections differ. */
enum image_runner {
    IMAGE_RUNNER_INT8 = 1,       /* TFLT, whose buffers are the weights, and PLAN */
    IMAGE_RUNNER_NEURAL_ART = 2, /* NART, and BLOB: a compiled network's memory, which the weights lie in */
};

/* A file of size bytes. Its BLOB, from byte `head` on, lies in memory of its own; other files are all head. */
struct image_file {
    uint8_t *base; /* 64-byte aligned */
    uint8_t *blob; /* the file from `head` on */
    uint32_t head, size;
};

struct image {
    struct image_file file;
    uint32_t crc; /* CRC-32 of the file as it was loaded */
    uint8_t *tflite;
    uint32_t tflite_size;
    struct plan plan; /* {0} in an image for a compiled network, as are tflite and tflite_size */
    struct nart nart; /* {0} in other images */
    struct zo_weights weights;
    uint32_t weight_count; /* d */
    uint32_t mu_max;
    const struct zo_loss_table *loss;
    uint32_t height, width, channels;
    const int8_t *input_lut; /* [channels][256]: pixel to network input */
};

/* Up to which byte a file of size bytes, of which the first `there` are at base, is known to belong to the head: a
 * little further each time that this is asked with all those there, until it stays. */
uint32_t image_head(const uint8_t *base, uint32_t there, uint32_t size, enum image_runner runner);

/* Check a file and fill in image. runner: what the image has to be for. */
struct status image_open(struct image *image, struct image_file file, enum image_runner runner);

/* Copy bytes of the file as it is now; the range lies inside. */
void image_read(const struct image *image, uint32_t offset, uint32_t size, uint8_t *to);

static inline uint32_t image_sample_bytes(const struct image *image)
{
    return image->height * image->width * image->channels;
}

#endif
