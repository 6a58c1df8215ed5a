/* program_internal.h - shared by the files of program/. */
#ifndef MS_PROGRAM_PROGRAM_INTERNAL_H
#define MS_PROGRAM_PROGRAM_INTERNAL_H

#include "program/program.h"

static inline ms_buffer ms__no_buffer(void) {
    return (ms_buffer){.region = MS_REGION_NONE};
}

/* The one handle of a spec: made on first use. */
ms_status ms__program_kernel(ms_program *program, const ms_kernel_spec *spec,
                             ms_kernel_handle **kernel);
/* Takes `bytes` of a region, aligned; the offset where they begin. */
ms_status ms__program_reserve(ms_program *program, ms_region region, size_t bytes, size_t *offset);

/* flat.c: parameters, flat order, buckets, ZeRO ranges, norm parts, their regions. */
ms_status ms__program_flatten(ms_program *program);
ms_status ms__program_finish_buckets(ms_program *program);

/* place.c: an address for every value of a chunk. buffers is indexed by value. */
ms_status ms__program_place(ms_program *program, ms_program_chunk *chunk, ms_buffer *buffers);

/* lower.c: kernels and arguments of a chunk's nodes. */
ms_status ms__program_lower_chunk(ms_program *program, ms_program_chunk *chunk);

#endif
