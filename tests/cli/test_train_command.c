// labels: cli
// timeout: 120
/*
 * test_train_command.c - the command that users type: the same numbers for any number of ranks,
 * killed and resumed, stopped by a signal; and for each of their mistakes one line that says what
 * to do, with nothing lost.
 */
#include "cli/train_run.h"

#define STEPS 160

static char dir[MS_TEST_PATH_BYTES];
static char ranks_1[MS_TEST_PATH_BYTES]; /* the run that nothing disturbs */
static train_history undisturbed;
static train_process process;

static int set_up(void **state) {
    (void)state;
    test_dir_make(dir);
    train_set_up(dir, STEPS);
    test_path(dir, "ranks_1", ranks_1);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_dir_remove(dir);
    return 0;
}

/* "checkpoint.dir=DIR/NAME" for --set, and the path itself. */
static const char *run_at(const char *name, char run[MS_TEST_PATH_BYTES],
                          char assignment[MS_TEST_PATH_BYTES + 32]) {
    snprintf(assignment, MS_TEST_PATH_BYTES + 32, "checkpoint.dir=%s", test_path(dir, name, run));
    return assignment;
}

static void check_status(int status, int wanted) {
    if (status != wanted) {
        fail_msg("exit status %d instead of %d: %s", status, wanted, process.err);
    }
}

/* The undisturbed run is made by whoever needs it first. */
static const train_history *wanted_history(void) {
    if (undisturbed.steps == 0) {
        char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32];
        train_start(&process, dir, "--set", run_at("ranks_1", run, set), NULL);
        check_status(train_wait(&process), 0);
        train_read_history(run, &undisturbed);
        assert_int_equal(undisturbed.steps, STEPS);
    }
    return &undisturbed;
}

static train_history history; /* too large for the stack */

static void any_number_of_ranks_gives_the_same_bits(void **state) {
    (void)state;
    const train_history *one = wanted_history();
    assert_string_not_equal(one->loss[0], one->loss[STEPS - 1]);
    static const char *const ranks[] = {"2", "4"};
    for (size_t i = 0; i < 2; i++) {
        char name[16], run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32];
        snprintf(name, sizeof name, "ranks_%s", ranks[i]);
        train_start(&process, dir, "--ranks", ranks[i], "--set", run_at(name, run, set), NULL);
        check_status(train_wait(&process), 0);
        train_read_history(run, &history);
        assert_int_equal(history.steps, STEPS);
        train_same_history(&history, one, name);
    }
}

/* Kills one rank at work; within a second all have ended, and stderr says who it was. */
static void kill_a_rank(const char *run, const char *set, const char *ranks, int rank, int lines) {
    train_start(&process, dir, "--ranks", ranks, "--set", set, NULL);
    train_wait_lines(&process, run, lines);
    pid_t pid = train_rank(&process, rank);
    double start_s = train_now_s();
    assert_int_equal(kill(pid, SIGKILL), 0);
    int status = train_wait(&process);
    double took_s = train_now_s() - start_s;
    char named[64];
    snprintf(named, sizeof named, "rank %d was killed by signal 9", rank);
    if (status != 128 + SIGKILL || strstr(process.err, named) == NULL || took_s > 1) {
        fail_msg("status %d after %.2f s, \"%s\"", status, took_s, process.err);
    }
    assert_true(train_lines(run) < STEPS);
}

static void killed_twice_and_resumed(void **state) {
    (void)state;
    const train_history *wanted = wanted_history();
    char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32];
    run_at("killed", run, set);
    kill_a_rank(run, set, "2", 1, 30);
    kill_a_rank(run, set, "4", 0, 70);
    train_start(&process, dir, "--ranks", "2", "--set", set, NULL);
    check_status(train_wait(&process), 0);
    assert_non_null(strstr(process.out, "resume"));
    train_read_history(run, &history);
    assert_int_equal(history.steps, STEPS);
    train_same_history(&history, wanted, "killed twice");
}

