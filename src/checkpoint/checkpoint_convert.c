/*
 * checkpoint_convert.c - a checkpoint or model directory in another floating type, as a new
 * directory.
 *
 * Where it stands: `mindspeed checkpoint convert` -> ms_checkpoint_convert: tensor_source.c reads
 * and checks, staging.c writes and hashes. Tensors go through in pieces of 1 MiB, so a model of any
 * size takes MS_CHECKPOINT_SCRATCH_BYTES of memory (and the page cache).
 *
 *   weights      floating ones in the type asked for, others as they are
 *   full         optimizer*.safetensors, state.json and config.yaml as they are
 *   beside them  config.json with its type entry set, and the tokenizer's and generation's files
 *
 * Invariants: the new directory is built under a temporary name beside the old and renamed at the
 * end; a failure leaves nothing. An existing directory is never written into.
 *
 * Rejected: converting in place (a kill would leave a mixture of types).
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/internal.h"
#include "format/json.h"

#define BESIDE_BYTES_MAX ((size_t)256 << 20) /* a tokenizer with a very large vocabulary */
#define CONFIG_NAME "config.json"

typedef struct convert_job {
    const char *from, *to;
    const ms_checkpoint_conversion *conversion;
    char dir[MS_PATH_BYTES];     /* where the files beside the tensors are */
    char partial[MS_PATH_BYTES]; /* the new directory before it has its name */
    char parent[MS_PATH_BYTES];  /* of the new directory */
    ms__source *source;
    ms__staging staging;
    ms_safetensors_layout *layouts[MS__GROUP_COUNT];
    int64_t *orders[MS__GROUP_COUNT]; /* per tensor of the new files: its index in the source */
    bool made;                        /* partial exists */
} convert_job;

static const char *const group_names[MS__GROUP_COUNT] = {"model", "optimizer"};

/* Splits `to` into its parent and a temporary name in it. */
static ms_status make_paths(convert_job *job) {
    size_t length = strlen(job->to);
    while (length > 1 && job->to[length - 1] == '/') {
        length--;
    }
    size_t name = length;
    while (name > 0 && job->to[name - 1] != '/') {
        name--;
    }
    if (name == length || length >= sizeof job->parent - 16) {
        return ms_fail(MS_ERR_ARGUMENT, "%s: not a path for a new directory", job->to);
    }
    if (ms_path_exists(job->to)) {
        return ms_fail(MS_ERR_EXISTS, "%s: exists; name a directory that does not", job->to);
    }
    snprintf(job->parent, sizeof job->parent, "%.*s", name > 0 ? (int)name : 1,
             name > 0 ? job->to : ".");
    char base[MS_PATH_BYTES];
    snprintf(base, sizeof base, ".%.*s.tmp", (int)(length - name), job->to + name);
    MS_TRY(ms_path_join(job->parent, base, job->partial, sizeof job->partial));
    if (ms_path_is_directory(job->from)) {
        return ms_path_join(job->from, "", job->dir, sizeof job->dir);
    }
    return MS_OK; /* one file: nothing is beside it that must belong to it */
}

static ms_dtype new_type(const convert_job *job, ms__tensor_group group,
                         const ms_safetensors_tensor *tensor) {
    bool is_real = tensor->dtype <= MS_F16;
    return group == MS__GROUP_MODEL && is_real && job->conversion->weight_type != MS_DTYPE_COUNT
               ? job->conversion->weight_type
               : tensor->dtype;
}

typedef struct named_index {
    const char *name;
    int64_t index;
} named_index;

static int compare_named(const void *a, const void *b) {
    return ms__natural_compare(((const named_index *)a)->name, ((const named_index *)b)->name);
}

/* The source's tensors in the order in which we write: by name as people sort. */
static ms_status make_order(convert_job *job, ms__tensor_group group) {
    int64_t count = ms__source_count(job->source, group);
    named_index *names = NULL;
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_CALLER, &job->orders[group]));
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_CALLER, &names));
    for (int64_t i = 0; i < count; i++) {
        names[i] = (named_index){ms__source_at(job->source, group, i)->name, i};
    }
    qsort(names, (size_t)count, sizeof *names, compare_named);
    for (int64_t i = 0; i < count; i++) {
        job->orders[group][i] = names[i].index;
    }
    ms_free(names);
    return MS_OK;
}

