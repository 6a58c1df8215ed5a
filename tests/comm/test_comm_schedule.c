// labels: prop
// timeout: 120
/*
 * test_comm_schedule.c - thousands of seeded schedules in one thread: frames, releases and streams
 * are late by random amounts, ranks are stepped in random order, and every result is still right.
 *
 * usage: test_comm_schedule [SEED]   runs one seed again
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "reference.h"

#define RANKS_LIMIT 5
#define OPERATIONS 6
#define COUNT_LIMIT 3000
#define SCHEDULES (REFERENCE_FEWER ? 150 : 3000)

typedef struct operation {
    int kind;
    bool on_group;
    ms_dtype dtype;
    ms_reduce_op op;
    int64_t count;
    int root;
    bool in_place;
    int64_t counts[RANKS_LIMIT];
} operation;

static unsigned char inputs[OPERATIONS][RANKS_LIMIT][COUNT_LIMIT * 8];
static unsigned char outputs[OPERATIONS][RANKS_LIMIT][COUNT_LIMIT * 8];
static unsigned char expected[COUNT_LIMIT * 8];
static uint64_t one_seed;

static uint64_t draw(uint64_t *state) {
    *state += 1;
    return reference_hash(*state, 3, 5);
}

static operation draw_operation(uint64_t *random, int size) {
    operation made = {.kind = (int)(draw(random) % 7),
                      .on_group = draw(random) % 3 == 0,
                      .dtype = reference_dtypes[draw(random) % (uint64_t)REFERENCE_DTYPES],
                      .op = (ms_reduce_op)(draw(random) % MS_REDUCE_OP_COUNT),
                      .root = (int)(draw(random) % (uint64_t)size),
                      .in_place = draw(random) % 2 == 0};
    made.count = (int64_t)(draw(random) % (draw(random) % 2 == 0 ? 20 : COUNT_LIMIT));
    int64_t left = made.count;
    for (int r = 0; r < size; r++) {
        made.counts[r] = r + 1 == size ? left : (int64_t)(draw(random) % (uint64_t)(left + 1));
        left -= made.counts[r];
    }
    if (made.on_group) {
        made.kind = 0; /* the group has its own size */
    }
    return made;
}

static ms_status start(const operation *made, int which, ms_comm *comm, int rank, int size,
                       ms_request **request) {
    size_t unit = ms_dtype_bytes(made->dtype);
    unsigned char *in = inputs[which][rank], *out = outputs[which][rank];
    memset(out, 0xa5, sizeof outputs[which][rank]);
    reference_fill(in, made->dtype, made->count, (uint64_t)which + 100, rank);
    int64_t own_start = 0;
    for (int r = 0; r < rank && !made->on_group; r++) {
        own_start += made->counts[r];
    }
    switch (made->kind) {
    case 0:
        if (made->in_place) {
            memcpy(out, in, (size_t)made->count * unit);
            in = out;
        }
        return ms_comm_all_reduce(comm, in, out, made->count, made->dtype, made->op, request);
    case 1:
        return ms_comm_reduce_scatter(comm, in, out, made->counts, made->dtype, made->op, request);
    case 2:
        if (made->in_place) {
            memcpy(out + (size_t)own_start * unit, in, (size_t)made->counts[rank] * unit);
            in = out + (size_t)own_start * unit;
        }
        return ms_comm_all_gather(comm, in, out, made->counts, made->dtype, request);
    case 3:
        memcpy(out, in, (size_t)made->count * unit);
        return ms_comm_broadcast(comm, out, made->count, made->dtype, made->root, request);
    case 4:
        return ms_comm_reduce(comm, in, out, made->count, made->dtype, made->op, made->root,
                              request);
    case 5:
        return ms_comm_all_to_all(comm, in, out, made->count / size, made->dtype, request);
    default:
        return ms_comm_barrier(comm, request);
    }
}

static void gather_expected(const operation *made, int which, int size) {
    size_t unit = ms_dtype_bytes(made->dtype);
    int64_t at = 0;
    for (int r = 0; r < size; r++) {
        memcpy(expected + (size_t)at * unit, inputs[which][r], (size_t)made->counts[r] * unit);
        at += made->counts[r];
    }
}

/* The members of the odd group, or all. */
static int member_inputs(const operation *made, int which, int size, const void **members) {
    int count = 0;
    for (int r = 0; r < size; r++) {
        if (!made->on_group || r % 2 == 1) {
            members[count++] = inputs[which][r];
        }
    }
    return count;
}

