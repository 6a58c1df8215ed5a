// labels: unit prop
// Generators over stages 1..8 x micro-batches 1..17: proven, with the memory and the time that
// theory gives.
#include "support/test_support.h"

#include "base/clock.h"
#include "schedule/schedule.h"

enum { STAGES = 8, BATCHES = 17 };

/* Ends of the last action of each stage when a forward takes `f`, a backward `b` and a message no
 * time. */
static double time_of(const ms_schedule *schedule, double f, double b) {
    static double sent[2][STAGES][BATCHES]; /* [backward][by stage][micro-batch] */
    double clock[STAGES] = {0}, end = 0;
    int64_t at[STAGES] = {0};
    memset(sent, 0, sizeof sent);
    for (bool any = true; any;) {
        any = false;
        for (int64_t s = 0; s < schedule->stages; s++) {
            const ms_action_list *list = &schedule->stage_lists[s];
            for (; at[s] < list->count; at[s]++, any = true) {
                const ms_action *a = &list->actions[at[s]];
                bool backward = a->kind == MS_ACTION_RECV_BACKWARD;
                if (backward || a->kind == MS_ACTION_RECV_FORWARD) {
                    double arrival = sent[backward][a->peer_stage][a->micro_batch];
                    if (arrival == 0) {
                        break;
                    }
                    clock[s] = arrival > clock[s] ? arrival : clock[s];
                }
                clock[s] += a->kind == MS_ACTION_FORWARD    ? f
                            : a->kind == MS_ACTION_BACKWARD ? b
                                                            : 0;
                if (a->kind == MS_ACTION_SEND_FORWARD || a->kind == MS_ACTION_SEND_BACKWARD) {
                    sent[a->kind == MS_ACTION_SEND_BACKWARD][s][a->micro_batch] = clock[s];
                }
            }
            end = clock[s] > end ? clock[s] : end;
        }
    }
    return end;
}

static int64_t count_kind(const ms_action_list *list, ms_action_kind kind) {
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        count += list->actions[i].kind == kind;
    }
    return count;
}

static void check_one(const char *name, int64_t stages, int64_t batches) {
    ms_schedule *schedule;
    ms_schedule_facts facts[STAGES];
    assert_ok(ms_schedule_create(name, stages, 1, batches, &schedule));
    assert_string_equal(schedule->name, name);
    assert_ok(ms_schedule_check(schedule, facts));
    bool gpipe = strcmp(name, "gpipe") == 0;
    for (int64_t s = 0; s < stages; s++) {
        const ms_action_list *list = &schedule->stage_lists[s];
        int64_t wanted = gpipe ? batches : ms_min_i64(batches, stages - s);
        assert_int_equal(facts[s].in_flight_max, wanted);
        assert_int_equal(facts[s].chunk_in_flight_max_total, wanted);
        assert_int_equal(count_kind(list, MS_ACTION_FORWARD), batches);
        assert_int_equal(count_kind(list, MS_ACTION_BACKWARD), batches);
        assert_int_equal(count_kind(list, MS_ACTION_RECV_FORWARD), s > 0 ? batches : 0);
        assert_int_equal(count_kind(list, MS_ACTION_SEND_FORWARD), s < stages - 1 ? batches : 0);
        assert_int_equal(count_kind(list, MS_ACTION_STEP), 1);
        assert_int_equal(list->actions[list->count - 1].kind, MS_ACTION_STEP);
        int64_t slots[BATCHES];
        assert_ok(ms_schedule_slots(schedule, s, 0, slots));
        for (int64_t m = 0; m < batches; m++) { /* both free slots in the order they took them */
            assert_int_equal(slots[m], m % wanted);
        }
    }
    /* Both have the bubble of stages - 1 forwards and backwards, and no other. */
    double wanted_time = (double)(batches + stages - 1) * (1 + 2);
    assert_true(time_of(schedule, 1, 2) == wanted_time);
    ms_schedule_destroy(schedule);
}

static void test_generators(void **state) {
    (void)state;
    int generators = 0;
    for (const ms_schedule_generator *g = ms_schedule_generators(); g->name != NULL; g++) {
        assert_non_null(g->doc);
        for (int64_t stages = 1; stages <= STAGES; stages++) {
            for (int64_t batches = 1; batches <= BATCHES; batches++) {
                check_one(g->name, stages, batches);
            }
        }
        generators++;
    }
    assert_int_equal(generators, 2);
}

static void test_forward_only(void **state) {
    (void)state;
    for (int64_t stages = 1; stages <= STAGES; stages++) {
        for (int64_t batches = 1; batches <= BATCHES; batches++) {
            ms_schedule *schedule;
            ms_schedule_facts facts[STAGES];
            assert_ok(ms_schedule_create_forward(stages, 1, batches, &schedule));
            assert_ok(ms_schedule_check(schedule, facts));
            for (int64_t s = 0; s < stages; s++) {
                assert_int_equal(facts[s].in_flight_max, 1);
                assert_int_equal(count_kind(&schedule->stage_lists[s], MS_ACTION_FORWARD), batches);
                assert_int_equal(count_kind(&schedule->stage_lists[s], MS_ACTION_BACKWARD), 0);
                assert_int_equal(count_kind(&schedule->stage_lists[s], MS_ACTION_STEP), 0);
            }
            ms_schedule_destroy(schedule);
        }
    }
}

