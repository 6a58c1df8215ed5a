/*
 * text_units.c - where a text may be cut, so that several threads can tokenise it.
 *
 * Stands under tokenize.c. A unit is about half a MiB of one input:
 *
 *   JSONL       lines that begin in the unit (format/jsonl deals with ranges)
 *   lines       cut after a newline; paragraphs: after the first two line ends of a run
 *   whole file  byte tokenizer anywhere, char tokenizer between characters; all others only where
 * the tokenizer itself shows that a cut changes nothing: the ids of 1 KiB before and 1 KiB after it
 * are those of the 2 KiB together
 *
 * Invariants: units cover their part in order and without gaps; they depend on the text and the
 * tokenizer, never on the number of threads.
 * Rejected: cutting at every n-th newline (with GPT-4's pattern ".\n" is one token, so the ids
 * would depend on the cut); knowing the patterns here (a tokenizer.json may hold any).
 */
#include <math.h>
#include <string.h>

#include "data/data_internal.h"

#define UNIT_BYTES ((size_t)512 << 10)
#define CONTEXT_BYTES ((size_t)1024)
#define CANDIDATES_MAX 64
#define REFUSALS_MAX 4 /* then the tokenizer is taken to be one that cannot be cut */

typedef struct cutter {
    const ms_tokenizer *tokenizer;
    ms_tokenizer_scratch *scratch;
    ms_tokens before, after, together;
    int refusals;
} cutter;

