/* SPDX-License-Identifier: Apache-2.0
 *
 * driven.c - execution by messages: a rank takes whatever message comes, from any rank, and does the
 * work that the message makes possible.
 *
 *      activation of (slot, mb)   F of slot, and of the slots after it on this rank; then its message
 *      gradient of (slot, mb)     B of slot, and of the slots before it on this rank; then its message
 *
 *      value of a skip         F of the slot where it ends, if its activation has come; its gradient
 *                              likewise B of the slot where it begins
 *
 * The plan of the list is the table of what there is to do: its entries have their memory and their
 * requests, only their order is not used. Weight parts that wait for their turn in fixed order do
 * so here too, with the turns found as backwards end.
 *
 * Receives are posted for as many messages as the step brings, DP_LANDINGS at a time, and never
 * more: none is left when the step ends. All kinds of messages share one channel; the tag says
 * which one it is.
 */
#include "pipeline/steps.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX };

/* One micro-batch of a slot: its entries of the plan, and what has happened to it in this step. */
struct driven_mb {
    uint32_t recv_f, forward, send_f;
    uint32_t recv_b, recompute, backward, send_b;
    uint32_t weight; /* WEIGHT or ADD, where its weight part waits for its turn */
    bool input_came, gradient_came, backward_done, added;
    bool recomputed; /* RECOMPUTE has run, maybe in vain */
    /* What must come before the forward, before the backward: of all messages; as yet. What the
     * slot before or after on this rank hands over counts as one too. */
    int32_t forward_needs, backward_needs;
    int32_t forward_lacks, backward_lacks;
};

/* The messages of a skip's micro-batch: entries of the plan. */
struct driven_skip {
    uint32_t recv_f, send_f, recv_b, send_b;
    bool value_came, gradient_came;
};

struct driven_slot {
    uint32_t first_sum, sums; /* entries that make one gradient of the slot's sets */
    int32_t inputs_left, gradients_left, forwards_left, parts_left;
    bool summed;
};

struct dp_driven {
    const struct dp_pipeline_base *base;
    const struct dp_plan *plan;
    struct dp_request landings[DP_LANDINGS];
    struct driven_mb *mbs; /* [slots * mb_count] */
    struct driven_skip *skips; /* [streams * skip_count * mb_count] async: one stream */
    int32_t skip_count;
    int32_t mb_count;
    uint32_t expected; /* messages of a step */
    uint32_t posted, received;
    int32_t forwards_left, backwards_left;
    int32_t starts_left; /* backwards that begin here with the loss */
    bool trains;
    int early_slot; /* whose forward has been done again for a gradient that has not come; -1: none */
    int32_t early_mb;
    int slots;
    struct driven_slot slot[DP_MAX_SLOTS];
};

static struct driven_mb *mb_of(const struct dp_driven *d, int slot, int32_t mb)
{
    return &d->mbs[(size_t)slot * (size_t)d->mb_count + (size_t)mb];
}

static struct driven_skip *skip_of(const struct dp_driven *d, int skip, int32_t mb)
{
    return &d->skips[(size_t)skip * (size_t)d->mb_count + (size_t)mb];
}

/* ---- the tables of a plan -------------------------------------------------------------------- */

static void note_skip(struct dp_driven *d, const struct dp_plan_op *op, uint32_t i)
{
    struct driven_skip *k = skip_of(d, op->message.stage, (int32_t)op->mb);
    struct driven_mb *m = mb_of(d, op->slot, (int32_t)op->mb);
    const bool forward = op->message.channel == DP_CHANNEL_ACTIVATION;

    if (op->kind == DP_PLAN_SEND) {
        *(forward ? &k->send_f : &k->send_b) = i;
        return;
    }
    *(forward ? &k->recv_f : &k->recv_b) = i;
    ++*(forward ? &m->forward_needs : &m->backward_needs);
    d->expected++;
}