static void stopped_by_a_signal(void **state) {
    (void)state;
    const train_history *wanted = wanted_history();
    char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32], saved[MS_TEST_PATH_BYTES];
    static const char *const ranks[] = {"1", "2"};
    static const int signals[] = {SIGTERM, SIGINT};
    run_at("stopped", run, set);
    for (size_t i = 0; i < 2; i++) {
        train_start(&process, dir, "--ranks", ranks[i], "--set", set, NULL);
        train_wait_lines(&process, run, 27 + 50 * (int)i);
        kill(process.pid, signals[i]);
        check_status(train_wait(&process), 3);
        assert_string_equal(process.err, "");
        train_read_history(run, &history);
        assert_true(history.steps < STEPS);
        char name[64];
        snprintf(name, sizeof name, "step-%08d", history.steps);
        assert_true(ms_path_is_directory(test_path(run, name, saved)));
        train_same_history(&history, wanted, "stopped");
    }
    int at = history.steps;
    train_start(&process, dir, "--set", set, NULL);
    check_status(train_wait(&process), 0);
    char said[32];
    snprintf(said, sizeof said, ": step %d, ", at);
    assert_non_null(strstr(process.out, said));
    train_read_history(run, &history);
    assert_int_equal(history.steps, STEPS);
    train_same_history(&history, wanted, "stopped and resumed");
}

static void two_runs_on_one_directory(void **state) {
    (void)state;
    char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32], busy[64];
    static train_process second;
    run_at("shared", run, set);
    train_start(&process, dir, "--set", set, "--set", "train.steps=100000", "--set",
                "checkpoint.every_steps=0", NULL);
    train_wait_lines(&process, run, 3);
    snprintf(busy, sizeof busy, "another run uses this directory (pid %d on ", (int)process.pid);
    static const char *const ranks[] = {"1", "2"};
    for (size_t i = 0; i < 2; i++) {
        train_start(&second, dir, "--ranks", ranks[i], "--set", set, NULL);
        int status = train_wait(&second);
        if (status != 1 || strstr(second.err, busy) == NULL) {
            kill(process.pid, SIGKILL);
            fail_msg("status %d: \"%s\"", status, second.err);
        }
    }
    kill(process.pid, SIGTERM);
    check_status(train_wait(&process), 3);
    train_history *steps = &history;
    train_read_history(run, steps); /* contiguous: the others wrote nothing */
    assert_true(steps->steps >= 3);
}

typedef struct mistake {
    const char *what;
    const char *words[6]; /* @ stands for the test's directory */
    const char *parts[4]; /* of the one line */
} mistake;

static const mistake mistakes[] = {
    {"unknown key",
     {"--set", "model.hiden=64"},
     {"--set model.hiden=64", "unknown key", "\"hidden\""}},
    {"unknown section", {"--set", "modell.hidden=64"}, {"modell", "\"model\""}},
    {"out of range", {"--set", "model.layers=0"}, {"model.layers", "\"0\"", "from 1 to 100000"}},
    {"no number", {"--set", "train.steps=many"}, {"train.steps", "\"many\"", "whole number"}},
    {"no choice", {"--set", "precision.compute=fp8"}, {"precision.compute", "\"fp8\"", "bf16"}},
    {"not deterministic",
     {"--set", "train.deterministic=false"},
     {"--set", "train.deterministic: false is not available"}},
    {"heads", {"--set", "model.heads=5"}, {"32", "5", "heads"}},
    {"batch not divisible",
     {"--set", "train.micro_batch_size=3"},
     {"train.global_batch_size 8", "train.micro_batch_size 3", "(2 left over)"}},
    {"replicas", {"--ranks", "3"}, {"8 micro-batches", "3 replicas"}},
    {"axes",
     {"--ranks", "2", "--set", "parallel.tensor=3"},
     {"parallel.tensor 3", "does not divide 2 ranks", "--ranks 3"}},
    {"missing file", {"--set", "data.train=@/nowhere.txt"}, {"@/nowhere.txt: no such file"}},
    {"missing file, ranks",
     {"--ranks", "2", "--set", "data.train=@/nowhere.txt"},
     {"@/nowhere.txt: no such file"}},
    {"empty data", {"--set", "data.train=@/empty.txt"}, {"@/empty.txt", "is empty"}},
    {"too short data",
     {"--set", "data.train=@/short.txt"},
     {"@/short.txt", "T + 1 = 33 tokens", "it has 18"}},
    {"more ranks than samples",
     {"--ranks", "4", "--set", "data.train=@/two.txt"},
     {"4 replicas", "only 2 samples of 32 tokens"}},
    {"another model",
     {"--set", "model.hidden=64"},
     {"@/ranks_1/step-", "another model", "[256, 64]"}},
    {"another model, ranks",
     {"--ranks", "2", "--set", "model.hidden=64"},
     {"@/ranks_1/step-", "another model", "[256, 64]"}},
    {"fewer layers", {"--set", "model.layers=1"}, {"transformer.h.1.", "no place"}},
    {"more layers", {"--set", "model.layers=3"}, {"has no tensor \"transformer.h.2."}},
    {"another seed", {"--set", "train.seed=4"}, {"seed 1337", "train.seed is 4"}},
    {"unwritable directory",
     {"--set", "checkpoint.dir=@/text.txt/run"},
     {"@/text.txt", "cannot make directory"}},
    {"unwritable directory, ranks",
     {"--ranks", "2", "--set", "checkpoint.dir=@/text.txt/run"},
     {"@/text.txt", "cannot make directory"}},
    {"not built", {"--set", "parallel.zero=3"}, {"parallel.zero 3", "parallel.zero=1"}},
};

