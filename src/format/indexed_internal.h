/* indexed_internal.h - the layout of .idx files, shared by the reader and the writer. */
#ifndef MS_FORMAT_INDEXED_INTERNAL_H
#define MS_FORMAT_INDEXED_INTERNAL_H

#include <stdint.h>

#include "base/file.h"
#include "base/types.h"

#define MS_INDEXED_MAGIC "MMIDIDX\0"
#define MS_INDEXED_MAGIC_BYTES 9 /* with the two NULs */
#define MS_INDEXED_VERSION 1
/* magic, u64 version, u8 code, u64 sequences, u64 entries of the document index */
#define MS_INDEXED_HEADER_BYTES 34

/* Megatron's type codes; -1 when there is none for the type. */
int ms__indexed_code(ms_dtype dtype);

/* PREFIX + suffix, where path may be the prefix or end in .bin or .idx. */
ms_status ms__indexed_path(const char *path, const char *suffix, char out[MS_PATH_BYTES]);

#endif
