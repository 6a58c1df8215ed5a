// labels: prop unit
// timeout: 60
/*
 * test_checkpoint_round_trip.c - save then load is the identity under any two layouts, and what is
 * written does not depend on the layout; saves that would not tile a tensor, and loads of another
 * model, are refused by name on every rank.
 */
#include "checkpoint_support.h"

#include <limits.h>

static rank_slices saved[LOOP_RANKS_MAX], loaded[LOOP_RANKS_MAX];
static ms_tensor tensors[MODEL_TENSORS];
static const ms_dtype all_f32[MODEL_TENSORS] = {MS_F32, MS_F32, MS_F32, MS_F32, MS_F32,
                                                MS_F32, MS_F32, MS_F32, MS_F32};

static int setup(void **state) {
    (void)state;
    model_make(tensors);
    return 0;
}

/* Any layout to any layout, files split or not, any floating types. */
static void any_layout_loads_into_any_other(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    uint64_t random = random_seed();
    for (int round = 0; round < 30; round++) {
        int size = 1 + (int)random_below(&random, LOOP_RANKS_MAX);
        ms_dtype types[MODEL_TENSORS];
        for (int i = 0; i < MODEL_TENSORS; i++) {
            types[i] = real_types[random_below(&random, 4)];
        }
        bool with_states = random_below(&random, 2) == 0;
        uint64_t file_bytes_max =
            random_below(&random, 2) == 0 ? 0 : (uint64_t)(300 + random_below(&random, 12000));
        place_model(saved, size, tensors, MODEL_TENSORS, types, with_states, &random);
        slices_fill(saved, size, round);
        if (save_model(dir, round, saved, size, 2, file_bytes_max) != MS_OK) {
            fail_msg("save: %s", last_detail);
        }
        slices_free(saved, size);

        char path[MS_PATH_BYTES];
        assert_int_equal(ms_checkpoint_find(dir, path, sizeof path), MS_OK);
        size = 1 + (int)random_below(&random, LOOP_RANKS_MAX);
        place_model(loaded, size, tensors, MODEL_TENSORS, types,
                    with_states && random_below(&random, 4) != 0, &random);
        if (load_model(path, loaded, size) != MS_OK) {
            fail_msg("load: %s", last_detail);
        }
        assert_int_equal(slices_wrong(loaded, size, round), 0);
        slices_free(loaded, size);
        ms_text report = {0};
        if (ms_checkpoint_verify(path, &report) != MS_OK) {
            fail_msg("verify: %s", report.bytes);
        }
        ms_text_release(&report);
    }
    scratch_remove(dir);
}

/* The same model from one rank and from several: the same bytes in every file, the manifest
 * included. */
static void bytes_do_not_depend_on_the_layout(void **unused) {
    (void)unused;
    char one[MS_PATH_BYTES], several[MS_PATH_BYTES];
    scratch_make(one);
    scratch_make(several);
    uint64_t random = random_seed();
    uint64_t fixed = 1; /* draws nothing that ends in a file, but the order of draws differs */
    place_model(saved, 1, tensors, MODEL_TENSORS, all_f32, true, &fixed);
    slices_fill(saved, 1, 5);
    assert_int_equal(save_model(one, 5, saved, 1, 1, 3000), MS_OK);
    slices_free(saved, 1);
    place_model(saved, 4, tensors, MODEL_TENSORS, all_f32, true, &random);
    slices_fill(saved, 4, 5);
    assert_int_equal(save_model(several, 5, saved, 4, 1, 3000), MS_OK);
    slices_free(saved, 4);

    DIR *folder = opendir(path_in(one, "step-00000005"));
    assert_non_null(folder);
    int compared = 0;
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        ms_text left = read_file(path_in(path_in(one, "step-00000005"), entry->d_name));
        ms_text right = read_file(path_in(path_in(several, "step-00000005"), entry->d_name));
        assert_int_equal(left.length, right.length);
        assert_memory_equal(left.bytes, right.bytes, left.length);
        ms_text_release(&left);
        ms_text_release(&right);
        compared++;
    }
    closedir(folder);
    assert_true(compared > 8); /* several files of weights and of states, an index for each */
    scratch_remove(one);
    scratch_remove(several);
}

