/* The 32 MiB of PSRAM on the STM32N6570-DK. */
#ifndef PSRAM_H
#define PSRAM_H

#include <stdbool.h>

#define PSRAM_ADDRESS 0x90000000u

/* Where the memory does not answer or fails its check, it is as if there was none. */
void psram_start(void);

bool psram_is_there(void);

#endif
