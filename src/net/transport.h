/*
 * transport.h - one table for whatever moves bytes between two ranks.
 *
 * A message is a frame (what it is, 64 bytes) and a payload. The sender posts it; the payload then
 * is a stream that grows up to frame.bytes (ms_transport_ops.advance) and that the receiver pulls:
 * peek shows bytes where they lie (the peer's registered memory, or a staging ring), consume gives
 * them back. The sender's memory is free again when `sent` says so. Small payloads travel inside
 * the frame.
 *
 * Contract
 *   - Frames of one pair arrive in the order they were posted; streams progress independently.
 *   - Pull only: nobody but its owner writes into memory that holds payload.
 *   - Nothing blocks except wait_commit, which ends when something may have changed.
 *   - post, advance, sent, poll, peek and consume belong to one thread at a time; raise, wake,
 * failed, allocate and release may be called from any thread.
 *   - After a failure (failed() != 0) nothing arrives any more.
 */
#ifndef MS_NET_TRANSPORT_H
#define MS_NET_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MS_NET_RANKS_MAX 64
#define MS_NET_STREAMS_MAX 256 /* messages of one pair that may be under way */
#define MS_NET_INLINE_BYTES_MAX ((size_t)4096)
#define MS_NET_SENTENCE_BYTES 512

/* What a message is. Compared field by field between the ranks. */
typedef struct ms_frame {
    uint64_t job;
    uint64_t communicator;
    uint64_t operation;   /* its number in the communicator */
    int64_t count;        /* elements of the whole operation */
    uint64_t counts_hash; /* of the counts per rank; 0 when it has none */
    uint64_t bytes;       /* of this message's payload */
    uint32_t epoch;
    int32_t root_or_tag;
    uint8_t kind;
    uint8_t reduction;
    uint8_t dtype;
    uint8_t channel;
    uint8_t algorithm;
    uint8_t codec; /* 0: none */
    uint16_t reserved;
} ms_frame;
_Static_assert(sizeof(ms_frame) == 64, "a frame is one cache line");

/* A message under way, at its sender. */
typedef struct ms_outgoing {
    const uint8_t *source;
    uint64_t bytes;
    uint64_t available; /* what the owner has released to be read */
    uint64_t filled;    /* what is in the staging window so far */
    int32_t peer;
    int32_t stream; /* -1: nothing to wait for */
    int32_t window; /* -1: read directly */
} ms_outgoing;

/* A message under way, at its receiver. */
typedef struct ms_incoming {
    ms_frame frame;
    const uint8_t *base; /* of the payload, once known */
    uint64_t offset;
    uint64_t consumed;
    uint64_t visible; /* loop: what the schedule lets us see */
    uint32_t region;
    uint32_t window_bytes; /* 0: read directly */
    int32_t peer;
    int32_t stream;        /* -1: none */
    uint32_t inline_bytes; /* payload came with the frame */
} ms_incoming;

/* Why communication ended. */
typedef struct ms_net_failure {
    ms_status status;
    int culprit; /* rank, or -1 */
    char sentence[MS_NET_SENTENCE_BYTES];
} ms_net_failure;

enum {
    MS_NET_CAP_DIRECT = 1 << 0, /* registered memory of a peer is read where it lies */
    MS_NET_CAP_DEVICE = 1 << 1, /* payload may lie in device memory */
};

enum {
    MS_NET_POST_INLINE = 1 << 0, /* the payload goes with the frame (at most INLINE_BYTES_MAX) */
    MS_NET_POST_ACKNOWLEDGE = 1 << 1, /* sent() waits for the receiver even then */
};

typedef struct ms_transport ms_transport;

typedef struct ms_transport_ops {
    uint32_t abi_version;
    size_t struct_size;
    const char *name;
    uint32_t capabilities;

    /* Posts a message of frame->bytes of which `available` may be read already. MS_AGAIN: no room
     * now, nothing was posted. */
    ms_status (*post)(ms_transport *transport, int peer, const ms_frame *frame, const void *source,
                      uint64_t available, unsigned flags, ms_outgoing *outgoing);
    void (*advance)(ms_transport *transport, ms_outgoing *outgoing, uint64_t available);
    /* True when the receiver has read all; goes on filling the staging ring otherwise. Sets *moved
     * when it did something. Call until true. */
    bool (*sent)(ms_transport *transport, ms_outgoing *outgoing, bool *moved);

    /* Takes the next frame from a peer (a rank is its own peer, too). payload: room for
     * MS_NET_INLINE_BYTES_MAX. */
    bool (*poll)(ms_transport *transport, int peer, ms_incoming *incoming, void *payload);
    /* Bytes at *bytes that may be read now, from the position consumed so far; 0: none yet. */
    uint64_t (*peek)(ms_transport *transport, ms_incoming *incoming, const uint8_t **bytes);
    void (*consume)(ms_transport *transport, ms_incoming *incoming, uint64_t bytes);

    /* False: a peer last ran on this processor, so that looking again and again keeps it from
     * running. */
    bool (*spin_pays)(ms_transport *transport);
    /* Sleeping: prepare, look once more for work, then commit (sleeps until woken or until the time
     * on ms_clock_ns) or cancel. */
    uint32_t (*wait_prepare)(ms_transport *transport);
    void (*wait_commit)(ms_transport *transport, uint32_t ticket, int64_t until_ns);
    void (*wait_cancel)(ms_transport *transport);
    void (*wake)(ms_transport *transport); /* whoever of this rank sleeps */

    ms_status (*allocate)(ms_transport *transport, size_t bytes, void **memory);
    void (*release)(ms_transport *transport, void *memory);

    /* Ends communication on every rank. The first failure a rank hears of is the one it keeps. */
    void (*raise)(ms_transport *transport, const ms_net_failure *failure);
    void (*failure)(ms_transport *transport, ms_net_failure *failure);
    /* The peer left in an orderly way and all it posted has been polled. */
    bool (*departed)(ms_transport *transport, int peer);

    void (*destroy)(ms_transport *transport);
} ms_transport_ops;

#define MS_TRANSPORT_ABI 1

/* The head of every transport. */
struct ms_transport {
    const ms_transport_ops *ops;
    int rank, size;
    uint64_t job;
    uint32_t epoch;
    const _Atomic uint32_t *failed_word;   /* not 0: communication has ended */
    int64_t process_ids[MS_NET_RANKS_MAX]; /* 0: a thread of this process */
};

static inline bool ms_transport_failed(const ms_transport *transport) {
    return atomic_load_explicit(transport->failed_word, memory_order_acquire) != 0;
}

/* "rank 2 (pid 1234)" or "rank 2"; returns buffer. */
char *ms_transport_peer_name(const ms_transport *transport, int peer, char *buffer,
                             size_t buffer_bytes);

#endif
