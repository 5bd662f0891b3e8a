/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int model_width(const struct model *m, int border)
{
    return m->width + border % 2;
}

size_t model_grad_count(const struct model *m, int stage)
{
    return (size_t)(model_width(m, stage) + 1) * (size_t)model_width(m, stage + 1);
}

size_t model_output_count(const struct model *m)
{
    return (size_t)m->microbatches * (size_t)m->rows * (size_t)model_width(m, m->stages);
}

static float number(uint64_t what, uint64_t i)
{
    float f;
    dp_random_uniform(dp_random_key(what, 0, 0, 0), i, &f, 1);
    return f - 0.5f;
}

/* ---- borders -------------------------------------------------------------------------------- */

static const DLDataType float32 = {kDLFloat, 32, 1}, float64 = {kDLFloat, 64, 1},
                        int32 = {kDLInt, 32, 1};

static struct dp_tensor_spec spec_of(const struct model *m, DLDataType dtype, int width)
{
    return (struct dp_tensor_spec){.dtype = dtype, .ndim = 2, .shape = {m->rows, width}};
}

void model_borders(const struct model *m, struct dp_border *borders)
{
    for (int s = 0; s <= m->stages; s++) {
        borders[s] = (struct dp_border){.count = MODEL_TENSORS};
        borders[s].tensors[0] = spec_of(m, float32, model_width(m, s));
        borders[s].tensors[1] = spec_of(m, int32, 1);
        borders[s].tensors[1].no_grad = true;
        borders[s].tensors[2] = spec_of(m, float64, 1);
    }
}

void model_labels(const struct model *m, struct dp_border *labels)
{
    *labels = (struct dp_border){1, {spec_of(m, float32, model_width(m, m->stages))}};
}

void model_skip_specs(const struct model *m, struct dp_tensor_spec specs[MODEL_SKIPS])
{
    for (int k = 0; k < m->skip_count; k++) {
        specs[k] = spec_of(m, float32, MODEL_SKIP_WIDTH);
        specs[k].no_grad = m->skips[k].name[0] == 'n';
    }
}

/* ---- the stage ------------------------------------------------------------------------------ */

/* The save area: tanh(x W + b), then its gradient. */
struct saved {
    float *t, *gh;
};

static size_t hidden_count(const struct model_stage *s)
{
    return (size_t)s->model->rows * (size_t)model_width(s->model, s->stage + 1);
}

static struct saved saved_of(const struct model_stage *s, const struct dp_stage_call *call)
{
    float *save = call->save;
    return (struct saved){save, save + hidden_count(s)};
}

static float mask(const struct model_stage *s, const struct dp_stage_call *call, size_t i)
{
    float u;

    if (!call->training || s->model->dropout == 0)
        return 1;
    dp_random_uniform(call->random, i, &u, 1);
    return u < s->model->dropout ? 0 : 1 / (1 - s->model->dropout);
}

/* ---- skips of the stage ---------------------------------------------------------------------- */

static bool is_absent(const struct model *m, const struct dp_stage_call *call)
{
    return m->absent_skips && call->mb_global % 3 == 1;
}

/* y += v / 4 where a skip ends. */
static void pop_skips(const struct model_stage *s, const struct dp_stage_call *call, float *y, int k)
{
    const struct model *m = s->model;

    for (int i = 0; i < m->skip_count; i++) {
        if (m->skips[i].to != s->stage)
            continue;
        const DLTensor *v = s->skips ? &s->skips->values[i]
                                     : dp_skip_pop(call, m->skips[i].space, m->skips[i].name);
        for (int at = 0; v && v->data && at < m->rows * k; at++)
            y[at] += ((const float *)v->data)[at / k * MODEL_SKIP_WIDTH + at % k % MODEL_SKIP_WIDTH] / 4;
    }
}

/* v = y / 2 where one begins. */
static void stash_skips(const struct model_stage *s, const struct dp_stage_call *call,
                        const float *y, int k)
{
    const struct model *m = s->model;

    for (int i = 0; i < m->skip_count; i++) {
        if (m->skips[i].from != s->stage)
            continue;
        DLTensor *v = s->skips ? &s->skips->values[i]
                               : dp_skip_stash(call, m->skips[i].space, m->skips[i].name);
        if (v && is_absent(m, call))
            v->data = NULL;
        for (int at = 0; v && v->data && at < m->rows * MODEL_SKIP_WIDTH; at++)
            ((float *)v->data)[at] =
                y[at / MODEL_SKIP_WIDTH * k + at % MODEL_SKIP_WIDTH] / 2;
    }
}

