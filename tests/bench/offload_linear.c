/* SPDX-License-Identifier: Apache-2.0
 *
 * offload_linear.c - offload-linear LAYERS WIDTH ROWS SLICES MICROBATCHES STEPS: ms of a step of linear
 * layers that are streamed through the host device, with AdamW shard by shard; the median. For
 * offload.sh.
 */
#include <dualpipe/offload.h>

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_STEPS = 1000, MOST_SLICES = 1024 };

struct model {
    int layers, width, rows, slices, microbatches, steps;
    struct dp_device *dev;
    struct dp_offload *o;
    struct dp_border border;
    struct dp_offload_layer *layer;
    struct dp_parameter *parameters;
    DLTensor *values;
    char (*names)[24];
    int64_t shape[2];
    float *x, *y, *g;
    struct dp_optimizer *optimizers[MOST_SLICES]; /* by shard */
};

static int forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                   DLTensor *out)
{
    const struct model *m = user;
    const int n = (int)call->rows, w = m->width;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, w, w, 1, in[0].data, w,
                call->values[0].data, w, 0, out[0].data, w);
    return 0;
}

static int backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                    DLTensor *gin)
{
    const struct model *m = user;
    const int n = (int)call->rows, w = m->width;

    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, w, w, n, 1, gout[0].data, w,
                call->in[0].data, w, 1, call->grads[0].data, w);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, w, w, 1, gout[0].data, w,
                call->values[0].data, w, 0, gin[0].data, w);
    return 0;
}

static const struct dp_offload_layer_ops linear = {forward, backward};

/* In the first step, which warms up, every shard gets its optimizer. */
static int update(void *user, int32_t shard, const struct dp_parameter *parameters, int32_t count)
{
    struct model *m = user;
    const struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    int err = m->optimizers[shard]
                  ? 0
                  : dp_optimizer_new(&config, parameters, count, &m->optimizers[shard]);

    return err ? err
               : dp_optimizer_step(m->optimizers[shard],
                                   &(struct dp_optimizer_step){.rate = 1e-4, .scale = 1});
}

static void *zeroed(size_t count, size_t size)
{
    void *p = calloc(count, size);

    if (!p)
        exit(1);
    return p;
}

static void make_layers(struct model *m)
{
    const size_t count = (size_t)m->width * (size_t)m->width, layers = (size_t)m->layers;

    m->border = (struct dp_border){
        1, {{.dtype = {kDLFloat, 32, 1}, .ndim = 2, .shape = {m->rows, m->width}}}};
    m->shape[0] = m->shape[1] = m->width;
    m->layer = zeroed(layers, sizeof(*m->layer));
    m->parameters = zeroed(layers, sizeof(*m->parameters));
    m->values = zeroed(layers, sizeof(*m->values));
    m->names = zeroed(layers, sizeof(*m->names));
    for (size_t l = 0; l < layers; l++) {
        float *w = zeroed(count, sizeof(*w));
        for (size_t i = 0; i < count; i++)
            w[i] = (float)(i * 7919 % 1000) / 1000 / (float)m->width;
        snprintf(m->names[l], sizeof(m->names[l]), "%zu", l);
        m->values[l] = (DLTensor){w, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, m->shape, NULL, 0};
        m->parameters[l] = (struct dp_parameter){.name = m->names[l], .value = &m->values[l]};
        m->layer[l] = (struct dp_offload_layer){.ops = &linear,
                                                .user = m,
                                                .parameters = &m->parameters[l],
                                                .parameter_count = 1,
                                                .out = &m->border};
    }
}

static int open_model(struct model *m)
{
    const size_t count = (size_t)m->rows * (size_t)m->width;

    make_layers(m);
    m->x = zeroed(count, sizeof(float));
    m->y = zeroed(count, sizeof(float));
    m->g = zeroed(count, sizeof(float));
    for (size_t i = 0; i < count; i++)
        m->x[i] = m->g[i] = (float)(i % 13) / 13;
    int err = dp_device_host_open(2, &m->dev);
    return err ? err
               : dp_offload_open(&(struct dp_offload_config){.device = m->dev,
                                                             .layers = m->layer,
                                                             .layer_count = m->layers,
                                                             .input = &m->border,
                                                             .slices = m->slices,
                                                             .microbatches = m->microbatches,
                                                             .checkpoint = true,
                                                             .update = update,
                                                             .update_user = m},
                                 &m->o);
}

static int step(struct model *m)
{
    int64_t shape[2] = {m->rows, m->width};
    DLTensor x = {m->x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}, y = x, g = x;
    y.data = m->y;
    g.data = m->g;
    const DLTensor *in[1] = {&x}, *gout[1] = {&g};
    DLTensor *out[1] = {&y};
    int err = dp_offload_forward(
        m->o, &(struct dp_offload_step){.inputs = in, .outputs = out, .training = true});

    if (!err)
        err = dp_offload_backward(m->o, &(struct dp_offload_gradients){.gouts = gout});
    return err ? err : dp_offload_finish(m->o);
}

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static struct model m;
    int *const numbers[] = {&m.layers, &m.width, &m.rows, &m.slices, &m.microbatches, &m.steps};
    double ms[MOST_STEPS];

    for (int i = 0; i < 6 && argc == 7; i++)
        *numbers[i] = atoi(argv[i + 1]);
    if (m.steps < 1 || m.steps > MOST_STEPS || m.slices > MOST_SLICES) {
        fprintf(stderr, "offload-linear LAYERS WIDTH ROWS SLICES MICROBATCHES STEPS\n");
        return 2;
    }
    openblas_set_num_threads(2);
    int err = open_model(&m);
    if (!err)
        err = step(&m);
    for (int i = 0; i < m.steps && !err; i++) {
        double began = now_ms();
        err = step(&m);
        ms[i] = now_ms() - began;
    }
    if (err)
        return 1;
    qsort(ms, (size_t)m.steps, sizeof(*ms), by_size);
    printf("%.3f\n", ms[m.steps / 2]);
    return 0;
}
