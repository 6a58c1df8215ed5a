/*
 * checkpoint_support.h - a small model whose every value is known from (tensor, state, index),
 * random layouts of it over several ranks in one process, and directories that vanish.
 */
#ifndef TESTS_CHECKPOINT_SUPPORT_H
#define TESTS_CHECKPOINT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/internal.h"
#include "comm/comm.h"

#define LOOP_RANKS_MAX 4
#define SLICES_MAX 256

/* ---- Reproducible randomness ------------------------------------------------------------------
 */

static inline uint64_t random_next(uint64_t *state) {
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline int64_t random_below(uint64_t *state, int64_t limit) {
    return (int64_t)(random_next(state) % (uint64_t)limit);
}

/* From MS_TEST_SEED or the clock; printed, so that a failure can be repeated. */
static inline uint64_t random_seed(void) {
    const char *text = getenv("MS_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)ms_clock_ns();
    print_message("seed %" PRIu64 " (MS_TEST_SEED)\n", seed);
    return seed;
}

/* ---- Directories ------------------------------------------------------------------------------
 */

static inline void scratch_make(char path[MS_PATH_BYTES]) {
    const char *root = getenv("TMPDIR");
    snprintf(path, MS_PATH_BYTES, "%s/ms-checkpoint-XXXXXX", root != NULL ? root : "/tmp");
    assert_non_null(mkdtemp(path));
}

static inline void scratch_remove(const char *path) {
    assert_int_equal(ms_directory_remove(path), MS_OK);
}

static inline const char *path_in(const char *dir, const char *name) {
    static _Thread_local char paths[4][MS_PATH_BYTES];
    static _Thread_local int next;
    char *path = paths[next++ % 4];
    snprintf(path, MS_PATH_BYTES, "%s/%s", dir, name);
    return path;
}

static inline void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static inline ms_text read_file(const char *path) {
    ms_text text = {0};
    assert_int_equal(ms_file_read(path, (size_t)1 << 30, &text), MS_OK);
    return text;
}

/* Number of entries of a directory whose names begin with a prefix. */
static inline int count_names(const char *dir, const char *prefix) {
    DIR *folder = opendir(dir);
    assert_non_null(folder);
    int count = 0;
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                 strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    }
    closedir(folder);
    return count;
}

/* ---- The model --------------------------------------------------------------------------------
 */

static inline ms_tensor tensor_of(const char *name, int rank, int64_t a, int64_t b) {
    ms_tensor tensor = {.rank = rank, .dims = {a, b}};
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    return tensor;
}

#define MODEL_TENSORS 9
static inline void model_make(ms_tensor tensors[MODEL_TENSORS]) {
    tensors[0] = tensor_of("transformer.wte.weight", 2, 61, 16);
    tensors[1] = tensor_of("transformer.h.2.attn.c_attn.weight", 2, 16, 48);
    tensors[2] = tensor_of("transformer.h.10.attn.c_attn.weight", 2, 16, 48);
    tensors[3] = tensor_of("transformer.h.2.attn.c_attn.bias", 1, 48, 0);
    tensors[4] = tensor_of("transformer.h.2.mlp.c_fc.weight", 2, 16, 64);
    tensors[5] = tensor_of("transformer.ln_f.weight", 1, 17, 0);
    tensors[6] = tensor_of("transformer.odd", 2, 7, 13);
    tensors[7] = tensor_of("transformer.scale", 0, 0, 0);
    tensors[8] = tensor_of("transformer.empty", 2, 0, 5);
}

/* Small whole numbers: exact in every floating type. */
static inline double value_of(const char *name, int64_t index, int64_t salt) {
    uint64_t state = (uint64_t)index * 31 + (uint64_t)salt * 1000003;
    for (const char *c = name; *c != '\0'; c++) {
        state = state * 131 + (unsigned char)*c;
    }
    return (double)(random_next(&state) % 251) - 125.0;
}

static inline void store(void *data, ms_dtype type, int64_t index, double value) {
    char *to = (char *)data + (size_t)index * ms_dtype_bytes(type);
    assert_int_equal(ms_convert(&value, MS_F64, to, type, 1), MS_OK);
}

static inline double fetch(const void *data, ms_dtype type, int64_t index) {
    double value = 0;
    const char *from = (const char *)data + (size_t)index * ms_dtype_bytes(type);
    assert_int_equal(ms_convert(from, type, &value, MS_F64, 1), MS_OK);
    return value;
}

/* ---- Layouts ----------------------------------------------------------------------------------
 */

typedef struct rank_slices {
    int64_t count;
    ms_checkpoint_slice slices[SLICES_MAX];
    ms_shard shards[SLICES_MAX];
} rank_slices;

static const ms_dtype real_types[] = {MS_F64, MS_F32, MS_BF16, MS_F16};

static inline ms_checkpoint_slice *slice_add(rank_slices *rank, const ms_tensor *tensor,
                                             const char *state, const ms_shard *shard,
                                             int64_t start, int64_t count, ms_dtype memory_type,
                                             ms_dtype file_type, bool writer) {
    assert_true(rank->count < SLICES_MAX);
    ms_checkpoint_slice *slice = &rank->slices[rank->count];
    rank->shards[rank->count] = *shard;
    void *data = calloc((size_t)count + 1, ms_dtype_bytes(memory_type));
    assert_non_null(data);
    *slice = (ms_checkpoint_slice){
        .tensor = tensor,
        .state = state,
        .shard = &rank->shards[rank->count],
        .local_start = start,
        .local_count = count,
        .memory_type = memory_type,
        .file_type = file_type,
        .data = data,
        .writer = writer,
    };
    rank->count++;
    return slice;
}

static inline void slices_free(rank_slices *ranks, int size) {
    for (int r = 0; r < size; r++) {
        for (int64_t i = 0; i < ranks[r].count; i++) {
            free(ranks[r].slices[i].data);
        }
        ranks[r].count = 0;
    }
}

/* Deals runs of one dim to `parts` shards at random: each gets an ordered list of segments. */
static inline void split_dim(const ms_tensor *tensor, int dim, int parts, uint64_t *random,
                             ms_shard *shards) {
    for (int p = 0; p < parts; p++) {
        shards[p] = ms_shard_whole(tensor);
        shards[p].local_dims[dim] = 0;
        shards[p].dims[dim].segment_count = 0;
    }
    for (int64_t at = 0; at < tensor->dims[dim];) {
        int64_t count = 1 + random_below(random, tensor->dims[dim] / 3 + 1);
        count = ms_min_i64(count, tensor->dims[dim] - at);
        ms_shard *shard = &shards[random_below(random, parts)];
        ms_shard_dim *list = &shard->dims[dim];
        for (int p = 0; list->segment_count == MS_SEGMENTS_MAX; p++) {
            shard = &shards[p];
            list = &shard->dims[dim];
        }
        /* Sometimes before the others: the local order is free. */
        int place = random_below(random, 2) == 0 ? list->segment_count : 0;
        memmove(&list->segments[place + 1], &list->segments[place],
                (size_t)(list->segment_count - place) * sizeof list->segments[0]);
        list->segments[place] = (ms_segment){at, count};
        list->segment_count++;
        shard->local_dims[dim] += count;
        at += count;
    }
}

/* Cuts the local elements of a shard into ranges for the ranks first, first + step, ... */
static inline void split_flat(rank_slices *ranks, int first, int step, int size,
                              const ms_tensor *tensor, const char *state, const ms_shard *shard,
                              ms_dtype file_type, uint64_t *random) {
    int64_t at = 0, elements = ms_shard_elements(shard);
    for (int r = first; r < size; r += step) {
        int64_t count = r + step >= size ? elements - at : random_below(random, elements - at + 1);
        ms_dtype memory_type = real_types[random_below(random, 4)];
        slice_add(&ranks[r], tensor, state, shard, at, count, memory_type, file_type, true);
        at += count;
    }
}

/* One logical tensor over the ranks, in one of the ways that trainers use. */
static inline void place_tensor(rank_slices *ranks, int size, const ms_tensor *tensor,
                                const char *state, ms_dtype file_type, uint64_t *random) {
    ms_shard whole = ms_shard_whole(tensor);
    ms_shard shards[LOOP_RANKS_MAX];
    int way = (int)random_below(random, tensor->rank == 0 ? 2 : 4);
    if (way == 0) { /* replicated, one writes */
        int writer = (int)random_below(random, size);
        for (int r = 0; r < size; r++) {
            ms_dtype memory_type = real_types[random_below(random, 4)];
            if (r == writer || random_below(random, 2) == 0) {
                slice_add(&ranks[r], tensor, state, &whole, 0, ms_tensor_elements(tensor),
                          memory_type, file_type, r == writer);
            }
        }
    } else if (way == 1) { /* flat ranges: ZeRO */
        split_flat(ranks, 0, 1, size, tensor, state, &whole, file_type, random);
    } else if (way == 2) { /* segments of one dim: tensor parallel */
        split_dim(tensor, (int)random_below(random, tensor->rank), size, random, shards);
        for (int r = 0; r < size; r++) {
            ms_dtype memory_type = real_types[random_below(random, 4)];
            slice_add(&ranks[r], tensor, state, &shards[r], 0, ms_shard_elements(&shards[r]),
                      memory_type, file_type, true);
        }
    } else { /* both */
        int parts = size >= 2 ? 2 : 1;
        split_dim(tensor, (int)random_below(random, tensor->rank), parts, random, shards);
        for (int p = 0; p < parts; p++) {
            split_flat(ranks, p, parts, size, tensor, state, &shards[p], file_type, random);
        }
    }
}

/* The whole model, with two optimizer states if asked, over the ranks. types: of each tensor in the
 * file. */
static inline void place_model(rank_slices *ranks, int size, const ms_tensor *tensors, int count,
                               const ms_dtype *types, bool with_states, uint64_t *random) {
    for (int i = 0; i < count; i++) {
        place_tensor(ranks, size, &tensors[i], NULL, types[i], random);
        if (with_states) {
            place_tensor(ranks, size, &tensors[i], "exp_avg", MS_F32, random);
            place_tensor(ranks, size, &tensors[i], "exp_avg_sq", MS_F32, random);
        }
    }
}

static inline void slice_fill(const ms_checkpoint_slice *slice, int64_t salt) {
    char name[MS_CHECKPOINT_NAME_BYTES];
    assert_int_equal(ms__slice_name(slice, name), MS_OK);
    for (int64_t i = 0; i < slice->local_count; i++) {
        int64_t global = ms_shard_global_index(slice->shard, slice->local_start + i);
        store(slice->data, slice->memory_type, i, value_of(name, global, salt));
    }
}

static inline void slices_fill(rank_slices *ranks, int size, int64_t salt) {
    for (int r = 0; r < size; r++) {
        for (int64_t i = 0; i < ranks[r].count; i++) {
            slice_fill(&ranks[r].slices[i], salt);
        }
    }
}

/* Number of elements that differ from what slices_fill would store. */
static inline int64_t slices_wrong(const rank_slices *ranks, int size, int64_t salt) {
    int64_t wrong = 0;
    for (int r = 0; r < size; r++) {
        for (int64_t s = 0; s < ranks[r].count; s++) {
            const ms_checkpoint_slice *slice = &ranks[r].slices[s];
            char name[MS_CHECKPOINT_NAME_BYTES];
            assert_int_equal(ms__slice_name(slice, name), MS_OK);
            for (int64_t i = 0; i < slice->local_count; i++) {
                int64_t global = ms_shard_global_index(slice->shard, slice->local_start + i);
                wrong += fetch(slice->data, slice->memory_type, i) != value_of(name, global, salt);
            }
        }
    }
    return wrong;
}

/* ---- Several ranks in this process ------------------------------------------------------------
 */

static _Thread_local int current_rank; /* of a thread that run_ranks started */

typedef struct rank_call {
    ms_comm *comm;
    int64_t delay_ms; /* before the call */
    const char *dir;  /* of the run, or the path to load */
    const rank_slices *slices;
    const ms_checkpoint_file *files;
    int file_count;
    ms_train_state state;
    int64_t keep;
    uint64_t file_bytes_max;
    ms_status status;
    char detail[2048];
} rank_call;

static inline void *save_body(void *context) {
    rank_call *call = context;
    current_rank = ms_comm_rank(call->comm);
    ms_sleep_ms(call->delay_ms);
    ms_checkpoint_request request = {
        .dir = call->dir,
        .slices = call->slices->slices,
        .slice_count = call->slices->count,
        .files = call->files,
        .file_count = call->file_count,
        .state = call->state,
        .keep = call->keep,
        .file_bytes_max = call->file_bytes_max,
    };
    call->status = ms_checkpoint_save(call->comm, &request);
    snprintf(call->detail, sizeof call->detail, "%s",
             call->status != MS_OK ? ms_error_detail() : "");
    return NULL;
}

static inline void *load_body(void *context) {
    rank_call *call = context;
    current_rank = ms_comm_rank(call->comm);
    ms_sleep_ms(call->delay_ms);
    call->status =
        ms_checkpoint_load(call->comm, call->dir, call->slices->slices, call->slices->count);
    snprintf(call->detail, sizeof call->detail, "%s",
             call->status != MS_OK ? ms_error_detail() : "");
    return NULL;
}

/* Runs the body on each rank and requires one status and one sentence of all. */
static inline ms_status run_ranks(int size, void *(*body)(void *), rank_call *calls) {
    ms_comm *comms[LOOP_RANKS_MAX];
    pthread_t threads[LOOP_RANKS_MAX];
    ms_comm_options options = MS_COMM_OPTIONS_INIT;
    options.operation_timeout_s = 60;
    options.progress_thread = 0;
    assert_int_equal(ms_comm_create_loop(&options, size, comms), MS_OK);
    for (int r = 0; r < size; r++) {
        calls[r].comm = comms[r];
        assert_int_equal(pthread_create(&threads[r], NULL, body, &calls[r]), 0);
    }
    for (int r = 0; r < size; r++) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    }
    for (int r = 0; r < size; r++) {
        ms_comm_destroy(comms[r]);
        assert_int_equal(calls[r].status, calls[0].status);
        assert_string_equal(calls[r].detail, calls[0].detail);
    }
    return calls[0].status;
}

