/*
 * shm.c - transport between processes of one machine: memfd memory, mapped by the peers.
 *
 * Where it stands: comm/ creates it when the launcher started this process. Frames and streams are
 * exchange.c's; this file provides memory that both sides see, shm_watch.c the news about peers.
 *
 * Data: each rank owns
 *   - a control block (exchange.h), mapped by its peers for writing,
 *   - staging memory for payload that lies elsewhere, mapped by its peers for reading,
 *   - regions handed out by allocate, each a memfd mapped by its peers for reading.
 * memfds travel by SCM_RIGHTS over the pairs' sockets; no name appears in /dev/shm, so nothing is
 * left after kill -9. They are sealed against shrinking and, except control blocks, against
 * writable maps of others: a late or wild peer cannot change payload. Pages are taken at
 * allocation, so that a lack of memory is an error there and not a SIGBUS later; staging memory
 * takes a window's pages on first use.
 *
 * Invariants: own regions are guarded by the lock, peers' by the peer lock; a region's name is
 * never used twice, so a frame cannot be read from a newer region in the same slot; a peer's region
 * is unmapped only after its owner freed it, which it may not do while an operation uses it.
 */
#define _GNU_SOURCE 1

#include "net/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/shm_internal.h"
#include "net/socket.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HELLO_MAGIC UINT64_C(0x6f6c6c65686d6873)

/* The first message between two ranks, with the control block's and the staging memory's memfd. */
typedef struct hello {
    uint64_t magic;
    uint64_t job;
    uint64_t control_bytes;
    uint64_t staging_bytes;
    int64_t process_id;
    uint32_t version;
    uint32_t epoch;
    int32_t rank, size;
} hello;

/* ---- Memory -------------------------------------------------------------------------------------
 */

/* A sealed memfd, mapped for its owner. populate: with all its pages. */
static ms_status make_memory(uint64_t bytes, bool populate, bool peers_write, int *fd,
                             uint8_t **base) {
    int made = memfd_create("mindspeed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0) {
        return ms_fail(MS_ERR_SYSTEM, "cannot make shared memory: %s", strerror(errno));
    }
    void *map = MAP_FAILED;
    if (bytes <= INT64_MAX && ftruncate(made, (off_t)bytes) == 0) {
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    }
    if (map != MAP_FAILED && populate) {
        madvise(map, bytes, MADV_HUGEPAGE); /* where the system allows it for shared memory */
        bool taken = madvise(map, bytes, MADV_POPULATE_WRITE) == 0 ||
                     (errno == EINVAL && fallocate(made, 0, 0, (off_t)bytes) == 0);
        if (!taken) {
            int code = errno == EFAULT ? ENOMEM : errno; /* a page that could not be had */
            munmap(map, bytes);
            errno = code;
            map = MAP_FAILED;
        }
    }
    if (map == MAP_FAILED) {
        ms_status status =
            ms_fail(MS_ERR_MEMORY, "cannot take %" PRIu64 " bytes of shared memory: %s", bytes,
                    strerror(errno));
        close(made);
        return status;
    }
    /* Only hardening: a kernel without these seals works as well. */
    (void)fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    if (!peers_write) {
        (void)fcntl(made, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    }
    *fd = made;
    *base = map;
    return MS_OK;
}

const uint8_t *ms__shm_map_peer(int fd, uint64_t bytes) {
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return NULL;
    }
    if (bytes == 0 || info.st_size < 0 || (uint64_t)info.st_size < bytes) {
        errno = EINVAL;
        return NULL;
    }
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    return map == MAP_FAILED ? NULL : map;
}

static ms_status shm_allocate(ms_transport *transport, size_t bytes, void **memory) {
    ms__shm *shm = (ms__shm *)transport;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole;
    if (!ms_size_add(bytes, page, &whole)) {
        return ms_fail(MS_ERR_MEMORY, "cannot take %zu bytes of shared memory", bytes);
    }
    whole = ms_align_up(bytes > 0 ? bytes : 1, page);
    int fd;
    uint8_t *base;
    MS_TRY(make_memory(whole, true, false, &fd, &base));
    pthread_mutex_lock(&shm->lock);
    uint32_t slot = 0;
    while (slot < MS__REGIONS_MAX && shm->own_regions[slot].base != NULL) {
        slot++;
    }
    if (slot < MS__REGIONS_MAX) {
        /* 2^23 allocations before a name could come again, far from the three special ones */
        uint32_t id = ((shm->allocations++ & 0x7fffffu) << 8) | slot;
        shm->own_regions[slot] = (ms__own_region){.base = base, .bytes = whole, .id = id};
        ms__note note = {.type = MS__NOTE_REGION, .region = id, .bytes = whole};
        ms__shm_note(shm, &note, fd);
    }
    pthread_mutex_unlock(&shm->lock);
    close(fd);
    if (slot == MS__REGIONS_MAX) {
        munmap(base, whole);
        return ms_fail(MS_ERR_MEMORY, "more than %d allocations that peers can read",
                       MS__REGIONS_MAX);
    }
    *memory = base;
    return MS_OK;
}

