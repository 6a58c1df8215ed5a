/* internal.h - what the files of checkpoint/ share; no other room includes it (tests and fuzzers
 * do). */
#ifndef MS_CHECKPOINT_INTERNAL_H
#define MS_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint.h"
#include "format/safetensors.h"

#define MS_CHECKPOINT_BLOCK_BYTES ((uint64_t)4 << 20) /* one hash covers this much of a file */
#define MS_CHECKPOINT_CHUNK_BYTES ((size_t)1 << 20)   /* converted and written at a time */
#define MS_CHECKPOINT_MANIFEST "manifest.json"
#define MS_CHECKPOINT_STATE "state.json"
#define MS_CHECKPOINT_STATE_BYTES_MAX ((size_t)1 << 20)
#define MS_CHECKPOINT_STATE_NAME_BYTES 32
#define MS_CHECKPOINT_NAME_BYTES (MS_TENSOR_NAME_BYTES + MS_CHECKPOINT_STATE_NAME_BYTES)
#define MS_CHECKPOINT_FILE_NAME_BYTES_MAX 200
#define MS_CHECKPOINT_FILES_MAX 200000
#define MS_CHECKPOINT_MANIFEST_BYTES_MAX ((size_t)256 << 20)

_Static_assert(MS_CHECKPOINT_SCRATCH_BYTES == MS_CHECKPOINT_BLOCK_BYTES + MS_CHECKPOINT_CHUNK_BYTES,
               "what the planner counts is what a save takes");

/* The two sets of tensor files of a checkpoint. */
typedef enum ms__tensor_group {
    MS__GROUP_MODEL,     /* "model": the weights */
    MS__GROUP_OPTIMIZER, /* "optimizer": everything with a state */
    MS__GROUP_COUNT
} ms__tensor_group;

/* disk.c: changes of the disk, each behind one hook. */
/* Called before every change with its name ("write", "sync", "rename", ...); returns 0 or an errno,
 * with which the change then fails. For tests; per process; NULL: none. */
typedef int (*ms__disk_hook)(const char *operation, const char *path, void *context);
void ms__disk_set_hook(ms__disk_hook hook, void *context);
ms_status ms__disk_make(const char *path); /* a directory that must not exist yet */
/* A new file, its bytes reserved at once where the disk can do that, so that a full one says so
 * now. */
ms_status ms__disk_create(const char *path, uint64_t bytes, int *fd);
ms_status ms__disk_open(const char *path, int *fd); /* to write; never through a link */
ms_status ms__disk_write(int fd, const char *path, const void *bytes, size_t length,
                         uint64_t offset);
/* Syncs if asked and closes; the descriptor is gone in any case. */
ms_status ms__disk_close(int fd, const char *path, bool sync);
ms_status ms__disk_write_whole(const char *path, const void *bytes, size_t length);
ms_status ms__disk_sync_directory(const char *path);
ms_status ms__disk_rename(const char *from, const char *to);
/* Swaps two names in one step; *done false where the disk cannot. */
ms_status ms__disk_exchange(const char *first, const char *second, bool *done);
ms_status
ms__disk_remove(const char *path); /* a file, a link (not its target) or a tree; fine if absent */

/* manifest.c */
typedef struct ms__manifest_file {
    const char *name; /* a plain name */
    uint64_t bytes;
    int64_t block_count; /* bytes / block_bytes, rounded up */
    uint64_t *hashes;    /* xxh3-64 of each block */
} ms__manifest_file;
typedef struct ms__manifest {
    ms_arena *arena; /* owns files, names and hashes; NULL when they are the caller's */
    int64_t step;
    uint64_t block_bytes;
    int64_t file_count;
    ms__manifest_file *files;
} ms__manifest;
ms_status ms__manifest_emit(const ms__manifest *manifest, ms_text *text);
/* name is for messages. On failure *manifest is untouched. */
ms_status ms__manifest_parse(const char *bytes, size_t length, const char *name,
                             ms__manifest *manifest);
ms_status ms__manifest_read(const char *dir, ms__manifest *manifest); /* NOT_FOUND: there is none */
void ms__manifest_release(ms__manifest *manifest);
const ms__manifest_file *ms__manifest_find(const ms__manifest *manifest, const char *name);
/* Adds the line with the hash of the text so far: how a manifest ends. */
ms_status ms__manifest_seal(ms_text *text);
/* All files there, plain files, of the right sizes. */
ms_status ms__manifest_check_sizes(const ms__manifest *manifest, const char *dir);
/* Compares block `index`, whose bytes are given, with its hash. */
ms_status ms__manifest_check_block(const ms__manifest *manifest, const ms__manifest_file *file,
                                   const char *path, int64_t index, const void *bytes);
/* Reads a small file of a checkpoint and checks all of it. */
ms_status ms__manifest_read_file(const ms__manifest *manifest, const char *dir, const char *name,
                                 size_t bytes_max, ms_text *text);
bool ms__plain_name(const char *name); /* fit to be a file's name inside a directory, not hidden */

/* train_state.c */
ms_status ms__state_emit(const ms_train_state *state, ms_text *text);
ms_status ms__state_parse(const char *bytes, size_t length, const char *name,
                          ms_train_state *state);

/* step_dirs.c: names in a run's directory. */
#define MS__STEP_NAME_BYTES 40
void ms__step_name(int64_t step, char name[MS__STEP_NAME_BYTES]);         /* "step-00000100" */
void ms__step_name_partial(int64_t step, char name[MS__STEP_NAME_BYTES]); /* ".step-00000100.tmp" */
void ms__step_name_replaced(int64_t step,
                            char name[MS__STEP_NAME_BYTES]); /* ".step-00000100.old" */