static const char *with_dir(const char *text, char buffer[2 * MS_TEST_PATH_BYTES]) {
    const char *at = strchr(text, '@');
    if (at == NULL) {
        return text;
    }
    snprintf(buffer, 2 * MS_TEST_PATH_BYTES, "%.*s%s%s", (int)(at - text), text, dir, at + 1);
    return buffer;
}

static void check_mistake(const mistake *made) {
    char set[MS_TEST_PATH_BYTES + 32], run[MS_TEST_PATH_BYTES];
    char buffers[6][2 * MS_TEST_PATH_BYTES];
    const char *words[8] = {"--set", run_at("ranks_1", run, set)};
    int count = 2;
    for (int i = 0; i < 6 && made->words[i] != NULL; i++) {
        words[count++] = with_dir(made->words[i], buffers[i]);
    }
    train_start_list(&process, dir, words, count);
    int status = train_wait(&process);
    const char *end = strchr(process.err, '\n');
    bool one_line =
        end != NULL && end[1] == '\0' && strncmp(process.err, "mindspeed: error: ", 18) == 0;
    if (status != 1 || !one_line) {
        fail_msg("%s: status %d, stderr \"%s\"", made->what, status, process.err);
    }
    for (int i = 0; i < 4 && made->parts[i] != NULL; i++) {
        char part[2 * MS_TEST_PATH_BYTES];
        if (strstr(process.err, with_dir(made->parts[i], part)) == NULL) {
            fail_msg("%s: no \"%s\" in \"%s\"", made->what, part, process.err);
        }
    }
}

static void each_mistake_is_one_line(void **state) {
    (void)state;
    const train_history *wanted = wanted_history();
    char path[MS_TEST_PATH_BYTES];
    train_write_text(test_path(dir, "two.txt", path), 18);
    test_write_file(test_path(dir, "empty.txt", path), "", 0);
    test_write_file(test_path(dir, "short.txt", path), "just twenty letters.", 20);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        check_mistake(&mistakes[i]);
    }
    train_read_history(ranks_1, &history); /* the run that they were made on is whole */
    assert_int_equal(history.steps, STEPS);
    train_same_history(&history, wanted, "after the mistakes");
    check_command_works(command_run(NULL, "checkpoint", "check", ranks_1, NULL));
}

static void mistakes_in_the_file_name_its_line(void **state) {
    (void)state;
    char path[MS_TEST_PATH_BYTES], wanted[2 * MS_TEST_PATH_BYTES];
    test_path(dir, "wrong.yaml", path);
    static const char text[] = "model:\n  layers: 2\n\n  hiden: 32\n";
    test_write_file(path, text, sizeof text - 1);
    snprintf(wanted, sizeof wanted, "%s:4: model.hiden: unknown key; did you mean \"hidden\"?",
             path);
    check_command_fails(command_run(NULL, "train", path, NULL), 1, wanted);
    check_command_fails(command_run(NULL, "train", path, "--ranks", "2", NULL), 1, wanted);
    check_command_fails(command_run(NULL, "train", "no-such.yaml", NULL), 1, "no-such.yaml");
    check_command_fails(command_run(NULL, "train", path, "more", NULL), 2, "more than one CONFIG");
    check_command_fails(command_run(NULL, "train", path, "--ranks", "0", NULL), 2, "--ranks");
}

