// labels: unit
/* safetensors: reading, refusing, layouts for several writers, model directories. */
#include "format_support.h"

#include <fcntl.h>

#include "base/random.h"
#include "format/json.h"
#include "format/safetensors.h"

/* A file from its header's JSON (the length is put in front) and so many bytes of data. */
static ms_text make_file(const char *header, size_t data_bytes) {
    ms_text file = {0};
    uint64_t length = strlen(header);
    assert_ok(ms_text_append(&file, (const char *)&length, sizeof length));
    assert_ok(ms_text_append_z(&file, header));
    for (size_t i = 0; i < data_bytes; i++) {
        char byte = (char)i;
        assert_ok(ms_text_append(&file, &byte, 1));
    }
    return file;
}

static void reads(void **state) {
    (void)state;
    ms_text bytes =
        make_file("{\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[6,14]},"
                  "\"__metadata__\":{\"format\":\"pt\",\"step\":\"7\"},"
                  "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                  "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[14,15]},"
                  "\"e\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[15,15]}}  ",
                  15);
    ms_safetensors *file = NULL;
    assert_ok(ms_safetensors_open_memory(bytes.bytes, bytes.length, "m.safetensors", &file));
    assert_int_equal(ms_safetensors_count(file), 4);
    static const char *const order[] = {"a", "b", "s", "e"};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(ms_safetensors_at(file, i)->name, order[i]);
        assert_ptr_equal(ms_safetensors_find(file, order[i]), ms_safetensors_at(file, i));
    }
    const ms_safetensors_tensor *b = ms_safetensors_find(file, "b");
    assert_int_equal(b->dtype, MS_F32);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->bytes, 8);
    assert_int_equal(b->file_offset, bytes.length - 15 + 6);
    assert_int_equal(((const uint8_t *)b->data)[0], 6);
    assert_int_equal(ms_safetensors_tensor_count(b), 2);
    assert_int_equal(ms_safetensors_tensor_count(ms_safetensors_find(file, "s")), 1);
    assert_int_equal(ms_safetensors_tensor_count(ms_safetensors_find(file, "e")), 0);
    assert_string_equal(b->path, "m.safetensors");
    assert_null(ms_safetensors_find(file, "c"));
    assert_null(ms_safetensors_at(file, 4));
    assert_string_equal(ms_safetensors_metadata(file, "step"), "7");
    assert_null(ms_safetensors_metadata(file, "x"));
    ms_safetensors_close(file);
    ms_text_release(&bytes);
}

#define TENSOR(name, dtype, shape, from, to)                                                       \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" from "," to   \
    "]}"