/* g of y: what comes back of the skips that begin here; then the gradients of those that end here. */
static void skip_gradients(const struct model_stage *s, const struct dp_stage_call *call, float *g,
                           int k)
{
    const struct model *m = s->model;

    for (int i = 0; i < m->skip_count; i++) {
        if (m->skips[i].from != s->stage)
            continue;
        const DLTensor *gv =
            s->skips ? &s->skips->gradients[i]
                     : dp_skip_stash_gradient(call, m->skips[i].space, m->skips[i].name);
        for (int at = 0; gv && gv->data && at < m->rows * MODEL_SKIP_WIDTH; at++)
            g[at / MODEL_SKIP_WIDTH * k + at % MODEL_SKIP_WIDTH] += ((const float *)gv->data)[at] / 2;
    }
    for (int i = 0; i < m->skip_count; i++) {
        if (m->skips[i].to != s->stage)
            continue;
        DLTensor *gv = s->skips
                           ? &s->skips->gradients[i]
                           : dp_skip_pop_gradient(call, m->skips[i].space, m->skips[i].name);
        if (!gv || !gv->data)
            continue;
        memset(gv->data, 0, (size_t)m->rows * MODEL_SKIP_WIDTH * sizeof(float));
        for (int at = 0; at < m->rows * k; at++)
            ((float *)gv->data)[at / k * MODEL_SKIP_WIDTH + at % k % MODEL_SKIP_WIDTH] += g[at] / 4;
    }
}

static void stage_forward(const struct model_stage *s, const struct dp_stage_call *call,
                          const DLTensor *in, DLTensor *out)
{
    int rows = s->model->rows, n = model_width(s->model, s->stage);
    int k = model_width(s->model, s->stage + 1);
    const float *x = in[0].data;
    float *y = out[0].data;
    struct saved saved = saved_of(s, call);

    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < k; j++) {
            float h = s->b[j];
            for (int i = 0; i < n; i++)
                h += x[r * n + i] * s->w[i * k + j];
            size_t at = (size_t)(r * k + j);
            saved.t[at] = tanhf(h);
            y[at] = saved.t[at] * mask(s, call, at);
        }
    }
    pop_skips(s, call, y, k);
    stash_skips(s, call, y, k);
    for (int r = 0; r < rows; r++) {
        double mean = 0;
        for (int j = 0; j < k; j++)
            mean += (double)y[r * k + j] / k;
        ((int32_t *)out[1].data)[r] = ((const int32_t *)in[1].data)[r] + 1;
        ((double *)out[2].data)[r] = ((const double *)in[2].data)[r] + mean;
    }
}

static void stage_input_gradient(const struct model_stage *s, const struct dp_stage_call *call,
                                 const DLTensor *gout, DLTensor *gin)
{
    int rows = s->model->rows, n = model_width(s->model, s->stage);
    int k = model_width(s->model, s->stage + 1);
    const float *gy = gout[0].data;
    const double *gz = gout[2].data;
    struct saved saved = saved_of(s, call);

    for (int at = 0; at < rows * k; at++)
        saved.gh[at] = gy[at] + (float)(gz[at / k] / k);
    skip_gradients(s, call, saved.gh, k);
    for (int at = 0; at < rows * k; at++) {
        float t = saved.t[at];
        saved.gh[at] = saved.gh[at] * mask(s, call, (size_t)at) * (1 - t * t);
    }
    for (int r = 0; r < rows && gin[0].data; r++) {
        for (int i = 0; i < n; i++) {
            float g = 0;
            for (int j = 0; j < k; j++)
                g += saved.gh[r * k + j] * s->w[i * k + j];
            ((float *)gin[0].data)[r * n + i] = g;
        }
        ((double *)gin[2].data)[r] = gz[r];
    }
}

static void stage_weight_gradient(const struct model_stage *s, const struct dp_stage_call *call)
{
    int rows = s->model->rows, n = model_width(s->model, s->stage);
    int k = model_width(s->model, s->stage + 1);
    const float *x = call->in[0].data, *gh = saved_of(s, call).gh;
    float *gw = call->grads[0]->data, *gb = call->grads[1]->data;

    for (int j = 0; j < k; j++) {
        float sum = 0;
        for (int r = 0; r < rows; r++)
            sum += gh[r * k + j];
        gb[j] += sum;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) {
            float sum = 0;
            for (int r = 0; r < rows; r++)
                sum += x[r * n + i] * gh[r * k + j];
            gw[i * k + j] += sum;
        }
}

