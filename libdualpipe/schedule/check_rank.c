/* SPDX-License-Identifier: Apache-2.0
 *
 * check_rank.c - the rules of one rank's list. As a set: every op makes sense, every op that there
 * must be is there once. Then as a sequence: nothing comes before what it needs, batches have the
 * counts of their commits, the weight queue and the activations stay within their bounds.
 */
#include "schedule/build.h"
#include "schedule/check.h"

/* ---- the list as a set ----------------------------------------------------------------------- */

#define MARK(kind) ((uint32_t)1 << (kind))

static bool is_of_training(enum dp_op_kind kind)
{
    return kind == DP_OP_B || kind == DP_OP_I || kind == DP_OP_W || kind == DP_OP_RECV_B ||
           kind == DP_OP_SEND_B || kind == DP_OP_RECV_SKIP_B || kind == DP_OP_SEND_SKIP_B ||
           kind == DP_OP_RECOMPUTE || kind == DP_OP_EVICT ||
           kind == DP_OP_FETCH || kind == DP_OP_REDUCE || kind == DP_OP_REDUCE_WAIT;
}

/* Which ops (slot, mb) must have; the kind of backward that is there decides. */
static uint32_t expected_marks(const struct dp_checker *c, int rank, const struct dp_slot *slot,
                               bool split)
{
    bool training = !c->s->forward_only;
    uint32_t marks = MARK(DP_OP_F);

    if (training)
        marks |= split ? MARK(DP_OP_I) | MARK(DP_OP_W) : MARK(DP_OP_B);
    if (dp_slot_has_remote_prev(slot, rank))
        marks |= MARK(DP_OP_RECV_F) | (training ? MARK(DP_OP_SEND_B) : 0);
    if (dp_slot_has_remote_next(slot, rank))
        marks |= MARK(DP_OP_SEND_F) | (training ? MARK(DP_OP_RECV_B) : 0) |
                 (c->has_frees ? MARK(DP_OP_FREE) : 0);
    return marks;
}

static int check_argument(struct dp_checker *c, int rank, size_t index, struct dp_op op)
{
    const enum dp_op_kind kind = (enum dp_op_kind)op.kind;

    if (dp_op_is_skip(kind) && (int)dp_op_argument(op) >= c->s->skip_count)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "skip %u, expected one of %d",
                              dp_op_argument(op), c->s->skip_count);
    if (dp_op_argument(op) && !dp_op_is_skip(kind))
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "argument %u, expected 0",
                              dp_op_argument(op));
    return 0;
}

static int check_fields(struct dp_checker *c, int rank, size_t index, struct dp_op op)
{
    if (op.kind == DP_OP_NONE || op.kind >= DP_OP_KINDS)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "kind %u, which is none", op.kind);
    if (c->s->forward_only && is_of_training((enum dp_op_kind)op.kind))
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "in a forward-only schedule");
    int slots = dp_schedule_slot_count(c->s, rank);
    if (op.kind != DP_OP_COMMIT && (int)op.slot >= slots)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "slot %u, expected one of %d slots",
                              op.slot, slots);
    if (op.kind != DP_OP_COMMIT && op.mb >= (uint32_t)c->s->mb_per_stream)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index, "micro-batch %u, expected 0 to %d",
                              op.mb, c->s->mb_per_stream - 1);
    if (op.flags & DP_OP_RECOMPUTED && op.kind != DP_OP_F)
        return dp_check_found(c, DP_RULE_SHAPE, rank, index,
                              "marked as recomputed, expected an F");
    return check_argument(c, rank, index, op);
}

/* An overlapped pair is an F and, right behind it, the B of something else. */
static inline bool is_pair(const struct dp_op *op, size_t left)
{
    return op->kind == DP_OP_F && left > 1 && op[1].kind == DP_OP_B &&
           (op[1].slot != op->slot || op[1].mb != op->mb);
}

static int check_pair(struct dp_checker *c, int rank, size_t index, const struct dp_op *op)
{
    const size_t left = dp_schedule_count(c->s, rank) - index;

    if (is_pair(op, left))
        return 0;
    if (op->kind == DP_OP_F && left > 1 && op[1].kind == DP_OP_B)
        return dp_check_found(c, DP_RULE_DEPENDENCY, rank, index + 1,
                              "overlaps the F that it needs");
    return dp_check_found(c, DP_RULE_SHAPE, rank, index,
                          "marked as overlapped, expected an F before a B");
}

