/*
 * one_forward_one_backward.c - 1F1B (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN
 * Training"): stage s runs min(M, stages - s - 1) forwards ahead, then one forward and one backward
 * in turn, so at most stages - s micro-batches are in flight.
 */
#include "schedule/schedule_internal.h"

ms_status ms__generate_one_forward_one_backward(ms_schedule *schedule) {
    int64_t M = schedule->micro_batches;
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        ms_action_list *list = &schedule->stage_lists[stage];
        MS_TRY(ms__schedule_room(list, 6 * M + 1));
        int64_t ahead = ms_min_i64(M, schedule->stages - stage - 1);
        for (int64_t m = 0; m < ahead; m++) {
            ms__schedule_forward(schedule, stage, m);
        }
        for (int64_t m = 0; m < M; m++) {
            if (m + ahead < M) {
                ms__schedule_forward(schedule, stage, m + ahead);
            }
            ms__schedule_backward(schedule, stage, m);
        }
        ms__schedule_add(list, MS_ACTION_STEP, 0, -1);
    }
    return MS_OK;
}
