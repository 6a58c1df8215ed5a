/*
 * checkpoint_load.c - filling the slices of any layout from a checkpoint or a model directory.
 *
 * Where it stands: train/loop.c, generate and eval -> ms_checkpoint_load -> tensor_source.c.
 *
 *   resolve   all: open, find every slice's tensor, compare dims; rank 0: check the small files
 *   cover     all: no weight of the file may be left that nobody asks for
 *   read      all: the runs of each slice out of the map, each block checked when first touched
 *
 * Invariants: ranks agree after each phase; no slice is written before every rank has found all of
 * its tensors, so loading another model's checkpoint changes nothing. There is no partial load: a
 * missing weight, or one too many, is an error and never a warning.
 *
 * Rejected: rank 0 reading and scattering (every rank can read its own runs, and the page cache is
 * shared on one machine).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/internal.h"

#define SMALL_FILE_BYTES_MAX ((size_t)1 << 30)
#define DIMS_TEXT_BYTES 200

typedef struct load_job {
    ms_comm *comm;
    const char *path;
    const ms_checkpoint_slice *slices;
    int64_t slice_count;
    ms__source *source;
    int64_t *found;  /* per slice: index in the source */
    uint8_t *wanted; /* per weight of the source: some rank asks for it */
    void *chunk;
} load_job;

static ms__tensor_group slice_group(const ms_checkpoint_slice *slice) {
    return slice->state != NULL ? MS__GROUP_OPTIMIZER : MS__GROUP_MODEL;
}

static const char *print_dims(int rank, const int64_t *dims, char text[DIMS_TEXT_BYTES]) {
    int length = snprintf(text, DIMS_TEXT_BYTES, "[");
    for (int i = 0; i < rank; i++) {
        length += snprintf(text + length, (size_t)(DIMS_TEXT_BYTES - length), "%s%" PRId64,
                           i > 0 ? ", " : "", dims[i]);
    }
    snprintf(text + length, (size_t)(DIMS_TEXT_BYTES - length), "]");
    return text;
}

static ms_status check_found(const load_job *load, const ms_checkpoint_slice *slice,
                             const char *name, int64_t index) {
    char wanted[DIMS_TEXT_BYTES], there[DIMS_TEXT_BYTES];
    print_dims(slice->tensor->rank, slice->tensor->dims, wanted);
    if (index < 0) {
        return ms_fail(MS_ERR_MISMATCH,
                       "%s: has no tensor \"%s\", which this model needs with dims %s", load->path,
                       name, wanted);
    }
    const ms_safetensors_tensor *tensor = ms__source_at(load->source, slice_group(slice), index);
    bool equal = tensor->rank == slice->tensor->rank;
    for (int i = 0; equal && i < tensor->rank; i++) {
        equal = tensor->dims[i] == slice->tensor->dims[i];
    }
    if (!equal) {
        return ms_fail(MS_ERR_MISMATCH,
                       "%s: tensor \"%s\" has dims %s, this model needs %s: a "
                       "checkpoint of another model",
                       tensor->path, tensor->name, print_dims(tensor->rank, tensor->dims, there),
                       wanted);
    }
    if (tensor->dtype > MS_F16) {
        return ms_fail(MS_ERR_MISMATCH,
                       "%s: tensor \"%s\" is of type %s, expected fp64, fp32, bf16 or "
                       "fp16",
                       tensor->path, tensor->name, ms_dtype_name(tensor->dtype));
    }
    return MS_OK;
}

_Static_assert(MS_F64 < MS_F16 && MS_F32 < MS_F16 && MS_BF16 < MS_F16 && MS_I64 > MS_F16,
               "types up to MS_F16 are the floating ones");

static ms_status resolve_slice(load_job *load, int64_t i) {
    const ms_checkpoint_slice *slice = &load->slices[i];
    char name[MS_CHECKPOINT_NAME_BYTES];
    MS_TRY(ms__slice_check(slice));
    MS_TRY(ms__slice_name(slice, name));
    int64_t index = ms__source_find(load->source, slice_group(slice), name);
    MS_TRY(check_found(load, slice, name, index));
    load->found[i] = index;
    if (slice->state == NULL) {
        load->wanted[index] = 1;
    }
    return MS_OK;
}

