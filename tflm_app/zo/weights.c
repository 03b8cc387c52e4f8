#include "zo/weights.h"

#include <stddef.h>

#include "link/crc32.h"

/* The run's first weight in its segment. */
static uint32_t position_of(const struct zo_weights *weights, const struct zo_run *run)
{
    return weights->segments[run->next - 1].count - run->left - run->count;
}

static const struct zo_layout *layout_of(const struct zo_weights *weights)
{
    return ZO_LAYOUTS ? weights->layout : NULL;
}

static void find_entry(const struct zo_weights *weights, struct zo_run *run)
{
    if (!run->entry)
        run->entry = weights->layout->entries;
    while (run->entry->segment < run->next - 1)
        run->entry++;
}

bool zo_next_run(const struct zo_weights *weights, struct zo_run *run, uint32_t block)
{
    const struct zo_layout *layout = layout_of(weights);
    if (layout && run->count && !run->reads)
        zo_layout_scatter(run->entry, weights->base, position_of(weights, run), run->count, run->row);
    run->w += run->count;
    run->index += run->count;
    run->count = 0;
    while (run->left == 0) {
        if (run->next == weights->segment_count)
            return false;
        const struct zo_segment *segment = &weights->segments[run->next++];
        run->w = weights->base + segment->offset;
        run->left = segment->count;
        if (layout)
            find_entry(weights, run);
    }
    uint32_t room = block - run->index % block;
    run->count = room < run->left ? room : run->left;
    run->left -= run->count;
    if (layout) {
        run->w = run->row;
        zo_layout_gather(run->entry, weights->base, position_of(weights, run), run->count, run->row);
    }
    return true;
}

void zo_change_probe(const struct zo_weights *weights, uint64_t from_seed, int from_step, uint64_t seed, int step)
{
    int here = seed == from_seed ? from_step : 0; /* what of it the weights hold already */
    if (here != from_step)
        zo_perturb(weights, from_seed, -from_step);
    if (step != here)
        zo_perturb(weights, seed, step - here);
}

uint32_t zo_weights_crc(const struct zo_weights *weights)
{
    uint32_t crc = 0;
    if (layout_of(weights)) {
        for (struct zo_run run = {.reads = true}; zo_next_run(weights, &run, ZO_LONGEST_BLOCK);)
            crc = crc32_update(crc, run.w, run.count);
        return crc;
    }
    for (uint32_t s = 0; s < weights->segment_count; s++)
        crc = crc32_update(crc, weights->base + weights->segments[s].offset, weights->segments[s].count);
    return crc;
}

int8_t zo_set_weight(const struct zo_weights *weights, uint32_t index, int8_t value)
{
    int8_t before = 0;
    for (struct zo_run run = {0}; zo_next_run(weights, &run, ZO_LONGEST_BLOCK);) {
        if (index < run.index || index - run.index >= run.count)
            continue;
        before = run.w[index - run.index];
        run.w[index - run.index] = value;
    }
    return before;
}
