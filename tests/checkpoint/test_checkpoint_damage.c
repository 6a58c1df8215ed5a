// labels: fault unit
// timeout: 60
/*
 * test_checkpoint_damage.c - files that were cut, flipped or forged: named with file and offset,
 * never loaded; the checkpoint before is used instead.
 */
#include "checkpoint_support.h"

#include "base/hash.h"
#include "format/json.h"

static ms_tensor tensors[MODEL_TENSORS];
static ms_tensor big[1];
static rank_slices ranks[LOOP_RANKS_MAX];
static char good_dir[MS_PATH_BYTES];

static int setup(void **state) {
    (void)state;
    model_make(tensors);
    big[0] = tensor_of("big", 2, 3000, 1024); /* 12 MiB: three blocks */
    scratch_make(good_dir);
    return save_step(good_dir, tensors, MODEL_TENSORS, 1, 1) == MS_OK ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    return ms_directory_remove(good_dir) == MS_OK ? 0 : 1;
}

static void write_bytes(const char *path, const void *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static void flip_bit(const char *path, uint64_t offset, int bit) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_true(byte != EOF);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_true(fputc(byte ^ (1 << bit), file) != EOF);
    assert_int_equal(fclose(file), 0);
}

static ms_status load_step(const char *path, int64_t step) {
    whole_model(&ranks[0], tensors, MODEL_TENSORS, step);
    ms_status status = load_model(path, ranks, 1);
    slices_free(ranks, 1);
    return status;
}

static ms_status verify(const char *path, ms_text *report) {
    ms_text_clear(report);
    return ms_checkpoint_verify(path, report);
}

/* A bit anywhere in any file: load and check both see it and name the file. */
static void a_flipped_bit_is_found_in_every_file(void **unused) {
    (void)unused;
    uint64_t random = random_seed();
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "config.json"};
    char path[MS_PATH_BYTES];
    ms_text report = {0};
    snprintf(path, sizeof path, "%s/step-00000001", good_dir);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char file[MS_PATH_BYTES];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        ms_text bytes = read_file(file);
        for (int round = 0; round < 25; round++) {
            /* The first rounds in the header, where a flip changes the structure. */
            uint64_t limit =
                round < 10 ? ms_min_i64((int64_t)bytes.length, 200) : (int64_t)bytes.length;
            uint64_t offset = (uint64_t)random_below(&random, (int64_t)limit);
            int bit = (int)random_below(&random, 8);
            flip_bit(file, offset, bit);
            assert_int_equal(load_step(path, 1), MS_ERR_CHECKSUM);
            if (strstr(last_detail, names[i]) == NULL || strstr(last_detail, "offset 0") == NULL) {
                fail_msg("%s: %s", names[i], last_detail);
            }
            assert_int_equal(verify(path, &report), MS_ERR_CHECKSUM);
            assert_non_null(strstr(report.bytes, names[i]));
            flip_bit(file, offset, bit);
        }
        ms_text_release(&bytes);
    }
    assert_int_equal(load_step(path, 1), MS_OK);
    assert_int_equal(verify(path, &report), MS_OK);
    assert_int_equal(report.length, 0);
    ms_text_release(&report);
}