static void assert_prints(const char *name, int64_t stages, int64_t batches, const char *wanted) {
    ms_schedule *schedule;
    ms_text text = {0};
    assert_ok(ms_schedule_create(name, stages, 1, batches, &schedule));
    assert_ok(ms_schedule_print(schedule, &text));
    assert_string_equal(text.bytes, wanted);
    ms_text_release(&text);
    ms_schedule_destroy(schedule);
}

static void test_print(void **state) {
    (void)state;
    assert_prints("1f1b", 2, 3, "s0: F0 F1 B0 F2 B1 B2\ns1: F0 B0 F1 B1 F2 B2\n");
    assert_prints("1f1b", 3, 1, "s0: F0 B0\ns1: F0 B0\ns2: F0 B0\n");
    assert_prints("gpipe", 2, 2, "s0: F0 F1 B0 B1\ns1: F0 F1 B0 B1\n");
    /* Chunks are told apart; what is no action does not bring it down. */
    ms_action actions[] = {{MS_ACTION_FORWARD, 1, 2, -1},
                           {MS_ACTION_INPUT_GRAD, 0, 3, -1},
                           {MS_ACTION_WEIGHT_GRAD, 0, 3, -1},
                           {(ms_action_kind)77, 0, 0, -1}};
    ms_action_list list = {actions, 4};
    ms_schedule schedule = {
        .stages = 1, .chunks_per_stage = 2, .micro_batches = 4, .stage_lists = &list};
    ms_text text = {0};
    assert_ok(ms_schedule_print(&schedule, &text));
    assert_string_equal(text.bytes, "s0: F2.1 I3.0 W3.0 ?0.0\n");
    ms_text_release(&text);
}

static void test_refusals(void **state) {
    (void)state;
    ms_schedule *schedule = NULL;
    assert_fails(MS_ERR_CONFIG, "no schedule \"1f1f\"; did you mean \"1f1b\"?",
                 ms_schedule_create("1f1f", 2, 1, 2, &schedule));
    assert_fails(MS_ERR_CONFIG, "did you mean \"gpipe\"",
                 ms_schedule_create("gpip", 2, 1, 2, &schedule));
    assert_fails(MS_ERR_CONFIG, "the default is \"1f1b\"",
                 ms_schedule_create("something else", 2, 1, 2, &schedule));
    assert_fails(MS_ERR_CONFIG, "one chunk per stage, not 2",
                 ms_schedule_create("1f1b", 2, 2, 2, &schedule));
    assert_fails(MS_ERR_CONFIG, "one chunk per stage, not 2",
                 ms_schedule_create_forward(2, 2, 2, &schedule));
    static const int64_t sizes[][3] = {
        {0, 1, 1},    {1, 0, 1},         {1, 1, 0},
        {4097, 1, 1}, {1, 65, 1},        {1, 1, ((int64_t)1 << 24) + 1},
        {-1, 1, 1},   {1, 1, INT64_MAX}, {64, 1, 1 << 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_fails(MS_ERR_CONFIG, "a schedule has 1 to 4096 stages",
                     ms_schedule_create("gpipe", sizes[i][0], sizes[i][1], sizes[i][2], &schedule));
    }
    assert_null(schedule);
    ms_schedule_destroy(NULL);
    assert_ok(ms_schedule_create("1f1b", 2, 1, 2, &schedule));
    int64_t slots[2];
    assert_fails(MS_ERR_ARGUMENT, "no stage 2", ms_schedule_slots(schedule, 2, 0, slots));
    assert_fails(MS_ERR_ARGUMENT, "no stage -1", ms_schedule_slots(schedule, -1, 0, slots));
    assert_fails(MS_ERR_ARGUMENT, "chunk 1", ms_schedule_slots(schedule, 0, 1, slots));
    ms_schedule_destroy(schedule);
}

/* The work grows with the number of actions: 1.6 million of them are checked at a start. */
static void test_large(void **state) {
    (void)state;
    static const char *const names[] = {"1f1b", "gpipe"};
    static int64_t slots[1 << 16];
    for (int i = 0; i < 2; i++) {
        ms_schedule *schedule;
        ms_schedule_facts facts[64];
        double start = ms_clock_s();
        assert_ok(ms_schedule_create(names[i], 64, 1, 4096, &schedule));
        assert_ok(ms_schedule_check(schedule, facts));
        assert_ok(ms_schedule_slots(schedule, 0, 0, slots));
        assert_int_equal(facts[0].in_flight_max, i == 0 ? 64 : 4096);
        ms_schedule_destroy(schedule);
        assert_ok(ms_schedule_create(names[i], 1, 1, 1 << 16, &schedule));
        assert_ok(ms_schedule_check(schedule, facts));
        assert_ok(ms_schedule_slots(schedule, 0, 0, slots));
        ms_schedule_destroy(schedule);
        double seconds = ms_clock_s() - start;
        print_message("%s: %.3f s\n", names[i], seconds);
        assert_true(seconds < 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generators), cmocka_unit_test(test_forward_only),
        cmocka_unit_test(test_print),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