/* "cheapest fix: WORDS (then" of the refusal, as arguments. */
static int fix_words(char *err, const char **words) {
    char *fix = strstr(err, "cheapest fix: ");
    assert_non_null(fix);
    fix += strlen("cheapest fix: ");
    char *end = strstr(fix, " (then");
    assert_non_null(end);
    *end = '\0';
    int count = 0;
    for (char *word = strtok(fix, " "); word != NULL; word = strtok(NULL, " ")) {
        words[count++] = word;
    }
    return count;
}

/* "memory    N bytes" of the plan that rank 0 printed. */
static size_t planned_bytes(void) {
    const char *line = strstr(process.out, "memory    ");
    size_t bytes = 0;
    assert_non_null(line);
    assert_int_equal(sscanf(line, "memory    %zu bytes", &bytes), 1);
    return bytes;
}

static void memory_limit_is_kept(void **state) {
    (void)state;
    char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32];
    const char *words[16] = {"--set", run_at("limited", run, set), "--set", "model.hidden=128",
                             "--set", "run.memory_limit_mib=8",    "--set", "train.steps=2"};
    train_start_list(&process, dir, words, 8);
    check_status(train_wait(&process), 1);
    size_t needed = 0, limit = 0, then = 0;
    assert_int_equal(sscanf(process.err, "mindspeed: error: each rank needs %zu bytes", &needed),
                     1);
    sscanf(strstr(process.err, "allows "), "allows %zu", &limit);
    assert_non_null(strstr(process.err, "(then "));
    sscanf(strstr(process.err, "(then "), "(then %zu bytes", &then);
    assert_int_equal(limit, 8 << 20);
    assert_true(needed > limit && then > 0 && then <= limit);
    assert_int_equal(train_lines(run), 0);
    static char refusal[TRAIN_OUTPUT_BYTES];
    memcpy(refusal, process.err, sizeof refusal);
    int count = 8 + fix_words(refusal, words + 8);
    train_start_list(&process, dir, words, count);
    check_status(train_wait(&process), 0);
    assert_int_equal(train_lines(run), 2);
    size_t planned =
        planned_bytes(); /* of rank 0; what was promised is of the rank that needs the most */
    assert_true(planned > 0 && planned <= then);
}

/* Stages need different amounts. The one that needs more refuses, not rank 0: all must end with its
 * sentence. */
static void memory_limit_of_another_rank(void **state) {
    (void)state;
    char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32], limit[64], needs[64];
    const char *words[16] = {"--ranks", "2",
                             "--set",   "parallel.pipeline=2",
                             "--set",   "model.vocabulary=20000",
                             "--set",   run_at("stages", run, set)};
    words[8] = "--dry-run";
    train_start_list(&process, dir, words, 9);
    check_status(train_wait(&process), 0);
    size_t first = planned_bytes(), second = 0;
    size_t limit_mib = (first >> 20) + 1;
    snprintf(limit, sizeof limit, "run.memory_limit_mib=%zu", limit_mib);
    words[8] = "--set";
    words[9] = limit;
    train_start_list(&process, dir, words, 10);
    check_status(train_wait(&process), 1);
    assert_int_equal(sscanf(process.err, "mindspeed: error: rank 1 needs %zu bytes", &second), 1);
    assert_true(first <= limit_mib << 20 && limit_mib << 20 < second);
    snprintf(needs, sizeof needs, "allows %zu", limit_mib << 20);
    assert_non_null(strstr(process.err, needs));
    assert_ptr_equal(strchr(process.err, '\n'), process.err + strlen(process.err) - 1);
}

/* The text of the last val_loss of a run. */
static void last_evaluation(const char *run, char *figure) {
    char path[MS_TEST_PATH_BYTES], line[2048];
    FILE *file = fopen(test_path(run, "metrics.jsonl", path), "r");
    assert_non_null(file);
    figure[0] = '\0';
    while (fgets(line, sizeof line, file) != NULL) {
        if (strstr(line, "\"val_loss\":") != NULL) {
            train_copy_figure(line, "\"val_loss\":", figure);
        }
    }
    fclose(file);
    assert_true(figure[0] != '\0');
}

