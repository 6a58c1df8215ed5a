/*
 * Training a byte-level BPE vocabulary.
 *
 * Stands under `mindspeed tokenizer train`: texts are cut into words by the pattern, each distinct
 * word is kept once with its count; then the most frequent pair of neighbouring tokens becomes a
 * token, and again, until the vocabulary is full.
 *
 *   words    distinct words: symbols in one pool, count of occurrences
 *   pairs    (left, right) -> occurrences over all words, and the words that hold (or held) it
 *   heap     (count, pair), largest first; an entry that comes up with an old count is put back
 *
 * A merge touches only the words in the pair's list and adds or takes off the counts of the pairs
 * beside it, so a step costs what changes, not the text.
 *
 * Invariants: the order (count, then smaller pair) is total, so the result does not depend on the
 * order of words or of hashing; a pair's count is exact at all times.
 *
 * Rejected: recounting after each merge (minutes where this takes a second); several threads (the
 * merges depend on one another, and counting words is bound by the pattern).
 */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "format/tokenizer_internal.h"

#define PROGRESS_EVERY 256

typedef struct train_word {
    size_t begin; /* of its symbols (and, while counting, of its bytes) */
    uint32_t length;
    int64_t count;
} train_word;

typedef struct train_pair {
    uint64_t pair; /* UINT64_MAX: empty slot */
    int64_t count;
    uint32_t *words; /* each at least once while it holds the pair */
    size_t word_count, word_capacity;
    int64_t gained_at; /* the step in which it last gained */
} train_pair;

typedef struct train_entry {
    int64_t count;
    uint64_t pair;
} train_entry;

struct ms_tokenizer_trainer {
    ms_tokenizer *tokenizer; /* the result in the making; at first it only cuts words */
    ms_tokenizer_scratch *scratch;
    int64_t vocabulary_size, pair_count_min;
    char **special_tokens; /* in the tokenizer's arena */
    int special_token_count;
    train_word *words;
    size_t word_count, word_capacity;
    char *bytes; /* of all words */
    size_t byte_count, byte_capacity;
    uint32_t *word_slots; /* hash table: index + 1, 0 empty; at most half full */
    size_t word_slot_count;
    int32_t *symbols;  /* of all words, at the places of their bytes */
    train_pair *pairs; /* open addressing, at most half full */
    size_t pair_slot_count, pair_count;
    train_entry *heap;
    size_t heap_count, heap_capacity;
    int64_t step;
    uint64_t *gained; /* pairs that gained in this step, each once */
    size_t gained_count, gained_capacity;
};

/* ---- words ---- */

static size_t find_word_slot(const ms_tokenizer_trainer *trainer, const char *word, size_t length) {
    size_t mask = trainer->word_slot_count - 1;
    size_t slot = (size_t)ms_hash_bytes(word, length) & mask;
    while (trainer->word_slots[slot] != 0) {
        const train_word *other = &trainer->words[trainer->word_slots[slot] - 1];
        if (other->length == length && memcmp(trainer->bytes + other->begin, word, length) == 0) {
            break;
        }
        slot = (slot + 1) & mask;
    }
    return slot;
}

static ms_status grow_word_slots(ms_tokenizer_trainer *trainer) {
    if (2 * (trainer->word_count + 1) <= trainer->word_slot_count) {
        return MS_OK;
    }
    size_t wider = trainer->word_slot_count == 0 ? 4096 : 2 * trainer->word_slot_count;
    uint32_t *slots = NULL;
    MS_TRY(MS_NEW(wider, MS_MEMORY_CALLER, &slots));
    ms_free(trainer->word_slots);
    trainer->word_slots = slots;
    trainer->word_slot_count = wider;
    for (size_t i = 0; i < trainer->word_count; i++) {
        const train_word *word = &trainer->words[i];
        slots[find_word_slot(trainer, trainer->bytes + word->begin, word->length)] =
            (uint32_t)i + 1;
    }
    return MS_OK;
}

