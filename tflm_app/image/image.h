/* The device image in memory (docs/device_image.md). Everything is checked once, here; what uses it later trusts it. */
#ifndef IMAGE_IMAGE_H
#define IMAGE_IMAGE_H

#include <stdint.h>

#include "app/status.h"
#include "image/plan.h"
#include "zo/loss.h"
#include "zo/weights.h"

enum { IMAGE_VERSION = 1, IMAGE_RUNNER_INT8 = 1 };

struct image {
    uint8_t *base;
    uint32_t size;
    uint32_t crc; /* CRC-32 of the file as it was loaded */
    uint8_t *tflite;
    uint32_t tflite_size;
    struct plan plan;
    struct zo_weights weights;
    uint32_t weight_count; /* d */
    uint32_t mu_max;
    const struct zo_loss_table *loss;
    uint32_t height, width, channels;
    const int8_t *input_lut; /* [channels][256]: pixel to network input */
};

/* Check a file of size bytes at base (64-byte aligned) and fill in image. */
struct status image_open(struct image *image, uint8_t *base, uint32_t size);

static inline uint32_t image_sample_bytes(const struct image *image)
{
    return image->height * image->width * image->channels;
}

#endif
