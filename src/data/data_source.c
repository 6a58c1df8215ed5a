/*
 * data_source.c - one stream of tokens: a text or JSONL file in memory, or a mapped .bin/.idx pair.
 *
 * Stands between dataset.c, which knows samples, and tokenize.c or format/indexed below. Text is
 * cut in training and validation part first, by characters, and then tokenised; the other kinds are
 * streams of tokens already, documents one after the other, and are cut by tokens: so a JSONL file
 * and the pair built from it give the same samples.
 *
 *   stream   |<------------- stream_tokens ------------->|
 *   split          |<------------ tokens ---------->|
 *                  ^ first                             samples x T + 1 + left_over == tokens
 *
 * Rejected: a cache of the tokens of a text on disk (who has so much of it runs `data build` once);
 * cutting at documents (one long document would leave a part empty).
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/thread.h"
#include "data/data_internal.h"
#include "format/jsonl.h"

#define TEXT_KEY_DEFAULT "text"
/* Ids of a pair are checked at the start up to here (some 10 ms), the others when they are read. */
#define CHECKED_TOKENS_MAX ((int64_t)16 << 20)
#define CHECKED_TOKENS_EACH 16384

static bool ends_with(const char *text, const char *suffix) {
    size_t length = strlen(text), wanted = strlen(suffix);
    return length >= wanted && strcmp(text + length - wanted, suffix) == 0;
}

ms_status ms__data_source_kind_of(const char *path, ms_source_kind *kind) {
    if (ends_with(path, ".bin") || ends_with(path, ".idx") || ms_indexed_exists(path)) {
        *kind = MS_SOURCE_INDEXED;
        return MS_OK;
    }
    if (!ms_path_exists(path)) {
        return ms_fail(MS_ERR_NOT_FOUND, "%s: no such file, and no pair %s.bin and %s.idx", path,
                       path, path);
    }
    if (ms_path_is_directory(path)) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "%s is a directory; name a text file, a .jsonl file or the prefix of a "
                       ".bin/.idx pair",
                       path);
    }
    *kind = ends_with(path, ".jsonl") || ends_with(path, ".ndjson") || ends_with(path, ".json")
                ? MS_SOURCE_JSONL
                : MS_SOURCE_TEXT;
    return MS_OK;
}

const char *ms__data_source_kind_name(ms_source_kind kind) {
    static const char *const names[] = {"text", "jsonl", "indexed"};
    return names[kind];
}

static ms_status check_ids(const ms_source *source, const ms_tokens *tokens) {
    for (size_t i = 0; source->vocabulary_size > 0 && i < tokens->count; i++) {
        if (tokens->ids[i] >= source->vocabulary_size) {
            return ms_fail(MS_ERR_RANGE,
                           "%s: token %" PRId64 " has id %" PRId32
                           ", beyond the vocabulary of %" PRId64 "; is it the model's tokenizer?",
                           source->path, source->stream_tokens + (int64_t)i, tokens->ids[i],
                           source->vocabulary_size);
        }
    }
    return MS_OK;
}

static ms_status append_tokens(void *context, const ms_token_batch *batch) {
    ms_source *source = context;
    const ms_tokens *from = &batch->tokens;
    size_t held = (size_t)source->stream_tokens, needed = held + from->count;
    MS_TRY(check_ids(source, from));
    if (source->wide != NULL) {
        MS_TRY(ms_array_reserve((void **)&source->wide, &source->capacity, needed,
                                sizeof *source->wide, MS_MEMORY_PROCESS));
        if (from->count > 0) {
            memcpy(source->wide + held, from->ids, from->count * sizeof *from->ids);
        }
    } else {
        MS_TRY(ms_array_reserve((void **)&source->narrow, &source->capacity, needed,
                                sizeof *source->narrow, MS_MEMORY_PROCESS));
        for (size_t i = 0; i < from->count; i++) {
            source->narrow[held + i] = (uint16_t)from->ids[i];
        }
    }
    source->stream_tokens = (int64_t)needed;
    return MS_OK;
}

static ms_status tokenize_part(const ms_source_request *request, const ms_text_part *part,
                               ms_source *source) {
    const ms_dataset_options *options = request->options;
    if (ms_tokenizer_vocabulary_size(options->tokenizer) > UINT16_MAX + 1) {
        source->capacity = 4096;
        MS_TRY(MS_NEW(source->capacity, MS_MEMORY_PROCESS, &source->wide));
    }
    bool with_eod = part->documents == MS_DOCUMENTS_JSONL && options->config->eod;
    ms_tokenize_job job = {.tokenizer = options->tokenizer,
                           .eod = with_eod ? ms_tokenizer_eos(options->tokenizer) : -1,
                           .parts = part,
                           .part_count = 1,
                           .threads = ms_thread_team_get(),
                           .take = append_tokens,
                           .context = source};
    return ms__tokenize(&job);
}

