/* socket.h - whole messages with descriptors over SOCK_SEQPACKET Unix sockets. */
#ifndef MS_NET_SOCKET_H
#define MS_NET_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MS__SOCKET_FDS_MAX 2

/* A pair of connected sockets, non-blocking and close-on-exec. */
ms_status ms__socket_pair(int sockets[2]);

/*
 * Sends one message, waiting for room until the deadline on ms_clock_ns. MS_ERR_PEER without a
 * sentence when nobody is there any more, MS_ERR_TIMEOUT without one when the deadline passed.
 */
ms_status ms__socket_send(int socket, const void *bytes, size_t length, const int *fds,
                          int fd_count, int64_t deadline_ns);
/*
 * Receives one message of at most `length` bytes and its descriptors (close-on-exec; unused places
 * are -1), waiting until the deadline (0: not at all, then MS_AGAIN). *received 0: the other end is
 * closed.
 */
ms_status ms__socket_receive(int socket, void *bytes, size_t length, size_t *received,
                             int fds[MS__SOCKET_FDS_MAX], int64_t deadline_ns);

#endif
