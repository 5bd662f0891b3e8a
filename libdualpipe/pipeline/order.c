/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/order.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* Block b begins at micro-batch b * M / blocks, rounded down. */
static int block_of(const struct dp_schedule *s, int blocks, int stream, int mb)
{
    int64_t global = (int64_t)stream * s->mb_per_stream + mb;
    return (int)(((global + 1) * blocks - 1) / s->microbatches);
}

static int first_block(const struct dp_schedule *s, int blocks, int stream)
{
    return block_of(s, blocks, stream, 0);
}

bool dp_order_is_shared(const struct dp_schedule *s, int rank, int slot)
{
    for (int later = slot + 1; later < dp_schedule_slot_count(s, rank); later++)
        if (dp_schedule_slot(s, rank, later)->location == dp_schedule_slot(s, rank, slot)->location)
            return true;
    return false;
}

/* ---- turns ---------------------------------------------------------------------------------- */

static bool has_weight_part(const struct dp_op *op, const struct dp_stage *stage)
{
    if (op->kind == DP_OP_I || op->kind == DP_OP_W)
        return (op->kind == DP_OP_W) == dp_stage_splits(stage);
    return op->kind == DP_OP_B;
}

static void find_ready(struct dp_order *order, const struct dp_schedule *s, int rank,
                       const struct dp_stage *stages)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    size_t count = dp_schedule_count(s, rank);

    for (uint32_t i = 0; i < count; i++)
        if (has_weight_part(&ops[i], &stages[ops[i].slot]))
            dp_order_part(order, ops[i].slot, ops[i].mb)->ready = i;
}

/* In the order of micro-batches: a part's turn is not before that of the part before it. */
static void find_turns(struct dp_order *order, const struct dp_schedule *s, int rank, uint32_t slot,
                       int blocks)
{
    const int stream = dp_schedule_slot(s, rank, (int)slot)->stream;
    const int base = blocks && dp_order_is_shared(s, rank, (int)slot);
    uint32_t turn = 0;
    int set = -1;

    for (uint32_t mb = 0; mb < order->mb_count; mb++) {
        struct dp_order_part *part = dp_order_part(order, slot, mb);
        int its_set =
            blocks ? base + block_of(s, blocks, stream, (int)mb) - first_block(s, blocks, stream)
                   : 0;
        bool goes_on = blocks && its_set == set;
        turn = goes_on && turn > part->ready ? turn : part->ready;
        part->turn = turn;
        part->set = (uint8_t)its_set;
        set = its_set;
        if (turn > order->last_turn[slot])
            order->last_turn[slot] = turn;
    }
    order->block_sets[slot] = (uint8_t)(set + 1);
}

/* ---- parts kept apart ------------------------------------------------------------------------ */

static bool can_wait(const struct dp_stage *stage)
{
    return dp_stage_splits(stage) && stage->ops->weight;
}

/* A set is free again after the turn of the part that was kept in it; never if `now` is 0. */
static int take_set(const struct dp_order *order, uint32_t slot, uint32_t now)
{
    for (int set = order->block_sets[slot]; set <= DP_ORDER_MAX_SETS; set++) {
        bool taken = false;
        for (uint32_t mb = 0; mb < order->mb_count && !taken; mb++) {
            const struct dp_order_part *part = dp_order_part(order, slot, mb);
            taken = part->apart == set && part->turn >= now;
        }
        if (!taken)
            return set;
    }
    return -1;
}

static int find_apart(struct dp_order *order, const struct dp_schedule *s, int rank,
                      const struct dp_stage *stages, bool driven)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    size_t count = dp_schedule_count(s, rank);

    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = ops[i].slot;
        if (!has_weight_part(&ops[i], &stages[slot]) || can_wait(&stages[slot]))
            continue;
        struct dp_order_part *part = dp_order_part(order, slot, ops[i].mb);
        int set = part->turn > i ? take_set(order, slot, driven ? 0 : i) : 0;
        if (set < 0 || set >= DP_ORDER_MAX_SETS)
            return dp_fail(DP_EUNSUPPORTED,
                           "fixed order: slot %u of rank %d has more than %d weight parts out of "
                           "order at once, which its stage cannot leave for later (no_split)",
                           slot, rank, DP_ORDER_MAX_SETS);
        part->apart = (uint8_t)set;
        if (set >= order->sets[slot])
            order->sets[slot] = (uint8_t)(set + 1);
    }
    return 0;
}

/* ---- together ------------------------------------------------------------------------------- */

int dp_order_init(struct dp_order *order, const struct dp_schedule *s, int rank,
                  const struct dp_stage *stages, int blocks, bool driven)
{
    int slots = dp_schedule_slot_count(s, rank);
    size_t n = (size_t)slots * (size_t)s->mb_per_stream;

    *order = (struct dp_order){.mb_count = (uint32_t)s->mb_per_stream};
    order->parts = calloc(n + 1, sizeof(*order->parts));
    if (!order->parts)
        return dp_fail(DP_ENOMEM, "no memory to order %zu micro-batches", n);
    memset(order->sets, 1, sizeof(order->sets));
    if (s->forward_only)
        return 0;
    find_ready(order, s, rank, stages);
    for (int slot = 0; slot < slots; slot++) {
        find_turns(order, s, rank, (uint32_t)slot, blocks);
        order->sets[slot] = order->block_sets[slot];
    }
    return find_apart(order, s, rank, stages, driven);
}

void dp_order_fini(struct dp_order *order)
{
    free(order->parts);
    *order = (struct dp_order){0};
}

int dp_order_sums(const struct dp_schedule *s, int rank, int slot, int blocks,
                  struct dp_order_sum *sums)
{
    const int stream = dp_schedule_slot(s, rank, slot)->stream;
    const int base = blocks && dp_order_is_shared(s, rank, slot);
    int set[DP_ORDER_MAX_BLOCKS], count = 0, first = blocks ? first_block(s, blocks, stream) : 0;

    for (int b = 0; b < blocks; b++)
        set[b] = -1;
    for (int mb = 0; mb < s->mb_per_stream && blocks; mb++) {
        int b = block_of(s, blocks, stream, mb);
        set[b] = base + b - first;
    }
    for (int step = 1; step < blocks; step *= 2)
        for (int b = 0; b + step < blocks; b += 2 * step) {
            if (set[b] >= 0 && set[b + step] >= 0)
                sums[count++] = (struct dp_order_sum){(uint8_t)set[b], (uint8_t)set[b + step]};
            else if (set[b] < 0)
                set[b] = set[b + step];
        }
    if (base)
        sums[count++] = (struct dp_order_sum){0, (uint8_t)base};
    return count;
}
