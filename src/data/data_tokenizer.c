/*
 * data_tokenizer.c - which tokenizer a run uses: the one named, the model's, the one stored beside
 * the data, or the characters of the text.
 *
 * Stands beside data_source.c: train/session.c asks for the tokenizer first, as the vocabulary
 * shapes the model. `data build` stores the tokenizer of PREFIX.bin in PREFIX.tokenizer/.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "data/data_internal.h"
#include "format/jsonl.h"

#define CODE_POINTS 0x110000

/* ---- the characters of texts ---- */

static ms_status collect(const char *name, const char *bytes, size_t length, uint8_t *seen) {
    size_t valid = ms_utf8_valid_prefix(bytes, length);
    if (valid != length) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: not UTF-8 at byte %zu (0x%02x); convert the file, or use the byte "
                       "tokenizer",
                       name, valid, (unsigned)(unsigned char)bytes[valid]);
    }
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        i += (size_t)ms_utf8_decode(bytes + i, length - i, &code_point);
        if (code_point == 0) {
            return ms_fail(MS_ERR_FORMAT, "%s: a NUL character at byte %zu; use the byte tokenizer",
                           name, i - 1);
        }
        seen[code_point / 8] |= (uint8_t)(1u << (code_point % 8));
    }
    return MS_OK;
}

static ms_status collect_objects(const char *path, const char *text_key, uint8_t *seen) {
    ms_jsonl_reader *reader;
    MS_TRY(ms_jsonl_reader_open(path, NULL, &reader));
    ms_status status;
    const char *text = NULL;
    size_t length = 0;
    while ((status = ms_jsonl_reader_next_text(reader, text_key, &text, &length)) == MS_OK &&
           text != NULL) {
        status = collect(path, text, length, seen);
        if (status != MS_OK) {
            ms_error_prefix("line %" PRId64, ms_jsonl_reader_line(reader));
            break;
        }
    }
    ms_jsonl_reader_close(reader);
    return status;
}

static ms_status collect_file(const char *path, const char *text_key, uint8_t *seen) {
    ms_source_kind kind;
    MS_TRY(ms__data_source_kind_of(path, &kind));
    if (kind == MS_SOURCE_INDEXED) {
        return ms_fail(MS_ERR_CONFIG,
                       "the char tokenizer is made from text, and %s holds token ids; name the "
                       "tokenizer that made them",
                       path);
    }
    if (kind == MS_SOURCE_JSONL) {
        return collect_objects(path, text_key, seen);
    }
    ms_file_map map;
    MS_TRY(ms_file_map_open(path, &map));
    ms_status status = collect(path, (const char *)map.data, map.bytes, seen);
    ms_file_map_close(&map);
    return status;
}

static ms_status make_char(const uint8_t *seen, ms_text *alphabet, ms_tokenizer **tokenizer) {
    for (uint32_t code_point = 1; code_point < CODE_POINTS; code_point++) {
        if ((seen[code_point / 8] >> (code_point % 8) & 1) != 0) {
            char utf8[4];
            int length = ms_utf8_encode(code_point, utf8);
            MS_TRY(ms_text_append(alphabet, utf8, (size_t)length));
        }
    }
    return ms_tokenizer_create_char(alphabet->bytes != NULL ? alphabet->bytes : "",
                                    alphabet->length, tokenizer);
}

static ms_status create_char(const char *const *inputs, int input_count, const char *text_key,
                             ms_tokenizer **tokenizer) {
    uint8_t *seen = NULL;
    MS_TRY(ms_alloc(CODE_POINTS / 8, MS_MEMORY_PROCESS, (void **)&seen));
    ms_status status = MS_OK;
    for (int i = 0; i < input_count && status == MS_OK; i++) {
        status = collect_file(inputs[i], text_key, seen);
    }
    ms_text alphabet = {0};
    if (status == MS_OK) {
        status = make_char(seen, &alphabet, tokenizer);
        if (status != MS_OK && input_count > 0) {
            ms_error_prefix("%s%s", inputs[0], input_count > 1 ? " and what else is named" : "");
        }
    }
    ms_text_release(&alphabet);
    ms_free(seen);
    return status;
}

/* ---- by name ---- */

