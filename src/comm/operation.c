/*
 * operation.c - the public operations: arguments are checked and turned into lanes.
 *
 * Where it stands: the engine and other callers enter here; a request filled here is handed to
 * progress.c. collective.c has the table of what each operation puts into its links.
 *
 * Invariant: everything is checked before a request is taken, so a refused call leaves no trace and
 * does not count in the order of operations.
 */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "comm/comm_internal.h"

/* Slices of an all-reduce begin at whole cache lines (which hold whole elements). */
#define SLICE_GRANULE ((uint64_t)64)
/* Above this a small all-reduce in one step would read more than two steps do. */
#define FLAT_BYTES_MAX ((uint64_t)65536)
/* From here on, what is copied does not stay in the caches anyway. */
#define LARGE_BYTES ((uint64_t)4 << 20)
#define CALL_BYTES_MAX (UINT64_C(1) << 56)

/* One call's arguments. */
typedef struct call {
    ms_comm *comm;
    ms__kind kind;
    ms_dtype dtype;
    ms_reduce_op op;
    int64_t count;
    uint64_t bytes; /* of count elements */
    uint64_t element_bytes;
    uint64_t counts_hash;
    int root_or_tag;
    int algorithm;
} call;

/* ---- Checks -------------------------------------------------------------------------------------
 */

static ms_status check_call(call *made) {
    if (made->comm == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "the communicator is NULL");
    }
    if ((unsigned)made->dtype >= MS_DTYPE_COUNT) {
        return ms_fail(MS_ERR_ARGUMENT, "element type %d does not exist", (int)made->dtype);
    }
    made->element_bytes = ms_dtype_bytes(made->dtype);
    if (made->count < 0 || (uint64_t)made->count > CALL_BYTES_MAX / made->element_bytes) {
        return ms_fail(MS_ERR_ARGUMENT, "%" PRId64 " elements are not possible", made->count);
    }
    made->bytes = (uint64_t)made->count * made->element_bytes;
    return MS_OK;
}

static ms_status check_buffer(const char *name, const void *buffer, uint64_t bytes) {
    if (buffer == NULL && bytes > 0) {
        return ms_fail(MS_ERR_ARGUMENT, "%s is NULL", name);
    }
    return MS_OK;
}

static ms_status check_rank(const ms_comm *comm, const char *name, int rank) {
    if (rank < 0 || rank >= comm->size) {
        return ms_fail(MS_ERR_ARGUMENT, "%s %d does not exist in a communicator of %d ranks", name,
                       rank, comm->size);
    }
    return MS_OK;
}

/* Input and output are the same place or do not touch. */
static ms_status check_overlap(const void *input, uint64_t input_bytes, const void *output,
                               uint64_t output_bytes, const void *same) {
    uintptr_t in = (uintptr_t)input, out = (uintptr_t)output;
    if (out == (uintptr_t)same || input_bytes == 0 || output_bytes == 0 ||
        in + input_bytes <= out || out + output_bytes <= in) {
        return MS_OK;
    }
    return ms_fail(
        MS_ERR_ARGUMENT,
        "input and output overlap; they must be apart, or in place as mindspeed/comm.h says");
}

/* Displacements of counts one after the other, in elements; the total and a hash into the call. */
static ms_status sum_counts(call *made, const int64_t *counts, int64_t *starts) {
    if (made->comm == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "the communicator is NULL");
    }
    if (counts == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "counts is NULL");
    }
    int64_t total = 0;
    for (int rank = 0; rank < made->comm->size; rank++) {
        starts[rank] = total;
        if (counts[rank] < 0 || !ms_i64_add(total, counts[rank], &total)) {
            return ms_fail(MS_ERR_ARGUMENT, "count %" PRId64 " of rank %d is not possible",
                           counts[rank], rank);
        }
    }
    made->count = total;
    made->counts_hash = ms_hash_bytes(counts, (size_t)made->comm->size * sizeof *counts);
    return MS_OK;
}

/* ---- Requests -----------------------------------------------------------------------------------
 */

