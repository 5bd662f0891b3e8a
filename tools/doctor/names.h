/* SPDX-License-Identifier: Apache-2.0
 *
 * names.h - the variables that some release of NCCL reads, 2.13 to 2.30.
 */
#ifndef DP_TOOLS_DOCTOR_NAMES_H
#define DP_TOOLS_DOCTOR_NAMES_H

#include <stddef.h>

extern const char *const nccl_names[];
extern const size_t nccl_name_count;

#endif
