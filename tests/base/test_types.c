// labels: unit
// Element types: names, and conversions against exact references.
#include "support/test_support.h"

#include <math.h>

#include "base/types.h"

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void test_names(void **state) {
    (void)state;
    for (int i = 0; i < MS_DTYPE_COUNT; i++) {
        ms_dtype dtype = MS_DTYPE_COUNT;
        assert_ok(ms_dtype_parse(ms_dtype_name((ms_dtype)i), &dtype));
        assert_int_equal(dtype, i);
        assert_ok(ms_dtype_parse_safetensors(ms_dtype_safetensors_name((ms_dtype)i), &dtype));
        assert_int_equal(dtype, i);
        assert_true(ms_dtype_bytes((ms_dtype)i) >= 1 && ms_dtype_bytes((ms_dtype)i) <= 8);
    }
    ms_dtype dtype = MS_F32;
    assert_int_equal(ms_dtype_parse("F32", &dtype), MS_ERR_NOT_FOUND);
    assert_int_equal(ms_dtype_parse_safetensors("fp32", &dtype), MS_ERR_NOT_FOUND);
    assert_int_equal(ms_dtype_bytes(MS_BF16), 2);
    assert_string_equal(ms_dtype_name(MS_BF16), "bf16");
    assert_string_equal(ms_dtype_name(MS_DTYPE_COUNT), "unknown");
    assert_int_equal(ms_dtype_bytes((ms_dtype)-1), 0);
}

/* The value of 16 bits of any format (exponent and mantissa widths), exactly. */
static double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1));
    double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa != 0.0 ? NAN : sign * INFINITY;
    }
    return exponent == 0 ? sign * ldexp(mantissa, 1 - bias - mantissa_bits)
                         : sign * ldexp(mantissa + ldexp(1.0, mantissa_bits),
                                        exponent - bias - mantissa_bits);
}

static void test_f16_all_values(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float wide = ms_f16_to_f32((uint16_t)bits);
        double exact = value_of(bits, 5, 10);
        if (isnan(exact)) {
            assert_true(isnan(wide));
        } else {
            assert_true((double)wide == exact && !signbit(wide) == !signbit(exact));
        }
        assert_int_equal(ms_f32_to_f16(wide), bits); /* NaN payloads too */
    }
}

static void test_bf16_all_values(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float wide = ms_bf16_to_f32((uint16_t)bits);
        double exact = value_of(bits, 8, 7);
        if (isnan(exact)) {
            assert_true(isnan(wide));
            assert_true(isnan(ms_bf16_to_f32(ms_f32_to_bf16(wide))));
        } else {
            assert_true((double)wide == exact && !signbit(wide) == !signbit(exact));
            assert_int_equal(ms_f32_to_bf16(wide), bits);
        }
    }
}

/*
 * The slow reference: of the two neighbours the nearer by exact difference, of equals the even one.
 * Infinity counts as the next power of two, as IEEE 754 rounds.
 */
static uint32_t round_slowly(float value, int exponent_bits, int mantissa_bits) {
    uint32_t sign = to_bits(value) >> 31 << 15;
    double wanted = fabs((double)value);
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    uint32_t low = 0, high = infinity; /* the largest not above, by bisection */
    if (isinf(wanted)) {
        return sign | infinity;
    }
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (value_of(middle, exponent_bits, mantissa_bits) <= wanted) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = value_of(low, exponent_bits, mantissa_bits);
    double above = low + 1 == infinity ? ldexp(1.0, 1 << (exponent_bits - 1))
                                       : value_of(low + 1, exponent_bits, mantissa_bits);
    double to_below = wanted - below;
    double to_above = above - wanted;
    uint32_t chosen = to_below < to_above   ? low
                      : to_below > to_above ? low + 1
                      : low % 2 == 0        ? low
                                            : low + 1;
    return sign | chosen;
}

