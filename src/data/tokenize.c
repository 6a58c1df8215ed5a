/*
 * tokenize.c - units of text to tokens on several threads, handed over in the order of the text.
 *
 *   workers:  unit u -> slot u % slots, at most `slots` units ahead of the taker
 *   caller:   takes slots in order: 0 1 2 ...
 *
 * Stands under data_source.c (text into memory) and dataset_build.c (text into .bin/.idx). Memory
 * is bounded by the slots; the batches, and the first error, are the same whatever the number of
 * threads. Invariants: a slot belongs to the worker that claimed its unit until `done`, then to the
 * caller until `taken` has passed it. Rejected: an OpenMP loop (it has no ordered consumer that
 * writes while others still work); one range of the file per thread (uneven, and the whole outcome
 * would wait in memory).
 */
#include <inttypes.h>
#include <string.h>

#include "base/thread.h"
#include "data/data_internal.h"
#include "format/jsonl.h"

#define THREADS_MAX 256
#define SLOTS_PER_THREAD 3
#define SENTENCE_BYTES 1024

typedef struct slot {
    ms_token_batch batch;
    ms_status status;
    char sentence[SENTENCE_BYTES]; /* the error's: ms_error_detail() belongs to a thread */
    bool done;
} slot;

typedef struct crew {
    const ms_tokenize_job *job;
    const ms_text_unit *units;
    int64_t unit_count;
    slot *slots;
    int64_t slot_count;
    pthread_mutex_t lock; /* guards what follows, and each slot's `done` */
    pthread_cond_t done_changed, taken_changed;
    int64_t claimed, taken;
    bool stop;
} crew;

static ms_status end_document(const ms_tokenize_job *job, ms_token_batch *batch) {
    ms_tokens *tokens = &batch->tokens;
    if (job->eod >= 0) {
        MS_TRY(ms_array_reserve((void **)&tokens->ids, &tokens->capacity, tokens->count + 1,
                                sizeof *tokens->ids, MS_MEMORY_CALLER));
        tokens->ids[tokens->count++] = job->eod;
    }
    MS_TRY(ms_array_reserve((void **)&batch->ends, &batch->end_capacity, batch->end_count + 1,
                            sizeof *batch->ends, MS_MEMORY_PROCESS));
    batch->ends[batch->end_count++] = (int64_t)tokens->count;
    return MS_OK;
}

static ms_status add_document(const ms_tokenize_job *job, ms_tokenizer_scratch *scratch,
                              const char *text, size_t length, ms_token_batch *batch) {
    size_t before = batch->tokens.count;
    MS_TRY(ms_tokenizer_encode(job->tokenizer, scratch, text, length, 0, &batch->tokens));
    if (batch->tokens.count == before) {
        batch->empty_documents++;
        return MS_OK;
    }
    return end_document(job, batch);
}

static ms_status add_piece(const ms_tokenize_job *job, ms_tokenizer_scratch *scratch,
                           const ms_text_part *part, const ms_text_unit *unit,
                           ms_token_batch *batch) {
    MS_TRY(ms_tokenizer_encode(job->tokenizer, scratch, part->bytes + unit->begin,
                               unit->end - unit->begin, 0, &batch->tokens));
    return unit->is_last ? end_document(job, batch) : MS_OK;
}

static ms_status add_lines(const ms_tokenize_job *job, ms_tokenizer_scratch *scratch,
                           const ms_text_part *part, const ms_text_unit *unit,
                           ms_token_batch *batch) {
    for (size_t at = unit->begin; at < unit->end;) {
        const char *line = part->bytes + at;
        const char *newline = memchr(line, '\n', unit->end - at);
        size_t length = newline != NULL ? (size_t)(newline - line) : unit->end - at;
        at += length + 1;
        length -= length > 0 && line[length - 1] == '\r';
        MS_TRY(add_document(job, scratch, line, length, batch));
    }
    return MS_OK;
}

static ms_status add_paragraphs(const ms_tokenize_job *job, ms_tokenizer_scratch *scratch,
                                const ms_text_part *part, const ms_text_unit *unit,
                                ms_token_batch *batch) {
    size_t begin = unit->begin;
    bool any = false; /* empty lines at the start belong to what follows */
    for (size_t at = begin; at < unit->end;) {
        size_t length = any ? ms__paragraph_end(part->bytes, at, unit->end) : 0;
        any = any || (part->bytes[at] != '\n' && part->bytes[at] != '\r');
        at += length > 0 ? length : 1;
        if (length > 0) {
            MS_TRY(add_document(job, scratch, part->bytes + begin, at - begin, batch));
            begin = at;
            any = false;
        }
    }
    return begin < unit->end
               ? add_document(job, scratch, part->bytes + begin, unit->end - begin, batch)
               : MS_OK;
}