static ms_status begin(const call *made, ms_request **request) {
    ms_request *fresh;
    MS_TRY(ms__request_take(made->comm, &fresh));
    fresh->frame.kind = (uint8_t)made->kind;
    fresh->frame.dtype = (uint8_t)made->dtype;
    fresh->frame.reduction = (uint8_t)made->op;
    fresh->frame.algorithm = (uint8_t)made->algorithm;
    fresh->frame.count = made->count;
    fresh->frame.counts_hash = made->counts_hash;
    fresh->frame.root_or_tag = made->root_or_tag;
    fresh->element_bytes = made->element_bytes;
    fresh->post_flags = MS_NET_POST_INLINE;
    if (made->kind != MS__POINT) {
        fresh->frame.operation = made->comm->operations++;
    }
    *request = fresh;
    return MS_OK;
}

/* A lane to a member; on the DATA channel both sides send a frame. */
static ms__lane *add_lane(ms_request *request, int member) {
    ms__lane *lane = &request->lanes[request->lane_count++];
    memset(lane, 0, sizeof *lane);
    lane->member = member;
    lane->world_rank = request->comm->ranks[member];
    lane->links[MS__CHANNEL_DATA].sends = true;
    lane->links[MS__CHANNEL_DATA].receives = true;
    return lane;
}

static void set_send(ms__lane *lane, int channel, const void *base, uint64_t offset,
                     uint64_t bytes) {
    ms__link *link = &lane->links[channel];
    link->send = bytes > 0 ? (const uint8_t *)base + offset : NULL;
    link->send_bytes = bytes;
    link->sends = channel == MS__CHANNEL_DATA || bytes > 0;
}

static void set_receive(ms__lane *lane, int channel, void *base, uint64_t offset, uint64_t bytes) {
    ms__link *link = &lane->links[channel];
    link->receive = bytes > 0 && base != NULL ? (uint8_t *)base + offset : NULL;
    link->receive_bytes = bytes;
    link->receives = channel == MS__CHANNEL_DATA || bytes > 0;
}

static void set_reduction(ms_request *request, const void *input, uint64_t input_offset,
                          void *output, uint64_t output_offset, uint64_t bytes) {
    request->reduces = bytes > 0;
    if (bytes > 0) {
        request->own_values = (const uint8_t *)input + input_offset;
        request->result = (uint8_t *)output + output_offset;
        request->result_bytes = bytes;
    }
}

static void set_copy(ms_request *request, const void *input, uint64_t input_offset, void *output,
                     uint64_t output_offset, uint64_t bytes) {
    if (bytes > 0) {
        request->copy_from = (const uint8_t *)input + input_offset;
        request->copy_to = (uint8_t *)output + output_offset;
        request->copy_bytes = bytes;
    }
}

static ms_status finish(ms_request *started, uint64_t bytes, ms_request **request) {
    started->large = bytes >= LARGE_BYTES;
    ms__request_prepare(started);
    return ms__request_start(started, request);
}

/* ---- Reductions ---------------------------------------------------------------------------------
 */

static uint64_t slice_start(uint64_t bytes, int members, int member) {
    uint64_t granules = (bytes + SLICE_GRANULE - 1) / SLICE_GRANULE;
    uint64_t whole = granules / (uint64_t)members, rest = granules % (uint64_t)members;
    uint64_t extra = (uint64_t)member < rest ? (uint64_t)member : rest;
    uint64_t start = (whole * (uint64_t)member + extra) * SLICE_GRANULE;
    return start < bytes ? start : bytes;
}

static void fill_all_reduce(ms_request *request, const void *input, void *output, uint64_t bytes) {
    int size = request->comm->size, own = request->comm->rank;
    uint64_t own_start = slice_start(bytes, size, own);
    uint64_t own_bytes = slice_start(bytes, size, own + 1) - own_start;
    bool flat = request->frame.algorithm == MS__ALGORITHM_FLAT;
    for (int i = 1; i < size; i++) {
        int member = (own + i) % size; /* not all to the same one first */
        ms__lane *lane = add_lane(request, member);
        if (flat) {
            set_send(lane, MS__CHANNEL_DATA, input, 0, bytes);
            set_receive(lane, MS__CHANNEL_DATA, NULL, 0, bytes);
            continue;
        }
        uint64_t start = slice_start(bytes, size, member);
        uint64_t slice_bytes = slice_start(bytes, size, member + 1) - start;
        set_send(lane, MS__CHANNEL_DATA, input, start, slice_bytes);
        set_receive(lane, MS__CHANNEL_DATA, NULL, 0, own_bytes);
        set_send(lane, MS__CHANNEL_RESULT, output, own_start, own_bytes);
        set_receive(lane, MS__CHANNEL_RESULT, output, start, slice_bytes);
    }
    if (flat) {
        set_reduction(request, input, 0, output, 0, bytes);
    } else {
        set_reduction(request, input, own_start, output, own_start, own_bytes);
    }
}

