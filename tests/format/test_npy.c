// labels: unit
/* .npy and .npz: NumPy's own files, orders, refusals. */
#include "format_support.h"

#include <zip.h>

#include "format/npy.h"

static ms_text make_npy(int version, const char *dictionary, const void *data, size_t bytes) {
    ms_text file = {0};
    size_t length = strlen(dictionary);
    assert_ok(ms_text_append(&file, "\x93NUMPY", 6));
    uint8_t head[6] = {(uint8_t)version, 0, (uint8_t)length, (uint8_t)(length >> 8)};
    assert_ok(ms_text_append(&file, (const char *)head, version == 1 ? 4 : 6));
    assert_ok(ms_text_append(&file, dictionary, length));
    assert_ok(ms_text_append(&file, data, bytes));
    return file;
}

static void versions_and_types(void **state) {
    (void)state;
    static const struct {
        const char *descr;
        ms_dtype dtype;
    } types[] = {{"<f4", MS_F32}, {"<f8", MS_F64}, {"<f2", MS_F16}, {"<i8", MS_I64},
                 {"<i4", MS_I32}, {"<i2", MS_I16}, {"|i1", MS_I8},  {"|u1", MS_U8},
                 {"<u2", MS_U16}, {"<u4", MS_U32}, {"<u8", MS_U64}, {"|b1", MS_BOOL}};
    uint8_t data[48];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)i;
    }
    for (int version = 1; version <= 3; version++) {
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            char dictionary[128];
            snprintf(dictionary, sizeof dictionary,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }   \n",
                     types[i].descr);
            size_t bytes = 6 * ms_dtype_bytes(types[i].dtype);
            ms_text file = make_npy(version, dictionary, data, bytes);
            ms_npy_array array;
            assert_ok(ms_npy_parse(file.bytes, file.length, "x.npy", &array));
            assert_int_equal(array.dtype, types[i].dtype);
            assert_int_equal(array.rank, 2);
            assert_int_equal(array.dims[1], 3);
            assert_int_equal(array.count, 6);
            assert_false(array.fortran_order);
            uint8_t out[48];
            assert_ok(ms_npy_copy(&array, out));
            assert_memory_equal(out, data, bytes);
            ms_text_release(&file);
        }
    }
}

static void fortran_order(void **state) {
    (void)state;
    uint16_t data[24], out[24];
    /* Element (i, j, k) is 100 i + 10 j + k; the first index runs fastest. */
    for (unsigned k = 0; k < 4; k++) {
        for (unsigned j = 0; j < 3; j++) {
            for (unsigned i = 0; i < 2; i++) {
                data[i + 2 * (j + 3 * k)] = (uint16_t)(100 * i + 10 * j + k);
            }
        }
    }
    ms_text file = make_npy(1, "{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3, 4)}", data,
                            sizeof data);
    ms_npy_array array;
    assert_ok(ms_npy_parse(file.bytes, file.length, "x.npy", &array));
    assert_true(array.fortran_order);
    assert_ok(ms_npy_copy(&array, out));
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned j = 0; j < 3; j++) {
            for (unsigned k = 0; k < 4; k++) {
                assert_int_equal(out[(i * 3 + j) * 4 + k], 100 * i + 10 * j + k);
            }
        }
    }
    ms_text_release(&file);
    file = make_npy(2, "{\"descr\": \"<u2\", \"fortran_order\": True, \"shape\": ()}", data, 2);
    assert_ok(ms_npy_parse(file.bytes, file.length, "x.npy", &array));
    assert_int_equal(array.rank, 0);
    assert_int_equal(array.count, 1);
    assert_ok(ms_npy_copy(&array, out));
    ms_text_release(&file);
    file = make_npy(1, "{'descr': '<u2', 'fortran_order': True, 'shape': (0, 4)}", data, 0);
    assert_ok(ms_npy_parse(file.bytes, file.length, "x.npy", &array));
    assert_int_equal(array.count, 0);
    assert_ok(ms_npy_copy(&array, out));
    ms_text_release(&file);
    file = make_npy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2L,)}", data, 4);
    assert_ok(ms_npy_parse(file.bytes, file.length, "x.npy", &array)); /* Python 2's */
    assert_int_equal(array.dims[0], 2);
    ms_text_release(&file);
}

