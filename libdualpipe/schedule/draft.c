/* SPDX-License-Identifier: Apache-2.0
 *
 * draft.c - a schedule while it is read: what the readers of all formats fill in.
 */
#include "schedule/format.h"

#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>

int dp_draft_map(struct dp_draft *draft, const int *group_rank)
{
    int ranks = draft->spec.ranks, bad, err = dp_permutation_check(group_rank, ranks, &bad);

    if (err == DP_EINVAL)
        err = dp_fail_quietly(err, "group rank %d of rank %d, expected each of 0 to %d once",
                              group_rank[bad], bad, ranks - 1);
    if (err)
        return err;
    draft->rank_map = malloc((size_t)ranks * sizeof(*draft->rank_map));
    if (!draft->rank_map)
        return dp_fail_quietly(DP_ENOMEM, "no memory for %d ranks", ranks);
    draft->spec.rank_map = draft->rank_map;
    for (int rank = 0; rank < ranks; rank++)
        draft->rank_map[group_rank[rank]] = rank;
    return 0;
}

static int place_line(struct dp_draft *draft)
{
    int ranks = draft->spec.ranks > 0 ? draft->spec.ranks : 0;

    draft->first_slot = calloc((size_t)ranks + 1, sizeof(*draft->first_slot));
    draft->slots = calloc((size_t)ranks + 1, sizeof(*draft->slots));
    if (!draft->slots || !draft->first_slot)
        return dp_fail_quietly(DP_ENOMEM, "no memory for %d ranks", draft->spec.ranks);
    for (int rank = 0; rank < ranks; rank++) {
        draft->slots[rank].stage = rank;
        draft->first_slot[rank + 1] = (size_t)rank + 1;
    }
    return 0;
}

int dp_draft_add_skip(struct dp_draft *draft, const struct dp_skip *skip)
{
    if (draft->skip_count == DP_MAX_SKIPS)
        return dp_fail(DP_EINVAL, "skip '%s': expected at most %d", skip->name, DP_MAX_SKIPS);
    struct dp_skip *skips =
        realloc(draft->skips, ((size_t)draft->skip_count + 1) * sizeof(*skips));
    if (!skips)
        return dp_fail(DP_ENOMEM, "no memory for %d skips", draft->skip_count + 1);
    draft->skips = skips;
    skips[draft->skip_count++] = *skip;
    return 0;
}

static int place(struct dp_draft *draft)
{
    int err = 0;

    if (!dp_placed_by_file(draft->spec.kind))
        return dp_schedule_new_empty(&draft->spec, &draft->s);
    if (!draft->first_slot)
        err = place_line(draft);
    return err ? err : dp_schedule_new_placed(&draft->spec, draft->streams, draft->first_slot,
                                              draft->slots, &draft->s);
}

int dp_draft_place(struct dp_draft *draft)
{
    int err = place(draft);
    return err ? err : dp_schedule_take_skips(draft->s, draft->skips, draft->skip_count);
}

void dp_draft_end_rank(struct dp_draft *draft, int rank)
{
    draft->s->first[rank + 1] = draft->ops.count;
}

int dp_draft_finish(struct dp_draft *draft, struct dp_schedule **out)
{
    int err = dp_schedule_take_ops(draft->s, &draft->ops, draft->s->first);

    if (!err)
        err = dp_schedule_mark_recomputed(draft->s);
    if (!err && dp_schedule_has(draft->s, DP_OP_REDUCE) &&
        !dp_schedule_has(draft->s, DP_OP_REDUCE_WAIT))
        err = dp_schedule_rewrite(draft->s, dp_add_reduce_waits);
    if (!err && !dp_schedule_first_message(draft->s)) {
        err = dp_schedule_add_messages(draft->s);
        if (!err)
            err = dp_schedule_add_frees(draft->s);
    }
    if (err)
        return err;
    *out = draft->s;
    draft->s = NULL;
    return 0;
}

void dp_draft_fini(struct dp_draft *draft)
{
    free(draft->rank_map);
    free(draft->first_slot);
    free(draft->slots);
    free(draft->skips);
    dp_op_list_fini(&draft->ops);
    dp_schedule_free(draft->s);
}
