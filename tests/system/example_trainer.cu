/* SPDX-License-Identifier: Apache-2.0
 *
 * example_trainer.cu - the model of example_trainer.c with CUDA kernels of its own: DualPipe over P GPUs,
 * AdamW, checkpoints and resume, also of what the host's program has saved.
 *
 *      nvcc -std=c++20 example_trainer.cu $(pkg-config --cflags --libs dualpipe) -o example
 *      mpirun -n 4 ./example [D [STEPS [FOLDER]]]
 */
#include <dualpipe/trainer.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#ifdef __CUDACC__ /* the tests run the kernels on the CPU, by a LAUNCH of their own */
#define LAUNCH(threads, stream, kernel, ...)                                                       \
    kernel<<<((threads) + 255) / 256, 256, 0, (cudaStream_t)(stream)>>>(__VA_ARGS__)
#define LAUNCHED() (cudaPeekAtLastError() == cudaSuccess ? 0 : DP_EIO)
#endif

enum { LAYERS = 8, WIDTH = 16, ROWS = 64 };

/* One thread an element. */
__device__ int element() { return (int)(blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void forward_kernel(int count, const float *x, const float *w, const float *b, float *y, float *positive)
{
    const int at = element(), r = at / WIDTH, o = at % WIDTH;
    if (at >= count)
        return;
    float sum = b[o];
    for (int i = 0; i < WIDTH; i++)
        sum += x[r * WIDTH + i] * w[i * WIDTH + o];
    positive[at] = sum > 0;
    y[at] = x[at] + (sum > 0 ? sum : 0);
}

__global__ void gate_kernel(int count, const float *dy, float *d)
{
    if (element() < count)
        d[element()] *= dy[element()];
}

__global__ void input_kernel(int count, const float *dy, const float *d, const float *w, float *dx)
{
    const int at = element(), r = at / WIDTH, i = at % WIDTH;
    if (at >= count)
        return;
    dx[at] = dy[at];
    for (int o = 0; o < WIDTH; o++)
        dx[at] += d[r * WIDTH + o] * w[i * WIDTH + o];
}

__global__ void weight_kernel(int rows, const float *x, const float *d, float *dw, float *db)
{
    const int at = element(), i = at / WIDTH - 1, o = at % WIDTH; /* i = -1: the bias */
    if (at >= (WIDTH + 1) * WIDTH)
        return;
    float sum = 0;
    for (int r = 0; r < rows; r++)
        sum += d[r * WIDTH + o] * (i < 0 ? 1 : x[r * WIDTH + i]);
    *(i < 0 ? &db[o] : &dw[i * WIDTH + o]) += sum;
}

__global__ void loss_kernel(int count, const float *y, const float *wanted, double *loss)
{
    double sum = 0;
    for (int i = 0; i < count && element() == 0; i++)
        sum += 0.5 * ((double)y[i] - (double)wanted[i]) * ((double)y[i] - (double)wanted[i]);
    if (element() == 0)
        *loss = sum / (count / WIDTH);
}

__global__ void loss_backward_kernel(int count, const float *y, const float *wanted, double each, float *dy)
{
    if (element() < count)
        dy[element()] = (float)(each * ((double)y[element()] - (double)wanted[element()]));
}

static float *data(const DLTensor *t) { return (float *)((char *)t->data + t->byte_offset); }
static int count_of(const DLTensor *t) { return (int)t->shape[0] * WIDTH; }

/* Callbacks queue kernels in the call's stream, and wait for nothing. */
static int forward(void *, const dp_layer_call *c, const DLTensor *in, DLTensor *out)
{
    LAUNCH(count_of(in), c->stream, forward_kernel, count_of(in), data(in), data(&c->values[0]), data(&c->values[1]),
           data(out), (float *)c->save);
    return LAUNCHED();
}

static int weight(void *, const dp_layer_call *c)
{
    LAUNCH((WIDTH + 1) * WIDTH, c->stream, weight_kernel, (int)c->in->shape[0], data(c->in), (float *)c->save,
           data(&c->grads[0]), data(&c->grads[1]));
    return LAUNCHED();
}

static int backward(void *user, const dp_layer_call *c, const DLTensor *gout, DLTensor *gin, dp_backward_mode mode)
{
    float *d = (float *)c->save;
    LAUNCH(count_of(gout), c->stream, gate_kernel, count_of(gout), data(gout), d);
    if (gin->data) /* the model's input has no gradient */
        LAUNCH(count_of(gout), c->stream, input_kernel, count_of(gout), data(gout), d, data(&c->values[0]), data(gin));
    return mode == DP_BACKWARD_FULL ? weight(user, c) : LAUNCHED();
}

static int loss(void *, const dp_stage_call *c, const DLTensor *out, const DLTensor *labels, double *values, int32_t,
                int32_t *count)
{
    *count = 1;
    LAUNCH(1, c->stream, loss_kernel, count_of(out), data(out), data(labels), values); /* memory of the GPU */
    return LAUNCHED();
}

static int loss_backward(void *, const dp_stage_call *c, const DLTensor *out, const DLTensor *labels, double scale,
                         DLTensor *gout)
{
    LAUNCH(count_of(out), c->stream, loss_backward_kernel, count_of(out), data(out), data(labels),
           scale / (double)out->shape[0], data(gout));
    return LAUNCHED();
}

int main(int argc, char **argv)
{
    static const dp_layer_ops ops = {forward, backward, weight};
    static const dp_loss_ops losses = {loss, loss_backward};
    static const DLDataType f32 = {kDLFloat, 32, 1};
    static const dp_parameter_spec parameters[] = {
        {.name = "w", .dtype = f32, .ndim = 2, .shape = {WIDTH, WIDTH}, .deviation = 0.1},
        {.name = "b", .flags = DP_PARAMETER_NO_DECAY, .dtype = f32, .ndim = 1, .shape = {WIDTH}}};
    const dp_border rows = dp_rows(f32, WIDTH);
    dp_layer layers[LAYERS] = {};
    const dp_layer *list[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = {.ops = &ops, .parameters = parameters, .parameter_count = 2, .out = &rows};
        layers[i].save_row.whole = WIDTH * sizeof(float);
        list[i] = &layers[i];
    }
    const dp_model model = {.layers = list, .layer_count = LAYERS, .input = &rows, .labels = &rows, .loss = &losses};

    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* a queue for each of NCCL's streams (nccl.h) */
    const dp_comm_config by_launcher = {}; /* its variables say who we are */
    dp_comm *comm;
    dp_device *gpu;
    int gpus;
    if (dp_comm_open(&by_launcher, &comm) || dp_device_cuda_count(&gpus) ||
        dp_device_cuda_open(dp_comm_rank(comm) % gpus, &gpu) || dp_device_enter(gpu))
        return 1;
    dp_trainer_config config = {};
    config.schedule.kind = DP_SCHEDULE_DUALPIPE;
    config.replicas = argc > 1 ? atoi(argv[1]) : 1;
    config.microbatches = 8;
    config.rows = ROWS;
    config.fixed_order = true;
    config.clip = 1;
    config.optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    config.rate.peak = 0.01;
    config.seed = 1;
    config.device = gpu;
    config.nccl = gpus > 1; /* two ranks of one GPU send by the host's memory */
    config.checkpoint.folder = argc > 3 ? argv[3] : NULL;
    config.checkpoint.every = 10;
    config.checkpoint.resume = argc > 3;
    const uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;

    static float x[ROWS][WIDTH], y[ROWS][WIDTH]; /* copied up by the trainer */
    int64_t shape[] = {ROWS, WIDTH};
    const DLTensor inputs = {x, {kDLCPU, 0}, 2, f32, shape, NULL, 0}, labels = {y, {kDLCPU, 0}, 2, f32, shape, NULL, 0};
    dp_tree in_leaf = dp_tensor(&inputs), out_leaf = dp_tensor(&labels);
    const dp_tree in = dp_tuple(1, &in_leaf), out = dp_tuple(1, &out_leaf);
    const dp_batch batch = {.inputs = &in, .labels = &out};
    dp_trainer *trainer;
    dp_trainer_result result;
    if (dp_trainer_new(&config, &model, comm, &trainer))
        return 1;
    while (dp_trainer_next_step(trainer) < steps) {
        for (int i = 0; i < ROWS * WIDTH; i++) {
            x[i / WIDTH][i % WIDTH] = sinf((float)(i * (int)(dp_trainer_next_step(trainer) % 7 + 1)));
            y[i / WIDTH][(i + 1) % WIDTH] = x[i / WIDTH][i % WIDTH];
        }
        if (dp_trainer_step(trainer, &batch, &result))
            return 1;
        if (dp_comm_rank(comm) == 0)
            printf("step %d: loss %.17g\n", (int)result.step + 1, result.loss);
    }
    const int err = dp_trainer_finish(trainer);
    dp_trainer_free(trainer);
    dp_device_leave(gpu);
    dp_device_close(gpu);
    dp_comm_close(comm);
    return err ? 1 : 0;
}