void (*model_sync)(void *stream);

static void sync_stream(const struct dp_stage_call *call)
{
    if (call && call->stream && model_sync)
        model_sync(call->stream);
}

static int before(struct model_stage *s, const struct dp_stage_call *call, const char *what)
{
    sync_stream(call);
    return s->before ? s->before(s->before_user, call, what) : 0;
}

static int model_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                         DLTensor *out)
{
    int err = before(user, call, "forward");
    if (!err)
        stage_forward(user, call, in, out);
    return err;
}

static int model_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                          DLTensor *gin, enum dp_backward_mode mode)
{
    int err = before(user, call, mode == DP_BACKWARD_FULL ? "backward" : "input");
    if (err)
        return err;
    stage_input_gradient(user, call, gout, gin);
    if (mode == DP_BACKWARD_FULL)
        stage_weight_gradient(user, call);
    return 0;
}

static int model_weight(void *user, const struct dp_stage_call *call)
{
    int err = before(user, call, "weight");
    if (!err)
        stage_weight_gradient(user, call);
    return err;
}

/* Truly mixed, so that a buffer shared by the two parts of a pair would show. */
static int model_fwd_bwd(const struct dp_pair *pair)
{
    int err = before(pair->forward.user, pair->forward.call, "fwd_bwd");
    if (!err)
        err = dp_pair_start_from_loss(pair);
    if (err)
        return err;
    stage_input_gradient(pair->backward.user, pair->backward.call, pair->backward.gout,
                         pair->backward.gin);
    stage_forward(pair->forward.user, pair->forward.call, pair->forward.in, pair->forward.out);
    stage_weight_gradient(pair->backward.user, pair->backward.call);
    return dp_pair_take_loss(pair);
}

const struct dp_stage_ops model_ops = {
    .forward = model_forward, .backward = model_backward, .weight = model_weight,
    .fwd_bwd = model_fwd_bwd};
const struct dp_stage_ops model_ops_no_hook = {
    .forward = model_forward, .backward = model_backward, .weight = model_weight};

void model_stage_init(struct model_stage *stage, const struct model *m, int index)
{
    size_t k = (size_t)model_width(m, index + 1), n = (size_t)model_width(m, index) * k;
    float *params = calloc(n + k, sizeof(float)), *grads = calloc(n + k, sizeof(float));
    DLTensor tensor = {.data = grads, .device = {kDLCPU, 0}, .dtype = float32};

    *stage = (struct model_stage){.model = m,
                                  .stage = index,
                                  .w = params,
                                  .b = params + n,
                                  .gw = grads,
                                  .gb = grads + n,
                                  .shapes = {{model_width(m, index), (int64_t)k}, {(int64_t)k}}};
    for (size_t i = 0; i < n + k; i++)
        params[i] = number(100 + (uint64_t)(m->same_as ? m->same_as[index] : index), i);
    for (int i = 0; i < MODEL_GRADS; i++) {
        stage->tensors[i] = tensor;
        stage->tensors[i].ndim = 2 - i;
        stage->tensors[i].shape = stage->shapes[i];
        stage->grads[i] = &stage->tensors[i];
    }
    stage->tensors[1].data = stage->gb;
    for (int i = 0; i < MODEL_GRADS; i++) {
        stage->values[i] = stage->tensors[i];
        stage->values[i].data = i ? stage->b : stage->w;
        snprintf(stage->names[i], sizeof(stage->names[i]), "%d.%s", index, i ? "bias" : "weight");
        stage->parameters[i] = (struct dp_parameter){
            .name = stage->names[i], .value = &stage->values[i], .grad = &stage->tensors[i]};
    }
}

void model_stage_fini(struct model_stage *stage)
{
    free(stage->w);
    free(stage->gw);
}

struct dp_stage model_stage_config(struct model_stage *stage, const struct dp_stage_ops *ops,
                                   bool no_split)
{
    return (struct dp_stage){.ops = ops,
                             .user = stage,
                             .save_bytes = 2 * hidden_count(stage) * sizeof(float),
                             .no_split = no_split,
                             .parameter_count = MODEL_GRADS,
                             .parameters = stage->parameters};
}

/* ---- the loss ------------------------------------------------------------------------------- */

