/*
 * generator.c - drawing tokens from a model: prompt in rows, one graph with a run-time position, then temperature, top-k,
 * top-p (Holtzman et al. 2020, "nucleus sampling"). The draw for position p depends on (seed, p) alone.
 */
#include <mindspeed/generate.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "train/loaded_model.h"

#define PROMPT_ROWS 32 /* of the prompt at once; generation itself runs one row */

typedef struct candidate_token {
    int32_t id;
    float logit;
} candidate_token;

struct ms_generator {
    ms_loaded_model loaded;
    ms_generate_options options;
    ms_tokenizer_scratch *scratch;
    ms_random_key key;
    float *logits; /* after the last token of the sequence */
    candidate_token *candidates;
    int64_t length;
};

ms_status ms_generator_open(const char *path, const ms_generate_options *options,
                            ms_generator **generator) {
    if (options->struct_size < sizeof *options || !(options->temperature >= 0) ||
        !(options->top_p > 0 && options->top_p <= 1) || options->top_k < 0) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "temperature must be >= 0, top_k >= 0 and 0 < top_p <= 1 (have %g, %" PRId64 ", %g)",
                       options->temperature, options->top_k, options->top_p);
    }
    ms_generator *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->options = *options;
    made->key = ms_random_key_make(options->seed, "generate");
    ms_load_request request = {.mode = MS_MODE_GENERATE,
                               .sequence = PROMPT_ROWS,
                               .positions = options->positions,
                               .compute = options->bf16 ? MS_BF16 : MS_F32,
                               .threads = options->threads};
    ms_status status = ms_loaded_model_open(path, &request, &made->loaded);
    size_t vocabulary =
        status == MS_OK ? (size_t)made->loaded.model->spec.vocabulary : 0;
    if (status == MS_OK) {
        status = MS_NEW(vocabulary, MS_MEMORY_PROCESS, &made->logits);
    }
    if (status == MS_OK) {
        status = MS_NEW(vocabulary, MS_MEMORY_PROCESS, &made->candidates);
    }
    if (status == MS_OK && made->loaded.tokenizer != NULL) {
        status = ms_tokenizer_scratch_create(made->loaded.tokenizer, &made->scratch);
    }
    if (status != MS_OK) {
        ms_generator_close(made);
        return status;
    }
    *generator = made;
    return MS_OK;
}

void ms_generator_close(ms_generator *generator) {
    if (generator != NULL) {
        ms_tokenizer_scratch_destroy(generator->scratch);
        ms_loaded_model_close(&generator->loaded);
        ms_free(generator->logits);
        ms_free(generator->candidates);
        ms_free(generator);
    }
}

int64_t ms_generator_vocabulary(const ms_generator *generator) {
    return generator->loaded.model->spec.vocabulary;
}

int64_t ms_generator_length(const ms_generator *generator) { return generator->length; }

int64_t ms_generator_capacity(const ms_generator *generator) {
    return generator->loaded.program->request.cache_positions;
}

void ms_generator_reset(ms_generator *generator) { generator->length = 0; }

static double log_sum(const ms_generator *generator) {
    int64_t vocabulary = ms_generator_vocabulary(generator);
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        most = fmax(most, (double)generator->logits[i]);
    }
    for (int64_t i = 0; i < vocabulary; i++) {
        sum += exp((double)generator->logits[i] - most);
    }
    return most + log(sum);
}

static ms_status check_ids(const ms_generator *generator, const int32_t *ids, int64_t count) {
    if (generator->length + count > ms_generator_capacity(generator)) {
        return ms_fail(MS_ERR_RANGE, "%" PRId64 " tokens do not fit the %" PRId64
                       " positions of this model", generator->length + count,
                       ms_generator_capacity(generator));
    }
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= ms_generator_vocabulary(generator)) {
            return ms_fail(MS_ERR_RANGE, "token id %" PRId32 " at %" PRId64
                           " is outside the vocabulary of %" PRId64, ids[i], i,
                           ms_generator_vocabulary(generator));
        }
    }
    return MS_OK;
}

