/*
 * cpu.c - the processor's instruction sets, name and usable cores.
 *
 * Where it stands: device/ fills its kernel table by ms_cpu_isa, the launcher divides cores by
 * ms_cpu_count.
 *
 * A feature counts only when the processor has it (CPUID) and the kernel saves its registers
 * (XCR0); AMX also needs a permission that the process asks for once. Read once and kept.
 */
#define _GNU_SOURCE 1 /* sched_getaffinity and CPU_COUNT_S */

#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

static struct cpu_info {
    ms_isa isa;
    bool avx512_bf16;
    bool amx_bf16;
    char name[64];
} info = {.name = "unknown processor"};
static pthread_once_t info_once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)

#define XCR0_AVX UINT64_C(0x6)     /* SSE and AVX registers */
#define XCR0_AVX512 UINT64_C(0xe6) /* and mask and upper vector registers */
#define XCR0_AMX UINT64_C(0x60000) /* tile configuration and data */
#define ARCH_REQ_XCOMP_PERMISSION 0x1023
#define XFEATURE_TILE_DATA 18

static uint64_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((uint64_t)high << 32) | low;
}

static bool has(uint32_t word, unsigned bit) {
    return ((word >> bit) & 1u) != 0;
}

/* The brand string of leaves 0x80000002 to 4, without the blanks around it. */
static void read_name(void) {
    uint32_t words[13] = {0};
    if ((uint32_t)__get_cpuid_max(0x80000000u, NULL) < 0x80000004u) {
        return;
    }
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t *w = words + 4 * i;
        __get_cpuid(0x80000002u + i, &w[0], &w[1], &w[2], &w[3]);
    }
    char text[sizeof words];
    memcpy(text, words, sizeof words);
    size_t first = strspn(text, " ");
    size_t length = strlen(text + first);
    while (length > 0 && text[first + length - 1] == ' ') {
        length--;
    }
    if (length > 0) {
        snprintf(info.name, sizeof info.name, "%.*s", (int)length, text + first);
    }
}

static void read_info(void) {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    read_name();
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 27)) { /* OSXSAVE */
        return;
    }
    uint64_t xcr0 = read_xcr0();
    bool fma = has(c, 12);
    bool avx = has(c, 28);
    bool f16c = has(c, 29);
    if ((xcr0 & XCR0_AVX) != XCR0_AVX || !avx || !fma || !f16c ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, 5)) {
        return;
    }
    info.isa = MS_ISA_AVX2;
    bool avx512 = has(b, 16) && has(b, 17) && has(b, 30) && has(b, 31); /* F, DQ, BW, VL */
    bool amx = has(d, 24) && has(d, 22);                                /* tiles, bf16 */
    if ((xcr0 & XCR0_AVX512) != XCR0_AVX512 || !avx512) {
        return;
    }
    info.isa = MS_ISA_AVX512;
    uint32_t a1 = 0, b1 = 0, c1 = 0, d1 = 0;
    info.avx512_bf16 = __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) && has(a1, 5);
    info.amx_bf16 = amx && (xcr0 & XCR0_AMX) == XCR0_AMX &&
                    syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERMISSION, XFEATURE_TILE_DATA) == 0;
}

#else

static void read_info(void) {
    info.isa = MS_ISA_REF;
}

#endif

ms_isa ms_cpu_isa(void) {
    pthread_once(&info_once, read_info);
    return info.isa;
}

bool ms_cpu_has_avx512_bf16(void) {
    pthread_once(&info_once, read_info);
    return info.avx512_bf16;
}

bool ms_cpu_has_amx_bf16(void) {
    pthread_once(&info_once, read_info);
    return info.amx_bf16;
}

const char *ms_isa_name(ms_isa isa) {
    static const char *const names[MS_ISA_COUNT] = {"ref", "avx2", "avx512"};
    return (unsigned)isa < MS_ISA_COUNT ? names[isa] : "unknown";
}

const char *ms_cpu_name(void) {
    pthread_once(&info_once, read_info);
    return info.name;
}

int ms_cpu_count(void) {
    /* Masks of more than 1,024 processors need a larger set: try until it fits. */
    for (int limit = CPU_SETSIZE; limit <= 1 << 20; limit *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)limit);
        if (set == NULL) {
            break;
        }
        size_t bytes = CPU_ALLOC_SIZE((size_t)limit);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) {
            return count;
        }
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
