/*
 * progress.c - one rank's endpoint: who drives, what arrives, when to sleep, how it ends.
 *
 * Where it stands: operation.c hands requests over, collective.c advances each; below is the
 * transport.
 *
 * Driving. All state of the operations under way belongs to whoever has set `driven`: the caller
 * that starts or waits for one, or the progress thread when no caller waits. The lock is held only
 * to hand this role over, to put new requests on the fresh list and to give finished ones back;
 * never while bytes move. A caller that waits takes the role from the progress thread (it looks at
 * `waiters` after every pass, and is rung out of its sleep), since its own core is idle anyway.
 *
 *     start:  fresh list ----> one pass at once, then the progress thread is told
 *     pass:   fresh -> active; poll every peer; step every active request; finished ones leave
 *     idle:   spin for a moment (callers only, when ranks have cores to themselves), then sleep on
 * the transport's bell until something arrives or the next deadline
 *
 * Failure. The transport keeps the first failure that any rank raised. A pass that sees it gives
 * its status to all active requests; after that no buffer is touched, since only passes touch
 * buffers.
 *
 * Invariants: a request is on one list (fresh, active, free) or in a caller's hand when done;
 * status is written before done; frames that nobody here has asked for yet wait in `unmatched`, in
 * the order in which they came. (A frame for an operation that is finished here comes only from a
 * rank that called something else; that rank is told so by the partners whose frames it gets.)
 * Nothing is allocated after the endpoint stands, unless a peer is more than 256 messages ahead.
 *
 * Rejected: a lock for each request (two threads in one stream), a progress thread that always runs
 * (on as many cores as ranks it takes the time of those who compute), the transport calling back on
 * arrival.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

#define ARRIVALS_PER_PEER 256
#define POLLS_PER_PASS 64 /* of one peer, so that a flood cannot hold up the steps */
#define SLEEP_NS_MAX INT64_C(1000000000)
#define DEADLINE_PASSES 1024u /* how often a busy driver looks at the clock */

/* ---- Failure ------------------------------------------------------------------------------------
 */

void ms__raise(ms__endpoint *endpoint, ms_status status, int culprit, const char *format, ...) {
    ms_net_failure failure = {.status = status, .culprit = culprit};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure.sentence, sizeof failure.sentence, format, arguments);
    va_end(arguments);
    endpoint->ops->raise(endpoint->transport, &failure);
}

ms_status ms__endpoint_failure(ms__endpoint *endpoint, int *culprit) {
    if (!ms_transport_failed(endpoint->transport)) {
        if (culprit != NULL) {
            *culprit = -1;
        }
        return MS_OK;
    }
    ms_net_failure failure;
    endpoint->ops->failure(endpoint->transport, &failure);
    if (culprit != NULL) {
        *culprit = failure.culprit;
    }
    return ms_fail(failure.status, "%s", failure.sentence);
}

/* ---- Arrivals -----------------------------------------------------------------------------------
 */

void ms__arrival_give(ms__endpoint *endpoint, ms__arrival *arrival) {
    arrival->next = endpoint->free_arrivals;
    endpoint->free_arrivals = arrival;
}

static ms__arrival *take_arrival(ms__endpoint *endpoint) {
    ms__arrival *arrival = endpoint->free_arrivals;
    if (arrival != NULL) {
        endpoint->free_arrivals = arrival->next;
        return arrival;
    }
    if (endpoint->arrivals_used < endpoint->arrival_count) {
        return &endpoint->arrivals[endpoint->arrivals_used++];
    }
    ms__more_arrivals *more;
    if (MS_NEW(1, MS_MEMORY_PROCESS, &more) != MS_OK) {
        ms__raise(endpoint, MS_ERR_MEMORY, endpoint->transport->rank, "rank %d: %s",
                  endpoint->transport->rank, ms_error_detail());
        return NULL;
    }
    more->next = endpoint->more_arrivals;
    endpoint->more_arrivals = more;
    for (int i = 1; i < MS__MORE_ARRIVALS; i++) {
        ms__arrival_give(endpoint, &more->arrivals[i]);
    }
    return &more->arrivals[0];
}

