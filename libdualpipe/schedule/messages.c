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

/* The messages that a compute needs and makes; DP_OP_NONE: none. */
struct traffic {
    uint8_t receive, send;
};

struct poster {
    struct traffic of[DP_MAX_SLOTS][DP_OP_W + 1]; /* by slot and kind of compute */
    struct dp_op_list *out;
    uint32_t posted;
};

static void look_up_traffic(struct poster *p, const struct dp_rank_view *view)
{
    for (int at = 0; at < view->s->slots_per_rank; at++) {
        const struct dp_slot *slot = &view->slots[at];
        bool prev = dp_slot_has_remote_prev(slot, view->rank);
        bool next = dp_slot_has_remote_next(slot, view->rank);
        struct traffic *of = p->of[at];
        of[DP_OP_F] = (struct traffic){prev ? DP_OP_RECV_F : 0, next ? DP_OP_SEND_F : 0};
        of[DP_OP_B] = (struct traffic){next ? DP_OP_RECV_B : 0, prev ? DP_OP_SEND_B : 0};
        of[DP_OP_I] = of[DP_OP_B];
    }
}

static struct traffic traffic_of(const struct poster *p, struct dp_op op)
{
    return op.kind <= DP_OP_W ? p->of[op.slot][op.kind] : (struct traffic){0};
}

static void post(struct poster *p, uint8_t kind, struct dp_op compute)
{
    if (kind == DP_OP_NONE)
        return;
    compute.kind = kind;
    compute.overlap = 0;
    dp_op_list_put(p->out, compute);
    p->posted++;
}

/* Before `next`, if anything has been posted. */
static void commit(struct poster *p, struct dp_op next)
{
    if (!p->posted)
        return;
    next.kind = DP_OP_COMMIT;
    next.overlap = 0;
    next.slot = 0;
    next.mb = p->posted;
    dp_op_list_put(p->out, next);
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
    struct poster p = {.out = out};
    size_t length;

    /* Every op brings at most a receive, a commit, itself and a send. */
    if (!dp_op_list_reserve(out, 4 * count + 1))
        return;
    look_up_traffic(&p, view);
    for (size_t i = 0; i < count; i += length) {
        length = call_length(in + i, count - i);
        for (size_t k = i; k < i + length; k++)
            post(&p, traffic_of(&p, in[k]).receive, in[k]);
        commit(&p, in[i]);
        for (size_t k = i; k < i + length; k++)
            dp_op_list_put(out, in[k]);
        for (size_t k = i; k < i + length; k++)
            post(&p, traffic_of(&p, in[k]).send, in[k]);
    }
    if (count)
        commit(&p, in[count - 1]);
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
