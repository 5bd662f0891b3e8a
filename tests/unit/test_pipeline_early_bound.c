/* SPDX-License-Identifier: Apache-2.0
 *
 * How late weight parts that run early make a rank: early.c itself, in simulated time. The clock
 * and the arrivals of messages are the test's; a poll or a sleep moves the clock, never past an
 * arrival. A plan of every rank of every schedule with weight parts of their own is carried out
 * twice, op by op as in its list and with early_weights, while some links are late at random.
 */
#include "cmocka_all.h"

#include <dualpipe/comm.h>
#include <dualpipe/random.h>

#include <string.h>
#include <time.h>

#include "base/clock.h"

static int64_t clock_now(void);
static int poll_message(struct dp_comm *comm, struct dp_request *request);
static int move_clock(const struct timespec *by, struct timespec *left);

#define dp_now_ns clock_now
#define dp_comm_test poll_message
#define nanosleep move_clock
#include "pipeline/early.c"
#undef nanosleep
#undef dp_comm_test
#undef dp_now_ns

enum { RANKS_MAX = 4, CHANNELS = 2, WARM_UP = 2, TURNS_MAX = 4000 };
enum { POLL_NS = 1000 };

/* Messages of a channel from one rank to another, in their order. */
struct link {
    int64_t *arrives_ns, *next_ns; /* of this turn, and of the one that is being made */
    size_t sent, received, room;
};

static struct rank {
    struct dp_pipeline pipe;
    struct dp_program program;
    struct dp_early *early;  /* the program's, for as long as it is used */
    int64_t *arrival_ns;     /* [requests] of the message that each is for */
    int64_t *began_ns[2];    /* [entries] as the list has it, and with early weights */
    int64_t end_ns[2];
} ranks[RANKS_MAX], *at; /* at: the rank whose clock it is */

static struct link links[RANKS_MAX][RANKS_MAX][CHANNELS];
static int64_t now_ns, next_arrival_ns;
static uint64_t draws;

static uint32_t draw(uint32_t limit)
{
    uint32_t block[4];

    dp_random_block(dp_random_key(17, 2, 0, 0), draws++, block);
    return block[0] % limit;
}

/* ---- the clock ------------------------------------------------------------------------------- */

static int64_t clock_now(void)
{
    return now_ns;
}

static void pass(int64_t by_ns)
{
    now_ns = now_ns < next_arrival_ns && next_arrival_ns < now_ns + by_ns ? next_arrival_ns
                                                                          : now_ns + by_ns;
}

static int poll_message(struct dp_comm *comm, struct dp_request *request)
{
    (void)comm;
    const size_t i = (size_t)((struct dp_message_state *)request - at->pipe.messages);

    if (at->arrival_ns[i] <= now_ns)
        return 0;
    next_arrival_ns = at->arrival_ns[i];
    pass(POLL_NS);
    return at->arrival_ns[i] <= now_ns ? 0 : DP_EAGAIN;
}

static int move_clock(const struct timespec *by, struct timespec *left)
{
    (void)left;
    pass(by->tv_nsec);
    return 0;
}

void dp_messages_show_wait(const struct dp_pipeline *pipe, int64_t since_ns, int peer)
{
    (void)pipe, (void)since_ns, (void)peer;
}

void dp_messages_note_wait(struct dp_pipeline *pipe, int64_t waited_ns, int peer)
{
    (void)peer;
    pipe->now.waited_ns += waited_ns;
}

/* ---- what a step costs ----------------------------------------------------------------------- */

/* Of one step: the same however it is carried out. */
static struct costs {
    uint64_t key;
    uint32_t late_links, late_ns; /* of 100 messages so many are late, by up to this */
} costs;

static uint32_t spread(uint64_t what, uint32_t limit)
{
    uint32_t block[4];

    dp_random_block(dp_random_key(costs.key, 3, 0, 0), what, block);
    return block[0] % limit;
}

