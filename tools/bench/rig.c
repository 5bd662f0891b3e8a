/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/rig.h"

#include "bench/bench.h"
#include "command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A sleeper wakes up to 90 us late; from here on the end is waited for with eyes open. */
#define SPIN_NS INT64_C(100000)

/* ---- timed waits ---------------------------------------------------------------------------- */

void rig_wait_until(int64_t deadline_ns)
{
    int64_t wake = deadline_ns - SPIN_NS;

    if (wake > now_ns()) {
        struct timespec until = {wake / 1000000000, wake % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
    }
    while (now_ns() < deadline_ns)
        ;
}

static void timed_wait(struct rig *rig, enum rig_op op)
{
    if (rig->waits_ns[op] <= 0)
        return;
    int64_t began = now_ns();
    const int64_t until = began + (int64_t)rig->waits_ns[op];
    if (!rig->spins)
        rig_wait_until(until);
    while (now_ns() < until)
        ;
    rig->clocks[op].total_ns += (double)(now_ns() - began);
    rig->clocks[op].count++;
}

/* ---- the model ------------------------------------------------------------------------------ */

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    (void)call;
    (void)in;
    (void)out;
    timed_wait(user, RIG_F);
    return 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    (void)call;
    (void)gout;
    (void)gin;
    timed_wait(user, mode == DP_BACKWARD_FULL ? RIG_B : RIG_I);
    return 0;
}

static int weight(void *user, const struct dp_stage_call *call)
{
    (void)call;
    timed_wait(user, RIG_W);
    return 0;
}

static int forward_backward(const struct dp_pair *pair)
{
    int err = dp_pair_start_from_loss(pair);

    timed_wait(pair->forward.user, RIG_FB);
    return err ? err : dp_pair_take_loss(pair);
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *label, double *values, int32_t max, int32_t *count)
{
    (void)user;
    (void)call;
    (void)out;
    (void)label;
    (void)max;
    values[0] = 0;
    *count = 1;
    return 0;
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *label, double scale, DLTensor *gout)
{
    (void)user;
    (void)call;
    (void)out;
    (void)label;
    (void)scale;
    (void)gout;
    return 0;
}

static const struct dp_stage_ops stage_ops = {
    .forward = forward, .backward = backward, .weight = weight, .fwd_bwd = forward_backward};
static const struct dp_loss_ops loss_ops = {loss, loss_backward};

/* ---- setting up ----------------------------------------------------------------------------- */

void rig_set_waits(struct rig *rig, const struct dp_cost *c)
{
    memset(rig->waits_ns, 0, sizeof(rig->waits_ns));
    memset(rig->clocks, 0, sizeof(rig->clocks));
    if (!c)
        return;
    double b = c->b_ns > 0 ? c->b_ns : c->i_ns + c->w_ns;
    rig->waits_ns[RIG_F] = c->f_ns;
    rig->waits_ns[RIG_I] = c->i_ns;
    rig->waits_ns[RIG_W] = c->w_ns;
    rig->waits_ns[RIG_B] = b;
    rig->waits_ns[RIG_FB] = c->fb_ns > 0 ? c->fb_ns : c->f_ns + b;
}

static int pipeline_rank(const struct rig_config *c)
{
    int rank = 0;

    while (c->comm && c->schedule->group_rank[rank] != dp_comm_rank(c->comm))
        rank++;
    return rank;
}

static void describe_borders(struct rig *rig, int stages, int64_t floats)
{
    for (int i = 0; i <= stages; i++)
        rig->borders[i] = (struct dp_border){
            .count = 1,
            .tensors = {{.dtype = {kDLFloat, 32, 1}, .ndim = 2, .shape = {1, floats},
                         .no_grad = i == 0}},
        };
}

/* The batch that a first stage reads, and the borders. */
static int alloc_data(struct rig *rig, const struct rig_config *c)
{
    const struct dp_schedule *s = c->schedule;
    int64_t floats = c->message_bytes < sizeof(float) ? 1 : (int64_t)(c->message_bytes /
                                                                      sizeof(float));

    for (int slot = 0; slot < dp_schedule_slot_count(s, rig->rank); slot++)
        rig->has_first |= dp_slot_is_first(dp_schedule_slot(s, rig->rank, slot));
    rig->borders = calloc((size_t)s->stages + 1, sizeof(*rig->borders));
    rig->batch = calloc((size_t)(s->mb_per_stream * floats), sizeof(float));
    if (!rig->borders || !rig->batch)
        return command_broke("no memory for %d micro-batches of %zu bytes", s->mb_per_stream,
                             c->message_bytes), DP_ENOMEM;
    describe_borders(rig, s->stages, floats);
    int64_t shape[] = {s->mb_per_stream, floats};
    const DLTensor batch = {.data = rig->batch, .device = {kDLCPU, 0}, .ndim = 2,
                            .dtype = {kDLFloat, 32, 1}, .shape = shape};
    struct dp_tree args = dp_tuple(1, (struct dp_tree[]){dp_tensor(&batch)});
    return dp_split(&args, NULL, &(struct dp_split_options){.count = s->mb_per_stream},
                    &rig->inputs);
}

int rig_open(const struct rig_config *c, struct rig *rig)
{
    struct dp_stage stages[DP_MAX_SLOTS] = {0};

    *rig = (struct rig){.rank = pipeline_rank(c), .spins = c->spins};
    rig_set_waits(rig, c->cost);
    int err = alloc_data(rig, c);
    for (int slot = 0; slot < dp_schedule_slot_count(c->schedule, rig->rank); slot++)
        stages[slot] = (struct dp_stage){.ops = &stage_ops, .user = rig};
    if (!err)
        err = dp_pipeline_new(
            &(struct dp_pipeline_config){.schedule = c->schedule, .comm = c->comm,
                                         .stages = stages, .borders = rig->borders,
                                         .loss = &loss_ops, .execution = c->execution,
                                         .recorder = c->recorder},
            &rig->pipeline);
    if (err)
        rig_close(rig);
    return err;
}

int rig_step(struct rig *rig)
{
    struct dp_step step = {.inputs = rig->has_first ? rig->inputs : NULL};

    return dp_pipeline_step(rig->pipeline, &step);
}

void rig_close(struct rig *rig)
{
    dp_pipeline_free(rig->pipeline);
    free(rig->borders);
    dp_microbatches_free(rig->inputs);
    free(rig->batch);
    *rig = (struct rig){0};
}