static bool check(const operation *made, int which, int rank, int size) {
    const unsigned char *out = outputs[which][rank];
    size_t unit = ms_dtype_bytes(made->dtype);
    const void *members[RANKS_LIMIT];
    int count = member_inputs(made, which, size, members);
    int64_t start = 0, part = made->count / size;
    for (int r = 0; r < rank; r++) {
        start += made->counts[r];
    }
    if (made->kind == 0 || made->kind == 1 || made->kind == 4) {
        reference_reduce(members, count, made->dtype, made->op, made->count, expected);
    }
    switch (made->kind) {
    case 0:
        return reference_differ(out, expected, made->dtype, made->count) < 0;
    case 1:
        return reference_differ(out, expected + (size_t)start * unit, made->dtype,
                                made->counts[rank]) < 0;
    case 2:
        gather_expected(made, which, size);
        return memcmp(out, expected, (size_t)made->count * unit) == 0;
    case 3:
        return memcmp(out, inputs[which][made->root], (size_t)made->count * unit) == 0;
    case 4:
        return rank != made->root || reference_differ(out, expected, made->dtype, made->count) < 0;
    case 5:
        for (int m = 0; m < size; m++) {
            if (memcmp(out + (size_t)(m * part) * unit,
                       inputs[which][m] + (size_t)(rank * part) * unit, (size_t)part * unit) != 0) {
                return false;
            }
        }
        return true;
    default:
        return true;
    }
}

typedef struct stepped_rank {
    ms_comm *world, *group;
    int started;
    ms_request *requests[OPERATIONS];
    int left;
} stepped_rank;

/* One step of one rank: starts its next operation or tests one of those under way. */
static ms_status step(stepped_rank *own, int rank, int size, const operation *made,
                      uint64_t *random) {
    if (own->started < OPERATIONS && draw(random) % 3 == 0) {
        int which = own->started++;
        if (made[which].on_group && rank % 2 == 0) {
            own->left--;
            return MS_OK;
        }
        return start(&made[which], which, made[which].on_group ? own->group : own->world, rank,
                     size, &own->requests[which]);
    }
    int which = (int)(draw(random) % OPERATIONS);
    if (which < own->started && own->requests[which] != NULL) {
        ms_status status = ms_request_test(&own->requests[which]);
        if (status == MS_OK) {
            own->left--;
        }
        return status == MS_AGAIN ? MS_OK : status;
    }
    ms_comm_progress(own->world);
    return MS_OK;
}

/* NULL, or what went wrong with this seed. */
static const char *run_schedule(uint64_t seed, uint64_t *steps) {
    uint64_t random = seed * 1000003;
    int size = 2 + (int)(draw(&random) % (RANKS_LIMIT - 1));
    ms_loop_schedule schedule = {.seed = seed + 1,
                                 .delay_max = (int)(draw(&random) % 6),
                                 .stream_bytes =
                                     draw(&random) % 3 == 0 ? 0 : 1 + (int)(draw(&random) % 4000),
                                 .staged = draw(&random) % 4 == 0};
    ms_comm *worlds[RANKS_LIMIT];
    stepped_rank ranks[RANKS_LIMIT] = {0};
    operation made[OPERATIONS];
    int odds[RANKS_LIMIT], odd_count = 0;
    if (ms_comm_create_loop_seeded(NULL, size, &schedule, worlds) != MS_OK) {
        return ms_error_detail();
    }
    for (int r = 1; r < size; r += 2) {
        odds[odd_count++] = r;
    }
    const char *wrong = NULL;
    for (int r = 0; r < size; r++) {
        ranks[r] = (stepped_rank){.world = worlds[r], .left = OPERATIONS};
        if (r % 2 == 1 && ms_comm_group(worlds[r], odds, odd_count, &ranks[r].group) != MS_OK) {
            wrong = ms_error_detail();
        }
    }
    for (int i = 0; i < OPERATIONS; i++) {
        made[i] = draw_operation(&random, size);
    }
    int left = size;
    *steps = 0;
    while (left > 0 && wrong == NULL) {
        int r = (int)(draw(&random) % (uint64_t)size);
        if (step(&ranks[r], r, size, made, &random) != MS_OK) {
            wrong = ms_error_detail();
        }
        left = 0;
        for (int k = 0; k < size; k++) {
            left += ranks[k].left > 0;
        }
        if (++*steps > 2000000) {
            wrong = "it does not come to an end";
        }
    }
    for (int which = 0; which < OPERATIONS && wrong == NULL; which++) {
        for (int r = 0; r < size && wrong == NULL; r++) {
            if (!(made[which].on_group && r % 2 == 0) && !check(&made[which], which, r, size)) {
                wrong = "a result differs";
            }
        }
    }
    for (int r = 0; r < size; r++) {
        ms_comm_destroy(ranks[r].group);
        ms_comm_destroy(ranks[r].world);
    }
    return wrong;
}

static void test_schedules(void **state) {
    (void)state;
    uint64_t first = one_seed != 0 ? one_seed : 1, count = one_seed != 0 ? 1 : SCHEDULES;
    for (uint64_t seed = first; seed < first + count; seed++) {
        uint64_t steps;
        const char *wrong = run_schedule(seed, &steps);
        if (wrong != NULL) {
            fail_msg("seed %llu after %llu steps: %s", (unsigned long long)seed,
                     (unsigned long long)steps, wrong);
        }
    }
}

/* The same seed takes the same steps. */
static void test_repeatable(void **state) {
    (void)state;
    for (uint64_t seed = 50; seed < 60; seed++) {
        uint64_t first, second;
        assert_null(run_schedule(seed, &first));
        assert_null(run_schedule(seed, &second));
        assert_int_equal(first, second);
    }
}

int main(int argument_count, char **arguments) {
    one_seed = argument_count > 1 ? strtoull(arguments[1], NULL, 10) : 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_repeatable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
