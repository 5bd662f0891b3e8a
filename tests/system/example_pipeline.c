/* SPDX-License-Identifier: Apache-2.0
 *
 * example_pipeline.c - learn y = 16 x with DualPipeV. Every stage multiplies by a number of its own;
 * P processes hold two stages each. Micro-batches are single numbers, to keep the example short.
 */
#include <dualpipe/pipeline.h>

#include <stdio.h>

enum { MB = 8, STEPS = 40 }; /* 8 micro-batches are enough for up to 4 ranks */

/* What a stage holds: its weight, and the gradient that is added to during a step. */
struct factor {
    float weight, gradient;
};

static float *number(const DLTensor *t)
{
    return (float *)((char *)t->data + t->byte_offset);
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    (void)call;
    *number(out) = ((struct factor *)user)->weight * *number(in);
    return 0;
}

/* The weight's part of a backward, which the schedule may put off to fill a gap. By then only the
 * input and the save area are left, so backward has put the output's gradient there. */
static int weight(void *user, const struct dp_stage_call *call)
{
    (void)user;
    *number(call->grads[0]) += *(float *)call->save * *number(call->in);
    return 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    *(float *)call->save = *number(gout);
    if (gin->data) /* the model's input needs no gradient */
        *number(gin) = ((struct factor *)user)->weight * *number(gout);
    return mode == DP_BACKWARD_FULL ? weight(user, call) : 0;
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *label, double *losses, int32_t max, int32_t *count)
{
    (void)user, (void)call, (void)max;
    float miss = *number(out) - *number(label);
    losses[0] = 0.5 * miss * miss;
    *count = 1;
    return 0;
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *label, double scale, DLTensor *gout)
{
    (void)user, (void)call;
    *number(gout) = (float)scale * (*number(out) - *number(label));
    return 0;
}

static DLTensor numbers(float *data, int64_t *count)
{
    return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1},
                      .shape = count};
}

int main(void)
{
    static const struct dp_stage_ops ops = {.forward = forward, .backward = backward,
                                            .weight = weight};
    static const struct dp_loss_ops loss_ops = {.loss = loss, .loss_backward = loss_backward};
    static const struct dp_border one = {1, {{{kDLFloat, 32, 1}, .ndim = 1, .shape = {1}}}};
    struct dp_comm *comm;
    struct dp_schedule *schedule;
    struct dp_pipeline *pipe;

    /* Who am I, and how many are we? Zeroed memory: torchrun's variables say, or mpirun's. What goes
     * wrong here or below has been said on standard error. */
    if (dp_comm_open(&(struct dp_comm_config){0}, &comm))
        return 1;
    if (dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV,
                                                   .ranks = dp_comm_size(comm), .microbatches = MB},
                        &schedule))
        return 1;

    /* This rank's two stages; and the same border before, between and after all of them. */
    int64_t single = 1, all = MB;
    struct factor factors[2] = {{.weight = 1.5f}, {.weight = 1.5f}};
    DLTensor weights[2], grads[2];
    struct dp_parameter parameters[2];
    struct dp_stage stages[2];
    struct dp_border borders[MB + 1];
    for (int i = 0; i < 2; i++) {
        weights[i] = numbers(&factors[i].weight, &single);
        grads[i] = numbers(&factors[i].gradient, &single);
        parameters[i] = (struct dp_parameter){.name = "factor", .value = &weights[i],
                                              .grad = &grads[i]};
        stages[i] = (struct dp_stage){.ops = &ops, .user = &factors[i], .parameter_count = 1,
                                      .parameters = &parameters[i], .save_bytes = sizeof(float)};
    }
    for (int i = 0; i <= schedule->stages; i++)
        borders[i] = one;
    if (dp_pipeline_new(&(struct dp_pipeline_config){.schedule = schedule, .comm = comm,
                                                     .stages = stages, .borders = borders,
                                                     .labels = &one, .loss = &loss_ops}, &pipe))
        return 1;

    /* The batch and its labels enter at rank 0, where DualPipeV's losses come out too. */
    float x[MB], y[MB];
    double losses[MB];
    for (int i = 0; i < MB; i++) {
        x[i] = (float)(i + 1) / MB;
        y[i] = 16 * x[i];
    }
    DLTensor batch = numbers(x, &all), wanted = numbers(y, &all);
    struct dp_tree inputs = dp_tuple(1, (struct dp_tree[]){dp_tensor(&batch)});
    struct dp_tree labels = dp_tuple(1, (struct dp_tree[]){dp_tensor(&wanted)});
    struct dp_microbatches *in, *out;
    if (dp_split(&inputs, NULL, &(struct dp_split_options){.count = MB}, &in) ||
        dp_split(&labels, NULL, &(struct dp_split_options){.count = MB}, &out))
        return 1;
    struct dp_step step = {0};
    if (dp_comm_rank(comm) == 0)
        step = (struct dp_step){.inputs = in, .labels = out, .losses = losses};

    for (int i = 0; i < STEPS; i++) {
        if (dp_pipeline_step(pipe, &step))
            return 1;
        for (int j = 0; j < 2; j++) {
            factors[j].weight -= 0.001f * factors[j].gradient;
            factors[j].gradient = 0;
        }
        if (dp_comm_rank(comm) == 0 && (i == 0 || i == STEPS - 1))
            printf("step %d: loss %.4f\n", i + 1, losses[MB - 1]);
    }
    printf("rank %d learned %.3f and %.3f\n", dp_comm_rank(comm), factors[0].weight, factors[1].weight);

    dp_microbatches_free(in);
    dp_microbatches_free(out);
    dp_pipeline_free(pipe);
    dp_schedule_free(schedule);
    dp_comm_close(comm);
    return 0;
}