static ms_status make_layout(convert_job *job, ms__tensor_group group) {
    int64_t count = ms__source_count(job->source, group);
    if (count == 0 && group != MS__GROUP_MODEL) {
        return MS_OK;
    }
    MS_TRY(make_order(job, group));
    ms_safetensors_spec *specs = NULL;
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_CALLER, &specs));
    for (int64_t i = 0; i < count; i++) {
        const ms_safetensors_tensor *tensor =
            ms__source_at(job->source, group, job->orders[group][i]);
        specs[i].name = tensor->name;
        specs[i].dtype = new_type(job, group, tensor);
        specs[i].rank = tensor->rank;
        memcpy(specs[i].dims, tensor->dims, sizeof specs[i].dims);
    }
    uint64_t limit = job->conversion->file_bytes_max;
    limit = limit == 0 ? MS_CHECKPOINT_FILE_BYTES_DEFAULT : limit == UINT64_MAX ? 0 : limit;
    ms_status status = ms_safetensors_layout_create(specs, count, NULL, 0, group_names[group],
                                                    limit, &job->layouts[group]);
    ms_free(specs);
    return status;
}

static ms_status write_tensor(convert_job *job, ms__tensor_group group, int64_t i) {
    int64_t index = job->orders[group][i];
    const ms_safetensors_tensor *tensor = ms__source_at(job->source, group, index);
    ms_safetensors_place place = ms_safetensors_layout_place(job->layouts[group], i);
    size_t file = job->staging.group_first[group] + (size_t)place.file;
    ms_dtype to_type = new_type(job, group, tensor);
    size_t from_bytes = ms_dtype_bytes(tensor->dtype), to_bytes = ms_dtype_bytes(to_type);
    int64_t piece_max = (int64_t)(MS_CHECKPOINT_CHUNK_BYTES / from_bytes);
    int64_t count = ms_safetensors_tensor_count(tensor);
    for (int64_t at = 0; at < count; at += piece_max) {
        int64_t piece = ms_min_i64(piece_max, count - at);
        uint64_t start = (uint64_t)at * from_bytes;
        MS_TRY(ms__source_check(job->source, group, index, start, (uint64_t)piece * from_bytes));
        MS_TRY(ms__staging_write(&job->staging, file, place.offset + (uint64_t)at * to_bytes,
                                 (const char *)tensor->data + start, tensor->dtype, to_type,
                                 piece));
    }
    return MS_OK;
}

static ms_status write_tensors(convert_job *job) {
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        ms__tensor_group tensor_group = (ms__tensor_group)group;
        if (job->layouts[group] == NULL) {
            continue;
        }
        MS_TRY(ms__staging_add_layout(&job->staging, tensor_group, job->layouts[group], true));
        for (int64_t i = 0; i < ms__source_count(job->source, tensor_group); i++) {
            MS_TRY(write_tensor(job, tensor_group, i));
        }
    }
    return MS_OK;
}

/* The type's name in Hugging Face's configurations. */
static const char *torch_name(ms_dtype type) {
    switch (type) {
    case MS_F64:
        return "float64";
    case MS_F32:
        return "float32";
    case MS_BF16:
        return "bfloat16";
    default:
        return "float16";
    }
}

