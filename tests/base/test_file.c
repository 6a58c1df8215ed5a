// labels: unit
// Files: bounded reads, maps, atomic writes, directories; every error names its path.
#include "support/test_support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/file.h"
#include "base/thread.h"

static char dir[MS_TEST_PATH_BYTES];

static int make_dir(void **state) {
    (void)state;
    test_dir_make(dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    test_dir_remove(dir);
    return 0;
}

static int count_entries(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

static void test_read_is_bounded(void **state) {
    (void)state;
    char path[MS_TEST_PATH_BYTES];
    ms_text text = {0};
    test_path(dir, "ten", path);
    test_write_file(path,
                    "0123\0"
                    "56789",
                    10);
    assert_ok(ms_file_read(path, 10, &text));
    assert_int_equal(text.length, 10);
    assert_memory_equal(text.bytes,
                        "0123\0"
                        "56789",
                        11);
    assert_fails(MS_ERR_RANGE, "ten: is 10 bytes, at most 9", ms_file_read(path, 9, &text));
    assert_int_equal(text.length, 10); /* untouched by the failure */
    test_write_file(path, "", 0);
    assert_ok(ms_file_read(path, 0, &text));
    assert_string_equal(text.bytes, "");
    ms_text_release(&text);
    /* A size of 0 that is none: read to the end, still bounded. */
    assert_ok(ms_file_read("/proc/self/status", 1 << 20, &text));
    assert_true(text.length > 100);
    assert_fails(MS_ERR_RANGE, "status", ms_file_read("/proc/self/status", 50, &text));
    ms_text_release(&text);
    assert_fails(MS_ERR_NOT_FOUND, "none: cannot open: No such file",
                 ms_file_read(test_path(dir, "none", path), 10, &text));
    assert_fails(MS_ERR_IO, "Is a directory", ms_file_read(dir, 10, &text));
    assert_null(text.bytes);
}

static void test_map(void **state) {
    (void)state;
    char path[MS_TEST_PATH_BYTES];
    ms_file_map map = {0};
    test_path(dir, "mapped", path);
    test_write_file(path, "mapped bytes", 12);
    assert_ok(ms_file_map_open(path, &map));
    assert_int_equal(map.bytes, 12);
    assert_memory_equal(map.data, "mapped bytes", 12);
    ms_file_map_close(&map);
    assert_null(map.data);
    ms_file_map_close(&map);
    test_write_file(path, "", 0);
    assert_ok(ms_file_map_open(path, &map));
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    assert_fails(MS_ERR_IO, "not a regular file", ms_file_map_open(dir, &map));
    assert_fails(MS_ERR_NOT_FOUND, "none", ms_file_map_open(test_path(dir, "none", path), &map));
}

static void test_atomic_write_replaces(void **state) {
    (void)state;
    char path[MS_TEST_PATH_BYTES], folder[MS_TEST_PATH_BYTES];
    ms_text text = {0};
    test_path(dir, "atomic", folder);
    assert_ok(ms_directory_make(folder));
    test_path(folder, "file", path);
    assert_ok(ms_file_write_atomic(path, "one", 3));
    assert_ok(ms_file_write_atomic(path, "second", 6));
    assert_ok(ms_file_read(path, 100, &text));
    assert_string_equal(text.bytes, "second");
    assert_ok(ms_file_write_atomic(path, NULL, 0));
    assert_ok(ms_file_read(path, 100, &text));
    assert_string_equal(text.bytes, "");
    assert_int_equal(count_entries(folder), 1);
    ms_text_release(&text);
    char missing[MS_TEST_PATH_BYTES];
    assert_fails(MS_ERR_NOT_FOUND, "none/file: cannot create",
                 ms_file_write_atomic(test_path(dir, "none/file", missing), "x", 1));
    /* A folder in the way: nothing is left beside it. */
    assert_ok(ms_directory_make(test_path(folder, "taken", missing)));
    assert_fails(MS_ERR_IO, "taken: cannot replace", ms_file_write_atomic(missing, "x", 1));
    assert_int_equal(count_entries(folder), 2);
}

static void test_failed_write_keeps_the_old_file(void **state) {
    (void)state;
    char path[MS_TEST_PATH_BYTES], folder[MS_TEST_PATH_BYTES];
    test_path(dir, "limited", folder);
    assert_ok(ms_directory_make(folder));
    test_path(folder, "file", path);
    assert_ok(ms_file_write_atomic(path, "old", 3));
    /* A file size limit in a child stands for a full disk. */
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static char big[100000];
        signal(SIGXFSZ, SIG_IGN);
        struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
        setrlimit(RLIMIT_FSIZE, &limit);
        ms_status status = ms_file_write_atomic(path, big, sizeof big);
        bool named =
            strstr(ms_error_detail(), "limited/file: cannot write: File too large") != NULL;
        _exit(status == MS_ERR_IO && named ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    ms_text text = {0};
    assert_ok(ms_file_read(path, 100, &text));
    assert_string_equal(text.bytes, "old");
    ms_text_release(&text);
    assert_int_equal(count_entries(folder), 1);
}

static char shared_path[MS_TEST_PATH_BYTES];
static _Atomic int writing;

static void *write_again_and_again(void *context) {
    char ones[20000], twos[20000];
    memset(ones, '1', sizeof ones);
    memset(twos, '2', sizeof twos);
    for (int i = 0; i < 60; i++) {
        if (ms_file_write_atomic(shared_path, i % 2 == 0 ? ones : twos, sizeof ones) != MS_OK) {
            *(int *)context = 1;
        }
    }
    atomic_fetch_sub(&writing, 1);
    return NULL;
}

/* A reader sees one whole version or the other, whoever writes. */
static void test_readers_never_see_a_mixture(void **state) {
    (void)state;
    int failed[2] = {0, 0};
    ms_thread writers[2] = {0};
    test_path(dir, "versions", shared_path);
    test_write_file(shared_path, "", 0);
    char first[20000];
    memset(first, '1', sizeof first);
    assert_ok(ms_file_write_atomic(shared_path, first, sizeof first));
    atomic_store(&writing, 2);
    for (int i = 0; i < 2; i++) {
        assert_ok(ms_thread_start(&writers[i], "writer", write_again_and_again, &failed[i]));
    }
    int reads = 0;
    bool mixed = false;
    while (atomic_load(&writing) > 0) {
        ms_text text = {0};
        assert_ok(ms_file_read(shared_path, 30000, &text));
        mixed = mixed || text.length != 20000;
        for (size_t i = 1; i < text.length; i++) {
            mixed = mixed || text.bytes[i] != text.bytes[0];
        }
        ms_text_release(&text);
        reads++;
    }
    for (int i = 0; i < 2; i++) {
        ms_thread_join(&writers[i]);
        assert_int_equal(failed[i], 0);
    }
    assert_false(mixed);
    assert_true(reads > 0);
}

static void test_write_at_and_read_at(void **state) {
    (void)state;
    char path[MS_TEST_PATH_BYTES];
    test_path(dir, "slices", path);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_ok(ms_file_write_at(fd, path, "world", 5, 6));
    assert_ok(ms_file_write_at(fd, path, "hello ", 6, 0));
    char bytes[16] = {0};
    assert_ok(ms_file_read_at(fd, path, bytes, 11, 0));
    assert_string_equal(bytes, "hello world");
    assert_ok(ms_file_read_at(fd, path, bytes, 0, 100));
    assert_fails(MS_ERR_FORMAT, "slices: ends at offset 11, 4 bytes before",
                 ms_file_read_at(fd, path, bytes, 8, 7));
    assert_fails(MS_ERR_RANGE, "offset", ms_file_read_at(fd, path, bytes, 8, UINT64_MAX - 3));
    assert_fails(MS_ERR_RANGE, "offset",
                 ms_file_write_at(fd, path, bytes, 8, (uint64_t)INT64_MAX - 3));
    close(fd);
    assert_fails(MS_ERR_IO, "slices: cannot read: Bad file descriptor",
                 ms_file_read_at(-1, path, bytes, 1, 0));
    assert_fails(MS_ERR_IO, "slices: cannot write: Bad file descriptor",
                 ms_file_write_at(-1, path, bytes, 1, 0));
}

static void test_directories(void **state) {
    (void)state;
    char deep[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES], outside[MS_TEST_PATH_BYTES];
    test_path(dir, "a/b/c", deep);
    assert_false(ms_path_exists(deep));
    assert_ok(ms_directory_make(deep));
    assert_ok(ms_directory_make(deep)); /* fine if it exists */
    test_path(dir, "a/b/c/d/", path);
    assert_ok(ms_directory_make(path));
    assert_true(ms_path_is_directory(deep));
    assert_ok(ms_directory_sync(deep));
    test_path(deep, "file", path);
    test_write_file(path, "x", 1);
    assert_true(ms_path_exists(path));
    assert_false(ms_path_is_directory(path));
    char below[MS_TEST_PATH_BYTES];
    assert_fails(MS_ERR_IO, "is a file", ms_directory_make(test_path(path, "below", below)));
    assert_fails(MS_ERR_ARGUMENT, "0 bytes", ms_directory_make(""));
    /* A link inside is removed, what it points to is not. */
    assert_ok(ms_directory_make(test_path(dir, "outside", outside)));
    test_write_file(test_path(outside, "kept", path), "x", 1);
    char link_path[MS_TEST_PATH_BYTES];
    assert_int_equal(symlink(outside, test_path(deep, "link", link_path)), 0);
    assert_ok(ms_directory_remove(test_path(dir, "a", below)));
    assert_false(ms_path_exists(below));
    assert_true(ms_path_exists(path));
    assert_int_equal(symlink(outside, test_path(dir, "link", link_path)), 0);
    assert_int_not_equal(ms_directory_remove(link_path), MS_OK);
    assert_true(ms_path_exists(path));
    assert_fails(MS_ERR_NOT_FOUND, "none", ms_directory_remove(test_path(dir, "none", below)));
    assert_fails(MS_ERR_NOT_FOUND, "none", ms_directory_sync(below));
}

static void test_path_join(void **state) {
    (void)state;
    char path[12];
    assert_ok(ms_path_join("runs", "a", path, sizeof path));
    assert_string_equal(path, "runs/a");
    assert_ok(ms_path_join("/", "a", path, sizeof path));
    assert_string_equal(path, "/a");
    assert_ok(ms_path_join("", "a", path, sizeof path));
    assert_string_equal(path, "a");
    assert_ok(ms_path_join("12345", "67890", path, sizeof path));
    assert_fails(MS_ERR_RANGE, "123456/67890: path of 12 bytes, at most 11",
                 ms_path_join("123456", "67890", path, sizeof path));
    assert_string_equal(path, "12345/67890");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_is_bounded),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_atomic_write_replaces),
        cmocka_unit_test(test_failed_write_keeps_the_old_file),
        cmocka_unit_test(test_readers_never_see_a_mixture),
        cmocka_unit_test(test_write_at_and_read_at),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_path_join),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