static void refuses(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        ms_status status;
        const char *text;
    } cases[] = {
        {"{" TENSOR("a", "F32", "2", "0", "8") "}", 7, MS_ERR_FORMAT,
         "tensor \"a\": data_offsets [0, 8) do not lie in the 7 bytes after offset 62"},
        {"{" TENSOR("a", "F32", "2", "0", "8") "}", 9, MS_ERR_FORMAT,
         "1 bytes after the last tensor, from offset 70"},
        {"{" TENSOR("a", "F32", "2", "0", "4") "}", 4, MS_ERR_FORMAT,
         "tensor \"a\" at offset 62 has 4 bytes, but its shape and dtype F32 need 8"},
        {"{" TENSOR("a", "F32", "2", "8", "0") "}", 8, MS_ERR_FORMAT, "data_offsets [8, 0)"},
        {"{" TENSOR("a", "F32", "2", "-8", "0") "}", 8, MS_ERR_FORMAT, "data_offsets [-8, 0)"},
        {"{" TENSOR("a", "F32", "2", "0", "9223372036854775807") "}", 8, MS_ERR_FORMAT,
         "[0, 9223372036854775807)"},
        {"{" TENSOR("a", "F32", "4611686018427387904,4", "0", "8") "}", 8, MS_ERR_FORMAT,
         "tensor \"a\": product of its dims is over 2^63"},
        {"{" TENSOR("a", "F32", "-2", "0", "8") "}", 8, MS_ERR_FORMAT,
         "dim 0 is not a whole number"},
        {"{" TENSOR("a", "F32", "2.5", "0", "8") "}", 8, MS_ERR_FORMAT,
         "dim 0 is not a whole number"},
        {"{" TENSOR("a", "F32", "1,1,1,1,1,1,1,1,1", "0", "4") "}", 4, MS_ERR_UNSUPPORTED,
         "has 9 dims, at most 8"},
        {"{" TENSOR("a", "F8_E4M3", "2", "0", "2") "}", 2, MS_ERR_UNSUPPORTED,
         "tensor \"a\" has dtype \"F8_E4M3\""},
        {"{" TENSOR("a", "U8", "2", "0", "2") "," TENSOR("b", "U8", "2", "1", "3") "}", 3,
         MS_ERR_FORMAT, "tensors must not overlap"},
        {"{" TENSOR("a", "U8", "2", "0", "2") "," TENSOR("b", "U8", "2", "3", "5") "}", 5,
         MS_ERR_FORMAT, "tensors must not leave gaps"},
        {"{" TENSOR("a", "U8", "2", "1", "3") "}", 3, MS_ERR_FORMAT,
         "tensor \"a\" begins at offset 62 but the one before it, \"the header\", ends at 61"},
        {"{" TENSOR("a", "U8", "2", "0", "2") "," TENSOR("a", "U8", "2", "2", "4") "}", 4,
         MS_ERR_FORMAT, "duplicate"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2]}}", 2, MS_ERR_FORMAT, "no \"data_offsets\""},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,2]}}", 2, MS_ERR_FORMAT, "no \"dtype\""},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,2]}}", 2, MS_ERR_FORMAT,
         "no list \"shape\""},
        {"{\"a\":7}", 0, MS_ERR_FORMAT, "no \"dtype\""},
        {"{\"__metadata__\":[]}", 0, MS_ERR_FORMAT, "\"__metadata__\" is not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, MS_ERR_FORMAT, "\"a\" is not a string"},
        {"[]", 0, MS_ERR_FORMAT, "header at offset 8 is not an object"},
        {"{\"a\" 1}", 0, MS_ERR_FORMAT, "header is not valid JSON near offset 14"},
        {"{\"a\\u0000b\":1}", 0, MS_ERR_FORMAT, "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ms_safetensors *file = NULL;
        ms_text bytes = make_file(cases[i].header, cases[i].data_bytes);
        ms_status status =
            ms_safetensors_open_memory(bytes.bytes, bytes.length, "m.safetensors", &file);
        if (status != cases[i].status || strstr(ms_error_detail(), cases[i].text) == NULL ||
            strncmp(ms_error_detail(), "m.safetensors: ", 15) != 0) {
            fail_msg("case %zu: %s: \"%s\"", i, ms_status_name(status), ms_error_detail());
        }
        assert_null(file);
        ms_text_release(&bytes);
    }
}

static void refuses_header_lengths(void **state) {
    (void)state;
    static const uint64_t lengths[] = {3,
                                       100000001,
                                       (uint64_t)INT64_MAX - 8,
                                       INT64_MAX,
                                       (uint64_t)INT64_MAX + 1,
                                       UINT64_MAX - 8,
                                       UINT64_MAX - 7,
                                       UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint8_t bytes[10] = {0};
        memcpy(bytes, &lengths[i], 8);
        memcpy(bytes + 8, "{}", 2);
        ms_safetensors *file = NULL;
        char expected[128];
        snprintf(expected, sizeof expected,
                 "header length at offset 0 is %llu, but only 2 bytes follow",
                 (unsigned long long)lengths[i]);
        assert_fails(ms_safetensors_open_memory(bytes, sizeof bytes, "m.safetensors", &file),
                     MS_ERR_FORMAT, expected);
    }
    ms_safetensors *file = NULL;
    assert_fails(ms_safetensors_open_memory("1234567", 7, "m.safetensors", &file), MS_ERR_FORMAT,
                 "file has 7 bytes");
    assert_fails(ms_safetensors_open_memory(NULL, 0, "m.safetensors", &file), MS_ERR_FORMAT,
                 "file has 0 bytes");
}

/* Every prefix of a file is refused, and no flipped bit of the header goes through as a change of
 * the tensors' places. */
static void truncated_and_flipped(void **state) {
    (void)state;
    ms_text bytes = make_file(
        "{" TENSOR("a", "F16", "3", "0", "6") "," TENSOR("b", "I32", "2,2", "6", "22") "}", 22);
    ms_safetensors *file = NULL;
    for (size_t length = 0; length < bytes.length; length++) {
        char *copy = malloc(length + 1); /* of the exact size: the sanitizer sees a read beyond */
        memcpy(copy, bytes.bytes, length);
        assert_int_equal(ms_safetensors_open_memory(copy, length, "m.safetensors", &file),
                         MS_ERR_FORMAT);
        free(copy);
    }
    for (size_t bit = 0; bit < 8 * (bytes.length - 22); bit++) {
        bytes.bytes[bit / 8] ^= (char)(1 << (bit % 8));
        if (ms_safetensors_open_memory(bytes.bytes, bytes.length, "m.safetensors", &file) ==
            MS_OK) {
            uint64_t sum = 0;
            for (int64_t i = 0; i < ms_safetensors_count(file); i++) {
                sum += ms_safetensors_at(file, i)->bytes;
            }
            assert_int_equal(sum, 22);
            ms_safetensors_close(file);
        }
        bytes.bytes[bit / 8] ^= (char)(1 << (bit % 8));
    }
    ms_text_release(&bytes);
}