/* Around a millisecond of any kind, by up to a tenth more. */
static int64_t cost_of(const struct rank *r, const struct dp_plan_op *op)
{
    static const int64_t base_ns[DP_PLAN_KINDS] = {[DP_PLAN_FORWARD] = 1000000,
                                                   [DP_PLAN_BACKWARD] = 2000000,
                                                   [DP_PLAN_INPUT] = 1100000,
                                                   [DP_PLAN_WEIGHT] = 900000};
    const uint64_t what = (uint64_t)(r - ranks) << 32 | (uint64_t)(op - r->pipe.plan.ops);

    return base_ns[op->kind] ? base_ns[op->kind] + spread(what, 100000) : 0;
}

static int64_t flight_of(const struct rank *r, const struct dp_plan_op *op)
{
    const uint64_t what =
        UINT64_C(1) << 60 | (uint64_t)(r - ranks) << 32 | (uint64_t)(op - r->pipe.plan.ops);
    const bool late = spread(what, 100) < costs.late_links;

    return 50000 + spread(what + (UINT64_C(1) << 61), 20000) +
           (late ? spread(what + (UINT64_C(1) << 62), costs.late_ns) : 0);
}

/* ---- a rank's step --------------------------------------------------------------------------- */

static int64_t *place_in(int64_t **list, struct link *l, size_t i)
{
    if (i >= l->room) {
        const size_t room = i + 64;
        l->arrives_ns = realloc(l->arrives_ns, room * sizeof(int64_t));
        l->next_ns = realloc(l->next_ns, room * sizeof(int64_t));
        for (size_t k = l->room; k < room; k++)
            l->arrives_ns[k] = l->next_ns[k] = 0;
        l->room = room;
    }
    return *list + i;
}

static void start_message(struct rank *r, const struct dp_plan_op *op)
{
    const int self = (int)(r - ranks), peer = op->message.peer;

    if (op->kind == DP_PLAN_RECV) {
        struct link *l = &links[peer][self][op->message.channel];
        const size_t i = l->received++;
        place_in(&l->arrives_ns, l, i);
        r->arrival_ns[op->message.request] = l->arrives_ns[i];
        return;
    }
    struct link *l = &links[self][peer][op->message.channel];
    const size_t i = l->sent++;
    place_in(&l->next_ns, l, i);
    l->next_ns[i] = now_ns + flight_of(r, op);
    if (i && l->next_ns[i] < l->next_ns[i - 1])
        l->next_ns[i] = l->next_ns[i - 1];
    r->arrival_ns[op->message.request] = now_ns; /* its buffer is free at once */
}

static void run_entry(struct rank *r, const struct dp_plan_op *op)
{
    r->began_ns[r->pipe.early != NULL][op - r->pipe.plan.ops] = now_ns;
    const int64_t took_ns = cost_of(r, op) + (op->pair ? cost_of(r, op + 1) : 0);
    now_ns += took_ns;
    if (r->pipe.early)
        dp_early_note_weight(&r->pipe, op, took_ns);
}

static int run_weight(struct dp_pipeline *pipe, const struct dp_plan_op *weight)
{
    (void)pipe;
    run_entry(at, weight);
    return 0;
}

static void wait_for(struct rank *r, const struct dp_plan_op *op)
{
    const int64_t since_ns = now_ns;

    for (int half = 0; half <= op->pair; half++)
        for (uint32_t i = 0; i < op[half].waits; i++) {
            const int64_t arrival_ns =
                r->arrival_ns[r->pipe.plan.waits[op[half].first_wait + i].request];
            now_ns = now_ns > arrival_ns ? now_ns : arrival_ns;
        }
    r->pipe.now.waited_ns += now_ns - since_ns;
}

/* As run.c carries an entry out. */
static void carry_out(struct rank *r, const struct dp_plan_op *op)
{
    if (op->kind == DP_PLAN_RECV || op->kind == DP_PLAN_SEND) {
        start_message(r, op);
        return;
    }
    if (dp_early_is_done(&r->pipe, op))
        return;
    r->pipe.now.waited_ns = 0;
    if (r->pipe.early)
        assert_int_equal(dp_early_run(&r->pipe, op, run_weight), 0);
    wait_for(r, op);
    if (r->pipe.early)
        dp_early_learn(&r->pipe, op);
    run_entry(r, op);
}

