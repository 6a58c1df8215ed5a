/*
 * fuzz_manifest.c - any bytes are a checkpoint's manifest and state or refused; nothing crashes or
 * leaks.
 *
 * The bytes are read three times: as a manifest as they are (where nearly every change breaks the
 * seal), as the body of a manifest that is then sealed properly (so that what is behind the seal is
 * reached), and as state.json. Laws: what is accepted has plain, unique names in order and as many
 * hashes as its bytes need, and is emitted and read again as the same.
 */
#include "format_laws.h"

#include "checkpoint/internal.h"

static void check_manifest(const ms__manifest *manifest) {
    hold(manifest->step >= 0 && manifest->block_bytes > 0, "step and blocks are numbers");
    for (int64_t i = 0; i < manifest->file_count; i++) {
        const ms__manifest_file *file = &manifest->files[i];
        hold(ms__plain_name(file->name) && strchr(file->name, '/') == NULL, "names are plain");
        hold(ms__manifest_find(manifest, file->name) == file, "a name finds its file");
        uint64_t blocks = (uint64_t)file->block_count;
        hold(blocks == 0 ? file->bytes == 0
                         : (blocks - 1) * manifest->block_bytes < file->bytes &&
                               file->bytes <= blocks * manifest->block_bytes,
             "blocks cover the bytes");
    }
}

/* Emits and reads again. Only our own block size is ever written. */
static void check_again(const ms__manifest *manifest) {
    ms_text text = {0};
    ms__manifest again = {0};
    hold(ms__manifest_emit(manifest, &text) == MS_OK, "what was read can be written");
    hold(ms__manifest_parse(text.bytes, text.length, "fuzz", &again) == MS_OK,
         "what was written can be read");
    hold(again.file_count == manifest->file_count && again.step == manifest->step &&
             again.block_bytes == manifest->block_bytes,
         "it is the same");
    for (int64_t i = 0; i < again.file_count; i++) {
        const ms__manifest_file *left = &manifest->files[i], *right = &again.files[i];
        hold(strcmp(left->name, right->name) == 0 && left->bytes == right->bytes,
             "files are the same");
        hold(memcmp(left->hashes, right->hashes,
                    (size_t)left->block_count * sizeof *left->hashes) == 0,
             "hashes are the same");
    }
    ms__manifest_release(&again);
    ms_text_release(&text);
}

static void read_manifest(const uint8_t *bytes, size_t size) {
    ms__manifest manifest = {0};
    ms_status status = ms__manifest_parse((const char *)bytes, size, "fuzz", &manifest);
    if (status != MS_OK) {
        hold_refusal(status);
        return;
    }
    check_manifest(&manifest);
    check_again(&manifest);
    ms__manifest_release(&manifest);
}

static void read_state(const uint8_t *bytes, size_t size) {
    ms_train_state state, again;
    ms_status status = ms__state_parse((const char *)bytes, size, "fuzz", &state);
    if (status != MS_OK) {
        hold_refusal(status);
        return;
    }
    ms_text text = {0};
    hold(ms__state_emit(&state, &text) == MS_OK, "a state can be written");
    hold(ms__state_parse(text.bytes, text.length, "fuzz", &again) == MS_OK, "and read again");
    hold(state.step == again.step && state.samples == again.samples && state.seed == again.seed &&
             strcmp(state.isa, again.isa) == 0,
         "a state stays the same");
    ms_text_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t before = live_bytes();
    uint8_t *copy = exact_copy(data, size);
    read_manifest(copy, size);
    read_state(copy, size);
    ms_text sealed = {0};
    hold(ms_text_append(&sealed, (const char *)copy, size) == MS_OK &&
             ms__manifest_seal(&sealed) == MS_OK,
         "there is memory to seal");
    read_manifest((const uint8_t *)sealed.bytes, sealed.length);
    ms_text_release(&sealed);
    free(copy);
    hold(live_bytes() == before, "memory in use is the same afterwards");
    return 0;
}
