/*
 * Splitting a segment into words, by the pre-tokenizer of a tokenizer.json.
 *
 * Stands between the normal form and the merges. A chain of steps, each of which cuts every piece
 * that it is given; a piece is a string of its own for the next step (looking ahead does not cross
 * it).
 *
 *   Split       a pattern finds matches; the behaviour says where they go
 *   ByteLevel   GPT-2's pattern (use_regex), perhaps a space in front
 *   Digits      runs of digits, or digits one by one
 *   Metaspace   spaces become U+2581, perhaps one in front, words begin at it
 *
 * Patterns were written for Oniguruma or Rust's regex and run on PCRE2 in UTF and UCP mode with
 * JIT; the one difference that matters, `\s` (PCRE2 takes U+180E for a space, the others do not),
 * is spelled out as a class before compiling. A limit on backtracking turns a runaway pattern into
 * an error.
 *
 * Invariant: the words of a segment, in order, are the segment, unless a step removes text or adds.
 *
 * Rejected: hand-written splitters for known patterns (a second truth for each pattern).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "format/tokenizer_internal.h"

#define PATTERN_BYTES_MAX ((size_t)1 << 16)

const char ms__pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char ms__pattern_character[] = "[\\s\\S]";

/* Unicode's White_Space without and within brackets. */
#define SPACES "\\x{9}-\\x{d}\\x{85}\\p{Z}"

static ms_status spell_out_spaces(const char *pattern, const char *name, ms_text *out) {
    bool in_class = false; /* inside [ ] */
    for (size_t i = 0; pattern[i] != '\0'; i++) {
        if (pattern[i] == '\\' && pattern[i + 1] != '\0') {
            char escaped = pattern[++i];
            if (escaped == 's') {
                MS_TRY(ms_text_append_z(out, in_class ? SPACES : "[" SPACES "]"));
            } else if (escaped == 'S' && !in_class) {
                MS_TRY(ms_text_append_z(out, "[^" SPACES "]"));
            } else {
                MS_TRY(ms_text_append(out, pattern + i - 1, 2));
            }
            continue;
        }
        if (in_class && ((pattern[i] == '[' && pattern[i + 1] != ':') ||
                         (pattern[i] == '&' && pattern[i + 1] == '&'))) {
            return ms_fail(MS_ERR_UNSUPPORTED,
                           "%s: pattern \"%.80s\": classes within a class are not supported", name,
                           pattern);
        }
        if (pattern[i] == '[' && !in_class) {
            in_class = true;
            MS_TRY(ms_text_append(out, "[", 1));
            if (pattern[i + 1] == '^') {
                i++;
                MS_TRY(ms_text_append(out, "^", 1));
            }
            if (pattern[i + 1] == ']') {
                i++;
                MS_TRY(ms_text_append(out, "\\]", 2));
            }
            continue;
        }
        if (pattern[i] == ']') {
            in_class = false;
        }
        MS_TRY(ms_text_append(out, pattern + i, 1));
    }
    return MS_OK;
}

static ms_status quote(const char *plain, ms_text *out) {
    for (size_t i = 0; plain[i] != '\0'; i++) {
        unsigned char byte = (unsigned char)plain[i];
        bool is_word = byte >= 0x80 || byte == '_' || (byte >= '0' && byte <= '9') ||
                       (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
        if (!is_word) {
            MS_TRY(ms_text_append(out, "\\", 1));
        }
        MS_TRY(ms_text_append(out, plain + i, 1));
    }
    return MS_OK;
}

ms_status ms__split_compile(const char *pattern, bool is_regex, const char *name,
                            pcre2_code **code) {
    if (strlen(pattern) > PATTERN_BYTES_MAX) {
        return ms_fail(MS_ERR_RANGE, "%s: a pattern of %zu bytes, allowed are %zu", name,
                       strlen(pattern), PATTERN_BYTES_MAX);
    }
    ms_text text = {0};
    ms_status status = is_regex ? spell_out_spaces(pattern, name, &text) : quote(pattern, &text);
    if (status != MS_OK) {
        ms_text_release(&text);
        return status;
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *made =
        pcre2_compile((PCRE2_SPTR)(text.bytes != NULL ? text.bytes : ""), text.length,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    ms_text_release(&text);
    if (made == NULL) {
        char message[160] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        return ms_fail(MS_ERR_FORMAT, "%s: pattern \"%.80s\": %s near byte %zu", name, pattern,
                       message, (size_t)offset);
    }
    pcre2_jit_compile(made, PCRE2_JIT_COMPLETE); /* without JIT the interpreter does the same */
    *code = made;
    return MS_OK;
}

static ms_status parse_behavior(const json_t *node, const char *name, ms_split_behavior *behavior) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *text = json_string_value(json_object_get(node, "behavior"));
    for (size_t i = 0; text != NULL && i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) == 0) {
            *behavior = (ms_split_behavior)i;
            return MS_OK;
        }
    }
    return ms_fail(MS_ERR_UNSUPPORTED, "%s: behavior \"%.40s\" of a Split is not known", name,
                   text != NULL ? text : "(none)");
}

