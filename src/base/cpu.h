/* cpu.h - what this processor can do, and how many cores this process may use. */
#ifndef MS_BASE_CPU_H
#define MS_BASE_CPU_H

#include <stdbool.h>

/* Levels of instruction sets; each includes the ones before it. */
typedef enum ms_isa {
    MS_ISA_REF,    /* portable C */
    MS_ISA_AVX2,   /* AVX2, FMA, F16C */
    MS_ISA_AVX512, /* AVX-512 F, BW, DQ, VL */
    MS_ISA_COUNT
} ms_isa;

ms_isa ms_cpu_isa(void); /* the best of this processor, by CPUID and XGETBV; cached */
bool ms_cpu_has_avx512_bf16(void);
bool ms_cpu_has_amx_bf16(void);
const char *ms_isa_name(ms_isa isa); /* "ref", "avx2", "avx512" */
/* Processor's brand string; never NULL. */
const char *ms_cpu_name(void);
int ms_cpu_count(void); /* in this process's affinity mask */

#endif