static void note_entry(struct dp_driven *d, const struct dp_plan_op *op, uint32_t i)
{
    struct driven_mb *m = mb_of(d, op->slot, (int32_t)op->mb);
    const bool forward = op->message.channel == DP_CHANNEL_ACTIVATION;
    const bool message = op->kind == DP_PLAN_RECV || op->kind == DP_PLAN_SEND;

    if (message && op->message.skip) {
        note_skip(d, op, i);
        return;
    }
    switch ((enum dp_plan_kind)op->kind) {
    case DP_PLAN_RECV:
        *(forward ? &m->recv_f : &m->recv_b) = i;
        d->expected++;
        return;
    case DP_PLAN_SEND:
        *(forward ? &m->send_f : &m->send_b) = i;
        return;
    case DP_PLAN_FORWARD:
        m->forward = i;
        return;
    case DP_PLAN_RECOMPUTE:
        m->recompute = i;
        return;
    case DP_PLAN_BACKWARD:
    case DP_PLAN_INPUT:
        m->backward = i;
        return;
    case DP_PLAN_WEIGHT:
    case DP_PLAN_ADD:
        m->weight = i;
        return;
    default: /* SUM, ROUND: one after the other */
        if (!d->slot[op->slot].sums++)
            d->slot[op->slot].first_sum = i;
        return;
    }
}

static const struct driven_mb no_entries = {
    .recv_f = NONE,
    .forward = NONE,
    .send_f = NONE,
    .recv_b = NONE,
    .recompute = NONE,
    .backward = NONE,
    .send_b = NONE,
    .weight = NONE,
    .forward_needs = 1, /* the input of the border, from wherever */
    .backward_needs = 1,
};

static int init(const struct dp_pipeline_base *base, struct dp_program *program)
{
    const struct dp_plan *plan = &program->plan;
    const size_t n = (size_t)base->slots * (size_t)program->schedule->mb_per_stream;
    struct dp_driven *d = calloc(1, sizeof(*d));

    program->driven = d;
    const size_t skips = (size_t)program->schedule->streams *
                         (size_t)program->schedule->skip_count *
                         (size_t)program->schedule->mb_per_stream;
    if (d)
        d->mbs = malloc(n * sizeof(*d->mbs) + 1);
    if (d)
        d->skips = malloc(skips * sizeof(*d->skips) + 1);
    if (!d || !d->mbs || !d->skips)
        return dp_fail(DP_ENOMEM, "no memory for %zu micro-batches that messages drive", n);
    for (size_t i = 0; i < n; i++)
        d->mbs[i] = no_entries;
    for (size_t i = 0; i < skips; i++)
        d->skips[i] = (struct driven_skip){NONE, NONE, NONE, NONE, false, false};
    d->skip_count = program->schedule->skip_count;
    d->mb_count = program->schedule->mb_per_stream;
    d->slots = base->slots;
    d->base = base;
    d->plan = plan;
    d->trains = !program->schedule->forward_only;
    for (size_t i = 0; i < plan->count; i++)
        note_entry(d, &plan->ops[i], (uint32_t)i);
    return 0;
}

static void fini(struct dp_program *program)
{
    if (program->driven) {
        free(program->driven->skips);
        free(program->driven->mbs);
    }
    free(program->driven);
    program->driven = NULL;
}

static size_t landing_bytes(const struct dp_pipeline_base *base)
{
    size_t most = 0;

    for (int i = 0; i < base->program_count; i++) {
        const struct dp_plan *plan = &base->programs[i].plan;
        for (size_t k = 0; k < plan->count && base->programs[i].driven; k++)
            if (plan->ops[k].kind == DP_PLAN_RECV && plan->ops[k].message.len >= most)
                most = plan->ops[k].message.len + 1;
    }
    return (most + 255) / 256 * 256;
}

/* ---- entries --------------------------------------------------------------------------------- */

static const struct dp_plan_op *entry(const struct dp_driven *d, uint32_t i)
{
    return &d->plan->ops[i];
}