static const ms_safetensors_spec specs[] = {
    {"wte.weight", MS_F32, 2, {5, 3}},
    {"h.0.\"odd\" ü", MS_BF16, 1, {7}},
    {"step", MS_I64, 0, {0}},
    {"empty", MS_F32, 2, {0, 4}},
    {"lm_head.weight", MS_F16, 2, {4, 4}},
};
#define SPEC_COUNT ((int64_t)(sizeof specs / sizeof *specs))

static void fill(uint8_t *data, const ms_safetensors_place *place, int64_t tensor) {
    for (uint64_t i = 0; i < place->bytes; i++) {
        data[i] = (uint8_t)(i * 3 + (uint64_t)tensor * 50 + 1);
    }
}

static void check_weights(const char *dir) {
    ms_weights *weights = NULL;
    assert_ok(ms_weights_open(dir, &weights));
    assert_int_equal(ms_weights_count(weights), SPEC_COUNT);
    for (int64_t i = 0; i < SPEC_COUNT; i++) {
        const ms_safetensors_tensor *tensor = ms_weights_find(weights, specs[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, specs[i].dtype);
        assert_int_equal(tensor->rank, specs[i].rank);
        assert_memory_equal(tensor->dims, specs[i].dims, (size_t)tensor->rank * 8);
        uint8_t expected[64];
        ms_safetensors_place place = {.bytes = tensor->bytes};
        fill(expected, &place, i);
        if (tensor->bytes > 0) {
            assert_memory_equal(tensor->data, expected, tensor->bytes);
        }
    }
    for (int64_t i = 1; i < SPEC_COUNT; i++) { /* sorted by name */
        assert_true(strcmp(ms_weights_at(weights, i - 1)->name, ms_weights_at(weights, i)->name) <
                    0);
    }
    assert_null(ms_weights_find(weights, "absent"));
    ms_weights_close(weights);
}

static void write_and_read(uint64_t file_bytes_max, int expected_files) {
    ms_safetensors_pair pairs[] = {{"made_by", "test \"1\""}};
    ms_safetensors_layout *layout = NULL;
    assert_ok(ms_safetensors_layout_create(specs, SPEC_COUNT, pairs, 1, "model", file_bytes_max,
                                           &layout));
    assert_int_equal(ms_safetensors_layout_file_count(layout), expected_files);
    uint8_t storage[5][64];
    const void *data[5];
    for (int64_t i = 0; i < SPEC_COUNT; i++) {
        ms_safetensors_place place = ms_safetensors_layout_place(layout, i);
        assert_true(place.bytes <= 64);
        fill(storage[i], &place, i);
        data[i] = storage[i];
    }
    for (int i = 0; i < expected_files; i++) {
        size_t bytes = 0;
        assert_non_null(ms_safetensors_layout_header(layout, i, &bytes));
        assert_int_equal(bytes % 64, 0);
    }
    char *folder = make_folder();
    assert_ok(ms_safetensors_layout_write(layout, folder, data));
    check_weights(folder);
    /* The same bytes from many hands: each writes one byte of every tensor at a time. */
    char *other = make_folder();
    for (int i = 0; i < expected_files; i++) {
        const char *path = in_folder(other, ms_safetensors_layout_file_name(layout, i));
        int fd = open(path, O_WRONLY | O_CREAT, 0666);
        assert_true(fd >= 0);
        size_t bytes = 0;
        const void *header = ms_safetensors_layout_header(layout, i, &bytes);
        for (int64_t t = 0; t < SPEC_COUNT; t++) {
            ms_safetensors_place place = ms_safetensors_layout_place(layout, t);
            for (uint64_t byte = 0; byte < place.bytes && place.file == i; byte++) {
                assert_ok(ms_file_write_at(fd, path, storage[t] + byte, 1, place.offset + byte));
            }
        }
        assert_ok(ms_file_write_at(fd, path, header, bytes, 0));
        close(fd);
        assert_files_equal(path, in_folder(folder, ms_safetensors_layout_file_name(layout, i)));
    }
    remove_folder(other);
    ms_safetensors *file = NULL;
    assert_ok(
        ms_safetensors_open(in_folder(folder, ms_safetensors_layout_file_name(layout, 0)), &file));
    assert_string_equal(ms_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(ms_safetensors_metadata(file, "made_by"), "test \"1\"");
    ms_safetensors_close(file);
    remove_folder(folder);
    ms_safetensors_layout_destroy(layout);
}

static void layouts(void **state) {
    (void)state;
    write_and_read(0, 1);
    write_and_read(1000, 1);
    write_and_read(1, 4);  /* one tensor a file; the empty one joins its neighbour */
    write_and_read(74, 2); /* 60 + 14 | 8 + 0 + 32 */
    write_and_read(73, 2); /* 60 | 14 + 8 + 0 + 32 */
    write_and_read(30, 3); /* 60 | 14 + 8 + 0 | 32, and 60 alone is over */
}

static void layout_names(void **state) {
    (void)state;
    ms_safetensors_layout *layout = NULL;
    assert_ok(ms_safetensors_layout_create(specs, SPEC_COUNT, NULL, 0, "model", 70, &layout));
    assert_int_equal(ms_safetensors_layout_file_count(layout), 2);
    assert_string_equal(ms_safetensors_layout_file_name(layout, 0),
                        "model-00001-of-00002.safetensors");
    assert_string_equal(ms_safetensors_layout_file_name(layout, 1),
                        "model-00002-of-00002.safetensors");
    assert_string_equal(ms_safetensors_layout_index_name(layout), "model.safetensors.index.json");
    ms_text text = {0};
    assert_ok(ms_safetensors_layout_index(layout, &text));
    ms_json json = {0};
    assert_ok(ms_json_parse(text.bytes, text.length, "index", &json));
    int64_t total = 0;
    assert_ok(ms_json_need_int(&json, "metadata.total_size", 0, 1000, &total));
    assert_int_equal(total, 60 + 14 + 8 + 32);
    const json_t *map = ms_json_find(&json, "weight_map");
    assert_int_equal(json_object_size(map), SPEC_COUNT);
    assert_string_equal(json_string_value(json_object_get(map, "lm_head.weight")),
                        "model-00002-of-00002.safetensors");
    ms_json_close(&json);
    ms_text_release(&text);
    ms_safetensors_layout_destroy(layout);
    ms_safetensors_spec twice[] = {{"a", MS_F32, 0, {0}}, {"a", MS_F32, 0, {0}}};
    assert_fails(ms_safetensors_layout_create(twice, 2, NULL, 0, "model", 0, &layout),
                 MS_ERR_ARGUMENT, "two tensors are called \"a\"");
    ms_safetensors_spec huge[] = {{"a", MS_F32, 2, {INT64_MAX / 2, 4}}};
    assert_fails(ms_safetensors_layout_create(huge, 1, NULL, 0, "model", 0, &layout),
                 MS_ERR_ARGUMENT, "tensor \"a\": dim 0");
    ms_safetensors_spec unnamed[] = {{"", MS_F32, 0, {0}}};
    assert_fails(ms_safetensors_layout_create(unnamed, 1, NULL, 0, "model", 0, &layout),
                 MS_ERR_ARGUMENT, "empty, reserved or not UTF-8");
    assert_ok(ms_safetensors_layout_create(NULL, 0, NULL, 0, "model", 0, &layout));
    assert_int_equal(ms_safetensors_layout_file_count(layout), 1);
    ms_safetensors_layout_destroy(layout);
}

static void index_refusals(void **state) {
    (void)state;
    static const struct {
        const char *index;
        ms_status status;
        const char *text;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"../secret.safetensors\"}}", MS_ERR_FORMAT,
         "must be a plain name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", MS_ERR_FORMAT, "\"/etc/passwd\""},
        {"{\"weight_map\":{\"a\":\"..\"}}", MS_ERR_FORMAT, "must be a plain name"},
        {"{\"weight_map\":{\"a\":\"\"}}", MS_ERR_FORMAT, "must be a plain name"},
        {"{\"weight_map\":{\"a\":\"x\\\\y\"}}", MS_ERR_FORMAT, "must be a plain name"},
        {"{\"weight_map\":{\"a\":7}}", MS_ERR_FORMAT, "\"a\" is not a file name"},
        {"{\"weight_map\":[]}", MS_ERR_FORMAT, "no object \"weight_map\""},
        {"{}", MS_ERR_FORMAT, "no object \"weight_map\""},
        {"{\"weight_map\":{\"b\":\"one.safetensors\"}}", MS_ERR_MISMATCH,
         "says that tensor \"b\" is in"},
    };
    char *folder = make_folder();
    ms_text one = make_file("{" TENSOR("a", "U8", "2", "0", "2") "}", 2);
    ms_weights *weights = NULL;
    assert_fails(ms_weights_open(folder, &weights), MS_ERR_NOT_FOUND, "neither model.safetensors");
    write_file(in_folder(folder, "one.safetensors"), one.bytes, one.length);
    const char *index = in_folder(folder, "model.safetensors.index.json");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(index, cases[i].index, strlen(cases[i].index));
        assert_fails(ms_weights_open(folder, &weights), cases[i].status, cases[i].text);
    }
    static const char absent[] = "{\"weight_map\":{\"a\":\"two.safetensors\"}}";
    write_file(index, absent, strlen(absent));
    assert_int_not_equal(ms_weights_open(folder, &weights), MS_OK);
    assert_non_null(strstr(ms_error_detail(), "two.safetensors"));
    static const char good[] = "{\"weight_map\":{\"a\":\"one.safetensors\"}}";
    write_file(index, good, strlen(good));
    assert_ok(ms_weights_open(folder, &weights));
    assert_int_equal(ms_weights_count(weights), 1);
    ms_weights_close(weights);
    assert_ok(ms_weights_open(in_folder(folder, "one.safetensors"), &weights)); /* one file */
    assert_int_equal(ms_weights_count(weights), 1);
    ms_weights_close(weights);
    ms_text_release(&one);
    remove_folder(folder);
}

