/* SPDX-License-Identifier: Apache-2.0
 *
 * check_order.c - one rank's list as a sequence: nothing comes before what it needs, batches are
 * what they say, the weight queue and the activations stay within their bounds.
 */
#include "schedule/build.h"
#include "schedule/check.h"

/* What has happened to (slot, mb) so far. */
enum {
    HAS_INPUT = 1,    /* RECV_F committed */
    HAS_GRADIENT = 2, /* RECV_B committed */
    FORWARD = 4,      /* F done */
    BACKWARD = 8,     /* B or I done */
    SENT = 16,        /* SEND_F committed */
};

struct walk {
    struct dp_checker *c;
    int rank;
    const struct dp_slot *slots;
    const struct dp_op *ops;
    size_t index;           /* of the op at hand */
    size_t batch;           /* first message since the last commit */
    uint32_t posted;        /* how many there are */
    size_t oldest, waiting; /* weight queue: where its oldest I stands at the least, how many */
    int alive;              /* activation sets */
    int weights_left[DP_MAX_SLOTS];
};

#define FOUND(w, rule, ...) dp_check_found((w)->c, (rule), (w)->rank, (w)->index, __VA_ARGS__)

static uint16_t *mark_of(const struct walk *w, uint32_t slot, uint32_t mb)
{
    return dp_check_mark(w->c, slot, mb);
}

/* ---- computes ------------------------------------------------------------------------------ */

/* The input of a forward: from another rank, from a slot of this one, or from outside. */
static int check_input(struct walk *w, const struct dp_slot *slot, struct dp_op op)
{
    if (dp_slot_has_remote_prev(slot, w->rank)) {
        if (!(*mark_of(w, op.slot, op.mb) & HAS_INPUT))
            return FOUND(w, DP_RULE_DEPENDENCY, "its input has not been received and committed");
    } else if (slot->prev >= 0 && !(*mark_of(w, (uint32_t)slot->prev_slot, op.mb) & FORWARD)) {
        return FOUND(w, DP_RULE_DEPENDENCY, "F%d.%u, which makes its input, comes later",
                     slot->prev_slot, op.mb);
    }
    return 0;
}

/* The output gradient of a backward: from another rank, a slot of this one, or the loss. */
static int check_gradient(struct walk *w, const struct dp_slot *slot, struct dp_op op)
{
    if (!(*mark_of(w, op.slot, op.mb) & FORWARD))
        return FOUND(w, DP_RULE_DEPENDENCY, "its F comes later");
    if (dp_slot_has_remote_next(slot, w->rank)) {
        if (!(*mark_of(w, op.slot, op.mb) & HAS_GRADIENT))
            return FOUND(w, DP_RULE_DEPENDENCY,
                         "its gradient has not been received and committed");
    } else if (slot->next >= 0 && !(*mark_of(w, (uint32_t)slot->next_slot, op.mb) & BACKWARD)) {
        return FOUND(w, DP_RULE_DEPENDENCY, "the backward of %d.%u, which makes its gradient, "
                     "comes later", slot->next_slot, op.mb);
    }
    return 0;
}

static int on_forward(struct walk *w, const struct dp_slot *slot, struct dp_op op)
{
    int err = check_input(w, slot, op);

    if (err)
        return err;
    *mark_of(w, op.slot, op.mb) |= FORWARD;
    if (w->c->s->forward_only)
        return 0;
    w->alive++;
    if (w->c->max_activations >= 0 && w->alive > w->c->max_activations)
        return FOUND(w, DP_RULE_ACTIVATION, "%d activation sets are alive, expected at most %d",
                     w->alive, w->c->max_activations);
    return 0;
}

static void finish_weight(struct walk *w, struct dp_op op)
{
    w->alive--;
    w->weights_left[op.slot]--;
}

static int on_input_backward(struct walk *w)
{
    if (!w->waiting++)
        w->oldest = w->index;
    if (w->c->max_weight_queue >= 0 && (int)w->waiting > w->c->max_weight_queue)
        return FOUND(w, DP_RULE_WEIGHT, "%zu weight parts wait, expected at most %d", w->waiting,
                     w->c->max_weight_queue);
    return 0;
}

static int on_backward(struct walk *w, const struct dp_slot *slot, struct dp_op op)
{
    int err = check_gradient(w, slot, op);

    if (err)
        return err;
    *mark_of(w, op.slot, op.mb) |= BACKWARD;
    if (op.kind == DP_OP_I)
        return on_input_backward(w);
    finish_weight(w, op);
    return 0;
}