static void shm_release(ms_transport *transport, void *memory) {
    ms__shm *shm = (ms__shm *)transport;
    pthread_mutex_lock(&shm->lock);
    for (int slot = 0; slot < MS__REGIONS_MAX; slot++) {
        ms__own_region *region = &shm->own_regions[slot];
        if (region->base == memory) {
            ms__note note = {.type = MS__NOTE_FREE, .region = region->id};
            ms__shm_note(shm, &note, -1);
            munmap(region->base, region->bytes);
            *region = (ms__own_region){0};
            break;
        }
    }
    pthread_mutex_unlock(&shm->lock);
}

/* ---- Names of memory ----------------------------------------------------------------------------
 */

static bool shm_describe(ms__exchange *exchange, int peer, const void *memory, uint64_t bytes,
                         uint32_t *region, uint64_t *offset) {
    ms__shm *shm = (ms__shm *)exchange;
    uintptr_t start = (uintptr_t)memory;
    uintptr_t staging = (uintptr_t)exchange->staging;
    if (peer == exchange->base.rank) {
        *region = MS__REGION_ADDRESS;
        *offset = start;
        return true;
    }
    if (start >= staging && start - staging < ms__staging_bytes(exchange->base.size)) {
        *region = MS__REGION_STAGING;
        *offset = start - staging;
        return true;
    }
    bool found = false;
    pthread_mutex_lock(&shm->lock);
    for (int slot = 0; slot < MS__REGIONS_MAX && !found; slot++) {
        const ms__own_region *own = &shm->own_regions[slot];
        uintptr_t base = (uintptr_t)own->base;
        if (base != 0 && start >= base && start - base <= own->bytes &&
            bytes <= own->bytes - (start - base)) {
            *region = own->id;
            *offset = start - base;
            found = true;
        }
    }
    pthread_mutex_unlock(&shm->lock);
    return found;
}

static const uint8_t *shm_resolve(ms__exchange *exchange, int peer, uint32_t region,
                                  uint64_t offset, uint64_t bytes) {
    ms__shm *shm = (ms__shm *)exchange;
    if (region == MS__REGION_ADDRESS && peer == exchange->base.rank) {
        return (const uint8_t *)(uintptr_t)offset;
    }
    const uint8_t *base;
    uint64_t limit;
    if (region == MS__REGION_STAGING) {
        base = shm->peer_staging[peer];
        limit = ms__staging_bytes(exchange->base.size);
    } else {
        pthread_mutex_lock(&shm->peer_lock);
        ms__peer_region known = shm->peer_regions[peer][MS__REGION_SLOT(region)];
        pthread_mutex_unlock(&shm->peer_lock);
        if (known.id != region) {
            return NULL; /* its note is on the way: it was sent before the frame */
        }
        base = known.base;
        limit = known.bytes;
    }
    if (offset > limit || bytes > limit - offset) {
        ms__exchange_malformed(exchange, peer, "memory range");
        return NULL;
    }
    return base + offset;
}

static bool shm_stage(ms__exchange *exchange, int window) {
    ms__shm *shm = (ms__shm *)exchange;
    if (fallocate(shm->staging_fd, 0, (off_t)((uint64_t)window * MS__WINDOW_BYTES),
                  (off_t)MS__WINDOW_BYTES) == 0) {
        return true;
    }
    ms_net_failure failure = {.status = MS_ERR_MEMORY, .culprit = exchange->base.rank};
    snprintf(failure.sentence, sizeof failure.sentence,
             "rank %d cannot take memory to send from: %s", exchange->base.rank, strerror(errno));
    ms__exchange_raise(&exchange->base, &failure);
    return false;
}

static bool shm_left(ms__exchange *exchange, int peer) {
    return atomic_load(&((ms__shm *)exchange)->left[peer]) != 0;
}

static const ms__exchange_hooks shm_hooks = {
    .describe = shm_describe, .resolve = shm_resolve, .stage = shm_stage, .left = shm_left};

/* ---- Life ---------------------------------------------------------------------------------------
 */

