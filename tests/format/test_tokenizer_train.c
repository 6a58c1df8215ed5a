// labels: unit
// timeout: 60
/* The BPE trainer against a plain one that recounts every pair after each merge. */
#include "format_support.h"

#include "base/clock.h"
#include "base/random.h"
#include "format/tokenizer.h"

static ms_tokenizer *train(const char *text, size_t length, ms_tokenizer_train_options options) {
    ms_tokenizer_trainer *trainer = NULL;
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_trainer_create(&options, &trainer));
    assert_ok(ms_tokenizer_trainer_add(trainer, text, length));
    assert_ok(ms_tokenizer_trainer_finish(trainer, NULL, NULL, &tokenizer));
    ms_tokenizer_trainer_destroy(trainer);
    return tokenizer;
}

/* A letter of few, so that pairs meet, overlap and tie often. */
static void make_text(uint64_t seed, char *text, size_t length) {
    ms_random_key key = ms_random_key_make(seed, "trainer test");
    for (size_t i = 0; i < length; i++) {
        text[i] = "aaabbc  "[ms_random_at(key, 0, i).word[0] % 8];
    }
}

#define PLAIN_TOKENS_MAX 400

typedef struct plain {
    char tokens[PLAIN_TOKENS_MAX][64];
    int count;
} plain;

/* Words as lists of strings; spaces stand in front of words, as in GPT-2's pattern. */
typedef struct plain_word {
    int ids[4096];
    int length;
} plain_word;

static int plain_find(const plain *made, const char *token) {
    for (int i = 0; i < made->count; i++) {
        if (strcmp(made->tokens[i], token) == 0) {
            return i;
        }
    }
    return -1;
}

static int byte_id(char byte) { /* printable ASCII comes first in the alphabet; space is 256 + 32 */
    return byte == ' ' ? 220 : byte - '!';
}

/* Cuts as GPT-2's pattern does: of several spaces the last one leads the next word. */
static int cut_words(const char *text, size_t length, plain_word *words) {
    int count = 0;
    for (size_t i = 0; i < length;) {
        size_t stop = i;
        while (stop < length && text[stop] == ' ') {
            stop++;
        }
        if (stop < length && stop - i > 1) {
            stop--; /* spaces alone */
        } else {
            while (stop < length && text[stop] != ' ') {
                stop++;
            }
        }
        words[count].length = 0;
        for (; i < stop; i++) {
            words[count].ids[words[count].length++] = byte_id(text[i]);
        }
        count++;
    }
    return count;
}

static void plain_train(const char *text, size_t length, int merges, plain *made) {
    static plain_word words[8192];
    int word_count = cut_words(text, length, words);
    made->count = 256;
    for (int i = 0; i < 256; i++) {
        snprintf(made->tokens[i], sizeof made->tokens[i], "?%d", i);
    }
    for (const char *c = "abc "; *c != '\0'; c++) {
        snprintf(made->tokens[byte_id(*c)], 64, "%c", *c);
    }
    while (merges-- > 0) {
        static int counts[PLAIN_TOKENS_MAX][PLAIN_TOKENS_MAX];
        memset(counts, 0, sizeof counts);
        for (int w = 0; w < word_count; w++) {
            for (int i = 0; i + 1 < words[w].length; i++) {
                counts[words[w].ids[i]][words[w].ids[i + 1]]++;
            }
        }
        int left = 0, right = 0;
        for (int i = 0; i < made->count; i++) {
            for (int j = 0; j < made->count; j++) {
                if (counts[i][j] > counts[left][right]) {
                    left = i, right = j;
                }
            }
        }
        if (counts[left][right] < 2) {
            break;
        }
        char joined[130];
        snprintf(joined, sizeof joined, "%s%s", made->tokens[left], made->tokens[right]);
        int id = plain_find(made, joined);
        if (id < 0) {
            id = made->count++;
            snprintf(made->tokens[id], 64, "%.63s", joined);
        } else {
            merges++; /* no token was made */
        }
        for (int w = 0; w < word_count; w++) {
            int kept = 0;
            for (int i = 0; i < words[w].length; i++) {
                bool match = i + 1 < words[w].length && words[w].ids[i] == left &&
                             words[w].ids[i + 1] == right;
                words[w].ids[kept++] = match ? id : words[w].ids[i];
                i += match ? 1 : 0;
            }
            words[w].length = kept;
        }
    }
}

