/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate.c - carry a schedule out on paper. Each rank has a clock. It goes through its list until
 * it needs a message that has not been sent yet; the sender of the message wakes it. Every message is
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
#include "schedule/check.h"
#include "schedule/links.h"

#include <math.h>
#include <stdlib.h>

#define NO_SPAN UINT32_MAX

struct clock {
    size_t next;           /* op to go on with */
    size_t sent, received; /* no send, or receive, that a COMMIT must take up stands before these */
    uint32_t unsent;       /* sends since the last COMMIT */
    int64_t now_ns;
    int64_t idle_since_ns; /* end of the last compute */
    int32_t waited_for;    /* rank whose message moved `now_ns` last, since then */
    uint32_t cause;        /* the span that `now` is the end of, or whose message came then */
    size_t span;           /* number of the rank's next span, counted over all ranks */
    int32_t alive, queued; /* activation sets, weight parts */
    int32_t aside;         /* sets of which only the input is kept, and evicted sets */
    int64_t out_free_ns, in_free_ns;    /* the copies to and from host memory end */
    struct dp_messages evicted, coming; /* sets evicted, and being fetched; tag: copy_tag */
    bool ready;            /* in the queue of ranks that may go on */
};

/* A REDUCE that was launched. */
struct launch {
    const struct dp_op *op; /* NULL: not yet */
    int64_t at_ns;
    uint32_t cause;
};

struct simulator {
    const struct dp_schedule *s;
    unsigned flags;
    struct dp_durations durations;
    int64_t latency_ns, transfer_ns, skip_transfer_ns;
    struct dp_links links;
    int64_t *link_free_ns;       /* [links.count] */
    struct dp_messages *arrivals; /* [links.flows]; tag: the mb */
    struct clock *clocks;        /* [ranks] */
    struct launch *launches;     /* [slots of all ranks], of REDUCEs */
    int64_t evict_ns, fetch_ns;
    int32_t *ready, *full;       /* [ranks] queue of ranks to go on; ranks whose peer is behind */
    uint32_t ready_head, ready_count, full_count;
    uint32_t limit;              /* messages of a flow under way before its sender pauses */
    size_t moves;                /* ops done since the full ones were let go on */
    struct dp_simulation *out;
    uint32_t *causes;            /* [spans] */
};

/* A rank going on: what is looked up once. */
struct turn {
    struct simulator *sim;
    int rank;
    struct clock *clock;
    const struct dp_op *ops;
    const struct dp_port *ports;
    struct dp_rank_report *report;
};

enum outcome { GOES_ON, WAITS, PAUSES, FAILED };

static inline void wake(struct simulator *sim, int rank)
{
    uint32_t ranks = (uint32_t)sim->s->ranks, at = sim->ready_head + sim->ready_count;

    if (sim->clocks[rank].ready)
        return;
    sim->clocks[rank].ready = true;
    sim->ready[at < ranks ? at : at - ranks] = rank;
    sim->ready_count++;
}

/* ---- messages -------------------------------------------------------------------------------- */

static void move_clock(struct clock *clock, int64_t to_ns, int peer, uint32_t cause)
{
    if (to_ns <= clock->now_ns)
        return;
    clock->now_ns = to_ns;
    clock->waited_for = peer;
    clock->cause = cause;
}

/* A message that an op needs, and where it is in the queue of its flow. */
struct need {
    struct dp_messages *queue; /* NULL: the op needs none */
    int peer;
    uint32_t k;
};

/* Look up the message; false if it has not been sent yet. */
static inline bool is_there(const struct turn *t, const struct dp_port *port, uint32_t mb,
                     struct need *need)
{
    struct dp_messages *q = port->link < 0 ? NULL : &t->sim->arrivals[port->flow];

    *need = (struct need){q, port->peer, 0};
    while (q && need->k < q->count && dp_messages_at(q, need->k)->tag != mb)
        need->k++;
    return !q || need->k < q->count;
}

