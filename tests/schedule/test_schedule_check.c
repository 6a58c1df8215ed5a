// labels: unit prop
// timeout: 120
// The checker against an independent judge: generated, random legal and mutated schedules.
#include "schedule_judge.h"

enum { STAGES_MAX = 4, CHUNKS_MAX = 3, BATCHES_MAX = 5, ACTIONS_MAX = 160 };

/* A schedule in the test's own memory, with room for mutations. */
typedef struct owned {
    ms_schedule schedule;
    ms_action_list lists[STAGES_MAX];
    ms_action actions[STAGES_MAX][ACTIONS_MAX];
} owned;

static void owned_open(owned *o, int64_t stages, int64_t chunks, int64_t batches) {
    memset(o, 0, sizeof *o);
    o->schedule = (ms_schedule){.name = "test",
                                .stages = stages,
                                .chunks_per_stage = chunks,
                                .micro_batches = batches,
                                .stage_lists = o->lists};
    for (int s = 0; s < STAGES_MAX; s++) {
        o->lists[s].actions = o->actions[s];
    }
}

static void owned_copy(owned *o, const ms_schedule *from) {
    owned_open(o, from->stages, from->chunks_per_stage, from->micro_batches);
    for (int64_t s = 0; s < from->stages; s++) {
        o->lists[s].count = from->stage_lists[s].count;
        memcpy(o->actions[s], from->stage_lists[s].actions,
               (size_t)o->lists[s].count * sizeof(ms_action));
    }
}

static void add(owned *o, int64_t stage, ms_action_kind kind, int64_t chunk, int64_t m,
                int64_t peer) {
    ms_action_list *list = &o->lists[stage];
    assert_true(list->count < ACTIONS_MAX);
    list->actions[list->count++] = (ms_action){kind, (int32_t)chunk, m, (int32_t)peer};
}

/* State of a run that invents a legal schedule as it goes. */
typedef struct invention {
    bool forward[STAGES_MAX * CHUNKS_MAX][BATCHES_MAX], input[STAGES_MAX * CHUNKS_MAX][BATCHES_MAX];
    int64_t weights[STAGES_MAX * CHUNKS_MAX];
} invention;

static bool can_backward(const invention *run, int64_t part, int64_t parts, int64_t m) {
    return run->forward[part][m] && !run->input[part][m] &&
           (part == parts - 1 || run->input[part + 1][m]);
}

/* One step of compute on one part, if it is possible; messages go out and are noted at once on both
 * sides. */
static bool invent_step(owned *o, invention *run, uint64_t *seed, bool split) {
    int64_t stages = o->schedule.stages, parts = stages * o->schedule.chunks_per_stage;
    int64_t part = (int64_t)test_random_below(seed, (uint64_t)parts);
    int64_t m = (int64_t)test_random_below(seed, (uint64_t)o->schedule.micro_batches);
    int64_t stage = part % stages, chunk = part / stages;
    int64_t up = (stage + 1) % stages, down = (stage + stages - 1) % stages;
    if (!run->forward[part][m]) {
        if (part > 0 && !run->forward[part - 1][m]) {
            return false;
        }
        add(o, stage, MS_ACTION_FORWARD, chunk, m, -1);
        run->forward[part][m] = true;
        if (stages > 1 && part < parts - 1) {
            add(o, stage, MS_ACTION_SEND_FORWARD, chunk, m, up);
            add(o, up, MS_ACTION_RECV_FORWARD, (part + 1) / stages, m, stage);
        }
        return true;
    }
    if (split && run->input[part][m] && run->weights[part] == m) {
        add(o, stage, MS_ACTION_WEIGHT_GRAD, chunk, m, -1);
        run->weights[part]++;
        return true;
    }
    if (!can_backward(run, part, parts, m) || (!split && run->weights[part] != m)) {
        return false;
    }
    add(o, stage, split ? MS_ACTION_INPUT_GRAD : MS_ACTION_BACKWARD, chunk, m, -1);
    run->input[part][m] = true;
    run->weights[part] += split ? 0 : 1;
    if (stages > 1 && part > 0) {
        add(o, stage, MS_ACTION_SEND_BACKWARD, chunk, m, down);
        add(o, down, MS_ACTION_RECV_BACKWARD, (part - 1) / stages, m, stage);
    }
    return true;
}

