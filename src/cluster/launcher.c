/*
 * launcher.c - starts the ranks, watches them, and is honest about how they ended.
 *
 * Where it stands: cli/train.c calls it for --ranks N in a process that has done nothing else yet;
 * each rank is the same program with the same arguments and MS_LAUNCH_* in its environment
 * (net/rendezvous.h), so it takes the other branch.
 *
 * Ranks are fork + exec, never fork alone: a fork after an OpenMP region hangs. A rank asks the
 * kernel for SIGKILL at its parent's death before it becomes the program, and holds the read end of
 * a pipe whose end the launcher keeps open: whichever way the launcher ends, no rank outlives it.
 *
 * One poll() waits for everything: signals by signalfd, the ranks' ends by pidfd. After the first
 * failure the others have report_ms to end by themselves (they hear of the death and name it), then
 * get SIGTERM, and SIGKILL kill_ms later. The kernel closes a dying rank's sockets before it can be
 * reaped, so a survivor may be seen to exit before the rank whose death it exits for: what kind of
 * end it was decides who is named, and the order only between ends of one kind.
 *
 * Rejected: posix_spawn (it cannot set the parent-death signal), SIGCHLD handlers (which rank ended
 * first is then unknown), process groups of their own for ranks (Ctrl-Z and terminal output
 * suffer).
 */
#define _GNU_SOURCE 1

#include "cluster/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "net/rendezvous.h"

#define START_FAILED_STATUS 127
#define STOP_REQUESTS_MAX 3

typedef struct rank_process {
    pid_t pid; /* 0: not started, or reaped */
    int process_fd;
} rank_process;

typedef struct launch {
    const ms_launch_options *options;
    ms_rendezvous_offer offer;
    rank_process processes[MS_NET_RANKS_MAX];
    int running;
    int signal_fd;
    sigset_t signals_before;
    int failed_rank; /* the one to be named; -1: none */
    int failed_weight;
    siginfo_t failed_info;
    bool any_stopped;
    int stop_requests;             /* SIGTERM and SIGINT so far */
    int64_t terminate_ns, kill_ns; /* when the rest gets SIGTERM and SIGKILL; 0: not */
    bool terminated;               /* SIGTERM was sent: ends from here on are of our making */
} launch;

/* ---- Starting -----------------------------------------------------------------------------------
 */

/* In the child; only async-signal-safe calls. */
static void become_rank(const launch *job, int rank, pid_t launcher, char **environment,
                        int report_fd) {
    const ms_launch_options *options = job->options;
    union {
        const char *const *in;
        char *const *out;
    } unconst = {.in = options->argv};
    if (rank > 0) { /* one reader of the terminal is enough */
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (nothing >= 0) {
            dup2(nothing, STDIN_FILENO);
        }
    }
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == launcher &&
        ms_rendezvous_inherit(&job->offer, rank) &&
        sigprocmask(SIG_SETMASK, &job->signals_before, NULL) == 0) {
        execve(options->program != NULL ? options->program : "/proc/self/exe", unconst.out,
               environment);
    }
    int code = errno;
    ssize_t ignored = write(report_fd, &code, sizeof code);
    (void)ignored;
    _exit(START_FAILED_STATUS);
}

static ms_status start_rank(launch *job, int rank) {
    char **environment;
    MS_TRY(ms_rendezvous_environment(&job->offer, rank, environ, &environment));
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) {
        ms_free(environment);
        return ms_fail(MS_ERR_SYSTEM, "cannot make a pipe: %s", strerror(errno));
    }
    pid_t launcher = getpid();
    fflush(NULL); /* a child that fails to start must not write our buffers again */
    pid_t pid = fork();
    if (pid == 0) {
        become_rank(job, rank, launcher, environment, report[1]);
    }
    int fork_code = errno;
    close(report[1]);
    ms_free(environment);
    if (pid < 0) {
        close(report[0]);
        return ms_fail(MS_ERR_SYSTEM, "cannot start rank %d: %s", rank, strerror(fork_code));
    }
    job->processes[rank].pid = pid;
    job->running++;
    int code = 0;
    ssize_t got;
    do {
        got = read(report[0], &code, sizeof code); /* ends at exec */
    } while (got < 0 && errno == EINTR);
    close(report[0]);
    if (got > 0) {
        return ms_fail(MS_ERR_SYSTEM, "cannot start rank %d: %s", rank, strerror(code));
    }
    job->processes[rank].process_fd = pidfd_open(pid, 0);
    if (job->processes[rank].process_fd < 0) {
        return ms_fail(MS_ERR_SYSTEM, "cannot watch rank %d (pid %d): %s", rank, (int)pid,
                       strerror(errno));
    }
    return MS_OK;
}

