/* SPDX-License-Identifier: Apache-2.0
 *
 * test_remote.c - a pipeline that rank 0 drives: batches in, outputs out, their gradients back, and
 * an update of all stages, on every communicator. Stage s: y = w x, w = s + 1 at first.
 */
#include "unit/pipeline/pipeline_case.h"


#include <dualpipe/asyncpipe.h>

#define DEADLINE_NS INT64_C(20000000000)

enum { RANKS = 3, MOST = 3, ROWS = 10, STEPS = 2 };

struct part {
    float w, gw;
    int64_t one;
    DLTensor value, grad;
    struct dp_parameter parameter;
    struct dp_remote remote;
    struct dp_worker_function functions[DP_REMOTE_FUNCTIONS + 1];
    int fail; /* the forward of this micro-batch, from 1 on */
};

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    const struct part *p = user;

    for (int64_t i = 0; i < in->shape[0]; i++)
        ((float *)out->data)[i] = p->w * ((const float *)in->data)[i];
    return p->fail == call->mb + 1 ? dp_callback_error(DP_EIO, "the disk is full") : 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    const struct part *p = user;
    const float *g = gout->data, *x = call->in->data;

    for (int64_t i = 0; i < gout->shape[0]; i++) {
        *(float *)call->grads[0]->data += g[i] * x[i];
        if (gin->data)
            ((float *)gin->data)[i] = p->w * g[i];
    }
    return 0;
}

/* What a worker does beside: its optimizer. */
static int update(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    struct part *p = user;

    int err = dp_reply_put(reply, &p->gw, sizeof(p->gw));
    p->w += p->gw > 0 ? 1 : -1;
    p->gw = 0;
    return err;
}

static const struct dp_stage_ops ops = {.forward = forward, .backward = backward};
static const DLDataType float32 = {kDLFloat, 32, 1};

static int open_part(struct dp_comm *comm, const struct dp_schedule *s, struct part *p,
                     struct dp_controller **out)
{
    struct dp_border borders[RANKS + 1];
    const struct dp_stage stage = {.ops = &ops, .user = p, .no_split = true, .parameter_count = 1,
                                   .parameters = &p->parameter};

    p->w = (float)(dp_comm_rank(comm) + 1);
    p->one = 1;
    p->value = (DLTensor){&p->w, {kDLCPU, 0}, 1, float32, &p->one, NULL, 0};
    p->grad = p->value;
    p->grad.data = &p->gw;
    p->parameter = (struct dp_parameter){.name = "w", .value = &p->value, .grad = &p->grad};
    for (int i = 0; i <= RANKS; i++)
        borders[i] = (struct dp_border){
            .count = 1, .tensors = {{.dtype = float32, .ndim = 1, .shape = {MOST}, .extent = {1}}}};
    CHECK(!dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .comm = comm,
                                                        .stages = &stage, .borders = borders,
                                                        .max_extents = {MOST},
                                                        .own_gradients = true},
                           &p->remote.pipe));
    dp_remote_functions(&p->remote, p->functions);
    p->functions[DP_REMOTE_FUNCTIONS] = (struct dp_worker_function){"update", update, p};
    CHECK(!dp_controller_open(
        &(struct dp_controller_config){.comm = comm, .functions = p->functions,
                                       .function_count = DP_REMOTE_FUNCTIONS + 1},
        out));
    (void)dp_comm_barrier(comm); /* all have opened; one may have failed by now */
    return 0;
}

static void close_part(struct part *p, struct dp_controller *c)
{
    dp_controller_close(c);
    dp_pipeline_free(p->remote.pipe);
    free(p);
}

/* Rank 0's batch: x = 1, 2, ..., and gradients of the outputs that are one. */
struct batch {
    float x[ROWS], ones[ROWS];
    int64_t shape;
    DLTensor tensors[2];
    struct dp_tree leaves[2], args, grads;
};

