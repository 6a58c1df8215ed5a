/*
 * staging.c - a checkpoint directory in the making: files, slices, hashes, manifest.
 *
 * Where it stands: checkpoint_save.c and checkpoint_convert.c fill it; disk.c does the writing.
 *
 *   files   model..., optimizer...   listed by every rank in the same order ("dealt"), made by rank
 * 0, written by all; their blocks are dealt to the ranks to be hashed config.json, ...         rank
 * 0's alone
 *
 * Invariants: a rank holds at most one descriptor of these files and MS_CHECKPOINT_SCRATCH_BYTES of
 * memory, whatever the size of the model. Hashes are made of what is read back from the file after
 * all ranks have written and synced, never of the memory it came from.
 *
 * Rejected: hashing while writing (a block is written by several ranks in pieces), one file for
 * each rank (then a layout would be part of the format).
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/internal.h"

ms_status ms__staging_begin(ms__staging *staging, const char *dir, int64_t step) {
    *staging = (ms__staging){.dir = dir, .step = step, .open_fd = -1};
    return ms_alloc(MS_CHECKPOINT_CHUNK_BYTES, MS_MEMORY_CALLER, &staging->chunk);
}

void ms__staging_end(ms__staging *staging) {
    if (staging->open_fd >= 0) {
        close(staging->open_fd);
    }
    for (size_t i = 0; i < staging->file_count; i++) {
        ms_free(staging->files[i].name);
        ms_free(staging->files[i].hashes);
    }
    ms_free(staging->files);
    ms_free(staging->chunk);
    *staging = (ms__staging){.open_fd = -1};
}

static ms_status list_file(ms__staging *staging, const char *name, uint64_t bytes, bool dealt) {
    MS_TRY(ms_array_reserve((void **)&staging->files, &staging->file_capacity,
                            staging->file_count + 1, sizeof *staging->files, MS_MEMORY_CALLER));
    ms__staged_file file = {.bytes = bytes, .dealt = dealt};
    file.block_count =
        (int64_t)(bytes / MS_CHECKPOINT_BLOCK_BYTES + (bytes % MS_CHECKPOINT_BLOCK_BYTES != 0));
    MS_TRY(ms_alloc(strlen(name) + 1, MS_MEMORY_CALLER, (void **)&file.name));
    memcpy(file.name, name, strlen(name) + 1);
    ms_status status = MS_NEW((size_t)file.block_count, MS_MEMORY_CALLER, &file.hashes);
    if (status != MS_OK) {
        ms_free(file.name);
        return status;
    }
    staging->files[staging->file_count++] = file;
    return MS_OK;
}

static ms_status file_path(const ms__staging *staging, size_t file, char path[MS_PATH_BYTES]) {
    return ms_path_join(staging->dir, staging->files[file].name, path, MS_PATH_BYTES);
}

ms_status ms__staging_add_file(ms__staging *staging, const char *name, const void *bytes,
                               size_t length) {
    char path[MS_PATH_BYTES];
    if (!ms__plain_name(name) || strcmp(name, MS_CHECKPOINT_MANIFEST) == 0) {
        return ms_fail(MS_ERR_ARGUMENT, "checkpoint: \"%.200s\" cannot be the name of a file in it",
                       name);
    }
    MS_TRY(ms_path_join(staging->dir, name, path, sizeof path));
    MS_TRY(list_file(staging, name, length, false));
    return ms__disk_write_whole(path, bytes, length);
}

/* Makes the file with its header. It is synced with what this rank writes into it. */
static ms_status make_file(ms__staging *staging, size_t index, const ms_safetensors_layout *layout,
                           int layout_file) {
    char path[MS_PATH_BYTES];
    MS_TRY(file_path(staging, index, path));
    int fd = -1;
    MS_TRY(ms__disk_create(path, staging->files[index].bytes, &fd));
    size_t header_bytes = 0;
    const void *header = ms_safetensors_layout_header(layout, layout_file, &header_bytes);
    ms_status status = ms__disk_write(fd, path, header, header_bytes, 0);
    ms_status closed = ms__disk_close(fd, path, false);
    staging->files[index].touched = true;
    return status != MS_OK ? status : closed;
}

