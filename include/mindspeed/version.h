/* version.h - the library's version, by semantic versioning. Since 0.1. */
#ifndef MINDSPEED_VERSION_H
#define MINDSPEED_VERSION_H

#include <mindspeed/status.h>

#define MS_VERSION_MAJOR 0
#define MS_VERSION_MINOR 1
#define MS_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library in use, such as "0.1.0". The pointer lives for ever. */
MS_API const char *ms_version(void);

#ifdef __cplusplus
}
#endif
#endif
