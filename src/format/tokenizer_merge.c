/*
 * Byte-pair encoding of one word: the innermost loop of `data build`.
 *
 * Stands at the end of encode: a word becomes symbols (bytes, or code points), then the pair of
 * neighbours with the lowest rank is merged, the leftmost among equals, until no pair is in the
 * table.
 *
 *   table    open addressing of (left id, right id) -> rank, result; at most half full
 *   symbols  a doubly linked list in an array: merging unlinks the right one of the two
 *   heap     candidates by (rank, position); one whose ids have changed since is stale
 *
 * Short words (most of them) are scanned instead: with few symbols that beats a heap. A cache in
 * the scratch, direct-mapped, answers words seen lately without any merging; text repeats its
 * words.
 *
 * Invariant: both ways give the same ids, whatever the cache holds.
 *
 * Rejected: a trie walk with longest match (that is not what the merges say); a cache without
 * bound.
 */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "format/tokenizer_internal.h"

#define SCAN_SYMBOLS_MAX 24
#define NO_RANK UINT32_MAX

static size_t pair_slot(uint64_t pair, size_t slot_count) {
    uint64_t mixed = pair * 0x9e3779b97f4a7c15u;
    return (size_t)(mixed ^ mixed >> 32) & (slot_count - 1);
}

ms_status ms__merge_table_reserve(ms_merge_table *table, size_t count) {
    size_t wanted = 16;
    while (wanted < 2 * count) {
        wanted *= 2;
    }
    if (wanted <= table->slot_count) {
        return MS_OK;
    }
    ms_merge *slots = NULL;
    MS_TRY(MS_NEW(wanted, MS_MEMORY_CALLER, &slots));
    for (size_t i = 0; i < wanted; i++) {
        slots[i].pair = UINT64_MAX;
    }
    for (size_t i = 0; i < table->slot_count; i++) {
        if (table->slots[i].pair != UINT64_MAX) {
            size_t slot = pair_slot(table->slots[i].pair, wanted);
            while (slots[slot].pair != UINT64_MAX) {
                slot = (slot + 1) & (wanted - 1);
            }
            slots[slot] = table->slots[i];
        }
    }
    ms_free(table->slots);
    table->slots = slots;
    table->slot_count = wanted;
    return MS_OK;
}

void ms__merge_table_put(ms_merge_table *table, int32_t left, int32_t right, uint32_t rank,
                         int32_t id, bool *added) {
    uint64_t pair = ms__pair(left, right);
    size_t slot = pair_slot(pair, table->slot_count);
    MS_ASSERT(2 * table->count < table->slot_count);
    while (table->slots[slot].pair != UINT64_MAX) {
        if (table->slots[slot].pair == pair) {
            *added = false;
            return;
        }
        slot = (slot + 1) & (table->slot_count - 1);
    }
    table->slots[slot] = (ms_merge){.pair = pair, .rank = rank, .id = id};
    table->count++;
    *added = true;
}

const ms_merge *ms__merge_table_find(const ms_merge_table *table, int32_t left, int32_t right) {
    if (table->slot_count == 0) {
        return NULL;
    }
    uint64_t pair = ms__pair(left, right);
    size_t slot = pair_slot(pair, table->slot_count);
    while (table->slots[slot].pair != pair) {
        if (table->slots[slot].pair == UINT64_MAX) {
            return NULL;
        }
        slot = (slot + 1) & (table->slot_count - 1);
    }
    return &table->slots[slot];
}

void ms__merge_table_release(ms_merge_table *table) {
    ms_free(table->slots);
    *table = (ms_merge_table){0};
}

ms_status ms__tokens_push(ms_tokens *tokens, const int32_t *ids, size_t count) {
    MS_TRY(ms_array_reserve((void **)&tokens->ids, &tokens->capacity, tokens->count + count,
                            sizeof *tokens->ids, MS_MEMORY_CALLER));
    if (count > 0) {
        memcpy(tokens->ids + tokens->count, ids, count * sizeof *ids);
    }
    tokens->count += count;
    return MS_OK;
}

static ms_status fail_unknown(const char *text, size_t length) {
    return ms_fail(MS_ERR_RANGE, "the vocabulary has no token for \"%.*s\" and no unknown token",
                   (int)length, text);
}

