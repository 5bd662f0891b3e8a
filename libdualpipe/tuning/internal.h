/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_TUNING_INTERNAL_H
#define DP_TUNING_INTERNAL_H

#include <dualpipe/tuning.h>

/* "allreduce", "nvls_tree", "ll128"; "default" for DP_TUNING_DEFAULT. Never NULL. */
const char *dp_tuning_function_name(int function);
const char *dp_tuning_algorithm_name(int algorithm);
const char *dp_tuning_protocol_name(int protocol);

#endif
