/*
 * collective.c - one operation as a state machine.
 *
 * Where it stands: operation.c says in lanes and links what goes where; progress.c calls
 * ms__request_step whenever something may have changed; comm_sum.c adds.
 *
 * Every operation is made of the same four moves, each of which does as much as it can now:
 *
 *     post     my messages to the partners (a full ring: later)
 *     reduce   my slice, block by block, as far as every partner's stream reaches
 *     copy     partners' streams to where they belong
 *     release  my messages, when the partner has read them
 *
 *     operation        DATA link to partner m            reduces       RESULT link to partner m
 *     all_reduce       my values of slice m              my slice      my finished slice, as it
 * grows (small)         all my values, with the frame     everything    - reduce_scatter   my
 * values of slice m              my slice      - reduce           all my values, to the root root:
 * all     - all_gather       my slice                          -             - broadcast        the
 * root's buffer                 -             - all_to_all       slice m -             - barrier
 * nothing                           -             -
 *
 * On the DATA channel partners exchange a frame in both directions even when there is nothing to
 * send: so each sees what the other called, and a rank that called something else is found at once.
 *
 * In place. Slice m of my buffer is read by m alone, and m's finished slice comes to me only after
 * m has read mine: so an all-reduce may overwrite its input block by block. A small all-reduce
 * reduces only after all its frames, which carry the input, have been posted.
 *
 * Rejected: a ring (its order of sums depends on the slice), writing into the partners' buffers (a
 * late writer could corrupt memory after an error).
 */
#include <stdio.h>
#include <string.h>

#include "comm/comm_internal.h"

/* What is read of each partner before looking at the next thing to do: stays in the second-level
 * cache, where the partners find it when they fetch the result. */
#define BLOCK_BYTES ((uint64_t)262144)

static const char *const kind_names[MS__KIND_END] = {
    [MS__BARRIER] = "barrier",
    [MS__BROADCAST] = "broadcast",
    [MS__REDUCE] = "reduce",
    [MS__ALL_REDUCE] = "all_reduce",
    [MS__REDUCE_SCATTER] = "reduce_scatter",
    [MS__ALL_GATHER] = "all_gather",
    [MS__ALL_TO_ALL] = "all_to_all",
    [MS__POINT] = "send/recv",
};
static const char *const op_names[MS_REDUCE_OP_COUNT] = {"sum", "max", "min", "avg"};

char *ms__frame_text(const ms_frame *frame, char *buffer, size_t buffer_bytes) {
    bool known = frame->kind > 0 && frame->kind < MS__KIND_END && frame->dtype < MS_DTYPE_COUNT &&
                 frame->reduction < MS_REDUCE_OP_COUNT;
    if (!known) {
        snprintf(buffer, buffer_bytes, "an unknown operation");
        return buffer;
    }
    const char *name = kind_names[frame->kind];
    const char *dtype = ms_dtype_name((ms_dtype)frame->dtype);
    long long count = (long long)frame->count;
    switch ((ms__kind)frame->kind) {
    case MS__BARRIER:
        snprintf(buffer, buffer_bytes, "%s", name);
        break;
    case MS__BROADCAST:
        snprintf(buffer, buffer_bytes, "%s(%s, %lld elements, root %d)", name, dtype, count,
                 (int)frame->root_or_tag);
        break;
    case MS__REDUCE:
        snprintf(buffer, buffer_bytes, "%s(%s, %s, %lld elements, root %d)", name,
                 op_names[frame->reduction], dtype, count, (int)frame->root_or_tag);
        break;
    case MS__ALL_REDUCE:
    case MS__REDUCE_SCATTER:
        snprintf(buffer, buffer_bytes, "%s(%s, %s, %lld elements)", name,
                 op_names[frame->reduction], dtype, count);
        break;
    case MS__ALL_TO_ALL:
        snprintf(buffer, buffer_bytes, "%s(%s)", name, dtype);
        break;
    case MS__POINT:
        snprintf(buffer, buffer_bytes, "%s(%s, %lld elements, tag %d)", name, dtype, count,
                 (int)frame->root_or_tag);
        break;
    default:
        snprintf(buffer, buffer_bytes, "%s(%s, %lld elements)", name, dtype, count);
        break;
    }
    return buffer;
}

/* ---- Arrivals -----------------------------------------------------------------------------------
 */

bool ms__request_wants(const ms_request *request, const ms_incoming *incoming) {
    const ms_frame *frame = &incoming->frame;
    if (frame->communicator != request->frame.communicator ||
        (frame->kind == MS__POINT) != (request->frame.kind == MS__POINT)) {
        return false;
    }
    if (frame->kind != MS__POINT) {
        return frame->operation == request->frame.operation;
    }
    const ms__link *link = &request->lanes[0].links[MS__CHANNEL_DATA];
    return link->receives && !link->arrived && request->lanes[0].world_rank == incoming->peer &&
           frame->root_or_tag == request->frame.root_or_tag;
}

