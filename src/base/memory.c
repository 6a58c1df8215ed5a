/*
 * memory.c - counted, aligned, zeroed allocations.
 *
 * Where it stands: under every other file of the library; the planner's promise "planned bytes are
 * the bytes held" is checked against the counters kept here.
 *
 * Data: an allocation is one calloc,
 *
 *     raw ... | block_header | user bytes ...
 *                            ^ multiple of 64, what the caller sees
 *
 * calloc rather than aligned_alloc + memset: large blocks come from fresh pages, which the kernel
 * zeroes when they are first touched, so a planned but unused buffer costs no resident memory.
 *
 * Invariants: live_bytes of a tag is the sum of the bytes asked for and not yet freed; the counters
 * are relaxed atomics, exact once the threads concerned are joined. With AddressSanitizer the
 * header is poisoned, so an underflow is caught like an overflow.
 *
 * Rejected: a size class allocator of our own (after the first step nothing is allocated, so speed
 * here does not matter), and realloc in place (it cannot keep the alignment).
 */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_poison.h"

/*
 * No machine holds more; a length read from a broken file may say so. The sanitizers end the
 * program where malloc would return NULL, from 2^40 bytes on.
 */
#if defined(MS_HAS_ASAN) || defined(__SANITIZE_THREAD__)
#define ALLOCATION_BYTES_MAX ((size_t)1 << 39)
#else
#define ALLOCATION_BYTES_MAX ((size_t)1 << 46)
#endif

#define HEADER_MAGIC UINT64_C(0x6d73616c6c6f6321)
#define HEADER_FREED UINT64_C(0x6d73667265656421)

typedef struct block_header {
    void *raw;
    size_t bytes;
    uint64_t tag;
    uint64_t magic; /* next to the user's bytes: the first thing that an underflow destroys */
} block_header;

_Static_assert(sizeof(block_header) <= 64, "the header fits in front of an aligned block");

static _Atomic uint64_t call_count;
static _Atomic size_t live_bytes[MS_MEMORY_TAG_COUNT];
static _Atomic size_t live_total;
static _Atomic size_t peak_total;
static _Atomic uint64_t fail_countdown;

static block_header *header_of(void *memory) {
    return (block_header *)memory - 1;
}

/* True when this allocation is the one that ms_memory_fail_at chose. */
static bool fails_now(void) {
    uint64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    while (left > 0) {
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) {
            return left == 1;
        }
    }
    return false;
}

static void count_taken(size_t bytes, ms_memory_tag tag) {
    atomic_fetch_add_explicit(&live_bytes[tag], bytes, memory_order_relaxed);
    size_t total = atomic_fetch_add_explicit(&live_total, bytes, memory_order_relaxed) + bytes;
    size_t peak = atomic_load_explicit(&peak_total, memory_order_relaxed);
    while (total > peak && !atomic_compare_exchange_weak(&peak_total, &peak, total)) {
    }
}

ms_status ms_alloc(size_t bytes, ms_memory_tag tag, void **memory) {
    atomic_fetch_add_explicit(&call_count, 1, memory_order_relaxed);
    if ((unsigned)tag >= MS_MEMORY_TAG_COUNT) {
        return ms_fail(MS_ERR_BUG, "memory tag %d does not exist", (int)tag);
    }
    char *raw = NULL;
    if (bytes <= ALLOCATION_BYTES_MAX && !fails_now()) {
        raw = calloc(1, bytes + sizeof(block_header) + MS_ALIGNMENT);
    }
    if (raw == NULL) {
        return ms_fail(MS_ERR_MEMORY, "out of memory: %zu bytes wanted, %zu bytes in use", bytes,
                       atomic_load_explicit(&live_total, memory_order_relaxed));
    }
    size_t skip = (size_t)(-(uintptr_t)(raw + sizeof(block_header))) & (MS_ALIGNMENT - 1);
    void *user = raw + sizeof(block_header) + skip;
    *header_of(user) =
        (block_header){.raw = raw, .bytes = bytes, .tag = (uint64_t)tag, .magic = HEADER_MAGIC};
    MS_POISON(header_of(user), sizeof(block_header));
    count_taken(bytes, tag);
    *memory = user;
    return MS_OK;
}

ms_status ms_alloc_array(size_t count, size_t bytes_each, ms_memory_tag tag, void **memory) {
    size_t bytes;
    if (!ms_size_mul(count, bytes_each, &bytes)) {
        return ms_fail(MS_ERR_MEMORY, "out of memory: %zu objects of %zu bytes wanted", count,
                       bytes_each);
    }
    return ms_alloc(bytes, tag, memory);
}

void ms_free(void *memory) {
    if (memory == NULL) {
        return;
    }
    block_header *header = header_of(memory);
    MS_UNPOISON(header, sizeof(block_header));
    MS_CHECK(header->magic == HEADER_MAGIC); /* a wrong pointer, a second free or an underflow */
    header->magic = HEADER_FREED;
    atomic_fetch_sub_explicit(&live_bytes[header->tag], header->bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&live_total, header->bytes, memory_order_relaxed);
    free(header->raw);
}

ms_status ms_realloc(void **memory, size_t bytes, ms_memory_tag tag) {
    void *fresh;
    MS_TRY(ms_alloc(bytes, tag, &fresh));
    if (*memory != NULL) {
        block_header *header = header_of(*memory);
        MS_UNPOISON(header, sizeof(block_header));
        MS_CHECK(header->magic == HEADER_MAGIC);
        size_t kept_bytes = header->bytes < bytes ? header->bytes : bytes;
        memcpy(fresh, *memory, kept_bytes);
        ms_free(*memory);
    }
    *memory = fresh;
    return MS_OK;
}

ms_memory_counters ms_memory_counters_get(void) {
    ms_memory_counters counters = {0};
    counters.calls = atomic_load_explicit(&call_count, memory_order_relaxed);
    counters.peak_bytes = atomic_load_explicit(&peak_total, memory_order_relaxed);
    for (int tag = 0; tag < MS_MEMORY_TAG_COUNT; tag++) {
        counters.live_bytes[tag] = atomic_load_explicit(&live_bytes[tag], memory_order_relaxed);
    }
    return counters;
}

void ms_memory_fail_at(uint64_t n) {
    atomic_store(&fail_countdown, n);
}

ms_status ms_array_reserve(void **array, size_t *capacity, size_t needed, size_t bytes_each,
                           ms_memory_tag tag) {
    if (needed <= *capacity) {
        return MS_OK;
    }
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    while (wanted < needed) {
        if (!ms_size_mul(wanted, 2, &wanted)) {
            wanted = needed;
        }
    }
    size_t bytes;
    if (!ms_size_mul(wanted, bytes_each, &bytes)) {
        return ms_fail(MS_ERR_MEMORY, "out of memory: %zu elements of %zu bytes wanted", needed,
                       bytes_each);
    }
    MS_TRY(ms_realloc(array, bytes, tag));
    *capacity = wanted;
    return MS_OK;
}
