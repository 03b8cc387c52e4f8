/* The CPU's data cache, by the names that ST's LL_ATON calls. */
#ifndef MCU_CACHE_H
#define MCU_CACHE_H

#include <stdint.h>

/* Whole lines of [start, end): written to memory, forgotten, or both. */
void mcu_cache_clean_range(uint32_t start, uint32_t end);
void mcu_cache_invalidate_range(uint32_t start, uint32_t end);
void mcu_cache_clean_invalidate_range(uint32_t start, uint32_t end);

#endif