/* The wait before it belongs to the first entry that a message leads to. */
static int run(struct dp_driven *d, uint32_t i, bool again)
{
    const int err = dp_pipeline_begin_entry(d->base->pipe, entry(d, i));

    return err ? err : dp_pipeline_run_entry(d->base->pipe, entry(d, i), again);
}

static int run_if(struct dp_driven *d, uint32_t i)
{
    return i == NONE ? 0 : run(d, i, false);
}

static int send_if(struct dp_driven *d, uint32_t i)
{
    return i == NONE ? 0 : dp_messages_send(d->base->pipe, entry(d, i));
}

/* ---- weight parts, each in its turn ---------------------------------------------------------- */

/* Whether the weight part, whose backward is done, may be added. */
static bool has_turn(const struct dp_driven *d, int slot, int32_t mb)
{
    const struct driven_mb *m = mb_of(d, slot, mb);
    return m->weight == NONE || mb_of(d, slot, mb - 1)->added;
}

/* Later slots with the same parameters are summed first. */
static bool may_sum(const struct dp_driven *d, int slot)
{
    const int location = dp_base_slot(d->base, slot)->location;
    bool may = !d->slot[slot].parts_left && !d->slot[slot].summed;

    for (int later = slot + 1; later < d->slots && may; later++)
        may = d->slot[later].summed || dp_base_slot(d->base, later)->location != location;
    return may;
}

/* The sets of slots whose last part has been added become one. */
static int add_sums(struct dp_driven *d)
{
    int err = 0;

    for (int slot = d->slots - 1; slot >= 0 && !err; slot--) {
        struct driven_slot *s = &d->slot[slot];
        if (!may_sum(d, slot))
            continue;
        for (uint32_t i = 0; i < s->sums && !err; i++)
            err = run(d, s->first_sum + i, false);
        s->summed = true;
    }
    return err;
}

/* The weight part of a backward that has just ended, and those that waited for it. */
static int add_weights(struct dp_driven *d, int slot, int32_t mb)
{
    int err = 0;

    for (; mb < d->mb_count && !err; mb++) {
        struct driven_mb *m = mb_of(d, slot, mb);
        if (!m->backward_done || m->added || !has_turn(d, slot, mb))
            break;
        err = run_if(d, m->weight);
        m->added = true;
        d->slot[slot].parts_left--;
    }
    return err || d->slot[slot].parts_left ? err : add_sums(d);
}

/* ---- recomputed forwards ---------------------------------------------------------------------- */

/* One that has run before, in vain, is recorded once. */
static int recompute(struct dp_driven *d, struct driven_mb *m)
{
    const bool again = m->recomputed;

    m->recomputed = true;
    return run(d, m->recompute, again);
}

/* The backward that comes next if gradients come in the order in which the last stage sends them. */
static struct driven_mb *next_backward(struct dp_driven *d, int *slot, int32_t *mb)
{
    for (*slot = d->slots - 1; *slot >= 0; --*slot)
        for (*mb = d->mb_count - 1; *mb >= 0; --*mb)
            if (!mb_of(d, *slot, *mb)->backward_done)
                return mb_of(d, *slot, *mb);
    return NULL;
}

/* While its gradient is on the way, and only after all forwards, which use the same memory. */
static int recompute_early(struct dp_driven *d)
{
    int32_t mb;
    int slot;

    if (!d->backwards_left || d->forwards_left || d->early_slot >= 0)
        return 0;
    struct driven_mb *m = next_backward(d, &slot, &mb);
    if (!m || m->recompute == NONE)
        return 0;
    d->early_slot = slot;
    d->early_mb = mb;
    return recompute(d, m);
}

/* Before a backward. What was recomputed for another one is lost, as both use the same memory. */
static int recompute_for(struct dp_driven *d, int slot, int32_t mb)
{
    const bool is_there = d->early_slot == slot && d->early_mb == mb;

    if (d->early_slot >= 0 && !is_there)
        dp_compute_drop_handle(d->base->pipe, d->early_slot, d->early_mb);
    d->early_slot = -1;
    struct driven_mb *m = mb_of(d, slot, mb);
    return m->recompute == NONE || is_there ? 0 : recompute(d, m);
}

