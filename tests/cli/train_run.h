/*
 * train_run.h - `mindspeed train` in the background: a configuration on disk, a process that can be
 * watched and killed while it runs, and the history that it leaves.
 *
 *   train_process process;
 *   train_start(&process, dir, "--ranks", "2", NULL);   the configuration of train_set_up, in dir
 *   train_wait_lines(&process, run, 40);                until metrics.jsonl holds 40 updates
 *   kill(train_rank(&process, 1), SIGKILL);
 *   int status = train_wait(&process);                  process.out, process.err
 */
#ifndef MS_TEST_TRAIN_RUN_H
#define MS_TEST_TRAIN_RUN_H

#include "cli/command_run.h"

#include <dirent.h>
#include <signal.h>

#define TRAIN_STEPS_MAX 1024
#define TRAIN_WAIT_S 20.0
#define TRAIN_FIGURE_BYTES 32
#define TRAIN_OUTPUT_BYTES 65536

typedef struct train_process {
    pid_t pid;
    int out_fd, err_fd;
    char out[TRAIN_OUTPUT_BYTES], err[TRAIN_OUTPUT_BYTES];
} train_process;

/* The text of loss and grad_norm of each update, as written: 17 digits say every bit. */
typedef struct train_history {
    int steps;
    char loss[TRAIN_STEPS_MAX][TRAIN_FIGURE_BYTES], norm[TRAIN_STEPS_MAX][TRAIN_FIGURE_BYTES];
} train_history;

MS_TEST_UNUSED static double train_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

MS_TEST_UNUSED static void train_pause(void) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Text of `words` short words, the same every time. */
MS_TEST_UNUSED static void train_write_text(const char *path, int words) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    uint64_t state = 5;
    for (int i = 0; i < words; i++) {
        int letters = 2 + (int)test_random_below(&state, 5);
        int first = (int)test_random_below(&state, 12);
        for (int k = 0; k < letters; k++) {
            fputc('a' + (first * (k + 1)) % 13, file);
        }
        fputc(i % 9 == 8 ? '\n' : ' ', file);
    }
    assert_int_equal(fclose(file), 0);
}

/* dir/text.txt and dir/config.yaml: two layers of 32, eight micro-batches of one sequence, a
 * checkpoint every 20. */
MS_TEST_UNUSED static void train_set_up(const char *dir, int steps) {
    char path[MS_TEST_PATH_BYTES], text[MS_TEST_PATH_BYTES];
    train_write_text(test_path(dir, "text.txt", text), 4000);
    FILE *file = fopen(test_path(dir, "config.yaml", path), "w");
    assert_non_null(file);
    fprintf(file,
            "model:\n  family: gpt2\n  layers: 2\n  hidden: 32\n  heads: 2\n  sequence: 32\n"
            "data:\n  train: \"%s\"\n"
            "train:\n  steps: %d\n  global_batch_size: 8\n  micro_batch_size: 1\n"
            "evaluate:\n  every_steps: 0\n"
            "checkpoint:\n  every_steps: 20\n"
            "run:\n  threads: 1\n",
            text, steps);
    assert_int_equal(fclose(file), 0);
}

MS_TEST_UNUSED static int train_temporary(void) {
    char path[] = "/tmp/mindspeed-train-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    return fd;
}

MS_TEST_UNUSED static void train_start_list(train_process *process, const char *dir,
                                            const char *const *words, int count) {
    const char *command = command_path();
    char path[MS_TEST_PATH_BYTES];
    const char *argv[COMMAND_ARGUMENTS_MAX + 4] = {command, "train",
                                                   test_path(dir, "config.yaml", path)};
    assert_true(count <= COMMAND_ARGUMENTS_MAX);
    memcpy(argv + 3, words, (size_t)count * sizeof *argv);
    process->out_fd = train_temporary();
    process->err_fd = train_temporary();
    fflush(NULL);
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) {
        dup2(process->out_fd, 1);
        dup2(process->err_fd, 2);
        execv(command, (char **)(uintptr_t)argv);
        _exit(127);
    }
}

/* Arguments end with NULL. */
MS_TEST_UNUSED static void train_start(train_process *process, const char *dir, ...) {
    const char *words[COMMAND_ARGUMENTS_MAX];
    int count = 0;
    va_list arguments;
    va_start(arguments, dir);
    for (const char *next; (next = va_arg(arguments, const char *)) != NULL; count++) {
        assert_true(count < COMMAND_ARGUMENTS_MAX);
        words[count] = next;
    }
    va_end(arguments);
    train_start_list(process, dir, words, count);
}

MS_TEST_UNUSED static void train_read(int fd, char *bytes) {
    ssize_t got = pread(fd, bytes, TRAIN_OUTPUT_BYTES - 1, 0);
    bytes[got > 0 ? got : 0] = '\0';
}

/* Exit status, 128 + the signal's number. A process that does not end is killed, and the test
 * fails. */
