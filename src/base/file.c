/*
 * file.c - files as wholes, maps and durable writes.
 *
 * Where it stands: the only file system calls of the library besides those of net/ and the
 * launcher; every reader of data, checkpoints and configuration goes through it.
 *
 * Invariants: every error names the path and the system's reason; descriptors are close-on-exec; a
 * successful ms_file_write_atomic survives a power cut, a failed one leaves the old file untouched
 * and no temporary file behind.
 *
 * Rejected: stdio (its errors arrive late and its buffers are allocated behind the counters).
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

/* How deep ms_directory_remove follows folders: each level holds one descriptor. */
#define REMOVE_DEPTH_MAX 64
/* One system call moves at most this; Linux itself stops at 2^31 - 4096. */
#define TRANSFER_BYTES_MAX ((size_t)1 << 30)

static ms_status fail_errno(const char *what, const char *path) {
    int code = errno;
    ms_status status = code == ENOENT   ? MS_ERR_NOT_FOUND
                       : code == EEXIST ? MS_ERR_EXISTS
                       : code == ENOMEM ? MS_ERR_MEMORY
                                        : MS_ERR_IO;
    errno = code;
    return ms_fail(status, "%s: cannot %s: %m", path, what);
}

static int open_retry(const char *path, int flags, mode_t mode) {
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

/* Closes without losing the errno of what went wrong before. */
static void close_quietly(int fd) {
    int code = errno;
    close(fd);
    errno = code;
}

static ms_status read_all(int fd, const char *path, size_t bytes_max, ms_text *text) {
    char buffer[16384];
    for (;;) {
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return fail_errno("read", path);
        }
        if (got == 0) {
            return MS_OK;
        }
        if ((size_t)got > bytes_max - text->length) {
            return ms_fail(MS_ERR_RANGE, "%s: longer than the %zu bytes that may be read", path,
                           bytes_max);
        }
        MS_TRY(ms_text_append(text, buffer, (size_t)got));
    }
}

ms_status ms_file_read(const char *path, size_t bytes_max, ms_text *text) {
    int fd = open_retry(path, O_RDONLY, 0);
    if (fd < 0) {
        return fail_errno("open", path);
    }
    ms_status status;
    ms_text fresh = {0};
    MS_TRY_GOTO(ms_text_append(&fresh, "", 0), release_text); /* an empty file is "" not NULL */
    struct stat info;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size > bytes_max) {
        status = ms_fail(MS_ERR_RANGE, "%s: is %" PRIu64 " bytes, at most %zu may be read", path,
                         (uint64_t)info.st_size, bytes_max);
        goto release_text;
    }
    /* Not the size alone: pipes have none and /proc says 0. */
    MS_TRY_GOTO(read_all(fd, path, bytes_max, &fresh), release_text);
    close(fd);
    ms_text_release(text);
    *text = fresh;
    return MS_OK;
release_text:
    ms_text_release(&fresh);
    close(fd);
    return status;
}

ms_status ms_file_map_open(const char *path, ms_file_map *map) {
    int fd = open_retry(path, O_RDONLY, 0);
    if (fd < 0) {
        return fail_errno("open", path);
    }
    ms_status status;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = fail_errno("stat", path);
        goto close_file;
    }
    if (!S_ISREG(info.st_mode)) {
        status = ms_fail(MS_ERR_IO, "%s: not a regular file, so it cannot be mapped", path);
        goto close_file;
    }
    void *data = NULL;
    if (info.st_size > 0) {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = fail_errno("map", path);
            goto close_file;
        }
    }
    close(fd);
    map->data = data;
    map->bytes = (size_t)info.st_size;
    return MS_OK;
close_file:
    close(fd);
    return status;
}

void ms_file_map_close(ms_file_map *map) {
    if (map->data != NULL) {
        munmap((void *)(uintptr_t)map->data, map->bytes);
    }
    *map = (ms_file_map){0};
}

ms_status ms_file_write_at(int fd, const char *path, const void *bytes, size_t length,
                           uint64_t offset) {
    uint64_t end;
    if (__builtin_add_overflow(offset, length, &end) || end > INT64_MAX) {
        return ms_fail(MS_ERR_RANGE, "%s: cannot write %zu bytes at offset %" PRIu64, path, length,
                       offset);
    }
    const char *from = bytes;
    while (length > 0) {
        size_t piece = length < TRANSFER_BYTES_MAX ? length : TRANSFER_BYTES_MAX;
        ssize_t put = pwrite(fd, from, piece, (off_t)offset);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            errno = put == 0 ? ENOSPC : errno;
            return fail_errno("write", path);
        }
        from += put;
        length -= (size_t)put;
        offset += (uint64_t)put;
    }
    return MS_OK;
}

ms_status ms_file_read_at(int fd, const char *path, void *bytes, size_t length, uint64_t offset) {
    uint64_t end;
    if (__builtin_add_overflow(offset, length, &end) || end > INT64_MAX) {
        return ms_fail(MS_ERR_RANGE, "%s: cannot read %zu bytes at offset %" PRIu64, path, length,
                       offset);
    }
    char *to = bytes;
    while (length > 0) {
        size_t piece = length < TRANSFER_BYTES_MAX ? length : TRANSFER_BYTES_MAX;
        ssize_t got = pread(fd, to, piece, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return fail_errno("read", path);
        }
        if (got == 0) {
            return ms_fail(MS_ERR_FORMAT,
                           "%s: ends at offset %" PRIu64 ", %zu bytes before what was wanted", path,
                           offset, length);
        }
        to += got;
        length -= (size_t)got;
        offset += (uint64_t)got;
    }
    return MS_OK;
}

