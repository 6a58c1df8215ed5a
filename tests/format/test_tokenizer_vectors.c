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
        char *line_end = strchr(line, '\n'); /* the last text is empty and has no line */
        line_end = line_end != NULL ? line_end : line + strlen(line);
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
        line = *line_end == '\n' ? line_end + 1 : line_end;
        text = stop != NULL ? stop + sizeof separator - 1 : NULL;
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

/* Enough of GGUF (version 3) to read the pieces and scores of its vocabulary as our "pieces" form.
 */
typedef struct gguf {
    const uint8_t *bytes;
    size_t length, position;
} gguf;

static uint64_t gguf_number(gguf *file, size_t bytes) {
    uint64_t value = 0;
    assert_true(file->length - file->position >= bytes);
    memcpy(&value, file->bytes + file->position, bytes);
    file->position += bytes;
    return value;
}

static const char *gguf_string(gguf *file, size_t *length) {
    *length = gguf_number(file, 8);
    assert_true(file->length - file->position >= *length);
    file->position += *length;
    return (const char *)file->bytes + file->position - *length;
}

static void gguf_skip(gguf *file, uint64_t type, uint64_t count) {
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    for (; count > 0; count--) {
        size_t length = 0;
        if (type == 8) {
            gguf_string(file, &length);
        } else {
            gguf_number(file, bytes[type]);
        }
    }
}

static fixture load_phi3(void) {
    ms_text text = read_shared("llamacpp_vocab_tests/ggml-vocab-phi-3.gguf");
    gguf file = {(const uint8_t *)text.bytes, text.length, 16};
    uint64_t keys = gguf_number(&file, 8);
    gguf tokens = {0}, scores = {0};
    uint64_t count = 0;
    while (keys-- > 0) {
        size_t length = 0;
        const char *key = gguf_string(&file, &length);
        uint64_t type = gguf_number(&file, 4);
        uint64_t items = 1;
        if (type == 9) {
            type = gguf_number(&file, 4);
            items = gguf_number(&file, 8);
        }
        if (length == strlen("tokenizer.ggml.tokens") &&
            memcmp(key, "tokenizer.ggml.tokens", length) == 0) {
            tokens = file;
            count = items;
        } else if (length == strlen("tokenizer.ggml.scores") &&
                   memcmp(key, "tokenizer.ggml.scores", length) == 0) {
            scores = file;
        }
        gguf_skip(&file, type, items);
    }
    ms_text json = {0}, piece = {0};
    assert_ok(ms_text_append_z(&json, "{\"pieces\": ["));
    for (uint64_t i = 0; i < count; i++) {
        size_t length = 0;
        const char *bytes = gguf_string(&tokens, &length);
        uint32_t bits = (uint32_t)gguf_number(&scores, 4);
        float score;
        memcpy(&score, &bits, sizeof score);
        ms_text_clear(&piece);
        for (size_t at = 0; at < length; at++) {
            char utf8[4];
            int width = ms_utf8_encode((uint8_t)bytes[at], utf8);
            assert_ok(ms_text_append(&piece, utf8, (size_t)width));
        }
        assert_ok(ms_text_append_z(&json, i > 0 ? ",[" : "["));
        assert_ok(ms_json_append_string(&json, piece.bytes, piece.length));
        assert_ok(ms_text_printf(&json, ",%.9g]", (double)score));
    }
    assert_ok(ms_text_append_z(&json, "]}"));
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_load_memory(json.bytes, json.length, "phi-3", &tokenizer));
    ms_text_release(&json);
    ms_text_release(&piece);
    ms_text_release(&text);
    return with(tokenizer);
}

static void llama_phi3(void **state) {
    (void)state;
    check_llama(load_phi3(), "phi-3", true);
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
    assert_ok(
        ms_json_open(shared_path("stories260K/golden_greedy.json"), MS_JSON_BYTES_MAX, &golden));
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
    assert_ok(
        ms_tokenizer_decode(tokenizer, tokens.ids, tokens.count, MS_DECODE_SKIP_SPECIAL, &again));
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

/* Written out and read again, each kind gives the same ids. */
static void check_saved(fixture made, const char *key) {
    char *folder = make_folder();
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_save(made.tokenizer, folder));
    assert_ok(ms_tokenizer_load(folder, &tokenizer));
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer),
                     ms_tokenizer_vocabulary_size(made.tokenizer));
    assert_int_equal(ms_tokenizer_eos(tokenizer), ms_tokenizer_eos(made.tokenizer));
    assert_int_equal(ms_tokenizer_bos(tokenizer), ms_tokenizer_bos(made.tokenizer));
    release(&made);
    remove_folder(folder);
    check_vectors(with(tokenizer), key, false);
}

static void saved_gpt2(void **state) {
    (void)state;
    check_saved(load_gpt2(), "gpt2");
}

static void saved_cl100k(void **state) {
    (void)state;
    check_saved(load_tiktoken("tiktoken/cl100k_base.tiktoken"), "cl100k");
}

static void saved_qwen3(void **state) {
    (void)state;
    check_saved(load_qwen3(), "qwen3");
}

/* jansson has no NUL in keys: the one there becomes another character. */
static json_t *parse_without_nul(ms_text *text) {
    char *escape = strstr(text->bytes, "\\u0000");
    assert_non_null(escape);
    memcpy(escape, "\\uffff", 6);
    json_error_t error;
    json_t *document = json_loadb(text->bytes, text->length, 0, &error);
    assert_non_null(document);
    return document;
}

