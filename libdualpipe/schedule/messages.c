/* SPDX-License-Identifier: Apache-2.0
 *
 * messages.c - the pass that turns lists of computes into lists that can be carried out:
 *
 *      F 0.3         ->      RECV_F 0.3, COMMIT, F 0.3, SEND_F 0.3
 *
 * A receive stands right before the compute that consumes it, a send right after the one that
 * produces it, and before the next compute what was posted is committed as one batch: the sends of
 * the last compute together with the receives of the next. So neighbours that exchange in both
 * directions meet in one batch, as in 1F1B. Where they do not, and ranks would wait for each other,
 * lockstep.c has a way that costs more buffers and always works.
 */
#include "base/fail.h"
#include "schedule/build.h"

struct poster {
    const struct dp_rank_view *view;
    struct dp_op_list *out;
    uint32_t posted;
};

static void post(struct poster *p, enum dp_op_kind kind, struct dp_op compute)
{
    if (kind == DP_OP_NONE)
        return;
    compute.kind = kind;
    compute.overlap = 0;
    dp_op_list_put(p->out, compute);
    p->posted++;
}

static enum dp_op_kind receive_for(const struct dp_rank_view *view, struct dp_op op)
{
    const struct dp_slot *slot = &view->slots[op.slot];

    if (op.kind == DP_OP_F)
        return dp_slot_has_remote_prev(slot, view->rank) ? DP_OP_RECV_F : DP_OP_NONE;
    if (op.kind == DP_OP_B || op.kind == DP_OP_I)
        return dp_slot_has_remote_next(slot, view->rank) ? DP_OP_RECV_B : DP_OP_NONE;
    return DP_OP_NONE;
}

static enum dp_op_kind send_of(const struct dp_rank_view *view, struct dp_op op)
{
    const struct dp_slot *slot = &view->slots[op.slot];

    if (op.kind == DP_OP_F)
        return dp_slot_has_remote_next(slot, view->rank) ? DP_OP_SEND_F : DP_OP_NONE;
    if (op.kind == DP_OP_B || op.kind == DP_OP_I)
        return dp_slot_has_remote_prev(slot, view->rank) ? DP_OP_SEND_B : DP_OP_NONE;
    return DP_OP_NONE;
}

static void commit(struct poster *p, uint32_t unit)
{
    if (!p->posted)
        return;
    dp_op_list_put(p->out, (struct dp_op){.kind = DP_OP_COMMIT, .unit = unit, .mb = p->posted});
    p->posted = 0;
}

/* An overlapped pair is one call: its receives before, its sends after both. */
static size_t call_length(const struct dp_op *in, size_t left)
{
    return in->kind == DP_OP_F && in->overlap && left > 1 ? 2 : 1;
}

void dp_add_messages(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                     struct dp_op_list *out)
{
    struct poster p = {.view = view, .out = out};
    size_t length;

    /* Every op brings at most a receive, a commit, itself and a send. */
    if (!dp_op_list_reserve(out, 4 * count + 1))
        return;
    for (size_t i = 0; i < count; i += length) {
        length = call_length(in + i, count - i);
        for (size_t k = 0; k < length; k++)
            post(&p, receive_for(view, in[i + k]), in[i + k]);
        commit(&p, in[i].unit);
        for (size_t k = 0; k < length; k++)
            dp_op_list_put(out, in[i + k]);
        for (size_t k = 0; k < length; k++)
            post(&p, send_of(view, in[i + k]), in[i + k]);
    }
    commit(&p, count ? in[count - 1].unit : 0);
}

static void drop_messages(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                          struct dp_op_list *out)
{
    (void)view;
    for (size_t i = 0; i < count; i++)
        if (!dp_op_is_message((enum dp_op_kind)in[i].kind) && in[i].kind != DP_OP_COMMIT)
            dp_op_list_add(out, in[i]);
}

/* Would the ranks, or the two ends of a link, wait for each other? */
static int check_blocks(const struct dp_schedule *s, bool *blocks)
{
    struct dp_finding finding;
    int err = dp_schedule_check(s, NULL, &finding);

    *blocks = err == DP_EINVAL &&
              (finding.rule == DP_RULE_FIFO || finding.rule == DP_RULE_DEADLOCK);
    return err == DP_EINVAL ? 0 : err; /* what else is wrong is not our business */
}

static int check_has_none(const struct dp_schedule *s)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (dp_op_is_message((enum dp_op_kind)s->ops[i].kind) || s->ops[i].kind == DP_OP_COMMIT)
            return dp_fail(DP_ESTATE, "add messages: op %zu is a %s; expected computes only", i,
                           dp_op_kind_name((enum dp_op_kind)s->ops[i].kind));
    return 0;
}

int dp_schedule_add_messages(struct dp_schedule *s)
{
    int err = check_has_none(s);
    bool blocks;

    if (!err)
        err = dp_schedule_rewrite(s, dp_add_messages);
    if (!err)
        err = check_blocks(s, &blocks);
    if (err || !blocks)
        return err;
    err = dp_schedule_rewrite(s, drop_messages);
    if (!err)
        err = dp_add_messages_in_lockstep(s);
    /* Where the computes themselves wait in a circle, leave it to the checker to tell. */
    return err == DP_EINVAL ? dp_schedule_rewrite(s, dp_add_messages) : err;
}
