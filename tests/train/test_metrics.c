// labels: unit
// timeout: 60
/* Sinks of a run's figures: what is written, that a resume leaves one contiguous history, the picture. */
#define _GNU_SOURCE 1 /* posix_openpt, ptsname */

#include "support/test_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "base/memory.h"
#include "base/text.h"
#include "format/events.h"
#include "format/jsonl.h"
#include "train/metrics.h"

static const ms_report_config all_sinks = {.tensorboard = true, .svg = true, .every_steps = 10};

/* Figures with no short decimal form, different at each step. */
static ms_step_metrics figures_of(int64_t step) {
    double s = (double)step;
    return (ms_step_metrics){.step = step,
                             .tokens = step * 768,
                             .samples = step * 12,
                             .loss = 4.17 * exp(-s / 70) + 1.0 / 3,
                             .grad_norm = sqrt(s) / 7,
                             .clip_scale = 1 / (1 + s / 3),
                             .lr = 1e-3 / s,
                             .step_ms = 12.1 + s / 11,
                             .reduce_ms = 0.1,
                             .update_ms = 1e-17,
                             .tokens_per_s = 1e5 / 3,
                             .mfu = 0.7 / 3};
}

static ms_evaluation_metrics evaluation_of(int64_t step) {
    return (ms_evaluation_metrics){
        .step = step, .tokens = 15360, .val_loss = 2 + 1.0 / (double)step, .seconds = 0.1};
}

static void run_steps(ms_metrics *metrics, int64_t first, int64_t last, int64_t every) {
    for (int64_t step = first; step <= last; step++) {
        ms_step_metrics figures = figures_of(step);
        assert_ok(ms_metrics_step(metrics, &figures));
        if (every > 0 && step % every == 0) {
            ms_evaluation_metrics evaluation = evaluation_of(step);
            assert_ok(ms_metrics_evaluation(metrics, &evaluation));
        }
    }
}

static void open_and_run(const char *dir, int64_t resume, int64_t last) {
    ms_metrics *metrics = NULL;
    assert_ok(ms_metrics_open(dir, &all_sinks, resume, 100, true, &metrics));
    run_steps(metrics, resume + 1, last, 10);
    assert_ok(ms_metrics_close(metrics));
}

static ms_text read_file(const char *dir, const char *name) {
    char path[MS_TEST_PATH_BYTES];
    ms_text text = {0};
    assert_ok(ms_file_read(test_path(dir, name, path), (size_t)1 << 28, &text));
    return text;
}

static double real_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* The file holds steps 1..last once each and in order, evaluations at every tenth after its step. */
static void assert_history(const char *dir, int64_t last) {
    char path[MS_TEST_PATH_BYTES];
    ms_jsonl_reader *reader = NULL;
    assert_ok(ms_jsonl_reader_open(test_path(dir, "metrics.jsonl", path), NULL, &reader));
    json_t *object = NULL;
    for (int64_t step = 1; step <= last; step++) {
        ms_step_metrics wanted = figures_of(step);
        assert_ok(ms_jsonl_reader_next(reader, &object));
        assert_non_null(object);
        assert_int_equal(json_integer_value(json_object_get(object, "step")), step);
        assert_int_equal(json_integer_value(json_object_get(object, "tokens")), wanted.tokens);
        assert_int_equal(json_integer_value(json_object_get(object, "samples")), wanted.samples);
        assert_true(real_of(object, "loss") == wanted.loss); /* to the last bit */
        assert_true(real_of(object, "grad_norm") == wanted.grad_norm);
        assert_true(real_of(object, "clip_scale") == wanted.clip_scale);
        assert_true(real_of(object, "lr") == wanted.lr);
        assert_true(real_of(object, "step_ms") == wanted.step_ms);
        assert_true(real_of(object, "reduce_ms") == wanted.reduce_ms);
        assert_true(real_of(object, "update_ms") == wanted.update_ms);
        assert_true(real_of(object, "tokens_per_s") == wanted.tokens_per_s);
        assert_true(real_of(object, "mfu") == wanted.mfu);
        assert_null(json_object_get(object, "val_loss"));
        if (step % 10 == 0) {
            assert_ok(ms_jsonl_reader_next(reader, &object));
            assert_non_null(object);
            assert_int_equal(json_integer_value(json_object_get(object, "step")), step);
            assert_true(real_of(object, "val_loss") == evaluation_of(step).val_loss);
        }
    }
    assert_ok(ms_jsonl_reader_next(reader, &object));
    assert_null(object);
    ms_jsonl_reader_close(reader);
}

