// labels: unit
// Allocations: alignment, zeroes, counters, injected failures, arenas, checked sizes.
#include "support/test_support.h"

#include "base/memory.h"
#include "base/memory_poison.h"
#include "base/thread.h"

static size_t live(ms_memory_tag tag) {
    return ms_memory_counters_get().live_bytes[tag];
}

static void assert_zero(const void *memory, size_t bytes) {
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != 0) {
            fail_msg("byte %zu of %zu is %u", i, bytes, (unsigned)at[i]);
        }
    }
}

static void test_alloc_is_aligned_zeroed_counted(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ms_memory_counters before = ms_memory_counters_get();
        void *a = NULL, *b = NULL;
        assert_ok(ms_alloc(sizes[i], MS_MEMORY_PLAN, &a));
        assert_ok(ms_alloc(sizes[i], MS_MEMORY_STEP, &b));
        assert_non_null(a);
        assert_ptr_not_equal(a, b);
        assert_int_equal((uintptr_t)a % 64, 0);
        assert_zero(a, sizes[i]);
        memset(a, 0xa5, sizes[i]); /* the whole of it may be written */
        ms_memory_counters during = ms_memory_counters_get();
        assert_int_equal(during.calls, before.calls + 2);
        assert_int_equal(during.live_bytes[MS_MEMORY_PLAN],
                         before.live_bytes[MS_MEMORY_PLAN] + sizes[i]);
        assert_int_equal(during.live_bytes[MS_MEMORY_STEP],
                         before.live_bytes[MS_MEMORY_STEP] + sizes[i]);
        assert_true(during.peak_bytes >= 2 * sizes[i]);
        ms_free(a);
        ms_free(b);
        assert_int_equal(live(MS_MEMORY_PLAN), before.live_bytes[MS_MEMORY_PLAN]);
        assert_int_equal(live(MS_MEMORY_STEP), before.live_bytes[MS_MEMORY_STEP]);
    }
    ms_free(NULL);
}

static void test_impossible_sizes_fail(void **state) {
    (void)state;
    void *memory = &memory;
    assert_fails(MS_ERR_MEMORY, "out of memory", ms_alloc(SIZE_MAX, MS_MEMORY_STEP, &memory));
    assert_fails(MS_ERR_MEMORY, "out of memory", ms_alloc(SIZE_MAX - 64, MS_MEMORY_STEP, &memory));
    assert_fails(MS_ERR_MEMORY, "4611686018427387904 objects of 8 bytes",
                 ms_alloc_array(SIZE_MAX / 4 + 1, 8, MS_MEMORY_STEP, &memory));
    assert_fails(MS_ERR_BUG, "tag", ms_alloc(8, MS_MEMORY_TAG_COUNT, &memory));
    assert_ptr_equal(memory, &memory); /* untouched */
    size_t capacity = 0;
    void *array = NULL;
    assert_fails(MS_ERR_MEMORY, "elements",
                 ms_array_reserve(&array, &capacity, SIZE_MAX / 2, 16, MS_MEMORY_STEP));
    assert_null(array);
    assert_int_equal(capacity, 0);
}

static void test_realloc_keeps_and_zeroes(void **state) {
    (void)state;
    size_t before = live(MS_MEMORY_CALLER);
    unsigned char *bytes = NULL;
    void *memory = NULL;
    assert_ok(ms_realloc(&memory, 10, MS_MEMORY_CALLER));
    bytes = memory;
    assert_zero(bytes, 10);
    memset(bytes, 7, 10);
    assert_ok(ms_realloc(&memory, 5000, MS_MEMORY_CALLER));
    bytes = memory;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(bytes[i], 7);
    }
    assert_zero(bytes + 10, 4990);
    assert_ok(ms_realloc(&memory, 3, MS_MEMORY_CALLER));
    bytes = memory;
    assert_int_equal(bytes[2], 7);
    assert_int_equal(live(MS_MEMORY_CALLER), before + 3);
    void *kept = memory;
    assert_fails(MS_ERR_MEMORY, "", ms_realloc(&memory, SIZE_MAX / 2, MS_MEMORY_CALLER));
    assert_ptr_equal(memory, kept);
    ms_free(memory);
    assert_int_equal(live(MS_MEMORY_CALLER), before);
}

