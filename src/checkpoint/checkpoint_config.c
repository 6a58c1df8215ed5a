/*
 * checkpoint_config.c - the keys of section `checkpoint`.
 *
 * Where it stands: the train loop reads the filled ms_checkpoint_config; from the same table come
 * the checks, the help texts and docs/config.md. Invariant: an enum's default is one of its
 * choices, and the order of the choices is what checkpoint.h says an index means.
 */
#include <stddef.h>

#include "checkpoint/checkpoint.h"

#define FIELD(name) offsetof(ms_checkpoint_config, name)

static const char *const resume_choices[] = {"auto", "never", "required", NULL};
static const char *const failure_choices[] = {"continue", "stop", NULL};

static const ms_key keys[] = {
    {.name = "dir",
     .type = MS_KEY_STRING,
     .offset = FIELD(dir),
     .default_text = "",
     .unit = "",
     .doc = "Directory of the run: checkpoints, metrics and the resolved configuration go there; "
            "without it nothing is saved."},
    {.name = "every_steps",
     .type = MS_KEY_INT,
     .offset = FIELD(every_steps),
     .default_text = "500",
     .unit = "steps",
     .minimum = 0,
     .maximum = 1e15,
     .doc = "A checkpoint is saved each time this many updates have been made; 0 saves at the end "
            "only."},
    {.name = "keep",
     .type = MS_KEY_INT,
     .offset = FIELD(keep),
     .default_text = "2",
     .unit = "checkpoints",
     .minimum = 1,
     .maximum = 1e9,
     .doc =
         "How many of the newest checkpoints stay; older ones are removed once a new one is safely "
         "on disk."},
    {.name = "resume",
     .type = MS_KEY_ENUM,
     .offset = FIELD(resume),
     .default_text = "auto",
     .unit = "",
     .choices = resume_choices,
     .doc =
         "auto goes on from the newest good checkpoint in dir if there is one, never starts anew, "
         "required fails without one."},
    {.name = "on_save_failure",
     .type = MS_KEY_ENUM,
     .offset = FIELD(on_save_failure),
     .default_text = "continue",
     .unit = "",
     .choices = failure_choices,
     .doc = "Whether the run goes on or stops when a checkpoint cannot be written; earlier "
            "checkpoints "
            "stay intact in both cases."},
    {.name = "save_at_end",
     .type = MS_KEY_BOOL,
     .offset = FIELD(save_at_end),
     .default_text = "true",
     .unit = "",
     .doc = "Saves a full checkpoint after the last step, so that the run can be extended."},
};

const ms_config_section ms_checkpoint_section = {
    .name = "checkpoint",
    .doc = "Where and when the state of a run is saved, and how a run goes on from it.",
    .keys = keys,
    .key_count = (int)(sizeof keys / sizeof keys[0]),
    .struct_bytes = sizeof(ms_checkpoint_config),
};