static char last_detail[2048];

static inline ms_status save_model(const char *dir, int64_t step, const rank_slices *ranks,
                                   int size, int64_t keep, uint64_t file_bytes_max) {
    static const char config[] = "{\"model_type\": \"gpt2\", \"torch_dtype\": \"float32\"}\n";
    const ms_checkpoint_file files[] = {{"config.json", config, sizeof config - 1}};
    rank_call calls[LOOP_RANKS_MAX];
    for (int r = 0; r < size; r++) {
        calls[r] = (rank_call){
            .dir = dir,
            .slices = &ranks[r],
            .files = files,
            .file_count = 1,
            .state = {.step = step,
                      .samples = step * 8,
                      .tokens = step * 512,
                      .best_val_loss = NAN},
            .keep = keep,
            .file_bytes_max = file_bytes_max,
        };
    }
    ms_status status = run_ranks(size, save_body, calls);
    snprintf(last_detail, sizeof last_detail, "%s", calls[0].detail);
    return status;
}

static inline ms_status load_model(const char *path, rank_slices *ranks, int size) {
    rank_call calls[LOOP_RANKS_MAX];
    for (int r = 0; r < size; r++) {
        calls[r] = (rank_call){.dir = path, .slices = &ranks[r]};
    }
    ms_status status = run_ranks(size, load_body, calls);
    snprintf(last_detail, sizeof last_detail, "%s", calls[0].detail);
    return status;
}

