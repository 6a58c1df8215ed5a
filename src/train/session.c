/*
 * session.c - opening and closing what a run is made of. See session.h for the order.
 *
 * Main path: cli/train.c -> train/run.c -> [ms_session_open] -> train/loop.c -> engine/.
 */
#include "train/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "plan/fit.h"

static void read_sections(ms_session *session) {
    const ms_config *config = session->config;
    session->model_config = ms_config_values(config, "model");
    session->data_config = ms_config_values(config, "data");
    session->train = ms_config_values(config, "train");
    session->run = ms_config_values(config, "run");
    session->optimizer = ms_config_values(config, "optimizer");
    session->precision = ms_config_values(config, "precision");
    session->parallel = ms_config_values(config, "parallel");
    session->comm_config = ms_config_values(config, "comm");
    session->checkpoint = ms_config_values(config, "checkpoint");
    session->evaluate = ms_config_values(config, "evaluate");
    session->report = ms_config_values(config, "report");
}

static ms_status open_device(ms_session *session) {
    int64_t threads = session->run->threads;
    if (threads == MS_AUTO) {
        threads = ms_max_i64(1, ms_cpu_count() / session->ranks);
    }
    /* All ranks run the lowest instruction set among them: the same bits everywhere. */
    int32_t isa = (int32_t)ms_cpu_isa();
    MS_TRY(ms_comm_all_reduce(session->comm, &isa, &isa, 1, MS_I32, MS_REDUCE_MIN, NULL));
    ms_thread_team_set((int)threads);
    bool fp64 = ms_precision_compute(session->precision) == MS_F64;
    ms_device_options options = {.name = "cpu",
                                 .threads = (int)threads,
                                 .isa_max = (ms_isa)isa,
                                 .variant = fp64 ? "ref" : ms_config_environment("MS_KERNEL")};
    return ms_device_open(&options, &session->device);
}

static ms_status open_model(ms_session *session) {
    const ms_model_config *config = session->model_config;
    MS_TRY(ms_data_tokenizer(session->data_config, config->from, &session->tokenizer));
    int64_t vocabulary = ms_tokenizer_vocabulary_size(session->tokenizer);
    ms_model_spec spec;
    MS_TRY(ms_model_spec_from_config(config, vocabulary, &spec));
    if (vocabulary > spec.vocabulary) {
        return ms_fail(MS_ERR_CONFIG,
                       "the tokenizer has %" PRId64 " tokens, the model's vocabulary %" PRId64
                       "; set model.vocabulary to at least the former or choose another tokenizer",
                       vocabulary, spec.vocabulary);
    }
    if (spec.eos_id < 0) {
        spec.eos_id = ms_tokenizer_eos(session->tokenizer);
    }
    if (spec.bos_id < 0) {
        spec.bos_id = ms_tokenizer_bos(session->tokenizer);
    }
    session->sequence = config->sequence;
    if (session->sequence > spec.positions) {
        return ms_fail(MS_ERR_CONFIG,
                       "model.sequence %" PRId64 " is longer than the %" PRId64
                       " positions of %s",
                       session->sequence, spec.positions, config->from);
    }
    return ms_model_create(&spec, &session->model);
}

static ms_status open_data(ms_session *session) {
    ms_dataset_options options = {.config = session->data_config,
                                  .sequence = session->sequence,
                                  .seed = (uint64_t)session->train->seed,
                                  .split = MS_SPLIT_TRAIN,
                                  .tokenizer = session->tokenizer,
                                  .vocabulary_size = session->model->spec.vocabulary};
    MS_TRY(ms_dataset_open(&options, &session->train_data));
    if (session->evaluate->every_steps == 0) {
        return MS_OK;
    }
    options.split = MS_SPLIT_VALID;
    ms_status status = ms_dataset_open(&options, &session->valid_data);
    if (status == MS_ERR_RANGE && session->data_config->valid == NULL) {
        ms_log_warn("no evaluation: the part of the data that data.split leaves for it is too "
                    "short (%s)", ms_error_detail());
        return MS_OK;
    }
    return status;
}

/* The largest divisor up to 8: it must not depend on the number of ranks. */
static int64_t auto_micro_batch(int64_t global_batch) {
    int64_t size = ms_min_i64(8, global_batch);
    while (global_batch % size != 0) {
        size--;
    }
    return size;
}