ms_status ms_comm_all_reduce(ms_comm *comm, const void *input, void *output, int64_t count,
                             ms_dtype dtype, ms_reduce_op op, ms_request **request) {
    call made = {.comm = comm, .kind = MS__ALL_REDUCE, .dtype = dtype, .op = op, .count = count};
    MS_TRY(check_call(&made));
    MS_TRY(ms__sum_check(dtype, op));
    MS_TRY(check_buffer("input", input, made.bytes));
    MS_TRY(check_buffer("output", output, made.bytes));
    MS_TRY(check_overlap(input, made.bytes, output, made.bytes, input));
    if (made.bytes <= MS_NET_INLINE_BYTES_MAX &&
        made.bytes * (uint64_t)comm->size <= FLAT_BYTES_MAX) {
        made.algorithm = MS__ALGORITHM_FLAT;
    }
    ms_request *started;
    MS_TRY(begin(&made, &started));
    if (comm->size == 1) {
        set_copy(started, input, 0, output, 0, made.bytes);
    } else {
        fill_all_reduce(started, input, output, made.bytes);
    }
    return finish(started, made.bytes, request);
}

ms_status ms_comm_reduce(ms_comm *comm, const void *input, void *output, int64_t count,
                         ms_dtype dtype, ms_reduce_op op, int root, ms_request **request) {
    call made = {.comm = comm,
                 .kind = MS__REDUCE,
                 .dtype = dtype,
                 .op = op,
                 .count = count,
                 .root_or_tag = root};
    MS_TRY(check_call(&made));
    MS_TRY(ms__sum_check(dtype, op));
    MS_TRY(check_rank(comm, "root", root));
    MS_TRY(check_buffer("input", input, made.bytes));
    if (root == comm->rank) {
        MS_TRY(check_buffer("output", output, made.bytes));
        MS_TRY(check_overlap(input, made.bytes, output, made.bytes, input));
    }
    ms_request *started;
    MS_TRY(begin(&made, &started));
    if (comm->size == 1) {
        set_copy(started, input, 0, output, 0, made.bytes);
    } else if (comm->rank == root) {
        for (int i = 1; i < comm->size; i++) {
            set_receive(add_lane(started, (root + i) % comm->size), MS__CHANNEL_DATA, NULL, 0,
                        made.bytes);
        }
        set_reduction(started, input, 0, output, 0, made.bytes);
    } else {
        set_send(add_lane(started, root), MS__CHANNEL_DATA, input, 0, made.bytes);
    }
    return finish(started, made.bytes, request);
}

ms_status ms_comm_reduce_scatter(ms_comm *comm, const void *input, void *output,
                                 const int64_t *counts, ms_dtype dtype, ms_reduce_op op,
                                 ms_request **request) {
    call made = {.comm = comm, .kind = MS__REDUCE_SCATTER, .dtype = dtype, .op = op};
    int64_t starts[MS_COMM_RANKS_MAX];
    MS_TRY(sum_counts(&made, counts, starts));
    MS_TRY(check_call(&made));
    MS_TRY(ms__sum_check(dtype, op));
    MS_TRY(check_buffer("input", input, made.bytes));
    uint64_t unit = made.element_bytes;
    uint64_t own_start = (uint64_t)starts[comm->rank] * unit;
    uint64_t own_bytes = (uint64_t)counts[comm->rank] * unit;
    MS_TRY(check_buffer("output", output, own_bytes));
    MS_TRY(check_overlap(input, made.bytes, output, own_bytes,
                         made.bytes > 0 ? (const uint8_t *)input + own_start : NULL));
    ms_request *started;
    MS_TRY(begin(&made, &started));
    if (comm->size == 1) {
        set_copy(started, input, 0, output, 0, own_bytes);
        return finish(started, own_bytes, request);
    }
    for (int i = 1; i < comm->size; i++) {
        int member = (comm->rank + i) % comm->size;
        ms__lane *lane = add_lane(started, member);
        set_send(lane, MS__CHANNEL_DATA, input, (uint64_t)starts[member] * unit,
                 (uint64_t)counts[member] * unit);
        set_receive(lane, MS__CHANNEL_DATA, NULL, 0, own_bytes);
    }
    set_reduction(started, input, own_start, output, 0, own_bytes);
    return finish(started, made.bytes, request);
}

