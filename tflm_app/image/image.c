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

static const struct entry *entries_of(const uint8_t *base)
{
    return (const struct entry *)((const struct header *)base + 1);
}

static uint64_t table_end(const uint8_t *base)
{
    const struct header *header = (const struct header *)base;
    return sizeof *header + (uint64_t)header->sections * sizeof(struct entry);
}

uint32_t image_head(const uint8_t *base, uint32_t there, uint32_t size, enum image_runner runner)
{
    const struct header *header = (const struct header *)base;
    if (there < sizeof *header)
        return size < sizeof *header ? size : (uint32_t)sizeof *header;
    uint64_t table = table_end(base);
    if (header->runner != runner || runner != IMAGE_RUNNER_NEURAL_ART || table > size)
        return size;
    if (there < table)
        return (uint32_t)table;
    for (const struct entry *e = entries_of(base); e < entries_of(base) + header->sections; e++)
        if (memcmp(e->tag, "BLOB", 4) == 0)
            return e->offset >= table && e->offset <= size ? e->offset : size;
    return size;
}

/* A section of at least a size in the head of the file; data is NULL when it is missing or out of bounds. */
static struct span find(const struct image *image, const char tag[4], uint32_t least)
{
    const struct image_file *file = &image->file;
    const struct header *header = (const struct header *)file->base;
    for (uint32_t i = 0; i < header->sections; i++) {
        const struct entry *e = &entries_of(file->base)[i];
        if (memcmp(e->tag, tag, 4) != 0)
            continue;
        bool inside = e->offset % SECTION_ALIGN == 0 && e->offset <= file->head && e->size <= file->head - e->offset;
        return inside && e->size >= least ? (struct span){file->base + e->offset, e->size} : (struct span){NULL, 0};
    }
    return (struct span){NULL, 0};
}

/* BLOB: what lies behind the head, and nothing else. */
static struct span find_blob(const struct image *image)
{
    const struct image_file *file = &image->file;
    const struct header *header = (const struct header *)file->base;
    for (uint32_t i = 0; i < header->sections; i++) {
        const struct entry *e = &entries_of(file->base)[i];
        if (memcmp(e->tag, "BLOB", 4) != 0)
            continue;
        bool fits = e->offset % SECTION_ALIGN == 0 && e->offset == file->head && e->size &&
                    e->size <= file->size - file->head && file->size - file->head - e->size < SECTION_ALIGN;
        return fits && i == header->sections - 1 ? (struct span){file->blob, e->size} : (struct span){NULL, 0};
    }
    return (struct span){NULL, 0};
}

/* Weights are written in place, so no section may reach into another: they lie in the order of the table. */
static bool are_disjoint(const struct image *image)
{
    const uint8_t *base = image->file.base;
    uint64_t end = table_end(base);
    for (uint32_t i = 0; i < ((const struct header *)base)->sections; i++) {
        if (entries_of(base)[i].offset < end)
            return false;
        end = (uint64_t)entries_of(base)[i].offset + entries_of(base)[i].size;
    }
    return true;
}

static uint32_t crc_from(const struct image_file *file, uint32_t crc, uint32_t offset)
{
    crc = crc32_update(crc, file->base + offset, file->head - offset);
    return crc32_update(crc, file->blob, file->size - file->head);
}

static struct status check_header(const struct image_file *file, enum image_runner runner)
{
    const struct header *header = (const struct header *)file->base;
    if (file->head < sizeof *header || memcmp(header->magic, "ZIMG", 4) != 0)
        return STATUS(STATUS_IMAGE_NOT_AN_IMAGE, file->head >= 4 ? tag_number(header->magic) : 0, 0);
    if (header->version != IMAGE_VERSION)
        return STATUS(STATUS_IMAGE_VERSION, header->version, IMAGE_VERSION);
    if (header->runner != runner)
        return STATUS(STATUS_IMAGE_RUNNER, header->runner, runner);
    const uint32_t zero = 0;
    uint32_t crc = crc32_update(0, file->base, offsetof(struct header, crc));
    crc = crc32_update(crc, &zero, sizeof zero);
    crc = crc_from(file, crc, offsetof(struct header, sections));
    if (header->size != file->size || crc != header->crc)
        return STATUS(STATUS_IMAGE_DAMAGED, crc, header->crc);
    if (header->sections > (file->head - sizeof *header) / sizeof(struct entry))
        return STATUS(STATUS_IMAGE_SECTION, 0, 0);
    return STATUS(STATUS_OK, 0, 0);
}

