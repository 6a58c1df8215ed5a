/*
 * Tokenizers from everything that is not a tokenizer.json: GPT-2's two files, tiktoken's rank
 * files, SentencePiece pieces written as text, and the two made from nothing (byte) or from a text
 * (char).
 *
 * Stands beside tokenizer_json.c: each builds the document that a tokenizer.json would have had, so
 * that all of them configure, finish and save in one way.
 *
 * tiktoken: a file has "base64 rank" a line and means: of all neighbours whose joined bytes are in
 * the file, join those of the lowest rank. So every cut of every token into two tokens is a merge
 * with the token's rank. SentencePiece: the same with scores, highest first.
 *
 * Rejected: keeping ranks by joined bytes at run time (a hash of bytes for each pair of neighbours;
 * pairs of ids are several times faster).
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"
#include "format/tokenizer_internal.h"

#define RANK_FILE_BYTES_MAX ((size_t)256 << 20)

/* ---- configurations ---- */

json_t *ms__byte_level_config(const char *pattern) {
    json_t *byte_level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                                   0, "trim_offsets", 1, "use_regex", pattern == NULL);
    json_t *split = json_incref(byte_level); /* cuts by GPT-2's pattern, or not at all */
    if (pattern != NULL && pattern[0] != '\0') {
        json_decref(split);
        split = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, O]}", "type", "Sequence",
                          "pretokenizers", "type", "Split", "pattern", "Regex", pattern, "behavior",
                          "Isolated", "invert", 0, byte_level);
    }
    return json_pack(
        "{s:s, s:n, s:n, s:[], s:n, s:o, s:O, s:o, s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, "
        "s:b}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
        split, "post_processor", byte_level, "decoder", byte_level, "model", "type", "BPE",
        "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", 0);
}

ms_status ms__config_add_special(json_t *config, const char *content, int64_t id) {
    json_t *token =
        json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content", content,
                  "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    if (json_array_append_new(json_object_get(config, "added_tokens"), token) != 0) {
        return ms_fail(MS_ERR_ARGUMENT, "special token \"%.64s\" is not UTF-8", content);
    }
    return MS_OK;
}

static json_t *characters_config(void) {
    return json_pack("{s:s, s:n, s:n, s:[], s:n, s:{s:s, s:{s:s}, s:s, s:b}, s:n, s:{s:s}, s:{s:s, "
                     "s:s}}",
                     "version", "1.0", "truncation", "padding", "added_tokens", "normalizer",
                     "pre_tokenizer", "type", "Split", "pattern", "Regex", ms__pattern_character,
                     "behavior", "Isolated", "invert", 0, "post_processor", "decoder", "type",
                     "Fuse", "model", "type", "WordLevel", "unk_token", "<unk>");
}

static json_t *pieces_config(void) {
    json_t *config =
        json_pack("{s:s, s:n, s:n, s:[], s:{s:s, s:[{s:s, s:s}, {s:s, s:{s:s}, s:s}]}, s:n}",
                  "version", "1.0", "truncation", "padding", "added_tokens", "normalizer", "type",
                  "Sequence", "normalizers", "type", "Prepend", "prepend", MS_WORD_MARK, "type",
                  "Replace", "pattern", "String", " ", "content", MS_WORD_MARK, "pre_tokenizer");
    json_t *post = json_pack(
        "{s:s, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:[], s:{s:{s:s, s:[i], s:[s]}}}", "type",
        "TemplateProcessing", "single", "SpecialToken", "id", "<s>", "type_id", 0, "Sequence", "id",
        "A", "type_id", 0, "pair", "special_tokens", "<s>", "id", "<s>", "ids", 1, "tokens", "<s>");
    json_t *decoder = json_pack(
        "{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}, {s:s, s:s, s:i, s:i}]}", "type", "Sequence",
        "decoders", "type", "Replace", "pattern", "String", MS_WORD_MARK, "content", " ", "type",
        "ByteFallback", "type", "Fuse", "type", "Strip", "content", " ", "start", 1, "stop", 0);
    json_t *model =
        json_pack("{s:s, s:n, s:s, s:n, s:n, s:b, s:b, s:b}", "type", "BPE", "dropout", "unk_token",
                  "<unk>", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1,
                  "byte_fallback", 1, "ignore_merges", 0);
    json_object_set_new(config, "post_processor", post);
    json_object_set_new(config, "decoder", decoder);
    json_object_set_new(config, "model", model);
    return config;
}