/* ---- chains of slots on this rank ------------------------------------------------------------ */

/* Values of the skips that begin at the slot, or gradients of those that end there. */
static int send_skips(struct dp_driven *d, int slot, int32_t mb, bool values)
{
    const struct dp_schedule *s = d->base->config.schedule;
    const int stage = dp_base_slot(d->base, slot)->stage;
    int err = 0;

    for (int k = 0; k < d->skip_count && !err; k++)
        if ((values ? s->skips[k].from : s->skips[k].to) == stage)
            err = send_if(d, values ? skip_of(d, k, mb)->send_f : skip_of(d, k, mb)->send_b);
    return err;
}

/* One more of what the forward of (slot, mb) needs is there: run it if that was the last, and what
 * follows on this rank. */
static int run_forwards(struct dp_driven *d, int slot, int32_t mb)
{
    const struct dp_slot *at;
    int err;

    do {
        struct driven_mb *m = mb_of(d, slot, mb);
        if (--m->forward_lacks)
            return 0;
        at = dp_base_slot(d->base, slot);
        err = run(d, m->forward, false);
        if (!err)
            err = send_if(d, m->send_f);
        if (!err)
            err = send_skips(d, slot, mb, true);
        d->forwards_left--;
        d->slot[slot].forwards_left--;
        slot = at->next_slot;
    } while (!err && at->next == d->base->rank);
    return err;
}

/* The same of a backward. The gradient goes out before the weights are added. */
static int run_backwards(struct dp_driven *d, int slot, int32_t mb)
{
    const struct dp_slot *at;
    int err;

    do {
        struct driven_mb *m = mb_of(d, slot, mb);
        if (--m->backward_lacks)
            return 0;
        at = dp_base_slot(d->base, slot);
        err = recompute_for(d, slot, mb);
        if (!err)
            err = run(d, m->backward, false);
        if (!err)
            err = send_if(d, m->send_b);
        if (!err)
            err = send_skips(d, slot, mb, false);
        m->backward_done = true;
        if (!err)
            err = add_weights(d, slot, mb);
        d->backwards_left--;
        slot = at->prev_slot;
    } while (!err && at->prev == d->base->rank);
    return err;
}

/* ---- messages -------------------------------------------------------------------------------- */

static char *landing_of(const struct dp_driven *d, uint32_t number)
{
    return d->base->landing_memory + number % DP_LANDINGS * d->base->landing_bytes;
}

static int post(struct dp_driven *d)
{
    const struct dp_pipeline_base *base = d->base;
    int err = 0;

    while (d->posted < d->expected && d->posted - d->received < DP_LANDINGS && !err) {
        err = dp_comm_irecv_any(base->config.comm, DP_ANY_SOURCE, DP_CHANNEL_ACTIVATION,
                                landing_of(d, d->posted), base->landing_bytes,
                                &d->landings[d->posted % DP_LANDINGS]);
        d->posted += !err;
    }
    return err;
}

/* The rank that a skip's value, or gradient, of the slot is missing of; -1: none is. */
static int awaited_skip(const struct dp_driven *d, int slot, bool values)
{
    for (int skip = 0; skip < d->skip_count; skip++)
        for (int32_t mb = 0; mb < d->mb_count; mb++) {
            const struct driven_skip *k = skip_of(d, skip, mb);
            const uint32_t i = values ? (k->value_came ? NONE : k->recv_f)
                                      : (k->gradient_came ? NONE : k->recv_b);
            if (i != NONE && entry(d, i)->slot == slot)
                return entry(d, i)->message.peer;
        }
    return -1;
}

/* A rank that some message is missing of: of the earliest stage whose inputs have not all come,
 * else of the last whose gradients have not. That rank misses none of a later stage's inputs, or of
 * an earlier one's gradients, so that following such ranks leads to one that waits for none. */
