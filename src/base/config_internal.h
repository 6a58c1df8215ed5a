/*
 * config_internal.h - what the files of the configuration share; nobody else includes it.
 *
 *   config.c        life, tables, --set and environment
 *   config_file.c   YAML text -> calls of ms__config_set_*
 *   config_value.c  one value: parsed, checked, stored
 *   config_emit.c   values -> YAML
 *   config_help.c   tables -> help and reference
 */
#ifndef MS_BASE_CONFIG_INTERNAL_H
#define MS_BASE_CONFIG_INTERNAL_H

#include "base/config.h"

/* Limits on what is read from outside, and on the tables. */
#define MS_CONFIG_FILE_BYTES_MAX ((size_t)1 << 20)
#define MS_CONFIG_LIST_MAX 4096
#define MS_CONFIG_NAME_MAX 48

/* The places that values come from and that need no name of their own. */
#define MS_CONFIG_WHERE_DEFAULT "default"
#define MS_CONFIG_WHERE_SET "--set"

typedef struct ms__config_state {
    const char *where; /* owned by the arena, or a literal; "default" when not set */
    bool is_set;
    bool in_file; /* set by the file: a second time is an error */
} ms__config_state;

struct ms_config {
    ms_arena *arena;
    const ms_config_section *const *sections;
    int section_count;
    void **values;             /* [section]: its struct */
    ms__config_state **states; /* [section][key] */
};

/* Index or -1. */
int ms__config_find_section(const ms_config_section *const *sections, int count, const char *name);
int ms__config_find_key(const ms_config_section *section, const char *name);
/* MS_SECTION_KEY, or MS_SECTION when key is NULL. buffer of MS_CONFIG_VARIABLE_BYTES. */
#define MS_CONFIG_VARIABLE_BYTES (2 * MS_CONFIG_NAME_MAX + 8)
char *ms__config_variable(const char *section, const char *key, char *buffer);
/* "; did you mean ...", or "" when nothing is near. */
#define MS_CONFIG_HINT_BYTES 256
char *ms__config_hint_section(const ms_config_section *const *sections, int count,
                              const char *wanted, char *buffer);
char *ms__config_hint_key(const ms_config_section *const *sections, int count, int section,
                          const char *wanted, char *buffer);

/*
 * Stores one value that was given at `where` (kept: a literal or owned by the arena). plain: the
 * text was not quoted, so null and ~ mean nothing at all.
 */
ms_status ms__config_set_scalar(ms_config *config, int section, int key, const char *text,
                                bool plain, const char *where);
/* The entries' array and paths are kept: owned by the arena. */
ms_status ms__config_set_list(ms_config *config, int section, int key, ms_config_entry *entries,
                              int count, const char *where);
ms_status ms__config_set_section_auto(ms_config *config, int section, const char *where);
/* The weight of a list's entry. */
ms_status ms__config_parse_weight(const char *text, const char *where, const char *section,
                                  const char *key, double *weight);
/* "a whole number from 1 to 8 (layers), or auto": what a key may hold. */
ms_status ms__config_describe(const ms_key *key, ms_text *text);

/* Reads a whole file's text; name is what messages call it. */
ms_status ms__config_read_text(ms_config *config, const char *name, const char *text,
                               size_t length);
/* Reads one value in YAML's notation ("[a, b]", "'x'"). */
ms_status ms__config_read_value(ms_config *config, int section, int key, const char *text,
                                const char *where);
/* Refuses NUL and what is not UTF-8, naming where. */
ms_status ms__config_check_text(const char *where, const char *text, size_t length);

#endif