/* ---- Moves --------------------------------------------------------------------------------------
 */

ms_status ms_comm_all_gather(ms_comm *comm, const void *input, void *output, const int64_t *counts,
                             ms_dtype dtype, ms_request **request) {
    call made = {.comm = comm, .kind = MS__ALL_GATHER, .dtype = dtype};
    int64_t starts[MS_COMM_RANKS_MAX];
    MS_TRY(sum_counts(&made, counts, starts));
    MS_TRY(check_call(&made));
    uint64_t unit = made.element_bytes;
    uint64_t own_start = (uint64_t)starts[comm->rank] * unit;
    uint64_t own_bytes = (uint64_t)counts[comm->rank] * unit;
    MS_TRY(check_buffer("input", input, own_bytes));
    MS_TRY(check_buffer("output", output, made.bytes));
    if (own_bytes > 0 && input != (const uint8_t *)output + own_start) {
        MS_TRY(check_overlap(input, own_bytes, output, made.bytes, NULL));
    }
    ms_request *started;
    MS_TRY(begin(&made, &started));
    for (int i = 1; i < comm->size; i++) {
        int member = (comm->rank + i) % comm->size;
        ms__lane *lane = add_lane(started, member);
        set_send(lane, MS__CHANNEL_DATA, input, 0, own_bytes);
        set_receive(lane, MS__CHANNEL_DATA, output, (uint64_t)starts[member] * unit,
                    (uint64_t)counts[member] * unit);
    }
    set_copy(started, input, 0, output, own_start, own_bytes);
    return finish(started, made.bytes, request);
}

ms_status ms_comm_broadcast(ms_comm *comm, void *buffer, int64_t count, ms_dtype dtype, int root,
                            ms_request **request) {
    call made = {
        .comm = comm, .kind = MS__BROADCAST, .dtype = dtype, .count = count, .root_or_tag = root};
    MS_TRY(check_call(&made));
    MS_TRY(check_rank(comm, "root", root));
    MS_TRY(check_buffer("buffer", buffer, made.bytes));
    ms_request *started;
    MS_TRY(begin(&made, &started));
    if (comm->rank == root) {
        for (int i = 1; i < comm->size; i++) {
            set_send(add_lane(started, (root + i) % comm->size), MS__CHANNEL_DATA, buffer, 0,
                     made.bytes);
        }
    } else {
        set_receive(add_lane(started, root), MS__CHANNEL_DATA, buffer, 0, made.bytes);
    }
    return finish(started, made.bytes, request);
}

ms_status ms_comm_barrier(ms_comm *comm, ms_request **request) {
    call made = {.comm = comm, .kind = MS__BARRIER, .dtype = MS_U8};
    MS_TRY(check_call(&made));
    ms_request *started;
    MS_TRY(begin(&made, &started));
    for (int i = 1; i < comm->size; i++) {
        add_lane(started, (comm->rank + i) % comm->size);
    }
    return finish(started, 0, request);
}

/* Start (elements) and end of the place that a list of counts and displacements covers. */
static ms_status place_counts(const ms_comm *comm, const char *name, uint64_t unit,
                              const int64_t *counts, const int64_t *displacements, int64_t *starts,
                              int64_t *end) {
    if (counts == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "%s counts are NULL", name);
    }
    int64_t next = 0, last = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        int64_t start = displacements != NULL ? displacements[rank] : next;
        if (counts[rank] < 0 || start < 0 || !ms_i64_add(start, counts[rank], &next) ||
            (uint64_t)next > CALL_BYTES_MAX / unit) {
            return ms_fail(MS_ERR_ARGUMENT,
                           "%s count %" PRId64 " at %" PRId64 " of rank %d is not possible", name,
                           counts[rank], start, rank);
        }
        starts[rank] = start;
        last = ms_max_i64(last, next);
    }
    *end = last;
    return MS_OK;
}