static void test_fail_at_hits_the_nth(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 5; n++) {
        void *memory[6] = {0};
        ms_memory_fail_at(n);
        for (uint64_t i = 1; i <= 6; i++) {
            ms_status status = ms_alloc(8, MS_MEMORY_STEP, &memory[i - 1]);
            assert_int_equal(status, i == n ? MS_ERR_MEMORY : MS_OK);
        }
        for (int i = 0; i < 6; i++) {
            ms_free(memory[i]);
        }
    }
    ms_memory_fail_at(2);
    ms_memory_fail_at(0);
    for (int i = 0; i < 4; i++) {
        void *memory = NULL;
        assert_ok(ms_alloc(8, MS_MEMORY_STEP, &memory));
        ms_free(memory);
    }
}

static void test_array_doubles(void **state) {
    (void)state;
    int *numbers = NULL;
    size_t capacity = 0;
    uint64_t calls = ms_memory_counters_get().calls;
    for (size_t i = 0; i < 10000; i++) {
        void *memory = numbers;
        assert_ok(ms_array_reserve(&memory, &capacity, i + 1, sizeof *numbers, MS_MEMORY_CALLER));
        numbers = memory;
        numbers[i] = (int)i;
    }
    for (size_t i = 0; i < 10000; i++) {
        assert_int_equal(numbers[i], (int)i);
    }
    assert_true(ms_memory_counters_get().calls - calls < 20);
    ms_free(numbers);
}

static void test_arena(void **state) {
    (void)state;
    size_t before = live(MS_MEMORY_STEP);
    ms_arena *arena = NULL;
    assert_ok(ms_arena_create(1024, MS_MEMORY_STEP, &arena));
    assert_int_equal(ms_arena_bytes(arena), 1024);
    unsigned char *objects[300];
    size_t sizes[300];
    uint64_t random = test_seed();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++) {
            sizes[i] = (size_t)test_random_below(&random, i % 50 == 0 ? 9000 : 100);
            void *memory = NULL;
            assert_ok(ms_arena_alloc(arena, sizes[i], &memory));
            objects[i] = memory;
            assert_int_equal((uintptr_t)memory % (sizes[i] >= 64 ? 64 : 16), 0);
            assert_zero(memory, sizes[i]);
            memset(memory, i + 1, sizes[i]);
        }
        for (int i = 0; i < 300; i++) { /* nobody wrote over another */
            for (size_t k = 0; k < sizes[i]; k++) {
                assert_int_equal(objects[i][k], (unsigned char)(i + 1));
            }
        }
        assert_true(ms_arena_bytes(arena) > 1024);
        ms_arena_reset(arena);
        assert_int_equal(ms_arena_bytes(arena), 1024);
    }
    char *copy = NULL;
    assert_ok(ms_arena_strdup(arena, "words", &copy));
    assert_string_equal(copy, "words");
    void *memory = NULL;
    assert_fails(MS_ERR_MEMORY, "", ms_arena_alloc(arena, SIZE_MAX - 3, &memory));
    assert_fails(MS_ERR_MEMORY, "", ms_arena_alloc(arena, SIZE_MAX, &memory));
    ms_arena_destroy(arena);
    ms_arena_destroy(NULL);
    assert_int_equal(live(MS_MEMORY_STEP), before);
}

static void test_arena_failures_leak_nothing(void **state) {
    (void)state;
    size_t before = live(MS_MEMORY_STEP);
    int failures = 0;
    for (uint64_t n = 1; n < 20; n++) {
        ms_arena *arena = NULL;
        ms_memory_fail_at(n);
        ms_status status = ms_arena_create(64, MS_MEMORY_STEP, &arena);
        for (int i = 0; status == MS_OK && i < 50; i++) {
            void *memory;
            status = ms_arena_alloc(arena, 200, &memory);
        }
        ms_memory_fail_at(0);
        failures += status != MS_OK;
        ms_arena_destroy(arena);
        assert_int_equal(live(MS_MEMORY_STEP), before);
    }
    assert_true(failures >= 4 && failures < 19);
}

