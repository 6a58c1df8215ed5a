/*
 * dataset.h - token sequences for training, in an order that depends on (seed, global index) alone.
 *
 * Sources are text, JSONL or Megatron .bin/.idx, blended by weight. A sample is T + 1 consecutive
 * tokens of a source (stride T), so a source of n tokens has (n - 1) / T samples an epoch. Global
 * sample index g -> (source, index within the source) -> epoch and position -> a keyed permutation
 * of the epoch's samples. The whole state is g: nothing is saved, repeated or skipped, whoever asks
 * and however many ranks there are.
 *
 * With weights, every first part of the order holds each source's share to within one sample;
 * shares that are not whole numbers of at most 65,536 places are rounded to that (within one more
 * sample for each 65,536). Each source goes through all of its samples before any comes again.
 * Weights that are all 1, or none, mean shares by size: all samples once each epoch.
 */
#ifndef MS_DATA_DATASET_H
#define MS_DATA_DATASET_H

#include "base/config.h"
#include "format/tokenizer.h"

/* Section `data` of the config. */
typedef struct ms_data_config {
    const ms_config_list *train, *valid;
    const char *tokenizer;
    double split;
    bool eod;
    const char *text_key;
    bool shuffle;
} ms_data_config;
extern const ms_config_section ms_data_section;

/*
 * The tokenizer that data.tokenizer names; when that is empty, the model directory's; without a
 * directory (NULL) the one that `data build` stored beside the data, else char. `char` takes the
 * characters of all text in data.train and data.valid.
 */
ms_status ms_data_tokenizer(const ms_data_config *config, const char *directory,
                            ms_tokenizer **tokenizer);
/* By name: char (of the input files), byte, or a path. text_key (JSONL; NULL: "text") and inputs
 * serve char only. */
ms_status ms_data_tokenizer_named(const char *name, const char *const *inputs, int input_count,
                                  const char *text_key, ms_tokenizer **tokenizer);

typedef enum ms_data_split { MS_SPLIT_TRAIN, MS_SPLIT_VALID } ms_data_split;

typedef struct ms_dataset_options {
    const ms_data_config *config; /* not needed after open */
    int64_t sequence;             /* T */
    uint64_t seed;
    ms_data_split split;
    const ms_tokenizer *tokenizer; /* not needed after open; may be NULL for .bin/.idx */
    int64_t vocabulary_size;       /* a token id beyond it is an error; 0: not checked */
} ms_dataset_options;

typedef struct ms_dataset ms_dataset;

/*
 * Opens and tokenises, with the calling thread's team of threads. VALID without data.valid is the
 * part of data.train after data.split: of the text (by characters) or, for JSONL and .bin/.idx, of
 * the tokens. A source shorter than one sample is MS_ERR_RANGE with the arithmetic when it has a
 * weight or is the only one; else it is left out with a warning.
 */
ms_status ms_dataset_open(const ms_dataset_options *options, ms_dataset **dataset);
void ms_dataset_close(ms_dataset *dataset);
/* Samples of all sources, once each; tokens likewise. */
int64_t ms_dataset_count(const ms_dataset *dataset);
int64_t ms_dataset_tokens(const ms_dataset *dataset);
/*
 * Sample g: T tokens and the T tokens that follow each. g >= 0 without an upper end: epochs follow
 * one another. Thread-safe; allocates nothing.
 */
ms_status ms_dataset_sample(const ms_dataset *dataset, int64_t g, int32_t *tokens,
                            int32_t *targets);
/* Source and index within it of sample g >= 0: for tests and for data info. */
void ms_dataset_locate(const ms_dataset *dataset, int64_t g, int64_t *source, int64_t *sample);
/* A line for each source. */
ms_status ms_dataset_info(const ms_dataset *dataset, ms_text *text);

/* What a source is and has. */
typedef struct ms_dataset_source {
    const char *path, *kind; /* "text", "jsonl", "indexed" */
    int64_t tokens, samples;
    int64_t left_over; /* tokens of the last, shorter sample, which is dropped */
    double share;      /* of all samples */
} ms_dataset_source;
int ms_dataset_source_count(const ms_dataset *dataset);
ms_dataset_source ms_dataset_source_get(const ms_dataset *dataset, int source);

#endif
