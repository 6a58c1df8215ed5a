/*
 * check.c - proving a schedule right before anything runs, and what is alive when.
 *
 * Where it stands: program/ has each schedule checked before it lowers one; the facts size the
 * saved region, the slots say which instance of it a micro-batch uses.
 *
 * Three proofs, each on what the one before has shown:
 *   1. each stage's list alone: every (chunk, micro-batch) once forward, then backward, receives
 * before and sends after; weight gradients of a chunk in micro-batch order, which is the order of
 * sums;
 *   2. each ordered pair of stages: the k-th message sent is the k-th received;
 *   3. all lists together, run: a receive waits for its send, a send never waits. If no stage can
 * move and one is not finished, that is a deadlock. With 2 shown, 3 needs only counts of messages,
 * not the messages.
 *
 * Data: `seen`, bits for each (chunk, micro-batch) of one stage; a pipe is the messages from a
 * stage to the next (which = 0) or the previous one (which = 1). With two stages both are the same
 * stage and one pipe.
 *
 * Rejected: a graph of all actions and a search for cycles (the test's judge does that): the same
 * verdict, but it could not say which action waits for ever.
 */
#include <inttypes.h>
#include <string.h>

#include "schedule/schedule_internal.h"

/* What a stage's list has said of one micro-batch of one chunk so far, as bits. */
enum {
    SEEN_RECV_FORWARD = 1,
    SEEN_FORWARD = 2,
    SEEN_SEND_FORWARD = 4,
    SEEN_RECV_BACKWARD = 8,
    SEEN_INPUT_GRAD = 16,
    SEEN_WEIGHT_GRAD = 32,
    SEEN_SEND_BACKWARD = 64,
};

typedef struct checker {
    const ms_schedule *schedule;
    bool trains;              /* or: forward only */
    unsigned char *seen;      /* [chunk][micro-batch] of the stage at hand */
    int64_t *next_weight;     /* per chunk: micro-batch whose weight gradient comes next */
    int64_t *first, *last;    /* [chunk][micro-batch]: positions of its first and last action */
    int64_t *at;              /* next action of each stage */
    int64_t *sent, *received; /* [stage][which]: messages of the pipe that leaves the stage */
    int64_t *live;            /* per chunk */
} checker;

static ms_status complain(int64_t stage, int64_t position, const ms_action *action,
                          const char *what) {
    return ms_fail(MS_ERR_MISMATCH,
                   "stage %" PRId64 ", action %" PRId64 " (%s of micro-batch %" PRId64
                   ", chunk %" PRId32 "): %s",
                   stage, position, ms__action_name(action->kind), action->micro_batch,
                   action->chunk, what);
}

static int64_t part_of(const ms_schedule *schedule, int64_t stage, int64_t chunk) {
    return chunk * schedule->stages + stage;
}

static bool is_first_part(const ms_schedule *schedule, int64_t stage, int64_t chunk) {
    return part_of(schedule, stage, chunk) == 0;
}

static bool is_last_part(const ms_schedule *schedule, int64_t stage, int64_t chunk) {
    return part_of(schedule, stage, chunk) == schedule->stages * schedule->chunks_per_stage - 1;
}

/* The four messages that one micro-batch of one chunk has on a stage, as bits. On a single stage
 * the parts follow each other without messages. */
static unsigned messages_of(const ms_schedule *schedule, int64_t stage, int64_t chunk) {
    unsigned messages = 0;
    if (schedule->stages > 1 && !is_first_part(schedule, stage, chunk)) {
        messages |= SEEN_RECV_FORWARD | SEEN_SEND_BACKWARD;
    }
    if (schedule->stages > 1 && !is_last_part(schedule, stage, chunk)) {
        messages |= SEEN_SEND_FORWARD | SEEN_RECV_BACKWARD;
    }
    return messages;
}

