// labels: unit
// Random numbers: published vectors, moments, permutations; and hashes by their published values.
#include "support/test_support.h"

#include <math.h>

#include "base/hash.h"
#include "base/random.h"

static void assert_block(ms_random_block block, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    assert_int_equal(block.word[0], a);
    assert_int_equal(block.word[1], b);
    assert_int_equal(block.word[2], c);
    assert_int_equal(block.word[3], d);
}

/* The three vectors for philox4x32-10 that Random123 publishes. */
static void test_philox_known_answers(void **state) {
    (void)state;
    ms_random_key zero = {{0, 0}};
    ms_random_key ones = {{0xffffffffu, 0xffffffffu}};
    ms_random_key pi = {{0xa4093822u, 0x299f31d0u}};
    assert_block(ms_random_at(zero, 0, 0), 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u);
    assert_block(ms_random_at(ones, UINT64_MAX, UINT64_MAX), 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u,
                 0x6d5451fdu);
    assert_block(ms_random_at(pi, UINT64_C(0x0370734413198a2e), UINT64_C(0x85a308d3243f6a88)),
                 0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u);
}

static void test_streams_differ(void **state) {
    (void)state;
    static const char *const names[] = {"wte", "wpe", "", "h.0.attn", "h.1.attn", "order"};
    ms_random_key keys[64];
    int count = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            keys[count++] = ms_random_key_make(seed * UINT64_C(0x100000001), names[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            assert_true(memcmp(&keys[i], &keys[j], sizeof keys[i]) != 0);
        }
    }
    ms_random_key again = ms_random_key_make(0, "wte");
    assert_memory_equal(&again, &keys[0], sizeof again);
}

/* What runs depend on: these values may never change. */
static void test_streams_are_fixed(void **state) {
    (void)state;
    ms_random_key key = ms_random_key_make(1337, "transformer.wte.weight");
    assert_int_equal(((uint64_t)key.word[1] << 32) | key.word[0],
                     ms_hash_seeded("transformer.wte.weight", 22, 1337));
    assert_int_equal(key.word[0], 0xfbf47370u);
    assert_int_equal(key.word[1], 0xecb7a723u);
    static const uint64_t order[] = {335, 924, 145, 194, 776, 77, 23, 433};
    for (uint64_t i = 0; i < 8; i++) {
        assert_int_equal(ms_permute(key, 1000, i), order[i]);
    }
}

static void test_units(void **state) {
    (void)state;
    assert_true(ms_random_unit_f32(0) == 0.0f);
    assert_true(ms_random_unit_f32(UINT32_MAX) < 1.0f);
    assert_true(ms_random_unit_f32(0x80000000u) == 0.5f);
    assert_true(ms_random_unit_f64(0, 0) > 0.0);
    assert_true(ms_random_unit_f64(UINT32_MAX, UINT32_MAX) < 1.0);
    assert_true(fabs(ms_random_unit_f64(0x80000000u, 0) - 0.5) < 1e-15);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void test_normal_distribution(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    uint64_t seed = test_seed();
    ms_random_key key = ms_random_key_make(seed, "normal");
    static double numbers[COUNT];
    double sums[5] = {0};
    for (uint64_t i = 0; i < COUNT; i++) {
        double z = ms_random_normal_at(key, i);
        assert_true(isfinite(z) && fabs(z) < 9.0);
        numbers[i] = z;
        double power = 1.0;
        for (int k = 1; k <= 4; k++) {
            power *= z;
            sums[k] += power / COUNT;
        }
    }
    /* Six standard errors of each moment: a false alarm in 10^8 runs. */
    double unit = 6.0 / sqrt((double)COUNT);
    assert_true(fabs(sums[1]) < unit);
    assert_true(fabs(sums[2] - 1.0) < unit * sqrt(2.0));
    assert_true(fabs(sums[3]) < unit * sqrt(15.0));
    assert_true(fabs(sums[4] - 3.0) < unit * sqrt(96.0));
    /* Kolmogorov and Smirnov: the greatest distance to the normal distribution. */
    qsort(numbers, COUNT, sizeof numbers[0], compare_doubles);
    double distance = 0.0;
    for (int i = 0; i < COUNT; i++) {
        double wanted = 0.5 * erfc(-numbers[i] / sqrt(2.0));
        distance = fmax(distance, fabs(wanted - (i + 0.5) / COUNT));
    }
    assert_true(distance < 3.2 / sqrt((double)COUNT));
    /* The two of a pair are those of the stream. */
    double first, second;
    ms_random_normal_pair(ms_random_at(key, 0, 21), &first, &second);
    assert_true(first == ms_random_normal_at(key, 42) && second == ms_random_normal_at(key, 43));
}

static void test_normal_extremes(void **state) {
    (void)state;
    double first, second;
    ms_random_normal_pair((ms_random_block){{0, 0, 0, 0}}, &first, &second);
    assert_true(isfinite(first) && isfinite(second) && first > 8.0);
    ms_random_normal_pair((ms_random_block){{UINT32_MAX, UINT32_MAX, 7, 7}}, &first, &second);
    assert_true(isfinite(first) && isfinite(second));
}

static void test_permutation_is_a_bijection(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    ms_random_key key = ms_random_key_make(seed, "order");
    ms_random_key other = ms_random_key_make(seed + 1, "order");
    static unsigned char seen[2000];
    for (uint64_t count = 1; count <= 2000; count++) {
        memset(seen, 0, sizeof seen);
        uint64_t same = 0, fixed = 0;
        for (uint64_t i = 0; i < count; i++) {
            uint64_t element = ms_permute(key, count, i);
            assert_true(element < count);
            assert_int_equal(seen[element], 0);
            seen[element] = 1;
            fixed += element == i;
            if (count % 50 == 0) {
                same += element == ms_permute(other, count, i);
            }
        }
        /* A random order has one fixed point on average; 25 would be a broken one. */
        if (count >= 50) {
            assert_true(fixed < 25 && same < 25);
        }
    }
}

static void test_permutation_of_huge_counts(void **state) {
    (void)state;
    static const uint64_t counts[] = {UINT64_C(1) << 40, (UINT64_C(1) << 40) + 1,
                                      UINT64_C(0x8000000000000001), UINT64_MAX};
    ms_random_key key = ms_random_key_make(5, "huge");
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        double mean = 0.0;
        for (uint64_t i = 0; i < 2000; i++) {
            uint64_t first = ms_permute(key, counts[c], i);
            assert_true(first < counts[c]);
            assert_true(first != ms_permute(key, counts[c], counts[c] - 1 - i));
            mean += (double)first / (double)counts[c] / 2000.0;
        }
        assert_true(fabs(mean - 0.5) < 6.0 / sqrt(12.0 * 2000.0));
    }
}

