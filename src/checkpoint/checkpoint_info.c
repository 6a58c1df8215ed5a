/*
 * checkpoint_info.c - what a checkpoint or model directory holds, from its headers alone.
 *
 * Where it stands: `mindspeed checkpoint info` -> ms_checkpoint_summarize -> tensor_source.c.
 * Invariant: nothing but headers (and their blocks, when there is a manifest) is read, so it is
 * quick for a model of any size. Rejected: sizes from the file system (they count headers and
 * foreign files).
 */
#include "checkpoint/internal.h"

static void add_weights(const ms__source *source, ms_checkpoint_summary *summary) {
    summary->tensors = ms__source_count(source, MS__GROUP_MODEL);
    for (int64_t i = 0; i < summary->tensors; i++) {
        const ms_safetensors_tensor *tensor = ms__source_at(source, MS__GROUP_MODEL, i);
        int64_t count = ms_safetensors_tensor_count(tensor);
        summary->parameters += count; /* the bytes of files bound the sum */
        summary->typed[tensor->dtype] += count;
        summary->weight_bytes += tensor->bytes;
    }
}

static void add_states(const ms__source *source, ms_checkpoint_summary *summary) {
    summary->state_tensors = ms__source_count(source, MS__GROUP_OPTIMIZER);
    for (int64_t i = 0; i < summary->state_tensors; i++) {
        summary->state_bytes += ms__source_at(source, MS__GROUP_OPTIMIZER, i)->bytes;
    }
}

ms_status ms_checkpoint_summarize(const char *path, ms_checkpoint_summary *summary) {
    ms__source *source = NULL;
    ms_checkpoint_summary made = {.step = -1};
    MS_TRY(ms__source_open(path, true, &source));
    add_weights(source, &made);
    add_states(source, &made);
    const ms__manifest *manifest = ms__source_manifest(source);
    if (manifest != NULL) {
        made.has_manifest = true;
        made.step = manifest->step;
        made.files = manifest->file_count;
        for (int64_t i = 0; i < manifest->file_count; i++) {
            made.file_bytes += manifest->files[i].bytes;
        }
    }
    ms__source_close(source);
    *summary = made;
    return MS_OK;
}
