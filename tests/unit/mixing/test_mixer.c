/* SPDX-License-Identifier: Apache-2.0
 *
 * The mixer over every communicator: workers follow the formula, whatever the graph, the order of
 * gradients and the place of the values; what is wrong is an error on all of them.
 */
#include "cmocka_all.h"
#include "mixing/internal.h"
#include "mixer_now.h"

#include "unit/comm/comm_cases.h"

#include "base/fp16.h"
#include "mixing/mixer_state.h"

#define SECONDS(n) ((n) * INT64_C(1000000000))

enum { RANKS = 4, PARAMETERS = 5, ELEMENTS = 40, TOTAL = PARAMETERS * ELEMENTS, ITERATIONS = 9 };

/* What a case does otherwise than others. */
struct job {
    const char *graph, *file; /* a name, or a text */
    bool separate, compat, shuffled, float32, global;
    double factor, bucket_bytes, clip;
    enum dp_optimizer_kind kind;
    enum dp_mixer_algorithm algorithm;
    int sixteen; /* 1: bfloat16, 2: float16 */
};

/* A worker: a quadratic of its own. */
struct worker {
    struct dp_comm *comm;
    struct dp_graph *graph;
    struct dp_mixer *mixer;
    struct dp_parameter parameters[PARAMETERS];
    DLTensor values[PARAMETERS], grads[PARAMETERS];
    int64_t shape[PARAMETERS][1];
    double memory[PARAMETERS][ELEMENTS], gradient[PARAMETERS][ELEMENTS];
    char names[PARAMETERS][8];
    bool float32;
    int sixteen;
};

static double target(int rank, int i)
{
    return (rank * 37 + i * 11) % 17 / 8.0 - 1;
}

static double start_value(int i)
{
    return i % 7 / 4.0 - 0.5;
}

static double get(const struct worker *w, int i)
{
    const void *at = w->values[i / ELEMENTS].data;

    if (w->sixteen)
        return w->sixteen == 1 ? (double)dp_bfloat16_load(((const uint16_t *)at)[i % ELEMENTS])
                               : (double)dp_float16_load(((const uint16_t *)at)[i % ELEMENTS]);
    return w->float32 ? (double)((const float *)at)[i % ELEMENTS] : ((const double *)at)[i % ELEMENTS];
}

static void put(DLTensor *t, int k, double x)
{
    if (t->dtype.bits == 64)
        ((double *)t->data)[k] = x;
    else if (t->dtype.bits == 32)
        ((float *)t->data)[k] = (float)x;
    else
        ((uint16_t *)t->data)[k] = t->dtype.code == kDLBfloat ? dp_bfloat16_store((float)x)
                                                             : dp_float16_store((float)x);
}

static void describe(struct worker *w, struct dp_comm *comm, const struct job *job)
{
    *w = (struct worker){.comm = comm, .float32 = job->float32, .sixteen = job->sixteen};
    for (int p = 0; p < PARAMETERS; p++) {
        const uint8_t code = job->sixteen == 1 ? kDLBfloat : kDLFloat;
        w->shape[p][0] = ELEMENTS;
        w->values[p] = (DLTensor){.data = w->memory[p], .device = {kDLCPU, 0}, .ndim = 1,
                                  .dtype = {code, job->sixteen ? 16 : job->float32 ? 32 : 64, 1},
                                  .shape = w->shape[p]};
        w->grads[p] = w->values[p];
        w->grads[p].data = w->gradient[p];
        if (job->sixteen)
            w->grads[p].dtype = (DLDataType){kDLFloat, 32, 1};
        snprintf(w->names[p], sizeof(w->names[p]), "p%d", p % 1000);
        w->parameters[p] = (struct dp_parameter){.name = w->names[p], .value = &w->values[p],
                                                 .grad = &w->grads[p]};
        /* Only rank 0's values count. */
        for (int k = 0; k < ELEMENTS; k++)
            put(&w->values[p], k, dp_comm_rank(comm) ? 99 : start_value(p * ELEMENTS + k));
    }
}

static int make_graph(const struct job *job, struct dp_graph **out)
{
    if (job->file)
        return dp_graph_read(job->file, strlen(job->file), out);
    return dp_graph_new(&(struct dp_graph_spec){.name = job->graph ? job->graph : "one-peer-exp",
                                                .workers = RANKS, .local = 2}, out);
}

static struct dp_mixer_config config_of(struct worker *w, const struct job *job)
{
    const bool local = job->algorithm == DP_MIXER_LOCAL_SGD;

    return (struct dp_mixer_config){
        .parameters = w->parameters, .count = PARAMETERS,
        .optimizer = dp_optimizer_defaults(job->kind), .rate = 0.125, .graph = w->graph,
        .comm = w->comm, .bucket_bytes = job->bucket_bytes ? job->bucket_bytes : 700,
        .separate = job->separate, .factor = job->factor, .clip_norm = job->clip,
        .clip = job->global ? DP_CLIP_GLOBAL : DP_CLIP_BUCKET, .compat = job->compat,
        .algorithm = job->algorithm, .local_steps = local ? 2 : 0, .outer_rate = local ? 0.75 : 0,
        .outer_momentum = local ? 0.5 : 0,
    };
}

static void compute_gradients(struct worker *w)
{
    for (int i = 0; i < TOTAL; i++) {
        DLTensor *g = &w->grads[i / ELEMENTS];
        double before = g->dtype.bits == 64 ? ((double *)g->data)[i % ELEMENTS]
                                            : (double)((float *)g->data)[i % ELEMENTS];
        put(g, i % ELEMENTS, before + get(w, i) - target(dp_comm_rank(w->comm), i));
    }
}

