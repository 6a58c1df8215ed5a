// labels: unit
// timeout: 60
/* Tokenizers on small inputs of our own: kinds, steps, round trips, refusals, threads. */
#include "format_support.h"

#include <pthread.h>

#include "base/random.h"
#include "format/tokenizer.h"

static ms_tokenizer *load(const char *json) {
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_load_memory(json, strlen(json), "small.json", &tokenizer));
    return tokenizer;
}

/* The ids of a text as words: "1 2 3". */
static const char *ids_of(const ms_tokenizer *tokenizer, const char *text, unsigned flags) {
    static char buffer[4096];
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_scratch_create(tokenizer, &scratch));
    assert_ok(ms_tokenizer_encode(tokenizer, scratch, text, strlen(text), flags, &tokens));
    size_t length = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < tokens.count; i++) {
        length += (size_t)snprintf(buffer + length, sizeof buffer - length, "%s%d",
                                   i > 0 ? " " : "", tokens.ids[i]);
    }
    ms_tokens_release(&tokens);
    ms_tokenizer_scratch_destroy(scratch);
    return buffer;
}

/* Adds every substring of a text to a vocabulary under way, once each. */
static void add_substrings(ms_text *json, int *count, const char *text) {
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++) {
        for (size_t j = i + 1; j <= length; j++) {
            ms_text key = {0};
            assert_ok(ms_text_printf(&key, "\"%.*s\":", (int)(j - i), text + i));
            bool is_whole = ms_utf8_valid_prefix(key.bytes, key.length) == key.length;
            if (is_whole && strstr(json->bytes, key.bytes) == NULL) {
                assert_ok(
                    ms_text_printf(json, "%s%s %d", *count > 0 ? "," : "", key.bytes, *count));
                ++*count;
            }
            ms_text_release(&key);
        }
    }
}

/* The words that a pre-tokenizer cuts, as "a|b|c": seen through a vocabulary in which every
 * possible word is a token. */
static const char *words_of(const char *pre_tokenizer, const char *text) {
    static char buffer[4096];
    ms_text json = {0}, marked = {0};
    int count = 0;
    assert_ok(ms_text_printf(&json,
                             "{\"pre_tokenizer\": %s, \"model\": {\"type\": \"BPE\", "
                             "\"ignore_merges\": true, \"vocab\": {",
                             pre_tokenizer));
    add_substrings(&json, &count, text);
    assert_ok(ms_text_append_z(&marked, "\xe2\x96\x81")); /* what Metaspace makes of spaces */
    for (size_t i = 0; text[i] != '\0'; i++) {
        assert_ok(text[i] == ' ' ? ms_text_append_z(&marked, "\xe2\x96\x81")
                                 : ms_text_append(&marked, text + i, 1));
    }
    add_substrings(&json, &count, marked.bytes);
    assert_ok(ms_text_append_z(&json, "}, \"merges\": []}}"));
    ms_tokenizer *tokenizer = load(json.bytes);
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_scratch_create(tokenizer, &scratch));
    assert_ok(ms_tokenizer_encode(tokenizer, scratch, text, strlen(text), 0, &tokens));
    size_t length = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < tokens.count; i++) {
        const char *bytes = NULL;
        size_t bytes_length = 0;
        assert_ok(ms_tokenizer_id_bytes(tokenizer, tokens.ids[i], &bytes, &bytes_length));
        length += (size_t)snprintf(buffer + length, sizeof buffer - length, "%s%.*s",
                                   i > 0 ? "|" : "", (int)bytes_length, bytes);
    }
    ms_tokens_release(&tokens);
    ms_tokenizer_scratch_destroy(scratch);
    ms_tokenizer_destroy(tokenizer);
    ms_text_release(&json);
    ms_text_release(&marked);
    return buffer;
}

