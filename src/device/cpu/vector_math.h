/*
 * vector_math.h - element access by type, and elementary functions, over the vector layer.
 *
 * Include after vector_avx2.h or vector_avx512.h. Every function is inlined with its type and count
 * constant where they matter, so a kernel's step is written once for full and part vectors:
 *
 *     for (; i + V_LANES <= n; i += V_LANES) { step(..., i, V_LANES); }
 *     if (i < n) { step(..., i, (int)(n - i)); }
 */
#ifndef MS_DEVICE_CPU_VECTOR_MATH_H
#define MS_DEVICE_CPU_VECTOR_MATH_H

#include "device/cpu/cpu_kernels.h"

/* Flat tensors are worked through in pieces of this many elements, whatever the team. */
#define V_PIECE 16384
/* A thread is worth waking for this many elements. */
#define V_THREAD_ELEMENTS 8192

V_INLINE bool v_type_is_served(ms_dtype type) {
    return type == MS_F32 || type == MS_BF16;
}

/* `supports` of the slots whose compute type is that of their first, or second, argument. */
static inline bool v_first_is_served(const ms_device *device, const ms_kernel_spec *spec) {
    (void)device;
    return v_type_is_served(spec->arguments[0].dtype);
}
static inline bool v_second_is_served(const ms_device *device, const ms_kernel_spec *spec) {
    (void)device;
    return v_type_is_served(spec->arguments[1].dtype);
}

V_INLINE int v_team(const ms_kernel_handle *handle, int64_t elements) {
    return ms__cpu_team(handle, elements / V_THREAD_ELEMENTS);
}

/* Elements `at` to `at + count` of a tensor of fp32 or bf16, as floats. */
V_INLINE v_f32 v_get(const void *base, ms_dtype type, int64_t at, int count) {
    if (type == MS_F32) {
        const float *from = (const float *)base + at;
        return count >= V_LANES ? v_load(from) : v_load_part(from, count);
    }
    const uint16_t *from = (const uint16_t *)base + at;
    return count >= V_LANES ? v_load_bf16(from) : v_load_bf16_part(from, count);
}

/* How far ahead of the element at hand the streaming kernels ask for memory: hardware alone keeps
 * too few lines of one core in flight (measured best of 0.5 to 8 KiB: 20 to 40 % off the time of
 * AdamW and of the loss). */
#define V_AHEAD_BYTES 2048

V_INLINE void v_ahead(const void *base, ms_dtype type, int64_t at) {
    size_t bytes = type == MS_F32 ? sizeof(float) : sizeof(uint16_t);
    v_prefetch((const char *)base + (size_t)at * bytes + V_AHEAD_BYTES);
}

V_INLINE void v_put(void *base, ms_dtype type, int64_t at, int count, v_f32 value) {
    if (type == MS_F32) {
        float *to = (float *)base + at;
        if (count >= V_LANES) {
            v_store(to, value);
        } else {
            v_store_part(to, count, value);
        }
        return;
    }
    uint16_t *to = (uint16_t *)base + at;
    if (count >= V_LANES) {
        v_store_bf16(to, value);
    } else {
        v_store_bf16_part(to, count, value);
    }
}

V_INLINE v_f32 v_round_to(ms_dtype type, v_f32 value) {
    return type == MS_BF16 ? v_round_bf16(value) : value;
}

/* a within [low, high]; NaN stays. */
V_INLINE v_f32 v_clamp(v_f32 a, float low, float high) {
    return v_min(v_set(high), v_max(v_set(low), a));
}

/*
 * exp(a) for -104 <= a, overflowing to infinity where exp does; not for infinite a. At most 1.2
 * units in the last place off, and another |a| 3e-9 relative, as n ln 2 is taken off in one step.
 * a = n ln 2 + r; the polynomial is a minimax fit of (exp(r) - 1 - r) / r^2 on +-ln 2 / 2, error
 * 3e-9 relative to exp.
 */
V_INLINE v_f32 v_exp_finite(v_f32 a) {
    const v_f32 shift = v_set(0x1.8p23f); /* adding it rounds to an integer */
    v_f32 n = v_sub(v_fma(a, v_set(0x1.715476p0f), shift), shift);
    v_f32 r = v_fnma(n, v_set(0x1.62e43p-1f), a);
    v_f32 p = v_fma(v_set(0x1.6a2430p-10f), r, v_set(0x1.1239e4p-7f));
    p = v_fma(p, r, v_set(0x1.5558f2p-5f));
    p = v_fma(p, r, v_set(0x1.555492p-3f));
    p = v_fma(p, r, v_set(0x1.fffffcp-2f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_scale_by_power(p, n);
}

/* exp(a) for a <= 88, 0 for minus infinity. */
V_INLINE v_f32 v_exp_below(v_f32 a) {
    return v_exp_finite(v_max(v_set(-104.0f), a));
}

/*
 * The normal distribution's tail, from z = |a| and density = exp(-z^2 / 2): P(X < -z). The
 * polynomial in t = 1 / (1 + z / 4) is a minimax fit of the tail over the density, error 6e-8
 * relative.
 */
V_INLINE v_f32 v_normal_tail(v_f32 z, v_f32 density) {
    v_f32 t = v_inverse(v_fma(z, v_set(0.25f), v_set(1.0f)));
    v_f32 p = v_fma(v_set(0.025723371654748917f), t, v_set(-0.1528088003396988f));
    p = v_fma(p, t, v_set(0.29612088203430176f));
    p = v_fma(p, t, v_set(-0.20578229427337646f));
    p = v_fma(p, t, v_set(0.20175780355930328f));
    p = v_fma(p, t, v_set(0.03292803093791008f));
    p = v_fma(p, t, v_set(0.1037466749548912f));
    p = v_fma(p, t, v_set(0.09851684421300888f));
    p = v_fma(p, t, v_set(0.09979747980833054f));
    return v_mul(v_mul(p, t), density);
}

#endif
