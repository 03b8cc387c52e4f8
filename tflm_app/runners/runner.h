/* What executes the network: one implementation is linked into a build. */
#ifndef RUNNERS_RUNNER_H
#define RUNNERS_RUNNER_H

#include <stddef.h>
#include <stdint.h>

#include "image/image.h"

const char *runner_name(void);

/* Bytes that one worker needs: activations, and what the kernels need beside them. */
struct runner_memory {
    size_t activations, scratch;
};

struct runner {
    const struct image *image;
    struct runner_memory memory;
};

void runner_init(struct runner *runner, const struct image *image);

/* Every worker has its own work memory (64-byte aligned, activations + scratch bytes). */
int8_t *runner_input(const struct runner *runner, uint8_t *work);
void runner_invoke(const struct runner *runner, uint8_t *work);
const int8_t *runner_output(const struct runner *runner, uint8_t *work);

/* Weights changed in memory: the place for what a runner derives from them, and for cache maintenance. */
void runner_weights_written(struct runner *runner);

#endif
