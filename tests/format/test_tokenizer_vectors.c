// labels: golden
// timeout: 120
/* Tokenizers against vectors recorded with other programs, on files of the shared data folder. */
#include "format_support.h"

#include <jansson.h>

#include "format/json.h"
#include "format/jsonl.h"
#include "format/tokenizer.h"

typedef struct fixture {
    ms_tokenizer *tokenizer;
    ms_tokenizer_scratch *scratch;
} fixture;

static fixture with(ms_tokenizer *tokenizer) {
    fixture made = {.tokenizer = tokenizer};
    assert_ok(ms_tokenizer_scratch_create(tokenizer, &made.scratch));
    return made;
}

static void release(fixture *made) {
    ms_tokenizer_scratch_destroy(made->scratch);
    ms_tokenizer_destroy(made->tokenizer);
}

static fixture load_gpt2(void) {
    ms_tokenizer *tokenizer = NULL;
    shared_path("gpt2_bpe/vocab.bpe");
    assert_ok(ms_tokenizer_load(shared_path("gpt2_bpe"), &tokenizer));
    return with(tokenizer);
}

static fixture load_tiktoken(const char *name) {
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_load(shared_path(name), &tokenizer));
    return with(tokenizer);
}

static ms_text unpack(const char *path) {
    ms_text text = {0};
    char block[65536], command[MS_PATH_BYTES + 16];
    size_t count;
    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    while ((count = fread(block, 1, sizeof block, pipe)) > 0) {
        assert_ok(ms_text_append(&text, block, count));
    }
    assert_int_equal(pclose(pipe), 0);
    return text;
}

static fixture load_qwen3(void) {
    ms_text text = unpack(shared_path("qwen3_tokenizer/tokenizer.json.gz"));
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_load_memory(text.bytes, text.length, "qwen3", &tokenizer));
    ms_text_release(&text);
    return with(tokenizer);
}

/* Whether a text gives the ids of a JSON list, and comes back from them unless it is normalised. */
static bool check(const fixture *made, const char *text, size_t length, const json_t *ids,
                  bool is_exact) {
    ms_tokens tokens = {0};
    ms_text back = {0};
    assert_ok(ms_tokenizer_encode(made->tokenizer, made->scratch, text, length, 0, &tokens));
    bool equal = tokens.count == json_array_size(ids);
    for (size_t i = 0; i < tokens.count && equal; i++) {
        equal = tokens.ids[i] == json_integer_value(json_array_get(ids, i));
    }
    if (!equal) {
        print_error("text \"%.*s\" gives", (int)length, text);
        for (size_t i = 0; i < tokens.count; i++) {
            print_error(" %d", tokens.ids[i]);
        }
        print_error("\n");
    }
    assert_ok(ms_tokenizer_decode(made->tokenizer, tokens.ids, tokens.count, 0, &back));
    if (is_exact) {
        assert_int_equal(back.length, length);
        if (length > 0) {
            assert_memory_equal(back.bytes, text, length);
        }
    }
    ms_text_release(&back);
    ms_tokens_release(&tokens);
    return equal;
}

static void check_vectors(fixture made, const char *key, bool is_exact) {
    ms_jsonl_reader *reader = NULL;
    int count = 0, right = 0;
    assert_ok(ms_jsonl_reader_open(shared_path("tokenizer_vectors/vectors.jsonl"), NULL, &reader));
    for (;;) {
        json_t *object = NULL;
        assert_ok(ms_jsonl_reader_next(reader, &object));
        if (object == NULL) {
            break;
        }
        const json_t *text = json_object_get(object, "text");
        count++;
        right += check(&made, json_string_value(text), json_string_length(text),
                       json_object_get(object, key), is_exact);
    }
    ms_jsonl_reader_close(reader);
    release(&made);
    print_message("%s: %d of %d\n", key, right, count);
    assert_int_equal(count, 201);
    assert_int_equal(right, count);
}

static void gpt2_vectors(void **state) {
    (void)state;
    check_vectors(load_gpt2(), "gpt2", true);
}

static void r50k_vectors(void **state) {
    (void)state;
    check_vectors(load_tiktoken("tiktoken/r50k_base.tiktoken"), "gpt2", true);
}

static void cl100k_vectors(void **state) {
    (void)state;
    check_vectors(load_tiktoken("tiktoken/cl100k_base.tiktoken"), "cl100k", true);
}

static void o200k_vectors(void **state) {
    (void)state;
    check_vectors(load_tiktoken("tiktoken/o200k_base.tiktoken"), "o200k", true);
}

static void qwen3_vectors(void **state) {
    (void)state;
    check_vectors(load_qwen3(), "qwen3", false);
}

/* llama.cpp's: texts parted by a line, ids a line. */
static void check_llama(fixture made, const char *name, bool is_exact) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[128];
    snprintf(path, sizeof path, "llamacpp_vocab_tests/ggml-vocab-%s.gguf.inp", name);
    ms_text texts = read_shared(path);
    snprintf(path, sizeof path, "llamacpp_vocab_tests/ggml-vocab-%s.gguf.out", name);
    ms_text lines = read_shared(path);
    int count = 0, right = 0;
    char *line = lines.bytes;
    for (char *text = texts.bytes; text != NULL;) {
        char *stop = strstr(text, separator);
        size_t length = stop != NULL ? (size_t)(stop - text) : strlen(text);
        char *line_end = strchr(line, '\n');
        assert_non_null(line_end);
        json_t *ids = json_array();
        for (char *at = line; at < line_end;) {
            char *after = at;
            long id = strtol(at, &after, 10);
            if (after == at || after > line_end) {
                break;
            }
            json_array_append_new(ids, json_integer(id));
            at = after;
        }
        count++;
        right += check(&made, text, length, ids, is_exact);
        json_decref(ids);
        line = line_end + 1;
        text = stop != NULL ? stop + sizeof separator - 1 : NULL;
        if (text != NULL && text[0] == '\0') {
            break;
        }
    }
    ms_text_release(&texts);
    ms_text_release(&lines);
    release(&made);
    print_message("llama.cpp %s: %d of %d\n", name, right, count);
    assert_int_equal(count, 47);
    assert_int_equal(right, count);
}

