/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c - the evaluation of a training schedule: the same ranks and slots, its forwards in their
 * order.
 */
#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

/* rank_map[group rank] = pipeline rank, the inverse of group_rank. */
static int *rank_map_of(const struct dp_schedule *s)
{
    int *map = malloc((size_t)s->ranks * sizeof(*map));

    for (int rank = 0; map && rank < s->ranks; rank++)
        map[s->group_rank[rank]] = rank;
    return map;
}

static int add_forwards(const struct dp_schedule *training, struct dp_schedule *s)
{
    struct dp_op_list all = {0};

    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_op *ops = dp_schedule_ops(training, rank);
        for (size_t i = 0; i < dp_schedule_count(training, rank); i++)
            if (ops[i].kind == DP_OP_F)
                dp_op_list_add(&all, (struct dp_op){
                                         .kind = DP_OP_F, .slot = ops[i].slot, .mb = ops[i].mb});
        s->first[rank + 1] = all.count;
    }
    return dp_schedule_take_ops(s, &all, s->first);
}

int dp_schedule_new_forward(const struct dp_schedule *training, struct dp_schedule **out)
{
    int *map = rank_map_of(training);
    const struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_USER,
                                          .ranks = training->ranks,
                                          .microbatches = training->microbatches,
                                          .forward_only = true,
                                          .rank_map = map};
    struct dp_schedule *s = NULL;
    int err = map ? dp_schedule_new_placed(&spec, training->streams, training->first_slot,
                                           training->slots, &s)
                  : dp_fail_quietly(DP_ENOMEM, "no memory for a schedule");

    free(map);
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    /* As they are, down to the slot numbers of neighbours that are not there. */
    memcpy(s->slots, training->slots, training->first_slot[s->ranks] * sizeof(*s->slots));
    err = add_forwards(training, s);
    if (!err)
        err = dp_schedule_add_messages(s);
    if (!err)
        err = dp_schedule_add_frees(s);
    if (!err && training->skip_count)
        err = dp_schedule_add_skips(s, training->skips, training->skip_count);
    if (err)
        dp_schedule_free(s);
    else
        *out = s;
    return err;
}