/* One rank, the whole model in fp32 with one state: what most tests need. */
static inline void whole_model(rank_slices *rank, const ms_tensor *tensors, int count,
                               int64_t salt) {
    rank->count = 0;
    for (int i = 0; i < count; i++) {
        ms_shard whole = ms_shard_whole(&tensors[i]);
        int64_t elements = ms_tensor_elements(&tensors[i]);
        slice_fill(slice_add(rank, &tensors[i], NULL, &whole, 0, elements, MS_F32, MS_F32, true),
                   salt);
        slice_fill(
            slice_add(rank, &tensors[i], "exp_avg", &whole, 0, elements, MS_F32, MS_F32, true),
            salt);
    }
}

/* Saves a step of the model whose values depend on the step alone. */
static inline ms_status save_step(const char *dir, const ms_tensor *tensors, int count,
                                  int64_t step, int64_t keep) {
    static rank_slices rank;
    whole_model(&rank, tensors, count, step);
    ms_status status = save_model(dir, step, &rank, 1, keep, 0);
    slices_free(&rank, 1);
    return status;
}

/* True when the checkpoint at path holds exactly the values of the step. */
static inline bool holds_step(const char *path, const ms_tensor *tensors, int count, int64_t step) {
    static rank_slices rank;
    ms_train_state state = {0};
    whole_model(&rank, tensors, count, step + 1000);
    bool good = load_model(path, &rank, 1) == MS_OK && slices_wrong(&rank, 1, step) == 0 &&
                ms_checkpoint_read_state(path, &state) == MS_OK && state.step == step &&
                state.samples == step * 8;
    slices_free(&rank, 1);
    return good;
}