#define D(descr, shape) "{'descr': " descr ", 'fortran_order': False, 'shape': " shape "}"

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *dictionary;
        size_t bytes;
        ms_status status;
        const char *text;
    } cases[] = {
        {D("'|O'", "(2,)"), 16, MS_ERR_UNSUPPORTED, "x.npy: an array of Python objects"},
        {D("'>f4'", "(2,)"), 8, MS_ERR_UNSUPPORTED, "dtype '>f4'"},
        {D("'<c8'", "(2,)"), 16, MS_ERR_UNSUPPORTED, "dtype '<c8'"},
        {D("'<U3'", "(2,)"), 24, MS_ERR_UNSUPPORTED, "dtype '<U3'"},
        {D("[('a', '<f4')]", "(2,)"), 8, MS_ERR_FORMAT, "structured types are not supported"},
        {D("'<f4'", "(2,)"), 7, MS_ERR_FORMAT, "need 8 bytes from byte"},
        {D("'<f4'", "(2,)"), 9, MS_ERR_FORMAT, "the file has 9"},
        {D("'<f4'", "(-2,)"), 8, MS_ERR_FORMAT, "expected a dim"},
        {D("'<f4'", "(9223372036854775807, 4)"), 8, MS_ERR_FORMAT, "over 2^63"},
        {D("'<f4'", "(99999999999999999999,)"), 8, MS_ERR_FORMAT, "dim over 2^63"},
        {D("'<f4'", "(1,1,1,1,1,1,1,1,1)"), 4, MS_ERR_UNSUPPORTED, "more than 8 dims"},
        {D("'<f4'", "(2"), 8, MS_ERR_FORMAT, "expected ',' or ')'"},
        {D("'<f4'", "2"), 8, MS_ERR_FORMAT, "expected a shape"},
        {D("'<f4", "(2,)"), 8, MS_ERR_UNSUPPORTED, "dtype '<f4, '"},
        {"{'descr", 8, MS_ERR_FORMAT, "expected a closing quote"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", 8, MS_ERR_FORMAT, "True or False"},
        {"{'descr': '<f4', 'shape': (2,)}", 8, MS_ERR_FORMAT, "expected descr, fortran_order"},
        {"{'descr': '<f4', 'descr': '<f4'}", 8, MS_ERR_FORMAT, "once"},
        {"{'other': '<f4'}", 8, MS_ERR_FORMAT, "once"},
        {"__import__('os')", 8, MS_ERR_FORMAT, "expected '{'"},
        {D("'<f4'", "(2,)") " + 1", 8, MS_ERR_FORMAT, "nothing else"},
        {"", 0, MS_ERR_FORMAT, "expected '{'"},
    };
    static const uint8_t data[64] = {0};
    ms_npy_array array;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ms_text file = make_npy(1, cases[i].dictionary, data, cases[i].bytes);
        ms_status status = ms_npy_parse(file.bytes, file.length, "x.npy", &array);
        if (status != cases[i].status || strstr(ms_error_detail(), cases[i].text) == NULL) {
            fail_msg("case %zu: %s: \"%s\"", i, ms_status_name(status), ms_error_detail());
        }
        ms_text_release(&file);
    }
    ms_text file = make_npy(4, D("'<f4'", "(2,)"), data, 8);
    assert_fails(ms_npy_parse(file.bytes, file.length, "x.npy", &array), MS_ERR_UNSUPPORTED,
                 "version 4 at byte 6");
    file.bytes[6] = 2;
    memset(file.bytes + 8, 0xff, 4);
    assert_fails(ms_npy_parse(file.bytes, file.length, "x.npy", &array), MS_ERR_FORMAT,
                 "header of 4294967295 bytes at byte 12");
    ms_text_release(&file);
    assert_fails(ms_npy_parse("PK\003\00456789", 9, "x.npy", &array), MS_ERR_FORMAT,
                 "not a .npy file");
    file = make_npy(1, D("'<f4'", "(2,)"), data, 8);
    for (size_t length = 0; length < file.length; length++) {
        char *copy = malloc(length + 1);
        memcpy(copy, file.bytes, length);
        assert_int_equal(ms_npy_parse(copy, length, "x.npy", &array), MS_ERR_FORMAT);
        free(copy);
    }
    ms_text_release(&file);
}