/* TRAN: d, mu_max, number of segments, reserved; then offset (in the TFLITE section) and count of each. Where the
 * segments lie is another matter. */
static struct status open_train(struct image *image, struct span section)
{
    const uint32_t *words = (const uint32_t *)section.data;
    uint32_t segments = words[2];
    image->weight_count = words[0];
    image->mu_max = words[1];
    if (segments > (section.size - 16) / sizeof(struct zo_segment) || image->mu_max < 1 || image->mu_max > 63)
        return STATUS(STATUS_IMAGE_TRAIN, 0, 1);
    image->weights = (struct zo_weights){
        .segments = (const struct zo_segment *)(words + 4),
        .segment_count = segments,
        .limit = 127 - (int32_t)image->mu_max,
    };
    return STATUS(STATUS_OK, 0, 0);
}

/* Every segment is a filter of the plan, in the model. */
static struct status check_filters(const struct image *image)
{
    for (uint32_t s = 0; s < image->weights.segment_count; s++) {
        struct zo_segment segment = image->weights.segments[s];
        if (segment.offset > image->tflite_size || segment.count > image->tflite_size - segment.offset)
            return STATUS(STATUS_IMAGE_TRAIN, s, 2);
        if (!plan_has_filter(&image->plan, segment.offset, segment.count))
            return STATUS(STATUS_IMAGE_TRAIN, s, 5);
        for (uint32_t other = 0; other < s; other++) {
            struct zo_segment before = image->weights.segments[other];
            if (segment.offset < before.offset + before.count && before.offset < segment.offset + segment.count)
                return STATUS(STATUS_IMAGE_TRAIN, s, 6);
        }
    }
    return STATUS(STATUS_OK, 0, 0);
}

/* There are as many weights as the section says, and none is beyond the headroom. */
static struct status check_weights(const struct image *image)
{
    const struct zo_weights *weights = &image->weights;
    uint64_t total = 0;
    for (uint32_t s = 0; s < weights->segment_count; s++)
        total += weights->segments[s].count;
    if (total == 0 || total != image->weight_count)
        return STATUS(STATUS_IMAGE_TRAIN, weights->segment_count, 4);
    for (struct zo_run run = {.reads = true}; zo_next_run(weights, &run, ZO_LONGEST_BLOCK);)
        for (uint32_t i = 0; i < run.count; i++)
            if (run.w[i] > weights->limit || run.w[i] < -weights->limit)
                return STATUS(STATUS_IMAGE_TRAIN, run.next - 1, 3);
    return STATUS(STATUS_OK, 0, 0);
}

/* INPT: height, width, channels, scale, zero point, offset of the table, reserved; the table; what it was made from. */
static struct status open_input(struct image *image, struct span section)
{
    enum { MAX_DIM = 1 << 15, MAX_BYTES = 1 << 27 };
    const uint32_t *words = (const uint32_t *)section.data;
    uint32_t h = words[0], w = words[1], c = words[2], lut = words[5];
    bool valid = h >= 1 && w >= 1 && c >= 1 && h <= MAX_DIM && w <= MAX_DIM && c <= MAX_DIM &&
                 (uint64_t)h * w * c <= MAX_BYTES && lut <= section.size && 256ull * c <= section.size - lut;
    if (!valid)
        return STATUS(STATUS_IMAGE_SECTION, tag_number("INPT"), 0);
    image->height = h;
    image->width = w;
    image->channels = c;
    image->input_lut = (const int8_t *)section.data + lut;
    return STATUS(STATUS_OK, 0, 0);
}

static struct status open_loss(struct image *image, struct span section)
{
    const struct zo_loss_table *loss = (const struct zo_loss_table *)section.data;
    bool valid =
        loss->classes >= 2 && loss->classes <= MAX_CLASSES && loss->scale_q24 < 1u << 28 && loss->exp[0] == 1u << 24;
    for (int k = 1; k < 256; k++)
        valid = valid && loss->exp[k] <= loss->exp[k - 1];
    image->loss = loss;
    return valid ? STATUS(STATUS_OK, 0, 0) : STATUS(STATUS_IMAGE_SECTION, tag_number("LOSS"), 0);
}

