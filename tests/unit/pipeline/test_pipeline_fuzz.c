/* SPDX-License-Identifier: Apache-2.0
 *
 * Random schedules that the checker lets pass, carried out and compared with the sequential loop:
 * one stream or two, one to three stages a rank, in lines, circles, arcs and at random; computes in
 * any order that their messages allow.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"
#include "pipeline_job.h"
#include "schedule/build.h"

enum { ROUNDS = 250, MAX_RANKS = 4, MAX_SLOTS = 3, MAX_MB = 6, MAX_OPS = 2048, MAX_QUEUE = 512 };
static const int64_t deadline_ns = INT64_C(10000000000);

/* ---- chance ---------------------------------------------------------------------------------- */

struct dice {
    uint64_t seed, at;
};

static int roll(struct dice *dice, int sides)
{
    uint32_t block[4];
    dp_random_block(dp_random_key(dice->seed, 1, 0, 0), dice->at++, block);
    return (int)(block[0] % (uint32_t)sides);
}

/* ---- a schedule in the making ---------------------------------------------------------------- */

/* Messages in flight on a directed link, oldest first. */
struct link {
    struct dp_op messages[MAX_QUEUE]; /* the compute that consumes it: F, or I for B or I */
    int head, tail;
};

struct maker {
    struct dice *dice;
    struct dp_schedule *s;
    bool any_order; /* first stages take micro-batches in any order */
    struct link links[MAX_RANKS][MAX_RANKS];
    bool forwarded[MAX_RANKS][MAX_SLOTS][MAX_MB], returned[MAX_RANKS][MAX_SLOTS][MAX_MB];
    struct dp_op queue[MAX_RANKS][MAX_QUEUE]; /* weight parts */
    int queue_head[MAX_RANKS], queue_tail[MAX_RANKS];
    struct dp_op ops[MAX_RANKS][MAX_OPS];
    int count[MAX_RANKS];
};

static const struct dp_slot *slot_of(const struct maker *m, int rank, uint32_t slot)
{
    return dp_schedule_slot(m->s, rank, (int)slot);
}

static bool is_head(const struct maker *m, int from, int to, struct dp_op op)
{
    const struct link *link = &m->links[from][to];
    const struct dp_op *head = &link->messages[link->head];
    return link->head < link->tail && head->kind == op.kind && head->slot == op.slot &&
           head->mb == op.mb;
}

static bool is_next_mb(const struct maker *m, int rank, struct dp_op op)
{
    return m->any_order || op.mb == 0 || m->forwarded[rank][op.slot][op.mb - 1];
}

static bool can_forward(const struct maker *m, int rank, struct dp_op op)
{
    const struct dp_slot *slot = slot_of(m, rank, op.slot);

    if (m->forwarded[rank][op.slot][op.mb])
        return false;
    if (slot->prev < 0)
        return is_next_mb(m, rank, op);
    if (slot->prev == rank)
        return m->forwarded[rank][slot->prev_slot][op.mb];
    return is_head(m, slot->prev, rank, op);
}

static bool can_return(const struct maker *m, int rank, struct dp_op op)
{
    const struct dp_slot *slot = slot_of(m, rank, op.slot);

    if (!m->forwarded[rank][op.slot][op.mb] || m->returned[rank][op.slot][op.mb])
        return false;
    if (slot->next < 0)
        return m->any_order || op.mb == 0 || m->returned[rank][op.slot][op.mb - 1];
    if (slot->next == rank)
        return m->returned[rank][slot->next_slot][op.mb];
    return is_head(m, slot->next, rank, op);
}

static void send(struct maker *m, int from, int to, struct dp_op op)
{
    struct link *link = &m->links[from][to];
    link->messages[link->tail++] = op;
}

static void put(struct maker *m, int rank, struct dp_op op)
{
    m->ops[rank][m->count[rank]++] = op;
}