static ms_status take_signals(launch *job) {
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGTERM);
    sigaddset(&mine, SIGINT);
    sigaddset(&mine, SIGHUP);
    sigaddset(&mine, SIGUSR1);
    sigprocmask(SIG_BLOCK, &mine, &job->signals_before);
    job->signal_fd = signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK);
    if (job->signal_fd < 0) {
        ms_status status = ms_fail(MS_ERR_SYSTEM, "cannot take signals: %s", strerror(errno));
        sigprocmask(SIG_SETMASK, &job->signals_before, NULL);
        return status;
    }
    return MS_OK;
}

/* ---- Watching -----------------------------------------------------------------------------------
 */

static void signal_ranks(launch *job, int number) {
    for (int rank = 0; rank < job->options->ranks; rank++) {
        if (job->processes[rank].pid > 0) {
            kill(job->processes[rank].pid, number);
        }
    }
}

static void forward_signals(launch *job) {
    struct signalfd_siginfo info;
    while (read(job->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
            job->stop_requests++;
        }
        if (job->stop_requests >= STOP_REQUESTS_MAX) { /* whoever asks so often means it */
            job->terminated = true;
            signal_ranks(job, SIGKILL);
            continue;
        }
        /* A key press in the terminal reaches the ranks, in the same process group, by itself. */
        if (info.ssi_code != SI_KERNEL) {
            signal_ranks(job, (int)info.ssi_signo);
        }
    }
}

/* How much an end looks like the cause of the others. */
static int end_weight(const ms_launch_options *options, const siginfo_t *info) {
    if (info->si_code != CLD_EXITED) {
        return 3;
    }
    return options->peer_status != 0 && info->si_status == options->peer_status ? 1 : 2;
}

static void note_end(launch *job, int rank, const siginfo_t *info) {
    rank_process *process = &job->processes[rank];
    bool exited = info->si_code == CLD_EXITED;
    process->pid = 0;
    job->running--;
    if (process->process_fd >= 0) {
        close(process->process_fd);
        process->process_fd = -1;
    }
    if (exited && info->si_status == 0) {
        return;
    }
    if (exited && job->options->stop_status != 0 && info->si_status == job->options->stop_status) {
        job->any_stopped = true;
        return;
    }
    int weight = end_weight(job->options, info);
    if (weight > job->failed_weight && (!job->terminated || job->failed_rank < 0)) {
        job->failed_rank = rank;
        job->failed_weight = weight;
        job->failed_info = *info;
    }
}

/* Takes the ends of all ranks that have ended by now. */
static void reap(launch *job) {
    for (int rank = 0; rank < job->options->ranks; rank++) {
        siginfo_t info = {0};
        if (job->processes[rank].pid > 0 &&
            waitid(P_PID, (id_t)job->processes[rank].pid, &info, WEXITED | WNOHANG) == 0 &&
            info.si_pid != 0) {
            note_end(job, rank, &info);
        }
    }
    if (job->failed_rank >= 0 && job->running > 0 && job->terminate_ns == 0) {
        job->terminate_ns = ms_clock_ns() + (int64_t)job->options->report_ms * 1000000;
        job->kill_ns = job->terminate_ns + (int64_t)job->options->kill_ms * 1000000;
    }
}

/* SIGTERM and SIGKILL when their time has come; milliseconds until the next one, -1: none. */
static int end_the_rest(launch *job) {
    if (job->terminate_ns == 0) {
        return -1;
    }
    int64_t now_ns = ms_clock_ns();
    if (!job->terminated && now_ns >= job->terminate_ns) {
        signal_ranks(job, SIGTERM);
        job->terminated = true;
    }
    if (now_ns >= job->kill_ns) {
        signal_ranks(job, SIGKILL);
        return 100;
    }
    int64_t next_ns = job->terminated ? job->kill_ns : job->terminate_ns;
    return (int)((next_ns - now_ns) / 1000000) + 1;
}

