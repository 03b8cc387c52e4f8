/* Forward passes over the batch, shared out among the workers. Integer sums: their order does not matter. */
#include <string.h>

#include "app/app.h"

static void fill_from_batch(struct app *app, uint8_t *work, uint32_t place, uint32_t sample)
{
    size_t size = image_sample_bytes(&app->image);
    memcpy(runner_input(&app->runner, work, sample), app->samples.inputs + app->batch[place] * size, size);
}

static void prepare_share(void *context, unsigned worker)
{
    const struct app *app = context;
    runner_prepare(&app->runner, app->work[worker], worker, app->workers);
}

static void prepare(struct app *app)
{
    if (!runner_needs_prepare(&app->runner))
        return;
    port_parallel(prepare_share, app);
    runner_prepared(&app->runner);
}

/* Samples of one invocation: all cores before full blocks. */
static uint32_t block_of(const struct app *app)
{
    uint32_t share = (app->batch_size + app->workers - 1) / app->workers;
    return share < app->runner.block ? share : app->runner.block;
}

/* Worker w takes the blocks w, w + workers, ... of the batch, which are equal but for the last. */
static void evaluate_share(void *context, unsigned worker)
{
    struct app *app = context;
    const struct image *image = &app->image;
    uint8_t *work = app->work[worker];
    uint32_t block = block_of(app);
    struct batch_loss total = {0, 0};
    for (uint32_t first = worker * block; first < app->batch_size; first += app->workers * block) {
        uint32_t count = app->batch_size - first < block ? app->batch_size - first : block;
        for (uint32_t i = 0; i < count; i++)
            fill_from_batch(app, work, first + i, i);
        runner_invoke(&app->runner, work, count);
        if (worker == 0) {
            app_alive(app);
            app_enter(app, PHASE_LOSS);
        }
        for (uint32_t i = 0; i < count; i++) {
            const int8_t *logits = runner_output(&app->runner, work, i);
            uint32_t label = app->samples.labels[app->batch[first + i]];
            total.loss += zo_sample_loss(image->loss, logits, label);
            total.correct += zo_argmax(logits, image->loss->classes) == label;
            if (app->logits)
                memcpy(app->logits + (size_t)(first + i) * image->loss->classes, logits, image->loss->classes);
        }
        if (worker == 0)
            app_enter(app, PHASE_FORWARD);
    }
    app->partial[worker] = total;
}

struct batch_loss app_evaluate(struct app *app)
{
    struct batch_loss total = {0, 0};
    app_enter(app, PHASE_PERTURB);
    prepare(app);
    app_enter(app, PHASE_FORWARD);
    port_parallel(evaluate_share, app);
    for (uint32_t w = 0; w < app->workers; w++) {
        total.loss += app->partial[w].loss;
        total.correct += app->partial[w].correct;
    }
    app_enter(app, PHASE_NONE);
    return total;
}

void app_trace(struct app *app, uint32_t op)
{
    prepare(app);
    fill_from_batch(app, app->work[0], 0, 0);
    app->traced = runner_trace(&app->runner, app->work[0], op);
    app->traced_op = op;
}

uint32_t app_profile(struct app *app, uint32_t first, uint32_t count, uint64_t *ticks)
{
    uint32_t samples = block_of(app);
    prepare(app);
    for (uint32_t i = 0; i < samples; i++)
        fill_from_batch(app, app->work[0], i, i);
    return runner_profile(&app->runner, app->work[0], samples, first, count, ticks) ? samples : 0;
}
