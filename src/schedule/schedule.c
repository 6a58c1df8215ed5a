/*
 * schedule.c - the table of generators, creating and printing schedules.
 *
 * Main path: program/ creates a schedule, has it checked (check.c) and takes slots and bounds from
 * it; engine/ runs one stage's list.
 *
 * Every rank makes the lists of all stages: only together can they be proven. A generator writes
 * compute in its order; receives go right before what needs them and sends right after what made
 * them. Rejected: a rule that engine/ evaluates as it runs (nothing to check beforehand, nothing to
 * print).
 */
#include "schedule/schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "schedule/schedule_internal.h"

#define STAGES_MAX 4096
#define CHUNKS_MAX 64
/* Stages x chunks x micro-batches: a list has at most 7 actions for each, of 24 bytes, so 2.6 GiB.
 */
#define CELLS_MAX ((int64_t)1 << 24)

static const ms_schedule_generator generators[] = {
    {"1f1b", "One forward, one backward: as few micro-batches in flight as the pipeline is long.",
     ms__generate_one_forward_one_backward},
    {"gpipe", "All forwards, then all backwards.", ms__generate_gpipe},
    {NULL, NULL, NULL},
};

const ms_schedule_generator *ms_schedule_generators(void) {
    return generators;
}

const char *ms__action_name(ms_action_kind kind) {
    static const char *const names[] = {
        [MS_ACTION_RECV_FORWARD] = "recv_forward",
        [MS_ACTION_FORWARD] = "forward",
        [MS_ACTION_SEND_FORWARD] = "send_forward",
        [MS_ACTION_RECV_BACKWARD] = "recv_backward",
        [MS_ACTION_INPUT_GRAD] = "input_grad",
        [MS_ACTION_WEIGHT_GRAD] = "weight_grad",
        [MS_ACTION_BACKWARD] = "backward",
        [MS_ACTION_SEND_BACKWARD] = "send_backward",
        [MS_ACTION_STEP] = "step",
    };
    return (unsigned)kind < MS_ACTION_KIND_COUNT ? names[kind] : "?";
}

ms_status ms__schedule_limits(int64_t stages, int64_t chunks_per_stage, int64_t micro_batches) {
    if (stages < 1 || stages > STAGES_MAX || chunks_per_stage < 1 ||
        chunks_per_stage > CHUNKS_MAX || micro_batches < 1 ||
        micro_batches > CELLS_MAX / (stages * chunks_per_stage)) {
        return ms_fail(
            MS_ERR_CONFIG,
            "a schedule has 1 to %d stages, 1 to %d chunks a stage, at least 1 micro-batch "
            "and at most %" PRId64 " of all three multiplied, not %" PRId64 ", %" PRId64
            " and %" PRId64,
            STAGES_MAX, CHUNKS_MAX, CELLS_MAX, stages, chunks_per_stage, micro_batches);
    }
    return MS_OK;
}

ms_status ms__schedule_room(ms_action_list *list, int64_t actions) {
    return MS_NEW((size_t)actions, MS_MEMORY_PROCESS, &list->actions);
}

void ms__schedule_add(ms_action_list *list, ms_action_kind kind, int64_t micro_batch,
                      int32_t peer) {
    list->actions[list->count++] =
        (ms_action){.kind = kind, .micro_batch = micro_batch, .peer_stage = peer};
}

void ms__schedule_forward(const ms_schedule *schedule, int64_t stage, int64_t micro_batch) {
    ms_action_list *list = &schedule->stage_lists[stage];
    if (stage > 0) {
        ms__schedule_add(list, MS_ACTION_RECV_FORWARD, micro_batch, (int32_t)stage - 1);
    }
    ms__schedule_add(list, MS_ACTION_FORWARD, micro_batch, -1);
    if (stage < schedule->stages - 1) {
        ms__schedule_add(list, MS_ACTION_SEND_FORWARD, micro_batch, (int32_t)stage + 1);
    }
}

void ms__schedule_backward(const ms_schedule *schedule, int64_t stage, int64_t micro_batch) {
    ms_action_list *list = &schedule->stage_lists[stage];
    if (stage < schedule->stages - 1) {
        ms__schedule_add(list, MS_ACTION_RECV_BACKWARD, micro_batch, (int32_t)stage + 1);
    }
    ms__schedule_add(list, MS_ACTION_BACKWARD, micro_batch, -1);
    if (stage > 0) {
        ms__schedule_add(list, MS_ACTION_SEND_BACKWARD, micro_batch, (int32_t)stage - 1);
    }
}

