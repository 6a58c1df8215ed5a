// labels: unit
/* test_comm_sum.c - every variant of the summing loops against plain scalar code, and the tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "comm/comm_sum.h"
#include "reference.h"

#define COUNT_MAX 5003

static unsigned char inputs[MS__SUM_MEMBERS_MAX][COUNT_MAX * 8 + 64];
static unsigned char expected[COUNT_MAX * 8], got[COUNT_MAX * 8 + 64];

static void check_one(const ms__sum_kernels *kernels, ms_dtype dtype, ms_reduce_op op, int members,
                      int64_t count, size_t shift) {
    const void *sources[MS__SUM_MEMBERS_MAX];
    for (int m = 0; m < members; m++) {
        void *values = inputs[m] + shift * ms_dtype_bytes(dtype);
        reference_fill(values, dtype, count, (uint64_t)count + 77, m);
        sources[m] = values;
    }
    reference_reduce(sources, members, dtype, op, count, expected);
    memset(got, 0x5a, sizeof got);
    ms__sum_block(kernels, dtype, op, sources, members, got, (size_t)count);
    assert_int_equal(reference_differ(got, expected, dtype, count), -1);
    assert_int_equal(got[(size_t)count * ms_dtype_bytes(dtype)], 0x5a);
    /* in place of a member, as the library does it */
    void *own = inputs[members / 2] + shift * ms_dtype_bytes(dtype);
    ms__sum_block(kernels, dtype, op, sources, members, own, (size_t)count);
    assert_int_equal(reference_differ(own, expected, dtype, count), -1);
}

static void check_isa(ms_isa isa) {
    const ms__sum_kernels *kernels = ms__sum_kernels_for(isa);
    static const int64_t counts[] = {0, 1, 31, 1023, 1024, 1025};
    for (int d = 0; d < REFERENCE_DTYPES; d++) {
        for (int op = 0; op < MS_REDUCE_OP_COUNT; op++) {
            for (int members = 1; members <= 9; members++) {
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                    check_one(kernels, reference_dtypes[d], (ms_reduce_op)op, members, counts[c],
                              c & 1);
                }
            }
            check_one(kernels, reference_dtypes[d], (ms_reduce_op)op, 2, COUNT_MAX, 3);
            check_one(kernels, reference_dtypes[d], (ms_reduce_op)op, 64, 37, 0);
        }
    }
}

static void test_ref(void **state) {
    (void)state;
    check_isa(MS_ISA_REF);
}

static void test_avx2(void **state) {
    (void)state;
    if (ms_cpu_isa() < MS_ISA_AVX2) {
        skip();
    }
    check_isa(MS_ISA_AVX2);
}

static void test_avx512(void **state) {
    (void)state;
    if (ms_cpu_isa() < MS_ISA_AVX512) {
        skip();
    }
    check_isa(MS_ISA_AVX512);
}

static void test_conversions_agree(void **state) {
    (void)state;
    uint16_t halves[65536];
    float wide[65536], narrow_source[65536];
    for (int i = 0; i < 65536; i++) {
        halves[i] = (uint16_t)i;
        uint32_t bits = (uint32_t)reference_hash(3, 0, i);
        memcpy(&narrow_source[i], &bits, sizeof bits);
    }
    for (int isa = 0; isa <= (int)ms_cpu_isa(); isa++) {
        const ms__sum_kernels *kernels = ms__sum_kernels_for((ms_isa)isa);
        static uint16_t back[65536];
        kernels->f16_to_f32(wide, halves, 65536);
        kernels->f32_to_f16(back, wide, 65536);
        for (int i = 0; i < 65536; i++) {
            assert_true(isnan(wide[i]) ? (i & 0x7c00) == 0x7c00 : back[i] == halves[i]);
        }
        kernels->f32_to_f16(back, narrow_source, 65536);
        for (int i = 0; i < 65536; i++) {
            assert_true(isnan(narrow_source[i]) || back[i] == ms_f32_to_f16(narrow_source[i]));
        }
        kernels->f32_to_bf16(back, narrow_source, 65536);
        for (int i = 0; i < 65536; i++) {
            assert_int_equal(back[i], ms_f32_to_bf16(narrow_source[i]));
        }
        kernels->bf16_to_f32(wide, halves, 65536);
        for (int i = 0; i < 65536; i++) {
            float one = ms_bf16_to_f32(halves[i]);
            assert_memory_equal(&wide[i], &one, sizeof one);
        }
    }
}

static void test_copy_stream(void **state) {
    (void)state;
    static uint8_t from[70000], to[70100];
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (uint8_t)reference_hash(1, 1, (int64_t)i);
    }
    static const size_t lengths[] = {0, 1, 63, 64, 65, 127, 4096, 69990};
    for (int isa = 0; isa <= (int)ms_cpu_isa(); isa++) {
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            for (size_t shift = 0; shift < 3; shift++) {
                memset(to, 0xee, sizeof to);
                ms__sum_kernels_for((ms_isa)isa)
                    ->copy_stream(to + 7 * shift, from + shift, lengths[l]);
                assert_memory_equal(to + 7 * shift, from + shift, lengths[l]);
                assert_int_equal(to[7 * shift + lengths[l]], 0xee);
            }
        }
    }
}

static void test_unsupported(void **state) {
    (void)state;
    assert_int_equal(ms__sum_check(MS_BOOL, MS_REDUCE_SUM), MS_ERR_UNSUPPORTED);
    assert_int_equal(ms__sum_check((ms_dtype)99, MS_REDUCE_SUM), MS_ERR_UNSUPPORTED);
    assert_int_equal(ms__sum_check(MS_F32, (ms_reduce_op)9), MS_ERR_ARGUMENT);
    assert_int_equal(ms__sum_check(MS_U8, MS_REDUCE_AVG), MS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),         cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),      cmocka_unit_test(test_conversions_agree),
        cmocka_unit_test(test_copy_stream), cmocka_unit_test(test_unsupported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