static int awaited(const struct dp_driven *d)
{
    int peer = -1;

    for (int slot = 0; slot < d->slots && peer < 0; slot++)
        peer = d->slot[slot].inputs_left ? dp_base_slot(d->base, slot)->prev
                                         : awaited_skip(d, slot, true);
    for (int slot = d->slots - 1; slot >= 0 && peer < 0; slot--)
        peer = d->slot[slot].gradients_left ? dp_base_slot(d->base, slot)->next
                                            : awaited_skip(d, slot, false);
    return peer;
}

/* The receive of a skip that the message is for. */
static uint32_t find_skip_receive(const struct dp_driven *d, const struct dp_received *got)
{
    const int32_t mb = got->tag & DP_MAX_MB;

    for (int skip = 0; skip < d->skip_count && mb < d->mb_count; skip++) {
        const struct driven_skip *k = skip_of(d, skip, mb);
        const uint32_t receives[] = {k->value_came ? NONE : k->recv_f,
                                     k->gradient_came ? NONE : k->recv_b};
        for (int i = 0; i < 2; i++)
            if (receives[i] != NONE &&
                dp_messages_tag_of(d->base->pipe, entry(d, receives[i])) == got->tag)
                return receives[i];
    }
    return NONE;
}

/* The receive of the plan that is for this message, NONE: it is no message of this step. */
static uint32_t find_receive(const struct dp_driven *d, const struct dp_received *got)
{
    const int32_t mb = got->tag & DP_MAX_MB;

    for (int slot = 0; slot < d->slots && mb < d->mb_count; slot++) {
        const struct driven_mb *m = mb_of(d, slot, mb);
        const uint32_t receives[] = {m->input_came ? NONE : m->recv_f,
                                     m->gradient_came ? NONE : m->recv_b};
        for (int i = 0; i < 2; i++) {
            const struct dp_plan_message *wanted =
                receives[i] == NONE ? NULL : &entry(d, receives[i])->message;
            if (wanted &&
                dp_messages_tag(d->base->pipe, wanted->channel, wanted->stage, (uint32_t)mb) == got->tag)
                return receives[i];
        }
    }
    return find_skip_receive(d, got);
}

static int check_message(const struct dp_driven *d, const struct dp_received *got, uint32_t i)
{
    if (i == NONE)
        return dp_fail(DP_EMISMATCH,
                       "a message of rank %d with tag %llx: expected none of this step", got->peer,
                       (unsigned long long)got->tag);
    const struct dp_plan_message *m = &entry(d, i)->message;
    const int peer = d->base->config.schedule->group_rank[m->peer];
    const size_t len = dp_messages_len(d->base->pipe, entry(d, i));

    if (got->peer == peer && got->len == len)
        return 0;
    return dp_fail(
        DP_EMISMATCH,
        "a message of %s %d, micro-batch %u: %zu bytes of rank %d, expected %zu bytes "
        "of rank %d",
        m->skip ? "skip" : "stage", m->stage, entry(d, i)->mb, got->len, got->peer, len, peer);
}

static int copy_message(struct dp_driven *d, const struct dp_plan_op *op, const char *from,
                        size_t len)
{
    char *to = d->base->memory + op->message.offset;

    if (d->base->out_of_reach)
        return dp_compute_copy(d->base->pipe, to, from, len);
    memcpy(to, from, len);
    return 0;
}

/* The oldest receive has its message: to its place, and the next receive into the same memory. */
static int store_message(struct dp_driven *d, uint32_t *out)
{
    struct dp_received got;

    dp_comm_received(d->base->config.comm, &d->landings[d->received % DP_LANDINGS], &got);
    const uint32_t i = find_receive(d, &got);
    int err = check_message(d, &got, i);
    if (!err)
        err = copy_message(d, entry(d, i), landing_of(d, d->received), got.len);
    d->received++;
    *out = i;
    return err ? err : post(d);
}