static ms_status count_word(void *context, const char *word, size_t length) {
    ms_tokenizer_trainer *trainer = context;
    if (length > INT32_MAX || trainer->word_count >= INT32_MAX) {
        return ms_fail(MS_ERR_RANGE, "a word of %zu bytes or more than %d distinct words", length,
                       INT32_MAX);
    }
    MS_TRY(grow_word_slots(trainer));
    size_t slot = find_word_slot(trainer, word, length);
    if (trainer->word_slots[slot] != 0) {
        trainer->words[trainer->word_slots[slot] - 1].count++;
        return MS_OK;
    }
    MS_TRY(ms_array_reserve((void **)&trainer->words, &trainer->word_capacity,
                            trainer->word_count + 1, sizeof *trainer->words, MS_MEMORY_CALLER));
    MS_TRY(ms_array_reserve((void **)&trainer->bytes, &trainer->byte_capacity,
                            trainer->byte_count + length, 1, MS_MEMORY_CALLER));
    memcpy(trainer->bytes + trainer->byte_count, word, length);
    trainer->words[trainer->word_count++] =
        (train_word){.begin = trainer->byte_count, .length = (uint32_t)length, .count = 1};
    trainer->byte_count += length;
    trainer->word_slots[slot] = (uint32_t)trainer->word_count;
    return MS_OK;
}

/* ---- creation ---- */

/* Ids of bytes in the order of their printable spelling, as in GPT-2's vocabulary. */
static ms_status add_bytes(ms_tokenizer *tokenizer) {
    int64_t id = 0;
    for (uint32_t code_point = 0; code_point < 512; code_point++) {
        int byte = ms__code_point_to_byte(code_point);
        if (byte >= 0) {
            char key = (char)byte;
            MS_TRY(ms__vocabulary_add(&tokenizer->vocabulary, id++, &key, 1, 0, "trainer"));
        }
    }
    return MS_OK;
}

static ms_status check_options(const ms_tokenizer_train_options *options) {
    int64_t least = 256 + options->special_token_count;
    if (options->special_token_count < 0 || options->vocabulary_size < least ||
        options->vocabulary_size > MS_TOKENIZER_VOCABULARY_MAX) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "a vocabulary of %" PRId64 " tokens: allowed are %" PRId64
                       " (256 bytes and %d special) to %" PRId64,
                       options->vocabulary_size, least, options->special_token_count,
                       MS_TOKENIZER_VOCABULARY_MAX);
    }
    if (options->pair_count_min < 0) {
        return ms_fail(MS_ERR_ARGUMENT, "the least count of a pair is %" PRId64,
                       options->pair_count_min);
    }
    const char *pattern = options->pattern != NULL ? options->pattern : "";
    if (ms_utf8_valid_prefix(pattern, strlen(pattern)) != strlen(pattern)) {
        return ms_fail(MS_ERR_ARGUMENT, "the pattern is not UTF-8");
    }
    return MS_OK;
}

static ms_status set_up(ms_tokenizer_trainer *trainer, const ms_tokenizer_train_options *options) {
    MS_TRY(ms__tokenizer_new(&trainer->tokenizer));
    json_t *config = ms__byte_level_config(options->pattern);
    if (config == NULL) {
        return ms_fail(MS_ERR_MEMORY, "no memory for a tokenizer's configuration");
    }
    MS_TRY(ms__tokenizer_configure(trainer->tokenizer, config, "trainer"));
    MS_TRY(add_bytes(trainer->tokenizer));
    MS_TRY(ms_tokenizer_scratch_create(trainer->tokenizer, &trainer->scratch));
    MS_TRY(ms_arena_alloc(trainer->tokenizer->arena,
                          (size_t)options->special_token_count * sizeof *trainer->special_tokens,
                          (void **)&trainer->special_tokens));
    for (int i = 0; i < options->special_token_count; i++) {
        const char *token = options->special_tokens[i];
        size_t length = strlen(token);
        if (length == 0 || ms_utf8_valid_prefix(token, length) != length) {
            return ms_fail(MS_ERR_ARGUMENT, "special token %d is empty or not UTF-8", i);
        }
        for (int j = 0; j < i; j++) {
            if (strcmp(trainer->special_tokens[j], token) == 0) {
                return ms_fail(MS_ERR_ARGUMENT, "special token \"%s\" is given twice", token);
            }
        }
        MS_TRY(ms_arena_strdup(trainer->tokenizer->arena, token, &trainer->special_tokens[i]));
    }
    trainer->special_token_count = options->special_token_count;
    trainer->vocabulary_size = options->vocabulary_size;
    trainer->pair_count_min = options->pair_count_min > 0 ? options->pair_count_min : 2;
    return MS_OK;
}

