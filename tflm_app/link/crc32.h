/* CRC-32 as zlib's crc32(): polynomial 0xEDB88320, chainable, start with 0. */
#ifndef LINK_CRC32_H
#define LINK_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32_update(uint32_t crc, const void *data, size_t size);

#endif
