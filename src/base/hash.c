/*
 * hash.c - xxh3-64 through libxxhash, and CRC-32C.
 *
 * Where it stands: checkpoints hash their blocks, keys of random streams hash their names, and
 * event files carry CRC-32C.
 *
 * CRC-32C goes by eight tables of 256 words (eight bytes a step), made once; the instruction of
 * SSE 4.2 was left out, since only short records are summed.
 */
#include "base/hash.h"

#include <pthread.h>
#include <xxhash.h>

uint64_t ms_hash_bytes(const void *bytes, size_t length) {
    return XXH3_64bits(bytes, length);
}

uint64_t ms_hash_seeded(const void *bytes, size_t length, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, length, seed);
}

#define CRC32C_POLYNOMIAL 0x82f63b78u /* Castagnoli's, bits reversed */

static uint32_t crc_table[8][256];
static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static void crc_table_make(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ ((crc & 1u) != 0 ? CRC32C_POLYNOMIAL : 0u);
        }
        crc_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int slice = 1; slice < 8; slice++) {
            uint32_t crc = crc_table[slice - 1][i];
            crc_table[slice][i] = (crc >> 8) ^ crc_table[0][crc & 0xffu];
        }
    }
}

uint32_t ms_crc32c(const void *bytes, size_t length) {
    pthread_once(&crc_once, crc_table_make);
    const unsigned char *at = bytes;
    uint32_t crc = 0xffffffffu;
    while (length >= 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                              (uint32_t)at[3] << 24);
        crc = crc_table[7][low & 0xffu] ^ crc_table[6][(low >> 8) & 0xffu] ^
              crc_table[5][(low >> 16) & 0xffu] ^ crc_table[4][low >> 24] ^ crc_table[3][at[4]] ^
              crc_table[2][at[5]] ^ crc_table[1][at[6]] ^ crc_table[0][at[7]];
        at += 8;
        length -= 8;
    }
    while (length > 0) {
        crc = (crc >> 8) ^ crc_table[0][(crc ^ *at) & 0xffu];
        at++;
        length--;
    }
    return ~crc;
}