static void equals_plain_trainer(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        char text[1500];
        static plain expected;
        size_t length = 40 + 120 * seed;
        make_text(seed, text, length);
        ms_tokenizer *tokenizer =
            train(text, length, (ms_tokenizer_train_options){.vocabulary_size = 256 + 60});
        plain_train(text, length, 60, &expected);
        assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), expected.count);
        for (int32_t id = 256; id < expected.count; id++) {
            const char *bytes = NULL;
            size_t count = 0;
            assert_ok(ms_tokenizer_id_bytes(tokenizer, id, &bytes, &count));
            assert_int_equal(count, strlen(expected.tokens[id]));
            assert_memory_equal(bytes, expected.tokens[id], count);
        }
        ms_tokenizer_destroy(tokenizer);
    }
}

static ms_tokens encode(const ms_tokenizer *tokenizer, const char *text, size_t length,
                        unsigned flags) {
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_scratch_create(tokenizer, &scratch));
    assert_ok(ms_tokenizer_encode(tokenizer, scratch, text, length, flags, &tokens));
    ms_tokenizer_scratch_destroy(scratch);
    return tokens;
}

static void save_and_load(void **state) {
    (void)state;
    char text[1500];
    make_text(7, text, sizeof text);
    const char *const special[] = {"<|endoftext|>", "<|pad|>"};
    ms_tokenizer_train_options options = {
        .vocabulary_size = 300, .special_tokens = special, .special_token_count = 2};
    ms_tokenizer *first = train(text, sizeof text, options), *second = NULL;
    assert_int_equal(ms_tokenizer_vocabulary_size(first), 300);
    assert_int_equal(ms_tokenizer_eos(first), 298);
    assert_true(ms_tokenizer_is_special(first, 299));
    char *folder = make_folder();
    assert_ok(ms_tokenizer_save(first, folder));
    assert_ok(ms_tokenizer_load(folder, &second));
    assert_int_equal(ms_tokenizer_vocabulary_size(second), 300);
    assert_int_equal(ms_tokenizer_eos(second), 298);
    ms_tokens a = encode(first, text, sizeof text, 0), b = encode(second, text, sizeof text, 0);
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.ids, b.ids, a.count * sizeof *a.ids);
    assert_true(a.count < sizeof text / 2);
    ms_text emitted[2] = {{0}, {0}};
    assert_ok(ms_tokenizer_emit(first, &emitted[0]));
    assert_ok(ms_tokenizer_emit(second, &emitted[1]));
    assert_string_equal(emitted[0].bytes, emitted[1].bytes);
    ms_text_release(&emitted[0]);
    ms_text_release(&emitted[1]);
    ms_tokens_release(&a);
    ms_tokens_release(&b);
    ms_tokenizer_destroy(first);
    ms_tokenizer_destroy(second);
    remove_folder(folder);
}

/* The order of documents and the way they are cut change nothing. */
static void order_does_not_matter(void **state) {
    (void)state;
    static const char *const parts[] = {"the cat sat on the mat", " the dog sat on the log",
                                        " a cat and a dog", " and that was that"};
    ms_text results[2] = {{0}, {0}};
    for (int run = 0; run < 2; run++) {
        ms_tokenizer_train_options options = {.vocabulary_size = 290};
        ms_tokenizer_trainer *trainer = NULL;
        ms_tokenizer *tokenizer = NULL;
        assert_ok(ms_tokenizer_trainer_create(&options, &trainer));
        for (int i = 0; i < 4; i++) {
            const char *part = parts[run == 0 ? i : 3 - i];
            assert_ok(ms_tokenizer_trainer_add(trainer, part, strlen(part)));
        }
        assert_ok(ms_tokenizer_trainer_finish(trainer, NULL, NULL, &tokenizer));
        assert_ok(ms_tokenizer_emit(tokenizer, &results[run]));
        ms_tokenizer_destroy(tokenizer);
        ms_tokenizer_trainer_destroy(trainer);
    }
    assert_string_equal(results[0].bytes, results[1].bytes);
    ms_text_release(&results[0]);
    ms_text_release(&results[1]);
}