/* Makes the tokenizer, has `fill` load its tables, finishes it. */
typedef ms_status (*fill_function)(ms_tokenizer *tokenizer, const void *source, const char *name);

static ms_status build(json_t *config, fill_function fill, const void *source, const char *name,
                       ms_tokenizer **tokenizer) {
    if (config == NULL) {
        return ms_fail(MS_ERR_MEMORY, "%s: no memory for its configuration", name);
    }
    ms_tokenizer *made = NULL;
    ms_status status = ms__tokenizer_new(&made);
    if (status != MS_OK) {
        json_decref(config);
        return status;
    }
    status = ms__tokenizer_configure(made, config, name);
    if (status == MS_OK) {
        status = fill(made, source, name);
    }
    if (status == MS_OK) {
        status = ms__tokenizer_finish(made, name);
    }
    if (status != MS_OK) {
        ms_tokenizer_destroy(made);
        return status;
    }
    *tokenizer = made;
    return MS_OK;
}

/* ---- byte and char ---- */

static ms_status fill_bytes(ms_tokenizer *tokenizer, const void *source, const char *name) {
    (void)source;
    for (int byte = 0; byte < 256; byte++) {
        char key = (char)byte;
        MS_TRY(ms__vocabulary_add(&tokenizer->vocabulary, byte, &key, 1, 0, name));
    }
    return MS_OK;
}

ms_status ms_tokenizer_create_byte(ms_tokenizer **tokenizer) {
    return build(ms__byte_level_config(""), fill_bytes, NULL, "byte tokenizer", tokenizer);
}

static ms_status fill_characters(ms_tokenizer *tokenizer, const void *source, const char *name) {
    const uint8_t *seen = source; /* a bit for each code point */
    int64_t id = 0;
    for (uint32_t code_point = 1; code_point < 0x110000; code_point++) {
        if ((seen[code_point / 8] >> (code_point % 8) & 1) != 0) {
            char utf8[4];
            int length = ms_utf8_encode(code_point, utf8);
            MS_TRY(ms__vocabulary_add(&tokenizer->vocabulary, id++, utf8, (size_t)length, 0, name));
        }
    }
    return MS_OK;
}

ms_status ms_tokenizer_create_char(const char *text, size_t length, ms_tokenizer **tokenizer) {
    size_t valid = ms_utf8_valid_prefix(text, length);
    if (valid != length) {
        return ms_fail(MS_ERR_FORMAT, "char tokenizer: text is not UTF-8 at byte %zu (0x%02x)",
                       valid, (unsigned)(uint8_t)text[valid]);
    }
    if (length == 0) {
        return ms_fail(MS_ERR_FORMAT, "char tokenizer: the text is empty");
    }
    const char *nul = memchr(text, '\0', length);
    if (nul != NULL) {
        return ms_fail(MS_ERR_FORMAT, "char tokenizer: a NUL character at byte %zu",
                       (size_t)(nul - text));
    }
    uint8_t *seen = NULL;
    MS_TRY(ms_alloc(0x110000 / 8, MS_MEMORY_CALLER, (void **)&seen));
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        i += (size_t)ms_utf8_decode(text + i, length - i, &code_point);
        seen[code_point / 8] |= (uint8_t)(1u << (code_point % 8));
    }
    ms_status status =
        build(characters_config(), fill_characters, seen, "char tokenizer", tokenizer);
    ms_free(seen);
    return status;
}

/* ---- lines of a text ---- */

typedef struct lines {
    const char *text, *end;
    int64_t number; /* of the line at hand, from 1 */
} lines;

static bool next_line(lines *file, const char **line, size_t *length) {
    if (file->text == NULL || file->text >= file->end) {
        return false;
    }
    const char *newline = memchr(file->text, '\n', (size_t)(file->end - file->text));
    const char *stop = newline != NULL ? newline : file->end;
    *line = file->text;
    *length = (size_t)(stop - file->text);
    if (*length > 0 && (*line)[*length - 1] == '\r') {
        --*length;
    }
    file->text = newline != NULL ? newline + 1 : file->end;
    file->number++;
    return true;
}

/* ---- GPT-2 ---- */

typedef struct gpt2_source {
    const ms_json *vocabulary;
    const ms_text *merges;
    const char *merges_path;
} gpt2_source;

