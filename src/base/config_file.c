/*
 * config_file.c - YAML text into values.
 *
 * Where it stands: called by config.c for the file, and for a value of --set or the environment
 * that is written as a list or quoted.
 *
 * libfyaml's stream of events is read by descent; the grammar is no deeper than
 *
 *     root mapping -> section mapping -> list -> {path, weight} -> scalar
 *
 * and anything else is refused where it begins, with its line. So depth is bounded without
 * counting, nothing is built twice, and the first fault in the file is the one reported.
 *
 * Rejected: libfyaml's document tree: it expands aliases (a few lines can become gigabytes),
 * compares every key with every other, and says less about where a duplicate stood. Aliases,
 * anchors and tags have no use here and are refused.
 */
#include "base/config_internal.h"

#include <libfyaml.h>
#include <stdio.h>
#include <string.h>

typedef struct yaml_reader {
    ms_config *config;
    const char *name; /* of the file, or the whole place when it has no lines */
    bool has_lines;
    const char *subject; /* "section.key: " where name alone would not say it, else "" */
    struct fy_diag *diag;
    struct fy_parser *parser;
    enum fy_event_type type; /* of the current event */
    int line;                /* of the current event, from 1 */
    char *scalar;            /* its text, when it is a scalar; owned by the arena */
    bool plain;              /* it was not quoted */
} yaml_reader;

/* "gpt.yaml:12", or the place itself; owned by the arena. */
static ms_status place(yaml_reader *reader, int line, const char **where) {
    if (!reader->has_lines) {
        *where = reader->name;
        return MS_OK;
    }
    size_t bytes = strlen(reader->name) + 16;
    void *memory;
    MS_TRY(ms_arena_alloc(reader->config->arena, bytes, &memory));
    snprintf(memory, bytes, "%s:%d", reader->name, line);
    *where = memory;
    return MS_OK;
}

#define FAIL_HERE(reader, at_line, format, ...)                                                    \
    ((reader)->has_lines                                                                           \
         ? ms_fail(MS_ERR_CONFIG, "%s:%d: " format, (reader)->name, (at_line), __VA_ARGS__)        \
         : ms_fail(MS_ERR_CONFIG, "%s: " format, (reader)->name, __VA_ARGS__))

/* The parser's first complaint, in our form. */
static ms_status fail_syntax(yaml_reader *reader) {
    void *previous = NULL;
    const struct fy_diag_error *error = fy_diag_errors_iterate(reader->diag, &previous);
    if (error == NULL || error->msg == NULL) {
        return FAIL_HERE(reader, reader->line, "%snot valid YAML", reader->subject);
    }
    int line = error->line > 0 ? error->line : reader->line;
    return FAIL_HERE(reader, line, "%snot valid YAML: %s", reader->subject, error->msg);
}

/*
 * A token's text, NUL-terminated, gathered by pieces. Not by fy_token_get_text: libfyaml 0.7.12
 * makes too many of a run of quotes (three for 'a'''' b', which means two), and that function then
 * finds the text longer than it had counted, returns nothing and leaks. The pieces are released,
 * and two quotes in a row within a single-quoted text, right or wrong, are refused rather than
 * guessed.
 */
