/* SPDX-License-Identifier: Apache-2.0
 *
 * example_trainer.c - train a model of its own with DualPipe over P stages x D replicas, with AdamW,
 * checkpoints and resume: eight layers y = x + relu(x W + b), which learn a rotation of their input.
 *
 *      mpirun -n 4 ./example [D [STEPS [FOLDER]]]      or torchrun --no-python --nproc-per-node 4, or srun
 */
#include <dualpipe/trainer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 8, WIDTH = 16, ROWS = 64 };

/* y = x + relu(x W + b). What the backward needs beside x is which sums were positive: the save area. */
static int forward(void *user, const struct dp_layer_call *c, const DLTensor *in, DLTensor *out)
{
    const float *x = in->data, *w = c->values[0].data, *b = c->values[1].data;
    float *y = out->data, *positive = c->save;

    (void)user;
    for (int64_t r = 0; r < in->shape[0]; r++)
        for (int o = 0; o < WIDTH; o++) {
            float sum = b[o];
            for (int i = 0; i < WIDTH; i++)
                sum += x[r * WIDTH + i] * w[i * WIDTH + o];
            positive[r * WIDTH + o] = sum > 0;
            y[r * WIDTH + o] = x[r * WIDTH + o] + (sum > 0 ? sum : 0);
        }
    return 0;
}

/* The weight's part of a backward, which may come later; the save area has the sums' gradient by then. */
static int weight(void *user, const struct dp_layer_call *c)
{
    const float *x = c->in->data, *d = c->save;
    float *dw = c->grads[0].data, *db = c->grads[1].data;

    (void)user;
    for (int o = 0; o < WIDTH; o++) /* in this order one value is added to each element */
        for (int i = -1; i < WIDTH; i++) {
            float sum = 0;
            for (int64_t r = 0; r < c->in->shape[0]; r++)
                sum += d[r * WIDTH + o] * (i < 0 ? 1 : x[r * WIDTH + i]);
            *(i < 0 ? &db[o] : &dw[i * WIDTH + o]) += sum;
        }
    return 0;
}

static int backward(void *user, const struct dp_layer_call *c, const DLTensor *gout, DLTensor *gin,
                    enum dp_backward_mode mode)
{
    const float *dy = gout->data, *w = c->values[0].data;
    float *dx = gin->data, *d = c->save;

    for (int64_t r = 0; r < gout->shape[0]; r++) {
        for (int o = 0; o < WIDTH; o++)
            d[r * WIDTH + o] *= dy[r * WIDTH + o];
        for (int i = 0; dx && i < WIDTH; i++) { /* the model's input has no gradient */
            dx[r * WIDTH + i] = dy[r * WIDTH + i];
            for (int o = 0; o < WIDTH; o++)
                dx[r * WIDTH + i] += d[r * WIDTH + o] * w[i * WIDTH + o];
        }
    }
    return mode == DP_BACKWARD_FULL ? weight(user, c) : 0;
}

int main(int argc, char **argv)
{
    static const struct dp_layer_ops ops = {.forward = forward, .backward = backward, .weight = weight};
    static const DLDataType f32 = {kDLFloat, 32, 1};
    const struct dp_parameter_spec parameters[] = {
        {.name = "w", .dtype = f32, .ndim = 2, .shape = {WIDTH, WIDTH}, .deviation = 0.1},
        {.name = "b", .dtype = f32, .ndim = 1, .shape = {WIDTH}, .flags = DP_PARAMETER_NO_DECAY}};
    const struct dp_border rows = dp_rows(f32, WIDTH);
    struct dp_layer layers[LAYERS];
    const struct dp_layer *list[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = (struct dp_layer){.ops = &ops, .parameters = parameters, .parameter_count = 2,
                                      .out = &rows, .save_row.whole = WIDTH * sizeof(float)};
        list[i] = &layers[i];
    }
    const struct dp_model model = {.layers = list, .layer_count = LAYERS, .input = &rows, .labels = &rows,
                                   .loss = dp_loss_squares()};
    const uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
    const struct dp_trainer_config config = {
        .schedule.kind = DP_SCHEDULE_DUALPIPE, .replicas = argc > 1 ? atoi(argv[1]) : 1,
        .microbatches = 8, .rows = ROWS, .fixed_order = true, .clip = 1,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW), .rate = {.peak = 0.01}, .seed = 1,
        .checkpoint = {.folder = argc > 3 ? argv[3] : NULL, .every = 10, .keep = 2, .resume = argc > 3}};

    static float x[ROWS][WIDTH], y[ROWS][WIDTH];
    int64_t shape[] = {ROWS, WIDTH};
    const DLTensor inputs = {x, {kDLCPU, 0}, 2, f32, shape, NULL, 0},
                   labels = {y, {kDLCPU, 0}, 2, f32, shape, NULL, 0};
    const struct dp_tree in = dp_tuple(1, (struct dp_tree[]){dp_tensor(&inputs)}),
                         out = dp_tuple(1, (struct dp_tree[]){dp_tensor(&labels)});
    struct dp_comm *comm;
    struct dp_trainer *trainer;
    struct dp_trainer_result result;
    if (dp_comm_open(&(struct dp_comm_config){0}, &comm) || /* a launcher's variables say who we are */
        dp_trainer_new(&config, &model, comm, &trainer))
        return 1;
    while (dp_trainer_next_step(trainer) < steps) {
        for (int i = 0; i < ROWS * WIDTH; i++) { /* the same batch on all ranks, another one each step */
            x[i / WIDTH][i % WIDTH] = sinf((float)(i * (int)(dp_trainer_next_step(trainer) % 7 + 1)));
            y[i / WIDTH][(i + 1) % WIDTH] = x[i / WIDTH][i % WIDTH];
        }
        if (dp_trainer_step(trainer, &(struct dp_batch){.inputs = &in, .labels = &out}, &result))
            return 1;
        if (dp_comm_rank(comm) == 0)
            printf("step %d: loss %.17g\n", (int)result.step + 1, result.loss);
    }
    const int err = dp_trainer_finish(trainer);
    dp_trainer_free(trainer);
    dp_comm_close(comm);
    return err ? 1 : 0;
}