static void split_behaviors(void **state) {
    (void)state;
#define SPLIT(pattern, behavior, invert)                                                           \
    "{\"type\": \"Split\", \"pattern\": {" pattern "}, \"behavior\": \"" behavior                  \
    "\", \"invert\": " invert "}"
    static const char dash[] = "a--b-a";
    assert_string_equal(words_of(SPLIT("\"String\": \"-\"", "Isolated", "false"), dash),
                        "a|-|-|b|-|a");
    assert_string_equal(words_of(SPLIT("\"String\": \"-\"", "Removed", "false"), dash), "a|b|a");
    assert_string_equal(words_of(SPLIT("\"String\": \"-\"", "MergedWithPrevious", "false"), dash),
                        "a-|-|b-|a");
    assert_string_equal(words_of(SPLIT("\"String\": \"-\"", "MergedWithNext", "false"), dash),
                        "a|-|-b|-a");
    assert_string_equal(words_of(SPLIT("\"String\": \"-\"", "Contiguous", "false"), dash),
                        "a|--|b|-|a");
    assert_string_equal(words_of(SPLIT("\"Regex\": \"[ab]+\"", "Removed", "true"), dash), "a|b|a");
    assert_string_equal(words_of(SPLIT("\"Regex\": \"x*\"", "Isolated", "false"), "ab"), "ab");
    assert_string_equal(words_of("{\"type\": \"Digits\", \"individual_digits\": true}", "a11b"),
                        "a|1|1|b");
    assert_string_equal(words_of("{\"type\": \"Digits\", \"individual_digits\": false}", "a11b"),
                        "a|11|b");
    assert_string_equal(
        words_of("{\"type\": \"Sequence\", \"pretokenizers\": [" SPLIT(
                     "\"String\": \" \"", "Removed",
                     "false") ", {\"type\": \"Digits\", \"individual_digits\": false}]}",
                 "a1 1b"),
        "a|1|1|b");
    assert_string_equal(words_of("null", "a b"), "a b");
    assert_string_equal(words_of("{\"type\": \"Metaspace\", \"replacement\": \"\xe2\x96\x81\", "
                                 "\"prepend_scheme\": \"always\", \"split\": true}",
                                 "a b"),
                        " a| b");
    assert_string_equal(words_of("{\"type\": \"Metaspace\", \"replacement\": \"\xe2\x96\x81\", "
                                 "\"prepend_scheme\": \"never\", \"split\": false}",
                                 "a b"),
                        "a b");
}

/* A mark of Mongolian that PCRE2 takes for a space and the authors of the patterns do not. */
static void spaces_of_unicode(void **state) {
    (void)state;
    ms_tokenizer *tokenizer =
        load("{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\s\"}, "
             "\"behavior\": \"Removed\", \"invert\": false}, \"model\": {\"type\": \"BPE\", "
             "\"vocab\": {\"a\": 0, \"\\u180e\": 1, \"\\u00a0\": 2}, \"merges\": []}}");
    assert_string_equal(ids_of(tokenizer,
                               "a\u180ea\u00a0a\u3000a\xc2\x85"
                               "a\va",
                               0),
                        "0 1 0 0 0 0 0");
    ms_tokenizer_destroy(tokenizer);
}

static void byte_kind(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = NULL, *again = NULL;
    assert_ok(ms_tokenizer_create_byte(&tokenizer));
    assert_int_equal(ms_tokenizer_kind_get(tokenizer), MS_TOKENIZER_BYTE);
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 256);
    assert_int_equal(ms_tokenizer_bos(tokenizer), -1);
    char *folder = make_folder();
    assert_ok(ms_tokenizer_save(tokenizer, folder));
    assert_ok(ms_tokenizer_load(folder, &again));
    assert_int_equal(ms_tokenizer_kind_get(again), MS_TOKENIZER_BYTE);
    remove_folder(folder);
    char bytes[512]; /* no UTF-8 at all */
    for (int i = 0; i < 512; i++) {
        bytes[i] = (char)(i * 7);
    }
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    ms_text back = {0};
    assert_ok(ms_tokenizer_scratch_create(again, &scratch));
    assert_ok(ms_tokenizer_encode(again, scratch, bytes, sizeof bytes, 0, &tokens));
    assert_int_equal(tokens.count, 512);
    assert_int_equal(tokens.ids[200], 200 * 7 % 256);
    assert_ok(ms_tokenizer_decode(again, tokens.ids, tokens.count, 0, &back));
    assert_memory_equal(back.bytes, bytes, sizeof bytes);
    int32_t beyond = 256;
    assert_fails(ms_tokenizer_decode(again, &beyond, 1, 0, &back), MS_ERR_RANGE, "token id 256");
    ms_text_release(&back);
    ms_tokens_release(&tokens);
    ms_tokenizer_scratch_destroy(scratch);
    ms_tokenizer_destroy(tokenizer);
    ms_tokenizer_destroy(again);
}