static ms_status fill_gpt2(ms_tokenizer *tokenizer, const void *source, const char *name) {
    const gpt2_source *from = source;
    MS_TRY(ms__tokenizer_add_vocabulary(tokenizer, from->vocabulary->root, name));
    lines file = {.text = from->merges->bytes, .end = from->merges->bytes + from->merges->length};
    const char *line = NULL;
    size_t length = 0;
    uint32_t rank = 0;
    while (next_line(&file, &line, &length)) {
        if (length == 0 || (file.number == 1 && length >= 8 && memcmp(line, "#version", 8) == 0)) {
            continue;
        }
        const char *space = memchr(line, ' ', length);
        size_t left = space != NULL ? (size_t)(space - line) : 0;
        if (left == 0 || left + 1 == length) {
            return ms_fail(MS_ERR_FORMAT, "%s:%" PRId64 ": expected two tokens and a space between",
                           from->merges_path, file.number);
        }
        MS_TRY(ms__tokenizer_add_merge(tokenizer, line, left, space + 1, length - left - 1, rank++,
                                       from->merges_path));
    }
    static const char end_of_text[] = "<|endoftext|>";
    int32_t id = ms__vocabulary_find(&tokenizer->vocabulary, end_of_text, sizeof end_of_text - 1);
    return id >= 0 ? ms__config_add_special(tokenizer->config, end_of_text, id) : MS_OK;
}

ms_status ms_tokenizer_load_gpt2(const char *vocabulary_path, const char *merges_path,
                                 ms_tokenizer **tokenizer) {
    ms_json vocabulary = {0};
    ms_text merges = {0};
    MS_TRY(ms_json_open(vocabulary_path, MS_TOKENIZER_JSON_BYTES_MAX, &vocabulary));
    ms_status status = ms_file_read(merges_path, RANK_FILE_BYTES_MAX, &merges);
    if (status == MS_OK && ms_utf8_valid_prefix(merges.bytes, merges.length) != merges.length) {
        status = ms_fail(MS_ERR_FORMAT, "%s: not UTF-8 at byte %zu", merges_path,
                         ms_utf8_valid_prefix(merges.bytes, merges.length));
    }
    if (status == MS_OK) {
        gpt2_source source = {&vocabulary, &merges, merges_path};
        status = build(ms__byte_level_config(NULL), fill_gpt2, &source, vocabulary_path, tokenizer);
    }
    ms_text_release(&merges);
    ms_json_close(&vocabulary);
    return status;
}

/* ---- tiktoken ---- */

typedef struct encoding_special {
    const char *content;
    int64_t id;
} encoding_special;

typedef struct encoding {
    const char *name, *pattern; /* NULL: GPT-2's */
    encoding_special special[6];
} encoding;

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SPACES_LAST "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const encoding encodings[] = {
    {"r50k_base", NULL, {{"<|endoftext|>", 50256}}},
    {"cl100k_base",
     CONTRACTIONS
     "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES_LAST,
     {{"<|endoftext|>", 100257},
      {"<|fim_prefix|>", 100258},
      {"<|fim_middle|>", 100259},
      {"<|fim_suffix|>", 100260},
      {"<|endofprompt|>", 100276}}},
    {"o200k_base",
     "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?"
     "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTIONS "?"
     "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES_LAST,
     {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
};

static int base64_value(char digit) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = digit != '\0' ? strchr(digits, digit) : NULL;
    return found != NULL ? (int)(found - digits) : -1;
}

/* Decodes in place of `out`, which has room for 3/4 of length + 3; false when it is no base64. */
static bool base64_decode(const char *text, size_t length, char *out, size_t *out_length) {
    while (length > 0 && text[length - 1] == '=') {
        length--;
    }
    uint32_t bits = 0;
    unsigned count = 0;
    size_t made = 0;
    for (size_t i = 0; i < length; i++) {
        int value = base64_value(text[i]);
        if (value < 0) {
            return false;
        }
        bits = bits << 6 | (uint32_t)value;
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[made++] = (char)(bits >> count & 0xff);
        }
    }
    *out_length = made;
    return made > 0;
}

typedef struct rank_source {
    ms_text *file;
    const encoding *encoding; /* NULL: a pattern of the caller's */
} rank_source;

static ms_status add_rank_line(ms_tokenizer *tokenizer, const char *line, size_t length,
                               int64_t number, const char *name) {
    char bytes[1024 + 3], digits[24] = "";
    const char *space = memchr(line, ' ', length);
    size_t left = space != NULL ? (size_t)(space - line) : length;
    size_t right = space != NULL ? length - left - 1 : 0;
    size_t count = 0;
    int64_t rank = -1;
    if (right > 0 && right < sizeof digits) {
        memcpy(digits, space + 1, right);
    }
    if (left * 3 / 4 > 1024 || !base64_decode(line, left, bytes, &count) ||
        !ms_parse_i64(digits, &rank)) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s:%" PRId64 ": expected a token in base64, a space and its rank", name,
                       number);
    }
    return ms__vocabulary_add(&tokenizer->vocabulary, rank, bytes, count, 0, name);
}