/* The newest checkpoint is of this step and good. */
static inline void expect_newest(const char *dir, const ms_tensor *tensors, int count,
                                 int64_t step) {
    char path[MS_PATH_BYTES], name[MS__STEP_NAME_BYTES];
    if (ms_checkpoint_find(dir, path, sizeof path) != MS_OK) {
        fail_msg("find: %s", ms_error_detail());
    }
    ms__step_name(step, name);
    assert_string_equal(strrchr(path, '/') + 1, name);
    if (!holds_step(path, tensors, count, step)) {
        fail_msg("%s does not hold step %" PRId64 ": %s", path, step, last_detail);
    }
}

static inline size_t live_bytes(void) {
    ms_memory_counters counters = ms_memory_counters_get();
    size_t sum = 0;
    for (int tag = 0; tag < MS_MEMORY_TAG_COUNT; tag++) {
        sum += counters.live_bytes[tag];
    }
    return sum;
}

/* ---- Log lines --------------------------------------------------------------------------------
 */

typedef struct log_lines {
    int count;
    char text[8192];
} log_lines;

static inline void log_catch(ms_log_level level, const char *line, void *context) {
    (void)level;
    log_lines *lines = context;
    size_t used = strlen(lines->text);
    lines->count++;
    snprintf(lines->text + used, sizeof lines->text - used, "%s\n", line);
}

#endif