/* Before a save: removes what dead saves left, puts back what a dead replacement had set aside. */
ms_status ms__step_dirs_recover(const char *dir);
/* After it: removes checkpoints before `step` beyond the newest keep - 1 good ones. Foreign names
 * and links stay. */
ms_status ms__step_dirs_purge(const char *dir, int64_t step, int64_t keep);

/* agree.c */
/* All ranks get the status and the sentence of the lowest rank that failed. Every rank calls it. */
ms_status ms__agree(ms_comm *comm, ms_status status);

/* save_plan.c: what will be written where, the same on every rank. */
typedef struct ms__piece {
    char name[MS_CHECKPOINT_NAME_BYTES]; /* with the state */
    int32_t group;
    int32_t dtype;
    int32_t rank;
    int32_t writer; /* a rank that writes it, for messages */
    int64_t dims[MS_TENSOR_DIMS_MAX];
    int64_t count;  /* elements that are written */
    uint64_t edges; /* sum over the runs [a, b) of h(b) - h(a): h(n) - h(0) if they tile [0, n) */
} ms__piece;
typedef struct ms__save_plan {
    int64_t piece_count;
    ms__piece *pieces; /* by group, then by name */
    int64_t group_first[MS__GROUP_COUNT + 1];
    ms_safetensors_layout *layouts[MS__GROUP_COUNT]; /* NULL for an empty group */
} ms__save_plan;
ms_status ms__save_plan_make(ms_comm *comm, const ms_checkpoint_request *request,
                             ms__save_plan *plan);
void ms__save_plan_release(ms__save_plan *plan);
/* Index into pieces of a slice's tensor; -1: nobody writes it. */
int64_t ms__save_plan_find(const ms__save_plan *plan, const ms_checkpoint_slice *slice);
ms_status ms__slice_check(const ms_checkpoint_slice *slice);
ms_status ms__slice_name(const ms_checkpoint_slice *slice, char name[MS_CHECKPOINT_NAME_BYTES]);
/* Compares names as people do: h.2 before h.10. */
int ms__natural_compare(const char *left, const char *right);

/* staging.c: a checkpoint directory in the making. */
typedef struct ms__staged_file {
    char *name;
    uint64_t bytes;
    bool touched; /* this rank wrote into it and has not synced it */
    bool dealt;   /* its blocks are dealt to the ranks; else rank 0 hashes it */
    int64_t block_count;
    uint64_t *hashes;
} ms__staged_file;
typedef struct ms__staging {
    const char *dir; /* the temporary directory */
    int64_t step;
    size_t file_count, file_capacity;
    ms__staged_file *files;
    size_t group_first[MS__GROUP_COUNT]; /* index of the first file of a layout */
    size_t open_file;                    /* of open_fd */
    int open_fd;                         /* -1: none */
    void *chunk;                         /* MS_CHECKPOINT_CHUNK_BYTES */
} ms__staging;
ms_status ms__staging_begin(ms__staging *staging, const char *dir, int64_t step);
void ms__staging_end(ms__staging *staging); /* closes and frees; the directory stays */
/* Lists the files of a layout on this rank; `make` also makes them, with their headers and index.
 */
ms_status ms__staging_add_layout(ms__staging *staging, ms__tensor_group group,
                                 const ms_safetensors_layout *layout, bool make);
/* Writes a small file whole, synced. */
ms_status ms__staging_add_file(ms__staging *staging, const char *name, const void *bytes,
                               size_t length);
/* Writes count elements, converted in chunks, at a byte offset of a file. */
ms_status ms__staging_write(ms__staging *staging, size_t file, uint64_t offset, const void *from,
                            ms_dtype from_type, ms_dtype to_type, int64_t count);
ms_status ms__staging_sync(ms__staging *staging); /* every file this rank touched */
/* The blocks of the dealt files are numbered in order; rank's share is [first, last). */
void ms__staging_deal(const ms__staging *staging, int rank, int size, int64_t *first,
                      int64_t *last);
/* Hashes this rank's share, and on rank 0 the files that are its alone: the other hashes stay 0. */
ms_status ms__staging_hash(ms__staging *staging, int rank, int size);
/* Copies hashes of dealt blocks [first, last) to or from an array of last - first. */
void ms__staging_copy_hashes(ms__staging *staging, int64_t first, int64_t last, uint64_t *hashes,
                             bool into_files);
ms_status ms__staging_write_manifest(ms__staging *staging);

/* tensor_source.c: tensors of a checkpoint or model directory, checked block by block as they are
 * read. */
typedef struct ms__source ms__source;
ms_status ms__source_open(const char *path, bool with_optimizer, ms__source **source);
void ms__source_close(ms__source *source);
const ms__manifest *ms__source_manifest(const ms__source *source); /* NULL: there is none */
int64_t ms__source_count(const ms__source *source, ms__tensor_group group);
const ms_safetensors_tensor *ms__source_at(const ms__source *source, ms__tensor_group group,
                                           int64_t index);
/* By name, then by the variations that tensor_names.c knows; index -1 when there is none. */
int64_t ms__source_find(const ms__source *source, ms__tensor_group group, const char *name);
/* Bytes [start, start + length) of a tensor are good now, or MS_ERR_CHECKSUM. */
ms_status ms__source_check(ms__source *source, ms__tensor_group group, int64_t index,
                           uint64_t start, uint64_t length);

/* tensor_names.c */
#define MS__NAME_VARIANTS_MAX 24
typedef struct ms__name_variants {
    int count; /* in order of preference; the first is the name itself */
    char names[MS__NAME_VARIANTS_MAX][MS_CHECKPOINT_NAME_BYTES];
} ms__name_variants;
void ms__name_variants_make(const char *name, ms__name_variants *variants);
/* Tensors that some exporters write and no model needs: masks, rotary tables. */
bool ms__name_is_derived(const char *name);

#endif
