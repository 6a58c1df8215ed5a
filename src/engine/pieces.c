/*
 * pieces.c - what of each logical tensor this rank holds, for checkpoints and verification; and the
 * first weights.
 */
#include <string.h>

#include "engine/engine_internal.h"

typedef struct piece_list {
    ms_engine *engine;
    ms_engine_piece *pieces;
    int64_t most, count;
} piece_list;

static void add_piece(piece_list *list, const ms_program_parameter *parameter, const char *state,
                      int64_t local_start, int64_t local_count, ms_dtype dtype, void *data,
                      bool writer) {
    if (local_count <= 0) {
        return;
    }
    if (list->count < list->most) {
        list->pieces[list->count] = (ms_engine_piece){
            .tensor = &list->engine->program->request.model->parameters[parameter->index].tensor,
            .state = state,
            .shard = &parameter->shard,
            .local_start = local_start,
            .local_count = local_count,
            .dtype = dtype,
            .data = data,
            .writer = writer};
    }
    list->count++;
}

static void *at(ms_engine *engine, ms_buffer buffer) {
    return ms__engine_address(engine, buffer, (ms_place){0});
}

/* The part of a parameter that this rank updates, relative to the parameter's start. */
static ms_segment own_part(const ms_program *program, const ms_program_parameter *parameter) {
    const ms_bucket *bucket = &program->buckets[parameter->bucket];
    int64_t start = ms_max_i64(bucket->own_start, parameter->flat_start);
    int64_t end = ms_min_i64(bucket->own_end, parameter->flat_start + parameter->count);
    return (ms_segment){start - parameter->flat_start, ms_max_i64(0, end - start)};
}

/* Element `flat` of an array that holds own ranges one after the other. */
static void *own_element(ms_engine *engine, ms_buffer array, int64_t bucket_start,
                         const ms_bucket *bucket, int64_t flat) {
    array.offset += (size_t)(bucket_start + flat - bucket->own_start) *
                    ms_dtype_bytes(engine->program->wide);
    return at(engine, array);
}

static bool is_writer(const ms_program *program, const ms_program_parameter *parameter) {
    bool this_replica = program->layout.zero >= 1 || program->replica == 0;
    return this_replica && parameter->counted;
}

static void add_master(piece_list *list, const ms_program_parameter *parameter) {
    ms_engine *engine = list->engine;
    const ms_program *program = engine->program;
    const ms_bucket *bucket = &program->buckets[parameter->bucket];
    ms_segment own = own_part(program, parameter);
    if (own.count == 0) {
        return;
    }
    int64_t flat = parameter->flat_start + own.start;
    bool apart = program->separate_master && !bucket->vector;
    void *data = apart ? own_element(engine, program->master, bucket->master_start, bucket, flat)
                       : at(engine, ms_program_weight(program, flat));
    add_piece(list, parameter, NULL, own.start, own.count, program->wide, data,
              is_writer(program, parameter));
}

static void add_states(piece_list *list, const ms_program_parameter *parameter) {
    ms_engine *engine = list->engine;
    const ms_program *program = engine->program;
    const ms_bucket *bucket = &program->buckets[parameter->bucket];
    ms_segment own = own_part(program, parameter);
    for (int s = 0; own.count > 0 && s < program->optimizer_states; s++) {
        ms_buffer array = program->states;
        array.offset += (size_t)s * array.stride;
        add_piece(list, parameter, ms_optimizer_state_name(program->request.optimizer, s),
                  own.start, own.count, program->wide,
                  own_element(engine, array, bucket->state_start, bucket,
                              parameter->flat_start + own.start),
                  is_writer(program, parameter));
    }
}

/* The whole parameter as kernels read it. */
static void add_weights(piece_list *list, const ms_program_parameter *parameter) {
    const ms_program *program = list->engine->program;
    bool vector = parameter->flat_start >= program->matrix_elements;
    add_piece(list, parameter, NULL, 0, parameter->count,
              vector ? program->wide : program->request.compute,
              at(list->engine, ms_program_weight(program, parameter->flat_start)), false);
}

static void add_gradients(piece_list *list, const ms_program_parameter *parameter) {
    const ms_program *program = list->engine->program;
    ms_segment own = own_part(program, parameter);
    if (own.count == 0) {
        return;
    }
    add_piece(list, parameter, "gradient", own.start, own.count, program->wide,
              at(list->engine, ms_program_gradient(program, parameter->flat_start + own.start)),
              is_writer(program, parameter));
}

int64_t ms_engine_pieces(ms_engine *engine, ms_piece_set set, ms_engine_piece *pieces,
                         int64_t most) {
    piece_list list = {.engine = engine, .pieces = pieces, .most = most};
    const ms_program *program = engine->program;
    bool training = program->request.mode == MS_MODE_TRAIN;
    for (int32_t i = 0; i < program->parameter_count; i++) {
        const ms_program_parameter *parameter = &program->parameters[i];
        if (set == MS_PIECES_GRADIENTS) {
            add_gradients(&list, parameter);
            continue;
        }
        if (set != MS_PIECES_SAVE) {
            add_weights(&list, parameter);
        }
        bool apart = program->separate_master && !program->buckets[parameter->bucket].vector;
        if (training && (set == MS_PIECES_SAVE || apart)) {
            add_master(&list, parameter);
        }
        if (training && set != MS_PIECES_WEIGHTS) {
            add_states(&list, parameter);
        }
    }
    return list.count;
}

#define INITIAL_CHUNK 65536

/* In pieces through a buffer of fp32 where the type is narrower. */
static ms_status initialize_piece(const ms_engine_piece *piece, uint64_t seed, float *chunk) {
    if (piece->dtype != MS_BF16) {
        return ms_tensor_initialize(piece->tensor, piece->shard, seed, piece->local_start,
                                    piece->local_count, piece->dtype, piece->data);
    }
    for (int64_t done = 0; done < piece->local_count; done += INITIAL_CHUNK) {
        int64_t count = ms_min_i64(INITIAL_CHUNK, piece->local_count - done);
        MS_TRY(ms_tensor_initialize(piece->tensor, piece->shard, seed, piece->local_start + done,
                                    count, MS_F32, chunk));
        MS_TRY(ms_convert(chunk, MS_F32, (uint16_t *)piece->data + done, MS_BF16, count));
    }
    return MS_OK;
}

ms_status ms_engine_initialize(ms_engine *engine, uint64_t seed) {
    int64_t count = ms_engine_pieces(engine, MS_PIECES_WEIGHTS, NULL, 0);
    ms_engine_piece *pieces = NULL;
    float *chunk = NULL;
    ms_status status;
    MS_TRY_GOTO(MS_NEW((size_t)count, MS_MEMORY_PROCESS, &pieces), done);
    MS_TRY_GOTO(MS_NEW(INITIAL_CHUNK, MS_MEMORY_PROCESS, &chunk), done);
    ms_engine_pieces(engine, MS_PIECES_WEIGHTS, pieces, count);
    for (int64_t i = 0; i < count; i++) {
        MS_TRY_GOTO(initialize_piece(&pieces[i], seed, chunk), done);
    }
    engine->weights_changed = true;
done:
    ms_free(chunk);
    ms_free(pieces);
    return status;
}
