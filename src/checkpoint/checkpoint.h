/*
 * checkpoint.h - transactional, layout-free checkpoints.
 *
 * A checkpoint is a directory DIR/step-NNNNNNNN that IS a Hugging Face model directory
 * (config.json, model.safetensors or an index of several, the tokenizer's files) plus
 * optimizer.safetensors, state.json (counters), config.yaml (resolved) and manifest.json, which is
 * written last. Tensors are stored whole and by logical name, so any layout saves and any other
 * loads: a rank names the part it holds by shard and flat local range, and writes or reads just the
 * runs of it.
 *
 * Save: everything goes to DIR/.step-NNNNNNNN.tmp; every rank writes its slices with pwrite; fsync;
 * each 4 MiB block is hashed (xxh3-64) by one rank; rank 0 writes the manifest, syncs, renames,
 * syncs DIR, and only then removes older checkpoints beyond `keep`. A kill at any byte leaves the
 * previous one loadable. Foreign names in DIR are never touched.
 *
 * All ranks of `comm` call save and load together; they return the same status. Not thread-safe for
 * one DIR.
 */
#ifndef MS_CHECKPOINT_CHECKPOINT_H
#define MS_CHECKPOINT_CHECKPOINT_H

#include <mindspeed/comm.h>

#include "base/config.h"
#include "tensor/tensor.h"

/* Memory that a rank takes during a save, besides some 300 bytes for each logical tensor: for the
 * plan. */
#define MS_CHECKPOINT_SCRATCH_BYTES (((size_t)4 << 20) + ((size_t)1 << 20))
/* A file of tensors takes no more than this, unless one tensor does: as Hugging Face splits models.
 */
#define MS_CHECKPOINT_FILE_BYTES_DEFAULT ((uint64_t)5000000000)

/* Section `checkpoint` of the config. */
typedef struct ms_checkpoint_config {
    const char *dir;     /* NULL: no checkpoints */
    int64_t every_steps; /* 0: only at the end */
    int64_t keep;        /* >= 1 */
    int resume;          /* index of "auto" (the newest good one, if any), "never", "required" */
    int on_save_failure; /* index of "continue", "stop" */
    bool save_at_end;
} ms_checkpoint_config;
extern const ms_config_section ms_checkpoint_section;

/* One slice of one logical tensor in this rank's memory. Slices of all ranks together must tile
 * every tensor exactly when saving (checked); when loading they may overlap. */
typedef struct ms_checkpoint_slice {
    const ms_tensor *tensor;
    const char *state; /* NULL: the weight; else "exp_avg", ...: stored as "<name>.<state>" */
    const ms_shard *shard;
    int64_t local_start, local_count; /* flat range of the shard's local elements */
    ms_dtype memory_type;             /* fp64, fp32, bf16, fp16 */
    ms_dtype file_type;               /* when saving; loading converts from whatever the file has */
    void *data;                       /* element local_start */
    bool writer;                      /* saving: this rank writes it (one of the replicas does) */
} ms_checkpoint_slice;

/* Small whole files stored beside the tensors, written by rank 0. */
typedef struct ms_checkpoint_file {
    const char *name; /* "config.json" */
    const char *text;
    size_t length;
} ms_checkpoint_file;

/* The counters of a run: state.json. 64-bit everywhere. */
typedef struct ms_train_state {
    int64_t step;    /* updates made */
    int64_t samples; /* global samples consumed: the data's whole state */
    int64_t tokens;
    int64_t skipped_steps;
    uint64_t seed;
    int64_t global_batch_size, micro_batch_size, sequence, reduction_groups, threads;
    double best_val_loss; /* NaN when there is none */
    char isa[16];         /* kernels that made it, for the promise of equal bits */
} ms_train_state;

typedef struct ms_checkpoint_request {
    const char *dir; /* the run's directory */
    const ms_checkpoint_slice *slices;
    int64_t slice_count;
    const ms_checkpoint_file *files;
    int file_count;
    ms_train_state state;
    int64_t keep;
    uint64_t file_bytes_max; /* 0: MS_CHECKPOINT_FILE_BYTES_DEFAULT */
} ms_checkpoint_request;

/*
 * Saves state.step, replacing a checkpoint of that step. On failure the previous checkpoints are
 * intact and the temporary is removed. Rank 0's dir, files, state and keep count. A failure to
 * remove an old checkpoint is a warning.
 */
ms_status ms_checkpoint_save(ms_comm *comm, const ms_checkpoint_request *request);