/* The trace is last to first; later iterations may be in any order. */
static int backward(struct worker *w, int t, bool shuffled)
{
    int err = 0;

    for (int k = 0; k < PARAMETERS && !err; k++) {
        int p = PARAMETERS - 1 - k;
        if (shuffled && t > 0)
            p = (k * 2 + dp_comm_rank(w->comm) + t) % PARAMETERS;
        err = dp_mixer_ready(w->mixer, p);
    }
    return err ? err : dp_mixer_step(w->mixer);
}

static int iterate(struct worker *w, int t, bool shuffled)
{
    int err = dp_mixer_forward(w->mixer, true);

    if (err)
        return err;
    compute_gradients(w);
    return backward(w, t, shuffled);
}

static void finish(struct worker *w)
{
    dp_mixer_free(w->mixer);
    dp_graph_free(w->graph);
}

/* ---- the formula ------------------------------------------------------------------------------ */

/* x_i(t + 1) = sum_j W_ij x_j(t) - rate g_i(x_i(t)) for all workers, with push-sum as Assran et al. have
 * it. */
struct model {
    double x[RANKS][TOTAL]; /* what gradients are taken of */
    double mass[RANKS];
};

static void model_start(struct model *m)
{
    for (int r = 0; r < RANKS; r++) {
        m->mass[r] = 1;
        for (int i = 0; i < TOTAL; i++)
            m->x[r][i] = start_value(i);
    }
}

static void model_mix(struct model *m, const struct dp_graph *g, int64_t round, double a)
{
    static _Thread_local struct model copy;

    copy = *m;
    for (int r = 0; r < RANKS; r++) {
        double mass = 0;
        for (int s = 0; s < RANKS; s++)
            mass += dp_graph_weight(g, round, r, s) * copy.mass[s];
        m->mass[r] = (1 - a) * copy.mass[r] + a * mass;
        for (int i = 0; i < TOTAL; i++) {
            double sum = 0;
            for (int s = 0; s < RANKS; s++)
                sum += dp_graph_weight(g, round, r, s) * copy.mass[s] * copy.x[s][i];
            m->x[r][i] = ((1 - a) * copy.mass[r] * copy.x[r][i] + a * sum) / m->mass[r];
        }
    }
}

static void model_step(struct model *m, const struct dp_graph *g, int t, double a, double clip)
{
    static _Thread_local double grads[RANKS][TOTAL];

    for (int r = 0; r < RANKS; r++) {
        double squares = 0;
        for (int i = 0; i < TOTAL; i++) {
            grads[r][i] = m->x[r][i] - target(r, i);
            squares += grads[r][i] * grads[r][i];
        }
        for (int i = 0; i < TOTAL && clip > 0; i++)
            grads[r][i] *= fmin(1, clip / (sqrt(squares) + 1e-6));
    }
    if (t > 0)
        model_mix(m, g, t - 1, a);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < TOTAL; i++)
            m->x[r][i] -= 0.125 / m->mass[r] * grads[r][i];
}

static int follow_formula(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    const double a = job->factor ? job->factor : 1;
    static _Thread_local struct model model;
    static _Thread_local struct worker w;

    describe(&w, comm, job);
    model_start(&model);
    CHECK(!make_graph(job, &w.graph));
    const struct dp_mixer_config config = config_of(&w, job);
    CHECK(!dp_mixer_new(&config, &w.mixer));
    for (int t = 0; t < ITERATIONS; t++) {
        CHECK(!dp_mixer_forward(w.mixer, true));
        for (int i = 0; i < TOTAL; i++)
            if (!(fabs(get(&w, i) - model.x[dp_comm_rank(comm)][i]) < (job->float32 ? 1e-5 : 1e-13))) {
                printf("%s, iteration %d: %.17g, expected %.17g\n", w.graph->name, t, get(&w, i),
                       model.x[dp_comm_rank(comm)][i]);
                CHECK(!"as in the formula");
            }
        compute_gradients(&w);
        CHECK(!backward(&w, t, job->shuffled));
        model_step(&model, w.graph, t, a, job->clip);
    }
    CHECK(mixer_now(w.mixer).iterations == ITERATIONS);
    finish(&w);
    return 0;
}

static const char skewed[] = "mixing skewed workers=4\n"
                             "round 0: {0 1}*0.75 {2 3}*0.6\n"
                             "round 1: {0 1 2}*0.5 {3}\n"
                             "round 2: {0 3} {1} {2}\n";
static const char lossy[] = "mixing lossy workers=4 local=1 push-sum\n"
                            "round 0: 0>0*0.25 0>1*0.25 0>2*0.5 1>1*0.5 1>2*0.5 2>3*1 3>0*0.5 3>3*0.5\n";
static const char both[] = "mixing both workers=4 local=1 push-sum\n"
                           "round 0: 0>0*0.25 0>1*0.25 0>2*0.5 1>1*0.5 1>2*0.5 2>3*1 3>0*0.5 3>3*0.5\n"
                           "round 1: {0 1}*0.75 {2 3}\n"
                           "round 2: {0 1 2} {3}\n";

