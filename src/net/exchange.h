/*
 * exchange.h - frames and streams through memory that both sides see: what loop and shm share.
 *
 * Each rank owns one control block. Into it its peers write frames; from it they read how far its
 * streams have grown. loop keeps the blocks of all ranks in one process, shm each in a memfd.
 *
 *   control block of rank r
 *     bell, sleepers       what a thread of r sleeps on, and whether one does
 *     processor            where r last waited
 *     abort                the first failure that r was told of
 *     inbox[p]             frames from p to r: ring, tail (written by p), head (written by r)
 *     stream[p][s]         message s from r to p: available (written by r), consumed (written by p)
 */
#ifndef MS_NET_EXCHANGE_H
#define MS_NET_EXCHANGE_H

#include <stdalign.h>

#include "base/random.h"
#include "net/transport.h"

#define MS__RING_BYTES ((uint64_t)65536)
#define MS__WINDOW_BYTES ((uint64_t)131072) /* staging of one message */
#define MS__REGION_NONE UINT32_MAX

typedef struct ms__inbox {
    alignas(64) _Atomic uint64_t tail;
    alignas(64) _Atomic uint64_t head;
    alignas(64) uint8_t ring[MS__RING_BYTES];
} ms__inbox;

typedef struct ms__stream {
    alignas(64) _Atomic uint64_t available;
    alignas(64) _Atomic uint64_t consumed;
} ms__stream;

typedef struct ms__abort {
    _Atomic uint32_t state; /* 0 none, 1 being written, 2 written */
    int32_t culprit;
    int32_t status;
    char sentence[MS_NET_SENTENCE_BYTES];
} ms__abort;

typedef struct ms__control {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    alignas(64) _Atomic uint32_t bell;
    alignas(64) _Atomic uint32_t sleepers;
    alignas(64) _Atomic int32_t processor; /* where this rank last waited */
    alignas(64) ms__abort abort;
    alignas(64) ms__inbox inbox[]; /* size of them, then size * MS_NET_STREAMS_MAX streams */
} ms__control;

#define MS__CONTROL_MAGIC UINT64_C(0x6c6f72746e6f636d)
#define MS__CONTROL_VERSION 1u

typedef struct ms__exchange ms__exchange;

/* What loop and shm do differently. */
typedef struct ms__exchange_hooks {
    /* Names memory so that the peer finds it; false: it cannot, use the staging ring. */
    bool (*describe)(ms__exchange *exchange, int peer, const void *memory, uint64_t bytes,
                     uint32_t *region, uint64_t *offset);
    /* Where a peer's memory lies in this process. NULL: not known yet, or a name that cannot be
     * right (which ends the communication). */
    const uint8_t *(*resolve)(ms__exchange *exchange, int peer, uint32_t region, uint64_t offset,
                              uint64_t bytes);
    /* Makes a window of the own staging memory usable. False: no memory, which ends the
     * communication. */
    bool (*stage)(ms__exchange *exchange, int window);
    bool (*left)(ms__exchange *exchange, int peer);
} ms__exchange_hooks;

/* loop's disturbances. */
typedef struct ms__chaos {
    bool on;
    int delay_max;
    uint32_t stream_bytes;
    ms_random_key key;
    uint64_t counter;
    int hold[MS_NET_RANKS_MAX];
} ms__chaos;

struct ms__exchange {
    ms_transport base;
    const ms__exchange_hooks *hooks;
    ms__control *own;
    ms__control *peers[MS_NET_RANKS_MAX]; /* the own one, too */
    uint64_t tail[MS_NET_RANKS_MAX];      /* of our frames in the peer's inbox */
    uint64_t head[MS_NET_RANKS_MAX];      /* of the peer's frames in ours */
    uint16_t *free_streams[MS_NET_RANKS_MAX];
    int free_stream_count[MS_NET_RANKS_MAX];
    uint8_t *staging;  /* own */
    int *free_windows; /* stack; windows never used lie above window_high */
    int free_window_count;
    int window_high, window_count;
    ms__chaos chaos;
};

size_t ms__control_bytes(int size);
void ms__control_init(ms__control *control, int size);
static inline ms__stream *ms__control_stream(ms__control *control, int peer, int stream) {
    ms__stream *streams = (ms__stream *)(void *)(control->inbox + control->size);
    return streams + (size_t)peer * MS_NET_STREAMS_MAX + (size_t)stream;
}

/* Of staging memory: a window for every stream that a rank may have under way. */
static inline uint64_t ms__staging_bytes(int size) {
    return (uint64_t)size * MS_NET_STREAMS_MAX * MS__WINDOW_BYTES;
}

/* Fills the tables of an exchange whose own, peers, rank, size and staging are set. */
ms_status ms__exchange_open(ms__exchange *exchange);
void ms__exchange_close(ms__exchange *exchange);

ms_status ms__exchange_post(ms_transport *transport, int peer, const ms_frame *frame,
                            const void *source, uint64_t available, unsigned flags,
                            ms_outgoing *outgoing);
void ms__exchange_advance(ms_transport *transport, ms_outgoing *outgoing, uint64_t available);
bool ms__exchange_sent(ms_transport *transport, ms_outgoing *outgoing, bool *moved);
bool ms__exchange_poll(ms_transport *transport, int peer, ms_incoming *incoming, void *payload);
uint64_t ms__exchange_peek(ms_transport *transport, ms_incoming *incoming, const uint8_t **bytes);
void ms__exchange_consume(ms_transport *transport, ms_incoming *incoming, uint64_t bytes);
uint32_t ms__exchange_wait_prepare(ms_transport *transport);
void ms__exchange_wait_commit(ms_transport *transport, uint32_t ticket, int64_t until_ns);
void ms__exchange_wait_cancel(ms_transport *transport);
bool ms__exchange_spin_pays(ms_transport *transport);
void ms__control_ring(ms__control *control); /* wakes whoever sleeps on it */
void ms__exchange_wake(ms_transport *transport);
void ms__exchange_raise(ms_transport *transport, const ms_net_failure *failure);
void ms__exchange_failure(ms_transport *transport, ms_net_failure *failure);
bool ms__exchange_departed(ms_transport *transport, int peer);
/* Ends communication because a peer's control block or frame cannot be right. */
void ms__exchange_malformed(ms__exchange *exchange, int peer, const char *what);

#endif
