/*
 * command_run.h - runs the real command (MS_TEST_COMMAND, set by CTest) and keeps what it printed.
 * Tests are skipped, by name, where the command is not built.
 *
 *   command_result result = command_run("input or NULL", "data", "info", path, NULL);
 *   result.status, result.out, result.err
 */
#ifndef MS_TEST_COMMAND_RUN_H
#define MS_TEST_COMMAND_RUN_H

#include "support/test_support.h"

#include <fcntl.h>
#include <sys/wait.h>

#define COMMAND_ARGUMENTS_MAX 32
#define COMMAND_OUTPUT_MAX ((size_t)1 << 20)

typedef struct command_result {
    int status; /* exit status; 128 + the signal's number */
    char out[COMMAND_OUTPUT_MAX], err[COMMAND_OUTPUT_MAX];
} command_result;

MS_TEST_UNUSED static const char *command_path(void) {
    const char *command = getenv("MS_TEST_COMMAND");
    if (command == NULL || access(command, X_OK) != 0) {
        print_message("skipped: the command %s is not built\n",
                      command != NULL ? command : "(MS_TEST_COMMAND)");
        skip();
    }
    return command;
}

MS_TEST_UNUSED static void command_read(int fd, char *bytes) {
    size_t length = 0;
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    for (ssize_t got; (got = read(fd, bytes + length, COMMAND_OUTPUT_MAX - 1 - length)) > 0;) {
        length += (size_t)got;
    }
    bytes[length] = '\0';
    close(fd);
}

/* The result stays valid until the next call. Arguments end with NULL. */
MS_TEST_UNUSED static const command_result *command_run(const char *input, ...) {
    static command_result result;
    const char *command = command_path();
    char *argv[COMMAND_ARGUMENTS_MAX + 2] = {(char *)(uintptr_t)command};
    va_list arguments;
    va_start(arguments, input);
    int count = 1;
    for (char *next; (next = va_arg(arguments, char *)) != NULL; count++) {
        assert_true(count <= COMMAND_ARGUMENTS_MAX);
        argv[count] = next;
    }
    va_end(arguments);
    int fds[3];
    for (int i = 0; i < 3; i++) {
        char path[] = "/tmp/mindspeed-command-XXXXXX";
        fds[i] = mkstemp(path);
        assert_true(fds[i] >= 0);
        unlink(path);
    }
    if (input != NULL) {
        assert_int_equal(write(fds[0], input, strlen(input)), strlen(input));
        lseek(fds[0], 0, SEEK_SET);
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        for (int i = 0; i < 3; i++) {
            dup2(fds[i], i);
        }
        execv(command, argv);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    close(fds[0]);
    command_read(fds[1], result.out);
    command_read(fds[2], result.err);
    return &result;
}

/* The status, and the error as one line "mindspeed: error: ... part ...". */
MS_TEST_UNUSED static void check_command_fails(const command_result *result, int status,
                                               const char *part) {
    if (result->status != status || strstr(result->err, part) == NULL) {
        fail_msg("status %d and \"%s\" instead of %d and \"... %s ...\"", result->status,
                 result->err, status, part);
    }
    assert_string_equal(result->out, "");
    assert_int_equal(strncmp(result->err, "mindspeed: error: ", 18), 0);
    assert_ptr_equal(strchr(result->err, '\n'), result->err + strlen(result->err) - 1);
}

MS_TEST_UNUSED static void check_command_works(const command_result *result) {
    if (result->status != 0 || result->err[0] != '\0') {
        fail_msg("status %d: %s", result->status, result->err);
    }
}

#endif