static void lines_are_exact(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    open_and_run(dir, 0, 57);
    assert_history(dir, 57);
    test_dir_remove(dir);
}

static int parse_svg(const char *at, int *polyline_points);

/* ---- resume ---- */

static void resume_cuts_what_comes_again(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    open_and_run(dir, 0, 47);
    ms_text before = read_file(dir, "metrics.jsonl");
    ms_metrics *metrics = NULL;
    assert_ok(ms_metrics_open(dir, &all_sinks, 30, 100, true, &metrics));
    ms_text kept = read_file(dir, "metrics.jsonl"); /* a beginning of it, byte for byte */
    assert_true(kept.length > 0 && kept.length < before.length);
    assert_memory_equal(kept.bytes, before.bytes, kept.length);
    run_steps(metrics, 31, 64, 10);
    assert_ok(ms_metrics_close(metrics));
    assert_history(dir, 64);
    open_and_run(dir, 60, 100); /* and a second time (F-04: the second resume is the one that breaks) */
    assert_history(dir, 100);
    ms_text_release(&before);
    ms_text_release(&kept);
    test_dir_remove(dir);
}

static void fresh_start_is_empty(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    open_and_run(dir, 0, 20);
    open_and_run(dir, 0, 5);
    assert_history(dir, 5);
    test_dir_remove(dir);
}

/* A line that a kill cut short: at every length it goes, and the file is whole again. */
static void resume_drops_half_a_line(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    open_and_run(dir, 0, 12);
    ms_text whole = read_file(dir, "metrics.jsonl");
    test_path(dir, "metrics.jsonl", path);
    size_t line = whole.length - 1; /* where the last line begins */
    while (whole.bytes[line - 1] != '\n') {
        line--;
    }
    for (size_t length = line; length < whole.length; length++) {
        test_write_file(path, whole.bytes, length); /* step 12 cut short, its update is not lost */
        open_and_run(dir, 11, 13);
        assert_history(dir, 13);
        test_write_file(path, whole.bytes, length);
        ms_metrics *metrics = NULL; /* the checkpoint knows of step 12, the line does not */
        assert_ok(ms_metrics_open(dir, &all_sinks, 12, 100, true, &metrics));
        assert_ok(ms_metrics_close(metrics));
        assert_history(dir, length + 1 < whole.length ? 11 : 12); /* only its newline was missing */
        ms_text svg = read_file(dir, "loss.svg");
        int points;
        parse_svg(svg.bytes, &points);
        assert_int_equal(points, (length + 1 < whole.length ? 11 : 12) + 1);
        ms_text_release(&svg);
    }
    ms_text_release(&whole);
    test_dir_remove(dir);
}

static void damage_in_the_middle_is_named(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    static const char text[] = "{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo\n{\"step\":3,\"loss\":2}\n";
    test_dir_make(dir);
    test_write_file(test_path(dir, "metrics.jsonl", path), text, sizeof text - 1);
    ms_metrics *metrics = NULL;
    assert_fails(MS_ERR_FORMAT, "metrics.jsonl:2", ms_metrics_open(dir, &all_sinks, 3, 9, true, &metrics));
    assert_null(metrics);
    ms_text left = read_file(dir, "metrics.jsonl"); /* nothing was lost */
    assert_int_equal(left.length, sizeof text - 1);
    ms_text_release(&left);
    test_dir_remove(dir);
}

/* ---- event files ---- */

/* Every value of every event file of dir, as (step, tag) -> value; asserts each once. */
static int count_event(const char *dir, const char *tag, int64_t step, float *value) {
    DIR *stream = opendir(dir);
    assert_non_null(stream);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char path[MS_TEST_PATH_BYTES];
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) != 0) {
            continue;
        }
        ms_events_reader *reader = NULL;
        assert_ok(ms_events_reader_open(test_path(dir, entry->d_name, path), &reader));
        ms_event event;
        for (bool more = true;;) {
            assert_ok(ms_events_reader_next(reader, &event, &more));
            if (!more) {
                break;
            }
            size_t position = 0;
            ms_event_value scalar;
            for (bool values = true; event.summary != NULL && values;) {
                assert_ok(ms_event_next_value(reader, &event, &position, &scalar, &values));
                if (values && event.step == step && scalar.tag_length == strlen(tag) &&
                    memcmp(scalar.tag, tag, scalar.tag_length) == 0) {
                    *value = scalar.value;
                    found++;
                }
            }
        }
        assert_false(ms_events_reader_is_truncated(reader));
        ms_events_reader_close(reader);
    }
    closedir(stream);
    return found;
}

