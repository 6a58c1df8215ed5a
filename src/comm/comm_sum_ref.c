/*
 * comm_sum_ref.c - the loops of comm_sum_kernels.inl for any processor.
 *
 * Where it stands: what the other two variants are tested against, and what runs where they cannot.
 */
#define KERNELS_NAME ms__sum_kernels_ref
#include "comm/comm_sum_kernels.inl"
