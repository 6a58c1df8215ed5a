/*
 * arena.c - objects that are freed together.
 *
 * Data: a chain of blocks, the newest at the head; objects are cut from its front.
 *
 *     arena -> block (newest) -> block -> ... -> first block
 *              [header | used bytes | poisoned rest]
 *
 * Invariants: bytes beyond `used` are zero, so handing them out costs nothing; a reset zeroes what
 * was used of the first block and frees the others. Objects of 64 bytes or more are 64-byte
 * aligned, smaller ones 16-byte aligned. With AddressSanitizer, what is not handed out is poisoned.
 *
 * Rejected: growing one block by realloc (addresses would move).
 */
#include "base/memory.h"

#include <string.h>

#include "base/memory_poison.h"

#define SMALL_ALIGNMENT ((size_t)16)
#define BLOCK_BYTES_MIN ((size_t)256)
#define BLOCK_BYTES_GROWTH_MAX ((size_t)1 << 20)

typedef struct arena_block {
    struct arena_block *older;
    size_t capacity;
    size_t used;
} arena_block;

#define BLOCK_HEADER_BYTES MS_ALIGNMENT
_Static_assert(sizeof(arena_block) <= BLOCK_HEADER_BYTES, "objects of a block start aligned");

struct ms_arena {
    ms_memory_tag tag;
    arena_block *newest;
    size_t held_bytes;
};

static char *block_data(arena_block *block) {
    return (char *)block + BLOCK_HEADER_BYTES;
}

static ms_status add_block(ms_arena *arena, size_t capacity) {
    size_t bytes;
    if (!ms_size_add(capacity, BLOCK_HEADER_BYTES, &bytes)) {
        return ms_fail(MS_ERR_MEMORY, "out of memory: an arena block of %zu bytes wanted",
                       capacity);
    }
    void *memory;
    MS_TRY(ms_alloc(bytes, arena->tag, &memory));
    arena_block *block = memory;
    block->older = arena->newest;
    block->capacity = capacity;
    MS_POISON(block_data(block), capacity);
    arena->newest = block;
    arena->held_bytes += capacity;
    return MS_OK;
}

static void free_block(ms_arena *arena, arena_block *block) {
    MS_UNPOISON(block_data(block), block->capacity);
    arena->held_bytes -= block->capacity;
    ms_free(block);
}

ms_status ms_arena_create(size_t first_block_bytes, ms_memory_tag tag, ms_arena **arena) {
    ms_arena *fresh = NULL;
    MS_TRY(MS_NEW(1, tag, &fresh));
    fresh->tag = tag;
    ms_status status;
    size_t bytes = first_block_bytes < BLOCK_BYTES_MIN ? BLOCK_BYTES_MIN : first_block_bytes;
    MS_TRY_GOTO(add_block(fresh, bytes), free_arena);
    *arena = fresh;
    return MS_OK;
free_arena:
    ms_free(fresh);
    return status;
}

void ms_arena_destroy(ms_arena *arena) {
    if (arena == NULL) {
        return;
    }
    while (arena->newest != NULL) {
        arena_block *older = arena->newest->older;
        free_block(arena, arena->newest);
        arena->newest = older;
    }
    ms_free(arena);
}

void ms_arena_reset(ms_arena *arena) {
    while (arena->newest->older != NULL) {
        arena_block *older = arena->newest->older;
        free_block(arena, arena->newest);
        arena->newest = older;
    }
    arena_block *first = arena->newest;
    MS_UNPOISON(block_data(first), first->capacity);
    memset(block_data(first), 0, first->used);
    MS_POISON(block_data(first), first->capacity);
    first->used = 0;
}

ms_status ms_arena_alloc(ms_arena *arena, size_t bytes, void **memory) {
    size_t alignment = bytes < MS_ALIGNMENT ? SMALL_ALIGNMENT : MS_ALIGNMENT;
    size_t taken = bytes == 0 ? 1 : bytes;
    arena_block *block = arena->newest;
    size_t start = ms_align_up(block->used, alignment);
    if (start > block->capacity || taken > block->capacity - start) {
        size_t doubled =
            block->capacity < BLOCK_BYTES_GROWTH_MAX ? 2 * block->capacity : BLOCK_BYTES_GROWTH_MAX;
        MS_TRY(add_block(arena, taken > doubled ? taken : doubled));
        block = arena->newest;
        start = 0;
    }
    block->used = start + taken;
    MS_UNPOISON(block_data(block) + start, taken);
    *memory = block_data(block) + start;
    return MS_OK;
}

ms_status ms_arena_strdup(ms_arena *arena, const char *text, char **copy) {
    size_t bytes = strlen(text) + 1;
    void *memory;
    MS_TRY(ms_arena_alloc(arena, bytes, &memory));
    memcpy(memory, text, bytes);
    *copy = memory;
    return MS_OK;
}

size_t ms_arena_bytes(const ms_arena *arena) {
    return arena->held_bytes;
}
