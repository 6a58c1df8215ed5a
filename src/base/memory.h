/*
 * memory.h - the only way the library takes memory, arenas, and checked size arithmetic.
 *
 * Every allocation goes through ms_alloc: 64-byte aligned, tagged, counted. Four owners and no
 * others: process, plan (model, buffers; sized before anything is allocated), step, caller.
 * Thread-safe, but an arena belongs to one thread at a time.
 */
#ifndef MS_BASE_MEMORY_H
#define MS_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MS_ALIGNMENT ((size_t)64)

typedef enum ms_memory_tag {
    MS_MEMORY_PROCESS,
    MS_MEMORY_PLAN,
    MS_MEMORY_STEP,
    MS_MEMORY_CALLER,
    MS_MEMORY_TAG_COUNT
} ms_memory_tag;

typedef struct ms_memory_counters {
    uint64_t calls; /* of ms_alloc and ms_realloc since the start */
    size_t live_bytes[MS_MEMORY_TAG_COUNT];
    size_t peak_bytes; /* of all tags together */
} ms_memory_counters;

/* Zeroed memory; bytes may be 0 (then a unique non-NULL pointer). Failed: *memory is untouched. */
ms_status ms_alloc(size_t bytes, ms_memory_tag tag, void **memory);
/* As ms_alloc of count objects of the pointer's type, with the product checked. */
#define MS_NEW(count, tag, pointer_to_pointer)                                                     \
    ms_alloc_array((count), sizeof(**(pointer_to_pointer)), (tag), (void **)(pointer_to_pointer))
ms_status ms_alloc_array(size_t count, size_t bytes_each, ms_memory_tag tag, void **memory);
/* Grows or shrinks; the contents stay; new bytes are zero. *memory may point to NULL. */
ms_status ms_realloc(void **memory, size_t bytes, ms_memory_tag tag);
void ms_free(void *memory); /* NULL is fine */
ms_memory_counters ms_memory_counters_get(void);
/* Test hook: the n-th allocation from now fails (0: off). Per process. */
void ms_memory_fail_at(uint64_t n);

/* Grows *array (of elements of bytes_each) so that it holds at least `needed`; doubles. */
ms_status ms_array_reserve(void **array, size_t *capacity, size_t needed, size_t bytes_each,
                           ms_memory_tag tag);

/* An arena: objects freed together. Grows by blocks; addresses are stable. */
typedef struct ms_arena ms_arena;
ms_status ms_arena_create(size_t first_block_bytes, ms_memory_tag tag, ms_arena **arena);
void ms_arena_destroy(ms_arena *arena);
void ms_arena_reset(ms_arena *arena);                                   /* keeps the first block */
ms_status ms_arena_alloc(ms_arena *arena, size_t bytes, void **memory); /* zeroed */
ms_status ms_arena_strdup(ms_arena *arena, const char *text, char **copy);
size_t ms_arena_bytes(const ms_arena *arena);

/* Checked arithmetic: true on success, *result untouched otherwise. */
static inline bool ms_size_add(size_t a, size_t b, size_t *result) {
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *result = sum;
    return true;
}
static inline bool ms_size_mul(size_t a, size_t b, size_t *result) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *result = product;
    return true;
}
static inline bool ms_i64_mul(int64_t a, int64_t b, int64_t *result) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *result = product;
    return true;
}
static inline bool ms_i64_add(int64_t a, int64_t b, int64_t *result) {
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *result = sum;
    return true;
}
/* bytes rounded up to a multiple of alignment (a power of two); bytes must not be near SIZE_MAX. */
static inline size_t ms_align_up(size_t bytes, size_t alignment) {
    return (bytes + alignment - 1) & ~(alignment - 1);
}
static inline int64_t ms_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t ms_min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t ms_max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
