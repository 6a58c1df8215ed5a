/*
 * bench_kernels.c - `mindspeed bench kernels`: each kernel of one GPT layer and head at a model's shapes, against what the
 * machine can do: GFLOP/s beside the measured matmul peak, GB/s beside a measured copy.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/thread.h"
#include "cli/bench.h"
#include "cli/command_line.h"
#include "train/session.h"

static const char usage[] =
    "usage: mindspeed bench kernels [--rows N] [--hidden C] [--heads H] [--vocabulary V]\n"
    "                               [--compute fp32|bf16] [--threads K] [--json]\n"
    "Times each kernel at the shapes of one layer (default: GPT-2 124M, 1,024 tokens).\n";

typedef struct kernel_arguments {
    long long rows, hidden, heads, vocabulary, threads;
    ms_dtype compute;
    bool json, help;
} kernel_arguments;

typedef struct kernel_bench {
    const kernel_arguments *arguments;
    ms_device *device;
    double peak_gflops, copy_gb_s;
    int printed;
} kernel_bench;

static int parse(int argc, char **argv, kernel_arguments *arguments) {
    static const struct option options[] = {
        {"rows", required_argument, NULL, 'r'},    {"hidden", required_argument, NULL, 'c'},
        {"heads", required_argument, NULL, 'H'},   {"vocabulary", required_argument, NULL, 'v'},
        {"compute", required_argument, NULL, 'x'}, {"threads", required_argument, NULL, 'k'},
        {"json", no_argument, NULL, 'j'},          {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    optind = 1;
    opterr = 0;
    const char *name = "bench kernels";
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        bool fine = true;
        switch (option) {
        case 'r':
            fine = ms_cli_int(name, "--rows", optarg, 1, 1 << 20, &arguments->rows);
            break;
        case 'c':
            fine = ms_cli_int(name, "--hidden", optarg, 1, 1 << 16, &arguments->hidden);
            break;
        case 'H':
            fine = ms_cli_int(name, "--heads", optarg, 1, 1 << 10, &arguments->heads);
            break;
        case 'v':
            fine = ms_cli_int(name, "--vocabulary", optarg, 2, 1 << 24, &arguments->vocabulary);
            break;
        case 'k':
            fine = ms_cli_int(name, "--threads", optarg, 1, 4096, &arguments->threads);
            break;
        case 'x':
            fine = ms_dtype_parse(optarg, &arguments->compute) == MS_OK &&
                   (arguments->compute == MS_F32 || arguments->compute == MS_BF16);
            if (!fine) {
                ms_cli_usage_error(name, "--compute takes fp32 or bf16, not \"%s\"", optarg);
            }
            break;
        case 'j':
            arguments->json = true;
            break;
        case 'h':
            arguments->help = true;
            break;
        default:
            fine = false;
            ms_cli_usage_error(name, "unknown option or missing value");
        }
        if (!fine) {
            return MS_EXIT_USAGE;
        }
    }
    return MS_EXIT_OK;
}

/* Fills floating arguments with small numbers and ids with zeros: denormals would slow some kernels down. */
static void fill(void *memory, const ms_argument *argument) {
    int64_t count = ms_argument_elements(argument);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)(i % 251) / 251.0F + 0.1F;
        if (argument->dtype == MS_F32) {
            ((float *)memory)[i] = value;
        } else if (argument->dtype == MS_BF16) {
            ((uint16_t *)memory)[i] = ms_f32_to_bf16(value);
        } else if (argument->dtype == MS_F64) {
            ((double *)memory)[i] = 0.5;
        }
    }
}

static double median_seconds(const ms_kernel_handle *kernel, const ms_kernel_run_info *run) {
    double best[9];
    for (int i = 0; i < 9; i++) {
        double start = ms_clock_s();
        if (ms_kernel_run(kernel, run, NULL) != MS_OK) {
            return 0;
        }
        best[i] = ms_clock_s() - start;
        for (int j = i; j > 0 && best[j] < best[j - 1]; j--) {
            double swap = best[j];
            best[j] = best[j - 1];
            best[j - 1] = swap;
        }
    }
    return best[4];
}