/* A random legal schedule. RECV_BACKWARD may be listed long before its use, RECV_FORWARD too. */
static void invent(owned *o, uint64_t *seed) {
    owned_open(o, 1 + (int64_t)test_random_below(seed, STAGES_MAX),
               1 + (int64_t)test_random_below(seed, CHUNKS_MAX),
               1 + (int64_t)test_random_below(seed, BATCHES_MAX));
    invention run = {0};
    bool split = test_random_below(seed, 2) == 0;
    int64_t left = o->schedule.stages * o->schedule.chunks_per_stage * o->schedule.micro_batches *
                   (split ? 3 : 2);
    while (left > 0) {
        left -= invent_step(o, &run, seed, split);
    }
    for (int64_t s = 0; s < o->schedule.stages; s++) {
        add(o, s, MS_ACTION_STEP, 0, 0, -1);
    }
}

/* Largest number of lives that overlap, by asking of every position; a life is all actions of a
 * cell. */
static void facts_by_force(const ms_schedule *schedule, int64_t stage, ms_schedule_facts *facts) {
    const ms_action_list *list = &schedule->stage_lists[stage];
    *facts = (ms_schedule_facts){0};
    for (int64_t at = 0; at < list->count; at++) {
        int64_t total = 0;
        for (int64_t chunk = 0; chunk < schedule->chunks_per_stage; chunk++) {
            int64_t live = 0;
            for (int64_t m = 0; m < schedule->micro_batches; m++) {
                bool began = false, goes_on = false;
                for (int64_t i = 0; i < list->count; i++) {
                    const ms_action *a = &list->actions[i];
                    bool own =
                        a->kind != MS_ACTION_STEP && a->chunk == chunk && a->micro_batch == m;
                    began = began || (own && i <= at);
                    goes_on = goes_on || (own && i >= at);
                }
                live += began && goes_on;
            }
            facts->in_flight_max = ms_max_i64(facts->in_flight_max, live);
            total += live;
        }
        facts->chunk_in_flight_max_total = ms_max_i64(facts->chunk_in_flight_max_total, total);
    }
}

/* Slots: as many as the fact says, and no two lives in one slot at once. */
static void check_slots(const ms_schedule *schedule, int64_t stage,
                        const ms_schedule_facts *facts) {
    const ms_action_list *list = &schedule->stage_lists[stage];
    int64_t most = 0;
    for (int64_t chunk = 0; chunk < schedule->chunks_per_stage; chunk++) {
        int64_t slots[BATCHES_MAX], holder[BATCHES_MAX], left[BATCHES_MAX] = {0};
        assert_ok(ms_schedule_slots(schedule, stage, chunk, slots));
        for (int64_t i = 0; i < list->count; i++) {
            const ms_action *a = &list->actions[i];
            left[a->micro_batch] += a->kind != MS_ACTION_STEP && a->chunk == chunk;
        }
        for (int m = 0; m < BATCHES_MAX; m++) {
            holder[m] = -1;
        }
        for (int64_t i = 0; i < list->count; i++) {
            const ms_action *a = &list->actions[i];
            if (a->kind == MS_ACTION_STEP || a->chunk != chunk) {
                continue;
            }
            int64_t slot = slots[a->micro_batch];
            assert_true(slot >= 0 && slot < facts->in_flight_max);
            most = ms_max_i64(most, slot + 1);
            assert_true(holder[slot] == -1 || holder[slot] == a->micro_batch);
            holder[slot] = --left[a->micro_batch] == 0 ? -1 : a->micro_batch;
        }
    }
    assert_int_equal(most, facts->in_flight_max);
}

static void test_legal_schedules(void **state) {
    (void)state;
    static owned o;
    uint64_t seed = test_seed();
    for (int round = 0; round < 400; round++) {
        invent(&o, &seed);
        ms_schedule_facts facts[STAGES_MAX], wanted;
        assert_true(judge_accepts(&o.schedule));
        assert_ok(ms_schedule_check(&o.schedule, facts));
        for (int64_t s = 0; s < o.schedule.stages; s++) {
            facts_by_force(&o.schedule, s, &wanted);
            assert_int_equal(facts[s].in_flight_max, wanted.in_flight_max);
            assert_int_equal(facts[s].chunk_in_flight_max_total, wanted.chunk_in_flight_max_total);
            check_slots(&o.schedule, s, &facts[s]);
        }
    }
}

