/*
 * random.c - Philox 4x32-10, normal numbers and keyed permutations.
 *
 * Where it stands: initial weights, dropout and the order of samples come from here; what they
 * yield is part of every run's result, so nothing here may change between versions. The test holds
 * the known-answer vectors that the authors of Philox published with their Random123 library.
 *
 * Notation: key (k0, k1) and counter (c0, c1, c2, c3) as in the paper: c0, c1 are the lower and
 * upper half of `low`, c2, c3 those of `high`.
 *
 * Rejected: a stateful generator (who draws first would decide), and a permutation by sorting or by
 * a table (8 bytes a sample, made anew each epoch).
 */
#include "base/random.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"

#define PHILOX_ROUNDS 10
#define PHILOX_MULTIPLIER_0 UINT64_C(0xd2511f53)
#define PHILOX_MULTIPLIER_1 UINT64_C(0xcd9e8d57)
#define PHILOX_WEYL_0 0x9e3779b9u
#define PHILOX_WEYL_1 0xbb67ae85u

#define FEISTEL_ROUNDS 8

ms_random_key ms_random_key_make(uint64_t seed, const char *name) {
    uint64_t hash = ms_hash_seeded(name, strlen(name), seed);
    return (ms_random_key){{(uint32_t)hash, (uint32_t)(hash >> 32)}};
}

ms_random_block ms_random_at(ms_random_key key, uint64_t high, uint64_t low) {
    uint32_t c0 = (uint32_t)low;
    uint32_t c1 = (uint32_t)(low >> 32);
    uint32_t c2 = (uint32_t)high;
    uint32_t c3 = (uint32_t)(high >> 32);
    uint32_t k0 = key.word[0];
    uint32_t k1 = key.word[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t product_0 = PHILOX_MULTIPLIER_0 * c0;
        uint64_t product_1 = PHILOX_MULTIPLIER_1 * c2;
        c0 = (uint32_t)(product_1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product_1;
        c2 = (uint32_t)(product_0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product_0;
        k0 += PHILOX_WEYL_0;
        k1 += PHILOX_WEYL_1;
    }
    return (ms_random_block){{c0, c1, c2, c3}};
}

void ms_random_normal_pair(ms_random_block block, double *first, double *second) {
    const double two_pi = 6.283185307179586476925286766559;
    /* The first number is never 0, so the logarithm is finite; the largest result is 8.6. */
    double radius = sqrt(-2.0 * log(ms_random_unit_f64(block.word[0], block.word[1])));
    double angle = two_pi * ms_random_unit_f64(block.word[2], block.word[3]);
    *first = radius * cos(angle);
    *second = radius * sin(angle);
}

double ms_random_normal_at(ms_random_key key, uint64_t index) {
    double pair[2];
    ms_random_normal_pair(ms_random_at(key, 0, index >> 1), &pair[0], &pair[1]);
    return pair[index & 1];
}

/* One pass of the network over [0, 4^half_bits): a bijection whatever the round function. */
static uint64_t feistel(ms_random_key key, unsigned half_bits, uint64_t value) {
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        ms_random_block block = ms_random_at(key, round, right);
        uint64_t mixed = left ^ (block.word[0] & mask);
        left = right;
        right = mixed;
    }
    return (left << half_bits) | right;
}

uint64_t ms_permute(ms_random_key key, uint64_t count, uint64_t index) {
    if (count <= 1) {
        return 0;
    }
    unsigned bits = 64u - (unsigned)__builtin_clzll(count - 1);
    unsigned half_bits = (bits + 1) / 2;
    /*
     * Outside [0, count) the walk goes on along the cycle, which returns to the inside at the
     * latest where it began. The domain is less than four times count, so a few passes do on
     * average.
     */
    uint64_t value = index;
    do {
        value = feistel(key, half_bits, value);
    } while (value >= count);
    return value;
}