/*
 * The newest checkpoint of DIR with a good manifest, all files present with the right sizes; bad
 * ones are skipped with one warning each naming what is wrong. path gets its directory.
 * MS_ERR_NOT_FOUND when there is none. Local: rank 0 calls it and broadcasts the answer.
 */
ms_status ms_checkpoint_find(const char *dir, char *path, size_t path_bytes);
/* As above among steps below step_limit: the next one to try when a load says MS_ERR_CHECKSUM. */
ms_status ms_checkpoint_find_before(const char *dir, int64_t step_limit, char *path,
                                    size_t path_bytes);
/* Reads state.json of a checkpoint directory. MS_ERR_NOT_FOUND when it is a plain model directory.
 */
ms_status ms_checkpoint_read_state(const char *path, ms_train_state *state);
/*
 * Fills the slices from a checkpoint or from any Hugging Face model directory (then slices with a
 * state must not be asked for). Every 4 MiB block that is read is checked against the manifest,
 * when there is one (MS_ERR_CHECKSUM names file and offset). A missing tensor or other dims:
 * MS_ERR_MISMATCH names the first differing tensor with both shapes; so does a weight of the file
 * that no rank's slices ask for. Nothing is written to the slices before all ranks have found all
 * of theirs. Names may differ by the prefixes "transformer." and "model.", and a tied head may be
 * stored as the embedding or the reverse.
 */
ms_status ms_checkpoint_load(ms_comm *comm, const char *path, const ms_checkpoint_slice *slices,
                             int64_t slice_count);
/*
 * Finds and loads the newest checkpoint of DIR whose data is good: one that turns out damaged is
 * skipped with a warning and the one before it is tried. Every rank gets its path and its state
 * (either may be NULL). MS_ERR_NOT_FOUND when there is none. Collective, like load.
 */
ms_status ms_checkpoint_load_newest(ms_comm *comm, const char *dir,
                                    const ms_checkpoint_slice *slices, int64_t slice_count,
                                    char *path, size_t path_bytes, ms_train_state *state);
/*
 * Writes a model directory from a checkpoint or model directory (or one safetensors file): every
 * weight in one floating type, in one file or several, streamed in 1 MiB pieces. `to` must not
 * exist; it appears in one step when all is done, with a manifest.
 */
typedef struct ms_checkpoint_conversion {
    ms_dtype weight_type;    /* of floating weights; MS_DTYPE_COUNT: each as it is */
    bool full;               /* with optimizer and state, as they are; else the weights only */
    uint64_t file_bytes_max; /* 0: MS_CHECKPOINT_FILE_BYTES_DEFAULT; UINT64_MAX: one file */
} ms_checkpoint_conversion;
ms_status ms_checkpoint_convert(const char *from, const char *to,
                                const ms_checkpoint_conversion *conversion);
/* The steps that have a checkpoint in DIR, good or not, ascending; free with ms_free. */
ms_status ms_checkpoint_list(const char *dir, int64_t **steps, int64_t *count);
/* The directory of a step's checkpoint: DIR/step-NNNNNNNN. */
ms_status ms_checkpoint_step_path(const char *dir, int64_t step, char *path, size_t path_bytes);
/* What is in a checkpoint, a model directory or one safetensors file. Reads the headers only. */
typedef struct ms_checkpoint_summary {
    int64_t tensors, parameters; /* weights; a tensor stored twice counts twice */
    uint64_t weight_bytes;
    int64_t typed[MS_DTYPE_COUNT]; /* parameters of each type */
    int64_t state_tensors;         /* of the optimizer */
    uint64_t state_bytes;
    bool has_manifest;
    int64_t files; /* with a manifest: how many, and their bytes in all */
    uint64_t file_bytes;
    int64_t step; /* of the manifest, else -1 */
} ms_checkpoint_summary;
ms_status ms_checkpoint_summarize(const char *path, ms_checkpoint_summary *summary);
/* Checks every block and tensor of a checkpoint; writes a line for people per problem into report.
 */
ms_status ms_checkpoint_verify(const char *path, ms_text *report);
/* Takes the lock file of a run directory (two runs on one directory: MS_ERR_BUSY with the holder's
 * pid); released by ms_run_lock_release or by the process's death. Made by rank 0 only. */
typedef struct ms_run_lock ms_run_lock;
ms_status ms_run_lock_take(const char *dir, ms_run_lock **lock);
void ms_run_lock_release(ms_run_lock *lock);

#endif
