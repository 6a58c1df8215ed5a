/*
 * conformance.h - every operation x element type x reduction x size against the serial reference;
 * run by each rank of any transport. Nothing here asserts: a failed check aborts the job with the
 * reason, so that all ranks end.
 */
#ifndef TESTS_COMM_CONFORMANCE_H
#define TESTS_COMM_CONFORMANCE_H

#include "reference.h"

#define CONFORM(comm, condition, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char conform_text[400];                                                                \
            int conform_length = snprintf(conform_text, sizeof conform_text,                       \
                                          "%s:%d: %s: ", __FILE__, __LINE__, #condition);          \
            snprintf(conform_text + conform_length, sizeof conform_text - (size_t)conform_length,  \
                     __VA_ARGS__);                                                                 \
            fprintf(stderr, "rank %d of %d: %s\n", ms_comm_rank(comm), ms_comm_size(comm),         \
                    conform_text);                                                                 \
            ms_comm_abort((comm), conform_text);                                                   \
            return false;                                                                          \
        }                                                                                          \
    } while (0)
#define CONFORM_OK(comm, call)                                                                     \
    do {                                                                                           \
        ms_status conform_status = (call);                                                         \
        CONFORM(comm, conform_status == MS_OK, "%s returned %s: %s", #call,                        \
                ms_status_name(conform_status), ms_error_detail());                                \
    } while (0)

/* Buffers of one rank: all members' inputs, the reference, and what the library works on. */
typedef struct bench {
    ms_comm *comm;
    size_t bytes; /* of each buffer */
    unsigned char *inputs[8];
    unsigned char *expected;
    unsigned char *own, *out; /* handed to the library */
    bool registered;
} bench;

static inline bool bench_open(bench *b, ms_comm *comm, size_t bytes, bool registered) {
    memset(b, 0, sizeof *b);
    b->comm = comm;
    b->bytes = bytes;
    b->registered = registered;
    for (int m = 0; m < ms_comm_size(comm); m++) {
        b->inputs[m] = malloc(bytes);
    }
    b->expected = malloc(bytes);
    if (registered) {
        void *memory;
        CONFORM_OK(comm, ms_comm_alloc(comm, bytes, &memory));
        b->own = memory;
        CONFORM_OK(comm, ms_comm_alloc(comm, bytes, &memory));
        b->out = memory;
    } else {
        b->own = malloc(bytes);
        b->out = malloc(bytes);
    }
    return true;
}

static inline void bench_close(bench *b) {
    for (int m = 0; m < 8; m++) {
        free(b->inputs[m]);
    }
    free(b->expected);
    if (b->registered) {
        ms_comm_free(b->comm, b->own);
        ms_comm_free(b->comm, b->out);
    } else {
        free(b->own);
        free(b->out);
    }
}

static inline void bench_fill(bench *b, ms_dtype dtype, int64_t count, uint64_t seed) {
    for (int m = 0; m < ms_comm_size(b->comm); m++) {
        reference_fill(b->inputs[m], dtype, count, seed, m);
    }
    memcpy(b->own, b->inputs[ms_comm_rank(b->comm)], (size_t)count * ms_dtype_bytes(dtype));
    memset(b->out, 0xa5, (size_t)count * ms_dtype_bytes(dtype));
}

static inline const void *const *bench_inputs(const bench *b) {
    return (const void *const *)b->inputs;
}

/* Uneven counts with zeros among them. */
static inline void uneven_counts(int64_t count, int size, int64_t *counts, int64_t *starts) {
    int64_t left = count, start = 0;
    for (int r = 0; r < size; r++) {
        int64_t part = r + 1 == size ? left : (r % 3 == 1 ? 0 : left * (r + 1) / (size + 1));
        counts[r] = part;
        starts[r] = start;
        start += part;
        left -= part;
    }
}