static bool continues_character(char byte) {
    return ((unsigned char)byte & 0xc0) == 0x80;
}
static bool is_space(char byte) {
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

int64_t ms__text_characters(const char *bytes, size_t length) {
    int64_t count = 0;
    for (size_t i = 0; i < length; i++) {
        count += !continues_character(bytes[i]);
    }
    return count;
}

size_t ms__text_split(const char *bytes, size_t length, double fraction) {
    int64_t wanted = (int64_t)floor((double)ms__text_characters(bytes, length) * fraction);
    size_t at = 0;
    for (int64_t begun = 0; at < length; at++) {
        begun += !continues_character(bytes[at]);
        if (begun > wanted) {
            break;
        }
    }
    return at;
}

size_t ms__paragraph_end(const char *bytes, size_t at, size_t end) {
    size_t begin = at;
    for (int line_ends = 0; line_ends < 2; line_ends++) {
        at += at + 1 < end && bytes[at] == '\r';
        if (at >= end || bytes[at] != '\n') {
            return 0;
        }
        at++;
    }
    return at - begin;
}

static size_t after_newline(const ms_text_part *part, size_t at) {
    const char *found = memchr(part->bytes + at, '\n', part->end - at);
    return found != NULL ? (size_t)(found - part->bytes) + 1 : part->end;
}

/* Only where a run of line ends begins: there a paragraph ends wherever the search began. */
static size_t after_paragraph(const ms_text_part *part, size_t at) {
    for (; at < part->end; at++) {
        bool inside = part->bytes[at - 1] == '\n' || part->bytes[at - 1] == '\r';
        size_t length = inside ? 0 : ms__paragraph_end(part->bytes, at, part->end);
        if (length > 0) {
            return at + length;
        }
    }
    return part->end;
}

static size_t next_character(const ms_text_part *part, size_t at) {
    while (at < part->end && continues_character(part->bytes[at])) {
        at++;
    }
    return at;
}

static ms_status encode(cutter *cut, const char *bytes, size_t length, ms_tokens *tokens) {
    tokens->count = 0;
    return ms_tokenizer_encode(cut->tokenizer, cut->scratch, bytes, length, 0, tokens);
}

/* Whether the ids around `at` are the same with a cut there. */
static bool may_cut(cutter *cut, const ms_text_part *part, size_t at) {
    size_t begin = at - part->begin > CONTEXT_BYTES ? at - CONTEXT_BYTES : part->begin;
    size_t end = part->end - at > CONTEXT_BYTES ? at + CONTEXT_BYTES : part->end;
    begin = next_character(part, begin);
    while (end > at && end < part->end && continues_character(part->bytes[end])) {
        end--;
    }
    const char *bytes = part->bytes;
    if (begin >= at || end <= at || encode(cut, bytes + begin, at - begin, &cut->before) != MS_OK ||
        encode(cut, bytes + at, end - at, &cut->after) != MS_OK ||
        encode(cut, bytes + begin, end - begin, &cut->together) != MS_OK) {
        return false; /* bad text is reported by whoever tokenises it */
    }
    size_t left = cut->before.count, right = cut->after.count;
    return cut->together.count == left + right &&
           memcmp(cut->together.ids, cut->before.ids, left * sizeof(int32_t)) == 0 &&
           memcmp(cut->together.ids + left, cut->after.ids, right * sizeof(int32_t)) == 0;
}

/* A place between two words at or after `at`, by the tokenizer's own word; the part's end if none.
 */
static size_t after_word(cutter *cut, const ms_text_part *part, size_t at) {
    int candidates = 0;
    for (; cut->refusals < REFUSALS_MAX && candidates < CANDIDATES_MAX && at + 1 < part->end;
         at++) {
        bool left = is_space(part->bytes[at - 1]), right = is_space(part->bytes[at]);
        bool after_line = part->bytes[at - 1] == '\n' && !right;
        if ((left || !right) && !after_line) {
            continue;
        }
        candidates++;
        if (may_cut(cut, part, at)) {
            return at;
        }
    }
    cut->refusals += candidates == CANDIDATES_MAX;
    return part->end;
}

static size_t next_border(cutter *cut, const ms_text_part *part, size_t at) {
    if (part->end - at <= UNIT_BYTES) {
        return part->end;
    }
    at += UNIT_BYTES;
    switch (part->documents) {
    case MS_DOCUMENTS_JSONL:
        return at;
    case MS_DOCUMENTS_LINES:
        return after_newline(part, at);
    case MS_DOCUMENTS_PARAGRAPHS:
        return after_paragraph(part, at);
    case MS_DOCUMENTS_FILE:
        break;
    }
    switch (ms_tokenizer_kind_get(cut->tokenizer)) {
    case MS_TOKENIZER_BYTE:
        return at;
    case MS_TOKENIZER_CHAR:
        return next_character(part, at);
    default:
        return after_word(cut, part, at);
    }
}

typedef struct unit_list {
    ms_text_unit *units;
    size_t capacity;
    int64_t count;
} unit_list;

static ms_status cut_part(cutter *cut, const ms_text_part *part, int64_t index, unit_list *list) {
    for (size_t at = part->begin; at < part->end;) {
        size_t border = next_border(cut, part, at);
        MS_TRY(ms_array_reserve((void **)&list->units, &list->capacity, (size_t)list->count + 1,
                                sizeof *list->units, MS_MEMORY_PROCESS));
        list->units[list->count++] = (ms_text_unit){
            .part = index, .begin = at, .end = border, .is_last = border == part->end};
        at = border;
    }
    return MS_OK;
}

ms_status ms__text_units_make(const ms_tokenizer *tokenizer, const ms_text_part *parts,
                              int64_t part_count, ms_text_unit **units, int64_t *count) {
    cutter cut = {.tokenizer = tokenizer};
    unit_list list = {0};
    ms_status status = ms_tokenizer_scratch_create(tokenizer, &cut.scratch);
    for (int64_t i = 0; i < part_count && status == MS_OK; i++) {
        status = cut_part(&cut, &parts[i], i, &list);
    }
    ms_tokenizer_scratch_destroy(cut.scratch);
    ms_tokens_release(&cut.before);
    ms_tokens_release(&cut.after);
    ms_tokens_release(&cut.together);
    if (status != MS_OK) {
        ms_free(list.units);
        return status;
    }
    *units = list.units;
    *count = list.count;
    return MS_OK;
}
