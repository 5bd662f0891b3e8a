/* SPDX-License-Identifier: Apache-2.0
 *
 * The mixer by what it is called for beside iterations that are all alike, over every communicator:
 * evaluations, gradients that do not come, averages for good, buffers of all types; and Decent-DP's order,
 * by its formula.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_cases.h"
#include "mixer_now.h"
#include "mixing_worker.h"

#include "base/fp16.h"

enum { ITERATIONS = 7, STEP = 53 };

/* Workers whose values may differ from rank to rank and element to element. */
static double start_value(int rank, int i)
{
    return (rank * 5 + i * 3) % 13 / 4.0 - 1;
}

static int open_by_text(struct worker *w, struct dp_comm *comm, const char *text,
                        void (*change)(struct dp_mixer_config *config))
{
    describe_worker(w, comm, 64);
    int err = dp_graph_read(text, strlen(text), &w->graph);
    struct dp_mixer_config config = config_of_worker(w, &(struct job){0});

    for (int i = 0; i < TOTAL; i++)
        w->memory[i] = start_value(0, i);
    if (change)
        change(&config);
    return err ? err : dp_mixer_new(&config, &w->mixer);
}

static int same_bits(const struct worker *w)
{
    for (int i = 0; i < TOTAL; i++)
        if (memcmp(&w[0].memory[i], &w[1].memory[i], sizeof(double)))
            return -1;
    return 0;
}

static const char pairs[] = "mixing pairs workers=4\n"
                            "round 0: {0 1}*0.75 {2 3}*0.6\n"
                            "round 1: {0 2} {1 3}*0.7\n"
                            "round 2: {0 3}*0.9 {1 2}\n";

/* ---- evaluations ------------------------------------------------------------------------------- */

static void set_compat(struct dp_mixer_config *config)
{
    config->compat = true;
}

static void set_local_sgd(struct dp_mixer_config *config)
{
    config->algorithm = DP_MIXER_LOCAL_SGD;
    config->local_steps = 2;
    config->outer_rate = 0.5;
}

