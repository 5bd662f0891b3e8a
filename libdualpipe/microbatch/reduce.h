/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.h - what merge asks of a reducer before it calls it.
 */
#ifndef DP_MICROBATCH_REDUCE_H
#define DP_MICROBATCH_REDUCE_H

#include <dualpipe/microbatch.h>

/* Whether its user data fits `count` micro-batches, where that is known. DP_EINVAL. */
int dp_reducer_check(const struct dp_reducer *r, int32_t count);

#endif