static ms_status fill_ranks(ms_tokenizer *tokenizer, const void *source, const char *name) {
    const rank_source *from = source;
    lines file = {.text = from->file->bytes, .end = from->file->bytes + from->file->length};
    const char *line = NULL;
    size_t length = 0;
    while (next_line(&file, &line, &length)) {
        if (length > 0) {
            MS_TRY(add_rank_line(tokenizer, line, length, file.number, name));
        }
    }
    size_t count = tokenizer->vocabulary.count;
    for (int byte = 0; byte < 256; byte++) {
        char key = (char)byte;
        if (ms__vocabulary_find(&tokenizer->vocabulary, &key, 1) < 0) {
            return ms_fail(MS_ERR_FORMAT, "%s: no token for byte 0x%02x; is it a whole rank file?",
                           name, (unsigned)byte);
        }
    }
    uint32_t *ranks = NULL;
    MS_TRY(MS_NEW(count, MS_MEMORY_CALLER, &ranks));
    for (size_t id = 0; id < count; id++) {
        ranks[id] = (uint32_t)id;
    }
    ms_status status = ms__tokenizer_add_all_pairs(tokenizer, ranks);
    ms_free(ranks);
    MS_TRY(status);
    tokenizer->ignore_merges = true; /* a word that is a token is that token */
    json_object_set_new(json_object_get(tokenizer->config, "model"), "ignore_merges", json_true());
    for (int i = 0; from->encoding != NULL && from->encoding->special[i].content != NULL; i++) {
        MS_TRY(ms__config_add_special(tokenizer->config, from->encoding->special[i].content,
                                      from->encoding->special[i].id));
    }
    return MS_OK;
}

ms_status ms_tokenizer_load_tiktoken(const char *path, const char *encoding_name,
                                     ms_tokenizer **tokenizer) {
    const encoding *known = NULL;
    if (ms_utf8_valid_prefix(encoding_name, strlen(encoding_name)) != strlen(encoding_name)) {
        return ms_fail(MS_ERR_ARGUMENT, "%s: the pattern is not UTF-8", path);
    }
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++) {
        known = strcmp(encoding_name, encodings[i].name) == 0 ? &encodings[i] : known;
    }
    ms_text file = {0};
    ms_status status = ms_file_read(path, RANK_FILE_BYTES_MAX, &file);
    if (status == MS_OK) {
        rank_source source = {&file, known};
        const char *pattern = known != NULL ? known->pattern : encoding_name;
        status = build(ms__byte_level_config(pattern), fill_ranks, &source, path, tokenizer);
    }
    ms_text_release(&file);
    return status;
}

/* ---- SentencePiece as text ---- */

/* "latin-1": each character stands for one byte. Spaces become marks; "\n<s>\n" is "<s>". */
static ms_status spell_piece(const char *piece, const char *name, size_t index, ms_text *key) {
    size_t length = strlen(piece);
    ms_text_clear(key);
    MS_TRY(ms_text_append(key, "", 0)); /* an empty piece is a string too */
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        i += (size_t)ms_utf8_decode(piece + i, length - i, &code_point);
        char byte = (char)code_point;
        if (code_point > 0xff) {
            return ms_fail(MS_ERR_FORMAT, "%s: piece %zu has U+%04" PRIX32 ", which is no Latin-1",
                           name, index, code_point);
        }
        MS_TRY(byte == ' ' ? ms_text_append_z(key, MS_WORD_MARK) : ms_text_append(key, &byte, 1));
    }
    if (ms_utf8_valid_prefix(key->bytes, key->length) != key->length) {
        return ms_fail(MS_ERR_FORMAT, "%s: piece %zu is not UTF-8", name, index);
    }
    if (strcmp(key->bytes, "\n<s>\n") == 0 || strcmp(key->bytes, "\n</s>\n") == 0) {
        memmove(key->bytes, key->bytes + 1, key->length - 2);
        key->length -= 2;
        key->bytes[key->length] = '\0';
    }
    return MS_OK;
}

typedef struct scored {
    double score;
    size_t id;
} scored;

