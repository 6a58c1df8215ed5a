/* axis.h - the five axes along which work is divided, innermost first. */
#ifndef MS_TENSOR_AXIS_H
#define MS_TENSOR_AXIS_H

typedef enum ms_axis {
    MS_AXIS_TENSOR,
    MS_AXIS_CONTEXT,
    MS_AXIS_EXPERT,
    MS_AXIS_DATA,
    MS_AXIS_PIPELINE,
    MS_AXIS_COUNT,
    MS_AXIS_NONE = -1
} ms_axis;

#endif