static int loss_values(void *user, const struct dp_stage_call *call, const DLTensor *out,
                       const DLTensor *label, double *values, int32_t max, int32_t *count)
{
    const struct model *m = user;
    const float *y = out[0].data, *want = label->data;
    int n = m->rows * model_width(m, m->stages);

    sync_stream(call);
    if (max < MODEL_LOSSES)
        return DP_EINVAL;
    values[0] = values[1] = 0;
    for (int i = 0; i < n; i++)
        values[0] += 0.5 * (double)(y[i] - want[i]) * (double)(y[i] - want[i]);
    for (int r = 0; r < m->rows; r++)
        values[1] += ((const double *)out[2].data)[r] * (1 + ((const int32_t *)out[1].data)[r]);
    *count = MODEL_LOSSES;
    return 0;
}

static int loss_gradient(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *label, double scale, DLTensor *gout)
{
    const struct model *m = user;
    const float *y = out[0].data, *want = label->data;
    int n = m->rows * model_width(m, m->stages);

    sync_stream(call);
    for (int i = 0; i < n; i++)
        ((float *)gout[0].data)[i] = (y[i] - want[i]) * (float)scale;
    for (int r = 0; r < m->rows; r++)
        ((double *)gout[2].data)[r] = scale * (1 + ((const int32_t *)out[1].data)[r]);
    return 0;
}

const struct dp_loss_ops model_loss = {loss_values, loss_gradient};

/* ---- batches -------------------------------------------------------------------------------- */

static size_t item_bytes(DLDataType dtype)
{
    return dtype.bits / 8;
}

static void set_item(DLTensor *tensor, size_t i, float x)
{
    if (tensor->dtype.code == kDLInt)
        ((int32_t *)tensor->data)[i] = (int32_t)(x * 100);
    else if (tensor->dtype.bits == 64)
        ((double *)tensor->data)[i] = x;
    else
        ((float *)tensor->data)[i] = x;
}

/* Where item (row, column) of the mb-th micro-batch is in a batch of `count`. */
static size_t item_at(const struct model *m, const DLTensor *tensor, int count, int mb, int row,
                      int column)
{
    int width = (int)tensor->shape[1] / (m->batch_dim ? count : 1);

    if (m->batch_dim == 0)
        return (size_t)((mb * m->rows + row) * width + column);
    return (size_t)((row * count + mb) * width + column);
}

static void fill_tensor(DLTensor *tensor, const struct model *m, int first, int count, uint64_t what)
{
    int width = (int)tensor->shape[1] / (m->batch_dim ? count : 1);

    for (int mb = 0; mb < count; mb++)
        for (int row = 0; row < m->rows; row++)
            for (int c = 0; c < width; c++)
                set_item(tensor, item_at(m, tensor, count, mb, row, c),
                         number(what, (uint64_t)(((first + mb) * m->rows + row) * width + c)));
}

static void add_tensor(struct model_batch *batch, int k, const struct dp_tensor_spec *spec,
                       const struct model *m, int count)
{
    int64_t *shape = batch->shapes[k];

    shape[0] = spec->shape[0] * (m->batch_dim == 0 ? count : 1);
    shape[1] = spec->shape[1] * (m->batch_dim == 1 ? count : 1);
    batch->data[k] = calloc((size_t)(shape[0] * shape[1]), item_bytes(spec->dtype));
    batch->tensors[k] = (DLTensor){.data = batch->data[k],
                                   .device = {kDLCPU, 0},
                                   .ndim = 2,
                                   .dtype = spec->dtype,
                                   .shape = shape};
    batch->list[k] = &batch->tensors[k];
}

void model_batch_init(struct model_batch *batch, const struct model *m, int border, int first,
                      int count)
{
    struct dp_border *borders = calloc((size_t)m->stages + 1, sizeof(*borders));

    model_borders(m, borders);
    for (int k = 0; k < MODEL_TENSORS; k++) {
        add_tensor(batch, k, &borders[border].tensors[k], m, count);
        if (border == 0)
            fill_tensor(&batch->tensors[k], m, first, count, 200 + (uint64_t)k);
    }
    free(borders);
}

void model_batch_init_label(struct model_batch *batch, const struct model *m, int first, int count)
{
    struct dp_border labels;

    *batch = (struct model_batch){0};
    model_labels(m, &labels);
    add_tensor(batch, 0, &labels.tensors[0], m, count);
    fill_tensor(&batch->tensors[0], m, first, count, 300);
}

