/*
 * fuzz_tokenizer_json.c - any bytes are a tokenizer.json or refused. What is accepted encodes texts
 * to ids of its vocabulary or refuses them, decodes every such id, and written out loads to one
 * that is written out in the same bytes.
 */
#include "format_laws.h"

#include "format/tokenizer.h"

static const char *const texts[] = {"", "Hello world, it's 2024!\n\n  ok",
                                    "na\xc3\xafve e\xcc\x81 中文 🌍", "<|endoftext|> <s> a\tb"};

static void use(const ms_tokenizer *tokenizer) {
    ms_tokenizer_scratch *scratch = NULL;
    ms_tokens tokens = {0};
    ms_text back = {0};
    hold(ms_tokenizer_scratch_create(tokenizer, &scratch) == MS_OK,
         "there is memory for a scratch");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        for (unsigned flags = 0; flags < 8; flags++) {
            tokens.count = 0;
            ms_status status =
                ms_tokenizer_encode(tokenizer, scratch, texts[i], strlen(texts[i]), flags, &tokens);
            if (status != MS_OK) {
                hold_refusal(status);
                hold(tokens.count == 0, "a failed encode leaves nothing");
            }
            for (size_t t = 0; t < tokens.count; t++) {
                hold(tokens.ids[t] >= 0 && tokens.ids[t] < ms_tokenizer_vocabulary_size(tokenizer),
                     "ids are of the vocabulary");
            }
            hold(ms_tokenizer_decode(tokenizer, tokens.ids, tokens.count, flags & 3u, &back) ==
                     MS_OK,
                 "ids of encode decode");
            ms_text_clear(&back);
        }
    }
    ms_text_release(&back);
    ms_tokens_release(&tokens);
    ms_tokenizer_scratch_destroy(scratch);
}

static void write_and_load(const ms_tokenizer *tokenizer) {
    ms_tokenizer *again = NULL;
    ms_text first = {0}, second = {0};
    hold(ms_tokenizer_emit(tokenizer, &first) == MS_OK, "what was accepted is written");
    hold(ms_tokenizer_load_memory(first.bytes, first.length, "written", &again) == MS_OK,
         "what was written loads");
    hold(ms_tokenizer_emit(again, &second) == MS_OK, "and is written");
    hold(first.length == second.length && memcmp(first.bytes, second.bytes, first.length) == 0,
         "in the same bytes");
    ms_tokenizer_destroy(again);
    ms_text_release(&first);
    ms_text_release(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t before = live_bytes();
    uint8_t *copy = exact_copy(data, size);
    ms_tokenizer *tokenizer = NULL;
    ms_status status = ms_tokenizer_load_memory((const char *)copy, size, "fuzz", &tokenizer);
    free(copy);
    if (status == MS_OK) {
        use(tokenizer);
        write_and_load(tokenizer);
        ms_tokenizer_destroy(tokenizer);
    } else {
        hold_refusal(status);
    }
    hold(live_bytes() == before, "memory in use is the same afterwards");
    return 0;
}
