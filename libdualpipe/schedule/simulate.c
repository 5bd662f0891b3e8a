/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate.c - carry a schedule out on paper. Each rank has a clock. It goes through its list until
 * it needs a message that has not been sent yet; who sends the message wakes it. Every message is
 * kept, with the time it arrives, in the queue of the slot that will consume it.
 *
 *      rank 0   F0.0 |sF0.0 c1|
 *                     \ latency, bytes
 *      rank 1   waited \_ F0.0
 *
 * The order in which ranks are taken up changes nothing but how full the queues get.
 */
#include "base/fail.h"
#include "schedule/build.h"
#include "schedule/durations.h"
#include "schedule/links.h"
#include "schedule/placement.h"

#include <math.h>
#include <stdlib.h>

#define NO_SPAN UINT32_MAX

struct clock {
    size_t next;            /* op to go on with */
    size_t sent, received;  /* ops before these have been taken up by a COMMIT */
    int64_t now_ns;
    int64_t idle_since_ns;  /* end of the last compute */
    int32_t waited_for;     /* who sent what moved `now` last, since then */
    uint32_t cause;         /* the span that `now` is the end of, or whose message came then */
    size_t span;            /* where the rank's next span goes */
    int32_t alive, queued;  /* activation sets, weight parts */
    bool ready;             /* in the queue of ranks that may go on */
    bool at_reduce, met;    /* waits for its mirror; its mirror has come */
};

struct simulator {
    const struct dp_schedule *s;
    unsigned flags;
    struct dp_durations durations;
    int64_t latency_ns, transfer_ns;
    struct dp_links links;
    int64_t *link_free_ns;       /* [links.count] */
    struct dp_parcels *arrivals; /* [ranks * slots * 2]: activations, gradients; tag: the mb */
    struct clock *clocks;        /* [ranks] */
    int32_t *ready, *full;       /* [ranks] queue of ranks to go on; ranks whose peer is behind */
    uint32_t ready_head, ready_count, full_count;
    uint32_t limit;              /* messages under way to a slot before its sender pauses */
    size_t moves;                /* ops done since the full ones were let go on */
    struct dp_simulation *out;
    size_t *span_start;          /* [ranks + 1] */
    uint32_t *causes;            /* [spans] */
};

enum outcome { GOES_ON, WAITS, PAUSES, FAILED };

static void wake(struct simulator *sim, int rank)
{
    if (sim->clocks[rank].ready)
        return;
    sim->clocks[rank].ready = true;
    sim->ready[(sim->ready_head + sim->ready_count++) % (uint32_t)sim->s->ranks] = rank;
}

/* ---- messages ------------------------------------------------------------------------------ */

static struct dp_parcels *arrivals_of(const struct simulator *sim, int rank, int slot,
                                      bool gradient)
{
    return &sim->arrivals[2 * ((size_t)rank * (size_t)sim->s->slots_per_rank + (size_t)slot) +
                          gradient];
}

static void move_clock(struct clock *clock, int64_t to_ns, int peer, uint32_t cause)
{
    if (to_ns <= clock->now_ns)
        return;
    clock->now_ns = to_ns;
    clock->waited_for = peer;
    clock->cause = cause;
}

/* Wait until slot's message mb is there. */
static enum outcome take(struct simulator *sim, int rank, struct dp_op op, bool gradient, int peer)
{
    struct dp_parcels *q = arrivals_of(sim, rank, (int)op.slot, gradient);

    for (uint32_t k = 0; k < q->count; k++) {
        if (dp_parcels_at(q, k)->tag != op.mb)
            continue;
        struct dp_parcel parcel = dp_parcels_take(q, k);
        move_clock(&sim->clocks[rank], parcel.time_ns, peer, parcel.index);
        return GOES_ON;
    }
    return WAITS;
}

/* Put a message on its link at the sender's time. */
static enum outcome send(struct simulator *sim, int rank, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(sim->s, rank, (int)op.slot);
    bool gradient = op.kind == DP_OP_SEND_B;
    int peer = gradient ? slot->prev : slot->next;
    int peer_slot = gradient ? slot->prev_slot : slot->next_slot;
    struct dp_parcels *q = arrivals_of(sim, peer, peer_slot, gradient);
    int64_t *free_ns = &sim->link_free_ns[dp_links_port(&sim->links, sim->s, rank, op)->link];
    int64_t start = sim->clocks[rank].now_ns > *free_ns ? sim->clocks[rank].now_ns : *free_ns;

    if (q->count >= sim->limit)
        return PAUSES;
    *free_ns = start + sim->transfer_ns;
    if (!dp_parcels_push(q, (struct dp_parcel){op.mb, sim->clocks[rank].cause,
                                               *free_ns + sim->latency_ns}))
        return FAILED;
    wake(sim, peer);
    return GOES_ON;
}

