/* net_loop.h - transport between ranks of one process: tests, the simulator, and jobs of one rank.
 */
#ifndef MS_NET_NET_LOOP_H
#define MS_NET_NET_LOOP_H

#include "net/transport.h"

/* How the ranks' view of each other is disturbed; all zero: not at all. */
typedef struct ms_loop_options {
    uint64_t job;
    uint64_t seed;
    int delay_max;    /* polls that a frame or a release may be held back */
    int stream_bytes; /* a stream grows by 1 .. stream_bytes bytes a look */
    bool staged;      /* only allocated memory is read directly */
} ms_loop_options;

/* Makes all ranks at once; each is destroyed by its own ops->destroy. */
ms_status ms_loop_create(int size, const ms_loop_options *options, ms_transport **transports);

#endif