static void llama_gpt2(void **state) {
    (void)state;
    check_llama(load_gpt2(), "gpt-2", true);
}

static void llama_qwen2(void **state) {
    (void)state;
    check_llama(load_qwen3(), "qwen2", false);
}

static void tiktoken_plans(void **state) {
    (void)state;
    fixture made[3] = {load_tiktoken("tiktoken/r50k_base.tiktoken"),
                       load_tiktoken("tiktoken/cl100k_base.tiktoken"),
                       load_tiktoken("tiktoken/o200k_base.tiktoken")};
    static const char *const names[] = {"r50k_base", "cl100k_base", "o200k_base"};
    ms_text plans = read_shared("tiktoken/TestPlans.txt");
    int count = 0, right = 0, others = 0;
    for (char *at = plans.bytes; (at = strstr(at, "EncodingName: ")) != NULL;) {
        char *name = at + strlen("EncodingName: ");
        char *sample = strstr(name, "\nSample: ");
        char *encoded = strstr(sample, "\nEncoded: ");
        char *end = strchr(encoded + 1, '\n');
        size_t length = (size_t)(encoded - sample) - strlen("\nSample: ");
        json_error_t error;
        char *list = encoded + strlen("\nEncoded: ");
        json_t *ids = json_loadb(list, (size_t)(end - list), 0, &error);
        assert_non_null(ids);
        int which = -1;
        for (int i = 0; i < 3; i++) {
            which = strncmp(name, names[i], strlen(names[i])) == 0 ? i : which;
        }
        if (which < 0) {
            others++;
        } else {
            count++;
            right += check(&made[which], sample + strlen("\nSample: "), length, ids, true);
        }
        json_decref(ids);
        at = end;
    }
    print_message("TestPlans: %d of %d right, %d of encodings that are not here\n", right, count,
                  others);
    assert_true(count > 0);
    assert_int_equal(right, count);
    ms_text_release(&plans);
    for (int i = 0; i < 3; i++) {
        release(&made[i]);
    }
}

/* The published counts of nanoGPT's shakespeare, split 90/10 by characters. */
static void tinyshakespeare_counts(void **state) {
    (void)state;
    fixture made = load_gpt2();
    ms_text text = read_shared("tinyshakespeare/input.txt");
    size_t cut = text.length * 9 / 10;
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_encode(made.tokenizer, made.scratch, text.bytes, cut, 0, &tokens));
    assert_int_equal(tokens.count, 301966);
    tokens.count = 0;
    assert_ok(ms_tokenizer_encode(made.tokenizer, made.scratch, text.bytes + cut, text.length - cut,
                                  0, &tokens));
    assert_int_equal(tokens.count, 36059);
    assert_int_equal(ms_tokenizer_vocabulary_size(made.tokenizer), 50257);
    assert_int_equal(ms_tokenizer_eos(made.tokenizer), 50256);
    ms_tokens_release(&tokens);
    ms_text_release(&text);
    release(&made);
}

/* llama2.c's 512 pieces: its published greedy text, ids to text and back. */
static void stories_pieces(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_load(shared_path("stories260K/tok512.json"), &tokenizer));
    fixture made = with(tokenizer);
    ms_json golden = {0};
    assert_ok(ms_json_open(shared_path("stories260K/golden_greedy.json"), MS_JSON_BYTES_MAX, &golden));
    const json_t *ids = NULL;
    const char *text = NULL, *key;
    json_t *value;
    json_object_foreach(golden.root, key, value) {
        if (json_is_array(value) && ids == NULL && json_is_integer(json_array_get(value, 0))) {
            ids = value;
        }
        if (json_is_string(value) && strncmp(json_string_value(value), "Once", 4) == 0) {
            text = json_string_value(value);
        }
    }
    assert_non_null(ids);
    assert_non_null(text);
    size_t count = json_array_size(ids);
    int32_t *list = calloc(count, sizeof *list);
    for (size_t i = 0; i < count; i++) {
        list[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    ms_text back = {0};
    assert_ok(ms_tokenizer_decode(tokenizer, list, count, MS_DECODE_SKIP_SPECIAL, &back));
    assert_string_equal(back.bytes, text);
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_encode(tokenizer, made.scratch, back.bytes, back.length, MS_ENCODE_BOS,
                                  &tokens));
    assert_int_equal(tokens.ids[0], 1);
    ms_text again = {0};
    assert_ok(ms_tokenizer_decode(tokenizer, tokens.ids, tokens.count, MS_DECODE_SKIP_SPECIAL,
                                  &again));
    assert_string_equal(again.bytes, text);
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 512);
    assert_int_equal(ms_tokenizer_eos(tokenizer), 2);
    free(list);
    ms_tokens_release(&tokens);
    ms_text_release(&again);
    ms_text_release(&back);
    ms_json_close(&golden);
    release(&made);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_vectors),   cmocka_unit_test(r50k_vectors),
        cmocka_unit_test(cl100k_vectors), cmocka_unit_test(o200k_vectors),
        cmocka_unit_test(qwen3_vectors),  cmocka_unit_test(llama_gpt2),
        cmocka_unit_test(llama_qwen2),    cmocka_unit_test(tiktoken_plans),
        cmocka_unit_test(tinyshakespeare_counts), cmocka_unit_test(stories_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