/* Symbols of one code point that is not in the vocabulary: its bytes, or the unknown token. */
static ms_status fall_back(const ms_tokenizer *tokenizer, const char *text, size_t length,
                           ms_symbol *symbols, size_t *count) {
    bool complete = tokenizer->byte_fallback;
    for (size_t i = 0; i < length && complete; i++) {
        complete = tokenizer->byte_ids[(uint8_t)text[i]] >= 0;
    }
    if (complete) {
        for (size_t i = 0; i < length; i++) {
            symbols[(*count)++].id = tokenizer->byte_ids[(uint8_t)text[i]];
        }
        return MS_OK;
    }
    if (tokenizer->unknown_id < 0) {
        return fail_unknown(text, length);
    }
    bool fused =
        tokenizer->fuse_unknown && *count > 0 && symbols[*count - 1].id == tokenizer->unknown_id;
    if (!fused) {
        symbols[(*count)++].id = tokenizer->unknown_id;
    }
    return MS_OK;
}

static ms_status make_symbols(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                              const char *word, size_t length, size_t *count) {
    MS_TRY(ms_array_reserve((void **)&scratch->symbols, &scratch->symbol_capacity, length,
                            sizeof *scratch->symbols, MS_MEMORY_CALLER));
    ms_symbol *symbols = scratch->symbols;
    size_t made = 0;
    if (tokenizer->kind == MS_TOKENIZER_BYTE_BPE) {
        for (size_t i = 0; i < length; i++) {
            int32_t id = tokenizer->byte_ids[(uint8_t)word[i]];
            if (id < 0 && tokenizer->unknown_id < 0) {
                return fail_unknown(word, length);
            }
            symbols[made++].id = id >= 0 ? id : tokenizer->unknown_id;
        }
    } else {
        for (size_t i = 0; i < length;) {
            uint32_t code_point;
            size_t bytes = (size_t)ms_utf8_decode(word + i, length - i, &code_point);
            int32_t id = ms__vocabulary_find(&tokenizer->vocabulary, word + i, bytes);
            if (id >= 0) {
                symbols[made++].id = id;
            } else {
                MS_TRY(fall_back(tokenizer, word + i, bytes, symbols, &made));
            }
            i += bytes;
        }
    }
    *count = made;
    return MS_OK;
}

/* For few symbols: ranks of all neighbours at hand, the lowest one merged, two ranks renewed. */
static size_t merge_by_scan(const ms_tokenizer *tokenizer, ms_symbol *symbols, size_t count) {
    uint32_t ranks[SCAN_SYMBOLS_MAX];
    int32_t results[SCAN_SYMBOLS_MAX];
    for (size_t i = 0; i + 1 < count; i++) {
        const ms_merge *merge =
            ms__merge_table_find(&tokenizer->merges, symbols[i].id, symbols[i + 1].id);
        ranks[i] = merge != NULL ? merge->rank : NO_RANK;
        results[i] = merge != NULL ? merge->id : -1;
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            best = ranks[i] < ranks[best] ? i : best;
        }
        if (ranks[best] == NO_RANK) {
            break;
        }
        symbols[best].id = results[best];
        count--;
        for (size_t i = best + 1; i < count; i++) {
            symbols[i].id = symbols[i + 1].id;
            ranks[i - 1] = ranks[i];
            results[i - 1] = results[i];
        }
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < count; i++) {
            const ms_merge *merge =
                ms__merge_table_find(&tokenizer->merges, symbols[i].id, symbols[i + 1].id);
            ranks[i] = merge != NULL ? merge->rank : NO_RANK;
            results[i] = merge != NULL ? merge->id : -1;
        }
    }
    return count;
}

