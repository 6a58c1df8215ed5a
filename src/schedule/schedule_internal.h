/* schedule_internal.h - shared by the files of schedule/: growing action lists, and the generators.
 */
#ifndef MS_SCHEDULE_SCHEDULE_INTERNAL_H
#define MS_SCHEDULE_SCHEDULE_INTERNAL_H

#include "schedule/schedule.h"

/* Appends to a stage's list; room was made beforehand by ms__schedule_room. */
ms_status ms__schedule_room(ms_action_list *list, int64_t actions);
void ms__schedule_add(ms_action_list *list, ms_action_kind kind, int64_t micro_batch, int32_t peer);
/* Forward of a micro-batch with its receive and send, as the stage's place asks. */
void ms__schedule_forward(const ms_schedule *schedule, int64_t stage, int64_t micro_batch);
void ms__schedule_backward(const ms_schedule *schedule, int64_t stage, int64_t micro_batch);

const char *ms__action_name(ms_action_kind kind); /* "forward"; "?" when there is none */
/* MS_ERR_CONFIG when a schedule of this size is not held. */
ms_status ms__schedule_limits(int64_t stages, int64_t chunks_per_stage, int64_t micro_batches);

ms_status ms__generate_gpipe(ms_schedule *schedule);
ms_status ms__generate_one_forward_one_backward(ms_schedule *schedule);

#endif