struct dp_microbatches *model_batch_split(const struct model_batch *batch, const struct model *m,
                                          int count)
{
    struct dp_tree leaves[MODEL_TENSORS], specs[MODEL_TENSORS];
    int32_t n = 0;

    for (; n < MODEL_TENSORS && batch->data[n]; n++) {
        leaves[n] = dp_tensor(&batch->tensors[n]);
        specs[n] = dp_chunk(m->batch_dim);
    }
    struct dp_tree args = dp_tuple(n, leaves), spec = dp_tuple(n, specs);
    struct dp_microbatches *mbs = NULL;
    dp_split(&args, NULL, &(struct dp_split_options){.count = count, .args_spec = &spec}, &mbs);
    return mbs;
}

void model_batch_fini(struct model_batch *batch)
{
    for (int k = 0; k < MODEL_TENSORS; k++)
        free(batch->data[k]);
    *batch = (struct model_batch){0};
}

/* ---- the sequential loop --------------------------------------------------------------------- */

static int block_count(const struct model *m)
{
    return m->order_blocks ? m->order_blocks : 2;
}

void model_result_init(struct model_result *result, const struct model *m)
{
    size_t stages = (size_t)m->stages;

    result->losses = calloc((size_t)m->microbatches, MODEL_LOSSES * sizeof(double));
    result->outputs = calloc(model_output_count(m), sizeof(float));
    result->first = calloc(stages, sizeof(float *));
    result->second = calloc(stages, sizeof(float *));
    result->all = calloc(stages, sizeof(float *));
    result->blocks = calloc((size_t)block_count(m) * stages, sizeof(float *));
    for (int i = 0; i < block_count(m) * m->stages; i++)
        result->blocks[i] = calloc(model_grad_count(m, i % m->stages), sizeof(float));
    for (int s = 0; s < m->stages; s++) {
        result->first[s] = result->blocks[s];
        result->second[s] = result->blocks[block_count(m) / 2 * m->stages + s];
        result->all[s] = calloc(model_grad_count(m, s), sizeof(float));
    }
}

void model_result_fini(struct model_result *result, const struct model *m)
{
    for (int s = 0; s < m->stages; s++)
        free(result->all[s]);
    for (int i = 0; i < block_count(m) * m->stages; i++)
        free(result->blocks[i]);
    free(result->blocks);
    free(result->first);
    free(result->second);
    free(result->all);
    free(result->losses);
    free(result->outputs);
}

/* The gradients of a stage, to be added to in one of the sets above. */
struct grad_view {
    DLTensor tensors[MODEL_GRADS];
    DLTensor *list[MODEL_GRADS];
};

static DLTensor *const *view_grads(struct grad_view *view, const struct model_stage *stage,
                                   float *grads)
{
    for (int i = 0; i < MODEL_GRADS; i++) {
        view->tensors[i] = stage->tensors[i];
        view->list[i] = &view->tensors[i];
    }
    view->tensors[0].data = grads;
    view->tensors[1].data = grads + (stage->b - stage->w);
    return view->list;
}

/* One micro-batch's way through the model: values and gradients at every border. */
struct walk {
    struct model one; /* the model with a batch of one micro-batch */
    struct model_batch *values, *gradients; /* [stages + 1] */
    void **saves;
    struct model_stage *stages;
    struct model_skips skips;
    float *skip_memory; /* [2 * MODEL_SKIPS * rows * MODEL_SKIP_WIDTH] */
};

/* Of the next micro-batch. */
static void walk_set_skips(struct walk *w, int mb)
{
    const size_t n = (size_t)w->one.rows * MODEL_SKIP_WIDTH;
    const bool absent = is_absent(&w->one, &(struct dp_stage_call){.mb_global = mb});

    for (int k = 0; k < w->one.skip_count; k++) {
        const bool none = absent || w->one.skips[k].name[0] == 'n';
        w->skips.values[k].data = w->skip_memory + (size_t)k * n;
        w->skips.gradients[k].data = none ? NULL : w->skip_memory + (MODEL_SKIPS + (size_t)k) * n;
    }
}