static void refusals(void **state) {
    (void)state;
    ms_tokenizer_trainer *trainer = NULL;
    ms_tokenizer *tokenizer = NULL;
    ms_tokenizer_train_options options = {.vocabulary_size = 255};
    assert_fails(ms_tokenizer_trainer_create(&options, &trainer), MS_ERR_ARGUMENT, "256 bytes");
    const char *const twice[] = {"<a>", "<a>"};
    options = (ms_tokenizer_train_options){
        .vocabulary_size = 300, .special_tokens = twice, .special_token_count = 2};
    assert_fails(ms_tokenizer_trainer_create(&options, &trainer), MS_ERR_ARGUMENT, "given twice");
    options = (ms_tokenizer_train_options){.vocabulary_size = 300, .pattern = "a(b"};
    assert_fails(ms_tokenizer_trainer_create(&options, &trainer), MS_ERR_FORMAT, "a(b");
    options = (ms_tokenizer_train_options){.vocabulary_size = 300};
    assert_ok(ms_tokenizer_trainer_create(&options, &trainer));
    assert_fails(ms_tokenizer_trainer_add(trainer, "ab\xff", 3), MS_ERR_FORMAT, "at byte 2");
    assert_ok(ms_tokenizer_trainer_finish(trainer, NULL, NULL, &tokenizer));
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 256); /* nothing to merge */
    assert_fails(ms_tokenizer_trainer_add(trainer, "ab", 2), MS_ERR_ARGUMENT, "finished");
    ms_tokenizer_destroy(tokenizer);
    ms_tokenizer_trainer_destroy(trainer);
}

static void count_calls(int64_t done, int64_t total, void *context) {
    assert_true(done <= total);
    ++*(int *)context;
}

static void real_text(void **state) {
    (void)state;
    ms_text text = read_shared("tinyshakespeare/input.txt");
    ms_tokenizer_train_options options = {.vocabulary_size = 4096};
    ms_tokenizer_trainer *trainer = NULL;
    ms_tokenizer *tokenizer = NULL;
    int calls = 0;
    double begin_s = ms_clock_s();
    assert_ok(ms_tokenizer_trainer_create(&options, &trainer));
    assert_ok(ms_tokenizer_trainer_add(trainer, text.bytes, text.length));
    assert_ok(ms_tokenizer_trainer_finish(trainer, count_calls, &calls, &tokenizer));
    double trained_s = ms_clock_s();
    ms_tokenizer_trainer_destroy(trainer);
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 4096);
    assert_true(calls > 1);
    ms_tokens tokens = encode(tokenizer, text.bytes, text.length, 0);
    print_message("trained in %.2f s, encoded in %.2f s: %zu tokens of 4096\n", trained_s - begin_s,
                  ms_clock_s() - trained_s, tokens.count);
    assert_true(tokens.count < text.length / 3);
    ms_text back = {0};
    assert_ok(ms_tokenizer_decode(tokenizer, tokens.ids, tokens.count, 0, &back));
    assert_int_equal(back.length, text.length);
    assert_memory_equal(back.bytes, text.bytes, text.length);
    ms_text_release(&back);
    ms_text_release(&text);
    ms_tokens_release(&tokens);
    ms_tokenizer_destroy(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_plain_trainer),
        cmocka_unit_test(save_and_load),
        cmocka_unit_test(order_does_not_matter),
        cmocka_unit_test(refusals),
        cmocka_unit_test(real_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
