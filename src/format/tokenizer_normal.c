/*
 * Normal forms: what happens to a segment of text before it is cut into words.
 *
 * Stands between the search for added tokens and the splitter. Qwen asks for Unicode's NFC, Llama-2
 * for "put U+2581 in front" and "spaces become U+2581".
 *
 * Unicode's forms come from utf8proc. Nearly all text is in NFC already, so it is copied as it is
 * except for runs around characters that might change: a run begins at a `safe` character (one that
 * has no decomposition in the form asked for and never composes with what stands before it) and
 * ends before the next. Only such runs go through utf8proc.
 *
 * Invariant: cutting before a safe character changes nothing, since composition never crosses it.
 *
 * Rejected: own tables of Unicode (a thousand lines of data that utf8proc keeps current).
 */
#define _GNU_SOURCE /* memmem */
#include <string.h>
#include <utf8proc.h>

#include "format/tokenizer_internal.h"

static ms_status need_string(const json_t *node, const char *key, const char *name,
                             const char **value) {
    *value = json_string_value(json_object_get(node, key));
    if (*value == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s: normalizer %s has no string \"%s\"", name,
                       json_string_value(json_object_get(node, "type")), key);
    }
    return MS_OK;
}

static ms_status parse_replace(ms_tokenizer *tokenizer, const json_t *node, const char *name,
                               ms_normal_step *step) {
    const char *pattern =
        json_string_value(json_object_get(json_object_get(node, "pattern"), "String"));
    const char *content = NULL;
    if (pattern == NULL || pattern[0] == '\0') {
        return ms_fail(MS_ERR_UNSUPPORTED,
                       "%s: normalizer Replace is supported for a pattern {\"String\": ...} only",
                       name);
    }
    MS_TRY(need_string(node, "content", name, &content));
    step->kind = MS_NORMAL_REPLACE;
    MS_TRY(ms_arena_strdup(tokenizer->arena, pattern, &step->pattern));
    step->pattern_length = strlen(pattern);
    MS_TRY(ms_arena_strdup(tokenizer->arena, content, &step->content));
    step->content_length = strlen(content);
    return MS_OK;
}

static ms_status parse_step(ms_tokenizer *tokenizer, const json_t *node, const char *type,
                            const char *name) {
    if (tokenizer->normal_count == MS_TOKENIZER_STEPS_MAX) {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: more than %d normalizers", name,
                       MS_TOKENIZER_STEPS_MAX);
    }
    ms_normal_step step = {.kind = MS_NORMAL_UNICODE};
    if (strcmp(type, "NFC") == 0 || strcmp(type, "NFKC") == 0) {
        step.compose = true;
        step.compatible = type[2] == 'K';
    } else if (strcmp(type, "NFD") == 0 || strcmp(type, "NFKD") == 0) {
        step.compatible = type[2] == 'K';
    } else if (strcmp(type, "Lowercase") == 0) {
        step.kind = MS_NORMAL_LOWERCASE;
    } else if (strcmp(type, "Strip") == 0) {
        step.kind = MS_NORMAL_STRIP;
        step.strip_left = !json_is_false(json_object_get(node, "strip_left"));
        step.strip_right = !json_is_false(json_object_get(node, "strip_right"));
    } else if (strcmp(type, "Prepend") == 0) {
        const char *content = NULL;
        MS_TRY(need_string(node, "prepend", name, &content));
        step.kind = MS_NORMAL_PREPEND;
        MS_TRY(ms_arena_strdup(tokenizer->arena, content, &step.content));
        step.content_length = strlen(content);
    } else if (strcmp(type, "Replace") == 0) {
        MS_TRY(parse_replace(tokenizer, node, name, &step));
    } else {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: normalizer \"%.40s\" is not supported", name, type);
    }
    tokenizer->normal[tokenizer->normal_count++] = step;
    return MS_OK;
}

ms_status ms__normal_parse(ms_tokenizer *tokenizer, const json_t *node, const char *name) {
    if (node == NULL || json_is_null(node)) {
        return MS_OK;
    }
    const char *type = json_string_value(json_object_get(node, "type"));
    if (type == NULL) {
        return ms_fail(MS_ERR_FORMAT, "%s: a normalizer has no \"type\"", name);
    }
    if (strcmp(type, "Sequence") != 0) {
        return parse_step(tokenizer, node, type, name);
    }
    const json_t *list = json_object_get(node, "normalizers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *inner = json_array_get(list, i);
        const char *inner_type = json_string_value(json_object_get(inner, "type"));
        if (inner_type == NULL) {
            return ms_fail(MS_ERR_FORMAT, "%s: a normalizer has no \"type\"", name);
        }
        MS_TRY(parse_step(tokenizer, inner, inner_type, name));
    }
    return MS_OK;
}

/*
 * A cheap sufficient test: below `plain_end` nothing decomposes in the form; the listed blocks hold
 * characters that are whole and begin a composition at most. Anything else goes to utf8proc.
 */
static bool is_safe(const ms_normal_step *step, uint32_t code_point) {
    if (step->compatible) {
        return code_point < 0xa0;
    }
    if (code_point < (step->compose ? 0x300u : 0xc0u)) {
        return true;
    }
    bool is_han = (code_point >= 0x4e00 && code_point <= 0x9fff) ||
                  (code_point >= 0x3400 && code_point <= 0x4dbf);
    bool is_wide_punctuation = (code_point >= 0xff01 && code_point <= 0xff5e) ||
                               (code_point >= 0x3001 && code_point <= 0x3029);
    bool is_hangul = step->compose && code_point >= 0xac00 && code_point <= 0xd7a3;
    bool is_kana = step->compose && ((code_point >= 0x3041 && code_point <= 0x3096) ||
                                     (code_point >= 0x30a1 && code_point <= 0x30fa));
    bool is_cyrillic = step->compose && code_point >= 0x400 && code_point <= 0x482;
    return is_han || is_wide_punctuation || is_hangul || is_kana || is_cyrillic;
}

