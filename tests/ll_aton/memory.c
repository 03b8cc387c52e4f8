/* Stand-in (README.md): caches. The CPU's memory is its view; memory itself, and the NPU's view of it, are copies that
 * follow when lines are cleaned. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ll_aton_caches_interface.h"
#include "stand_in.h"

enum { LINE = 32 };

void stand_in_fail(const char *words, uint32_t number)
{
    fprintf(stderr, "ll_aton stand-in: ");
    fprintf(stderr, words, (unsigned)number);
    fprintf(stderr, "\n");
    exit(70);
}

/* Whether the firmware is to look as if it had left this out. */
static bool ignored(const char *what)
{
    const char *word = getenv("LL_ATON_STAND_IN_IGNORE");
    return word && strcmp(word, what) == 0;
}

typedef void per_line(const struct stand_in_region *region, uint32_t at);

/* As the loop over lines that such functions are: from the first address on in steps of a line. */
static void for_lines(uintptr_t address, uint32_t size, per_line *act)
{
    const struct stand_in_network *network = stand_in_network();
    for (uintptr_t a = address; a < address + size; a += LINE)
        for (int r = 0; r < STAND_IN_REGIONS; r++) {
            const struct stand_in_region *region = &network->regions[r];
            if (a - (uintptr_t)region->cpu < region->size)
                act(region, (uint32_t)(a - (uintptr_t)region->cpu) / LINE * LINE);
        }
}

static bool clean_ignored(const struct stand_in_region *region)
{
    const struct stand_in_network *network = stand_in_network();
    if (region == &network->regions[STAND_IN_INPUT])
        return ignored("input");
    return region == &network->regions[STAND_IN_POOL] && ignored(network->inferences ? "weights" : "first weights");
}

static void clean(const struct stand_in_region *region, uint32_t at)
{
    if (!clean_ignored(region))
        memcpy(region->ram + at, region->cpu + at, LINE);
}

static void invalidate(const struct stand_in_region *region, uint32_t at)
{
    memcpy(region->cpu + at, region->ram + at, LINE);
}

static void refetch(const struct stand_in_region *region, uint32_t at)
{
    if (region->npu != region->ram)
        memcpy(region->npu + at, region->ram + at, LINE);
}

void LL_ATON_Cache_MCU_Clean_Range(uintptr_t address, uint32_t size)
{
    for_lines(address, size, clean);
}

void LL_ATON_Cache_MCU_Invalidate_Range(uintptr_t address, uint32_t size)
{
    if (!ignored("output"))
        for_lines(address, size, invalidate);
}

void LL_ATON_Cache_NPU_Clean_Invalidate_Range(uintptr_t address, uint32_t size)
{
    if (!ignored("npu"))
        for_lines(address, size, refetch);
}

void stand_in_written(const struct stand_in_region *region)
{
    for (uint32_t i = 0; i < region->size; i++)
        region->cpu[i] = (uint8_t)~region->ram[i];
}
