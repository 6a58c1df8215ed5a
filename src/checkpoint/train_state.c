/*
 * train_state.c - state.json: the counters of a run.
 *
 * Where it stands: checkpoint_save.c writes it beside the tensors, the train loop reads it before
 * it builds anything (the batch and the reduction groups decide the layout's sums).
 *
 * Data: one table of the integer fields, used by writer and reader alike, so that neither can know
 * a field that the other forgets. The seed is all of 64 bits: above 2^63 - 1, which JSON readers
 * lose, it is written as a string.
 *
 * Invariant: what is read equals what was written to the last bit, best_val_loss included (NaN is
 * null).
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/internal.h"
#include "format/json.h"

#define VERSION 1

typedef struct counter {
    const char *name;
    size_t offset;
} counter;

#define COUNTER(field)                                                                             \
    { #field, offsetof(ms_train_state, field) }
static const counter counters[] = {
    COUNTER(step),          COUNTER(samples),           COUNTER(tokens),
    COUNTER(skipped_steps), COUNTER(global_batch_size), COUNTER(micro_batch_size),
    COUNTER(sequence),      COUNTER(reduction_groups),  COUNTER(threads),
};
#undef COUNTER
#define COUNTER_COUNT (sizeof counters / sizeof counters[0])

ms_status ms__state_emit(const ms_train_state *state, ms_text *text) {
    MS_TRY(ms_text_printf(text, "{\n  \"version\": %d,\n", VERSION));
    for (size_t i = 0; i < COUNTER_COUNT; i++) {
        int64_t value;
        memcpy(&value, (const char *)state + counters[i].offset, sizeof value);
        MS_TRY(ms_text_printf(text, "  \"%s\": %" PRId64 ",\n", counters[i].name, value));
    }
    const char *quote = state->seed > INT64_MAX ? "\"" : "";
    MS_TRY(ms_text_printf(text, "  \"seed\": %s%" PRIu64 "%s,\n  \"best_val_loss\": ", quote,
                          state->seed, quote));
    MS_TRY(ms_json_append_real(text, state->best_val_loss));
    MS_TRY(ms_text_append_z(text, ",\n  \"isa\": "));
    MS_TRY(ms_json_append_string(text, state->isa, strnlen(state->isa, sizeof state->isa)));
    return ms_text_append_z(text, "\n}\n");
}

static ms_status parse_seed(const ms_json *json, uint64_t *seed) {
    const json_t *node = ms_json_find(json, "seed");
    if (json_is_integer(node) && json_integer_value(node) >= 0) {
        *seed = (uint64_t)json_integer_value(node);
        return MS_OK;
    }
    const char *digits = json_string_value(node);
    if (digits != NULL && digits[0] >= '0' && digits[0] <= '9') {
        char *end = NULL;
        errno = 0;
        unsigned long long value = strtoull(digits, &end, 10);
        if (errno == 0 && *end == '\0') {
            *seed = value;
            return MS_OK;
        }
    }
    return ms_fail(MS_ERR_FORMAT, "%s: \"seed\" must be a whole number below 2^64", json->name);
}

static ms_status parse_document(const ms_json *json, ms_train_state *state) {
    int64_t version = 0;
    MS_TRY(ms_json_need_int(json, "version", 1, INT32_MAX, &version));
    if (version > VERSION) {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "%s: version %" PRId64 " was written by a newer program; "
                       "this one reads up to %d",
                       json->name, version, VERSION);
    }
    for (size_t i = 0; i < COUNTER_COUNT; i++) {
        int64_t value = 0;
        MS_TRY(ms_json_need_int(json, counters[i].name, 0, INT64_MAX, &value));
        memcpy((char *)state + counters[i].offset, &value, sizeof value);
    }
    MS_TRY(parse_seed(json, &state->seed));
    MS_TRY(ms_json_get_real(json, "best_val_loss", (double)NAN, -HUGE_VAL, HUGE_VAL,
                            &state->best_val_loss));
    const char *isa = NULL;
    MS_TRY(ms_json_get_string(json, "isa", "", &isa));
    if (strlen(isa) >= sizeof state->isa) {
        return ms_fail(MS_ERR_FORMAT, "%s: \"isa\" is longer than %zu characters", json->name,
                       sizeof state->isa - 1);
    }
    snprintf(state->isa, sizeof state->isa, "%s", isa);
    return MS_OK;
}

ms_status ms__state_parse(const char *bytes, size_t length, const char *name,
                          ms_train_state *state) {
    ms_json json = {0};
    MS_TRY(ms_json_parse(bytes, length, name, &json));
    ms_train_state made = {0};
    ms_status status = parse_document(&json, &made);
    ms_json_close(&json);
    if (status == MS_OK) {
        *state = made;
    }
    return status;
}

/* The text of state.json: checked against the manifest, when there is one. */
static ms_status read_text(const char *dir, const char *path, ms_text *text) {
    ms__manifest manifest = {0};
    ms_status status = ms__manifest_read(dir, &manifest);
    if (status == MS_ERR_NOT_FOUND) {
        return ms_file_read(path, MS_CHECKPOINT_STATE_BYTES_MAX, text);
    }
    MS_TRY(status);
    status = ms__manifest_read_file(&manifest, dir, MS_CHECKPOINT_STATE,
                                    MS_CHECKPOINT_STATE_BYTES_MAX, text);
    ms__manifest_release(&manifest);
    return status;
}

ms_status ms_checkpoint_read_state(const char *path, ms_train_state *state) {
    char file[MS_PATH_BYTES];
    MS_TRY(ms_path_join(path, MS_CHECKPOINT_STATE, file, sizeof file));
    if (!ms_path_exists(file)) {
        return ms_fail(MS_ERR_NOT_FOUND,
                       "%s: no " MS_CHECKPOINT_STATE " here: a model without the state of a run",
                       path);
    }
    ms_text text = {0};
    ms_status status = read_text(path, file, &text);
    if (status == MS_OK) {
        status = ms__state_parse(text.bytes, text.length, file, state);
    }
    ms_text_release(&text);
    return status;
}
