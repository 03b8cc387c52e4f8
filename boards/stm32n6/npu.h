/* The NPU: from its reset state to one that LL_ATON finds it in. */
#ifndef NPU_H
#define NPU_H

void npu_start(void);

#endif
