/*
 * manifest.c - manifest.json: what makes a directory of files a finished checkpoint.
 *
 * Where it stands: staging.c writes it last; tensor_source.c, step_dirs.c and checkpoint_verify.c
 * believe nothing in a checkpoint that it does not vouch for.
 *
 *   {
 *     "format": "mindspeed checkpoint", "version": 1, "step": 500, "block_bytes": 4194304,
 *     "files": [{"name": "model.safetensors", "bytes": 497772160, "xxh3": ["0123456789abcdef",
 * ...]}], "manifest_xxh3": "0123456789abcdef"
 *   }
 *
 * The last line has a fixed form and length; its hash is over every byte before it. So a flipped
 * bit or a missing byte anywhere in the manifest is seen before its JSON is looked at.
 *
 * Invariants after a read: names are plain (no slash, not hidden) and unique, block counts fit the
 * bytes. A newer version is refused with a sentence that says so.
 *
 * Rejected: one hash for a file (a reader of one slice would have to read all of it), and a
 * checksum file beside each file (the set as a whole must be vouched for).
 */
#include "checkpoint/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "format/json.h"

#define FORMAT_NAME "mindspeed checkpoint"
#define VERSION 1
#define TAIL_FORMAT "  \"manifest_xxh3\": \"%016" PRIx64 "\"\n}\n"
#define TAIL_BYTES (sizeof "  \"manifest_xxh3\": \"0123456789abcdef\"\n}\n" - 1)
#define BLOCK_BYTES_MIN ((int64_t)4096)
#define BLOCK_BYTES_MAX ((int64_t)1 << 30)
#define FILE_BYTES_MAX ((int64_t)1 << 60)

bool ms__plain_name(const char *name) {
    size_t length = strlen(name);
    if (length == 0 || length > MS_CHECKPOINT_FILE_NAME_BYTES_MAX || name[0] == '.' ||
        ms_utf8_valid_prefix(name, length) != length) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)name[i];
        if (byte == '/' || byte == '\\' || byte < 0x20 || byte == 0x7f) {
            return false;
        }
    }
    return true;
}

ms_status ms__manifest_seal(ms_text *text) {
    return ms_text_printf(text, TAIL_FORMAT, ms_hash_bytes(text->bytes, text->length));
}

ms_status ms__manifest_emit(const ms__manifest *manifest, ms_text *text) {
    MS_TRY(ms_text_printf(text,
                          "{\n  \"format\": \"%s\",\n  \"version\": %d,\n  \"step\": %" PRId64
                          ",\n  \"block_bytes\": %" PRIu64 ",\n  \"files\": [\n",
                          FORMAT_NAME, VERSION, manifest->step, manifest->block_bytes));
    for (int64_t i = 0; i < manifest->file_count; i++) {
        const ms__manifest_file *file = &manifest->files[i];
        MS_TRY(ms_text_append_z(text, "    {\"name\": "));
        MS_TRY(ms_json_append_string(text, file->name, strlen(file->name)));
        MS_TRY(ms_text_printf(text, ", \"bytes\": %" PRIu64 ", \"xxh3\": [", file->bytes));
        for (int64_t block = 0; block < file->block_count; block++) {
            MS_TRY(ms_text_printf(text, "%s\"%016" PRIx64 "\"", block > 0 ? ", " : "",
                                  file->hashes[block]));
        }
        MS_TRY(ms_text_append_z(text, i + 1 < manifest->file_count ? "]},\n" : "]}\n"));
    }
    MS_TRY(ms_text_append_z(text, "  ],\n"));
    return ms__manifest_seal(text);
}

/* Sixteen lower-case hexadecimal digits and no more. */
static bool parse_hash(const char *text, uint64_t *hash) {
    uint64_t value = 0;
    if (text == NULL || strlen(text) != 16) {
        return false;
    }
    for (int i = 0; i < 16; i++) {
        char digit = text[i];
        if (digit >= '0' && digit <= '9') {
            value = value << 4 | (uint64_t)(digit - '0');
        } else if (digit >= 'a' && digit <= 'f') {
            value = value << 4 | (uint64_t)(digit - 'a' + 10);
        } else {
            return false;
        }
    }
    *hash = value;
    return true;
}

