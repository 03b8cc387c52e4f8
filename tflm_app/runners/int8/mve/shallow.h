/* CONV_2D whose windows are one tap of at most 16 channels: the weights of four filters stay in registers while all
 * pixels pass by. */
#ifndef RUNNERS_INT8_MVE_SHALLOW_H
#define RUNNERS_INT8_MVE_SHALLOW_H

#include "runners/int8/mve/filters.h"

enum { SHALLOW_DEPTH = 16 };

/* Outputs of a row of pixels, whose inputs are step bytes apart; up to 15 bytes after the last one are read as well. */
void shallow_row(const struct filters *filters, const int8_t *in, uint32_t step, uint32_t pixels, int8_t *out);

#endif
