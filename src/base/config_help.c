/*
 * config_help.c - what people read about keys: help on the terminal and the reference page.
 *
 * Where it stands: `mindspeed help KEY` and the generated docs/config.md; both come from the tables
 * alone, so they cannot lag behind the code.
 */
#include "base/config_internal.h"

#include <stdio.h>
#include <string.h>

#define WRAP_COLUMNS 80
#define INDENT "    "

/* Words of `words`, broken into lines that begin with an indent. */
static ms_status append_wrapped(const char *words, ms_text *text) {
    size_t column = 0;
    while (*words != '\0') {
        size_t length = strcspn(words, " ");
        if (column > 0 && column + 1 + length > WRAP_COLUMNS) {
            MS_TRY(ms_text_append_z(text, "\n"));
            column = 0;
        }
        MS_TRY(ms_text_append_z(text, column == 0 ? INDENT : " "));
        column += column == 0 ? sizeof INDENT - 1 : 1;
        MS_TRY(ms_text_append(text, words, length));
        column += length;
        words += length;
        words += strspn(words, " ");
    }
    return ms_text_append_z(text, "\n");
}

static const char *default_of(const ms_key *key) {
    return key->default_text == NULL      ? "required"
           : key->default_text[0] == '\0' ? "none"
                                          : key->default_text;
}

static ms_status help_key(const ms_config_section *section, const ms_key *key, ms_text *text) {
    char variable[MS_CONFIG_VARIABLE_BYTES];
    MS_TRY(ms_text_printf(text, "%s.%s\n", section->name, key->name));
    MS_TRY(append_wrapped(key->doc, text));
    MS_TRY(ms_text_append_z(text, INDENT "value:   "));
    MS_TRY(ms__config_describe(key, text));
    MS_TRY(ms_text_printf(text, "\n" INDENT "default: %s\n", default_of(key)));
    return ms_text_printf(text,
                          INDENT "set by:  \"%s: {%s: ...}\" in the file, --set %s.%s=..., or %s\n",
                          section->name, key->name, section->name, key->name,
                          ms__config_variable(section->name, key->name, variable));
}

static ms_status help_section(const ms_config_section *section, ms_text *text) {
    size_t width = 0;
    MS_TRY(ms_text_printf(text, "%s\n", section->name));
    MS_TRY(append_wrapped(section->doc, text));
    if (section->allow_auto) {
        MS_TRY(ms_text_printf(text,
                              INDENT "\"%s: auto\" leaves every key that may be auto to the "
                                     "program.\n",
                              section->name));
    }
    for (int k = 0; k < section->key_count; k++) {
        size_t length = strlen(section->keys[k].name);
        width = length > width ? length : width;
    }
    MS_TRY(ms_text_append_z(text, "\n"));
    for (int k = 0; k < section->key_count; k++) {
        const ms_key *key = &section->keys[k];
        MS_TRY(ms_text_printf(text, "  %-*s  %s [%s]\n", (int)width, key->name, key->doc,
                              default_of(key)));
    }
    return MS_OK;
}

static ms_status help_all(const ms_config_section *const *sections, int count, ms_text *text) {
    size_t width = 0;
    for (int i = 0; i < count; i++) {
        size_t length = strlen(sections[i]->name);
        width = length > width ? length : width;
    }
    MS_TRY(ms_text_append_z(text, "sections of the configuration:\n\n"));
    for (int i = 0; i < count; i++) {
        MS_TRY(
            ms_text_printf(text, "  %-*s  %s\n", (int)width, sections[i]->name, sections[i]->doc));
    }
    return MS_OK;
}

/* "section.key": its help, or the nearest names of the part that is wrong. */
static ms_status help_dotted(const ms_config_section *const *sections, int count, const char *name,
                             ms_text *text) {
    char section_name[MS_CONFIG_NAME_MAX + 1];
    char hint[MS_CONFIG_HINT_BYTES];
    const char *dot = strchr(name, '.');
    snprintf(section_name, sizeof section_name, "%.*s", (int)(dot - name), name);
    int section = ms__config_find_section(sections, count, section_name);
    if (section < 0) {
        return ms_fail(MS_ERR_NOT_FOUND, "no section \"%s\"%s", section_name,
                       ms__config_hint_section(sections, count, section_name, hint));
    }
    int key = ms__config_find_key(sections[section], dot + 1);
    if (key < 0) {
        return ms_fail(MS_ERR_NOT_FOUND, "no key \"%.60s\" in section %s%s", dot + 1, section_name,
                       ms__config_hint_key(sections, count, section, dot + 1, hint));
    }
    return help_key(sections[section], &sections[section]->keys[key], text);
}