/* A file of GPT-2's pair stands for its directory, where the other one is. */
static bool is_pair_file(const char *name) {
    static const char *const names[] = {"vocab.json", "merges.txt", "encoder.json", "vocab.bpe"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static ms_status load(const char *path, ms_tokenizer **tokenizer) {
    if (!ms_path_exists(path)) {
        return ms_fail(MS_ERR_NOT_FOUND,
                       "no tokenizer \"%s\": neither char nor byte, nor a file or directory", path);
    }
    const char *slash = strrchr(path, '/');
    if (ms_path_is_directory(path) || !is_pair_file(slash != NULL ? slash + 1 : path)) {
        return ms_tokenizer_load(path, tokenizer);
    }
    char dir[MS_PATH_BYTES];
    snprintf(dir, sizeof dir, "%.*s", slash != NULL ? (int)(slash - path) : 1,
             slash != NULL ? path : ".");
    return ms_tokenizer_load(dir[0] != '\0' ? dir : "/", tokenizer);
}

ms_status ms_data_tokenizer_named(const char *name, const char *const *inputs, int input_count,
                                  const char *text_key, ms_tokenizer **tokenizer) {
    if (strcmp(name, "byte") == 0) {
        return ms_tokenizer_create_byte(tokenizer);
    }
    if (strcmp(name, "char") == 0) {
        return create_char(inputs, input_count, text_key != NULL ? text_key : "text", tokenizer);
    }
    return load(name, tokenizer);
}

/* ---- by place ---- */

static ms_status load_if_there(const char *dir, ms_tokenizer **tokenizer, bool *found) {
    static const char *const files[] = {"tokenizer.json", "vocab.json", "encoder.json"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[MS_PATH_BYTES];
        MS_TRY(ms_path_join(dir, files[i], path, sizeof path));
        if (ms_path_exists(path)) {
            *found = true;
            MS_TRY(ms_tokenizer_load(dir, tokenizer));
            ms_log_debug("tokenizer of %s", dir);
            return MS_OK;
        }
    }
    return MS_OK;
}

/* Beside a pair, where `data build` puts it: PREFIX.tokenizer/. */
static ms_status load_beside(const char *path, ms_tokenizer **tokenizer, bool *found) {
    char dir[MS_PATH_BYTES];
    size_t length = strlen(path);
    if (length > 4 &&
        (strcmp(path + length - 4, ".bin") == 0 || strcmp(path + length - 4, ".idx") == 0)) {
        length -= 4;
    }
    if (length + sizeof ".tokenizer" > sizeof dir) {
        return ms_fail(MS_ERR_RANGE, "a path of %zu bytes is too long", length);
    }
    snprintf(dir, sizeof dir, "%.*s.tokenizer", (int)length, path);
    return load_if_there(dir, tokenizer, found);
}

static void add_paths(const ms_config_list *list, const char **paths, int *count) {
    for (int i = 0; list != NULL && i < list->count; i++) {
        paths[(*count)++] = list->entries[i].path;
    }
}

static ms_status find(const ms_data_config *config, const char *model_dir, const char **paths,
                      int path_count, ms_tokenizer **tokenizer) {
    if (config->tokenizer != NULL) {
        ms_status status = ms_data_tokenizer_named(config->tokenizer, paths, path_count,
                                                   config->text_key, tokenizer);
        if (status != MS_OK) {
            ms_error_prefix("data.tokenizer");
        }
        return status;
    }
    bool found = false;
    if (model_dir != NULL) {
        MS_TRY(load_if_there(model_dir, tokenizer, &found));
    }
    for (int i = 0; i < path_count && !found; i++) {
        MS_TRY(load_beside(paths[i], tokenizer, &found));
    }
    if (found) {
        return MS_OK;
    }
    for (int i = 0; i < path_count; i++) {
        ms_source_kind kind;
        MS_TRY(ms__data_source_kind_of(paths[i], &kind));
        if (kind == MS_SOURCE_INDEXED || model_dir != NULL) {
            return ms_fail(MS_ERR_CONFIG,
                           "data.tokenizer is not set, and there is none beside %s; name the one "
                           "that %s",
                           kind == MS_SOURCE_INDEXED ? paths[i] : model_dir,
                           kind == MS_SOURCE_INDEXED ? "made these ids"
                                                     : "the model was made with");
        }
    }
    return ms_data_tokenizer_named("char", paths, path_count, config->text_key, tokenizer);
}

ms_status ms_data_tokenizer(const ms_data_config *config, const char *model_dir,
                            ms_tokenizer **tokenizer) {
    if (config->train == NULL || config->train->count == 0) {
        return ms_fail(MS_ERR_CONFIG, "data.train is not set: name a text file, a .jsonl file, the "
                                      "prefix of a .bin/.idx pair, or a list of them");
    }
    const char **paths = NULL;
    int count = config->train->count + (config->valid != NULL ? config->valid->count : 0);
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_PROCESS, &paths));
    count = 0;
    add_paths(config->train, paths, &count);
    add_paths(config->valid, paths, &count);
    ms_status status = find(config, model_dir, paths, count, tokenizer);
    ms_free(paths);
    return status;
}