static ms_status take_scalar(yaml_reader *reader, struct fy_token *token) {
    ms_text text = {0};
    ms_status status;
    int error = 0;
    MS_TRY_GOTO(ms_text_append(&text, "", 0), release_text);
    struct fy_token_iter *pieces = token != NULL ? fy_token_iter_create(token) : NULL;
    if (token != NULL && pieces == NULL) {
        status = ms_fail(MS_ERR_MEMORY, "%s: out of memory for the YAML parser", reader->name);
        goto release_text;
    }
    const struct fy_iter_chunk *piece = NULL;
    while (pieces != NULL && (piece = fy_token_iter_chunk_next(pieces, piece, &error)) != NULL) {
        MS_TRY_GOTO(ms_text_append(&text, piece->str, piece->len), destroy_pieces);
    }
    if (error != 0) {
        status = FAIL_HERE(reader, reader->line, "%snot valid YAML: text cannot be read",
                           reader->subject);
        goto destroy_pieces;
    }
    if (token != NULL && fy_token_scalar_style(token) == FYSS_SINGLE_QUOTED &&
        strstr(text.bytes, "''") != NULL) {
        status = FAIL_HERE(reader, reader->line,
                           "%stwo quotes in a row within a single-quoted text are not supported; "
                           "write it in double quotes",
                           reader->subject);
        goto destroy_pieces;
    }
    const char *where;
    MS_TRY_GOTO(place(reader, reader->line, &where), destroy_pieces);
    /* Escapes such as \0 make bytes that the file itself did not hold. */
    MS_TRY_GOTO(ms__config_check_text(where, text.bytes, text.length), destroy_pieces);
    MS_TRY_GOTO(ms_arena_strdup(reader->config->arena, text.bytes, &reader->scalar),
                destroy_pieces);
destroy_pieces:
    fy_token_iter_destroy(pieces);
release_text:
    ms_text_release(&text);
    return status;
}

/* Takes what is needed of the event, so that it can be freed at once. */
static ms_status take_event(yaml_reader *reader, struct fy_event *event) {
    struct fy_token *token = fy_event_get_token(event);
    const struct fy_mark *mark = fy_event_start_mark(event);
    if (mark != NULL && mark->line >= 0) {
        reader->line = mark->line + 1;
    }
    const struct fy_token *decoration = NULL;
    switch (event->type) {
    case FYET_SCALAR:
        decoration = event->scalar.anchor != NULL ? event->scalar.anchor : event->scalar.tag;
        break;
    case FYET_SEQUENCE_START:
        decoration = event->sequence_start.anchor != NULL ? event->sequence_start.anchor
                                                          : event->sequence_start.tag;
        break;
    case FYET_MAPPING_START:
        decoration = event->mapping_start.anchor != NULL ? event->mapping_start.anchor
                                                         : event->mapping_start.tag;
        break;
    case FYET_ALIAS:
        return FAIL_HERE(reader, reader->line, "%s", "aliases (*name) are not supported");
    default:
        break;
    }
    if (decoration != NULL) {
        return FAIL_HERE(reader, reader->line, "%s",
                         "anchors (&name) and tags (!name) are not supported");
    }
    reader->scalar = NULL;
    if (event->type != FYET_SCALAR) {
        return MS_OK;
    }
    reader->plain = token == NULL || fy_token_scalar_style(token) == FYSS_PLAIN;
    return take_scalar(reader, token);
}

static ms_status next_event(yaml_reader *reader) {
    struct fy_event *event = fy_parser_parse(reader->parser);
    if (event == NULL) {
        if (fy_parser_get_stream_error(reader->parser)) {
            return fail_syntax(reader);
        }
        reader->type = FYET_NONE; /* the end of the stream */
        reader->scalar = NULL;
        return MS_OK;
    }
    reader->type = event->type;
    ms_status status = take_event(reader, event);
    fy_parser_event_free(reader->parser, event);
    return status;
}

/* {path: b, weight: 2}; the mapping's start is the current event. */
static ms_status read_entry_mapping(yaml_reader *reader, const char *section, const char *key,
                                    ms_config_entry *entry) {
    int first_line = reader->line;
    bool has_weight = false;
    *entry = (ms_config_entry){.path = NULL, .weight = 1.0};
    for (;;) {
        MS_TRY(next_event(reader));
        if (reader->type == FYET_MAPPING_END) {
            break;
        }
        bool is_path = reader->scalar != NULL && strcmp(reader->scalar, "path") == 0;
        bool is_weight = reader->scalar != NULL && strcmp(reader->scalar, "weight") == 0;
        if (!is_path && !is_weight) {
            return FAIL_HERE(reader, reader->line,
                             "%s.%s: an entry of the list holds path and weight, not \"%.60s\"",
                             section, key, reader->scalar != NULL ? reader->scalar : "a mapping");
        }
        if (is_path ? entry->path != NULL : has_weight) {
            return FAIL_HERE(reader, reader->line, "%s.%s: %s is given twice", section, key,
                             is_path ? "path" : "weight");
        }
        MS_TRY(next_event(reader));
        if (reader->scalar == NULL) {
            return FAIL_HERE(reader, reader->line, "%s.%s: %s must be a single value", section, key,
                             is_path ? "path" : "weight");
        }
        if (is_path) {
            entry->path = reader->scalar;
        } else {
            const char *where;
            has_weight = true;
            MS_TRY(place(reader, reader->line, &where));
            MS_TRY(ms__config_parse_weight(reader->scalar, where, section, key, &entry->weight));
        }
    }
    if (entry->path == NULL || entry->path[0] == '\0') {
        return FAIL_HERE(reader, first_line, "%s.%s: an entry of the list has no path", section,
                         key);
    }
    return MS_OK;
}