/* Blocks: a rank that does not touch the bad one loads; the offset is that of the block. */
static void only_blocks_that_are_read_are_checked(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], path[MS_PATH_BYTES];
    scratch_make(dir);
    ms_shard whole = ms_shard_whole(&big[0]);
    int64_t elements = ms_tensor_elements(&big[0]);
    slice_add(&ranks[0], &big[0], NULL, &whole, 0, elements, MS_F32, MS_F32, true);
    assert_int_equal(save_model(dir, 1, ranks, 1, 1, 0), MS_OK);
    slices_free(ranks, 1);
    snprintf(path, sizeof path, "%s/step-00000001", dir);
    flip_bit(path_in(path, "model.safetensors"), (5 << 20) + 17, 3);
    slice_add(&ranks[0], &big[0], NULL, &whole, 0, 1000000, MS_F32, MS_F32, true);
    assert_int_equal(load_model(path, ranks, 1), MS_OK);
    slices_free(ranks, 1);
    slice_add(&ranks[0], &big[0], NULL, &whole, 2200000, 1000, MS_F32, MS_F32, true);
    assert_int_equal(load_model(path, ranks, 1), MS_OK);
    slices_free(ranks, 1);
    slice_add(&ranks[1], &big[0], NULL, &whole, 1000000, 200000, MS_F32, MS_F32, true);
    assert_int_equal(load_model(path, ranks, 3), MS_ERR_CHECKSUM);
    assert_non_null(strstr(last_detail, "rank 1"));
    assert_non_null(
        strstr(last_detail, "model.safetensors: damaged between offset 4194304 and 8388608"));
    slices_free(ranks, 3);
    ms_text report = {0};
    flip_bit(path_in(path, "model.safetensors"), 9 << 20, 0);
    assert_int_equal(ms_checkpoint_verify(path, &report), MS_ERR_CHECKSUM);
    assert_non_null(strstr(report.bytes, "offset 4194304"));
    assert_non_null(strstr(report.bytes, "offset 8388608")); /* it goes on after the first */
    assert_null(strstr(report.bytes, "offset 0 "));
    ms_text_release(&report);
    scratch_remove(dir);
}

static void a_cut_file_is_skipped(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], path[MS_PATH_BYTES];
    scratch_make(dir);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 9), MS_OK);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 2, 9), MS_OK);
    snprintf(path, sizeof path, "%s/step-00000002", dir);
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "config.json", "manifest.json"};
    log_lines lines = {0};
    ms_log_set_sink(log_catch, &lines);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char file[MS_PATH_BYTES];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        ms_text bytes = read_file(file);
        const size_t lengths[] = {0, 1, 7, 8, 9, bytes.length / 2, bytes.length - 1};
        for (size_t j = 0; j < sizeof lengths / sizeof lengths[0]; j++) {
            write_bytes(file, bytes.bytes, lengths[j]);
            lines = (log_lines){0};
            expect_newest(dir, tensors, MODEL_TENSORS, 1);
            assert_int_equal(lines.count, 1);
            assert_non_null(strstr(lines.text, names[i]));
            assert_int_not_equal(load_step(path, 2), MS_OK);
        }
        assert_int_equal(remove(file), 0);
        expect_newest(dir, tensors, MODEL_TENSORS, 1);
        write_bytes(file, bytes.bytes, bytes.length);
        ms_text_release(&bytes);
    }
    ms_log_set_sink(NULL, NULL);
    expect_newest(dir, tensors, MODEL_TENSORS, 2);
    scratch_remove(dir);
}