static bool heap_before(const ms_heap_entry *a, const ms_heap_entry *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static ms_status heap_push(ms_tokenizer_scratch *scratch, ms_heap_entry entry) {
    MS_TRY(ms_array_reserve((void **)&scratch->heap, &scratch->heap_capacity,
                            scratch->heap_count + 1, sizeof *scratch->heap, MS_MEMORY_CALLER));
    ms_heap_entry *heap = scratch->heap;
    size_t at = scratch->heap_count++;
    while (at > 0 && heap_before(&entry, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
    return MS_OK;
}

static ms_heap_entry heap_pop(ms_tokenizer_scratch *scratch) {
    ms_heap_entry *heap = scratch->heap;
    ms_heap_entry first = heap[0], last = heap[--scratch->heap_count];
    size_t at = 0, count = scratch->heap_count;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && heap_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!heap_before(&heap[child], &last)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}

static ms_status push_candidate(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                                int32_t position) {
    const ms_symbol *symbols = scratch->symbols;
    if (position < 0 || symbols[position].next < 0) {
        return MS_OK;
    }
    int32_t left = symbols[position].id, right = symbols[symbols[position].next].id;
    const ms_merge *merge = ms__merge_table_find(&tokenizer->merges, left, right);
    if (merge == NULL) {
        return MS_OK;
    }
    return heap_push(scratch, (ms_heap_entry){.rank = merge->rank,
                                              .position = position,
                                              .left = left,
                                              .right = right,
                                              .id = merge->id});
}

static ms_status merge_by_heap(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                               size_t *count) {
    ms_symbol *symbols = scratch->symbols;
    int32_t total = (int32_t)*count;
    scratch->heap_count = 0;
    for (int32_t i = 0; i < total; i++) {
        symbols[i].previous = i - 1;
        symbols[i].next = i + 1 < total ? i + 1 : -1;
    }
    for (int32_t i = 0; i + 1 < total; i++) {
        MS_TRY(push_candidate(tokenizer, scratch, i));
    }
    while (scratch->heap_count > 0) {
        ms_heap_entry best = heap_pop(scratch);
        ms_symbol *left = &symbols[best.position];
        if (left->id != best.left || left->next < 0 || symbols[left->next].id != best.right) {
            continue; /* stale; an unlinked symbol has id -1 */
        }
        ms_symbol *right = &symbols[left->next];
        left->id = best.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) {
            symbols[left->next].previous = best.position;
        }
        MS_TRY(push_candidate(tokenizer, scratch, left->previous));
        MS_TRY(push_candidate(tokenizer, scratch, best.position));
    }
    size_t kept = 0;
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        symbols[kept].id = symbols[i].id; /* kept <= i */
        kept++;
    }
    *count = kept;
    return MS_OK;
}

static ms_status merge_uncached(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                                const char *word, size_t length, ms_tokens *tokens) {
    if (tokenizer->ignore_merges) {
        int32_t id = ms__vocabulary_find(&tokenizer->vocabulary, word, length);
        if (id >= 0) {
            return ms__tokens_push(tokens, &id, 1);
        }
    }
    if (length > INT32_MAX) {
        return ms_fail(MS_ERR_RANGE, "a word of %zu bytes, allowed are %d: cut the text", length,
                       INT32_MAX);
    }
    size_t count = 0;
    MS_TRY(make_symbols(tokenizer, scratch, word, length, &count));
    if (count <= SCAN_SYMBOLS_MAX) {
        count = merge_by_scan(tokenizer, scratch->symbols, count);
    } else {
        MS_TRY(merge_by_heap(tokenizer, scratch, &count));
    }
    MS_TRY(ms_array_reserve((void **)&tokens->ids, &tokens->capacity, tokens->count + count,
                            sizeof *tokens->ids, MS_MEMORY_CALLER));
    for (size_t i = 0; i < count; i++) {
        tokens->ids[tokens->count++] = scratch->symbols[i].id;
    }
    return MS_OK;
}

ms_status ms__merge_word(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                         const char *word, size_t length, ms_tokens *tokens) {
    if (length == 0) {
        return MS_OK;
    }
    if (length > MS_CACHE_WORD_BYTES) {
        return merge_uncached(tokenizer, scratch, word, length, tokens);
    }
    ms_cache_slot *slot =
        &scratch->cache[ms_hash_bytes(word, length) & (uint64_t)(MS_CACHE_SLOTS - 1)];
    if (slot->length == length && memcmp(slot->bytes, word, length) == 0) {
        return ms__tokens_push(tokens, slot->ids, slot->id_count);
    }
    size_t before = tokens->count;
    MS_TRY(merge_uncached(tokenizer, scratch, word, length, tokens));
    size_t made = tokens->count - before;
    if (made <= MS_CACHE_WORD_IDS) {
        slot->length = (uint8_t)length;
        slot->id_count = (uint8_t)made;
        memcpy(slot->bytes, word, length);
        memcpy(slot->ids, tokens->ids + before, made * sizeof *slot->ids);
    }
    return MS_OK;
}
