/*
 * rendezvous.c - mailboxes made by the launcher, and a socket between any two ranks through them.
 *
 * Where it stands: cluster/launcher.c makes an offer before it starts the ranks; comm/ reads it
 * back in each rank and hands it to shm.c. The only place that knows the MS_LAUNCH_* variables.
 *
 * Meeting: for each lower rank j, rank r makes a pair of sockets, keeps one end and sends the other
 * to mailbox j; from its own mailbox it takes the ends that higher ranks sent. Rank 0 only
 * receives, rank 1 sends only to 0, and so on: nobody can wait in a circle. Descriptors: 2 N in the
 * launcher, N + 1 in a rank before, N - 1 after.
 *
 * Rejected: socket pairs for all pairs made by the launcher (N * N descriptors in it), a listening
 * socket with a name (stale names, strangers), and the launcher passing messages on (it would have
 * to live for the ranks to meet).
 */
#define _GNU_SOURCE 1

#include "net/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/socket.h"

#define GREETING_MAGIC UINT64_C(0x676e69746565726d)

typedef struct greeting {
    uint64_t magic;
    uint64_t job;
    uint32_t epoch;
    int32_t from;
} greeting;

/* ---- A rank's half ------------------------------------------------------------------------------
 */

static ms_status read_number(const char *name, int64_t minimum, int64_t maximum, int64_t *value) {
    const char *text = getenv(name);
    int64_t number;
    if (text == NULL || !ms_parse_i64(text, &number) || number < minimum || number > maximum) {
        return ms_fail(MS_ERR_CONFIG,
                       "%s is \"%s\", not a number from %" PRId64 " to %" PRId64
                       "; it is set by the launcher alone, unset all MS_LAUNCH_ variables",
                       name, text == NULL ? "" : text, minimum, maximum);
    }
    *value = number;
    return MS_OK;
}

static ms_status check_descriptor(const char *name, int64_t fd) {
    if (fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0) {
        return ms_fail(MS_ERR_CONFIG,
                       "%s names descriptor %" PRId64
                       ", which is not open; it is set by the launcher "
                       "alone, unset all MS_LAUNCH_ variables",
                       name, fd);
    }
    return MS_OK;
}

static ms_status read_peers(int size, int peers[MS_NET_RANKS_MAX]) {
    const char *text = getenv("MS_LAUNCH_PEERS");
    const char *at = text == NULL ? "" : text;
    for (int rank = 0; rank < size; rank++) {
        char *end;
        errno = 0;
        long fd = strtol(at, &end, 10);
        if (end == at || errno != 0 || fd < 0 || fd > INT32_MAX ||
            *end != (rank + 1 < size ? ',' : '\0')) {
            return ms_fail(MS_ERR_CONFIG, "MS_LAUNCH_PEERS is \"%s\", not %d descriptors",
                           text == NULL ? "" : text, size);
        }
        MS_TRY(check_descriptor("MS_LAUNCH_PEERS", fd));
        peers[rank] = (int)fd;
        at = end + 1;
    }
    return MS_OK;
}

ms_status ms_rendezvous_read(bool *launched, ms_rendezvous *rendezvous) {
    if (getenv("MS_LAUNCH_RANK") == NULL) {
        *launched = false;
        return MS_OK;
    }
    ms_rendezvous read = {0};
    int64_t size, rank, job, epoch, mailbox, lifeline, launcher;
    MS_TRY(read_number("MS_LAUNCH_SIZE", 1, MS_NET_RANKS_MAX, &size));
    MS_TRY(read_number("MS_LAUNCH_RANK", 0, size - 1, &rank));
    MS_TRY(read_number("MS_LAUNCH_JOB", INT64_MIN, INT64_MAX, &job));
    MS_TRY(read_number("MS_LAUNCH_EPOCH", 0, UINT32_MAX, &epoch));
    MS_TRY(read_number("MS_LAUNCH_PID", 1, INT32_MAX, &launcher));
    MS_TRY(read_number("MS_LAUNCH_MAILBOX", 0, INT32_MAX, &mailbox));
    MS_TRY(read_number("MS_LAUNCH_LIFELINE", 0, INT32_MAX, &lifeline));
    MS_TRY(check_descriptor("MS_LAUNCH_MAILBOX", mailbox));
    MS_TRY(check_descriptor("MS_LAUNCH_LIFELINE", lifeline));
    MS_TRY(read_peers((int)size, read.peers));
    read.size = (int)size;
    read.rank = (int)rank;
    read.job = (uint64_t)job;
    read.epoch = (uint32_t)epoch;
    read.mailbox = (int)mailbox;
    read.lifeline = (int)lifeline;
    read.launcher_pid = launcher;
    *rendezvous = read;
    *launched = true;
    return MS_OK;
}