/* Every bit of the manifest counts. */
static void a_flipped_bit_in_the_manifest(void **unused) {
    (void)unused;
    ms_text bytes = read_file(path_in(good_dir, "step-00000001/manifest.json"));
    for (size_t bit = 0; bit < bytes.length * 8; bit++) {
        ms__manifest manifest = {0};
        bytes.bytes[bit / 8] ^= (char)(1 << bit % 8);
        assert_int_equal(ms__manifest_parse(bytes.bytes, bytes.length, "manifest.json", &manifest),
                         MS_ERR_CHECKSUM);
        bytes.bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (size_t length = 0; length < bytes.length; length++) {
        ms__manifest manifest = {0};
        char *exact = malloc(length + 1); /* so that a read beyond it is seen */
        assert_non_null(exact);
        memcpy(exact, bytes.bytes, length);
        assert_int_equal(ms__manifest_parse(exact, length, "manifest.json", &manifest),
                         MS_ERR_CHECKSUM);
        free(exact);
    }
    assert_non_null(strstr(ms_error_detail(), "offset"));
    ms_text_release(&bytes);
}

/* ---- Forged manifests -------------------------------------------------------------------------
 */

static ms_status parse_sealed(const char *body) {
    ms_text text = {0};
    ms__manifest manifest = {0};
    assert_int_equal(ms_text_append_z(&text, body), MS_OK);
    assert_int_equal(ms__manifest_seal(&text), MS_OK);
    ms_status status = ms__manifest_parse(text.bytes, text.length, "manifest.json", &manifest);
    ms__manifest_release(&manifest);
    ms_text_release(&text);
    return status;
}

#define HEAD                                                                                       \
    "{\"format\": \"mindspeed checkpoint\", \"version\": 1, \"step\": 5, \"block_bytes\": "        \
    "4194304,\n"

static void forged_manifests_are_refused(void **unused) {
    (void)unused;
    assert_int_equal(parse_sealed(HEAD "\"files\": [],\n"), MS_OK);
    assert_int_equal(parse_sealed(HEAD "\"files\": [{\"name\": \"a\", \"bytes\": 1, "
                                       "\"xxh3\": [\"0123456789abcdef\"]}],\n"),
                     MS_OK);
    static const struct {
        const char *body;
        ms_status status;
        const char *part;
    } cases[] = {
        {HEAD "\"files\": [{\"name\": \"../a\", \"bytes\": 0, \"xxh3\": []}],\n", MS_ERR_FORMAT,
         "../a"},
        {HEAD "\"files\": [{\"name\": \"/etc/passwd\", \"bytes\": 0, \"xxh3\": []}],\n",
         MS_ERR_FORMAT, "plain file name"},
        {HEAD "\"files\": [{\"name\": \"..\", \"bytes\": 0, \"xxh3\": []}],\n", MS_ERR_FORMAT,
         ".."},
        {HEAD "\"files\": [{\"name\": \"\", \"bytes\": 0, \"xxh3\": []}],\n", MS_ERR_FORMAT,
         "plain"},
        {HEAD "\"files\": [{\"name\": \"a\", \"bytes\": 1, \"xxh3\": []}],\n", MS_ERR_FORMAT,
         "hashes"},
        {HEAD "\"files\": [{\"name\": \"a\", \"bytes\": 9223372036854775807, \"xxh3\": []}],\n",
         MS_ERR_FORMAT, "2^60"},
        {HEAD "\"files\": [{\"name\": \"a\", \"bytes\": 1152921504606846976, \"xxh3\": []}],\n",
         MS_ERR_FORMAT, "274877906944"},
        {HEAD "\"files\": [{\"name\": \"a\", \"bytes\": -1, \"xxh3\": []}],\n", MS_ERR_FORMAT,
         "bytes"},
        {HEAD "\"files\": [{\"name\": \"a\", \"bytes\": 1, \"xxh3\": [\"0123456789ABCDEF\"]}],\n",
         MS_ERR_FORMAT, "hexadecimal"},
        {HEAD "\"files\": [{\"name\": \"a\", \"bytes\": 0, \"xxh3\": []}, "
              "{\"name\": \"a\", \"bytes\": 0, \"xxh3\": []}],\n",
         MS_ERR_FORMAT, "twice"},
        {HEAD "\"files\": [7],\n", MS_ERR_FORMAT, "plain"},
        {HEAD "\"files\": {},\n", MS_ERR_FORMAT, "files"},
        {"{\"format\": \"mindspeed checkpoint\", \"version\": 2,\n", MS_ERR_UNSUPPORTED, "newer"},
        {"{\"format\": \"other\", \"version\": 1,\n", MS_ERR_FORMAT, "other"},
        {"{\"format\": \"mindspeed checkpoint\", \"version\": 1, \"step\": -5,\n", MS_ERR_RANGE,
         "step"},
        {"{\"format\": \"mindspeed checkpoint\", \"version\": 1, \"step\": 5, \"block_bytes\": "
         "0,\n",
         MS_ERR_RANGE, "block_bytes"},
        {"{\"step\": 5,\n", MS_ERR_NOT_FOUND, "format"},
        {"not JSON\n", MS_ERR_FORMAT, "JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_status status = parse_sealed(cases[i].body);
        if (status != cases[i].status || strstr(ms_error_detail(), cases[i].part) == NULL) {
            fail_msg("case %zu: %s: %s", i, ms_status_name(status), ms_error_detail());
        }
    }
}

/* A manifest that agrees with a file of nonsense: the header's own checks must hold. */
static void a_forged_header_is_refused(void **unused) {
    (void)unused;
    static const uint64_t lengths[] = {UINT64_MAX,
                                       INT64_MAX,
                                       (uint64_t)INT64_MAX + 1,
                                       INT64_MAX - 8,
                                       UINT64_MAX - 7,
                                       UINT64_C(1) << 40,
                                       100000001,
                                       200,
                                       0};
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char bytes[100] = {0};
        memcpy(bytes, &lengths[i], 8);
        uint64_t hash = ms_hash_bytes(bytes, sizeof bytes);
        char name[] = "model.safetensors";
        ms__manifest_file file = {
            .name = name, .bytes = sizeof bytes, .block_count = 1, .hashes = &hash};
        ms__manifest manifest = {
            .step = 1, .block_bytes = MS_CHECKPOINT_BLOCK_BYTES, .file_count = 1, .files = &file};
        ms_text text = {0};
        assert_int_equal(ms__manifest_emit(&manifest, &text), MS_OK);
        write_bytes(path_in(dir, "model.safetensors"), bytes, sizeof bytes);
        write_bytes(path_in(dir, "manifest.json"), text.bytes, text.length);
        ms_status status = load_step(dir, 1);
        assert_true(status == MS_ERR_FORMAT || status == MS_ERR_RANGE);
        assert_non_null(strstr(last_detail, "model.safetensors"));
        ms_text report = {0};
        assert_int_equal(ms_checkpoint_verify(dir, &report), status);
        assert_true(report.length > 0);
        ms_text_release(&report);
        assert_int_equal(remove(path_in(dir, "manifest.json")), 0);
        assert_int_equal(load_step(dir, 1), status); /* the same without a manifest */
        ms_text_release(&text);
    }
    scratch_remove(dir);
}

static void an_index_leads_nowhere_else(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], model[MS_PATH_BYTES];
    scratch_make(dir);
    snprintf(model, sizeof model, "%s/model", dir);
    assert_int_equal(ms_directory_make(model), MS_OK);
    ms_text bytes = read_file(path_in(good_dir, "step-00000001/model.safetensors"));
    write_bytes(path_in(dir, "secret.safetensors"), bytes.bytes, bytes.length);
    ms_text_release(&bytes);
    static const char *const names[] = {"../secret.safetensors", "..", "/etc/passwd",
                                        "a/../../secret", ".secret"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char index[300];
        snprintf(index, sizeof index, "{\"weight_map\": {\"transformer.wte.weight\": \"%s\"}}",
                 names[i]);
        write_text(path_in(model, "model.safetensors.index.json"), index);
        assert_int_equal(load_step(model, 1), MS_ERR_FORMAT);
        assert_non_null(strstr(last_detail, names[i]));
    }
    scratch_remove(dir);
}

