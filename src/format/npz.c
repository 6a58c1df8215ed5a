/*
 * NumPy's .npz: a zip archive whose members are .npy files.
 *
 * Stands beside npy.c: libzip unpacks a member into memory, npy.c checks it.
 *
 * Data: the names of members that end in ".npy", without that ending.
 *
 * Invariants: a member is unpacked only if the size that the archive states is within the caller's
 * bound, and it must give exactly that many bytes; libzip checks its CRC.
 *
 * Rejected: maps of stored (not packed) members: savez_compressed is the rule for the sets we read.
 */
#include <inttypes.h>
#include <string.h>
#include <zip.h>

#include "base/file.h"
#include "format/npy.h"

#define SUFFIX ".npy"
#define SUFFIX_BYTES (sizeof SUFFIX - 1)

typedef struct npz_member {
    char *name;
    zip_uint64_t index;
} npz_member;

struct ms_npz {
    ms_arena *arena;
    char *path;
    zip_t *archive;
    int64_t count;
    npz_member *members;
    ms_file_map map; /* data NULL when the bytes belong to the caller */
};

static ms_status list_members(ms_npz *npz) {
    zip_int64_t entries = zip_get_num_entries(npz->archive, 0);
    MS_TRY(
        ms_arena_alloc(npz->arena, (size_t)entries * sizeof *npz->members, (void **)&npz->members));
    for (zip_int64_t i = 0; i < entries; i++) {
        const char *name = zip_get_name(npz->archive, (zip_uint64_t)i, 0);
        size_t length = name != NULL ? strlen(name) : 0;
        if (length <= SUFFIX_BYTES || strcmp(name + length - SUFFIX_BYTES, SUFFIX) != 0) {
            continue;
        }
        npz_member *member = &npz->members[npz->count];
        MS_TRY(ms_arena_strdup(npz->arena, name, &member->name));
        member->name[length - SUFFIX_BYTES] = '\0';
        member->index = (zip_uint64_t)i;
        npz->count++;
    }
    return MS_OK;
}

static ms_status open_archive(ms_npz *npz, const void *bytes, size_t length) {
    if (length == 0) { /* libzip takes it for an archive without members */
        return ms_fail(MS_ERR_FORMAT, "%s: the file is empty", npz->path);
    }
    zip_error_t error;
    zip_error_init(&error);
    zip_source_t *source = zip_source_buffer_create(bytes, length, 0, &error);
    if (source != NULL) {
        npz->archive = zip_open_from_source(source, ZIP_RDONLY, &error);
        if (npz->archive == NULL) {
            zip_source_free(source);
        }
    }
    ms_status status = MS_OK;
    if (npz->archive == NULL) {
        status = ms_fail(MS_ERR_FORMAT, "%s: not a readable .npz archive: %s", npz->path,
                         zip_error_strerror(&error));
    }
    zip_error_fini(&error);
    return status;
}

ms_status ms_npz_open_memory(const void *bytes, size_t length, const char *name, ms_npz **npz) {
    ms_arena *arena = NULL;
    ms_npz *made = NULL;
    ms_status status;
    MS_TRY(ms_arena_create(4096, MS_MEMORY_CALLER, &arena));
    MS_TRY_GOTO(ms_arena_alloc(arena, sizeof *made, (void **)&made), destroy_arena);
    made->arena = arena;
    MS_TRY_GOTO(ms_arena_strdup(arena, name, &made->path), destroy_arena);
    MS_TRY_GOTO(open_archive(made, bytes, length), destroy_arena);
    MS_TRY_GOTO(list_members(made), close_archive);
    *npz = made;
    return MS_OK;
close_archive:
    zip_discard(made->archive);
destroy_arena:
    ms_arena_destroy(arena);
    return status;
}

ms_status ms_npz_open(const char *path, ms_npz **npz) {
    ms_file_map map;
    MS_TRY(ms_file_map_open(path, &map));
    ms_npz *made = NULL;
    ms_status status = ms_npz_open_memory(map.data, map.bytes, path, &made);
    if (status != MS_OK) {
        ms_file_map_close(&map);
        return status;
    }
    made->map = map;
    *npz = made;
    return MS_OK;
}

void ms_npz_close(ms_npz *npz) {
    if (npz == NULL) {
        return;
    }
    ms_file_map map = npz->map;
    zip_discard(npz->archive);
    ms_arena_destroy(npz->arena); /* holds the handle itself */
    if (map.data != NULL) {
        ms_file_map_close(&map);
    }
}

int64_t ms_npz_count(const ms_npz *npz) {
    return npz->count;
}

const char *ms_npz_name(const ms_npz *npz, int64_t index) {
    return index >= 0 && index < npz->count ? npz->members[index].name : NULL;
}

static ms_status unpack(ms_npz *npz, const npz_member *member, uint8_t *memory, uint64_t bytes) {
    zip_file_t *file = zip_fopen_index(npz->archive, member->index, 0);
    if (file == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s: member \"%s\": %s", npz->path, member->name,
                       zip_strerror(npz->archive));
    }
    ms_status status = MS_OK;
    uint64_t done = 0;
    uint8_t extra;
    while (status == MS_OK) {
        bool full = done == bytes; /* one more read finds the end and has the CRC checked */
        zip_int64_t got = zip_fread(file, full ? &extra : memory + done, full ? 1 : bytes - done);
        if (got == 0 && full) {
            break;
        }
        if (got <= 0 || full) {
            status = ms_fail(MS_ERR_FORMAT, "%s: member \"%s\" is damaged at byte %" PRIu64 ": %s",
                             npz->path, member->name, done,
                             got < 0 ? zip_file_strerror(file) : "its size is not the stated one");
        } else {
            done += (uint64_t)got;
        }
    }
    zip_fclose(file);
    return status;
}

ms_status ms_npz_read(ms_npz *npz, const char *member, uint64_t bytes_max, ms_npy **npy) {
    const npz_member *found = NULL;
    for (int64_t i = 0; i < npz->count && found == NULL; i++) {
        found = strcmp(npz->members[i].name, member) == 0 ? &npz->members[i] : NULL;
    }
    if (found == NULL) {
        return ms_fail(MS_ERR_NOT_FOUND, "%s: no array \"%s\" among its %" PRId64, npz->path,
                       member, npz->count);
    }
    zip_stat_t stat;
    if (zip_stat_index(npz->archive, found->index, 0, &stat) != 0 ||
        (stat.valid & ZIP_STAT_SIZE) == 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: member \"%s\": size unknown", npz->path, member);
    }
    if (stat.size > bytes_max) {
        return ms_fail(MS_ERR_RANGE,
                       "%s: member \"%s\" unpacks to %" PRIu64 " bytes, allowed are %" PRIu64,
                       npz->path, member, (uint64_t)stat.size, bytes_max);
    }
    uint8_t *memory = NULL;
    ms_text name = {0};
    ms_status status;
    MS_TRY(ms_alloc((size_t)stat.size, MS_MEMORY_CALLER, (void **)&memory));
    MS_TRY_GOTO(unpack(npz, found, memory, stat.size), free_memory);
    MS_TRY_GOTO(ms_text_printf(&name, "%s(%s)", npz->path, member), free_memory);
    MS_TRY_GOTO(ms_npy_adopt(memory, (size_t)stat.size, name.bytes, npy), free_memory);
    ms_text_release(&name);
    return MS_OK;
free_memory:
    ms_text_release(&name);
    ms_free(memory);
    return status;
}
