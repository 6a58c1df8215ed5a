/*
 * schedule.h - WHEN: per rank of a pipeline a list of actions; generators, and a checker that proves
 * a list right before anything runs.
 *
 * A schedule is plain data for `stages` pipeline ranks, each holding `chunks_per_stage` chunks
 * (virtual stages), and `micro_batches` micro-batches. Chunk c of stage s is model part
 * c * stages + s. Generators: gpipe, 1f1b (and, later, interleaved and zero-bubble ones: one file each).
 */
#ifndef MS_SCHEDULE_SCHEDULE_H
#define MS_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/text.h"

typedef enum ms_action_kind {
    MS_ACTION_RECV_FORWARD,  /* activation from the previous part */
    MS_ACTION_FORWARD,
    MS_ACTION_SEND_FORWARD,
    MS_ACTION_RECV_BACKWARD, /* gradient from the next part */
    MS_ACTION_INPUT_GRAD,
    MS_ACTION_WEIGHT_GRAD,
    MS_ACTION_BACKWARD,      /* input and weight gradient together, interleaved */
    MS_ACTION_SEND_BACKWARD,
    MS_ACTION_STEP,          /* optimiser; last action of every rank */
    MS_ACTION_KIND_COUNT
} ms_action_kind;

typedef struct ms_action {
    ms_action_kind kind;
    int32_t chunk;       /* of this rank */
    int64_t micro_batch; /* local to the replica: 0 .. micro_batches - 1 */
    int32_t peer_stage;  /* for send and recv, else -1 */
} ms_action;

typedef struct ms_action_list {
    ms_action *actions;
    int64_t count;
} ms_action_list;

typedef struct ms_schedule {
    char name[32];
    int64_t stages, chunks_per_stage, micro_batches;
    ms_action_list *stage_lists; /* stages of them */
} ms_schedule;

typedef struct ms_schedule_generator {
    const char *name; /* "1f1b" */
    const char *doc;
    ms_status (*generate)(ms_schedule *schedule);
} ms_schedule_generator;

/* The static table of generators, NULL-name terminated. */
const ms_schedule_generator *ms_schedule_generators(void);
/* MS_ERR_CONFIG with the nearest name, or with what the generator cannot do. */
ms_status ms_schedule_create(const char *generator, int64_t stages, int64_t chunks_per_stage,
                             int64_t micro_batches, ms_schedule **schedule);
/* Forward only, for evaluation. */
ms_status ms_schedule_create_forward(int64_t stages, int64_t chunks_per_stage,
                                     int64_t micro_batches, ms_schedule **schedule);
void ms_schedule_destroy(ms_schedule *schedule);

/* What the checker derives for each stage. */
typedef struct ms_schedule_facts {
    int64_t in_flight_max;  /* micro-batches of one chunk whose saved values live at once, the worst chunk */
    int64_t chunk_in_flight_max_total; /* summed over chunks at the worst moment */
} ms_schedule_facts;
/*
 * Proves: each micro-batch and chunk has exactly one forward and one backward (or input and weight
 * gradient, in this order), weight gradients of a chunk in micro-batch order (the order of sums);
 * every receive has its send, in the same order on both sides of a pair; the lists run to the end
 * when sends are posted without waiting (each from its micro-batch's own buffer) and receives wait,
 * so there is no deadlock. A schedule without a step must be forward only. Writes one fact a stage,
 * only on success. MS_ERR_MISMATCH names stage, position and action.
 */
ms_status ms_schedule_check(const ms_schedule *schedule, ms_schedule_facts *facts);
/* Slot (0 .. in_flight_max - 1) that a micro-batch's saved values of a chunk use: first free slot
 * at its first action, held to its last one. Writes slots[micro_batch] for one stage and chunk of a
 * checked schedule. */
ms_status ms_schedule_slots(const ms_schedule *schedule, int64_t stage, int64_t chunk,
                            int64_t *slots);
/* "s0: F0 F1 B0 ..." for people. */
ms_status ms_schedule_print(const ms_schedule *schedule, ms_text *text);

#endif