static void char_kind(void **state) {
    (void)state;
    static const char text[] = "z\nü a\"中a\\";
    ms_tokenizer *tokenizer = NULL, *again = NULL;
    assert_ok(ms_tokenizer_create_char(text, strlen(text), &tokenizer));
    assert_int_equal(ms_tokenizer_kind_get(tokenizer), MS_TOKENIZER_CHAR);
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 8);
    assert_string_equal(ids_of(tokenizer, "\n \"\\azü中", 0), "0 1 2 3 4 5 6 7"); /* sorted */
    char *folder = make_folder();
    assert_ok(ms_tokenizer_save(tokenizer, folder));
    assert_ok(ms_tokenizer_load(folder, &again));
    remove_folder(folder);
    assert_int_equal(ms_tokenizer_kind_get(again), MS_TOKENIZER_CHAR);
    assert_string_equal(ids_of(again, text, 0), "5 0 6 1 4 2 7 4 3");
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_scratch_create(again, &scratch));
    assert_fails(ms_tokenizer_encode(again, scratch, "züb", 4, 0, &tokens), MS_ERR_RANGE,
                 "U+0062 at byte 3");
    assert_fails(ms_tokenizer_encode(again, scratch, "z\xc3(", 3, 0, &tokens), MS_ERR_FORMAT,
                 "not UTF-8 at byte 1 (0xc3)");
    assert_int_equal(tokens.count, 0);
    ms_tokens_release(&tokens);
    ms_tokenizer_scratch_destroy(scratch);
    ms_tokenizer_destroy(tokenizer);
    ms_tokenizer_destroy(again);
    assert_fails(ms_tokenizer_create_char("ab\xff", 3, &tokenizer), MS_ERR_FORMAT, "byte 2");
    assert_fails(ms_tokenizer_create_char("", 0, &tokenizer), MS_ERR_FORMAT, "empty");
    assert_fails(ms_tokenizer_create_char("a\0b", 3, &tokenizer), MS_ERR_FORMAT, "NUL");
}

#define BPE(more, vocab, merges)                                                                   \
    "{" more "\"model\": {\"type\": \"BPE\", \"unk_token\": null, \"vocab\": {" vocab              \
    "}, \"merges\": [" merges "]}}"

static void merges_by_rank(void **state) {
    (void)state;
    ms_tokenizer *tokenizer =
        load(BPE("", "\"a\": 0, \"b\": 1, \"ab\": 2, \"bb\": 3, \"abb\": 4, \"aa\": 5",
                 "\"b b\", [\"a\", \"b\"], \"a bb\", \"a a\""));
    assert_string_equal(ids_of(tokenizer, "abb", 0), "4");
    assert_string_equal(ids_of(tokenizer, "ab", 0), "2");
    assert_string_equal(ids_of(tokenizer, "abbb", 0), "4 1"); /* the leftmost of equal ranks */
    assert_string_equal(ids_of(tokenizer, "aaa", 0), "5 0");
    assert_string_equal(ids_of(tokenizer, "", 0), "");
    ms_tokenizer_destroy(tokenizer);
}

/* The heap (long words) and the scan (short ones) are the same function: compared on all cuts. */
static void heap_equals_scan(void **state) {
    (void)state;
    const char *json =
        BPE("",
            "\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"bc\": 4, \"abc\": 5, \"ca\": 6, \"aa\": 7, "
            "\"aab\": 8, \"|\": 9",
            "\"a b\", \"b c\", \"ab c\", \"c a\", \"a a\", \"a ab\"");
    ms_tokenizer *tokenizer = load(json);
    ms_random_key key = ms_random_key_make(3, "words");
    for (uint64_t trial = 0; trial < 200; trial++) {
        char word[24], joined[400] = "", expected[4096] = "";
        size_t length = 1 + ms_random_at(key, 1, trial).word[0] % 22;
        for (size_t i = 0; i < length; i++) {
            word[i] = "abc"[ms_random_at(key, 2 + trial, i).word[0] % 3];
        }
        word[length] = '\0';
        /* "|" merges with nothing, so a long word of many parts has the ids of the parts. */
        for (int part = 0; part < 12; part++) {
            strcat(joined, word);
            strcat(joined, "|");
            strcat(expected, part > 0 ? " " : "");
            strcat(expected, ids_of(tokenizer, word, 0));
            strcat(expected, " 9");
        }
        assert_string_equal(ids_of(tokenizer, joined, 0), expected);
    }
    ms_tokenizer_destroy(tokenizer);
}

