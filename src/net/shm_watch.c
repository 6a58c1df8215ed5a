/*
 * shm_watch.c - the thread of a rank that hears of its peers' memory, leaving and death.
 *
 * Where it stands: started by shm.c, one for each process. It sleeps in poll() and takes no lock
 * that other code holds, so nothing that a rank computes can delay the news of a death.
 *
 * It hears of a death twice: by end of file on the peer's socket, and by the peer's pidfd, which
 * also fires for a process that nobody has reaped. A socket is always read to its end first: a peer
 * that said BYE has left in order. When the launcher dies, its pipe (the lifeline) ends.
 *
 * A peer's new memory arrives as a note with a descriptor; it is mapped here, and whoever waits for
 * it is woken. Rejected: opening /proc/PID/fd (needs ptrace rights), mapping on first use by the
 * reading thread (two readers of one socket).
 */
#define _GNU_SOURCE 1

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/shm_internal.h"
#include "net/socket.h"

/* Notes wait so long for room in a socket that a living peer's watch thread empties at once. */
#define NOTE_LIMIT_NS INT64_C(5000000000)

static void raise_peer(ms__shm *shm, int peer, const char *what) {
    char name[64];
    ms_net_failure failure = {.status = MS_ERR_PEER, .culprit = peer};
    snprintf(failure.sentence, sizeof failure.sentence, "%s %s",
             ms_transport_peer_name(&shm->exchange.base, peer, name, sizeof name), what);
    ms__exchange_raise(&shm->exchange.base, &failure);
}

void ms__shm_note(ms__shm *shm, const ms__note *note, int fd) {
    for (int peer = 0; peer < shm->exchange.base.size; peer++) {
        /* BYE goes to peers that have said it too: until they have stopped watching, the end of this
         * socket without it would be a death to them. */
        bool listens = note->type == MS__NOTE_BYE || atomic_load(&shm->left[peer]) == 0;
        if (shm->sockets[peer] >= 0 && listens) {
            /* A peer that is gone is the watch thread's matter. */
            (void)ms__socket_send(shm->sockets[peer], note, sizeof *note, &fd, fd >= 0 ? 1 : 0,
                                  ms_clock_ns() + NOTE_LIMIT_NS);
        }
    }
}

static void map_region(ms__shm *shm, int peer, const ms__note *note, int fd) {
    const uint8_t *base = fd >= 0 ? ms__shm_map_peer(fd, note->bytes) : NULL;
    int code = errno;
    union {
        const uint8_t *in;
        uint8_t *out;
    } unconst = {.in = base};
    bool taken = false;
    if (base != NULL) {
        ms__peer_region *region = &shm->peer_regions[peer][MS__REGION_SLOT(note->region)];
        pthread_mutex_lock(&shm->peer_lock);
        taken = region->id != MS__REGION_NONE;
        if (!taken) {
            *region =
                (ms__peer_region){.id = note->region, .base = unconst.out, .bytes = note->bytes};
        }
        pthread_mutex_unlock(&shm->peer_lock);
    }
    if (base == NULL || taken) {
        char what[160];
        snprintf(what, sizeof what, "allocated %" PRIu64 " bytes, which rank %d cannot map: %s",
                 note->bytes, shm->exchange.base.rank,
                 taken ? "their place is in use" : strerror(code));
        raise_peer(shm, peer, what);
        if (taken) {
            munmap(unconst.out, note->bytes);
        }
        return;
    }
    ms__exchange_wake(&shm->exchange.base); /* somebody may wait for it */
}

static void unmap_region(ms__shm *shm, int peer, const ms__note *note) {
    ms__peer_region *region = &shm->peer_regions[peer][MS__REGION_SLOT(note->region)];
    pthread_mutex_lock(&shm->peer_lock);
    if (region->id == note->region) {
        munmap(region->base, region->bytes);
        *region = (ms__peer_region){.id = MS__REGION_NONE};
    }
    pthread_mutex_unlock(&shm->peer_lock);
}

