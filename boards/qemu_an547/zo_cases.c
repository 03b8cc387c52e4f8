/* Perturbs and updates weights from a file and counts the instructions; tests/test_m55_zo.py is the other side.
 *
 * cases.bin: for each case struct request, segments, entries of a layout, seeds (uint64), coefficients, and the memory
 * that the segments lie in. results.bin: for each case struct result, then the memory as it is afterwards. */
#include <stddef.h>

#include "board.h"
#include "semihosting.h"
#include "zo/weights.h"

enum { MAX_SEGMENTS = 1024, MAX_ENTRIES = 1024, MAX_MEMORY = 16 << 20 };
enum kind { PERTURB = 0, UPDATE = 1 };

struct request {
    uint64_t seed; /* of the direction, or of the rounding */
    uint32_t kind;
    int32_t step; /* PERTURB */
    uint32_t rounding, directions, segments, memory;
    int32_t limit;
    uint32_t entries; /* 0: no layout */
};

struct result {
    uint64_t ticks;
    struct zo_update_result update;
    uint32_t crc, reserved;
};

static struct zo_segment segments[MAX_SEGMENTS];
static struct zo_entry entries[MAX_ENTRIES];
static uint64_t seeds[ZO_MAX_DIRECTIONS];
static int32_t coefficients[ZO_MAX_DIRECTIONS];
static int8_t memory[MAX_MEMORY] __attribute__((section(".ddr"), aligned(64)));

static struct result run(const struct request *request)
{
    const struct zo_layout layout = {entries, request->entries};
    const struct zo_weights weights = {memory, segments, request->segments, request->limit,
                                       request->entries ? &layout : NULL};
    const struct zo_update update = {request->rounding, request->seed, request->directions, seeds, coefficients};
    struct result result = {0};
    uint64_t start = counter_now();
    if (request->kind == PERTURB)
        zo_perturb(&weights, request->seed, request->step);
    else
        result.update = zo_apply_update(&weights, &update);
    result.ticks = counter_now() - start;
    result.crc = zo_weights_crc(&weights);
    return result;
}

int main(void)
{
    struct request request;
    int32_t in = semihosting_open("cases.bin", SEMIHOSTING_READ);
    int32_t out = semihosting_open("results.bin", SEMIHOSTING_WRITE);
    counter_start();
    while (semihosting_read(in, &request, sizeof request) == sizeof request) {
        if (request.segments > MAX_SEGMENTS || request.directions > ZO_MAX_DIRECTIONS || request.memory > MAX_MEMORY ||
            request.entries > MAX_ENTRIES)
            return 1;
        semihosting_read(in, segments, request.segments * sizeof segments[0]);
        semihosting_read(in, entries, request.entries * sizeof entries[0]);
        semihosting_read(in, seeds, request.directions * sizeof seeds[0]);
        semihosting_read(in, coefficients, request.directions * sizeof coefficients[0]);
        semihosting_read(in, memory, request.memory);
        struct result result = run(&request);
        semihosting_write(out, &result, sizeof result);
        semihosting_write(out, memory, request.memory);
    }
    semihosting_close(out);
    return 0;
}