static void tensors_stand_in_the_order_of_people(void **unused) {
    (void)unused;
    assert_true(ms__natural_compare("h.2.w", "h.10.w") < 0);
    assert_true(ms__natural_compare("h.10.w", "h.2.w") > 0);
    assert_true(ms__natural_compare("h.2", "h.2.w") < 0);
    assert_true(ms__natural_compare("h.02", "h.2") < 0);
    assert_int_equal(ms__natural_compare("h.18446744073709551617", "h.18446744073709551617"), 0);
    assert_true(ms__natural_compare("h.9", "h.18446744073709551617") < 0);
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 1), MS_OK);
    ms_safetensors *file = NULL;
    assert_int_equal(ms_safetensors_open(path_in(dir, "step-00000001/model.safetensors"), &file),
                     MS_OK);
    for (int64_t i = 1; i < ms_safetensors_count(file); i++) {
        const ms_safetensors_tensor *before = ms_safetensors_at(file, i - 1);
        const ms_safetensors_tensor *after = ms_safetensors_at(file, i);
        assert_true(before->bytes == 0 || after->bytes == 0 ||
                    ms__natural_compare(before->name, after->name) < 0);
    }
    ms_safetensors_close(file);
    scratch_remove(dir);
}

/* ---- Saves that are refused -------------------------------------------------------------------
 */

/* Both ranks hold all of tensor 0; what each writes of it is given. */
static ms_status save_two(const char *dir, int64_t start0, int64_t count0, int64_t start1,
                          int64_t count1) {
    ms_shard whole = ms_shard_whole(&tensors[0]);
    slice_add(&saved[0], &tensors[0], NULL, &whole, start0, count0, MS_F32, MS_F32, true);
    slice_add(&saved[1], &tensors[0], NULL, &whole, start1, count1, MS_F32, MS_F32, true);
    ms_status status = save_model(dir, 7, saved, 2, 1, 0);
    slices_free(saved, 2);
    return status;
}

static void slices_that_do_not_tile_are_refused(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    int64_t elements = ms_tensor_elements(&tensors[0]);
    assert_int_equal(save_two(dir, 0, 100, 100, elements - 100), MS_OK);
    scratch_remove(path_in(dir, "step-00000007"));

    assert_int_equal(save_two(dir, 0, 100, 101, elements - 101), MS_ERR_MISMATCH); /* a gap */
    assert_non_null(strstr(last_detail, "\"transformer.wte.weight\" has 976 elements"));
    assert_non_null(strstr(last_detail, "write 975"));
    assert_int_equal(save_two(dir, 0, 101, 100, elements - 100), MS_ERR_MISMATCH); /* an overlap */
    assert_non_null(strstr(last_detail, "write 977"));
    /* As many as there are, but some twice and some never. */
    assert_int_equal(save_two(dir, 0, 100, 99, elements - 100), MS_ERR_MISMATCH);
    assert_non_null(strstr(last_detail, "twice"));
    assert_int_equal(save_two(dir, 0, 488, 0, 488), MS_ERR_MISMATCH);
    assert_non_null(strstr(last_detail, "twice"));
    assert_int_equal(save_two(dir, 0, 100, 100, elements), MS_ERR_ARGUMENT); /* outside the shard */
    assert_non_null(strstr(last_detail, "rank 1"));
    assert_int_equal(count_names(dir, ""), 0);
    scratch_remove(dir);
}

static void ranks_that_disagree_are_refused(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    ms_tensor other = tensors[0];
    other.dims[0] = 62;
    ms_shard whole = ms_shard_whole(&tensors[0]), other_whole = ms_shard_whole(&other);
    int64_t elements = ms_tensor_elements(&tensors[0]);
    slice_add(&saved[0], &tensors[0], NULL, &whole, 0, elements, MS_F32, MS_F32, true);
    slice_add(&saved[1], &other, NULL, &other_whole, 0, 0, MS_F32, MS_F32, true);
    assert_int_equal(save_model(dir, 1, saved, 2, 1, 0), MS_ERR_MISMATCH);
    assert_non_null(strstr(last_detail, "disagree"));
    slices_free(saved, 2);

    slice_add(&saved[0], &tensors[0], NULL, &whole, 0, elements, MS_F32, MS_F32, false);
    saved[1].count = 0;
    assert_int_equal(save_model(dir, 1, saved, 2, 1, 0), MS_ERR_MISMATCH);
    assert_non_null(strstr(last_detail, "no rank writes tensor \"transformer.wte.weight\""));
    slices_free(saved, 2);

    rank_call calls[2] = {
        {.dir = dir, .slices = &saved[0], .keep = 1, .state.step = 3},
        {.dir = dir, .slices = &saved[1], .keep = 1, .state.step = 4},
    };
    assert_int_equal(run_ranks(2, save_body, calls), MS_ERR_MISMATCH);
    assert_non_null(strstr(calls[0].detail, "step 3, rank 1 step 4"));
    assert_int_equal(count_names(dir, ""), 0);
    scratch_remove(dir);
}