CASE(workers_follow_the_formula)
{
    static const char *const graphs[] = {"complete", "ring", "alternating-exp-ring", "torus", "star",
                                         "hierarchical", "directed-exp"};
    struct job job = {0};

    on_all_kinds(RANKS, SECONDS(20), follow_formula, &job);
    on_all_kinds(RANKS, SECONDS(20), follow_formula, &(struct job){.file = skewed, .shuffled = true});
    on_all_kinds(RANKS, SECONDS(20), follow_formula, &(struct job){.file = lossy, .separate = true});
    on_all_kinds(RANKS, SECONDS(20), follow_formula, &(struct job){.file = both});
    for (size_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++) {
        job.graph = graphs[i];
        if (comm_on_threads(RANKS, SECONDS(20), follow_formula, &job))
            fail_msg("%s does not follow the formula", graphs[i]);
    }
}

CASE(gradients_may_come_in_any_order)
{
    on_all_kinds(RANKS, SECONDS(20), follow_formula,
                 &(struct job){.shuffled = true, .bucket_bytes = 1, .separate = true});
}

CASE(a_factor_damps_mixing)
{
    struct job job = {.factor = 0.3, .graph = "ring"};

    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), follow_formula, &job), 0);
    job = (struct job){.factor = 0.3, .file = skewed};
    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), follow_formula, &job), 0);
    job = (struct job){.factor = 0.3, .file = lossy};
    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), follow_formula, &job), 0);
}

CASE(float32_follows_within_rounding)
{
    on_all_kinds(RANKS, SECONDS(20), follow_formula, &(struct job){.float32 = true});
}

CASE(gradients_are_clipped_by_their_global_norm)
{
    struct job job = {.clip = 0.7, .global = true};
    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), follow_formula, &job), 0);
    job = (struct job){.clip = 0.7, .bucket_bytes = 1e6}; /* of a single bucket it is the same */
    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), follow_formula, &job), 0);
}

/* ---- the same bits ---------------------------------------------------------------------------- */

struct twins {
    struct job jobs[2];
};

static int run_twins(struct dp_comm *comm, void *arg)
{
    const struct twins *twins = arg;
    static _Thread_local struct worker w[2];

    for (int k = 0; k < 2; k++) {
        describe(&w[k], comm, &twins->jobs[k]);
        CHECK(!make_graph(&twins->jobs[k], &w[k].graph));
        const struct dp_mixer_config config = config_of(&w[k], &twins->jobs[k]);
        CHECK(!dp_mixer_new(&config, &w[k].mixer));
        for (int t = 0; t < ITERATIONS; t++)
            CHECK(!iterate(&w[k], t, twins->jobs[k].shuffled));
    }
    for (int i = 0; i < TOTAL; i++)
        CHECK(get(&w[0], i) == get(&w[1], i));
    finish(&w[0]);
    finish(&w[1]);
    return 0;
}

CASE(views_and_separate_values_have_the_same_bits)
{
    static const enum dp_optimizer_kind kinds[] = {DP_OPTIMIZER_SGD, DP_OPTIMIZER_ADAM,
                                                   DP_OPTIMIZER_ACCUM_ADAMW};

    for (int sixteen = 0; sixteen < 3; sixteen++)
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            struct job one = {.kind = kinds[k], .sixteen = sixteen, .clip = 0.5}, other = one;
            other.separate = true;
            struct twins twins = {{one, other}};
            assert_int_equal(comm_on_threads(RANKS, SECONDS(20), run_twins, &twins), 0);
        }
    on_all_kinds(RANKS, SECONDS(20), run_twins,
                 &(struct twins){{{.graph = "ring"}, {.graph = "ring", .separate = true}}});
    struct job local = {.graph = "torus", .algorithm = DP_MIXER_LOCAL_SGD, .clip = 0.5};
    struct twins twins = {{local, local}};
    twins.jobs[1].separate = twins.jobs[1].shuffled = true;
    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), run_twins, &twins), 0);
}

CASE(the_order_of_gradients_changes_no_bit)
{
    on_all_kinds(RANKS, SECONDS(20), run_twins,
                 &(struct twins){{{.kind = DP_OPTIMIZER_ADAMW},
                                  {.kind = DP_OPTIMIZER_ADAMW, .shuffled = true}}});
}

/* A schedule of rates against the same rates set before every update, with gradients of twice the
 * size and a scale of half. */
static int set_updates(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    const struct dp_rate schedule = {
        .kind = DP_RATE_LINEAR, .peak = 0.25, .last = 0.01, .period = 5};
    static _Thread_local struct worker w[2];

    for (int k = 0; k < 2; k++) {
        describe(&w[k], comm, job);
        CHECK(!make_graph(job, &w[k].graph));
        struct dp_mixer_config config = config_of(&w[k], job);
        config.schedule = k ? NULL : &schedule;
        CHECK(!dp_mixer_new(&config, &w[k].mixer));
        for (int t = 0; t < ITERATIONS; t++) {
            CHECK(!dp_mixer_forward(w[k].mixer, true));
            compute_gradients(&w[k]);
            for (int i = 0; k && i < TOTAL; i++)
                w[k].gradient[i / ELEMENTS][i % ELEMENTS] *= 2;
            if (k)
                CHECK(!dp_mixer_set_update(
                    w[k].mixer, &(struct dp_mixer_update){dp_rate_at(&schedule, t), 0.5, false}));
            CHECK(!backward(&w[k], t, false));
        }
    }
    for (int i = 0; i < TOTAL; i++)
        CHECK(get(&w[0], i) == get(&w[1], i));
    (void)dp_comm_barrier(comm); /* all are done: the first error ends the group */
    CHECK(dp_mixer_set_update(w[1].mixer, &(struct dp_mixer_update){NAN, 1, false}) == DP_EINVAL);
    CHECK_SAYS("rate nan");
    finish(&w[0]);
    finish(&w[1]);
    return 0;
}

