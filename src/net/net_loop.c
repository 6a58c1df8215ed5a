/*
 * net_loop.c - ranks of one process, on threads of their own or stepped by one thread.
 *
 * Where it stands: what tests, the simulator and jobs of one rank run on. The frames and streams
 * are those of exchange.c, so the code under test is the code that shm runs.
 *
 * Data: a world, shared by its ranks and freed by the last one, holds their control blocks and says
 * who has left. Memory of any rank is named by its address. With `staged`, only allocated memory
 * is, and the rest takes the staging ring as it does between processes.
 *
 * With a seed, a rank's view of the others is disturbed: frames, releases and the growth of streams
 * show up late, by random numbers that depend on the seed, the rank and how often it looked. One
 * thread stepping all ranks in a fixed order therefore sees the same events each time.
 */
#include "net/net_loop.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "net/exchange.h"

#define REGIONS_MAX 256
#define REGION_ADDRESS 0u

typedef struct loop_world {
    int size;
    _Atomic int ranks_left;
    ms__control *controls[MS_NET_RANKS_MAX];
    _Atomic int left[MS_NET_RANKS_MAX];
} loop_world;

typedef struct loop_region {
    uintptr_t start;
    size_t bytes;
} loop_region;

typedef struct loop_rank {
    ms__exchange exchange; /* first: a transport is one of these */
    loop_world *world;
    bool staged;
    pthread_mutex_t lock; /* of the regions */
    loop_region regions[REGIONS_MAX];
    int region_count;
} loop_rank;

static bool in_region(loop_rank *loop, uintptr_t start, uint64_t bytes) {
    bool found = false;
    pthread_mutex_lock(&loop->lock);
    for (int i = 0; i < loop->region_count && !found; i++) {
        const loop_region *region = &loop->regions[i];
        found = start >= region->start && start - region->start <= region->bytes &&
                bytes <= region->bytes - (start - region->start);
    }
    pthread_mutex_unlock(&loop->lock);
    return found;
}

static bool loop_describe(ms__exchange *exchange, int peer, const void *memory, uint64_t bytes,
                          uint32_t *region, uint64_t *offset) {
    loop_rank *loop = (loop_rank *)exchange;
    uintptr_t start = (uintptr_t)memory;
    bool own_window = exchange->staging != NULL && start >= (uintptr_t)exchange->staging &&
                      start < (uintptr_t)exchange->staging + ms__staging_bytes(exchange->base.size);
    if (loop->staged && peer != exchange->base.rank && !own_window &&
        !in_region(loop, start, bytes)) {
        return false;
    }
    *region = REGION_ADDRESS;
    *offset = start;
    return true;
}

static const uint8_t *loop_resolve(ms__exchange *exchange, int peer, uint32_t region,
                                   uint64_t offset, uint64_t bytes) {
    (void)exchange, (void)peer, (void)region, (void)bytes;
    return (const uint8_t *)(uintptr_t)offset;
}

/* The staging memory is reserved as a whole with the first window: untouched pages cost nothing. */
static bool loop_stage(ms__exchange *exchange, int window) {
    (void)window;
    void *memory;
    if (exchange->staging == NULL) {
        if (ms_alloc(ms__staging_bytes(exchange->base.size), MS_MEMORY_PROCESS, &memory) != MS_OK) {
            ms_net_failure failure = {.status = MS_ERR_MEMORY, .culprit = exchange->base.rank};
            snprintf(failure.sentence, sizeof failure.sentence, "rank %d: %s", exchange->base.rank,
                     ms_error_detail());
            ms__exchange_raise(&exchange->base, &failure);
            return false;
        }
        exchange->staging = memory;
    }
    return true;
}

static bool loop_left(ms__exchange *exchange, int peer) {
    return atomic_load(&((loop_rank *)exchange)->world->left[peer]) != 0;
}

static const ms__exchange_hooks loop_hooks = {
    .describe = loop_describe, .resolve = loop_resolve, .stage = loop_stage, .left = loop_left};

static ms_status loop_allocate(ms_transport *transport, size_t bytes, void **memory) {
    loop_rank *loop = (loop_rank *)transport;
    pthread_mutex_lock(&loop->lock);
    ms_status status = MS_OK;
    if (loop->region_count == REGIONS_MAX) {
        status =
            ms_fail(MS_ERR_MEMORY, "more than %d allocations that peers can read", REGIONS_MAX);
    } else {
        status = ms_alloc(bytes, MS_MEMORY_PLAN, memory);
    }
    if (status == MS_OK) {
        loop->regions[loop->region_count++] =
            (loop_region){.start = (uintptr_t)*memory, .bytes = bytes};
    }
    pthread_mutex_unlock(&loop->lock);
    return status;
}