static ms_status check_seal(const char *bytes, size_t length, const char *name) {
    if (length < TAIL_BYTES) {
        return ms_fail(MS_ERR_CHECKSUM, "%s: truncated: only %zu bytes long", name, length);
    }
    uint64_t hash = ms_hash_bytes(bytes, length - TAIL_BYTES);
    char tail[TAIL_BYTES + 1];
    snprintf(tail, sizeof tail, TAIL_FORMAT, hash);
    if (memcmp(bytes + length - TAIL_BYTES, tail, TAIL_BYTES) != 0) {
        return ms_fail(MS_ERR_CHECKSUM,
                       "%s: truncated or damaged: its %zu bytes do not have the hash that its last "
                       "line, at offset %zu, must give",
                       name, length, length - TAIL_BYTES);
    }
    return MS_OK;
}

static ms_status parse_hashes(ms__manifest *manifest, ms__manifest_file *file, const json_t *list,
                              const char *name) {
    uint64_t blocks =
        file->bytes / manifest->block_bytes + (file->bytes % manifest->block_bytes != 0 ? 1 : 0);
    if (!json_is_array(list) || json_array_size(list) != blocks) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: file \"%s\" of %" PRIu64 " bytes must have %" PRIu64
                       " hashes in \"xxh3\", has %zu",
                       name, file->name, file->bytes, blocks, json_array_size(list));
    }
    MS_TRY(ms_arena_alloc(manifest->arena, (size_t)blocks * sizeof *file->hashes,
                          (void **)&file->hashes));
    file->block_count = (int64_t)blocks;
    for (size_t i = 0; i < blocks; i++) {
        if (!parse_hash(json_string_value(json_array_get(list, i)), &file->hashes[i])) {
            return ms_fail(MS_ERR_FORMAT,
                           "%s: file \"%s\": hash %zu is not sixteen hexadecimal digits", name,
                           file->name, i);
        }
    }
    return MS_OK;
}

static ms_status parse_file(ms__manifest *manifest, const json_t *entry, const char *name,
                            ms__manifest_file *file) {
    const char *file_name = json_string_value(json_object_get(entry, "name"));
    const json_t *bytes = json_object_get(entry, "bytes");
    if (file_name == NULL || !ms__plain_name(file_name)) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: \"%.200s\" is not a plain file name in the same directory", name,
                       file_name != NULL ? file_name : "");
    }
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0 ||
        json_integer_value(bytes) > FILE_BYTES_MAX) {
        return ms_fail(MS_ERR_FORMAT, "%s: file \"%s\" has no \"bytes\" from 0 to 2^60", name,
                       file_name);
    }
    char *copy = NULL;
    MS_TRY(ms_arena_strdup(manifest->arena, file_name, &copy));
    file->name = copy;
    file->bytes = (uint64_t)json_integer_value(bytes);
    return parse_hashes(manifest, file, json_object_get(entry, "xxh3"), name);
}

static int compare_files(const void *a, const void *b) {
    return strcmp(((const ms__manifest_file *)a)->name, ((const ms__manifest_file *)b)->name);
}

static ms_status parse_files(ms__manifest *manifest, const ms_json *json) {
    const json_t *list = ms_json_find(json, "files");
    if (!json_is_array(list) || json_array_size(list) > MS_CHECKPOINT_FILES_MAX) {
        return ms_fail(MS_ERR_FORMAT, "%s: no list \"files\" of at most %d files", json->name,
                       MS_CHECKPOINT_FILES_MAX);
    }
    size_t count = json_array_size(list);
    MS_TRY(ms_arena_alloc(manifest->arena, count * sizeof *manifest->files,
                          (void **)&manifest->files));
    for (size_t i = 0; i < count; i++) {
        MS_TRY(parse_file(manifest, json_array_get(list, i), json->name, &manifest->files[i]));
    }
    manifest->file_count = (int64_t)count;
    qsort(manifest->files, count, sizeof *manifest->files, compare_files);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(manifest->files[i - 1].name, manifest->files[i].name) == 0) {
            return ms_fail(MS_ERR_FORMAT, "%s: file \"%s\" is listed twice", json->name,
                           manifest->files[i].name);
        }
    }
    return MS_OK;
}

static ms_status parse_document(ms__manifest *manifest, const ms_json *json) {
    const char *format = NULL;
    int64_t version = 0, block_bytes = 0;
    MS_TRY(ms_json_need_string(json, "format", &format));
    if (strcmp(format, FORMAT_NAME) != 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: \"format\" is \"%.60s\", expected \"%s\"", json->name,
                       format, FORMAT_NAME);
    }
    MS_TRY(ms_json_need_int(json, "version", 1, INT32_MAX, &version));
    if (version > VERSION) {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "%s: version %" PRId64 " was written by a newer program; "
                       "this one reads up to %d",
                       json->name, version, VERSION);
    }
    MS_TRY(ms_json_need_int(json, "step", 0, INT64_MAX, &manifest->step));
    MS_TRY(ms_json_need_int(json, "block_bytes", BLOCK_BYTES_MIN, BLOCK_BYTES_MAX, &block_bytes));
    manifest->block_bytes = (uint64_t)block_bytes;
    return parse_files(manifest, json);
}

