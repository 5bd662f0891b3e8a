/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pipeline_bind.c - what a binding needs: ends of the model that stay the caller's, buffers that
 * stages hand over and get back, the whole text of a failure, ranks that do not agree to train.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"

#include <dualpipe/pipeline.h>

enum { MOST_STAGES = 8, MOST_MB = 12, STEPS = 2, FAILURE = -77 };
static const int64_t deadline_ns = INT64_C(20000000000);

/* A model of one weight a stage: y = x * w0 * w1 ..., whose loss is y. What a thread touches is its own
 * rank's, or that of a stage in one stream. */
struct model {
    const struct dp_schedule *schedule, *evaluation;
    enum dp_execution execution;
    int tensors; /* at a border between stages; all after the first are for show */
    bool in_two;
    int fails_at; /* the stage whose second forward fails, of any copy; -1: none */
    char *text;   /* what it says */
    double losses[2 * MOST_MB], grads[2][MOST_STAGES];
};

struct stage {
    struct model *model;
    int stream;
    bool first, last;
    double in[MOST_MB], gout[MOST_MB];
    int lent, calls;
};

static double weight_of(int stage)
{
    return 1 + stage % 3;
}

static double input_of(int mb_global)
{
    return 2 + mb_global;
}

static void lend(struct stage *stage, double value, DLTensor *to, bool training)
{
    for (int k = 0; k < stage->model->tensors; k++) {
        double *mine = malloc(sizeof(*mine));
        *mine = value + k;
        if (!training && k) { /* written where the pipeline has room for it */
            memcpy(to[k].data, mine, sizeof(*mine));
            free(mine);
            continue;
        }
        to[k].data = mine;
        stage->lent++;
    }
}

static void given_back(void *user, void *data)
{
    ((struct stage *)user)->lent--;
    free(data);
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    struct stage *stage = user;
    struct model *model = stage->model;
    const double x = stage->first ? input_of(call->mb_global) : *(const double *)in[0].data;

    if (model->fails_at == call->stage && ++stage->calls == 2)
        return dp_callback_error_text(FAILURE, model->text);
    stage->in[call->mb] = x;
    if (stage->last)
        model->losses[call->mb_global] = x * weight_of(call->stage);
    else
        lend(stage, x * weight_of(call->stage), out, call->training);
    return 0;
}

static int weight(void *user, const struct dp_stage_call *call)
{
    struct stage *stage = user;

    stage->model->grads[stage->stream][call->stage] += stage->in[call->mb] * stage->gout[call->mb];
    return 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout, DLTensor *gin,
                    enum dp_backward_mode mode)
{
    struct stage *stage = user;

    stage->gout[call->mb] = stage->last ? 1 : *(const double *)gout[0].data;
    if (!stage->first)
        lend(stage, stage->gout[call->mb] * weight_of(call->stage), gin, true);
    return mode == DP_BACKWARD_FULL ? weight(user, call) : 0;
}

static int pair(const struct dp_pair *p)
{
    if (p->forward.loss || p->backward.loss) /* they are the caller's */
        return dp_callback_error(FAILURE, "a %s of opaque ends", "loss");
    const int err = forward(p->forward.user, p->forward.call, p->forward.in, p->forward.out);
    return err ? err : backward(p->backward.user, p->backward.call, p->backward.gout, p->backward.gin,
                                DP_BACKWARD_FULL);
}

static const struct dp_stage_ops ops = {.forward = forward, .backward = backward, .weight = weight,
                                        .fwd_bwd = pair, .given_back = given_back};

/* ---- a rank ----------------------------------------------------------------------------------- */

struct rank {
    struct stage stages[DP_MAX_SLOTS];
    struct dp_pipeline *pipe;
};