static void deliver(ms__endpoint *endpoint, ms__arrival *arrival) {
    const ms_incoming *incoming = &arrival->incoming;
    if (incoming->frame.job != endpoint->transport->job ||
        incoming->frame.epoch != endpoint->transport->epoch) {
        ms__arrival_give(endpoint, arrival); /* left over from before a restart */
        return;
    }
    for (ms_request *request = endpoint->active_first; request != NULL; request = request->next) {
        if (ms__request_wants(request, incoming)) {
            ms__request_attach(request, arrival);
            return;
        }
    }
    arrival->next = NULL;
    if (endpoint->unmatched_last != NULL) {
        endpoint->unmatched_last->next = arrival;
    } else {
        endpoint->unmatched_first = arrival;
    }
    endpoint->unmatched_last = arrival;
}

static bool poll_peers(ms__endpoint *endpoint) {
    bool moved = false;
    for (int peer = 0; peer < endpoint->transport->size; peer++) {
        for (int i = 0; i < POLLS_PER_PASS; i++) {
            ms__arrival *arrival = take_arrival(endpoint);
            if (arrival == NULL) {
                return moved;
            }
            if (!endpoint->ops->poll(endpoint->transport, peer, &arrival->incoming,
                                     arrival->payload)) {
                ms__arrival_give(endpoint, arrival);
                break;
            }
            deliver(endpoint, arrival);
            moved = true;
        }
    }
    return moved;
}

/* Frames that came before the request did. */
static void match_earlier(ms__endpoint *endpoint, ms_request *request) {
    ms__arrival **place = &endpoint->unmatched_first;
    ms__arrival *before = NULL;
    while (*place != NULL) {
        ms__arrival *arrival = *place;
        if (!ms__request_wants(request, &arrival->incoming)) {
            before = arrival;
            place = &arrival->next;
            continue;
        }
        *place = arrival->next;
        if (endpoint->unmatched_last == arrival) {
            endpoint->unmatched_last = before;
        }
        ms__request_attach(request, arrival);
    }
}

/* ---- Lists --------------------------------------------------------------------------------------
 */

static bool take_fresh(ms__endpoint *endpoint) {
    if (atomic_load(&endpoint->fresh_count) == 0) {
        return false;
    }
    pthread_mutex_lock(&endpoint->lock);
    ms_request *first = endpoint->fresh_first;
    endpoint->fresh_first = NULL;
    endpoint->fresh_last = NULL;
    atomic_store(&endpoint->fresh_count, 0);
    pthread_mutex_unlock(&endpoint->lock);
    while (first != NULL) {
        ms_request *request = first;
        first = request->next;
        request->next = NULL;
        request->previous = endpoint->active_last;
        if (endpoint->active_last != NULL) {
            endpoint->active_last->next = request;
        } else {
            endpoint->active_first = request;
        }
        endpoint->active_last = request;
        match_earlier(endpoint, request);
    }
    return true;
}

static void finish(ms__endpoint *endpoint, ms_request *request, ms_status status) {
    if (request->previous != NULL) {
        request->previous->next = request->next;
    } else {
        endpoint->active_first = request->next;
    }
    if (request->next != NULL) {
        request->next->previous = request->previous;
    } else {
        endpoint->active_last = request->previous;
    }
    for (int i = 0; i < request->lane_count; i++) {
        for (int channel = 0; channel < MS__CHANNEL_COUNT; channel++) {
            ms__arrival *arrival = request->lanes[i].links[channel].arrival;
            if (arrival != NULL) {
                ms__arrival_give(endpoint, arrival);
            }
        }
    }
    request->status = status;
    atomic_fetch_add_explicit(&endpoint->operations, 1, memory_order_relaxed);
    atomic_fetch_sub(&request->comm->unfinished, 1);
    atomic_fetch_sub(&endpoint->active_count, 1);
    atomic_store(&request->done, 1); /* from here on it belongs to the caller */
}

static void fail_all(ms__endpoint *endpoint) {
    ms_net_failure failure;
    endpoint->ops->failure(endpoint->transport, &failure);
    while (endpoint->active_first != NULL) {
        finish(endpoint, endpoint->active_first, failure.status);
    }
}

/* ---- Deadlines and partners that left -----------------------------------------------------------
 */

/* "rank 1 (pid 12), rank 3 (pid 14)" of the partners that have not arrived, else of those that have
 * not finished. Returns the first one. */