/* ---- Going on with the one before -------------------------------------------------------------
 */

typedef struct newest_call {
    ms_comm *comm;
    const char *dir;
    rank_slices *slices;
    ms_status status;
    ms_train_state state;
    char path[MS_PATH_BYTES];
    char detail[1024];
} newest_call;

static void *newest_body(void *context) {
    newest_call *call = context;
    call->status =
        ms_checkpoint_load_newest(call->comm, call->dir, call->slices->slices, call->slices->count,
                                  call->path, sizeof call->path, &call->state);
    snprintf(call->detail, sizeof call->detail, "%s",
             call->status != MS_OK ? ms_error_detail() : "");
    return NULL;
}

/* Loads on two ranks; the step that was found, or minus the status. */
static int64_t load_newest(const char *dir, char detail[1024]) {
    ms_comm *comms[2];
    pthread_t threads[2];
    static newest_call calls[2];
    uint64_t random = 5;
    static const ms_dtype types[MODEL_TENSORS] = {0};
    place_model(ranks, 2, tensors, MODEL_TENSORS, types, false, &random);
    assert_int_equal(ms_comm_create_loop(NULL, 2, comms), MS_OK);
    for (int r = 0; r < 2; r++) {
        calls[r] = (newest_call){.comm = comms[r], .dir = dir, .slices = &ranks[r]};
        assert_int_equal(pthread_create(&threads[r], NULL, newest_body, &calls[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    }
    for (int r = 0; r < 2; r++) {
        ms_comm_destroy(comms[r]);
        assert_int_equal(calls[r].status, calls[0].status);
        assert_string_equal(calls[r].detail, calls[0].detail);
        if (calls[r].status == MS_OK) {
            assert_string_equal(calls[r].path, calls[0].path);
            assert_int_equal(calls[r].state.step, calls[0].state.step);
            assert_int_equal(slices_wrong(ranks, 2, calls[r].state.step), 0);
        }
    }
    slices_free(ranks, 2);
    memcpy(detail, calls[0].detail, 1024);
    return calls[0].status == MS_OK ? calls[0].state.step : (int64_t)calls[0].status;
}

static void a_damaged_checkpoint_gives_way_to_the_one_before(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], detail[1024];
    scratch_make(dir);
    for (int64_t step = 1; step <= 4; step++) {
        assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, step, 9), MS_OK);
    }
    assert_int_equal(load_newest(dir, detail), 4);
    log_lines lines = {0};
    ms_log_set_sink(log_catch, &lines);
    /* The right size, so only reading it shows the damage. */
    flip_bit(path_in(dir, "step-00000004/model.safetensors"), 5000, 2);
    assert_int_equal(load_newest(dir, detail), 3);
    assert_int_equal(lines.count, 1);
    assert_non_null(
        strstr(lines.text, "step-00000004/model.safetensors: damaged between offset 0"));
    flip_bit(path_in(dir, "step-00000003/state.json"), 30, 0);
    assert_int_equal(load_newest(dir, detail), 2);
    assert_int_equal(truncate(path_in(dir, "step-00000002/manifest.json"), 40), 0);
    assert_int_equal(load_newest(dir, detail), 1);
    flip_bit(path_in(dir, "step-00000001/config.json"), 3, 0);
    assert_int_equal(load_newest(dir, detail), MS_ERR_NOT_FOUND);
    assert_non_null(strstr(detail, "no good checkpoint"));
    ms_log_set_sink(NULL, NULL);
    scratch_remove(dir);
}

