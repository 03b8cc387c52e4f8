/* Forward passes over the batch, shared out among the workers. Integer sums: their order does not matter. */
#include <string.h>

#include "app/app.h"

static void fill_input(const struct image *image, const uint8_t *pixels, int8_t *input)
{
    uint32_t area = image->height * image->width, channels = image->channels;
    for (uint32_t i = 0; i < area; i++)
        for (uint32_t c = 0; c < channels; c++)
            *input++ = image->input_lut[256 * c + *pixels++];
}

/* Worker w takes the samples w, w + workers, ... of the batch. */
static void evaluate_share(void *context, unsigned worker)
{
    struct app *app = context;
    const struct image *image = &app->image;
    uint8_t *work = app->work[worker];
    struct batch_loss total = {0, 0};
    for (uint32_t i = worker; i < app->batch_size; i += app->workers) {
        uint32_t slot = app->batch[i], label = app->samples.labels[slot];
        fill_input(image, app->samples.pixels + (size_t)slot * image_sample_bytes(image),
                   runner_input(&app->runner, work));
        runner_invoke(&app->runner, work);
        const int8_t *logits = runner_output(&app->runner, work);
        total.loss += zo_sample_loss(image->loss, logits, label);
        total.correct += zo_argmax(logits, image->loss->classes) == label;
        if (app->logits)
            memcpy(app->logits + (size_t)i * image->loss->classes, logits, image->loss->classes);
    }
    app->partial[worker] = total;
}

struct batch_loss app_evaluate(struct app *app)
{
    struct batch_loss total = {0, 0};
    port_parallel(evaluate_share, app);
    for (uint32_t w = 0; w < app->workers; w++) {
        total.loss += app->partial[w].loss;
        total.correct += app->partial[w].correct;
    }
    return total;
}

void app_perturb(struct app *app, uint64_t seed, int step)
{
    zo_perturb(&app->image.weights, seed, step);
    runner_weights_written(&app->runner);
}