static void real_files(void **state) {
    (void)state;
    static const struct {
        const char *path, *tensor;
        int64_t rank;
    } cases[] = {{"stories260K/model.safetensors", "model.embed_tokens.weight", 2},
                 {"stories260K/model.bf16.safetensors", "model.embed_tokens.weight", 2},
                 {"gpt_tiny_trace/init.safetensors", NULL, 0},
                 {"burn_mnist/mnist.safetensors", NULL, 0},
                 {"burn_mnist/multi_layer.safetensors", NULL, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ms_safetensors *file = NULL;
        assert_ok(ms_safetensors_open(shared_path(cases[i].path), &file));
        assert_true(ms_safetensors_count(file) > 0);
        if (cases[i].tensor != NULL) {
            const ms_safetensors_tensor *tensor = ms_safetensors_find(file, cases[i].tensor);
            assert_non_null(tensor);
            assert_int_equal(tensor->rank, cases[i].rank);
            assert_int_equal(tensor->dims[0], 512);
            assert_int_equal(tensor->dims[1], 64);
        }
        ms_safetensors_close(file);
    }
    ms_weights *weights = NULL;
    shared_path("stories260K/model.safetensors");
    assert_ok(ms_weights_open(shared_path("stories260K"), &weights));
    assert_non_null(ms_weights_find(weights, "model.layers.4.mlp.down_proj.weight"));
    ms_weights_close(weights);
}

/* Every allocation fails once. */
static void out_of_memory(void **state) {
    (void)state;
    ms_text bytes =
        make_file("{" TENSOR("a", "U8", "2", "0", "2") ",\"__metadata__\":{\"k\":\"v\"}}", 2);
    uint64_t n = 1;
    for (;; n++) {
        ms_safetensors *file = NULL;
        ms_safetensors_layout *layout = NULL;
        ms_memory_fail_at(n);
        ms_status status =
            ms_safetensors_open_memory(bytes.bytes, bytes.length, "m.safetensors", &file);
        if (status == MS_OK) {
            status = ms_safetensors_layout_create(specs, SPEC_COUNT, NULL, 0, "model", 70, &layout);
        }
        ms_memory_fail_at(0);
        ms_safetensors_close(file);
        ms_safetensors_layout_destroy(layout);
        if (status == MS_OK) {
            break;
        }
        assert_int_equal(status, MS_ERR_MEMORY);
    }
    assert_true(n > 3);
    ms_text_release(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),
        cmocka_unit_test(refuses),
        cmocka_unit_test(refuses_header_lengths),
        cmocka_unit_test(truncated_and_flipped),
        cmocka_unit_test(layouts),
        cmocka_unit_test(layout_names),
        cmocka_unit_test(index_refusals),
        cmocka_unit_test(real_files),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