/* Another model is no damage: an older checkpoint would not be better. */
static void another_model_does_not_give_way(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], detail[1024];
    scratch_make(dir);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 9), MS_OK);
    assert_int_equal(save_step(dir, tensors, 3, 2, 9), MS_OK);
    assert_int_equal(load_newest(dir, detail), MS_ERR_MISMATCH);
    assert_non_null(strstr(detail, "step-00000002"));
    scratch_remove(dir);
}

/* What verify relates: states to weights, the index to the files, the state's step to the
 * manifest's. */
static void verify_sees_what_nobody_loads(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    ms_text report = {0};
    scratch_make(dir);
    ms_shard whole = ms_shard_whole(&tensors[0]);
    int64_t elements = ms_tensor_elements(&tensors[0]);
    slice_add(&ranks[0], &tensors[0], "exp_avg", &whole, 0, elements, MS_F32, MS_F32, true);
    assert_int_equal(save_model(dir, 1, ranks, 1, 1, 0), MS_OK);
    slices_free(ranks, 1);
    assert_int_equal(verify(path_in(dir, "step-00000001"), &report), MS_ERR_MISMATCH);
    assert_non_null(strstr(report.bytes, "\"transformer.wte.weight.exp_avg\" has no weight"));
    assert_int_equal(verify(path_in(dir, "nowhere"), &report), MS_ERR_NOT_FOUND);
    ms_text bytes = read_file(path_in(good_dir, "step-00000001/model.safetensors"));
    assert_int_equal(ms_directory_make(path_in(dir, "plain")), MS_OK);
    write_bytes(path_in(dir, "plain/model.safetensors"), bytes.bytes, bytes.length);
    assert_int_equal(verify(path_in(dir, "plain"), &report), MS_OK);
    assert_non_null(strstr(report.bytes, "no manifest.json"));
    write_bytes(path_in(dir, "plain/model.safetensors"), bytes.bytes, bytes.length - 1);
    assert_int_equal(verify(path_in(dir, "plain"), &report), MS_ERR_FORMAT);
    ms_text_release(&bytes);
    ms_text_release(&report);
    scratch_remove(dir);
}