/* Slots of which there was a REDUCE, and a REDUCE_WAIT: a bit each. */
struct reduced {
    uint64_t launched, waited;
};

static int check_reduce(struct dp_checker *c, int rank, size_t index, struct dp_op op,
                        struct reduced *reduced)
{
    uint64_t *seen = op.kind == DP_OP_REDUCE ? &reduced->launched : &reduced->waited;

    if (*seen >> op.slot & 1)
        return dp_check_found(c, DP_RULE_ONCE, rank, index, "is there twice");
    *seen |= UINT64_C(1) << op.slot;
    return 0;
}

static int check_op(struct dp_checker *c, int rank, size_t index, const struct dp_op *op,
                    const uint32_t *possible, struct reduced *reduced)
{
    int err = check_fields(c, rank, index, *op);

    if (!err && op->flags & DP_OP_OVERLAP)
        err = check_pair(c, rank, index, op);
    if (err || op->kind == DP_OP_COMMIT)
        return err;
    if (op->kind == DP_OP_REDUCE || op->kind == DP_OP_REDUCE_WAIT)
        return check_reduce(c, rank, index, *op, reduced);
    if (op->kind == DP_OP_EVICT || op->kind == DP_OP_FETCH)
        return 0; /* any number, in turn: see the list as a sequence */
    if (dp_op_is_skip((enum dp_op_kind)op->kind))
        return dp_check_skip_once(c, rank, index, *op);
    uint32_t *marks = dp_check_mark(c, op->slot, op->mb), mark = MARK(op->kind);
    if (!(possible[op->slot] & mark))
        return dp_check_found(c, DP_RULE_SHAPE, rank, index,
                              "slot %u has no such message to another rank", op->slot);
    if (*marks & mark)
        return dp_check_found(c, DP_RULE_ONCE, rank, index, "is there twice");
    *marks |= mark;
    return 0;
}

/* What check_op does, for the many ops that have nothing wrong or special: mark them. The first
 * other op, or count. */
static size_t mark_plain_ops(const struct dp_checker *c, const struct dp_op *ops, size_t index,
                             size_t count, const uint32_t *possible)
{
    const struct dp_op *op = &ops[index], *end = &ops[count];
    const size_t mbs = c->mbs;

    for (; op < end; op++) {
        if (op->flags & (DP_OP_RECOMPUTED | DP_OP_ARGUMENT) ||
            (op->flags & DP_OP_OVERLAP && !is_pair(op, (size_t)(end - op))))
            break;
        if (op->kind == DP_OP_COMMIT)
            continue;
        if (op->kind > DP_OP_FREE || op->slot >= DP_MAX_SLOTS || op->mb >= mbs)
            break;
        const uint32_t mark = possible[op->slot] & MARK(op->kind);
        if (!mark) /* or the slot is not there */
            break;
        uint32_t *marks = &c->marks[op->slot * mbs + op->mb];
        if (*marks & mark)
            break;
        *marks |= mark;
    }
    return (size_t)(op - ops);
}

static int report_missing_or_surplus(struct dp_checker *c, int rank, struct dp_op op, uint32_t is,
                              uint32_t expected)
{
    uint32_t wrong = expected & ~is;
    const char *text = "is missing";
    char op_text[DP_OP_TEXT_LEN];

    if (!wrong) {
        wrong = is & ~expected;
        text = "is there besides I and W";
    }
    for (op.kind = DP_OP_F; !(wrong & MARK(op.kind)); op.kind++)
        ;
    return dp_check_found(c, DP_RULE_ONCE, rank, dp_schedule_count(c->s, rank), "%s %s",
                          dp_op_text(op, op_text), text);
}

static int report_no_reduce(struct dp_checker *c, int rank, int at, const char *what)
{
    return dp_check_found(c, DP_RULE_ONCE, rank, dp_schedule_count(c->s, rank),
                          "the %s of slot %d is missing", what, at);
}

