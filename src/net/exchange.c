/*
 * exchange.c - frames in rings, payload in streams.
 *
 * Where it stands: comm/ posts and polls through ms_transport_ops; net_loop.c and shm.c provide the
 * memory and point their tables here.
 *
 * Data (drawn in exchange.h). A ring holds records, each a multiple of 64 bytes and never wrapped:
 *
 *     record_head (32 bytes) | ms_frame (64 bytes) | inline payload
 *
 * A record of type PAD fills the end of the ring. tail and head count bytes for ever; their
 * difference is at most the ring's size. A stream is two counters in cache lines of their own:
 * `available`, written by the sender after the bytes, and `consumed`, written by the receiver after
 * it has read them. Memory that the receiver cannot see is copied through a window of the sender's
 * staging memory, used as a ring by the same two counters.
 *
 * Sleeping. A thread that found nothing raises `sleepers`, looks again, and sleeps on `bell`. A
 * writer changes its counter and then reads `sleepers`, both sequentially consistent: either the
 * writer sees the sleeper or the sleeper's second look sees the counter. So nothing but a load is
 * paid for while nobody sleeps.
 *
 * Invariants: counters of a stream are set before the frame that names it; a stream or window goes
 * back to its free list only when consumed == bytes; everything read from a peer's memory is
 * checked before it is used as an index, and a value that cannot be right ends the communication.
 *
 * Rejected: one ring for frames and payload together (a slow stream would hold up all frames), a
 * process-shared mutex (a killed owner leaves it locked), process_vm_readv for memory that is not
 * registered (forbidden between siblings by Yama and in many containers).
 */
#define _GNU_SOURCE 1 /* sched_getcpu */

#include "net/exchange.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/futex.h"

enum { RECORD_FRAME = 1, RECORD_PAD = 2 };

typedef struct record_head {
    uint32_t record_bytes;
    uint16_t type;
    uint16_t inline_bytes;
    uint64_t offset;
    uint32_t region;
    int32_t stream;
    uint32_t window_bytes;
    uint32_t reserved;
} record_head;
_Static_assert(sizeof(record_head) == 32, "a record's head is half a cache line");

#define RECORD_BYTES_MIN (sizeof(record_head) + sizeof(ms_frame))
_Static_assert(MS__RING_BYTES >= 8 * (RECORD_BYTES_MIN + MS_NET_INLINE_BYTES_MAX),
               "a ring holds several inline payloads");
_Static_assert(MS__WINDOW_BYTES % 64 == 0, "elements do not cross the end of a window");

/* ---- Life ---------------------------------------------------------------------------------------
 */

size_t ms__control_bytes(int size) {
    return sizeof(ms__control) +
           (size_t)size * (sizeof(ms__inbox) + MS_NET_STREAMS_MAX * sizeof(ms__stream));
}

void ms__control_init(ms__control *control, int size) {
    control->version = MS__CONTROL_VERSION;
    atomic_store(&control->processor, -1);
    control->size = (uint32_t)size;
    control->magic = MS__CONTROL_MAGIC;
}

ms_status ms__exchange_open(ms__exchange *exchange) {
    for (int peer = 0; peer < exchange->base.size; peer++) {
        MS_TRY(MS_NEW(MS_NET_STREAMS_MAX, MS_MEMORY_PROCESS, &exchange->free_streams[peer]));
        for (int i = 0; i < MS_NET_STREAMS_MAX; i++) {
            exchange->free_streams[peer][i] = (uint16_t)(MS_NET_STREAMS_MAX - 1 - i);
        }
        exchange->free_stream_count[peer] = MS_NET_STREAMS_MAX;
    }
    exchange->window_count = exchange->base.size * MS_NET_STREAMS_MAX;
    MS_TRY(MS_NEW((size_t)exchange->window_count, MS_MEMORY_PROCESS, &exchange->free_windows));
    exchange->base.failed_word = &exchange->own->abort.state;
    return MS_OK;
}