/* The second worker evaluates before, between and after all iterations. */
static int evaluate(struct dp_comm *comm, void *arg)
{
    void (*const *change)(struct dp_mixer_config *config) = arg;
    static _Thread_local struct worker w[2];

    for (int k = 0; k < 2; k++) {
        CHECK(!open_by_text(&w[k], comm, pairs, *change));
        for (int t = 0; t < ITERATIONS; t++) {
            CHECK(!k || !dp_mixer_forward(w[k].mixer, false));
            CHECK(!iterate_worker(&w[k], 1));
            CHECK(mixer_now(w[k].mixer).iterations == t + 1);
        }
    }
    CHECK(!dp_mixer_average(w[0].mixer, NULL));
    CHECK(!dp_mixer_forward(w[1].mixer, false));
    CHECK(!dp_mixer_average(w[1].mixer, NULL));
    CHECK(!same_bits(w));
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

CASE(evaluations_count_and_change_nothing)
{
    void (*const changes[])(struct dp_mixer_config *config) = {NULL, set_compat, set_local_sgd};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        on_all_kinds(RANKS, SECONDS(20), evaluate, (void *)(uintptr_t)&changes[i]);
}

/* ---- gradients that do not come ---------------------------------------------------------------- */

/* An iteration in which only some parameters have a gradient, which is a bit each. */
static int iterate_with(struct worker *w, unsigned gradients, unsigned ready)
{
    int err = dp_mixer_forward(w->mixer, true);

    for (int i = 0; i < TOTAL; i++)
        if (gradients & 1u << i / ELEMENTS)
            w->gradient[i] += gradient_of_worker(dp_comm_rank(w->comm), i, w->memory[i]);
    for (int p = PARAMETERS - 1; p >= 0 && !err; p--)
        if (ready & 1u << p)
            err = dp_mixer_ready(w->mixer, p);
    return err ? err : dp_mixer_step(w->mixer);
}

/* How a mixer is made whose parameter 0 has no gradient in iterations 2 and 5. */
struct without {
    enum dp_optimizer_kind kind;
    enum dp_mixer_algorithm algorithm;
    double clip_norm; /* never reached */
    bool compat, separate, scaled;
};

static struct dp_loss_scale one_for_good(void)
{
    struct dp_loss_scale scale = dp_loss_scale_defaults();

    scale.scale = scale.least = scale.most = 1;
    return scale;
}

static int open_without(struct worker *w, struct dp_comm *comm, const struct without *c)
{
    const struct dp_loss_scale scale = one_for_good();

    describe_worker(w, comm, 64);
    int err = dp_graph_new(&(struct dp_graph_spec){.name = "complete", .workers = 1}, &w->graph);
    struct dp_mixer_config config = config_of_worker(w, &(struct job){0});
    for (int i = 0; i < TOTAL; i++)
        w->memory[i] = start_value(0, i);
    config.optimizer = dp_optimizer_defaults(c->kind);
    config.optimizer.weight_decay = 0.1;
    config.optimizer.momentum = 0.9;
    config.optimizer.accumulation = 2;
    config.algorithm = c->algorithm;
    config.local_steps = c->algorithm == DP_MIXER_LOCAL_SGD;
    config.outer_rate = c->algorithm == DP_MIXER_LOCAL_SGD;
    config.compat = c->compat;
    config.separate = c->separate;
    config.clip_norm = c->clip_norm;
    config.clip = DP_CLIP_GLOBAL;
    config.loss_scale = c->scaled ? &scale : NULL;
    return err ? err : dp_mixer_new(&config, &w->mixer);
}

/* Whatever lies in the memory of a gradient that does not come is not read. */
static int iterate_unless_late(struct worker *w, bool late)
{
    if (!late)
        return iterate_worker(w, 1);
    for (int i = 0; i < ELEMENTS; i++)
        w->gradient[i] = NAN;
    return iterate_with(w, 2, 2);
}

/* To parameter 0 it is as if the iterations in which it has no gradient had not been. */
static int leave_out_later(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w[2];

    CHECK(!open_without(&w[0], comm, arg) && !open_without(&w[1], comm, arg));
    for (int t = 0; t < ITERATIONS; t++) {
        CHECK(!iterate_unless_late(&w[0], t == 2 || t == 5));
        CHECK(t == 2 || t == 5 || !iterate_worker(&w[1], 1));
    }
    for (int k = 0; k < 2; k++)
        CHECK(!dp_mixer_average(w[k].mixer, NULL));
    for (int i = 0; i < ELEMENTS; i++)
        CHECK(get_value(&w[0], i) == get_value(&w[1], i));
    CHECK(get_value(&w[0], ELEMENTS) != get_value(&w[1], ELEMENTS));
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

CASE(a_parameter_without_a_gradient_is_left_as_it_is)
{
    struct without cases[] = {
        {.kind = DP_OPTIMIZER_SGD},
        {.kind = DP_OPTIMIZER_ADAM},
        {.kind = DP_OPTIMIZER_ADAMW},
        {.kind = DP_OPTIMIZER_ACCUM_ADAM},
        {.kind = DP_OPTIMIZER_ACCUM_ADAMW},
        {.kind = DP_OPTIMIZER_ADAMW, .clip_norm = 1e6},
        {.kind = DP_OPTIMIZER_ADAMW, .scaled = true},
        {.kind = DP_OPTIMIZER_ADAMW, .algorithm = DP_MIXER_LOCAL_SGD},
        {.kind = DP_OPTIMIZER_SGD, .compat = true},
        {.kind = DP_OPTIMIZER_ADAMW, .compat = true},
        {.kind = DP_OPTIMIZER_ACCUM_ADAM, .compat = true},
        {.kind = DP_OPTIMIZER_ADAMW, .compat = true, .scaled = true},
    };

    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        cases[i / 2].separate = i % 2;
        if (comm_on_threads(1, SECONDS(20), leave_out_later, &cases[i / 2]))
            fail_msg("case %zu", i);
    }
}

/* The second worker's gradients come while it accumulates, and that of parameter 1 once more. */
static int accumulate_in_part(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w[2];

    for (int k = 0; k < 2; k++) {
        CHECK(!open_by_text(&w[k], comm, pairs, NULL));
        for (int t = 0; t < ITERATIONS; t++) {
            if (k) {
                CHECK(!dp_mixer_accumulate(w[k].mixer, true));
                CHECK(!iterate_with(&w[k], 3, 3));
                CHECK(!dp_mixer_accumulate(w[k].mixer, false));
            }
            CHECK(!iterate_with(&w[k], k ? 0 : 3, k ? 2 : 3));
        }
    }
    CHECK(!same_bits(w));
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

/* Both parameters are one, and the second worker calls only the member ready that has a gradient. */
static int leave_out_members(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w[2];

    for (int k = 0; k < 2; k++) {
        struct worker *one = &w[k];
        describe_worker(one, comm, 64);
        one->parameters[0].tied = one->parameters[1].tied = "both";
        for (int i = 0; i < TOTAL; i++)
            one->memory[i] = start_value(0, i % ELEMENTS);
        CHECK(!dp_graph_read(pairs, strlen(pairs), &one->graph));
        const struct dp_mixer_config config = config_of_worker(one, &(struct job){0});
        CHECK(!dp_mixer_new(&config, &one->mixer));
        for (int t = 0; t < ITERATIONS; t++)
            CHECK(!iterate_with(one, 1u << t % 2, k ? 1u << t % 2 : 3));
        CHECK(!dp_mixer_forward(one->mixer, true));
    }
    CHECK(!same_bits(w) && !memcmp(w[1].memory, w[1].memory + ELEMENTS, ELEMENTS * sizeof(double)));
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

/* Without a gradient in iteration 0 a parameter is of no bucket. */
static int leave_out_always(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;

    CHECK(!open_by_text(&w, comm, pairs, NULL));
    for (int t = 0; t < ITERATIONS; t++)
        CHECK(!iterate_with(&w, 2, t > 3 ? 3 : 2));
    CHECK(mixer_now(w.mixer).buckets == 1);
    CHECK(!dp_mixer_average(w.mixer, NULL));
    for (int i = 0; i < ELEMENTS; i++) {
        const double was = start_value(0, i);
        CHECK(!memcmp(&w.memory[i], &was, sizeof(was)));
    }
    close_worker(&w);
    return 0;
}

CASE(a_gradient_may_come_in_part_or_never)
{
    on_all_kinds(RANKS, SECONDS(20), accumulate_in_part, NULL);
    on_all_kinds(RANKS, SECONDS(20), leave_out_members, NULL);
    on_all_kinds(RANKS, SECONDS(20), leave_out_always, NULL);
}

/* ---- averages for good ------------------------------------------------------------------------- */

static double mean_of_starts(int i)
{
    double sum = 0;

    for (int r = 0; r < RANKS; r++)
        sum += start_value(r, i);
    return sum / RANKS;
}

static void set_starts(struct worker *w)
{
    for (int i = 0; i < TOTAL; i++)
        w->memory[i] = start_value(dp_comm_rank(w->comm), i);
}

/* Before there are buckets; then again in the middle of a run: what was in flight is not mixed. */
static int average_for_good(struct dp_comm *comm, void *arg)
{
    const int rank = dp_comm_rank(comm);
    static _Thread_local struct worker w;
    double average[TOTAL];

    CHECK(!open_by_text(&w, comm, pairs, arg ? set_compat : NULL));
    set_starts(&w);
    CHECK(!dp_mixer_average(w.mixer, NULL));
    for (int i = 0; i < TOTAL; i += STEP)
        CHECK(fabs(w.memory[i] - mean_of_starts(i)) < 1e-14);
    for (int t = 0; t < ITERATIONS; t++)
        CHECK(!iterate_worker(&w, 1));
    CHECK(!dp_mixer_average(w.mixer, NULL));
    memcpy(average, w.memory, sizeof(average));
    CHECK(!iterate_worker(&w, 1));
    for (int i = 0; i < TOTAL; i++)
        CHECK(fabs(w.memory[i] - (average[i] - 0.1 * gradient_of_worker(rank, i, average[i]))) < 1e-14);
    CHECK(!iterate_worker(&w, 1)); /* and mixing has begun again */
    close_worker(&w);
    return 0;
}

CASE(an_average_for_good_drops_what_was_in_flight)
{
    on_all_kinds(RANKS, SECONDS(20), average_for_good, NULL);
    on_all_kinds(RANKS, SECONDS(20), average_for_good, "compat");
}

/* Rows do not sum to one: a worker's values are its sums divided by a weight of its own. */
static const char lossy[] = "mixing lossy workers=4 local=1 push-sum\n"
                            "round 0: 0>0*0.25 0>1*0.25 0>2*0.5 1>1*0.5 1>2*0.5 2>3*1 3>0*0.5 3>3*0.5\n";

static void set_separate(struct dp_mixer_config *config)
{
    config->separate = true;
}

static void set_views(struct dp_mixer_config *config)
{
    config->separate = false;
}

/* The mean that push-sum keeps is that of all values by these weights. */
static int average_push_sum(struct dp_comm *comm, void *arg)
{
    void (*const *change)(struct dp_mixer_config *config) = arg;
    static _Thread_local struct worker w;
    struct dp_mixer_average what = {.revert = true};

    CHECK(!open_by_text(&w, comm, lossy, *change));
    set_starts(&w);
    for (int t = 0; t < ITERATIONS; t++) {
        CHECK(!iterate_worker(&w, 0));
        CHECK(!dp_mixer_average(w.mixer, &what));
        for (int i = 0; i < TOTAL; i += STEP)
            CHECK(fabs(get_value(&w, i) - mean_of_starts(i)) < 1e-13);
        CHECK(!dp_mixer_revert(w.mixer));
    }
    CHECK(!dp_mixer_average(w.mixer, NULL));
    for (int t = 0; t < 3; t++)
        CHECK(!iterate_worker(&w, 0));
    for (int i = 0; i < TOTAL; i += STEP)
        CHECK(fabs(get_value(&w, i) - mean_of_starts(i)) < 1e-13);
    close_worker(&w);
    return 0;
}

CASE(an_average_is_of_what_push_sum_keeps)
{
    void (*const changes[])(struct dp_mixer_config *config) = {set_separate, set_views};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        on_all_kinds(RANKS, SECONDS(20), average_push_sum, (void *)(uintptr_t)&changes[i]);
}

/* ---- buffers ----------------------------------------------------------------------------------- */

struct buffers {
    double real;
    float single;
    uint16_t half, brain;
    int64_t count;
    DLTensor tensors[5];
    DLTensor *all[5];
};

static void describe_buffers(struct buffers *b, int rank)
{
    static int64_t one = 1;
    void *const at[5] = {&b->real, &b->single, &b->half, &b->brain, &b->count};
    static const DLDataType types[5] = {
        {kDLFloat, 64, 1}, {kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}, {kDLInt, 64, 1}};

    *b = (struct buffers){.real = rank, .single = (float)(2 * rank), .half = dp_float16_store((float)rank),
                          .brain = dp_bfloat16_store((float)rank), .count = rank};
    for (int i = 0; i < 5; i++) {
        b->tensors[i] = (DLTensor){.data = at[i], .device = {kDLCPU, 0}, .ndim = 1, .dtype = types[i],
                                   .shape = &one};
        b->all[i] = &b->tensors[i];
    }
}

static int average_buffers(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;
    const int rank = dp_comm_rank(comm);
    struct dp_mixer_average what = {.revert = true};
    struct buffers b;

    describe_worker(&w, comm, 64);
    describe_buffers(&b, rank);
    CHECK(!dp_graph_new(&(struct dp_graph_spec){.name = "ring", .workers = RANKS, .local = 1}, &w.graph));
    struct dp_mixer_config config = config_of_worker(&w, &(struct job){0});
    config.buffers = b.all;
    config.buffer_count = 5;
    config.average_buffers = true;
    CHECK(!dp_mixer_new(&config, &w.mixer));
    CHECK(b.count == rank && dp_float16_load(b.half) - (float)rank < 0.5f); /* not sent at the start */
    CHECK(!iterate_worker(&w, 1));
    CHECK(!dp_mixer_average(w.mixer, &what));
    CHECK(!dp_mixer_revert(w.mixer)); /* which leaves buffers as they are */
    CHECK(fabs(b.real - 1.5) < 1e-15 && fabsf(b.single - 3) < 1e-6f);
    CHECK(fabsf(dp_float16_load(b.half) - 1.5f) < 1e-3f && fabsf(dp_bfloat16_load(b.brain) - 1.5f) < 2e-2f);
    CHECK(b.count == rank);
    close_worker(&w);
    return 0;
}

CASE(buffers_of_real_numbers_are_averaged)
{
    on_all_kinds(RANKS, SECONDS(20), average_buffers, NULL);
}

/* ---- Decent-DP's order -------------------------------------------------------------------------- */

struct decent_case {
    const char *graph;
    double factor, clip;
    bool separate;
};

enum { WIDEST = RANKS };

/* All workers, each parameter a bucket. */
struct decent {
    double x[WIDEST][TOTAL], sent[WIDEST][TOTAL];
};

static void decent_update(struct decent *d, const struct decent_case *c, double grads[WIDEST][TOTAL])
{
    for (int r = 0; r < RANKS; r++)
        for (int p = 0; p < PARAMETERS; p++) {
            double squares = 0;
            for (int i = p * ELEMENTS; i < (p + 1) * ELEMENTS; i++)
                squares += grads[r][i] * grads[r][i];
            const double scale = c->clip > 0 ? fmin(1, c->clip / (sqrt(squares) + 1e-6)) : 1;
            for (int i = p * ELEMENTS; i < (p + 1) * ELEMENTS; i++)
                d->x[r][i] -= 0.1 * scale * grads[r][i];
        }
}

/* What a member of a group gives each of the others, and itself. */
static double share_of(const struct dp_graph *g, int64_t t, int r)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, r);

    return (1 - group->self) / (group->count - 1);
}

static void decent_send(struct decent *d, const struct dp_graph *g, int64_t t)
{
    memset(d->sent, 0, sizeof(d->sent));
    for (int r = 0; r < RANKS; r++) {
        const struct dp_mix_group *group = dp_graph_group(g, t, r);
        for (int k = 0; k < group->count; k++)
            for (int i = 0; i < TOTAL; i++)
                d->sent[r][i] += share_of(g, t, r) * d->x[g->members[group->first + (size_t)k]][i];
    }
}

static void decent_mix(struct decent *d, const struct decent_case *c, const struct dp_graph *g, int64_t t)
{
    const double a = c->factor > 0 ? c->factor : 1;

    for (int r = 0; r < RANKS; r++) {
        const double keep = (1 - a) + a * (dp_graph_group(g, t, r)->self - share_of(g, t, r));
        for (int i = 0; i < TOTAL; i++)
            d->x[r][i] = keep * d->x[r][i] + a * d->sent[r][i];
    }
}

static void decent_grads(const struct decent *d, double grads[WIDEST][TOTAL])
{
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < TOTAL; i++)
            grads[r][i] = gradient_of_worker(r, i, d->x[r][i]);
}

