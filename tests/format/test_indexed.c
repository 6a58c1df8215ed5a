// labels: unit
/* Megatron's .bin/.idx: byte-equal to Megatron's own files, and every damage found. */
#include "format_support.h"

#include <signal.h>
#include <sys/resource.h>

#include "format/indexed.h"

static void copy_set(const char *shared_prefix, ms_dtype dtype, int64_t sequences,
                     int64_t documents, int64_t tokens) {
    char name[256];
    snprintf(name, sizeof name, "%s.idx", shared_prefix);
    const char *path = shared_path(name);
    ms_indexed *data = NULL;
    assert_ok(ms_indexed_open(path, &data));
    assert_int_equal(ms_indexed_dtype(data), dtype);
    assert_int_equal(ms_indexed_sequence_count(data), sequences);
    assert_int_equal(ms_indexed_document_count(data), documents);
    assert_int_equal(ms_indexed_token_count(data), tokens);
    assert_false(ms_indexed_has_modes(data));
    char *folder = make_folder();
    ms_indexed_writer *writer = NULL;
    assert_ok(ms_indexed_writer_create(in_folder(folder, "copy"), dtype, false, &writer));
    for (int64_t document = 0; document < documents; document++) {
        int64_t first, count;
        assert_ok(ms_indexed_document(data, document, &first, &count));
        for (int64_t i = first; i < first + count; i++) {
            int64_t begin, length;
            assert_ok(ms_indexed_sequence(data, i, &begin, &length));
            int32_t *ids = calloc((size_t)length + 1, sizeof *ids);
            assert_ok(ms_indexed_read(data, begin, length, 50257, ids));
            assert_ok(ms_indexed_writer_add(writer, ids, length, 0));
            free(ids);
        }
        assert_ok(ms_indexed_writer_end_document(writer));
    }
    assert_false(ms_indexed_exists(in_folder(folder, "copy")));
    assert_int_equal(ms_indexed_writer_token_count(writer), tokens);
    assert_ok(ms_indexed_writer_finish(writer));
    ms_indexed_writer_destroy(writer);
    assert_true(ms_indexed_exists(in_folder(folder, "copy")));
    assert_files_equal(in_folder(folder, "copy.idx"), path);
    snprintf(name, sizeof name, "%s.bin", shared_prefix);
    assert_files_equal(in_folder(folder, "copy.bin"), shared_path(name));
    /* Appending a whole pair to an empty one is the same again. */
    assert_ok(ms_indexed_writer_create(in_folder(folder, "merged"), dtype, false, &writer));
    assert_ok(ms_indexed_writer_append(writer, data));
    assert_ok(ms_indexed_writer_finish(writer));
    ms_indexed_writer_destroy(writer);
    assert_files_equal(in_folder(folder, "merged.idx"), path);
    assert_files_equal(in_folder(folder, "merged.bin"), shared_path(name));
    ms_indexed_close(data);
    remove_folder(folder);
}

static void equals_megatron(void **state) {
    (void)state;
    copy_set("megatron/tinyshakespeare_gpt2_text_document", MS_U16, 7222, 7222, 338028);
}

static void equals_megatron_sequences(void **state) {
    (void)state;
    copy_set("megatron/small_int32_multiseq", MS_I32, 23, 10, 1009);
}

/* A small pair: documents of 2, 0 and 1 sequences. */
static void write_small(const char *prefix, ms_dtype dtype, bool with_modes) {
    ms_indexed_writer *writer = NULL;
    static const int32_t tokens[] = {5, 6, 7, 100, 101};
    assert_ok(ms_indexed_writer_create(prefix, dtype, with_modes, &writer));
    assert_ok(ms_indexed_writer_add(writer, tokens, 3, 1));
    assert_ok(ms_indexed_writer_add(writer, tokens + 3, 0, 2));
    assert_ok(ms_indexed_writer_end_document(writer));
    assert_ok(ms_indexed_writer_end_document(writer));
    assert_ok(ms_indexed_writer_add(writer, tokens + 3, 2, 3));
    assert_ok(ms_indexed_writer_end_document(writer));
    assert_ok(ms_indexed_writer_finish(writer));
    assert_fails(ms_indexed_writer_add(writer, tokens, 1, 0), MS_ERR_ARGUMENT, "has finished");
    ms_indexed_writer_destroy(writer);
}

