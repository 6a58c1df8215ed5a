/*
 * socket.c - sendmsg and recvmsg with SCM_RIGHTS.
 *
 * Where it stands: under rendezvous.c and shm_watch.c. SOCK_SEQPACKET keeps message borders, so
 * nothing is parsed out of a byte stream, and reports the other end's death as end of file. Sockets
 * are non-blocking: every wait here is a poll with a deadline.
 */
#define _GNU_SOURCE 1

#include "net/socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

ms_status ms__socket_pair(int sockets[2]) {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) != 0) {
        return ms_fail(MS_ERR_SYSTEM, "cannot make a pair of Unix sockets: %s", strerror(errno));
    }
    return MS_OK;
}

/* Until the socket is ready; false: the deadline has passed. */
static bool wait_ready(int socket, short events, int64_t deadline_ns) {
    for (;;) {
        int64_t left_ns = deadline_ns - ms_clock_ns();
        if (left_ns <= 0) {
            return false;
        }
        struct pollfd entry = {.fd = socket, .events = events};
        int64_t left_ms = left_ns / 1000000 + 1;
        int ready = poll(&entry, 1, left_ms < 1000 ? (int)left_ms : 1000);
        if (ready > 0) {
            return true;
        }
    }
}

ms_status ms__socket_send(int socket, const void *bytes, size_t length, const int *fds,
                          int fd_count, int64_t deadline_ns) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MS__SOCKET_FDS_MAX * sizeof(int))];
    } control = {0};
    union {
        const void *in;
        void *out;
    } unconst = {.in = bytes}; /* iovec is for both directions */
    struct iovec part = {.iov_base = unconst.out, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, (size_t)fd_count * sizeof(int));
    }
    for (;;) {
        if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            return MS_OK;
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != ETOOMANYREFS) {
            return errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED
                       ? MS_ERR_PEER
                       : ms_fail(MS_ERR_SYSTEM, "cannot send on a Unix socket: %s",
                                 strerror(errno));
        }
        if (!wait_ready(socket, POLLOUT, deadline_ns)) {
            return MS_ERR_TIMEOUT;
        }
    }
}

static void take_descriptors(struct msghdr *message, int fds[MS__SOCKET_FDS_MAX]) {
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
            if (i < MS__SOCKET_FDS_MAX && fds[i] < 0) {
                fds[i] = fd;
            } else {
                close(fd);
            }
        }
    }
}

ms_status ms__socket_receive(int socket, void *bytes, size_t length, size_t *received,
                             int fds[MS__SOCKET_FDS_MAX], int64_t deadline_ns) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MS__SOCKET_FDS_MAX * sizeof(int))];
    } control;
    for (int i = 0; i < MS__SOCKET_FDS_MAX; i++) {
        fds[i] = -1;
    }
    int ends = 0;
    for (;;) {
        memset(&control, 0, sizeof control);
        struct iovec part = {.iov_base = bytes, .iov_len = length};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (count == 0 && ++ends < 2) {
            /* The kernel looks for a message and then for the end: a last message may come in
             * between. At a second look the end is the end. */
            continue;
        }
        if (count >= 0) {
            take_descriptors(&message, fds);
            *received = (size_t)count;
            return MS_OK;
        }
        /* ECONNRESET: the other end closed without reading all we sent. It is told once and before
         * what the other end sent last, which comes next. */
        if (errno == EINTR || errno == ECONNRESET) {
            continue;
        }
        if (errno != EAGAIN) {
            return ms_fail(MS_ERR_SYSTEM, "cannot receive on a Unix socket: %s", strerror(errno));
        }
        if (deadline_ns == 0) {
            return MS_AGAIN;
        }
        if (!wait_ready(socket, POLLIN, deadline_ns)) {
            return MS_ERR_TIMEOUT;
        }
    }
}