static void check_rounding(uint32_t bits) {
    float value = from_bits(bits);
    if (isnan(value)) {
        assert_true(isnan(ms_bf16_to_f32(ms_f32_to_bf16(value))));
        assert_true(isnan(ms_f16_to_f32(ms_f32_to_f16(value))));
        return;
    }
    uint32_t bf16 = ms_f32_to_bf16(value);
    uint32_t f16 = ms_f32_to_f16(value);
    if (bf16 != round_slowly(value, 8, 7) || f16 != round_slowly(value, 5, 10)) {
        fail_msg("%a (bits %08" PRIx32 ") becomes bf16 %04" PRIx32 " and fp16 %04" PRIx32, value,
                 bits, bf16, f16);
    }
}

static void test_rounding_against_reference(void **state) {
    (void)state;
    /* Every upper half with the tails around its ties: exhaustive in what decides a bf16. */
    static const uint32_t tails[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t upper = 0; upper < 65536; upper++) {
        for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
            check_rounding(upper << 16 | tails[i]);
        }
    }
    /* Between every two neighbours of fp16: the middle and the numbers beside it. */
    for (uint32_t low = 0; low < 0x7bff; low++) {
        double middle = (value_of(low, 5, 10) + value_of(low + 1, 5, 10)) / 2;
        uint32_t bits = to_bits((float)middle);
        assert_true((double)from_bits(bits) == middle); /* fp32 holds it */
        for (uint32_t delta = 0; delta < 3; delta++) {
            check_rounding(bits - 1 + delta);
            check_rounding((bits - 1 + delta) | 0x80000000u);
        }
    }
    uint64_t random = test_seed();
    for (int i = 0; i < 300000; i++) {
        check_rounding((uint32_t)test_random(&random));
    }
}

static void test_convert(void **state) {
    (void)state;
    static const ms_dtype types[] = {MS_F64, MS_F32, MS_BF16, MS_F16};
    /* Values that every type holds. */
    double values[] = {0.0, -0.0, 1.0, -2.5, 0.125, 96.0, -192.0, INFINITY, -INFINITY, NAN};
    int64_t count = (int64_t)(sizeof values / sizeof values[0]);
    for (size_t a = 0; a < 4; a++) {
        for (size_t b = 0; b < 4; b++) {
            uint64_t first[16], second[16];
            double back[16];
            assert_ok(ms_convert(values, MS_F64, first, types[a], count));
            assert_ok(ms_convert(first, types[a], second, types[b], count));
            assert_ok(ms_convert(second, types[b], back, MS_F64, count));
            for (int64_t i = 0; i < count; i++) {
                assert_true(isnan(values[i])
                                ? isnan(back[i])
                                : back[i] == values[i] && !signbit(back[i]) == !signbit(values[i]));
            }
        }
    }
    float third = 1.0f / 3.0f;
    uint16_t half = 0;
    assert_ok(ms_convert(&third, MS_F32, &half, MS_BF16, 1));
    assert_int_equal(half, 0x3eab);
    assert_ok(ms_convert(&third, MS_F32, &half, MS_F16, 1));
    assert_int_equal(half, 0x3555);
    assert_ok(ms_convert(NULL, MS_F32, NULL, MS_F32, 0));
    assert_fails(MS_ERR_UNSUPPORTED, "from int32 to fp32",
                 ms_convert(values, MS_I32, values, MS_F32, 1));
    assert_fails(MS_ERR_ARGUMENT, "-1", ms_convert(values, MS_F64, values, MS_F64, -1));
}

static void test_ulp_distance(void **state) {
    (void)state;
    assert_int_equal(test_ulp_f32(1.0f, nextafterf(1.0f, 2.0f)), 1);
    assert_int_equal(test_ulp_f32(-0.0f, 0.0f), 0);
    assert_int_equal(test_ulp_f32(from_bits(0x80000001u), from_bits(1)), 2);
    assert_int_equal(test_ulp_f64(-1.0, nextafter(-1.0, 0.0)), 1);
    assert_int_equal(test_ulp_f64(-5e-324, 5e-324), 2);
    assert_true(test_ulp_f64(NAN, 1.0) == UINT64_MAX);
    assert_true(test_ulp_f32(NAN, NAN) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),           cmocka_unit_test(test_f16_all_values),
        cmocka_unit_test(test_bf16_all_values), cmocka_unit_test(test_rounding_against_reference),
        cmocka_unit_test(test_convert),         cmocka_unit_test(test_ulp_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
