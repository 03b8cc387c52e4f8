#include "app/commands.h"

#include <string.h>

#include "app/app.h"
#include "app/provoke.h"

typedef struct status handler(struct app *app, const uint8_t *payload, uint32_t size);

static void *reply(struct app *app, uint32_t size)
{
    app->reply_size = size;
    return memset(app->reply, 0, size);
}

static struct status ok(void)
{
    return STATUS(STATUS_OK, 0, 0);
}

static void report_memory(const struct app *app, struct memory_report *m)
{
    const struct image *image = &app->image;
    m->weights = image->weight_count;
    m->model = image->file.size - image->weight_count - (uint32_t)sizeof *image->loss;
    m->activations = (uint32_t)app->runner.memory.activations * app->workers;
    m->scratch = (uint32_t)app->runner.memory.scratch * app->workers;
    m->packed = (uint32_t)app->runner.memory.packed;
    m->training = (uint32_t)(sizeof *image->loss + sizeof app->partial + sizeof(struct update_request) +
                             ZO_MAX_DIRECTIONS * (sizeof(uint64_t) + sizeof(int32_t)));
    m->batch = (uint32_t)sizeof app->batch;
    m->samples = app->samples.count * (image_sample_bytes(image) + (uint32_t)sizeof(uint16_t));
    m->link = (uint32_t)(sizeof app->link + sizeof app->request + sizeof app->reply);
    m->stack = (uint32_t)port_stack().used;
}

static void report_regions(struct region_report regions[REGIONS_REPORTED])
{
    for (int p = 0; p < REGIONS_REPORTED; p++) {
        const struct port_region *region = port_region(p);
        uint32_t first = 0;
        while (port_region(first) != region)
            first++;
        bool there = p != PORT_WEIGHTS || app_weights_apart();
        regions[p] = there ? (struct region_report){first, (uint32_t)region->size} : (struct region_report){p, 0};
    }
}

static struct status hello(struct app *app, const uint8_t *payload, uint32_t size)
{
    (void)payload;
    if (size != 0)
        return STATUS(STATUS_BAD_LENGTH, size, 0);
    struct hello_reply *r = reply(app, sizeof *r);
    r->protocol = APP_PROTOCOL_VERSION;
    r->runner = (uint16_t)runner_images();
    r->max_payload = BOARD_MAX_PAYLOAD;
    r->max_batch = BOARD_MAX_BATCH;
    r->workers = port_workers();
    r->bulk = port_link_is_reliable();
    r->stack_size = (uint32_t)port_stack().size;
    r->ticks_per_second = port_ticks_per_second();
    report_regions(r->regions);
    r->network = runner_network();
    strncpy(r->board, BOARD_NAME, sizeof r->board - 1);
    strncpy(r->runner_name, runner_name(app->loaded ? &app->runner : NULL), sizeof r->runner_name - 1);
    if (app->loaded) {
        const struct image *image = &app->image;
        r->loaded = 1;
        r->image_crc = image->crc;
        r->weights_crc = zo_weights_crc(&image->weights);
        r->weights = image->weight_count;
        r->mu_max = image->mu_max;
        r->classes = image->loss->classes;
        r->sample_bytes = image_sample_bytes(image);
        r->sample_capacity = app->samples.capacity;
        report_memory(app, &r->memory);
    }
    return ok();
}

static struct status load_begin(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct load_begin *p = (const struct load_begin *)payload;
    return size == sizeof *p ? app_load_begin(app, p->size, p->crc) : STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
}