static void normal_forms(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = load(BPE("\"normalizer\": {\"type\": \"NFC\"},",
                                       "\"\\u00e9\": 0, \"e\": 1, \"\\u0301\": 2, \"\\uac00\": 3, "
                                       "\"x\": 4, \"\\u304c\": 5, \"\\u1e69\": 6, \"\\u4e2d\": 7",
                                       ""));
    assert_string_equal(ids_of(tokenizer, "e\u0301", 0), "0");
    assert_string_equal(ids_of(tokenizer, "xe\u0301x\u00e9", 0), "4 0 4 0");
    assert_string_equal(ids_of(tokenizer, "\u0301e", 0), "2 1");
    assert_string_equal(ids_of(tokenizer, "\u1100\u1161x", 0), "3 4"); /* jamo */
    assert_string_equal(ids_of(tokenizer, "中\u304b\u3099中", 0), "7 5 7");
    assert_string_equal(ids_of(tokenizer, "s\u0307\u0323", 0), "6"); /* marks change places */
    ms_tokenizer_destroy(tokenizer);
    tokenizer = load(BPE("\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
                         "\"NFKD\"}, {\"type\": \"Lowercase\"}, {\"type\": \"Strip\", "
                         "\"strip_left\": true, \"strip_right\": true}, {\"type\": \"Replace\", "
                         "\"pattern\": {\"String\": \" \"}, \"content\": \"_\"}, {\"type\": "
                         "\"Prepend\", \"prepend\": \"_\"}]},",
                         "\"a\": 0, \"f\": 1, \"i\": 2, \"_\": 3, \"e\": 4, \"\\u0301\": 5", ""));
    assert_string_equal(ids_of(tokenizer, "  \ufb01 \u00c9A ", 0), "3 1 2 3 4 5 0");
    assert_string_equal(ids_of(tokenizer, "", 0), "");
    ms_tokenizer_destroy(tokenizer);
}

#define ADDED(id, content, special, normalized, strip, single)                                     \
    "{\"id\": " id ", \"content\": \"" content "\", \"special\": " special                         \
    ", \"normalized\": " normalized ", \"lstrip\": " strip ", \"rstrip\": " strip                  \
    ", \"single_word\": " single "}"

static void added_tokens(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = load(BPE(
        "\"added_tokens\": [" ADDED("10", "<s>", "true", "false", "false", "false") "," ADDED(
            "11", "<s>>", "false", "false", "false",
            "false") "," ADDED("12", "<m>", "true", "false", "true",
                               "false") "," ADDED("13", "ab", "false", "false", "false",
                                                  "true") "," ADDED("14", "E", "false", "true",
                                                                    "false",
                                                                    "false") "], \"normalizer\": "
                                                                             "{\"type\": "
                                                                             "\"Replace\", "
                                                                             "\"pattern\": "
                                                                             "{\"String\": \"e\"}, "
                                                                             "\"content\": \"E\"},",
        "\"<\": 0, \"s\": 1, \">\": 2, \" \": 3, \"a\": 4, \"b\": 5, \"E\": 6, \"m\": 7", ""));
    assert_int_equal(ms_tokenizer_vocabulary_size(tokenizer), 15);
    assert_int_equal(ms_tokenizer_bos(tokenizer), 10);
    assert_string_equal(ids_of(tokenizer, "a<s>b", 0), "4 0 1 2 5");
    assert_string_equal(ids_of(tokenizer, "a<s>b", MS_ENCODE_SPECIAL), "4 10 5");
    assert_string_equal(ids_of(tokenizer, "<s>>", 0), "11");                 /* not special */
    assert_string_equal(ids_of(tokenizer, "<s>>", MS_ENCODE_SPECIAL), "11"); /* the longest */
    assert_string_equal(ids_of(tokenizer, "a <m> b", MS_ENCODE_SPECIAL), "4 12 5");
    assert_string_equal(ids_of(tokenizer, "ab abb", 0), "13 3 4 5 5");
    assert_string_equal(ids_of(tokenizer, "e", 0), "14"); /* found in the normal form */
    assert_string_equal(ids_of(tokenizer, "a", MS_ENCODE_BOS | MS_ENCODE_EOS), "10 4");
    ms_tokenizer_destroy(tokenizer);
}

