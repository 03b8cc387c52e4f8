#include "link/crc32.h"

#include <string.h>

#include "board_config.h" /* BOARD_CRC_TABLES: memory for tables, to go eight bytes at a time */

/* One nibble at a time: 64 bytes of table. */
static const uint32_t nibble_table[16] = {
    0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
    0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C, 0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C,
};

static uint32_t add_byte(uint32_t crc, uint8_t byte)
{
    crc ^= byte;
    crc = nibble_table[crc & 15] ^ (crc >> 4);
    return nibble_table[crc & 15] ^ (crc >> 4);
}

#ifdef BOARD_CRC_TABLES

/* Slicing by 8 (Kounavis and Berry, "A Systematic Approach to Building High Performance, Software-based, CRC
 * Generators", ISCC 2005): tables[k][b] is what byte b does to the CRC k bytes later. */
static uint32_t tables[8][256];

__attribute__((constructor)) static void make_tables(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        tables[0][b] = add_byte(0, (uint8_t)b);
        for (int k = 1; k < 8; k++)
            tables[k][b] = add_byte(tables[k - 1][b], 0);
    }
}

static uint32_t add_words(uint32_t crc, const uint8_t *p, size_t words)
{
    for (; words; words--, p += 8) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + 4, 4);
        low ^= crc;
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24] ^
              tables[3][high & 255] ^ tables[2][high >> 8 & 255] ^ tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
    }
    return crc;
}

#else

static uint32_t add_words(uint32_t crc, const uint8_t *p, size_t words)
{
    for (size_t i = 0; i < 8 * words; i++)
        crc = add_byte(crc, p[i]);
    return crc;
}

#endif

uint32_t crc32_update(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *p = data;
    crc = add_words(~crc, p, size / 8);
    for (size_t i = size / 8 * 8; i < size; i++)
        crc = add_byte(crc, p[i]);
    return ~crc;
}
