/*
 * train_and_generate.c - trains a small model on a text file and lets it write, with the installed library alone.
 *
 *   cc train_and_generate.c $(pkg-config --cflags --libs mindspeed)
 *   ./a.out TEXT_FILE RUN_DIRECTORY [STEPS]
 *
 * Run twice with more steps the second time, it goes on from the checkpoint in RUN_DIRECTORY.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mindspeed/generate.h>
#include <mindspeed/train.h>
#include <mindspeed/version.h>

enum { WRITTEN_TOKENS = 120, ASSIGNMENT_BYTES = 4200 };

static int report(const char *what) {
    fprintf(stderr, "%s: %s\n", what, ms_error_detail());
    return EXIT_FAILURE;
}

static void on_step(const ms_train_progress *progress, void *context) {
    double *first_loss = context;
    if (*first_loss == 0) {
        *first_loss = progress->loss;
    }
}

static int train(const char *text_file, const char *directory, const char *steps) {
    char data[ASSIGNMENT_BYTES], run[ASSIGNMENT_BYTES], length[64];
    snprintf(data, sizeof data, "data.train=%s", text_file);
    snprintf(run, sizeof run, "checkpoint.dir=%s", directory);
    snprintf(length, sizeof length, "train.steps=%s", steps);
    const char *const assignments[] = {data,
                                       run,
                                       length,
                                       "data.tokenizer=char",
                                       "model.layers=2",
                                       "model.hidden=64",
                                       "model.sequence=32",
                                       "train.global_batch_size=8",
                                       "optimizer.warmup_steps=5",
                                       "evaluate.every_steps=0",
                                       "run.threads=1"};
    double first_loss = 0;
    ms_train_options options = MS_TRAIN_OPTIONS_INIT;
    options.assignments = assignments;
    options.assignment_count = (int)(sizeof assignments / sizeof assignments[0]);
    options.quiet = 1;
    options.on_step = on_step;
    options.context = &first_loss;
    ms_train_summary summary;
    if (ms_train(&options, &summary) != MS_OK) {
        return report("training failed");
    }
    if (summary.steps > summary.resumed_from_step) {
        printf("steps %" PRId64 " to %" PRId64 ": loss from %.4f to %.4f\n",
               summary.resumed_from_step + 1, summary.steps, first_loss, summary.loss);
    }
    return EXIT_SUCCESS;
}

static int write_text(ms_generator *generator) {
    if (ms_generator_prompt(generator, "\n", 1) != MS_OK) {
        return report("the prompt was not taken");
    }
    for (int i = 0; i < WRITTEN_TOKENS; i++) {
        int32_t id;
        const char *bytes;
        size_t length;
        if (ms_generator_length(generator) == ms_generator_capacity(generator)) {
            break;
        }
        if (ms_generator_next(generator, &id) != MS_OK ||
            ms_generator_bytes(generator, id, &bytes, &length) != MS_OK) {
            return report("no next token");
        }
        if (ms_generator_is_end(generator, id)) {
            break;
        }
        fwrite(bytes, 1, length, stdout);
    }
    printf("\n");
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: %s TEXT_FILE RUN_DIRECTORY [STEPS]\n", argv[0]);
        return 2;
    }
    printf("libmindspeed %s\n", ms_version());
    if (train(argv[1], argv[2], argc > 3 ? argv[3] : "100") != EXIT_SUCCESS) {
        return EXIT_FAILURE;
    }
    ms_generate_options options = MS_GENERATE_OPTIONS_INIT;
    options.temperature = 0.8;
    options.threads = 1;
    ms_generator *generator;
    if (ms_generator_open(argv[2], &options, &generator) != MS_OK) {
        return report("the trained model was not opened");
    }
    int status = write_text(generator);
    ms_generator_close(generator);
    return status;
}