static void watch(launch *job) {
    reap(job);
    while (job->running > 0) {
        struct pollfd entries[1 + MS_NET_RANKS_MAX];
        entries[0] = (struct pollfd){.fd = job->signal_fd, .events = POLLIN};
        for (int rank = 0; rank < job->options->ranks; rank++) {
            entries[1 + rank] =
                (struct pollfd){.fd = job->processes[rank].process_fd, .events = POLLIN};
        }
        int wait_ms = end_the_rest(job);
        if (poll(entries, (nfds_t)(1 + job->options->ranks), wait_ms) > 0 &&
            entries[0].revents != 0) {
            forward_signals(job);
        }
        reap(job);
    }
}

/* ---- The end ------------------------------------------------------------------------------------
 */

static ms_status conclude(const launch *job, int *exit_status) {
    if (job->failed_rank < 0) {
        *exit_status = job->any_stopped ? job->options->stop_status : 0;
        return MS_OK;
    }
    int number = job->failed_info.si_status;
    if (job->failed_info.si_code == CLD_EXITED) {
        *exit_status = number;
        return ms_fail(MS_ERR_PEER, "rank %d exited with status %d", job->failed_rank, number);
    }
    *exit_status = 128 + number;
    return ms_fail(MS_ERR_PEER, "rank %d was killed by signal %d (%s)", job->failed_rank, number,
                   strsignal(number));
}

static uint64_t make_job_number(void) {
    int64_t seed[2] = {(int64_t)(ms_wall_time_s() * 1e6), getpid()};
    ms_random_block block = ms_random_at(ms_random_key_make((uint64_t)seed[0], "job"),
                                         (uint64_t)seed[1], (uint64_t)ms_clock_ns());
    return ((uint64_t)block.word[0] << 32 | block.word[1]) | 1;
}

static ms_status check_launch(const ms_launch_options *options) {
    if (options->ranks < 1 || options->ranks > MS_NET_RANKS_MAX) {
        return ms_fail(MS_ERR_ARGUMENT, "%d ranks; 1 to %d are possible on one machine",
                       options->ranks, MS_NET_RANKS_MAX);
    }
    if (options->argv == NULL || options->argv[0] == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "the ranks' arguments are missing");
    }
    if (options->report_ms < 0 || options->kill_ms < 0) {
        return ms_fail(MS_ERR_ARGUMENT, "report_ms %d and kill_ms %d cannot be negative",
                       options->report_ms, options->kill_ms);
    }
    return MS_OK;
}

ms_status ms_launch_ranks(const ms_launch_options *options, int *exit_status) {
    MS_TRY(check_launch(options));
    launch job = {.options = options, .failed_rank = -1};
    for (int rank = 0; rank < MS_NET_RANKS_MAX; rank++) {
        job.processes[rank].process_fd = -1;
    }
    MS_TRY(ms_rendezvous_offer_make(
        options->ranks, options->job != 0 ? options->job : make_job_number(), 0, &job.offer));
    ms_status status = take_signals(&job);
    if (status != MS_OK) {
        ms_rendezvous_offer_close(&job.offer);
        return status;
    }
    for (int rank = 0; rank < options->ranks && status == MS_OK; rank++) {
        status = start_rank(&job, rank);
    }
    ms_rendezvous_offer_handed_over(&job.offer);
    if (status != MS_OK) { /* all or nothing */
        signal_ranks(&job, SIGKILL);
        for (int rank = 0; rank < options->ranks; rank++) {
            if (job.processes[rank].pid > 0) {
                waitpid(job.processes[rank].pid, NULL, 0);
            }
            if (job.processes[rank].process_fd >= 0) {
                close(job.processes[rank].process_fd);
            }
        }
    } else {
        watch(&job);
        status = conclude(&job, exit_status);
    }
    close(job.signal_fd);
    sigprocmask(SIG_SETMASK, &job.signals_before, NULL);
    ms_rendezvous_offer_close(&job.offer);
    return status;
}
