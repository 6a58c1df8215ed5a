/* version.c - the version as text, from the numbers of the public header. */
#include <mindspeed/version.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *ms_version(void) {
    return TEXT(MS_VERSION_MAJOR) "." TEXT(MS_VERSION_MINOR) "." TEXT(MS_VERSION_PATCH);
}