/* Start the batch's sends; where batches are waited for, wait for its receives. */
static enum outcome commit(struct simulator *sim, int rank, const struct dp_op *ops)
{
    struct clock *clock = &sim->clocks[rank];
    enum outcome outcome;

    for (; clock->sent < clock->next; clock->sent++) {
        struct dp_op op = ops[clock->sent];
        if (op.kind != DP_OP_SEND_F && op.kind != DP_OP_SEND_B)
            continue;
        if ((outcome = send(sim, rank, op)) != GOES_ON)
            return outcome;
    }
    if (!(sim->flags & DP_SIMULATE_BATCHES))
        return GOES_ON;
    for (; clock->received < clock->next; clock->received++) {
        struct dp_op op = ops[clock->received];
        if (op.kind != DP_OP_RECV_F && op.kind != DP_OP_RECV_B)
            continue;
        int peer = dp_op_peer(dp_schedule_slot(sim->s, rank, (int)op.slot), op);
        if ((outcome = take(sim, rank, op, op.kind == DP_OP_RECV_B, peer)) != GOES_ON)
            return outcome;
    }
    return GOES_ON;
}

/* ---- computes ------------------------------------------------------------------------------ */

static void account_activations(struct clock *clock, struct dp_rank_report *report,
                                struct dp_op op)
{
    clock->alive += (op.kind == DP_OP_F) - (op.kind == DP_OP_B || op.kind == DP_OP_W);
    clock->queued += (op.kind == DP_OP_I) - (op.kind == DP_OP_W);
    if (clock->alive > report->peak_activations)
        report->peak_activations = clock->alive;
    if (clock->queued > report->peak_weight_queue)
        report->peak_weight_queue = clock->queued;
}

static void write_span(struct simulator *sim, int rank, const struct dp_op *op, int64_t end_ns)
{
    const struct clock *clock = &sim->clocks[rank];
    bool waited = clock->now_ns > clock->idle_since_ns;

    sim->causes[clock->span] = clock->cause;
    sim->out->timeline.spans[clock->span] = (struct dp_span){
        .start_ns = clock->now_ns,
        .end_ns = end_ns,
        .rank = rank,
        .index = (uint32_t)clock->next,
        .op = *op,
        .pair = op->overlap ? op[1] : (struct dp_op){0},
        .waited_ns = clock->now_ns - clock->idle_since_ns,
        .waited_for = waited ? clock->waited_for : -1,
    };
}

/* Let the op, whose messages are there, take its time. */
static void spend(struct simulator *sim, int rank, const struct dp_op *op)
{
    struct clock *clock = &sim->clocks[rank];
    struct dp_rank_report *report = &sim->out->ranks[rank];
    int64_t duration = dp_duration_ns(&sim->durations, sim->s, rank, op);

    if (sim->causes)
        write_span(sim, rank, op, clock->now_ns + duration);
    report->busy_ns += duration;
    report->waiting_ns += clock->now_ns - clock->idle_since_ns;
    clock->now_ns += duration;
    clock->idle_since_ns = clock->now_ns;
    clock->cause = (uint32_t)clock->span++;
}

/* The messages that a compute consumes. */
static enum outcome receive(struct simulator *sim, int rank, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(sim->s, rank, (int)op.slot);

    if (op.kind == DP_OP_F && dp_slot_has_remote_prev(slot, rank))
        return take(sim, rank, op, false, slot->prev);
    if ((op.kind == DP_OP_B || op.kind == DP_OP_I) && dp_slot_has_remote_next(slot, rank))
        return take(sim, rank, op, true, slot->next);
    return GOES_ON;
}

/* Is all there that an op (and the one it overlaps) needs? Looks before it takes, so that nothing
 * has to be put back. */