static ms_status sync_retry(int fd, const char *path) {
    int result;
    do {
        result = fsync(fd);
    } while (result != 0 && errno == EINTR);
    /* Some file systems have nothing to sync for a directory and say EINVAL. */
    if (result != 0 && errno != EINVAL) {
        return fail_errno("sync", path);
    }
    return MS_OK;
}

ms_status ms_directory_sync(const char *path) {
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) {
        return fail_errno("open", path);
    }
    ms_status status = sync_retry(fd, path);
    close(fd);
    return status;
}

/* The folder part of a path: "." when it has none. */
static ms_status parent_of(const char *path, char parent[MS_PATH_BYTES]) {
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (length >= MS_PATH_BYTES) {
        return ms_fail(MS_ERR_RANGE, "path of %zu bytes is too long", strlen(path));
    }
    memcpy(parent, path, length);
    parent[length] = '\0';
    if (length == 0) {
        memcpy(parent, ".", 2);
    }
    return MS_OK;
}

ms_status ms_file_write_atomic(const char *path, const void *bytes, size_t length) {
    static _Atomic unsigned serial;
    char parent[MS_PATH_BYTES];
    char temporary[MS_PATH_BYTES];
    MS_TRY(parent_of(path, parent));
    /* Process, time and number: unique among the threads here and the hosts of a shared disk. */
    int wanted = snprintf(temporary, sizeof temporary, "%s.tmp-%d-%" PRIx64 "-%u", path,
                          (int)getpid(), (uint64_t)ms_clock_ns(), atomic_fetch_add(&serial, 1));
    if (wanted < 0 || (size_t)wanted >= sizeof temporary) {
        return ms_fail(MS_ERR_RANGE, "path of %zu bytes is too long", strlen(path));
    }
    int fd = open_retry(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0) {
        return fail_errno("create a file beside it", path);
    }
    ms_status status;
    MS_TRY_GOTO(ms_file_write_at(fd, path, bytes, length, 0), remove_file);
    MS_TRY_GOTO(sync_retry(fd, path), remove_file);
    int closed = close(fd);
    fd = -1;
    if (closed != 0 && errno != EINTR) { /* network disks report a full disk here */
        status = fail_errno("write", path);
        goto remove_file;
    }
    if (rename(temporary, path) != 0) {
        status = fail_errno("replace", path);
        goto remove_file;
    }
    return ms_directory_sync(parent);
remove_file:
    if (fd >= 0) {
        close(fd);
    }
    unlink(temporary);
    return status;
}

bool ms_path_exists(const char *path) {
    return access(path, F_OK) == 0;
}

bool ms_path_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

ms_status ms_directory_make(const char *path) {
    size_t length = strlen(path);
    if (length == 0 || length >= MS_PATH_BYTES) {
        return ms_fail(MS_ERR_ARGUMENT, "directory path of %zu bytes", length);
    }
    char part[MS_PATH_BYTES];
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != '\0') {
            continue;
        }
        char kept = part[i];
        part[i] = '\0';
        /* Another process may make it at the same time: only the result counts. */
        if (mkdir(part, 0777) != 0) {
            int code = errno;
            if (!ms_path_is_directory(part)) {
                errno = code;
                return code == EEXIST
                           ? ms_fail(MS_ERR_IO, "%s: cannot make directory: %s is a file", path,
                                     part)
                           : fail_errno("make directory", path);
            }
        }
        part[i] = kept;
    }
    return MS_OK;
}

static ms_status remove_entries(int parent_fd, const char *name, const char *path, int depth);

/* Removes one entry of the folder parent_fd; path is the top, for messages. */
static ms_status remove_entry(int parent_fd, const char *name, const char *path, int depth) {
    if (unlinkat(parent_fd, name, 0) == 0 || errno == ENOENT) {
        return MS_OK;
    }
    if (errno != EISDIR && errno != EPERM) {
        return fail_errno("remove what is in it", path);
    }
    MS_TRY(remove_entries(parent_fd, name, path, depth));
    if (unlinkat(parent_fd, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        return fail_errno("remove", path);
    }
    return MS_OK;
}

static ms_status remove_entries(int parent_fd, const char *name, const char *path, int depth) {
    if (depth > REMOVE_DEPTH_MAX) {
        return ms_fail(MS_ERR_RANGE, "%s: directories nested deeper than %d are not removed", path,
                       REMOVE_DEPTH_MAX);
    }
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return fail_errno("open as a directory", path);
    }
    DIR *folder = fdopendir(fd);
    if (folder == NULL) {
        close_quietly(fd);
        return fail_errno("list", path);
    }
    ms_status status = MS_OK;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL) {
            status = errno != 0 ? fail_errno("list", path) : MS_OK;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        MS_TRY_GOTO(remove_entry(fd, entry->d_name, path, depth + 1), close_folder);
    }
close_folder:
    closedir(folder);
    return status;
}

ms_status ms_directory_remove(const char *path) {
    MS_TRY(remove_entries(AT_FDCWD, path, path, 0));
    if (rmdir(path) != 0) {
        return fail_errno("remove", path);
    }
    return MS_OK;
}

ms_status ms_path_join(const char *dir, const char *name, char *path, size_t path_bytes) {
    size_t length = strlen(dir);
    const char *between = length > 0 && dir[length - 1] != '/' ? "/" : "";
    size_t needed = length + strlen(between) + strlen(name) + 1;
    if (needed > path_bytes) {
        return ms_fail(MS_ERR_RANGE, "%s/%s: path of %zu bytes, at most %zu fit", dir, name,
                       needed - 1, path_bytes > 0 ? path_bytes - 1 : 0);
    }
    snprintf(path, path_bytes, "%s%s%s", dir, between, name);
    return MS_OK;
}