static inline void take(struct turn *t, const struct need *need)
{
    if (!need->queue)
        return;
    struct dp_message message = dp_messages_take(need->queue, need->k);
    move_clock(t->clock, message.time_ns, need->peer, message.index);
}

/* Put a message on its link at the sender's time. */
static enum outcome send(struct turn *t, struct dp_op op)
{
    const struct dp_port *port = dp_links_port(&t->sim->links, t->sim->s, t->rank, op);
    struct dp_messages *q = &t->sim->arrivals[port->flow];
    const bool skip = dp_op_is_skip((enum dp_op_kind)op.kind);
    int64_t *free_ns = &t->sim->link_free_ns[port->link];
    int64_t start = t->clock->now_ns > *free_ns ? t->clock->now_ns : *free_ns;

    if (q->count >= t->sim->limit)
        return PAUSES;
    *free_ns = start + (skip ? t->sim->skip_transfer_ns : t->sim->transfer_ns);
    if (!dp_messages_push(q, (struct dp_message){op.mb, t->clock->cause,
                                               *free_ns + t->sim->latency_ns}))
        return FAILED;
    wake(t->sim, port->peer);
    return GOES_ON;
}

static enum outcome start_sends(struct turn *t)
{
    struct clock *clock = t->clock;

    for (; clock->unsent; clock->sent++) {
        const struct dp_op *op = &t->ops[clock->sent];
        if (!dp_op_is_send((enum dp_op_kind)op->kind))
            continue;
        enum outcome outcome = send(t, *op);
        if (outcome != GOES_ON)
            return outcome;
        clock->unsent--;
    }
    return GOES_ON;
}

static enum outcome wait_for_receives(struct turn *t)
{
    struct clock *clock = t->clock;
    struct need need;

    for (; clock->received < clock->next; clock->received++) {
        struct dp_op op = t->ops[clock->received];
        if (!dp_op_is_message((enum dp_op_kind)op.kind) || dp_op_is_send((enum dp_op_kind)op.kind))
            continue;
        if (!is_there(t, dp_links_port(&t->sim->links, t->sim->s, t->rank, op), op.mb, &need))
            return WAITS;
        take(t, &need);
    }
    return GOES_ON;
}

static enum outcome commit(struct turn *t)
{
    enum outcome outcome = start_sends(t);

    return outcome == GOES_ON && t->sim->flags & DP_SIMULATE_BATCHES ? wait_for_receives(t)
                                                                     : outcome;
}

/* ---- copies to host memory and back ---------------------------------------------------------- */

static void note_memory(struct turn *t)
{
    if (t->clock->alive > t->report->peak_activations)
        t->report->peak_activations = t->clock->alive;
    if (t->clock->aside > t->report->peak_inputs)
        t->report->peak_inputs = t->clock->aside;
}

/* Of what (slot, mb) saved. */
static uint32_t copy_tag(struct dp_op op)
{
    return (uint32_t)op.slot << 20 | op.mb;
}

/* Evicted sets do not count as activations until they are fetched. */
static void set_aside(struct turn *t, int sets)
{
    t->clock->alive -= sets;
    t->clock->aside += sets;
    note_memory(t);
}

static enum outcome evict(struct turn *t, struct dp_op op)
{
    struct clock *clock = t->clock;

    if (clock->out_free_ns < clock->now_ns)
        clock->out_free_ns = clock->now_ns;
    clock->out_free_ns += t->sim->evict_ns;
    set_aside(t, 1);
    return dp_messages_push(&clock->evicted, (struct dp_message){copy_tag(op), 0, clock->out_free_ns})
               ? GOES_ON
               : FAILED;
}

/* A set comes back when it has gone, and the fetches before it are done. */
static enum outcome fetch(struct turn *t, struct dp_op op)
{
    struct clock *clock = t->clock;
    uint32_t k = 0;

