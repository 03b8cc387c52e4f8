#include "image/image.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "link/crc32.h"

enum { MAX_CLASSES = 1 << 15, SECTION_ALIGN = 64 };

struct header {
    char magic[4];
    uint16_t version, runner;
    uint32_t size, crc, sections;
    uint32_t reserved[3];
};

struct entry {
    char tag[4];
    uint32_t offset, size, reserved;
};

struct span {
    uint8_t *data;
    uint32_t size;
};

static uint32_t tag_number(const char tag[4])
{
    uint32_t number;
    memcpy(&number, tag, 4);
    return number;
}

/* A section of at least a size; data is NULL when it is missing or out of bounds. */
static struct span find(const struct image *image, const char tag[4], uint32_t least)
{
    const struct header *header = (const struct header *)image->base;
    const struct entry *entries = (const struct entry *)(header + 1);
    for (uint32_t i = 0; i < header->sections; i++) {
        const struct entry *e = &entries[i];
        if (memcmp(e->tag, tag, 4) != 0)
            continue;
        bool inside = e->offset % SECTION_ALIGN == 0 && e->offset <= image->size && e->size <= image->size - e->offset;
        return inside && e->size >= least ? (struct span){image->base + e->offset, e->size} : (struct span){NULL, 0};
    }
    return (struct span){NULL, 0};
}

/* Weights are written in place, so no section may reach into another: they lie in the order of the table. */
static bool are_disjoint(const struct image *image)
{
    const struct header *header = (const struct header *)image->base;
    const struct entry *entries = (const struct entry *)(header + 1);
    uint64_t end = sizeof *header + header->sections * sizeof *entries;
    for (uint32_t i = 0; i < header->sections; i++) {
        if (entries[i].offset < end)
            return false;
        end = (uint64_t)entries[i].offset + entries[i].size;
    }
    return true;
}

static struct status check_header(const uint8_t *base, uint32_t size)
{
    const struct header *header = (const struct header *)base;
    if (size < sizeof *header || memcmp(header->magic, "ZIMG", 4) != 0)
        return STATUS(STATUS_IMAGE_NOT_AN_IMAGE, size >= 4 ? tag_number(header->magic) : 0, 0);
    if (header->version != IMAGE_VERSION)
        return STATUS(STATUS_IMAGE_VERSION, header->version, IMAGE_VERSION);
    if (header->runner != IMAGE_RUNNER_INT8)
        return STATUS(STATUS_IMAGE_RUNNER, header->runner, IMAGE_RUNNER_INT8);
    const uint32_t zero = 0;
    uint32_t crc = crc32_update(0, base, offsetof(struct header, crc));
    crc = crc32_update(crc, &zero, sizeof zero);
    crc = crc32_update(crc, base + offsetof(struct header, sections), size - offsetof(struct header, sections));
    if (header->size != size || crc != header->crc)
        return STATUS(STATUS_IMAGE_DAMAGED, crc, header->crc);
    if (header->sections > (size - sizeof *header) / sizeof(struct entry))
        return STATUS(STATUS_IMAGE_SECTION, 0, 0);
    return STATUS(STATUS_OK, 0, 0);
}

