/*
 * tensor_names.c - what one tensor may be called in files of others.
 *
 * Where it stands: tensor_source.c looks a name up as it is first, then in the order given here.
 *
 * Two rules cover what Hugging Face's files of the families we build do:
 *   - a model saved without its head lacks the prefix of its body ("h.0.attn..." for
 *     "transformer.h.0.attn...", "layers.0..." for "model.layers.0...");
 *   - a head tied to the embedding is stored once, under either name.
 *
 * Invariant: no rule maps two tensors of one model to one variant, except the tied pair.
 * Rejected: patterns in a configuration file (two rules have been enough, and a wrong one would
 * load wrong weights without a word).
 */
#include <stdio.h>
#include <string.h>

#include "checkpoint/internal.h"

static const char *const body_prefixes[] = {"transformer.", "model."};
#define PREFIX_COUNT (sizeof body_prefixes / sizeof body_prefixes[0])

/* The head and the embeddings it may be tied to. */
static const char head_name[] = "lm_head.weight";
static const char *const embedding_names[] = {"wte.weight", "embed_tokens.weight"};
#define EMBEDDING_COUNT (sizeof embedding_names / sizeof embedding_names[0])

/* Ends of names of tensors that are computed from the configuration, not learned. */
static const char *const derived_ends[] = {
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
    "position_ids",
};
#define DERIVED_COUNT (sizeof derived_ends / sizeof derived_ends[0])

static void add(ms__name_variants *variants, const char *prefix, const char *name) {
    if (variants->count == MS__NAME_VARIANTS_MAX ||
        strlen(prefix) + strlen(name) >= MS_CHECKPOINT_NAME_BYTES) {
        return; /* too long to be in any file that we could have read */
    }
    snprintf(variants->names[variants->count++], MS_CHECKPOINT_NAME_BYTES, "%s%s", prefix, name);
}

/* The name without a body's prefix. */
static const char *strip(const char *name) {
    for (size_t i = 0; i < PREFIX_COUNT; i++) {
        size_t length = strlen(body_prefixes[i]);
        if (strncmp(name, body_prefixes[i], length) == 0) {
            return name + length;
        }
    }
    return name;
}

static void add_all(ms__name_variants *variants, const char *bare) {
    add(variants, "", bare);
    for (size_t i = 0; i < PREFIX_COUNT; i++) {
        add(variants, body_prefixes[i], bare);
    }
}

void ms__name_variants_make(const char *name, ms__name_variants *variants) {
    const char *bare = strip(name);
    variants->count = 0;
    add(variants, "", name);
    add_all(variants, bare);
    if (strcmp(bare, head_name) == 0) {
        for (size_t i = 0; i < EMBEDDING_COUNT; i++) {
            add_all(variants, embedding_names[i]);
        }
    }
    for (size_t i = 0; i < EMBEDDING_COUNT; i++) {
        if (strcmp(bare, embedding_names[i]) == 0) {
            add_all(variants, head_name);
        }
    }
}

bool ms__name_is_derived(const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < DERIVED_COUNT; i++) {
        size_t end = strlen(derived_ends[i]);
        if (length >= end && strcmp(name + length - end, derived_ends[i]) == 0) {
            return true;
        }
        /* At the top of a file without a prefix there is no dot before it. */
        if (strcmp(name, derived_ends[i] + 1) == 0) {
            return true;
        }
    }
    return false;
}
