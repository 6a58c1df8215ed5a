/* loaded_model.c - see loaded_model.h. */
#include "train/loaded_model.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/file.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"

/* A run's directory stands for its newest checkpoint. */
static ms_status find_directory(const char *path, char *found, size_t found_bytes) {
    char config[MS_PATH_BYTES];
    MS_TRY(ms_path_join(path, "config.json", config, sizeof config));
    if (ms_path_exists(config)) {
        snprintf(found, found_bytes, "%s", path);
        return MS_OK;
    }
    if (!ms_path_is_directory(path)) {
        return ms_fail(MS_ERR_NOT_FOUND, "%s: no such directory", path);
    }
    ms_status status = ms_checkpoint_find(path, found, found_bytes);
    return status == MS_ERR_NOT_FOUND
               ? ms_fail(MS_ERR_NOT_FOUND, "%s holds neither a config.json nor a checkpoint", path)
               : status;
}

static ms_status load_tokenizer(ms_loaded_model *loaded) {
    static const char *const files[] = {"tokenizer.json", "vocab.json", "encoder.json"};
    char path[MS_PATH_BYTES];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        MS_TRY(ms_path_join(loaded->path, files[i], path, sizeof path));
        if (ms_path_exists(path)) {
            return ms_tokenizer_load(loaded->path, &loaded->tokenizer);
        }
    }
    return MS_OK;
}

static ms_status load_weights(ms_loaded_model *loaded) {
    int64_t count = ms_engine_pieces(loaded->engine, MS_PIECES_WEIGHTS, NULL, 0);
    ms_engine_piece *pieces = NULL;
    ms_checkpoint_slice *slices = NULL;
    ms_status status;
    MS_TRY_GOTO(MS_NEW((size_t)count, MS_MEMORY_PROCESS, &pieces), done);
    MS_TRY_GOTO(MS_NEW((size_t)count, MS_MEMORY_PROCESS, &slices), done);
    ms_engine_pieces(loaded->engine, MS_PIECES_WEIGHTS, pieces, count);
    for (int64_t i = 0; i < count; i++) {
        slices[i] = (ms_checkpoint_slice){.tensor = pieces[i].tensor,
                                          .shard = pieces[i].shard,
                                          .local_start = pieces[i].local_start,
                                          .local_count = pieces[i].local_count,
                                          .memory_type = pieces[i].dtype,
                                          .data = pieces[i].data};
    }
    status = ms_checkpoint_load(loaded->comm, loaded->path, slices, count);
    ms_engine_weights_changed(loaded->engine);
done:
    ms_free(pieces);
    ms_free(slices);
    return status;
}

static ms_status open_program(ms_loaded_model *loaded, const ms_load_request *request) {
    const ms_model_spec *spec = &loaded->model->spec;
    loaded->layout = (ms_layout){.mesh = {.size = {1, 1, 1, 1, 1}}};
    loaded->layout.stage_layers[0] = (ms_segment){0, spec->layers};
    ms_program_request lowered = {
        .model = loaded->model,
        .layout = &loaded->layout,
        .mode = request->mode,
        .micro_batch_size = request->mode == MS_MODE_GENERATE ? 1 : request->batch,
        .sequence = request->sequence > 0 ? request->sequence : spec->positions,
        .micro_batches = 1,
        .cache_positions = request->positions > 0 ? request->positions : spec->positions,
        .compute = request->compute,
        .device = loaded->device};
    if (lowered.cache_positions > spec->positions) {
        return ms_fail(MS_ERR_RANGE, "%lld positions are more than the model's %lld",
                       (long long)lowered.cache_positions, (long long)spec->positions);
    }
    if (request->mode == MS_MODE_GENERATE) {
        lowered.sequence = ms_min_i64(lowered.sequence, lowered.cache_positions);
    }
    MS_TRY(ms_program_create(&lowered, &loaded->program));
    ms_engine_options options = {.program = loaded->program, .comm = loaded->comm};
    return ms_engine_create(&options, &loaded->engine);
}

static ms_status open_all(const char *path, const ms_load_request *request,
                          ms_loaded_model *loaded) {
    MS_TRY(find_directory(path, loaded->path, sizeof loaded->path));
    ms_model_spec spec;
    MS_TRY(ms_model_spec_from_directory(loaded->path, &spec));
    MS_TRY(ms_model_create(&spec, &loaded->model));
    MS_TRY(load_tokenizer(loaded));
    int threads = request->threads > 0 ? request->threads : ms_cpu_count();
    ms_thread_team_set(threads);
    ms_device_options device = {
        .name = "cpu",
        .threads = threads,
        .isa_max = MS_ISA_COUNT,
        .variant = request->compute == MS_F64 ? "ref" : ms_config_environment("MS_KERNEL")};
    MS_TRY(ms_device_open(&device, &loaded->device));
    MS_TRY(ms_comm_create_loop(NULL, 1, &loaded->comm));
    MS_TRY(open_program(loaded, request));
    return load_weights(loaded);
}

ms_status ms_loaded_model_open(const char *path, const ms_load_request *request,
                               ms_loaded_model *loaded) {
    memset(loaded, 0, sizeof *loaded);
    ms_status status = open_all(path, request, loaded);
    if (status != MS_OK) {
        ms_loaded_model_close(loaded);
    }
    return status;
}

void ms_loaded_model_close(ms_loaded_model *loaded) {
    ms_engine_destroy(loaded->engine);
    ms_program_destroy(loaded->program);
    ms_comm_destroy(loaded->comm);
    ms_device_close(loaded->device);
    ms_tokenizer_destroy(loaded->tokenizer);
    ms_model_destroy(loaded->model);
    memset(loaded, 0, sizeof *loaded);
}