    while (k < clock->evicted.count && dp_messages_at(&clock->evicted, k)->tag != copy_tag(op))
        k++;
    if (k == clock->evicted.count)
        return WAITS; /* for ever: the checker refuses it */
    const int64_t gone_ns = dp_messages_take(&clock->evicted, k).time_ns;
    if (clock->in_free_ns < gone_ns)
        clock->in_free_ns = gone_ns;
    if (clock->in_free_ns < clock->now_ns)
        clock->in_free_ns = clock->now_ns;
    clock->in_free_ns += t->sim->fetch_ns;
    set_aside(t, -1);
    return dp_messages_push(&clock->coming, (struct dp_message){copy_tag(op), 0, clock->in_free_ns})
               ? GOES_ON
               : FAILED;
}

/* A backward or weight part waits for what is being fetched of its micro-batch. */
static void wait_for_fetch(struct turn *t, struct dp_op op)
{
    struct dp_messages *coming = &t->clock->coming;

    if (op.kind == DP_OP_F)
        return;
    for (uint32_t k = coming->count; k-- > 0;)
        if (dp_messages_at(coming, k)->tag == copy_tag(op))
            move_clock(t->clock, dp_messages_take(coming, k).time_ns, -1, t->clock->cause);
}

/* ---- computes -------------------------------------------------------------------------------- */

static inline void account(struct turn *t, struct dp_op op)
{
    struct clock *clock = t->clock;

    switch ((enum dp_op_kind)op.kind) {
    case DP_OP_F:
        clock->alive += !(op.flags & DP_OP_RECOMPUTED);
        clock->aside += !!(op.flags & DP_OP_RECOMPUTED);
        note_memory(t);
        break;
    case DP_OP_RECOMPUTE:
        clock->alive++;
        clock->aside--;
        note_memory(t);
        break;
    case DP_OP_I:
        if (++clock->queued > t->report->peak_weight_queue)
            t->report->peak_weight_queue = clock->queued;
        break;
    case DP_OP_W:
        clock->queued--;
        clock->alive--;
        break;
    default: /* B */
        clock->alive--;
    }
}

static void write_span(struct turn *t, const struct dp_op *op, int64_t end_ns)
{
    const struct clock *clock = t->clock;
    int64_t waited_ns = clock->now_ns - clock->idle_since_ns;

    t->sim->causes[clock->span] = clock->cause;
    t->sim->out->timeline.spans[clock->span] = (struct dp_span){
        .start_ns = clock->now_ns,
        .end_ns = end_ns,
        .rank = t->rank,
        .index = (uint32_t)clock->next,
        .op = *op,
        .pair = op->flags & DP_OP_OVERLAP ? op[1] : (struct dp_op){0},
        .waited_ns = waited_ns,
        .waited_for = waited_ns ? clock->waited_for : -1,
    };
}

/* Let the op, whose messages are there, take its time. */
static inline void spend(struct turn *t, const struct dp_op *op, int64_t duration_ns)
{
    struct clock *clock = t->clock;

    if (t->sim->causes)
        write_span(t, op, clock->now_ns + duration_ns);
    t->report->busy_ns += duration_ns;
    t->report->waiting_ns += clock->now_ns - clock->idle_since_ns;
    clock->now_ns += duration_ns;
    clock->idle_since_ns = clock->now_ns;
    clock->cause = (uint32_t)clock->span++;
}

/* The message that a compute consumes; where batches are waited for, its COMMIT has taken it. */
static inline bool is_input_there(const struct turn *t, struct dp_op op, struct need *need)
{
    *need = (struct need){0};
    if (op.kind == DP_OP_W || op.kind == DP_OP_RECOMPUTE || t->sim->flags & DP_SIMULATE_BATCHES)
        return true;
    return is_there(t, dp_port_of(t->ports, op.slot,
                                  op.kind == DP_OP_F ? DP_OP_RECV_F : DP_OP_RECV_B), op.mb, need);
}

