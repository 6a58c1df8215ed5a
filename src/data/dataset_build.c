/*
 * dataset_build.c - `data build`: documents of text and JSONL files to one Megatron pair.
 *
 * Main path: cli/data.c -> [ms_dataset_build] -> tokenize.c (threads) -> format/indexed (writer).
 *
 *   batches of tokens, in the order of the text, where E ends a document:
 *       | t t t E t t | t t t t | t E t E |
 *         1111111 2222222222222222222 333
 *   held between batches (`open`): the tokens of a document that has not ended yet
 *
 * Invariants: what is written depends on the text and the tokenizer alone (text_units.c cuts by
 * these). No final name is touched before all tokens are on disk: the tokenizer is stored under a
 * temporary name first, an older one is removed, the pair is published (.bin, then .idx), the
 * tokenizer gets its name. A crash in between leaves a pair without a tokenizer, never one with a
 * wrong tokenizer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "data/data_internal.h"

#define PROGRESS_EVERY_S 0.2
#define INPUTS_MAX 65536
#define THREADS_MAX 4096
#define TOKENIZER_SUFFIX ".tokenizer"
#define PARTIAL_SUFFIX ".tokenizer.partial"

typedef struct builder {
    const ms_build_options *options;
    ms_indexed_writer *writer;
    ms_file_map *maps;
    ms_text_part *parts;
    ms_tokens open; /* of the document that has not ended yet */
    ms_build_result result;
    uint64_t bytes_done;
    double begun_s, shown_s;
} builder;

static void show_progress(builder *build, bool last) {
    double now = ms_clock_s();
    const ms_build_options *options = build->options;
    if (options->progress == NULL || (!last && now - build->shown_s < PROGRESS_EVERY_S)) {
        return;
    }
    build->shown_s = now;
    ms_build_progress progress = {.bytes_done = build->bytes_done,
                                  .bytes_total = build->result.input_bytes,
                                  .tokens = build->result.tokens,
                                  .documents = build->result.documents,
                                  .seconds = now - build->begun_s};
    options->progress(&progress, options->context);
}

static ms_status hold(builder *build, const int32_t *ids, size_t count) {
    ms_tokens *open = &build->open;
    size_t needed;
    if (!ms_size_add(open->count, count, &needed)) {
        return ms_fail(MS_ERR_RANGE, "a document of more tokens than memory can hold");
    }
    MS_TRY(ms_array_reserve((void **)&open->ids, &open->capacity, needed, sizeof *open->ids,
                            MS_MEMORY_CALLER));
    if (count > 0) {
        memcpy(open->ids + open->count, ids, count * sizeof *ids);
    }
    open->count = needed;
    return MS_OK;
}

static ms_status write_document(builder *build, const int32_t *ids, size_t count) {
    if (count == 0) { /* a normaliser may leave nothing of a text */
        build->result.empty_documents++;
        return MS_OK;
    }
    MS_TRY(ms_indexed_writer_add(build->writer, ids, (int64_t)count, 0));
    MS_TRY(ms_indexed_writer_end_document(build->writer));
    build->result.documents++;
    build->result.tokens += (int64_t)count;
    return MS_OK;
}

static ms_status take(void *context, const ms_token_batch *batch) {
    builder *build = context;
    const ms_tokens *tokens = &batch->tokens;
    size_t begin = 0;
    for (size_t i = 0; i < batch->end_count; i++) {
        size_t end = (size_t)batch->ends[i];
        if (build->open.count > 0) {
            MS_TRY(hold(build, tokens->ids + begin, end - begin));
            MS_TRY(write_document(build, build->open.ids, build->open.count));
            build->open.count = 0;
        } else {
            MS_TRY(write_document(build, tokens->ids + begin, end - begin));
        }
        begin = end;
    }
    if (begin < tokens->count) {
        MS_TRY(hold(build, tokens->ids + begin, tokens->count - begin));
    }
    build->result.empty_documents += batch->empty_documents;
    build->bytes_done += batch->source_bytes;
    show_progress(build, false);
    return MS_OK;
}

static ms_status open_input(builder *build, int index) {
    const ms_build_options *options = build->options;
    const char *path = options->inputs[index];
    ms_source_kind kind;
    MS_TRY(ms__data_source_kind_of(path, &kind));
    if (kind == MS_SOURCE_INDEXED) {
        return ms_fail(MS_ERR_ARGUMENT, "%s holds tokens already; data merge joins such files",
                       path);
    }
    ms_file_map *map = &build->maps[index];
    MS_TRY(ms_file_map_open(path, map));
    build->parts[index] = (ms_text_part){
        .name = path,
        .bytes = (const char *)map->data,
        .length = map->bytes,
        .end = map->bytes,
        .documents = kind == MS_SOURCE_JSONL ? MS_DOCUMENTS_JSONL : options->documents,
        .text_key = options->text_key != NULL ? options->text_key : "text"};
    build->result.input_bytes += map->bytes;
    return MS_OK;
}