ms_status ms_tokenizer_trainer_create(const ms_tokenizer_train_options *options,
                                      ms_tokenizer_trainer **trainer) {
    ms_tokenizer_trainer *made = NULL;
    MS_TRY(check_options(options));
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    ms_status status = set_up(made, options);
    if (status != MS_OK) {
        ms_tokenizer_trainer_destroy(made);
        return status;
    }
    *trainer = made;
    return MS_OK;
}

void ms_tokenizer_trainer_destroy(ms_tokenizer_trainer *trainer) {
    if (trainer == NULL) {
        return;
    }
    for (size_t i = 0; i < trainer->pair_slot_count; i++) {
        ms_free(trainer->pairs[i].words);
    }
    ms_free(trainer->pairs);
    ms_free(trainer->heap);
    ms_free(trainer->gained);
    ms_free(trainer->symbols);
    ms_free(trainer->words);
    ms_free(trainer->bytes);
    ms_free(trainer->word_slots);
    ms_tokenizer_scratch_destroy(trainer->scratch);
    ms_tokenizer_destroy(trainer->tokenizer);
    ms_free(trainer);
}

ms_status ms_tokenizer_trainer_add(ms_tokenizer_trainer *trainer, const char *text, size_t length) {
    if (trainer->tokenizer == NULL || trainer->symbols != NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "the trainer has finished");
    }
    size_t valid = ms_utf8_valid_prefix(text, length);
    if (valid != length) {
        return ms_fail(MS_ERR_FORMAT, "text is not UTF-8 at byte %zu (0x%02x)", valid,
                       (unsigned)(uint8_t)text[valid]);
    }
    return ms__split_apply(trainer->tokenizer, trainer->scratch, text, length, true, count_word,
                           trainer);
}

/* ---- pairs and heap ---- */

static size_t find_pair_slot(const train_pair *pairs, size_t slot_count, uint64_t pair) {
    uint64_t mixed = pair * 0x9e3779b97f4a7c15u;
    size_t slot = (size_t)(mixed ^ mixed >> 32) & (slot_count - 1);
    while (pairs[slot].pair != UINT64_MAX && pairs[slot].pair != pair) {
        slot = (slot + 1) & (slot_count - 1);
    }
    return slot;
}

static ms_status grow_pairs(ms_tokenizer_trainer *trainer) {
    if (2 * (trainer->pair_count + 1) <= trainer->pair_slot_count) {
        return MS_OK;
    }
    size_t wider = trainer->pair_slot_count == 0 ? 8192 : 2 * trainer->pair_slot_count;
    train_pair *pairs = NULL;
    MS_TRY(MS_NEW(wider, MS_MEMORY_CALLER, &pairs));
    for (size_t i = 0; i < wider; i++) {
        pairs[i].pair = UINT64_MAX;
    }
    for (size_t i = 0; i < trainer->pair_slot_count; i++) {
        if (trainer->pairs[i].pair != UINT64_MAX) {
            pairs[find_pair_slot(pairs, wider, trainer->pairs[i].pair)] = trainer->pairs[i];
        }
    }
    ms_free(trainer->pairs);
    trainer->pairs = pairs;
    trainer->pair_slot_count = wider;
    return MS_OK;
}

static bool entry_before(const train_entry *a, const train_entry *b) {
    return a->count != b->count ? a->count > b->count : a->pair < b->pair;
}