static void run_rank(struct rank *r, bool early)
{
    const struct dp_plan *plan = &r->pipe.plan;

    at = r;
    now_ns = 0;
    r->pipe.early = early ? r->early : NULL;
    dp_early_begin(r->pipe.early);
    for (size_t i = 0; i < plan->count; i += 1 + plan->ops[i].pair)
        carry_out(r, &plan->ops[i]);
    r->end_ns[early] = now_ns;
}

/* ---- all ranks' step ------------------------------------------------------------------------- */

static void for_links(int count, void (*call)(struct link *l))
{
    for (int from = 0; from < count; from++)
        for (int to = 0; to < count; to++)
            for (int channel = 0; channel < CHANNELS; channel++)
                call(&links[from][to][channel]);
}

static bool moved;

static void rewind_link(struct link *l)
{
    l->sent = l->received = 0;
}

static void take_turn(struct link *l)
{
    for (size_t i = 0; i < l->sent; i++) {
        moved = moved || l->arrives_ns[i] != l->next_ns[i];
        l->arrives_ns[i] = l->next_ns[i];
    }
}

static void forget_link(struct link *l)
{
    for (size_t i = 0; i < l->room; i++)
        l->arrives_ns[i] = 0;
}

static void free_link(struct link *l)
{
    free(l->arrives_ns);
    free(l->next_ns);
    *l = (struct link){0};
}

/* What a rank has learnt of waits in earlier steps: a turn that is taken again starts from it. */
struct learnt {
    int64_t *least_ns;
    int64_t weight_ns[DP_MAX_SLOTS];
};

static struct learnt keep_learnt(const struct rank *r)
{
    const size_t bytes = r->pipe.plan.count * sizeof(int64_t);
    struct learnt kept = {.least_ns = malloc(bytes + 1)};

    memcpy(kept.least_ns, r->early->least_ns, bytes);
    memcpy(kept.weight_ns, r->early->weight_ns, sizeof(kept.weight_ns));
    return kept;
}

static void restore_learnt(struct rank *r, const struct learnt *kept)
{
    memcpy(r->early->least_ns, kept->least_ns, r->pipe.plan.count * sizeof(int64_t));
    memcpy(r->early->weight_ns, kept->weight_ns, sizeof(kept->weight_ns));
}

/* Each turn takes the arrivals that the turn before has made; what happens before the first one
 * that was wrong is then right, so they end up as the ranks make them for each other. */
static void run_step(int count, bool early)
{
    struct learnt kept[RANKS_MAX];
    int turns = 0;

    for (int i = 0; i < count; i++)
        kept[i] = keep_learnt(&ranks[i]);
    do {
        assert_true(turns++ < TURNS_MAX);
        moved = false;
        for_links(count, rewind_link);
        for (int i = 0; i < count; i++) {
            restore_learnt(&ranks[i], &kept[i]);
            run_rank(&ranks[i], early);
        }
        for_links(count, take_turn);
    } while (moved);
    for (int i = 0; i < count; i++)
        free(kept[i].least_ns);
}

static int64_t makespan_of(int count, bool early)
{
    int64_t end_ns = 0;

    for (int i = 0; i < count; i++)
        end_ns = ranks[i].end_ns[early] > end_ns ? ranks[i].end_ns[early] : end_ns;
    return end_ns;
}

/* ---- what is promised ------------------------------------------------------------------------ */

static int64_t longest_weight_of(const struct rank *r)
{
    int64_t most_ns = 0;

    for (size_t i = 0; i < r->pipe.plan.count; i++) {
        const struct dp_plan_op *op = &r->pipe.plan.ops[i];
        if (op->kind == DP_PLAN_WEIGHT && cost_of(r, op) > most_ns)
            most_ns = cost_of(r, op);
    }
    return most_ns;
}