ms_status ms_generator_feed(ms_generator *generator, const int32_t *ids, int64_t count,
                            double *log_probabilities) {
    MS_TRY(check_ids(generator, ids, count));
    int64_t rows = log_probabilities != NULL ? 1 : generator->loaded.program->request.sequence;
    for (int64_t at = 0; at < count; at += rows) {
        if (log_probabilities != NULL) {
            log_probabilities[at] =
                generator->length == 0
                    ? 0
                    : (double)generator->logits[ids[at]] - log_sum(generator);
        }
        int64_t now = ms_min_i64(rows, count - at);
        MS_TRY(ms_engine_decode(generator->loaded.engine, ids + at, now, generator->length,
                                generator->logits));
        generator->length += now;
    }
    return MS_OK;
}

ms_status ms_generator_prompt(ms_generator *generator, const char *text, size_t length) {
    if (generator->loaded.tokenizer == NULL) {
        return ms_fail(MS_ERR_NOT_FOUND, "%s has no tokenizer: give token ids",
                       generator->loaded.path);
    }
    ms_tokens tokens = {0};
    unsigned flags = MS_ENCODE_SPECIAL | (generator->length == 0 ? MS_ENCODE_BOS : 0);
    ms_status status = ms_tokenizer_encode(generator->loaded.tokenizer, generator->scratch, text,
                                           length, flags, &tokens);
    if (status == MS_OK) {
        status = ms_generator_feed(generator, tokens.ids, (int64_t)tokens.count, NULL);
    }
    ms_tokens_release(&tokens);
    return status;
}

static int by_logit(const void *a, const void *b) {
    const candidate_token *left = a, *right = b;
    if (left->logit != right->logit) {
        return left->logit < right->logit ? 1 : -1;
    }
    return left->id < right->id ? -1 : 1;
}

static int32_t most_likely(const ms_generator *generator) {
    int32_t best = 0;
    for (int32_t i = 1; i < ms_generator_vocabulary(generator); i++) {
        best = generator->logits[i] > generator->logits[best] ? i : best;
    }
    return best;
}

static int32_t draw(ms_generator *generator) {
    const ms_generate_options *options = &generator->options;
    int64_t count = ms_generator_vocabulary(generator);
    candidate_token *candidates = generator->candidates;
    for (int64_t i = 0; i < count; i++) {
        candidates[i] = (candidate_token){(int32_t)i, generator->logits[i]};
    }
    qsort(candidates, (size_t)count, sizeof *candidates, by_logit);
    if (options->top_k > 0) {
        count = ms_min_i64(count, options->top_k);
    }
    double sum = 0, kept = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += exp((double)(candidates[i].logit - candidates[0].logit) / options->temperature);
    }
    int64_t last = 0;
    for (int64_t i = 0; i < count && kept < options->top_p * sum; i++) {
        kept += exp((double)(candidates[i].logit - candidates[0].logit) / options->temperature);
        last = i;
    }
    ms_random_block block = ms_random_at(generator->key, 0, (uint64_t)generator->length);
    double wanted = ms_random_unit_f64(block.word[0], block.word[1]) * kept;
    for (int64_t i = 0; i < last; i++) {
        wanted -= exp((double)(candidates[i].logit - candidates[0].logit) / options->temperature);
        if (wanted < 0) {
            return candidates[i].id;
        }
    }
    return candidates[last].id;
}

ms_status ms_generator_next(ms_generator *generator, int32_t *id) {
    if (generator->length == 0) {
        return ms_fail(MS_ERR_ARGUMENT, "give a prompt of at least one token first");
    }
    int32_t drawn =
        generator->options.temperature == 0 ? most_likely(generator) : draw(generator);
    MS_TRY(ms_generator_feed(generator, &drawn, 1, NULL));
    *id = drawn;
    return MS_OK;
}

int ms_generator_is_end(const ms_generator *generator, int32_t id) {
    int64_t end = generator->loaded.model->spec.eos_id;
    if (generator->loaded.tokenizer != NULL && ms_tokenizer_eos(generator->loaded.tokenizer) == id) {
        return 1;
    }
    return end >= 0 && id == end;
}

ms_status ms_generator_bytes(const ms_generator *generator, int32_t id, const char **bytes,
                             size_t *length) {
    if (generator->loaded.tokenizer == NULL) {
        return ms_fail(MS_ERR_NOT_FOUND, "%s has no tokenizer", generator->loaded.path);
    }
    return ms_tokenizer_id_bytes(generator->loaded.tokenizer, id, bytes, length);
}