void ms__exchange_close(ms__exchange *exchange) {
    for (int peer = 0; peer < exchange->base.size; peer++) {
        ms_free(exchange->free_streams[peer]);
        exchange->free_streams[peer] = NULL;
    }
    ms_free(exchange->free_windows);
    exchange->free_windows = NULL;
}

/* ---- Bells --------------------------------------------------------------------------------------
 */

void ms__control_ring(ms__control *control) {
    atomic_fetch_add(&control->bell, 1);
    ms__futex_wake_all(&control->bell);
}

/* After a sequentially consistent write that `control`'s rank may be waiting for. */
static void ring_sleepers(ms__control *control) {
    if (atomic_load(&control->sleepers) != 0) {
        ms__control_ring(control);
    }
}

bool ms__exchange_spin_pays(ms_transport *transport) {
    ms__exchange *exchange = (ms__exchange *)transport;
    int32_t here = sched_getcpu();
    if (atomic_load_explicit(&exchange->own->processor, memory_order_relaxed) != here) {
        atomic_store_explicit(&exchange->own->processor, here, memory_order_relaxed);
    }
    for (int peer = 0; peer < transport->size; peer++) {
        if (peer != transport->rank &&
            atomic_load_explicit(&exchange->peers[peer]->processor, memory_order_relaxed) == here) {
            return false;
        }
    }
    return true;
}

uint32_t ms__exchange_wait_prepare(ms_transport *transport) {
    ms__control *own = ((ms__exchange *)transport)->own;
    atomic_fetch_add(&own->sleepers, 1);
    return atomic_load(&own->bell);
}

void ms__exchange_wait_commit(ms_transport *transport, uint32_t ticket, int64_t until_ns) {
    ms__exchange *exchange = (ms__exchange *)transport;
    if (exchange->chaos.on) {
        /* What the schedule holds back is released by looking again, which no bell announces. */
        until_ns = ms_min_i64(until_ns, ms_clock_ns() + 50000);
    }
    ms__futex_wait(&exchange->own->bell, ticket, until_ns);
    atomic_fetch_sub(&exchange->own->sleepers, 1);
}

void ms__exchange_wait_cancel(ms_transport *transport) {
    atomic_fetch_sub(&((ms__exchange *)transport)->own->sleepers, 1);
}

void ms__exchange_wake(ms_transport *transport) {
    ms__control_ring(((ms__exchange *)transport)->own);
}

/* ---- Failure ------------------------------------------------------------------------------------
 */

char *ms_transport_peer_name(const ms_transport *transport, int peer, char *buffer,
                             size_t buffer_bytes) {
    int64_t process_id = transport->process_ids[peer];
    if (process_id != 0) {
        snprintf(buffer, buffer_bytes, "rank %d (pid %lld)", peer, (long long)process_id);
    } else {
        snprintf(buffer, buffer_bytes, "rank %d", peer);
    }
    return buffer;
}

void ms__exchange_raise(ms_transport *transport, const ms_net_failure *failure) {
    ms__exchange *exchange = (ms__exchange *)transport;
    for (int i = 0; i < transport->size; i++) {
        /* The own block first: whoever raises it never sees a state later than its own failure. */
        ms__control *control = exchange->peers[(transport->rank + i) % transport->size];
        uint32_t none = 0;
        if (!atomic_compare_exchange_strong(&control->abort.state, &none, 1)) {
            continue;
        }
        control->abort.culprit = failure->culprit;
        control->abort.status = (int32_t)failure->status;
        snprintf(control->abort.sentence, sizeof control->abort.sentence, "%s", failure->sentence);
        atomic_store(&control->abort.state, 2);
        ms__control_ring(control);
    }
}

/* Until a claimed block is taken for one whose writer died on the way. */
#define ABORT_WRITE_LIMIT_NS INT64_C(10000000)