static void swap_actions(ms_action *a, ms_action *b) {
    ms_action other = *a;
    *a = *b;
    *b = other;
}

/* One small change somewhere. */
static void mutate(owned *o, uint64_t *seed) {
    int64_t stage = (int64_t)test_random_below(seed, (uint64_t)o->schedule.stages);
    ms_action_list *list = &o->lists[stage];
    if (list->count == 0) {
        return;
    }
    int64_t at = (int64_t)test_random_below(seed, (uint64_t)list->count);
    int64_t other = (int64_t)test_random_below(seed, (uint64_t)list->count);
    ms_action *a = &list->actions[at];
    switch (test_random_below(seed, 9)) {
    case 0: /* two neighbours, or any two, change places */
    case 1:
        swap_actions(a, &list->actions[at + 1 < list->count ? at + 1 : at]);
        break;
    case 2:
        swap_actions(a, &list->actions[other]);
        break;
    case 3: /* one is lost */
        memmove(a, a + 1, (size_t)(list->count-- - at - 1) * sizeof *a);
        break;
    case 4: /* one comes twice */
        if (list->count < ACTIONS_MAX) {
            memmove(a + 1, a, (size_t)(list->count++ - at) * sizeof *a);
        }
        break;
    case 5:
        a->micro_batch += (int64_t)test_random_below(seed, 3) - 1;
        break;
    case 6:
        a->chunk += (int32_t)test_random_below(seed, 3) - 1;
        break;
    case 7:
        a->peer_stage += (int32_t)test_random_below(seed, 3) - 1;
        break;
    default:
        a->kind = (ms_action_kind)test_random_below(seed, MS_ACTION_KIND_COUNT + 1);
        break;
    }
}

static void test_mutated_schedules(void **state) {
    (void)state;
    static owned o;
    static const char *const names[] = {"gpipe", "1f1b"};
    uint64_t seed = test_seed();
    int accepted = 0, refused = 0;
    for (int round = 0; round < 12000; round++) {
        uint64_t before = seed;
        if (round % 3 == 0) {
            ms_schedule *made;
            assert_ok(ms_schedule_create(
                names[round / 3 % 2], 1 + (int64_t)test_random_below(&seed, STAGES_MAX), 1,
                1 + (int64_t)test_random_below(&seed, BATCHES_MAX), &made));
            owned_copy(&o, made);
            ms_schedule_destroy(made);
        } else {
            invent(&o, &seed);
        }
        for (uint64_t n = 1 + test_random_below(&seed, 2); n > 0; n--) {
            mutate(&o, &seed);
        }
        ms_schedule_facts facts[STAGES_MAX] = {{-7, -7}};
        ms_status status = ms_schedule_check(&o.schedule, facts);
        bool wanted = judge_accepts(&o.schedule);
        if ((status == MS_OK) != wanted || (status != MS_OK && status != MS_ERR_MISMATCH)) {
            ms_text text = {0};
            assert_ok(ms_schedule_print(&o.schedule, &text));
            print_error("seed %" PRIu64 ", round %d: judge %d, checker %s %s\n%s", before, round,
                        wanted, ms_status_name(status), status == MS_OK ? "" : ms_error_detail(),
                        text.bytes);
            ms_text_release(&text);
            fail();
        }
        assert_true(status == MS_OK || facts[0].in_flight_max == -7);
        accepted += wanted;
        refused += !wanted;
    }
    print_message("%d mutated schedules still legal, %d refused\n", accepted, refused);
    assert_true(accepted > 100 && refused > 5000);
}

/* Stage 0 waits for a gradient before it has sent the second activation, and stage 1 the other way
 * round. */