static ms_status add_index(ms__staging *staging, const ms_safetensors_layout *layout) {
    ms_text json = {0};
    ms_status status = ms_safetensors_layout_index(layout, &json);
    if (status == MS_OK) {
        status = ms__staging_add_file(staging, ms_safetensors_layout_index_name(layout), json.bytes,
                                      json.length);
    }
    ms_text_release(&json);
    return status;
}

ms_status ms__staging_add_layout(ms__staging *staging, ms__tensor_group group,
                                 const ms_safetensors_layout *layout, bool make) {
    int count = ms_safetensors_layout_file_count(layout);
    staging->group_first[group] = staging->file_count;
    for (int i = 0; i < count; i++) {
        MS_TRY(list_file(staging, ms_safetensors_layout_file_name(layout, i),
                         ms_safetensors_layout_file_bytes(layout, i), true));
        if (make) {
            MS_TRY(make_file(staging, staging->file_count - 1, layout, i));
        }
    }
    return make && count > 1 ? add_index(staging, layout) : MS_OK;
}

/* Makes `file` the open one. Slices come in the order of files, mostly. */
static ms_status open_file(ms__staging *staging, size_t file, char path[MS_PATH_BYTES]) {
    MS_TRY(file_path(staging, file, path));
    if (staging->open_fd >= 0 && staging->open_file == file) {
        return MS_OK;
    }
    if (staging->open_fd >= 0) {
        char last[MS_PATH_BYTES];
        int fd = staging->open_fd;
        staging->open_fd = -1;
        MS_TRY(file_path(staging, staging->open_file, last));
        MS_TRY(ms__disk_close(fd, last, false));
    }
    MS_TRY(ms__disk_open(path, &staging->open_fd));
    staging->open_file = file;
    staging->files[file].touched = true;
    return MS_OK;
}

/* Converts in pieces of half the chunk; the other half aligns what lies oddly in a map. */
static ms_status write_converted(ms__staging *staging, const char *path, uint64_t offset,
                                 const char *from, ms_dtype from_type, ms_dtype to_type,
                                 int64_t count) {
    size_t from_bytes = ms_dtype_bytes(from_type), to_bytes = ms_dtype_bytes(to_type);
    int64_t piece_max = (int64_t)(MS_CHECKPOINT_CHUNK_BYTES / 2 / sizeof(double));
    char *converted = staging->chunk;
    char *aligned = converted + MS_CHECKPOINT_CHUNK_BYTES / 2;
    while (count > 0) {
        int64_t piece = ms_min_i64(count, piece_max);
        const char *source = from;
        if ((uintptr_t)from % from_bytes != 0) {
            memcpy(aligned, from, (size_t)piece * from_bytes);
            source = aligned;
        }
        MS_TRY(ms_convert(source, from_type, converted, to_type, piece));
        size_t bytes = (size_t)piece * to_bytes;
        MS_TRY(ms__disk_write(staging->open_fd, path, converted, bytes, offset));
        from += (size_t)piece * from_bytes;
        offset += bytes;
        count -= piece;
    }
    return MS_OK;
}

ms_status ms__staging_write(ms__staging *staging, size_t file, uint64_t offset, const void *from,
                            ms_dtype from_type, ms_dtype to_type, int64_t count) {
    char path[MS_PATH_BYTES];
    if (count == 0) {
        return MS_OK;
    }
    MS_TRY(open_file(staging, file, path));
    if (from_type == to_type) {
        return ms__disk_write(staging->open_fd, path, from,
                              (size_t)count * ms_dtype_bytes(from_type), offset);
    }
    return write_converted(staging, path, offset, from, from_type, to_type, count);
}

ms_status ms__staging_sync(ms__staging *staging) {
    char path[MS_PATH_BYTES];
    for (size_t i = 0; i < staging->file_count; i++) {
        if (!staging->files[i].touched) {
            continue;
        }
        MS_TRY(open_file(staging, i, path));
        int fd = staging->open_fd;
        staging->open_fd = -1;
        MS_TRY(ms__disk_close(fd, path, true));
        staging->files[i].touched = false;
    }
    return MS_OK;
}