static void raise_mismatch(ms_request *request, const ms_incoming *incoming) {
    ms__endpoint *endpoint = request->endpoint;
    const ms_frame *theirs = &incoming->frame;
    char own_text[MS__FRAME_TEXT_BYTES], their_text[MS__FRAME_TEXT_BYTES], number[48] = "";
    ms__frame_text(&request->frame, own_text, sizeof own_text);
    ms__frame_text(theirs, their_text, sizeof their_text);
    if (theirs->kind != MS__POINT) {
        snprintf(number, sizeof number, " as operation %llu",
                 (unsigned long long)theirs->operation);
    }
    const char *more = "";
    if (strcmp(own_text, their_text) == 0) {
        more = ", with other counts for each rank";
    }
    ms__raise(endpoint, MS_ERR_MISMATCH, incoming->peer,
              "rank %d called %s and rank %d called %s%s of %s%s; all ranks must call the same "
              "operations in the same order",
              endpoint->transport->rank, own_text, incoming->peer, their_text, number,
              request->comm->name, more);
}

static bool same_call(const ms_frame *own, const ms_frame *theirs) {
    return own->kind == theirs->kind && own->reduction == theirs->reduction &&
           own->dtype == theirs->dtype && own->algorithm == theirs->algorithm &&
           own->codec == theirs->codec && own->root_or_tag == theirs->root_or_tag &&
           own->count == theirs->count && own->counts_hash == theirs->counts_hash;
}

static ms__lane *find_lane(ms_request *request, int world_rank) {
    for (int i = 0; i < request->lane_count; i++) {
        if (request->lanes[i].world_rank == world_rank) {
            return &request->lanes[i];
        }
    }
    return NULL;
}

/* Takes `bytes` of the link's message away; gives the arrival back after the last ones. */
static void take(ms_request *request, ms__link *link, uint64_t bytes) {
    ms__endpoint *endpoint = request->endpoint;
    ms_incoming *incoming = &link->arrival->incoming;
    if (bytes > 0) {
        endpoint->ops->consume(endpoint->transport, incoming, bytes);
    }
    if (incoming->consumed == link->receive_bytes) {
        link->read = true;
        request->unread--;
        ms__arrival_give(endpoint, link->arrival);
        link->arrival = NULL;
    }
}

void ms__request_attach(ms_request *request, ms__arrival *arrival) {
    ms__endpoint *endpoint = request->endpoint;
    ms_incoming *incoming = &arrival->incoming;
    ms__lane *lane = find_lane(request, incoming->peer);
    ms__link *link = lane != NULL && incoming->frame.channel < MS__CHANNEL_COUNT
                         ? &lane->links[incoming->frame.channel]
                         : NULL;
    if (!same_call(&request->frame, &incoming->frame) || link == NULL || !link->receives ||
        link->arrived || link->receive_bytes != incoming->frame.bytes) {
        raise_mismatch(request, incoming);
        ms__arrival_give(endpoint, arrival);
        return;
    }
    link->arrived = true;
    link->arrival = arrival;
    if (link->receive_bytes == 0) {
        take(request, link, 0);
    }
}

/* What of a link's message can be read now. */
static uint64_t view(ms_request *request, ms__link *link, const uint8_t **bytes) {
    ms__endpoint *endpoint = request->endpoint;
    ms_incoming *incoming = &link->arrival->incoming;
    if (incoming->inline_bytes > 0) {
        *bytes = link->arrival->payload + incoming->consumed;
        return incoming->inline_bytes - incoming->consumed;
    }
    return endpoint->ops->peek(endpoint->transport, incoming, bytes);
}

/* ---- Moves --------------------------------------------------------------------------------------
 */

static bool post_link(ms_request *request, ms__lane *lane, int channel) {
    ms__endpoint *endpoint = request->endpoint;
    ms__link *link = &lane->links[channel];
    uint64_t bit = UINT64_C(1) << lane->world_rank;
    if (!link->sends || link->posted || (endpoint->blocked & bit) != 0) {
        return false;
    }
    ms_frame frame = request->frame;
    frame.channel = (uint8_t)channel;
    frame.bytes = link->send_bytes;
    bool grows = channel == MS__CHANNEL_RESULT;
    ms_status status = endpoint->ops->post(endpoint->transport, lane->world_rank, &frame,
                                           link->send, grows ? request->reduced : link->send_bytes,
                                           grows ? 0 : request->post_flags, &link->outgoing);
    if (status != MS_OK) {
        endpoint->blocked |= bit; /* later messages to this peer must not overtake this one */
        return false;
    }
    link->posted = true;
    request->unposted--;
    request->unsent++;
    return true;
}