static void events_follow_a_resume(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    open_and_run(dir, 0, 27);
    open_and_run(dir, 15, 23);
    open_and_run(dir, 20, 30);
    for (int64_t step = 1; step <= 31; step++) {
        float loss = 0, rate = 0, val_loss = 0;
        int wanted = step <= 30;
        assert_int_equal(count_event(dir, "train/loss", step, &loss), wanted);
        assert_int_equal(count_event(dir, "speed/tokens_per_s", step, &rate), wanted);
        assert_int_equal(count_event(dir, "validation/loss", step, &val_loss),
                         wanted && step % 10 == 0);
        if (wanted) {
            assert_true(loss == (float)figures_of(step).loss);
            assert_true(rate == (float)figures_of(step).tokens_per_s);
        }
    }
    test_dir_remove(dir);
}

static void foreign_event_file_is_left(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    test_path(dir, "events.out.tfevents.1.foreign", path);
    test_write_file(path, "not events at all, 33 bytes of it", 33);
    ms_metrics *metrics = NULL;
    ms_report_config quiet_config = all_sinks;
    assert_ok(ms_metrics_open(dir, &quiet_config, 0, 9, true, &metrics));
    assert_ok(ms_metrics_close(metrics));
    ms_text left = read_file(dir, "events.out.tfevents.1.foreign");
    assert_int_equal(left.length, 33);
    ms_text_release(&left);
    test_dir_remove(dir);
}

/* ---- the picture ---- */

/* Tags balanced, attributes quoted, no bare < or &: as an XML parser would ask; returns elements. */
static int parse_svg(const char *at, int *polyline_points) {
    const char *open[16];
    size_t lengths[16];
    int depth = 0, elements = 0;
    *polyline_points = 0;
    while (*at != '\0') {
        if (*at != '<') {
            assert_true(*at != '&' && *at != '>');
            assert_true(depth > 0 || *at == '\n');
            at++;
            continue;
        }
        bool closing = at[1] == '/';
        at += closing ? 2 : 1;
        size_t name = strspn(at, "abcdefghijklmnopqrstuvwxyz");
        assert_true(name > 0);
        if (closing) {
            assert_true(depth > 0 && lengths[depth - 1] == name && at[name] == '>');
            assert_memory_equal(open[depth - 1], at, name);
            depth--;
            at += name + 1;
            continue;
        }
        elements++;
        open[depth] = at;
        lengths[depth] = name;
        bool polyline = name == 8 && memcmp(at, "polyline", 8) == 0;
        at += name;
        while (*at == ' ') {
            at += 1 + strspn(at + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
            assert_true(at[0] == '=' && at[1] == '"');
            size_t value = strcspn(at + 2, "\"<&");
            assert_true(at[2 + value] == '"');
            for (size_t i = 0; polyline && i < value; i++) {
                *polyline_points += at[2 + i] == ',';
            }
            at += value + 3;
        }
        bool empty = *at == '/';
        at += empty;
        assert_true(*at++ == '>');
        depth += !empty;
        assert_true(depth < 16);
    }
    assert_int_equal(depth, 0);
    return elements;
}

/* All points of polylines and marks lie inside the picture of 860 x 460. */
static void assert_inside(const char *svg) {
    for (const char *at = strstr(svg, "points=\""); at != NULL; at = strstr(at, "points=\"")) {
        at += strlen("points=\"");
        double x, y;
        int length;
        while (sscanf(at, "%lf,%lf %n", &x, &y, &length) == 2) {
            assert_true(x >= 0 && x <= 860 && y >= 0 && y <= 460);
            at += length;
        }
        assert_int_equal(*at, '"');
    }
}

static void check_picture(const ms_curve *train, const ms_curve *validation, int points_max,
                          const char *wanted) {
    ms_text svg = {0};
    int points;
    assert_ok(ms_loss_svg(train, validation, &svg));
    assert_true(parse_svg(svg.bytes, &points) >= 5);
    assert_true(points <= points_max);
    assert_inside(svg.bytes);
    assert_null(strstr(svg.bytes, "nan\""));
    assert_null(strstr(svg.bytes, "inf\""));
    if (strstr(svg.bytes, wanted) == NULL) {
        fail_msg("no \"%s\" in %s", wanted, svg.bytes);
    }
    ms_text_release(&svg);
}

static void pictures_are_well_formed(void **state) {
    (void)state;
    enum { COUNT = 5000 };
    static int64_t steps[COUNT];
    static double values[COUNT];
    for (int64_t i = 0; i < COUNT; i++) {
        steps[i] = i + 1;
        values[i] = 1.8 + 2.4 * exp(-(double)i / 400) + 0.05 * sin((double)i);
    }
    ms_curve none = {NULL, NULL, 0}, train = {steps, values, COUNT}, few = {steps, values, 7};
    check_picture(&none, &none, 0, ">step<");
    char legend[64];
    snprintf(legend, sizeof legend, ">training, %.5g at step 5000<", values[COUNT - 1]);
    check_picture(&train, &none, 400, legend);
    check_picture(&train, &few, 407, ">validation, 4.");
    check_picture(&(ms_curve){steps, values, 1}, &none, 1, "training, 4.2 at step 1<");
    const double odd[][3] = {{NAN, INFINITY, -INFINITY}, {NAN, 2, NAN},      {1e13, 1e13, 1e13},
                             {1e17, 1e17, 1e17},         {1e308, -1e308, 1}, {0, 0, 0},
                             {1e-300, 2e-300, 0},        {-5, -4, -5},       {2, 2 + 1e-12, 2}};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        check_picture(&(ms_curve){steps, odd[i], 3}, &(ms_curve){steps, odd[i], 3}, 6, "</svg>");
    }
    int64_t late[3] = {INT64_C(1000000000000), INT64_C(1000000000001), INT64_C(1000000000002)};
    check_picture(&(ms_curve){late, values, 3}, &none, 3, "1000000000001<");
}