static ms_status generate_forward(ms_schedule *schedule) {
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        MS_TRY(ms__schedule_room(&schedule->stage_lists[stage], 3 * schedule->micro_batches));
        for (int64_t m = 0; m < schedule->micro_batches; m++) {
            ms__schedule_forward(schedule, stage, m);
        }
    }
    return MS_OK;
}

static ms_status create(const char *name, ms_status (*generate)(ms_schedule *), int64_t stages,
                        int64_t chunks_per_stage, int64_t micro_batches, ms_schedule **schedule) {
    MS_TRY(ms__schedule_limits(stages, chunks_per_stage, micro_batches));
    if (chunks_per_stage != 1) {
        return ms_fail(MS_ERR_CONFIG,
                       "schedule %s holds one chunk per stage, not %" PRId64
                       "; set parallel.virtual_stages=1",
                       name, chunks_per_stage);
    }
    ms_schedule *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    snprintf(made->name, sizeof made->name, "%s", name);
    made->stages = stages;
    made->chunks_per_stage = chunks_per_stage;
    made->micro_batches = micro_batches;
    ms_status status = MS_NEW((size_t)stages, MS_MEMORY_PROCESS, &made->stage_lists);
    if (status == MS_OK) {
        status = generate(made);
    }
    if (status != MS_OK) {
        ms_schedule_destroy(made);
        return status;
    }
    *schedule = made;
    return MS_OK;
}

ms_status ms_schedule_create(const char *generator, int64_t stages, int64_t chunks_per_stage,
                             int64_t micro_batches, ms_schedule **schedule) {
    const char *names[sizeof generators / sizeof generators[0]];
    int count = 0;
    for (; generators[count].name != NULL; count++) {
        names[count] = generators[count].name;
        if (strcmp(generator, names[count]) == 0) {
            return create(generator, generators[count].generate, stages, chunks_per_stage,
                          micro_batches, schedule);
        }
    }
    int nearest = ms_nearest_name(generator, names, count);
    return ms_fail(MS_ERR_CONFIG, "there is no schedule \"%s\"; %s \"%s\"%s", generator,
                   nearest >= 0 ? "did you mean" : "the default is",
                   names[nearest >= 0 ? nearest : 0], nearest >= 0 ? "?" : "");
}

ms_status ms_schedule_create_forward(int64_t stages, int64_t chunks_per_stage,
                                     int64_t micro_batches, ms_schedule **schedule) {
    return create("forward", generate_forward, stages, chunks_per_stage, micro_batches, schedule);
}

void ms_schedule_destroy(ms_schedule *schedule) {
    if (schedule == NULL) {
        return;
    }
    for (int64_t stage = 0; stage < schedule->stages && schedule->stage_lists != NULL; stage++) {
        ms_free(schedule->stage_lists[stage].actions);
    }
    ms_free(schedule->stage_lists);
    ms_free(schedule);
}

ms_status ms_schedule_print(const ms_schedule *schedule, ms_text *text) {
    static const char marks[MS_ACTION_KIND_COUNT] = {[MS_ACTION_FORWARD] = 'F',
                                                     [MS_ACTION_INPUT_GRAD] = 'I',
                                                     [MS_ACTION_WEIGHT_GRAD] = 'W',
                                                     [MS_ACTION_BACKWARD] = 'B'};
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        MS_TRY(ms_text_printf(text, "s%" PRId64 ":", stage));
        const ms_action_list *list = &schedule->stage_lists[stage];
        for (int64_t i = 0; i < list->count; i++) {
            const ms_action *action = &list->actions[i];
            char mark = (unsigned)action->kind < MS_ACTION_KIND_COUNT ? marks[action->kind] : '?';
            if (mark == '\0') {
                continue;
            }
            MS_TRY(ms_text_printf(text, " %c%" PRId64, mark, action->micro_batch));
            if (schedule->chunks_per_stage > 1) {
                MS_TRY(ms_text_printf(text, ".%" PRId32, action->chunk));
            }
        }
        MS_TRY(ms_text_append_z(text, "\n"));
    }
    return MS_OK;
}