static int rank_open(struct rank *r, struct model *model, struct dp_comm *comm)
{
    const struct dp_schedule *s = model->schedule;
    struct dp_border borders[MOST_STAGES + 1] = {{0}};
    struct dp_stage stages[DP_MAX_SLOTS];
    int rank = 0;

    *r = (struct rank){0};
    while (s->group_rank[rank] != dp_comm_rank(comm))
        rank++;
    for (int i = 1; i < s->stages; i++) {
        borders[i].count = model->tensors;
        for (int k = 0; k < model->tensors; k++)
            borders[i].tensors[k] = (struct dp_tensor_spec){{kDLFloat, 64, 1}, .ndim = 0};
    }
    for (int i = 0; i < dp_schedule_slot_count(s, rank); i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, rank, i);
        r->stages[i] = (struct stage){.model = model, .stream = slot->stream,
                                      .first = dp_slot_is_first(slot), .last = dp_slot_is_last(slot)};
        stages[i] = (struct dp_stage){.ops = &ops, .user = &r->stages[i]};
    }
    return dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .also = &model->evaluation,
                                                        .also_count = model->evaluation != NULL,
                                                        .comm = comm, .stages = stages,
                                                        .borders = borders, .opaque_ends = true,
                                                        .execution = model->execution},
                           &r->pipe);
}

static int lent(const struct rank *r)
{
    int count = 0;

    for (int i = 0; i < DP_MAX_SLOTS; i++)
        count += r->stages[i].lent;
    return count;
}

static int step(struct rank *r, const struct model *model, struct dp_step *args)
{
    if (!model->in_two)
        return dp_pipeline_step(r->pipe, args);
    const int err = dp_pipeline_forward(r->pipe, args);
    return err || args->forward_only ? err : dp_pipeline_backward(r->pipe, args);
}

/* Gradients after so many steps, and losses; of one thread, once all ranks are done. */
static void expect_results(const struct model *model, int steps)
{
    const struct dp_schedule *s = model->schedule;

    for (int stream = 0; stream < s->streams; stream++)
        for (int stage = 0; stage < s->stages; stage++) {
            double all = 1, sum = 0;
            for (int i = 0; i < s->stages; i++)
                all *= weight_of(i);
            for (int mb = 0; mb < s->mb_per_stream; mb++) {
                const int global = stream * s->mb_per_stream + mb;
                sum += input_of(global) * all / weight_of(stage);
                assert_true(model->losses[global] == input_of(global) * all);
            }
            assert_true(model->grads[stream][stage] == steps * sum);
        }
}

/* ---- opaque ends ------------------------------------------------------------------------------ */

static int train(struct dp_comm *comm, void *arg)
{
    struct rank r;

    CHECK(!rank_open(&r, arg, comm));
    for (int i = 0; i < STEPS; i++) {
        struct dp_step args = {0};
        CHECK(!step(&r, arg, &args));
        CHECK(!args.forward_only && !args.loss_values);
        CHECK(!lent(&r));
    }
    dp_pipeline_free(r.pipe);
    return 0;
}

static const struct {
    struct dp_schedule_spec spec;
    bool in_two, by_messages;
} trials[] = {
    {{.kind = DP_SCHEDULE_1F1B, .ranks = 1, .microbatches = 3}, false, false},
    {{.kind = DP_SCHEDULE_1F1B, .ranks = 4, .microbatches = 7}, false, false},
    {{.kind = DP_SCHEDULE_ZB1P, .ranks = 3, .microbatches = 6}, false, false},
    {{.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10}, false, false},
    {{.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2, .microbatches = 6}, false, false},
    {{.kind = DP_SCHEDULE_GPIPE, .ranks = 3, .microbatches = 4}, false, false},
    {{.kind = DP_SCHEDULE_GPIPE, .ranks = 3, .microbatches = 4}, true, false},
    {{.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 3, .recompute = DP_RECOMPUTE_ALWAYS},
     false, false},
    {{.kind = DP_SCHEDULE_ASYNC, .ranks = 3, .microbatches = 5}, false, true},
    {{.kind = DP_SCHEDULE_ASYNC, .ranks = 3, .microbatches = 5}, true, true},
};
enum { TRIALS = sizeof(trials) / sizeof(*trials) };

static struct model model_of(int trial, struct dp_schedule **schedule)
{
    if (dp_schedule_new(&trials[trial].spec, schedule))
        fail_msg("%s", dp_last_error());
    return (struct model){.schedule = *schedule, .in_two = trials[trial].in_two, .tensors = 1,
                          .fails_at = -1,
                          .execution = trials[trial].by_messages ? DP_EXECUTE_MESSAGES
                                                                 : DP_EXECUTE_LIST};
}