/* What must have been seen before an action, and what it adds. */
static void rule_of(unsigned messages, ms_action_kind kind, unsigned *before, unsigned *adds) {
    *before = *adds = 0;
    switch (kind) {
    case MS_ACTION_RECV_FORWARD:
        *adds = SEEN_RECV_FORWARD;
        break;
    case MS_ACTION_FORWARD:
        *before = messages & SEEN_RECV_FORWARD;
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
        *before = SEEN_FORWARD | (messages & (SEEN_RECV_BACKWARD | SEEN_SEND_FORWARD));
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

static int64_t peer_of(const ms_schedule *schedule, int64_t stage, ms_action_kind kind) {
    switch (kind) {
    case MS_ACTION_SEND_FORWARD:
    case MS_ACTION_RECV_BACKWARD:
        return (stage + 1) % schedule->stages;
    case MS_ACTION_RECV_FORWARD:
    case MS_ACTION_SEND_BACKWARD:
        return (stage + schedule->stages - 1) % schedule->stages;
    default:
        return -1;
    }
}

/* On a single stage a part needs the part before it (forward) or after it (backward) to be done. */
static bool neighbour_is_done(const checker *check, const ms_action *action) {
    const ms_schedule *schedule = check->schedule;
    int64_t chunk = action->chunk, chunks = schedule->chunks_per_stage;
    if (schedule->stages > 1) {
        return true;
    }
    if (action->kind == MS_ACTION_FORWARD && chunk > 0) {
        return (check->seen[(chunk - 1) * schedule->micro_batches + action->micro_batch] &
                SEEN_FORWARD) != 0;
    }
    if ((action->kind == MS_ACTION_BACKWARD || action->kind == MS_ACTION_INPUT_GRAD) &&
        chunk + 1 < chunks) {
        return (check->seen[(chunk + 1) * schedule->micro_batches + action->micro_batch] &
                SEEN_INPUT_GRAD) != 0;
    }
    return true;
}

static ms_status check_action(checker *check, int64_t stage, int64_t position) {
    const ms_schedule *schedule = check->schedule;
    const ms_action_list *list = &schedule->stage_lists[stage];
    const ms_action *action = &list->actions[position];
    if (action->kind == MS_ACTION_STEP) {
        return position == list->count - 1
                   ? MS_OK
                   : complain(stage, position, action, "the step is not the last action");
    }
    if ((unsigned)action->kind >= MS_ACTION_KIND_COUNT || action->chunk < 0 ||
        action->chunk >= schedule->chunks_per_stage || action->micro_batch < 0 ||
        action->micro_batch >= schedule->micro_batches) {
        return complain(stage, position, action, "no such action, chunk or micro-batch");
    }
    unsigned messages = messages_of(schedule, stage, action->chunk);
    unsigned before, adds;
    rule_of(messages, action->kind, &before, &adds);
    unsigned char *seen =
        &check->seen[action->chunk * schedule->micro_batches + action->micro_batch];
    if ((*seen & adds) != 0) {
        return complain(stage, position, action, "comes twice");
    }
    if ((*seen & before) != before || !neighbour_is_done(check, action)) {
        return complain(stage, position, action, "comes before what it needs");
    }
    int64_t peer = peer_of(schedule, stage, action->kind);
    if (action->peer_stage != peer || (peer >= 0 && (adds & messages) == 0)) {
        return complain(stage, position, action, "names a stage that it has nothing to do with");
    }
    if ((adds & SEEN_WEIGHT_GRAD) != 0 &&
        action->micro_batch != check->next_weight[action->chunk]++) {
        return complain(stage, position, action,
                        "adds its weight gradient out of micro-batch order");
    }
    *seen = (unsigned char)(*seen | adds);
    return MS_OK;
}

static ms_status check_stage(checker *check, int64_t stage) {
    const ms_schedule *schedule = check->schedule;
    const ms_action_list *list = &schedule->stage_lists[stage];
    int64_t chunks = schedule->chunks_per_stage, each = schedule->micro_batches;
    memset(check->seen, 0, (size_t)(chunks * each));
    memset(check->next_weight, 0, (size_t)chunks * sizeof *check->next_weight);
    for (int64_t i = 0; i < list->count; i++) {
        MS_TRY(check_action(check, stage, i));
    }
    bool steps = list->count > 0 && list->actions[list->count - 1].kind == MS_ACTION_STEP;
    if (steps != check->trains) {
        return ms_fail(MS_ERR_MISMATCH, "stage %" PRId64 " has no step at its end, but others have",
                       stage);
    }
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        unsigned whole =
            messages_of(schedule, stage, chunk) | SEEN_FORWARD | SEEN_INPUT_GRAD | SEEN_WEIGHT_GRAD;
        if (!check->trains) {
            whole &= SEEN_RECV_FORWARD | SEEN_FORWARD | SEEN_SEND_FORWARD;
        }
        for (int64_t m = 0; m < each; m++) {
            if (check->seen[chunk * each + m] != whole) {
                return ms_fail(MS_ERR_MISMATCH,
                               "stage %" PRId64 ": micro-batch %" PRId64 " of chunk %" PRId64 " %s",
                               stage, m, chunk,
                               check->trains ? "is not run to its end"
                                             : "is not run forward only, though nothing steps");
            }
        }
    }
    return MS_OK;
}

static bool is_send(ms_action_kind kind) {
    return kind == MS_ACTION_SEND_FORWARD || kind == MS_ACTION_SEND_BACKWARD;
}

static bool is_receive(ms_action_kind kind) {
    return kind == MS_ACTION_RECV_FORWARD || kind == MS_ACTION_RECV_BACKWARD;
}

/* The next position at or after `at` where a stage sends to (or receives from) a peer. */
static int64_t next_message(const ms_action_list *list, int64_t at, bool sends, int64_t peer) {
    while (at < list->count &&
           !((sends ? is_send(list->actions[at].kind) : is_receive(list->actions[at].kind)) &&
             list->actions[at].peer_stage == peer)) {
        at++;
    }
    return at;
}

static bool same_message(const ms_schedule *schedule, int64_t from, const ms_action *send,
                         int64_t to, const ms_action *receive) {
    bool forward = send->kind == MS_ACTION_SEND_FORWARD;
    return forward == (receive->kind == MS_ACTION_RECV_FORWARD) &&
           send->micro_batch == receive->micro_batch &&
           part_of(schedule, from, send->chunk) + (forward ? 1 : -1) ==
               part_of(schedule, to, receive->chunk);
}

/* The k-th message that `from` sends to `to` is the k-th that `to` receives from `from`. */
static ms_status check_pipe(const ms_schedule *schedule, int64_t from, int64_t to) {
    const ms_action_list *sends = &schedule->stage_lists[from];
    const ms_action_list *receives = &schedule->stage_lists[to];
    int64_t s = 0, r = 0;
    for (;; s++, r++) {
        s = next_message(sends, s, true, to);
        r = next_message(receives, r, false, from);
        if (s == sends->count && r == receives->count) {
            return MS_OK;
        }
        if (r == receives->count) {
            return complain(from, s, &sends->actions[s], "is sent but not received");
        }
        if (s == sends->count) {
            return complain(to, r, &receives->actions[r], "is received but not sent");
        }
        if (!same_message(schedule, from, &sends->actions[s], to, &receives->actions[r])) {
            return complain(to, r, &receives->actions[r],
                            "receives another message than was sent in its turn");
        }
    }
}

static ms_status check_pipes(const ms_schedule *schedule) {
    for (int64_t stage = 0; stage < schedule->stages && schedule->stages > 1; stage++) {
        MS_TRY(check_pipe(schedule, stage, (stage + 1) % schedule->stages));
        if (schedule->stages > 2) { /* of two stages, the next one is the previous one */
            MS_TRY(check_pipe(schedule, stage, (stage + schedule->stages - 1) % schedule->stages));
        }
    }
    return MS_OK;
}

/* Index of the pipe from one stage to its neighbour. */
static int64_t pipe_of(const ms_schedule *schedule, int64_t from, int64_t to) {
    return 2 * from + (to == (from + 1) % schedule->stages ? 0 : 1);
}

/* Runs one action if it can run. */
static bool run_action(checker *check, int64_t stage) {
    const ms_schedule *schedule = check->schedule;
    const ms_action *action = &schedule->stage_lists[stage].actions[check->at[stage]];
    if (is_send(action->kind)) {
        check->sent[pipe_of(schedule, stage, action->peer_stage)]++;
    } else if (is_receive(action->kind)) {
        int64_t pipe = pipe_of(schedule, action->peer_stage, stage);
        if (check->received[pipe] == check->sent[pipe]) {
            return false;
        }
        check->received[pipe]++;
    }
    check->at[stage]++;
    return true;
}

static ms_status check_progress(checker *check) {
    const ms_schedule *schedule = check->schedule;
    for (bool any = true; any;) {
        any = false;
        for (int64_t stage = 0; stage < schedule->stages; stage++) {
            while (check->at[stage] < schedule->stage_lists[stage].count &&
                   run_action(check, stage)) {
                any = true;
            }
        }
    }
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        const ms_action_list *list = &schedule->stage_lists[stage];
        if (check->at[stage] < list->count) {
            return complain(stage, check->at[stage], &list->actions[check->at[stage]],
                            "waits for ever: a deadlock");
        }
    }
    return MS_OK;
}