static void every_type(void **state) {
    (void)state;
    static const ms_dtype types[] = {MS_U8, MS_I8, MS_I16, MS_I32, MS_I64, MS_U16};
    char *folder = make_folder();
    const char *prefix = in_folder(folder, "small");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bool with_modes = i % 2 == 1;
        write_small(prefix, types[i], with_modes);
        ms_indexed *data = NULL;
        assert_ok(ms_indexed_open(in_folder(folder, "small.bin"), &data));
        assert_int_equal(ms_indexed_dtype(data), types[i]);
        int32_t ids[5] = {0};
        assert_ok(ms_indexed_read(data, 1, 4, 102, ids));
        assert_int_equal(ids[0], 6);
        assert_int_equal(ids[3], 101);
        assert_fails(ms_indexed_read(data, 0, 5, 101, ids), MS_ERR_RANGE,
                     "id 101, but the vocabulary has 101 entries");
        assert_fails(ms_indexed_read(data, 2, 4, 0, ids), MS_ERR_ARGUMENT, "there are 5");
        assert_fails(ms_indexed_read(data, INT64_MAX, 4, 0, ids), MS_ERR_ARGUMENT, "there are 5");
        assert_ok(ms_indexed_read(data, 5, 0, 0, ids));
        int64_t first, count;
        int8_t mode;
        assert_ok(ms_indexed_document(data, 0, &first, &count));
        assert_int_equal(count, 2);
        assert_ok(ms_indexed_document(data, 1, &first, &count));
        assert_int_equal(count, 0);
        assert_ok(ms_indexed_document(data, 2, &first, &count));
        assert_int_equal(first, 2);
        assert_fails(ms_indexed_document(data, 3, &first, &count), MS_ERR_ARGUMENT, "document 3");
        assert_fails(ms_indexed_sequence(data, -1, &first, &count), MS_ERR_ARGUMENT, "sequence -1");
        assert_int_equal(ms_indexed_has_modes(data), with_modes);
        assert_ok(ms_indexed_sequence_mode(data, 2, &mode));
        assert_int_equal(mode, with_modes ? 3 : 0);
        ms_indexed_close(data);
    }
    remove_folder(folder);
}

static void merges(void **state) {
    (void)state;
    char *folder = make_folder();
    ms_indexed *data = NULL;
    write_small(in_folder(folder, "one"), MS_U16, true);
    assert_ok(ms_indexed_open(in_folder(folder, "one"), &data));
    ms_indexed_writer *writer = NULL;
    assert_ok(ms_indexed_writer_create(in_folder(folder, "two"), MS_U16, true, &writer));
    assert_ok(ms_indexed_writer_append(writer, data));
    assert_ok(ms_indexed_writer_append(writer, data));
    assert_ok(ms_indexed_writer_finish(writer));
    ms_indexed_writer_destroy(writer);
    assert_ok(ms_indexed_writer_create(in_folder(folder, "three"), MS_I32, true, &writer));
    assert_fails(ms_indexed_writer_append(writer, data), MS_ERR_MISMATCH,
                 "cannot append uint16 tokens with modes to int32 tokens with modes");
    ms_indexed_writer_destroy(writer);
    ms_indexed_close(data);
    assert_ok(ms_indexed_open(in_folder(folder, "two"), &data));
    assert_int_equal(ms_indexed_document_count(data), 6);
    assert_int_equal(ms_indexed_token_count(data), 10);
    int64_t first, count;
    assert_ok(ms_indexed_document(data, 3, &first, &count));
    assert_int_equal(first, 3);
    assert_int_equal(count, 2);
    ms_indexed_close(data);
    remove_folder(folder);
}

