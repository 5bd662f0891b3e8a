/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_models.h"

#include "base/fp16.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define W MODEL_WIDTH

/* The save areas: whole [xhat | d_norm] a row and [rstd]; input [mask] a row; weight [d] a row. */
struct areas {
    float *xhat, *d_norm, *rstd, *mask, *d;
};

static struct areas areas_of(const struct dp_layer_call *c, int64_t rows)
{
    float *whole = c->save;

    return (struct areas){whole, whole + rows * W, whole + 2 * rows * W, c->save_input, c->save_weight};
}

static void see(struct test_range *seen, const DLTensor *tensor)
{
    const char *at = tensor->data;

    if (!seen || !at)
        return;
    seen->low = seen->low && seen->low < at ? seen->low : at;
    at += 256; /* what the smallest takes */
    seen->high = seen->high > at ? seen->high : at;
}

/* What is computed in one call: on the host at once, on a device in the order of its stream, when the call
 * and its tensors are gone. */
struct work {
    void (*run)(struct work *w);
    const struct test_layer *layer;
    struct dp_batch_norm *norm;
    enum dp_batch_norm_mode norm_mode;
    int mb, err;
    int64_t rows;
    struct areas at;
    const float *x, *values[4], *dy, *popped, *more;
    float *y, *stash, *grads[4], *dx, *d_popped;
    const uint16_t *rounded; /* of values[0] */
    bool weighs; /* backward: what weight does, too */
};

static void check_rounded(const struct work *w)
{
    for (int i = 0; w->rounded && i < W * W; i++)
        if (w->rounded[i] != dp_bfloat16_store(w->values[0][i]) && w->values[0][i] != 0)
            abort();
}

static void carry_out(void *work)
{
    struct work *w = work;

    check_rounded(w);
    w->run(w);
    free(w);
}

static int start(const struct dp_layer_call *c, const struct work *w)
{
    struct dp_device_stream *stream;
    struct work *own;

    if (!w->layer->device) {
        struct work now = *w;
        check_rounded(&now);
        now.run(&now);
        return now.err;
    }
    if (w->layer->waits && w->layer->waits())
        return dp_callback_error(DP_ESTATE, "the host has waited, before all was queued");
    int err = dp_device_stream_wrap(w->layer->device, c->stream, &stream);
    if (err)
        return err;
    own = malloc(sizeof(*own));
    if (own)
        *own = *w;
    err = own ? dp_device_call(stream, carry_out, own) : DP_ENOMEM;
    if (err)
        free(own);
    dp_device_stream_free(stream);
    return err;
}

static void die(struct test_kill *kill, const struct dp_layer_call *c)
{
    if (kill && kill->step == c->step && kill->calls && !--kill->calls)
        raise(SIGKILL);
}

static struct work work_of(void (*run)(struct work *w), const struct test_layer *l,
                           const struct dp_layer_call *c, int64_t rows)
{
    struct work w = {.run = run, .layer = l, .rows = rows, .mb = c->mb_global, .at = areas_of(c, rows)};

    if (l->norm)
        w.norm = c->norms[0];
    w.norm_mode = !c->training ? DP_BATCH_NORM_EVALUATE
                  : c->again   ? DP_BATCH_NORM_RECOMPUTE
                               : DP_BATCH_NORM_TRAIN;
    w.rounded = l->rounds ? c->rounded[0].data : NULL;
    die(l->kill, c);
    see(l->seen, &c->values[0]);
    see(l->seen, &c->grads[0]);
    see(l->seen, &c->grads[1]);
    for (int i = 0; i < (l->norm ? 4 : 2); i++) {
        w.values[i] = c->values[i].data;
        w.grads[i] = c->grads[i].data;
    }
    return w;
}

static void run_forward(struct work *w)
{
    const struct test_layer *l = w->layer;
    float *y = w->y;

    for (int64_t r = 0; r < w->rows; r++)
        for (int o = 0; o < W; o++) {
            float sum = w->values[1][o];
            for (int i = 0; i < W; i++)
                sum += w->x[r * W + i] * w->values[0][i * W + o];
            y[r * W + o] = sum;
        }
    if (l->norm)
        w->err = dp_batch_norm_forward(w->norm, w->norm_mode, w->mb, w->rows, y, w->values[2],
                                       w->values[3], y, w->at.xhat, w->at.rstd);
    for (int64_t i = 0; i < w->rows * W && !l->plain && !w->err; i++) {
        w->at.mask[i] = y[i] > 0;
        y[i] = w->x[i] + (y[i] > 0 ? y[i] : 0);
    }
    for (int64_t i = 0; w->popped && !w->err && i < w->rows * W; i++)
        y[i] += w->popped[i];
    if (w->stash && !w->err)
        memcpy(w->stash, y, (size_t)(w->rows * W) * sizeof(float));
}

