/*
 * fit.h - does a program fit, and what is the cheapest change that makes it fit?
 *
 * Candidates are lowered just as the run itself would be, so their bytes are exact. They are tried from
 * cheap to dear: recomputing cheap operators, more ranks that share the optimiser's state, recomputing
 * whole layers, smaller micro-batches, and these together.
 */
#ifndef MS_PLAN_FIT_H
#define MS_PLAN_FIT_H

#include "program/program.h"

#define MS_FIT_SENTENCE_BYTES 512 /* of a refusal, in full */

typedef struct ms_fix {
    char change[160]; /* "--ranks 2 --set parallel.zero=1"; empty: none was found */
    char cost[96];    /* "about 30 % more computing" */
    size_t total_bytes;
} ms_fix;

/*
 * MS_ERR_MEMORY_LIMIT with bytes, limit and the cheapest fix when the program needs more than limit_bytes
 * (0: no limit). ranks_max bounds what is proposed.
 */
ms_status ms_plan_check_fit(const ms_program *program, size_t limit_bytes, int64_t ranks_max);
/* The cheapest change found; change is empty when nothing tried fits. */
ms_status ms_plan_cheapest_fix(const ms_program_request *request, size_t limit_bytes,
                               int64_t ranks_max, ms_fix *fix);

#endif
