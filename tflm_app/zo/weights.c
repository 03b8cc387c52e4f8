#include "zo/weights.h"

#include "link/crc32.h"

bool zo_next_run(const struct zo_weights *weights, struct zo_run *run, uint32_t block)
{
    run->w += run->count;
    run->index += run->count;
    while (run->left == 0) {
        if (run->next == weights->segment_count)
            return false;
        const struct zo_segment *segment = &weights->segments[run->next++];
        run->w = weights->base + segment->offset;
        run->left = segment->count;
    }
    uint32_t room = block - run->index % block;
    run->count = room < run->left ? room : run->left;
    run->left -= run->count;
    return true;
}

uint32_t zo_weights_crc(const struct zo_weights *weights)
{
    uint32_t crc = 0;
    for (uint32_t s = 0; s < weights->segment_count; s++)
        crc = crc32_update(crc, weights->base + weights->segments[s].offset, weights->segments[s].count);
    return crc;
}