static void print_row(kernel_bench *bench, const char *what, const char *variant, double seconds,
                      double bytes, double flops) {
    double gb_s = bytes / seconds / 1e9, gflops = flops / seconds / 1e9;
    if (bench->arguments->json) {
        printf("%s{\"kernel\": \"%s\", \"variant\": \"%s\", \"us\": %.2f, \"gb_s\": %.2f, \"gflops\": %.2f}",
               bench->printed++ > 0 ? ", " : "", what, variant, seconds * 1e6, gb_s, gflops);
        return;
    }
    printf("%-34s %-8s %10.1f us %8.1f GB/s (%3.0f%% of copy)", what, variant, seconds * 1e6, gb_s,
           100 * gb_s / bench->copy_gb_s);
    if (flops > 0) {
        printf(" %8.1f GFLOP/s (%3.0f%% of peak)", gflops, 100 * gflops / bench->peak_gflops);
    }
    printf("\n");
}

static ms_status run_kernel(kernel_bench *bench, const char *what, const ms_kernel_spec *spec,
                            double flops) {
    ms_kernel_handle *kernel;
    MS_TRY(ms_kernel_prepare(bench->device, spec, &kernel));
    ms_kernel_needs needs = ms_kernel_get_needs(kernel);
    void *memory[MS_ARGS_MAX + 1] = {NULL};
    double bytes = 0;
    ms_status status = ms_device_alloc(bench->device, needs.scratch_bytes, &memory[MS_ARGS_MAX]);
    for (int i = 0; i < spec->argument_count && status == MS_OK; i++) {
        size_t size = (size_t)ms_argument_elements(&spec->arguments[i]) *
                      ms_dtype_bytes(spec->arguments[i].dtype);
        if (spec->arguments[i].rank >= 0) {
            status = ms_device_alloc(bench->device, size, &memory[i]);
            bytes += (double)size;
        }
        if (status == MS_OK && memory[i] != NULL) {
            fill(memory[i], &spec->arguments[i]);
        }
    }
    if (status == MS_OK) {
        ms_kernel_run_info run = {.arguments = memory, .scratch = memory[MS_ARGS_MAX]};
        double seconds = median_seconds(kernel, &run);
        print_row(bench, what, needs.variant, seconds, bytes, flops);
    }
    for (int i = 0; i <= MS_ARGS_MAX; i++) {
        ms_device_free(bench->device, memory[i]);
    }
    ms_kernel_destroy(kernel);
    return status;
}

static ms_argument matrix(ms_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t dims[2] = {rows, columns};
    return ms_argument_of(dtype, 2, dims);
}

static ms_argument vector(ms_dtype dtype, int64_t count) { return ms_argument_of(dtype, 1, &count); }

static ms_status bench_matmuls(kernel_bench *bench) {
    const kernel_arguments *a = bench->arguments;
    const struct {
        const char *name;
        int64_t m, n, k;
        bool ta;
    } shapes[] = {{"matmul qkv", a->rows, 3 * a->hidden, a->hidden, false},
                  {"matmul projection", a->rows, a->hidden, a->hidden, false},
                  {"matmul feed-forward in", a->rows, 4 * a->hidden, a->hidden, false},
                  {"matmul feed-forward out", a->rows, a->hidden, 4 * a->hidden, false},
                  {"matmul weight gradient", a->hidden, 4 * a->hidden, a->rows, true}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        ms_kernel_spec spec = {.slot = MS_SLOT_MATMUL, .argument_count = 4};
        spec.arguments[0] = shapes[i].ta ? matrix(a->compute, shapes[i].k, shapes[i].m)
                                         : matrix(a->compute, shapes[i].m, shapes[i].k);
        spec.arguments[1] = matrix(a->compute, shapes[i].k, shapes[i].n);
        spec.arguments[2] = ms_argument_absent();
        spec.arguments[3] = matrix(shapes[i].ta ? MS_F32 : a->compute, shapes[i].m, shapes[i].n);
        spec.attributes.matmul.transpose_a = shapes[i].ta;
        MS_TRY(run_kernel(bench, shapes[i].name, &spec,
                          2.0 * (double)shapes[i].m * (double)shapes[i].n * (double)shapes[i].k));
    }
    return MS_OK;
}