void ms__exchange_failure(ms_transport *transport, ms_net_failure *failure) {
    ms__abort *abort = &((ms__exchange *)transport)->own->abort;
    *failure = (ms_net_failure){.status = MS_OK, .culprit = -1};
    if (atomic_load(&abort->state) == 0) {
        return;
    }
    int64_t until_ns = ms_clock_ns() + ABORT_WRITE_LIMIT_NS;
    while (atomic_load(&abort->state) != 2 && ms_clock_ns() < until_ns) {
        ms__spin_pause();
    }
    if (atomic_load(&abort->state) != 2) {
        failure->status = MS_ERR_PEER;
        snprintf(failure->sentence, sizeof failure->sentence,
                 "another rank ended the job and died before it could say why");
        return;
    }
    failure->status = (ms_status)abort->status;
    failure->culprit = abort->culprit;
    memcpy(failure->sentence, abort->sentence, sizeof failure->sentence);
    failure->sentence[sizeof failure->sentence - 1] = '\0';
    if (failure->status >= MS_OK || failure->culprit >= transport->size) {
        failure->status = MS_ERR_PEER; /* the block is in memory that peers can write */
        failure->culprit = -1;
    }
}

void ms__exchange_malformed(ms__exchange *exchange, int peer, const char *what) {
    char name[64];
    ms_net_failure failure = {.status = MS_ERR_PEER, .culprit = peer};
    snprintf(failure.sentence, sizeof failure.sentence,
             "%s sent a malformed message (%s); do all ranks run the same version?",
             ms_transport_peer_name(&exchange->base, peer, name, sizeof name), what);
    ms__exchange_raise(&exchange->base, &failure);
}

bool ms__exchange_departed(ms_transport *transport, int peer) {
    ms__exchange *exchange = (ms__exchange *)transport;
    /* left() first: what the peer wrote before it left is then visible in its tail. */
    return exchange->hooks->left(exchange, peer) &&
           atomic_load(&exchange->own->inbox[peer].tail) == exchange->head[peer];
}

/* ---- Sending ------------------------------------------------------------------------------------
 */

static int take_window(ms__exchange *exchange) {
    if (exchange->free_window_count > 0) {
        return exchange->free_windows[--exchange->free_window_count];
    }
    if (exchange->window_high == exchange->window_count ||
        !exchange->hooks->stage(exchange, exchange->window_high)) {
        return -1;
    }
    return exchange->window_high++;
}

static void give_window(ms__exchange *exchange, int window) {
    exchange->free_windows[exchange->free_window_count++] = window;
}

/* Copies what has been released and has room into the window. True when it copied something. */
static bool fill_window(ms__exchange *exchange, ms_outgoing *outgoing, ms__stream *stream) {
    uint64_t consumed = atomic_load(&stream->consumed);
    if (consumed > outgoing->filled) {
        ms__exchange_malformed(exchange, outgoing->peer, "more read than sent");
        return false;
    }
    uint8_t *window = exchange->staging + (size_t)outgoing->window * MS__WINDOW_BYTES;
    bool moved = false;
    while (outgoing->filled < outgoing->available) {
        uint64_t at = outgoing->filled % MS__WINDOW_BYTES;
        uint64_t count = outgoing->available - outgoing->filled;
        uint64_t room = MS__WINDOW_BYTES - (outgoing->filled - consumed);
        count = count < room ? count : room;
        count = count < MS__WINDOW_BYTES - at ? count : MS__WINDOW_BYTES - at;
        /* In quarters, so that the receiver starts early. */
        count = count < MS__WINDOW_BYTES / 4 ? count : MS__WINDOW_BYTES / 4;
        if (count == 0) {
            break;
        }
        memcpy(window + at, outgoing->source + outgoing->filled, count);
        outgoing->filled += count;
        atomic_exchange(&stream->available, outgoing->filled);
        ring_sleepers(exchange->peers[outgoing->peer]);
        moved = true;
    }
    return moved;
}

/* Room for a record in the peer's ring: its position, after a PAD record where one is needed. */
static bool take_room(ms__exchange *exchange, int peer, uint64_t record_bytes, uint64_t *position) {
    ms__inbox *inbox = &exchange->peers[peer]->inbox[exchange->base.rank];
    uint64_t at = exchange->tail[peer];
    uint64_t used = at - atomic_load(&inbox->head);
    uint64_t to_end = MS__RING_BYTES - at % MS__RING_BYTES;
    uint64_t pad = to_end < record_bytes ? to_end : 0;
    if (used > MS__RING_BYTES || MS__RING_BYTES - used < pad + record_bytes) {
        return false;
    }
    if (pad > 0) {
        record_head head = {.record_bytes = (uint32_t)pad, .type = RECORD_PAD};
        memcpy(inbox->ring + at % MS__RING_BYTES, &head, sizeof head);
    }
    *position = at + pad;
    return true;
}