/* Of the slots that have a mirror on another rank, all have reduces or none. */
static int check_reduces(struct dp_checker *c, int rank, int at, const struct reduced *reduced)
{
    const uint64_t bit = UINT64_C(1) << at;
    const bool launched = reduced->launched & bit;

    if ((reduced->launched ^ reduced->waited) & bit)
        return report_no_reduce(c, rank, at, launched ? "REDUCE_WAIT" : "REDUCE");
    if (launched)
        c->has_reduces = true;
    else if (dp_slot_has_remote_mirror(dp_schedule_slot(c->s, rank, at), rank) &&
             !c->lacks_reduce) {
        c->lacks_reduce = true;
        c->lacking_rank = rank;
        c->lacking_slot = at;
    }
    return c->has_reduces && c->lacks_reduce
               ? report_no_reduce(c, c->lacking_rank, c->lacking_slot, "REDUCE")
               : 0;
}

/* Is all there that slot needs? */
static int check_slot(struct dp_checker *c, int rank, int at, const struct reduced *reduced)
{
    const struct dp_slot *slot = dp_schedule_slot(c->s, rank, at);
    uint32_t whole = expected_marks(c, rank, slot, false);
    uint32_t split = expected_marks(c, rank, slot, true);
    struct dp_op op = {.slot = (uint32_t)at};

    for (int mb = 0; mb < c->s->mb_per_stream; mb++) {
        op.mb = (uint32_t)mb;
        uint32_t marks = *dp_check_mark(c, op.slot, op.mb) & ~MARK(DP_OP_RECOMPUTE);
        if (marks == whole || marks == split)
            continue;
        bool is_split = marks & (MARK(DP_OP_I) | MARK(DP_OP_W));
        return report_missing_or_surplus(c, rank, op, marks, is_split ? split : whole);
    }
    return check_reduces(c, rank, at, reduced);
}

int dp_check_rank_once(struct dp_checker *c, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(c->s, rank);
    size_t count = dp_schedule_count(c->s, rank);
    uint32_t possible[DP_MAX_SLOTS] = {0};
    struct reduced reduced = {0};
    int err = 0;

    dp_check_clear_marks(c);
    for (int at = 0; at < dp_schedule_slot_count(c->s, rank); at++) {
        const struct dp_slot *slot = dp_schedule_slot(c->s, rank, at);
        possible[at] = expected_marks(c, rank, slot, false) |
                       expected_marks(c, rank, slot, true) |
                       (c->s->forward_only ? 0 : MARK(DP_OP_RECOMPUTE));
    }
    for (size_t i = 0; !err && (i = mark_plain_ops(c, ops, i, count, possible)) < count; i++)
        err = check_op(c, rank, i, &ops[i], possible, &reduced);
    for (int at = 0; at < dp_schedule_slot_count(c->s, rank) && !err; at++)
        err = check_slot(c, rank, at, &reduced);
    return err ? err : dp_check_skips_complete(c, rank);
}

/* ---- the list as a sequence ------------------------------------------------------------------ */

/* What has happened to (slot, mb) so far. */
enum {
    HAS_INPUT = 1,    /* RECV_F committed */
    HAS_GRADIENT = 2, /* RECV_B committed */
    FORWARD = 4,      /* F done */
    BACKWARD = 8,     /* B or I done */
    SENT = 16,        /* SEND_F committed */
    SAVED = 32,       /* F done, or its RECOMPUTE: what the backward needs is there */
    DONE = 64,        /* B or W done: it is needed no more */
    RECOMPUTED = 128, /* F's mark: only the input is kept */
    AWAY = 256,       /* evicted, and not fetched since */
};

/* What must have happened before an op: `bit` of the mark of its micro-batch there; 0: nothing. */
struct source {
    const uint32_t *marks; /* of the op's own slot, or of the slot of this rank that makes it */
    uint32_t bit;
};