static ms_status bench_attention(kernel_bench *bench) {
    const kernel_arguments *a = bench->arguments;
    int64_t T = a->rows >= 256 && a->rows % 256 == 0 ? 256 : a->rows;
    int64_t batch = a->rows / T, size = a->hidden / a->heads, width = a->heads * size;
    ms_kernel_spec spec = {.slot = MS_SLOT_ATTENTION, .argument_count = 6};
    spec.attributes.attention.packed = spec.attributes.attention.causal = true;
    spec.attributes.attention.batch = batch;
    spec.attributes.attention.positions = T;
    spec.attributes.attention.heads = spec.attributes.attention.kv_heads = a->heads;
    spec.attributes.attention.heads_global = a->heads;
    spec.attributes.attention.head_size = size;
    const int64_t lse[3] = {batch, a->heads, T};
    spec.arguments[0] = matrix(a->compute, a->rows, 3 * width);
    spec.arguments[1] = spec.arguments[2] = spec.arguments[3] = ms_argument_absent();
    spec.arguments[4] = matrix(a->compute, a->rows, width);
    spec.arguments[5] = ms_argument_of(MS_F32, 3, lse);
    double pair = (double)batch * (double)T * (double)T * (double)width;
    MS_TRY(run_kernel(bench, "attention", &spec, 2 * pair));
    spec.slot = MS_SLOT_ATTENTION_GRAD;
    spec.argument_count = 10;
    spec.arguments[6] = spec.arguments[4];
    spec.arguments[7] = spec.arguments[0];
    spec.arguments[8] = spec.arguments[9] = ms_argument_absent();
    return run_kernel(bench, "attention gradient", &spec, 5 * pair);
}

static ms_status bench_elementwise(kernel_bench *bench) {
    const kernel_arguments *a = bench->arguments;
    ms_argument rows = matrix(a->compute, a->rows, a->hidden);
    ms_argument wide = matrix(a->compute, a->rows, 4 * a->hidden);
    ms_kernel_spec norm = {.slot = MS_SLOT_NORM, .argument_count = 7};
    norm.attributes.norm.epsilon = 1e-5;
    norm.arguments[0] = norm.arguments[1] = norm.arguments[4] = norm.arguments[5] = rows;
    norm.arguments[2] = norm.arguments[3] = vector(MS_F32, a->hidden);
    norm.arguments[6] = matrix(MS_F32, a->rows, 2);
    MS_TRY(run_kernel(bench, "residual + norm", &norm, 0));
    ms_kernel_spec gelu = {.slot = MS_SLOT_ACTIVATION, .argument_count = 3};
    gelu.arguments[0] = gelu.arguments[2] = wide;
    gelu.arguments[1] = ms_argument_absent();
    MS_TRY(run_kernel(bench, "gelu", &gelu, 0));
    ms_kernel_spec gelu_grad = {.slot = MS_SLOT_ACTIVATION_GRAD, .argument_count = 5};
    gelu_grad.arguments[0] = gelu_grad.arguments[1] = gelu_grad.arguments[3] = wide;
    gelu_grad.arguments[2] = gelu_grad.arguments[4] = ms_argument_absent();
    MS_TRY(run_kernel(bench, "gelu gradient", &gelu_grad, 0));
    ms_kernel_spec sum = {.slot = MS_SLOT_COLUMN_SUM, .argument_count = 2};
    sum.arguments[0] = wide;
    sum.arguments[1] = vector(MS_F32, 4 * a->hidden);
    MS_TRY(run_kernel(bench, "bias gradient", &sum, 0));
    ms_kernel_spec xent = {.slot = MS_SLOT_XENT_GRAD, .argument_count = 6};
    int64_t chunk = ms_min_i64(a->rows, 256);
    const int64_t stats[3] = {1, chunk, 3};
    xent.attributes.xent.valid = a->vocabulary;
    xent.arguments[0] = matrix(MS_F32, chunk, a->vocabulary);
    xent.arguments[1] = vector(MS_I32, chunk);
    xent.arguments[2] = ms_argument_of(MS_F32, 3, stats);
    xent.arguments[3] = vector(MS_F64, 1);
    xent.arguments[4] = matrix(a->compute, chunk, a->vocabulary);
    xent.arguments[5] = vector(MS_F32, chunk);
    MS_TRY(run_kernel(bench, "cross-entropy gradient, 256 rows", &xent, 0));
    int64_t parameters = 12 * a->hidden * a->hidden;
    ms_kernel_spec adamw = {.slot = MS_SLOT_ADAMW, .argument_count = 6};
    for (int i = 0; i < 4; i++) {
        adamw.arguments[i] = vector(MS_F32, parameters);
    }
    adamw.arguments[4] = vector(MS_F64, MS_HYPER_COUNT);
    adamw.arguments[5] = ms_argument_absent();
    return run_kernel(bench, "adamw, one layer", &adamw, 0);
}