static void shm_destroy(ms_transport *transport) {
    if (transport == NULL) {
        return;
    }
    ms__shm *shm = (ms__shm *)transport;
    ms__exchange *exchange = &shm->exchange;
    ms__note bye = {.type = MS__NOTE_BYE};
    bool met = shm->watch.started != 0;
    /* First nobody here listens any more: a peer that leaves at the same time says no BYE to one
     * that has left, and must not be taken for dead by it. */
    ms__shm_watch_stop(shm);
    if (met) {
        ms__shm_note(shm, &bye, -1);
    }
    for (int peer = 0; peer < transport->size; peer++) {
        if (shm->sockets[peer] >= 0) {
            close(shm->sockets[peer]);
        }
        for (int slot = 0; shm->peer_regions[peer] != NULL && slot < MS__REGIONS_MAX; slot++) {
            ms__peer_region *region = &shm->peer_regions[peer][slot];
            if (region->id != MS__REGION_NONE) {
                munmap(region->base, region->bytes);
            }
        }
        ms_free(shm->peer_regions[peer]);
        union {
            const uint8_t *in;
            void *out;
        } unconst = {.in = shm->peer_staging[peer]};
        if (unconst.out != NULL && peer != transport->rank) {
            munmap(unconst.out, ms__staging_bytes(transport->size));
        }
        if (exchange->peers[peer] != NULL) {
            munmap(exchange->peers[peer], shm->control_bytes);
        }
    }
    for (int slot = 0; slot < MS__REGIONS_MAX; slot++) {
        if (shm->own_regions[slot].base != NULL) {
            munmap(shm->own_regions[slot].base, shm->own_regions[slot].bytes);
        }
    }
    if (exchange->staging != NULL) {
        munmap(exchange->staging, ms__staging_bytes(transport->size));
    }
    if (shm->staging_fd >= 0) {
        close(shm->staging_fd);
    }
    if (shm->lifeline >= 0) {
        close(shm->lifeline);
    }
    ms__exchange_close(exchange);
    pthread_mutex_destroy(&shm->peer_lock);
    pthread_mutex_destroy(&shm->lock);
    ms_free(shm);
}

static const ms_transport_ops shm_ops = {
    .abi_version = MS_TRANSPORT_ABI,
    .struct_size = sizeof(ms_transport_ops),
    .name = "shm",
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
    .allocate = shm_allocate,
    .release = shm_release,
    .raise = ms__exchange_raise,
    .failure = ms__exchange_failure,
    .departed = ms__exchange_departed,
    .destroy = shm_destroy,
};

/* ---- Meeting ------------------------------------------------------------------------------------
 */

static ms_status send_hellos(ms__shm *shm, int control_fd, int64_t deadline_ns) {
    const ms_transport *base = &shm->exchange.base;
    hello own = {.magic = HELLO_MAGIC,
                 .job = base->job,
                 .control_bytes = shm->control_bytes,
                 .staging_bytes = ms__staging_bytes(base->size),
                 .process_id = getpid(),
                 .version = MS__CONTROL_VERSION,
                 .epoch = base->epoch,
                 .rank = base->rank,
                 .size = base->size};
    int fds[2] = {control_fd, shm->staging_fd};
    for (int peer = 0; peer < base->size; peer++) {
        if (shm->sockets[peer] < 0) {
            continue;
        }
        ms_status status =
            ms__socket_send(shm->sockets[peer], &own, sizeof own, fds, 2, deadline_ns);
        if (status == MS_ERR_PEER || status == MS_ERR_TIMEOUT) {
            return ms_fail(status, "rank %d ended before the ranks met", peer);
        }
        MS_TRY(status);
    }
    return MS_OK;
}