static void forward(struct maker *m, int rank, struct dp_op op)
{
    const struct dp_slot *slot = slot_of(m, rank, op.slot);

    put(m, rank, op);
    m->forwarded[rank][op.slot][op.mb] = true;
    if (slot->prev >= 0 && slot->prev != rank)
        m->links[slot->prev][rank].head++;
    if (slot->next >= 0 && slot->next != rank)
        send(m, rank, slot->next,
             (struct dp_op){.kind = DP_OP_F, .slot = (uint32_t)slot->next_slot, .mb = op.mb});
}

static void go_back(struct maker *m, int rank, struct dp_op op, bool whole)
{
    const struct dp_slot *slot = slot_of(m, rank, op.slot);
    struct dp_op listed = op;

    listed.kind = whole ? DP_OP_B : DP_OP_I;
    put(m, rank, listed);
    if (!whole)
        m->queue[rank][m->queue_tail[rank]++] = op;
    m->returned[rank][op.slot][op.mb] = true;
    if (slot->next >= 0 && slot->next != rank)
        m->links[slot->next][rank].head++;
    if (slot->prev >= 0 && slot->prev != rank)
        send(m, rank, slot->prev,
             (struct dp_op){.kind = DP_OP_I, .slot = (uint32_t)slot->prev_slot, .mb = op.mb});
}

/* The oldest weight part of any slot that has some. */
static void do_weight(struct maker *m, int rank)
{
    struct dp_op *queue = m->queue[rank] + m->queue_head[rank];
    int waiting = m->queue_tail[rank] - m->queue_head[rank], slot = (int)queue[roll(m->dice, waiting)].slot;
    int at = 0;

    while ((int)queue[at].slot != slot)
        at++;
    struct dp_op op = queue[at];
    memmove(queue + 1, queue, (size_t)at * sizeof(*queue));
    m->queue_head[rank]++;
    op.kind = DP_OP_W;
    put(m, rank, op);
}

/* ---- one op at random ------------------------------------------------------------------------ */

/* All that a rank can do now; F and I only (I represents B too). */
static int list_choices(const struct maker *m, int rank, struct dp_op *choices)
{
    int count = 0;

    for (int slot = 0; slot < dp_schedule_slot_count(m->s, rank); slot++)
        for (int mb = 0; mb < m->s->mb_per_stream; mb++) {
            struct dp_op op = {.kind = DP_OP_F, .slot = (uint32_t)slot, .mb = (uint32_t)mb};
            if (can_forward(m, rank, op))
                choices[count++] = op;
            op.kind = DP_OP_I;
            if (!m->s->forward_only && can_return(m, rank, op))
                choices[count++] = op;
        }
    return count;
}

/* Sometimes a forward takes a backward along that could have been done before it. */
static void overlap(struct maker *m, int rank, const struct dp_op *choices, int count)
{
    struct dp_op *last = &m->ops[rank][m->count[rank] - 1];

    if (last->kind != DP_OP_F || roll(m->dice, 2))
        return;
    for (int i = 0; i < count; i++)
        if (choices[i].kind == DP_OP_I) {
            last->flags |= DP_OP_OVERLAP;
            go_back(m, rank, choices[i], true);
            return;
        }
}

static bool do_something(struct maker *m, int rank)
{
    struct dp_op choices[2 * MAX_SLOTS * MAX_MB];
    int count = list_choices(m, rank, choices);
    bool weights = m->queue_head[rank] < m->queue_tail[rank];

    if (!count && !weights)
        return false;
    if (weights && (!count || !roll(m->dice, 3))) {
        do_weight(m, rank);
        return true;
    }
    struct dp_op op = choices[roll(m->dice, count)];
    if (op.kind == DP_OP_F)
        forward(m, rank, op);
    else
        go_back(m, rank, op, roll(m->dice, 2));
    overlap(m, rank, choices, count);
    return true;
}

static int count_idle(const struct maker *m)
{
    struct dp_op choices[2 * MAX_SLOTS * MAX_MB];
    int idle = 0;

    for (int rank = 0; rank < m->s->ranks; rank++)
        idle += !list_choices(m, rank, choices) && m->queue_head[rank] == m->queue_tail[rank];
    return idle;
}

