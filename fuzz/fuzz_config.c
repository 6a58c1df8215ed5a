/*
 * fuzz_config.c - configuration text: any bytes are loaded or refused; nothing crashes or leaks.
 *
 * The bytes are read twice: as a file, and as the value of --set for a list, a text and a number.
 * Laws held for every input: memory in use is the same afterwards; a refusal has a sentence; what
 * was accepted is emitted, and what is emitted loads and is emitted again in the same bytes.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct values {
    int64_t count;
    int64_t share;
    double rate;
    const char *name;
    ms_config_list *parts;
    int mode;
    bool quick;
} values;

static const char *const modes[] = {"slow", "auto", "fast", NULL};

static const ms_key keys[] = {
    {"count", MS_KEY_INT, offsetof(values, count), "3", "steps", 1, 1e12, NULL, false, "A count."},
    {"share", MS_KEY_INT, offsetof(values, share), "auto", "", 0, 0, NULL, true, "Any number."},
    {"rate", MS_KEY_REAL, offsetof(values, rate), "1e-3", "", -1e9, 1e9, NULL, true, "A rate."},
    {"name", MS_KEY_STRING, offsetof(values, name), "", "", 0, 0, NULL, false, "A name."},
    {"parts", MS_KEY_LIST, offsetof(values, parts), "", "", 0, 0, NULL, false, "Some parts."},
    {"mode", MS_KEY_ENUM, offsetof(values, mode), "slow", "", 0, 0, modes, true, "A mode."},
    {"quick", MS_KEY_BOOL, offsetof(values, quick), "no", "", 0, 0, NULL, false, "A switch."},
};
static const ms_config_section model = {"model",        "Held.", keys, sizeof keys / sizeof keys[0],
                                        sizeof(values), false};
static const ms_config_section parallel = {
    "parallel", "Held.", keys, sizeof keys / sizeof keys[0], sizeof(values), true};
static const ms_config_section *const sections[] = {&model, &parallel};

static void hold(bool condition, const char *law) {
    if (!condition) {
        fprintf(stderr, "fuzz_config: broken law: %s\n(last error: %s)\n", law, ms_error_detail());
        abort();
    }
}

static size_t live_bytes(void) {
    ms_memory_counters counters = ms_memory_counters_get();
    size_t sum = 0;
    for (int tag = 0; tag < MS_MEMORY_TAG_COUNT; tag++) {
        sum += counters.live_bytes[tag];
    }
    return sum;
}

static void check_emitted(const ms_config *config) {
    ms_text first = {0}, second = {0};
    ms_config *again = NULL;
    hold(ms_config_emit(config, &first) == MS_OK, "what was accepted is emitted");
    ms_config_source source = {.path = "emitted", .text = first.bytes};
    hold(ms_config_load(&source, sections, 2, &again) == MS_OK, "what is emitted loads");
    hold(ms_config_emit(again, &second) == MS_OK, "and is emitted");
    hold(first.length == second.length && memcmp(first.bytes, second.bytes, first.length) == 0,
         "in the same bytes");
    ms_config_destroy(again);
    ms_text_release(&first);
    ms_text_release(&second);
}

static void load(const ms_config_source *source) {
    ms_config *config = NULL;
    ms_error_clear();
    ms_status status = ms_config_load(source, sections, 2, &config);
    if (status == MS_OK) {
        check_emitted(config);
    } else {
        hold(status == MS_ERR_CONFIG, "a refusal is MS_ERR_CONFIG");
        hold(ms_error_detail()[0] != '\0' && config == NULL, "a refusal has a sentence");
    }
    ms_config_destroy(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const targets[] = {"model.parts=", "parallel.name=", "model.count="};
    size_t before = live_bytes();
    char *text = malloc(size + 1);
    if (text == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    load(&(ms_config_source){.path = "fuzz.yaml", .text = text});
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        char assignment[512];
        snprintf(assignment, sizeof assignment, "%s%s", targets[i], text);
        const char *const assignments[] = {assignment};
        load(&(ms_config_source){.assignments = assignments, .assignment_count = 1});
    }
    free(text);
    hold(live_bytes() == before, "memory in use is the same afterwards");
    return 0;
}
