/*
 * check.c - proving a schedule right before anything runs.
 *
 * First each stage's list alone (every micro-batch exactly once forward, then backward; receives before, sends
 * after), then all of them together by running them: a receive waits for its send, a send never waits. Messages of
 * one direction between two stages meet in order. If no stage can move and one is not finished, that is a deadlock.
 */
#include <inttypes.h>
#include <string.h>

#include "schedule/schedule.h"

/* What a stage's list has said of one micro-batch so far, as bits. */
enum {
    SEEN_RECV_FORWARD = 1,
    SEEN_FORWARD = 2,
    SEEN_SEND_FORWARD = 4,
    SEEN_RECV_BACKWARD = 8,
    SEEN_INPUT_GRAD = 16,
    SEEN_WEIGHT_GRAD = 32,
    SEEN_SEND_BACKWARD = 64,
};

static ms_status complain(int64_t stage, int64_t position, const ms_action *action,
                          const char *what) {
    static const char *const names[] = {"recv_forward", "forward", "send_forward", "recv_backward",
                                        "input_grad", "weight_grad", "backward", "send_backward",
                                        "step"};
    const char *name = (unsigned)action->kind < MS_ACTION_KIND_COUNT ? names[action->kind] : "?";
    return ms_fail(MS_ERR_MISMATCH,
                   "stage %" PRId64 ", action %" PRId64 " (%s of micro-batch %" PRId64 "): %s", stage,
                   position, name, action->micro_batch, what);
}

/* What must have been seen before an action, and what it adds. */
static void rule_of(const ms_schedule *schedule, int64_t stage, ms_action_kind kind,
                    unsigned *before, unsigned *adds) {
    bool first = stage == 0, last = stage == schedule->stages - 1;
    *before = *adds = 0;
    switch (kind) {
    case MS_ACTION_RECV_FORWARD:
        *adds = SEEN_RECV_FORWARD;
        break;
    case MS_ACTION_FORWARD:
        *before = first ? 0 : SEEN_RECV_FORWARD;
        *adds = SEEN_FORWARD;
        break;
    case MS_ACTION_SEND_FORWARD:
        *before = SEEN_FORWARD;
        *adds = SEEN_SEND_FORWARD;
        break;
    case MS_ACTION_RECV_BACKWARD:
        *before = SEEN_FORWARD;
        *adds = SEEN_RECV_BACKWARD;
        break;
    case MS_ACTION_INPUT_GRAD:
    case MS_ACTION_BACKWARD:
        *before = SEEN_FORWARD | (last ? 0 : SEEN_RECV_BACKWARD | SEEN_SEND_FORWARD);
        *adds = SEEN_INPUT_GRAD | (kind == MS_ACTION_BACKWARD ? SEEN_WEIGHT_GRAD : 0);
        break;
    case MS_ACTION_WEIGHT_GRAD:
        *before = SEEN_INPUT_GRAD;
        *adds = SEEN_WEIGHT_GRAD;
        break;
    default:
        *before = SEEN_INPUT_GRAD;
        *adds = SEEN_SEND_BACKWARD;
        break;
    }
}

static ms_status check_action(const ms_schedule *schedule, int64_t stage, int64_t position,
                              unsigned *seen) {
    const ms_action_list *list = &schedule->stage_lists[stage];
    const ms_action *action = &list->actions[position];
    if (action->kind == MS_ACTION_STEP) {
        return position == list->count - 1
                   ? MS_OK
                   : complain(stage, position, action, "the step is not the last action");
    }
    if ((unsigned)action->kind >= MS_ACTION_KIND_COUNT || action->chunk != 0 ||
        action->micro_batch < 0 || action->micro_batch >= schedule->micro_batches) {
        return complain(stage, position, action, "no such action, chunk or micro-batch");
    }
    unsigned before, adds;
    rule_of(schedule, stage, action->kind, &before, &adds);
    unsigned *state = &seen[action->micro_batch];
    if ((*state & adds) != 0) {
        return complain(stage, position, action, "comes twice");
    }
    if ((*state & before) != before) {
        return complain(stage, position, action, "comes before what it needs");
    }
    bool backwards = action->kind == MS_ACTION_RECV_BACKWARD ||
                     action->kind == MS_ACTION_SEND_FORWARD;
    bool message = backwards || action->kind == MS_ACTION_RECV_FORWARD ||
                   action->kind == MS_ACTION_SEND_BACKWARD;
    int64_t peer = stage + (backwards ? 1 : -1);
    if (message && (action->peer_stage != peer || peer < 0 || peer >= schedule->stages)) {
        return complain(stage, position, action, "names a stage that is not its neighbour");
    }
    *state |= adds;
    return MS_OK;
}

