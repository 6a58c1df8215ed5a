/*
 * dataset.c - sample g of a run: which source, which place in it.
 *
 * Main path: train/session.c -> [ms_dataset_sample] -> engine/step.c.
 *
 *   without weights   the samples of all sources in one row of `count`; epoch e = g / count
 *                     element = permutation(seed, "data:e")(g % count)
 *   with weights      blend.c says source s and its counter c; epoch e = c / samples[s]
 *                     element = permutation(seed, "data:s:e")(c % samples[s])
 *
 * Both are functions of (seed, g): there is no state, no shuffled index in memory or on disk,
 * nothing that depends on ranks, and every number is 64 bits wide. Validation data has no
 * permutation. Weights that are all 1, which is also what no weights at all means, ask for shares
 * by size. Rejected: an index file as others build (minutes at the start, one more thing to be
 * stale); an iterator (its state would have to be saved, moved and resized with the ranks).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/random.h"
#include "data/data_internal.h"

struct ms_dataset {
    int64_t sequence, vocabulary_size, count;
    uint64_t seed;
    bool shuffle, weighted, whole;
    ms_data_split split;
    double fraction;
    ms_source *sources;
    int64_t *starts; /* [source_count + 1]: without weights, where a source's samples begin */
    int source_count, list_count; /* opened, and in the list */
    char **paths;                 /* [list_count] */
    ms_blend blend;
};

/* whole: all of the list's data serve, data.split cuts nothing off. */
static const ms_config_list *list_of(const ms_dataset_options *options, bool *whole) {
    const ms_data_config *config = options->config;
    bool valid_given = config->valid != NULL && config->valid->count > 0;
    bool train = options->split == MS_SPLIT_TRAIN;
    *whole = valid_given || (train && config->split >= 1);
    return valid_given && !train ? config->valid : config->train;
}

static ms_status check_options(const ms_dataset_options *options, const ms_config_list *list) {
    if (list == NULL || list->count == 0) {
        return ms_fail(MS_ERR_CONFIG, "data.train is not set: name a text file, a .jsonl file, the "
                                      "prefix of a .bin/.idx pair, or a list of them");
    }
    if (options->sequence < 1 || options->sequence > INT64_MAX / 4) {
        return ms_fail(MS_ERR_ARGUMENT, "samples of %" PRId64 " tokens", options->sequence);
    }
    return MS_OK;
}

static ms_status open_sources(const ms_dataset_options *options, const ms_config_list *list,
                              ms_dataset *dataset) {
    size_t count = (size_t)list->count;
    MS_TRY(MS_NEW(count, MS_MEMORY_PROCESS, &dataset->sources));
    MS_TRY(MS_NEW(count + 1, MS_MEMORY_PROCESS, &dataset->starts));
    MS_TRY(MS_NEW(count, MS_MEMORY_PROCESS, &dataset->paths));
    dataset->list_count = list->count;
    for (int i = 0; i < list->count; i++) {
        const char *path = list->entries[i].path;
        MS_TRY(ms_alloc(strlen(path) + 1, MS_MEMORY_PROCESS, (void **)&dataset->paths[i]));
        memcpy(dataset->paths[i], path, strlen(path) + 1);
        ms_source_request request = {
            .options = options, .path = dataset->paths[i], .whole = dataset->whole};
        ms_status status = ms__data_source_open(&request, &dataset->sources[i]);
        if (status != MS_OK) {
            ms_error_prefix("data.%s",
                            options->split == MS_SPLIT_VALID && dataset->whole ? "valid" : "train");
            return status;
        }
        dataset->source_count++;
        dataset->starts[i + 1] = dataset->starts[i] + dataset->sources[i].samples;
    }
    dataset->count = dataset->starts[list->count];
    return MS_OK;
}

