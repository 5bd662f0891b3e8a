/* SPDX-License-Identifier: Apache-2.0
 *
 * shard.h - the part of a list of parameters that one replica updates: pieces of them, as parameters of
 * one dimension, named "NAME[first:end]".
 */
#ifndef DP_MIXING_SHARD_H
#define DP_MIXING_SHARD_H

#include <dualpipe/parameter.h>

struct dp_shard_tensor;
struct dp_shard {
    struct dp_parameter *list;
    struct dp_shard_tensor *tensors;
    int32_t count;
};

/* Room for `most` pieces. DP_ENOMEM. */
int dp_shard_init(struct dp_shard *s, size_t most);
void dp_shard_fini(struct dp_shard *s);
/* Elements first .. first + count - 1 of a parameter, whose name and memory must stay. */
void dp_shard_add(struct dp_shard *s, const struct dp_parameter *p, size_t first, size_t count);

/* How often a range is halved until each replica has a part: log2 of their number; 0: it is no power of
 * two. */
int dp_shard_levels(int replicas);

#endif