/* Chooses how the payload travels; false: no stream or window is free. */
static bool take_path(ms__exchange *exchange, const ms_frame *frame, const void *source,
                      unsigned flags, record_head *head, ms_outgoing *outgoing) {
    int peer = outgoing->peer;
    bool with_frame = (flags & MS_NET_POST_INLINE) != 0 && frame->bytes <= MS_NET_INLINE_BYTES_MAX;
    if (frame->bytes == 0 || (with_frame && (flags & MS_NET_POST_ACKNOWLEDGE) == 0)) {
        head->inline_bytes = (uint16_t)frame->bytes;
        return true;
    }
    if (exchange->free_stream_count[peer] == 0) {
        return false;
    }
    if (with_frame) {
        head->inline_bytes = (uint16_t)frame->bytes;
    } else if (!exchange->hooks->describe(exchange, peer, source, frame->bytes, &head->region,
                                          &head->offset)) {
        outgoing->window = take_window(exchange);
        if (outgoing->window < 0) {
            return false;
        }
        const uint8_t *window = exchange->staging + (size_t)outgoing->window * MS__WINDOW_BYTES;
        if (!exchange->hooks->describe(exchange, peer, window, MS__WINDOW_BYTES, &head->region,
                                       &head->offset)) {
            give_window(exchange, outgoing->window);
            return false;
        }
        head->window_bytes = (uint32_t)MS__WINDOW_BYTES;
    }
    outgoing->stream = exchange->free_streams[peer][--exchange->free_stream_count[peer]];
    return true;
}

ms_status ms__exchange_post(ms_transport *transport, int peer, const ms_frame *frame,
                            const void *source, uint64_t available, unsigned flags,
                            ms_outgoing *outgoing) {
    ms__exchange *exchange = (ms__exchange *)transport;
    ms_outgoing fresh = {.source = source,
                         .bytes = frame->bytes,
                         .available = available,
                         .peer = peer,
                         .stream = -1,
                         .window = -1};
    record_head head = {.type = RECORD_FRAME, .region = MS__REGION_NONE, .stream = -1};
    bool with_frame = (flags & MS_NET_POST_INLINE) != 0 && frame->bytes <= MS_NET_INLINE_BYTES_MAX;
    head.record_bytes =
        (uint32_t)ms_align_up(RECORD_BYTES_MIN + (with_frame ? frame->bytes : 0), 64);
    uint64_t position;
    if (!take_room(exchange, peer, head.record_bytes, &position) ||
        !take_path(exchange, frame, source, flags, &head, &fresh)) {
        return MS_AGAIN;
    }
    head.stream = fresh.stream;
    if (fresh.stream >= 0) {
        ms__stream *stream = ms__control_stream(exchange->own, peer, fresh.stream);
        atomic_store_explicit(&stream->consumed, 0, memory_order_relaxed);
        atomic_store_explicit(&stream->available, fresh.window < 0 ? available : 0,
                              memory_order_relaxed);
        if (fresh.window >= 0) {
            fill_window(exchange, &fresh, stream);
        }
    }
    ms__inbox *inbox = &exchange->peers[peer]->inbox[transport->rank];
    uint8_t *record = inbox->ring + position % MS__RING_BYTES;
    memcpy(record, &head, sizeof head);
    memcpy(record + sizeof head, frame, sizeof *frame);
    if (head.inline_bytes > 0) {
        memcpy(record + RECORD_BYTES_MIN, source, head.inline_bytes);
    }
    exchange->tail[peer] = position + head.record_bytes;
    atomic_exchange(&inbox->tail, exchange->tail[peer]);
    ring_sleepers(exchange->peers[peer]);
    *outgoing = fresh;
    return MS_OK;
}