static void bad_requests_are_refused(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    saved[0].count = 0;
    assert_int_equal(save_model(dir, 1, saved, 1, 0, 0), MS_ERR_ARGUMENT); /* keep 0 */
    assert_int_equal(save_model(dir, -1, saved, 1, 1, 0), MS_ERR_ARGUMENT);
    assert_int_equal(save_model("", 1, saved, 1, 1, 0), MS_ERR_ARGUMENT);
    static const char *const names[] = {"../config.json", "a/b", ".hidden", "", "manifest.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ms_checkpoint_file file = {names[i], "x", 1};
        rank_call call = {
            .dir = dir, .slices = &saved[0], .keep = 1, .files = &file, .file_count = 1};
        assert_int_equal(run_ranks(1, save_body, &call), MS_ERR_ARGUMENT);
    }
    assert_int_equal(count_names(dir, ""), 0);
    scratch_remove(dir);
}

/* A rank that comes late, or has nothing to write, is waited for. */
static void uneven_and_slow_ranks(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    whole_model(&saved[2], tensors, MODEL_TENSORS, 9);
    rank_call calls[3] = {
        {.dir = dir, .slices = &saved[0], .keep = 1, .state = {.step = 9, .samples = 72}},
        {.dir = dir,
         .slices = &saved[1],
         .keep = 1,
         .state = {.step = 9, .samples = 72},
         .delay_ms = 120},
        {.dir = dir, .slices = &saved[2], .keep = 1, .state = {.step = 9, .samples = 72}},
    };
    assert_int_equal(run_ranks(3, save_body, calls), MS_OK);
    slices_free(saved, 3);
    expect_newest(dir, tensors, MODEL_TENSORS, 9);
    scratch_remove(dir);
}

/* ---- Loads of another model -------------------------------------------------------------------
 */

static void expect_refused(const char *path, const ms_tensor *wanted, int count, const char *part) {
    for (int size = 1; size <= 2; size++) {
        uint64_t random = 3;
        static const ms_dtype types[MODEL_TENSORS + 1] = {0};
        place_model(loaded, size, wanted, count, types, false, &random);
        slices_fill(loaded, size, 77);
        assert_int_equal(load_model(path, loaded, size), MS_ERR_MISMATCH);
        if (strstr(last_detail, part) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", last_detail, part);
        }
        assert_int_equal(slices_wrong(loaded, size, 77), 0); /* nothing was overwritten */
        slices_free(loaded, size);
    }
}

static void another_model_is_refused_by_name(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    assert_int_equal(save_step(dir, tensors, MODEL_TENSORS, 1, 1), MS_OK);
    const char *path = path_in(dir, "step-00000001");
    ms_tensor wanted[MODEL_TENSORS + 1];
    memcpy(wanted, tensors, sizeof tensors);
    wanted[3].dims[0] = 96;
    expect_refused(path, wanted, MODEL_TENSORS,
                   "\"transformer.h.2.attn.c_attn.bias\" has dims [48], this model needs [96]");
    wanted[3] = tensors[3];
    wanted[5].rank = 2;
    wanted[5].dims[1] = 1;
    expect_refused(path, wanted, MODEL_TENSORS,
                   "\"transformer.ln_f.weight\" has dims [17], this model needs [17, 1]");
    wanted[5] = tensors[5];
    wanted[MODEL_TENSORS] = tensor_of("transformer.h.11.ln.weight", 1, 5, 0);
    expect_refused(path, wanted, MODEL_TENSORS + 1, "no tensor \"transformer.h.11.ln.weight\"");
    /* A smaller model: a tensor would silently be left out. */
    expect_refused(path, wanted, 6, "for which this model has no place");

    ms_shard whole = ms_shard_whole(&tensors[0]);
    int64_t elements = ms_tensor_elements(&tensors[0]);
    slice_add(&loaded[0], &tensors[0], "momentum", &whole, 0, elements, MS_F32, MS_F32, true);
    assert_int_equal(load_model(path, loaded, 1), MS_ERR_MISMATCH);
    assert_non_null(strstr(last_detail, "\"transformer.wte.weight.momentum\""));
    slices_free(loaded, 1);
    assert_int_equal(load_model(path_in(dir, "step-00000002"), loaded, 1), MS_ERR_NOT_FOUND);
    scratch_remove(dir);
}

/* ---- Files of others --------------------------------------------------------------------------
 */

