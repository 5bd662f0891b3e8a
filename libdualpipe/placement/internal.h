/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_PLACEMENT_INTERNAL_H
#define DP_PLACEMENT_INTERNAL_H

#include <dualpipe/assignment.h>

/* "activation", "gradient", "mirror", "mixing", "offload". */
const char *dp_flow_kind_name(enum dp_flow_kind kind);

#endif
