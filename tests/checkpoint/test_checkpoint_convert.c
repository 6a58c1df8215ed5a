// labels: unit cli
// timeout: 60
/*
 * test_checkpoint_convert.c - conversion to other types and splits, and `mindspeed checkpoint` as
 * people and scripts call it (those need the command; without it they are skipped).
 */
#include "checkpoint_support.h"

#include <errno.h>
#include <jansson.h>

static ms_tensor tensors[MODEL_TENSORS];
static rank_slices rank;
static char dir[MS_PATH_BYTES], source[MS_PATH_BYTES];

static int setup(void **state) {
    (void)state;
    model_make(tensors);
    scratch_make(dir);
    if (save_step(dir, tensors, MODEL_TENSORS, 3, 9) != MS_OK ||
        save_step(dir, tensors, MODEL_TENSORS, 4, 9) != MS_OK) {
        return 1;
    }
    return ms_checkpoint_step_path(dir, 4, source, sizeof source) == MS_OK ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    return ms_directory_remove(dir) == MS_OK ? 0 : 1;
}

/* Loads the weights of a directory and compares them with step 4. */
static bool holds_weights(const char *path) {
    rank.count = 0;
    for (int i = 0; i < MODEL_TENSORS; i++) {
        ms_shard whole = ms_shard_whole(&tensors[i]);
        slice_add(&rank, &tensors[i], NULL, &whole, 0, ms_tensor_elements(&tensors[i]), MS_F32,
                  MS_F32, true);
    }
    bool good = load_model(path, &rank, 1) == MS_OK && slices_wrong(&rank, 1, 4) == 0;
    slices_free(&rank, 1);
    return good;
}