/* TFLT and PLAN: the plan agrees with the other sections. */
static struct status open_plan(struct image *image)
{
    struct span tflite = find(image, "TFLT", 8), plan = find(image, "PLAN", 32);
    image->tflite = tflite.data;
    image->tflite_size = tflite.size;
    image->weights.base = (int8_t *)tflite.data;
    struct status status =
        plan_open(&image->plan, (const uint32_t *)plan.data, plan.size / 4, tflite.data, tflite.size);
    if (!status.code)
        status = check_filters(image);
    if (status.code)
        return status;
    const struct plan_tensor *in = &image->plan.tensors[image->plan.input];
    if (image->height != in->h || image->width != in->w || image->channels != in->c)
        return STATUS(STATUS_IMAGE_SECTION, tag_number("INPT"), 0);
    if (image->loss->classes != plan_elements(&image->plan.tensors[image->plan.output]))
        return STATUS(STATUS_IMAGE_SECTION, tag_number("LOSS"), 0);
    return STATUS(STATUS_OK, 0, 0);
}

/* NART and BLOB: one pool, whose bytes are there. */
static struct status open_nart(struct image *image)
{
    struct span nart = find(image, "NART", 16), blob = find_blob(image);
    struct status status = nart_open(&image->nart, (const uint32_t *)nart.data, nart.size, image->weights.segments,
                                     image->weights.segment_count);
    if (!status.code && (image->nart.pool_count != 1 || image->nart.pools[0].size != blob.size))
        status = STATUS(STATUS_IMAGE_NART, 0, 16);
    image->weights.base = (int8_t *)blob.data;
    image->weights.layout = &image->nart.layout;
    return status;
}

/* The tag of a section that is needed and not there, or 0. */
static uint32_t missing(const struct image *image, enum image_runner runner)
{
    static const struct need {
        char tag[5];
        uint32_t least;
    } both[] = {{"TRAN", 16}, {"LOSS", sizeof(struct zo_loss_table)}, {"INPT", 32}},
      int8[] = {{"TFLT", 8}, {"PLAN", 32}};
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++)
        if (!find(image, both[i].tag, both[i].least).data)
            return tag_number(both[i].tag);
    for (size_t i = 0; runner == IMAGE_RUNNER_INT8 && i < sizeof int8 / sizeof int8[0]; i++)
        if (!find(image, int8[i].tag, int8[i].least).data)
            return tag_number(int8[i].tag);
    if (runner == IMAGE_RUNNER_INT8)
        return 0;
    return !find(image, "NART", 16).data ? tag_number("NART") : !find_blob(image).data ? tag_number("BLOB") : 0;
}

struct status image_open(struct image *image, struct image_file file, enum image_runner runner)
{
    struct status status = check_header(&file, runner);
    if (status.code)
        return status;
    *image = (struct image){.file = file, .crc = crc_from(&file, 0, 0)};
    uint32_t tag = missing(image, runner);
    if (tag || !are_disjoint(image))
        return STATUS(STATUS_IMAGE_SECTION, tag, 0);
    status = open_train(image, find(image, "TRAN", 16));
    if (!status.code)
        status = open_loss(image, find(image, "LOSS", sizeof(struct zo_loss_table)));
    if (!status.code)
        status = open_input(image, find(image, "INPT", 32));
    if (!status.code)
        status = runner == IMAGE_RUNNER_INT8 || !ZO_LAYOUTS ? open_plan(image) : open_nart(image);
    if (!status.code)
        status = check_weights(image);
    return status;
}

void image_read(const struct image *image, uint32_t offset, uint32_t size, uint8_t *to)
{
    const struct image_file *file = &image->file;
    uint32_t head = offset < file->head ? file->head - offset : 0;
    head = head < size ? head : size;
    memcpy(to, file->base + offset, head);
    if (size > head)
        memcpy(to + head, file->blob + (offset + head - file->head), size - head);
}
