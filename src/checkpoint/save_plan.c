/*
 * save_plan.c - from the slices that each rank holds to one list of logical tensors and their
 * places.
 *
 * Where it stands: the first phase of a save. No rank knows the whole model (pipeline stages, ZeRO
 * ranges), so each tells the others what it writes; all then compute the same list, the same
 * layouts and the same verdict.
 *
 * Data: a piece is a tensor (with its state) and how much of it is written. Each rank's pieces are
 * gathered, sorted and added up: one piece for each logical tensor.
 *
 *   written exactly once   sum of counts == elements, and sum of edges == h(elements) - h(0), where
 * a run [a, b) adds h(b) - h(a) and h is a 64-bit hash. The borders inside cancel only if every one
 * is the end of a run and the start of another, so a gap, an overlap or a wrong offset on any rank
 * shows up without sending the runs.
 *
 * Invariant: the list is sorted by name as people sort (h.2 before h.10), whatever the layout: the
 * same model gives the same bytes from any number of ranks. Rejected: rank 0 deciding and telling
 * (a second message, and the others could not check it).
 */
#include "checkpoint/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const group_names[MS__GROUP_COUNT] = {"model", "optimizer"};

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Compares the numbers at *left and *right and moves past them. */
static int compare_numbers(const char **left, const char **right) {
    while (**left == '0') {
        (*left)++;
    }
    while (**right == '0') {
        (*right)++;
    }
    const char *first = *left, *second = *right;
    while (is_digit(**left)) {
        (*left)++;
    }
    while (is_digit(**right)) {
        (*right)++;
    }
    ptrdiff_t first_length = *left - first, second_length = *right - second;
    if (first_length != second_length) {
        return first_length < second_length ? -1 : 1;
    }
    return memcmp(first, second, (size_t)first_length);
}

int ms__natural_compare(const char *left, const char *right) {
    const char *a = left, *b = right;
    while (*a != '\0' && *b != '\0') {
        if (is_digit(*a) && is_digit(*b)) {
            int order = compare_numbers(&a, &b);
            if (order != 0) {
                return order;
            }
            continue;
        }
        if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        }
        a++;
        b++;
    }
    if (*a != *b) {
        return *a == '\0' ? -1 : 1;
    }
    return strcmp(left, right); /* they differ by leading zeros at most */
}

static bool is_real(ms_dtype type) {
    return type == MS_F64 || type == MS_F32 || type == MS_BF16 || type == MS_F16;
}

ms_status ms__slice_name(const ms_checkpoint_slice *slice, char name[MS_CHECKPOINT_NAME_BYTES]) {
    const char *state = slice->state;
    size_t length = strnlen(slice->tensor->name, MS_TENSOR_NAME_BYTES);
    if (length == 0 || length == MS_TENSOR_NAME_BYTES ||
        (state != NULL &&
         (state[0] == '\0' || strlen(state) + 2 > MS_CHECKPOINT_STATE_NAME_BYTES))) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "checkpoint: a tensor or state without a name, or one that is "
                       "longer than %d bytes",
                       MS_TENSOR_NAME_BYTES - 1);
    }
    snprintf(name, MS_CHECKPOINT_NAME_BYTES, "%s%s%s", slice->tensor->name,
             state != NULL ? "." : "", state != NULL ? state : "");
    return MS_OK;
}

