/*
 * comm_internal.h - what the files of comm/ share.
 *
 *   comm.c         communicators, groups, memory, life
 *   operation.c    the public operations: arguments checked and turned into lanes
 *   collective.c   one operation's state machine: post, reduce, copy, done
 *   progress.c     the endpoint: matching, passes, who drives, sleeping, failure
 *   comm_sum.*     the order of sums
 */
#ifndef MS_COMM_COMM_INTERNAL_H
#define MS_COMM_COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/memory.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "comm/comm_sum.h"
#include "net/transport.h"

_Static_assert(MS_COMM_RANKS_MAX == MS_NET_RANKS_MAX, "one limit of ranks");
_Static_assert(MS_COMM_REQUESTS_MAX * 2 <= MS_NET_STREAMS_MAX,
               "every operation has at most two streams to a peer");

typedef enum ms__kind {
    MS__BARRIER = 1,
    MS__BROADCAST,
    MS__REDUCE,
    MS__ALL_REDUCE,
    MS__REDUCE_SCATTER,
    MS__ALL_GATHER,
    MS__ALL_TO_ALL,
    MS__POINT, /* send and recv */
    MS__KIND_END
} ms__kind;

/* An all-reduce in one step: everybody gets everybody's values with the frame. */
enum { MS__ALGORITHM_SLICES = 0, MS__ALGORITHM_FLAT = 1 };

enum { MS__CHANNEL_DATA, MS__CHANNEL_RESULT, MS__CHANNEL_COUNT };

/* A frame that has arrived, with its payload if that came along. */
typedef struct ms__arrival {
    struct ms__arrival *next;
    ms_incoming incoming;
    uint8_t payload[MS_NET_INLINE_BYTES_MAX];
} ms__arrival;

/* One direction pair to one partner, on one channel. */
typedef struct ms__link {
    const uint8_t *send;
    uint64_t send_bytes;
    uint8_t *receive; /* NULL: reduced, not copied */
    uint64_t receive_bytes;
    ms__arrival *arrival;
    ms_outgoing outgoing;
    bool sends, receives; /* there is a message; it may be empty */
    bool posted, sent, arrived, read;
} ms__link;

typedef struct ms__lane {
    int world_rank;
    int member; /* its index in the communicator */
    ms__link links[MS__CHANNEL_COUNT];
} ms__lane;

typedef struct ms__endpoint ms__endpoint;

struct ms_request {
    ms_request *next, *previous; /* in the active, fresh or free list */
    ms__endpoint *endpoint;
    ms_comm *comm;
    ms_frame frame; /* what this rank called; channel and bytes are set for each message */
    ms_status status;
    _Atomic int done;
    int64_t start_ns;
    size_t element_bytes;
    unsigned post_flags;
    /* messages to go: to be posted, posted and not yet read by the peer, expected and not yet read
     */
    int unposted, unsent, unread;
    /* reduction of this rank's slice: lanes of MS__CHANNEL_DATA and the own values */
    bool reduces;
    const uint8_t *own_values;
    uint8_t *result;
    uint64_t result_bytes, reduced;
    /* values that only move inside this rank */
    const uint8_t *copy_from;
    uint8_t *copy_to;
    uint64_t copy_bytes;
    bool large; /* written past the caches */
    int lane_count;
    ms__lane *lanes; /* room for all ranks of the world */
};

typedef struct ms__group_count {
    uint64_t list_hash;
    uint64_t count;
} ms__group_count;

struct ms_comm {
    ms__endpoint *endpoint;
    uint64_t id;
    uint64_t operations; /* collectives called so far: the next one's number */
    int rank, size;
    _Atomic int unfinished;            /* operations */
    int ranks[MS_COMM_RANKS_MAX];      /* of the world */
    int8_t members[MS_COMM_RANKS_MAX]; /* world rank to member, -1: none */
    ms__group_count *groups;           /* made from this one, by list */
    size_t group_count, group_capacity;
    char name[64]; /* for messages */
};

