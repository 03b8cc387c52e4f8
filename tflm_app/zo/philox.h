/* Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Random123). */
#ifndef ZO_PHILOX_H
#define ZO_PHILOX_H

#include <stdint.h>

enum { PHILOX_SIGNS = 0, PHILOX_ROUNDING = 1 }; /* streams on the device; 2 to 4 are the host's */

/* Four random words of counter (block, stream, 0, 0) under a 64-bit key. */
void philox4x32(uint64_t key, uint32_t block, uint32_t stream, uint32_t out[4]);

#endif