/* Cutting at marks is only a short cut: a vocabulary whose tokens forbid it gives the same ids. */
static void cuts_at_marks(void **state) {
    (void)state;
#define MARKED                                                                                     \
    "\"\\u2581\": 0, \"a\": 1, \"b\": 2, \"\\u2581a\": 3, \"ab\": 4, \"\\u2581\\u2581\": 5, "      \
    "\"\\u2581ab\": 6"
#define MERGES "\"a b\", \"\\u2581 ab\", \"\\u2581 a\", \"\\u2581 \\u2581\""
#define NORMAL                                                                                     \
    "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "                   \
    "\"content\": \"\\u2581\"},"
    ms_tokenizer *cut = load(BPE(NORMAL, MARKED, MERGES));
    ms_tokenizer *whole = load(BPE(NORMAL, MARKED ", \"b\\u2581\": 7", MERGES));
    ms_random_key key = ms_random_key_make(11, "marks");
    for (uint64_t trial = 0; trial < 300; trial++) {
        char text[40], expected[4096];
        size_t length = trial % 39;
        for (size_t i = 0; i < length; i++) {
            text[i] = "ab  "[ms_random_at(key, trial, i).word[0] % 4];
        }
        text[length] = '\0';
        strcpy(expected, ids_of(whole, text, 0));
        assert_string_equal(ids_of(cut, text, 0), expected);
    }
    ms_tokenizer_destroy(cut);
    ms_tokenizer_destroy(whole);
}

static void fall_back(void **state) {
    (void)state;
    ms_tokenizer *tokenizer =
        load("{\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true, "
             "\"byte_fallback\": true, \"vocab\": {\"<unk>\": 0, \"<0xC3>\": 1, \"<0xBC>\": 2, "
             "\"a\": 3}, "
             "\"merges\": []}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
             "\"ByteFallback\"}, {\"type\": \"Fuse\"}]}}");
    assert_string_equal(ids_of(tokenizer, "aüa", 0), "3 1 2 3");
    assert_string_equal(ids_of(tokenizer, "aößa", 0), "3 0 3"); /* bytes missing: unknown, once */
    ms_text back = {0};
    const int32_t ids[] = {3, 1, 2};
    assert_ok(ms_tokenizer_decode(tokenizer, ids, 3, 0, &back));
    assert_string_equal(back.bytes, "aü");
    ms_text_release(&back);
    ms_tokenizer_destroy(tokenizer);
}

