/*
 * run_lock.c - one run at a time on a run's directory.
 *
 * Where it stands: rank 0 of a training run takes the lock before it looks for a checkpoint and
 * holds it to its end; a second run on the directory is refused with the pid of the first.
 *
 * Data: the file DIR/.lock holds "pid host" of the holder. The lock itself is flock(2) on it: the
 * kernel gives it up when the process dies, however it dies, so there is no stale lock to clear by
 * hand. The file stays: to remove it would open a race in which two runs hold locks on two files of
 * one name.
 *
 * Rejected: fcntl locks (a process loses them when it closes any descriptor of the file, and two
 * runs in one process would not see each other), pid files without a lock (a dead holder looks
 * alive once its pid is used again).
 */
#define _GNU_SOURCE /* O_NOFOLLOW, gethostname */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"

#define LOCK_NAME ".lock"
#define HOLDER_BYTES 128

struct ms_run_lock {
    int fd;
};

/* What the holder wrote; "an unknown process" if it has not yet. */
static void read_holder(int fd, char holder[HOLDER_BYTES]) {
    ssize_t got = pread(fd, holder, HOLDER_BYTES - 1, 0);
    holder[got > 0 ? got : 0] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    if (holder[0] == '\0') {
        snprintf(holder, HOLDER_BYTES, "an unknown process");
    }
}

static ms_status write_holder(int fd, const char *path) {
    char host[64] = "";
    char holder[HOLDER_BYTES];
    if (gethostname(host, sizeof host - 1) != 0) {
        host[0] = '\0';
    }
    int length = snprintf(holder, sizeof holder, "pid %d on %s\n", (int)getpid(), host);
    if (ftruncate(fd, 0) != 0) {
        return ms_fail(MS_ERR_IO, "%s: cannot truncate: %m", path);
    }
    return ms_file_write_at(fd, path, holder, (size_t)length, 0);
}

static ms_status lock_file(int fd, const char *dir, const char *path) {
    int result;
    do {
        result = flock(fd, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        return write_holder(fd, path);
    }
    if (errno != EWOULDBLOCK) {
        return ms_fail(MS_ERR_SYSTEM, "%s: cannot lock: %m", path);
    }
    char holder[HOLDER_BYTES];
    read_holder(fd, holder);
    return ms_fail(MS_ERR_BUSY,
                   "%s: another run uses this directory (%s); wait for it, stop it, or set another "
                   "checkpoint.dir",
                   dir, holder);
}

ms_status ms_run_lock_take(const char *dir, ms_run_lock **lock) {
    char path[MS_PATH_BYTES];
    MS_TRY(ms_directory_make(dir));
    MS_TRY(ms_path_join(dir, LOCK_NAME, path, sizeof path));
    ms_run_lock *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_PROCESS, &made));
    ms_status status;
    made->fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (made->fd < 0) {
        status = ms_fail(MS_ERR_IO, "%s: cannot open: %m", path);
        goto free_lock;
    }
    MS_TRY_GOTO(lock_file(made->fd, dir, path), close_file);
    *lock = made;
    return MS_OK;
close_file:
    close(made->fd);
free_lock:
    ms_free(made);
    return status;
}

void ms_run_lock_release(ms_run_lock *lock) {
    if (lock != NULL) {
        close(lock->fd);
        ms_free(lock);
    }
}