/* A list's entries up to the end of the sequence whose start is the current event. */
static ms_status read_entries(yaml_reader *reader, const char *section, const char *key,
                              ms_config_entry **entries, size_t *count) {
    size_t capacity = 0;
    for (;;) {
        MS_TRY(next_event(reader));
        if (reader->type == FYET_SEQUENCE_END) {
            return MS_OK;
        }
        if (*count >= MS_CONFIG_LIST_MAX) {
            return FAIL_HERE(reader, reader->line, "%s.%s: more than %d entries", section, key,
                             MS_CONFIG_LIST_MAX);
        }
        void *memory = *entries;
        MS_TRY(
            ms_array_reserve(&memory, &capacity, *count + 1, sizeof **entries, MS_MEMORY_CALLER));
        *entries = memory;
        ms_config_entry *entry = &(*entries)[*count];
        if (reader->type == FYET_MAPPING_START) {
            MS_TRY(read_entry_mapping(reader, section, key, entry));
        } else if (reader->scalar != NULL && reader->scalar[0] != '\0') {
            *entry = (ms_config_entry){.path = reader->scalar, .weight = 1.0};
        } else {
            return FAIL_HERE(reader, reader->line,
                             "%s.%s: an entry of the list must be a text or {path, weight}",
                             section, key);
        }
        (*count)++;
    }
}

/* The value of an MS_KEY_LIST key that is no scalar. */
static ms_status read_list(yaml_reader *reader, int section, int key, const char *where) {
    const ms_config_section *table = reader->config->sections[section];
    const char *key_name = table->keys[key].name;
    ms_config_entry *entries = NULL;
    size_t count = 0;
    ms_status status;
    if (reader->type == FYET_MAPPING_START) {
        ms_config_entry single;
        MS_TRY(read_entry_mapping(reader, table->name, key_name, &single));
        void *memory;
        MS_TRY(ms_arena_alloc(reader->config->arena, sizeof single, &memory));
        memcpy(memory, &single, sizeof single);
        return ms__config_set_list(reader->config, section, key, memory, 1, where);
    }
    MS_TRY_GOTO(read_entries(reader, table->name, key_name, &entries, &count), free_entries);
    void *memory;
    MS_TRY_GOTO(ms_arena_alloc(reader->config->arena, count * sizeof *entries, &memory),
                free_entries);
    if (count > 0) {
        memcpy(memory, entries, count * sizeof *entries);
    }
    MS_TRY_GOTO(ms__config_set_list(reader->config, section, key, memory, (int)count, where),
                free_entries);
free_entries:
    ms_free(entries);
    return status;
}

/* A key's value; its first event is the current one. */
static ms_status read_key_value(yaml_reader *reader, int section, int key, const char *where) {
    const ms_config_section *table = reader->config->sections[section];
    const ms_key *entry = &table->keys[key];
    if (reader->type == FYET_SCALAR) {
        return ms__config_set_scalar(reader->config, section, key, reader->scalar, reader->plain,
                                     where);
    }
    if (entry->type == MS_KEY_LIST) {
        return read_list(reader, section, key, where);
    }
    ms_text legal = {0};
    ms_status status;
    MS_TRY_GOTO(ms__config_describe(entry, &legal), release_text);
    status =
        ms_fail(MS_ERR_CONFIG, "%s: %s.%s is a %s; it must be %s", where, table->name, entry->name,
                reader->type == FYET_MAPPING_START ? "mapping" : "list", legal.bytes);
release_text:
    ms_text_release(&legal);
    return status;
}

