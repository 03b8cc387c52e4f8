/* What the parts of the stand-in (README.md) share. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <stdint.h>

/* Memory under the CPU's cache: whole lines. */
struct stand_in_region {
    uint8_t *cpu; /* what the CPU sees, at its own address */
    uint8_t *ram; /* memory */
    uint8_t *npu; /* what the NPU sees: memory, or its cache over it */
    uint32_t size;
};

enum { STAND_IN_POOL, STAND_IN_INPUT, STAND_IN_OUTPUT, STAND_IN_REGIONS };

/* The compiled network: read from a file when it is first asked for. */
struct stand_in_network {
    struct stand_in_region regions[STAND_IN_REGIONS];
    uint32_t inferences; /* so far */
};

const struct stand_in_network *stand_in_network(void);

/* An inference from the input to the output as the NPU sees them. */
void stand_in_infer(void);

/* What the NPU wrote to a region is in memory; what the CPU has of it is stale. */
void stand_in_written(const struct stand_in_region *region);

_Noreturn void stand_in_fail(const char *words, uint32_t number);

#endif