static int work_on(struct dp_driven *d, const struct dp_plan_op *op)
{
    struct driven_mb *m = mb_of(d, op->slot, (int32_t)op->mb);
    struct driven_skip *k =
        op->message.skip ? skip_of(d, op->message.stage, (int32_t)op->mb) : NULL;

    if (k && op->message.channel == DP_CHANNEL_ACTIVATION) {
        k->value_came = true;
        return run_forwards(d, op->slot, (int32_t)op->mb);
    }
    if (k) {
        k->gradient_came = true;
        return run_backwards(d, op->slot, (int32_t)op->mb);
    }
    if (op->message.channel == DP_CHANNEL_ACTIVATION) {
        m->input_came = true;
        d->slot[op->slot].inputs_left--;
        return run_forwards(d, op->slot, (int32_t)op->mb);
    }
    m->gradient_came = true;
    d->slot[op->slot].gradients_left--;
    return run_backwards(d, op->slot, (int32_t)op->mb);
}

/* DP_EAGAIN: none is there, and there is something better to do than to wait. */
static int take_message(struct dp_driven *d, bool wait)
{
    struct dp_request *request = &d->landings[d->received % DP_LANDINGS];
    uint32_t i;

    if (d->received == d->expected)
        return DP_EAGAIN;
    int err = dp_comm_test(d->base->config.comm, request);
    if (err == DP_EAGAIN && wait) {
        err = recompute_early(d);
        if (!err)
            err = dp_messages_wait_request(d->base->pipe, request, awaited(d));
    }
    if (!err)
        err = store_message(d, &i);
    return err ? err : work_on(d, entry(d, i));
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void reset_slot(struct dp_driven *d, int slot)
{
    struct driven_slot *s = &d->slot[slot];

    s->inputs_left = s->gradients_left = 0;
    s->summed = false;
    s->forwards_left = d->mb_count;
    s->parts_left = d->trains ? d->mb_count : 0;
    for (int32_t mb = 0; mb < d->mb_count; mb++) {
        struct driven_mb *m = mb_of(d, slot, mb);
        m->input_came = m->gradient_came = m->backward_done = m->added = m->recomputed = false;
        m->forward_lacks = m->forward_needs;
        m->backward_lacks = m->backward_needs;
        s->inputs_left += m->recv_f != NONE;
        s->gradients_left += m->recv_b != NONE;
    }
}

static int begin(struct dp_driven *d)
{
    const int first = d->base->first_slot;

    d->posted = d->received = 0;
    d->early_slot = -1;
    d->forwards_left = d->slots * d->mb_count;
    d->backwards_left = d->trains ? d->forwards_left : 0;
    d->starts_left = d->trains && d->base->last_slot >= 0 ? d->mb_count : 0;
    for (int slot = 0; slot < d->slots; slot++)
        reset_slot(d, slot);
    for (int32_t i = 0; i < d->skip_count * d->mb_count; i++)
        d->skips[i].value_came = d->skips[i].gradient_came = false;
    int err = post(d);
    for (int32_t mb = 0; mb < d->mb_count && first >= 0 && !err; mb++)
        err = run_forwards(d, first, mb);
    return err;
}

/* The highest micro-batch whose backward has not begun on the last stage. */
static int start_backward(struct dp_driven *d)
{
    return run_backwards(d, d->base->last_slot, --d->starts_left);
}

static int run_step(struct dp_driven *d, bool forwards, bool backwards)
{
    int err = forwards ? begin(d) : 0;

    while (!err && (d->forwards_left || (backwards && d->backwards_left))) {
        bool may_start =
            backwards && d->starts_left && !d->slot[d->base->last_slot].forwards_left;
        err = take_message(d, !may_start);
        if (err == DP_EAGAIN && may_start)
            err = start_backward(d);
    }
    return err;
}

const struct dp_execution_ops dp_execute_messages = {init, fini, landing_bytes, run_step};