static ms_status check_stage(const ms_schedule *schedule, int64_t stage, unsigned *seen) {
    const ms_action_list *list = &schedule->stage_lists[stage];
    memset(seen, 0, (size_t)schedule->micro_batches * sizeof *seen);
    for (int64_t i = 0; i < list->count; i++) {
        MS_TRY(check_action(schedule, stage, i, seen));
    }
    unsigned whole = SEEN_FORWARD | SEEN_INPUT_GRAD | SEEN_WEIGHT_GRAD;
    whole |= stage > 0 ? SEEN_RECV_FORWARD | SEEN_SEND_BACKWARD : 0;
    whole |= stage < schedule->stages - 1 ? SEEN_SEND_FORWARD | SEEN_RECV_BACKWARD : 0;
    for (int64_t m = 0; m < schedule->micro_batches; m++) {
        if (seen[m] != whole) {
            return ms_fail(MS_ERR_MISMATCH,
                           "stage %" PRId64 ": micro-batch %" PRId64 " is not run to its end", stage, m);
        }
    }
    return MS_OK;
}

/* Messages posted from stage s: to s + 1 (forward) and to s - 1 (backward), in order. */
typedef struct channel {
    int64_t *sent;
    int64_t sent_count, received_count;
} channel;

typedef struct simulation {
    const ms_schedule *schedule;
    channel *forward, *backward; /* by sending stage */
    int64_t *at;                 /* next action of each stage */
} simulation;

/* Runs one action if it can run; *moved says whether. */
static ms_status run_action(simulation *run, int64_t stage, bool *moved) {
    const ms_action *action = &run->schedule->stage_lists[stage].actions[run->at[stage]];
    channel *from = NULL, *to = NULL;
    switch (action->kind) {
    case MS_ACTION_RECV_FORWARD:
        from = &run->forward[stage - 1];
        break;
    case MS_ACTION_RECV_BACKWARD:
        from = &run->backward[stage + 1];
        break;
    case MS_ACTION_SEND_FORWARD:
        to = &run->forward[stage];
        break;
    case MS_ACTION_SEND_BACKWARD:
        to = &run->backward[stage];
        break;
    default:
        break;
    }
    *moved = true;
    if (to != NULL) {
        to->sent[to->sent_count++] = action->micro_batch;
    }
    if (from != NULL) {
        if (from->received_count == from->sent_count) {
            *moved = false;
            return MS_OK;
        }
        if (from->sent[from->received_count++] != action->micro_batch) {
            return complain(stage, run->at[stage], action,
                            "receives another micro-batch than was sent");
        }
    }
    run->at[stage]++;
    return MS_OK;
}

static ms_status run_all(simulation *run) {
    const ms_schedule *schedule = run->schedule;
    bool any = true;
    while (any) {
        any = false;
        for (int64_t stage = 0; stage < schedule->stages; stage++) {
            bool moved = true;
            while (moved && run->at[stage] < schedule->stage_lists[stage].count) {
                MS_TRY(run_action(run, stage, &moved));
                any = any || moved;
            }
        }
    }
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        if (run->at[stage] < schedule->stage_lists[stage].count) {
            return complain(stage, run->at[stage],
                            &schedule->stage_lists[stage].actions[run->at[stage]],
                            "waits for ever: a deadlock");
        }
    }
    return MS_OK;
}