/* Rewrites the manifest for a file that was changed, as somebody with bad intentions would. */
static void manifest_renew(const char *path, const char *name) {
    ms__manifest manifest = {0};
    ms_text text = {0};
    assert_int_equal(ms__manifest_read(path, &manifest), MS_OK);
    ms_text bytes = read_file(path_in(path, name));
    ms__manifest_file *file = NULL;
    for (int64_t i = 0; i < manifest.file_count; i++) {
        file = strcmp(manifest.files[i].name, name) == 0 ? &manifest.files[i] : file;
    }
    assert_non_null(file);
    assert_int_equal(file->block_count, 1);
    file->bytes = bytes.length;
    file->hashes[0] = ms_hash_bytes(bytes.bytes, bytes.length);
    assert_int_equal(ms__manifest_emit(&manifest, &text), MS_OK);
    write_bytes(path_in(path, "manifest.json"), text.bytes, text.length);
    ms_text_release(&bytes);
    ms_text_release(&text);
    ms__manifest_release(&manifest);
}

static void verify_compares_index_state_and_files(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES], path[MS_PATH_BYTES];
    ms_text report = {0};
    scratch_make(dir);
    whole_model(&ranks[0], tensors, MODEL_TENSORS, 1);
    assert_int_equal(save_model(dir, 1, ranks, 1, 1, 4000), MS_OK);
    slices_free(ranks, 1);
    snprintf(path, sizeof path, "%s/step-00000001", dir);
    assert_int_equal(verify(path, &report), MS_OK);
    /* The index without one of its lines. */
    static const char index_name[] = "model.safetensors.index.json";
    ms_text index = read_file(path_in(path, index_name));
    char *line = strstr(index.bytes, "    \"transformer.h.2.attn.c_attn.bias\"");
    assert_non_null(line);
    char *next = strchr(line, '\n') + 1;
    memmove(line, next, strlen(next) + 1);
    write_text(path_in(path, index_name), index.bytes);
    ms_text_release(&index);
    manifest_renew(path, index_name);
    assert_int_equal(verify(path, &report), MS_ERR_MISMATCH);
    assert_non_null(strstr(report.bytes, "the index names 8 tensors, the files hold 9"));
    /* The state of another step. */
    ms_train_state state = {.step = 2, .best_val_loss = NAN};
    ms_text text = {0};
    assert_int_equal(ms__state_emit(&state, &text), MS_OK);
    write_text(path_in(path, "state.json"), text.bytes);
    ms_text_release(&text);
    manifest_renew(path, "state.json");
    assert_int_equal(verify(path, &report), MS_ERR_MISMATCH);
    assert_non_null(strstr(report.bytes, "the state is of step 2, the manifest of 1"));
    assert_non_null(strstr(report.bytes, "the index names"));
    ms_text_release(&report);
    scratch_remove(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_flipped_bit_is_found_in_every_file),
    cmocka_unit_test(only_blocks_that_are_read_are_checked),
    cmocka_unit_test(a_cut_file_is_skipped),
    cmocka_unit_test(a_flipped_bit_in_the_manifest),
    cmocka_unit_test(forged_manifests_are_refused),
    cmocka_unit_test(a_forged_header_is_refused),
    cmocka_unit_test(an_index_leads_nowhere_else),
    cmocka_unit_test(a_damaged_checkpoint_gives_way_to_the_one_before),
    cmocka_unit_test(another_model_does_not_give_way),
    cmocka_unit_test(verify_sees_what_nobody_loads),
    cmocka_unit_test(verify_compares_index_state_and_files),
};

int main(void) {
    return cmocka_run_group_tests(tests, setup, teardown);
}
