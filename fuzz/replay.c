/*
 * replay.c - runs a fuzz target without a fuzzer: the corpus, then fixed mutations of it.
 *
 *   fuzz_config CORPUS...        each argument a file or a folder of files
 *
 * So every compiler replays what was once found, in each test run. Mutations are the ones that
 * break parsers: flipped and replaced bytes, truncation, runs removed or doubled, and the extremes
 * of 64-bit numbers written over lengths and offsets. They come from a fixed seed, so a failure
 * repeats; with a crash the input is found by setting a breakpoint, or by running the printed file
 * alone.
 *
 * Bounded: about 3 s and MUTATIONS_PER_FILE mutations of each file, whichever ends first; every
 * file gets its share of the time. Under libFuzzer (clang -fsanitize=fuzzer) this file is left out.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUTATIONS_PER_FILE 4000
#define SECONDS_TOTAL 3.0
#define FILE_BYTES_MAX ((long)1 << 20)
#define GROWTH_BYTES_MAX ((size_t)64)

typedef struct input {
    char *path;
    uint8_t *bytes;
    size_t length;
} input;

typedef struct corpus {
    input *inputs;
    size_t count;
} corpus;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint64_t next_random(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void give_up(const char *what, const char *path) {
    fprintf(stderr, "replay: cannot %s %s\n", what, path);
    exit(2);
}

static void add_file(corpus *all, const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        give_up("read", path);
    }
    long length = ftell(file);
    if (length < 0 || length > FILE_BYTES_MAX) {
        give_up("take (too long)", path);
    }
    rewind(file);
    input one = {
        .path = strdup(path), .bytes = malloc((size_t)length + 1), .length = (size_t)length};
    input *grown = realloc(all->inputs, (all->count + 1) * sizeof *grown);
    if (one.path == NULL || one.bytes == NULL || grown == NULL ||
        fread(one.bytes, 1, one.length, file) != one.length) {
        give_up("read", path);
    }
    fclose(file);
    all->inputs = grown;
    all->inputs[all->count++] = one;
}

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* A file, or every file of a folder in the order of names. */
static void add_path(corpus *all, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) {
        give_up("find", path);
    }
    if (!S_ISDIR(info.st_mode)) {
        add_file(all, path);
        return;
    }
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, compare_names);
    if (count < 0) {
        give_up("list", path);
    }
    for (int i = 0; i < count; i++) {
        char full[4096];
        int wanted = snprintf(full, sizeof full, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && wanted > 0 && (size_t)wanted < sizeof full) {
            add_path(all, full);
        }
        free(entries[i]);
    }
    free(entries);
}

/* A copy of exactly the right size, so that AddressSanitizer sees a read one byte beyond. */
static void run_exact(const uint8_t *bytes, size_t length) {
    uint8_t *copy = malloc(length > 0 ? length : 1);
    if (copy == NULL) {
        give_up("hold", "an input");
    }
    if (length > 0) {
        memcpy(copy, bytes, length);
    }
    LLVMFuzzerTestOneInput(copy, length);
    free(copy);
}

static void write_number(uint8_t *bytes, size_t length, uint64_t *random) {
    static const uint64_t extremes[] = {0,
                                        1,
                                        UINT64_MAX,
                                        UINT64_C(0x7fffffffffffffff),
                                        UINT64_C(0x8000000000000000),
                                        UINT64_C(0x7ffffffffffffff8),
                                        UINT64_C(0xffffffff),
                                        UINT64_C(0x100000000),
                                        UINT64_C(0x7fffffff),
                                        UINT64_C(0x80000000),
                                        UINT64_C(0xfffffffffffffff8),
                                        UINT64_C(0x4000000000000000)};
    uint64_t value = extremes[next_random(random) % (sizeof extremes / sizeof extremes[0])];
    size_t width = (size_t)1 << (next_random(random) % 4);
    if (length < width) {
        return;
    }
    size_t at = (size_t)(next_random(random) % (length - width + 1));
    if (next_random(random) % 2 == 0) {
        at -= at % width; /* binary formats align their numbers */
    }
    memcpy(bytes + at, &value, width);
}

/* One change; bytes has room for GROWTH_BYTES_MAX more. Returns the new length. */
static size_t mutate_once(uint8_t *bytes, size_t length, uint64_t *random) {
    static const uint8_t telling[] = "\0\xff\x7f\x80 \n\"'{}[]:,#-+.eE0129/\\&*!%@`|>~\t";
    uint64_t kind = next_random(random) % 7;
    size_t at = length > 0 ? (size_t)(next_random(random) % length) : 0;
    size_t run = 1 + (size_t)(next_random(random) % 16);
    if (length == 0) {
        bytes[0] = telling[next_random(random) % (sizeof telling - 1)];
        return 1;
    }
    run = run > length - at ? length - at : run;
    switch (kind) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << (next_random(random) % 8));
        return length;
    case 1:
        bytes[at] = telling[next_random(random) % (sizeof telling - 1)];
        return length;
    case 2:
        return at; /* truncated */
    case 3:
        memmove(bytes + at, bytes + at + run, length - at - run);
        return length - run;
    case 4:
        memmove(bytes + at + run, bytes + at, length - at);
        return length + run;
    case 5:
        bytes[at] = (uint8_t)next_random(random);
        return length;
    default:
        write_number(bytes, length, random);
        return length;
    }
}

/* Mutations of one file until its time is over; returns how many were run. */
static size_t run_mutations(const input *one, uint64_t seed, double deadline_s) {
    uint8_t *bytes = malloc(one->length + GROWTH_BYTES_MAX + 1);
    if (bytes == NULL) {
        give_up("hold", one->path);
    }
    size_t done = 0;
    uint64_t random = seed;
    while (done < MUTATIONS_PER_FILE && now_s() < deadline_s) {
        size_t length = one->length;
        if (length > 0) {
            memcpy(bytes, one->bytes, length);
        }
        size_t changes = 1 + (size_t)(next_random(&random) % 4); /* each grows by 16 at most */
        for (size_t i = 0; i < changes; i++) {
            length = mutate_once(bytes, length, &random);
        }
        run_exact(bytes, length);
        done++;
    }
    free(bytes);
    return done;
}

int main(int argc, char **argv) {
    corpus all = {0};
    size_t mutations = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s CORPUS...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        add_path(&all, argv[i]);
    }
    if (all.count == 0) {
        give_up("find any file in", argv[1]);
    }
    for (size_t i = 0; i < all.count; i++) {
        run_exact(all.inputs[i].bytes, all.inputs[i].length);
    }
    double start_s = now_s();
    for (size_t i = 0; i < all.count; i++) {
        double share = (double)(i + 1) / (double)all.count;
        mutations += run_mutations(&all.inputs[i], 1337 + i, start_s + SECONDS_TOTAL * share);
    }
    size_t files = all.count;
    for (size_t i = 0; i < all.count; i++) {
        free(all.inputs[i].path);
        free(all.inputs[i].bytes);
    }
    free(all.inputs);
    printf("%zu files and %zu mutations replayed\n", files, mutations);
    return 0;
}