CASE(a_caller_sets_rate_and_scale_of_updates)
{
    assert_int_equal(
        comm_on_threads(RANKS, SECONDS(20), set_updates, &(struct job){.kind = DP_OPTIMIZER_ADAMW}),
        0);
}

/* ---- consensus -------------------------------------------------------------------------------- */

static int reach_consensus(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w;
    double all[RANKS];

    describe(&w, comm, job);
    CHECK(!make_graph(job, &w.graph));
    struct dp_mixer_config config = config_of(&w, job);
    CHECK(!dp_mixer_new(&config, &w.mixer));
    CHECK(!iterate(&w, 0, false));
    CHECK(!dp_mixer_forward(w.mixer, true));
    /* From here on workers differ; gradients of zero only mix. */
    for (int t = 0; t < w.graph->period + 1; t++) {
        for (int i = 0; i < TOTAL; i++)
            put(&w.grads[i / ELEMENTS], i % ELEMENTS, 0);
        CHECK(!backward(&w, 1, false));
        CHECK(!dp_mixer_forward(w.mixer, true));
    }
    for (int i = 0; i < TOTAL; i++) {
        double mine = get(&w, i);
        CHECK(!dp_comm_allgather(comm, &mine, all, sizeof(mine)));
        for (int r = 1; r < RANKS; r++)
            CHECK(fabs(all[r] - all[0]) < 1e-15);
    }
    finish(&w);
    return 0;
}

CASE(a_period_of_mixing_alone_is_consensus)
{
    static const char *const graphs[] = {"complete", "one-peer-exp", "alternating-exp-ring",
                                         "hierarchical", "hypercube", "directed-exp"};

    for (size_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++) {
        struct job job = {.graph = graphs[i]};
        assert_int_equal(comm_on_threads(RANKS, SECONDS(20), reach_consensus, &job), 0);
    }
}

/* ---- average and revert ----------------------------------------------------------------------- */

static int average_then_go_on(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w[2];
    double kept[TOTAL], all[RANKS], squares = 0;
    struct dp_mixer_average what = {.revert = true, .distance = true};

    for (int k = 0; k < 2; k++) {
        describe(&w[k], comm, job);
        CHECK(!make_graph(job, &w[k].graph));
        const struct dp_mixer_config config = config_of(&w[k], job);
        CHECK(!dp_mixer_new(&config, &w[k].mixer));
        for (int t = 0; t < ITERATIONS; t++) {
            CHECK(!iterate(&w[k], t, false));
            if (k == 0 || t != ITERATIONS / 2)
                continue;
            for (int i = 0; i < TOTAL; i++)
                kept[i] = get(&w[k], i);
            CHECK(!dp_mixer_average(w[k].mixer, &what));
            for (int i = 0; i < TOTAL; i++) {
                double sum = 0;
                CHECK(!dp_comm_allgather(comm, &kept[i], all, sizeof(*all)));
                for (int r = 0; r < RANKS; r++)
                    sum += all[r];
                CHECK(fabs(get(&w[k], i) - sum / RANKS) < (job->sixteen ? 1e-2 : 1e-15));
                squares += (get(&w[k], i) - kept[i]) * (get(&w[k], i) - kept[i]);
            }
            CHECK(fabs(what.l2 - sqrt(squares)) < 1e-12);
            CHECK(!dp_mixer_revert(w[k].mixer));
        }
    }
    for (int i = 0; i < TOTAL; i++)
        CHECK(get(&w[0], i) == get(&w[1], i));
    CHECK(!dp_mixer_average(w[0].mixer, NULL));
    CHECK(!iterate(&w[0], ITERATIONS, false));
    finish(&w[0]);
    finish(&w[1]);
    return 0;
}

CASE(an_average_that_is_reverted_leaves_no_trace)
{
    on_all_kinds(RANKS, SECONDS(20), average_then_go_on, &(struct job){0});
    for (int sixteen = 0; sixteen < 3; sixteen++)
        for (int separate = 0; separate < 2; separate++) {
            struct job job = {.sixteen = sixteen, .separate = separate, .kind = DP_OPTIMIZER_ADAM};
            assert_int_equal(comm_on_threads(RANKS, SECONDS(20), average_then_go_on, &job), 0);
        }
}

/* ---- accumulation ----------------------------------------------------------------------------- */

static int accumulate(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w[2];

    /* The second worker's gradients come in two halves. */
    for (int k = 0; k < 2; k++) {
        describe(&w[k], comm, job);
        CHECK(!make_graph(job, &w[k].graph));
        const struct dp_mixer_config config = config_of(&w[k], job);
        CHECK(!dp_mixer_new(&config, &w[k].mixer));
        for (int t = 0; t < ITERATIONS; t++) {
            if (k == 1) {
                CHECK(!dp_mixer_accumulate(w[k].mixer, true));
                CHECK(!dp_mixer_forward(w[k].mixer, true));
                CHECK(!backward(&w[k], t, false));
                CHECK(!dp_mixer_accumulate(w[k].mixer, false));
            }
            CHECK(!iterate(&w[k], t, false));
        }
        CHECK(mixer_now(w[k].mixer).iterations == ITERATIONS);
    }
    for (int i = 0; i < TOTAL; i++)
        CHECK(get(&w[0], i) == get(&w[1], i));
    finish(&w[0]);
    finish(&w[1]);
    return 0;
}