static ms_status open_inputs(builder *build) {
    size_t count = (size_t)build->options->input_count;
    MS_TRY(MS_NEW(count, MS_MEMORY_CALLER, &build->maps));
    MS_TRY(MS_NEW(count, MS_MEMORY_CALLER, &build->parts));
    for (int i = 0; i < build->options->input_count; i++) {
        MS_TRY(open_input(build, i));
    }
    return MS_OK;
}

static ms_status check_options(const ms_build_options *options) {
    if (options->input_count < 1 || options->input_count > INPUTS_MAX) {
        return ms_fail(MS_ERR_ARGUMENT, "%d input files; 1 to %d are possible",
                       options->input_count, INPUTS_MAX);
    }
    if (options->threads < 1 || options->threads > THREADS_MAX) {
        return ms_fail(MS_ERR_ARGUMENT, "%d threads; 1 to %d are possible", options->threads,
                       THREADS_MAX);
    }
    if (options->append_eod && ms_tokenizer_eos(options->tokenizer) < 0) {
        return ms_fail(MS_ERR_CONFIG, "this tokenizer has no end-of-text token to put after each "
                                      "document; leave that out or choose another tokenizer");
    }
    return MS_OK;
}

/* The largest id that a type can hold; 0 when it holds none. */
static int64_t id_max(ms_dtype dtype) {
    switch (dtype) {
    case MS_U8:
        return UINT8_MAX;
    case MS_U16:
        return UINT16_MAX;
    case MS_I16:
        return INT16_MAX;
    case MS_I32:
    case MS_I64:
        return INT32_MAX;
    default:
        return 0;
    }
}

static ms_status choose_dtype(const ms_build_options *options, ms_dtype *dtype) {
    int64_t vocabulary = ms_tokenizer_vocabulary_size(options->tokenizer);
    *dtype = options->dtype_given ? options->dtype : ms_indexed_dtype_for(vocabulary);
    if (id_max(*dtype) < vocabulary - 1) {
        return ms_fail(MS_ERR_RANGE,
                       "ids of %" PRId64 " tokens do not fit %s; uint16 holds 65,536, int32 all",
                       vocabulary, ms_dtype_name(*dtype));
    }
    return MS_OK;
}

static ms_status suffixed(const char *prefix, const char *suffix, char path[MS_PATH_BYTES]) {
    size_t length = strlen(prefix);
    if (length > 4 &&
        (strcmp(prefix + length - 4, ".bin") == 0 || strcmp(prefix + length - 4, ".idx") == 0)) {
        length -= 4; /* as format/indexed takes it */
    }
    if (length + strlen(suffix) >= MS_PATH_BYTES) {
        return ms_fail(MS_ERR_RANGE, "a path of %zu bytes is too long", length);
    }
    memcpy(path, prefix, length);
    strcpy(path + length, suffix); /* fits: checked above */
    return MS_OK;
}

/* The pair gets its names, and the tokenizer (may be NULL) its own beside it. */
static ms_status publish(const char *output, ms_indexed_writer *writer,
                         const ms_tokenizer *tokenizer) {
    char partial[MS_PATH_BYTES], final[MS_PATH_BYTES];
    MS_TRY(suffixed(output, PARTIAL_SUFFIX, partial));
    MS_TRY(suffixed(output, TOKENIZER_SUFFIX, final));
    ms_status status = MS_OK;
    if (ms_path_exists(partial)) { /* of a run that was killed */
        MS_TRY(ms_directory_remove(partial));
    }
    if (tokenizer != NULL) {
        MS_TRY(ms_directory_make(partial));
        MS_TRY_GOTO(ms_tokenizer_save(tokenizer, partial), remove_partial);
    }
    if (ms_path_exists(final)) {
        MS_TRY_GOTO(ms_directory_remove(final), remove_partial);
    }
    MS_TRY_GOTO(ms_indexed_writer_finish(writer), remove_partial);
    if (tokenizer != NULL && rename(partial, final) != 0) {
        status = ms_fail(MS_ERR_IO, "%s: cannot rename to %s: %s", partial, final, strerror(errno));
        goto remove_partial;
    }
    return MS_OK;
remove_partial:
    if (tokenizer != NULL) {
        ms_directory_remove(partial);
    }
    return status;
}

static ms_status run(builder *build) {
    const ms_build_options *options = build->options;
    MS_TRY(check_options(options));
    MS_TRY(choose_dtype(options, &build->result.dtype));
    MS_TRY(open_inputs(build));
    MS_TRY(ms_indexed_writer_create(options->output, build->result.dtype, false, &build->writer));
    ms_tokenize_job job = {.tokenizer = options->tokenizer,
                           .eod = options->append_eod ? ms_tokenizer_eos(options->tokenizer) : -1,
                           .parts = build->parts,
                           .part_count = options->input_count,
                           .threads = options->threads,
                           .take = take,
                           .context = build};
    MS_TRY(ms__tokenize(&job));
    MS_ASSERT(build->open.count == 0);
    if (build->result.documents == 0) {
        return ms_fail(MS_ERR_RANGE, "%s%s: there is no text in %s", options->inputs[0],
                       options->input_count > 1 ? " and the others" : "",
                       options->input_count > 1 ? "them" : "it");
    }
    return publish(options->output, build->writer, options->tokenizer);
}