/* A model directory without a manifest, its values those of step 1 under our names. */
static void write_foreign(const char *dir, const char *const *names, const char *const *ours,
                          const ms_dtype *types, int count) {
    ms_safetensors_spec specs[8];
    const void *data[8];
    char *buffers[8];
    for (int i = 0; i < count; i++) {
        specs[i] =
            (ms_safetensors_spec){.name = names[i], .dtype = types[i], .rank = 2, .dims = {4, 6}};
        buffers[i] = calloc(24, 8);
        assert_non_null(buffers[i]);
        for (int64_t e = 0; e < 24 && types[i] <= MS_F16; e++) {
            store(buffers[i], types[i], e, value_of(ours[i], e, 1));
        }
        data[i] = buffers[i];
    }
    ms_safetensors_layout *layout = NULL;
    assert_int_equal(ms_safetensors_layout_create(specs, count, NULL, 0, "model", 100, &layout),
                     MS_OK);
    assert_int_equal(ms_safetensors_layout_write(layout, dir, data), MS_OK);
    ms_safetensors_layout_destroy(layout);
    for (int i = 0; i < count; i++) {
        free(buffers[i]);
    }
}

static ms_status load_names(const char *dir, const char *const *names, int count) {
    ms_tensor wanted[8];
    for (int i = 0; i < count; i++) {
        wanted[i] = tensor_of(names[i], 2, 4, 6);
        ms_shard whole = ms_shard_whole(&wanted[i]);
        slice_add(&loaded[0], &wanted[i], NULL, &whole, 0, 24, MS_F32, MS_F32, true);
    }
    ms_status status = load_model(dir, loaded, 1);
    if (status == MS_OK) {
        assert_int_equal(slices_wrong(loaded, 1, 1), 0);
    }
    slices_free(loaded, 1);
    return status;
}

static void names_of_others_are_found(void **unused) {
    (void)unused;
    static const char *const full[] = {"transformer.wte.weight", "transformer.h.0.attn.w"};
    static const char *const bare[] = {"wte.weight", "h.0.attn.w"};
    static const char *const derived[] = {"wte.weight", "h.0.attn.w", "h.0.attn.bias",
                                          "h.0.attn.masked_bias"};
    static const char *const llama[] = {"model.embed_tokens.weight", "model.layers.0.w",
                                        "lm_head.weight"};
    static const char *const llama_bare[] = {"embed_tokens.weight", "layers.0.w",
                                             "layers.0.rotary_emb.inv_freq"};
    static const char *const tied_values[] = {"model.embed_tokens.weight", "model.layers.0.w",
                                              "model.embed_tokens.weight"};
    static const ms_dtype mixed[] = {MS_BF16, MS_F16, MS_U8, MS_F32};
    static const ms_dtype wide[] = {MS_F64, MS_F32, MS_F32};
    char dirs[5][MS_PATH_BYTES];
    for (int i = 0; i < 5; i++) {
        scratch_make(dirs[i]);
    }
    static const char *const derived_values[] = {"transformer.wte.weight", "transformer.h.0.attn.w",
                                                 "", ""};
    write_foreign(dirs[0], derived, derived_values, mixed, 4);
    assert_int_equal(load_names(dirs[0], full, 2), MS_OK);
    write_foreign(dirs[1], full, bare, mixed, 2);
    assert_int_equal(load_names(dirs[1], bare, 2), MS_OK);
    /* A tied head, stored twice, though the model has one: fine. */
    write_foreign(dirs[2], llama, tied_values, wide, 3);
    assert_int_equal(load_names(dirs[2], llama, 2), MS_OK);
    /* Stored once, under the head's name only. */
    static const char *const head_only[] = {"lm_head.weight", "model.layers.0.w"};
    write_foreign(dirs[3], head_only, tied_values, wide, 2);
    assert_int_equal(load_names(dirs[3], llama, 2), MS_OK);
    /* Without the body's prefix, and a table that is computed. */
    write_foreign(dirs[4], llama_bare, llama, wide, 3);
    assert_int_equal(load_names(dirs[4], llama, 2), MS_OK);
    assert_int_equal(load_names(dirs[4], full, 2), MS_ERR_MISMATCH);
    for (int i = 0; i < 5; i++) {
        scratch_remove(dirs[i]);
    }
}