static ms_status map_hello(ms__shm *shm, int peer, const hello *theirs, const int *fds) {
    const ms_transport *base = &shm->exchange.base;
    if (theirs->magic != HELLO_MAGIC || theirs->version != MS__CONTROL_VERSION ||
        theirs->control_bytes != shm->control_bytes ||
        theirs->staging_bytes != ms__staging_bytes(base->size)) {
        return ms_fail(
            MS_ERR_MISMATCH,
            "rank %d runs another version of the library; all ranks must run the same one", peer);
    }
    if (theirs->job != base->job || theirs->epoch != base->epoch || theirs->rank != peer ||
        theirs->size != base->size) {
        return ms_fail(MS_ERR_MISMATCH, "rank %d belongs to another job", peer);
    }
    struct stat info;
    void *control = MAP_FAILED;
    if (fds[0] >= 0 && fstat(fds[0], &info) == 0 && (uint64_t)info.st_size >= shm->control_bytes) {
        control = mmap(NULL, shm->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    }
    if (control == MAP_FAILED) {
        return ms_fail(MS_ERR_SYSTEM, "cannot map the control block of rank %d: %s", peer,
                       strerror(errno));
    }
    shm->exchange.peers[peer] = control;
    shm->peer_staging[peer] =
        fds[1] >= 0 ? ms__shm_map_peer(fds[1], ms__staging_bytes(base->size)) : NULL;
    if (shm->peer_staging[peer] == NULL) {
        return ms_fail(MS_ERR_SYSTEM, "cannot map the staging memory of rank %d: %s", peer,
                       strerror(errno));
    }
    shm->exchange.base.process_ids[peer] = theirs->process_id;
    return MS_OK;
}

static ms_status receive_hellos(ms__shm *shm, int64_t deadline_ns) {
    for (int peer = 0; peer < shm->exchange.base.size; peer++) {
        if (shm->sockets[peer] < 0) {
            continue;
        }
        hello theirs;
        size_t length;
        int fds[MS__SOCKET_FDS_MAX];
        ms_status status = ms__socket_receive(shm->sockets[peer], &theirs, sizeof theirs, &length,
                                              fds, deadline_ns);
        if (status == MS_ERR_TIMEOUT) {
            return ms_fail(status, "rank %d does not answer", peer);
        }
        MS_TRY(status);
        if (length == sizeof theirs) {
            status = map_hello(shm, peer, &theirs, fds);
        } else {
            status = length == 0 ? ms_fail(MS_ERR_PEER, "rank %d ended before the ranks met", peer)
                                 : ms_fail(MS_ERR_MISMATCH,
                                           "rank %d runs another version of the library", peer);
        }
        for (int i = 0; i < MS__SOCKET_FDS_MAX; i++) {
            if (fds[i] >= 0) {
                close(fds[i]);
            }
        }
        MS_TRY(status);
    }
    return MS_OK;
}

static ms_status peer_tables(ms__shm *shm) {
    for (int peer = 0; peer < shm->exchange.base.size; peer++) {
        MS_TRY(MS_NEW(MS__REGIONS_MAX, MS_MEMORY_PROCESS, &shm->peer_regions[peer]));
        for (int slot = 0; slot < MS__REGIONS_MAX; slot++) {
            shm->peer_regions[peer][slot].id = MS__REGION_NONE;
        }
    }
    return MS_OK;
}

static ms_status open_and_meet(ms__shm *shm, const ms_rendezvous *rendezvous, int64_t deadline_ns) {
    ms__exchange *exchange = &shm->exchange;
    int control_fd = -1;
    uint8_t *control;
    ms_status status = peer_tables(shm);
    if (status == MS_OK) {
        status = make_memory(shm->control_bytes, true, true, &control_fd, &control);
    }
    if (status != MS_OK) {
        return status;
    }
    exchange->own = (ms__control *)(void *)control;
    exchange->peers[exchange->base.rank] = exchange->own;
    ms__control_init(exchange->own, exchange->base.size);
    MS_TRY_GOTO(make_memory(ms__staging_bytes(exchange->base.size), false, false, &shm->staging_fd,
                            &exchange->staging),
                close_control);
    MS_TRY_GOTO(ms__exchange_open(exchange), close_control);
    MS_TRY_GOTO(ms_rendezvous_meet(rendezvous, deadline_ns, shm->sockets), close_control);
    MS_TRY_GOTO(send_hellos(shm, control_fd, deadline_ns), close_control);
    MS_TRY_GOTO(receive_hellos(shm, deadline_ns), close_control);
    MS_TRY_GOTO(ms__shm_watch_start(shm), close_control);
close_control:
    close(control_fd);
    return status;
}

ms_status ms_shm_create(const ms_rendezvous *rendezvous, double timeout_s,
                        ms_transport **transport) {
    ms__shm *shm;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &shm));
    ms__exchange *exchange = &shm->exchange;
    exchange->base.ops = &shm_ops;
    exchange->base.rank = rendezvous->rank;
    exchange->base.size = rendezvous->size;
    exchange->base.job = rendezvous->job;
    exchange->base.epoch = rendezvous->epoch;
    exchange->base.process_ids[rendezvous->rank] = getpid();
    exchange->hooks = &shm_hooks;
    shm->control_bytes = ms__control_bytes(rendezvous->size);
    shm->staging_fd = -1;
    shm->stop_fd = -1;
    shm->lifeline = -1;
    for (int peer = 0; peer < MS_NET_RANKS_MAX; peer++) {
        shm->sockets[peer] = -1;
        shm->process_fds[peer] = -1;
    }
    pthread_mutex_init(&shm->lock, NULL);
    pthread_mutex_init(&shm->peer_lock, NULL);
    shm->lifeline = rendezvous->lifeline;
    shm->launcher_pid = rendezvous->launcher_pid;
    ms_status status = open_and_meet(shm, rendezvous, ms_clock_ns() + (int64_t)(timeout_s * 1e9));
    if (status != MS_OK) {
        shm_destroy(&exchange->base);
        return status;
    }
    *transport = &exchange->base;
    return MS_OK;
}
