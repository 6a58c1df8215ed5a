/*
 * The vocabulary: ids to bytes and back.
 *
 * Stands below every tokenizer_*.c file. Keys are what encode looks up: raw bytes for byte-level
 * tokenizers (not GPT-2's printable alphabet, which exists in files only), pieces for the others.
 *
 *   pool    bytes of all keys, one after another
 *   tokens  [id] -> where its key lies
 *   slots   open addressing by xxh3 of the key, at most half full
 *
 * Invariant: two ids never share a key, so find is the inverse of the table.
 *
 * Rejected: a perfect hash (built anew by the trainer and by each load; lookups of whole words are
 * cached anyway); one allocation a token (150,000 of them).
 */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "format/tokenizer_internal.h"

void ms__vocabulary_release(ms_vocabulary *vocabulary) {
    ms_free(vocabulary->pool);
    ms_free(vocabulary->tokens);
    ms_free(vocabulary->slots);
    *vocabulary = (ms_vocabulary){0};
}

static size_t find_slot(const ms_vocabulary *vocabulary, const char *key, size_t length) {
    size_t mask = vocabulary->slot_count - 1;
    size_t slot = (size_t)ms_hash_bytes(key, length) & mask;
    while (vocabulary->slots[slot] >= 0) {
        const ms_token *token = &vocabulary->tokens[vocabulary->slots[slot]];
        if (token->length == length && memcmp(vocabulary->pool + token->offset, key, length) == 0) {
            break;
        }
        slot = (slot + 1) & mask;
    }
    return slot;
}

int32_t ms__vocabulary_find(const ms_vocabulary *vocabulary, const char *key, size_t length) {
    return vocabulary->slot_count == 0 ? -1 : vocabulary->slots[find_slot(vocabulary, key, length)];
}

static ms_status grow_slots(ms_vocabulary *vocabulary) {
    if (2 * (vocabulary->used + 1) <= vocabulary->slot_count) {
        return MS_OK;
    }
    size_t wider = vocabulary->slot_count == 0 ? 1024 : 2 * vocabulary->slot_count;
    int32_t *slots = NULL;
    MS_TRY(MS_NEW(wider, MS_MEMORY_CALLER, &slots));
    memset(slots, 0xff, wider * sizeof *slots);
    ms_free(vocabulary->slots);
    vocabulary->slots = slots;
    vocabulary->slot_count = wider;
    for (size_t id = 0; id < vocabulary->count; id++) {
        const ms_token *token = &vocabulary->tokens[id];
        if ((token->flags & MS_TOKEN_PRESENT) != 0 && (token->flags & MS_TOKEN_LITERAL) == 0) {
            slots[find_slot(vocabulary, vocabulary->pool + token->offset, token->length)] =
                (int32_t)id;
        }
    }
    return MS_OK;
}

static ms_status pool_add(ms_vocabulary *vocabulary, const char *bytes, size_t length,
                          uint32_t *offset) {
    size_t total = vocabulary->pool_bytes + length;
    if (length > MS_TOKEN_BYTES_MAX || total > UINT32_MAX) {
        return ms_fail(MS_ERR_RANGE, "a token of %zu bytes, allowed are %d", length,
                       MS_TOKEN_BYTES_MAX);
    }
    MS_TRY(ms_array_reserve((void **)&vocabulary->pool, &vocabulary->pool_capacity, total + 1, 1,
                            MS_MEMORY_CALLER));
    if (length > 0) {
        memcpy(vocabulary->pool + vocabulary->pool_bytes, bytes, length);
    }
    *offset = (uint32_t)vocabulary->pool_bytes;
    vocabulary->pool_bytes = total;
    return MS_OK;
}