/* Where element 0 goes, over many keys: each place equally often (chi squared of 60 places). */
static void test_permutation_is_uniform(void **state) {
    (void)state;
    enum { PLACES = 60, KEYS = 60000 };
    uint64_t seed = test_seed();
    double counts[PLACES] = {0};
    for (uint64_t i = 0; i < KEYS; i++) {
        ms_random_key key = {{(uint32_t)(seed + i), (uint32_t)(seed >> 32)}};
        counts[ms_permute(key, PLACES, 0)] += 1.0;
    }
    double chi = 0.0;
    for (int i = 0; i < PLACES; i++) {
        double wanted = (double)KEYS / PLACES;
        chi += (counts[i] - wanted) * (counts[i] - wanted) / wanted;
    }
    /* 59 degrees of freedom: mean 59, deviation 10.9; 130 comes once in 10^6. */
    assert_true(chi < 140.0);
}

static void test_hashes(void **state) {
    (void)state;
    /* Published values: xxh3-64 of nothing; CRC-32C from RFC 3720, section B.4, and "123456789". */
    assert_true(ms_hash_bytes("", 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(ms_hash_bytes("a", 1) != ms_hash_bytes("b", 1));
    assert_true(ms_hash_seeded("a", 1, 0) == ms_hash_bytes("a", 1));
    assert_true(ms_hash_seeded("a", 1, 1) != ms_hash_bytes("a", 1));
    unsigned char bytes[32];
    assert_int_equal(ms_crc32c("123456789", 9), 0xe3069283u);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(ms_crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(ms_crc32c(bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (unsigned char)i;
    }
    assert_int_equal(ms_crc32c(bytes, 32), 0x46dd794eu);
    assert_int_equal(ms_crc32c("", 0), 0);
    /* Eight bytes a step or one: every length and start against bit by bit. */
    unsigned char text[80];
    for (int i = 0; i < 80; i++) {
        text[i] = (unsigned char)(i * 37 + 11);
    }
    for (size_t start = 0; start < 8; start++) {
        for (size_t length = 0; length <= 72; length++) {
            uint32_t crc = 0xffffffffu;
            for (size_t i = 0; i < length; i++) {
                crc ^= text[start + i];
                for (int bit = 0; bit < 8; bit++) {
                    crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
                }
            }
            assert_int_equal(ms_crc32c(text + start, length), ~crc);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_streams_differ),
        cmocka_unit_test(test_streams_are_fixed),
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_normal_distribution),
        cmocka_unit_test(test_normal_extremes),
        cmocka_unit_test(test_permutation_is_a_bijection),
        cmocka_unit_test(test_permutation_of_huge_counts),
        cmocka_unit_test(test_permutation_is_uniform),
        cmocka_unit_test(test_hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