static int compare_scores(const void *a, const void *b) {
    const scored *left = a, *right = b;
    if (left->score != right->score) {
        return left->score > right->score ? -1 : 1;
    }
    return left->id < right->id ? -1 : left->id > right->id;
}

static bool is_control(const char *key, size_t length) {
    uint8_t byte;
    return ms__is_byte_token(key, length, &byte) || strcmp(key, "<unk>") == 0 ||
           strcmp(key, "<s>") == 0 || strcmp(key, "</s>") == 0;
}

static ms_status add_pieces(ms_tokenizer *tokenizer, const json_t *pieces, const char *name,
                            scored *scores, uint32_t *ranks, ms_text *key) {
    size_t count = json_array_size(pieces);
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(pieces, i);
        const char *piece = json_string_value(json_array_get(entry, 0));
        if (piece == NULL || !json_is_number(json_array_get(entry, 1))) {
            return ms_fail(MS_ERR_FORMAT, "%s: piece %zu is not [text, score]", name, i);
        }
        MS_TRY(spell_piece(piece, name, i, key));
        MS_TRY(ms__vocabulary_add(&tokenizer->vocabulary, (int64_t)i, key->bytes, key->length, 0,
                                  name));
        scores[i] = (scored){json_number_value(json_array_get(entry, 1)), i};
        ranks[i] = is_control(key->bytes, key->length) ? UINT32_MAX : 0;
        if (strcmp(key->bytes, "<unk>") == 0 || strcmp(key->bytes, "<s>") == 0 ||
            strcmp(key->bytes, "</s>") == 0) {
            MS_TRY(ms__config_add_special(tokenizer->config, key->bytes, (int64_t)i));
        }
    }
    qsort(scores, count, sizeof *scores, compare_scores);
    uint32_t rank = 0;
    for (size_t i = 0; i < count;
         i++) { /* equal scores share a rank: the leftmost pair wins then */
        rank += i > 0 && scores[i].score != scores[i - 1].score ? 1 : 0;
        if (ranks[scores[i].id] != UINT32_MAX) {
            ranks[scores[i].id] = rank;
        }
    }
    return ms__tokenizer_add_all_pairs(tokenizer, ranks);
}

static ms_status fill_pieces(ms_tokenizer *tokenizer, const void *source, const char *name) {
    const json_t *pieces = source;
    size_t count = json_array_size(pieces);
    if (count == 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: \"pieces\" is not a list of [text, score]", name);
    }
    scored *scores = NULL;
    uint32_t *ranks = NULL;
    ms_text key = {0};
    ms_status status;
    MS_TRY(MS_NEW(count, MS_MEMORY_CALLER, &scores));
    MS_TRY_GOTO(MS_NEW(count, MS_MEMORY_CALLER, &ranks), free_scores);
    status = add_pieces(tokenizer, pieces, name, scores, ranks, &key);
    ms_text_release(&key);
    ms_free(ranks);
free_scores:
    ms_free(scores);
    return status;
}

ms_status ms__tokenizer_from_pieces(const json_t *pieces, const char *name,
                                    ms_tokenizer **tokenizer) {
    return build(pieces_config(), fill_pieces, pieces, name, tokenizer);
}

/* ---- by content ---- */

static bool ends_with(const char *text, const char *suffix) {
    size_t length = strlen(text), tail = strlen(suffix);
    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

static ms_status load_rank_file(const char *path, ms_tokenizer **tokenizer) {
    const char *slash = strrchr(path, '/');
    const char *file = slash != NULL ? slash + 1 : path;
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++) {
        size_t length = strlen(encodings[i].name);
        if (strncmp(file, encodings[i].name, length) == 0 && file[length] == '.') {
            return ms_tokenizer_load_tiktoken(path, encodings[i].name, tokenizer);
        }
    }
    return ms_fail(
        MS_ERR_UNSUPPORTED,
        "%s: the file's name must be one of r50k_base, cl100k_base, o200k_base, as it says "
        "how words are split",
        path);
}

ms_status ms_tokenizer_load_memory(const char *bytes, size_t length, const char *name,
                                   ms_tokenizer **tokenizer) {
    return ms__tokenizer_from_json(bytes, length, name, NULL, tokenizer);
}

static ms_status load_json(const char *path, const json_t *added, ms_tokenizer **tokenizer) {
    ms_text text = {0};
    ms_status status = ms_file_read(path, MS_TOKENIZER_JSON_BYTES_MAX, &text);
    if (status == MS_OK) {
        status = ms__tokenizer_from_json(text.bytes != NULL ? text.bytes : "", text.length, path,
                                         added, tokenizer);
    }
    ms_text_release(&text);
    return status;
}