static bool is_there(const struct simulator *sim, int rank, struct dp_op op)
{
    const struct dp_slot *slot = dp_schedule_slot(sim->s, rank, (int)op.slot);
    bool gradient = op.kind != DP_OP_F;
    const struct dp_parcels *q = arrivals_of(sim, rank, (int)op.slot, gradient);

    if (gradient ? !dp_slot_has_remote_next(slot, rank) : !dp_slot_has_remote_prev(slot, rank))
        return true;
    for (uint32_t k = 0; k < q->count; k++)
        if (dp_parcels_at(q, k)->tag == op.mb)
            return true;
    return false;
}

static enum outcome compute(struct simulator *sim, int rank, const struct dp_op *op)
{
    struct clock *clock = &sim->clocks[rank];
    bool batches = sim->flags & DP_SIMULATE_BATCHES;

    if (!batches && op->overlap && !is_there(sim, rank, op[1]))
        return WAITS;
    if (!batches && receive(sim, rank, op[0]) == WAITS)
        return WAITS;
    if (!batches && op->overlap)
        receive(sim, rank, op[1]);
    spend(sim, rank, op);
    account_activations(clock, &sim->out->ranks[rank], op[0]);
    if (op->overlap)
        account_activations(clock, &sim->out->ranks[rank], op[1]);
    clock->next += op->overlap;
    return GOES_ON;
}

/* ---- reduces ------------------------------------------------------------------------------- */

/* Both partners start together. The one that comes second moves the clock of the first. */
static enum outcome reduce(struct simulator *sim, int rank, const struct dp_op *op)
{
    const struct dp_slot *slot = dp_schedule_slot(sim->s, rank, (int)op->slot);
    struct clock *clock = &sim->clocks[rank], *mirror = &sim->clocks[slot->mirror];

    if (!clock->met) {
        if (!mirror->at_reduce ||
            (int)dp_schedule_ops(sim->s, slot->mirror)[mirror->next].slot != slot->mirror_slot) {
            clock->at_reduce = true;
            return WAITS;
        }
        mirror->at_reduce = false;
        mirror->met = true;
        move_clock(clock, mirror->now_ns, slot->mirror, mirror->cause);
        move_clock(mirror, clock->now_ns, rank, clock->cause);
        wake(sim, slot->mirror);
    }
    clock->met = false;
    spend(sim, rank, op);
    return GOES_ON;
}

/* ---- the run ------------------------------------------------------------------------------- */

static enum outcome step(struct simulator *sim, int rank, const struct dp_op *ops,
                         const struct dp_op *op)
{
    switch ((enum dp_op_kind)op->kind) {
    case DP_OP_F:
    case DP_OP_B:
    case DP_OP_I:
    case DP_OP_W:
        return compute(sim, rank, op);
    case DP_OP_COMMIT:
        return commit(sim, rank, ops);
    case DP_OP_REDUCE:
        return reduce(sim, rank, op);
    default:
        return GOES_ON;
    }
}

static enum outcome run(struct simulator *sim, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(sim->s, rank);
    size_t count = dp_schedule_count(sim->s, rank);
    struct clock *clock = &sim->clocks[rank];
    enum outcome outcome = GOES_ON;

    clock->ready = false;
    for (; clock->next < count; clock->next++, sim->moves++)
        if ((outcome = step(sim, rank, ops, &ops[clock->next])) != GOES_ON)
            break;
    if (outcome == PAUSES)
        sim->full[sim->full_count++] = rank;
    return outcome;
}

/* Ranks that were too far ahead go on; further ahead, if else nothing moves at all. */
static void let_full_ones_go_on(struct simulator *sim)
{
    if (!sim->moves)
        sim->limit *= 2;
    sim->moves = 0;
    while (sim->full_count)
        wake(sim, sim->full[--sim->full_count]);
}

static int run_all(struct simulator *sim)
{
    uint32_t ranks = (uint32_t)sim->s->ranks;

    for (int rank = 0; rank < sim->s->ranks; rank++)
        wake(sim, rank);
    while (sim->ready_count) {
        int rank = sim->ready[sim->ready_head];
        sim->ready_head = (sim->ready_head + 1) % ranks;
        sim->ready_count--;
        if (run(sim, rank) == FAILED)
            return dp_fail(DP_ENOMEM, "no memory for messages under way");
        if (!sim->ready_count && sim->full_count)
            let_full_ones_go_on(sim);
    }
    return 0;
}