ms_status ms_comm_all_to_allv(ms_comm *comm, const void *input, const int64_t *send_counts,
                              const int64_t *send_displacements, void *output,
                              const int64_t *receive_counts, const int64_t *receive_displacements,
                              ms_dtype dtype, ms_request **request) {
    call made = {.comm = comm, .kind = MS__ALL_TO_ALL, .dtype = dtype};
    int64_t sends[MS_COMM_RANKS_MAX], receives[MS_COMM_RANKS_MAX], send_end, receive_end;
    MS_TRY(check_call(&made));
    uint64_t unit = made.element_bytes;
    MS_TRY(place_counts(comm, "send", unit, send_counts, send_displacements, sends, &send_end));
    MS_TRY(place_counts(comm, "receive", unit, receive_counts, receive_displacements, receives,
                        &receive_end));
    uint64_t send_bytes = (uint64_t)send_end * unit, receive_bytes = (uint64_t)receive_end * unit;
    MS_TRY(check_buffer("input", input, send_bytes));
    MS_TRY(check_buffer("output", output, receive_bytes));
    MS_TRY(check_overlap(input, send_bytes, output, receive_bytes, NULL));
    int own = comm->rank;
    if (send_counts[own] != receive_counts[own]) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "rank %d sends itself %" PRId64 " elements and receives %" PRId64, own,
                       send_counts[own], receive_counts[own]);
    }
    ms_request *started;
    MS_TRY(begin(&made, &started));
    for (int i = 1; i < comm->size; i++) {
        int member = (own + i) % comm->size;
        ms__lane *lane = add_lane(started, member);
        set_send(lane, MS__CHANNEL_DATA, input, (uint64_t)sends[member] * unit,
                 (uint64_t)send_counts[member] * unit);
        set_receive(lane, MS__CHANNEL_DATA, output, (uint64_t)receives[member] * unit,
                    (uint64_t)receive_counts[member] * unit);
    }
    set_copy(started, input, (uint64_t)sends[own] * unit, output, (uint64_t)receives[own] * unit,
             (uint64_t)send_counts[own] * unit);
    return finish(started, receive_bytes, request);
}

ms_status ms_comm_all_to_all(ms_comm *comm, const void *input, void *output, int64_t count,
                             ms_dtype dtype, ms_request **request) {
    if (comm == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "the communicator is NULL");
    }
    int64_t counts[MS_COMM_RANKS_MAX];
    for (int rank = 0; rank < comm->size; rank++) {
        counts[rank] = count;
    }
    return ms_comm_all_to_allv(comm, input, counts, NULL, output, counts, NULL, dtype, request);
}

static ms_status check_point(call *made, const void *buffer, const char *name, int rank) {
    MS_TRY(check_call(made));
    MS_TRY(check_rank(made->comm, name, rank));
    if (made->root_or_tag < 0) {
        return ms_fail(MS_ERR_ARGUMENT, "tag %d is negative", made->root_or_tag);
    }
    return check_buffer("buffer", buffer, made->bytes);
}

ms_status ms_comm_send(ms_comm *comm, const void *buffer, int64_t count, ms_dtype dtype,
                       int destination, int tag, ms_request **request) {
    call made = {
        .comm = comm, .kind = MS__POINT, .dtype = dtype, .count = count, .root_or_tag = tag};
    MS_TRY(check_point(&made, buffer, "destination", destination));
    ms_request *started;
    MS_TRY(begin(&made, &started));
    started->post_flags |= MS_NET_POST_ACKNOWLEDGE; /* bounds what a receiver must keep */
    ms__lane *lane = add_lane(started, destination);
    set_send(lane, MS__CHANNEL_DATA, buffer, 0, made.bytes);
    lane->links[MS__CHANNEL_DATA].receives = false;
    return finish(started, made.bytes, request);
}

ms_status ms_comm_recv(ms_comm *comm, void *buffer, int64_t count, ms_dtype dtype, int source,
                       int tag, ms_request **request) {
    call made = {
        .comm = comm, .kind = MS__POINT, .dtype = dtype, .count = count, .root_or_tag = tag};
    MS_TRY(check_point(&made, buffer, "source", source));
    ms_request *started;
    MS_TRY(begin(&made, &started));
    ms__lane *lane = add_lane(started, source);
    set_receive(lane, MS__CHANNEL_DATA, buffer, 0, made.bytes);
    lane->links[MS__CHANNEL_DATA].sends = false;
    return finish(started, made.bytes, request);
}