static ms_status simulate(const ms_schedule *schedule) {
    simulation run = {.schedule = schedule};
    size_t stages = (size_t)schedule->stages, each = (size_t)schedule->micro_batches;
    int64_t *messages = NULL;
    ms_status status;
    MS_TRY_GOTO(MS_NEW(stages, MS_MEMORY_PROCESS, &run.forward), done);
    MS_TRY_GOTO(MS_NEW(stages, MS_MEMORY_PROCESS, &run.backward), done);
    MS_TRY_GOTO(MS_NEW(stages, MS_MEMORY_PROCESS, &run.at), done);
    MS_TRY_GOTO(MS_NEW(stages * each * 2, MS_MEMORY_PROCESS, &messages), done);
    for (size_t s = 0; s < stages; s++) {
        run.forward[s].sent = messages + 2 * s * each;
        run.backward[s].sent = messages + (2 * s + 1) * each;
    }
    status = run_all(&run);
done:
    ms_free(run.forward);
    ms_free(run.backward);
    ms_free(run.at);
    ms_free(messages);
    return status;
}

/* A micro-batch is in flight from its first action on the stage to its last. */
static bool is_first(const ms_schedule *schedule, int64_t stage, ms_action_kind kind) {
    (void)schedule;
    return kind == (stage > 0 ? MS_ACTION_RECV_FORWARD : MS_ACTION_FORWARD);
}

static int64_t last_use(const ms_action_list *list, int64_t micro_batch) {
    int64_t last = -1;
    for (int64_t i = 0; i < list->count; i++) {
        ms_action_kind kind = list->actions[i].kind;
        if (kind != MS_ACTION_STEP && kind != MS_ACTION_SEND_BACKWARD &&
            list->actions[i].micro_batch == micro_batch) {
            last = i;
        }
    }
    return last;
}

/* slots may be NULL; returns how many there are. used[slot] is the position after which it is free. */
static int64_t assign_slots(const ms_schedule *schedule, int64_t stage, int64_t *slots,
                            int64_t *used) {
    const ms_action_list *list = &schedule->stage_lists[stage];
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const ms_action *action = &list->actions[i];
        if (!is_first(schedule, stage, action->kind)) {
            continue;
        }
        int64_t slot = 0;
        while (slot < count && used[slot] >= i) {
            slot++;
        }
        count = ms_max_i64(count, slot + 1);
        used[slot] = last_use(list, action->micro_batch);
        if (slots != NULL) {
            slots[action->micro_batch] = slot;
        }
    }
    return count;
}

ms_status ms_schedule_check(const ms_schedule *schedule, ms_schedule_facts *facts) {
    unsigned *seen = NULL;
    int64_t *used = NULL;
    ms_status status;
    MS_TRY_GOTO(MS_NEW((size_t)schedule->micro_batches, MS_MEMORY_PROCESS, &seen), done);
    MS_TRY_GOTO(MS_NEW((size_t)schedule->micro_batches, MS_MEMORY_PROCESS, &used), done);
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        MS_TRY_GOTO(check_stage(schedule, stage, seen), done);
    }
    MS_TRY_GOTO(simulate(schedule), done);
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        int64_t count = assign_slots(schedule, stage, NULL, used);
        facts[stage] = (ms_schedule_facts){.in_flight_max = count,
                                           .chunk_in_flight_max_total = count};
    }
done:
    ms_free(seen);
    ms_free(used);
    return status;
}

ms_status ms_schedule_slots(const ms_schedule *schedule, int64_t stage, int64_t chunk,
                            int64_t *slots) {
    if (stage < 0 || stage >= schedule->stages || chunk != 0) {
        return ms_fail(MS_ERR_ARGUMENT, "no stage %" PRId64 " or chunk %" PRId64, stage, chunk);
    }
    int64_t *used = NULL;
    MS_TRY(MS_NEW((size_t)schedule->micro_batches, MS_MEMORY_PROCESS, &used));
    assign_slots(schedule, stage, slots, used);
    ms_free(used);
    return MS_OK;
}
