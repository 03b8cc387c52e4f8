/* The 32 MiB of PSRAM on the STM32N6570-DK. */
#ifndef PSRAM_H
#define PSRAM_H

#include <stdbool.h>

#define PSRAM_ADDRESS 0x90000000u

/* A memory that does not answer, or fails its check, is not used. */
void psram_start(void);

bool psram_is_there(void);

#endif
