/*
 * config.h - configuration: one table of keys per room, one YAML file, overrides.
 *
 * A room declares a struct and a table of keys that point into it. From the tables come: validation
 * with file and line, the nearest name of an unknown key, --set section.key=value, MS_SECTION_KEY,
 * `mindspeed help KEY`, docs/config.md and the resolved copy stored with each run and checkpoint.
 * Order of authority: --set, then environment, then file, then default.
 *
 * A key that may be `auto` holds MS_AUTO (integers) or MS_AUTO_REAL. Strings are owned by the
 * config.
 */
#ifndef MS_BASE_CONFIG_H
#define MS_BASE_CONFIG_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

#define MS_AUTO INT64_MIN
#define MS_AUTO_REAL ((double)INFINITY)

typedef enum ms_key_type {
    MS_KEY_BOOL,   /* bool */
    MS_KEY_INT,    /* int64_t; 1_000 and 1e6 are accepted when integral */
    MS_KEY_REAL,   /* double */
    MS_KEY_STRING, /* const char *, NULL when empty */
    MS_KEY_ENUM,   /* int, an index into choices */
    MS_KEY_LIST,   /* ms_config_list *: a scalar, or a list of scalars or {path, weight} */
} ms_key_type;

/* The value of an MS_KEY_LIST key; NULL when not given. */
typedef struct ms_config_entry {
    const char *path;
    double weight; /* 1.0 when not given */
} ms_config_entry;
typedef struct ms_config_list {
    int count;
    ms_config_entry *entries;
} ms_config_list;

typedef struct ms_key {
    const char *name;
    ms_key_type type;
    size_t offset;            /* into the section's struct */
    const char *default_text; /* parsed like the file's text; NULL: required in the file; "" none */
    const char *unit;         /* "" when it has none */
    double minimum, maximum;  /* inclusive, for numbers; both 0: any */
    const char *const *choices; /* for enums, NULL-terminated */
    bool allow_auto;
    const char *doc; /* one sentence */
} ms_key;

typedef struct ms_config_section {
    const char *name;
    const char *doc;
    const ms_key *keys;
    int key_count;
    size_t struct_bytes;
    /* The whole section may be the word `auto`: every key that allows it is auto. */
    bool allow_auto;
} ms_config_section;

typedef struct ms_config ms_config;

typedef struct ms_config_source {
    const char *path; /* YAML file; NULL: defaults only */
    const char *text; /* or its text in memory (path then only names it); may be NULL */
    const char *const *assignments; /* "section.key=value", in order, from --set */
    int assignment_count;
    bool use_environment; /* MS_SECTION_KEY */
} ms_config_source;

/*
 * Reads and checks everything. Errors are MS_ERR_CONFIG with "file:line: ..." (or "--set ...",
 * "MS_TRAIN_STEPS: ..."). The sections' array and tables must outlive the config.
 */
ms_status ms_config_load(const ms_config_source *source, const ms_config_section *const *sections,
                         int section_count, ms_config **config);
void ms_config_destroy(ms_config *config);
/* The filled struct of a section (struct_bytes), owned by the config. NULL: no such section. */
const void *ms_config_values(const ms_config *config, const char *section);
/* As above, writable: for the one place that resolves `auto` values. Strings set there must come
 * from ms_config_strdup. */
void *ms_config_values_mutable(ms_config *config, const char *section);
const char *ms_config_strdup(ms_config *config, const char *text);
bool ms_config_is_set(const ms_config *config, const char *section, const char *key);
/* Where a key was set, for messages: "gpt.yaml:12", "--set", "MS_TRAIN_STEPS" or "default". The
 * pointer is owned by the config. */
const char *ms_config_where(const ms_config *config, const char *section, const char *key);
/* A variable outside the sections (MS_KERNEL, MS_RANK, ...); NULL when unset or empty. The library
 * reads the environment nowhere else. */
const char *ms_config_environment(const char *name);
/* The resolved configuration as YAML that loads to the same values. */
ms_status ms_config_emit(const ms_config *config, ms_text *yaml);

/* help: "train.steps" or "steps" or "train", NULL or "" for the list of sections; writes paragraphs
 * for people. Unknown: MS_ERR_NOT_FOUND with the nearest name. */
ms_status ms_config_help(const ms_config_section *const *sections, int section_count,
                         const char *key, ms_text *text);
/* The reference page, in Markdown. */
ms_status ms_config_reference(const ms_config_section *const *sections, int section_count,
                              ms_text *markdown);

#endif