/* The nearest of all names: sections and keys. */
static ms_status fail_unknown(const ms_config_section *const *sections, int count,
                              const char *name) {
    const char *best = NULL;
    const char *best_section = NULL;
    for (int i = 0; i < count; i++) {
        for (int k = -1; k < sections[i]->key_count; k++) {
            const char *candidate = k < 0 ? sections[i]->name : sections[i]->keys[k].name;
            const char *pair[2] = {best, candidate};
            bool nearer = best == NULL ? ms_nearest_name(name, &candidate, 1) == 0
                                       : ms_nearest_name(name, pair, 2) == 1;
            if (nearer) {
                best = candidate;
                best_section = k < 0 ? NULL : sections[i]->name;
            }
        }
    }
    if (best == NULL) {
        return ms_fail(MS_ERR_NOT_FOUND, "no key or section \"%.60s\"", name);
    }
    return ms_fail(MS_ERR_NOT_FOUND, "no key or section \"%.60s\"; did you mean \"%s%s%s\"?", name,
                   best_section != NULL ? best_section : "", best_section != NULL ? "." : "", best);
}

ms_status ms_config_help(const ms_config_section *const *sections, int section_count,
                         const char *key, ms_text *text) {
    if (key == NULL || key[0] == '\0') {
        return help_all(sections, section_count, text);
    }
    if (strchr(key, '.') != NULL) {
        return help_dotted(sections, section_count, key, text);
    }
    int section = ms__config_find_section(sections, section_count, key);
    bool found = section >= 0;
    if (found) {
        MS_TRY(help_section(sections[section], text));
    }
    for (int i = 0; i < section_count; i++) {
        int index = ms__config_find_key(sections[i], key);
        if (index >= 0) {
            MS_TRY(ms_text_append_z(text, found ? "\n" : ""));
            MS_TRY(help_key(sections[i], &sections[i]->keys[index], text));
            found = true;
        }
    }
    return found ? MS_OK : fail_unknown(sections, section_count, key);
}

/* A table's cell: a bar would end it. */
static ms_status append_cell(const char *words, ms_text *markdown) {
    MS_TRY(ms_text_append_z(markdown, " "));
    for (const char *at = words; *at != '\0'; at++) {
        MS_TRY(*at == '|' ? ms_text_append_z(markdown, "\\|") : ms_text_append(markdown, at, 1));
    }
    return ms_text_append_z(markdown, " |");
}

static ms_status reference_row(const ms_key *key, ms_text *markdown) {
    static const char *const type_names[] = {"bool", "int", "real", "text", "choice", "list"};
    ms_text legal = {0};
    ms_status status;
    MS_TRY_GOTO(ms_text_printf(markdown, "| `%s` | %s |", key->name, type_names[key->type]),
                release_text);
    MS_TRY_GOTO(append_cell(key->unit != NULL ? key->unit : "", markdown), release_text);
    bool has_text = key->default_text != NULL && key->default_text[0] != '\0';
    MS_TRY_GOTO(ms_text_printf(markdown, has_text ? " `%s` |" : " %s |", default_of(key)),
                release_text);
    MS_TRY_GOTO(ms__config_describe(key, &legal), release_text);
    MS_TRY_GOTO(append_cell(legal.bytes, markdown), release_text);
    MS_TRY_GOTO(append_cell(key->doc, markdown), release_text);
    MS_TRY_GOTO(ms_text_append_z(markdown, "\n"), release_text);
release_text:
    ms_text_release(&legal);
    return status;
}

ms_status ms_config_reference(const ms_config_section *const *sections, int section_count,
                              ms_text *markdown) {
    MS_TRY(ms_text_append_z(
        markdown,
        "# Configuration\n\n"
        "One YAML file of sections and keys. `--set section.key=value` has authority over the\n"
        "environment (`MS_SECTION_KEY`), the environment over the file, the file over the "
        "default.\n"
        "`mindspeed help KEY` shows one key. This page is generated from the tables in the "
        "source.\n"));
    for (int i = 0; i < section_count; i++) {
        const ms_config_section *section = sections[i];
        MS_TRY(ms_text_printf(markdown, "\n## %s\n\n%s\n", section->name, section->doc));
        if (section->allow_auto) {
            MS_TRY(ms_text_printf(markdown,
                                  "`%s: auto` leaves every key that may be auto to the program.\n",
                                  section->name));
        }
        MS_TRY(ms_text_append_z(markdown, "\n| key | type | unit | default | value | meaning |\n"
                                          "|---|---|---|---|---|---|\n"));
        for (int k = 0; k < section->key_count; k++) {
            MS_TRY(reference_row(&section->keys[k], markdown));
        }
    }
    return MS_OK;
}
