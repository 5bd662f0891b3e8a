/* SPDX-License-Identifier: Apache-2.0
 *
 * hash.h - a number for what all ranks must have in common (dp_comm_agree).
 */
#ifndef DP_MIXING_HASH_H
#define DP_MIXING_HASH_H

#include <dualpipe/parameter.h>

/* Names, types, sizes and flags of a sound list. */
uint64_t dp_hash_parameters(const struct dp_parameter *parameters, int32_t count);

#endif