static ms_status add_objects(const ms_tokenize_job *job, ms_tokenizer_scratch *scratch,
                             const ms_text_part *part, const ms_text_unit *unit,
                             ms_token_batch *batch) {
    ms_jsonl_options options = {.begin = unit->begin, .end = unit->end};
    ms_jsonl_reader *reader;
    MS_TRY(ms_jsonl_reader_open_memory(part->bytes, part->length, part->name, &options, &reader));
    ms_status status = MS_OK;
    while (status == MS_OK) {
        const char *text = NULL;
        size_t length = 0;
        status = ms_jsonl_reader_next_text(reader, part->text_key, &text, &length);
        if (status != MS_OK || text == NULL) {
            break;
        }
        status = add_document(job, scratch, text, length, batch);
        if (status != MS_OK) {
            ms_error_prefix("%s:%" PRId64, part->name, ms_jsonl_reader_line(reader));
        }
    }
    ms_jsonl_reader_close(reader);
    return status;
}

static ms_status check_utf8(const ms_tokenize_job *job, const ms_text_part *part,
                            const ms_text_unit *unit) {
    if (ms_tokenizer_kind_get(job->tokenizer) == MS_TOKENIZER_BYTE) {
        return MS_OK;
    }
    const char *bytes = part->bytes + unit->begin;
    size_t length = unit->end - unit->begin;
    size_t valid = ms_utf8_valid_prefix(bytes, length);
    return valid == length
               ? MS_OK
               : ms_fail(MS_ERR_FORMAT,
                         "%s: not UTF-8 at byte %zu (0x%02x); convert the file, or use the byte "
                         "tokenizer",
                         part->name, unit->begin + valid, (unsigned)(unsigned char)bytes[valid]);
}

static ms_status tokenize_unit(const ms_tokenize_job *job, ms_tokenizer_scratch *scratch,
                               const ms_text_unit *unit, ms_token_batch *batch) {
    static ms_status (*const adders[])(
        const ms_tokenize_job *, ms_tokenizer_scratch *, const ms_text_part *, const ms_text_unit *,
        ms_token_batch *) = {[MS_DOCUMENTS_FILE] = add_piece,
                             [MS_DOCUMENTS_PARAGRAPHS] = add_paragraphs,
                             [MS_DOCUMENTS_LINES] = add_lines,
                             [MS_DOCUMENTS_JSONL] = add_objects};
    const ms_text_part *part = &job->parts[unit->part];
    batch->part = unit->part;
    batch->tokens.count = 0;
    batch->end_count = 0;
    batch->empty_documents = 0;
    batch->source_bytes = unit->end - unit->begin;
    if (part->documents == MS_DOCUMENTS_JSONL) {
        return add_objects(job, scratch, part, unit, batch); /* names its own file and line */
    }
    MS_TRY(check_utf8(job, part, unit));
    ms_status status = adders[part->documents](job, scratch, part, unit, batch);
    if (status != MS_OK) {
        ms_error_prefix("%s, in the text that begins at byte %zu", part->name, unit->begin);
    }
    return status;
}

static ms_status run_alone(const ms_tokenize_job *job, const ms_text_unit *units, int64_t count) {
    ms_tokenizer_scratch *scratch = NULL;
    ms_token_batch batch = {0};
    ms_status status = ms_tokenizer_scratch_create(job->tokenizer, &scratch);
    for (int64_t i = 0; i < count && status == MS_OK; i++) {
        status = tokenize_unit(job, scratch, &units[i], &batch);
        if (status == MS_OK) {
            status = job->take(job->context, &batch);
        }
    }
    ms_tokenizer_scratch_destroy(scratch);
    ms_tokens_release(&batch.tokens);
    ms_free(batch.ends);
    return status;
}

/* The next unit for a worker, or -1 when there is none left or the crew stops. */
static int64_t claim(crew *crew_) {
    pthread_mutex_lock(&crew_->lock);
    while (!crew_->stop && crew_->claimed < crew_->unit_count &&
           crew_->claimed >= crew_->taken + crew_->slot_count) {
        pthread_cond_wait(&crew_->taken_changed, &crew_->lock);
    }
    int64_t unit = crew_->stop || crew_->claimed >= crew_->unit_count ? -1 : crew_->claimed++;
    pthread_mutex_unlock(&crew_->lock);
    return unit;
}

