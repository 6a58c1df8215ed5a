/* run.c - ms_train: configuration, communicator, session, loop; the public door to training. */
#include <mindspeed/train.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>

#include "train/session.h"

static volatile sig_atomic_t stop_requested;

void ms_train_stop(void) { stop_requested = 1; }

bool ms__train_stop_requested(void) { return stop_requested != 0; }

static ms_status run_session(ms_config *config, ms_comm *comm, const ms_train_options *options,
                             ms_train_summary *summary) {
    ms_session session;
    MS_TRY(ms_session_open(config, comm, options->quiet != 0, options->dry_run != 0, &session));
    *summary = (ms_train_summary){.resumed_from_step = session.state.step,
                                  .loss = NAN,
                                  .val_loss = NAN,
                                  .memory_bytes = session.program->memory.total_bytes};
    ms_status status = MS_OK;
    if (options->dry_run == 0) {
        ms_loop_result result;
        status = ms_session_loop(&session, options, &result);
        if (status == MS_OK) {
            summary->steps = session.state.step;
            summary->tokens = session.state.tokens;
            summary->loss = result.loss;
            summary->val_loss = result.val_loss;
            summary->tokens_per_s = result.tokens_per_s;
            summary->stopped = result.stopped;
        }
    }
    ms_session_close(&session);
    return status;
}

/* What every rank finds by itself, at the same place: nobody has to be told. */
static bool found_by_all(ms_status status) {
    return status == MS_ERR_CONFIG || status == MS_ERR_MEMORY_LIMIT ||
           status == MS_ERR_UNSUPPORTED || status == MS_ERR_ARGUMENT || status == MS_ERR_NUMERIC;
}

static ms_status run_with_comm(ms_config *config, const ms_train_options *options,
                               ms_train_summary *summary) {
    if (options->comm != NULL) {
        return run_session(config, options->comm, options, summary);
    }
    const ms_comm_config *section = ms_config_values(config, "comm");
    ms_comm_options comm_options = MS_COMM_OPTIONS_INIT;
    comm_options.death_timeout_s = section->death_timeout_s;
    comm_options.operation_timeout_s = section->operation_timeout_s;
    ms_comm *comm;
    MS_TRY(ms_comm_create(&comm_options, &comm));
    ms_status status = run_session(config, comm, options, summary);
    if (status != MS_OK && !found_by_all(status) && ms_comm_size(comm) > 1 &&
        ms_comm_failure(comm, NULL) == MS_OK) {
        /* The other ranks learn why instead of waiting; this changes no sentence of our own. */
        char reason[512];
        snprintf(reason, sizeof reason, "%s", ms_error_detail());
        ms_comm_abort(comm, reason);
        ms_comm_destroy(comm);
        return ms_fail(status, "%s", reason);
    }
    ms_comm_destroy(comm);
    return status;
}

ms_status ms_train(const ms_train_options *options, ms_train_summary *summary) {
    if (options->struct_size < sizeof *options) {
        return ms_fail(MS_ERR_ARGUMENT, "ms_train_options: set it from MS_TRAIN_OPTIONS_INIT");
    }
    int count;
    const ms_config_section *const *sections = ms_train_sections(&count);
    ms_config_source source = {.path = options->config_path,
                               .assignments = options->assignments,
                               .assignment_count = options->assignment_count,
                               .use_environment = options->use_environment != 0};
    ms_config *config;
    MS_TRY(ms_config_load(&source, sections, count, &config));
    stop_requested = 0;
    ms_train_summary made = {0};
    ms_status status = run_with_comm(config, options, &made);
    ms_config_destroy(config);
    MS_TRY(status);
    *summary = made;
    return MS_OK;
}