/* A directory with tokenizer.json and tokenizer_config.json, both of another program. */
static void torchtitan(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = NULL, *again = NULL;
    shared_path("torchtitan_tokenizer/tokenizer.json");
    assert_ok(ms_tokenizer_load(shared_path("torchtitan_tokenizer"), &tokenizer));
    fixture made = with(tokenizer);
    /* Its vocabulary has no token for "\u0120", a space; merges there are none. */
    static const char text[] = "<|im_start|>Hello-there";
    ms_text back = {0}, emitted[2] = {{0}, {0}};
    ms_tokens tokens = {0};
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 2020);
    assert_ok(ms_tokenizer_encode(tokenizer, made.scratch, text, strlen(text), MS_ENCODE_SPECIAL,
                                  &tokens));
    assert_true(ms_tokenizer_is_special(tokenizer, tokens.ids[0]));
    assert_int_equal(tokens.count, strlen("Hello-there") + 1);
    assert_ok(ms_tokenizer_decode(tokenizer, tokens.ids, tokens.count, 0, &back));
    assert_string_equal(back.bytes, text);
    assert_fails(ms_tokenizer_encode(tokenizer, made.scratch, "a b", 3, 0, &tokens), MS_ERR_RANGE,
                 "no token for \" b\"");
    const int32_t nul = 0;
    ms_text_clear(&back);
    assert_ok(ms_tokenizer_decode(tokenizer, &nul, 1, 0, &back));
    assert_int_equal(back.length, 1);
    assert_int_equal(back.bytes[0], '\0');
    char *folder = make_folder();
    assert_ok(ms_tokenizer_save(tokenizer, folder));
    assert_ok(ms_tokenizer_load(folder, &again));
    assert_ok(ms_tokenizer_emit(tokenizer, &emitted[0]));
    assert_ok(ms_tokenizer_emit(again, &emitted[1]));
    assert_string_equal(emitted[0].bytes, emitted[1].bytes);
    /* Nothing of the document is lost or changed on the way. */
    ms_text original = read_shared("torchtitan_tokenizer/tokenizer.json");
    json_t *documents[2] = {parse_without_nul(&original), parse_without_nul(&emitted[0])};
    for (int i = 0; i < 2; i++) { /* these come from its tokenizer_config.json */
        json_object_del(documents[i], "added_tokens");
    }
    assert_true(json_equal(documents[0], documents[1]));
    json_decref(documents[0]);
    json_decref(documents[1]);
    for (int i = 0; i < 2; i++) {
        ms_text_release(&emitted[i]);
    }
    ms_text_release(&original);
    ms_text_release(&back);
    ms_tokens_release(&tokens);
    ms_tokenizer_destroy(again);
    release(&made);
    remove_folder(folder);
}

static void gpt2_tiny(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_load_gpt2(shared_path("megatron/gpt2-tiny-vocab.json"),
                                     shared_path("megatron/gpt2-tiny-merges.txt"), &tokenizer));
    fixture made = with(tokenizer);
    ms_text text = read_shared("tinyshakespeare/input.txt"), back = {0};
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_encode(tokenizer, made.scratch, text.bytes, 100000, 0, &tokens));
    assert_ok(ms_tokenizer_decode(tokenizer, tokens.ids, tokens.count, 0, &back));
    assert_int_equal(back.length, 100000);
    assert_memory_equal(back.bytes, text.bytes, back.length);
    ms_text_release(&text);
    ms_text_release(&back);
    ms_tokens_release(&tokens);
    release(&made);
}

/* Special tokens in text: ids when asked for, text otherwise; others of Qwen's always. */
static void qwen3_special(void **state) {
    (void)state;
    fixture made = load_qwen3();
    static const char text[] = "<|im_start|>user\n<think>hi</think><|im_end|>";
    ms_tokens with_special = {0}, without = {0};
    assert_ok(ms_tokenizer_encode(made.tokenizer, made.scratch, text, strlen(text),
                                  MS_ENCODE_SPECIAL, &with_special));
    assert_ok(ms_tokenizer_encode(made.tokenizer, made.scratch, text, strlen(text), 0, &without));
    const int32_t expected[] = {151644, 872, 198, 151667, 6023, 151668, 151645};
    assert_int_equal(with_special.count, 7);
    assert_memory_equal(with_special.ids, expected, sizeof expected);
    assert_true(without.count > 10);
    for (size_t i = 0; i < without.count; i++) {
        assert_false(ms_tokenizer_is_special(made.tokenizer, without.ids[i]));
    }
    ms_text back = {0};
    assert_ok(
        ms_tokenizer_decode(made.tokenizer, with_special.ids, 7, MS_DECODE_SKIP_SPECIAL, &back));
    assert_string_equal(back.bytes, "user\n<think>hi</think>");
    ms_text_release(&back);
    ms_tokens_release(&with_special);
    ms_tokens_release(&without);
    release(&made);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_vectors),   cmocka_unit_test(r50k_vectors),
        cmocka_unit_test(cl100k_vectors), cmocka_unit_test(o200k_vectors),
        cmocka_unit_test(qwen3_vectors),  cmocka_unit_test(llama_gpt2),
        cmocka_unit_test(llama_qwen2),    cmocka_unit_test(llama_phi3),
        cmocka_unit_test(tiktoken_plans), cmocka_unit_test(tinyshakespeare_counts),
        cmocka_unit_test(stories_pieces), cmocka_unit_test(saved_gpt2),
        cmocka_unit_test(saved_cl100k),   cmocka_unit_test(saved_qwen3),
        cmocka_unit_test(torchtitan),     cmocka_unit_test(gpt2_tiny),
        cmocka_unit_test(qwen3_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