ms_status ms__vocabulary_add(ms_vocabulary *vocabulary, int64_t id, const char *key, size_t length,
                             unsigned flags, const char *where) {
    if (id < 0 || id >= MS_TOKENIZER_VOCABULARY_MAX) {
        return ms_fail(MS_ERR_RANGE,
                       "%s: token \"%.*s\" has id %" PRId64 ", allowed are 0 to %" PRId64, where,
                       (int)(length < 64 ? length : 64), key, id, MS_TOKENIZER_VOCABULARY_MAX - 1);
    }
    if (ms__vocabulary_has(vocabulary, id)) {
        return ms_fail(MS_ERR_EXISTS,
                       "%s: id %" PRId64 " belongs to two tokens, the second is \"%.*s\"", where,
                       id, (int)(length < 64 ? length : 64), key);
    }
    MS_TRY(grow_slots(vocabulary));
    size_t slot = 0;
    if ((flags & MS_TOKEN_LITERAL) == 0) {
        slot = find_slot(vocabulary, key, length);
        if (vocabulary->slots[slot] >= 0) {
            return ms_fail(MS_ERR_EXISTS,
                           "%s: ids %" PRId32 " and %" PRId64 " are the same token \"%.*s\"", where,
                           vocabulary->slots[slot], id, (int)(length < 64 ? length : 64), key);
        }
    }
    uint32_t offset = 0;
    MS_TRY(ms_array_reserve((void **)&vocabulary->tokens, &vocabulary->capacity, (size_t)id + 1,
                            sizeof *vocabulary->tokens, MS_MEMORY_CALLER));
    MS_TRY(pool_add(vocabulary, key, length, &offset));
    vocabulary->tokens[id] = (ms_token){.offset = offset,
                                        .length = (uint32_t)length,
                                        .decoded_offset = offset,
                                        .decoded_length = (uint32_t)length,
                                        .flags = (uint8_t)(flags | MS_TOKEN_PRESENT)};
    if ((flags & MS_TOKEN_LITERAL) == 0) {
        vocabulary->slots[slot] = (int32_t)id;
        vocabulary->used++;
    }
    if ((size_t)id >= vocabulary->count) {
        vocabulary->count = (size_t)id + 1;
    }
    return MS_OK;
}

ms_status ms__vocabulary_set_decoded(ms_vocabulary *vocabulary, int32_t id, const char *bytes,
                                     size_t length) {
    uint32_t offset = 0;
    MS_TRY(pool_add(vocabulary, bytes, length, &offset));
    vocabulary->tokens[id].decoded_offset = offset;
    vocabulary->tokens[id].decoded_length = (uint32_t)length;
    return MS_OK;
}

/*
 * The alphabet: printable Latin-1 bytes are themselves; the 68 others are numbered upwards from 256
 * in order. (Control characters, space, 0x7f to 0xa0 and the soft hyphen 0xad.)
 */
static bool is_printable(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

uint32_t ms__byte_to_code_point(uint8_t byte) {
    if (is_printable(byte)) {
        return byte;
    }
    uint32_t rank = 0;
    for (unsigned other = 0; other < byte; other++) {
        rank += is_printable(other) ? 0 : 1;
    }
    return 256 + rank;
}

int ms__code_point_to_byte(uint32_t code_point) {
    if (code_point < 256) {
        return is_printable(code_point) ? (int)code_point : -1;
    }
    uint32_t rank = code_point - 256;
    if (rank < 33) {
        return (int)rank; /* 0x00 to 0x20 */
    }
    if (rank < 33 + 34) {
        return (int)(0x7f + rank - 33); /* 0x7f to 0xa0 */
    }
    return rank == 67 ? 0xad : -1;
}

bool ms__alphabet_decode(const char *text, size_t length, char *out, size_t *out_length) {
    size_t count = 0;
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        i += (size_t)ms_utf8_decode(text + i, length - i, &code_point);
        int byte = ms__code_point_to_byte(code_point);
        if (byte < 0) {
            return false;
        }
        out[count++] = (char)byte;
    }
    *out_length = count;
    return true;
}

ms_status ms__alphabet_encode(const char *bytes, size_t length, ms_text *out) {
    for (size_t i = 0; i < length; i++) {
        char utf8[4];
        int count = ms_utf8_encode(ms__byte_to_code_point((uint8_t)bytes[i]), utf8);
        MS_TRY(ms_text_append(out, utf8, (size_t)count));
    }
    return MS_OK;
}

static int hex_digit(char digit) {
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

bool ms__is_byte_token(const char *text, size_t length, uint8_t *byte) {
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || hex_digit(text[3]) < 0 ||
        hex_digit(text[4]) < 0) {
        return false;
    }
    *byte = (uint8_t)(hex_digit(text[3]) * 16 + hex_digit(text[4]));
    return true;
}