struct walk {
    struct dp_checker *c;
    int rank;
    const struct dp_slot *slots;
    const struct dp_op *ops;
    size_t index;           /* of the op at hand */
    size_t batch;           /* first message since the last commit */
    uint32_t posted;        /* how many there are */
    struct {
        uint32_t *marks;
        struct source input, gradient;
        size_t oldest, waiting; /* weight queue: where its oldest I stands at the least, how many */
        int weights_left;
    } slot[DP_MAX_SLOTS];
    size_t waiting;         /* weight parts of all slots */
    int alive;              /* activation sets */
    uint64_t launched;      /* slots whose REDUCE was there: a bit each */
};

#define FOUND(w, rule, ...) dp_check_found((w)->c, (rule), (w)->rank, (w)->index, __VA_ARGS__)

static uint32_t *mark_of(const struct walk *w, struct dp_op op)
{
    return &w->slot[op.slot].marks[op.mb];
}

static bool came(const struct source *source, uint32_t mb)
{
    return (source->marks[mb] & source->bit) == source->bit;
}

/* ---- computes -------------------------------------------------------------------------------- */

/* The input of a forward: from another rank, from a slot of this one, or from outside. */
static struct source input_of(const struct walk *w, const struct dp_slot *slot, uint32_t at)
{
    if (dp_slot_has_remote_prev(slot, w->rank))
        return (struct source){dp_check_mark(w->c, at, 0), HAS_INPUT};
    if (slot->prev >= 0)
        return (struct source){dp_check_mark(w->c, (uint32_t)slot->prev_slot, 0), FORWARD};
    return (struct source){dp_check_mark(w->c, at, 0), 0};
}

/* The output gradient of a backward: from another rank, a slot of this one, or the loss. */
static struct source gradient_of(const struct walk *w, const struct dp_slot *slot, uint32_t at)
{
    if (dp_slot_has_remote_next(slot, w->rank))
        return (struct source){dp_check_mark(w->c, at, 0), HAS_GRADIENT};
    if (slot->next >= 0)
        return (struct source){dp_check_mark(w->c, (uint32_t)slot->next_slot, 0), BACKWARD};
    return (struct source){dp_check_mark(w->c, at, 0), 0};
}

static int report_no_input(struct walk *w, struct dp_op op)
{
    if (w->slot[op.slot].input.bit == HAS_INPUT)
        return FOUND(w, DP_RULE_DEPENDENCY, "its input has not been received and committed");
    return FOUND(w, DP_RULE_DEPENDENCY, "F%d.%u, which makes its input, comes later",
                 w->slots[op.slot].prev_slot, op.mb);
}

static int report_no_gradient(struct walk *w, struct dp_op op)
{
    if (!(*mark_of(w, op) & FORWARD))
        return FOUND(w, DP_RULE_DEPENDENCY, "its F comes later");
    if (w->slot[op.slot].gradient.bit == HAS_GRADIENT)
        return FOUND(w, DP_RULE_DEPENDENCY, "its gradient has not been received and committed");
    return FOUND(w, DP_RULE_DEPENDENCY, "the backward of %d.%u, which makes its gradient, comes "
                 "later", w->slots[op.slot].next_slot, op.mb);
}

/* Is what (slot, mb) saved, and still needs, in memory? */
static bool is_alive(uint32_t mark)
{
    return (mark & (SAVED | DONE | AWAY)) == SAVED;
}

static inline int add_alive(struct walk *w)
{
    if (++w->alive > w->c->max_activations && w->c->max_activations >= 0)
        return FOUND(w, DP_RULE_ACTIVATION, "%d activation sets are alive, expected at most %d",
                     w->alive, w->c->max_activations);
    return 0;
}

/* Change the mark of (slot, mb) and count the activation sets. */
static int change(struct walk *w, struct dp_op op, uint32_t set, uint32_t clear)
{
    uint32_t *mark = mark_of(w, op), before = *mark;

    const int more = is_alive((before | set) & ~clear) - is_alive(before);

    *mark = (before | set) & ~clear;
    w->alive -= more < 0;
    return more > 0 ? add_alive(w) : 0;
}

static int on_forward(struct walk *w, struct dp_op op)
{
    if (!came(&w->slot[op.slot].input, op.mb))
        return report_no_input(w, op);
    if (w->c->s->skip_count) {
        int err = dp_check_skips_came(w->c, w->rank, w->index, op);
        if (err)
            return err;
    }
    *mark_of(w, op) |= FORWARD | (op.flags & DP_OP_RECOMPUTED ? RECOMPUTED : SAVED);
    return op.flags & DP_OP_RECOMPUTED || w->c->s->forward_only ? 0 : add_alive(w);
}

