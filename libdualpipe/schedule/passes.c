/* SPDX-License-Identifier: Apache-2.0
 *
 * passes.c - the passes that complete the lists of computes which builders write: messages, frees,
 * reduces and evictions.
 *
 * Messages:
 *
 *      F 0.3         ->      RECV_F 0.3, COMMIT, F 0.3, SEND_F 0.3
 *
 * A receive stands right before the compute that consumes it, a send right after the one that
 * produces it, and before the next compute what was posted is committed as one batch: the sends of
 * the last compute together with the receives of the next. So neighbours that exchange in both
 * directions meet in one batch, as in 1F1B. Where they do not, and ranks would wait for each other,
 * lockstep.c has a way that costs more buffers and always works.
 *
 * Frees: behind every COMMIT a FREE for each activation that was sent by it. Outputs that stay on
 * the rank, of last stages or for a next stage on the same rank, are not freed by the list.
 *
 * Reduces: a REDUCE for every slot that has a mirror on another rank, or for every slot, once its
 * last weight gradient is done. It stands before the next compute, behind the messages that others
 * wait for. At the end of the list there is a REDUCE_WAIT for each, in the same order:
 *
 *      B1.3 sB1.3 rB0.2 c2 R1 I0.2 ... W0.3 R0 Rw1 Rw0
 *
 * The two ranks of a pair have mirrored lists, so both come to their slots in the same order;
 * dp_schedule_check proves it for any list.
 *
 * Evictions: what forwards have saved is sent to the host, and brought back in time.
 *
 *      F 0.3  ...  F 0.4  ...  F 0.5  ...  B 0.3
 *             ev0.3              fe0.3                   lead = 2: two computes before the B
 *
 * An EVICT stands right behind its forward, a FETCH right before a compute; neither ever comes between
 * an overlapped pair, which counts as one compute. A set whose FETCH would follow its EVICT without a
 * compute between them stays.
 */
