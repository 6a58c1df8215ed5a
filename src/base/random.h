/*
 * random.h - counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel Random Numbers:
 * As Easy as 1, 2, 3", SC11, section 3.3).
 *
 * A value depends on (key, counter) only, never on who draws it or when: weights, dropout masks and
 * data order are the same whatever the layout. Keys are made from (seed, name); the counter is a
 * logical index. All functions are pure.
 */
#ifndef MS_BASE_RANDOM_H
#define MS_BASE_RANDOM_H

#include <stdint.h>

typedef struct ms_random_key {
    uint32_t word[2];
} ms_random_key;

typedef struct ms_random_block {
    uint32_t word[4];
} ms_random_block;

/* The stream of (seed, name): a hash of both. */
ms_random_key ms_random_key_make(uint64_t seed, const char *name);

/* Philox 4x32-10 at the 128-bit counter (high, low). */
ms_random_block ms_random_at(ms_random_key key, uint64_t high, uint64_t low);

/* Uniform in [0, 1) of 24 bits from one word. */
static inline float ms_random_unit_f32(uint32_t word) {
    return (float)(word >> 8) * 0x1p-24f;
}
/* Uniform in (0, 1) of 52 bits from two words; with 53 the largest would round to 1. */
static inline double ms_random_unit_f64(uint32_t high, uint32_t low) {
    uint64_t bits = ((uint64_t)high << 20) | ((uint64_t)low >> 12);
    return ((double)bits + 0.5) * 0x1p-52;
}
/* Two independent standard normal numbers from one block (Box-Muller in double). */
void ms_random_normal_pair(ms_random_block block, double *first, double *second);
/* Element `index` of an endless stream of standard normal numbers. */
double ms_random_normal_at(ms_random_key key, uint64_t index);

/*
 * A keyed permutation of [0, count): position -> element, computed without a table (a balanced
 * Feistel network over the next even power of two, walked until it lands inside; Black & Rogaway
 * 2002, "Ciphers with Arbitrary Finite Domains"). count >= 1, index < count.
 */
uint64_t ms_permute(ms_random_key key, uint64_t count, uint64_t index);

#endif