/* The labels of value ticks differ from one another, however small the range. */
static void ticks_tell_apart(void **state) {
    (void)state;
    int64_t steps[2] = {1, 2};
    double values[2] = {2.0001, 2.0002};
    ms_text svg = {0};
    assert_ok(ms_loss_svg(&(ms_curve){steps, values, 2}, &(ms_curve){NULL, NULL, 0}, &svg));
    char last[32] = "";
    int labels = 0;
    for (const char *at = svg.bytes; (at = strstr(at, "text-anchor=\"end\">")) != NULL;) {
        at += strlen("text-anchor=\"end\">");
        char label[32] = "";
        assert_int_equal(sscanf(at, "%31[^<]", label), 1);
        assert_string_not_equal(label, last);
        strcpy(last, label);
        labels++;
    }
    assert_true(labels >= 4 && labels <= 12);
    ms_text_release(&svg);
}

static void picture_is_replaced(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    test_path(dir, "loss.svg", path);
    ms_metrics *metrics = NULL;
    assert_ok(ms_metrics_open(dir, &all_sinks, 0, 100, true, &metrics));
    run_steps(metrics, 1, 9, 0);
    assert_false(ms_path_exists(path)); /* no evaluation yet */
    run_steps(metrics, 10, 10, 10);
    ms_text first = read_file(dir, "loss.svg");
    assert_non_null(strstr(first.bytes, "validation, 2.1 at step 10"));
    run_steps(metrics, 11, 13, 0);
    assert_ok(ms_metrics_close(metrics));
    ms_text last = read_file(dir, "loss.svg");
    assert_non_null(strstr(last.bytes, "at step 13<"));
    /* Resumed: the whole history is in it, not only what came after. */
    assert_ok(ms_metrics_open(dir, &all_sinks, 12, 100, true, &metrics));
    assert_ok(ms_metrics_close(metrics));
    ms_text resumed = read_file(dir, "loss.svg");
    int points;
    parse_svg(resumed.bytes, &points);
    assert_int_equal(points, 12 + 1);
    ms_text_release(&first);
    ms_text_release(&last);
    ms_text_release(&resumed);
    test_dir_remove(dir);
}

