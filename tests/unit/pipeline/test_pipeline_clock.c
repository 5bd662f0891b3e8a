/* SPDX-License-Identifier: Apache-2.0
 *
 * A step takes as long as the simulator says, in a time of its own: each rank has a clock, a compute
 * begins when its rank is free and its inputs have arrived, and what a stage puts out is the time at
 * which it ended. So the executor's order and its messages are compared with the simulator's to the
 * nanosecond, and nothing is measured.
 */
#include "pipeline_case.h"

static const int64_t deadline_ns = INT64_C(20000000000);

/* ---- a model that computes times ------------------------------------------------------------- */

struct clock {
    double now_ns;
    const struct dp_cost *cost;
};

struct clock_stage {
    struct clock *clock; /* of the rank */
    double in_ns, gout_ns; /* how long an input, or an output gradient, is on its way */
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double arrival(const struct clock_stage *s, const DLTensor *in)
{
    return *(const double *)in->data + s->in_ns;
}

static double gradient_arrival(const struct clock_stage *s, const DLTensor *gout)
{
    return *(const double *)gout->data + s->gout_ns;
}

static void put(DLTensor *t, double ns)
{
    if (t->data)
        *(double *)t->data = ns;
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    struct clock_stage *s = user;
    struct clock *c = s->clock;

    c->now_ns = later(c->now_ns, arrival(s, in)) + c->cost->f_ns;
    put(out, c->now_ns);
    return 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    struct clock_stage *s = user;
    struct clock *c = s->clock;

    c->now_ns = later(c->now_ns, gradient_arrival(s, gout)) + c->cost->i_ns +
                (mode == DP_BACKWARD_FULL ? c->cost->w_ns : 0);
    put(gin, c->now_ns);
    return 0;
}

static int weight(void *user, const struct dp_stage_call *call)
{
    struct clock *c = ((struct clock_stage *)user)->clock;

    c->now_ns += c->cost->w_ns;
    return 0;
}

static int forward_backward(const struct dp_pair *pair)
{
    const struct clock_stage *f = pair->forward.user, *b = pair->backward.user;
    struct clock *c = f->clock;
    int err = dp_pair_start_from_loss(pair);

    c->now_ns = later(c->now_ns, later(arrival(f, pair->forward.in),
                                       gradient_arrival(b, pair->backward.gout))) +
                c->cost->fb_ns;
    put(pair->forward.out, c->now_ns);
    put(pair->backward.gin, c->now_ns);
    return err ? err : dp_pair_take_loss(pair);
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    values[0] = 0;
    *count = 1;
    return 0;
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *labels, double scale, DLTensor *gout)
{
    put(gout, *(const double *)out->data);
    return 0;
}

static const struct dp_stage_ops timed_ops = {
    .forward = forward, .backward = backward, .weight = weight, .fwd_bwd = forward_backward};
static const struct dp_stage_ops unpaired_ops = {
    .forward = forward, .backward = backward, .weight = weight};
static const struct dp_loss_ops loss_ops = {loss, loss_backward};

/* ---- a step ---------------------------------------------------------------------------------- */

struct trial {
    const struct dp_schedule *schedule;
    const struct dp_stage_ops *ops;
    struct dp_cost cost;
    double ended_ns[8]; /* by rank */
};

enum { STAGES_MAX = 16 };

static void describe_borders(struct dp_border *borders, int stages)
{
    for (int i = 0; i <= stages; i++)
        borders[i] = (struct dp_border){
            .count = 1,
            .tensors = {{.dtype = {kDLFloat, 64, 1}, .ndim = 2, .shape = {1, 1}, .no_grad = !i}}};
}

static int run_rank(struct dp_comm *comm, void *arg)
{
    struct trial *t = arg;
    const struct dp_schedule *s = t->schedule;
    const int rank = dp_comm_rank(comm), slots = dp_schedule_slot_count(s, rank);
    struct clock clock = {.cost = &t->cost};
    struct clock_stage users[DP_MAX_SLOTS];
    struct dp_stage stages[DP_MAX_SLOTS];
    struct dp_border borders[STAGES_MAX + 1];
    OWNED(dp_microbatches) *inputs = NULL;
    struct dp_pipeline *pipe;
    static const double zeros[64];
    bool has_first = false;

    CHECK(s->stages <= STAGES_MAX && s->mb_per_stream <= 64);
    describe_borders(borders, s->stages);
    for (int i = 0; i < slots; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, rank, i);
        users[i] = (struct clock_stage){
            &clock, slot->prev >= 0 && slot->prev != rank ? t->cost.link_latency_ns : 0,
            slot->next >= 0 && slot->next != rank ? t->cost.link_latency_ns : 0};
        stages[i] = (struct dp_stage){.ops = t->ops, .user = &users[i]};
        has_first |= dp_slot_is_first(slot);
    }
    int64_t shape[] = {s->mb_per_stream, 1};
    const DLTensor batch = {.data = (void *)(uintptr_t)zeros, .device = {kDLCPU, 0}, .ndim = 2,
                            .dtype = {kDLFloat, 64, 1}, .shape = shape};
    struct dp_tree args = dp_tuple(1, (struct dp_tree[]){dp_tensor(&batch)});
    CHECK(!dp_split(&args, NULL, &(struct dp_split_options){.count = s->mb_per_stream}, &inputs));
    CHECK(!dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .comm = comm,
                                                        .stages = stages, .borders = borders,
                                                        .loss = &loss_ops},
                           &pipe));
    CHECK(!dp_pipeline_step(pipe, &(struct dp_step){.inputs = has_first ? inputs : NULL}));
    t->ended_ns[rank] = clock.now_ns;
    dp_pipeline_free(pipe);
    return 0;
}