static bool post(ms_request *request) {
    bool moved = false;
    for (int channel = 0; channel < MS__CHANNEL_COUNT; channel++) {
        for (int i = 0; i < request->lane_count && request->unposted > 0; i++) {
            moved |= post_link(request, &request->lanes[i], channel);
        }
    }
    return moved;
}

static bool reduce(ms_request *request) {
    ms__endpoint *endpoint = request->endpoint;
    uint64_t left = request->result_bytes - request->reduced;
    bool flat = request->frame.algorithm == MS__ALGORITHM_FLAT;
    if (left == 0 || (flat && request->unposted > 0)) {
        return false;
    }
    const void *sources[MS_COMM_RANKS_MAX];
    uint64_t bytes = left < BLOCK_BYTES ? left : BLOCK_BYTES;
    for (int i = 0; i < request->lane_count; i++) {
        ms__lane *lane = &request->lanes[i];
        ms__link *link = &lane->links[MS__CHANNEL_DATA];
        const uint8_t *values = NULL;
        uint64_t visible = link->arrived ? view(request, link, &values) : 0;
        if (visible < request->element_bytes) {
            return false;
        }
        bytes = visible < bytes ? visible : bytes;
        sources[lane->member] = values;
    }
    bytes -= bytes % request->element_bytes;
    sources[request->comm->rank] = request->own_values + request->reduced;
    ms__sum_block(endpoint->kernels, (ms_dtype)request->frame.dtype,
                  (ms_reduce_op)request->frame.reduction, sources, request->comm->size,
                  request->result + request->reduced, bytes / request->element_bytes);
    request->reduced += bytes;
    for (int i = 0; i < request->lane_count; i++) {
        take(request, &request->lanes[i].links[MS__CHANNEL_DATA], bytes);
    }
    for (int i = 0; i < request->lane_count; i++) {
        ms__link *link = &request->lanes[i].links[MS__CHANNEL_RESULT];
        if (link->posted) {
            endpoint->ops->advance(endpoint->transport, &link->outgoing, request->reduced);
        }
    }
    atomic_fetch_add_explicit(&endpoint->bytes_read, bytes * (uint64_t)request->lane_count,
                              memory_order_relaxed);
    return true;
}

static bool copy_link(ms_request *request, ms__link *link) {
    if (!link->arrived || link->read || link->receive == NULL) {
        return false;
    }
    ms__endpoint *endpoint = request->endpoint;
    const uint8_t *bytes;
    uint64_t at = link->arrival->incoming.consumed;
    uint64_t count = view(request, link, &bytes);
    if (count == 0) {
        return false;
    }
    count = count < BLOCK_BYTES ? count : BLOCK_BYTES;
    if (request->large) {
        endpoint->kernels->copy_stream(link->receive + at, bytes, count);
    } else {
        memcpy(link->receive + at, bytes, count);
    }
    take(request, link, count);
    atomic_fetch_add_explicit(&endpoint->bytes_read, count, memory_order_relaxed);
    return true;
}

static bool release(ms_request *request) {
    ms__endpoint *endpoint = request->endpoint;
    bool moved = false;
    for (int i = 0; i < request->lane_count; i++) {
        for (int channel = 0; channel < MS__CHANNEL_COUNT; channel++) {
            ms__link *link = &request->lanes[i].links[channel];
            if (link->posted && !link->sent &&
                endpoint->ops->sent(endpoint->transport, &link->outgoing, &moved)) {
                link->sent = true;
                request->unsent--;
                moved = true;
            }
        }
    }
    return moved;
}

bool ms__request_step(ms_request *request) {
    bool moved = request->unposted > 0 && post(request);
    if (request->reduces) {
        moved |= reduce(request);
    }
    if (request->unread > 0) {
        for (int i = 0; i < request->lane_count; i++) {
            for (int channel = 0; channel < MS__CHANNEL_COUNT; channel++) {
                moved |= copy_link(request, &request->lanes[i].links[channel]);
            }
        }
    }
    if (request->unsent > 0) {
        moved |= release(request);
    }
    return moved;
}

bool ms__request_complete(const ms_request *request) {
    return request->unposted == 0 && request->unsent == 0 && request->unread == 0 &&
           (!request->reduces || request->reduced == request->result_bytes);
}

void ms__request_prepare(ms_request *request) {
    for (int i = 0; i < request->lane_count; i++) {
        for (int channel = 0; channel < MS__CHANNEL_COUNT; channel++) {
            const ms__link *link = &request->lanes[i].links[channel];
            request->unposted += link->sends ? 1 : 0;
            request->unread += link->receives ? 1 : 0;
        }
    }
    if (request->copy_bytes > 0 && request->copy_to != request->copy_from) {
        memcpy(request->copy_to, request->copy_from, request->copy_bytes);
    }
}