static inline bool conform_reductions(bench *b, ms_dtype dtype, ms_reduce_op op, int64_t count,
                                      uint64_t seed) {
    ms_comm *comm = b->comm;
    int rank = ms_comm_rank(comm), size = ms_comm_size(comm);
    size_t unit = ms_dtype_bytes(dtype);
    bench_fill(b, dtype, count, seed);
    reference_reduce(bench_inputs(b), size, dtype, op, count, b->expected);
    /* all_reduce, out of place and in place */
    CONFORM_OK(comm, ms_comm_all_reduce(comm, b->own, b->out, count, dtype, op, NULL));
    int64_t at = reference_differ(b->out, b->expected, dtype, count);
    CONFORM(comm, at < 0, "all_reduce %s op %d count %lld differs at %lld", ms_dtype_name(dtype),
            (int)op, (long long)count, (long long)at);
    at = reference_differ(b->own, b->inputs[rank], dtype, count);
    CONFORM(comm, at < 0, "all_reduce changed its input at %lld", (long long)at);
    CONFORM_OK(comm, ms_comm_all_reduce(comm, b->own, b->own, count, dtype, op, NULL));
    at = reference_differ(b->own, b->expected, dtype, count);
    CONFORM(comm, at < 0, "all_reduce in place %s op %d count %lld differs at %lld",
            ms_dtype_name(dtype), (int)op, (long long)count, (long long)at);
    /* reduce_scatter with uneven counts, out of place and in place */
    int64_t counts[8], starts[8];
    uneven_counts(count, size, counts, starts);
    bench_fill(b, dtype, count, seed);
    CONFORM_OK(comm, ms_comm_reduce_scatter(comm, b->own, b->out, counts, dtype, op, NULL));
    const unsigned char *expected = b->expected + (size_t)starts[rank] * unit;
    CONFORM(comm, reference_differ(b->out, expected, dtype, counts[rank]) < 0,
            "reduce_scatter %s op %d count %lld", ms_dtype_name(dtype), (int)op, (long long)count);
    unsigned char *slice = b->own + (size_t)starts[rank] * unit;
    CONFORM_OK(comm, ms_comm_reduce_scatter(comm, b->own, slice, counts, dtype, op, NULL));
    CONFORM(comm, reference_differ(slice, expected, dtype, counts[rank]) < 0,
            "reduce_scatter in place %s op %d count %lld", ms_dtype_name(dtype), (int)op,
            (long long)count);
    memcpy(slice, b->inputs[rank] + (size_t)starts[rank] * unit, (size_t)counts[rank] * unit);
    CONFORM(comm, memcmp(b->own, b->inputs[rank], (size_t)count * unit) == 0,
            "reduce_scatter in place changed another slice");
    /* reduce to each root in turn, by seed */
    int root = (int)(seed % (uint64_t)size);
    memset(b->out, 0xa5, (size_t)count * unit);
    CONFORM_OK(comm, ms_comm_reduce(comm, b->own, b->out, count, dtype, op, root, NULL));
    if (rank == root) {
        CONFORM(comm, reference_differ(b->out, b->expected, dtype, count) < 0,
                "reduce %s op %d count %lld", ms_dtype_name(dtype), (int)op, (long long)count);
    } else {
        for (size_t i = 0; i < (size_t)count * unit; i++) {
            CONFORM(comm, b->out[i] == 0xa5, "reduce wrote byte %zu of a rank that is not the root",
                    i);
        }
    }
    return true;
}

static inline bool conform_gathers(bench *b, ms_dtype dtype, int64_t count, uint64_t seed) {
    ms_comm *comm = b->comm;
    int rank = ms_comm_rank(comm), size = ms_comm_size(comm);
    size_t unit = ms_dtype_bytes(dtype), bytes = (size_t)count * unit;
    int64_t counts[8], starts[8];
    uneven_counts(count, size, counts, starts);
    bench_fill(b, dtype, count, seed);
    for (int m = 0; m < size; m++) {
        memcpy(b->expected + (size_t)starts[m] * unit, b->inputs[m], (size_t)counts[m] * unit);
    }
    CONFORM_OK(comm, ms_comm_all_gather(comm, b->own, b->out, counts, dtype, NULL));
    CONFORM(comm, memcmp(b->out, b->expected, bytes) == 0, "all_gather of %lld", (long long)count);
    memset(b->out, 0xa5, bytes);
    memcpy(b->out + (size_t)starts[rank] * unit, b->inputs[rank], (size_t)counts[rank] * unit);
    CONFORM_OK(comm, ms_comm_all_gather(comm, b->out + (size_t)starts[rank] * unit, b->out, counts,
                                        dtype, NULL));
    CONFORM(comm, memcmp(b->out, b->expected, bytes) == 0, "all_gather in place of %lld",
            (long long)count);
    int root = (int)(seed % (uint64_t)size);
    CONFORM_OK(comm, ms_comm_broadcast(comm, b->own, count, dtype, root, NULL));
    CONFORM(comm, memcmp(b->own, b->inputs[root], bytes) == 0, "broadcast of %lld from %d",
            (long long)count, root);
    return true;
}