MS_TEST_UNUSED static int train_wait(train_process *process) {
    int status = 0;
    double limit_s = train_now_s() + TRAIN_WAIT_S;
    while (waitpid(process->pid, &status, WNOHANG) != process->pid) {
        if (train_now_s() > limit_s) {
            kill(process->pid, SIGKILL);
            waitpid(process->pid, &status, 0);
            train_read(process->err_fd, process->err);
            fail_msg("the command did not end within %.0f s: %s", TRAIN_WAIT_S, process->err);
        }
        train_pause();
    }
    train_read(process->out_fd, process->out);
    train_read(process->err_fd, process->err);
    close(process->out_fd);
    close(process->err_fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Lines of run/metrics.jsonl; 0 when it is not there. */
MS_TEST_UNUSED static int train_lines(const char *run) {
    char path[MS_TEST_PATH_BYTES];
    FILE *file = fopen(test_path(run, "metrics.jsonl", path), "r");
    if (file == NULL) {
        return 0;
    }
    int lines = 0;
    for (int c; (c = fgetc(file)) != EOF;) {
        lines += c == '\n';
    }
    fclose(file);
    return lines;
}

/* Waits for that many updates of a run that is at work. */
MS_TEST_UNUSED static void train_wait_lines(train_process *process, const char *run, int lines) {
    double limit_s = train_now_s() + TRAIN_WAIT_S;
    while (train_lines(run) < lines) {
        if (train_now_s() > limit_s) {
            kill(process->pid, SIGKILL);
            fail_msg("%s has not come to %d updates", run, lines);
        }
        train_pause();
    }
}

MS_TEST_UNUSED static bool train_is_rank(pid_t pid, int rank) {
    char path[64], bytes[16384], wanted[32];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    snprintf(wanted, sizeof wanted, "MS_LAUNCH_RANK=%d", rank);
    FILE *file = fopen(path, "r");
    size_t length = file != NULL ? fread(bytes, 1, sizeof bytes - 1, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    bytes[length] = '\0';
    for (size_t at = 0; at < length; at += strlen(bytes + at) + 1) {
        if (strcmp(bytes + at, wanted) == 0) {
            return true;
        }
    }
    return false;
}

MS_TEST_UNUSED static pid_t train_parent(pid_t pid) {
    char path[64], line[512];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        const char *end = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL;
        if (end == NULL || sscanf(end + 1, " %*c %d", &parent) != 1) {
            parent = 0;
        }
        fclose(file);
    }
    return (pid_t)parent;
}

/* The process of a rank that this launcher started. */
MS_TEST_UNUSED static pid_t train_rank(const train_process *process, int rank) {
    DIR *all = opendir("/proc");
    assert_non_null(all);
    pid_t found = 0;
    for (struct dirent *entry; found == 0 && (entry = readdir(all)) != NULL;) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && train_parent(pid) == process->pid && train_is_rank(pid, rank)) {
            found = pid;
        }
    }
    closedir(all);
    if (found == 0) {
        fail_msg("rank %d of launcher %d is not running", rank, (int)process->pid);
    }
    return found;
}

MS_TEST_UNUSED static void train_copy_figure(const char *line, const char *key, char *figure) {
    const char *at = strstr(line, key);
    if (at == NULL) {
        fail_msg("no %s in %s", key, line);
        return;
    }
    at += strlen(key);
    size_t length = strcspn(at, ",}");
    assert_true(length > 0 && length < TRAIN_FIGURE_BYTES);
    memcpy(figure, at, length);
    figure[length] = '\0';
}

/* Steps must be 1, 2, 3, ... without a gap or a repetition. */
MS_TEST_UNUSED static void train_read_history(const char *run, train_history *history) {
    char path[MS_TEST_PATH_BYTES], line[2048], step[TRAIN_FIGURE_BYTES];
    FILE *file = fopen(test_path(run, "metrics.jsonl", path), "r");
    assert_non_null(file);
    memset(history, 0, sizeof *history);
    while (fgets(line, sizeof line, file) != NULL) {
        assert_true(history->steps < TRAIN_STEPS_MAX);
        train_copy_figure(line, "\"step\":", step);
        assert_int_equal(strtol(step, NULL, 10), history->steps + 1);
        train_copy_figure(line, "\"loss\":", history->loss[history->steps]);
        train_copy_figure(line, "\"grad_norm\":", history->norm[history->steps]);
        history->steps++;
    }
    fclose(file);
}

MS_TEST_UNUSED static void train_same_history(const train_history *history,
                                              const train_history *wanted, const char *what) {
    for (int i = 0; i < history->steps; i++) {
        if (strcmp(history->loss[i], wanted->loss[i]) != 0 ||
            strcmp(history->norm[i], wanted->norm[i]) != 0) {
            fail_msg("%s: step %d: loss %s, norm %s instead of %s, %s", what, i + 1,
                     history->loss[i], history->norm[i], wanted->loss[i], wanted->norm[i]);
        }
    }
}

#endif
