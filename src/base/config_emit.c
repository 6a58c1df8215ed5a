/*
 * config_emit.c - the resolved configuration as YAML.
 *
 * Where it stands: every run and checkpoint stores what is written here, and a resumed run loads
 * it.
 *
 * Invariants: loading the text gives the same values, to the last bit of every number and byte of
 * every text; a test holds it over random values.
 */
#include "base/config_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* True when the text means itself without quotes, to us and to any other YAML reader. */
static bool is_plain_text(const char *text) {
    static const char *const taken[] = {"null", "true", "false", "yes", "no", "on",
                                        "off",  "y",    "n",     "nan", "inf"};
    if (!isalpha((unsigned char)text[0]) && text[0] != '/' && text[0] != '_') {
        return false;
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (!isalnum((unsigned char)*at) && strchr("_./-+", *at) == NULL) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        if (strcasecmp(text, taken[i]) == 0) {
            return false;
        }
    }
    return true;
}

/* Characters that YAML does not let stand for themselves, or that an editor would not show. */
static bool needs_escape(uint32_t code_point) {
    return code_point < 0x20 || (code_point >= 0x7f && code_point <= 0xa0) ||
           code_point == 0x2028 || code_point == 0x2029 || code_point == 0xfeff ||
           (code_point & 0xfffe) == 0xfffe;
}

static ms_status emit_text(const char *text, ms_text *yaml) {
    if (text == NULL || text[0] == '\0') {
        return ms_text_append_z(yaml, "\"\"");
    }
    if (is_plain_text(text)) {
        return ms_text_append_z(yaml, text);
    }
    size_t length = strlen(text);
    if (ms_utf8_valid_prefix(text, length) != length) {
        return ms_fail(MS_ERR_BUG, "configuration text is not UTF-8: \"%.60s\"", text);
    }
    MS_TRY(ms_text_append_z(yaml, "\""));
    for (size_t at = 0; at < length;) {
        uint32_t code_point;
        int step = ms_utf8_decode(text + at, length - at, &code_point);
        if (code_point == '"' || code_point == '\\') {
            MS_TRY(ms_text_printf(yaml, "\\%c", (int)code_point));
        } else if (code_point == '\n') {
            MS_TRY(ms_text_append_z(yaml, "\\n"));
        } else if (code_point == '\t') {
            MS_TRY(ms_text_append_z(yaml, "\\t"));
        } else if (needs_escape(code_point)) {
            MS_TRY(ms_text_printf(yaml,
                                  code_point < 0x100     ? "\\x%02" PRIX32
                                  : code_point < 0x10000 ? "\\u%04" PRIX32
                                                         : "\\U%08" PRIX32,
                                  code_point));
        } else {
            MS_TRY(ms_text_append(yaml, text + at, (size_t)step));
        }
        at += (size_t)step;
    }
    return ms_text_append_z(yaml, "\"");
}

static ms_status emit_real(double value, ms_text *yaml) {
    char buffer[40];
    return ms_text_append_z(yaml, ms_format_f64(value, buffer, sizeof buffer));
}

static ms_status emit_list(const ms_config_list *list, ms_text *yaml) {
    if (list == NULL || list->count == 0) {
        return ms_text_append_z(yaml, "[]");
    }
    if (list->count == 1 && list->entries[0].weight == 1.0) {
        return emit_text(list->entries[0].path, yaml);
    }
    MS_TRY(ms_text_append_z(yaml, "["));
    for (int i = 0; i < list->count; i++) {
        const ms_config_entry *entry = &list->entries[i];
        MS_TRY(ms_text_append_z(yaml, i > 0 ? ", " : ""));
        if (entry->weight == 1.0) {
            MS_TRY(emit_text(entry->path, yaml));
            continue;
        }
        MS_TRY(ms_text_append_z(yaml, "{path: "));
        MS_TRY(emit_text(entry->path, yaml));
        MS_TRY(ms_text_append_z(yaml, ", weight: "));
        MS_TRY(emit_real(entry->weight, yaml));
        MS_TRY(ms_text_append_z(yaml, "}"));
    }
    return ms_text_append_z(yaml, "]");
}

static ms_status emit_choice(const ms_config_section *section, const ms_key *key, int index,
                             ms_text *yaml) {
    int count = 0;
    while (key->choices[count] != NULL) {
        count++;
    }
    if (index < 0 || index >= count) {
        return ms_fail(MS_ERR_BUG, "%s.%s holds choice %d of %d", section->name, key->name, index,
                       count);
    }
    return emit_text(key->choices[index], yaml);
}

static ms_status emit_value(const ms_config_section *section, const ms_key *key, const char *value,
                            ms_text *yaml) {
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *text;
        int choice;
        const ms_config_list *list;
    } held;
    switch (key->type) {
    case MS_KEY_BOOL:
        memcpy(&held.truth, value, sizeof held.truth);
        return ms_text_append_z(yaml, held.truth ? "true" : "false");
    case MS_KEY_INT:
        memcpy(&held.integer, value, sizeof held.integer);
        return held.integer == MS_AUTO ? ms_text_append_z(yaml, "auto")
                                       : ms_text_printf(yaml, "%" PRId64, held.integer);
    case MS_KEY_REAL:
        memcpy(&held.real, value, sizeof held.real);
        return isinf(held.real) ? ms_text_append_z(yaml, "auto") : emit_real(held.real, yaml);
    case MS_KEY_STRING:
        memcpy(&held.text, value, sizeof held.text);
        return emit_text(held.text, yaml);
    case MS_KEY_ENUM:
        memcpy(&held.choice, value, sizeof held.choice);
        return emit_choice(section, key, held.choice, yaml);
    case MS_KEY_LIST:
        memcpy(&held.list, value, sizeof held.list);
        return emit_list(held.list, yaml);
    }
    return ms_fail(MS_ERR_BUG, "%s.%s has an unknown type", section->name, key->name);
}

ms_status ms_config_emit(const ms_config *config, ms_text *yaml) {
    for (int i = 0; i < config->section_count; i++) {
        const ms_config_section *section = config->sections[i];
        if (section->key_count == 0) {
            continue;
        }
        MS_TRY(ms_text_printf(yaml, "%s:\n", section->name));
        for (int k = 0; k < section->key_count; k++) {
            const ms_key *key = &section->keys[k];
            MS_TRY(ms_text_printf(yaml, "  %s: ", key->name));
            MS_TRY(emit_value(section, key, (const char *)config->values[i] + key->offset, yaml));
            MS_TRY(ms_text_append_z(yaml, "\n"));
        }
    }
    return MS_OK;
}
