/* A network compiled for the Neural-ART NPU as the runner. The NPU reads weights from memory in every inference, so
 * they are perturbed and updated where they lie; caches then have to be told. There is one network and one instance of
 * it in a build; inputs and outputs lie in buffers of its own. */
#include "runners/runner.h"

#include "ll_aton_NN_interface.h"
#include "ll_aton_caches_interface.h"
#include "ll_aton_osal.h"
#include "ll_aton_runtime.h"
#include "port/port.h"

_Static_assert(BOARD_MAX_WORKERS == 1, "one instance of the network");

#define JOIN(a, b)       a##b
#define NAMED(stem, n)   JOIN(stem, n)
#define OF_NETWORK(stem) NAMED(stem, NEURAL_ART_NAME)
#define DECLARE(n)       LL_ATON_DECLARE_NAMED_NN_INSTANCE_AND_INTERFACE(n)

DECLARE(NEURAL_ART_NAME);
static NN_Instance_TypeDef *const network = &OF_NETWORK(NN_Instance_);

#ifndef NEURAL_ART_ID
#define NEURAL_ART_ID 0 /* nobody said which network it is */
#endif

enum { LINE = 32 }; /* bytes of a line of the data cache */

enum image_runner runner_images(void)
{
    return IMAGE_RUNNER_NEURAL_ART;
}

uint32_t runner_network(void)
{
    return NEURAL_ART_ID;
}

const char *runner_name(const struct runner *runner)
{
    (void)runner;
    return "neural_art";
}

/* The one buffer of a list that is an activation; NULL where there is none, or more. */
static const LL_Buffer_InfoTypeDef *activation_in(const LL_Buffer_InfoTypeDef *list)
{
    const LL_Buffer_InfoTypeDef *found = NULL;
    for (; list && list->name; list++) {
        if (list->is_param)
            continue;
        if (found)
            return NULL;
        found = list;
    }
    return found;
}

static const LL_Buffer_InfoTypeDef *input(void)
{
    return activation_in(OF_NETWORK(LL_ATON_Input_Buffers_Info_)());
}

static const LL_Buffer_InfoTypeDef *output(void)
{
    return activation_in(OF_NETWORK(LL_ATON_Output_Buffers_Info_)());
}

static int8_t *bytes_of(const LL_Buffer_InfoTypeDef *buffer)
{
    return (int8_t *)(uintptr_t)LL_Buffer_addr_start(buffer);
}

/* All lines that these bytes touch. */
struct lines {
    uintptr_t start;
    uint32_t size;
};

static struct lines lines_of(const void *bytes, uint64_t size)
{
    uintptr_t start = (uintptr_t)bytes / LINE * LINE;
    uintptr_t end = ((uintptr_t)bytes + (uintptr_t)size + LINE - 1) / LINE * LINE;
    return (struct lines){start, (uint32_t)(end - start)};
}

/* What was written into the pool of the weights becomes what the NPU reads. */
static void clean_weights(const struct image *image, uint32_t offset, uint64_t size)
{
    struct lines lines = lines_of(image->weights.base + offset, size);
    LL_ATON_Cache_MCU_Clean_Range(lines.start, lines.size);
    if (image->nart.pools[0].cacheable)
        LL_ATON_Cache_NPU_Clean_Invalidate_Range(lines.start, lines.size);
}

/* Every walk writes all weights: of each entry once, when all of it is done. */
static void clean_entries(const struct image *image)
{
    const struct zo_layout *layout = &image->nart.layout;
    for (const struct zo_entry *e = layout->entries; e < layout->entries + layout->count; e++)
        clean_weights(image, e->offset, zo_entry_size(e));
}

struct status runner_init(struct runner *runner, const struct image *image, uint8_t *work, size_t size,
                          unsigned workers)
{
    (void)work, (void)size, (void)workers;
    bool started = runner->started;
    *runner = (struct runner){.image = image, .block = 1, .started = started};
    if (!started) {
        LL_ATON_RT_RuntimeInit();
        LL_ATON_RT_Init_Network(network);
        runner->started = true;
    }
    clean_weights(image, 0, image->nart.pools[0].size);
    const LL_Buffer_InfoTypeDef *in = input(), *out = output();
    uint32_t in_size = in ? (uint32_t)LL_Buffer_len(in) : 0, out_size = out ? (uint32_t)LL_Buffer_len(out) : 0;
    if (in_size != image_sample_bytes(image))
        return STATUS(STATUS_NETWORK, in_size, image_sample_bytes(image));
    if (out_size != image->loss->classes)
        return STATUS(STATUS_NETWORK, out_size, image->loss->classes);
    return STATUS(STATUS_OK, 0, 0);
}

void runner_set_probe(struct runner *runner, uint64_t seed, int step)
{
    zo_change_probe(&runner->image->weights, runner->probe_seed, runner->probe_step, seed, step);
    runner->probe_seed = seed;
    runner->probe_step = step;
    clean_entries(runner->image);
}

void runner_weights_written(struct runner *runner)
{
    clean_entries(runner->image);
}

bool runner_needs_prepare(const struct runner *runner)
{
    (void)runner;
    return false;
}

void runner_prepare(const struct runner *runner, uint8_t *work, unsigned worker, unsigned workers)
{
    (void)runner, (void)work, (void)worker, (void)workers;
}

void runner_prepared(struct runner *runner)
{
    (void)runner;
}

int8_t *runner_input(const struct runner *runner, uint8_t *work, uint32_t sample)
{
    (void)runner, (void)work, (void)sample;
    return bytes_of(input());
}

void runner_invoke(const struct runner *runner, uint8_t *work, uint32_t samples)
{
    (void)work, (void)samples;
    struct lines in = lines_of(bytes_of(input()), image_sample_bytes(runner->image));
    struct lines out = lines_of(bytes_of(output()), runner->image->loss->classes);
    LL_ATON_Cache_MCU_Clean_Range(in.start, in.size);
    LL_ATON_RT_RetValues_t state;
    while ((state = LL_ATON_RT_RunEpochBlock(network)) != LL_ATON_RT_DONE)
        if (state == LL_ATON_RT_WFE)
            LL_ATON_OSAL_WFE();
    LL_ATON_RT_Reset_Network(network);
    LL_ATON_Cache_MCU_Invalidate_Range(out.start, out.size);
}

const int8_t *runner_output(const struct runner *runner, uint8_t *work, uint32_t sample)
{
    (void)runner, (void)work, (void)sample;
    return bytes_of(output());
}

/* The compiled network has no ops of the plan. */
const int8_t *runner_trace(const struct runner *runner, uint8_t *work, uint32_t op)
{
    (void)runner, (void)work, (void)op;
    return NULL;
}

bool runner_profile(const struct runner *runner, uint8_t *work, uint32_t samples, uint32_t first, uint32_t count,
                    uint64_t *ticks)
{
    (void)runner, (void)work, (void)samples, (void)first, (void)count, (void)ticks;
    return false;
}