void ms__exchange_advance(ms_transport *transport, ms_outgoing *outgoing, uint64_t available) {
    ms__exchange *exchange = (ms__exchange *)transport;
    outgoing->available = available;
    if (outgoing->stream < 0) {
        return;
    }
    ms__stream *stream = ms__control_stream(exchange->own, outgoing->peer, outgoing->stream);
    if (outgoing->window >= 0) {
        fill_window(exchange, outgoing, stream);
    } else {
        atomic_exchange(&stream->available, available);
        ring_sleepers(exchange->peers[outgoing->peer]);
    }
}

static uint32_t chaos_word(ms__chaos *chaos) {
    return ms_random_at(chaos->key, 0, chaos->counter++).word[0];
}

bool ms__exchange_sent(ms_transport *transport, ms_outgoing *outgoing, bool *moved) {
    ms__exchange *exchange = (ms__exchange *)transport;
    if (outgoing->stream < 0) {
        return true;
    }
    if (exchange->chaos.delay_max > 0 && (chaos_word(&exchange->chaos) & 1) != 0) {
        return false;
    }
    ms__stream *stream = ms__control_stream(exchange->own, outgoing->peer, outgoing->stream);
    if (outgoing->window >= 0 && fill_window(exchange, outgoing, stream)) {
        *moved = true;
    }
    if (atomic_load(&stream->consumed) < outgoing->bytes) {
        return false;
    }
    int peer = outgoing->peer;
    exchange->free_streams[peer][exchange->free_stream_count[peer]++] = (uint16_t)outgoing->stream;
    if (outgoing->window >= 0) {
        give_window(exchange, outgoing->window);
    }
    outgoing->stream = -1;
    outgoing->window = -1;
    *moved = true;
    return true;
}

/* ---- Receiving ----------------------------------------------------------------------------------
 */

/* Does the schedule hold the next frame of this peer back? */
static bool chaos_holds(ms__exchange *exchange, int peer) {
    ms__chaos *chaos = &exchange->chaos;
    if (chaos->delay_max == 0) {
        return false;
    }
    if (chaos->hold[peer] == 0) {
        chaos->hold[peer] = 1 + (int)(chaos_word(chaos) % (uint32_t)(chaos->delay_max + 1));
    }
    return --chaos->hold[peer] > 0;
}

static const char *check_record(const record_head *head, const ms_frame *frame, uint64_t to_end,
                                uint64_t used) {
    if (head->record_bytes < sizeof(record_head) || head->record_bytes % 32 != 0 ||
        head->record_bytes > to_end || head->record_bytes > used) {
        return "record length";
    }
    if (head->type == RECORD_PAD) {
        return head->record_bytes == to_end ? NULL : "padding";
    }
    if (head->type != RECORD_FRAME || head->record_bytes < RECORD_BYTES_MIN + head->inline_bytes) {
        return "record type";
    }
    if (head->inline_bytes > MS_NET_INLINE_BYTES_MAX ||
        (head->inline_bytes > 0 && head->inline_bytes != frame->bytes)) {
        return "inline length";
    }
    if (head->stream < -1 || head->stream >= MS_NET_STREAMS_MAX ||
        (head->stream < 0 && frame->bytes != head->inline_bytes)) {
        return "stream";
    }
    if (head->window_bytes != 0 && head->window_bytes != MS__WINDOW_BYTES) {
        return "window";
    }
    return NULL;
}