static const char *target(const char *name) {
    static char path[MS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void weights_become_any_type(void **unused) {
    (void)unused;
    static const struct {
        ms_dtype type;
        const char *torch;
    } cases[] = {
        {MS_F32, "float32"}, {MS_BF16, "bfloat16"}, {MS_F16, "float16"}, {MS_F64, "float64"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_checkpoint_conversion conversion = {.weight_type = cases[i].type};
        char path[MS_PATH_BYTES];
        snprintf(path, sizeof path, "%s/typed-%zu", dir, i);
        if (ms_checkpoint_convert(source, path, &conversion) != MS_OK) {
            fail_msg("%s", ms_error_detail());
        }
        assert_true(holds_weights(path));
        ms_checkpoint_summary summary;
        assert_int_equal(ms_checkpoint_summarize(path, &summary), MS_OK);
        assert_int_equal(summary.typed[cases[i].type], 3693);
        assert_int_equal(summary.state_tensors, 0);
        ms_train_state state;
        assert_int_equal(ms_checkpoint_read_state(path, &state), MS_ERR_NOT_FOUND);
        ms_text config = read_file(path_in(path, "config.json"));
        assert_non_null(strstr(config.bytes, "\"model_type\": \"gpt2\""));
        assert_non_null(strstr(config.bytes, cases[i].torch));
        ms_text_release(&config);
        ms_text report = {0};
        assert_int_equal(ms_checkpoint_verify(path, &report), MS_OK);
        assert_int_equal(report.length, 0);
        ms_text_release(&report);
    }
}

static void a_full_conversion_can_be_resumed(void **unused) {
    (void)unused;
    ms_checkpoint_conversion conversion = {
        .weight_type = MS_DTYPE_COUNT, .full = true, .file_bytes_max = 4000};
    assert_int_equal(ms_checkpoint_convert(source, target("run/step-00000004"), &conversion),
                     MS_OK);
    expect_newest(target("run"), tensors, MODEL_TENSORS, 4);
    assert_true(ms_path_exists(target("run/step-00000004/model.safetensors.index.json")));
    assert_true(ms_path_exists(target("run/step-00000004/optimizer.safetensors.index.json")));
    /* And back into one file: the bytes of the one it came from. */
    conversion.file_bytes_max = UINT64_MAX;
    assert_int_equal(
        ms_checkpoint_convert(target("run/step-00000004"), path_in(dir, "back"), &conversion),
        MS_OK);
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "config.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ms_text left = read_file(path_in(source, names[i]));
        ms_text right = read_file(path_in(target("back"), names[i]));
        assert_int_equal(left.length, right.length);
        assert_memory_equal(left.bytes, right.bytes, left.length);
        ms_text_release(&left);
        ms_text_release(&right);
    }
}

/* Integers and masks of others stay as they are; files beside the weights come along. */
static void a_model_of_others_is_converted(void **unused) {
    (void)unused;
    char model[MS_PATH_BYTES];
    snprintf(model, sizeof model, "%s/others", dir);
    assert_int_equal(ms_directory_make(model), MS_OK);
    float weights[6] = {1, -2, 3.5f, 0, 1e30f, -0.0f};
    int64_t ids[5] = {INT64_MIN, -1, 0, 1, INT64_MAX};
    uint8_t mask[4] = {0, 1, 1, 0};
    ms_safetensors_spec specs[] = {
        {.name = "w", .dtype = MS_F32, .rank = 2, .dims = {2, 3}},
        {.name = "ids", .dtype = MS_I64, .rank = 5, .dims = {1, 1, 5, 1, 1}},
        {.name = "mask", .dtype = MS_BOOL, .rank = 1, .dims = {4}},
    };
    const void *data[] = {weights, ids, mask};
    ms_safetensors_layout *layout = NULL;
    assert_int_equal(ms_safetensors_layout_create(specs, 3, NULL, 0, "model", 0, &layout), MS_OK);
    assert_int_equal(ms_safetensors_layout_write(layout, model, data), MS_OK);
    ms_safetensors_layout_destroy(layout);
    write_text(path_in(model, "config.json"), "{\"dtype\": \"float32\", \"n\": 1}");
    write_text(path_in(model, "tokenizer.json"), "{}");
    write_text(path_in(model, "merges.txt"), "a b");
    write_text(path_in(model, "pytorch_model.bin"), "large");
    write_text(path_in(model, ".secret.json"), "x");
    ms_checkpoint_conversion conversion = {.weight_type = MS_BF16, .full = true};
    assert_int_equal(ms_checkpoint_convert(model, target("others-bf16"), &conversion), MS_OK);
    assert_int_equal(count_names(target("others-bf16"), ""), 5); /* with model and manifest */
    ms_weights *opened = NULL;
    assert_int_equal(ms_weights_open(target("others-bf16"), &opened), MS_OK);
    const ms_safetensors_tensor *tensor = ms_weights_find(opened, "ids");
    assert_int_equal(tensor->rank, 5);
    assert_memory_equal(tensor->data, ids, sizeof ids);
    assert_memory_equal(ms_weights_find(opened, "mask")->data, mask, sizeof mask);
    tensor = ms_weights_find(opened, "w");
    assert_int_equal(tensor->dtype, MS_BF16);
    for (int i = 0; i < 6; i++) {
        uint16_t half;
        memcpy(&half, (const char *)tensor->data + 2 * i, 2);
        assert_int_equal(half, ms_f32_to_bf16(weights[i]));
    }
    ms_weights_close(opened);
    ms_text config = read_file(target("others-bf16/config.json"));
    assert_non_null(strstr(config.bytes, "\"dtype\": \"bfloat16\""));
    assert_null(strstr(config.bytes, "torch_dtype"));
    ms_text_release(&config);
}

static int fail_the_rename(const char *operation, const char *path, void *context) {
    (void)path;
    (void)context;
    return strcmp(operation, "rename") == 0 ? ENOSPC : 0;
}

static void a_failed_conversion_leaves_nothing(void **unused) {
    (void)unused;
    ms_checkpoint_conversion conversion = {.weight_type = MS_F16};
    int before = count_names(dir, "");
    assert_int_equal(ms_checkpoint_convert(source, source, &conversion), MS_ERR_EXISTS);
    assert_int_equal(ms_checkpoint_convert(target("nowhere"), path_in(dir, "new"), &conversion),
                     MS_ERR_NOT_FOUND);
    conversion.weight_type = MS_I32;
    assert_int_equal(ms_checkpoint_convert(source, target("new"), &conversion), MS_ERR_ARGUMENT);
    conversion.weight_type = MS_F16;
    ms__disk_set_hook(fail_the_rename, NULL);
    assert_int_equal(ms_checkpoint_convert(source, target("new"), &conversion), MS_ERR_IO);
    ms__disk_set_hook(NULL, NULL);
    assert_int_equal(count_names(dir, ""), before);
    /* A damaged source is not passed on. */
    char damaged[MS_PATH_BYTES];
    assert_int_equal(ms_checkpoint_step_path(dir, 3, damaged, sizeof damaged), MS_OK);
    FILE *file = fopen(path_in(damaged, "model.safetensors"), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_true(fputc(byte ^ 1, file) != EOF);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(ms_checkpoint_convert(damaged, target("new"), &conversion), MS_ERR_CHECKSUM);
    assert_int_equal(count_names(dir, ""), before);
}

/* Blocks behind the first are checked as they are read. */
static void damage_far_inside_is_not_passed_on(void **unused) {
    (void)unused;
    char other[MS_PATH_BYTES], path[MS_PATH_BYTES];
    scratch_make(other);
    ms_tensor big = tensor_of("big", 2, 3000, 1024);
    assert_int_equal(save_step(other, &big, 1, 1, 1), MS_OK);
    assert_int_equal(ms_checkpoint_step_path(other, 1, path, sizeof path), MS_OK);
    FILE *file = fopen(path_in(path, "model.safetensors"), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 6 << 20, SEEK_SET), 0);
    assert_int_equal(fwrite("xxxx", 1, 4, file), 4);
    assert_int_equal(fclose(file), 0);
    ms_checkpoint_conversion conversion = {.weight_type = MS_F16};
    assert_int_equal(ms_checkpoint_convert(path, path_in(other, "new"), &conversion),
                     MS_ERR_CHECKSUM);
    assert_non_null(strstr(ms_error_detail(), "offset 4194304"));
    assert_int_equal(count_names(other, ""), 1);
    scratch_remove(other);
}

/* ---- The command ------------------------------------------------------------------------------
 */

static bool has_command(void) {
    const char *command = getenv("MS_TEST_COMMAND");
    if (command == NULL || access(command, X_OK) != 0) {
        print_message("the command is not built: skipped\n");
        return false;
    }
    return true;
}

/* Runs `mindspeed checkpoint ARGUMENTS`; output and errors together in text. */
static int run_command(const char *arguments, char *text, size_t text_bytes) {
    char line[3 * MS_PATH_BYTES];
    snprintf(line, sizeof line, "%s checkpoint %s 2>&1", getenv("MS_TEST_COMMAND"), arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t got = fread(text, 1, text_bytes - 1, pipe);
    text[got] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int run_on(const char *format, const char *path, char *text, size_t text_bytes) {
    char arguments[2 * MS_PATH_BYTES];
    size_t length = (size_t)snprintf(arguments, sizeof arguments, "%s ", format);
    snprintf(arguments + length, sizeof arguments - length, "%s", path);
    return run_command(arguments, text, text_bytes);
}

static void the_command_informs(void **unused) {
    (void)unused;
    static char text[1 << 16];
    if (!has_command()) {
        skip();
    }
    assert_int_equal(run_on("info", source, text, sizeof text), 0);
    assert_non_null(strstr(text, "3,693 parameters in 9 tensors"));
    assert_non_null(strstr(text, "step 4, sample 32"));
    assert_int_equal(run_on("info --tensors", source, text, sizeof text), 0);
    assert_non_null(strstr(text, "transformer.h.2.mlp.c_fc.weight"));
    assert_non_null(strstr(text, "[16, 64]"));
    assert_int_equal(run_on("info --json --tensors", source, text, sizeof text), 0);
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    assert_non_null(json);
    assert_int_equal(json_integer_value(json_object_get(json, "parameters")), 3693);
    assert_int_equal(json_array_size(json_object_get(json, "list")), 9);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json, "state"), "step")),
                     4);
    json_decref(json);
    assert_int_equal(run_on("info --json", dir, text, sizeof text), 0);
    json = json_loads(text, 0, &error);
    assert_non_null(json);
    assert_int_equal(json_array_size(json_object_get(json, "checkpoints")), 2);
    json_decref(json);
    assert_int_equal(run_on("info", target("nowhere"), text, sizeof text), 1);
    assert_non_null(strstr(text, "no such file"));
}

