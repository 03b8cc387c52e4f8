/* Kernels of whole words: weights are loaded four at a time and taken apart with shifts, sums are 32-bit multiply-adds.
 * Plain C for any little-endian machine; of the forms that QEMU executes for an Arm core it is the fastest. */
#ifndef RUNNERS_INT8_WORDS_WORDS_H
#define RUNNERS_INT8_WORDS_WORDS_H

#include <string.h>

#include "runners/int8/kernels.h"

kernel words_conv_2d, words_fully_connected;

size_t words_conv_2d_scratch(const struct plan *plan, const struct plan_op *op);

filters words_filters;

/* Four int8 in one register, the first in the lowest byte. */
static inline uint32_t load_word(const int8_t *from)
{
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* What is in a register says nothing of its range to the compiler: GCC would multiply 8-bit values by SMLABB, which
 * QEMU executes by a call, where this makes MLA. */
static inline int32_t byte_of(uint32_t word, int index)
{
    int32_t byte = (int32_t)(word << (24 - 8 * index)) >> 24;
    __asm("" : "+r"(byte));
    return byte;
}

#endif