static int on_recompute(struct walk *w, struct dp_op op)
{
    uint32_t mark = *mark_of(w, op);

    if (!(mark & FORWARD))
        return FOUND(w, DP_RULE_DEPENDENCY, "its F comes later");
    if (!(mark & RECOMPUTED))
        return FOUND(w, DP_RULE_DEPENDENCY, "its F is not marked as recomputed");
    if (mark & BACKWARD)
        return FOUND(w, DP_RULE_DEPENDENCY, "its backward has come before");
    return change(w, op, SAVED, 0);
}

static int on_evict(struct walk *w, struct dp_op op)
{
    uint32_t mark = *mark_of(w, op);

    if (!(mark & SAVED) || mark & DONE)
        return FOUND(w, DP_RULE_DEPENDENCY, mark & DONE ? "its last backward has come before"
                                                        : "what it evicts is made later");
    if (mark & AWAY)
        return FOUND(w, DP_RULE_DEPENDENCY, "it has been evicted before");
    return change(w, op, AWAY, 0);
}

static int on_fetch(struct walk *w, struct dp_op op)
{
    if (!(*mark_of(w, op) & AWAY))
        return FOUND(w, DP_RULE_DEPENDENCY, "it has not been evicted before");
    return change(w, op, 0, AWAY);
}

/* What a backward or weight part reads must be in memory. */
static inline int check_saved(struct walk *w, uint32_t mark)
{
    if ((mark & (SAVED | AWAY)) == SAVED)
        return 0;
    return FOUND(w, DP_RULE_DEPENDENCY, mark & SAVED
                                            ? "what it needs was evicted and is fetched later"
                                            : "its RECOMPUTE comes later");
}

/* What the weights needed was in memory, so one set less is alive. */
static int finish_weight(struct walk *w, struct dp_op op, uint32_t set)
{
    *mark_of(w, op) |= set;
    w->slot[op.slot].weights_left--;
    w->alive--;
    return 0;
}

static int on_input_backward(struct walk *w, struct dp_op op)
{
    if (!w->slot[op.slot].waiting++)
        w->slot[op.slot].oldest = w->index;
    w->waiting++;
    if (w->c->max_weight_queue >= 0 && (int)w->waiting > w->c->max_weight_queue)
        return FOUND(w, DP_RULE_WEIGHT, "%zu weight parts wait, expected at most %d", w->waiting,
                     w->c->max_weight_queue);
    return 0;
}

static int on_backward(struct walk *w, struct dp_op op)
{
    uint32_t mark = *mark_of(w, op);
    int err = 0;

    if (!(mark & FORWARD) || !came(&w->slot[op.slot].gradient, op.mb))
        return report_no_gradient(w, op);
    if (w->c->s->skip_count)
        err = dp_check_skips_came(w->c, w->rank, w->index, op);
    if (!err)
        err = check_saved(w, mark);
    if (err)
        return err;
    if (op.kind == DP_OP_B)
        return finish_weight(w, op, BACKWARD | DONE);
    err = change(w, op, BACKWARD, 0);
    return err ? err : on_input_backward(w, op);
}

static int on_weight(struct walk *w, struct dp_op op)
{
    char op_text[DP_OP_TEXT_LEN];

    size_t *oldest = &w->slot[op.slot].oldest;

    if (!w->slot[op.slot].waiting)
        return FOUND(w, DP_RULE_WEIGHT, "no I of the slot waits for its weight part");
    while (w->ops[*oldest].kind != DP_OP_I || w->ops[*oldest].slot != op.slot)
        (*oldest)++;
    if (w->ops[*oldest].mb != op.mb)
        return FOUND(w, DP_RULE_WEIGHT, "the slot's oldest I that waits is %s",
                     dp_op_text(w->ops[*oldest], op_text));
    (*oldest)++;
    w->slot[op.slot].waiting--;
    w->waiting--;
    int err = check_saved(w, *mark_of(w, op));
    return err ? err : finish_weight(w, op, DONE);
}