static ms_status read_section(yaml_reader *reader, int section) {
    ms_config *config = reader->config;
    const ms_config_section *table = config->sections[section];
    for (;;) {
        MS_TRY(next_event(reader));
        if (reader->type == FYET_MAPPING_END) {
            return MS_OK;
        }
        if (reader->scalar == NULL) {
            return FAIL_HERE(reader, reader->line, "%s: a key must be a word", table->name);
        }
        int key = ms__config_find_key(table, reader->scalar);
        if (key < 0) {
            char hint[MS_CONFIG_HINT_BYTES];
            return FAIL_HERE(reader, reader->line, "%s.%.60s: unknown key%s", table->name,
                             reader->scalar,
                             ms__config_hint_key(config->sections, config->section_count, section,
                                                 reader->scalar, hint));
        }
        ms__config_state *state = &config->states[section][key];
        if (state->in_file) {
            return FAIL_HERE(reader, reader->line, "%s.%s is given twice, first at %s", table->name,
                             table->keys[key].name, state->where);
        }
        const char *where;
        MS_TRY(place(reader, reader->line, &where));
        MS_TRY(next_event(reader));
        MS_TRY(read_key_value(reader, section, key, where));
        state->in_file = true;
    }
}

/* What stands after "section:"; its first event is the current one. */
static ms_status read_section_value(yaml_reader *reader, int section, const char *where) {
    const ms_config_section *table = reader->config->sections[section];
    if (reader->type == FYET_MAPPING_START) {
        return read_section(reader, section);
    }
    if (reader->scalar != NULL && reader->plain &&
        (reader->scalar[0] == '\0' || strcmp(reader->scalar, "null") == 0 ||
         strcmp(reader->scalar, "~") == 0)) {
        return MS_OK; /* an empty section */
    }
    if (table->allow_auto && reader->scalar != NULL && strcmp(reader->scalar, "auto") == 0) {
        return ms__config_set_section_auto(reader->config, section, where);
    }
    return ms_fail(MS_ERR_CONFIG, "%s: section %s must hold keys%s, as in \"%s: {%s: ...}\"", where,
                   table->name, table->allow_auto ? " or the word auto" : "", table->name,
                   table->key_count > 0 ? table->keys[0].name : "key");
}

static ms_status read_root(yaml_reader *reader, int *section_lines) {
    ms_config *config = reader->config;
    if (reader->type == FYET_SCALAR && reader->plain && reader->scalar[0] == '\0') {
        return MS_OK; /* a file of comments */
    }
    if (reader->type != FYET_MAPPING_START) {
        return FAIL_HERE(reader, reader->line, "%s",
                         "the file must hold sections, as in \"model:\"");
    }
    for (;;) {
        MS_TRY(next_event(reader));
        if (reader->type == FYET_MAPPING_END) {
            return MS_OK;
        }
        if (reader->scalar == NULL) {
            return FAIL_HERE(reader, reader->line, "%s", "a section's name must be a word");
        }
        int line = reader->line;
        int section =
            ms__config_find_section(config->sections, config->section_count, reader->scalar);
        if (section < 0) {
            char hint[MS_CONFIG_HINT_BYTES];
            return FAIL_HERE(reader, line, "unknown section \"%.60s\"%s", reader->scalar,
                             ms__config_hint_section(config->sections, config->section_count,
                                                     reader->scalar, hint));
        }
        if (section_lines[section] != 0) {
            return FAIL_HERE(reader, line, "section %s is given twice, first at line %d",
                             config->sections[section]->name, section_lines[section]);
        }
        section_lines[section] = line;
        const char *where;
        MS_TRY(place(reader, line, &where));
        MS_TRY(next_event(reader));
        MS_TRY(read_section_value(reader, section, where));
    }
}