ms_status ms__slice_check(const ms_checkpoint_slice *slice) {
    char name[MS_CHECKPOINT_NAME_BYTES];
    MS_TRY(ms__slice_name(slice, name));
    const ms_shard *shard = slice->shard;
    bool fits = shard->rank == slice->tensor->rank;
    for (int i = 0; fits && i < shard->rank; i++) {
        fits = shard->global_dims[i] == slice->tensor->dims[i];
    }
    if (!fits) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "checkpoint: tensor \"%s\": the shard is not of this tensor", name);
    }
    MS_TRY(ms_shard_check(shard));
    int64_t elements = ms_shard_elements(shard);
    if (slice->local_start < 0 || slice->local_count < 0 || slice->local_start > elements ||
        slice->local_count > elements - slice->local_start) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "checkpoint: tensor \"%s\": range [%" PRId64 ", +%" PRId64
                       ") is not in the %" PRId64 " local elements",
                       name, slice->local_start, slice->local_count, elements);
    }
    if (!is_real(slice->memory_type) || (slice->data == NULL && slice->local_count > 0)) {
        return ms_fail(MS_ERR_ARGUMENT, "checkpoint: tensor \"%s\": no data, or of type %s", name,
                       ms_dtype_name(slice->memory_type));
    }
    return MS_OK;
}