static int forward(void *user, const struct dp_layer_call *c, const DLTensor *in, DLTensor *out)
{
    const struct test_layer *l = user;
    struct work w = work_of(run_forward, l, c, in->shape[0]);

    if (l->fail_mb == c->mb_global + 1)
        return dp_callback_error(DP_EIO, "it was to fail at micro-batch %d", c->mb_global);
    w.x = in->data;
    w.y = out->data;
    if (l->pop) {
        const DLTensor *more = dp_layer_skip_tensor(c, DP_SKIP_POP, l->pop);
        w.popped = more ? more->data : NULL;
    }
    if (l->stash)
        w.stash = dp_layer_skip_tensor(c, DP_SKIP_STASH, l->stash)->data;
    return start(c, &w);
}

static void run_weight(struct work *w)
{
    float *dw = w->grads[0], *db = w->grads[1];

    for (int o = 0; o < W; o++)
        for (int i = -1; i < (dw ? W : 0); i++) { /* no gradient is wanted of one that is frozen */
            float sum = 0;
            for (int64_t r = 0; r < w->rows; r++)
                sum += w->at.d[r * W + o] * (i < 0 ? 1 : w->x[r * W + i]);
            *(i < 0 ? &db[o] : &dw[i * W + o]) += sum;
        }
    if (w->norm)
        dp_batch_norm_weight(w->norm, w->rows, w->at.d_norm, w->at.xhat, w->grads[2], w->grads[3]);
}

static int weight(void *user, const struct dp_layer_call *c)
{
    struct work w = work_of(run_weight, user, c, c->in->shape[0]);

    w.x = c->in->data;
    return start(c, &w);
}

static void run_backward(struct work *w)
{
    const bool plain = w->layer->plain;
    float dy[64 * W];

    for (int64_t i = 0; i < w->rows * W; i++) {
        dy[i] = w->dy[i] + (w->more ? w->more[i] : 0);
        w->at.d[i] = plain ? dy[i] : dy[i] * w->at.mask[i];
    }
    if (w->d_popped)
        memcpy(w->d_popped, dy, (size_t)(w->rows * W) * sizeof(float));
    if (w->norm) {
        memcpy(w->at.d_norm, w->at.d, (size_t)(w->rows * W) * sizeof(float));
        dp_batch_norm_backward(w->norm, w->rows, w->at.d_norm, w->values[2], w->at.xhat, w->at.rstd,
                               w->at.d);
    }
    for (int64_t r = 0; w->dx && r < w->rows; r++)
        for (int i = 0; i < W; i++) {
            float sum = plain ? 0 : dy[r * W + i];
            for (int o = 0; o < W; o++)
                sum += w->at.d[r * W + o] * w->values[0][i * W + o];
            w->dx[r * W + i] = sum;
        }
    if (w->weighs)
        run_weight(w);
}

static int backward(void *user, const struct dp_layer_call *c, const DLTensor *gout, DLTensor *gin,
                    enum dp_backward_mode mode)
{
    const struct test_layer *l = user;
    struct work w = work_of(run_backward, l, c, gout->shape[0]);

    w.x = c->in->data;
    w.dy = gout->data;
    w.dx = gin->data;
    w.weighs = mode == DP_BACKWARD_FULL;
    if (l->stash)
        w.more = dp_layer_skip_tensor(c, DP_SKIP_STASH_GRADIENT, l->stash)->data;
    if (l->pop)
        w.d_popped = dp_layer_skip_tensor(c, DP_SKIP_POP_GRADIENT, l->pop)->data;
    return start(c, &w);
}

/* ---- the losses of model.h, whose tensors are in a device's memory that the host reaches ------------- */

struct loss_work {
    const struct dp_loss_ops *ops;
    struct dp_stage_call call;
    DLTensor out, labels, gout;
    int64_t shapes[2][2];
    double *values, scale; /* values NULL: the gradient */
};

static void run_loss(void *work)
{
    struct loss_work *w = work;
    int32_t count;

    if (w->values)
        w->ops->loss(NULL, &w->call, &w->out, &w->labels, w->values, 1, &count);
    else
        w->ops->loss_backward(NULL, &w->call, &w->out, &w->labels, w->scale, &w->gout);
    free(w);
}

static DLTensor reached(const DLTensor *t, int64_t *shape)
{
    DLTensor out = *t;

    memcpy(shape, t->shape, (size_t)t->ndim * sizeof(*shape));
    out.shape = shape;
    out.device = (DLDevice){kDLCPU, 0};
    return out;
}