/* The skips that a compute reads: are all there, or, taking, take them. */
static bool with_skips(struct turn *t, struct dp_op op, bool taking)
{
    const struct dp_schedule *s = t->sim->s;
    const struct dp_slot *slot = dp_schedule_slot(s, t->rank, (int)op.slot);
    const bool forward = op.kind == DP_OP_F;
    struct need need;
    bool there = true;

    if ((!forward && op.kind != DP_OP_B && op.kind != DP_OP_I) ||
        t->sim->flags & DP_SIMULATE_BATCHES)
        return true;
    op.kind = forward ? DP_OP_RECV_SKIP_F : DP_OP_RECV_SKIP_B;
    for (int k = 0; k < s->skip_count && there; k++) {
        if ((forward ? s->skips[k].to : s->skips[k].from) != slot->stage)
            continue;
        op.flags = dp_op_flags(0, (uint32_t)k);
        there = is_there(t, dp_links_port(&t->sim->links, s, t->rank, op), op.mb, &need);
        if (there && taking)
            take(t, &need);
    }
    return there;
}

static enum outcome compute(struct turn *t, const struct dp_op *op)
{
    const bool skips = t->sim->s->skip_count, fetches = t->clock->coming.count;
    const int overlap = op->flags & DP_OP_OVERLAP;
    struct need first, second = {0};

    if (!is_input_there(t, op[0], &first) ||
        (overlap && !is_input_there(t, op[1], &second)))
        return WAITS;
    for (int i = 0; skips && i <= overlap; i++)
        if (!with_skips(t, op[i], false))
            return WAITS;
    take(t, &first);
    take(t, &second);
    for (int i = 0; skips && i <= overlap; i++)
        with_skips(t, op[i], true);
    for (int i = 0; fetches && i <= overlap; i++)
        wait_for_fetch(t, op[i]);
    spend(t, op, dp_duration_ns(&t->sim->durations, t->sim->s, t->rank, op));
    account(t, op[0]);
    if (overlap) {
        account(t, op[1]);
        t->clock->next++;
    }
    return GOES_ON;
}

/* ---- reduces --------------------------------------------------------------------------------- */

static struct launch *launch_of(const struct simulator *sim, int rank, int slot)
{
    return &sim->launches[sim->s->first_slot[rank] + (size_t)slot];
}

static enum outcome launch_reduce(struct turn *t, const struct dp_op *op)
{
    const struct dp_slot *slot = dp_schedule_slot(t->sim->s, t->rank, (int)op->slot);

    *launch_of(t->sim, t->rank, (int)op->slot) =
        (struct launch){op, t->clock->now_ns, t->clock->cause};
    if (dp_slot_has_remote_mirror(slot, t->rank))
        wake(t->sim, slot->mirror);
    return GOES_ON;
}

/* The sum begins when both partners have launched it. What is left of it when the rank comes to
 * wait for it is the span of the REDUCE_WAIT. */
static enum outcome wait_for_reduce(struct turn *t, const struct dp_op *op)
{
    const struct dp_slot *slot = dp_schedule_slot(t->sim->s, t->rank, (int)op->slot);
    const struct launch *mine = launch_of(t->sim, t->rank, (int)op->slot);
    const bool paired = dp_slot_has_remote_mirror(slot, t->rank);
    const struct launch *theirs =
        paired ? launch_of(t->sim, slot->mirror, slot->mirror_slot) : mine;

    if (!mine->op || !theirs->op)
        return WAITS;
    int64_t start_ns = mine->at_ns > theirs->at_ns ? mine->at_ns : theirs->at_ns;
    int64_t end_ns = start_ns + dp_duration_ns(&t->sim->durations, t->sim->s, t->rank, mine->op);
    if (paired)
        move_clock(t->clock, start_ns, slot->mirror, theirs->cause);
    spend(t, op, end_ns > t->clock->now_ns ? end_ns - t->clock->now_ns : 0);
    return GOES_ON;
}