static ms_status open_text(const ms_source_request *request, ms_source *source) {
    const ms_dataset_options *options = request->options;
    if (options->tokenizer == NULL) {
        return ms_fail(MS_ERR_CONFIG, "%s is text, and there is no tokenizer: set data.tokenizer",
                       request->path);
    }
    ms_file_map map;
    MS_TRY(ms_file_map_open(request->path, &map));
    if (map.bytes == 0) {
        ms_file_map_close(&map);
        return ms_fail(MS_ERR_RANGE, "%s: the file is empty", request->path);
    }
    ms_text_part part = {.name = request->path,
                         .bytes = (const char *)map.data,
                         .length = map.bytes,
                         .end = map.bytes,
                         .documents = MS_DOCUMENTS_FILE,
                         .text_key = options->config->text_key != NULL ? options->config->text_key
                                                                       : TEXT_KEY_DEFAULT};
    if (source->kind == MS_SOURCE_JSONL) {
        part.documents = MS_DOCUMENTS_JSONL;
    } else if (!request->whole) {
        size_t border = ms__text_split(part.bytes, part.length, options->config->split);
        *(options->split == MS_SPLIT_TRAIN ? &part.end : &part.begin) = border;
    }
    ms_status status = tokenize_part(request, &part, source);
    ms_file_map_close(&map);
    source->tokens = source->stream_tokens;
    return status;
}

static ms_status check_first_ids(const ms_source *source, int64_t vocabulary_size) {
    int32_t tokens[CHECKED_TOKENS_EACH];
    int64_t end = ms_min_i64(source->tokens, CHECKED_TOKENS_MAX);
    for (int64_t at = 0; vocabulary_size > 0 && at < end; at += CHECKED_TOKENS_EACH) {
        MS_TRY(ms__data_source_read(source, at, ms_min_i64(CHECKED_TOKENS_EACH, end - at),
                                    vocabulary_size, tokens));
    }
    return MS_OK;
}

static ms_status open_indexed(const ms_source_request *request, ms_source *source) {
    MS_TRY(ms_indexed_open(request->path, &source->indexed));
    source->tokens = source->stream_tokens = ms_indexed_token_count(source->indexed);
    return source->tokens > 0 ? MS_OK
                              : ms_fail(MS_ERR_RANGE, "%s: the data are empty", request->path);
}

/* Of JSONL and pairs: text has been cut before. */
static void cut_stream(const ms_source_request *request, ms_source *source) {
    if (request->whole || source->kind == MS_SOURCE_TEXT) {
        return;
    }
    int64_t border =
        (int64_t)floor((double)source->stream_tokens * request->options->config->split);
    if (request->options->split == MS_SPLIT_TRAIN) {
        source->tokens = border;
    } else {
        source->first = border;
        source->tokens = source->stream_tokens - border;
    }
}

static ms_status open_kind(const ms_source_request *request, ms_source *source) {
    MS_TRY(ms__data_source_kind_of(request->path, &source->kind));
    if (source->kind != MS_SOURCE_INDEXED) {
        MS_TRY(open_text(request, source));
        cut_stream(request, source);
    } else {
        MS_TRY(open_indexed(request, source));
        cut_stream(request, source);
        MS_TRY(check_first_ids(source, request->options->vocabulary_size));
    }
    int64_t sequence = request->options->sequence;
    source->samples = source->tokens > 0 ? (source->tokens - 1) / sequence : 0;
    source->left_over =
        source->samples > 0 ? source->tokens - 1 - source->samples * sequence : source->tokens;
    return MS_OK;
}

ms_status ms__data_source_open(const ms_source_request *request, ms_source *source) {
    *source =
        (ms_source){.path = request->path, .vocabulary_size = request->options->vocabulary_size};
    ms_status status = open_kind(request, source);
    if (status != MS_OK) {
        ms__data_source_close(source);
    }
    return status;
}

void ms__data_source_close(ms_source *source) {
    ms_indexed_close(source->indexed);
    ms_free(source->narrow);
    ms_free(source->wide);
    *source = (ms_source){0};
}

ms_status ms__data_source_read(const ms_source *source, int64_t first, int64_t count,
                               int64_t vocabulary_size, int32_t *tokens) {
    MS_ASSERT(first >= 0 && count >= 0 && first + count <= source->tokens);
    if (source->indexed != NULL) {
        return ms_indexed_read(source->indexed, source->first + first, count, vocabulary_size,
                               tokens);
    }
    if (source->wide != NULL) {
        memcpy(tokens, source->wide + source->first + first, (size_t)count * sizeof *tokens);
        return MS_OK;
    }
    const uint16_t *from = source->narrow + source->first + first;
    for (int64_t i = 0; i < count; i++) {
        tokens[i] = from[i];
    }
    return MS_OK;
}
