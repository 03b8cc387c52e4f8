/* Loading an image and sharing out the memory: image, then work memory of each worker, the rest for samples. */
#include <string.h>

#include "app/app.h"
#include "link/crc32.h"

enum { ALIGN = 64, MAX_SAMPLES = 1 << 20 };

static size_t available(const struct port_region *region)
{
    return region->size - region->used;
}

/* The next size bytes of a region, 64-byte aligned; the caller has made sure that they are there. */
static uint8_t *take(struct port_region *region, size_t size)
{
    uint8_t *at = region->base + region->used;
    size_t aligned = (size + ALIGN - 1) / ALIGN * ALIGN;
    region->used += aligned < available(region) ? aligned : available(region);
    return at;
}

static void release_all(void)
{
    for (int purpose = 0; purpose < PORT_PURPOSES; purpose++)
        port_region(purpose)->used = 0;
}

bool app_weights_apart(void)
{
    return runner_images() == IMAGE_RUNNER_NEURAL_ART;
}

struct status app_load_begin(struct app *app, uint32_t size, uint32_t crc)
{
    app->image_region = port_image_region(size);
    size_t room = app->image_region->size + (app_weights_apart() ? port_region(PORT_WEIGHTS)->size : 0);
    app->loaded = app->loading = false;
    app->batch_size = 0;
    app->samples = (struct sample_store){0};
    app->clock = (struct phase_clock){.now = PHASE_NONE, .since = port_now()};
    release_all();
    app->image_region->used = 0;
    if (size > room)
        return STATUS(STATUS_IMAGE_TOO_LARGE, size, room);
    app->loading = true;
    app->load_size = size;
    app->load_at = 0;
    app->load_crc = crc;
    return STATUS(STATUS_OK, 0, 0);
}

/* The file as far as it is there. What comes behind its head goes where a compiled network has its weights. */
static struct image_file file_of(const struct app *app)
{
    uint8_t *base = app->image_region->base;
    uint32_t head = image_head(base, app->load_at, app->load_size, runner_images());
    return (struct image_file){base, port_region(PORT_WEIGHTS)->base, head, app->load_size};
}

/* The next bytes of the file, which lie in the command or still have to come over the link (data NULL): in parts,
 * since the table of sections says where the others go. */
static struct status take_bytes(struct app *app, const uint8_t *data, uint32_t size)
{
    while (size) {
        struct image_file file = file_of(app);
        bool in_head = app->load_at < file.head;
        const struct port_region *region = in_head ? app->image_region : port_region(PORT_WEIGHTS);
        uint32_t at = in_head ? app->load_at : app->load_at - file.head, end = in_head ? file.head : file.size;
        uint32_t part = end - app->load_at < size ? end - app->load_at : size;
        if ((uint64_t)at + part > region->size) {
            app->loading = false;
            return STATUS(STATUS_IMAGE_TOO_LARGE, end - (in_head ? 0 : file.head), region->size);
        }
        if (data) {
            memcpy(region->base + at, data, part);
            data += part;
        } else {
            app_receive_bulk(app, region->base + at, part);
        }
        app->load_at += part;
        size -= part;
    }
    return STATUS(STATUS_OK, 0, 0);
}

struct status app_load_data(struct app *app, uint32_t offset, const uint8_t *data, uint32_t size)
{
    if (!app->loading || offset != app->load_at || size > app->load_size - app->load_at)
        return STATUS(STATUS_LOAD_ORDER, offset, app->load_at);
    return take_bytes(app, data, size);
}

struct status app_load_bulk(struct app *app, uint32_t offset, uint32_t size)
{
    if (!app->loading || offset != app->load_at || size > app->load_size - app->load_at)
        return STATUS(STATUS_LOAD_ORDER, offset, app->load_at);
    return take_bytes(app, NULL, size);
}

static struct status share_memory(struct app *app)
{
    struct port_region *work = port_region(PORT_WORK), *samples = port_region(PORT_SAMPLES);
    const struct runner_memory *memory = &app->runner.memory;
    app->workers = port_workers();
    if (runner_bytes(memory, app->workers) > available(work))
        return STATUS(STATUS_MEMORY, runner_bytes(memory, app->workers), available(work));
    app->runner.packed = take(work, memory->packed);
    for (uint32_t w = 0; w < app->workers; w++)
        app->work[w] = take(work, memory->activations + memory->scratch);

    uint64_t sample = image_sample_bytes(&app->image) + sizeof(uint16_t);
    size_t room = available(samples) > 2 * ALIGN ? available(samples) - 2 * ALIGN : 0; /* both arrays are padded */
    uint64_t capacity = room / sample;
    app->samples.capacity = capacity < MAX_SAMPLES ? (uint32_t)capacity : MAX_SAMPLES;
    if (app->samples.capacity == 0)
        return STATUS(STATUS_MEMORY, sample + 2 * ALIGN, available(samples));
    app->samples.labels = (uint16_t *)take(samples, app->samples.capacity * sizeof(uint16_t));
    app->samples.inputs = (int8_t *)take(samples, (size_t)app->samples.capacity * image_sample_bytes(&app->image));
    return STATUS(STATUS_OK, 0, 0);
}

/* The image is of the network that was compiled into the firmware, as far as both are known. */
static struct status check_network(const struct image *image)
{
    uint32_t of_image = image->nart.network, of_firmware = runner_network();
    if (of_image && of_firmware && of_image != of_firmware)
        return STATUS(STATUS_OTHER_NETWORK, of_image, of_firmware);
    return STATUS(STATUS_OK, 0, 0);
}

/* A compiled network reads its weights where it was compiled for. */
static struct status check_address(const struct image *image)
{
    uintptr_t there = (uintptr_t)image->file.blob;
    if (app_weights_apart() && there != image->nart.pools[0].address)
        return STATUS(STATUS_WEIGHTS_ADDRESS, image->nart.pools[0].address, there);
    return STATUS(STATUS_OK, 0, 0);
}

struct status app_load_end(struct app *app)
{
    if (!app->loading || app->load_at != app->load_size)
        return STATUS(STATUS_LOAD_ORDER, app->load_at, app->load_size);
    app->loading = false;
    struct image_file file = file_of(app);
    uint32_t crc = crc32_update(crc32_update(0, file.base, file.head), file.blob, file.size - file.head);
    if (crc != app->load_crc)
        return STATUS(STATUS_IMAGE_DAMAGED, crc, app->load_crc);
    take(app->image_region, file.head);
    if (file.head < file.size)
        take(port_region(PORT_WEIGHTS), file.size - file.head);
    struct status status = image_open(&app->image, file, runner_images());
    if (status.code)
        return status;
    status = check_network(&app->image);
    if (!status.code)
        status = check_address(&app->image);
    if (status.code)
        return status;
    struct port_region *work = port_region(PORT_WORK);
    status = runner_init(&app->runner, &app->image, work->base + work->used, available(work), port_workers());
    if (status.code)
        return status;
    status = share_memory(app);
    app->loaded = status.code == STATUS_OK;
    return status;
}
