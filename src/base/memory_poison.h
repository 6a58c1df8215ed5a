/* memory_poison.h - AddressSanitizer's marks on bytes that nobody may touch; nothing without it. */
#ifndef MS_BASE_MEMORY_POISON_H
#define MS_BASE_MEMORY_POISON_H

#if defined(__SANITIZE_ADDRESS__)
#define MS_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MS_HAS_ASAN 1
#endif
#endif

#ifdef MS_HAS_ASAN
#include <sanitizer/asan_interface.h>
#define MS_POISON(memory, bytes) __asan_poison_memory_region((memory), (bytes))
#define MS_UNPOISON(memory, bytes) __asan_unpoison_memory_region((memory), (bytes))
#else
#define MS_POISON(memory, bytes) ((void)(memory), (void)(bytes))
#define MS_UNPOISON(memory, bytes) ((void)(memory), (void)(bytes))
#endif

#endif
