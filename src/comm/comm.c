/*
 * comm.c - communicators: joining the job, groups, memory that peers read, leaving.
 *
 * Where it stands: train/ and tests create the world here and cut groups out of it; operation.c
 * works on them.
 *
 * A rank has one endpoint (transport, operations under way, progress thread), counted by its
 * communicators and closed by the last. A group's id is a hash of its parent's id, its members and
 * how often this list was grouped before: every member computes the same one without a message, and
 * two groups of the same ranks never mix.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/hash.h"
#include "comm/comm_internal.h"
#include "net/net_loop.h"
#include "net/rendezvous.h"
#include "net/shm.h"

/* A caller whose rank has a core to itself looks so long before it sleeps. */
#define SPIN_NS INT64_C(30000)
#define WORLD_ID UINT64_C(0x776f726c64)

/* A process joins the job of its launch once: the descriptors are used up. */
static _Atomic bool joined;

/* ---- Endpoint -----------------------------------------------------------------------------------
 */

static ms_status check_options(const ms_comm_options *given, ms_comm_options *options) {
    *options = (ms_comm_options)MS_COMM_OPTIONS_INIT;
    if (given == NULL) {
        return MS_OK;
    }
    if (given->struct_size != sizeof *given) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "options of %zu bytes, not %zu; begin with MS_COMM_OPTIONS_INIT",
                       given->struct_size, sizeof *given);
    }
    *options = *given;
    if ((unsigned)options->transport >= MS_COMM_TRANSPORT_COUNT) {
        return ms_fail(MS_ERR_ARGUMENT, "transport %d does not exist", (int)options->transport);
    }
    bool good = options->death_timeout_s > 0 && options->death_timeout_s <= 1e8 &&
                options->operation_timeout_s > 0 && options->operation_timeout_s <= 1e8;
    if (!good) {
        return ms_fail(
            MS_ERR_ARGUMENT,
            "time-outs of %g s (death) and %g s (operation); both must be above 0 and at "
            "most 1e8",
            options->death_timeout_s, options->operation_timeout_s);
    }
    return MS_OK;
}

/* Owns the transport from here on, also on failure. */
static ms_status open_world(const ms_comm_options *options, ms_transport *transport,
                            bool with_thread, ms_comm **comm) {
    ms__endpoint *endpoint = NULL;
    ms_comm *world = NULL;
    ms_status status = MS_NEW(1, MS_MEMORY_PROCESS, &endpoint);
    if (status == MS_OK) {
        status = MS_NEW(1, MS_MEMORY_PROCESS, &world);
    }
    if (status != MS_OK) {
        ms_free(endpoint);
        transport->ops->destroy(transport);
        return status;
    }
    endpoint->transport = transport;
    endpoint->ops = transport->ops;
    endpoint->kernels = ms__sum_kernels_for(ms_cpu_isa());
    endpoint->operation_timeout_ns = (int64_t)(options->operation_timeout_s * 1e9);
    endpoint->spin_ns = transport->size <= ms_cpu_count() ? SPIN_NS : 0;
    endpoint->references = 1;
    world->endpoint = endpoint;
    world->id = WORLD_ID;
    world->rank = transport->rank;
    world->size = transport->size;
    memset(world->members, -1, sizeof world->members);
    for (int rank = 0; rank < world->size; rank++) {
        world->ranks[rank] = rank;
        world->members[rank] = (int8_t)rank;
    }
    snprintf(world->name, sizeof world->name, "the world");
    status = ms__endpoint_start(endpoint, with_thread);
    if (status != MS_OK) {
        ms_comm_destroy(world);
        return status;
    }
    *comm = world;
    return MS_OK;
}

static bool wants_thread(const ms_comm_options *options, int size, bool by_default) {
    return options->progress_thread < 0 ? by_default && size > 1 : options->progress_thread != 0;
}

ms_status ms_comm_create(const ms_comm_options *given, ms_comm **comm) {
    ms_comm_options options;
    MS_TRY(check_options(given, &options));
    bool launched = false;
    ms_rendezvous rendezvous;
    if (options.transport != MS_COMM_TRANSPORT_LOOP) {
        MS_TRY(ms_rendezvous_read(&launched, &rendezvous));
    }
    if (!launched && options.transport == MS_COMM_TRANSPORT_SHM) {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "transport shm needs processes started by the launcher (--ranks N)");
    }
    ms_transport *transport;
    if (!launched) {
        ms_loop_options loop = {.job = options.job};
        MS_TRY(ms_loop_create(1, &loop, &transport));
    } else {
        if (atomic_exchange(&joined, true)) {
            return ms_fail(MS_ERR_EXISTS, "this process has joined its job already");
        }
        if (options.job != 0) {
            rendezvous.job = options.job;
        }
        ms_status status = ms_shm_create(&rendezvous, options.death_timeout_s, &transport);
        ms_rendezvous_close(&rendezvous);
        MS_TRY(status);
    }
    return open_world(&options, transport, wants_thread(&options, transport->size, true), comm);
}