void ms_rendezvous_close(ms_rendezvous *rendezvous) {
    close(rendezvous->mailbox);
    for (int rank = 0; rank < rendezvous->size; rank++) {
        close(rendezvous->peers[rank]);
    }
    rendezvous->mailbox = -1;
}

static ms_status missing_ranks(const ms_rendezvous *rendezvous, const int *sockets) {
    char list[256] = "";
    size_t length = 0;
    for (int rank = rendezvous->rank + 1; rank < rendezvous->size && length < sizeof list; rank++) {
        if (sockets[rank] < 0) {
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%d",
                                       length > 0 ? ", " : "", rank);
        }
    }
    return ms_fail(
        MS_ERR_TIMEOUT,
        "rank %d waited for rank %s to start, in vain; see whether it ended with an error of "
        "its own, or raise comm.death_timeout_s",
        rendezvous->rank, list);
}

static ms_status send_ends(const ms_rendezvous *rendezvous, int64_t deadline_ns, int *sockets) {
    greeting hello = {.magic = GREETING_MAGIC,
                      .job = rendezvous->job,
                      .epoch = rendezvous->epoch,
                      .from = rendezvous->rank};
    for (int lower = 0; lower < rendezvous->rank; lower++) {
        int pair[2];
        MS_TRY(ms__socket_pair(pair));
        sockets[lower] = pair[0];
        ms_status status = ms__socket_send(rendezvous->peers[lower], &hello, sizeof hello, &pair[1],
                                           1, deadline_ns);
        close(pair[1]);
        if (status == MS_ERR_PEER || status == MS_ERR_TIMEOUT) {
            return ms_fail(status, "rank %d cannot reach rank %d: it ended before the ranks met",
                           rendezvous->rank, lower);
        }
        MS_TRY(status);
    }
    return MS_OK;
}

static ms_status receive_ends(const ms_rendezvous *rendezvous, int64_t deadline_ns, int *sockets) {
    for (int left = rendezvous->size - 1 - rendezvous->rank; left > 0;) {
        greeting hello;
        size_t length;
        int fds[MS__SOCKET_FDS_MAX];
        ms_status status = ms__socket_receive(rendezvous->mailbox, &hello, sizeof hello, &length,
                                              fds, deadline_ns);
        if (status == MS_ERR_TIMEOUT) {
            return missing_ranks(rendezvous, sockets);
        }
        MS_TRY(status);
        if (length == 0) {
            return ms_fail(MS_ERR_PEER, "rank %d: all other ranks ended before the ranks met",
                           rendezvous->rank);
        }
        bool good = length == sizeof hello && hello.magic == GREETING_MAGIC &&
                    hello.job == rendezvous->job && hello.epoch == rendezvous->epoch &&
                    hello.from > rendezvous->rank && hello.from < rendezvous->size &&
                    sockets[hello.from] < 0 && fds[0] >= 0;
        if (!good) { /* not one of ours: drop it */
            close(fds[0]);
            continue;
        }
        sockets[hello.from] = fds[0];
        left--;
    }
    return MS_OK;
}

ms_status ms_rendezvous_meet(const ms_rendezvous *rendezvous, int64_t deadline_ns, int *sockets) {
    for (int rank = 0; rank < rendezvous->size; rank++) {
        sockets[rank] = -1;
    }
    ms_status status = send_ends(rendezvous, deadline_ns, sockets);
    if (status == MS_OK) {
        status = receive_ends(rendezvous, deadline_ns, sockets);
    }
    for (int rank = 0; rank < rendezvous->size && status != MS_OK; rank++) {
        if (sockets[rank] >= 0) {
            close(sockets[rank]);
            sockets[rank] = -1;
        }
    }
    return status;
}

/* ---- The launcher's half ------------------------------------------------------------------------
 */