/* Rank i sends (i + 2 j) % 5 * count / 8 elements to rank j, received in reverse order of ranks. */
static inline bool conform_all_to_all(bench *b, ms_dtype dtype, int64_t count, uint64_t seed) {
    ms_comm *comm = b->comm;
    int rank = ms_comm_rank(comm), size = ms_comm_size(comm);
    size_t unit = ms_dtype_bytes(dtype);
    int64_t part = count / size, send_counts[8], receive_counts[8], displacements[8];
    bench_fill(b, dtype, count, seed);
    CONFORM_OK(comm, ms_comm_all_to_all(comm, b->own, b->out, part, dtype, NULL));
    for (int m = 0; m < size; m++) {
        CONFORM(comm,
                part == 0 ||
                    memcmp(b->out + (size_t)(m * part) * unit,
                           b->inputs[m] + (size_t)(rank * part) * unit, (size_t)part * unit) == 0,
                "all_to_all of %lld from %d", (long long)part, m);
    }
    for (int m = 0; m < size; m++) {
        send_counts[m] = (rank + 2 * m) % 5 * part / 8;
        receive_counts[m] = (m + 2 * rank) % 5 * part / 8;
        displacements[m] = (size - 1 - m) * part;
    }
    CONFORM_OK(comm, ms_comm_all_to_allv(comm, b->own, send_counts, NULL, b->out, receive_counts,
                                         displacements, dtype, NULL));
    for (int m = 0; m < size; m++) {
        int64_t start = 0;
        for (int before = 0; before < rank; before++) {
            start += (m + 2 * before) % 5 * part / 8;
        }
        CONFORM(comm,
                receive_counts[m] == 0 || memcmp(b->out + (size_t)displacements[m] * unit,
                                                 b->inputs[m] + (size_t)start * unit,
                                                 (size_t)receive_counts[m] * unit) == 0,
                "all_to_allv from %d", m);
    }
    return true;
}

static inline bool conform_points(bench *b, ms_dtype dtype, int64_t count, uint64_t seed) {
    ms_comm *comm = b->comm;
    int rank = ms_comm_rank(comm), size = ms_comm_size(comm);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    size_t unit = ms_dtype_bytes(dtype);
    int64_t half = count / 2;
    bench_fill(b, dtype, count, seed);
    ms_request *requests[4];
    /* two tags, received in the other order; with one rank this is sending to oneself */
    CONFORM_OK(comm, ms_comm_send(comm, b->own, half, dtype, next, 5, &requests[0]));
    CONFORM_OK(comm, ms_comm_send(comm, b->own + (size_t)half * unit, count - half, dtype, next, 9,
                                  &requests[1]));
    CONFORM_OK(comm, ms_comm_recv(comm, b->out + (size_t)half * unit, count - half, dtype, last, 9,
                                  &requests[2]));
    CONFORM_OK(comm, ms_comm_recv(comm, b->out, half, dtype, last, 5, &requests[3]));
    for (int i = 3; i >= 0; i--) {
        CONFORM_OK(comm, ms_request_wait(&requests[i], -1));
        CONFORM(comm, requests[i] == NULL, "request %d is still there", i);
    }
    CONFORM(comm, count == 0 || memcmp(b->out, b->inputs[last], (size_t)count * unit) == 0,
            "send and recv of %lld", (long long)count);
    return true;
}

static inline bool conform_size(bench *b, int64_t count, bool all_ops) {
    for (int d = 0; d < REFERENCE_DTYPES; d++) {
        ms_dtype dtype = reference_dtypes[d];
        for (int op = 0; op < MS_REDUCE_OP_COUNT; op++) {
            if ((all_ops || op == d % MS_REDUCE_OP_COUNT) &&
                !conform_reductions(b, dtype, (ms_reduce_op)op, count,
                                    (uint64_t)(count + op + d))) {
                return false;
            }
        }
        if (!conform_gathers(b, dtype, count, (uint64_t)(count + d)) ||
            !conform_all_to_all(b, dtype, count, (uint64_t)(count + d)) ||
            !conform_points(b, dtype, count, (uint64_t)(count + d))) {
            return false;
        }
        CONFORM_OK(b->comm, ms_comm_barrier(b->comm, NULL));
    }
    return true;
}

