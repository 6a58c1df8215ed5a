/* hash.h - xxh3-64 over bytes, and a fixed string hash for keys and names. */
#ifndef MS_BASE_HASH_H
#define MS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t ms_hash_bytes(const void *bytes, size_t length); /* xxh3-64, seed 0 */
uint64_t ms_hash_seeded(const void *bytes, size_t length, uint64_t seed);
uint32_t ms_crc32c(const void *bytes, size_t length); /* Castagnoli, as in TensorBoard's records */

#endif