static int on_weight(struct walk *w, struct dp_op op)
{
    char word[DP_OP_TEXT_LEN];

    if (!w->waiting)
        return FOUND(w, DP_RULE_WEIGHT, "no I waits for its weight part");
    while (w->ops[w->oldest].kind != DP_OP_I)
        w->oldest++;
    struct dp_op oldest = w->ops[w->oldest];
    if (oldest.slot != op.slot || oldest.mb != op.mb)
        return FOUND(w, DP_RULE_WEIGHT, "the oldest I that waits is %s", dp_op_text(oldest, word));
    w->oldest++;
    w->waiting--;
    finish_weight(w, op);
    return 0;
}

/* ---- messages ------------------------------------------------------------------------------ */

static int on_post(struct walk *w)
{
    if (!w->posted++)
        w->batch = w->index;
    return 0;
}

static int on_send(struct walk *w, struct dp_op op, uint16_t needed, const char *what)
{
    if (!(*mark_of(w, op.slot, op.mb) & needed))
        return FOUND(w, DP_RULE_DEPENDENCY, "%s comes later", what);
    return on_post(w);
}

/* All messages posted since the last commit are under way. */
static void launch(struct walk *w)
{
    static const uint16_t done[DP_OP_KINDS] = {
        [DP_OP_RECV_F] = HAS_INPUT, [DP_OP_RECV_B] = HAS_GRADIENT, [DP_OP_SEND_F] = SENT};

    for (; w->posted; w->batch++) {
        struct dp_op op = w->ops[w->batch];
        if (!dp_op_is_message((enum dp_op_kind)op.kind))
            continue;
        *mark_of(w, op.slot, op.mb) |= done[op.kind];
        w->posted--;
    }
}

static int on_commit(struct walk *w, struct dp_op op)
{
    if (!w->posted)
        return FOUND(w, DP_RULE_COMMIT, "nothing has been posted since the last commit");
    if (op.mb != w->posted)
        return FOUND(w, DP_RULE_COMMIT, "%u messages have been posted since the last commit",
                     w->posted);
    launch(w);
    return 0;
}

static int on_free(struct walk *w, struct dp_op op)
{
    if (!(*mark_of(w, op.slot, op.mb) & SENT))
        return FOUND(w, DP_RULE_DEPENDENCY, "its send has not been committed");
    return 0;
}

static int on_reduce(struct walk *w, struct dp_op op)
{
    if (w->weights_left[op.slot])
        return FOUND(w, DP_RULE_DEPENDENCY, "%d weight gradients of slot %u come later",
                     w->weights_left[op.slot], op.slot);
    return 0;
}

/* ---- the list ------------------------------------------------------------------------------ */

static int step(struct walk *w, struct dp_op op)
{
    const struct dp_slot *slot = &w->slots[op.slot];

    switch ((enum dp_op_kind)op.kind) {
    case DP_OP_F:
        return on_forward(w, slot, op);
    case DP_OP_B:
    case DP_OP_I:
        return on_backward(w, slot, op);
    case DP_OP_W:
        return on_weight(w, op);
    case DP_OP_RECV_F:
    case DP_OP_RECV_B:
        return on_post(w);
    case DP_OP_SEND_F:
        return on_send(w, op, FORWARD, "its F");
    case DP_OP_SEND_B:
        return on_send(w, op, BACKWARD, "its backward");
    case DP_OP_COMMIT:
        return on_commit(w, op);
    case DP_OP_FREE:
        return on_free(w, op);
    case DP_OP_REDUCE:
        return on_reduce(w, op);
    case DP_OP_NONE:
    case DP_OP_KINDS:
        break;
    }
    return 0;
}

static int check_end(struct walk *w)
{
    if (w->posted)
        return FOUND(w, DP_RULE_COMMIT, "%u messages are posted and never committed", w->posted);
    if (w->waiting)
        return FOUND(w, DP_RULE_WEIGHT, "%zu weight parts still wait", w->waiting);
    return 0;
}

int dp_check_rank_order(struct dp_checker *c, int rank)
{
    struct walk w = {.c = c, .rank = rank, .slots = dp_schedule_slot(c->s, rank, 0),
                     .ops = dp_schedule_ops(c->s, rank)};
    size_t count = dp_schedule_count(c->s, rank);
    int err = 0;

    dp_check_clear_marks(c);
    for (int at = 0; at < c->s->slots_per_rank; at++)
        w.weights_left[at] = c->s->mb_per_stream;
    for (; w.index < count && !err; w.index++)
        err = step(&w, w.ops[w.index]);
    return err ? err : check_end(&w);
}
