/*
 * comm.h - collective operations between the ranks of a job. Since 0.1.
 *
 * A job is a fixed number of ranks, usually one process each. A communicator is an ordered set of
 * them: first the world (all ranks, ms_comm_create), then any groups (ms_comm_group). Every
 * operation exists once and is non-blocking: it writes a request, which ms_request_wait finishes.
 * With `request` NULL the call blocks until the operation is done.
 *
 * Rules that hold for every operation
 *   - Every rank of the communicator calls the same operations on it, in the same order and with
 * the same arguments; operations of different communicators may be called in any order. A breach is
 *     MS_ERR_MISMATCH on every rank, with a sentence that names both sides.
 *   - Buffers belong to the library from the call until the request is finished: inputs must not be
 *     changed, outputs not be read. After an error the library touches no buffer any more.
 *   - Memory from ms_comm_alloc is read by the peers directly; any other memory works too, at the
 *     price of a copy.
 *   - Counts are elements, 64-bit; 0 is fine. Counts per rank are copied before the call returns.
 *   - A rank's number is its index in the communicator.
 *
 * Sums. The members' values are the leaves of a balanced binary tree by member index (n values
 * split at the largest power of two below n); bf16 and fp16 are added in fp32 and rounded once. All
 * ranks get the same bits, every run gives the same bits, and a value's bits do not depend on the
 * count, on where a slice begins or on other operations. avg divides the sum by the number of
 * members (fp64 in fp64, fp16 and bf16 before they are rounded; int32 and uint8 add in 64 bits and
 * truncate). Integer sums wrap. A NaN in any member gives NaN for sum, avg, max and min.
 *
 * Failures. The first failure of any rank ends the job's communication: every pending and later
 * call, on every communicator of every surviving rank, returns one status and sentence: MS_ERR_PEER
 * "rank 2 (pid 1234) died", MS_ERR_TIMEOUT with the ranks that did not arrive, MS_ERR_MISMATCH, or
 * MS_ERR_ABORTED. A killed rank is noticed within 0.2 s. No call waits longer than the operation
 * time-out.
 *
 * Thread-safety: one thread at a time may start operations on one communicator; different
 * communicators may be used from different threads, and any thread may wait for a request (one
 * thread for each), or call ms_comm_abort.
 */
#ifndef MINDSPEED_COMM_H
#define MINDSPEED_COMM_H

#include <stddef.h>
#include <stdint.h>

#include <mindspeed/dtype.h>
#include <mindspeed/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ms_comm ms_comm;
typedef struct ms_request ms_request;

#define MS_COMM_RANKS_MAX 64 /* of one job, on one machine */
/* Operations of one process that may be under way at once; one more is MS_ERR_BUSY. */
#define MS_COMM_REQUESTS_MAX 128

typedef enum ms_reduce_op {
    MS_REDUCE_SUM,
    MS_REDUCE_MAX,
    MS_REDUCE_MIN,
    MS_REDUCE_AVG,
    MS_REDUCE_OP_COUNT
} ms_reduce_op;

typedef enum ms_comm_transport {
    MS_COMM_TRANSPORT_AUTO, /* shm when the launcher started this process, else loop with one rank
                             */
    MS_COMM_TRANSPORT_SHM,
    MS_COMM_TRANSPORT_LOOP,
    MS_COMM_TRANSPORT_COUNT
} ms_comm_transport;

typedef struct ms_comm_options {
    size_t struct_size;
    ms_comm_transport transport;
    /* A rank that says nothing for so long is dead. On one machine a death is reported by the
     * kernel at once; this bounds the wait for the other ranks at start-up as well. */
    double death_timeout_s;
    double operation_timeout_s; /* for one operation, from its call */
    uint64_t job;               /* 0: the launcher's */
    /* Whether a thread of the library's own advances operations while the caller computes: 0 no, 1
     * yes, -1 when there are other ranks and each is a process. Results never depend on it. */
    int progress_thread;
} ms_comm_options;

#define MS_COMM_OPTIONS_INIT                                                                       \
    { sizeof(ms_comm_options), MS_COMM_TRANSPORT_AUTO, 10.0, 600.0, 0, -1 }

/* ---- Communicators ----------------------------------------------------------------------------
 */

/*
 * Joins the job that this process was launched for, or makes a job of one rank when it was not
 * launched. Blocks until all ranks are there. options NULL: the defaults. A process may join its
 * job once.
 */
MS_API ms_status ms_comm_create(const ms_comm_options *options, ms_comm **comm);

/*
 * A job of `size` ranks inside this process; writes `size` communicators, comms[r] being rank r's.
 * Each is used by its own thread, or all by one thread that only starts operations and calls
 * ms_request_test. For tests and for embedding.
 */
MS_API ms_status ms_comm_create_loop(const ms_comm_options *options, int size, ms_comm **comms);

/*
 * The communicator of the members ranks[0..count), numbers in `parent`, all different; the new
 * ranks are the indices in this list. A local computation: no message is sent and no other rank
 * need call at the same moment, but every member must make the same groups of the same list in the
 * same order. The caller must be a member (else MS_ERR_ARGUMENT).
 */
MS_API ms_status ms_comm_group(ms_comm *parent, const int *ranks, int count, ms_comm **comm);