/* The finalizer of splitmix64 (Steele, Lea & Flood 2014): a fixed scramble of 64 bits. */
static uint64_t edge_hash(int64_t position) {
    uint64_t x = (uint64_t)position + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static ms_status add_edges(const ms_shard_run *run, void *context) {
    uint64_t *edges = context;
    *edges += edge_hash(run->global_start + run->count) - edge_hash(run->global_start);
    return MS_OK;
}

static int compare_keys(int32_t group, const char *name, const ms__piece *piece) {
    return group != piece->group ? (group < piece->group ? -1 : 1)
                                 : ms__natural_compare(name, piece->name);
}

static int compare_pieces(const void *a, const void *b) {
    const ms__piece *left = a, *right = b;
    int order = compare_keys(left->group, left->name, right);
    return order != 0 ? order : (left->writer > right->writer) - (left->writer < right->writer);
}

static ms_status piece_make(const ms_checkpoint_slice *slice, int rank, ms__piece *piece) {
    MS_TRY(ms__slice_name(slice, piece->name));
    if (!is_real(slice->file_type)) {
        return ms_fail(MS_ERR_ARGUMENT, "checkpoint: tensor \"%s\" cannot be stored as %s",
                       piece->name, ms_dtype_name(slice->file_type));
    }
    piece->group = slice->state != NULL ? MS__GROUP_OPTIMIZER : MS__GROUP_MODEL;
    piece->dtype = (int32_t)slice->file_type;
    piece->rank = slice->tensor->rank;
    piece->writer = rank;
    memcpy(piece->dims, slice->tensor->dims, sizeof piece->dims);
    for (int i = piece->rank; i < MS_TENSOR_DIMS_MAX; i++) {
        piece->dims[i] = 0; /* what lies there must not make two ranks differ */
    }
    piece->count = slice->local_count;
    return ms_shard_visit(slice->shard, slice->local_start, slice->local_count, add_edges,
                          &piece->edges);
}

static ms_status piece_combine(ms__piece *into, const ms__piece *other) {
    if (into->dtype != other->dtype || into->rank != other->rank ||
        memcmp(into->dims, other->dims, sizeof into->dims) != 0) {
        return ms_fail(MS_ERR_MISMATCH,
                       "checkpoint: rank %d and rank %d disagree about the dims or the "
                       "type of tensor \"%s\"",
                       into->writer, other->writer, into->name);
    }
    if (!ms_i64_add(into->count, other->count, &into->count)) {
        return ms_fail(MS_ERR_RANGE, "checkpoint: tensor \"%s\": too many elements", into->name);
    }
    into->edges += other->edges;
    return MS_OK;
}

/* Sorts, and adds up pieces of one tensor; *count shrinks. */
static ms_status combine(ms__piece *pieces, int64_t *count) {
    if (*count == 0) {
        return MS_OK;
    }
    qsort(pieces, (size_t)*count, sizeof *pieces, compare_pieces);
    int64_t last = 0;
    for (int64_t i = 1; i < *count; i++) {
        if (compare_keys(pieces[i].group, pieces[i].name, &pieces[last]) == 0) {
            MS_TRY(piece_combine(&pieces[last], &pieces[i]));
        } else {
            pieces[++last] = pieces[i];
        }
    }
    *count = last + 1;
    return MS_OK;
}

/* This rank's pieces. */
static ms_status collect(const ms_checkpoint_request *request, int rank, ms__piece **pieces,
                         int64_t *count) {
    ms__piece *made = NULL;
    int64_t made_count = 0;
    MS_TRY(MS_NEW((size_t)request->slice_count, MS_MEMORY_CALLER, &made));
    ms_status status = MS_OK;
    for (int64_t i = 0; i < request->slice_count && status == MS_OK; i++) {
        const ms_checkpoint_slice *slice = &request->slices[i];
        status = ms__slice_check(slice);
        if (status == MS_OK && slice->writer) {
            status = piece_make(slice, rank, &made[made_count++]);
        }
    }
    if (status == MS_OK) {
        status = combine(made, &made_count);
    }
    *pieces = made;
    *count = made_count;
    return status;
}

static ms_status check_piece(const ms__piece *piece) {
    int64_t elements = 1;
    for (int i = 0; i < piece->rank; i++) {
        if (!ms_i64_mul(elements, piece->dims[i], &elements)) {
            return ms_fail(MS_ERR_RANGE, "checkpoint: tensor \"%s\": too many elements",
                           piece->name);
        }
    }
    if (piece->count != elements) {
        return ms_fail(MS_ERR_MISMATCH,
                       "checkpoint: tensor \"%s\" has %" PRId64
                       " elements, but the ranks together write %" PRId64
                       ": each must be written exactly once",
                       piece->name, elements, piece->count);
    }
    if (piece->edges != edge_hash(elements) - edge_hash(0)) {
        return ms_fail(MS_ERR_MISMATCH,
                       "checkpoint: tensor \"%s\": the ranks write some of its %" PRId64
                       " elements twice and others not at all",
                       piece->name, elements);
    }
    return MS_OK;
}

static ms_status make_layout(ms__save_plan *plan, ms__tensor_group group, uint64_t file_bytes_max) {
    int64_t first = plan->group_first[group];
    int64_t count = plan->group_first[group + 1] - first;
    if (count == 0 && group != MS__GROUP_MODEL) {
        return MS_OK;
    }
    ms_safetensors_spec *specs = NULL;
    MS_TRY(MS_NEW((size_t)count, MS_MEMORY_CALLER, &specs));
    for (int64_t i = 0; i < count; i++) {
        const ms__piece *piece = &plan->pieces[first + i];
        specs[i].name = piece->name;
        specs[i].dtype = (ms_dtype)piece->dtype;
        specs[i].rank = piece->rank;
        memcpy(specs[i].dims, piece->dims, (size_t)piece->rank * sizeof piece->dims[0]);
    }
    ms_status status = ms_safetensors_layout_create(specs, count, NULL, 0, group_names[group],
                                                    file_bytes_max, &plan->layouts[group]);
    ms_free(specs);
    return status;
}

static ms_status finish(ms__save_plan *plan, const ms_checkpoint_request *request) {
    for (int64_t i = 0; i < plan->piece_count; i++) {
        MS_TRY(check_piece(&plan->pieces[i]));
    }
    int64_t at = 0;
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        plan->group_first[group] = at;
        while (at < plan->piece_count && plan->pieces[at].group == group) {
            at++;
        }
    }
    plan->group_first[MS__GROUP_COUNT] = at;
    for (int64_t i = 0; i < request->slice_count; i++) {
        if (ms__save_plan_find(plan, &request->slices[i]) < 0) {
            char name[MS_CHECKPOINT_NAME_BYTES] = "";
            MS_TRY(ms__slice_name(&request->slices[i], name));
            return ms_fail(MS_ERR_MISMATCH, "checkpoint: no rank writes tensor \"%s\"", name);
        }
    }
    uint64_t file_bytes_max =
        request->file_bytes_max != 0 ? request->file_bytes_max : MS_CHECKPOINT_FILE_BYTES_DEFAULT;
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        MS_TRY(make_layout(plan, (ms__tensor_group)group, file_bytes_max));
    }
    return MS_OK;
}

