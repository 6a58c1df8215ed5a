/*
 * agree.c - one outcome for all ranks.
 *
 * Where it stands: between the phases of a save and of a load. A phase is local and may fail on any
 * rank; afterwards every rank calls ms__agree, so none goes on alone into a collective that the
 * others never enter.
 *
 * Invariant: the same status and sentence on every rank, those of the lowest rank that failed.
 * Rejected: an all-reduce of the worst code (the sentence of the rank that decided is what helps).
 */
#include <stdio.h>
#include <string.h>

#include "checkpoint/internal.h"

#define SENTENCE_BYTES 1024

ms_status ms__agree(ms_comm *comm, ms_status status) {
    int size = ms_comm_size(comm);
    if (size == 1) {
        return status;
    }
    if (size > MS_COMM_RANKS_MAX) {
        return ms_fail(MS_ERR_BUG, "communicator of %d ranks, at most %d are possible", size,
                       MS_COMM_RANKS_MAX);
    }
    char sentence[SENTENCE_BYTES] = "";
    if (status != MS_OK) {
        snprintf(sentence, sizeof sentence, "%s", ms_error_detail());
    }
    int32_t own = (int32_t)status;
    int32_t all[MS_COMM_RANKS_MAX];
    int64_t counts[MS_COMM_RANKS_MAX];
    for (int i = 0; i < size; i++) {
        counts[i] = (int64_t)sizeof own;
    }
    MS_TRY(ms_comm_all_gather(comm, &own, all, counts, MS_U8, NULL));
    for (int i = 0; i < size; i++) {
        if (all[i] != (int32_t)MS_OK) {
            MS_TRY(ms_comm_broadcast(comm, sentence, SENTENCE_BYTES, MS_U8, i, NULL));
            sentence[SENTENCE_BYTES - 1] = '\0';
            return ms_fail((ms_status)all[i], "rank %d: %s", i, sentence);
        }
    }
    return MS_OK;
}