static void template_and_config(void **state) {
    (void)state;
    static const char json[] =
        "{\"added_tokens\": [" ADDED("1", "[A]", "true", "false", "false", "false") "," ADDED(
            "2", "[B]", "true", "false", "false",
            "false") "], \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
                     "[{\"SpecialToken\": {\"id\": \"[A]\", \"type_id\": 0}}, {\"Sequence\": "
                     "{\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[B]\", "
                     "\"type_id\": 0}}]}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"x\": 0}, "
                     "\"merges\": []}}";
    ms_tokenizer *tokenizer = load(json);
    assert_int_equal(ms_tokenizer_bos(tokenizer), 1);
    assert_int_equal(ms_tokenizer_eos(tokenizer), 2);
    assert_string_equal(ids_of(tokenizer, "x", MS_ENCODE_BOS | MS_ENCODE_EOS), "1 0 2");
    ms_tokenizer_destroy(tokenizer);
    char *folder = make_folder();
    write_file(in_folder(folder, "tokenizer.json"), json, strlen(json));
    static const char config[] = "{\"bos_token\": null, \"eos_token\": {\"content\": \"[A]\"}}";
    write_file(in_folder(folder, "tokenizer_config.json"), config, strlen(config));
    assert_ok(ms_tokenizer_load(folder, &tokenizer));
    assert_int_equal(ms_tokenizer_bos(tokenizer), -1);
    assert_int_equal(ms_tokenizer_eos(tokenizer), 1);
    ms_tokenizer_destroy(tokenizer);
    static const char wrong[] = "{\"eos_token\": \"[C]\"}";
    write_file(in_folder(folder, "tokenizer_config.json"), wrong, strlen(wrong));
    assert_fails(ms_tokenizer_load(folder, &tokenizer), MS_ERR_MISMATCH, "eos_token \"[C]\"");
    remove_folder(folder);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *json;
        ms_status status;
        const char *text;
    } cases[] = {
        {"{\"model\": ", MS_ERR_FORMAT, "small.json: not valid JSON at line 1"},
        {"[]", MS_ERR_FORMAT, "must be an object"},
        {"{}", MS_ERR_FORMAT, "no object \"model\""},
        {"{\"model\": {\"type\": \"Unigram\"}}", MS_ERR_UNSUPPORTED, "model \"Unigram\""},
        {"{\"model\": {\"type\": \"BPE\"}}", MS_ERR_FORMAT, "no vocabulary"},
        {BPE("", "\"a\": 0, \"b\": 0", ""), MS_ERR_EXISTS, "id 0 belongs to two tokens"},
        {BPE("", "\"a\": -1", ""), MS_ERR_RANGE, "has id -1"},
        {BPE("", "\"a\": 9223372036854775807", ""), MS_ERR_RANGE,
         "\"a\" has id 9223372036854775807"},
        {BPE("", "\"a\": \"x\"", ""), MS_ERR_FORMAT, "the id of token \"a\""},
        {BPE("", "\"a\": 0, \"a\": 1", ""), MS_ERR_FORMAT, "duplicate"},
        {BPE("", "\"a\": 0", "\"a b\""), MS_ERR_FORMAT, "merge 0 \"a b\": its right part"},
        {BPE("", "\"a\": 0", "\"a a\""), MS_ERR_FORMAT, "its result is not in"},
        {BPE("", "\"a\": 0", "\"aa\""), MS_ERR_FORMAT, "merge 0 is neither"},
        {BPE("", "\"a\": 0", "[\"a\"]"), MS_ERR_FORMAT, "merge 0 is neither"},
        {BPE("", "\"a\": 0", "7"), MS_ERR_FORMAT, "merge 0 is neither"},
        {BPE("\"normalizer\": {\"type\": \"Nmt\"},", "\"a\": 0", ""), MS_ERR_UNSUPPORTED,
         "normalizer \"Nmt\""},
        {BPE("\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},", "\"a\": 0", ""),
         MS_ERR_UNSUPPORTED, "pre_tokenizer \"BertPreTokenizer\""},
        {BPE("\"decoder\": {\"type\": \"WordPiece\"},", "\"a\": 0", ""), MS_ERR_UNSUPPORTED,
         "decoder \"WordPiece\""},
        {BPE("\"pre_tokenizer\": " SPLIT("\"Regex\": \"a(\"", "Isolated", "false") ",", "\"a\": 0",
             ""),
         MS_ERR_FORMAT, "pattern \"a(\""},
        {BPE("\"pre_tokenizer\": " SPLIT("\"Regex\": \"[a&&[^b]]\"", "Isolated", "false") ",",
             "\"a\": 0", ""),
         MS_ERR_UNSUPPORTED, "classes within a class"},
        {BPE("\"pre_tokenizer\": " SPLIT("\"Regex\": \"a\"", "Sideways", "false") ",", "\"a\": 0",
             ""),
         MS_ERR_UNSUPPORTED, "behavior \"Sideways\""},
        {BPE("\"added_tokens\": [{\"id\": 3}],", "\"a\": 0", ""), MS_ERR_FORMAT, "lacks"},
        {BPE("\"added_tokens\": [" ADDED("5000000", "<x>", "true", "false", "false", "false") "],",
             "\"a\": 0", ""),
         MS_ERR_RANGE, "\"<x>\" has id 5000000"},
        {"{\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"vocab\": {\"a\": 0}, "
         "\"merges\": []}}",
         MS_ERR_FORMAT, "unk_token \"<unk>\""},
        {"{\"model\": {\"type\": \"BPE\", \"end_of_word_suffix\": \"</w>\", \"vocab\": {\"a\": 0}, "
         "\"merges\": []}}",
         MS_ERR_UNSUPPORTED, "end_of_word_suffix"},
        {"{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {\"a\": 0}, \"merges\": "
         "[]}}",
         MS_ERR_UNSUPPORTED, "dropout"},
        {"{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"ab\": 0}, \"unk_token\": \"<unk>\"}}",
         MS_ERR_UNSUPPORTED, "single characters only"},
        {"{\"model\": {\"type\": \"B\\u0000E\", \"vocab\": {\"a\\u0000\": 0}, \"merges\": []}}",
         MS_ERR_FORMAT, "a string outside the vocabulary has a NUL"},
        {"{\"pieces\": []}", MS_ERR_FORMAT, "\"pieces\" is not a list"},
        {"{\"pieces\": [[\"a\"]]}", MS_ERR_FORMAT, "piece 0 is not [text, score]"},
        {"{\"pieces\": [[\"\\u4e2d\", 0]]}", MS_ERR_FORMAT, "no Latin-1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ms_tokenizer *tokenizer = NULL;
        ms_status status = ms_tokenizer_load_memory(cases[i].json, strlen(cases[i].json),
                                                    "small.json", &tokenizer);
        if (status != cases[i].status || strstr(ms_error_detail(), cases[i].text) == NULL) {
            fail_msg("case %zu: %s: \"%s\"", i, ms_status_name(status), ms_error_detail());
        }
        assert_null(tokenizer);
    }
}

