/*
 * rope_table.h - the cosines and sines of a rotary embedding, made in prepare, shared by its
 * variants.
 */
#ifndef MS_DEVICE_CPU_ROPE_TABLE_H
#define MS_DEVICE_CPU_ROPE_TABLE_H

#include "device/cpu/cpu_kernels.h"

/*
 * prepare of the slot: sets state to a table of `type` (fp64 or fp32), position_max rows of D / 2
 * cosines followed by D / 2 sines (negated when rope.inverse), and constant_bytes to its size.
 */
ms_status ms__rope_prepare(ms_kernel_handle *handle, ms_dtype type);
/* MS_ERR_RANGE when a position lies outside the table. */
ms_status ms__rope_check_positions(const ms_kernel_handle *handle, const int32_t *positions);

#endif
