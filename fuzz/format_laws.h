/* format_laws.h - what the fuzz targets of format/ hold for every input. */
#ifndef MS_FUZZ_FORMAT_LAWS_H
#define MS_FUZZ_FORMAT_LAWS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void hold(bool condition, const char *law) {
    if (!condition) {
        fprintf(stderr, "broken law: %s\n(last error: %s)\n", law, ms_error_detail());
        abort();
    }
}

/* A refusal has a sentence and is not our own fault or a lack of memory. */
static inline void hold_refusal(ms_status status) {
    hold(ms_error_detail()[0] != '\0', "a refusal has a sentence");
    hold(status != MS_ERR_BUG && status != MS_ERR_MEMORY, "a refusal is the input's fault");
}

static inline size_t live_bytes(void) {
    ms_memory_counters counters = ms_memory_counters_get();
    size_t sum = 0;
    for (int tag = 0; tag < MS_MEMORY_TAG_COUNT; tag++) {
        sum += counters.live_bytes[tag];
    }
    return sum;
}

/* The input in memory of its exact size, so that a sanitizer sees a read beyond it. */
static inline uint8_t *exact_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size > 0 ? size : 1);
    hold(copy != NULL, "there is memory for the input");
    if (size > 0) {
        memcpy(copy, data, size);
    }
    return copy;
}

#endif
