/*
 * schedule.c - the table of generators, creating and printing schedules.
 *
 * Main path: program/ creates a schedule, has it checked (check.c) and takes slots and bounds from it; engine/
 * runs one stage's list.
 */
#include "schedule/schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "schedule/schedule_internal.h"

#define STAGES_MAX 4096
#define MICRO_BATCHES_MAX ((int64_t)1 << 24)

static const ms_schedule_generator generators[] = {
    {"1f1b", "One forward, one backward: as few micro-batches in flight as the pipeline is long.",
     ms__generate_one_forward_one_backward},
    {"gpipe", "All forwards, then all backwards.", ms__generate_gpipe},
    {NULL, NULL, NULL},
};

const ms_schedule_generator *ms_schedule_generators(void) { return generators; }

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
    if (stages < 1 || stages > STAGES_MAX || micro_batches < 1 ||
        micro_batches > MICRO_BATCHES_MAX) {
        return ms_fail(MS_ERR_CONFIG,
                       "a schedule has 1 to %d stages and 1 to %" PRId64
                       " micro-batches, not %" PRId64 " and %" PRId64,
                       STAGES_MAX, MICRO_BATCHES_MAX, stages, micro_batches);
    }
    if (chunks_per_stage != 1) {
        return ms_fail(MS_ERR_CONFIG, "schedule %s holds one chunk per stage, not %" PRId64, name,
                       chunks_per_stage);
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
    return ms_fail(MS_ERR_CONFIG, "there is no schedule \"%s\"; did you mean \"%s\"?", generator,
                   names[nearest >= 0 ? nearest : 0]);
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
    static const char *const marks[] = {NULL, "F", NULL, NULL, "I", "W", "B", NULL, NULL};
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        MS_TRY(ms_text_printf(text, "s%" PRId64 ":", stage));
        const ms_action_list *list = &schedule->stage_lists[stage];
        for (int64_t i = 0; i < list->count; i++) {
            if (marks[list->actions[i].kind] != NULL) {
                MS_TRY(ms_text_printf(text, " %s%" PRId64, marks[list->actions[i].kind],
                                      list->actions[i].micro_batch));
            }
        }
        MS_TRY(ms_text_append_z(text, "\n"));
    }
    return MS_OK;
}