/* Hashes blocks [first, last) of a file. */
static ms_status hash_blocks(const ms__staging *staging, size_t file, int64_t first, int64_t last,
                             void *block) {
    char path[MS_PATH_BYTES];
    ms__staged_file *staged = &staging->files[file];
    MS_TRY(file_path(staging, file, path));
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return ms_fail(MS_ERR_IO, "%s: cannot open: %m", path);
    }
    ms_status status = MS_OK;
    for (int64_t i = first; i < last && status == MS_OK; i++) {
        uint64_t start = (uint64_t)i * MS_CHECKPOINT_BLOCK_BYTES;
        uint64_t length = staged->bytes - start;
        length = length < MS_CHECKPOINT_BLOCK_BYTES ? length : MS_CHECKPOINT_BLOCK_BYTES;
        status = ms_file_read_at(fd, path, block, (size_t)length, start);
        if (status == MS_OK) {
            staged->hashes[i] = ms_hash_bytes(block, (size_t)length);
        }
    }
    close(fd);
    return status;
}

static ms_status hash_deal(ms__staging *staging, int rank, int64_t first, int64_t last,
                           void *block) {
    int64_t at = 0; /* number of the file's first block among the dealt ones */
    for (size_t i = 0; i < staging->file_count; i++) {
        const ms__staged_file *file = &staging->files[i];
        int64_t from = 0, to = file->block_count;
        if (file->dealt) {
            from = ms_min_i64(ms_max_i64(first - at, 0), file->block_count);
            to = ms_min_i64(ms_max_i64(last - at, 0), file->block_count);
            at += file->block_count;
        } else if (rank != 0) {
            continue;
        }
        if (from < to) {
            MS_TRY(hash_blocks(staging, i, from, to, block));
        }
    }
    return MS_OK;
}

void ms__staging_deal(const ms__staging *staging, int rank, int size, int64_t *first,
                      int64_t *last) {
    int64_t total = 0;
    for (size_t i = 0; i < staging->file_count; i++) {
        total += staging->files[i].dealt ? staging->files[i].block_count : 0;
    }
    int64_t each = total / size, rest = total % size;
    *first = each * rank + ms_min_i64(rank, rest);
    *last = *first + each + (rank < rest ? 1 : 0);
}

ms_status ms__staging_hash(ms__staging *staging, int rank, int size) {
    int64_t first = 0, last = 0;
    ms__staging_deal(staging, rank, size, &first, &last);
    void *block = NULL;
    MS_TRY(ms_alloc(MS_CHECKPOINT_BLOCK_BYTES, MS_MEMORY_CALLER, &block));
    ms_status status = hash_deal(staging, rank, first, last, block);
    ms_free(block);
    return status;
}

void ms__staging_copy_hashes(ms__staging *staging, int64_t first, int64_t last, uint64_t *hashes,
                             bool into_files) {
    int64_t at = 0;
    for (size_t i = 0; i < staging->file_count; i++) {
        ms__staged_file *file = &staging->files[i];
        for (int64_t block = 0; file->dealt && block < file->block_count; block++, at++) {
            if (at < first || at >= last) {
                continue;
            }
            if (into_files) {
                file->hashes[block] = hashes[at - first];
            } else {
                hashes[at - first] = file->hashes[block];
            }
        }
    }
}

static ms_status write_manifest(const ms__staging *staging, ms__manifest *manifest) {
    char path[MS_PATH_BYTES];
    for (size_t i = 0; i < staging->file_count; i++) {
        manifest->files[i] = (ms__manifest_file){
            .name = staging->files[i].name,
            .bytes = staging->files[i].bytes,
            .block_count = staging->files[i].block_count,
            .hashes = staging->files[i].hashes,
        };
    }
    ms_text text = {0};
    ms_status status;
    MS_TRY_GOTO(ms__manifest_emit(manifest, &text), release_text);
    MS_TRY_GOTO(ms_path_join(staging->dir, MS_CHECKPOINT_MANIFEST, path, sizeof path),
                release_text);
    MS_TRY_GOTO(ms__disk_write_whole(path, text.bytes, text.length), release_text);
    MS_TRY_GOTO(ms__disk_sync_directory(staging->dir), release_text);
release_text:
    ms_text_release(&text);
    return status;
}

ms_status ms__staging_write_manifest(ms__staging *staging) {
    ms__manifest manifest = {
        .step = staging->step,
        .block_bytes = MS_CHECKPOINT_BLOCK_BYTES,
        .file_count = (int64_t)staging->file_count,
    };
    MS_TRY(MS_NEW(staging->file_count, MS_MEMORY_CALLER, &manifest.files));
    ms_status status = write_manifest(staging, &manifest);
    ms_free(manifest.files);
    return status;
}