/* config.json says in which type its weights are: under "torch_dtype", newer ones under "dtype". */
static ms_status rewrite_config(const convert_job *job, const char *path, ms_text *text) {
    if (job->conversion->weight_type == MS_DTYPE_COUNT) {
        return MS_OK;
    }
    ms_json json = {0};
    MS_TRY(ms_json_parse(text->bytes, text->length, path, &json));
    const char *key = json_object_get(json.root, "dtype") != NULL ? "dtype" : "torch_dtype";
    ms_status status = MS_OK;
    char *dumped = NULL;
    if (json_object_set_new(json.root, key,
                            json_string(torch_name(job->conversion->weight_type))) == 0) {
        dumped = json_dumps(json.root, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    }
    ms_json_close(&json);
    if (dumped == NULL) {
        return ms_fail(MS_ERR_MEMORY, "%s: no memory to write it anew", path);
    }
    ms_text_clear(text);
    status = ms_text_printf(text, "%s\n", dumped);
    free(dumped);
    return status;
}

/* Files of a model directory that are no tensors and belong to the model. */
static bool is_beside(const convert_job *job, const char *name) {
    static const char *const ends[] = {".json", ".txt", ".model", ".tiktoken", ".jinja", ".md"};
    if (!ms__plain_name(name) || strcmp(name, MS_CHECKPOINT_MANIFEST) == 0 ||
        strstr(name, ".safetensors") != NULL || strstr(name, ".bin.index.json") != NULL) {
        return false;
    }
    if (strcmp(name, MS_CHECKPOINT_STATE) == 0 || strcmp(name, "config.yaml") == 0) {
        return job->conversion->full;
    }
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t end = strlen(ends[i]);
        if (length > end && strcmp(name + length - end, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

static ms_status copy_beside(convert_job *job, const char *name) {
    const ms__manifest *manifest = ms__source_manifest(job->source);
    char path[MS_PATH_BYTES];
    ms_text text = {0};
    ms_status status;
    MS_TRY(ms_path_join(job->dir, name, path, sizeof path));
    if (ms_path_is_directory(path)) {
        return MS_OK;
    }
    if (manifest != NULL && ms__manifest_find(manifest, name) != NULL) {
        MS_TRY_GOTO(ms__manifest_read_file(manifest, job->dir, name, BESIDE_BYTES_MAX, &text),
                    release_text);
    } else {
        MS_TRY_GOTO(ms_file_read(path, BESIDE_BYTES_MAX, &text), release_text);
    }
    if (strcmp(name, CONFIG_NAME) == 0) {
        MS_TRY_GOTO(rewrite_config(job, path, &text), release_text);
    }
    MS_TRY_GOTO(ms__staging_add_file(&job->staging, name, text.bytes, text.length), release_text);
release_text:
    ms_text_release(&text);
    return status;
}

static ms_status copy_all_beside(convert_job *job) {
    if (job->dir[0] == '\0') {
        return MS_OK;
    }
    DIR *folder = opendir(job->dir);
    if (folder == NULL) {
        return ms_fail(MS_ERR_IO, "%s: cannot list: %m", job->dir);
    }
    ms_status status = MS_OK;
    while (status == MS_OK) {
        errno = 0;
        const struct dirent *found = readdir(folder);
        if (found == NULL) {
            status = errno != 0 ? ms_fail(MS_ERR_IO, "%s: cannot list: %m", job->dir) : MS_OK;
            break;
        }
        if (is_beside(job, found->d_name)) {
            status = copy_beside(job, found->d_name);
        }
    }
    closedir(folder);
    return status;
}

static ms_status run(convert_job *job) {
    MS_TRY(make_paths(job));
    MS_TRY(ms__source_open(job->from, job->conversion->full, &job->source));
    const ms__manifest *manifest = ms__source_manifest(job->source);
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        MS_TRY(make_layout(job, (ms__tensor_group)group));
    }
    MS_TRY(ms__staging_begin(&job->staging, job->partial, manifest != NULL ? manifest->step : 0));
    MS_TRY(ms_directory_make(job->parent));
    MS_TRY(ms__disk_remove(job->partial));
    job->made = true;
    MS_TRY(ms__disk_make(job->partial));
    MS_TRY(copy_all_beside(job));
    MS_TRY(write_tensors(job));
    MS_TRY(ms__staging_sync(&job->staging));
    MS_TRY(ms__staging_hash(&job->staging, 0, 1));
    MS_TRY(ms__staging_write_manifest(&job->staging));
    MS_TRY(ms__disk_rename(job->partial, job->to));
    return ms__disk_sync_directory(job->parent);
}

static ms_status check_conversion(const ms_checkpoint_conversion *conversion) {
    ms_dtype type = conversion->weight_type;
    if (type != MS_DTYPE_COUNT && (unsigned)type > MS_F16) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "convert: weights cannot become %s; fp64, fp32, bf16 and fp16 are "
                       "possible",
                       ms_dtype_name(type));
    }
    return MS_OK;
}

static ms_status finish(convert_job *job, ms_status status) {
    ms__staging_end(&job->staging);
    ms__source_close(job->source);
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        ms_safetensors_layout_destroy(job->layouts[group]);
        ms_free(job->orders[group]);
    }
    if (status != MS_OK && job->made) {
        char sentence[1024];
        snprintf(sentence, sizeof sentence, "%s", ms_error_detail());
        if (ms__disk_remove(job->partial) != MS_OK) {
            ms_log_warn("unfinished directory not removed: %s", ms_error_detail());
            status = ms_fail(status, "%s", sentence);
        }
    }
    ms_free(job);
    return status;
}

ms_status ms_checkpoint_convert(const char *from, const char *to,
                                const ms_checkpoint_conversion *conversion) {
    convert_job *job = NULL; /* paths are too much for a stack */
    MS_TRY(check_conversion(conversion));
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &job));
    job->from = from;
    job->to = to;
    job->conversion = conversion;
    job->staging.open_fd = -1;
    return finish(job, run(job));
}