static void batch_init(struct batch *b)
{
    b->shape = ROWS;
    for (int i = 0; i < ROWS; i++) {
        b->x[i] = (float)(i + 1);
        b->ones[i] = 1;
    }
    for (int i = 0; i < 2; i++) {
        b->tensors[i] =
            (DLTensor){i ? b->ones : b->x, {kDLCPU, 0}, 1, float32, &b->shape, NULL, 0};
        b->leaves[i] = dp_tensor(&b->tensors[i]);
    }
    b->args = dp_tuple(1, &b->leaves[0]);
    b->grads = dp_tuple(1, &b->leaves[1]);
}

static int drive(struct dp_comm *comm, struct part *p, struct dp_controller *c)
{
    struct dp_answer answers[RANKS];
    float w[RANKS] = {1, 2, 3};
    struct batch b;

    batch_init(&b);
    for (int step = 0; step < STEPS; step++) {
        const float product = w[0] * w[1] * w[2];
        struct dp_tree *outputs;
        p->remote.batch.args = &b.args;
        p->remote.batch.rows = ROWS;
        CHECK(!dp_remote_forward(c, &p->remote, 0, &outputs));
        CHECK(outputs->kind == DP_TREE_TENSOR && outputs->tensor->shape[0] == ROWS);
        for (int i = 0; i < ROWS; i++)
            CHECK(((const float *)outputs->tensor->data)[i] == product * b.x[i]);
        dp_tree_free(outputs);
        CHECK(!dp_remote_backward(c, &p->remote, &b.grads, 0));
        CHECK(!dp_controller_foreach(c, "update", NULL, 0, true, 0, answers));
        for (int r = 0; r < RANKS; r++) {
            float gw;
            memcpy(&gw, answers[r].data, sizeof(gw));
            CHECK(gw == product / w[r] * ROWS * (ROWS + 1) / 2);
            w[r]++;
        }
    }
    /* Out of order, and what is no list. */
    CHECK(dp_remote_backward(c, &p->remote, &b.leaves[1], 0) == DP_EINVAL);
    return 0;
}

static int run(struct dp_comm *comm, void *arg)
{
    struct part *p = calloc(1, sizeof(*p));
    struct dp_controller *c;

    CHECK(p && !open_part(comm, arg, p, &c));
    if (dp_comm_rank(comm))
        CHECK(!dp_controller_serve(c));
    else
        CHECK(!drive(comm, p, c));
    close_part(p, c);
    return 0;
}

static void run_everywhere(rank_fn fn)
{
    const struct dp_schedule_spec spec = {
        .kind = DP_SCHEDULE_GPIPE, .ranks = RANKS, .microbatches = 4};
    OWNED(dp_schedule) *s = case_schedule(spec);
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed;
        if (kind->run(kind, RANKS, DEADLINE_NS, fn, s, &killed))
            fail_msg("%s", kind->name);
    }
}

RANKS_CASE(a_stage_that_fails_is_known_and_the_pipeline_goes_on_after_a_reset, run_everywhere(part))
{
    struct part *p = calloc(1, sizeof(*p));
    struct dp_controller *c;
    struct dp_tree *outputs = NULL;
    struct batch b;

    CHECK(p && !open_part(comm, arg, p, &c));
    p->fail = dp_comm_rank(comm) == 1 ? 3 : 0;
    batch_init(&b);
    p->remote.batch.args = dp_comm_rank(comm) ? NULL : &b.args;
    p->remote.batch.rows = ROWS;
    if (dp_comm_rank(comm)) {
        CHECK(dp_controller_serve(c) == DP_EABORTED);
    } else {
        CHECK(dp_remote_forward(c, &p->remote, 0, &outputs) == DP_EABORTED && !outputs);
    }
    p->fail = 0;
    CHECK(!dp_comm_reset(comm));
    dp_pipeline_drop_batch(p->remote.pipe, &p->remote.batch);
    if (dp_comm_rank(comm))
        CHECK(!dp_controller_serve(c));
    else
        CHECK(!drive(comm, p, c));
    close_part(p, c);
    return 0;
}

CASE(rank_0_trains_a_pipeline_of_other_processes)
{
    run_everywhere(run);
}

RUN_QUIET_CASES(NULL, NULL)