static size_t weights_moved;

/* A rank alone, whose messages come when they came to the list: no entry begins later than in the
 * list by more than a weight part, and the last one does not end later. */
static void expect_bound(struct rank *r)
{
    const int64_t weight_ns = longest_weight_of(r);

    for (size_t i = 0; i < r->pipe.plan.count; i++) {
        const struct dp_plan_op *op = &r->pipe.plan.ops[i];
        if (!dp_plan_is_compute(op) || (i && op[-1].pair))
            continue;
        const int64_t late_ns = r->began_ns[true][i] - r->began_ns[false][i];
        weights_moved += op->kind == DP_PLAN_WEIGHT && late_ns < 0;
        if (late_ns > weight_ns)
            fail_msg("rank %d, entry %zu, kind %d: %lld ns later than in the list, expected at "
                     "most a weight part, %lld",
                     (int)(r - ranks), i, op->kind, (long long)late_ns, (long long)weight_ns);
    }
    if (r->end_ns[true] > r->end_ns[false])
        fail_msg("rank %d ends %lld ns later than the list", (int)(r - ranks),
                 (long long)(r->end_ns[true] - r->end_ns[false]));
}

/* ---- schedules ------------------------------------------------------------------------------- */

static int split_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                          DLTensor *gin, enum dp_backward_mode mode)
{
    (void)user, (void)call, (void)gout, (void)gin, (void)mode;
    return 0;
}

static int split_weight(void *user, const struct dp_stage_call *call)
{
    (void)user, (void)call;
    return 0;
}

static const struct dp_stage_ops split_ops = {.backward = split_backward, .weight = split_weight};

static void rank_init(struct rank *r, const struct dp_schedule *s, int rank)
{
    struct dp_border border = {
        .count = 1, .tensors = {{.dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = {100}}}};
    struct dp_border_layout *layouts = calloc((size_t)s->stages + 1, sizeof(*layouts));
    struct dp_stage stages[DP_MAX_SLOTS] = {0};

    for (int i = 0; i <= s->stages; i++)
        dp_border_lay_out(&border, &layouts[i]);
    for (int i = 0; i < dp_schedule_slot_count(s, rank); i++)
        stages[i] = (struct dp_stage){.ops = &split_ops, .save_bytes = 1000};
    *r = (struct rank){.program.schedule = s};
    r->pipe = (struct dp_pipeline){.rank = rank,
                                   .config = {.schedule = s, .early_weights = true},
                                   .deadline_ns = INT64_MAX / 4};
    const struct dp_plan_source source = {.schedule = s,
                                          .rank = rank,
                                          .stages = stages,
                                          .layouts = layouts,
                                          .order_blocks = 2};
    assert_int_equal(dp_plan_init(&r->program.plan, &source), 0);
    r->pipe.plan = r->program.plan;
    assert_int_equal(dp_early_init(&r->pipe, &r->program), 0);
    r->early = r->program.early;
    r->pipe.messages = calloc(r->pipe.plan.requests + 1, sizeof(*r->pipe.messages));
    r->arrival_ns = calloc(r->pipe.plan.requests + 1, sizeof(*r->arrival_ns));
    for (int early = 0; early < 2; early++)
        r->began_ns[early] = calloc(r->pipe.plan.count + 1, sizeof(int64_t));
    free(layouts);
}

static void rank_fini(struct rank *r)
{
    dp_early_fini(&r->program);
    dp_plan_fini(&r->program.plan);
    free(r->pipe.messages);
    free(r->arrival_ns);
    free(r->began_ns[0]);
    free(r->began_ns[1]);
}

/* How messages are late: some of them and a little; any of them, up to some weight parts; a few, and
 * long. */
enum lateness { JITTER, ANY, STALLS, LATENESSES };
static const char *const lateness_names[LATENESSES] = {"jitter", "any", "stalls"};