static ms_status parse_split(const json_t *node, const char *name, ms_split_step *step) {
    const json_t *pattern = json_object_get(node, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *plain = json_string_value(json_object_get(pattern, "String"));
    if (regex == NULL && plain == NULL) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: a Split needs a pattern {\"Regex\": ...} or {\"String\": ...}", name);
    }
    MS_TRY(parse_behavior(node, name, &step->behavior));
    step->invert = json_is_true(json_object_get(node, "invert"));
    return ms__split_compile(regex != NULL ? regex : plain, regex != NULL, name, &step->code);
}

static ms_status parse_metaspace(ms_tokenizer *tokenizer, const json_t *node, const char *name,
                                 ms_split_step *step) {
    const char *replacement = json_string_value(json_object_get(node, "replacement"));
    const char *scheme = json_string_value(json_object_get(node, "prepend_scheme"));
    if (replacement == NULL || replacement[0] == '\0') {
        return ms_fail(MS_ERR_FORMAT, "%s: Metaspace has no \"replacement\"", name);
    }
    MS_TRY(ms_arena_strdup(tokenizer->arena, replacement, &step->replacement));
    if (scheme == NULL) {
        step->add_prefix_space = !json_is_false(json_object_get(node, "add_prefix_space"));
    } else {
        step->add_prefix_space = strcmp(scheme, "never") != 0;
        step->prefix_first_only = strcmp(scheme, "first") == 0;
    }
    if (!json_is_false(json_object_get(node, "split"))) {
        step->behavior = MS_SPLIT_MERGED_WITH_NEXT;
        MS_TRY(ms__split_compile(replacement, false, name, &step->code));
    }
    return MS_OK;
}

static ms_status parse_step(ms_tokenizer *tokenizer, const json_t *node, const char *name) {
    const char *type = json_string_value(json_object_get(node, "type"));
    if (type == NULL || tokenizer->split_count == MS_TOKENIZER_STEPS_MAX) {
        return ms_fail(MS_ERR_FORMAT, "%s: a pre_tokenizer has no \"type\", or more than %d steps",
                       name, MS_TOKENIZER_STEPS_MAX);
    }
    ms_split_step *step = &tokenizer->split[tokenizer->split_count++];
    *step = (ms_split_step){.behavior = MS_SPLIT_ISOLATED};
    if (strcmp(type, "Split") == 0) {
        return parse_split(node, name, step);
    }
    if (strcmp(type, "Digits") == 0) {
        bool single = json_is_true(json_object_get(node, "individual_digits"));
        step->behavior = single ? MS_SPLIT_ISOLATED : MS_SPLIT_CONTIGUOUS;
        return ms__split_compile("\\p{N}", true, name, &step->code);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return parse_metaspace(tokenizer, node, name, step);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        tokenizer->kind = MS_TOKENIZER_BYTE_BPE;
        step->add_prefix_space = !json_is_false(json_object_get(node, "add_prefix_space"));
        return json_is_false(json_object_get(node, "use_regex"))
                   ? MS_OK
                   : ms__split_compile(ms__pattern_gpt2, true, name, &step->code);
    }
    return ms_fail(MS_ERR_UNSUPPORTED, "%s: pre_tokenizer \"%.40s\" is not supported", name, type);
}

ms_status ms__split_parse(ms_tokenizer *tokenizer, const json_t *node, const char *name) {
    if (node == NULL || json_is_null(node)) {
        return MS_OK;
    }
    const char *type = json_string_value(json_object_get(node, "type"));
    if (type == NULL || strcmp(type, "Sequence") != 0) {
        MS_TRY(parse_step(tokenizer, node, name));
    } else {
        const json_t *list = json_object_get(node, "pretokenizers");
        for (size_t i = 0; i < json_array_size(list); i++) {
            MS_TRY(parse_step(tokenizer, json_array_get(list, i), name));
        }
    }
    int rewriting = 0;
    for (int i = 0; i < tokenizer->split_count; i++) {
        rewriting +=
            tokenizer->split[i].add_prefix_space || tokenizer->split[i].replacement != NULL;
    }
    if (rewriting > 1) { /* they would share one buffer of the scratch */
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: two pre_tokenizers that change the text", name);
    }
    return MS_OK;
}

/* What stays the same while a segment is cut. */
typedef struct splitter {
    const ms_tokenizer *tokenizer;
    ms_tokenizer_scratch *scratch;
    bool is_first; /* the segment begins the text */
    const char *segment;
    ms_word_function word;
    void *context;
} splitter;

static ms_status split_from(splitter *run, int index, const char *text, size_t length);

static ms_status pass_on(splitter *run, int index, const char *text, size_t length) {
    if (length == 0) {
        return MS_OK;
    }
    return index + 1 == run->tokenizer->split_count ? run->word(run->context, text, length)
                                                    : split_from(run, index + 1, text, length);
}

/* The text with a space in front and spaces replaced, as the step says; in the scratch if changed.
 */