static void refuses_files(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = NULL;
    char *folder = make_folder();
    assert_fails(ms_tokenizer_load(folder, &tokenizer), MS_ERR_NOT_FOUND, "no tokenizer here");
    ms_status status = ms_tokenizer_load(in_folder(folder, "absent.json"), &tokenizer);
    assert_int_not_equal(status, MS_OK);
    assert_non_null(strstr(ms_error_detail(), "absent.json"));
    write_file(in_folder(folder, "x.tiktoken"), "IQ== 0\n", 7);
    assert_fails(ms_tokenizer_load(folder, &tokenizer), MS_ERR_UNSUPPORTED, "r50k_base");
    write_file(in_folder(folder, "r50k_base.tiktoken"), "IQ== 0\n?? 1\n", 12);
    assert_fails(ms_tokenizer_load(in_folder(folder, "r50k_base.tiktoken"), &tokenizer),
                 MS_ERR_FORMAT, "r50k_base.tiktoken:2: expected a token in base64");
    assert_fails(
        ms_tokenizer_load_tiktoken(in_folder(folder, "x.tiktoken"), "r50k_base", &tokenizer),
        MS_ERR_FORMAT, "no token for byte 0x00");
    assert_fails(ms_tokenizer_load(folder, &tokenizer), MS_ERR_ARGUMENT, "several .tiktoken");
    write_file(in_folder(folder, "vocab.json"), "{\"a\": 0, \"b\": 1}", 16);
    write_file(in_folder(folder, "merges.txt"), "#version: 0.2\na b\n", 18);
    assert_fails(ms_tokenizer_load(folder, &tokenizer), MS_ERR_FORMAT, "its result is not in");
    write_file(in_folder(folder, "merges.txt"), "#version: 0.2\nab\n", 17);
    assert_fails(ms_tokenizer_load(folder, &tokenizer), MS_ERR_FORMAT, "merges.txt:2:");
    remove_folder(folder);
}

static void refuses_bad_text(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = load(BPE("", "\"a\": 0", ""));
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_scratch_create(tokenizer, &scratch));
    assert_fails(ms_tokenizer_encode(tokenizer, scratch, "aa\xe4\xb8", 4, 0, &tokens),
                 MS_ERR_FORMAT, "text is not UTF-8 at byte 2 (0xe4)");
    assert_fails(ms_tokenizer_encode(tokenizer, scratch, "ab", 2, 0, &tokens), MS_ERR_RANGE,
                 "no token for \"b\"");
    assert_int_equal(tokens.count, 0);
    ms_tokens_release(&tokens);
    ms_tokenizer_scratch_destroy(scratch);
    ms_tokenizer_destroy(tokenizer);
}

/* A pattern that backtracks without end is stopped by the limit. */
static void runaway_pattern(void **state) {
    (void)state;
    ms_tokenizer *tokenizer = load(
        BPE("\"pre_tokenizer\": " SPLIT("\"Regex\": \"(a|a|a|aa)+$|b\"", "Isolated", "false") ",",
            "\"a\": 0, \"b\": 1", ""));
    char text[200];
    memset(text, 'a', sizeof text);
    text[199] = 'b';
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    assert_ok(ms_tokenizer_scratch_create(tokenizer, &scratch));
    assert_fails(ms_tokenizer_encode(tokenizer, scratch, text, sizeof text, 0, &tokens),
                 MS_ERR_RANGE, "the pre-tokenizer's pattern failed");
    ms_tokens_release(&tokens);
    ms_tokenizer_scratch_destroy(scratch);
    ms_tokenizer_destroy(tokenizer);
}