static int check_all_ended(const struct simulator *sim)
{
    char text[DP_OP_TEXT_LEN];

    for (int rank = 0; rank < sim->s->ranks; rank++) {
        size_t next = sim->clocks[rank].next;
        if (next < dp_schedule_count(sim->s, rank))
            return dp_fail(DP_EINVAL, "simulation stands still: rank %d, op %zu (%s) waits for "
                           "what never comes; expected a schedule that passes the checker", rank,
                           next, dp_op_text(dp_schedule_ops(sim->s, rank)[next], text));
    }
    return 0;
}

/* ---- results ------------------------------------------------------------------------------- */

static void sum_up(struct simulator *sim)
{
    struct dp_simulation *out = sim->out;
    double bubbles = 0;

    for (int rank = 0; rank < sim->s->ranks; rank++)
        if (sim->clocks[rank].now_ns > out->makespan_ns)
            out->makespan_ns = sim->clocks[rank].now_ns;
    for (int rank = 0; rank < sim->s->ranks; rank++) {
        struct dp_rank_report *report = &out->ranks[rank];
        report->bubble_ns = out->makespan_ns - report->busy_ns;
        bubbles += (double)report->bubble_ns;
    }
    if (out->makespan_ns)
        out->bubble_ratio = bubbles / ((double)sim->s->ranks * (double)out->makespan_ns);
    out->timeline.makespan_ns = out->makespan_ns;
}

static uint32_t last_span(const struct simulator *sim)
{
    const struct dp_timeline *t = &sim->out->timeline;
    uint32_t last = 0;

    for (uint32_t i = 1; i < t->count; i++)
        if (t->spans[i].end_ns > t->spans[last].end_ns)
            last = i;
    return last;
}

/* From the span that ends last back through what each one waited for. */
static int trace_critical_path(struct simulator *sim)
{
    struct dp_simulation *out = sim->out;
    size_t count = 0;

    if (!out->timeline.count)
        return 0;
    for (uint32_t i = last_span(sim); i != NO_SPAN; i = sim->causes[i])
        count++;
    out->critical = malloc(count * sizeof(*out->critical));
    if (!out->critical)
        return dp_fail(DP_ENOMEM, "no memory for a critical path of %zu ops", count);
    out->critical_count = count;
    for (uint32_t i = last_span(sim); i != NO_SPAN; i = sim->causes[i])
        out->critical[--count] = out->timeline.spans[i];
    return 0;
}

/* ---- setting up ---------------------------------------------------------------------------- */

static bool has_partner(const struct dp_schedule *s, int rank, struct dp_op op)
{
    int peer = dp_op_peer(dp_schedule_slot(s, rank, (int)op.slot), op);
    return peer >= 0 && peer != rank;
}

/* Is the op one that the simulator can look up without harm? More than that is the checker's. */
static bool is_sound(const struct dp_schedule *s, int rank, const struct dp_op *op, bool last)
{
    bool talks = dp_op_is_message((enum dp_op_kind)op->kind) || op->kind == DP_OP_REDUCE;

    if (op->kind >= DP_OP_KINDS || (int)op->slot >= s->slots_per_rank)
        return false;
    if (op->overlap && (op->kind != DP_OP_F || last || op[1].kind != DP_OP_B))
        return false;
    return !talks || has_partner(s, rank, *op);
}

static int check_ops(const struct dp_schedule *s)
{
    char text[DP_OP_TEXT_LEN];

    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_op *ops = dp_schedule_ops(s, rank);
        size_t count = dp_schedule_count(s, rank);
        for (size_t i = 0; i < count; i++)
            if (!is_sound(s, rank, &ops[i], i + 1 == count))
                return dp_fail(DP_EINVAL, "simulate: rank %d, op %zu (%s) makes no sense; expected "
                               "a schedule that passes the checker", rank, i,
                               dp_op_text(ops[i], text));
    }
    return 0;
}

static size_t count_spans(const struct dp_op *ops, size_t count)
{
    size_t spans = 0;

    for (size_t i = 0; i < count; i++)
        spans += (dp_op_is_compute((enum dp_op_kind)ops[i].kind) || ops[i].kind == DP_OP_REDUCE) -
                 ops[i].overlap;
    return spans;
}