static int missing_partners(const ms_request *request, bool *arrived, char *list,
                            size_t list_bytes) {
    int first = -1;
    size_t length = 0;
    list[0] = '\0';
    for (int pass = 0; pass < 2 && first < 0; pass++) {
        *arrived = pass == 1;
        for (int i = 0; i < request->lane_count; i++) {
            const ms__lane *lane = &request->lanes[i];
            const ms__link *data = &lane->links[MS__CHANNEL_DATA];
            const ms__link *result = &lane->links[MS__CHANNEL_RESULT];
            bool missing = pass == 0 ? data->receives && !data->arrived
                                     : (data->receives && !data->read) ||
                                           (result->receives && !result->read) ||
                                           (data->sends && !data->sent) ||
                                           (result->sends && !result->sent);
            if (!missing) {
                continue;
            }
            first = first < 0 ? lane->world_rank : first;
            char name[64];
            int written =
                snprintf(list + length, list_bytes - length, "%s%s", length > 0 ? ", " : "",
                         ms_transport_peer_name(request->endpoint->transport, lane->world_rank,
                                                name, sizeof name));
            length += (size_t)written;
            length = length < list_bytes ? length : list_bytes - 1;
        }
    }
    return first;
}

static void operation_name(const ms_request *request, char *buffer, size_t buffer_bytes) {
    char text[MS__FRAME_TEXT_BYTES];
    ms__frame_text(&request->frame, text, sizeof text);
    if (request->frame.kind == MS__POINT) {
        snprintf(buffer, buffer_bytes, "%s in %s", text, request->comm->name);
    } else {
        snprintf(buffer, buffer_bytes, "%s (operation %" PRIu64 " of %s)", text,
                 request->frame.operation, request->comm->name);
    }
}

static void check_deadlines(ms__endpoint *endpoint) {
    /* All operations have the same time-out, so the oldest one's comes first. */
    const ms_request *oldest = endpoint->active_first;
    if (oldest == NULL || ms_clock_ns() - oldest->start_ns < endpoint->operation_timeout_ns) {
        return;
    }
    char list[256], operation[256];
    bool arrived;
    int culprit = missing_partners(oldest, &arrived, list, sizeof list);
    operation_name(oldest, operation, sizeof operation);
    ms__raise(endpoint, MS_ERR_TIMEOUT, culprit, "%s timed out after %g s on rank %d: %s %s",
              operation, (double)endpoint->operation_timeout_ns * 1e-9, endpoint->transport->rank,
              list, arrived ? "began it but did not finish" : "did not arrive");
}

static void check_departed(ms__endpoint *endpoint) {
    for (const ms_request *request = endpoint->active_first; request != NULL;
         request = request->next) {
        for (int i = 0; i < request->lane_count; i++) {
            const ms__lane *lane = &request->lanes[i];
            const ms__link *data = &lane->links[MS__CHANNEL_DATA];
            bool needed = (data->receives && !data->arrived) || (data->posted && !data->sent);
            if (needed && endpoint->ops->departed(endpoint->transport, lane->world_rank)) {
                char name[64], operation[256];
                operation_name(request, operation, sizeof operation);
                ms__raise(endpoint, MS_ERR_PEER, lane->world_rank, "%s left the job before %s",
                          ms_transport_peer_name(endpoint->transport, lane->world_rank, name,
                                                 sizeof name),
                          operation);
                return;
            }
        }
    }
}

/* ---- Passes -------------------------------------------------------------------------------------
 */

static bool pass(ms__endpoint *endpoint) {
    bool moved = take_fresh(endpoint);
    if (ms_transport_failed(endpoint->transport)) {
        bool any = endpoint->active_first != NULL;
        fail_all(endpoint);
        return moved || any;
    }
    moved |= poll_peers(endpoint);
    endpoint->blocked = 0;
    for (ms_request *request = endpoint->active_first, *next; request != NULL; request = next) {
        next = request->next;
        moved |= ms__request_step(request);
        if (ms__request_complete(request) && !ms_transport_failed(endpoint->transport)) {
            finish(endpoint, request, MS_OK);
            moved = true;
        }
    }
    if (++endpoint->pass_count % DEADLINE_PASSES == 0) {
        check_deadlines(endpoint);
    }
    return moved;
}