static void *work(void *context) {
    crew *crew_ = context;
    ms_tokenizer_scratch *scratch = NULL;
    ms_status ready = ms_tokenizer_scratch_create(crew_->job->tokenizer, &scratch);
    for (int64_t unit; (unit = claim(crew_)) >= 0;) {
        slot *own = &crew_->slots[unit % crew_->slot_count];
        own->status = ready != MS_OK
                          ? ready
                          : tokenize_unit(crew_->job, scratch, &crew_->units[unit], &own->batch);
        if (own->status != MS_OK) {
            strncpy(own->sentence, ms_error_detail(), SENTENCE_BYTES - 1);
        }
        pthread_mutex_lock(&crew_->lock);
        own->done = true;
        pthread_cond_signal(&crew_->done_changed);
        pthread_mutex_unlock(&crew_->lock);
    }
    ms_tokenizer_scratch_destroy(scratch);
    return NULL;
}

static ms_status take_all(crew *crew_) {
    for (int64_t unit = 0; unit < crew_->unit_count; unit++) {
        slot *next = &crew_->slots[unit % crew_->slot_count];
        pthread_mutex_lock(&crew_->lock);
        while (!next->done) {
            pthread_cond_wait(&crew_->done_changed, &crew_->lock);
        }
        next->done = false;
        pthread_mutex_unlock(&crew_->lock);
        if (next->status != MS_OK) {
            return ms_fail(next->status, "%s", next->sentence);
        }
        MS_TRY(crew_->job->take(crew_->job->context, &next->batch));
        pthread_mutex_lock(&crew_->lock);
        crew_->taken++;
        pthread_cond_broadcast(&crew_->taken_changed);
        pthread_mutex_unlock(&crew_->lock);
    }
    return MS_OK;
}

static ms_status run_threads(crew *crew_, ms_thread *threads, int thread_count) {
    ms_status status = MS_OK;
    int started = 0;
    while (started < thread_count && status == MS_OK) {
        status = ms_thread_start(&threads[started], "ms-tokenize", work, crew_);
        started += status == MS_OK;
    }
    if (started > 0) { /* fewer threads than asked for do the same work */
        status = take_all(crew_);
    }
    pthread_mutex_lock(&crew_->lock);
    crew_->stop = true;
    pthread_cond_broadcast(&crew_->taken_changed);
    pthread_mutex_unlock(&crew_->lock);
    for (int i = 0; i < started; i++) {
        ms_thread_join(&threads[i]);
    }
    return status;
}

static ms_status run_crew(const ms_tokenize_job *job, const ms_text_unit *units, int64_t count,
                          int thread_count) {
    crew crew_ = {.job = job,
                  .units = units,
                  .unit_count = count,
                  .slot_count = SLOTS_PER_THREAD * thread_count,
                  .lock = PTHREAD_MUTEX_INITIALIZER,
                  .done_changed = PTHREAD_COND_INITIALIZER,
                  .taken_changed = PTHREAD_COND_INITIALIZER};
    ms_thread *threads = NULL;
    ms_status status = MS_NEW((size_t)crew_.slot_count, MS_MEMORY_PROCESS, &crew_.slots);
    if (status == MS_OK) {
        status = MS_NEW((size_t)thread_count, MS_MEMORY_PROCESS, &threads);
    }
    if (status == MS_OK) {
        status = run_threads(&crew_, threads, thread_count);
    }
    for (int64_t i = 0; crew_.slots != NULL && i < crew_.slot_count; i++) {
        ms_tokens_release(&crew_.slots[i].batch.tokens);
        ms_free(crew_.slots[i].batch.ends);
    }
    ms_free(crew_.slots);
    ms_free(threads);
    return status;
}

ms_status ms__tokenize(const ms_tokenize_job *job) {
    ms_text_unit *units = NULL;
    int64_t count = 0;
    MS_TRY(ms__text_units_make(job->tokenizer, job->parts, job->part_count, &units, &count));
    int threads = (int)ms_min_i64(ms_min_i64(job->threads, THREADS_MAX), count);
    ms_status status =
        threads <= 1 ? run_alone(job, units, count) : run_crew(job, units, count, threads);
    ms_free(units);
    return status;
}
