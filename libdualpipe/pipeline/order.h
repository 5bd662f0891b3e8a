/* SPDX-License-Identifier: Apache-2.0
 *
 * order.h - fixed order: to which set of gradients each weight part adds, and when its turn is.
 *
 * The micro-batches of the whole batch are cut into `blocks` blocks. Each block is summed in the
 * order of its micro-batches, and the blocks are summed pairwise:
 *
 *      blocks 4, M 8      ((mb 0 + mb 1) + (mb 2 + mb 3)) + ((mb 4 + mb 5) + (mb 6 + mb 7))
 *
 * Where a schedule has the weight part of a micro-batch before that of one that precedes it in its
 * block, it waits for its turn: a backward that can be split leaves its weight part for later; the
 * gradient of one that cannot is kept apart, and added when its turn comes.
 *
 * Slots that share their parameters (a layer used several times) are summed one by one, and the
 * sums are added from the last slot to the first.
 */
#ifndef DP_PIPELINE_ORDER_H
#define DP_PIPELINE_ORDER_H

#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

enum { DP_ORDER_MAX_BLOCKS = 64, DP_ORDER_MAX_SETS = 255 };

/* The part of a micro-batch of a slot. */
struct dp_order_part {
    uint32_t ready; /* the op that has its weight part, or the backward with it */
    uint32_t turn;  /* the op after which it is added, >= ready */
    uint8_t set;    /* where it is added */
    uint8_t apart;  /* the set that it is kept in until then; 0: none */
};

/* Zeroed memory is a valid empty one. */
struct dp_order {
    uint32_t mb_count;           /* of one slot */
    struct dp_order_part *parts; /* [slots * mb_count]; meaningless in a forward-only schedule */
    uint8_t block_sets[DP_MAX_SLOTS]; /* sets of blocks; those kept apart come after them */
    uint8_t sets[DP_MAX_SLOTS];       /* all of a slot, at least 1 */
    uint32_t last_turn[DP_MAX_SLOTS];
};

/* A sum of two sets: `from` is added to `to`. */
struct dp_order_sum {
    uint8_t to, from;
};

/* blocks: a power of two from the number of streams up; 0: parts are added as they come. driven:
 * ops come in another order than in the list, so that no two parts share a set that is kept apart.
 * DP_ENOMEM; DP_EUNSUPPORTED if more than DP_ORDER_MAX_SETS sets are needed. */
int dp_order_init(struct dp_order *order, const struct dp_schedule *s, int rank,
                  const struct dp_stage *stages, int blocks, bool driven);
void dp_order_fini(struct dp_order *order);

/* Whether a later slot of the rank has the same parameters. In fixed order none of its sets is then
 * the parameters' own (set 0), to which its sum is added last, after those of the later slots. */
bool dp_order_is_shared(const struct dp_schedule *s, int rank, int slot);

/* The sums of a slot's sets, in the order in which they are taken; returns their number.
 * sums[DP_ORDER_MAX_BLOCKS]. */
int dp_order_sums(const struct dp_schedule *s, int rank, int slot, int blocks,
                  struct dp_order_sum *sums);

static inline struct dp_order_part *dp_order_part(const struct dp_order *order, uint32_t slot,
                                                  uint32_t mb)
{
    return &order->parts[(size_t)slot * order->mb_count + mb];
}

/* An I of this stage leaves a weight part for a W. */
static inline bool dp_stage_splits(const struct dp_stage *stage)
{
    return !stage->no_split;
}

#endif