/* The files that are not tensors: small, read by others without a check, so checked here whole. */
static ms_status check_small_files(const load_job *load) {
    const ms__manifest *manifest = ms__source_manifest(load->source);
    for (int64_t i = 0; manifest != NULL && i < manifest->file_count; i++) {
        const char *name = manifest->files[i].name;
        if (strstr(name, ".safetensors") != NULL && strstr(name, ".json") == NULL) {
            continue;
        }
        ms_text text = {0};
        ms_status status =
            ms__manifest_read_file(manifest, load->path, name, SMALL_FILE_BYTES_MAX, &text);
        ms_text_release(&text);
        MS_TRY(status);
    }
    return MS_OK;
}

static ms_status resolve(load_job *load) {
    bool with_optimizer = false;
    for (int64_t i = 0; i < load->slice_count; i++) {
        with_optimizer = with_optimizer || load->slices[i].state != NULL;
    }
    MS_TRY(ms_alloc(MS_CHECKPOINT_CHUNK_BYTES, MS_MEMORY_CALLER, &load->chunk));
    MS_TRY(MS_NEW((size_t)load->slice_count, MS_MEMORY_CALLER, &load->found));
    MS_TRY(ms__source_open(load->path, with_optimizer, &load->source));
    size_t count = (size_t)ms__source_count(load->source, MS__GROUP_MODEL);
    MS_TRY(MS_NEW(count, MS_MEMORY_CALLER, &load->wanted));
    for (int64_t i = 0; i < load->slice_count; i++) {
        MS_TRY(resolve_slice(load, i));
    }
    return ms_comm_rank(load->comm) == 0 ? check_small_files(load) : MS_OK;
}

/* A weight that nobody wants: the file is of a larger model. Collective; the same verdict
 * everywhere. */
static ms_status cover(load_job *load) {
    int64_t count = ms__source_count(load->source, MS__GROUP_MODEL);
    MS_TRY(ms_comm_all_reduce(load->comm, load->wanted, load->wanted, count, MS_U8, MS_REDUCE_MAX,
                              NULL));
    for (int64_t i = 0; i < count; i++) {
        const ms_safetensors_tensor *tensor = ms__source_at(load->source, MS__GROUP_MODEL, i);
        if (load->wanted[i] != 0 || ms__name_is_derived(tensor->name)) {
            continue;
        }
        /* A tied head stored twice: its other name has been asked for. */
        ms__name_variants variants;
        ms__name_variants_make(tensor->name, &variants);
        bool is_double = false;
        for (int j = 1; j < variants.count && !is_double; j++) {
            int64_t other = ms__source_find(load->source, MS__GROUP_MODEL, variants.names[j]);
            is_double = other >= 0 && other != i && load->wanted[other] != 0;
        }
        if (!is_double) {
            char dims[DIMS_TEXT_BYTES];
            return ms_fail(MS_ERR_MISMATCH,
                           "%s: has a tensor \"%s\" with dims %s, for which this model "
                           "has no place: a checkpoint of another model",
                           tensor->path, tensor->name,
                           print_dims(tensor->rank, tensor->dims, dims));
        }
    }
    return MS_OK;
}

typedef struct slice_reader {
    load_job *load;
    const ms_checkpoint_slice *slice;
    int64_t index;
    const ms_safetensors_tensor *tensor;
} slice_reader;

/* Copies out of the map by way of the chunk: tensors in a file need not be aligned. */
static ms_status convert_run(void *chunk, const char *from, ms_dtype from_type, char *to,
                             ms_dtype to_type, int64_t count) {
    size_t from_bytes = ms_dtype_bytes(from_type), to_bytes = ms_dtype_bytes(to_type);
    if (from_type == to_type) {
        memcpy(to, from, (size_t)count * from_bytes);
        return MS_OK;
    }
    int64_t piece_max = (int64_t)(MS_CHECKPOINT_CHUNK_BYTES / from_bytes);
    while (count > 0) {
        int64_t piece = ms_min_i64(count, piece_max);
        const void *source = from;
        if ((uintptr_t)from % from_bytes != 0) {
            memcpy(chunk, from, (size_t)piece * from_bytes);
            source = chunk;
        }
        MS_TRY(ms_convert(source, from_type, to, to_type, piece));
        from += (size_t)piece * from_bytes;
        to += (size_t)piece * to_bytes;
        count -= piece;
    }
    return MS_OK;
}

static ms_status read_run(const ms_shard_run *run, void *context) {
    const slice_reader *reader = context;
    const ms_checkpoint_slice *slice = reader->slice;
    size_t file_bytes = ms_dtype_bytes(reader->tensor->dtype);
    uint64_t start = (uint64_t)run->global_start * file_bytes;
    MS_TRY(ms__source_check(reader->load->source, slice_group(slice), reader->index, start,
                            (uint64_t)run->count * file_bytes));
    char *to = (char *)slice->data +
               (size_t)(run->local_start - slice->local_start) * ms_dtype_bytes(slice->memory_type);
    return convert_run(reader->load->chunk, (const char *)reader->tensor->data + start,
                       reader->tensor->dtype, to, slice->memory_type, run->count);
}