/* In the words of Decent-DP: its counter is 1 when the first exchange begins, and t + 1 in the backward of
 * iteration t. */
static int follow_decent_dp(struct dp_comm *comm, void *arg)
{
    const struct decent_case *c = arg;
    static _Thread_local struct decent d;
    static _Thread_local struct worker w;
    static _Thread_local double grads[WIDEST][TOTAL];
    const int rank = dp_comm_rank(comm);

    describe_worker(&w, comm, 64);
    CHECK(!dp_graph_read(c->graph, strlen(c->graph), &w.graph));
    struct dp_mixer_config config = config_of_worker(&w, &(struct job){.factor = c->factor});
    config.compat = true;
    config.clip_norm = c->clip;
    config.separate = c->separate;
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < TOTAL; i++)
            d.x[r][i] = w.memory[i] = start_value(0, i);
    CHECK(!dp_mixer_new(&config, &w.mixer));
    for (int t = 0; t < 2 * ITERATIONS; t++) {
        decent_grads(&d, grads);
        CHECK(!iterate_worker(&w, 1));
        if (t == 0) {
            decent_update(&d, c, grads);
            decent_send(&d, w.graph, 1);
            decent_grads(&d, grads);
            continue;
        }
        decent_mix(&d, c, w.graph, t + 1);
        decent_update(&d, c, grads);
        decent_send(&d, w.graph, t + 2);
        for (int i = 0; i < TOTAL; i++)
            CHECK(fabs(get_value(&w, i) - d.x[rank][i]) < 1e-13);
    }
    close_worker(&w);
    return 0;
}