/* "corpus.txt", with the part of it that was looked at. */
static const char *describe_part(const ms_dataset *dataset, const ms_source *source, char *buffer,
                                 size_t buffer_bytes) {
    bool train = dataset->split == MS_SPLIT_TRAIN;
    if (dataset->whole) {
        snprintf(buffer, buffer_bytes, "%s", source->path);
    } else {
        snprintf(buffer, buffer_bytes, "%s (the %s %.6g %% of it, by data.split)", source->path,
                 train ? "first" : "last",
                 100 * (train ? dataset->fraction : 1 - dataset->fraction));
    }
    return buffer;
}

static ms_status check_enough(const ms_dataset *dataset) {
    for (int i = 0; i < dataset->source_count; i++) {
        const ms_source *source = &dataset->sources[i];
        if (source->samples > 0) {
            continue;
        }
        char part[MS_PATH_BYTES + 64];
        describe_part(dataset, source, part, sizeof part);
        if (dataset->weighted || dataset->count == 0) {
            return ms_fail(MS_ERR_RANGE,
                           "%s: one sample needs at least T + 1 = %" PRId64
                           " tokens, it has %" PRId64,
                           part, dataset->sequence + 1, source->tokens);
        }
        ms_log_warn("%s: %" PRId64 " tokens are not enough for a sample of %" PRId64
                    " + 1; left out",
                    part, source->tokens, dataset->sequence);
    }
    return MS_OK;
}

static ms_status make_blend(const ms_config_list *list, ms_dataset *dataset) {
    double *weights = NULL;
    MS_TRY(MS_NEW((size_t)list->count, MS_MEMORY_PROCESS, &weights));
    for (int i = 0; i < list->count; i++) {
        weights[i] = list->entries[i].weight;
    }
    ms_status status = ms__blend_make(weights, list->count, &dataset->blend);
    ms_free(weights);
    return status;
}

static ms_status open_list(const ms_dataset_options *options, const ms_config_list *list,
                           ms_dataset *dataset) {
    for (int i = 0; i < list->count; i++) {
        double weight = list->entries[i].weight;
        if (!(weight > 0 && weight <= 1e300)) {
            return ms_fail(MS_ERR_CONFIG, "%s: weight %g; it must be above 0",
                           list->entries[i].path, weight);
        }
        dataset->weighted = dataset->weighted || (list->count > 1 && weight != 1.0);
    }
    MS_TRY(open_sources(options, list, dataset));
    MS_TRY(check_enough(dataset));
    return dataset->weighted ? make_blend(list, dataset) : MS_OK;
}

ms_status ms_dataset_open(const ms_dataset_options *options, ms_dataset **dataset) {
    bool whole;
    const ms_config_list *list = list_of(options, &whole);
    MS_TRY(check_options(options, list));
    ms_dataset *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    made->sequence = options->sequence;
    made->vocabulary_size = options->vocabulary_size;
    made->seed = options->seed;
    made->shuffle = options->config->shuffle && options->split == MS_SPLIT_TRAIN;
    made->split = options->split;
    made->whole = whole;
    made->fraction = options->config->split;
    ms_status status = open_list(options, list, made);
    if (status != MS_OK) {
        ms_dataset_close(made);
        return status;
    }
    *dataset = made;
    return MS_OK;
}

void ms_dataset_close(ms_dataset *dataset) {
    if (dataset == NULL) {
        return;
    }
    for (int i = 0; i < dataset->source_count; i++) {
        ms__data_source_close(&dataset->sources[i]);
    }
    for (int i = 0; i < dataset->list_count; i++) {
        ms_free(dataset->paths[i]);
    }
    ms_free(dataset->paths);
    ms_free(dataset->sources);
    ms_free(dataset->starts);
    ms__blend_release(&dataset->blend);
    ms_free(dataset);
}

int64_t ms_dataset_count(const ms_dataset *dataset) {
    return dataset->count;
}

int64_t ms_dataset_tokens(const ms_dataset *dataset) {
    int64_t tokens = 0;
    for (int i = 0; i < dataset->source_count; i++) {
        tokens += dataset->sources[i].tokens;
    }
    return tokens;
}