static ms_status read_slices(load_job *load) {
    for (int64_t i = 0; i < load->slice_count; i++) {
        const ms_checkpoint_slice *slice = &load->slices[i];
        slice_reader reader = {
            .load = load,
            .slice = slice,
            .index = load->found[i],
            .tensor = ms__source_at(load->source, slice_group(slice), load->found[i]),
        };
        MS_TRY(ms_shard_visit(slice->shard, slice->local_start, slice->local_count, read_run,
                              &reader));
    }
    return MS_OK;
}

static ms_status run_phases(load_job *load) {
    MS_TRY(ms__agree(load->comm, resolve(load)));
    MS_TRY(cover(load));
    return ms__agree(load->comm, read_slices(load));
}

ms_status ms_checkpoint_load(ms_comm *comm, const char *path, const ms_checkpoint_slice *slices,
                             int64_t slice_count) {
    load_job load = {.comm = comm, .path = path, .slices = slices, .slice_count = slice_count};
    ms_status status = run_phases(&load);
    ms__source_close(load.source);
    ms_free(load.found);
    ms_free(load.wanted);
    ms_free(load.chunk);
    return status;
}

/* What rank 0 found, for all. */
typedef struct finding {
    char path[MS_PATH_BYTES];
    ms_train_state state;
} finding;

static ms_status find_and_read(const char *dir, int64_t step_limit, finding *found) {
    MS_TRY(ms_checkpoint_find_before(dir, step_limit, found->path, sizeof found->path));
    return ms_checkpoint_read_state(found->path, &found->state);
}

static bool is_damage(ms_status status) {
    return status == MS_ERR_CHECKSUM || status == MS_ERR_FORMAT || status == MS_ERR_IO;
}

/* The step of a path that ms_checkpoint_find gave. */
static int64_t step_of_path(const char *path) {
    const char *digits = strstr(strrchr(path, '/') != NULL ? strrchr(path, '/') : path, "step-");
    int64_t step = 0;
    for (digits = digits != NULL ? digits + 5 : ""; *digits >= '0' && *digits <= '9'; digits++) {
        step = step * 10 + (*digits - '0');
    }
    return step;
}

static ms_status try_newest(ms_comm *comm, const char *dir, const ms_checkpoint_slice *slices,
                            int64_t slice_count, int64_t *step_limit, finding *found) {
    ms_status status = MS_OK;
    if (ms_comm_rank(comm) == 0) {
        found->path[0] = '\0';
        status = find_and_read(dir, *step_limit, found);
    }
    status = ms__agree(comm, status);
    /* Also when reading the state failed: the path then says where to go on. */
    MS_TRY(ms_comm_broadcast(comm, found, (int64_t)sizeof *found, MS_U8, 0, NULL));
    if (status == MS_OK) {
        status = ms_checkpoint_load(comm, found->path, slices, slice_count);
    }
    if (found->path[0] != '\0') {
        *step_limit = step_of_path(found->path);
    }
    return status;
}

ms_status ms_checkpoint_load_newest(ms_comm *comm, const char *dir,
                                    const ms_checkpoint_slice *slices, int64_t slice_count,
                                    char *path, size_t path_bytes, ms_train_state *state) {
    finding *found = NULL;
    ms_status status = MS_NEW(1, MS_MEMORY_CALLER, &found);
    int64_t step_limit = INT64_MAX;
    MS_TRY_GOTO(ms__agree(comm, status), free_found);
    status = try_newest(comm, dir, slices, slice_count, &step_limit, found);
    while (is_damage(status) && found->path[0] != '\0') {
        if (ms_comm_rank(comm) == 0) {
            ms_log_warn("checkpoint skipped: %s", ms_error_detail());
        }
        status = try_newest(comm, dir, slices, slice_count, &step_limit, found);
    }
    MS_TRY_GOTO(status, free_found);
    if (path != NULL && strlen(found->path) >= path_bytes) {
        status = ms_fail(MS_ERR_RANGE, "%s: path does not fit %zu bytes", found->path, path_bytes);
        goto free_found;
    }
    if (path != NULL) {
        memcpy(path, found->path, strlen(found->path) + 1);
    }
    if (state != NULL) {
        *state = found->state;
    }
free_found:
    ms_free(found);
    return status;
}