/* A header of odd length puts every tensor at an odd address. */
static void unaligned_tensors_load(void **unused) {
    (void)unused;
    char dir[MS_PATH_BYTES];
    scratch_make(dir);
    static const char header[] =
        "{\"a\":{\"dtype\":\"F64\",\"shape\":[4,6],\"data_offsets\":[0,192]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[4,6],\"data_offsets\":[192,240]}} ";
    size_t header_length = (sizeof header - 1) | 1;
    char bytes[8 + sizeof header + 240] = {0};
    bytes[0] = (char)header_length;
    memset(bytes + 8, ' ', header_length);
    memcpy(bytes + 8, header, sizeof header - 1);
    for (int64_t i = 0; i < 24; i++) {
        double wide = value_of("a", i, 1), narrow = value_of("b", i, 1);
        uint16_t half = ms_f32_to_bf16((float)narrow);
        memcpy(bytes + 8 + header_length + 8 * i, &wide, 8);
        memcpy(bytes + 8 + header_length + 192 + 2 * i, &half, 2);
    }
    assert_int_equal(
        ms_file_write_atomic(path_in(dir, "model.safetensors"), bytes, 8 + header_length + 240),
        MS_OK);
    static const char *const names[] = {"a", "b"};
    assert_int_equal(load_names(dir, names, 2), MS_OK);
    assert_int_equal(load_names(path_in(dir, "model.safetensors"), names, 2), MS_OK);
    char target[MS_PATH_BYTES];
    snprintf(target, sizeof target, "%s/converted", dir);
    ms_checkpoint_conversion conversion = {.weight_type = MS_F32};
    assert_int_equal(ms_checkpoint_convert(dir, target, &conversion), MS_OK);
    assert_int_equal(load_names(target, names, 2), MS_OK);
    scratch_remove(dir);
}

/* ---- state.json -------------------------------------------------------------------------------
 */

static void state_comes_back_to_the_bit(void **unused) {
    (void)unused;
    uint64_t random = random_seed();
    for (int round = 0; round < 200; round++) {
        ms_train_state state = {
            .step = (int64_t)(random_next(&random) >> 1),
            .samples = round % 2 == 0 ? INT64_MAX : (int64_t)(random_next(&random) >> 1),
            .tokens = (int64_t)(random_next(&random) >> 1),
            .skipped_steps = round,
            .seed = round == 0 ? UINT64_MAX : random_next(&random),
            .global_batch_size = 480,
            .threads = 3,
            .isa = "avx512",
        };
        uint64_t bits = random_next(&random);
        memcpy(&state.best_val_loss, &bits, sizeof bits);
        ms_text text = {0};
        ms_train_state back;
        memset(&back, 0xff, sizeof back);
        assert_int_equal(ms__state_emit(&state, &text), MS_OK);
        assert_int_equal(ms__state_parse(text.bytes, text.length, "state.json", &back), MS_OK);
        ms_text_release(&text);
        if (!isfinite(state.best_val_loss)) {
            assert_true(isnan(back.best_val_loss));
            back.best_val_loss = state.best_val_loss;
        }
        assert_memory_equal(&back.best_val_loss, &state.best_val_loss, sizeof(double));
        assert_int_equal(back.step, state.step);
        assert_int_equal(back.samples, state.samples);
        assert_int_equal(back.tokens, state.tokens);
        assert_int_equal(back.skipped_steps, state.skipped_steps);
        assert_true(back.seed == state.seed);
        assert_int_equal(back.global_batch_size, 480);
        assert_int_equal(back.threads, 3);
        assert_string_equal(back.isa, "avx512");
    }
}

static void bad_states_are_refused(void **unused) {
    (void)unused;
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "{\"version\": 2}",
        "{\"version\": 1, \"step\": -1}",
        "{\"version\":1,\"step\":1,\"samples\":1,\"tokens\":1,\"skipped_steps\":0,"
        "\"global_batch_size\":1,\"micro_batch_size\":1,\"sequence\":1,\"reduction_groups\":1,"
        "\"threads\":1,\"seed\":\"99999999999999999999\"}",
        "{\"version\":1,\"step\":1,\"samples\":1e30}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ms_train_state state = {.step = 5};
        assert_int_not_equal(ms__state_parse(texts[i], strlen(texts[i]), "state.json", &state),
                             MS_OK);
        assert_non_null(strstr(ms_error_detail(), "state.json"));
        assert_int_equal(state.step, 5);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(any_layout_loads_into_any_other),
    cmocka_unit_test(bytes_do_not_depend_on_the_layout),
    cmocka_unit_test(tensors_stand_in_the_order_of_people),
    cmocka_unit_test(slices_that_do_not_tile_are_refused),
    cmocka_unit_test(ranks_that_disagree_are_refused),
    cmocka_unit_test(bad_requests_are_refused),
    cmocka_unit_test(uneven_and_slow_ranks),
    cmocka_unit_test(another_model_is_refused_by_name),
    cmocka_unit_test(names_of_others_are_found),
    cmocka_unit_test(unaligned_tensors_load),
    cmocka_unit_test(state_comes_back_to_the_bit),
    cmocka_unit_test(bad_states_are_refused),
};

int main(void) {
    return cmocka_run_group_tests(tests, setup, NULL);
}
