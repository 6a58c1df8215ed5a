/* profile.c - where a step's time goes, by kernel: calls, milliseconds, share, and rate for matmuls. */
#include <inttypes.h>
#include <stdlib.h>

#include "engine/engine_internal.h"

typedef struct profile_entry {
    int32_t kernel; /* of the program's cache */
    int64_t calls;
    double seconds;
} profile_entry;

struct ms_profile {
    const ms_program *program;
    profile_entry entries[]; /* one per kernel of the program */
};

ms_status ms_engine_profile_begin(ms_engine *engine) {
    const ms_program *program = engine->program;
    size_t bytes = sizeof(struct ms_profile) +
                   (size_t)program->kernel_count * sizeof(profile_entry);
    ms_free(engine->profile);
    engine->profile = NULL;
    MS_TRY(ms_alloc(bytes, MS_MEMORY_PROCESS, (void **)&engine->profile));
    engine->profile->program = program;
    for (int32_t i = 0; i < program->kernel_count; i++) {
        engine->profile->entries[i].kernel = i;
    }
    return MS_OK;
}

void ms__profile_add(struct ms_profile *profile, const ms_kernel_handle *kernel, double seconds) {
    for (int32_t i = 0; i < profile->program->kernel_count; i++) {
        if (profile->program->kernels[i] == kernel) {
            profile->entries[i].calls++;
            profile->entries[i].seconds += seconds;
            return;
        }
    }
}

static int by_time(const void *a, const void *b) {
    const profile_entry *left = a, *right = b;
    return left->seconds < right->seconds ? 1 : left->seconds > right->seconds ? -1 : 0;
}

static ms_status write_entry(const struct ms_profile *profile, const profile_entry *entry,
                             double total, ms_text *table) {
    const ms_kernel_spec *spec = &profile->program->kernel_specs[entry->kernel];
    ms_kernel_needs needs = ms_kernel_get_needs(profile->program->kernels[entry->kernel]);
    MS_TRY(ms_text_printf(table, "%10.2f ms %5.1f%% %6" PRId64 " x %-18s %-8s",
                          entry->seconds * 1e3, 100 * entry->seconds / total, entry->calls,
                          ms_slot_name(spec->slot), needs.variant));
    int last = spec->argument_count - 1;
    if (spec->slot == MS_SLOT_MATMUL) {
        bool transposed = spec->attributes.matmul.transpose_a;
        int64_t k = spec->arguments[0].dims[transposed ? 0 : 1];
        int64_t m = spec->arguments[last].dims[0], n = spec->arguments[last].dims[1];
        double flops = 2.0 * (double)m * (double)n * (double)k * (double)entry->calls;
        return ms_text_printf(table, " %" PRId64 " x %" PRId64 " x %" PRId64 "%s%s  %.1f GFLOP/s\n",
                              m, n, k, transposed ? ", a transposed" : "",
                              spec->attributes.matmul.packed ? ", packed" : "",
                              flops / entry->seconds / 1e9);
    }
    for (int i = 0; i < spec->argument_count && i < 1; i++) {
        for (int d = 0; d < spec->arguments[i].rank; d++) {
            MS_TRY(ms_text_printf(table, "%s%" PRId64, d > 0 ? " x " : " ",
                                  spec->arguments[i].dims[d]));
        }
    }
    return ms_text_append_z(table, "\n");
}

/* One line for each kind of operator, in the order of the slots' table. */
static ms_status write_slots(const struct ms_profile *profile, double total, ms_text *table) {
    const ms_program *program = profile->program;
    for (int slot = 0; slot < MS_SLOT_COUNT; slot++) {
        double seconds = 0;
        int64_t calls = 0;
        for (int32_t i = 0; i < program->kernel_count; i++) {
            const profile_entry *entry = &profile->entries[i];
            bool same = program->kernel_specs[entry->kernel].slot == (ms_slot)slot;
            seconds += same ? entry->seconds : 0;
            calls += same ? entry->calls : 0;
        }
        if (calls > 0) {
            MS_TRY(ms_text_printf(table, "  %-18s %10.2f ms %5.1f%%  %" PRId64 " calls\n",
                                  ms_slot_name((ms_slot)slot), seconds * 1e3,
                                  100 * seconds / total, calls));
        }
    }
    return MS_OK;
}

ms_status ms_engine_profile_end(ms_engine *engine, ms_text *table) {
    struct ms_profile *profile = engine->profile;
    if (profile == NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "profiling was not begun");
    }
    engine->profile = NULL;
    int32_t count = profile->program->kernel_count;
    qsort(profile->entries, (size_t)count, sizeof *profile->entries, by_time);
    double total = 0;
    for (int32_t i = 0; i < count; i++) {
        total += profile->entries[i].seconds;
    }
    ms_status status = ms_text_printf(table, "kernels %.2f ms\n", total * 1e3);
    if (status == MS_OK) {
        status = write_slots(profile, total, table);
    }
    for (int32_t i = 0; i < count && status == MS_OK && profile->entries[i].calls > 0; i++) {
        status = write_entry(profile, &profile->entries[i], total, table);
    }
    ms_free(profile);
    return status;
}
