/*
 * resume.c - a session's weights and counters: from the newest good checkpoint of the run, from a Hugging Face
 * directory, or from the seed; and back into a checkpoint.
 *
 * engine/ says which pieces of which tensors a rank holds, checkpoint/ moves them; neither knows the other.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "train/session.h"

enum { RESUME_AUTO, RESUME_NEVER, RESUME_REQUIRED };

/* What rank 0 found, told to all. */
typedef struct found_checkpoint {
    int32_t status;
    char path[MS_PATH_BYTES];
    ms_train_state state;
} found_checkpoint;

static void look(const ms_session *session, found_checkpoint *found) {
    found->status = (int32_t)ms_checkpoint_find(session->checkpoint->dir, found->path,
                                                sizeof found->path);
    if (found->status == MS_OK) {
        found->status = (int32_t)ms_checkpoint_read_state(found->path, &found->state);
    }
}

static void fresh_state(ms_session *session) {
    session->state = (ms_train_state){.seed = (uint64_t)session->train->seed,
                                      .best_val_loss = NAN};
}

ms_status ms_session_find_resume(ms_session *session) {
    fresh_state(session);
    const ms_checkpoint_config *config = session->checkpoint;
    if (config->dir == NULL || config->resume == RESUME_NEVER) {
        return MS_OK;
    }
    found_checkpoint found;
    memset(&found, 0, sizeof found);
    if (session->rank == 0) {
        look(session, &found);
    }
    MS_TRY(ms_comm_broadcast(session->comm, &found, (int64_t)sizeof found, MS_U8, 0, NULL));
    if (found.status == MS_ERR_NOT_FOUND) {
        return config->resume == RESUME_REQUIRED
                   ? ms_fail(MS_ERR_NOT_FOUND, "%s holds no checkpoint, and checkpoint.resume is required",
                             config->dir)
                   : MS_OK;
    }
    if (found.status != MS_OK) {
        return session->rank == 0 ? (ms_status)found.status
                                  : ms_fail((ms_status)found.status, "rank 0 cannot read %s",
                                            config->dir);
    }
    if (found.state.seed != (uint64_t)session->train->seed) {
        return ms_fail(MS_ERR_MISMATCH,
                       "%s was trained with seed %" PRIu64 ", train.seed is %" PRId64
                       "; use that seed, another checkpoint.dir, or checkpoint.resume: never",
                       found.path, found.state.seed, session->train->seed);
    }
    if (found.state.sequence != session->sequence) {
        return ms_fail(MS_ERR_MISMATCH,
                       "%s was trained on sequences of %" PRId64 " tokens, model.sequence is %" PRId64
                       "; samples would be repeated or skipped",
                       found.path, found.state.sequence, session->sequence);
    }
    session->state = found.state;
    snprintf(session->resumed_from, sizeof session->resumed_from, "%s", found.path);
    return MS_OK;
}

/* Pieces of a set as slices of a checkpoint. */
static ms_status make_slices(ms_session *session, ms_piece_set set, ms_checkpoint_slice **slices,
                             int64_t *count) {
    ms_engine_piece *pieces = NULL;
    *count = ms_engine_pieces(session->engine, set, NULL, 0);
    MS_TRY(MS_NEW((size_t)*count, MS_MEMORY_PROCESS, &pieces));
    ms_status status = MS_NEW((size_t)*count, MS_MEMORY_PROCESS, slices);
    if (status == MS_OK) {
        ms_engine_pieces(session->engine, set, pieces, *count);
        for (int64_t i = 0; i < *count; i++) {
            (*slices)[i] = (ms_checkpoint_slice){.tensor = pieces[i].tensor,
                                                 .state = pieces[i].state,
                                                 .shard = pieces[i].shard,
                                                 .local_start = pieces[i].local_start,
                                                 .local_count = pieces[i].local_count,
                                                 .memory_type = pieces[i].dtype,
                                                 .file_type = pieces[i].dtype,
                                                 .data = pieces[i].data,
                                                 .writer = pieces[i].writer};
        }
    }
    ms_free(pieces);
    return status;
}

