/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_BASE_INTERNAL_H
#define DP_BASE_INTERNAL_H

#include <dualpipe/memory.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/parameter.h>

/* Whether the list is sound: names that are there and distinct, known flags, values of the four
 * types that fill one block of memory without gaps (any order of the dimensions, so that
 * channels-last tensors pass), gradients that fit them, tied parameters of one type and shape.
 * DP_EINVAL with the parameter's name and what is wrong; DP_ENOMEM. An empty list is sound. */
int dp_parameters_check(const struct dp_parameter *parameters, int32_t count);

/* The NUMA node that the pages of ptr[bytes] are on, of whatever memory: up to 64 of them are looked at,
 * evenly. -1: they are on several, none is there yet, or the system does not tell. Any thread. */
int dp_memory_numa_node(const void *ptr, size_t bytes);
/* For callbacks that call others: why one has returned err, in the words that it gave
 * dp_callback_error_text; "": in none. They are then forgotten, and last until the thread's next
 * call of that. */
const char *dp_callback_reason(int err);

#endif