static void walk_init(struct walk *w, const struct model *m)
{
    size_t borders = (size_t)m->stages + 1;

    w->one = *m;
    w->one.batch_dim = 0;
    w->values = calloc(borders, sizeof(*w->values));
    w->gradients = calloc(borders, sizeof(*w->gradients));
    w->saves = calloc(borders, sizeof(*w->saves));
    w->stages = calloc(borders, sizeof(*w->stages));
    w->skip_memory =
        calloc(2 * MODEL_SKIPS * (size_t)m->rows * MODEL_SKIP_WIDTH, sizeof(*w->skip_memory));
    for (int s = 0; s < m->stages; s++) {
        model_stage_init(&w->stages[s], &w->one, s);
        w->stages[s].skips = &w->skips;
        w->saves[s] = calloc(2 * hidden_count(&w->stages[s]), sizeof(float));
    }
}

static void walk_fini(struct walk *w)
{
    for (int s = 0; s < w->one.stages; s++) {
        model_stage_fini(&w->stages[s]);
        free(w->saves[s]);
    }
    free(w->values);
    free(w->gradients);
    free(w->saves);
    free(w->stages);
    free(w->skip_memory);
}

static struct dp_stage_call call_of(const struct walk *w, int s, int mb, uint64_t step,
                                    bool training)
{
    return (struct dp_stage_call){
        .stage = s,
        .mb_global = mb,
        .step = step,
        .training = training,
        .random = dp_random_key(w->one.seed, step, (uint32_t)s, (uint32_t)mb),
        .save = w->saves[s],
        .in = w->values[s].tensors,
    };
}

static void walk_forward(struct walk *w, int mb, uint64_t step, bool training,
                         struct model_result *result, const DLTensor *label)
{
    const struct model *m = &w->one;
    size_t outputs = model_output_count(m) / (size_t)m->microbatches;
    int32_t count;

    for (int s = 0; s < m->stages; s++) {
        struct dp_stage_call call = call_of(w, s, mb, step, training);
        stage_forward(&w->stages[s], &call, w->values[s].tensors, w->values[s + 1].tensors);
    }
    memcpy(result->outputs + (size_t)mb * outputs, w->values[m->stages].tensors[0].data,
           outputs * sizeof(float));
    loss_values(&w->one, NULL, w->values[m->stages].tensors, label,
                result->losses + mb * MODEL_LOSSES, MODEL_LOSSES, &count);
}

static void walk_backward(struct walk *w, int mb, uint64_t step, struct model_result *result,
                          const DLTensor *label)
{
    struct model *m = &w->one;
    struct grad_view view;

    loss_gradient(m, NULL, w->values[m->stages].tensors, label, 1, w->gradients[m->stages].tensors);
    for (int s = m->stages - 1; s >= 0; s--) {
        struct dp_stage_call call = call_of(w, s, mb, step, true);
        int block = ((mb + 1) * block_count(m) - 1) / m->microbatches;
        stage_input_gradient(&w->stages[s], &call, w->gradients[s + 1].tensors,
                             w->gradients[s].tensors);
        call.grads = view_grads(&view, &w->stages[s], result->blocks[block * m->stages + s]);
        stage_weight_gradient(&w->stages[s], &call);
        call.grads = view_grads(&view, &w->stages[s], result->all[s]);
        stage_weight_gradient(&w->stages[s], &call);
    }
}

/* The blocks of each half become one. */
static void sum_blocks(const struct model *m, struct model_result *result)
{
    int count = block_count(m);

    for (int step = 1; step < count / 2; step *= 2)
        for (int b = 0; b < count; b += 2 * step)
            for (int s = 0; s < m->stages; s++)
                for (size_t i = 0; i < model_grad_count(m, s); i++)
                    result->blocks[b * m->stages + s][i] +=
                        result->blocks[(b + step) * m->stages + s][i];
}

void model_run_sequential(const struct model *m, uint64_t step, bool training,
                          struct model_result *result)
{
    struct model_batch label;
    struct walk w;

    walk_init(&w, m);
    for (int mb = 0; mb < m->microbatches; mb++) {
        for (int s = 0; s <= m->stages; s++) {
            model_batch_init(&w.values[s], &w.one, s, mb, 1);
            model_batch_init(&w.gradients[s], &w.one, s, mb, 1);
        }
        model_batch_init_label(&label, &w.one, mb, 1);
        walk_set_skips(&w, mb);
        walk_forward(&w, mb, step, training, result, &label.tensors[0]);
        if (training)
            walk_backward(&w, mb, step, result, &label.tensors[0]);
        for (int s = 0; s <= m->stages; s++) {
            model_batch_fini(&w.values[s]);
            model_batch_fini(&w.gradients[s]);
        }
        model_batch_fini(&label);
    }
    sum_blocks(m, result);
    walk_fini(&w);
}