static void writer_refusals(void **state) {
    (void)state;
    char *folder = make_folder();
    ms_indexed_writer *writer = NULL;
    static const int32_t ids[] = {1, 65536, -1};
    const char *prefix = in_folder(folder, "x");
    assert_fails(ms_indexed_writer_create(prefix, MS_F32, false, &writer), MS_ERR_ARGUMENT,
                 "cannot be stored as fp32");
    assert_fails(ms_indexed_writer_create(prefix, MS_BF16, false, &writer), MS_ERR_ARGUMENT,
                 "bf16");
    assert_fails(ms_indexed_writer_create(in_folder(folder, "none/x"), MS_U16, false, &writer),
                 MS_ERR_IO, "none/x.bin.partial: cannot create");
    assert_ok(ms_indexed_writer_create(prefix, MS_U16, false, &writer));
    assert_fails(ms_indexed_writer_add(writer, ids, 2, 0), MS_ERR_RANGE,
                 "65536 does not fit uint16");
    assert_fails(ms_indexed_writer_add(writer, ids + 2, 1, 0), MS_ERR_RANGE, "-1 does not fit");
    assert_fails(ms_indexed_writer_add(writer, ids, (int64_t)INT32_MAX + 1, 0), MS_ERR_RANGE,
                 "a sequence of 2147483648 tokens");
    assert_ok(ms_indexed_writer_add(writer, ids, 1, 0));
    assert_fails(ms_indexed_writer_finish(writer), MS_ERR_ARGUMENT,
                 "the last 1 sequences belong to no document");
    assert_ok(ms_indexed_writer_end_document(writer));
    ms_indexed_writer_destroy(writer); /* given up: nothing stays */
    assert_false(ms_path_exists(in_folder(folder, "x.bin")));
    assert_false(ms_path_exists(in_folder(folder, "x.bin.partial")));
    assert_false(ms_path_exists(in_folder(folder, "x.idx.partial")));
    assert_int_equal(ms_indexed_dtype_for(65499), MS_U16);
    assert_int_equal(ms_indexed_dtype_for(65500), MS_I32);
    remove_folder(folder);
}

/* A full disk, by the limit on file sizes: an error that names the file; the older pair stays
 * whole. */
static void full_disk(void **state) {
    (void)state;
    char *folder = make_folder();
    const char *prefix = in_folder(folder, "x");
    write_small(prefix, MS_I32, false);
    ms_indexed_writer *writer = NULL;
    static int32_t ids[100000];
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 65536;
    assert_ok(ms_indexed_writer_create(prefix, MS_I32, false, &writer));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    ms_status status = ms_indexed_writer_add(writer, ids, 100000, 0);
    if (status == MS_OK) {
        status = ms_indexed_writer_end_document(writer);
    }
    if (status == MS_OK) {
        status = ms_indexed_writer_finish(writer);
    }
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, MS_ERR_IO);
    assert_non_null(strstr(ms_error_detail(), "x.bin.partial"));
    assert_fails(ms_indexed_writer_finish(writer), MS_ERR_ARGUMENT, "has failed before");
    ms_indexed_writer_destroy(writer);
    ms_indexed *data = NULL;
    assert_ok(ms_indexed_open(prefix, &data));
    assert_int_equal(ms_indexed_token_count(data), 5);
    ms_indexed_close(data);
    remove_folder(folder);
}

typedef struct pair {
    ms_text idx, bin;
} pair;

static pair read_small(bool with_modes) {
    char *folder = make_folder();
    pair made = {{0}, {0}};
    write_small(in_folder(folder, "small"), MS_U16, with_modes);
    assert_ok(ms_file_read(in_folder(folder, "small.idx"), 1000, &made.idx));
    assert_ok(ms_file_read(in_folder(folder, "small.bin"), 1000, &made.bin));
    remove_folder(folder);
    return made;
}

static ms_status open_pair(const pair *made, ms_indexed **data) {
    return ms_indexed_open_memory(made->idx.bytes, made->idx.length, made->bin.bytes,
                                  made->bin.length, "small", data);
}

static void put_i64(pair *made, size_t offset, int64_t value) {
    memcpy(made->idx.bytes + offset, &value, sizeof value);
}

/* The damages that users meet, each with its place. .idx: 34 header, 3 lengths at 34, 3 offsets at
 * 46, 4 document entries at 70, end 102. */