static void test_poison(void **state) {
    (void)state;
#ifdef MS_HAS_ASAN
    ms_arena *arena = NULL;
    void *memory = NULL;
    assert_ok(ms_arena_create(1024, MS_MEMORY_STEP, &arena));
    assert_ok(ms_arena_alloc(arena, 20, &memory));
    char *bytes = memory;
    assert_false(__asan_address_is_poisoned(bytes + 19));
    assert_true(__asan_address_is_poisoned(bytes + 20));
    ms_arena_reset(arena);
    assert_true(__asan_address_is_poisoned(bytes));
    ms_arena_destroy(arena);
    assert_ok(ms_alloc(10, MS_MEMORY_STEP, &memory));
    assert_true(__asan_address_is_poisoned((char *)memory - 1));
    ms_free(memory);
#else
    skip();
#endif
}

static void test_checked_sizes(void **state) {
    (void)state;
    size_t size = 5;
    assert_true(ms_size_add(SIZE_MAX - 1, 1, &size));
    assert_true(size == SIZE_MAX);
    size = 5;
    assert_false(ms_size_add(SIZE_MAX, 1, &size));
    assert_false(ms_size_mul(SIZE_MAX / 2 + 1, 2, &size));
    assert_int_equal(size, 5);
    assert_true(ms_size_mul(SIZE_MAX, 0, &size));
    assert_int_equal(size, 0);
    int64_t number = 5;
    assert_false(ms_i64_mul(INT64_MIN, -1, &number));
    assert_false(ms_i64_add(INT64_MAX, 1, &number));
    assert_int_equal(number, 5);
    assert_true(ms_i64_mul(-3, 4, &number));
    assert_int_equal(number, -12);
    assert_int_equal(ms_align_up(0, 64), 0);
    assert_int_equal(ms_align_up(1, 64), 64);
    assert_int_equal(ms_align_up(64, 64), 64);
    assert_int_equal(ms_ceil_div(7, 3), 3);
    assert_int_equal(ms_ceil_div(6, 3), 2);
}

static void *allocate_often(void *context) {
    uint64_t random = *(const uint64_t *)context;
    void *held[16] = {0};
    for (int i = 0; i < 20000; i++) {
        size_t slot = (size_t)test_random_below(&random, 16);
        ms_free(held[slot]);
        held[slot] = NULL;
        if (ms_alloc((size_t)test_random_below(&random, 500), MS_MEMORY_STEP, &held[slot]) !=
            MS_OK) {
            return context;
        }
    }
    for (int i = 0; i < 16; i++) {
        ms_free(held[i]);
    }
    return NULL;
}

static void test_counters_across_threads(void **state) {
    (void)state;
    ms_memory_counters before = ms_memory_counters_get();
    ms_thread threads[4] = {0};
    uint64_t seeds[4] = {1, 2, 3, 4};
    for (int i = 0; i < 4; i++) {
        assert_ok(ms_thread_start(&threads[i], "allocate", allocate_often, &seeds[i]));
    }
    for (int i = 0; i < 4; i++) {
        ms_thread_join(&threads[i]);
    }
    ms_memory_counters after = ms_memory_counters_get();
    assert_int_equal(after.calls - before.calls, 80000);
    assert_int_equal(after.live_bytes[MS_MEMORY_STEP], before.live_bytes[MS_MEMORY_STEP]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_is_aligned_zeroed_counted),
        cmocka_unit_test(test_impossible_sizes_fail),
        cmocka_unit_test(test_realloc_keeps_and_zeroes),
        cmocka_unit_test(test_fail_at_hits_the_nth),
        cmocka_unit_test(test_array_doubles),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_failures_leak_nothing),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_checked_sizes),
        cmocka_unit_test(test_counters_across_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