static ms_status push(ms_tokenizer_trainer *trainer, train_entry entry) {
    MS_TRY(ms_array_reserve((void **)&trainer->heap, &trainer->heap_capacity,
                            trainer->heap_count + 1, sizeof *trainer->heap, MS_MEMORY_CALLER));
    train_entry *heap = trainer->heap;
    size_t at = trainer->heap_count++;
    while (at > 0 && entry_before(&entry, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
    return MS_OK;
}

static train_entry pop(ms_tokenizer_trainer *trainer) {
    train_entry *heap = trainer->heap;
    train_entry first = heap[0], last = heap[--trainer->heap_count];
    size_t at = 0, count = trainer->heap_count;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && entry_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!entry_before(&heap[child], &last)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}

/* Changes a pair's count by what one word has gained or lost. */
static ms_status change_pair(ms_tokenizer_trainer *trainer, int32_t left, int32_t right,
                             int64_t change, uint32_t word) {
    MS_TRY(grow_pairs(trainer));
    uint64_t key = ms__pair(left, right);
    train_pair *pair =
        &trainer->pairs[find_pair_slot(trainer->pairs, trainer->pair_slot_count, key)];
    if (pair->pair == UINT64_MAX) {
        pair->pair = key;
        trainer->pair_count++;
    }
    pair->count += change;
    bool is_listed = pair->word_count > 0 && pair->words[pair->word_count - 1] == word;
    if (change > 0 && !is_listed) {
        MS_TRY(ms_array_reserve((void **)&pair->words, &pair->word_capacity, pair->word_count + 1,
                                sizeof *pair->words, MS_MEMORY_CALLER));
        pair->words[pair->word_count++] = word;
    }
    return MS_OK;
}

static ms_status count_pairs(ms_tokenizer_trainer *trainer) {
    MS_TRY(MS_NEW(trainer->byte_count, MS_MEMORY_CALLER, &trainer->symbols));
    for (size_t i = 0; i < trainer->byte_count; i++) {
        trainer->symbols[i] =
            ms__vocabulary_find(&trainer->tokenizer->vocabulary, trainer->bytes + i, 1);
    }
    for (size_t i = 0; i < trainer->word_count; i++) {
        const train_word *word = &trainer->words[i];
        const int32_t *symbols = trainer->symbols + word->begin;
        for (uint32_t at = 0; at + 1 < word->length; at++) {
            MS_TRY(change_pair(trainer, symbols[at], symbols[at + 1], word->count, (uint32_t)i));
        }
    }
    for (size_t i = 0; i < trainer->pair_slot_count; i++) {
        if (trainer->pairs[i].pair != UINT64_MAX) {
            MS_TRY(push(trainer, (train_entry){trainer->pairs[i].count, trainer->pairs[i].pair}));
        }
    }
    return MS_OK;
}

/* ---- merging ---- */

/* A pair that gained may now be the best. (Losses are found out when an entry comes up.) */
static ms_status gain(ms_tokenizer_trainer *trainer, int32_t left, int32_t right, int64_t count,
                      uint32_t word) {
    MS_TRY(change_pair(trainer, left, right, count, word));
    uint64_t key = ms__pair(left, right);
    train_pair *pair =
        &trainer->pairs[find_pair_slot(trainer->pairs, trainer->pair_slot_count, key)];
    if (pair->gained_at == trainer->step) {
        return MS_OK;
    }
    MS_TRY(ms_array_reserve((void **)&trainer->gained, &trainer->gained_capacity,
                            trainer->gained_count + 1, sizeof *trainer->gained, MS_MEMORY_CALLER));
    trainer->gained[trainer->gained_count++] = key;
    pair->gained_at = trainer->step;
    return MS_OK;
}

static ms_status push_gained(ms_tokenizer_trainer *trainer) {
    for (size_t i = 0; i < trainer->gained_count; i++) {
        uint64_t key = trainer->gained[i];
        const train_pair *pair =
            &trainer->pairs[find_pair_slot(trainer->pairs, trainer->pair_slot_count, key)];
        MS_TRY(push(trainer, (train_entry){pair->count, key}));
    }
    trainer->gained_count = 0;
    return MS_OK;
}

/* Replaces each (left, right) of a word by `id`, from left to right. */
static ms_status merge_in_word(ms_tokenizer_trainer *trainer, uint32_t index, int32_t left,
                               int32_t right, int32_t id) {
    train_word *word = &trainer->words[index];
    int32_t *symbols = trainer->symbols + word->begin;
    uint32_t kept = 0;
    for (uint32_t at = 0; at < word->length; at++) {
        if (at + 1 >= word->length || symbols[at] != left || symbols[at + 1] != right) {
            symbols[kept++] = symbols[at];
            continue;
        }
        if (kept > 0) {
            MS_TRY(change_pair(trainer, symbols[kept - 1], left, -word->count, index));
            MS_TRY(gain(trainer, symbols[kept - 1], id, word->count, index));
        }
        if (at + 2 < word->length) {
            MS_TRY(change_pair(trainer, right, symbols[at + 2], -word->count, index));
            MS_TRY(gain(trainer, id, symbols[at + 2], word->count, index));
        }
        MS_TRY(change_pair(trainer, left, right, -word->count, index));
        symbols[kept++] = id;
        at++;
    }
    word->length = kept;
    return MS_OK;
}

/* The id of the joined bytes: a new token, or one that another pair has made before. */
static ms_status result_id(ms_tokenizer *tokenizer, int32_t left, int32_t right, int32_t *id) {
    ms_vocabulary *vocabulary = &tokenizer->vocabulary;
    const ms_token *first = &vocabulary->tokens[left], *second = &vocabulary->tokens[right];
    ms_text joined = {0};
    ms_status status;
    MS_TRY_GOTO(ms_text_append(&joined, vocabulary->pool + first->offset, first->length),
                release_joined);
    MS_TRY_GOTO(ms_text_append(&joined, vocabulary->pool + second->offset, second->length),
                release_joined);
    *id = ms__vocabulary_find(vocabulary, joined.bytes, joined.length);
    if (*id < 0) {
        *id = (int32_t)vocabulary->count;
        status = ms__vocabulary_add(vocabulary, *id, joined.bytes, joined.length, 0, "trainer");
    }
release_joined:
    ms_text_release(&joined);
    return status;
}

static ms_status merge_pair(ms_tokenizer_trainer *trainer, uint64_t key) {
    ms_tokenizer *tokenizer = trainer->tokenizer;
    int32_t left = (int32_t)(key >> 32), right = (int32_t)(uint32_t)key, id = -1;
    bool added;
    MS_TRY(result_id(tokenizer, left, right, &id));
    MS_TRY(ms__merge_table_reserve(&tokenizer->merges, tokenizer->merges.count + 1));
    ms__merge_table_put(&tokenizer->merges, left, right, (uint32_t)tokenizer->merges.count, id,
                        &added);
    /* The list is taken out first: the table may move while words change. */
    train_pair *pair =
        &trainer->pairs[find_pair_slot(trainer->pairs, trainer->pair_slot_count, key)];
    uint32_t *words = pair->words;
    size_t count = pair->word_count;
    pair->words = NULL;
    pair->word_count = pair->word_capacity = 0;
    ms_status status = MS_OK;
    for (size_t i = 0; i < count && status == MS_OK; i++) {
        status = merge_in_word(trainer, words[i], left, right, id);
    }
    ms_free(words);
    return status == MS_OK ? push_gained(trainer) : status;
}

static ms_status merge_all(ms_tokenizer_trainer *trainer,
                           void (*progress)(int64_t done, int64_t total, void *context),
                           void *context) {
    const ms_vocabulary *vocabulary = &trainer->tokenizer->vocabulary;
    int64_t target = trainer->vocabulary_size - trainer->special_token_count;
    while ((int64_t)vocabulary->count < target && trainer->heap_count > 0) {
        train_entry best = pop(trainer);
        const train_pair *pair =
            &trainer->pairs[find_pair_slot(trainer->pairs, trainer->pair_slot_count, best.pair)];
        if (pair->count < trainer->pair_count_min) {
            continue;
        }
        if (pair->count != best.count) {
            MS_TRY(push(trainer, (train_entry){pair->count, best.pair}));
            continue;
        }
        trainer->step++;
        MS_TRY(merge_pair(trainer, best.pair));
        if (progress != NULL && trainer->step % PROGRESS_EVERY == 0) {
            progress((int64_t)vocabulary->count, target, context);
        }
    }
    if (progress != NULL) {
        progress((int64_t)vocabulary->count, target, context);
    }
    return MS_OK;
}

ms_status ms_tokenizer_trainer_finish(ms_tokenizer_trainer *trainer,
                                      void (*progress)(int64_t done, int64_t total, void *context),
                                      void *context, ms_tokenizer **tokenizer) {
    if (trainer->tokenizer == NULL || trainer->symbols != NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "the trainer has finished");
    }
    ms_tokenizer *made = trainer->tokenizer;
    MS_TRY(count_pairs(trainer));
    MS_TRY(merge_all(trainer, progress, context));
    for (int i = 0; i < trainer->special_token_count; i++) {
        MS_TRY(ms__config_add_special(made->config, trainer->special_tokens[i],
                                      (int64_t)made->vocabulary.count + i));
    }
    MS_TRY(ms__tokenizer_finish(made, "trainer"));
    trainer->tokenizer = NULL;
    *tokenizer = made;
    return MS_OK;
}