#include "base/fail.h"
#include "schedule/build.h"
#include "schedule/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */

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
    for (int at = 0; at < view->slot_count; at++) {
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

static void post(struct poster *p, uint8_t kind, struct dp_op compute, int skip)
{
    if (kind == DP_OP_NONE)
        return;
    compute.kind = kind;
    compute.flags = dp_op_flags(dp_op_unit(compute), (uint32_t)skip);
    dp_op_list_put(p->out, compute);
    p->posted++;
}

/* The messages of skips that a compute reads, or, sending, those of what it makes. */
static void post_skips(struct poster *p, const struct dp_rank_view *view, struct dp_op compute,
                       bool sending)
{
    const struct dp_schedule *s = view->s;
    const struct dp_slot *slot = &view->slots[compute.slot];
    const bool forward = compute.kind == DP_OP_F, begins = forward == sending;

    if (!forward && compute.kind != DP_OP_B && compute.kind != DP_OP_I)
        return;
    for (int k = 0; k < s->skip_count; k++) {
        const struct dp_skip_ends *ends = dp_skip_ends_of(s, slot->stream, k);
        if ((begins ? s->skips[k].from : s->skips[k].to) != slot->stage || ends->from == ends->to)
            continue;
        uint8_t kind = forward ? (sending ? DP_OP_SEND_SKIP_F : DP_OP_RECV_SKIP_F)
                               : (sending ? DP_OP_SEND_SKIP_B : DP_OP_RECV_SKIP_B);
        post(p, kind, compute, k);
    }
}

static void post_all(struct poster *p, const struct dp_rank_view *view, struct dp_op compute,
                     bool sending)
{
    const struct traffic of = traffic_of(p, compute);

    post(p, sending ? of.send : of.receive, compute, 0);
    if (view->s->skip_count)
        post_skips(p, view, compute, sending);
}

/* Before `next`, if anything has been posted. */
static void commit(struct poster *p, struct dp_op next)
{
    if (!p->posted)
        return;
    dp_op_list_put(p->out, (struct dp_op){.kind = DP_OP_COMMIT, .flags = next.flags & DP_OP_UNIT,
                                          .mb = p->posted});
    p->posted = 0;
}

/* An overlapped pair is one call: its receives before, its sends after both. So is a compute with
 * the RECOMPUTEs before it, which run while its receives are under way. */
static size_t call_length(const struct dp_op *in, size_t left)
{
    size_t again = 0;

    while (again + 1 < left && in[again].kind == DP_OP_RECOMPUTE)
        again++;
    bool pair = in[again].kind == DP_OP_F && in[again].flags & DP_OP_OVERLAP && left > again + 1;
    return again + (pair ? 2 : 1);
}

void dp_add_messages(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                     struct dp_op_list *out)
{
    struct poster p = {.out = out};
    size_t length;

    /* Every op brings at most a receive, a commit, itself and a send, and messages of skips. */
    if (!dp_op_list_reserve(out, (4 + (size_t)view->s->skip_count) * count + 1))
        return;
    look_up_traffic(&p, view);
    for (size_t i = 0; i < count; i += length) {
        length = call_length(in + i, count - i);
        for (size_t k = i; k < i + length; k++)
            post_all(&p, view, in[k], false);
        commit(&p, in[i]);
        for (size_t k = i; k < i + length; k++)
            dp_op_list_put(out, in[k]);
        for (size_t k = i; k < i + length; k++)
            post_all(&p, view, in[k], true);
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
    return err == DP_EINVAL ? 0 : err; /* what else is wrong is the caller's to check */
}

/* Unless they block the messages stay. */
static int add_and_check(struct dp_schedule *s, bool *blocks)
{
    int err = dp_schedule_rewrite(s, dp_add_messages);

    if (!err)
        err = check_blocks(s, blocks);
    return err || !*blocks ? err : dp_schedule_rewrite(s, drop_messages);
}

int dp_schedule_add_messages(struct dp_schedule *s)
{
    const struct dp_op *message = dp_schedule_first_message(s);
    bool blocks = true;
    int err = message ? dp_fail(DP_ESTATE, "add messages: op %zu is a %s; expected computes only",
                                (size_t)(message - s->ops),
                                dp_op_kind_name((enum dp_op_kind)message->kind))
                      : 0;

    /* A receive of a skip right before its compute would keep the sender from its next batch. */
    if (!err && !s->skip_count)
        err = add_and_check(s, &blocks);
    if (err || !blocks)
        return err;
    err = dp_add_messages_in_lockstep(s);
    /* Where the computes themselves wait in a circle, the checker reports it. */
    return err == DP_EINVAL ? dp_schedule_rewrite(s, dp_add_messages) : err;
}

/* ---- frees ----------------------------------------------------------------------------------- */

/* Append a FREE for each of the `sent` activations that are sent from in[at] on. */
static struct dp_op *free_sent(struct dp_op *to, const struct dp_op *in, size_t sent,
                               uint32_t unit)
{
    for (; sent; in++) {
        struct dp_op op = *in;
        if (op.kind != DP_OP_SEND_F)
            continue;
        op.kind = DP_OP_FREE;
        op.flags = dp_op_flags(unit, 0);
        *to++ = op;
        sent--;
    }
    return to;
}

void dp_add_frees(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                  struct dp_op_list *out)
{
    size_t oldest = 0, sent = 0; /* activations sent since the last COMMIT: the first, how many */
    struct dp_op *to;

    (void)view;
    if (!count || !dp_op_list_reserve(out, 2 * count))
        return;
    to = out->ops + out->count;
    for (size_t i = 0; i < count; i++) {
        struct dp_op op = *to++ = in[i];
        if (op.kind == DP_OP_SEND_F && !sent++)
            oldest = i;
        if (op.kind == DP_OP_COMMIT) {
            to = free_sent(to, in + oldest, sent, dp_op_unit(op));
            sent = 0;
        }
    }
    out->count = (size_t)(to - out->ops);
}

int dp_schedule_add_frees(struct dp_schedule *s)
{
    return s->return_outputs ? 0 : dp_schedule_rewrite(s, dp_add_frees);
}

/* ---- reduces --------------------------------------------------------------------------------- */

static bool adds_weight_gradient(struct dp_op op)
{
    return op.kind == DP_OP_B || op.kind == DP_OP_W;
}

/* The REDUCE for a weight gradient, if one is due. */
static void flush(struct dp_op *due, struct dp_op_list *out)
{
    if (due->kind != DP_OP_NONE)
        dp_op_list_put(out, (struct dp_op){.kind = DP_OP_REDUCE, .flags = due->flags & DP_OP_UNIT,
                                           .slot = due->slot});
    due->kind = DP_OP_NONE;
}

/* A REDUCE_WAIT for every REDUCE of the list that begins at out->ops[from]. */
static void wait_for_reduces(struct dp_op_list *out, size_t from)
{
    for (size_t i = from, end = out->count; i < end; i++)
        if (out->ops[i].kind == DP_OP_REDUCE)
            dp_op_list_put(out, (struct dp_op){.kind = DP_OP_REDUCE_WAIT,
                                               .flags = out->ops[end - 1].flags & DP_OP_UNIT,
                                               .slot = out->ops[i].slot});
}

void dp_add_reduce_waits(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                         struct dp_op_list *out)
{
    size_t from = out->count;

    (void)view;
    if (!dp_op_list_reserve(out, 2 * count))
        return;
    dp_op_list_append(out, in, count);
    wait_for_reduces(out, from);
}

static void add_reduces(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                        bool all, struct dp_op_list *out)
{
    size_t last[DP_MAX_SLOTS] = {0}; /* index of the slot's last weight gradient */
    struct dp_op due = {.kind = DP_OP_NONE};
    size_t from = out->count;

    if (!dp_op_list_reserve(out, count + 2 * DP_MAX_SLOTS))
        return;
    for (size_t i = 0; i < count; i++)
        if (adds_weight_gradient(in[i]))
            last[in[i].slot] = i;
    for (size_t i = 0; i < count; i++) {
        if (dp_op_is_compute((enum dp_op_kind)in[i].kind))
            flush(&due, out);
        dp_op_list_put(out, in[i]);
        if (adds_weight_gradient(in[i]) && last[in[i].slot] == i &&
            (all || dp_slot_has_remote_mirror(&view->slots[in[i].slot], view->rank)))
            due = in[i];
    }
    flush(&due, out);
    wait_for_reduces(out, from);
}

void dp_add_reduces(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                    struct dp_op_list *out)
{
    add_reduces(view, in, count, false, out);
}

void dp_add_all_reduces(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                        struct dp_op_list *out)
{
    add_reduces(view, in, count, true, out);
}

int dp_schedule_add_sums(struct dp_schedule *s, bool all)
{
    return dp_schedule_rewrite(s, all ? dp_add_all_reduces : dp_add_reduces);
}

/* ---- recomputes ------------------------------------------------------------------------------ */

static void set_recomputed(struct dp_op *op, bool recomputed)
{
    op->flags = (uint16_t)((op->flags & ~DP_OP_RECOMPUTED) | (recomputed ? DP_OP_RECOMPUTED : 0));
}

/* Mark the F of every RECOMPUTE. recomputed[slots * mbs] is cleared and filled for the rank. */
static void mark_rank(struct dp_schedule *s, int rank, bool *recomputed)
{
    struct dp_op *ops = s->ops + s->first[rank];
    size_t count = dp_schedule_count(s, rank), mbs = (size_t)s->mb_per_stream;

    memset(recomputed, 0, (size_t)dp_schedule_slot_count(s, rank) * mbs);
    for (size_t i = 0; i < count; i++)
        if (ops[i].kind == DP_OP_RECOMPUTE)
            recomputed[ops[i].slot * mbs + ops[i].mb] = true;
    for (size_t i = 0; i < count; i++)
        if (ops[i].kind == DP_OP_F)
            set_recomputed(&ops[i], recomputed[ops[i].slot * mbs + ops[i].mb]);
}

int dp_schedule_mark_recomputed(struct dp_schedule *s)
{
    bool *recomputed = malloc((size_t)s->max_slots * (size_t)s->mb_per_stream + 1);

    if (!recomputed)
        return dp_fail(DP_ENOMEM, "no memory to mark %d micro-batches", s->mb_per_stream);
    for (int rank = 0; rank < s->ranks; rank++)
        mark_rank(s, rank, recomputed);
    free(recomputed);
    return 0;
}

static bool is_recomputed(const struct dp_rank_view *view, struct dp_op op)
{
    const struct dp_recompute_rule *rule = view->arg;
    return rule->wanted(rule->user, &view->slots[op.slot], (int32_t)op.mb);
}

static void add_recompute(const struct dp_rank_view *view, struct dp_op back,
                          struct dp_op_list *out)
{
    if ((back.kind == DP_OP_B || back.kind == DP_OP_I) && is_recomputed(view, back))
        dp_op_list_put(out, (struct dp_op){.kind = DP_OP_RECOMPUTE,
                                           .flags = back.flags & DP_OP_UNIT,
                                           .slot = back.slot, .mb = back.mb});
}

/* Before a backward; of an overlapped pair, before its F. */
void dp_add_recomputes(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                       struct dp_op_list *out)
{
    if (!dp_op_list_reserve(out, 2 * count))
        return;
    for (size_t i = 0; i < count; i++) {
        struct dp_op op = in[i];
        bool paired = op.kind == DP_OP_F && op.flags & DP_OP_OVERLAP && i + 1 < count;
        if (op.kind == DP_OP_F)
            set_recomputed(&op, is_recomputed(view, op));
        add_recompute(view, op, out);
        if (paired)
            add_recompute(view, in[i + 1], out);
        dp_op_list_put(out, op);
        if (paired)
            dp_op_list_put(out, in[++i]);
    }
}

int dp_schedule_add_recomputes(struct dp_schedule *s,
                               bool (*wanted)(void *user, const struct dp_slot *slot, int32_t mb),
                               void *user)
{
    struct dp_recompute_rule rule = {wanted, user};

    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == DP_OP_RECOMPUTE)
            return dp_fail(DP_ESTATE, "add recomputes: op %zu is a RECOMPUTE, expected none", i);
    return s->forward_only ? 0 : dp_schedule_rewrite_with(s, dp_add_recomputes, &rule);
}

/* ---- evictions ------------------------------------------------------------------------------- */

struct eviction_rule {
    bool (*wanted)(void *user, int rank, const struct dp_slot *slot, int32_t mb);
    void *user;
    uint32_t lead;
    /* Of the rank at hand: which compute, counted from 0, is the forward, and which the backward, of
     * each micro-batch of each slot; and the op with which each compute begins. */
    uint32_t *forward, *backward, *begins;
};

static const uint32_t nowhere = UINT32_MAX;

static size_t index_of(const struct dp_rank_view *view, struct dp_op op)
{
    return op.slot * (size_t)view->s->mb_per_stream + op.mb;
}

static bool is_second_of_pair(const struct dp_op *in, size_t i)
{
    return i && in[i - 1].kind == DP_OP_F && in[i - 1].flags & DP_OP_OVERLAP;
}

/* Returns how many computes there are. */
static uint32_t count_computes(const struct dp_rank_view *view, const struct dp_op *in, size_t count)
{
    const struct eviction_rule *rule = view->arg;
    size_t sets = (size_t)view->slot_count * (size_t)view->s->mb_per_stream;
    uint32_t computes = 0;

    memset(rule->forward, 0xFF, sets * sizeof(*rule->forward));
    memset(rule->backward, 0xFF, sets * sizeof(*rule->backward));
    for (size_t i = 0; i < count; i++) {
        if (!dp_op_is_compute((enum dp_op_kind)in[i].kind))
            continue;
        if (!is_second_of_pair(in, i))
            rule->begins[computes++] = (uint32_t)i;
        if (in[i].kind == DP_OP_F && !(in[i].flags & DP_OP_RECOMPUTED))
            rule->forward[index_of(view, in[i])] = computes - 1;
        if (in[i].kind == DP_OP_B || in[i].kind == DP_OP_I)
            rule->backward[index_of(view, in[i])] = computes - 1;
    }
    return computes;
}

/* Whether what the F of this set saved goes to the host. */
static bool is_evicted(const struct dp_rank_view *view, struct dp_op op)
{
    const struct eviction_rule *rule = view->arg;
    uint32_t f = rule->forward[index_of(view, op)], b = rule->backward[index_of(view, op)];

    return f != nowhere && b != nowhere && b >= f + 2 + rule->lead &&
           rule->wanted(rule->user, view->rank, &view->slots[op.slot], (int32_t)op.mb);
}

static void put(struct dp_op_list *out, enum dp_op_kind kind, struct dp_op of)
{
    dp_op_list_put(out,
                   (struct dp_op){.kind = (uint8_t)kind, .slot = of.slot,
                                                 .flags = of.flags & DP_OP_UNIT, .mb = of.mb});
}

/* Before compute k: what the one `lead` computes later reads. */
static void put_fetches(const struct dp_rank_view *view, const struct dp_op *in, uint32_t k,
                        uint32_t computes, struct dp_op_list *out)
{
    const struct eviction_rule *rule = view->arg;
    uint32_t later = k + rule->lead;

    if (later >= computes || later < k)
        return;
    for (size_t i = rule->begins[later], end = i + (is_second_of_pair(in, i + 1) ? 2 : 1); i < end;
         i++)
        if ((in[i].kind == DP_OP_B || in[i].kind == DP_OP_I) && is_evicted(view, in[i]))
            put(out, DP_OP_FETCH, in[i]);
}

static void add_evictions(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                          struct dp_op_list *out)
{
    uint32_t computes = count_computes(view, in, count), k = 0;

    if (!dp_op_list_reserve(out, 3 * count))
        return;
    for (size_t i = 0; i < count; i++) {
        bool compute = dp_op_is_compute((enum dp_op_kind)in[i].kind);
        bool pair = compute && in[i].kind == DP_OP_F && in[i].flags & DP_OP_OVERLAP && i + 1 < count;
        if (compute)
            put_fetches(view, in, k++, computes, out);
        dp_op_list_put(out, in[i]);
        if (pair)
            dp_op_list_put(out, in[i + 1]);
        if (in[i].kind == DP_OP_F && is_evicted(view, in[i]))
            put(out, DP_OP_EVICT, in[i]);
        i += pair;
    }
}

static size_t longest_list(const struct dp_schedule *s)
{
    size_t most = 0;

    for (int rank = 0; rank < s->ranks; rank++)
        if (dp_schedule_count(s, rank) > most)
            most = dp_schedule_count(s, rank);
    return most;
}

static int check_has_no_evictions(const struct dp_schedule *s)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == DP_OP_EVICT || s->ops[i].kind == DP_OP_FETCH)
            return dp_fail(DP_ESTATE, "add evictions: op %zu is a %s, expected none", i,
                           dp_op_kind_name((enum dp_op_kind)s->ops[i].kind));
    return 0;
}

int dp_schedule_add_evictions(struct dp_schedule *s, int lead,
                              bool (*wanted)(void *user, int rank, const struct dp_slot *slot,
                                             int32_t mb),
                              void *user)
{
    size_t sets = (size_t)s->max_slots * (size_t)s->mb_per_stream + 1, ops = longest_list(s) + 1;
    struct eviction_rule rule = {.wanted = wanted, .user = user, .lead = (uint32_t)lead};

    if (lead < 0)
        return dp_fail(DP_EINVAL, "add evictions: a lead of %d computes, expected 0 or more", lead);
    int err = check_has_no_evictions(s);
    if (err || s->forward_only)
        return err;
    rule.forward = malloc((2 * sets + ops) * sizeof(*rule.forward));
    if (!rule.forward)
        return dp_fail(DP_ENOMEM, "no memory to evict %d micro-batches", s->mb_per_stream);
    rule.backward = rule.forward + sets;
    rule.begins = rule.backward + sets;
    err = dp_schedule_rewrite_with(s, add_evictions, &rule);
    free(rule.forward);
    return err;
}
