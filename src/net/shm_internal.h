/* shm_internal.h - shared by shm.c (memory, life) and shm_watch.c (the thread that watches peers).
 */
#ifndef MS_NET_SHM_INTERNAL_H
#define MS_NET_SHM_INTERNAL_H

#include <pthread.h>

#include "base/thread.h"
#include "net/exchange.h"

#define MS__REGIONS_MAX 256 /* of one rank */
#define MS__REGION_ADDRESS (UINT32_MAX - 1)
#define MS__REGION_STAGING (UINT32_MAX - 2)
/* A region's name: slot in the low byte, the rest counts allocations, so a name is not used twice.
 */
#define MS__REGION_SLOT(id) ((id)&0xffu)

/* What goes over a socket after the ranks have met. */
enum { MS__NOTE_REGION = 1, MS__NOTE_FREE = 2, MS__NOTE_BYE = 3 };
typedef struct ms__note {
    uint32_t type;
    uint32_t region;
    uint64_t bytes;
} ms__note;

/* Own memory that peers may read. */
typedef struct ms__own_region {
    uint8_t *base; /* NULL: free slot */
    size_t bytes;
    uint32_t id;
} ms__own_region;

/* A peer's memory, mapped here by the watch thread. */
typedef struct ms__peer_region {
    uint32_t id; /* MS__REGION_NONE: nothing */
    uint8_t *base;
    size_t bytes;
} ms__peer_region;

typedef struct ms__shm {
    ms__exchange exchange; /* first: a transport is one of these */
    size_t control_bytes;
    int staging_fd;
    const uint8_t *peer_staging[MS_NET_RANKS_MAX];
    int sockets[MS_NET_RANKS_MAX]; /* -1: oneself */
    int process_fds[MS_NET_RANKS_MAX];
    int lifeline;
    int64_t launcher_pid;
    int stop_fd; /* eventfd */
    ms_thread watch;
    _Atomic int left[MS_NET_RANKS_MAX];
    pthread_mutex_t lock; /* of own regions and of sending notes */
    ms__own_region own_regions[MS__REGIONS_MAX];
    uint32_t allocations;
    /* Of the peers' regions. Not the lock above: that one is held while a note waits for room, and
     * the peer makes room only when its own watch thread gets on. */
    pthread_mutex_t peer_lock;
    ms__peer_region *peer_regions[MS_NET_RANKS_MAX];
} ms__shm;

/* Maps a memfd of at least `bytes` for reading only. NULL: errno. */
const uint8_t *ms__shm_map_peer(int fd, uint64_t bytes);

ms_status ms__shm_watch_start(ms__shm *shm);
void ms__shm_watch_stop(ms__shm *shm);
/* To all peers that are still there. */
void ms__shm_note(ms__shm *shm, const ms__note *note, int fd);

#endif
