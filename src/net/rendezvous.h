/*
 * rendezvous.h - how the ranks of a job find each other, and the only reader of MS_LAUNCH_*.
 *
 * The launcher makes one mailbox (a pair of Unix sockets) for each rank. Rank r inherits the
 * receiving end of its own and the sending ends of all; through them any two ranks get a socket of
 * their own.
 *
 *   MS_LAUNCH_RANK, MS_LAUNCH_SIZE   numbers
 *   MS_LAUNCH_JOB, MS_LAUNCH_EPOCH   what every frame carries; the epoch counts restarts
 *   MS_LAUNCH_MAILBOX                descriptor of the receiving end
 *   MS_LAUNCH_PEERS                  descriptors of the sending ends, by rank, with commas
 *   MS_LAUNCH_LIFELINE               read end of a pipe that closes when the launcher dies
 *   MS_LAUNCH_PID                    the launcher, for messages
 */
#ifndef MS_NET_RENDEZVOUS_H
#define MS_NET_RENDEZVOUS_H

#include "base/text.h"
#include "net/transport.h"

typedef struct ms_rendezvous {
    int rank, size;
    uint64_t job;
    uint32_t epoch;
    int mailbox;
    int peers[MS_NET_RANKS_MAX]; /* sending ends */
    int lifeline;
    int64_t launcher_pid;
} ms_rendezvous;

/*
 * Reads the environment. *launched false: this process was started by hand; the rest is then
 * untouched. MS_ERR_CONFIG when the variables contradict each other. The descriptors are made
 * close-on-exec.
 */
ms_status ms_rendezvous_read(bool *launched, ms_rendezvous *rendezvous);
/* Closes the descriptors; they can be used once. */
void ms_rendezvous_close(ms_rendezvous *rendezvous);

/* A socket to every other rank (sockets[rank] is -1), within the deadline on ms_clock_ns. */
ms_status ms_rendezvous_meet(const ms_rendezvous *rendezvous, int64_t deadline_ns, int *sockets);

/* The launcher's half. */
typedef struct ms_rendezvous_offer {
    int size;
    uint64_t job;
    uint32_t epoch;
    int receive[MS_NET_RANKS_MAX];
    int send[MS_NET_RANKS_MAX];
    int lifeline_read, lifeline_write;
} ms_rendezvous_offer;
ms_status ms_rendezvous_offer_make(int size, uint64_t job, uint32_t epoch,
                                   ms_rendezvous_offer *offer);
/* Closes what the ranks alone need, once they are started; the lifeline stays. */
void ms_rendezvous_offer_handed_over(ms_rendezvous_offer *offer);
void ms_rendezvous_offer_close(ms_rendezvous_offer *offer);
/* A rank's environment: `base` without MS_LAUNCH_*, plus the rank's own; one block for ms_free. */
ms_status ms_rendezvous_environment(const ms_rendezvous_offer *offer, int rank, char *const *base,
                                    char ***environment);
/* In the child before exec: lets it inherit its descriptors. Async-signal-safe. False: errno. */
bool ms_rendezvous_inherit(const ms_rendezvous_offer *offer, int rank);

#endif