static bool make_all(struct maker *m)
{
    int ranks = m->s->ranks, idle = 0;

    for (int rank = roll(m->dice, ranks); idle < ranks; rank = (rank + 1) % ranks) {
        if (!roll(m->dice, 2))
            continue;
        idle = do_something(m, rank) ? 0 : count_idle(m);
    }
    for (int rank = 0; rank < ranks; rank++)
        for (int slot = 0; slot < dp_schedule_slot_count(m->s, rank); slot++)
            for (int mb = 0; mb < m->s->mb_per_stream; mb++)
                if (!m->forwarded[rank][slot][mb] ||
                    (!m->s->forward_only && !m->returned[rank][slot][mb]))
                    return false; /* went into a dead end */
    return true;
}

/* ---- placements ------------------------------------------------------------------------------ */

static void shuffle(struct dice *dice, int *list, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int j = roll(dice, i + 1), kept = list[i];
        list[i] = list[j];
        list[j] = kept;
    }
}

/* Stages along the ranks again and again, down and back, or anyhow. */
static void place_stages(struct dice *dice, int ranks, int slots, int *stage)
{
    int manner = roll(dice, 3);

    for (int slot = 0; slot < slots; slot++)
        for (int rank = 0; rank < ranks; rank++)
            stage[rank * slots + slot] =
                slot * ranks + (manner == 1 && slot % 2 ? ranks - 1 - rank : rank);
    if (manner == 2)
        shuffle(dice, stage, ranks * slots);
}

/* A rank holds at most one first and one last stage. */
static bool is_legal(const struct dp_schedule *s)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        int first = 0, last = 0;
        for (int slot = 0; slot < dp_schedule_slot_count(s, rank); slot++) {
            first += dp_slot_is_first(dp_schedule_slot(s, rank, slot));
            last += dp_slot_is_last(dp_schedule_slot(s, rank, slot));
        }
        if (first > 1 || last > 1)
            return false;
    }
    return true;
}

/* How many slots each rank has: the same number, or any, also none. Returns that of all. */
static int deal_slots(struct dice *dice, struct dp_schedule *s, int each)
{
    int counts[MAX_RANKS], total = s->ranks * each;
    bool even = s->streams == 2 || roll(dice, 3);

    for (int rank = 0; rank < s->ranks; rank++)
        counts[rank] = even ? each : 0;
    for (int i = 0; i < total && !even; i++) {
        int rank = roll(dice, s->ranks);
        while (counts[rank] == MAX_SLOTS)
            rank = (rank + 1) % s->ranks;
        counts[rank]++;
    }
    s->first_slot = calloc((size_t)s->ranks + 1, sizeof(*s->first_slot));
    for (int rank = 0; rank < s->ranks; rank++) {
        s->first_slot[rank + 1] = s->first_slot[rank] + (size_t)counts[rank];
        s->max_slots = counts[rank] > s->max_slots ? counts[rank] : s->max_slots;
    }
    return total;
}

static struct dp_schedule *new_empty(struct dice *dice)
{
    struct dp_schedule *s = calloc(1, sizeof(*s));
    int stage[2 * MAX_RANKS * MAX_SLOTS];

    s->ranks = 1 + roll(dice, MAX_RANKS);
    s->streams = 1 + (s->ranks > 1 && !roll(dice, 3));
    int each = s->streams == 2 ? 2 : 1 + roll(dice, MAX_SLOTS);
    int total = deal_slots(dice, s, each);
    s->stages = total / s->streams;
    s->mb_per_stream = 1 + roll(dice, MAX_MB);
    s->microbatches = s->mb_per_stream * s->streams;
    s->forward_only = !roll(dice, 5);
    s->return_outputs = !roll(dice, 4);
    s->overlap = true;
    s->group_rank = calloc((size_t)s->ranks, sizeof(*s->group_rank));
    s->slots = calloc((size_t)total, sizeof(*s->slots));
    s->first = calloc((size_t)s->ranks + 1, sizeof(*s->first));
    for (int rank = 0; rank < s->ranks; rank++)
        s->group_rank[rank] = rank;
    shuffle(dice, s->group_rank, s->ranks);
    place_stages(dice, s->ranks, each, stage);
    for (int i = 0; i < total; i++) {
        int rank = dp_schedule_rank_of(s, (size_t)i);
        s->slots[i].phase = s->slots[i].location = i - (int)s->first_slot[rank];
        s->slots[i].stage = stage[i] % s->stages;
        s->slots[i].stream = stage[i] / s->stages;
    }
    if (dp_placement_link(s) || !is_legal(s)) {
        dp_schedule_free(s);
        return NULL;
    }
    return s;
}