static void expect_simulated(struct dp_schedule_spec spec, double latency_ns)
{
    struct trial t = {.ops = spec.no_overlap ? &unpaired_ops : &timed_ops,
                      .cost = {.f_ns = 100, .i_ns = 120, .w_ns = 80, .b_ns = 200, .fb_ns = 270,
                               .link_latency_ns = latency_ns}};
    OWNED(dp_schedule) *s = case_schedule(spec);
    ENDED_BY(dp_simulation_fini) struct dp_simulation sim = {0};
    double last = 0;

    t.schedule = s;
    assert_int_equal(dp_schedule_simulate(s, &t.cost, 0, &sim), 0);
    assert_int_equal(comm_on_threads(s->ranks, deadline_ns, run_rank, &t), 0);
    for (int rank = 0; rank < s->ranks; rank++)
        last = later(last, t.ended_ns[rank]);
    /* DualPipe's own order holds some outputs back until after the next compute, which a stage does not
     * see. */
    const bool holds_back = !s->slack && (s->kind == DP_SCHEDULE_DUALPIPE ||
                                          s->kind == DP_SCHEDULE_DUALPIPEV);
    if ((int64_t)last > sim.makespan_ns || (!holds_back && (int64_t)last < sim.makespan_ns))
        fail_msg("%s P=%d M=%d slack=%d, latency %g: %g, simulated %ld",
                 dp_name(DP_NAMES_SCHEDULE, spec.kind), spec.ranks, spec.microbatches, spec.slack,
                 latency_ns, last, (long)sim.makespan_ns);
}

CASE(a_step_takes_what_the_simulator_says)
{
    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++)
        for (int flags = 0; flags < 4; flags++) {
            const bool has_slack = kind == DP_SCHEDULE_DUALPIPE || kind == DP_SCHEDULE_DUALPIPEV;
            if (flags & 1 && !has_slack)
                continue;
            for (int latency_ns = 0; latency_ns <= 200; latency_ns += 50)
                expect_simulated((struct dp_schedule_spec){.kind = kind, .ranks = 4,
                                                           .microbatches = 12, .slack = flags & 1,
                                                           .no_overlap = flags & 2},
                                 latency_ns);
        }
}