static ms_status load_pieces(ms_session *session, ms_piece_set set, const char *path) {
    ms_checkpoint_slice *slices = NULL;
    int64_t count;
    MS_TRY(make_slices(session, set, &slices, &count));
    ms_status status;
    if (path != NULL) {
        status = ms_checkpoint_load(session->comm, path, slices, count);
    } else {
        status = ms_checkpoint_load_newest(session->comm, session->checkpoint->dir, slices, count,
                                           session->resumed_from, sizeof session->resumed_from,
                                           &session->state);
    }
    ms_free(slices);
    ms_engine_weights_changed(session->engine);
    return status;
}

static void warn_of_other_bits(const ms_session *session) {
    int threads = ms_device_threads(session->device);
    if (session->rank == 0 && session->state.threads != threads) {
        ms_log_warn("the checkpoint was made with %" PRId64
                    " threads a rank, this run has %d: results are equal only to rounding",
                    session->state.threads, threads);
    }
}

ms_status ms_session_load(ms_session *session) {
    if (session->resumed_from[0] != '\0') {
        warn_of_other_bits(session);
        MS_TRY(load_pieces(session, MS_PIECES_LOAD, NULL));
        if (session->rank == 0 && !session->quiet) {
            printf("resume    %s: step %" PRId64 ", sample %" PRId64 "\n", session->resumed_from,
                   session->state.step, session->state.samples);
        }
        return MS_OK;
    }
    if (session->model_config->from != NULL) {
        return load_pieces(session, MS_PIECES_WEIGHTS, session->model_config->from);
    }
    return ms_engine_initialize(session->engine, (uint64_t)session->train->seed);
}

static void describe_state(ms_session *session) {
    ms_train_state *state = &session->state;
    state->global_batch_size = session->train->global_batch_size;
    state->micro_batch_size = session->micro_batch_size;
    state->sequence = session->sequence;
    state->reduction_groups = session->reduction.groups;
    state->threads = ms_device_threads(session->device);
    snprintf(state->isa, sizeof state->isa, "%.15s", ms_device_description(session->device));
}

typedef struct save_texts {
    ms_text config_json, config_yaml, tokenizer;
} save_texts;

static ms_status make_texts(const ms_session *session, save_texts *texts) {
    MS_TRY(ms_model_spec_to_json(&session->model->spec, &texts->config_json));
    MS_TRY(ms_config_emit(session->config, &texts->config_yaml));
    return ms_tokenizer_emit(session->tokenizer, &texts->tokenizer);
}

ms_status ms_session_save(ms_session *session) {
    describe_state(session);
    save_texts texts = {0};
    ms_checkpoint_slice *slices = NULL;
    int64_t count = 0;
    ms_status status = make_texts(session, &texts);
    if (status == MS_OK) {
        status = make_slices(session, MS_PIECES_SAVE, &slices, &count);
    }
    if (status == MS_OK) {
        const ms_checkpoint_file files[] = {
            {"config.json", texts.config_json.bytes, texts.config_json.length},
            {"config.yaml", texts.config_yaml.bytes, texts.config_yaml.length},
            {"tokenizer.json", texts.tokenizer.bytes, texts.tokenizer.length},
        };
        ms_checkpoint_request request = {.dir = session->checkpoint->dir,
                                         .slices = slices,
                                         .slice_count = count,
                                         .files = files,
                                         .file_count = 3,
                                         .state = session->state,
                                         .keep = session->checkpoint->keep};
        status = ms_checkpoint_save(session->comm, &request);
    }
    ms_free(slices);
    ms_text_release(&texts.config_json);
    ms_text_release(&texts.config_yaml);
    ms_text_release(&texts.tokenizer);
    return status;
}
