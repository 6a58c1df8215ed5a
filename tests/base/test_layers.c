// labels: unit
// tools/check-layers: finds each kind of breach with file and line, and finds none in this source.
#include "support/test_support.h"

#include <sys/wait.h>

static const char page[] = "# Architecture\n\n| room | level | what |\n|---|---|---|\n"
                           "| base | 0 | x |\n| net | 1 | x |\n| format | 1 | x |\n"
                           "| `graph` | 3 | x |\n";

/* Runs the tool on a tree; returns its exit status and what it wrote. */
static int run_tool(const char *root, char *output, size_t output_bytes) {
    char command[MS_TEST_PATH_BYTES + 64];
    snprintf(command, sizeof command, "tools/check-layers '%s' 2>&1", root);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(output, 1, output_bytes - 1, pipe);
    output[length] = '\0';
    int how = pclose(pipe);
    assert_true(WIFEXITED(how));
    return WEXITSTATUS(how);
}

static void write_file(const char *root, const char *name, const char *text) {
    char path[MS_TEST_PATH_BYTES], folder[MS_TEST_PATH_BYTES];
    test_path(root, name, path);
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    assert_ok(ms_directory_make(folder));
    test_write_file(path, text, strlen(text));
}

static void check_breach(const char *name, const char *text, const char *wanted) {
    char root[MS_TEST_PATH_BYTES], output[8192];
    test_dir_make(root);
    write_file(root, "docs/architecture.md", page);
    write_file(root, "src/base/text.c", "#include \"base/text.h\"\n#include <stdio.h>\n");
    write_file(root, "src/graph/graph.c", "#include \"graph/graph.h\"\n#include \"net/net.h\"\n");
    assert_int_equal(run_tool(root, output, sizeof output), 0);
    assert_string_equal(output, "check-layers: 2 files in order\n");
    write_file(root, name, text);
    int code = run_tool(root, output, sizeof output);
    if (code != 1 || strstr(output, wanted) == NULL ||
        strstr(output, "check-layers: 1 breaches\n") == NULL) {
        fail_msg("for %s: exit %d\n%sinstead of: %s", name, code, output, wanted);
    }
    test_dir_remove(root);
}

static void test_every_breach_is_found(void **state) {
    (void)state;
    check_breach("src/net/up.c", "\n  #  include \"graph/graph.h\"\n",
                 "src/net/up.c:2: include \"graph/graph.h\" points up: graph is level 3, net is "
                 "level 1\n");
    check_breach("src/net/tcp/side.h",
                 "// x\n#include \"base/text.h\"\n#include \"format/npy.h\"\n",
                 "src/net/tcp/side.h:3: include \"format/npy.h\" points sideways: format and net "
                 "are both level 1\n");
    check_breach("src/net/angle.c", "#include <net/if.h>\n#include <graph/graph.c>\n",
                 "src/net/angle.c:2: include \"graph/graph.c\" points up: graph is level 3, net is "
                 "level 1\n");
    check_breach("src/odd/odd.c", "int odd;\n",
                 "src/odd/odd.c:1: room odd is not in docs/architecture.md\n");
    check_breach("src/stray.c", "int stray;\n",
                 "src/stray.c:1: room (none) is not in docs/architecture.md\n");
    check_breach("src/net/a.c", "#include \"other/x.h\"\n",
                 "src/net/a.c:1: include \"other/x.h\": room other is not in "
                 "docs/architecture.md\n");
    check_breach("src/net/a.c", "#include \"local.h\"\n",
                 "src/net/a.c:1: include \"local.h\" names no room; write \"net/local.h\"\n");
    check_breach("src/net/text.c", "int twice;\n",
                 "src/net/text.c:1: a file of this name is also src/base/text.c\n");
    static char lines[900];
    memset(lines, '\n', 801);
    check_breach("tests/net/test_long.c", lines,
                 "tests/net/test_long.c:801: the file has 801 lines, at most 800 are allowed\n");
}

static void test_a_page_without_table_fails(void **state) {
    (void)state;
    char root[MS_TEST_PATH_BYTES], output[8192];
    test_dir_make(root);
    write_file(root, "src/base/text.c", "int x;\n");
    assert_int_equal(run_tool(root, output, sizeof output), 2);
    write_file(root, "docs/architecture.md", "# Architecture\n");
    assert_int_equal(run_tool(root, output, sizeof output), 1);
    assert_non_null(strstr(output, "docs/architecture.md:1: no table of rooms and levels\n"));
    test_dir_remove(root);
}

static void test_this_source_is_in_order(void **state) {
    (void)state;
    char output[8192];
    if (run_tool(".", output, sizeof output) != 0) {
        fail_msg("%s", output);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_breach_is_found),
        cmocka_unit_test(test_a_page_without_table_fails),
        cmocka_unit_test(test_this_source_is_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
