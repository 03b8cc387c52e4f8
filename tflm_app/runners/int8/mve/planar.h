/* DEPTHWISE_CONV_2D of up to 16 taps, channel by channel: the channel's plane of the input with its padding goes to
 * scratch, where the taps of a window are one gathering load. */
#ifndef RUNNERS_INT8_MVE_PLANAR_H
#define RUNNERS_INT8_MVE_PLANAR_H

#include "runners/int8/mve/mve.h"

bool planar_usable(const struct plan *plan, const struct plan_conv *conv);

size_t planar_scratch(const struct plan *plan, const struct plan_conv *conv);

void planar_depthwise(const struct plan *plan, const struct plan_conv *conv, struct kernel_memory memory);

#endif
