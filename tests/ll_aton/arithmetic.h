/* Stand-in (README.md): ops with weights as the NPU is thought to round them. */
#ifndef ARITHMETIC_H
#define ARITHMETIC_H

#include "runners/int8/kernels.h"

/* Whether an op is one of those. */
bool npu_has(const struct plan_op *op);

/* CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED: from the op's input to `out`, which has room for its output. */
void npu_run(const struct plan *plan, const struct plan_op *op, struct kernel_memory memory, int8_t *out);

#endif
