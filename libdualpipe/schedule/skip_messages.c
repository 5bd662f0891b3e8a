/* SPDX-License-Identifier: Apache-2.0
 *
 * skip_messages.c - skip connections into a schedule that has messages: what passes have added to the
 * computes is dropped and added again.
 */
#include "base/fail.h"
#include "schedule/build.h"

/* What passes have added to computes, evictions aside. */
static bool is_added(enum dp_op_kind kind)
{
    return dp_op_is_message(kind) || kind == DP_OP_COMMIT || kind == DP_OP_FREE ||
           kind == DP_OP_REDUCE || kind == DP_OP_REDUCE_WAIT;
}

static void drop_added(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                       struct dp_op_list *out)
{
    (void)view;
    for (size_t i = 0; i < count; i++)
        if (!is_added((enum dp_op_kind)in[i].kind))
            dp_op_list_add(out, in[i]);
}

/* What the schedule has, to be added again. */
struct additions {
    bool frees, reduces, all_reduces;
};

static struct additions find_additions(const struct dp_schedule *s)
{
    struct additions has = {0};

    for (int rank = 0; rank < s->ranks; rank++)
        for (size_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
            const struct dp_op op = s->ops[i];
            has.frees |= op.kind == DP_OP_FREE;
            if (op.kind != DP_OP_REDUCE)
                continue;
            has.reduces = true;
            has.all_reduces |= !dp_slot_has_remote_mirror(
                dp_schedule_slot(s, rank, (int)op.slot), rank);
        }
    return has;
}

int dp_schedule_add_skips(struct dp_schedule *s, const struct dp_skip *skips, int count)
{
    if (s->skip_count)
        return dp_fail(DP_ESTATE, "add skips: the schedule has %d already", s->skip_count);
    const struct additions has = count ? find_additions(s) : (struct additions){0};
    int err = dp_schedule_take_skips(s, skips, count);
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    if (!count)
        return 0;
    err = dp_schedule_rewrite(s, drop_added);
    if (!err)
        err = dp_schedule_add_messages(s);
    if (!err && has.frees)
        err = dp_schedule_add_frees(s);
    if (!err && has.reduces)
        err = has.all_reduces ? dp_schedule_add_all_reduces(s) : dp_schedule_add_reduces(s);
    return err;
}