/* TRAN: d, mu_max, number of segments, reserved; then offset (in the TFLITE section) and count of each. */
static struct status open_train(struct image *image, struct span section)
{
    const uint32_t *words = (const uint32_t *)section.data;
    uint32_t segments = words[2];
    image->weight_count = words[0];
    image->mu_max = words[1];
    if (segments > (section.size - 16) / sizeof(struct zo_segment) || image->mu_max < 1 || image->mu_max > 63)
        return STATUS(STATUS_IMAGE_TRAIN, 0, 1);
    image->weights = (struct zo_weights){
        .base = (int8_t *)image->tflite,
        .segments = (const struct zo_segment *)(words + 4),
        .segment_count = segments,
        .limit = 127 - (int32_t)image->mu_max,
    };
    uint64_t total = 0;
    for (uint32_t s = 0; s < segments; s++) {
        struct zo_segment segment = image->weights.segments[s];
        if (segment.offset > image->tflite_size || segment.count > image->tflite_size - segment.offset)
            return STATUS(STATUS_IMAGE_TRAIN, s, 2);
        total += segment.count;
        if (!plan_has_filter(&image->plan, segment.offset, segment.count))
            return STATUS(STATUS_IMAGE_TRAIN, s, 5);
        for (uint32_t other = 0; other < s; other++) {
            struct zo_segment before = image->weights.segments[other];
            if (segment.offset < before.offset + before.count && before.offset < segment.offset + segment.count)
                return STATUS(STATUS_IMAGE_TRAIN, s, 6);
        }
        for (uint32_t i = 0; i < segment.count; i++) {
            int32_t w = image->weights.base[segment.offset + i];
            if (w > image->weights.limit || w < -image->weights.limit)
                return STATUS(STATUS_IMAGE_TRAIN, s, 3);
        }
    }
    if (total == 0 || total != image->weight_count)
        return STATUS(STATUS_IMAGE_TRAIN, segments, 4);
    return STATUS(STATUS_OK, 0, 0);
}

/* INPT: height, width, channels, scale, zero point, offset of the table, reserved; the table; what it was made from. */
static struct status open_input(struct image *image, struct span section)
{
    const uint32_t *words = (const uint32_t *)section.data;
    const struct plan_tensor *in = &image->plan.tensors[image->plan.input];
    image->height = words[0];
    image->width = words[1];
    image->channels = words[2];
    uint32_t lut = words[5];
    if (image->height != in->h || image->width != in->w || image->channels != in->c || lut > section.size ||
        256ull * image->channels > section.size - lut)
        return STATUS(STATUS_IMAGE_SECTION, tag_number("INPT"), 0);
    image->input_lut = (const int8_t *)section.data + lut;
    return STATUS(STATUS_OK, 0, 0);
}

static struct status open_loss(struct image *image, struct span section)
{
    const struct zo_loss_table *loss = (const struct zo_loss_table *)section.data;
    bool valid = loss->classes >= 2 && loss->classes <= MAX_CLASSES && loss->scale_q24 < 1u << 28 &&
                 loss->exp[0] == 1u << 24 && loss->classes == plan_elements(&image->plan.tensors[image->plan.output]);
    for (int k = 1; k < 256; k++)
        valid = valid && loss->exp[k] <= loss->exp[k - 1];
    image->loss = loss;
    return valid ? STATUS(STATUS_OK, 0, 0) : STATUS(STATUS_IMAGE_SECTION, tag_number("LOSS"), 0);
}

struct status image_open(struct image *image, uint8_t *base, uint32_t size)
{
    struct status status = check_header(base, size);
    if (status.code)
        return status;
    image->base = base;
    image->size = size;
    image->crc = crc32_update(0, base, size);

    struct span tflite = find(image, "TFLT", 8), plan = find(image, "PLAN", 32), train = find(image, "TRAN", 16);
    struct span loss = find(image, "LOSS", sizeof(struct zo_loss_table)), input = find(image, "INPT", 32);
    const struct {
        const char *tag;
        const uint8_t *data;
    } needed[] = {
        {"TFLT", tflite.data}, {"PLAN", plan.data}, {"TRAN", train.data}, {"LOSS", loss.data}, {"INPT", input.data}};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!needed[i].data)
            return STATUS(STATUS_IMAGE_SECTION, tag_number(needed[i].tag), 0);

    if (!are_disjoint(image))
        return STATUS(STATUS_IMAGE_SECTION, 0, 0);

    image->tflite = tflite.data;
    image->tflite_size = tflite.size;
    status = plan_open(&image->plan, (const uint32_t *)plan.data, plan.size / 4, tflite.data, tflite.size);
    if (!status.code)
        status = open_train(image, train);
    if (!status.code)
        status = open_loss(image, loss);
    if (!status.code)
        status = open_input(image, input);
    return status;
}