CASE(the_caller_has_batches_labels_and_losses)
{
    for (int i = 0; i < 2 * TRIALS; i++) {
        OWNED(dp_schedule) *s = NULL;
        struct model model = model_of(i / 2, &s);
        model.tensors = 1 + i % 2; /* buffers are sent, or copied */
        assert_int_equal(comm_on_threads(s->ranks, deadline_ns, train, &model), 0);
        expect_results(&model, STEPS);
    }
}

/* ---- what is not wanted with them ------------------------------------------------------------ */

static int refuse(struct dp_comm *comm, void *arg)
{
    struct dp_border borders[3] = {{0}, {1, {{{kDLFloat, 64, 1}, .ndim = 0}}}, {0}};
    static const struct dp_loss_ops loss;
    struct dp_stage stage = {.ops = &ops};
    const struct dp_microbatches mbs = {0};
    struct dp_pipeline_config config = {.schedule = arg, .comm = comm, .stages = &stage,
                                        .borders = borders, .opaque_ends = true};
    struct dp_pipeline *pipe;
    struct rank r;

    config.loss = &loss;
    CHECK(dp_pipeline_new(&config, &pipe) == DP_EINVAL);
    CHECK_SAYS("opaque_ends: loss given, expected NULL");
    config.loss = NULL;
    config.labels = borders;
    CHECK(dp_pipeline_new(&config, &pipe) == DP_EINVAL);
    CHECK_SAYS("opaque_ends: labels given, expected NULL");
    config.labels = NULL;
    for (int end = 0; end <= 2; end += 2) {
        borders[end].count = 1;
        CHECK(dp_pipeline_new(&config, &pipe) == DP_EINVAL);
        CHECK_SAYS(end ? "opaque_ends: border 2 has 1 tensors, expected none"
                       : "opaque_ends: border 0 has 1 tensors, expected none");
        borders[end].count = 0;
    }
    borders[1].count = 0;
    CHECK_ERROR(dp_pipeline_new(&config, &pipe), DP_ESTATE, "border 1: no tensor declared");
    borders[1].count = 1;
    config.opaque_ends = dp_comm_rank(comm) == 0;
    if (dp_comm_rank(comm) == 1) /* as the ends are another rank's, it need not declare them */
        borders[2] = borders[1], config.own_gradients = true;
    CHECK(dp_pipeline_new(&config, &pipe) == DP_EMISMATCH);

    struct model model = {.schedule = arg, .tensors = 1, .fails_at = -1};
    const struct {
        struct dp_step step;
        const char *says;
    } steps[] = {
        {{.inputs = &mbs}, "inputs: given, expected NULL on rank"},
        {{.labels = &mbs}, "labels: given, expected NULL on rank"},
        {{.outputs = &mbs}, "outputs: given, expected NULL on rank"},
        {{.losses = model.losses}, "losses: given, expected NULL on rank"},
    };
    CHECK(!rank_open(&r, &model, comm));
    (void)dp_comm_barrier(comm); /* a step that fails ends no opening of another rank */
    for (int i = 0; i < 4; i++) {
        struct dp_step args = steps[i].step;
        CHECK(dp_pipeline_step(r.pipe, &args) == DP_EINVAL);
        CHECK_SAYS(steps[i].says);
        CHECK(!dp_comm_reset(comm));
    }
    dp_pipeline_free(r.pipe);
    return 0;
}

CASE(nothing_of_the_ends_may_be_given)
{
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2,
                                                                .microbatches = 2}, &s), 0);
    assert_int_equal(comm_on_threads(2, deadline_ns, refuse, s), 0);
}

/* ---- failures --------------------------------------------------------------------------------- */