CASE(accumulating_iterations_update_and_count_nothing)
{
    struct job job = {0};

    assert_int_equal(comm_on_threads(RANKS, SECONDS(20), accumulate, &job), 0);
}

/* ---- state -------------------------------------------------------------------------------------- */

/* Everything by name, as a checkpoint has it. */
static const DLTensor *find_tensor(const struct dp_named_tensor *tensors, int32_t count,
                                   const char *name)
{
    for (int32_t i = 0; i < count; i++)
        if (!strcmp(tensors[i].name, name))
            return &tensors[i].tensor;
    return NULL;
}

static size_t bytes_of(const DLTensor *t)
{
    size_t bytes = t->dtype.bits / 8;

    for (int i = 0; i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

static int go_on_elsewhere(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w[2];
    const struct dp_named_tensor *saved, *ours;
    int32_t saved_count, our_count;

    for (int begin = 0; begin <= ITERATIONS; begin += 3) {
        for (int k = 0; k < 2; k++) {
            describe(&w[k], comm, job);
            CHECK(!make_graph(job, &w[k].graph));
            const struct dp_mixer_config config = config_of(&w[k], job);
            CHECK(!dp_mixer_new(&config, &w[k].mixer));
        }
        for (int t = 0; t < begin; t++)
            CHECK(!iterate(&w[0], t, false));
        CHECK(!dp_mixer_state(w[0].mixer, &saved, &saved_count));
        CHECK(!dp_mixer_resume(w[1].mixer, saved[0].tensor.data, saved[0].tensor.shape[0]));
        CHECK(!dp_mixer_state(w[1].mixer, &ours, &our_count));
        CHECK(our_count == saved_count);
        for (int32_t i = 0; i < our_count; i++) {
            const DLTensor *from = find_tensor(saved, saved_count, ours[i].name);
            CHECK(from && bytes_of(from) == bytes_of(&ours[i].tensor));
            memcpy(ours[i].tensor.data, from->data, bytes_of(from));
        }
        for (int p = 0; p < PARAMETERS; p++)
            memcpy(w[1].values[p].data, w[0].values[p].data, bytes_of(&w[0].values[p]));
        if (begin == 1) /* whose gradients belong to the caller */
            memcpy(w[1].gradient, w[0].gradient, sizeof(w[0].gradient));
        for (int t = begin; t < begin + ITERATIONS; t++)
            for (int k = 0; k < 2; k++)
                CHECK(!iterate(&w[k], t, false));
        for (int i = 0; i < TOTAL; i++)
            CHECK(get(&w[0], i) == get(&w[1], i));
        CHECK(mixer_now(w[0].mixer).iterations == mixer_now(w[1].mixer).iterations);
        CHECK(begin == 0 || ours[0].tensor.shape[0] == saved[0].tensor.shape[0]);
        finish(&w[0]);
        finish(&w[1]);
    }
    return 0;
}

CASE(a_run_goes_on_from_its_state_with_the_same_bits)
{
    static const char *const graphs[] = {"one-peer-exp", "complete", "directed-exp", "torus"};

    for (size_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++)
        for (int sixteen = 0; sixteen < 2; sixteen++) {
            struct job job = {.graph = graphs[i], .kind = DP_OPTIMIZER_ADAM, .sixteen = sixteen};
            if (comm_on_threads(RANKS, SECONDS(20), go_on_elsewhere, &job))
                fail_msg("%s", graphs[i]);
        }
    on_all_kinds(RANKS, SECONDS(20), go_on_elsewhere,
                 &(struct job){.file = lossy, .kind = DP_OPTIMIZER_ACCUM_ADAM, .separate = true});
    for (int complete = 0; complete < 2; complete++)
        on_all_kinds(RANKS, SECONDS(20), go_on_elsewhere,
                     &(struct job){.graph = complete ? "complete" : "ring", .compat = true,
                                   .kind = DP_OPTIMIZER_ADAM, .factor = 0.7});
    on_all_kinds(RANKS, SECONDS(20), go_on_elsewhere,
                 &(struct job){.graph = "ring", .algorithm = DP_MIXER_LOCAL_SGD, .separate = true,
                               .kind = DP_OPTIMIZER_ADAM});
}

static int resume_wrongly(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w;
    int64_t numbers[7 + PARAMETERS] = {2, 3, 1, 0, 0, 0, 0, 99};

    describe(&w, comm, job);
    CHECK(!make_graph(job, &w.graph));
    const struct dp_mixer_config config = config_of(&w, job);
    int err = dp_mixer_new(&config, &w.mixer); /* another rank may have aborted already */
    CHECK(!err || err == DP_EABORTED);
    CHECK(err ||
          dp_mixer_resume(w.mixer, numbers, job->separate ? 3 : 7 + PARAMETERS) == DP_EMISMATCH);
    finish(&w);
    return 0;
}

CASE(numbers_of_another_state_are_refused)
{
    for (int separate = 0; separate < 2; separate++) {
        struct job job = {.separate = separate};
        assert_int_equal(comm_on_threads(RANKS, SECONDS(20), resume_wrongly, &job), 0);
    }
}

/* ---- overlap ---------------------------------------------------------------------------------- */

RANKS_CASE(a_bucket_arrives_while_later_ones_compute,
           on_all_kinds(RANKS, SECONDS(20), part, &(struct job){.bucket_bytes = 1}))
{
    const struct job *job = arg;
    static _Thread_local struct worker w;
    int err;

    describe(&w, comm, job);
    CHECK(!make_graph(job, &w.graph));
    struct dp_mixer_config config = config_of(&w, job);
    CHECK(!dp_mixer_new(&config, &w.mixer));
    CHECK(!iterate(&w, 0, false));
    CHECK(!dp_mixer_forward(w.mixer, true));
    CHECK(mixer_now(w.mixer).buckets == PARAMETERS);
    compute_gradients(&w);
    CHECK(!dp_mixer_ready(w.mixer, PARAMETERS - 1));
    /* The first bucket arrives though no other gradient is there. */
    while ((err = dp_exchange_test(&w.mixer->buckets[0].exchange)) == DP_EAGAIN)
        CHECK(!dp_comm_progress(comm));
    CHECK(!err);
    for (int p = PARAMETERS - 2; p >= 0; p--)
        CHECK(!dp_mixer_ready(w.mixer, p));
    CHECK(!dp_mixer_step(w.mixer));
    finish(&w);
    return 0;
}

/* ---- kinds of parameters ---------------------------------------------------------------------- */

static int train_special(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w;
    /* 2 x 2 x 2 in the order N, H, W, C: channels last. */
    int64_t shape[4] = {1, 2, 2, 2}, strides[4] = {8, 1, 4, 2}, buffer_shape[1] = {3};
    double running[3] = {dp_comm_rank(comm), 1, 2}, frozen_value = dp_comm_rank(comm) + 5.0;
    DLTensor buffer = {.data = running, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 64, 1},
                       .shape = buffer_shape};
    DLTensor *buffers[] = {&buffer};
    struct dp_mixer_average what = {0};

    describe(&w, comm, job);
    /* p0 and p3 are tied; p1 is frozen; p2 is channels-last. */
    w.parameters[0].tied = w.parameters[3].tied = "embedding";
    w.parameters[1].flags = DP_PARAMETER_FROZEN;
    w.parameters[1].grad = NULL;
    w.memory[1][0] = frozen_value;
    w.shape[2][0] = 8;
    w.values[2].ndim = w.grads[2].ndim = 4;
    w.values[2].shape = w.grads[2].shape = shape;
    w.values[2].strides = w.grads[2].strides = strides;
    CHECK(!make_graph(job, &w.graph));
    struct dp_mixer_config config = config_of(&w, job);
    config.buffers = buffers;
    config.buffer_count = 1;
    config.start_buffers = config.average_buffers = true;
    config.start_frozen = true;
    CHECK(!dp_mixer_new(&config, &w.mixer));
    CHECK(running[0] == 0 && w.memory[1][0] == 5);
    for (int t = 0; t < 4; t++) {
        CHECK(!dp_mixer_forward(w.mixer, true));
        for (int k = 0; k < ELEMENTS; k++) {
            ((double *)w.grads[0].data)[k] = 1;
            ((double *)w.grads[3].data)[k] = 2;
            ((double *)w.grads[4].data)[k] = 0;
        }
        for (int k = 0; k < 8; k++)
            ((double *)w.grads[2].data)[k] = k;
        for (int p = PARAMETERS - 1; p >= 0; p--)
            if (p != 1)
                CHECK(!dp_mixer_ready(w.mixer, p));
        CHECK(!dp_mixer_step(w.mixer));
    }
    /* Three updates, four with the one of iteration 0. */
    for (int k = 0; k < ELEMENTS; k++) {
        CHECK(fabs(get(&w, k) - (start_value(k) - 4 * 0.125 * 3)) < 1e-12);
        CHECK(get(&w, k) == get(&w, 3 * ELEMENTS + k));
        CHECK(fabs(get(&w, 4 * ELEMENTS + k) - start_value(4 * ELEMENTS + k)) < 1e-12);
    }
    for (int k = 0; k < 8; k++)
        CHECK(fabs(get(&w, 2 * ELEMENTS + k) - (start_value(2 * ELEMENTS + k) - 4 * 0.125 * k)) < 1e-12);
    CHECK(w.values[2].strides == strides && w.memory[1][0] == 5);
    running[0] = dp_comm_rank(comm);
    CHECK(!dp_mixer_average(w.mixer, &what));
    CHECK(running[0] == 1.5 && running[2] == 2);
    CHECK(job->separate == (w.values[2].data == w.memory[2]));
    finish(&w);
    CHECK(w.values[2].data == w.memory[2]);
    return 0;
}

CASE(tied_frozen_and_channels_last_parameters_are_what_they_are)
{
    for (int separate = 0; separate < 2; separate++)
        on_all_kinds(RANKS, SECONDS(20), train_special, &(struct job){.separate = separate});
}

/* ---- loss scale ------------------------------------------------------------------------------- */

static int overflow_once(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    const struct dp_loss_scale scale = {.scale = 8, .growth = 2, .backoff = 0.5, .interval = 1000,
                                        .least = 1, .most = 1024};
    static _Thread_local struct worker w;
    const bool mine = dp_comm_rank(comm) == 2;

    describe(&w, comm, job);
    CHECK(!make_graph(job, &w.graph));
    struct dp_mixer_config config = config_of(&w, job);
    config.loss_scale = &scale;
    CHECK(!dp_mixer_new(&config, &w.mixer));
    for (int t = 0; t < 3; t++) {
        CHECK(!dp_mixer_forward(w.mixer, true));
        for (int i = 0; i < TOTAL; i++)
            put(&w.grads[i / ELEMENTS], i % ELEMENTS, mixer_now(w.mixer).loss_scale);
        if (t == 1 && mine)
            put(&w.grads[PARAMETERS - 1], 3, INFINITY);
        CHECK(!backward(&w, t, false));
        CHECK(mixer_now(w.mixer).loss_scale == (t == 0 || (job->compat && !mine) ? 8 : 4));
    }
    /* Updates of iterations 0, 1 and 2, of which one was skipped: by all, or in a bucket of rank 2. */
    if (!job->compat)
        for (int i = 0; i < TOTAL; i++)
            CHECK(fabs(get(&w, i) - (start_value(i) - 2 * 0.125)) < 1e-12);
    else
        CHECK(fabs(get(&w, 0) - (start_value(0) - 3 * 0.125)) < 1e-12);
    finish(&w);
    return 0;
}

CASE(an_overflow_skips_the_update_of_all_and_scales_stay_equal)
{
    on_all_kinds(RANKS, SECONDS(20), overflow_once, &(struct job){0});
}

CASE(compat_skips_the_update_of_a_bucket_on_its_rank)
{
    on_all_kinds(RANKS, SECONDS(20), overflow_once, &(struct job){.compat = true, .bucket_bytes = 1});
}

/* ---- learning rates and the hook -------------------------------------------------------------- */

struct heard {
    int calls;
    int64_t rounds[32];
    int32_t partners[32];
};

static int listen(void *user, const struct dp_mixer_average_info *info)
{
    struct heard *h = user;

    if (info->bucket || info->count < 1 || h->calls == 32)
        return 0;
    h->partners[h->calls] = info->group ? info->group->count : 0;
    h->rounds[h->calls++] = info->round;
    return info->received[0] ? 0 : DP_EINVAL;
}

static double next_rate(const struct dp_mixer *mixer)
{
    struct dp_mixer_report report;

    dp_mixer_report(mixer, &report);
    return report.rate;
}

static int note_rounds(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    const struct dp_rate rate = dp_rate_defaults(0.5, 4, 8);
    static _Thread_local struct worker w;
    struct heard heard = {0};

    describe(&w, comm, job);
    CHECK(!make_graph(job, &w.graph));
    struct dp_mixer_config config = config_of(&w, job);
    config.pre_average = listen;
    config.user = &heard;
    config.schedule = &rate;
    CHECK(!dp_mixer_new(&config, &w.mixer));
    CHECK(next_rate(w.mixer) == 0);
    for (int t = 0; t < 5; t++) {
        CHECK(!iterate(&w, t, false));
        CHECK(next_rate(w.mixer) == (t ? dp_rate_at(&rate, t + 1) : 0));
    }
    CHECK(heard.calls == 4);
    for (int t = 0; t < 4; t++) /* compat gives the weights' round: 2 with the exchange of 1 */
        CHECK(heard.rounds[t] == (job->compat ? t + 2 : t) && heard.partners[t] == 2);
    finish(&w);
    return 0;
}

CASE(the_hook_gets_the_round_that_is_mixed)
{
    for (int compat = 0; compat < 2; compat++) {
        struct job job = {.compat = compat, .graph = "ring"};
        assert_int_equal(comm_on_threads(RANKS, SECONDS(20), note_rounds, &job), 0);
    }
}

/* ---- what is wrong ---------------------------------------------------------------------------- */

/* Of the cases from 13 on. */
static const char *const differing[] = {
    "parameter 0: rank 1 has 'q', float64[",
    "compat: rank 1 has 1, rank 0 has 0",
    "number of parameters: rank 1 has ",
    "parameter 4: rank 1 has 'p4', float64[",
    "mixing graph, line 1: rank 1 has mixing ring workers=",
    "factor: rank 1 has 0.5, rank 0 has 1",
    "loss_scale (0: none, 1: given): rank 1 has 1, rank 0 has 0",
    "number of buffers: rank 1 has 1, rank 0 has 0",
};

static int refuse_configs(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;
    const int which = *(const int *)arg;
    struct job job = {0};
    const struct dp_rate no_period = {.kind = DP_RATE_COSINE};
    const struct dp_loss_scale scale = {.scale = 8, .growth = 2, .backoff = 0.5, .interval = 1000,
                                        .least = 1, .most = 1024};
    DLTensor *const buffers[1] = {&w.values[0]};
    int64_t gaps[1] = {2};
    int right = DP_EINVAL;

    describe(&w, comm, &job);
    CHECK(!make_graph(&job, &w.graph));
    struct dp_mixer_config config = config_of(&w, &job);
    struct dp_graph *small = NULL, *other = NULL;
    config.buffers = buffers;
    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = "ring", .workers = 2, .local = 1}, &small));
    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = "ring", .workers = RANKS, .local = 1}, &other));
    switch (which) {
    case 0: config.comm = NULL; right = DP_ESTATE; break;
    case 1: config.graph = NULL; break;
    case 2: config.graph = small; break;
    case 3: config.factor = 1.5; break;
    case 4: config.factor = NAN; break;
    case 5: config.clip_norm = -1; break;
    case 6: config.bucket_bytes = -1; break;
    case 7: w.shape[1][0] = 3; w.values[1].strides = w.grads[1].strides = gaps; break;
    case 8: config.optimizer.beta1 = 2; config.optimizer.kind = DP_OPTIMIZER_ADAM; break;
    case 9: config.rate = NAN; break;
    case 10: w.parameters[2].name = "p1"; break;
    case 11: w.values[0].device.device_type = w.grads[0].device.device_type = kDLCUDA;
        right = DP_EUNSUPPORTED; break;
    case 12: config.schedule = &no_period; break;
    default: /* ranks that differ */
        right = DP_EMISMATCH;
        if (dp_comm_rank(comm) == 1 && which == 13)
            w.parameters[0].name = "q";
        if (dp_comm_rank(comm) == 1 && which == 14)
            config.compat = true;
        if (dp_comm_rank(comm) == 1 && which == 15)
            config.count--;
        if (dp_comm_rank(comm) == 1 && which == 16)
            w.shape[4][0] = ELEMENTS - 1;
        if (dp_comm_rank(comm) == 1 && which == 17)
            config.graph = other;
        if (dp_comm_rank(comm) == 1 && which == 18)
            config.factor = 0.5;
        if (dp_comm_rank(comm) == 1 && which == 19)
            config.loss_scale = &scale;
        if (dp_comm_rank(comm) == 1 && which == 20)
            config.buffer_count = 1;
    }
    int err = dp_mixer_new(&config, &w.mixer);
    CHECK(err == right || (which < 13 && which > 0 && err == DP_EABORTED));
    if (which >= 13)
        CHECK_SAYS(differing[which - 13]);
    dp_graph_free(small);
    dp_graph_free(other);
    dp_graph_free(w.graph);
    return 0;
}

