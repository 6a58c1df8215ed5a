/*
 * config.c - the configuration's life: tables checked, sources read in order, values looked up.
 *
 * Where it stands: cli/ calls ms_config_load once; each room asks ms_config_values for its section.
 *
 * Data:   config -> sections[s] (tables, the caller's)
 *                   values[s]   (the room's struct)
 *                   states[s][k] (where the key was set)
 * all but the tables in one arena, so that destroying it is one call and a failure half way leaks
 * nothing.
 *
 * Sources are read from the least authority to the greatest (default, file, environment, --set),
 * each overwriting the one before; a fault in any of them is an error even if a later source would
 * have overwritten it.
 *
 * Rejected: reading the sources in the other order and skipping what is set (a typo in the file
 * would go unseen while --set hides it), and separate default structs (a second place for each
 * default).
 */
#define _GNU_SOURCE 1 /* environ */

#include "base/config_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

int ms__config_find_section(const ms_config_section *const *sections, int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(sections[i]->name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int ms__config_find_key(const ms_config_section *section, const char *name) {
    for (int i = 0; i < section->key_count; i++) {
        if (strcmp(section->keys[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

char *ms__config_variable(const char *section, const char *key, char *buffer) {
    snprintf(buffer, MS_CONFIG_VARIABLE_BYTES, "MS_%s%s%s", section, key != NULL ? "_" : "",
             key != NULL ? key : "");
    for (char *at = buffer; *at != '\0'; at++) {
        *at = (char)toupper((unsigned char)*at);
    }
    return buffer;
}

#define NAMES_MAX 256 /* names compared for a hint; more than any section holds */

char *ms__config_hint_section(const ms_config_section *const *sections, int count,
                              const char *wanted, char *buffer) {
    const char *names[NAMES_MAX];
    int name_count = 0;
    buffer[0] = '\0';
    for (int i = 0; i < count; i++) {
        if (ms__config_find_key(sections[i], wanted) >= 0) {
            snprintf(buffer, MS_CONFIG_HINT_BYTES, "; %.60s is a key of section %s", wanted,
                     sections[i]->name);
            return buffer;
        }
        if (name_count < NAMES_MAX) {
            names[name_count++] = sections[i]->name;
        }
    }
    int nearest = ms_nearest_name(wanted, names, name_count);
    if (nearest >= 0) {
        snprintf(buffer, MS_CONFIG_HINT_BYTES, "; did you mean \"%s\"?", names[nearest]);
    }
    return buffer;
}

char *ms__config_hint_key(const ms_config_section *const *sections, int count, int section,
                          const char *wanted, char *buffer) {
    const char *names[NAMES_MAX];
    int name_count = 0;
    buffer[0] = '\0';
    const ms_config_section *table = sections[section];
    for (int i = 0; i < table->key_count && name_count < NAMES_MAX; i++) {
        names[name_count++] = table->keys[i].name;
    }
    int nearest = ms_nearest_name(wanted, names, name_count);
    /* The very name in another section says more than a similar one in this. */
    for (int i = 0; i < count; i++) {
        if (i != section && ms__config_find_key(sections[i], wanted) >= 0) {
            snprintf(buffer, MS_CONFIG_HINT_BYTES, "; did you mean \"%s.%.60s\"?",
                     sections[i]->name, wanted);
            return buffer;
        }
    }
    if (nearest >= 0) {
        snprintf(buffer, MS_CONFIG_HINT_BYTES, "; did you mean \"%s\"?", names[nearest]);
    }
    return buffer;
}

static size_t value_bytes(ms_key_type type) {
    switch (type) {
    case MS_KEY_BOOL:
        return sizeof(bool);
    case MS_KEY_INT:
        return sizeof(int64_t);
    case MS_KEY_REAL:
        return sizeof(double);
    case MS_KEY_STRING:
        return sizeof(const char *);
    case MS_KEY_ENUM:
        return sizeof(int);
    case MS_KEY_LIST:
        return sizeof(ms_config_list *);
    }
    return 0;
}

static ms_status check_key(const ms_config_section *section, const ms_key *key) {
    const char *fault = NULL;
    size_t bytes = value_bytes(key->type);
    if (key->name == NULL || key->name[0] == '\0' || strlen(key->name) > MS_CONFIG_NAME_MAX) {
        return ms_fail(MS_ERR_BUG, "section %s: a key has no name, or a name of over %d bytes",
                       section->name, MS_CONFIG_NAME_MAX);
    }
    if (bytes == 0 || key->offset > section->struct_bytes ||
        bytes > section->struct_bytes - key->offset || key->offset % bytes != 0) {
        fault = "lies outside its struct";
    } else if (key->type == MS_KEY_ENUM && (key->choices == NULL || key->choices[0] == NULL)) {
        fault = "has no choices";
    } else if (key->allow_auto && (key->type == MS_KEY_BOOL || key->type == MS_KEY_LIST)) {
        fault = "is of a type that cannot be auto";
    } else if (key->minimum > key->maximum) {
        fault = "has an empty range";
    } else if (key->doc == NULL) {
        fault = "has no doc";
    }
    return fault == NULL ? MS_OK
                         : ms_fail(MS_ERR_BUG, "key %s.%s %s", section->name, key->name, fault);
}

/* The tables are ours, so a fault in them is a bug; it is found at the first load, in any test. */
static ms_status check_tables(const ms_config_section *const *sections, int count) {
    if (count < 0 || (count > 0 && sections == NULL)) {
        return ms_fail(MS_ERR_ARGUMENT, "configuration without sections");
    }
    for (int i = 0; i < count; i++) {
        const ms_config_section *section = sections[i];
        if (section == NULL || section->name == NULL || section->name[0] == '\0' ||
            strlen(section->name) > MS_CONFIG_NAME_MAX) {
            return ms_fail(MS_ERR_BUG, "section %d has no name, or a name of over %d bytes", i,
                           MS_CONFIG_NAME_MAX);
        }
        if (ms__config_find_section(sections, i, section->name) >= 0) {
            return ms_fail(MS_ERR_BUG, "section %s stands twice in the tables", section->name);
        }
        for (int key = 0; key < section->key_count; key++) {
            MS_TRY(check_key(section, &section->keys[key]));
            if (ms__config_find_key(section, section->keys[key].name) != key) {
                return ms_fail(MS_ERR_BUG, "key %s.%s stands twice in the table", section->name,
                               section->keys[key].name);
            }
        }
    }
    return MS_OK;
}

/* Text given outside the file: "[a, b]" and "'x'" are YAML, all else is taken as it is. */
static ms_status set_text(ms_config *config, int section, int key, const char *text,
                          const char *where) {
    const ms_key *entry = &config->sections[section]->keys[key];
    size_t length = strlen(text);
    MS_TRY(ms__config_check_text(where, text, length));
    while (length > 0 && isspace((unsigned char)text[length - 1])) {
        length--;
    }
    while (length > 0 && isspace((unsigned char)*text)) {
        text++;
        length--;
    }
    char *trimmed;
    void *memory;
    MS_TRY(ms_arena_alloc(config->arena, length + 1, &memory));
    memcpy(memory, text, length);
    trimmed = memory;
    bool quoted = *trimmed == '"' || *trimmed == '\'';
    bool flow = entry->type == MS_KEY_LIST && (*trimmed == '[' || *trimmed == '{');
    return quoted || flow ? ms__config_read_value(config, section, key, trimmed, where)
                          : ms__config_set_scalar(config, section, key, trimmed, true, where);
}

static ms_status set_defaults(ms_config *config) {
    for (int section = 0; section < config->section_count; section++) {
        const ms_config_section *table = config->sections[section];
        for (int key = 0; key < table->key_count; key++) {
            const char *text = table->keys[key].default_text;
            config->states[section][key].where = MS_CONFIG_WHERE_DEFAULT;
            if (text == NULL || text[0] == '\0') {
                continue; /* required, or none: the struct is zero */
            }
            ms_status status = set_text(config, section, key, text, MS_CONFIG_WHERE_DEFAULT);
            if (status == MS_ERR_CONFIG) {
                return ms_fail(MS_ERR_BUG, "%s", ms_error_detail());
            }
            MS_TRY(status);
        }
    }
    return MS_OK;
}

static ms_status read_file(ms_config *config, const ms_config_source *source) {
    const char *name = source->path != NULL ? source->path : "config";
    if (source->text != NULL) {
        return ms__config_read_text(config, name, source->text, strlen(source->text));
    }
    if (source->path == NULL) {
        return MS_OK;
    }
    ms_text text = {0};
    ms_status status = ms_file_read(source->path, MS_CONFIG_FILE_BYTES_MAX, &text);
    if (status == MS_ERR_RANGE) {
        return ms_fail(MS_ERR_CONFIG, "%s: longer than the %zu bytes a configuration may have",
                       source->path, MS_CONFIG_FILE_BYTES_MAX);
    }
    MS_TRY(status);
    status = ms__config_read_text(config, name, text.bytes, text.length);
    ms_text_release(&text);
    return status;
}

/* One "NAME=value" of the environment. */
static ms_status read_variable(ms_config *config, const char *entry) {
    const char *equals = strchr(entry, '=');
    if (equals == NULL || strncmp(entry, "MS_", 3) != 0) {
        return MS_OK;
    }
    size_t length = (size_t)(equals - entry);
    char buffer[MS_CONFIG_VARIABLE_BYTES];
    int claimed = -1; /* the section whose prefix the name has */
    for (int section = 0; section < config->section_count; section++) {
        const ms_config_section *table = config->sections[section];
        ms__config_variable(table->name, NULL, buffer);
        size_t prefix = strlen(buffer);
        if (length < prefix || strncmp(entry, buffer, prefix) != 0) {
            continue;
        }
        if (length == prefix && table->allow_auto) {
            if (strcmp(equals + 1, "auto") != 0) {
                return ms_fail(MS_ERR_CONFIG, "%s: is \"%.60s\"; it must be auto", buffer,
                               equals + 1);
            }
            char *where;
            MS_TRY(ms_arena_strdup(config->arena, buffer, &where));
            return ms__config_set_section_auto(config, section, where);
        }
        if (length <= prefix + 1 || entry[prefix] != '_') {
            continue;
        }
        claimed = section;
        for (int key = 0; key < table->key_count; key++) {
            ms__config_variable(table->name, table->keys[key].name, buffer);
            if (strlen(buffer) == length && strncmp(entry, buffer, length) == 0) {
                char *where;
                MS_TRY(ms_arena_strdup(config->arena, buffer, &where));
                return set_text(config, section, key, equals + 1, where);
            }
        }
    }
    if (claimed < 0) {
        return MS_OK;
    }
    const ms_config_section *table = config->sections[claimed];
    const char *names[NAMES_MAX];
    int name_count = 0;
    while (name_count < table->key_count && name_count < NAMES_MAX) {
        names[name_count] = table->keys[name_count].name;
        name_count++;
    }
    char wanted[MS_CONFIG_NAME_MAX + 1];
    size_t prefix = strlen(ms__config_variable(table->name, NULL, buffer)) + 1;
    snprintf(wanted, sizeof wanted, "%.*s", (int)(length - prefix), entry + prefix);
    int nearest = ms_nearest_name(wanted, names, name_count);
    return ms_fail(MS_ERR_CONFIG,
                   "%.*s: section %s has no such key%s%s%s; unset the variable or correct its name",
                   length < 120 ? (int)length : 120, entry, table->name,
                   nearest >= 0 ? "; did you mean " : "",
                   nearest >= 0 ? ms__config_variable(table->name, names[nearest], buffer) : "",
                   nearest >= 0 ? "?" : "");
}

static ms_status read_environment(ms_config *config) {
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        MS_TRY(read_variable(config, *entry));
    }
    return MS_OK;
}

/* "section.key=value", or "section=auto" where a section may be auto. */
static ms_status read_assignment(ms_config *config, const char *assignment) {
    const char *equals = strchr(assignment, '=');
    size_t length = equals != NULL ? (size_t)(equals - assignment) : 0;
    if (equals == NULL || length == 0 || length > 2 * MS_CONFIG_NAME_MAX) {
        return ms_fail(MS_ERR_CONFIG, "--set %.100s: must be written --set section.key=value",
                       assignment);
    }
    char name[2 * MS_CONFIG_NAME_MAX + 1];
    char hint[MS_CONFIG_HINT_BYTES];
    memcpy(name, assignment, length);
    name[length] = '\0';
    char *dot = strchr(name, '.');
    if (dot != NULL) {
        *dot = '\0';
    }
    int section = ms__config_find_section(config->sections, config->section_count, name);
    if (section < 0) {
        return ms_fail(
            MS_ERR_CONFIG, "--set %.100s: unknown section \"%s\"%s", assignment, name,
            ms__config_hint_section(config->sections, config->section_count, name, hint));
    }
    const ms_config_section *table = config->sections[section];
    if (dot == NULL) {
        if (table->allow_auto && strcmp(equals + 1, "auto") == 0) {
            return ms__config_set_section_auto(config, section, MS_CONFIG_WHERE_SET);
        }
        return ms_fail(MS_ERR_CONFIG, "--set %.100s: names no key; write --set %s.key=value",
                       assignment, name);
    }
    int key = ms__config_find_key(table, dot + 1);
    if (key < 0) {
        return ms_fail(
            MS_ERR_CONFIG, "--set %.100s: %s.%s: unknown key%s", assignment, name, dot + 1,
            ms__config_hint_key(config->sections, config->section_count, section, dot + 1, hint));
    }
    return set_text(config, section, key, equals + 1, MS_CONFIG_WHERE_SET);
}

static bool is_empty_value(const ms_config *config, int section, const ms_key *key) {
    if (key->type != MS_KEY_STRING && key->type != MS_KEY_LIST) {
        return false;
    }
    const void *value;
    memcpy(&value, (const char *)config->values[section] + key->offset, sizeof value);
    return value == NULL;
}

static ms_status check_required(const ms_config *config, const char *name) {
    char variable[MS_CONFIG_VARIABLE_BYTES];
    for (int section = 0; section < config->section_count; section++) {
        const ms_config_section *table = config->sections[section];
        for (int key = 0; key < table->key_count; key++) {
            const ms_key *entry = &table->keys[key];
            const ms__config_state *state = &config->states[section][key];
            if (entry->default_text == NULL &&
                (!state->is_set || is_empty_value(config, section, entry))) {
                return ms_fail(MS_ERR_CONFIG,
                               "%s: %s.%s is required (%s); write it in the file, or give --set "
                               "%s.%s=... or %s",
                               state->is_set ? state->where : name, table->name, entry->name,
                               entry->doc, table->name, entry->name,
                               ms__config_variable(table->name, entry->name, variable));
            }
        }
    }
    return MS_OK;
}

static ms_status allocate(ms_config *config) {
    size_t count = (size_t)config->section_count;
    void *memory;
    MS_TRY(ms_arena_alloc(config->arena, count * sizeof *config->values, &memory));
    config->values = memory;
    MS_TRY(ms_arena_alloc(config->arena, count * sizeof *config->states, &memory));
    config->states = memory;
    for (size_t i = 0; i < count; i++) {
        const ms_config_section *table = config->sections[i];
        size_t key_count = (size_t)table->key_count;
        /* At least 64 bytes, so that any struct is aligned. */
        size_t bytes = table->struct_bytes < MS_ALIGNMENT ? MS_ALIGNMENT : table->struct_bytes;
        MS_TRY(ms_arena_alloc(config->arena, bytes, &config->values[i]));
        MS_TRY(ms_arena_alloc(config->arena, key_count * sizeof(ms__config_state), &memory));
        config->states[i] = memory;
    }
    return MS_OK;
}

static ms_status fill(ms_config *config, const ms_config_source *source) {
    MS_TRY(allocate(config));
    MS_TRY(set_defaults(config));
    MS_TRY(read_file(config, source));
    if (source->use_environment) {
        MS_TRY(read_environment(config));
    }
    for (int i = 0; i < source->assignment_count; i++) {
        MS_TRY(read_assignment(config, source->assignments[i]));
    }
    return check_required(config, source->path != NULL ? source->path : "config");
}

ms_status ms_config_load(const ms_config_source *source, const ms_config_section *const *sections,
                         int section_count, ms_config **config) {
    MS_TRY(check_tables(sections, section_count));
    ms_arena *arena;
    MS_TRY(ms_arena_create(16384, MS_MEMORY_PROCESS, &arena));
    ms_status status;
    void *memory;
    MS_TRY_GOTO(ms_arena_alloc(arena, sizeof(ms_config), &memory), destroy_arena);
    ms_config *fresh = memory;
    fresh->arena = arena;
    fresh->sections = sections;
    fresh->section_count = section_count;
    MS_TRY_GOTO(fill(fresh, source), destroy_arena);
    *config = fresh;
    return MS_OK;
destroy_arena:
    ms_arena_destroy(arena);
    return status;
}

void ms_config_destroy(ms_config *config) {
    if (config != NULL) {
        ms_arena_destroy(config->arena); /* the config itself lies in it */
    }
}

const void *ms_config_values(const ms_config *config, const char *section) {
    int index = ms__config_find_section(config->sections, config->section_count, section);
    return index >= 0 ? config->values[index] : NULL;
}

void *ms_config_values_mutable(ms_config *config, const char *section) {
    int index = ms__config_find_section(config->sections, config->section_count, section);
    return index >= 0 ? config->values[index] : NULL;
}

const char *ms_config_strdup(ms_config *config, const char *text) {
    char *copy = NULL;
    if (text == NULL || ms_arena_strdup(config->arena, text, &copy) != MS_OK) {
        return NULL;
    }
    return copy;
}

static const ms__config_state *find_state(const ms_config *config, const char *section,
                                          const char *key) {
    int index = ms__config_find_section(config->sections, config->section_count, section);
    int key_index = index >= 0 ? ms__config_find_key(config->sections[index], key) : -1;
    return key_index >= 0 ? &config->states[index][key_index] : NULL;
}

bool ms_config_is_set(const ms_config *config, const char *section, const char *key) {
    const ms__config_state *state = find_state(config, section, key);
    return state != NULL && state->is_set;
}

const char *ms_config_where(const ms_config *config, const char *section, const char *key) {
    const ms__config_state *state = find_state(config, section, key);
    return state != NULL ? state->where : MS_CONFIG_WHERE_DEFAULT;
}

const char *ms_config_environment(const char *name) {
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}