/* A pass that found nothing: look for reasons why nothing will come. True if there is one. */
static bool find_trouble(ms__endpoint *endpoint) {
    check_departed(endpoint);
    check_deadlines(endpoint);
    return ms_transport_failed(endpoint->transport);
}

/* Should the driver go on (for this request, or as the progress thread)? */
static bool driver_needed(ms__endpoint *endpoint, const ms_request *request) {
    if (request != NULL) {
        return atomic_load(&request->done) == 0;
    }
    return !atomic_load(&endpoint->stopping) && atomic_load(&endpoint->waiters) == 0 &&
           atomic_load(&endpoint->active_count) > 0;
}

/* A pass; callers that wait for what it finished are told. */
static bool driver_pass(ms__endpoint *endpoint) {
    uint64_t before = atomic_load_explicit(&endpoint->operations, memory_order_relaxed);
    bool moved = pass(endpoint);
    if (atomic_load(&endpoint->waiters) > 1 &&
        atomic_load_explicit(&endpoint->operations, memory_order_relaxed) != before) {
        pthread_mutex_lock(&endpoint->lock);
        pthread_cond_broadcast(&endpoint->changed);
        pthread_mutex_unlock(&endpoint->lock);
    }
    return moved;
}

static void sleep_until(ms__endpoint *endpoint, const ms_request *request, int64_t until_ns) {
    uint32_t ticket = endpoint->ops->wait_prepare(endpoint->transport);
    if (!driver_needed(endpoint, request) || driver_pass(endpoint) || find_trouble(endpoint)) {
        endpoint->ops->wait_cancel(endpoint->transport);
        return;
    }
    const ms_request *oldest = endpoint->active_first;
    if (oldest != NULL && oldest->start_ns + endpoint->operation_timeout_ns < until_ns) {
        until_ns = oldest->start_ns + endpoint->operation_timeout_ns;
    }
    atomic_fetch_add_explicit(&endpoint->sleeps, 1, memory_order_relaxed);
    endpoint->ops->wait_commit(endpoint->transport, ticket, until_ns);
}

/* Drives until the request is done (or, without one, until a caller wants to or nothing is left),
 * or until the time. Called with `driven` set. */
static void drive(ms__endpoint *endpoint, const ms_request *request, int64_t until_ns) {
    int64_t spin_ns = 0;
    int64_t idle_since_ns = 0;
    while (driver_needed(endpoint, request)) {
        if (driver_pass(endpoint)) {
            idle_since_ns = 0;
            continue;
        }
        int64_t now_ns = ms_clock_ns();
        if (now_ns >= until_ns) {
            return;
        }
        if (idle_since_ns == 0) {
            idle_since_ns = now_ns;
            /* The progress thread shares a core with computation: it does not spin. */
            bool spins = request != NULL && endpoint->spin_ns > 0 &&
                         endpoint->ops->spin_pays(endpoint->transport);
            spin_ns = spins ? endpoint->spin_ns : 0;
        }
        if (now_ns - idle_since_ns >= spin_ns) {
            sleep_until(endpoint, request, ms_min_i64(until_ns, now_ns + SLEEP_NS_MAX));
        }
    }
}

/* Gives the role back; with the lock held. */
static void leave_drive(ms__endpoint *endpoint) {
    endpoint->driven = false;
    if (atomic_load(&endpoint->waiters) > 0) {
        pthread_cond_broadcast(&endpoint->changed);
    } else if (endpoint->parked && atomic_load(&endpoint->active_count) > 0) {
        pthread_cond_signal(&endpoint->park);
    }
}

/* One pass by the calling thread if nobody drives. */
bool ms__endpoint_advance(ms__endpoint *endpoint) {
    pthread_mutex_lock(&endpoint->lock);
    if (endpoint->driven) {
        pthread_mutex_unlock(&endpoint->lock);
        return false;
    }
    endpoint->driven = true;
    pthread_mutex_unlock(&endpoint->lock);
    bool moved = pass(endpoint);
    if (!moved) {
        find_trouble(endpoint);
    }
    pthread_mutex_lock(&endpoint->lock);
    leave_drive(endpoint);
    pthread_mutex_unlock(&endpoint->lock);
    return moved;
}