ms_status ms_rendezvous_offer_make(int size, uint64_t job, uint32_t epoch,
                                   ms_rendezvous_offer *offer) {
    if (size < 1 || size > MS_NET_RANKS_MAX) {
        return ms_fail(MS_ERR_ARGUMENT, "%d ranks; 1 to %d are possible on one machine", size,
                       MS_NET_RANKS_MAX);
    }
    ms_rendezvous_offer made = {.size = 0, .job = job, .epoch = epoch};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return ms_fail(MS_ERR_SYSTEM, "cannot make a pipe: %s", strerror(errno));
    }
    made.lifeline_read = ends[0];
    made.lifeline_write = ends[1];
    for (int rank = 0; rank < size; rank++) {
        ms_status status = ms__socket_pair(ends);
        if (status != MS_OK) {
            ms_rendezvous_offer_close(&made);
            return status;
        }
        made.receive[rank] = ends[0];
        made.send[rank] = ends[1];
        made.size = rank + 1;
    }
    *offer = made;
    return MS_OK;
}

static void close_once(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void ms_rendezvous_offer_handed_over(ms_rendezvous_offer *offer) {
    for (int rank = 0; rank < offer->size; rank++) {
        close_once(&offer->receive[rank]);
        close_once(&offer->send[rank]);
    }
    close_once(&offer->lifeline_read);
}

void ms_rendezvous_offer_close(ms_rendezvous_offer *offer) {
    ms_rendezvous_offer_handed_over(offer);
    close_once(&offer->lifeline_write);
}

static ms_status own_variables(const ms_rendezvous_offer *offer, int rank, ms_text *text) {
    MS_TRY(ms_text_printf(text, "MS_LAUNCH_RANK=%d%c", rank, 0));
    MS_TRY(ms_text_printf(text, "MS_LAUNCH_SIZE=%d%c", offer->size, 0));
    MS_TRY(ms_text_printf(text, "MS_LAUNCH_JOB=%" PRId64 "%c", (int64_t)offer->job, 0));
    MS_TRY(ms_text_printf(text, "MS_LAUNCH_EPOCH=%" PRIu32 "%c", offer->epoch, 0));
    MS_TRY(ms_text_printf(text, "MS_LAUNCH_PID=%d%c", (int)getpid(), 0));
    MS_TRY(ms_text_printf(text, "MS_LAUNCH_MAILBOX=%d%c", offer->receive[rank], 0));
    MS_TRY(ms_text_printf(text, "MS_LAUNCH_LIFELINE=%d%c", offer->lifeline_read, 0));
    MS_TRY(ms_text_printf(text, "MS_LAUNCH_PEERS="));
    for (int peer = 0; peer < offer->size; peer++) {
        MS_TRY(ms_text_printf(text, "%d%c", offer->send[peer], peer + 1 < offer->size ? ',' : 0));
    }
    return MS_OK;
}

#define OWN_VARIABLE_COUNT 8

ms_status ms_rendezvous_environment(const ms_rendezvous_offer *offer, int rank, char *const *base,
                                    char ***environment) {
    ms_text text = {0};
    ms_status status = own_variables(offer, rank, &text);
    size_t base_count = 0;
    while (base != NULL && base[base_count] != NULL) {
        base_count++;
    }
    size_t pointer_bytes = (base_count + OWN_VARIABLE_COUNT + 1) * sizeof(char *);
    char *block = NULL;
    if (status == MS_OK) {
        void *memory;
        status = ms_alloc(pointer_bytes + text.length, MS_MEMORY_PROCESS, &memory);
        block = status == MS_OK ? memory : NULL;
    }
    if (status == MS_OK) {
        char **list = (char **)(void *)block;
        size_t count = 0;
        for (size_t i = 0; i < base_count; i++) {
            if (strncmp(base[i], "MS_LAUNCH_", 10) != 0) {
                list[count++] = base[i];
            }
        }
        char *variables = block + pointer_bytes;
        memcpy(variables, text.bytes, text.length);
        for (size_t at = 0; at < text.length; at += strlen(variables + at) + 1) {
            list[count++] = variables + at;
        }
        list[count] = NULL;
        *environment = list;
    }
    ms_text_release(&text);
    return status;
}

bool ms_rendezvous_inherit(const ms_rendezvous_offer *offer, int rank) {
    bool good = fcntl(offer->receive[rank], F_SETFD, 0) == 0 &&
                fcntl(offer->lifeline_read, F_SETFD, 0) == 0;
    for (int peer = 0; peer < offer->size; peer++) {
        good = good && fcntl(offer->send[peer], F_SETFD, 0) == 0;
    }
    return good;
}
