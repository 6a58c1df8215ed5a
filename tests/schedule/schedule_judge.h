/*
 * schedule_judge.h - an independent judge of schedules, for small ones: the graph of all actions,
 * searched by force. It shares no rule and no code with the checker: an order inside a list that
 * the checker demands must here follow from the graph being acyclic.
 */
#ifndef MS_TEST_SCHEDULE_JUDGE_H
#define MS_TEST_SCHEDULE_JUDGE_H

#include "support/test_support.h"

#include "schedule/schedule.h"

enum { JUDGE_NODES_MAX = 768 };

typedef struct judge {
    const ms_schedule *schedule;
    int64_t nodes, first_node[16];                          /* of each stage */
    int64_t count[MS_ACTION_KIND_COUNT][256];               /* [kind][part x M + m] */
    int64_t node[MS_ACTION_KIND_COUNT][256];                /* its (last) node */
    unsigned char before[JUDGE_NODES_MAX][JUDGE_NODES_MAX]; /* [a][b]: a comes before b, for sure */
    int64_t next[JUDGE_NODES_MAX]
                [2]; /* the action after it, and the receive of what it sends; or -1 */
} judge;

static bool judge_is_send(const ms_action *a) {
    return a->kind == MS_ACTION_SEND_FORWARD || a->kind == MS_ACTION_SEND_BACKWARD;
}
static bool judge_is_receive(const ms_action *a) {
    return a->kind == MS_ACTION_RECV_FORWARD || a->kind == MS_ACTION_RECV_BACKWARD;
}

/* Counts every action by what it is; false when one is nothing at all. */
static bool judge_collect(judge *j) {
    const ms_schedule *schedule = j->schedule;
    memset(j->count, 0, sizeof j->count);
    j->nodes = 0;
    for (int64_t s = 0; s < schedule->stages; s++) {
        const ms_action_list *list = &schedule->stage_lists[s];
        j->first_node[s] = j->nodes;
        for (int64_t i = 0; i < list->count; i++, j->nodes++) {
            const ms_action *a = &list->actions[i];
            assert_true(j->nodes < JUDGE_NODES_MAX);
            if (a->kind == MS_ACTION_STEP) {
                if (i != list->count - 1) {
                    return false;
                }
                continue;
            }
            if ((int)a->kind < 0 || a->kind >= MS_ACTION_KIND_COUNT || a->chunk < 0 ||
                a->chunk >= schedule->chunks_per_stage || a->micro_batch < 0 ||
                a->micro_batch >= schedule->micro_batches) {
                return false;
            }
            int64_t part = a->chunk * schedule->stages + s;
            int64_t up = (s + 1) % schedule->stages;
            int64_t down = (s + schedule->stages - 1) % schedule->stages;
            int64_t peer = a->kind == MS_ACTION_SEND_FORWARD || a->kind == MS_ACTION_RECV_BACKWARD
                               ? up
                           : judge_is_send(a) || judge_is_receive(a) ? down
                                                                     : -1;
            if (a->peer_stage != peer) {
                return false;
            }
            int64_t cell = part * schedule->micro_batches + a->micro_batch;
            j->count[a->kind][cell]++;
            j->node[a->kind][cell] = j->nodes;
        }
    }
    return true;
}

static bool judge_steps(const judge *j, bool *trains) {
    int64_t steps = 0;
    for (int64_t s = 0; s < j->schedule->stages; s++) {
        const ms_action_list *list = &j->schedule->stage_lists[s];
        steps += list->count > 0 && list->actions[list->count - 1].kind == MS_ACTION_STEP;
    }
    *trains = steps > 0;
    return steps == 0 || steps == j->schedule->stages;
}

/* Exactly the actions that there must be. */
static bool judge_counts(const judge *j, bool trains) {
    int64_t parts = j->schedule->stages * j->schedule->chunks_per_stage;
    bool messages = j->schedule->stages > 1;
    for (int64_t part = 0; part < parts; part++) {
        for (int64_t m = 0; m < j->schedule->micro_batches; m++) {
            int64_t n[MS_ACTION_KIND_COUNT];
            for (int kind = 0; kind < MS_ACTION_KIND_COUNT; kind++) {
                n[kind] = j->count[kind][part * j->schedule->micro_batches + m];
            }
            bool in = messages && part > 0, out = messages && part < parts - 1;
            bool backward = (n[MS_ACTION_BACKWARD] == 1 && n[MS_ACTION_INPUT_GRAD] == 0 &&
                             n[MS_ACTION_WEIGHT_GRAD] == 0) ||
                            (n[MS_ACTION_BACKWARD] == 0 && n[MS_ACTION_INPUT_GRAD] == 1 &&
                             n[MS_ACTION_WEIGHT_GRAD] == 1);
            bool none =
                n[MS_ACTION_BACKWARD] + n[MS_ACTION_INPUT_GRAD] + n[MS_ACTION_WEIGHT_GRAD] == 0;
            if (n[MS_ACTION_FORWARD] != 1 || n[MS_ACTION_RECV_FORWARD] != in ||
                n[MS_ACTION_SEND_FORWARD] != out || n[MS_ACTION_RECV_BACKWARD] != (out && trains) ||
                n[MS_ACTION_SEND_BACKWARD] != (in && trains) || !(trains ? backward : none)) {
                return false;
            }
        }
    }
    return true;
}