/* The only *.tiktoken file of a directory; path is left empty when there is none. */
static ms_status find_rank_file(const char *dir, char path[MS_PATH_BYTES]) {
    DIR *stream = opendir(dir);
    if (stream == NULL) {
        return ms_fail(MS_ERR_IO, "%s: cannot read directory: %s", dir, strerror(errno));
    }
    ms_status status = MS_OK;
    path[0] = '\0';
    for (struct dirent *entry; status == MS_OK && (entry = readdir(stream)) != NULL;) {
        if (!ends_with(entry->d_name, ".tiktoken")) {
            continue;
        }
        status = path[0] != '\0' ? ms_fail(MS_ERR_ARGUMENT,
                                           "%s: several .tiktoken files; name one of them", dir)
                                 : ms_path_join(dir, entry->d_name, path, MS_PATH_BYTES);
    }
    closedir(stream);
    return status;
}

static ms_status load_directory(const char *dir, const json_t *added, ms_tokenizer **tokenizer) {
    static const char *const pairs[][2] = {{"vocab.json", "merges.txt"},
                                           {"encoder.json", "vocab.bpe"}};
    char path[MS_PATH_BYTES], merges[MS_PATH_BYTES];
    MS_TRY(ms_path_join(dir, "tokenizer.json", path, sizeof path));
    if (ms_path_exists(path)) {
        return load_json(path, added, tokenizer);
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        MS_TRY(ms_path_join(dir, pairs[i][0], path, sizeof path));
        MS_TRY(ms_path_join(dir, pairs[i][1], merges, sizeof merges));
        if (ms_path_exists(path) && ms_path_exists(merges)) {
            return ms_tokenizer_load_gpt2(path, merges, tokenizer);
        }
    }
    MS_TRY(find_rank_file(dir, path));
    if (path[0] != '\0') {
        return load_rank_file(path, tokenizer);
    }
    return ms_fail(
        MS_ERR_NOT_FOUND,
        "%s: no tokenizer here: neither tokenizer.json, nor vocab.json and merges.txt, nor "
        "encoder.json and vocab.bpe, nor *.tiktoken",
        dir);
}

/* What tokenizer_config.json says of one special id: nothing, none (null), or a token's text. */
static ms_status read_special(const ms_tokenizer *tokenizer, const ms_json *config, const char *key,
                              int32_t *id) {
    const json_t *value = json_object_get(config->root, key);
    if (value == NULL) {
        return MS_OK;
    }
    if (json_is_object(value)) {
        value = json_object_get(value, "content");
    }
    const char *content = json_string_value(value);
    if (content == NULL) {
        *id = -1;
        return MS_OK;
    }
    *id = ms_tokenizer_find(tokenizer, content, strlen(content));
    if (*id < 0) {
        return ms_fail(MS_ERR_MISMATCH, "%s: %s \"%.64s\" is not in the vocabulary", config->name,
                       key, content);
    }
    return MS_OK;
}

static ms_status load_with_config(const char *dir, const ms_json *config,
                                  ms_tokenizer **tokenizer) {
    const json_t *added = json_object_get(config->root, "added_tokens_decoder");
    ms_tokenizer *made = NULL;
    MS_TRY(load_directory(dir, json_is_object(added) ? added : NULL, &made));
    ms_status status;
    MS_TRY_GOTO(read_special(made, config, "bos_token", &made->bos), destroy_made);
    MS_TRY_GOTO(read_special(made, config, "eos_token", &made->eos), destroy_made);
    MS_TRY_GOTO(read_special(made, config, "pad_token", &made->pad), destroy_made);
    *tokenizer = made;
    return MS_OK;
destroy_made:
    ms_tokenizer_destroy(made);
    return status;
}

ms_status ms_tokenizer_load(const char *path, ms_tokenizer **tokenizer) {
    if (!ms_path_is_directory(path)) {
        return ends_with(path, ".tiktoken") ? load_rank_file(path, tokenizer)
                                            : load_json(path, NULL, tokenizer);
    }
    char config_path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(path, "tokenizer_config.json", config_path, sizeof config_path));
    if (!ms_path_exists(config_path)) {
        return load_directory(path, NULL, tokenizer);
    }
    ms_json config = {0};
    MS_TRY(ms_json_open(config_path, MS_JSON_BYTES_MAX, &config));
    ms_status status = load_with_config(path, &config, tokenizer);
    ms_json_close(&config);
    return status;
}