/* Reads what the peer has sent. False: the socket is at its end. */
static bool read_notes(ms__shm *shm, int peer) {
    for (;;) {
        ms__note note;
        size_t length;
        int fds[MS__SOCKET_FDS_MAX];
        ms_status status =
            ms__socket_receive(shm->sockets[peer], &note, sizeof note, &length, fds, 0);
        if (status != MS_OK) {
            return status == MS_AGAIN;
        }
        if (length == 0) {
            return false;
        }
        if (length != sizeof note) {
            ms__exchange_malformed(&shm->exchange, peer, "note length");
        } else if (note.type == MS__NOTE_REGION) {
            map_region(shm, peer, &note, fds[0]);
        } else if (note.type == MS__NOTE_FREE) {
            unmap_region(shm, peer, &note);
        } else if (note.type == MS__NOTE_BYE) {
            atomic_store(&shm->left[peer], 1);
            ms__exchange_wake(&shm->exchange.base);
        } else {
            ms__exchange_malformed(&shm->exchange, peer, "note type");
        }
        for (int i = 0; i < MS__SOCKET_FDS_MAX; i++) {
            if (fds[i] >= 0) {
                close(fds[i]);
            }
        }
    }
}

/* True while the peer is worth watching. */
static bool watch_peer(ms__shm *shm, int peer, bool process_ended) {
    bool open = read_notes(shm, peer);
    if (atomic_load(&shm->left[peer]) != 0) {
        return false;
    }
    if (!open || process_ended) {
        raise_peer(shm, peer, "died");
        return false;
    }
    return true;
}

static void launcher_died(ms__shm *shm) {
    ms_net_failure failure = {.status = MS_ERR_PEER, .culprit = -1};
    snprintf(failure.sentence, sizeof failure.sentence, "the launcher (pid %" PRId64 ") died",
             shm->launcher_pid);
    ms__exchange_raise(&shm->exchange.base, &failure);
}

static void *watch_body(void *context) {
    ms__shm *shm = context;
    int size = shm->exchange.base.size;
    struct pollfd entries[2 + 2 * MS_NET_RANKS_MAX];
    entries[0] = (struct pollfd){.fd = shm->stop_fd, .events = POLLIN};
    entries[1] = (struct pollfd){.fd = shm->lifeline, .events = POLLIN};
    for (int peer = 0; peer < size; peer++) {
        /* poll ignores negative descriptors: oneself, and peers that are gone */
        entries[2 + 2 * peer] = (struct pollfd){.fd = shm->sockets[peer], .events = POLLIN};
        entries[3 + 2 * peer] = (struct pollfd){.fd = shm->process_fds[peer], .events = POLLIN};
    }
    for (;;) {
        if (poll(entries, (nfds_t)(2 + 2 * size), -1) < 0 && errno != EINTR) {
            return NULL;
        }
        if (entries[0].revents != 0) {
            return NULL;
        }
        if (entries[1].revents != 0) {
            launcher_died(shm);
            entries[1].fd = -1;
        }
        for (int peer = 0; peer < size; peer++) {
            struct pollfd *entry = &entries[2 + 2 * peer];
            if ((entry[0].revents | entry[1].revents) != 0 &&
                !watch_peer(shm, peer, entry[1].revents != 0)) {
                entry[0].fd = -1;
                entry[1].fd = -1;
            }
        }
    }
}

ms_status ms__shm_watch_start(ms__shm *shm) {
    shm->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (shm->stop_fd < 0) {
        return ms_fail(MS_ERR_SYSTEM, "cannot make an eventfd: %s", strerror(errno));
    }
    for (int peer = 0; peer < shm->exchange.base.size; peer++) {
        if (peer != shm->exchange.base.rank) {
            /* -1 where the kernel or a namespace refuses: the socket's end remains */
            shm->process_fds[peer] = pidfd_open((pid_t)shm->exchange.base.process_ids[peer], 0);
        }
    }
    return ms_thread_start(&shm->watch, "ms-watch", watch_body, shm);
}

void ms__shm_watch_stop(ms__shm *shm) {
    if (shm->stop_fd >= 0) {
        uint64_t one = 1;
        ssize_t ignored = write(shm->stop_fd, &one, sizeof one);
        (void)ignored;
        ms_thread_join(&shm->watch);
        close(shm->stop_fd);
        shm->stop_fd = -1;
    }
    for (int peer = 0; peer < shm->exchange.base.size; peer++) {
        if (shm->process_fds[peer] >= 0) {
            close(shm->process_fds[peer]);
            shm->process_fds[peer] = -1;
        }
    }
}