static struct dp_schedule *new_random(struct dice *dice)
{
    struct maker *m = calloc(1, sizeof(*m));
    size_t total = 0;

    m->dice = dice;
    m->s = new_empty(dice);
    m->any_order = roll(dice, 2);
    struct dp_schedule *s = m->s;
    if (s && !make_all(m)) {
        dp_schedule_free(s);
        s = NULL;
    }
    for (int rank = 0; s && rank < s->ranks; rank++) {
        s->first[rank + 1] = s->first[rank] + (size_t)m->count[rank];
        s->ops = realloc(s->ops, (s->first[rank + 1] + 1) * sizeof(*s->ops));
        memcpy(s->ops + total, m->ops[rank], (size_t)m->count[rank] * sizeof(*s->ops));
        total = s->first[rank + 1];
    }
    free(m);
    return s;
}

/* ---- the test -------------------------------------------------------------------------------- */

static int run_steps(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!job_rank_open(&r, arg, comm));
    for (int i = 0; i < 2; i++)
        CHECK(!job_rank_step(&r));
    return 0;
}

/* Of which no message sums the gradients. */
static bool has_local_copies(const struct dp_schedule *s)
{
    for (int rank = 0; rank < s->ranks; rank++)
        for (int i = 0; i < dp_schedule_slot_count(s, rank); i++)
            if (dp_schedule_slot(s, rank, i)->mirror == rank)
                return true;
    return false;
}

static int expect_refusal(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    const int err = job_rank_open(&r, arg, comm);
    CHECK(err == DP_EUNSUPPORTED || err == DP_EABORTED);
    CHECK_SAYS("holds both copies of stage");
    return 0;
}

static bool is_sequential(struct dice *dice, const struct dp_schedule *s)
{
    struct job job = job_make(s);

    job.no_split = !roll(dice, 5);
    job.ops = roll(dice, 3) ? &model_ops : &model_ops_no_hook;
    job.model.batch_dim = !roll(dice, 4);
    job_begin(&job);
    job.unsummed = has_local_copies(s) && !s->forward_only;
    if (job.unsummed) {
        struct job other = job;
        other.unsummed = false;
        if (comm_on_threads(s->ranks, deadline_ns, expect_refusal, &other))
            return false;
    }
    bool good = !comm_on_threads(s->ranks, deadline_ns, run_steps, &job) &&
                job_result_is_sequential(&job, 1);
    job_end(&job);
    return good;
}

static bool finish(struct dice *dice, struct dp_schedule *s)
{
    if (dp_schedule_add_messages(s))
        return false;
    return s->forward_only || s->streams == 1 || roll(dice, 2) || !dp_schedule_add_reduces(s);
}

CASE(any_schedule_that_passes_the_checker_trains_like_a_sequential_loop)
{
    int made = 0, passed = 0;

    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        struct dice dice = {.seed = seed};
        OWNED(dp_schedule) *s = new_random(&dice);
        if (!s)
            continue;
        made++;
        if (finish(&dice, s) && !dp_schedule_check(s, NULL, &(struct dp_finding){0})) {
            passed++;
            if (!is_sequential(&dice, s))
                fail_msg("the schedule of seed %llu", (unsigned long long)seed);
        }
    }
    print_message("%d schedules; %d passed the checker, all compared to the last bit\n", made, passed);
    assert_true(passed >= ROUNDS / 4);
}