/* Everything, on memory that peers read directly or on any memory. */
static inline bool conform_all(ms_comm *comm, bool registered) {
    static const int64_t counts[] = {0, 1, 2, 7, 251, 4095, 4096, 4097};
    bench b;
    if (!bench_open(&b, comm, (1 << 20) + 8192, registered)) {
        return false;
    }
    bool good = true;
    for (size_t c = 0; c < sizeof counts / sizeof *counts && good; c++) {
        good = (REFERENCE_FEWER && c >= 5) || conform_size(&b, counts[c], counts[c] < 1000);
    }
    good = good && conform_reductions(&b, MS_F32, MS_REDUCE_SUM, 1 << 18, 11) &&
           conform_reductions(&b, MS_BF16, MS_REDUCE_AVG, 1 << 19, 12) &&
           conform_gathers(&b, MS_U8, 1 << 20, 13) && conform_points(&b, MS_F64, 1 << 17, 14) &&
           conform_all_to_all(&b, MS_I32, 1 << 18, 15);
    bench_close(&b);
    return good;
}

/* Operations on the world and two kinds of groups at once, waited for in another order. */
static inline bool conform_concurrent(ms_comm *world) {
    enum { ROUNDS = 6, COUNT = 3000 };
    int rank = ms_comm_rank(world), size = ms_comm_size(world);
    int evens[8], odds[8], pair[2], even_count = 0, odd_count = 0;
    for (int r = 0; r < size; r++) {
        if (r % 2 == 0) {
            evens[even_count++] = r;
        } else {
            odds[odd_count++] = r;
        }
    }
    int low = rank - rank % 2;
    int pair_size = low + 1 < size ? 2 : 1;
    pair[0] =
        pair_size == 2 ? low + 1 : low; /* the higher rank first: member numbers are the list's */
    pair[1] = low;
    ms_comm *half, *two, *again;
    CONFORM_OK(world, ms_comm_group(world, rank % 2 == 0 ? evens : odds,
                                    rank % 2 == 0 ? even_count : odd_count, &half));
    CONFORM_OK(world, ms_comm_group(world, pair, pair_size, &two));
    CONFORM_OK(world, ms_comm_group(world, pair, pair_size, &again));
    CONFORM(world, ms_comm_world_rank(two, ms_comm_rank(two)) == rank, "own rank in the pair");
    ms_comm *comms[4] = {world, half, two, again};
    static _Thread_local float values[4][ROUNDS][COUNT];
    ms_request *requests[4][ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 4; i++) {
            int which = (i + rank + round) % 4; /* each rank in its own order */
            for (int k = 0; k < COUNT; k++) {
                values[which][round][k] =
                    (float)(rank + 1) * (float)(k % 17) + (float)(which + round);
            }
            CONFORM_OK(world, ms_comm_all_reduce(comms[which], values[which][round],
                                                 values[which][round], round == 3 ? 100 : COUNT,
                                                 MS_F32, MS_REDUCE_SUM, &requests[which][round]));
        }
    }
    for (int i = 0; i < 4 * ROUNDS; i++) {
        int which = (i * 7 + rank) % 4, round = ROUNDS - 1 - i / 4;
        for (int k = 0; k < 4 && requests[which][round] == NULL; k++) {
            which = (which + 1) % 4;
        }
        CONFORM_OK(world, ms_request_wait(&requests[which][round], -1));
    }
    for (int which = 0; which < 4; which++) {
        for (int round = 0; round < ROUNDS; round++) {
            int members = ms_comm_size(comms[which]), ranks_sum = 0;
            for (int m = 0; m < members; m++) {
                ranks_sum += ms_comm_world_rank(comms[which], m) + 1;
            }
            for (int k = 0; k < (round == 3 ? 100 : COUNT); k++) {
                float expected =
                    (float)ranks_sum * (float)(k % 17) + (float)members * (float)(which + round);
                CONFORM(world, values[which][round][k] == expected,
                        "group %d round %d element %d is %g, not %g", which, round, k,
                        (double)values[which][round][k], (double)expected);
            }
        }
    }
    ms_comm_destroy(again);
    ms_comm_destroy(two);
    ms_comm_destroy(half);
    return true;
}

#endif