static void draw_lateness(enum lateness how)
{
    costs = (struct costs){.key = draw(UINT32_MAX), .late_links = 50, .late_ns = 400000};
    if (how == ANY) {
        costs.late_links = draw(101);
        costs.late_ns = 1 + draw(UINT32_C(100000) << draw(7));
    }
    if (how == STALLS) {
        costs.late_links = 2;
        costs.late_ns = 30000000;
    }
}

/* Of all ranks together, in weight parts: how much later the last one ended than under the list. */
static struct {
    double worst, best, sum;
} late_by;

static void run_late_step(int count, enum lateness how)
{
    draw_lateness(how);
    for_links(count, forget_link);
    run_step(count, false);
    for_links(count, rewind_link);
    for (int i = 0; i < count; i++) { /* its sends change no arrival: those of the list stay */
        const struct learnt kept = keep_learnt(&ranks[i]);
        run_rank(&ranks[i], true);
        restore_learnt(&ranks[i], &kept);
        free(kept.least_ns);
        expect_bound(&ranks[i]);
    }
    run_step(count, true);
    const double late = (double)(makespan_of(count, true) - makespan_of(count, false)) /
                        (double)longest_weight_of(&ranks[0]);
    late_by.worst = late > late_by.worst ? late : late_by.worst;
    late_by.best = late < late_by.best ? late : late_by.best;
    late_by.sum += late;
}

static void run_schedule(const struct dp_schedule_spec *spec, enum lateness how, int steps)
{
    struct dp_schedule *s;

    if (dp_schedule_new(spec, &s))
        fail_msg("%s", dp_last_error());
    for (int i = 0; i < s->ranks; i++)
        rank_init(&ranks[i], s, i);
    for (int step = 0; step < WARM_UP; step++) { /* in which waits are learnt */
        costs = (struct costs){.key = draw(UINT32_MAX), .late_ns = 1};
        for_links(s->ranks, forget_link);
        run_step(s->ranks, true);
    }
    for (int step = 0; step < steps; step++)
        run_late_step(s->ranks, how);
    for_links(s->ranks, free_link);
    for (int i = 0; i < s->ranks; i++)
        rank_fini(&ranks[i]);
    dp_schedule_free(s);
}

static void no_op_is_later_than_in_the_list_by_more_than_one_weight_part(void **state)
{
    static const struct dp_schedule_spec specs[] = {
        {.kind = DP_SCHEDULE_ZB1P},
        {.kind = DP_SCHEDULE_ZBV},
        {.kind = DP_SCHEDULE_DUALPIPE},
        {.kind = DP_SCHEDULE_DUALPIPE, .slack = 1},
        {.kind = DP_SCHEDULE_DUALPIPEV},
        {.kind = DP_SCHEDULE_DUALPIPEV, .slack = 1},
    };
    const int steps = getenv("DP_TEST_FULL") ? 400 : 12;

    (void)state;
    for (size_t i = 0; i < LATENESSES * sizeof(specs) / sizeof(specs[0]); i++)
        for (int count = 2; count <= RANKS_MAX; count += 2) {
            const enum lateness how = (enum lateness)(i % LATENESSES);
            struct dp_schedule_spec spec = specs[i / LATENESSES];
            spec.ranks = count;
            spec.microbatches = 4 * count;
            weights_moved = 0;
            memset(&late_by, 0, sizeof(late_by));
            run_schedule(&spec, how, steps);
            if (getenv("DP_TEST_FULL"))
                print_message("%s, slack %d, P=%d, %s: %zu weight parts ran early; the last rank ended "
                              "by %.2f weight parts later to %.2f earlier, %.2f on the average\n",
                              dp_schedule_kind_name(spec.kind), spec.slack, count,
                              lateness_names[how], weights_moved, late_by.worst, -late_by.best,
                              -late_by.sum / steps);
            assert_true(weights_moved > 0 || count == 2 || how != STALLS);
            assert_true(weights_moved == 0 || how != JITTER);
            assert_true(late_by.sum / steps < 0.25);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_op_is_later_than_in_the_list_by_more_than_one_weight_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
