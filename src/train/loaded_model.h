/*
 * loaded_model.h - a model from a directory, on one rank, to evaluate or to generate with: what `mindspeed generate`,
 * `mindspeed eval` and the generator share.
 */
#ifndef MS_TRAIN_LOADED_MODEL_H
#define MS_TRAIN_LOADED_MODEL_H

#include "engine/engine.h"
#include "format/tokenizer.h"

typedef struct ms_loaded_model {
    ms_comm *comm;
    ms_device *device;
    ms_model *model;
    ms_tokenizer *tokenizer; /* NULL: the directory has none */
    ms_layout layout;
    ms_program *program;
    ms_engine *engine;
    char path[4096]; /* of the model's directory: of a run, its newest checkpoint */
} ms_loaded_model;

typedef struct ms_load_request {
    ms_model_mode mode;       /* EVALUATE or GENERATE */
    int64_t batch, sequence;  /* EVALUATE: sequences at once; GENERATE: rows at once */
    int64_t positions;        /* GENERATE: of the cache; 0: the model's */
    ms_dtype compute;
    int threads; /* 0: all cores */
} ms_load_request;

/* sequence 0: the model's positions. On failure nothing stays open. */
ms_status ms_loaded_model_open(const char *path, const ms_load_request *request,
                               ms_loaded_model *loaded);
void ms_loaded_model_close(ms_loaded_model *loaded);

#endif
