/*
 * gpipe.c - all forwards, then all backwards (Huang et al. 2019, "GPipe"). Every micro-batch is in
 * flight at once.
 */
#include "schedule/schedule_internal.h"

ms_status ms__generate_gpipe(ms_schedule *schedule) {
    for (int64_t stage = 0; stage < schedule->stages; stage++) {
        ms_action_list *list = &schedule->stage_lists[stage];
        MS_TRY(ms__schedule_room(list, 6 * schedule->micro_batches + 1));
        for (int64_t m = 0; m < schedule->micro_batches; m++) {
            ms__schedule_forward(schedule, stage, m);
        }
        for (int64_t m = 0; m < schedule->micro_batches; m++) {
            ms__schedule_backward(schedule, stage, m);
        }
        ms__schedule_add(list, MS_ACTION_STEP, 0, -1);
    }
    return MS_OK;
}