static int count_files(const char *dir) {
    DIR *stream = opendir(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
    }
    closedir(stream);
    return count;
}

static void sinks_can_be_off(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    ms_report_config config = {.every_steps = 10};
    ms_metrics *metrics = NULL;
    assert_ok(ms_metrics_open(dir, &config, 0, 30, true, &metrics));
    run_steps(metrics, 1, 30, 10);
    assert_ok(ms_metrics_close(metrics));
    assert_history(dir, 30);
    assert_int_equal(count_files(dir), 1); /* metrics.jsonl, and nothing temporary */
    assert_ok(ms_metrics_step(NULL, &(ms_step_metrics){0}));
    assert_ok(ms_metrics_evaluation(NULL, &(ms_evaluation_metrics){0}));
    ms_metrics_break_line(NULL);
    assert_ok(ms_metrics_close(NULL));
    test_dir_remove(dir);
}

/* ---- the console ---- */

/* Runs 25 of 25 steps with fd as stdout. */
static void run_in_child(int fd, bool quiet) {
    dup2(fd, STDOUT_FILENO);
    ms_metrics *metrics = NULL;
    if (ms_metrics_open(NULL, &all_sinks, 0, 25, quiet, &metrics) != MS_OK) {
        _exit(1);
    }
    for (int64_t step = 1; step <= 25; step++) {
        ms_step_metrics figures = figures_of(step);
        if (ms_metrics_step(metrics, &figures) != MS_OK) {
            _exit(1);
        }
        if (step == 20) {
            ms_evaluation_metrics evaluation = evaluation_of(step);
            if (ms_metrics_evaluation(metrics, &evaluation) != MS_OK) {
                _exit(1);
            }
        }
    }
    _exit(ms_metrics_close(metrics) == MS_OK ? 0 : 1);
}

static void capture(int from, int child_end, bool quiet, ms_text *output) {
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(from);
        run_in_child(child_end, quiet);
    }
    close(child_end);
    char block[4096];
    for (ssize_t count; (count = read(from, block, sizeof block)) > 0;) {
        assert_ok(ms_text_append(output, block, (size_t)count));
    }
    close(from);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int count_text(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) {
        count++;
    }
    return count;
}

static void a_pipe_gets_lines(void **state) {
    (void)state;
    int ends[2];
    ms_text output = {0};
    assert_int_equal(pipe(ends), 0);
    capture(ends[0], ends[1], false, &output);
    assert_int_equal(count_text(output.bytes, "\n"), 5); /* 1, 10, 20, its evaluation, 25 */
    assert_int_equal(count_text(output.bytes, "\r"), 0);
    assert_non_null(strstr(output.bytes, "step 1/25  loss 4.4"));
    assert_non_null(strstr(output.bytes, "33333 tokens/s  MFU 23%  ETA "));
    assert_non_null(strstr(output.bytes, "step 20/25  validation loss 2.0500  perplexity 7.77"));
    assert_non_null(strstr(output.bytes, "step 25/25"));
    ms_text_release(&output);
    assert_int_equal(pipe(ends), 0);
    capture(ends[0], ends[1], true, &output);
    assert_int_equal(output.length, 0);
    ms_text_release(&output);
}

static void a_terminal_gets_one_line(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        print_message("skipped: no pseudo terminals here\n");
        skip();
    }
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    struct winsize size = {.ws_row = 24, .ws_col = 50};
    assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0);
    ms_text output = {0};
    capture(master, terminal, false, &output);
    assert_non_null(output.bytes);
    assert_int_equal(count_text(output.bytes, "\n"), 3); /* before and after the evaluation, the end */
    assert_true(count_text(output.bytes, "\r\033[K") >= 2);
    for (const char *at = output.bytes; (at = strstr(at, "\r\033[K")) != NULL;) {
        at += strlen("\r\033[K");
        assert_true(strcspn(at, "\r\n") < 50); /* a line that wraps could not be rewritten */
    }
    assert_non_null(strstr(output.bytes, "step 25/25"));
    ms_text_release(&output);
}

/* ---- what goes wrong ---- */