static void archives(void **state) {
    (void)state;
    char *folder = make_folder();
    const char *path = in_folder(folder, "x.npz");
    uint8_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    ms_text file = make_npy(1, D("'|u1'", "(8,)"), data, 8);
    int error = 0;
    zip_t *archive = zip_open(path, ZIP_CREATE, &error);
    assert_non_null(archive);
    zip_file_add(archive, "train.npy", zip_source_buffer(archive, file.bytes, file.length, 0), 0);
    zip_file_add(archive, "bad.npy", zip_source_buffer(archive, "no array", 8, 0), 0);
    zip_file_add(archive, "readme.txt", zip_source_buffer(archive, "text", 4, 0), 0);
    assert_int_equal(zip_close(archive), 0);
    ms_npz *npz = NULL;
    ms_npy *npy = NULL;
    assert_ok(ms_npz_open(path, &npz));
    assert_int_equal(ms_npz_count(npz), 2);
    assert_string_equal(ms_npz_name(npz, 0), "train");
    assert_null(ms_npz_name(npz, 2));
    assert_ok(ms_npz_read(npz, "train", 1000, &npy));
    assert_int_equal(ms_npy_get(npy)->count, 8);
    assert_memory_equal(ms_npy_get(npy)->data, data, 8);
    ms_npy_close(npy);
    assert_fails(ms_npz_read(npz, "train", file.length - 1, &npy), MS_ERR_RANGE,
                 "member \"train\" unpacks to");
    assert_fails(ms_npz_read(npz, "absent", 1000, &npy), MS_ERR_NOT_FOUND, "no array \"absent\"");
    assert_fails(ms_npz_read(npz, "bad", 1000, &npy), MS_ERR_FORMAT, "x.npz(bad): not a .npy file");
    ms_npz_close(npz);
    ms_text bytes = {0};
    assert_ok(ms_file_read(path, 10000, &bytes));
    assert_fails(ms_npz_open_memory(bytes.bytes, bytes.length / 2, "cut.npz", &npz), MS_ERR_FORMAT,
                 "cut.npz: not a readable .npz archive");
    assert_fails(ms_npz_open_memory(NULL, 0, "empty.npz", &npz), MS_ERR_FORMAT, "empty.npz");
    /* Flipped bits of the packed data (after a header of 30 bytes and the name) are found by the
     * checksum, except where unpacking gives the same bytes anyway. */
    int found = 0;
    for (size_t at = 39; at < 79; at++) {
        bytes.bytes[at] ^= 4;
        assert_ok(ms_npz_open_memory(bytes.bytes, bytes.length, "flip.npz", &npz));
        if (ms_npz_read(npz, "train", 1000, &npy) == MS_OK) {
            assert_memory_equal(ms_npy_get(npy)->data, data, 8);
            ms_npy_close(npy);
        } else {
            assert_non_null(strstr(ms_error_detail(), "flip.npz: member \"train\" is damaged"));
            found++;
        }
        ms_npz_close(npz);
        bytes.bytes[at] ^= 4;
    }
    assert_true(found > 30);
    ms_text_release(&bytes);
    ms_text_release(&file);
    remove_folder(folder);
}

static void real_files(void **state) {
    (void)state;
    ms_npy *npy = NULL;
    assert_ok(ms_npy_open(shared_path("npy/test.npy"), &npy));
    assert_true(ms_npy_get(npy)->count > 0);
    ms_npy_close(npy);
    assert_fails(ms_npy_open(shared_path("npy/numpy_py3-objarr.npy"), &npy), MS_ERR_UNSUPPORTED,
                 "Python objects");
    assert_fails(ms_npy_open(shared_path("npy/numpy_py2-np0-objarr.npy"), &npy), MS_ERR_UNSUPPORTED,
                 "Python objects");
    ms_npz *npz = NULL;
    assert_ok(ms_npz_open(shared_path("npy/numpy_py3-objarr.npz"), &npz));
    assert_fails(ms_npz_read(npz, ms_npz_name(npz, 0), 1 << 20, &npy), MS_ERR_UNSUPPORTED,
                 "Python objects");
    ms_npz_close(npz);
    assert_ok(ms_npz_open(shared_path("npy/test.npz"), &npz));
    for (int64_t i = 0; i < ms_npz_count(npz); i++) {
        assert_ok(ms_npz_read(npz, ms_npz_name(npz, i), 1 << 20, &npy));
        ms_npy_close(npy);
    }
    ms_npz_close(npz);
    assert_ok(ms_npz_open(shared_path("medmnist/breastmnist.npz"), &npz));
    assert_ok(ms_npz_read(npz, "train_images", 1 << 24, &npy));
    const ms_npy_array *images = ms_npy_get(npy);
    assert_int_equal(images->dtype, MS_U8);
    assert_int_equal(images->dims[0], 546);
    assert_int_equal(images->dims[1], 28);
    ms_npy_close(npy);
    ms_npz_close(npz);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_and_types), cmocka_unit_test(fortran_order),
        cmocka_unit_test(refusals),           cmocka_unit_test(archives),
        cmocka_unit_test(real_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