/* Opens the parser and moves to the first event of the document's content. */
static ms_status reader_open(yaml_reader *reader, const char *text, size_t length) {
    const struct fy_diag_cfg diag_config = {
        .fp = NULL, .level = FYET_ERROR, .module_mask = (1u << FYEM_MAX) - 1};
    reader->diag = fy_diag_create(&diag_config);
    if (reader->diag == NULL) {
        return ms_fail(MS_ERR_MEMORY, "%s: out of memory for the YAML parser", reader->name);
    }
    fy_diag_set_collect_errors(reader->diag, true);
    const struct fy_parse_cfg parse_config = {.flags = FYPCF_QUIET | FYPCF_COLLECT_DIAG |
                                                       FYPCF_ALLOW_DUPLICATE_KEYS | FYPCF_JSON_NONE,
                                              .diag = reader->diag};
    reader->parser = fy_parser_create(&parse_config);
    if (reader->parser == NULL || fy_parser_set_string(reader->parser, text, length) != 0) {
        return ms_fail(MS_ERR_MEMORY, "%s: out of memory for the YAML parser", reader->name);
    }
    MS_TRY(next_event(reader));
    while (reader->type == FYET_STREAM_START || reader->type == FYET_DOCUMENT_START) {
        MS_TRY(next_event(reader));
    }
    return MS_OK;
}

/* Nothing may follow the document's content. */
static ms_status reader_finish(yaml_reader *reader) {
    do {
        MS_TRY(next_event(reader));
    } while (reader->type == FYET_DOCUMENT_END || reader->type == FYET_STREAM_END);
    if (reader->type != FYET_NONE) {
        return FAIL_HERE(reader, reader->line, "%s", "only one document may stand in a file");
    }
    return MS_OK;
}

static void reader_close(yaml_reader *reader) {
    fy_parser_destroy(reader->parser);
    fy_diag_destroy(reader->diag);
}

ms_status ms__config_check_text(const char *where, const char *text, size_t length) {
    const char *nul = memchr(text, '\0', length);
    size_t valid = ms_utf8_valid_prefix(text, nul != NULL ? (size_t)(nul - text) : length);
    if (valid == length) {
        return MS_OK;
    }
    size_t line = 1;
    for (size_t i = 0; i < valid; i++) {
        line += text[i] == '\n';
    }
    return ms_fail(MS_ERR_CONFIG, "%s: %s at byte %zu (line %zu)", where,
                   nul != NULL && (size_t)(nul - text) == valid ? "NUL byte" : "not UTF-8", valid,
                   line);
}

ms_status ms__config_read_text(ms_config *config, const char *name, const char *text,
                               size_t length) {
    if (length > MS_CONFIG_FILE_BYTES_MAX) {
        return ms_fail(MS_ERR_CONFIG, "%s: is %zu bytes; a configuration has at most %zu", name,
                       length, MS_CONFIG_FILE_BYTES_MAX);
    }
    MS_TRY(ms__config_check_text(name, text, length));
    yaml_reader reader = {
        .config = config, .name = name, .has_lines = true, .subject = "", .line = 1};
    int *section_lines = NULL;
    MS_TRY(MS_NEW((size_t)config->section_count, MS_MEMORY_CALLER, &section_lines));
    ms_status status;
    MS_TRY_GOTO(reader_open(&reader, text, length), close_reader);
    if (reader.type != FYET_STREAM_END && reader.type != FYET_NONE) {
        MS_TRY_GOTO(read_root(&reader, section_lines), close_reader);
        MS_TRY_GOTO(reader_finish(&reader), close_reader);
    }
close_reader:
    reader_close(&reader);
    ms_free(section_lines);
    return status;
}

ms_status ms__config_read_value(ms_config *config, int section, int key, const char *text,
                                const char *where) {
    char subject[2 * MS_CONFIG_NAME_MAX + 8];
    snprintf(subject, sizeof subject, "%s.%s: ", config->sections[section]->name,
             config->sections[section]->keys[key].name);
    yaml_reader reader = {.config = config, .name = where, .subject = subject, .line = 1};
    ms_status status;
    MS_TRY_GOTO(reader_open(&reader, text, strlen(text)), close_reader);
    MS_TRY_GOTO(read_key_value(&reader, section, key, where), close_reader);
    MS_TRY_GOTO(reader_finish(&reader), close_reader);
close_reader:
    reader_close(&reader);
    return status;
}