/* What each rank says before the pieces: all must be about to make the same checkpoint. */
typedef struct greeting {
    int64_t piece_count;
    int64_t step;
    uint64_t file_bytes_max;
} greeting;

static ms_status check_greetings(const greeting *all, int size, int64_t *total) {
    int64_t sum = 0;
    for (int i = 0; i < size; i++) {
        if (all[i].step != all[0].step || all[i].file_bytes_max != all[0].file_bytes_max) {
            return ms_fail(MS_ERR_MISMATCH,
                           "checkpoint: rank 0 saves step %" PRId64 ", rank %d step %" PRId64
                           " (or with another limit of bytes for a file)",
                           all[0].step, i, all[i].step);
        }
        if (!ms_i64_add(sum, all[i].piece_count, &sum)) {
            return ms_fail(MS_ERR_RANGE, "checkpoint: too many tensors");
        }
    }
    *total = sum;
    return MS_OK;
}

/* Gathers all ranks' pieces into the plan. Collective. */
static ms_status gather(ms_comm *comm, const ms_checkpoint_request *request, const ms__piece *own,
                        int64_t own_count, ms__save_plan *plan) {
    int size = ms_comm_size(comm);
    greeting mine = {own_count, request->state.step, request->file_bytes_max};
    greeting all[MS_COMM_RANKS_MAX];
    int64_t counts[MS_COMM_RANKS_MAX];
    for (int i = 0; i < size; i++) {
        counts[i] = (int64_t)sizeof mine;
    }
    MS_TRY(ms_comm_all_gather(comm, &mine, all, counts, MS_U8, NULL));
    int64_t total = 0;
    MS_TRY(check_greetings(all, size, &total)); /* the same verdict on every rank */
    ms_status status = MS_NEW((size_t)total, MS_MEMORY_CALLER, &plan->pieces);
    MS_TRY(ms__agree(comm, status));
    for (int i = 0; i < size; i++) {
        counts[i] = all[i].piece_count * (int64_t)sizeof *own;
    }
    MS_TRY(ms_comm_all_gather(comm, own, plan->pieces, counts, MS_U8, NULL));
    plan->piece_count = total;
    return MS_OK;
}

ms_status ms__save_plan_make(ms_comm *comm, const ms_checkpoint_request *request,
                             ms__save_plan *plan) {
    ms__piece *own = NULL;
    int64_t own_count = 0;
    *plan = (ms__save_plan){0};
    ms_status status = collect(request, ms_comm_rank(comm), &own, &own_count);
    MS_TRY_GOTO(ms__agree(comm, status), free_own);
    MS_TRY_GOTO(gather(comm, request, own, own_count, plan), free_own);
    status = combine(plan->pieces, &plan->piece_count);
    if (status == MS_OK) {
        status = finish(plan, request);
    }
    MS_TRY_GOTO(ms__agree(comm, status), free_own);
free_own:
    ms_free(own);
    if (status != MS_OK) {
        ms__save_plan_release(plan);
    }
    return status;
}

void ms__save_plan_release(ms__save_plan *plan) {
    for (int group = 0; group < MS__GROUP_COUNT; group++) {
        ms_safetensors_layout_destroy(plan->layouts[group]);
    }
    ms_free(plan->pieces);
    *plan = (ms__save_plan){0};
}

int64_t ms__save_plan_find(const ms__save_plan *plan, const ms_checkpoint_slice *slice) {
    char name[MS_CHECKPOINT_NAME_BYTES];
    if (ms__slice_name(slice, name) != MS_OK) {
        return -1;
    }
    int32_t group = slice->state != NULL ? MS__GROUP_OPTIMIZER : MS__GROUP_MODEL;
    int64_t low = 0, high = plan->piece_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = compare_keys(group, name, &plan->pieces[middle]);
        if (order == 0) {
            return middle;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return -1;
}