/* Number `position` of epoch `epoch` of a row of `count`; name distinguishes rows. */
static int64_t element_at(const ms_dataset *dataset, const char *name, int64_t epoch, int64_t count,
                          int64_t position) {
    if (!dataset->shuffle) {
        return position;
    }
    char stream[64];
    snprintf(stream, sizeof stream, "%s:%" PRId64, name, epoch);
    ms_random_key key = ms_random_key_make(dataset->seed, stream);
    return (int64_t)ms_permute(key, (uint64_t)count, (uint64_t)position);
}

static int source_of(const ms_dataset *dataset, int64_t element) {
    int low = 0, high = dataset->source_count - 1; /* starts[low] <= element < starts[high + 1] */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (dataset->starts[middle] <= element) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

void ms_dataset_locate(const ms_dataset *dataset, int64_t g, int64_t *source, int64_t *sample) {
    MS_ASSERT(g >= 0);
    if (!dataset->weighted) {
        int64_t element =
            element_at(dataset, "data", g / dataset->count, dataset->count, g % dataset->count);
        *source = source_of(dataset, element);
        *sample = element - dataset->starts[*source];
        return;
    }
    int at;
    int64_t counter;
    ms__blend_at(&dataset->blend, g, &at, &counter);
    int64_t samples = dataset->sources[at].samples;
    char name[32];
    snprintf(name, sizeof name, "data:%d", at);
    *source = at;
    *sample = element_at(dataset, name, counter / samples, samples, counter % samples);
}

ms_status ms_dataset_sample(const ms_dataset *dataset, int64_t g, int32_t *tokens,
                            int32_t *targets) {
    if (g < 0) {
        return ms_fail(MS_ERR_ARGUMENT, "sample %" PRId64 " of the data asked for", g);
    }
    int64_t at, sample, sequence = dataset->sequence;
    ms_dataset_locate(dataset, g, &at, &sample);
    const ms_source *source = &dataset->sources[at];
    int64_t first = sample * sequence, vocabulary = dataset->vocabulary_size;
    MS_TRY(ms__data_source_read(source, first, sequence, vocabulary, tokens));
    memcpy(targets, tokens + 1, (size_t)(sequence - 1) * sizeof *targets);
    return ms__data_source_read(source, first + sequence, 1, vocabulary, targets + sequence - 1);
}

int ms_dataset_source_count(const ms_dataset *dataset) {
    return dataset->source_count;
}

ms_dataset_source ms_dataset_source_get(const ms_dataset *dataset, int source) {
    const ms_source *from = &dataset->sources[source];
    double share = dataset->weighted
                       ? (double)dataset->blend.shares[source] / (double)dataset->blend.period
                       : (double)from->samples / (double)dataset->count;
    return (ms_dataset_source){.path = from->path,
                               .kind = ms__data_source_kind_name(from->kind),
                               .tokens = from->tokens,
                               .samples = from->samples,
                               .left_over = from->left_over,
                               .share = share};
}

ms_status ms_dataset_info(const ms_dataset *dataset, ms_text *text) {
    for (int i = 0; i < dataset->source_count; i++) {
        ms_dataset_source source = ms_dataset_source_get(dataset, i);
        char tokens[32], samples[32], part[MS_PATH_BYTES + 64];
        describe_part(dataset, &dataset->sources[i], part, sizeof part);
        MS_TRY(ms_text_printf(text, "%s: %s, %s tokens, %s samples of %" PRId64 " tokens", part,
                              source.kind, ms_format_count(source.tokens, tokens, sizeof tokens),
                              ms_format_count(source.samples, samples, sizeof samples),
                              dataset->sequence));
        if (source.left_over > 0) {
            MS_TRY(ms_text_printf(text, ", %" PRId64 " tokens left over at the end",
                                  source.left_over));
        }
        if (dataset->source_count > 1) {
            MS_TRY(ms_text_printf(text, ", %.4g %% of the samples%s", 100 * source.share,
                                  dataset->weighted ? " by weight" : ""));
        }
        MS_TRY(ms_text_append_z(text, "\n"));
    }
    return MS_OK;
}