/*
 * A micro-batch of a chunk lives from its first action on the stage to its last: what it sends is
 * in its own buffers until the send is posted.
 */
static void find_lives(const ms_schedule *schedule, int64_t stage, int64_t *first, int64_t *last) {
    const ms_action_list *list = &schedule->stage_lists[stage];
    for (int64_t i = 0; i < schedule->chunks_per_stage * schedule->micro_batches; i++) {
        first[i] = last[i] = -1;
    }
    for (int64_t i = 0; i < list->count; i++) {
        const ms_action *action = &list->actions[i];
        if (action->kind == MS_ACTION_STEP) {
            continue;
        }
        int64_t life = action->chunk * schedule->micro_batches + action->micro_batch;
        first[life] = first[life] < 0 ? i : first[life];
        last[life] = i;
    }
}

static ms_schedule_facts count_lives(checker *check, int64_t stage) {
    const ms_schedule *schedule = check->schedule;
    const ms_action_list *list = &schedule->stage_lists[stage];
    ms_schedule_facts facts = {0};
    int64_t total = 0;
    find_lives(schedule, stage, check->first, check->last);
    for (int64_t i = 0; i < list->count; i++) { /* every life ends: all counts return to zero */
        const ms_action *action = &list->actions[i];
        if (action->kind == MS_ACTION_STEP) {
            continue;
        }
        int64_t life = action->chunk * schedule->micro_batches + action->micro_batch;
        int64_t *live = &check->live[action->chunk];
        if (check->first[life] == i) {
            facts.in_flight_max = ms_max_i64(facts.in_flight_max, ++*live);
            facts.chunk_in_flight_max_total = ms_max_i64(facts.chunk_in_flight_max_total, ++total);
        }
        if (check->last[life] == i) {
            --*live;
            --total;
        }
    }
    return facts;
}