/* Arrivals beyond those made at the start, for a peer far ahead of this rank. */
#define MS__ARRIVALS_MAX ((size_t)4096)
#define MS__MORE_ARRIVALS 64
typedef struct ms__more_arrivals {
    struct ms__more_arrivals *next;
    ms__arrival arrivals[MS__MORE_ARRIVALS];
} ms__more_arrivals;

typedef struct ms__allocation {
    void *memory;
    size_t bytes;
} ms__allocation;
#define MS__ALLOCATIONS_MAX 256

/* A rank's one end of everything: shared by all its communicators. */
struct ms__endpoint {
    ms_transport *transport;
    const ms_transport_ops *ops;
    const ms__sum_kernels *kernels;
    int64_t operation_timeout_ns;
    int64_t spin_ns; /* before a caller goes to sleep */
    int references;  /* communicators */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* somebody's request is done, or nobody drives any more */
    pthread_cond_t park;    /* where the progress thread waits to be needed */
    bool driven;            /* a thread is inside ms__pass: it alone touches what is marked D */
    bool parked;
    _Atomic bool stopping;
    _Atomic int waiters; /* callers in ms_request_wait */
    _Atomic int active_count;
    _Atomic int fresh_count;
    ms_request *fresh_first, *fresh_last; /* started, not yet seen by the driver */
    ms_request *free_requests;
    ms_request *requests; /* all of them, and the lanes of each */
    ms__lane *lanes;
    ms__allocation allocations[MS__ALLOCATIONS_MAX];
    _Atomic size_t allocated_bytes;

    ms_request *active_first, *active_last;        /* D */
    ms__arrival *unmatched_first, *unmatched_last; /* D */
    ms__arrival *free_arrivals;                    /* D */
    ms__arrival *arrivals; /* made at the start; those from arrivals_used on are untouched */
    int arrival_count;
    int arrivals_used;                /* D */
    ms__more_arrivals *more_arrivals; /* D */
    uint64_t blocked;                 /* D: peers whose ring is full, by bit */
    unsigned pass_count;              /* D */

    _Atomic uint64_t operations, bytes_read, wait_ns, sleeps;
    ms_thread thread;
};

/* ---- progress.c */
ms_status ms__endpoint_start(ms__endpoint *endpoint, bool with_thread);
void ms__endpoint_stop(ms__endpoint *endpoint);
/* A request with cleared fields, of a communicator that works; MS_ERR_BUSY when too many are out.
 */
ms_status ms__request_take(ms_comm *comm, ms_request **request);
void ms__request_give(ms_request *request);
/* Hands the request to the endpoint; blocks until it is done when `request` (the caller's) is NULL.
 */
ms_status ms__request_start(ms_request *started, ms_request **request);
/* The communication's failure as this thread's error, or MS_OK. */
ms_status ms__endpoint_failure(ms__endpoint *endpoint, int *culprit);
void ms__raise(ms__endpoint *endpoint, ms_status status, int culprit, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* As much as can be done now by one driver; true if anything was. */
bool ms__endpoint_advance(ms__endpoint *endpoint);

/* ---- collective.c */
/* Counts the messages of a request whose lanes are set, and does what needs nobody else. */
void ms__request_prepare(ms_request *request);
bool ms__request_step(ms_request *request);
bool ms__request_complete(const ms_request *request);
/* Gives an arrived frame to the request it belongs to. */
void ms__request_attach(ms_request *request, ms__arrival *arrival);
bool ms__request_wants(const ms_request *request, const ms_incoming *incoming);
void ms__arrival_give(ms__endpoint *endpoint, ms__arrival *arrival);

/* "all_reduce(sum, fp32, 100 elements)"; returns buffer. */
char *ms__frame_text(const ms_frame *frame, char *buffer, size_t buffer_bytes);
#define MS__FRAME_TEXT_BYTES 128

#endif
