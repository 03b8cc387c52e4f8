/* The NPU's cache, by the names that ST's LL_ATON calls. */
#ifndef NPU_CACHE_H
#define NPU_CACHE_H

#include <stdint.h>

void npu_cache_enable(void);

/* All lines are forgotten. */
void npu_cache_invalidate(void);

/* Whole lines of [start, end): written to memory, and forgotten as well. */
void npu_cache_clean_range(uint32_t start, uint32_t end);
void npu_cache_clean_invalidate_range(uint32_t start, uint32_t end);

#endif