static ms_status check_shape(const ms_schedule *schedule) {
    MS_TRY(
        ms__schedule_limits(schedule->stages, schedule->chunks_per_stage, schedule->micro_batches));
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        const ms_action_list *list = &schedule->stage_lists[stage];
        if (list->count < 0 || (list->count > 0 && list->actions == NULL)) {
            return ms_fail(MS_ERR_ARGUMENT, "stage %" PRId64 " has %" PRId64 " actions", stage,
                           list->count);
        }
    }
    return MS_OK;
}

static bool has_step(const ms_schedule *schedule) {
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        const ms_action_list *list = &schedule->stage_lists[stage];
        if (list->count > 0 && list->actions[list->count - 1].kind == MS_ACTION_STEP) {
            return true;
        }
    }
    return false;
}

static ms_status open_checker(checker *check) {
    const ms_schedule *schedule = check->schedule;
    size_t stages = (size_t)schedule->stages, chunks = (size_t)schedule->chunks_per_stage;
    size_t lives = chunks * (size_t)schedule->micro_batches; /* within ms__schedule_limits */
    MS_TRY(MS_NEW(lives, MS_MEMORY_PROCESS, &check->seen));
    MS_TRY(MS_NEW(chunks, MS_MEMORY_PROCESS, &check->next_weight));
    MS_TRY(MS_NEW(lives, MS_MEMORY_PROCESS, &check->first));
    MS_TRY(MS_NEW(lives, MS_MEMORY_PROCESS, &check->last));
    MS_TRY(MS_NEW(stages, MS_MEMORY_PROCESS, &check->at));
    MS_TRY(MS_NEW(2 * stages, MS_MEMORY_PROCESS, &check->sent));
    MS_TRY(MS_NEW(2 * stages, MS_MEMORY_PROCESS, &check->received));
    return MS_NEW(chunks, MS_MEMORY_PROCESS, &check->live);
}