/*
 * Leaves; NULL is fine. The last communicator of a process to go ends its membership. Destroying
 * one with unfinished operations aborts the job. Never blocks on other ranks.
 */
MS_API void ms_comm_destroy(ms_comm *comm);

MS_API int ms_comm_rank(const ms_comm *comm);
MS_API int ms_comm_size(const ms_comm *comm);
MS_API int ms_comm_world_rank(const ms_comm *comm, int rank);   /* number in the world; -1: none */
MS_API const char *ms_comm_transport_name(const ms_comm *comm); /* "loop", "shm" */

/* Ends the job's communication, on every rank, with MS_ERR_ABORTED and "rank N aborted: reason". */
MS_API void ms_comm_abort(ms_comm *comm, const char *reason);

/* MS_OK, or what ended the job's communication (with its sentence as this thread's error detail);
 * the world rank at fault is written if known, else -1. culprit may be NULL. */
MS_API ms_status ms_comm_failure(ms_comm *comm, int *culprit);

/* ---- Memory that peers read directly -----------------------------------------------------------
 */

/*
 * Zeroed memory, aligned to 64 bytes (to a page when it is shared between processes). A local call.
 * Freed by ms_comm_free, or with the last communicator of the process. Backed by a memfd when peers
 * are other processes (nothing is left in /dev/shm), else by ordinary memory. MS_ERR_MEMORY when
 * the machine lacks it.
 */
MS_API ms_status ms_comm_alloc(ms_comm *comm, size_t bytes, void **memory);
MS_API void ms_comm_free(ms_comm *comm,
                         void *memory); /* no operation may be using it; NULL is fine */
/* Bytes that this process holds through ms_comm_alloc. */
MS_API size_t ms_comm_memory_bytes(const ms_comm *comm);

/* ---- Operations --------------------------------------------------------------------------------
 */

/* output = reduction over the ranks of input. In place: output == input. */
MS_API ms_status ms_comm_all_reduce(ms_comm *comm, const void *input, void *output, int64_t count,
                                    ms_dtype dtype, ms_reduce_op op, ms_request **request);

/* As above, to the root alone; output is not used on the others. */
MS_API ms_status ms_comm_reduce(ms_comm *comm, const void *input, void *output, int64_t count,
                                ms_dtype dtype, ms_reduce_op op, int root, ms_request **request);

/*
 * input holds counts[0] + counts[1] + ... elements; rank r's output is the reduction of slice r, of
 * counts[r] elements. In place: output is the slice's own place in input; then the rest of input is
 * unchanged.
 */
MS_API ms_status ms_comm_reduce_scatter(ms_comm *comm, const void *input, void *output,
                                        const int64_t *counts, ms_dtype dtype, ms_reduce_op op,
                                        ms_request **request);

/*
 * Rank r gives counts[r] elements; output receives them one after the other, in the order of ranks.
 * In place: input is the own slice's place in output.
 */
MS_API ms_status ms_comm_all_gather(ms_comm *comm, const void *input, void *output,
                                    const int64_t *counts, ms_dtype dtype, ms_request **request);

/* buffer of the root to buffer of all. */
MS_API ms_status ms_comm_broadcast(ms_comm *comm, void *buffer, int64_t count, ms_dtype dtype,
                                   int root, ms_request **request);

/* Finished when every rank has called it. */
MS_API ms_status ms_comm_barrier(ms_comm *comm, ms_request **request);

/* Slice r of input (count elements each) goes to rank r; slice r of output comes from rank r. input
 * and output must not overlap. */
MS_API ms_status ms_comm_all_to_all(ms_comm *comm, const void *input, void *output, int64_t count,
                                    ms_dtype dtype, ms_request **request);
/*
 * As above with send_counts[r] elements to rank r and receive_counts[r] from it, at the given
 * displacements (elements; NULL: one after the other).
 */
MS_API ms_status ms_comm_all_to_allv(ms_comm *comm, const void *input, const int64_t *send_counts,
                                     const int64_t *send_displacements, void *output,
                                     const int64_t *receive_counts,
                                     const int64_t *receive_displacements, ms_dtype dtype,
                                     ms_request **request);

/*
 * Point to point: the n-th send of a tag (>= 0) to a rank meets its n-th receive of that tag from
 * this rank. Sends and receives are outside the order of the communicator's collectives. A send is
 * finished when the receiver has read it. Sending to oneself works.
 */
MS_API ms_status ms_comm_send(ms_comm *comm, const void *buffer, int64_t count, ms_dtype dtype,
                              int destination, int tag, ms_request **request);
MS_API ms_status ms_comm_recv(ms_comm *comm, void *buffer, int64_t count, ms_dtype dtype,
                              int source, int tag, ms_request **request);

/* ---- Requests ----------------------------------------------------------------------------------
 */

/*
 * MS_AGAIN: still under way, and the request stays valid. Any other status is the operation's
 * result; the request is then released and *request set to NULL. A NULL request is done: MS_OK.
 * Advances operations from the calling thread.
 */
MS_API ms_status ms_request_test(ms_request **request);

/* Blocks until the operation is done, or for timeout_s (then MS_AGAIN); negative: as long as it
 * takes, which the operation's time-out bounds. Else as ms_request_test. */
MS_API ms_status ms_request_wait(ms_request **request, double timeout_s);

#ifdef __cplusplus
}
#endif
#endif
