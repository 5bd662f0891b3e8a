/* SPDX-License-Identifier: Apache-2.0
 *
 * partition.h - a list of layers cut into stages: contiguous groups of layers (locations) and the
 * order in which they are executed (invocations).
 *
 * A layer may occur several times in the list: it is one layer, whose parameters live where it is
 * used first, and which is executed once for every occurrence. Such a layer is a group by itself.
 *
 *      layers      a  s  b  s  c        balance 2, 2
 *      location    0@0 0@1 1@0 0@1 1@1  stage@index; 0@1 holds s and is executed twice
 *      invocation  0   1   2   3   4
 *
 * An invocation is a stage of a schedule (dp_schedule_spec.partition), a location is a set of
 * parameters. All of this is plain data; any thread may call anything here.
 *
 * Source: fairscale's AsyncPipe (its partitioning loses or repeats layers in three cases, see
 * dp_partition_spec.compat); block partitions: Barany and Grinberg, "Block partitions of sequences"
 * (2015), as torchgpipe and fairscale use it.
 */
#ifndef DUALPIPE_PARTITION_H
#define DUALPIPE_PARTITION_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group of layers on a stage; stage -1: none. */
struct dp_location {
    int32_t stage, index;
};

/* positions[first] .. positions[first + count - 1] of the partition: where in the list of layers
 * the group's layers stand. */
struct dp_layer_group {
    struct dp_location at;
    int32_t first, count;
};

/* One execution of a group; order counts them along the model. */
struct dp_invocation {
    int32_t order;
    int32_t group; /* index into groups */
    struct dp_location at;
    struct dp_location source, dest; /* of the invocations before and after; stage -1: none */
};

struct dp_partition {
    int32_t stages;
    int32_t layer_count; /* entries of the list */
    int32_t group_count, invocation_count;
    struct dp_layer_group *groups;     /* by stage, then index */
    int32_t *positions;                /* [<= layer_count] */
    struct dp_invocation *invocations; /* by order */
};

struct dp_partition_spec {
    const int32_t *layers;  /* [layer_count] which layer, at least 0: equal numbers are one
                             * layer. NULL: all different */
    int32_t layer_count;    /* >= 0 */
    const int32_t *balance; /* [stages] distinct layers of each stage, > 0 */
    int32_t stages;         /* >= 0 */
    int32_t ranks;          /* of the pipeline, >= stages; 0: as many as stages */
    bool compat; /* what fairscale does: a group is not closed by a reused layer, uses after the
                  * last new layer are dropped, two uses in a row are one execution */
    uint64_t reserved[2];
};

/* DP_EINVAL, naming the row of AsyncPipe's error table (docs of the schedule folder): A4 the
 * balance's sum is not the number of distinct layers, A5 an entry of it is not positive, A6 fewer
 * ranks than stages, A8 an entry of the list that is no layer; DP_ENOMEM. The caller frees. */
DP_PUBLIC int dp_partition_new(const struct dp_partition_spec *spec, struct dp_partition **out);
DP_PUBLIC void dp_partition_free(struct dp_partition *p);

/* Layers of a stage, over all its groups. */
static inline int32_t dp_partition_len(const struct dp_partition *p, int32_t stage)
{
    int32_t len = 0;

    for (int32_t g = 0; g < p->group_count; g++)
        len += p->groups[g].at.stage == stage ? p->groups[g].count : 0;
    return len;
}

/* Position in the list of the stage's index-th layer; negative: from the end, -1 the last. DP_EINVAL
 * (A15) outside. */
DP_PUBLIC int dp_partition_layer(const struct dp_partition *p, int32_t stage, int32_t index,
                                 int32_t *position);

/* Cut costs[count] into `parts` contiguous blocks of similar sums, the block partition: no block's
 * sum exceeds the smallest one's by more than the largest cost (after the costs were shifted and
 * scaled to 0 .. 1). balance[parts] gets the lengths, the same as fairscale's unless that has an
 * empty block; here none is empty. DP_EINVAL: parts < 1, fewer costs than parts,
 * a cost that is negative or no number. */
DP_PUBLIC int dp_partition_blocks(const double *costs, int32_t count, int32_t parts,
                                  int32_t *balance);

/* What a layer costs in memory, for dp_partition_by_size. */
struct dp_layer_size {
    double activation_bytes; /* of one sample */
    double parameter_bytes;
};

/* By size: activation bytes of a sample * batch / chunks + parameter bytes * scale. scale: 2 to 3
 * for SGD, 4 to 5 for Adam, 4 for Adadelta, 3 for Adagrad, 3 to 5 for RMSprop. */
DP_PUBLIC int dp_partition_by_size(const struct dp_layer_size *sizes, int32_t count, int32_t parts,
                                   double batch, int32_t chunks, double scale, int32_t *balance);

/* Run forward and backward of one layer once, for dp_partition_by_time. 0, or a negative errno,
 * which ends the measurement. */
typedef int dp_layer_run_fn(void *user, int32_t layer);
/* By measured time: every layer in turn, again and again until budget_ns has passed (at least once
 * each); the sums of their times are balanced. Errors as above, and those of run. */
DP_PUBLIC int dp_partition_by_time(dp_layer_run_fn *run, void *user, int32_t count, int32_t parts,
                                   int64_t budget_ns, int32_t *balance);

/* Which stages a rank holds, of S: one; stage s and S-1-s (DualPipe, DualPipeV, ZB-V); or s and
 * s + S/2 (interleaved with two stages a rank). */
enum dp_pairing { DP_PAIRING_NONE, DP_PAIRING_MIRRORED, DP_PAIRING_INTERLEAVED };

#define DP_PARTITION_PAIRED_MAX 256 /* layers, with two stages a rank */

/* Cut costs[count] into contiguous stages, each with a layer or more, so that the largest sum of a
 * rank is as small as can be: exact, by dynamic programming. balance[stages] gets the lengths,
 * *largest that sum. DP_EINVAL: fewer layers than stages, a cost that is negative or no number; with
 * two stages a rank an odd number of stages, or more than
 * DP_PARTITION_PAIRED_MAX layers. DP_ENOMEM. */
DP_PUBLIC int dp_partition_exact(const double *costs, int32_t count, int32_t stages,
                                 enum dp_pairing pairing, int32_t *balance, double *largest);

#ifdef __cplusplus
}
#endif
#endif