CASE(compat_is_decent_dps_order)
{
    static const char ring[] = "mixing ring workers=4\nround 0: {0 1} {2 3}\nround 1: {0 3} {1 2}\n";
    static const char groups[] = "mixing groups workers=4\nround 0: {0 1 2 3}*0.4\nround 1: {0 1} {2 3}*0.3\n"
                                 "round 2: {0 2 1 3}\n";
    static const struct decent_case cases[] = {
        {.graph = ring},
        {.graph = ring, .clip = 0.5, .separate = true},
        {.graph = pairs, .factor = 0.6, .clip = 0.5},
        {.graph = groups, .factor = 0.8, .separate = true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        on_all_kinds(RANKS, SECONDS(20), follow_decent_dp, (void *)(uintptr_t)&cases[i]);
}

/* ---- an update of the caller's ------------------------------------------------------------------- */

/* Each parameter is a bucket. */
struct caller {
    struct worker *w;
    int32_t next;  /* bucket */
    int skips_at;  /* call in which gradients are not used; -1: none */
    int calls;
    double moved[TOTAL]; /* where gradients are in every second iteration */
};

/* SGD at a rate of 0.1, in the optimizer's order of roundings. */
static int update_by_hand(void *user, struct dp_mixer_update_info *info)
{
    struct caller *c = user;
    const DLTensor *grad = &c->w->grads[*info->parameters];
    double *x = c->w->values[*info->parameters].data, *g = grad->data;

    if (info->bucket != c->next || info->count != 1 || !info->present[0] || info->rate != 0.1)
        return DP_EMISMATCH;
    c->next = (c->next + 1) % PARAMETERS;
    info->skip = info->skip || c->calls == c->skips_at;
    c->calls++;
    for (int i = 0; i < ELEMENTS && !info->skip; i++)
        x[i] = fma(-0.1, g[i], x[i]);
    memset(g, 0, ELEMENTS * sizeof(*g));
    return 0;
}

static void move_gradients(struct caller *c, bool away)
{
    double *from = away ? c->w->gradient : c->moved, *to = away ? c->moved : c->w->gradient;

    memcpy(to, from, sizeof(c->moved));
    for (int i = 0; i < TOTAL; i++)
        from[i] = NAN;
    for (int p = 0; p < PARAMETERS; p++)
        c->w->grads[p].data = to + p * ELEMENTS;
}

static int open_caller(struct caller *c, struct worker *w, struct dp_comm *comm,
                       void (*change)(struct dp_mixer_config *config), bool by_hand)
{
    static const char ring[] = "mixing ring workers=4\nround 0: {0 1} {2 3}\nround 1: {0 3} {1 2}\n";

    *c = (struct caller){.w = w, .skips_at = -1};
    describe_worker(w, comm, 64);
    int err = dp_graph_read(ring, strlen(ring), &w->graph);
    struct dp_mixer_config config = config_of_worker(w, &(struct job){0});
    for (int i = 0; i < TOTAL; i++)
        w->memory[i] = start_value(0, i);
    if (by_hand)
        config.update = update_by_hand;
    config.user = c;
    if (change)
        change(&config);
    return err ? err : dp_mixer_new(&config, &w->mixer);
}

/* The second worker's gradients move, and what has been left behind is no number. */
static int update_in_both_ways(struct dp_comm *comm, void *arg)
{
    void (*const *change)(struct dp_mixer_config *config) = arg;
    static _Thread_local struct worker w[2];
    static _Thread_local struct caller c[2];
    const struct dp_named_tensor *state;
    int32_t count;

    for (int k = 0; k < 2; k++) {
        CHECK(!open_caller(&c[k], &w[k], comm, *change, k));
        for (int t = 0; t < ITERATIONS; t++) {
            CHECK(!iterate_worker(&w[k], 1));
            if (k && t)
                move_gradients(&c[k], t % 2);
        }
        CHECK(!dp_mixer_average(w[k].mixer, &(struct dp_mixer_average){.revert = true}));
        CHECK(!dp_mixer_revert(w[k].mixer) && !iterate_worker(&w[k], 1));
    }
    CHECK(c[1].calls == PARAMETERS * (ITERATIONS + 1));
    CHECK(!dp_mixer_state(w[1].mixer, &state, &count));
    for (int32_t i = 0; i < count; i++)
        CHECK(!strncmp(state[i].name, "mixer/", 6)); /* the caller's own is the caller's */
    CHECK(!same_bits(w));
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

static void set_views_and_clip(struct dp_mixer_config *config)
{
    config->separate = false;
    config->clip_norm = 0x1p-3;
    config->clip = DP_CLIP_GLOBAL;
}

CASE(an_update_of_the_callers_is_in_the_optimizers_place)
{
    void (*const changes[])(struct dp_mixer_config *config) = {NULL, set_compat, set_views, set_local_sgd};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        on_all_kinds(RANKS, SECONDS(20), update_in_both_ways, (void *)(uintptr_t)&changes[i]);
}

/* The caller's gradients are clipped as the optimizer's are; their last bits are rounded once more. */
RANKS_CASE(the_callers_gradients_are_clipped, on_all_kinds(RANKS, SECONDS(20), part, NULL))
{
    static _Thread_local struct worker w[2];
    static _Thread_local struct caller c[2];

    for (int k = 0; k < 2; k++) {
        CHECK(!open_caller(&c[k], &w[k], comm, set_views_and_clip, k));
        for (int t = 0; t < ITERATIONS; t++)
            CHECK(!iterate_worker(&w[k], 1));
    }
    for (int i = 0; i < TOTAL; i++)
        CHECK(fabs(get_value(&w[0], i) - get_value(&w[1], i)) < 1e-14);
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

static void set_loss_scale(struct dp_mixer_config *config)
{
    static _Thread_local struct dp_loss_scale scale;

    scale = dp_loss_scale_defaults();
    config->loss_scale = &scale;
}

static void set_loss_scale_and_compat(struct dp_mixer_config *config)
{
    set_loss_scale(config);
    config->compat = true;
}

static int skip_one(struct dp_comm *comm, void *arg)
{
    void (*const *change)(struct dp_mixer_config *config) = arg;
    static _Thread_local struct worker w;
    static _Thread_local struct caller c;

    CHECK(!open_caller(&c, &w, comm, *change, true));
    c.skips_at = PARAMETERS; /* of the first bucket in iteration 1 */
    for (int t = 0; t < ITERATIONS; t++) {
        CHECK(!iterate_worker(&w, 1));
        CHECK(mixer_now(w.mixer).loss_scale == (t ? 32768 : 65536));
    }
    close_worker(&w);
    return 0;
}

CASE(an_update_that_is_skipped_lowers_the_loss_scale)
{
    void (*const changes[])(struct dp_mixer_config *config) = {set_loss_scale, set_loss_scale_and_compat};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        assert_int_equal(comm_on_threads(RANKS, SECONDS(20), skip_one, (void *)(uintptr_t)&changes[i]), 0);
}

/* ---- the factor --------------------------------------------------------------------------------- */

static void set_half(struct dp_mixer_config *config)
{
    config->factor = 0.5;
}

static int change_factor(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w[2];

    for (int k = 0; k < 2; k++) {
        CHECK(!open_by_text(&w[k], comm, pairs, k ? set_half : NULL));
        for (int t = 0; t < ITERATIONS; t++) {
            CHECK(!t || !k || !dp_mixer_set_factor(w[k].mixer, 1));
            CHECK(!iterate_worker(&w[k], 1));
            CHECK(t || !k || !dp_mixer_set_factor(w[k].mixer, 0.25)); /* no exchange begins with it */
        }
    }
    CHECK(!same_bits(w));
    close_worker(&w[0]);
    close_worker(&w[1]);
    return 0;
}

static int refuse_factor(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;

    CHECK(!open_worker(&w, comm, &(struct job){.graph = "complete"}));
    CHECK(dp_mixer_set_factor(w.mixer, 0) == DP_EINVAL);
    CHECK_SAYS("factor of mixing: 0, expected above 0, up to 1");
    close_worker(&w);
    return 0;
}

static void set_staleness(struct dp_mixer_config *config)
{
    config->staleness = 2;
}

/* An exchange has the same factor on both sides, also where one uses it later. */
static int change_factor_while_late(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;
    double before, after;

    CHECK(!open_by_text(&w, comm, pairs, set_staleness));
    set_starts(&w);
    CHECK(!sum_over_workers(&w, 5, &before));
    for (int t = 0; t < 4 * ITERATIONS; t++) {
        CHECK(!dp_mixer_set_factor(w.mixer, 1.0 / (1 + t % 3)));
        CHECK(!iterate_worker(&w, 0));
    }
    CHECK(!dp_mixer_average(w.mixer, NULL) && !sum_over_workers(&w, 5, &after));
    CHECK(fabs(before - after) < 1e-13);
    close_worker(&w);
    return 0;
}

CASE(a_factor_holds_for_exchanges_that_begin_with_it)
{
    on_all_kinds(RANKS, SECONDS(20), change_factor, NULL);
    assert_int_equal(comm_on_threads(1, SECONDS(20), refuse_factor, NULL), 0);
    on_all_kinds(RANKS, SECONDS(20), change_factor_while_late, NULL);
}

/* ---- a config that is not known ---------------------------------------------------------------- */

RANKS_CASE(what_is_not_known_of_a_config_fails_on_all_workers,
           assert_int_equal(comm_on_threads(RANKS, SECONDS(20), part, NULL), 0))
{
    static _Thread_local struct worker w;

    describe_worker(&w, comm, 64);
    CHECK(!dp_graph_read(pairs, strlen(pairs), &w.graph));
    const LATER(dp_mixer_config) config = {config_of_worker(&w, &(struct job){0}),
                                           dp_comm_rank(comm) == 1};
    const int err = dp_mixer_new_sized(&config.known, &w.mixer, sizeof(config));
    CHECK(err == (config.unknown ? DP_EINVAL : DP_EABORTED));
    CHECK_SAYS("struct dp_mixer_config of");
    CHECK(!dp_comm_reset(comm));
    CHECK(!dp_mixer_new(&config.known, &w.mixer));
    CHECK(!iterate_worker(&w, 1));
    close_worker(&w);
    return 0;
}

RUN_QUIET_CASES(NULL, NULL)