/* ---- the run --------------------------------------------------------------------------------- */

static enum outcome step(struct turn *t, const struct dp_op *op)
{
    switch ((enum dp_op_kind)op->kind) {
    case DP_OP_F:
    case DP_OP_B:
    case DP_OP_I:
    case DP_OP_W:
    case DP_OP_RECOMPUTE:
        return compute(t, op);
    case DP_OP_EVICT:
        return evict(t, *op);
    case DP_OP_FETCH:
        return fetch(t, *op);
    case DP_OP_SEND_F:
    case DP_OP_SEND_B:
    case DP_OP_SEND_SKIP_F:
    case DP_OP_SEND_SKIP_B:
        if (!t->clock->unsent++)
            t->clock->sent = t->clock->next;
        return GOES_ON;
    case DP_OP_COMMIT:
        return commit(t);
    case DP_OP_REDUCE:
        return launch_reduce(t, op);
    case DP_OP_REDUCE_WAIT:
        return wait_for_reduce(t, op);
    default:
        return GOES_ON;
    }
}

/* The next op at which something happens: receives are early. */
static inline size_t next_to_do(const struct dp_op *ops, size_t next, size_t count)
{
    const struct dp_op *op = &ops[next], *end = &ops[count];

    while (op < end &&
           (op->kind == DP_OP_RECV_F || op->kind == DP_OP_RECV_B || op->kind == DP_OP_FREE))
        op++;
    return (size_t)(op - ops);
}

static enum outcome run(struct simulator *sim, int rank)
{
    struct clock *clock = &sim->clocks[rank];
    struct turn t = {sim, rank, clock, dp_schedule_ops(sim->s, rank),
                     dp_links_ports(&sim->links, sim->s, rank), &sim->out->ranks[rank]};
    size_t start = clock->next, count = dp_schedule_count(sim->s, rank);
    enum outcome outcome = GOES_ON;

    clock->ready = false;
    while ((clock->next = next_to_do(t.ops, clock->next, count)) < count) {
        if ((outcome = step(&t, &t.ops[clock->next])) != GOES_ON)
            break;
        clock->next++;
    }
    sim->moves += clock->next - start;
    if (outcome == PAUSES)
        sim->full[sim->full_count++] = rank;
    /* Ranks take turns in short stretches: by its next one, the rest of the list is at hand. */
    __builtin_prefetch(&t.ops[clock->next + 16]);
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
    for (int rank = 0; rank < sim->s->ranks; rank++)
        wake(sim, rank);
    while (sim->ready_count) {
        int rank = sim->ready[sim->ready_head];
        sim->ready_head = (sim->ready_head + 1) % (uint32_t)sim->s->ranks;
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
                           "a message that never comes; expected a schedule that passes the "
                           "checker", rank, next,
                           dp_op_text(dp_schedule_ops(sim->s, rank)[next], text));
    }
    return 0;
}

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

/* ---- the critical path ----------------------------------------------------------------------- */

static uint32_t last_to_end(const struct dp_timeline *t)
{
    uint32_t last = 0;

    for (uint32_t i = 1; i < t->count; i++)
        if (t->spans[i].end_ns > t->spans[last].end_ns)
            last = i;
    return last;
}