static void loop_release(ms_transport *transport, void *memory) {
    loop_rank *loop = (loop_rank *)transport;
    pthread_mutex_lock(&loop->lock);
    for (int i = 0; i < loop->region_count; i++) {
        if (loop->regions[i].start == (uintptr_t)memory) {
            loop->regions[i] = loop->regions[--loop->region_count];
            break;
        }
    }
    pthread_mutex_unlock(&loop->lock);
    ms_free(memory);
}

static void world_leave(loop_world *world) {
    if (atomic_fetch_sub(&world->ranks_left, 1) == 1) {
        for (int rank = 0; rank < world->size; rank++) {
            ms_free(world->controls[rank]);
        }
        ms_free(world);
    }
}

static void loop_destroy(ms_transport *transport) {
    if (transport == NULL) {
        return;
    }
    loop_rank *loop = (loop_rank *)transport;
    loop_world *world = loop->world;
    atomic_store(&world->left[transport->rank], 1);
    for (int peer = 0; peer < transport->size; peer++) {
        ms__control_ring(world->controls[peer]); /* whoever waits for us must look again */
    }
    while (loop->region_count > 0) {
        ms_free((void *)loop->regions[--loop->region_count].start);
    }
    ms_free(loop->exchange.staging);
    ms__exchange_close(&loop->exchange);
    pthread_mutex_destroy(&loop->lock);
    ms_free(loop);
    world_leave(world);
}

static const ms_transport_ops loop_ops = {
    .abi_version = MS_TRANSPORT_ABI,
    .struct_size = sizeof(ms_transport_ops),
    .name = "loop",
    .capabilities = MS_NET_CAP_DIRECT,
    .post = ms__exchange_post,
    .advance = ms__exchange_advance,
    .sent = ms__exchange_sent,
    .poll = ms__exchange_poll,
    .peek = ms__exchange_peek,
    .consume = ms__exchange_consume,
    .spin_pays = ms__exchange_spin_pays,
    .wait_prepare = ms__exchange_wait_prepare,
    .wait_commit = ms__exchange_wait_commit,
    .wait_cancel = ms__exchange_wait_cancel,
    .wake = ms__exchange_wake,
    .allocate = loop_allocate,
    .release = loop_release,
    .raise = ms__exchange_raise,
    .failure = ms__exchange_failure,
    .departed = ms__exchange_departed,
    .destroy = loop_destroy,
};

static ms_status rank_create(loop_world *world, int rank, const ms_loop_options *options,
                             ms_transport **transport) {
    loop_rank *loop;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &loop));
    ms__exchange *exchange = &loop->exchange;
    exchange->base.ops = &loop_ops;
    exchange->base.rank = rank;
    exchange->base.size = world->size;
    exchange->base.job = options->job;
    exchange->hooks = &loop_hooks;
    exchange->own = world->controls[rank];
    memcpy(exchange->peers, world->controls, sizeof exchange->peers);
    exchange->chaos = (ms__chaos){
        .on = options->delay_max > 0 || options->stream_bytes > 0,
        .delay_max = options->delay_max,
        .stream_bytes = (uint32_t)options->stream_bytes,
        .key = ms_random_key_make(options->seed + (uint64_t)rank, "loop"),
    };
    loop->world = world;
    loop->staged = options->staged;
    ms_status status = ms__exchange_open(exchange);
    if (status != MS_OK) {
        ms__exchange_close(exchange);
        ms_free(loop);
        return status;
    }
    pthread_mutex_init(&loop->lock, NULL);
    *transport = &exchange->base;
    return MS_OK;
}

ms_status ms_loop_create(int size, const ms_loop_options *options, ms_transport **transports) {
    if (size < 1 || size > MS_NET_RANKS_MAX) {
        return ms_fail(MS_ERR_ARGUMENT, "loop with %d ranks; 1 to %d are possible", size,
                       MS_NET_RANKS_MAX);
    }
    if (options->delay_max < 0 || options->stream_bytes < 0) {
        return ms_fail(MS_ERR_ARGUMENT, "loop: delays and piece sizes cannot be negative");
    }
    loop_world *world;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &world));
    world->size = size;
    atomic_store(&world->ranks_left, 1); /* this function's own, until all ranks stand */
    ms_status status = MS_OK;
    for (int rank = 0; rank < size && status == MS_OK; rank++) {
        void *memory;
        status = ms_alloc(ms__control_bytes(size), MS_MEMORY_PROCESS, &memory);
        if (status == MS_OK) {
            world->controls[rank] = memory;
            ms__control_init(world->controls[rank], size);
        }
    }
    int made = 0;
    ms_transport *created[MS_NET_RANKS_MAX];
    while (made < size && status == MS_OK) {
        status = rank_create(world, made, options, &created[made]);
        if (status == MS_OK) {
            atomic_fetch_add(&world->ranks_left, 1);
            made++;
        }
    }
    if (status == MS_OK) {
        memcpy(transports, created, (size_t)size * sizeof *transports);
    } else {
        while (made > 0) {
            loop_destroy(created[--made]);
        }
    }
    world_leave(world);
    return status;
}
