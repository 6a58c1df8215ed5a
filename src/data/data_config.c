/* data_config.c - section `data`: its keys. What they do is in dataset.c and data_tokenizer.c. */
#include "data/dataset.h"

#define FIELD(name) offsetof(ms_data_config, name)

static const ms_key keys[] = {
    {"train", MS_KEY_LIST, FIELD(train), "", "", 0, 0, NULL, false,
     "Training data: a text file, a .jsonl file, the prefix of a .bin/.idx pair, or a list of "
     "them; "
     "entries {path, weight} blend exactly by weight, weights that are all 1 (or none) by size."},
    {"valid", MS_KEY_LIST, FIELD(valid), "", "", 0, 0, NULL, false,
     "Validation data, as train; without it the end of the training data serves (see split)."},
    {"tokenizer", MS_KEY_STRING, FIELD(tokenizer), "", "", 0, 0, NULL, false,
     "char (the characters of the text), byte, or a tokenizer's file or directory (tokenizer.json, "
     "vocab.json with merges.txt, encoder.json with vocab.bpe, *.tiktoken); empty: that of "
     "model.from, "
     "else the one stored beside the data, else char."},
    {"split", MS_KEY_REAL, FIELD(split), "0.9", "", 0, 1, NULL, false,
     "Share of the training data that is trained on when valid is not given, by characters for "
     "text "
     "and by tokens otherwise; the rest validates."},
    {"text_key", MS_KEY_STRING, FIELD(text_key), "text", "", 0, 0, NULL, false,
     "Key of a JSONL object whose string is the document."},
    {"eod", MS_KEY_BOOL, FIELD(eod), "true", "", 0, 0, NULL, false,
     "Put the tokenizer's end-of-text token, if it has one, after each document of JSONL data."},
    {"shuffle", MS_KEY_BOOL, FIELD(shuffle), "true", "", 0, 0, NULL, false,
     "Draw training samples in a random order, another one each epoch; else in the order of the "
     "files."},
};

const ms_config_section ms_data_section = {
    .name = "data",
    .doc = "What is trained and validated on, and how text becomes tokens.",
    .keys = keys,
    .key_count = (int)(sizeof keys / sizeof keys[0]),
    .struct_bytes = sizeof(ms_data_config),
};