static ms_status rewrite(splitter *run, const ms_split_step *step, const char **text,
                         size_t *length) {
    bool at_start = run->is_first && *text == run->segment;
    bool prefix = step->add_prefix_space && (!step->prefix_first_only || at_start);
    const char *space = step->replacement != NULL ? step->replacement : " ";
    size_t space_length = strlen(space);
    bool has_space =
        (*text)[0] == ' ' || (*length >= space_length && memcmp(*text, space, space_length) == 0);
    prefix = prefix && !has_space;
    if (!prefix && step->replacement == NULL) {
        return MS_OK;
    }
    ms_text *out = &run->scratch->prefixed;
    ms_text_clear(out);
    if (prefix) {
        MS_TRY(ms_text_append(out, space, space_length));
    }
    const char *from = *text, *end = *text + *length;
    while (from < end) {
        const char *found =
            step->replacement != NULL ? memchr(from, ' ', (size_t)(end - from)) : NULL;
        const char *to = found != NULL ? found : end;
        MS_TRY(ms_text_append(out, from, (size_t)(to - from)));
        if (found != NULL) {
            MS_TRY(ms_text_append(out, space, space_length));
            to++;
        }
        from = to;
    }
    *text = out->bytes;
    *length = out->length;
    return MS_OK;
}

/* Pieces that wait for what comes next, for the behaviours that join them. */
typedef struct joiner {
    splitter *run;
    int index; /* of the step */
    const char *text;
    size_t begin, end; /* the piece that waits; empty: none does */
    bool is_match, is_joined;
} joiner;

static ms_status flush(joiner *join) {
    MS_TRY(pass_on(join->run, join->index, join->text + join->begin, join->end - join->begin));
    join->begin = join->end;
    return MS_OK;
}

/* Takes the next stretch of text, a match or what lies between two. */
static ms_status take(joiner *join, size_t begin, size_t end, bool is_match) {
    const ms_split_step *step = &join->run->tokenizer->split[join->index];
    if (begin == end) {
        return MS_OK;
    }
    is_match = is_match != step->invert;
    if (step->behavior == MS_SPLIT_ISOLATED) {
        return pass_on(join->run, join->index, join->text + begin, end - begin);
    }
    if (step->behavior == MS_SPLIT_REMOVED) {
        return is_match ? MS_OK : pass_on(join->run, join->index, join->text + begin, end - begin);
    }
    bool waits = join->begin < join->end;
    bool joins;
    switch (step->behavior) {
    case MS_SPLIT_MERGED_WITH_PREVIOUS:
        joins = waits && is_match && !join->is_match;
        break;
    case MS_SPLIT_MERGED_WITH_NEXT:
        joins = waits && !is_match && join->is_match;
        break;
    default:
        joins = waits && is_match == join->is_match;
        break;
    }
    if (!joins) {
        MS_TRY(flush(join));
        join->begin = begin;
    }
    join->end = end;
    join->is_match = is_match;
    return MS_OK;
}

static ms_status fail_match(int error, const char *text, size_t length) {
    char message[160] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
    return ms_fail(
        MS_ERR_RANGE, "the pre-tokenizer's pattern failed on \"%.*s\": %s",
        (int)(length < 40 ? ms_utf8_valid_prefix(text, length) : ms_utf8_valid_prefix(text, 40)),
        text, message);
}

static ms_status split_by_pattern(splitter *run, int index, const char *text, size_t length) {
    const ms_split_step *step = &run->tokenizer->split[index];
    pcre2_match_data *match = run->scratch->match_data[index];
    joiner join = {.run = run, .index = index, .text = text};
    size_t done = 0, from = 0;
    while (from < length) {
        int found = pcre2_match(step->code, (PCRE2_SPTR)text, length, from, PCRE2_NO_UTF_CHECK,
                                match, run->scratch->match_context);
        if (found == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (found < 0) {
            return fail_match(found, text + from, length - from);
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
        size_t begin = range[0], end = range[1];
        if (begin >= end) { /* an empty match cuts nothing off; go on one character further */
            uint32_t code_point;
            if (begin >= length) {
                break;
            }
            from = begin + (size_t)ms_utf8_decode(text + begin, length - begin, &code_point);
            continue;
        }
        MS_TRY(take(&join, done, begin, false));
        MS_TRY(take(&join, begin, end, true));
        done = from = end;
    }
    MS_TRY(take(&join, done, length, false));
    return flush(&join);
}

static ms_status split_from(splitter *run, int index, const char *text, size_t length) {
    const ms_split_step *step = &run->tokenizer->split[index];
    if (step->add_prefix_space || step->replacement != NULL) {
        MS_TRY(rewrite(run, step, &text, &length));
    }
    return step->code != NULL ? split_by_pattern(run, index, text, length)
                              : pass_on(run, index, text, length);
}

ms_status ms__split_apply(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                          const char *text, size_t length, bool is_first, ms_word_function word,
                          void *context) {
    if (length == 0) {
        return MS_OK;
    }
    if (tokenizer->split_count == 0) {
        return word(context, text, length);
    }
    splitter run = {.tokenizer = tokenizer,
                    .scratch = scratch,
                    .is_first = is_first,
                    .segment = text,
                    .word = word,
                    .context = context};
    return split_from(&run, 0, text, length);
}