ms_status ms__manifest_parse(const char *bytes, size_t length, const char *name,
                             ms__manifest *manifest) {
    MS_TRY(check_seal(bytes, length, name));
    ms_json json = {0};
    MS_TRY(ms_json_parse(bytes, length, name, &json));
    ms_status status;
    ms__manifest made = {0};
    MS_TRY_GOTO(ms_arena_create(16384, MS_MEMORY_CALLER, &made.arena), close_json);
    MS_TRY_GOTO(parse_document(&made, &json), close_json);
    *manifest = made;
    made.arena = NULL;
close_json:
    ms_json_close(&json);
    ms_arena_destroy(made.arena);
    return status;
}

ms_status ms__manifest_read(const char *dir, ms__manifest *manifest) {
    char path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(dir, MS_CHECKPOINT_MANIFEST, path, sizeof path));
    ms_text text = {0};
    ms_status status = ms_file_read(path, MS_CHECKPOINT_MANIFEST_BYTES_MAX, &text);
    if (status == MS_OK) {
        status = ms__manifest_parse(text.bytes, text.length, path, manifest);
    }
    ms_text_release(&text);
    return status;
}

void ms__manifest_release(ms__manifest *manifest) {
    ms_arena_destroy(manifest->arena);
    *manifest = (ms__manifest){0};
}

const ms__manifest_file *ms__manifest_find(const ms__manifest *manifest, const char *name) {
    const ms__manifest_file key = {.name = name};
    return manifest->file_count == 0 ? NULL
                                     : bsearch(&key, manifest->files, (size_t)manifest->file_count,
                                               sizeof *manifest->files, compare_files);
}

ms_status ms__manifest_check_sizes(const ms__manifest *manifest, const char *dir) {
    for (int64_t i = 0; i < manifest->file_count; i++) {
        const ms__manifest_file *file = &manifest->files[i];
        char path[MS_PATH_BYTES];
        struct stat info;
        MS_TRY(ms_path_join(dir, file->name, path, sizeof path));
        if (stat(path, &info) != 0) {
            return ms_fail(errno == ENOENT ? MS_ERR_FORMAT : MS_ERR_IO,
                           "%s: the manifest lists it, but it cannot be read: %m", path);
        }
        if (!S_ISREG(info.st_mode)) {
            return ms_fail(MS_ERR_FORMAT, "%s: not a plain file", path);
        }
        if ((uint64_t)info.st_size != file->bytes) {
            return ms_fail(MS_ERR_FORMAT, "%s: is %" PRIu64 " bytes, the manifest says %" PRIu64,
                           path, (uint64_t)info.st_size, file->bytes);
        }
    }
    return MS_OK;
}

ms_status ms__manifest_check_block(const ms__manifest *manifest, const ms__manifest_file *file,
                                   const char *path, int64_t index, const void *bytes) {
    uint64_t start = (uint64_t)index * manifest->block_bytes;
    uint64_t length = file->bytes - start;
    length = length < manifest->block_bytes ? length : manifest->block_bytes;
    if (ms_hash_bytes(bytes, (size_t)length) != file->hashes[index]) {
        return ms_fail(MS_ERR_CHECKSUM,
                       "%s: damaged between offset %" PRIu64 " and %" PRIu64
                       ": the hash of this block is not the manifest's",
                       path, start, start + length);
    }
    return MS_OK;
}

ms_status ms__manifest_read_file(const ms__manifest *manifest, const char *dir, const char *name,
                                 size_t bytes_max, ms_text *text) {
    char path[MS_PATH_BYTES];
    MS_TRY(ms_path_join(dir, name, path, sizeof path));
    const ms__manifest_file *file = ms__manifest_find(manifest, name);
    if (file == NULL) {
        return ms_fail(MS_ERR_NOT_FOUND, "%s: the manifest does not list it", path);
    }
    MS_TRY(ms_file_read(path, bytes_max, text));
    if (text->length != file->bytes) {
        return ms_fail(MS_ERR_FORMAT, "%s: is %zu bytes, the manifest says %" PRIu64, path,
                       text->length, file->bytes);
    }
    for (int64_t i = 0; i < file->block_count; i++) {
        MS_TRY(ms__manifest_check_block(manifest, file, path, i,
                                        text->bytes + (uint64_t)i * manifest->block_bytes));
    }
    return MS_OK;
}