/* From the span that ends last back through what each one waited for. */
static int trace_critical_path(struct dp_simulation *sim, const uint32_t *causes)
{
    const struct dp_timeline *t = &sim->timeline;
    uint32_t last = t->count ? last_to_end(t) : NO_SPAN;
    size_t count = 0;

    for (uint32_t i = last; i != NO_SPAN; i = causes[i])
        count++;
    sim->critical = malloc((count + 1) * sizeof(*sim->critical));
    if (!sim->critical)
        return dp_fail(DP_ENOMEM, "no memory for a critical path of %zu ops", count);
    sim->critical_count = count;
    for (uint32_t i = last; i != NO_SPAN; i = causes[i])
        sim->critical[--count] = t->spans[i];
    return 0;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static size_t count_spans(const struct dp_op *ops, size_t count)
{
    size_t spans = 0;

    for (size_t i = 0; i < count; i++)
        spans += (dp_op_is_compute((enum dp_op_kind)ops[i].kind) ||
                  ops[i].kind == DP_OP_REDUCE_WAIT) - (ops[i].flags & DP_OP_OVERLAP);
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

/* All times are sums of these, of each at most one for every op of the schedule. */
static int check_sum(const struct simulator *sim, const struct dp_cost *cost)
{
    const size_t count = sim->s->first[sim->s->ranks];
    const double bytes = fmax(cost->message_bytes, cost->skip_bytes);
    const double each_ns = sim->durations.longest_ns + cost->link_latency_ns + cost->evict_ns +
                           cost->fetch_ns +
                           (cost->link_bytes_per_ns > 0 ? bytes / cost->link_bytes_per_ns : 0);

    if ((double)count * each_ns < 0x1p62)
        return 0;
    return dp_fail(DP_EINVAL, "costs: %zu ops of up to %g ns each, expected less than 4.6e18 ns in all",
                   count, each_ns);
}

static int set_up(struct simulator *sim, const struct dp_cost *cost)
{
    const struct dp_schedule *s = sim->s;
    size_t ranks = (size_t)s->ranks;
    int err = dp_durations_init(&sim->durations, s, cost);

    if (!err)
        err = check_sum(sim, cost);
    if (!err)
        err = dp_links_init(&sim->links, s);
    if (err)
        return err;
    sim->latency_ns = llround(cost->link_latency_ns);
    if (cost->link_bytes_per_ns > 0)
        sim->transfer_ns = llround(cost->message_bytes / cost->link_bytes_per_ns);
    if (cost->link_bytes_per_ns > 0)
        sim->skip_transfer_ns =
            llround((cost->skip_bytes > 0 ? cost->skip_bytes : cost->message_bytes) /
                    cost->link_bytes_per_ns);
    sim->evict_ns = llround(cost->evict_ns);
    sim->fetch_ns = llround(cost->fetch_ns);
    sim->limit = 4; /* short queues stay in the cache */
    sim->link_free_ns = calloc((size_t)sim->links.count + 1, sizeof(*sim->link_free_ns));
    sim->arrivals = calloc((size_t)sim->links.flows + 1, sizeof(*sim->arrivals));
    sim->clocks = calloc(ranks, sizeof(*sim->clocks));
    sim->ready = malloc(ranks * sizeof(*sim->ready));
    sim->full = malloc(ranks * sizeof(*sim->full));
    sim->launches = calloc(s->first_slot[ranks] + 1, sizeof(*sim->launches));
    sim->out->ranks = calloc(ranks, sizeof(*sim->out->ranks));
    if (!sim->link_free_ns || !sim->arrivals || !sim->clocks || !sim->ready || !sim->full ||
        !sim->launches || !sim->out->ranks)
        return dp_fail(DP_ENOMEM, "no memory to simulate %d ranks", s->ranks);
    for (int rank = 0; rank < s->ranks; rank++)
        sim->clocks[rank].cause = NO_SPAN;
    return sim->flags & (DP_SIMULATE_TIMELINE | DP_SIMULATE_CRITICAL) ? set_up_spans(sim) : 0;
}

static void simulator_fini(struct simulator *sim)
{
    for (int i = 0; sim->arrivals && i < sim->links.flows; i++)
        free(sim->arrivals[i].ring);
    for (int rank = 0; sim->clocks && rank < sim->s->ranks; rank++) {
        free(sim->clocks[rank].evicted.ring);
        free(sim->clocks[rank].coming.ring);
    }
    free(sim->arrivals);
    free(sim->launches);
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
        err = dp_check_sound(s);
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
        err = trace_critical_path(&result, sim.causes);
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