static void damages(void **state) {
    (void)state;
    static const struct {
        size_t offset;
        int64_t value;
        ms_status status;
        const char *text;
    } cases[] = {
        {0, 0, MS_ERR_FORMAT, "small.idx: byte 0: not an index"},
        {9, 2, MS_ERR_UNSUPPORTED, "small.idx: byte 9: version 2"},
        {18, INT64_MAX, MS_ERR_FORMAT, "byte 18: 9223372036854775807 sequences"},
        {18, -1, MS_ERR_FORMAT, "byte 18: 18446744073709551615 sequences"},
        {18, 0x1555555555555555, MS_ERR_FORMAT, "byte 18: 1537228672809129301 sequences"},
        {18, 2, MS_ERR_FORMAT, "truncated or damaged"},
        {26, 5, MS_ERR_FORMAT, "truncated or damaged"},
        {34, -3, MS_ERR_FORMAT, "small.idx: byte 34: length of sequence 0 is -3"},
        {46, 2, MS_ERR_FORMAT, "small.idx: byte 46: sequence 0 begins at 2"},
        {54, 8, MS_ERR_FORMAT,
         "small.idx: byte 54: sequence 1 begins at 8, the lengths before it give 6"},
        {62, -1, MS_ERR_FORMAT, "small.idx: byte 62: sequence 2 begins at -1"},
        {70, 1, MS_ERR_FORMAT, "small.idx: byte 70: entry 0 of the document index is 1"},
        {78, 4, MS_ERR_FORMAT,
         "small.idx: byte 78: entry 1 of the document index is 4, expected 0 to 3"},
        {86, 1, MS_ERR_FORMAT,
         "small.idx: byte 86: entry 2 of the document index is 1, expected 2 to 3"},
        {94, 2, MS_ERR_FORMAT,
         "small.idx: byte 94: entry 3 of the document index is 2, expected 3 to 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pair made = read_small(false);
        ms_indexed *data = NULL;
        assert_int_equal(made.idx.length, 102);
        put_i64(&made, cases[i].offset, cases[i].value);
        ms_status status = open_pair(&made, &data);
        if (status != cases[i].status || strstr(ms_error_detail(), cases[i].text) == NULL) {
            fail_msg("case %zu: %s: \"%s\"", i, ms_status_name(status), ms_error_detail());
        }
        ms_text_release(&made.idx);
        ms_text_release(&made.bin);
    }
    pair made = read_small(false);
    ms_indexed *data = NULL;
    made.idx.bytes[17] = 9;
    assert_fails(open_pair(&made, &data), MS_ERR_FORMAT, "byte 17: type code 9");
    made.idx.bytes[17] = 4;
    assert_fails(open_pair(&made, &data), MS_ERR_FORMAT,
                 "byte 54: sequence 1 begins at 6, the lengths before it give 12");
    made.idx.bytes[17] = 8;
    made.bin.length--;
    assert_fails(
        open_pair(&made, &data), MS_ERR_FORMAT,
        "small.bin: has 9 bytes, but small.idx says 5 tokens of 2 bytes, which end at byte 10");
    made.bin.length = 0;
    assert_fails(open_pair(&made, &data), MS_ERR_FORMAT, "small.bin: has 0 bytes");
    ms_text_release(&made.idx);
    ms_text_release(&made.bin);
}

static void truncated_and_flipped(void **state) {
    (void)state;
    for (int with_modes = 0; with_modes < 2; with_modes++) {
        pair made = read_small(with_modes == 1);
        ms_indexed *data = NULL;
        size_t whole = made.idx.length, end = whole - (with_modes == 1 ? 3 : 0);
        for (size_t length = 0; length < whole; length++) {
            if (length == end) {
                continue; /* without the modes it is whole again */
            }
            char *copy = malloc(length + 1);
            memcpy(copy, made.idx.bytes, length);
            ms_status status = ms_indexed_open_memory(copy, length, made.bin.bytes, made.bin.length,
                                                      "small", &data);
            free(copy);
            assert_int_equal(status, MS_ERR_FORMAT);
        }
        for (size_t bit = 0; bit < 8 * end; bit++) {
            made.idx.bytes[bit / 8] ^= (char)(1 << (bit % 8));
            if (open_pair(&made, &data) == MS_OK) {
                /* Of single bits, only the sign of the type and a border between documents that
                 * stays in order cannot be told from what was meant. */
                size_t byte = bit / 8;
                assert_true(byte == 17 || (byte >= 78 && byte < 94));
                ms_indexed_close(data);
            }
            made.idx.bytes[bit / 8] ^= (char)(1 << (bit % 8));
        }
        ms_text_release(&made.idx);
        ms_text_release(&made.bin);
    }
}

static void missing_files(void **state) {
    (void)state;
    char *folder = make_folder();
    ms_indexed *data = NULL;
    assert_int_not_equal(ms_indexed_open(in_folder(folder, "x"), &data), MS_OK);
    assert_non_null(strstr(ms_error_detail(), "x.idx"));
    write_small(in_folder(folder, "x"), MS_U16, false);
    unlink(in_folder(folder, "x.bin"));
    assert_int_not_equal(ms_indexed_open(in_folder(folder, "x"), &data), MS_OK);
    assert_non_null(strstr(ms_error_detail(), "x.bin"));
    ms_indexed_writer *writer = NULL; /* no document at all */
    assert_ok(ms_indexed_writer_create(in_folder(folder, "e"), MS_U16, false, &writer));
    assert_ok(ms_indexed_writer_finish(writer));
    ms_indexed_writer_destroy(writer);
    assert_ok(ms_indexed_open(in_folder(folder, "e"), &data));
    assert_int_equal(ms_indexed_document_count(data), 0);
    assert_int_equal(ms_indexed_token_count(data), 0);
    ms_indexed_close(data);
    remove_folder(folder);
}

/* Past 2^31 tokens and 4 GiB: the .bin is a hole, so only the index takes space. */
static void beyond_32_bits(void **state) {
    (void)state;
    enum { COUNT = 5 };
    char *folder = make_folder();
    ms_text idx = {0};
    uint64_t head[3] = {1, COUNT, 2};
    uint8_t code = 8;
    int64_t documents[2] = {0, COUNT};
    assert_ok(ms_text_append(&idx, "MMIDIDX\0\0", 9));
    assert_ok(ms_text_append(&idx, (const char *)&head[0], 8));
    assert_ok(ms_text_append(&idx, (const char *)&code, 1));
    assert_ok(ms_text_append(&idx, (const char *)&head[1], 16));
    int64_t offset = 0;
    int32_t length = 1000000000;
    for (int i = 0; i < COUNT; i++) {
        assert_ok(ms_text_append(&idx, (const char *)&length, 4));
    }
    for (int i = 0; i < COUNT; i++) {
        assert_ok(ms_text_append(&idx, (const char *)&offset, 8));
        offset += 2 * (int64_t)length;
    }
    assert_ok(ms_text_append(&idx, (const char *)documents, 16));
    write_file(in_folder(folder, "x.idx"), idx.bytes, idx.length);
    FILE *bin = fopen(in_folder(folder, "x.bin"), "wb");
    assert_non_null(bin);
    if (ftruncate(fileno(bin), offset) != 0) {
        fclose(bin);
        ms_text_release(&idx);
        remove_folder(folder);
        skip(); /* no file system with holes of 10 GB here */
    }
    int16_t last = 77;
    assert_int_equal(fseek(bin, offset - 2, SEEK_SET), 0);
    assert_int_equal(fwrite(&last, 2, 1, bin), 1);
    fclose(bin);
    ms_indexed *data = NULL;
    assert_ok(ms_indexed_open(in_folder(folder, "x"), &data));
    assert_int_equal(ms_indexed_token_count(data), 5000000000);
    int64_t first, count;
    assert_ok(ms_indexed_sequence(data, 4, &first, &count));
    assert_int_equal(first, 4000000000);
    int32_t id[2];
    assert_ok(ms_indexed_read(data, 4999999998, 2, 100, id));
    assert_int_equal(id[0], 0);
    assert_int_equal(id[1], 77);
    ms_indexed_close(data);
    ms_text_release(&idx);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_megatron), cmocka_unit_test(equals_megatron_sequences),
        cmocka_unit_test(every_type),      cmocka_unit_test(merges),
        cmocka_unit_test(writer_refusals), cmocka_unit_test(full_disk),
        cmocka_unit_test(damages),         cmocka_unit_test(truncated_and_flipped),
        cmocka_unit_test(missing_files),   cmocka_unit_test(beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