CASE(configs_that_are_not_sound_are_refused_by_all)
{
    for (int which = 0; which < 13; which++)
        if (comm_on_threads(RANKS, SECONDS(20), refuse_configs, &which))
            fail_msg("case %d", which);
    for (int which = 13; which <= 20; which++) /* what one rank alone cannot see */
        on_all_kinds(RANKS, SECONDS(20), refuse_configs, &which);
}

enum mistake {
    OTHER_ORDER,
    FEWER,
    TWICE_WHILE_TRACING,
    TWICE_LATER,
    NO_SUCH,
    NO_GRADIENT,
    NO_GRADIENT_LATER,
    NO_SUM_YET,
    STEP_FIRST,
    NO_BACKUP,
    NO_RATE
};

static int make_mistake(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;
    const enum mistake mistake = *(const enum mistake *)arg;
    const bool mine = dp_comm_rank(comm) == 1;
    struct job job = {0};
    int err = 0, right = DP_EUNSUPPORTED;
    const struct dp_named_tensor *tensors;
    int32_t count;

    describe(&w, comm, &job);
    CHECK(!make_graph(&job, &w.graph));
    const struct dp_mixer_config config = config_of(&w, &job);
    err = dp_mixer_new(&config, &w.mixer);
    if (mistake == NO_BACKUP || mistake == STEP_FIRST) {
        right = DP_ESTATE;
        if (!err && mine)
            err = mistake == NO_BACKUP ? dp_mixer_revert(w.mixer) : dp_mixer_step(w.mixer);
    }
    if (!err)
        err = dp_mixer_forward(w.mixer, true);
    if (!err && mine && mistake == NO_GRADIENT)
        err = dp_mixer_step(w.mixer);
    for (int k = 0; k < PARAMETERS - (mistake == FEWER && mine) && !err; k++)
        err = dp_mixer_ready(w.mixer, mistake == OTHER_ORDER && mine ? k : PARAMETERS - 1 - k);
    if (!err && mine && mistake == TWICE_WHILE_TRACING)
        err = dp_mixer_ready(w.mixer, 0);
    if (!err)
        err = dp_mixer_step(w.mixer);
    if (mistake == OTHER_ORDER || mistake == FEWER)
        right = DP_EMISMATCH;
    if (!err)
        err = dp_mixer_forward(w.mixer, true);
    if (mistake == NO_RATE) {
        CHECK(!err && next_rate(w.mixer) == 0);
        CHECK(!backward(&w, 1, false));
        finish(&w);
        return 0;
    }
    if (mistake == NO_SUCH)
        right = DP_EINVAL;
    if (mistake == NO_GRADIENT || mistake == NO_GRADIENT_LATER || mistake == NO_SUM_YET)
        right = DP_ESTATE;
    if (!err && mine && mistake == NO_GRADIENT_LATER) {
        err = dp_mixer_step(w.mixer);
        CHECK_SAYS("no gradient came");
    }
    if (!err && mine && mistake == NO_SUM_YET) {
        CHECK(!dp_mixer_accumulate(w.mixer, true) && !dp_mixer_ready(w.mixer, 0));
        CHECK(!dp_mixer_step(w.mixer));
        err = dp_mixer_state(w.mixer, &tensors, &count);
    }
    if (!err && mine && mistake == NO_SUCH)
        err = dp_mixer_ready(w.mixer, PARAMETERS);
    if (!err && mine && mistake == TWICE_LATER) {
        err = dp_mixer_ready(w.mixer, 0);
        if (!err)
            err = dp_mixer_ready(w.mixer, 0);
    }
    for (int t = 0; t < 8 && !err; t++)
        err = backward(&w, 1, false) ? DP_EABORTED : dp_mixer_forward(w.mixer, true);
    CHECK(err == right || (mistake > FEWER && !mine && err == DP_EABORTED));
    if (mistake == OTHER_ORDER)
        CHECK_SAYS("gradient 0 to become complete: rank 1 has 'p0' (parameter 0), rank 0 has 'p");
    if (mistake == FEWER)
        CHECK_SAYS("order in which gradients became complete: rank 1 has nothing, rank 0 has gradient ");
    finish(&w);
    return 0;
}

CASE(mistakes_are_errors_on_all_ranks)
{
    for (int mistake = OTHER_ORDER; mistake <= NO_RATE; mistake++)
        on_all_kinds(RANKS, SECONDS(20), make_mistake, &mistake);
}

RUN_QUIET_CASES(NULL, NULL)