static void test_deadlock_is_named(void **state) {
    (void)state;
    static owned o;
    ms_schedule *made;
    assert_ok(ms_schedule_create("gpipe", 2, 1, 2, &made));
    owned_copy(&o, made);
    ms_schedule_destroy(made);
    /* s0: F0 S0 F1 S1 R0 B0 R1 B1 step -> F0 S0 R0 B0 F1 ...; s1 runs both forwards first. */
    static const int order[] = {0, 1, 4, 5, 2, 3, 6, 7, 8};
    ms_action actions[9];
    assert_int_equal(o.lists[0].count, 9);
    for (int i = 0; i < 9; i++) {
        actions[i] = o.actions[0][order[i]];
    }
    memcpy(o.actions[0], actions, sizeof actions);
    ms_schedule_facts facts[2];
    assert_false(judge_accepts(&o.schedule));
    assert_fails(MS_ERR_MISMATCH,
                 "stage 0, action 2 (recv_backward of micro-batch 0, chunk 0): waits for ever: a "
                 "deadlock",
                 ms_schedule_check(&o.schedule, facts));
}

static void test_refusals_name_the_place(void **state) {
    (void)state;
    static owned o, base;
    ms_schedule *made;
    ms_schedule_facts facts[STAGES_MAX];
    assert_ok(ms_schedule_create("1f1b", 3, 1, 4, &made));
    owned_copy(&base, made);
    ms_schedule_destroy(made);

    owned_copy(&o, &base.schedule);
    o.lists[1].actions[1].micro_batch = 9;
    assert_fails(MS_ERR_MISMATCH,
                 "stage 1, action 1 (forward of micro-batch 9, chunk 0): no such action, chunk",
                 ms_schedule_check(&o.schedule, facts));
    owned_copy(&o, &base.schedule);
    o.lists[1].actions[1].micro_batch = 1;
    assert_fails(MS_ERR_MISMATCH, "comes before what it needs",
                 ms_schedule_check(&o.schedule, facts));
    owned_copy(&o, &base.schedule);
    o.lists[2].actions[0].peer_stage = 0;
    assert_fails(MS_ERR_MISMATCH, "stage 2, action 0 (recv_forward",
                 ms_schedule_check(&o.schedule, facts));
    owned_copy(&o, &base.schedule);
    o.lists[0].count--;
    assert_fails(MS_ERR_MISMATCH, "stage 0 has no step at its end",
                 ms_schedule_check(&o.schedule, facts));
    owned_copy(&o, &base.schedule);
    for (int64_t i = 0; i < o.lists[0].count; i++) { /* first stage sends 1 before 0 is made */
        ms_action *a = &o.lists[0].actions[i];
        a->micro_batch = a->micro_batch < 2 && a->kind <= MS_ACTION_SEND_FORWARD
                             ? 1 - a->micro_batch
                             : a->micro_batch;
    }
    assert_fails(MS_ERR_MISMATCH, "receives another message than was sent in its turn",
                 ms_schedule_check(&o.schedule, facts));
    owned_copy(&o, &base.schedule);
    o.schedule.stages = 0;
    assert_fails(MS_ERR_CONFIG, "1 to 4096 stages", ms_schedule_check(&o.schedule, facts));
    owned_copy(&o, &base.schedule);
    o.lists[1].actions = NULL;
    assert_fails(MS_ERR_ARGUMENT, "stage 1 has", ms_schedule_check(&o.schedule, facts));
}

static void test_out_of_memory(void **state) {
    (void)state;
    size_t live = ms_memory_counters_get().live_bytes[MS_MEMORY_PROCESS];
    ms_schedule_facts facts[3];
    int64_t slots[4];
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        ms_schedule *made = NULL;
        ms_memory_fail_at(n);
        ms_status status = ms_schedule_create("1f1b", 3, 1, 4, &made);
        status = status == MS_OK ? ms_schedule_check(made, facts) : status;
        status = status == MS_OK ? ms_schedule_slots(made, 1, 0, slots) : status;
        ms_memory_fail_at(0);
        ms_schedule_destroy(made);
        assert_int_equal(ms_memory_counters_get().live_bytes[MS_MEMORY_PROCESS], live);
        if (status == MS_OK) {
            break;
        }
        assert_int_equal(status, MS_ERR_MEMORY);
        failures++;
    }
    assert_true(failures >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_legal_schedules),   cmocka_unit_test(test_mutated_schedules),
        cmocka_unit_test(test_deadlock_is_named), cmocka_unit_test(test_refusals_name_the_place),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