static ms_status open_layout(ms_session *session) {
    const ms_train_config *train = session->train;
    int64_t global = train->global_batch_size;
    session->micro_batch_size = train->micro_batch_size == MS_AUTO ? auto_micro_batch(global)
                                                                   : train->micro_batch_size;
    if (global % session->micro_batch_size != 0) {
        return ms_fail(MS_ERR_CONFIG,
                       "%s: train.global_batch_size %" PRId64
                       " is not a multiple of train.micro_batch_size %" PRId64 " (%" PRId64
                       " left over)",
                       ms_config_where(session->config, "train", "micro_batch_size"), global,
                       session->micro_batch_size, global % session->micro_batch_size);
    }
    MS_TRY(ms_layout_make(session->parallel, session->ranks, session->rank,
                          session->model->spec.layers, &session->layout));
    int64_t replicas = session->layout.mesh.size[MS_AXIS_DATA];
    if (replicas > ms_dataset_count(session->train_data)) {
        return ms_fail(MS_ERR_CONFIG,
                       "%" PRId64 " replicas, but data.train has only %" PRId64
                       " samples of %" PRId64 " tokens; use fewer ranks or more data",
                       replicas, ms_dataset_count(session->train_data), session->sequence);
    }
    int64_t groups = train->reduction_groups;
    bool same_batch = session->state.global_batch_size == global &&
                      session->state.micro_batch_size == session->micro_batch_size;
    if (groups == MS_AUTO && session->resumed_from[0] != '\0' && same_batch &&
        session->state.reduction_groups % replicas == 0) {
        groups = session->state.reduction_groups; /* kept when ranks change: the same bits */
    }
    MS_TRY(ms_reduction_make(global / session->micro_batch_size, replicas, groups,
                             &session->reduction));
    session->micro_batches = global / session->micro_batch_size / replicas;
    return MS_OK;
}

/*
 * All ranks fail with the first failing rank's sentence, or none does. For what only some of them
 * can find: one that left alone would be a dead peer to the others, and nobody would say why.
 */
static ms_status agree(const ms_session *session, ms_status status) {
    struct {
        int32_t status;
        char sentence[MS_FIT_SENTENCE_BYTES];
    } verdict;
    int32_t own = status == MS_OK ? session->ranks : session->rank, first;
    memset(&verdict, 0, sizeof verdict);
    if (status != MS_OK) {
        verdict.status = (int32_t)status;
        snprintf(verdict.sentence, sizeof verdict.sentence, "%s", ms_error_detail());
    }
    MS_TRY(ms_comm_all_reduce(session->comm, &own, &first, 1, MS_I32, MS_REDUCE_MIN, NULL));
    if (first == session->ranks) {
        return MS_OK;
    }
    MS_TRY(ms_comm_broadcast(session->comm, &verdict, (int64_t)sizeof verdict, MS_U8, first, NULL));
    return ms_fail((ms_status)verdict.status, "%s", verdict.sentence);
}

/* Pipeline stages need different amounts: the rank that needs the most is looked at. */
static ms_status check_fit(const ms_session *session) {
    int64_t needed = (int64_t)session->program->memory.total_bytes, most;
    MS_TRY(ms_comm_all_reduce(session->comm, &needed, &most, 1, MS_I64, MS_REDUCE_MAX, NULL));
    size_t limit = (size_t)session->run->memory_limit_mib << 20;
    bool looks = needed == most; /* several may: they find the same */
    return agree(session, looks ? ms_plan_check_fit(session->program, limit, MS_COMM_RANKS_MAX)
                                : MS_OK);
}

static ms_status open_program(ms_session *session) {
    ms_program_request request = {.model = session->model,
                                  .layout = &session->layout,
                                  .mode = MS_MODE_TRAIN,
                                  .micro_batch_size = session->micro_batch_size,
                                  .sequence = session->sequence,
                                  .micro_batches = session->micro_batches,
                                  .reduction = session->reduction,
                                  .compute = ms_precision_compute(session->precision),
                                  .optimizer = session->optimizer,
                                  .schedule = ms_parallel_schedule(session->parallel),
                                  .bucket_bytes = (size_t)session->comm_config->bucket_mib << 20,
                                  .seed = (uint64_t)session->train->seed,
                                  .device = session->device};
    MS_TRY(agree(session, ms_program_create(&request, &session->program)));
    return check_fit(session);
}

static ms_status print_plan(const ms_session *session) {
    if (session->rank != 0 || session->quiet) {
        return MS_OK;
    }
    static const char *const families[] = {"gpt2", "llama", "qwen3"};
    const ms_model_spec *spec = &session->model->spec;
    char count[32], bytes[32];
    ms_text text = {0};
    ms_status status = ms_text_printf(
        &text,
        "model     %s, %" PRId64 " layers x %" PRId64 ", %s parameters, vocabulary %" PRId64 "\n"
        "layout    %d rank%s: data %" PRId64 " x tensor %" PRId64 " x pipeline %" PRId64
        ", ZeRO %d, %" PRId64 " micro-batch%s of %" PRId64 " x %" PRId64 " tokens a rank and step\n"
        "kernels   %s, %s, %d thread%s a rank\n",
        families[spec->family], spec->layers, spec->hidden,
        ms_format_count(ms_model_parameter_elements(session->model), count, sizeof count),
        spec->vocabulary, session->ranks, session->ranks == 1 ? "" : "s",
        session->layout.mesh.size[MS_AXIS_DATA], session->layout.mesh.size[MS_AXIS_TENSOR],
        session->layout.mesh.size[MS_AXIS_PIPELINE], session->layout.zero, session->micro_batches,
        session->micro_batches == 1 ? "" : "es", session->micro_batch_size, session->sequence,
        ms_device_description(session->device),
        ms_dtype_name(session->program->request.compute), ms_device_threads(session->device),
        ms_device_threads(session->device) == 1 ? "" : "s");
    if (status == MS_OK) {
        status = ms_text_printf(&text, "memory    %zu bytes (%s) on rank 0:\n",
                                session->program->memory.total_bytes,
                                ms_format_bytes(session->program->memory.total_bytes, bytes,
                                                sizeof bytes));
    }
    if (status == MS_OK) {
        status = ms_program_print_memory(session->program, &text);
    }
    if (status == MS_OK) {
        fputs(text.bytes, stdout);
        fflush(stdout);
    }
    ms_text_release(&text);
    return status;
}

