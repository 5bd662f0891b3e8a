/* SPDX-License-Identifier: Apache-2.0
 *
 * algorithms.h - how the collectives are carried out, as steps for the engine.
 */
#ifndef DP_COMM_ALGORITHMS_H
#define DP_COMM_ALGORITHMS_H

#include "comm/engine.h"

/* What suits these arguments; size is at least 2. */
const struct dp_algorithm *dp_choose_allreduce(const struct dp_collective_args *args);
const struct dp_algorithm *dp_choose_allgather(const struct dp_collective_args *args);
const struct dp_algorithm *dp_choose_broadcast(const struct dp_collective_args *args);
/* in[size * count] to out[count]. */
extern const struct dp_algorithm dp_reduce_scatter_direct;
extern const struct dp_algorithm dp_swap_once;

/* Where block `index` of count elements begins; the first ones are longer by one. */
static inline size_t dp_block_at(size_t count, int size, int index)
{
    const size_t each = count / (size_t)size, longer = count % (size_t)size, i = (size_t)index;

    return each * i + (i < longer ? i : longer);
}

#endif