ms_status ms_comm_create_loop_seeded(const ms_comm_options *given, int size,
                                     const ms_loop_schedule *schedule, ms_comm **comms) {
    ms_comm_options options;
    MS_TRY(check_options(given, &options));
    ms_loop_options loop = {.job = options.job};
    if (schedule != NULL) {
        loop.staged = schedule->staged != 0;
        loop.seed = schedule->seed;
        loop.delay_max = schedule->seed != 0 ? schedule->delay_max : 0;
        loop.stream_bytes = schedule->seed != 0 ? schedule->stream_bytes : 0;
    }
    ms_transport *transports[MS_NET_RANKS_MAX];
    MS_TRY(ms_loop_create(size, &loop, transports));
    ms_comm *made[MS_NET_RANKS_MAX];
    ms_status status = MS_OK;
    int opened = 0;
    while (opened < size && status == MS_OK) {
        /* One thread may step all ranks, so no thread unless it is asked for. */
        status = open_world(&options, transports[opened], wants_thread(&options, size, false),
                            &made[opened]);
        opened++; /* also on failure: open_world has destroyed that transport */
    }
    if (status != MS_OK) {
        for (int rank = opened; rank < size; rank++) {
            transports[rank]->ops->destroy(transports[rank]);
        }
        for (int rank = 0; rank + 1 < opened; rank++) {
            ms_comm_destroy(made[rank]);
        }
        return status;
    }
    memcpy(comms, made, (size_t)size * sizeof *comms);
    return MS_OK;
}

ms_status ms_comm_create_loop(const ms_comm_options *options, int size, ms_comm **comms) {
    return ms_comm_create_loop_seeded(options, size, NULL, comms);
}

/* ---- Groups -------------------------------------------------------------------------------------
 */

static ms_status check_members(const ms_comm *parent, const int *ranks, int count) {
    if (parent == NULL || ranks == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "the communicator or the list of ranks is NULL");
    }
    if (count < 1 || count > parent->size) {
        return ms_fail(MS_ERR_ARGUMENT, "a group of %d ranks out of %d", count, parent->size);
    }
    bool seen[MS_COMM_RANKS_MAX] = {false};
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size) {
            return ms_fail(MS_ERR_ARGUMENT, "rank %d does not exist in a communicator of %d ranks",
                           ranks[i], parent->size);
        }
        if (seen[ranks[i]]) {
            return ms_fail(MS_ERR_ARGUMENT, "rank %d is twice in the group", ranks[i]);
        }
        seen[ranks[i]] = true;
    }
    if (!seen[parent->rank]) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "rank %d makes a group that it is not in; only members make a group",
                       parent->rank);
    }
    return MS_OK;
}

/* How often this list was grouped before; counts this time. */
static ms_status count_group(ms_comm *parent, uint64_t list_hash, uint64_t *before) {
    for (size_t i = 0; i < parent->group_count; i++) {
        if (parent->groups[i].list_hash == list_hash) {
            *before = parent->groups[i].count++;
            return MS_OK;
        }
    }
    MS_TRY(ms_array_reserve((void **)&parent->groups, &parent->group_capacity,
                            parent->group_count + 1, sizeof *parent->groups, MS_MEMORY_PROCESS));
    parent->groups[parent->group_count++] = (ms__group_count){.list_hash = list_hash, .count = 1};
    *before = 0;
    return MS_OK;
}

static void name_group(ms_comm *comm) {
    size_t length = (size_t)snprintf(comm->name, sizeof comm->name, "the group of ranks");
    for (int i = 0; i < comm->size; i++) {
        if (length + 12 > sizeof comm->name) {
            snprintf(comm->name + length, sizeof comm->name - length, " ...");
            return;
        }
        length += (size_t)snprintf(comm->name + length, sizeof comm->name - length, "%s%d",
                                   i > 0 ? "," : " ", comm->ranks[i]);
    }
}

ms_status ms_comm_group(ms_comm *parent, const int *ranks, int count, ms_comm **comm) {
    MS_TRY(check_members(parent, ranks, count));
    int world_ranks[MS_COMM_RANKS_MAX];
    for (int i = 0; i < count; i++) {
        world_ranks[i] = parent->ranks[ranks[i]];
    }
    size_t list_bytes = (size_t)count * sizeof *world_ranks;
    uint64_t list_hash = ms_hash_seeded(world_ranks, list_bytes, parent->id);
    ms_comm *group;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &group));
    uint64_t before;
    ms_status status = count_group(parent, list_hash, &before);
    if (status != MS_OK) {
        ms_free(group);
        return status;
    }
    group->endpoint = parent->endpoint;
    group->id = ms_hash_seeded(&before, sizeof before, list_hash);
    group->size = count;
    memcpy(group->ranks, world_ranks, list_bytes);
    memset(group->members, -1, sizeof group->members);
    for (int i = 0; i < count; i++) {
        group->members[world_ranks[i]] = (int8_t)i;
        if (ranks[i] == parent->rank) {
            group->rank = i;
        }
    }
    name_group(group);
    pthread_mutex_lock(&group->endpoint->lock);
    group->endpoint->references++;
    pthread_mutex_unlock(&group->endpoint->lock);
    *comm = group;
    return MS_OK;
}