static void close_checker(checker *check) {
    ms_free(check->seen);
    ms_free(check->next_weight);
    ms_free(check->first);
    ms_free(check->last);
    ms_free(check->at);
    ms_free(check->sent);
    ms_free(check->received);
    ms_free(check->live);
}

ms_status ms_schedule_check(const ms_schedule *schedule, ms_schedule_facts *facts) {
    MS_TRY(check_shape(schedule));
    checker check = {.schedule = schedule, .trains = has_step(schedule)};
    ms_status status;
    MS_TRY_GOTO(open_checker(&check), close);
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        MS_TRY_GOTO(check_stage(&check, stage), close);
    }
    MS_TRY_GOTO(check_pipes(schedule), close);
    MS_TRY_GOTO(check_progress(&check), close);
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        facts[stage] = count_lives(&check, stage);
    }
close:
    close_checker(&check);
    return status;
}

/* The lowest slot that is free; none below `low` is. */
static int64_t take_slot(bool *taken, int64_t *low) {
    int64_t slot = *low;
    while (taken[slot]) {
        slot++;
    }
    taken[slot] = true;
    *low = slot + 1;
    return slot;
}

static void assign_slots(const ms_schedule *schedule, int64_t stage, int64_t chunk,
                         const int64_t *first, const int64_t *last, bool *taken, int64_t *slots) {
    const ms_action_list *list = &schedule->stage_lists[stage];
    int64_t low = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const ms_action *action = &list->actions[i];
        if (action->kind == MS_ACTION_STEP || action->chunk != chunk) {
            continue;
        }
        int64_t life = chunk * schedule->micro_batches + action->micro_batch;
        if (first[life] == i) {
            slots[action->micro_batch] = take_slot(taken, &low);
        }
        if (last[life] == i) {
            taken[slots[action->micro_batch]] = false;
            low = ms_min_i64(low, slots[action->micro_batch]);
        }
    }
}

ms_status ms_schedule_slots(const ms_schedule *schedule, int64_t stage, int64_t chunk,
                            int64_t *slots) {
    if (stage < 0 || stage >= schedule->stages || chunk < 0 ||
        chunk >= schedule->chunks_per_stage) {
        return ms_fail(MS_ERR_ARGUMENT, "no stage %" PRId64 " or chunk %" PRId64, stage, chunk);
    }
    size_t each = (size_t)schedule->micro_batches;
    size_t lives = (size_t)schedule->chunks_per_stage * each;
    int64_t *first = NULL, *last = NULL;
    bool *taken = NULL;
    ms_status status;
    MS_TRY_GOTO(MS_NEW(lives, MS_MEMORY_PROCESS, &first), done);
    MS_TRY_GOTO(MS_NEW(lives, MS_MEMORY_PROCESS, &last), done);
    MS_TRY_GOTO(MS_NEW(each, MS_MEMORY_PROCESS, &taken), done);
    find_lives(schedule, stage, first, last);
    assign_slots(schedule, stage, chunk, first, last, taken, slots);
done:
    ms_free(first);
    ms_free(last);
    ms_free(taken);
    return status;
}
