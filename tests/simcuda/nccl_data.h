/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_data.h - data that can be told from any other of the same test, in every type that NCCL
 * reduces, with sums that are exact in all of them.
 */
#ifndef DP_TESTS_SIMCUDA_NCCL_DATA_H
#define DP_TESTS_SIMCUDA_NCCL_DATA_H

#include <stddef.h>
#include <stdint.h>

/* What rank puts at index in a round: 0 to 28, so that 8 ranks' sum is below 256, which bfloat16
 * holds. */
int nccl_data_value(int rank, size_t index, unsigned round);

size_t nccl_data_type_bytes(int type);
void nccl_data_store(void *at, int type, double value);

#endif