static ms_status convert_run(const ms_normal_step *step, ms_tokenizer_scratch *scratch,
                             const char *text, size_t length, ms_text *out) {
    utf8proc_option_t options = UTF8PROC_STABLE |
                                (step->compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                (step->compatible ? UTF8PROC_COMPAT : (utf8proc_option_t)0);
    const utf8proc_uint8_t *bytes = (const utf8proc_uint8_t *)text;
    size_t needed = length + 16;
    utf8proc_ssize_t count;
    for (;;) {
        /* One more than told, as utf8proc's re-encoding writes a NUL at the end. */
        MS_TRY(ms_array_reserve((void **)&scratch->code_points, &scratch->code_point_capacity,
                                needed + 1, sizeof *scratch->code_points, MS_MEMORY_CALLER));
        count = utf8proc_decompose(bytes, (utf8proc_ssize_t)length, scratch->code_points,
                                   (utf8proc_ssize_t)(scratch->code_point_capacity - 1), options);
        if (count < 0) {
            return ms_fail(MS_ERR_FORMAT, "normal form: %s", utf8proc_errmsg(count));
        }
        if ((size_t)count < scratch->code_point_capacity) {
            break;
        }
        needed = (size_t)count;
    }
    count = utf8proc_reencode(scratch->code_points, count, options);
    if (count < 0) {
        return ms_fail(MS_ERR_FORMAT, "normal form: %s", utf8proc_errmsg(count));
    }
    return ms_text_append(out, (const char *)scratch->code_points, (size_t)count);
}

static ms_status apply_unicode(const ms_normal_step *step, ms_tokenizer_scratch *scratch,
                               const char *text, size_t length, ms_text *out) {
    size_t run = 0;       /* where the run under way begins: at a safe character, or at 0 */
    bool is_plain = true; /* the run holds safe characters only, so far */
    size_t copied = 0;    /* text before it is in `out` */
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        size_t bytes = (size_t)ms_utf8_decode(text + i, length - i, &code_point);
        if (is_safe(step, code_point)) {
            if (!is_plain) {
                MS_TRY(ms_text_append(out, text + copied, run - copied));
                MS_TRY(convert_run(step, scratch, text + run, i - run, out));
                copied = i;
                is_plain = true;
            }
            run = i;
        } else {
            is_plain = false;
        }
        i += bytes;
    }
    if (is_plain) {
        run = length;
    }
    MS_TRY(ms_text_append(out, text + copied, run - copied));
    return run < length ? convert_run(step, scratch, text + run, length - run, out) : MS_OK;
}

static ms_status apply_replace(const ms_normal_step *step, const char *text, size_t length,
                               ms_text *out) {
    size_t done = 0;
    while (done < length) {
        const char *found = memmem(text + done, length - done, step->pattern, step->pattern_length);
        if (found == NULL) {
            break;
        }
        size_t at = (size_t)(found - text);
        MS_TRY(ms_text_append(out, text + done, at - done));
        MS_TRY(ms_text_append(out, step->content, step->content_length));
        done = at + step->pattern_length;
    }
    return ms_text_append(out, text + done, length - done);
}

static ms_status apply_lowercase(const char *text, size_t length, ms_text *out) {
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        i += (size_t)ms_utf8_decode(text + i, length - i, &code_point);
        char utf8[4];
        int bytes = ms_utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)code_point), utf8);
        MS_TRY(ms_text_append(out, utf8, (size_t)bytes));
    }
    return MS_OK;
}

static bool is_space_byte(char byte) {
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static ms_status apply_strip(const ms_normal_step *step, const char *text, size_t length,
                             ms_text *out) {
    size_t begin = 0, end = length;
    while (step->strip_left && begin < end && is_space_byte(text[begin])) {
        begin++;
    }
    while (step->strip_right && end > begin && is_space_byte(text[end - 1])) {
        end--;
    }
    return ms_text_append(out, text + begin, end - begin);
}

static ms_status apply_step(const ms_normal_step *step, ms_tokenizer_scratch *scratch,
                            const char *text, size_t length, ms_text *out) {
    switch (step->kind) {
    case MS_NORMAL_UNICODE:
        return apply_unicode(step, scratch, text, length, out);
    case MS_NORMAL_PREPEND:
        MS_TRY(ms_text_append(out, step->content, step->content_length));
        return ms_text_append(out, text, length);
    case MS_NORMAL_REPLACE:
        return apply_replace(step, text, length, out);
    case MS_NORMAL_LOWERCASE:
        return apply_lowercase(text, length, out);
    default:
        return apply_strip(step, text, length, out);
    }
}

ms_status ms__normal_apply(const ms_tokenizer *tokenizer, ms_tokenizer_scratch *scratch,
                           const char *text, size_t length, const char **out, size_t *out_length) {
    *out = text;
    *out_length = length;
    for (int i = 0; i<tokenizer->normal_count && * out_length> 0; i++) {
        ms_text *target = &scratch->normal[i % 2];
        ms_text_clear(target);
        MS_TRY(apply_step(&tokenizer->normal[i], scratch, *out, *out_length, target));
        *out = target->bytes != NULL ? target->bytes : "";
        *out_length = target->length;
    }
    return MS_OK;
}