static int fail_and_go_on(struct dp_comm *comm, void *arg)
{
    struct model *model = arg;
    struct dp_step args = {0};
    struct rank r;

    CHECK(!rank_open(&r, model, comm));
    (void)dp_comm_barrier(comm);
    const int err = step(&r, model, &args);
    CHECK(err == DP_ECALLBACK || err == DP_EABORTED);
    CHECK_SAYS(model->text);
    struct dp_abort why;
    CHECK(dp_comm_aborted(comm, &why) && why.error == DP_ECALLBACK && strstr(why.text, model->text));
    CHECK(!lent(&r));
    CHECK(!dp_comm_reset(comm));
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        r.stages[i].calls = 2; /* no more failures */
    if (!dp_comm_rank(comm))
        memset(model->grads, 0, sizeof(model->grads));
    dp_comm_barrier(comm);
    args = (struct dp_step){0};
    CHECK(!step(&r, model, &args));
    CHECK(!lent(&r));
    dp_pipeline_free(r.pipe);
    return 0;
}

CASE(every_rank_reads_the_whole_text_and_gets_its_buffers_back)
{
    char text[3600];
    struct dp_schedule *s;

    memset(text, 'x', sizeof(text));
    strcpy(text + sizeof(text) - 20, " the end of it");
    for (int i = 1; i < TRIALS; i++) { /* not of one rank, which has no group */
        if (trials[i].spec.recompute)
            continue;
        struct model model = model_of(i, &s);
        model.fails_at = s->stages - 1;
        model.text = text;
        assert_int_equal(comm_on_threads(s->ranks, deadline_ns, fail_and_go_on, &model), 0);
        expect_results(&model, 1);
        dp_schedule_free(s);
    }
}

/* ---- evaluation wins -------------------------------------------------------------------------- */

static int disagree(struct dp_comm *comm, void *arg)
{
    struct model *model = arg;
    const int ranks = dp_comm_size(comm);
    struct rank r;

    CHECK(!rank_open(&r, model, comm));
    for (int who = 0; who <= ranks; who++) { /* rank `who` evaluates; none of the last step */
        struct dp_step args = {.accumulate = who < ranks && dp_comm_rank(comm) != who};
        if (dp_comm_rank(comm) == who)
            args.schedule = model->evaluation;
        CHECK(!step(&r, model, &args));
        CHECK(args.forward_only == (who < ranks));
        CHECK(!lent(&r));
    }
    dp_pipeline_free(r.pipe);
    return 0;
}

CASE(evaluation_wins_where_ranks_differ)
{
    for (int i = 1; i < TRIALS; i++) {
        OWNED(dp_schedule) *evaluation = NULL;
        OWNED(dp_schedule) *s = NULL;
        struct model model = model_of(i, &s);
        struct dp_schedule_spec spec = trials[i].spec;
        spec.forward_only = true;
        spec.recompute = DP_RECOMPUTE_NEVER;
        assert_int_equal(dp_schedule_new(&spec, &evaluation), 0);
        model.evaluation = evaluation;
        assert_int_equal(comm_on_threads(s->ranks, deadline_ns, disagree, &model), 0);
        expect_results(&model, 1);
    }
}

static int disagree_on_microbatches(struct dp_comm *comm, void *arg)
{
    struct model *model = arg;
    struct dp_step args = {.schedule = dp_comm_rank(comm) ? model->evaluation : NULL};
    struct rank r;

    CHECK(!rank_open(&r, model, comm));
    CHECK(step(&r, model, &args) == DP_EMISMATCH);
    CHECK_SAYS("schedule of the step: rank 1 has number 1, rank 0 has 0");
    dp_pipeline_free(r.pipe);
    return 0;
}

CASE(an_evaluation_of_other_micro_batches_is_a_mismatch)
{
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4};
    OWNED(dp_schedule) *evaluation = NULL;
    OWNED(dp_schedule) *s = NULL;

    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    spec.microbatches = 3;
    spec.forward_only = true;
    assert_int_equal(dp_schedule_new(&spec, &evaluation), 0);
    struct model model = {.schedule = s, .evaluation = evaluation, .tensors = 1, .fails_at = -1};
    assert_int_equal(comm_on_threads(2, deadline_ns, disagree_on_microbatches, &model), 0);
}

RUN_QUIET_CASES(NULL, NULL)