/* In training for any number of replicas, and by `mindspeed eval` on the same part of the data. */
static void evaluation_is_the_same_everywhere(void **state) {
    (void)state;
    char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32], data[MS_TEST_PATH_BYTES];
    char first[TRAIN_FIGURE_BYTES], other[TRAIN_FIGURE_BYTES];
    static const char *const ranks[] = {"1", "2", "4"};
    for (size_t i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "eval_%s", ranks[i]);
        train_start(&process, dir, "--ranks", ranks[i], "--set", run_at(name, run, set), "--set",
                    "train.steps=10", "--set", "evaluate.every_steps=5", "--set",
                    "evaluate.batches=3", NULL);
        check_status(train_wait(&process), 0);
        last_evaluation(run, i == 0 ? first : other);
        assert_string_equal(first, i == 0 ? first : other);
    }
    const command_result *result =
        command_run(NULL, "eval", run, "--data", test_path(dir, "text.txt", data), "--from", "0.9",
                    "--limit", "24", "--sequence", "32", "--threads", "1", "--json", NULL);
    check_command_works(result);
    train_copy_figure(result->out, "\"loss\": ", other);
    double difference = strtod(first, NULL) - strtod(other, NULL);
    assert_true(difference < 1e-6 && difference > -1e-6); /* other batches, other rounding */
}

/* From a checkpoint of two replicas on, in each other layout: the same training, up to rounding. */
static void resumed_in_another_layout(void **state) {
    (void)state;
    char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32], saved[MS_TEST_PATH_BYTES];
    static const char *const layouts[] = {"parallel.tensor=2", "parallel.pipeline=2",
                                          "parallel.zero=0"};
    run_at("layouts", run, set);
    train_start(&process, dir, "--ranks", "2", "--set", set, "--set", "train.steps=40", NULL);
    check_status(train_wait(&process), 0);
    train_read_history(run, &history);
    assert_int_equal(history.steps, 40);
    double wanted = strtod(history.loss[39], NULL);
    for (size_t i = 0; i < 3; i++) {
        test_dir_remove(test_path(run, "step-00000040", saved));
        train_start(&process, dir, "--ranks", "2", "--set", set, "--set", "train.steps=40", "--set",
                    layouts[i], NULL);
        check_status(train_wait(&process), 0);
        assert_non_null(strstr(process.out, ": step 20, sample 160"));
        train_read_history(run, &history);
        assert_int_equal(history.steps, 40);
        double difference = strtod(history.loss[39], NULL) - wanted;
        if (!(difference < 1e-4 && difference > -1e-4) || (i == 2 && difference != 0)) {
            fail_msg("%s: the loss is off by %g", layouts[i], difference);
        }
    }
}

/* Numbers that overflow end the run at that step, with one line for all ranks; what was saved
 * before is still there. */
static void divergence_names_its_place(void **state) {
    (void)state;
    char run[MS_TEST_PATH_BYTES], set[MS_TEST_PATH_BYTES + 32];
    static const char *const ranks[] = {"1", "2"};
    for (size_t i = 0; i < 2; i++) {
        train_start(&process, dir, "--ranks", ranks[i], "--set",
                    run_at(i == 0 ? "diverged_1" : "diverged_2", run, set), "--set",
                    "optimizer.lr=1e6", "--set", "optimizer.warmup_steps=0", "--set",
                    "optimizer.clip_grad=0", "--set", "model.init_std=10", "--set",
                    "model.activation=relu", "--set", "checkpoint.every_steps=1", NULL);
        check_status(train_wait(&process), 1);
        assert_int_equal(strncmp(process.err, "mindspeed: error: step 2: ", 26), 0);
        assert_non_null(strstr(process.err, "is not finite; no update was made"));
        assert_ptr_equal(strchr(process.err, '\n'), process.err + strlen(process.err) - 1);
        assert_int_equal(train_lines(run), 1);
        check_command_works(command_run(NULL, "checkpoint", "check", run, NULL));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(killed_twice_and_resumed),
        cmocka_unit_test(stopped_by_a_signal),
        cmocka_unit_test(two_runs_on_one_directory),
        cmocka_unit_test(each_mistake_is_one_line),
        cmocka_unit_test(mistakes_in_the_file_name_its_line),
        cmocka_unit_test(evaluation_is_the_same_everywhere),
        cmocka_unit_test(resumed_in_another_layout),
        cmocka_unit_test(divergence_names_its_place),
        cmocka_unit_test(memory_limit_is_kept),
        cmocka_unit_test(memory_limit_of_another_rank),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