/* ---- Leaving ------------------------------------------------------------------------------------
 */

static void close_endpoint(ms__endpoint *endpoint) {
    ms_transport *transport = endpoint->transport;
    ms__endpoint_stop(endpoint);
    transport->ops->destroy(transport);
    ms_free(endpoint);
}

void ms_comm_destroy(ms_comm *comm) {
    if (comm == NULL) {
        return;
    }
    ms__endpoint *endpoint = comm->endpoint;
    if (atomic_load(&comm->unfinished) > 0) {
        ms__raise(endpoint, MS_ERR_ABORTED, endpoint->transport->rank,
                  "rank %d left %s with unfinished operations", endpoint->transport->rank,
                  comm->name);
        while (atomic_load(&comm->unfinished) > 0) { /* the next pass of any driver ends them */
            ms__endpoint_advance(endpoint);
        }
    }
    pthread_mutex_lock(&endpoint->lock);
    bool last = --endpoint->references == 0;
    pthread_mutex_unlock(&endpoint->lock);
    if (last) {
        close_endpoint(endpoint);
    }
    ms_free(comm->groups);
    ms_free(comm);
}

int ms_comm_rank(const ms_comm *comm) {
    return comm->rank;
}

int ms_comm_size(const ms_comm *comm) {
    return comm->size;
}

int ms_comm_world_rank(const ms_comm *comm, int rank) {
    return rank >= 0 && rank < comm->size ? comm->ranks[rank] : -1;
}

const char *ms_comm_transport_name(const ms_comm *comm) {
    return comm->endpoint->ops->name;
}

void ms_comm_abort(ms_comm *comm, const char *reason) {
    ms__endpoint *endpoint = comm->endpoint;
    int rank = endpoint->transport->rank;
    ms__raise(endpoint, MS_ERR_ABORTED, rank, "rank %d aborted: %s", rank,
              reason != NULL ? reason : "no reason given");
}

ms_status ms_comm_failure(ms_comm *comm, int *culprit) {
    return ms__endpoint_failure(comm->endpoint, culprit);
}

ms_comm_counters ms_comm_counters_get(const ms_comm *comm) {
    const ms__endpoint *endpoint = comm->endpoint;
    return (ms_comm_counters){.operations = atomic_load(&endpoint->operations),
                              .bytes_read = atomic_load(&endpoint->bytes_read),
                              .wait_ns = atomic_load(&endpoint->wait_ns),
                              .sleeps = atomic_load(&endpoint->sleeps)};
}

void ms_comm_progress(ms_comm *comm) {
    ms__endpoint_advance(comm->endpoint);
}

/* ---- Memory -------------------------------------------------------------------------------------
 */

ms_status ms_comm_alloc(ms_comm *comm, size_t bytes, void **memory) {
    ms__endpoint *endpoint = comm->endpoint;
    void *taken;
    MS_TRY(endpoint->ops->allocate(endpoint->transport, bytes, &taken));
    pthread_mutex_lock(&endpoint->lock);
    int slot = 0;
    while (slot < MS__ALLOCATIONS_MAX && endpoint->allocations[slot].memory != NULL) {
        slot++;
    }
    MS_CHECK(slot < MS__ALLOCATIONS_MAX); /* transports allow no more */
    endpoint->allocations[slot] = (ms__allocation){.memory = taken, .bytes = bytes};
    pthread_mutex_unlock(&endpoint->lock);
    atomic_fetch_add(&endpoint->allocated_bytes, bytes);
    *memory = taken;
    return MS_OK;
}

void ms_comm_free(ms_comm *comm, void *memory) {
    if (memory == NULL) {
        return;
    }
    ms__endpoint *endpoint = comm->endpoint;
    pthread_mutex_lock(&endpoint->lock);
    int slot = 0;
    while (slot < MS__ALLOCATIONS_MAX && endpoint->allocations[slot].memory != memory) {
        slot++;
    }
    MS_CHECK(slot < MS__ALLOCATIONS_MAX); /* not from ms_comm_alloc, or freed twice */
    atomic_fetch_sub(&endpoint->allocated_bytes, endpoint->allocations[slot].bytes);
    endpoint->allocations[slot] = (ms__allocation){0};
    pthread_mutex_unlock(&endpoint->lock);
    endpoint->ops->release(endpoint->transport, memory);
}

size_t ms_comm_memory_bytes(const ms_comm *comm) {
    return atomic_load(&comm->endpoint->allocated_bytes);
}