/* Copies the record at the head out of the ring and takes it away. False: a PAD, or malformed. */
static bool take_record(ms__exchange *exchange, int peer, uint64_t tail, ms_incoming *incoming,
                        void *payload) {
    ms__inbox *inbox = &exchange->own->inbox[peer];
    uint64_t position = exchange->head[peer];
    uint64_t to_end = MS__RING_BYTES - position % MS__RING_BYTES;
    const uint8_t *record = inbox->ring + position % MS__RING_BYTES;
    record_head head;
    ms_frame frame = {0};
    memcpy(&head, record, sizeof head);
    if (head.type == RECORD_FRAME && to_end >= RECORD_BYTES_MIN) {
        memcpy(&frame, record + sizeof head, sizeof frame);
    }
    const char *wrong = check_record(&head, &frame, to_end, tail - position);
    if (wrong != NULL) {
        ms__exchange_malformed(exchange, peer, wrong);
        return false;
    }
    if (head.type == RECORD_FRAME) {
        *incoming = (ms_incoming){.frame = frame,
                                  .offset = head.offset,
                                  .region = head.region,
                                  .window_bytes = head.window_bytes,
                                  .peer = peer,
                                  .stream = head.stream,
                                  .inline_bytes = head.inline_bytes};
        memcpy(payload, record + RECORD_BYTES_MIN, head.inline_bytes);
    }
    exchange->head[peer] = position + head.record_bytes;
    atomic_exchange(&inbox->head, exchange->head[peer]);
    ring_sleepers(exchange->peers[peer]); /* it may wait for room */
    return head.type == RECORD_FRAME;
}

bool ms__exchange_poll(ms_transport *transport, int peer, ms_incoming *incoming, void *payload) {
    ms__exchange *exchange = (ms__exchange *)transport;
    uint64_t tail = atomic_load(&exchange->own->inbox[peer].tail);
    if (tail == exchange->head[peer] || chaos_holds(exchange, peer)) {
        return false;
    }
    while (exchange->head[peer] != tail && !ms_transport_failed(transport)) {
        if (tail - exchange->head[peer] > MS__RING_BYTES) {
            ms__exchange_malformed(exchange, peer, "ring position");
            return false;
        }
        if (take_record(exchange, peer, tail, incoming, payload)) {
            return true;
        }
    }
    return false;
}

uint64_t ms__exchange_peek(ms_transport *transport, ms_incoming *incoming, const uint8_t **bytes) {
    ms__exchange *exchange = (ms__exchange *)transport;
    if (incoming->stream < 0 || incoming->consumed == incoming->frame.bytes) {
        return 0;
    }
    ms__stream *stream =
        ms__control_stream(exchange->peers[incoming->peer], transport->rank, incoming->stream);
    uint64_t available = atomic_load(&stream->available);
    if (available > incoming->frame.bytes || available < incoming->consumed) {
        ms__exchange_malformed(exchange, incoming->peer, "stream position");
        return 0;
    }
    if (exchange->chaos.stream_bytes > 0) {
        incoming->visible += 1 + chaos_word(&exchange->chaos) % exchange->chaos.stream_bytes;
        available = available < incoming->visible ? available : incoming->visible;
        available = available > incoming->consumed ? available : incoming->consumed;
    }
    if (available == incoming->consumed) {
        return 0;
    }
    if (incoming->base == NULL) {
        uint64_t length =
            incoming->window_bytes > 0 ? incoming->window_bytes : incoming->frame.bytes;
        incoming->base = exchange->hooks->resolve(exchange, incoming->peer, incoming->region,
                                                  incoming->offset, length);
        if (incoming->base == NULL) {
            return 0;
        }
    }
    uint64_t count = available - incoming->consumed;
    if (incoming->window_bytes == 0) {
        *bytes = incoming->base + incoming->consumed;
        return count;
    }
    uint64_t at = incoming->consumed % incoming->window_bytes;
    *bytes = incoming->base + at;
    return count < incoming->window_bytes - at ? count : incoming->window_bytes - at;
}

void ms__exchange_consume(ms_transport *transport, ms_incoming *incoming, uint64_t bytes) {
    ms__exchange *exchange = (ms__exchange *)transport;
    incoming->consumed += bytes;
    if (incoming->stream < 0 ||
        (incoming->window_bytes == 0 && incoming->consumed < incoming->frame.bytes)) {
        return; /* memory that is read directly is given back as a whole */
    }
    ms__control *peer = exchange->peers[incoming->peer];
    ms__stream *stream = ms__control_stream(peer, transport->rank, incoming->stream);
    atomic_exchange(&stream->consumed, incoming->consumed);
    ring_sleepers(peer);
}