static int set_up_spans(struct simulator *sim)
{
    struct dp_timeline *t = &sim->out->timeline;
    size_t count = 0;

    for (int rank = 0; rank < sim->s->ranks; rank++) {
        sim->clocks[rank].span = count;
        count += count_spans(dp_schedule_ops(sim->s, rank), dp_schedule_count(sim->s, rank));
    }
    *t = (struct dp_timeline){.ranks = sim->s->ranks, .count = count};
    if (count >= NO_SPAN)
        return dp_fail(DP_EUNSUPPORTED, "a timeline of %zu ops, expected less than 2^32", count);
    t->spans = malloc((count + 1) * sizeof(*t->spans));
    sim->causes = malloc((count + 1) * sizeof(*sim->causes));
    if (!t->spans || !sim->causes)
        return dp_fail(DP_ENOMEM, "no memory for a timeline of %zu ops", count);
    return 0;
}

static int set_up(struct simulator *sim, const struct dp_cost *cost)
{
    const struct dp_schedule *s = sim->s;
    size_t ranks = (size_t)s->ranks, slots = ranks * (size_t)s->slots_per_rank;
    int err = dp_durations_init(&sim->durations, s, cost);

    if (!err)
        err = dp_links_init(&sim->links, s);
    if (err)
        return err;
    sim->latency_ns = llround(cost->link_latency_ns);
    if (cost->link_bytes_per_ns > 0)
        sim->transfer_ns = llround(cost->message_bytes / cost->link_bytes_per_ns);
    sim->limit = 16;
    sim->link_free_ns = calloc((size_t)sim->links.count + 1, sizeof(*sim->link_free_ns));
    sim->arrivals = calloc(2 * slots, sizeof(*sim->arrivals));
    sim->clocks = calloc(ranks, sizeof(*sim->clocks));
    sim->ready = malloc(ranks * sizeof(*sim->ready));
    sim->full = malloc(ranks * sizeof(*sim->full));
    sim->out->ranks = calloc(ranks, sizeof(*sim->out->ranks));
    if (!sim->link_free_ns || !sim->arrivals || !sim->clocks || !sim->ready || !sim->full ||
        !sim->out->ranks)
        return dp_fail(DP_ENOMEM, "no memory to simulate %d ranks", s->ranks);
    for (int rank = 0; rank < s->ranks; rank++)
        sim->clocks[rank].cause = NO_SPAN;
    return sim->flags & (DP_SIMULATE_TIMELINE | DP_SIMULATE_CRITICAL) ? set_up_spans(sim) : 0;
}

static void simulator_fini(struct simulator *sim)
{
    size_t queues = 2 * (size_t)sim->s->ranks * (size_t)sim->s->slots_per_rank;

    for (size_t i = 0; sim->arrivals && i < queues; i++)
        free(sim->arrivals[i].ring);
    free(sim->arrivals);
    free(sim->link_free_ns);
    free(sim->clocks);
    free(sim->ready);
    free(sim->full);
    free(sim->causes);
    dp_links_fini(&sim->links);
    dp_durations_fini(&sim->durations);
}

int dp_schedule_simulate(const struct dp_schedule *s, const struct dp_cost *cost, unsigned flags,
                         struct dp_simulation *out)
{
    struct dp_simulation result = {0};
    struct simulator sim = {.s = s, .flags = flags, .out = &result};
    int err = dp_placement_check(s);

    if (err == DP_EINVAL)
        err = dp_fail(err, "simulate: %s", dp_last_error());
    if (!err)
        err = check_ops(s);
    if (err)
        return err;
    err = set_up(&sim, cost);
    if (!err)
        err = run_all(&sim);
    if (!err)
        err = check_all_ended(&sim);
    if (!err)
        sum_up(&sim);
    if (!err && flags & DP_SIMULATE_CRITICAL)
        err = trace_critical_path(&sim);
    simulator_fini(&sim);
    if (!(flags & DP_SIMULATE_TIMELINE))
        dp_timeline_fini(&result.timeline);
    if (err)
        dp_simulation_fini(&result);
    else
        *out = result;
    return err;
}

void dp_timeline_fini(struct dp_timeline *t)
{
    free(t->spans);
    *t = (struct dp_timeline){0};
}

void dp_simulation_fini(struct dp_simulation *sim)
{
    free(sim->ranks);
    free(sim->critical);
    dp_timeline_fini(&sim->timeline);
    *sim = (struct dp_simulation){0};
}
