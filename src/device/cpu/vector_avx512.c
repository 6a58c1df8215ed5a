/*
 * vector_avx512.c - all vector kernels, compiled for AVX512.
 *
 * The logic of each family stands once, in its header, over a thin layer of vector operations; this
 * file chooses the layer. Its flags come from its name (see CMakeLists.txt), so nothing in it may
 * run before CPUID has allowed it. Rejected: one file per kernel and instruction set, as the copies
 * drift.
 */
#include "device/cpu/vector_avx512.h"

#include "device/cpu/vector_math.h"

#include "device/cpu/vector_activation.h"
#include "device/cpu/vector_dropout.h"
#include "device/cpu/vector_elementwise.h"
#include "device/cpu/vector_embedding.h"
#include "device/cpu/vector_norm.h"
#include "device/cpu/vector_optimizer.h"
#include "device/cpu/vector_xent.h"