static void bad_places_are_named(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    ms_metrics *metrics = NULL;
    test_path(dir, "absent", path);
    assert_fails(MS_ERR_IO, "absent/metrics.jsonl",
                 ms_metrics_open(path, &all_sinks, 0, 9, true, &metrics));
    assert_int_equal(mkdir(test_path(dir, "metrics.jsonl", path), 0777), 0);
    assert_fails(MS_ERR_IO, "metrics.jsonl", ms_metrics_open(dir, &all_sinks, 0, 9, true, &metrics));
    assert_null(metrics);
    test_dir_remove(dir);
}

static size_t live_bytes(void) {
    ms_memory_counters counters = ms_memory_counters_get();
    size_t sum = 0;
    for (int tag = 0; tag < MS_MEMORY_TAG_COUNT; tag++) {
        sum += counters.live_bytes[tag];
    }
    return sum;
}

static void remove_event_files(const char *dir) {
    DIR *stream = opendir(dir);
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char path[MS_TEST_PATH_BYTES];
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            assert_int_equal(unlink(test_path(dir, entry->d_name, path)), 0);
        }
    }
    closedir(stream);
}

/* The n-th allocation fails, for all n: an error and nothing leaked, or a whole history. */
static void memory_may_run_out(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    open_and_run(dir, 0, 30);
    size_t before = live_bytes();
    ms_status status = MS_ERR_MEMORY;
    uint64_t n = 1;
    for (; status != MS_OK && n < 1000; n++) {
        remove_event_files(dir); /* else each round has one more to read, and allocates more */
        open_and_run(dir, 0, 30);
        ms_metrics *metrics = NULL;
        ms_memory_fail_at(n);
        status = ms_metrics_open(dir, &all_sinks, 20, 100, true, &metrics);
        if (status == MS_OK) {
            status = ms_metrics_close(metrics); /* closes whatever happens */
        }
        ms_memory_fail_at(0);
        assert_true(status == MS_OK || status == MS_ERR_MEMORY);
        assert_int_equal(live_bytes(), before);
    }
    float value;
    assert_history(dir, 20);
    assert_int_equal(count_event(dir, "train/loss", 20, &value), 1);
    assert_int_equal(count_event(dir, "train/loss", 21, &value), 0);
    assert_int_equal(status, MS_OK);
    assert_true(n > 8);
    test_dir_remove(dir);
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES];
    test_dir_make(dir);
    ms_metrics *metrics = NULL;
    assert_ok(ms_metrics_open(dir, &all_sinks, 0, 200, true, &metrics));
    run_steps(metrics, 1, 100, 0); /* the line's buffer finds its size */
    uint64_t calls = ms_memory_counters_get().calls;
    run_steps(metrics, 101, 200, 0);
    assert_int_equal(ms_memory_counters_get().calls, calls);
    assert_ok(ms_metrics_close(metrics));
    test_dir_remove(dir);
}

static void full_disk_is_an_error(void **state) {
    (void)state;
    char dir[MS_TEST_PATH_BYTES], path[MS_TEST_PATH_BYTES];
    if (access("/dev/full", W_OK) != 0) {
        print_message("skipped: no /dev/full here\n");
        skip();
    }
    test_dir_make(dir);
    assert_int_equal(symlink("/dev/full", test_path(dir, "metrics.jsonl", path)), 0);
    ms_metrics *metrics = NULL;
    assert_ok(ms_metrics_open(dir, &all_sinks, 0, 9, true, &metrics));
    ms_step_metrics figures = figures_of(1);
    assert_fails(MS_ERR_IO, "No space left", ms_metrics_step(metrics, &figures));
    assert_ok(ms_metrics_close(metrics));
    test_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_exact),
        cmocka_unit_test(resume_cuts_what_comes_again),
        cmocka_unit_test(fresh_start_is_empty),
        cmocka_unit_test(resume_drops_half_a_line),
        cmocka_unit_test(damage_in_the_middle_is_named),
        cmocka_unit_test(events_follow_a_resume),
        cmocka_unit_test(foreign_event_file_is_left),
        cmocka_unit_test(pictures_are_well_formed),
        cmocka_unit_test(ticks_tell_apart),
        cmocka_unit_test(picture_is_replaced),
        cmocka_unit_test(sinks_can_be_off),
        cmocka_unit_test(a_pipe_gets_lines),
        cmocka_unit_test(a_terminal_gets_one_line),
        cmocka_unit_test(bad_places_are_named),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(full_disk_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