static struct status load_data(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct load_data *p = (const struct load_data *)payload;
    if (size < sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    return app_load_data(app, p->offset, payload + sizeof *p, size - (uint32_t)sizeof *p);
}

static struct status load_bulk(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct bulk *p = (const struct bulk *)payload;
    return size == sizeof *p ? app_load_bulk(app, p->offset, p->size) : STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
}

static struct status load_end(struct app *app, const uint8_t *payload, uint32_t size)
{
    (void)payload;
    return size == 0 ? app_load_end(app) : STATUS(STATUS_BAD_LENGTH, size, 0);
}

static struct status read_image(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct read_request *p = (const struct read_request *)payload;
    if (size != sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    if ((uint64_t)p->offset + p->size > app->image.file.size || p->size > sizeof app->reply)
        return STATUS(STATUS_READ_RANGE, p->offset + p->size, app->image.file.size);
    image_read(&app->image, p->offset, p->size, reply(app, p->size));
    return ok();
}

static struct status check_pixels(const struct app *app, uint32_t offset, uint32_t size)
{
    uint64_t room = (uint64_t)app->samples.capacity * image_sample_bytes(&app->image);
    if ((uint64_t)offset + size > room)
        return STATUS(STATUS_SAMPLES_RANGE, offset + size, room);
    return ok();
}

/* Pixels, which may lie where the inputs are to be, become inputs of the network. */
static void convert_pixels(struct app *app, uint32_t offset, const uint8_t *pixels, uint32_t size)
{
    uint32_t channels = app->image.channels, channel = offset % channels;
    int8_t *inputs = app->samples.inputs + offset;
    for (uint32_t i = 0; i < size; i++, channel = channel + 1 < channels ? channel + 1 : 0)
        inputs[i] = app->image.input_lut[256 * channel + pixels[i]];
}

static struct status write_pixels(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct pixels *p = (const struct pixels *)payload;
    if (size < sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    size -= (uint32_t)sizeof *p;
    struct status status = check_pixels(app, p->offset, size);
    if (status.code == STATUS_OK)
        convert_pixels(app, p->offset, payload + sizeof *p, size);
    return status;
}

static struct status write_pixels_bulk(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct bulk *p = (const struct bulk *)payload;
    if (size != sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    struct status status = check_pixels(app, p->offset, p->size);
    if (status.code)
        return status;
    uint8_t *to = (uint8_t *)app->samples.inputs + p->offset;
    app_receive_bulk(app, to, p->size);
    convert_pixels(app, p->offset, to, p->size);
    return ok();
}

static struct status write_labels(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct labels *p = (const struct labels *)payload;
    const uint16_t *labels = (const uint16_t *)(payload + sizeof *p);
    struct sample_store *store = &app->samples;
    if (size < sizeof *p || size % sizeof *labels)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    uint32_t count = (size - (uint32_t)sizeof *p) / (uint32_t)sizeof *labels;
    if (p->first > store->count || count > store->capacity - p->first)
        return STATUS(STATUS_SAMPLES_RANGE, p->first + count, store->capacity);
    for (uint32_t i = 0; i < count; i++)
        if (labels[i] >= app->image.loss->classes)
            return STATUS(STATUS_LABEL_RANGE, labels[i], app->image.loss->classes);
    memcpy(store->labels + p->first, labels, count * sizeof *labels);
    store->count = p->first + count > store->count ? p->first + count : store->count;
    return ok();
}

static struct status select_batch(struct app *app, const uint8_t *payload, uint32_t size)
{
    const uint32_t *slots = (const uint32_t *)payload;
    uint32_t count = size / (uint32_t)sizeof *slots;
    if (size % sizeof *slots)
        return STATUS(STATUS_BAD_LENGTH, size, count * sizeof *slots);
    if (count == 0)
        return STATUS(STATUS_BATCH_EMPTY, 0, 0);
    if (count > BOARD_MAX_BATCH)
        return STATUS(STATUS_BATCH_TOO_LARGE, count, BOARD_MAX_BATCH);
    for (uint32_t i = 0; i < count; i++)
        if (slots[i] >= app->samples.count)
            return STATUS(STATUS_SAMPLES_RANGE, slots[i] + 1, app->samples.count);
    memcpy(app->batch, slots, size);
    app->batch_size = count;
    return ok();
}

static struct loss_reply as_reply(struct batch_loss loss)
{
    return (struct loss_reply){loss.loss, loss.correct, 0};
}

static struct status logits(struct app *app, const uint8_t *payload, uint32_t size)
{
    (void)payload;
    if (size != 0)
        return STATUS(STATUS_BAD_LENGTH, size, 0);
    uint32_t classes = app->image.loss->classes;
    if ((uint64_t)app->batch_size * classes > sizeof app->reply)
        return STATUS(STATUS_BATCH_TOO_LARGE, app->batch_size, sizeof app->reply / classes);
    app->logits = reply(app, app->batch_size * classes);
    app_evaluate(app);
    app->logits = NULL;
    return ok();
}

static struct status loss(struct app *app, const uint8_t *payload, uint32_t size)
{
    (void)payload;
    if (size != 0)
        return STATUS(STATUS_BAD_LENGTH, size, 0);
    struct loss_reply *r = reply(app, sizeof *r);
    *r = as_reply(app_evaluate(app));
    return ok();
}

static void set_probe(struct app *app, uint64_t seed, int step)
{
    app_enter(app, PHASE_PERTURB);
    runner_set_probe(&app->runner, seed, step);
    app_enter(app, PHASE_NONE);
    app_alive(app);
}

/* Both sides of a direction. The weights end as they began. */
static struct status probe(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct probe_request *p = (const struct probe_request *)payload;
    if (size != sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    if (p->mu < 1 || p->mu > app->image.mu_max)
        return STATUS(STATUS_MU_RANGE, p->mu, app->image.mu_max);
    int mu = (int)p->mu;
    struct probe_reply *r = reply(app, sizeof *r);
    set_probe(app, p->seed, mu);
    r->plus = as_reply(app_evaluate(app));
    if (p->sides == PROBE_BOTH_SIDES) {
        set_probe(app, p->seed, -mu);
        r->minus = as_reply(app_evaluate(app));
    }
    set_probe(app, p->seed, 0);
    return ok();
}

static uint32_t crc_of_weights(struct app *app)
{
    app_enter(app, PHASE_CRC);
    uint32_t crc = zo_weights_crc(&app->image.weights);
    app_enter(app, PHASE_NONE);
    return crc;
}

static struct status update(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct update_request *p = (const struct update_request *)payload;
    if (size < sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    if (p->directions < 1 || p->directions > ZO_MAX_DIRECTIONS)
        return STATUS(STATUS_DIRECTIONS, p->directions, ZO_MAX_DIRECTIONS);
    if (p->rounding != ZO_NEAREST && p->rounding != ZO_STOCHASTIC)
        return STATUS(STATUS_ROUNDING, p->rounding, 0);
    const uint64_t *seeds = (const uint64_t *)(payload + sizeof *p);
    const int32_t *coefficients = (const int32_t *)(seeds + p->directions);
    uint32_t expected = (uint32_t)sizeof *p + p->directions * (uint32_t)(sizeof *seeds + sizeof *coefficients);
    if (size != expected)
        return STATUS(STATUS_BAD_LENGTH, size, expected);
    for (uint32_t j = 0; j < p->directions; j++)
        if (coefficients[j] > ZO_MAX_COEFFICIENT || coefficients[j] < -ZO_MAX_COEFFICIENT)
            return STATUS(STATUS_COEFFICIENT, j, 0);
    struct zo_update request = {
        .rounding = p->rounding,
        .rounding_seed = p->rounding_seed,
        .directions = p->directions,
        .seeds = seeds,
        .coefficients = coefficients,
    };
    app_enter(app, PHASE_UPDATE);
    struct zo_update_result result = zo_apply_update(&app->image.weights, &request);
    app_enter(app, PHASE_NONE);
    runner_weights_written(&app->runner);
    app_alive(app);
    struct update_reply *r = reply(app, sizeof *r);
    *r = (struct update_reply){result.changed, result.at_rail, crc_of_weights(app)};
    return ok();
}

static struct status weights_crc(struct app *app, const uint8_t *payload, uint32_t size)
{
    (void)payload;
    if (size != 0)
        return STATUS(STATUS_BAD_LENGTH, size, 0);
    uint32_t *r = reply(app, sizeof *r);
    *r = crc_of_weights(app);
    return ok();
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The output of one op for the first sample of the batch, from an offset on. Every page is a command of its own; those
 * that follow each other share a forward pass. */
static struct status trace(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct trace_request *p = (const struct trace_request *)payload;
    const struct plan *plan = &app->image.plan;
    if (size != sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    if (plan->op_count == 0)
        return STATUS(STATUS_TRACE_MISSING, 0, 0);
    if (p->op >= plan->op_count)
        return STATUS(STATUS_TRACE_RANGE, p->op, plan->op_count);
    uint32_t bytes = plan_elements(&plan->tensors[plan_op_at(plan, p->op)->out]);
    if (p->offset >= bytes)
        return STATUS(STATUS_TRACE_RANGE, p->offset, bytes);
    if (!app->traced || app->traced_op != p->op)
        app_trace(app, p->op);
    if (!app->traced)
        return STATUS(STATUS_TRACE_MISSING, 0, 0);
    uint32_t page = least(bytes - p->offset, sizeof app->reply);
    memcpy(reply(app, page), app->traced + p->offset, page);
    return ok();
}

/* What a board spent on each phase so far, and on each op of a pass over the first samples of the batch: from an op on,
 * as many as an answer holds. Every page is of a pass of its own. */
static struct status profile(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct profile_request *p = (const struct profile_request *)payload;
    const uint32_t ops = app->image.plan.op_count, most = (sizeof app->reply - sizeof(struct profile_reply)) / 8;
    if (size != sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    if (ops == 0 && p->op == 0)
        return STATUS(STATUS_PROFILE_MISSING, 0, 0);
    uint32_t count = p->op < ops ? least(ops - p->op, most) : 0;
    struct profile_reply *r = reply(app, sizeof *r + count * (uint32_t)sizeof(uint64_t));
    memcpy(r->phases, app->clock.ticks, sizeof r->phases);
    r->ops = ops;
    if (count == 0)
        return ok();
    r->samples = app_profile(app, p->op, count, (uint64_t *)(r + 1));
    return r->samples ? ok() : STATUS(STATUS_PROFILE_MISSING, 0, 0);
}

/* One weight, for tests of the board: whether what is written is what forward passes see. */
static struct status set_weight(struct app *app, const uint8_t *payload, uint32_t size)
{
    const struct set_weight_request *p = (const struct set_weight_request *)payload;
    const struct zo_weights *weights = &app->image.weights;
    if (size != sizeof *p)
        return STATUS(STATUS_BAD_LENGTH, size, sizeof *p);
    if (p->index >= app->image.weight_count)
        return STATUS(STATUS_WEIGHT_INDEX, p->index, app->image.weight_count);
    if (p->value > weights->limit || p->value < -weights->limit)
        return STATUS(STATUS_WEIGHT_VALUE, p->value, weights->limit);
    struct set_weight_reply *r = reply(app, sizeof *r);
    r->before = zo_set_weight(weights, p->index, (int8_t)p->value);
    runner_weights_written(&app->runner);
    return ok();
}

static bool is_bulk(uint8_t command)
{
    return command == COMMAND_LOAD_BULK || command == COMMAND_PIXELS_BULK;
}

void app_expect_bulk(struct app *app)
{
    bool follows = is_bulk(app->request.type) && app->request.size == sizeof(struct bulk) && port_link_is_reliable();
    app->bulk_left = follows ? ((const struct bulk *)app->request.payload)->size : 0;
}

void app_receive_bulk(struct app *app, uint8_t *to, uint32_t size)
{
    app->bulk_left -= size;
    if (!frame_receive_raw(&app->link, to, size))
        app->bulk_left = 0; /* the link closed, as the next read will find */
}

void app_skip_bulk(struct app *app)
{
    while (app->bulk_left)
        app_receive_bulk(app, app->request.payload, least(app->bulk_left, BOARD_MAX_PAYLOAD));
}

#ifdef PROVOKE
static struct status provoke(struct app *app, const uint8_t *payload, uint32_t size)
{
    (void)app;
    const uint32_t *p = (const uint32_t *)payload;
    if (size != sizeof p[0] && size != 2 * sizeof p[0])
        return STATUS(STATUS_BAD_LENGTH, size, sizeof p[0]);
    app_provoke(p[0], size == sizeof p[0] ? 0 : p[1]);
    return ok();
}
#endif

enum need { NEEDS_NOTHING, NEEDS_IMAGE, NEEDS_BATCH };

static const struct {
    enum command command;
    enum need need;
    handler *handle;
} commands[] = {
    {COMMAND_HELLO, NEEDS_NOTHING, hello},
    {COMMAND_LOAD_BEGIN, NEEDS_NOTHING, load_begin},
    {COMMAND_LOAD_DATA, NEEDS_NOTHING, load_data},
    {COMMAND_LOAD_BULK, NEEDS_NOTHING, load_bulk},
    {COMMAND_LOAD_END, NEEDS_NOTHING, load_end},
    {COMMAND_READ, NEEDS_IMAGE, read_image},
    {COMMAND_PIXELS, NEEDS_IMAGE, write_pixels},
    {COMMAND_PIXELS_BULK, NEEDS_IMAGE, write_pixels_bulk},
    {COMMAND_LABELS, NEEDS_IMAGE, write_labels},
    {COMMAND_SELECT, NEEDS_IMAGE, select_batch},
    {COMMAND_LOGITS, NEEDS_BATCH, logits},
    {COMMAND_LOSS, NEEDS_BATCH, loss},
    {COMMAND_PROBE, NEEDS_BATCH, probe},
    {COMMAND_UPDATE, NEEDS_IMAGE, update},
    {COMMAND_WEIGHTS_CRC, NEEDS_IMAGE, weights_crc},
    {COMMAND_TRACE, NEEDS_BATCH, trace},
    {COMMAND_PROFILE, NEEDS_BATCH, profile},
    {COMMAND_SET_WEIGHT, NEEDS_IMAGE, set_weight},
#ifdef PROVOKE
    {COMMAND_PROVOKE, NEEDS_NOTHING, provoke},
#endif
};

static struct status execute(struct app *app)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (commands[i].command != app->request.type)
            continue;
        if (commands[i].need >= NEEDS_IMAGE && !app->loaded)
            return STATUS(STATUS_NO_IMAGE, 0, 0);
        if (commands[i].need == NEEDS_BATCH && app->batch_size == 0)
            return STATUS(STATUS_BATCH_EMPTY, 0, 0);
        return commands[i].handle(app, app->request.payload, app->request.size);
    }
    return STATUS(STATUS_UNKNOWN_COMMAND, app->request.type, 0);
}

void app_execute(struct app *app)
{
    app->reply_size = 0;
    app->reply_type = app->request.type | REPLY_OK;
    if (app->request.type != COMMAND_TRACE)
        app->traced = NULL; /* any other command may change what a trace would find */
    bool can = !is_bulk(app->request.type) || port_link_is_reliable();
    struct status status = can ? execute(app) : STATUS(STATUS_BULK, 0, 0);
    if (status.code) {
        app->reply_type = REPLY_REFUSED;
        struct refusal *refusal = reply(app, sizeof *refusal);
        *refusal = (struct refusal){status.code, status.a, status.b};
    }
}