/* Bytes read and written by a large copy, per second: what memory-bound kernels are measured against. */
static ms_status measure_copy(kernel_bench *bench) {
    size_t bytes = (size_t)128 << 20;
    void *from, *to;
    MS_TRY(ms_device_alloc(bench->device, bytes, &from));
    MS_TRY(ms_device_alloc(bench->device, bytes, &to));
    for (int i = 0; i < 4; i++) {
        double start = ms_clock_s();
        memcpy(to, from, bytes);
        double rate = 2.0 * (double)bytes / (ms_clock_s() - start) / 1e9;
        bench->copy_gb_s = rate > bench->copy_gb_s ? rate : bench->copy_gb_s;
    }
    ms_device_free(bench->device, from);
    ms_device_free(bench->device, to);
    return MS_OK;
}

static ms_status run_all(kernel_bench *bench) {
    const kernel_arguments *arguments = bench->arguments;
    ms_thread_team_set((int)arguments->threads);
    ms_device_options options = {.name = "cpu", .threads = (int)arguments->threads,
                                 .isa_max = MS_ISA_COUNT,
                                 .variant = ms_config_environment("MS_KERNEL")};
    MS_TRY(ms_device_open(&options, &bench->device));
    MS_TRY(measure_copy(bench));
    MS_TRY(ms_measure_peak(bench->device, arguments->compute, &bench->peak_gflops));
    if (arguments->json) {
        printf("{\"compute\": \"%s\", \"threads\": %lld, \"peak_gflops\": %.1f, \"copy_gb_s\": %.1f, \"results\": [",
               ms_dtype_name(arguments->compute), arguments->threads, bench->peak_gflops,
               bench->copy_gb_s);
    } else {
        printf("%s, %s, %lld threads: matmul peak %.0f GFLOP/s, copy %.1f GB/s (one thread, read + written)\n",
               ms_device_description(bench->device), ms_dtype_name(arguments->compute),
               arguments->threads, bench->peak_gflops, bench->copy_gb_s);
    }
    MS_TRY(bench_matmuls(bench));
    MS_TRY(bench_attention(bench));
    MS_TRY(bench_elementwise(bench));
    printf(arguments->json ? "]}\n" : "");
    return MS_OK;
}

int ms_bench_kernels(int argc, char **argv) {
    kernel_arguments arguments = {.rows = 1024, .hidden = 768, .heads = 12, .vocabulary = 50257,
                                  .threads = 1, .compute = MS_F32};
    int parsed = parse(argc, argv, &arguments);
    if (parsed != MS_EXIT_OK) {
        return parsed;
    }
    if (arguments.help) {
        fputs(usage, stdout);
        return MS_EXIT_OK;
    }
    kernel_bench bench = {.arguments = &arguments};
    ms_status status = run_all(&bench);
    ms_device_close(bench.device);
    return status == MS_OK ? MS_EXIT_OK : ms_cli_fail(status);
}