static void *progress_body(void *context) {
    ms__endpoint *endpoint = context;
    pthread_mutex_lock(&endpoint->lock);
    while (!atomic_load(&endpoint->stopping)) {
        if (endpoint->driven || !driver_needed(endpoint, NULL)) {
            endpoint->parked = true;
            pthread_cond_wait(&endpoint->park, &endpoint->lock);
            endpoint->parked = false;
            continue;
        }
        endpoint->driven = true;
        pthread_mutex_unlock(&endpoint->lock);
        drive(endpoint, NULL, INT64_MAX);
        pthread_mutex_lock(&endpoint->lock);
        leave_drive(endpoint);
    }
    pthread_mutex_unlock(&endpoint->lock);
    return NULL;
}

/* ---- Requests -----------------------------------------------------------------------------------
 */

ms_status ms__request_take(ms_comm *comm, ms_request **request) {
    ms__endpoint *endpoint = comm->endpoint;
    MS_TRY(ms__endpoint_failure(endpoint, NULL));
    pthread_mutex_lock(&endpoint->lock);
    ms_request *taken = endpoint->free_requests;
    if (taken != NULL) {
        endpoint->free_requests = taken->next;
    }
    pthread_mutex_unlock(&endpoint->lock);
    if (taken == NULL) {
        return ms_fail(MS_ERR_BUSY, "%d operations are under way; wait for some first",
                       MS_COMM_REQUESTS_MAX);
    }
    ms__lane *lanes = taken->lanes;
    memset(taken, 0, sizeof *taken);
    taken->lanes = lanes;
    taken->endpoint = endpoint;
    taken->comm = comm;
    taken->frame.job = endpoint->transport->job;
    taken->frame.epoch = endpoint->transport->epoch;
    taken->frame.communicator = comm->id;
    *request = taken;
    return MS_OK;
}

void ms__request_give(ms_request *request) {
    ms__endpoint *endpoint = request->endpoint;
    pthread_mutex_lock(&endpoint->lock);
    request->next = endpoint->free_requests;
    endpoint->free_requests = request;
    pthread_mutex_unlock(&endpoint->lock);
}

ms_status ms__request_start(ms_request *started, ms_request **request) {
    ms__endpoint *endpoint = started->endpoint;
    started->start_ns = ms_clock_ns();
    started->next = NULL;
    atomic_fetch_add(&started->comm->unfinished, 1);
    pthread_mutex_lock(&endpoint->lock);
    if (endpoint->fresh_last != NULL) {
        endpoint->fresh_last->next = started;
    } else {
        endpoint->fresh_first = started;
    }
    endpoint->fresh_last = started;
    atomic_fetch_add(&endpoint->active_count, 1);
    atomic_fetch_add(&endpoint->fresh_count, 1);
    bool driven = endpoint->driven;
    pthread_mutex_unlock(&endpoint->lock);
    if (request == NULL) {
        ms_request *waited = started;
        return ms_request_wait(&waited, -1.0);
    }
    if (driven) {
        endpoint->ops->wake(endpoint->transport); /* the driver may be about to sleep */
    } else {
        ms__endpoint_advance(endpoint);
    }
    *request = started;
    return MS_OK;
}

static ms_status conclude(ms_request **request) {
    ms_request *finished = *request;
    ms_status status = finished->status;
    ms__endpoint *endpoint = finished->endpoint;
    *request = NULL;
    ms__request_give(finished);
    if (status == MS_OK) {
        return MS_OK;
    }
    return ms__endpoint_failure(endpoint, NULL);
}

ms_status ms_request_test(ms_request **request) {
    if (request == NULL || *request == NULL) {
        return MS_OK;
    }
    if (atomic_load(&(*request)->done) == 0) {
        ms__endpoint_advance((*request)->endpoint);
    }
    return atomic_load(&(*request)->done) != 0 ? conclude(request) : MS_AGAIN;
}

/* Waits as one of several: drives when nobody else does. With the lock held. */
static void wait_turn(ms__endpoint *endpoint, ms_request *request, int64_t until_ns) {
    if (!endpoint->driven) {
        endpoint->driven = true;
        pthread_mutex_unlock(&endpoint->lock);
        drive(endpoint, request, until_ns);
        pthread_mutex_lock(&endpoint->lock);
        leave_drive(endpoint);
        return;
    }
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                             .tv_nsec = (long)(until_ns % 1000000000)};
    pthread_cond_timedwait(&endpoint->changed, &endpoint->lock, &until);
}