static ms_status open_engine(ms_session *session) {
    ms_engine_options options = {.program = session->program,
                                 .comm = session->comm,
                                 .overlap = session->comm_config->overlap};
    MS_TRY(ms_engine_create(&options, &session->engine));
    size_t sequences = (size_t)(session->micro_batches * session->micro_batch_size);
    size_t tokens = sequences * (size_t)session->sequence;
    MS_TRY(MS_NEW(tokens, MS_MEMORY_PROCESS, &session->tokens));
    MS_TRY(MS_NEW(tokens, MS_MEMORY_PROCESS, &session->targets));
    MS_TRY(MS_NEW(sequences, MS_MEMORY_PROCESS, &session->samples));
    return MS_NEW((size_t)session->micro_batches, MS_MEMORY_PROCESS, &session->batches);
}

/* One process at a time writes a run's directory; rank 0 takes the lock, all learn the outcome. */
static ms_status take_lock(ms_session *session) {
    ms_status status = MS_OK;
    if (session->rank == 0 && session->checkpoint->dir != NULL) {
        status = ms_directory_make(session->checkpoint->dir);
        if (status == MS_OK) {
            status = ms_run_lock_take(session->checkpoint->dir, &session->lock);
        }
        if (status != MS_OK && session->ranks > 1) {
            ms_comm_abort(session->comm, ms_error_detail());
        }
    }
    MS_TRY(status);
    return ms_comm_barrier(session->comm, NULL);
}

static ms_status open_all(ms_session *session, bool dry_run) {
    if (!session->train->deterministic) {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "%s: train.deterministic: false is not available: sums are always taken in one order, "
                       "which costs nothing on the CPU; remove the key",
                       ms_config_where(session->config, "train", "deterministic"));
    }
    MS_TRY(ms_optimizer_config_check(session->optimizer));
    MS_TRY(open_device(session));
    MS_TRY(open_model(session));
    MS_TRY(open_data(session));
    if (!dry_run) {
        MS_TRY(take_lock(session));
        MS_TRY(ms_session_find_resume(session));
    }
    MS_TRY(open_layout(session));
    MS_TRY(open_program(session));
    MS_TRY(print_plan(session));
    if (dry_run) {
        return MS_OK;
    }
    MS_TRY(open_engine(session));
    return ms_session_load(session);
}

ms_status ms_session_open(ms_config *config, ms_comm *comm, bool quiet, bool dry_run,
                          ms_session *session) {
    *session = (ms_session){.config = config, .comm = comm, .quiet = quiet,
                            .rank = ms_comm_rank(comm), .ranks = ms_comm_size(comm)};
    read_sections(session);
    ms_log_set_level((ms_log_level)session->run->log_level);
    ms_log_set_rank(session->ranks > 1 ? session->rank : -1);
    ms_status status = open_all(session, dry_run);
    if (status != MS_OK) {
        ms_session_close(session);
    }
    return status;
}

void ms_session_close(ms_session *session) {
    ms_engine_destroy(session->engine);
    ms_program_destroy(session->program);
    ms_dataset_close(session->train_data);
    ms_dataset_close(session->valid_data);
    ms_model_destroy(session->model);
    ms_tokenizer_destroy(session->tokenizer);
    ms_device_close(session->device);
    ms_run_lock_release(session->lock);
    ms_free(session->tokens);
    ms_free(session->targets);
    ms_free(session->samples);
    ms_free(session->batches);
    *session = (ms_session){0};
}

ms_status ms_session_load_batch(ms_session *session) {
    int64_t T = session->sequence;
    int64_t own = session->micro_batches * session->micro_batch_size;
    int64_t first = session->state.samples + session->program->replica * own;
    for (int64_t i = 0; i < own; i++) {
        session->samples[i] = first + i;
        MS_TRY(ms_dataset_sample(session->train_data, first + i, session->tokens + i * T,
                                 session->targets + i * T));
    }
    for (int64_t m = 0; m < session->micro_batches; m++) {
        int64_t at = m * session->micro_batch_size;
        session->batches[m] = (ms_micro_batch){.tokens = session->tokens + at * T,
                                               .targets = session->targets + at * T,
                                               .samples = session->samples + at};
    }
    return MS_OK;
}
