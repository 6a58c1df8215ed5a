/* file.h - files: whole reads with a bound, maps, durable writes, directories. Errors name the
 * path. */
#ifndef MS_BASE_FILE_H
#define MS_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* Reads a whole file, at most bytes_max (else MS_ERR_RANGE). */
ms_status ms_file_read(const char *path, size_t bytes_max, ms_text *text);

/* A read-only map of a whole file. An empty file maps to data NULL, bytes 0. */
typedef struct ms_file_map {
    const uint8_t *data;
    size_t bytes;
} ms_file_map;
ms_status ms_file_map_open(const char *path, ms_file_map *map);
void ms_file_map_close(ms_file_map *map);

/* Replaces path by the bytes in one step: temporary name, fsync, rename, fsync of the directory. */
ms_status ms_file_write_atomic(const char *path, const void *bytes, size_t length);
/* Writes all bytes at offset, going on after short writes and EINTR. */
ms_status ms_file_write_at(int fd, const char *path, const void *bytes, size_t length,
                           uint64_t offset);
ms_status ms_file_read_at(int fd, const char *path, void *bytes, size_t length, uint64_t offset);
ms_status ms_directory_sync(const char *path);

bool ms_path_exists(const char *path);
bool ms_path_is_directory(const char *path);
ms_status ms_directory_make(const char *path);   /* with its parents; fine if it exists */
ms_status ms_directory_remove(const char *path); /* with what is in it; never follows links */
/* dir + "/" + name into a buffer; MS_ERR_RANGE if it does not fit. */
ms_status ms_path_join(const char *dir, const char *name, char *path, size_t path_bytes);
#define MS_PATH_BYTES 4096

#endif