ms_status ms_dataset_build(const ms_build_options *options, ms_build_result *result) {
    builder build = {.options = options, .begun_s = ms_clock_s()};
    build.shown_s = build.begun_s;
    ms_status status = run(&build);
    for (int i = 0; build.maps != NULL && i < options->input_count; i++) {
        ms_file_map_close(&build.maps[i]);
    }
    ms_free(build.maps);
    ms_free(build.parts);
    ms_tokens_release(&build.open);
    ms_indexed_writer_destroy(build.writer);
    MS_TRY(status);
    show_progress(&build, true);
    build.result.seconds = ms_clock_s() - build.begun_s;
    *result = build.result;
    return MS_OK;
}

/* ---- joining ---- */

/* The text of PREFIX.tokenizer/tokenizer.json; nothing when there is none. */
static ms_status read_tokenizer(const char *prefix, ms_text *json) {
    char path[MS_PATH_BYTES];
    MS_TRY(suffixed(prefix, TOKENIZER_SUFFIX "/tokenizer.json", path));
    ms_text_clear(json);
    return ms_path_exists(path) ? ms_file_read(path, (size_t)1 << 30, json) : MS_OK;
}

/* Whether all inputs have the same tokenizer stored; *prefix is then one of them. */
static ms_status compare_tokenizers(const char *const *inputs, int count, ms_text *first,
                                    ms_text *other, const char **prefix) {
    const char *found = NULL;
    bool everywhere = true;
    for (int i = 0; i < count; i++) {
        ms_text *json = found == NULL ? first : other;
        MS_TRY(read_tokenizer(inputs[i], json));
        if (json->length == 0) {
            everywhere = false;
        } else if (found == NULL) {
            found = inputs[i];
        } else if (json->length != first->length ||
                   memcmp(json->bytes, first->bytes, json->length) != 0) {
            return ms_fail(MS_ERR_MISMATCH,
                           "%s and %s were made with different tokenizers: the same id would mean "
                           "different text; build one of them again",
                           found, inputs[i]);
        }
    }
    *prefix = everywhere ? found : NULL;
    return MS_OK;
}

static ms_status shared_tokenizer(const char *const *inputs, int count, ms_tokenizer **tokenizer) {
    ms_text first = {0}, other = {0};
    const char *prefix = NULL;
    ms_status status = compare_tokenizers(inputs, count, &first, &other, &prefix);
    ms_text_release(&first);
    ms_text_release(&other);
    MS_TRY(status);
    if (prefix == NULL) {
        return MS_OK;
    }
    char dir[MS_PATH_BYTES];
    MS_TRY(suffixed(prefix, TOKENIZER_SUFFIX, dir));
    return ms_tokenizer_load(dir, tokenizer);
}

static ms_status append(const char *path, const char *output, ms_indexed_writer **writer,
                        ms_build_result *result) {
    ms_indexed *data;
    MS_TRY(ms_indexed_open(path, &data));
    ms_status status = MS_OK;
    if (*writer == NULL) {
        result->dtype = ms_indexed_dtype(data);
        status =
            ms_indexed_writer_create(output, result->dtype, ms_indexed_has_modes(data), writer);
    }
    if (status == MS_OK) {
        status = ms_indexed_writer_append(*writer, data);
        if (status != MS_OK) {
            ms_error_prefix("%s", path);
        }
    }
    if (status == MS_OK) {
        result->documents += ms_indexed_document_count(data);
        result->tokens += ms_indexed_token_count(data);
        result->input_bytes +=
            (uint64_t)ms_indexed_token_count(data) * ms_dtype_bytes(result->dtype);
    }
    ms_indexed_close(data);
    return status;
}

ms_status ms_dataset_merge(const char *const *inputs, int input_count, const char *output,
                           ms_build_result *result) {
    double begun_s = ms_clock_s();
    if (input_count < 1 || input_count > INPUTS_MAX) {
        return ms_fail(MS_ERR_ARGUMENT, "%d pairs to join; 1 to %d are possible", input_count,
                       INPUTS_MAX);
    }
    ms_tokenizer *tokenizer = NULL;
    MS_TRY(shared_tokenizer(inputs, input_count, &tokenizer));
    ms_indexed_writer *writer = NULL;
    ms_build_result made = {0};
    ms_status status = MS_OK;
    for (int i = 0; i < input_count && status == MS_OK; i++) {
        status = append(inputs[i], output, &writer, &made);
    }
    if (status == MS_OK) {
        status = publish(output, writer, tokenizer);
    }
    ms_indexed_writer_destroy(writer);
    ms_tokenizer_destroy(tokenizer);
    MS_TRY(status);
    made.seconds = ms_clock_s() - begun_s;
    *result = made;
    return MS_OK;
}
