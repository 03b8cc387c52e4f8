/* The filters of a CONV_2D or FULLY_CONNECTED, applied to the inputs of two output pixels at a time. */
#ifndef RUNNERS_INT8_MVE_FILTERS_H
#define RUNNERS_INT8_MVE_FILTERS_H

#include "runners/int8/mve/mve.h"

enum { FILTERS_LEAST = 4 }; /* output channels: fewer are left to the portable kernel */

/* The assembler in filters.c counts on the order of fields that are named together. */
struct filters {
    const int8_t *weights; /* of the first filter; may be read up to 15 bytes past the last one */
    uint32_t stride;       /* bytes from filter to filter */
    uint32_t depth;        /* of the dot products: the first so many weights of each filter */
    uint32_t channels;
    uint32_t next;        /* from the end of a filter's last block of 16 to the next filter */
    int8_t *inputs, *end; /* scratch: of both pixels, in turns of 16 bytes, the last ones filled up with 0 */
    const int32_t *bias;
    uint32_t bias_step;
    const int32_t *multipliers, *shifts;
    int32_t *constants;     /* scratch; NULL where there is one pixel alone, which needs none */
    int32_t minus_zero;     /* of the input's zero point */
    int32_t zero, min, max; /* of the output */
};

/* Those of an op, from where its scratch begins. first, depth: the weights of a filter that are used. */
struct filters filters_of(const struct plan *plan, const struct plan_op *op, const struct plan_filter *filter,
                          uint32_t stride, uint32_t first, uint32_t depth, void *scratch);

size_t filters_scratch(const struct plan_tensor *out, uint32_t depth);

/* The inputs of pixel 0 or 1 of the pair, depth bytes. */
static inline void filters_input(const struct filters *filters, const int8_t *from, uint32_t pixel)
{
    int8_t *to = filters->inputs + 16 * pixel;
    __asm volatile("wlstp.8 lr, %[count], 2f\n"
                   "1: vldrb.8 q0, [%[from]], #16\n"
                   "vstrb.8 q0, [%[to]], #32\n"
                   "letp lr, 1b\n"
                   "2:"
                   : [to] "+r"(to), [from] "+r"(from)
                   : [count] "r"(filters->depth)
                   : "q0", "lr", "memory");
}

/* Outputs of the first pixel, whose inputs are pixel 1 of the pair; those of pixel 0 are overwritten. */
void filters_apply_first(const struct filters *filters, int8_t *out);

/* Outputs of the next two pixels. */
void filters_apply(const struct filters *filters, int8_t *out0, int8_t *out1);

#endif