ms_status ms_request_wait(ms_request **request, double timeout_s) {
    if (request == NULL || *request == NULL) {
        return MS_OK;
    }
    ms_request *waited = *request;
    ms__endpoint *endpoint = waited->endpoint;
    if (atomic_load(&waited->done) != 0) {
        return conclude(request);
    }
    int64_t start_ns = ms_clock_ns();
    double limit_s = timeout_s < 0 || timeout_s > 1e8 ? 1e8 : timeout_s;
    int64_t until_ns = start_ns + (int64_t)(limit_s * 1e9);
    pthread_mutex_lock(&endpoint->lock);
    atomic_fetch_add(&endpoint->waiters, 1);
    if (endpoint->driven) { /* the progress thread, perhaps asleep, makes room for us */
        pthread_mutex_unlock(&endpoint->lock);
        endpoint->ops->wake(endpoint->transport);
        pthread_mutex_lock(&endpoint->lock);
    }
    while (atomic_load(&waited->done) == 0) {
        wait_turn(endpoint, waited, until_ns);
        if (atomic_load(&waited->done) == 0 && ms_clock_ns() >= until_ns) {
            break;
        }
    }
    atomic_fetch_sub(&endpoint->waiters, 1);
    if (!endpoint->driven) {
        leave_drive(endpoint); /* others who wait, or the progress thread, go on */
    }
    pthread_mutex_unlock(&endpoint->lock);
    atomic_fetch_add_explicit(&endpoint->wait_ns, (uint64_t)(ms_clock_ns() - start_ns),
                              memory_order_relaxed);
    return atomic_load(&waited->done) != 0 ? conclude(request) : MS_AGAIN;
}

/* ---- Life ---------------------------------------------------------------------------------------
 */

static ms_status make_pools(ms__endpoint *endpoint) {
    size_t size = (size_t)endpoint->transport->size;
    MS_TRY(MS_NEW(MS_COMM_REQUESTS_MAX, MS_MEMORY_PROCESS, &endpoint->requests));
    MS_TRY(MS_NEW(MS_COMM_REQUESTS_MAX * size, MS_MEMORY_PROCESS, &endpoint->lanes));
    size_t count = size * ARRIVALS_PER_PEER;
    count = count < MS__ARRIVALS_MAX ? count : MS__ARRIVALS_MAX;
    MS_TRY(MS_NEW(count, MS_MEMORY_PROCESS, &endpoint->arrivals));
    endpoint->arrival_count = (int)count;
    for (int i = MS_COMM_REQUESTS_MAX - 1; i >= 0; i--) {
        endpoint->requests[i].lanes = endpoint->lanes + (size_t)i * size;
        endpoint->requests[i].next = endpoint->free_requests;
        endpoint->free_requests = &endpoint->requests[i];
    }
    return MS_OK;
}

ms_status ms__endpoint_start(ms__endpoint *endpoint, bool with_thread) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&endpoint->lock, NULL);
    pthread_cond_init(&endpoint->changed, &monotonic);
    pthread_cond_init(&endpoint->park, &monotonic);
    pthread_condattr_destroy(&monotonic);
    MS_TRY(make_pools(endpoint));
    if (with_thread) {
        MS_TRY(ms_thread_start(&endpoint->thread, "ms-progress", progress_body, endpoint));
    }
    return MS_OK;
}

void ms__endpoint_stop(ms__endpoint *endpoint) {
    if (endpoint->thread.started) {
        pthread_mutex_lock(&endpoint->lock);
        atomic_store(&endpoint->stopping, true);
        pthread_cond_signal(&endpoint->park);
        pthread_mutex_unlock(&endpoint->lock);
        endpoint->ops->wake(endpoint->transport);
        ms_thread_join(&endpoint->thread);
    }
    while (endpoint->more_arrivals != NULL) {
        ms__more_arrivals *more = endpoint->more_arrivals;
        endpoint->more_arrivals = more->next;
        ms_free(more);
    }
    ms_free(endpoint->arrivals);
    ms_free(endpoint->lanes);
    ms_free(endpoint->requests);
    pthread_cond_destroy(&endpoint->park);
    pthread_cond_destroy(&endpoint->changed);
    pthread_mutex_destroy(&endpoint->lock);
}