typedef struct job {
    const ms_tokenizer *tokenizer;
    const char *text;
    size_t length;
    const ms_tokens *expected;
    bool right;
} job;

static void *encode_again(void *context) {
    job *work = context;
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    work->right = ms_tokenizer_scratch_create(work->tokenizer, &scratch) == MS_OK;
    for (int i = 0; i < 20 && work->right; i++) {
        tokens.count = 0;
        work->right =
            ms_tokenizer_encode(work->tokenizer, scratch, work->text, work->length, 0, &tokens) ==
                MS_OK &&
            tokens.count == work->expected->count &&
            memcmp(tokens.ids, work->expected->ids, tokens.count * sizeof *tokens.ids) == 0;
    }
    ms_tokens_release(&tokens);
    ms_tokenizer_scratch_destroy(scratch);
    return NULL;
}

static void several_threads(void **state) {
    (void)state;
    char text[6000];
    ms_random_key key = ms_random_key_make(5, "threads");
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = "etaoin shr.\n1"[ms_random_at(key, 0, i).word[0] % 13];
    }
    ms_tokenizer_train_options options = {.vocabulary_size = 400};
    ms_tokenizer_trainer *trainer = NULL;
    ms_tokenizer *tokenizer = NULL;
    assert_ok(ms_tokenizer_trainer_create(&options, &trainer));
    assert_ok(ms_tokenizer_trainer_add(trainer, text, sizeof text));
    assert_ok(ms_tokenizer_trainer_finish(trainer, NULL, NULL, &tokenizer));
    ms_tokenizer_trainer_destroy(trainer);
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens expected = {0};
    assert_ok(ms_tokenizer_scratch_create(tokenizer, &scratch));
    assert_ok(ms_tokenizer_encode(tokenizer, scratch, text, sizeof text, 0, &expected));
    ms_tokenizer_scratch_destroy(scratch);
    pthread_t threads[4];
    job jobs[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){tokenizer, text, sizeof text, &expected, false};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_again, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(jobs[i].right);
    }
    ms_tokens_release(&expected);
    ms_tokenizer_destroy(tokenizer);
}

/* Every allocation fails once: an error each time, and nothing leaks (the sanitizer build tells).
 */
static void out_of_memory(void **state) {
    (void)state;
    static const char json[] =
        BPE("\"added_tokens\": [" ADDED("4", "<s>", "true", "false", "false",
                                        "false") "], "
                                                 "\"normalizer\": {\"type\": \"NFC\"}, "
                                                 "\"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                                                 "\"add_prefix_space\": true},",
            "\"a\": 0, \"b\": 1, \"ab\": 2, \"\u0120\": 3", "\"a b\"");
    uint64_t n = 1;
    for (;; n++) {
        ms_tokenizer *tokenizer = NULL;
        ms_tokenizer_scratch *scratch = NULL;
        ms_tokens tokens = {0};
        ms_memory_fail_at(n);
        ms_status status = ms_tokenizer_load_memory(json, strlen(json), "small.json", &tokenizer);
        if (status == MS_OK) {
            status = ms_tokenizer_scratch_create(tokenizer, &scratch);
        }
        if (status == MS_OK) {
            status = ms_tokenizer_encode(tokenizer, scratch, "abab", 4, 0, &tokens);
        }
        ms_memory_fail_at(0);
        ms_tokens_release(&tokens);
        ms_tokenizer_scratch_destroy(scratch);
        ms_tokenizer_destroy(tokenizer);
        if (status == MS_OK) {
            break;
        }
        assert_int_equal(status, MS_ERR_MEMORY);
    }
    assert_true(n > 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_behaviors),     cmocka_unit_test(spaces_of_unicode),
        cmocka_unit_test(byte_kind),           cmocka_unit_test(char_kind),
        cmocka_unit_test(merges_by_rank),      cmocka_unit_test(heap_equals_scan),
        cmocka_unit_test(normal_forms),        cmocka_unit_test(added_tokens),
        cmocka_unit_test(cuts_at_marks),       cmocka_unit_test(fall_back),
        cmocka_unit_test(template_and_config), cmocka_unit_test(refusals),
        cmocka_unit_test(refuses_files),       cmocka_unit_test(refuses_bad_text),
        cmocka_unit_test(runaway_pattern),     cmocka_unit_test(several_threads),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