/* ---- messages -------------------------------------------------------------------------------- */

static int on_post(struct walk *w)
{
    if (!w->posted++)
        w->batch = w->index;
    return 0;
}

static int on_send(struct walk *w, struct dp_op op, uint32_t needed, const char *what)
{
    if (!(*mark_of(w, op) & needed))
        return FOUND(w, DP_RULE_DEPENDENCY, "%s comes later", what);
    return on_post(w);
}

/* All messages posted since the last commit are under way. */
static void launch(struct walk *w)
{
    static const uint32_t done[DP_OP_KINDS] = {
        [DP_OP_RECV_F] = HAS_INPUT, [DP_OP_RECV_B] = HAS_GRADIENT, [DP_OP_SEND_F] = SENT};

    for (; w->posted; w->batch++) {
        struct dp_op op = w->ops[w->batch];
        if (!dp_op_is_message((enum dp_op_kind)op.kind))
            continue;
        if (op.kind == DP_OP_RECV_SKIP_F || op.kind == DP_OP_RECV_SKIP_B)
            dp_check_skip_came(w->c, w->rank, op);
        *mark_of(w, op) |= done[op.kind];
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
    if (!(*mark_of(w, op) & SENT))
        return FOUND(w, DP_RULE_DEPENDENCY, "its send has not been committed");
    return 0;
}

static int on_reduce(struct walk *w, struct dp_op op)
{
    if (w->slot[op.slot].weights_left)
        return FOUND(w, DP_RULE_DEPENDENCY, "%d weight gradients of slot %u come later",
                     w->slot[op.slot].weights_left, op.slot);
    w->launched |= UINT64_C(1) << op.slot;
    return 0;
}

static int on_reduce_wait(struct walk *w, struct dp_op op)
{
    if (!(w->launched >> op.slot & 1))
        return FOUND(w, DP_RULE_DEPENDENCY, "its REDUCE comes later");
    return 0;
}

/* ---- the list -------------------------------------------------------------------------------- */

static inline int step(struct walk *w, struct dp_op op)
{
    switch ((enum dp_op_kind)op.kind) {
    case DP_OP_F:
        return on_forward(w, op);
    case DP_OP_B:
    case DP_OP_I:
        return on_backward(w, op);
    case DP_OP_W:
        return on_weight(w, op);
    case DP_OP_RECV_F:
    case DP_OP_RECV_B:
    case DP_OP_RECV_SKIP_F:
    case DP_OP_RECV_SKIP_B:
        return on_post(w);
    case DP_OP_SEND_F:
    case DP_OP_SEND_SKIP_F:
        return on_send(w, op, FORWARD, "its F");
    case DP_OP_SEND_B:
    case DP_OP_SEND_SKIP_B:
        return on_send(w, op, BACKWARD, "its backward");
    case DP_OP_COMMIT:
        return on_commit(w, op);
    case DP_OP_FREE:
        return on_free(w, op);
    case DP_OP_RECOMPUTE:
        return on_recompute(w, op);
    case DP_OP_EVICT:
        return on_evict(w, op);
    case DP_OP_FETCH:
        return on_fetch(w, op);
    case DP_OP_REDUCE:
        return on_reduce(w, op);
    case DP_OP_REDUCE_WAIT:
        return on_reduce_wait(w, op);
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
    const struct dp_op *ops = w.ops;
    size_t count = dp_schedule_count(c->s, rank);
    int err = 0;

    dp_check_clear_marks(c);
    for (int at = 0; at < dp_schedule_slot_count(c->s, rank); at++) {
        w.slot[at].marks = dp_check_mark(c, (uint32_t)at, 0);
        w.slot[at].input = input_of(&w, &w.slots[at], (uint32_t)at);
        w.slot[at].gradient = gradient_of(&w, &w.slots[at], (uint32_t)at);
        w.slot[at].weights_left = c->s->mb_per_stream;
    }
    for (size_t i = 0; i < count && !err; i++) {
        w.index = i;
        err = step(&w, ops[i]);
    }
    w.index = count;
    return err ? err : check_end(&w);
}