static int queue_loss(const struct test_model *m, const struct dp_stage_call *call,
                      const DLTensor *out, const DLTensor *labels, double *values, double scale,
                      const DLTensor *gout)
{
    struct dp_device_stream *stream;
    struct loss_work *w = malloc(sizeof(*w));
    int err = w ? dp_device_stream_wrap(m->users[0].device, call->stream, &stream) : DP_ENOMEM;

    if (err) {
        free(w);
        return err;
    }
    *w = (struct loss_work){.ops = m->loss, .call = *call, .values = values, .scale = scale};
    w->out = reached(out, w->shapes[0]);
    w->labels = reached(labels, w->shapes[1]);
    w->gout = w->out;
    if (gout)
        w->gout.data = gout->data;
    err = dp_device_call(stream, run_loss, w);
    if (err)
        free(w);
    dp_device_stream_free(stream);
    return err;
}

static int device_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                       const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    *count = 1;
    return queue_loss(user, call, out, labels, values, 0, NULL);
}

static int device_loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                                const DLTensor *labels, double scale, DLTensor *gout)
{
    return queue_loss(user, call, out, labels, NULL, scale, gout);
}

void test_model_use_device(struct test_model *m, struct dp_device *device)
{
    static const struct dp_loss_ops ops = {device_loss, device_loss_backward};

    for (int i = 0; i < MODEL_LAYERS; i++)
        m->users[i].device = device;
    m->loss = m->model.loss;
    m->model.loss = &ops;
    m->model.loss_user = m;
}

/* ---- models ---------------------------------------------------------------------------------- */

static const struct dp_layer_ops ops = {forward, backward, weight};
static const struct dp_layer_ops whole_ops = {forward, backward, NULL};

static void make_layer(struct test_model *m, int i)
{
    static const DLDataType f32 = {kDLFloat, 32, 1};
    const bool norm = m->users[i].norm;
    struct dp_parameter_spec *p = m->parameters[i];

    p[0] = (struct dp_parameter_spec){
        .name = "w", .dtype = f32, .ndim = 2, .shape = {W, W}, .deviation = 0.3};
    p[1] = (struct dp_parameter_spec){
        .name = "b", .flags = DP_PARAMETER_NO_DECAY, .dtype = f32, .ndim = 1, .shape = {W}};
    p[2] = (struct dp_parameter_spec){.name = "gain", .dtype = f32, .ndim = 1, .shape = {W}, .mean = 1};
    p[3] = (struct dp_parameter_spec){.name = "shift", .dtype = f32, .ndim = 1, .shape = {W}};
    m->layers[i] = (struct dp_layer){
        .ops = &ops,
        .user = &m->users[i],
        .parameters = p,
        .parameter_count = norm ? 4 : 2,
        .out = &m->rows,
        .save = {.whole = W * sizeof(float)},
        .save_row = {2 * W * sizeof(float), W * sizeof(float), W * sizeof(float)},
        .norms = norm ? &m->norm : NULL,
        .norm_count = norm,
    };
    m->list[i] = &m->layers[i];
}

void test_model_init(struct test_model *m, enum model_kind kind)
{
    static const DLDataType f32 = {kDLFloat, 32, 1};

    *m = (struct test_model){.rows = dp_rows(f32, W),
                             .labels = {1, {{{kDLUInt, 8, 1}, 1, {1}, false, {1}}}},
                             .norm = {.channels = W}};
    if (kind == MODEL_SKIPS) {
        m->users[0].stash = "far";
        m->users[1].stash = "near";
        m->users[2].pop = "near";
        m->users[6].pop = "far";
        m->skips[0] = (struct dp_layer_skip){"far", 0, 6, m->rows.tensors[0]};
        m->skips[1] = (struct dp_layer_skip){"near", 1, 2, m->rows.tensors[0]};
    }
    for (int i = 0; i < MODEL_LAYERS; i++) {
        m->users[i].norm = kind == MODEL_TIED && i > 0 && i < MODEL_LAYERS - 1;
        m->users[i].plain = kind == MODEL_TIED && !m->users[i].norm;
        make_layer(m, i);
    }
    if (kind == MODEL_MLP)
        m->layers[3].ops = &whole_ops;
    if (kind == MODEL_SKIPS)
        m->list[5] = m->list[3];
    if (kind == MODEL_TIED) {
        m->layers[0].name = "table";
        m->parameters[MODEL_LAYERS - 1][0].tied = "table w";
    }
    m->model = (struct dp_model){
        .layers = m->list,
        .layer_count = MODEL_LAYERS,
        .input = &m->rows,
        .labels = kind == MODEL_TIED ? &m->labels : &m->rows,
        .skips = m->skips,
        .skip_count = kind == MODEL_SKIPS ? 2 : 0,
        .loss = kind == MODEL_TIED ? dp_loss_cross_entropy() : dp_loss_squares(),
    };
}