static void the_command_checks_and_converts(void **unused) {
    (void)unused;
    static char text[1 << 16];
    char arguments[3 * MS_PATH_BYTES];
    if (!has_command()) {
        skip();
    }
    assert_int_equal(run_on("check", source, text, sizeof text), 0);
    assert_non_null(strstr(text, ": good"));
    /* Step 3 was damaged above: the run as a whole is not good. */
    assert_int_equal(run_on("check", dir, text, sizeof text), 1);
    assert_non_null(strstr(text, "step-00000003/model.safetensors: damaged between offset 0"));
    assert_non_null(strstr(text, "step-00000004: good"));
    assert_int_equal(run_on("check --json", dir, text, sizeof text), 1);
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    assert_non_null(json);
    assert_true(json_is_false(json_object_get(json, "good")));
    assert_int_equal(json_array_size(json_object_get(json, "checkpoints")), 2);
    json_decref(json);
    snprintf(arguments, sizeof arguments, "convert --dtype bf16 %s %s/by-command", dir, dir);
    assert_int_equal(run_command(arguments, text, sizeof text), 0);
    assert_true(holds_weights(target("by-command")));
    assert_int_equal(run_command(arguments, text, sizeof text), 1); /* exists now */
    assert_int_equal(run_command("", text, sizeof text), 2);
    assert_int_equal(run_command("frob x", text, sizeof text), 2);
    assert_int_equal(run_command("info", text, sizeof text), 2);
    assert_int_equal(run_command("convert --dtype int8 a b", text, sizeof text), 2);
    assert_int_equal(run_command("--help", text, sizeof text), 0);
    assert_non_null(strstr(text, "usage: mindspeed checkpoint info"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(weights_become_any_type),
    cmocka_unit_test(a_full_conversion_can_be_resumed),
    cmocka_unit_test(a_model_of_others_is_converted),
    cmocka_unit_test(a_failed_conversion_leaves_nothing),
    cmocka_unit_test(damage_far_inside_is_not_passed_on),
    cmocka_unit_test(the_command_informs),
    cmocka_unit_test(the_command_checks_and_converts),
};

int main(void) {
    return cmocka_run_group_tests(tests, setup, teardown);
}
