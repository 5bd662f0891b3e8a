/* SPDX-License-Identifier: Apache-2.0
 *
 * example_pipeline.c - learn y = 16 x with DualPipeV. Each of the 2P stages of the model multiplies
 * by a number of its own; each of the P processes holds two of them.
 */
#include <dualpipe/pipeline.h>

#include <stdio.h>

enum { WIDTH = 4, MAX_MB = 64, STEPS = 40 };

/* A stage: its parameter, and the gradient that the library adds to. */
struct factor {
    float weight, gradient;
};

static float *values(const DLTensor *t)
{
    return (float *)((char *)t->data + t->byte_offset);
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    (void)call;
    for (int i = 0; i < WIDTH; i++)
        values(out)[i] = ((struct factor *)user)->weight * values(in)[i];
    return 0;
}

/* The weight part, which DualPipe may put off to fill a gap: needs the input, which the library
 * keeps, and the output's gradient, which backward has put into the save area. */
static int weight(void *user, const struct dp_stage_call *call)
{
    (void)user;
    for (int i = 0; i < WIDTH; i++)
        values(call->grads[0])[0] += ((float *)call->save)[i] * values(call->in)[i];
    return 0;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    for (int i = 0; i < WIDTH; i++) {
        ((float *)call->save)[i] = values(gout)[i];
        if (gin->data) /* the first stage's input wants no gradient */
            values(gin)[i] = ((struct factor *)user)->weight * values(gout)[i];
    }
    return mode == DP_BACKWARD_FULL ? weight(user, call) : 0;
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *label, double *losses, int32_t max, int32_t *count)
{
    (void)user, (void)call, (void)max;
    *count = 1;
    losses[0] = 0;
    for (int i = 0; i < WIDTH; i++) {
        float d = values(out)[i] - values(label)[i];
        losses[0] += 0.5 * d * d;
    }
    return 0;
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *label, double scale, DLTensor *gout)
{
    (void)user, (void)call;
    for (int i = 0; i < WIDTH; i++)
        values(gout)[i] = (float)scale * (values(out)[i] - values(label)[i]);
    return 0;
}

static DLTensor tensor(float *data, int32_t ndim, int64_t *shape)
{
    return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim,
                      .dtype = {kDLFloat, 32, 1}, .shape = shape};
}

int main(void)
{
    static const struct dp_stage_ops ops = {.forward = forward, .backward = backward,
                                            .weight = weight};
    static const struct dp_loss_ops loss_ops = {loss, loss_backward};
    static float x[MAX_MB][WIDTH], y[MAX_MB][WIDTH];
    struct dp_tensor_spec row = {{kDLFloat, 32, 1}, .ndim = 2, .shape = {1, WIDTH}};
    struct dp_border borders[MAX_MB + 1];
    struct dp_comm *comm = NULL;
    struct dp_schedule *schedule = NULL;
    struct dp_pipeline *pipe = NULL;
    double losses[MAX_MB];

    /* Who am I, and how many are we: torchrun's variables say, or those of mpirun or Slurm. */
    if (dp_comm_open(&(struct dp_comm_config){0}, &comm))
        return 1;
    int microbatches = 2 * comm->size;
    if (dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV,
                                                   .ranks = comm->size,
                                                   .microbatches = microbatches},
                        &schedule))
        return 1;

    /* My two stages, the same border between all, and the whole batch, which only rank 0 gives. */
    struct factor factors[2] = {{1.5f, 0}, {1.5f, 0}};
    DLTensor grads[2], *grad[2];
    struct dp_stage stages[2];
    for (int i = 0; i < 2; i++) {
        grads[i] = tensor(&factors[i].gradient, 1, (int64_t[]){1});
        grad[i] = &grads[i];
        stages[i] = (struct dp_stage){.ops = &ops, .user = &factors[i], .grad_count = 1,
                                      .grads = &grad[i], .save_bytes = WIDTH * sizeof(float)};
    }
    for (int i = 0; i <= schedule->stages; i++)
        borders[i] = (struct dp_border){1, {row}};
    for (int i = 0; i < microbatches * WIDTH; i++) {
        x[0][i] = (float)(i % 7 - 3) / 8;
        y[0][i] = 16 * x[0][i];
    }
    DLTensor batch = tensor(x[0], 2, (int64_t[]){microbatches, WIDTH});
    DLTensor label = tensor(y[0], 2, (int64_t[]){microbatches, WIDTH});

    if (dp_pipeline_new(&(struct dp_pipeline_config){.schedule = schedule, .comm = comm,
                                                     .stages = stages, .borders = borders,
                                                     .label = &row, .loss = &loss_ops},
                        &pipe))
        return 1;
    for (int step = 0; step < STEPS; step++) {
        struct dp_step s = {0};
        if (comm->rank == 0)
            s = (struct dp_step){.inputs = (const DLTensor *[]){&batch}, .label = &label,
                                 .losses = losses};
        if (dp_pipeline_step(pipe, &s))
            return 1;
        for (int i = 0; i < 2; i++) {
            factors[i].weight -= 0.002f * factors[i].gradient;
            factors[i].gradient = 0;
        }
        if (comm->rank == 0 && step % 10 == 9)
            printf("step %d loss %.6f\n", step + 1, losses[0]);
    }
    printf("rank %d learned %.3f and %.3f\n", comm->rank, factors[0].weight, factors[1].weight);

    dp_pipeline_free(pipe);
    dp_schedule_free(schedule);
    dp_comm_close(comm);
    return 0;
}