/* Program order and messages as edges; false when the messages of a pair do not meet in order. */
static bool judge_edges(judge *j) {
    const ms_schedule *schedule = j->schedule;
    for (int64_t s = 0; s < schedule->stages; s++) {
        int64_t count = schedule->stage_lists[s].count;
        for (int64_t i = 0; i < count; i++) {
            j->next[j->first_node[s] + i][0] = i + 1 < count ? j->first_node[s] + i + 1 : -1;
            j->next[j->first_node[s] + i][1] = -1;
        }
    }
    for (int64_t from = 0; from < schedule->stages; from++) {
        for (int64_t to = 0; to < schedule->stages; to++) {
            int64_t sends[256], receives[256], send_count = 0, receive_count = 0;
            for (int64_t i = 0; i < schedule->stage_lists[from].count; i++) {
                const ms_action *a = &schedule->stage_lists[from].actions[i];
                if (judge_is_send(a) && a->peer_stage == to) {
                    sends[send_count++] = i;
                }
            }
            for (int64_t i = 0; i < schedule->stage_lists[to].count; i++) {
                const ms_action *a = &schedule->stage_lists[to].actions[i];
                if (judge_is_receive(a) && a->peer_stage == from) {
                    receives[receive_count++] = i;
                }
            }
            if (send_count != receive_count) {
                return false;
            }
            for (int64_t k = 0; k < send_count; k++) {
                const ms_action *a = &schedule->stage_lists[from].actions[sends[k]];
                const ms_action *b = &schedule->stage_lists[to].actions[receives[k]];
                int64_t sent_by = a->chunk * schedule->stages + from;
                int64_t got_by = b->chunk * schedule->stages + to;
                bool forward = a->kind == MS_ACTION_SEND_FORWARD;
                if (a->micro_batch != b->micro_batch ||
                    b->kind != (forward ? MS_ACTION_RECV_FORWARD : MS_ACTION_RECV_BACKWARD) ||
                    got_by != sent_by + (forward ? 1 : -1)) {
                    return false;
                }
                j->next[j->first_node[from] + sends[k]][1] = j->first_node[to] + receives[k];
            }
        }
    }
    return true;
}

/* Everything that comes before everything, by walks from each node; false on a cycle. */
static bool judge_close(judge *j) {
    static int64_t stack[JUDGE_NODES_MAX];
    for (int64_t start = 0; start < j->nodes; start++) {
        memset(j->before[start], 0, (size_t)j->nodes);
        int64_t depth = 0;
        stack[depth++] = start;
        while (depth > 0) {
            int64_t at = stack[--depth];
            for (int e = 0; e < 2; e++) {
                int64_t next = j->next[at][e];
                if (next >= 0 && !j->before[start][next]) {
                    j->before[start][next] = 1;
                    stack[depth++] = next;
                }
            }
        }
        if (j->before[start][start]) {
            return false;
        }
    }
    return true;
}

static bool judge_precedes(const judge *j, ms_action_kind a, int64_t cell_a, ms_action_kind b,
                           int64_t cell_b) {
    return j->count[a][cell_a] == 0 || j->count[b][cell_b] == 0 ||
           j->before[j->node[a][cell_a]][j->node[b][cell_b]];
}

/* What computing needs: its inputs first; and sums in micro-batch order. */
static bool judge_needs(const judge *j) {
    static const ms_action_kind first_grads[] = {MS_ACTION_BACKWARD, MS_ACTION_INPUT_GRAD};
    static const ms_action_kind weight_grads[] = {MS_ACTION_BACKWARD, MS_ACTION_WEIGHT_GRAD};
    int64_t each = j->schedule->micro_batches;
    int64_t parts = j->schedule->stages * j->schedule->chunks_per_stage;
    bool good = true;
    for (int64_t cell = 0; cell < parts * each; cell++) {
        good = good && judge_precedes(j, MS_ACTION_RECV_FORWARD, cell, MS_ACTION_FORWARD, cell) &&
               judge_precedes(j, MS_ACTION_FORWARD, cell, MS_ACTION_SEND_FORWARD, cell) &&
               judge_precedes(j, MS_ACTION_INPUT_GRAD, cell, MS_ACTION_WEIGHT_GRAD, cell) &&
               (cell < each ||
                judge_precedes(j, MS_ACTION_FORWARD, cell - each, MS_ACTION_FORWARD, cell));
        for (int a = 0; a < 2; a++) {
            good = good && judge_precedes(j, MS_ACTION_FORWARD, cell, first_grads[a], cell) &&
                   judge_precedes(j, MS_ACTION_RECV_BACKWARD, cell, first_grads[a], cell) &&
                   judge_precedes(j, first_grads[a], cell, MS_ACTION_SEND_BACKWARD, cell);
            for (int b = 0; b < 2; b++) {
                good = good && (cell < each || judge_precedes(j, first_grads[a], cell,
                                                              first_grads[b], cell - each));
                good = good && (cell % each == 0 || judge_precedes(j, weight_grads[a], cell - 1,
                                                                   weight_grads[b], cell));
            }
        }
    }
    return good;
}

static bool judge_accepts(const ms_schedule *schedule) {
    static judge j;
    bool trains;
    j.schedule = schedule;
    return judge_collect(&j) && judge_steps(&j, &trains) && judge_counts(&j, trains) &&
           judge_edges(&j) && judge_close(&j) && judge_needs(&j);
}

#endif
