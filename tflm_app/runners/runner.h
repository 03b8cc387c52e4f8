/* What executes the network: one implementation is linked into a build. */
#ifndef RUNNERS_RUNNER_H
#define RUNNERS_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image/image.h"

struct runner_memory {
    size_t activations, scratch; /* of each worker: activations of a block of samples, and the kernels' own */
    size_t packed;               /* shared: weights in the kernels' layout, 0 where they read them in place */
};

struct kernel_set;

struct runner {
    const struct image *image;
    uint32_t block; /* samples of one invocation at most */
    struct runner_memory memory;
    const struct kernel_set *kernels;
    uint8_t *packed; /* memory.packed bytes, 64-byte aligned: the caller sets it after runner_init */
    uint64_t probe_seed;
    int probe_step;
    bool packed_before;
    bool started; /* the NPU's runtime, once for all images */
    bool stale;   /* what packed holds is not what the next invocation is to see */
};

static inline size_t runner_bytes(const struct runner_memory *memory, unsigned workers)
{
    return memory->packed + (memory->activations + memory->scratch) * workers;
}

/* work: memory that is free now: how much there is for all workers, and room for a runner that has to try out how much
 * it needs; nothing in it lasts. */
struct status runner_init(struct runner *runner, const struct image *image, uint8_t *work, size_t size,
                          unsigned workers);

/* Which images this build runs. */
enum image_runner runner_images(void);

/* The id of the network that this build was made with (runners/neural_art/identity.cmake); 0: none, or unknown. */
uint32_t runner_network(void);

/* For people; NULL before an image is loaded. */
const char *runner_name(const struct runner *runner);

/* From now on invocations see w + step * z(seed); step 0: the weights. The weights themselves may not be changed
 * meanwhile: a runner without packed weights holds the probe in their place. */
void runner_set_probe(struct runner *runner, uint64_t seed, int step);

/* The weights in memory were changed (never during a probe). */
void runner_weights_written(struct runner *runner);

/* One worker's share of what has to be done before the next invocations; then all wait for each other. */
bool runner_needs_prepare(const struct runner *runner);
void runner_prepare(const struct runner *runner, uint8_t *work, unsigned worker, unsigned workers);
void runner_prepared(struct runner *runner);

/* Every worker has its own work memory (64-byte aligned, activations + scratch bytes). */
int8_t *runner_input(const struct runner *runner, uint8_t *work, uint32_t sample);
void runner_invoke(const struct runner *runner, uint8_t *work, uint32_t samples);
const int8_t *runner_output(const struct runner *runner, uint8_t *work, uint32_t sample);

/* What op number `op` of the plan makes of the first sample's input: runs up to that op and no further, so that its
 * output still lies in work memory. NULL: this runner can only run the whole network. */
const int8_t *runner_trace(const struct runner *runner, uint8_t *work, uint32_t op);

/* Invokes for these samples and leaves how long each of the ops first .. first + count - 1 of the plan took, in ticks
 * of the board's clock. False: this runner can only run the whole network. */
bool runner_profile(const struct runner *runner, uint8_t *work, uint32_t samples, uint32_t first, uint32_t count,
                    uint64_t *ticks);

#endif
