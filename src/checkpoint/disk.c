/*
 * disk.c - the changes that a checkpoint makes to the disk, one function each.
 *
 * Where it stands: below staging.c and step_dirs.c; nothing else in checkpoint/ changes the disk.
 * So a test can stop the process, or fill the disk, at each of them in turn.
 *
 * Invariants: new files and directories are made exclusively and never through a link, so that a
 * name planted in a run's directory cannot lead a save elsewhere; removal never follows a link.
 *
 * Rejected: maps to write with (a full disk is then SIGBUS), and O_DIRECT (slices are not aligned).
 */
#define _GNU_SOURCE /* fallocate, renameat2 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/internal.h"

static ms__disk_hook disk_hook;
static void *disk_hook_context;

void ms__disk_set_hook(ms__disk_hook hook, void *context) {
    disk_hook = hook;
    disk_hook_context = context;
}

static ms_status fail_with(int code, const char *what, const char *path) {
    errno = code;
    return ms_fail(MS_ERR_IO, "%s: cannot %s: %m", path, what);
}

static ms_status ask_hook(const char *operation, const char *path) {
    int code = disk_hook != NULL ? disk_hook(operation, path, disk_hook_context) : 0;
    return code == 0 ? MS_OK : fail_with(code, operation, path);
}

ms_status ms__disk_make(const char *path) {
    MS_TRY(ask_hook("make directory", path));
    return mkdir(path, 0777) == 0 ? MS_OK : fail_with(errno, "make directory", path);
}

/* Reserves the bytes, or only sets the size on disks that cannot reserve. */
static ms_status reserve(int fd, const char *path, uint64_t bytes) {
    int result;
    do {
        result = bytes == 0 ? 0 : fallocate(fd, 0, 0, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        return MS_OK;
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
        return fail_with(errno, "reserve its bytes", path);
    }
    return ftruncate(fd, (off_t)bytes) == 0 ? MS_OK : fail_with(errno, "set its size", path);
}

ms_status ms__disk_create(const char *path, uint64_t bytes, int *fd) {
    MS_TRY(ask_hook("create", path));
    int made = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (made < 0) {
        return fail_with(errno, "create", path);
    }
    ms_status status = reserve(made, path, bytes);
    if (status != MS_OK) {
        close(made);
        return status;
    }
    *fd = made;
    return MS_OK;
}

ms_status ms__disk_open(const char *path, int *fd) {
    MS_TRY(ask_hook("open", path));
    int opened = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (opened < 0) {
        return fail_with(errno, "open to write", path);
    }
    *fd = opened;
    return MS_OK;
}

ms_status ms__disk_write(int fd, const char *path, const void *bytes, size_t length,
                         uint64_t offset) {
    MS_TRY(ask_hook("write", path));
    return ms_file_write_at(fd, path, bytes, length, offset);
}

ms_status ms__disk_close(int fd, const char *path, bool sync) {
    ms_status status = sync ? ask_hook("sync", path) : MS_OK;
    if (status == MS_OK && sync && fsync(fd) != 0) {
        status = fail_with(errno, "sync", path);
    }
    /* Network disks report a full disk here. */
    if (close(fd) != 0 && errno != EINTR && status == MS_OK) {
        status = fail_with(errno, "write", path);
    }
    return status;
}

ms_status ms__disk_write_whole(const char *path, const void *bytes, size_t length) {
    int fd = -1;
    MS_TRY(ms__disk_create(path, length, &fd));
    ms_status status = ms__disk_write(fd, path, bytes, length, 0);
    ms_status closed = ms__disk_close(fd, path, status == MS_OK);
    return status != MS_OK ? status : closed;
}

ms_status ms__disk_sync_directory(const char *path) {
    MS_TRY(ask_hook("sync directory", path));
    return ms_directory_sync(path);
}

ms_status ms__disk_rename(const char *from, const char *to) {
    MS_TRY(ask_hook("rename", from));
    if (rename(from, to) != 0) {
        int code = errno;
        char what[MS_PATH_BYTES + 32];
        snprintf(what, sizeof what, "rename to %s", to);
        return fail_with(code, what, from);
    }
    return MS_OK;
}

ms_status ms__disk_exchange(const char *first, const char *second, bool *done) {
    MS_TRY(ask_hook("exchange", second));
    if (renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE) == 0) {
        *done = true;
        return MS_OK;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
        return fail_with(errno, "replace", second);
    }
    *done = false;
    return MS_OK;
}

ms_status ms__disk_remove(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0) {
        return errno == ENOENT ? MS_OK : fail_with(errno, "remove", path);
    }
    MS_TRY(ask_hook("remove", path));
    if (S_ISDIR(info.st_mode)) {
        return ms_directory_remove(path);
    }
    return unlink(path) == 0 || errno == ENOENT ? MS_OK : fail_with(errno, "remove", path);
}
