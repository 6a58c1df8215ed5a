/*
 * generate.h - text from a trained model: a run's directory, one of its checkpoints, or any Hugging Face directory of a
 * supported model. Since 0.1.
 *
 *   ms_generate_options options = MS_GENERATE_OPTIONS_INIT;
 *   ms_generator *generator;
 *   ms_generator_open("runs/shakespeare", &options, &generator);
 *   ms_generator_prompt(generator, "ROMEO:", 6);
 *   for (int i = 0; i < 200; i++) { ms_generator_next(generator, &id); ... }
 *
 * A generator holds one sequence and its key/value cache. One thread at a time.
 */
#ifndef MINDSPEED_GENERATE_H
#define MINDSPEED_GENERATE_H

#include <stddef.h>
#include <stdint.h>

#include <mindspeed/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ms_generator ms_generator;

typedef struct ms_generate_options {
    size_t struct_size;
    double temperature; /* 0: the most likely token always */
    int64_t top_k;      /* only among the k most likely; 0: all */
    double top_p;       /* only among the likeliest that together have this probability; 1: all */
    uint64_t seed;      /* same seed, prompt and options: same text */
    int threads;        /* 0: all cores */
    int64_t positions;  /* of the cache; 0: the model's */
    int bf16;           /* compute in bf16 instead of fp32 */
} ms_generate_options;
#define MS_GENERATE_OPTIONS_INIT                                                                   \
    { sizeof(ms_generate_options), 1.0, 0, 1.0, 0, 0, 0, 0 }

MS_API ms_status ms_generator_open(const char *path, const ms_generate_options *options,
                                   ms_generator **generator);
MS_API void ms_generator_close(ms_generator *generator);

MS_API int64_t ms_generator_vocabulary(const ms_generator *generator);
/* Tokens in the sequence so far, and how many it can hold. */
MS_API int64_t ms_generator_length(const ms_generator *generator);
MS_API int64_t ms_generator_capacity(const ms_generator *generator);

/* Appends text (MS_ERR_NOT_FOUND when the model came without a tokenizer). An empty sequence begins with the
 * tokenizer's beginning-of-text token, if it has one. */
MS_API ms_status ms_generator_prompt(ms_generator *generator, const char *text, size_t length);
/*
 * Appends ids. log_probabilities, when not NULL, receives count numbers: the natural logarithm of each id's
 * probability after what stands before it (0 for the very first token).
 */
MS_API ms_status ms_generator_feed(ms_generator *generator, const int32_t *ids, int64_t count,
                                   double *log_probabilities);
/* Draws the next token and appends it. MS_ERR_RANGE when the sequence is full. */
MS_API ms_status ms_generator_next(ms_generator *generator, int32_t *id);
/* Whether an id ends a text. */
MS_API int ms_generator_is_end(const ms_generator *generator, int32_t id);
/* What an id stands for, owned by the generator; bytes may end inside a character. */
MS_API ms_status ms_generator_bytes(const ms_generator *generator, int32_t id, const char **bytes,
                                    size_t *length);
/* Forgets the sequence. */
MS_API void ms_generator_reset(ms_generator *generator);

#ifdef __cplusplus
}
#endif
#endif
