/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_models.h"

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

static int forward(void *user, const struct dp_layer_call *c, const DLTensor *in, DLTensor *out)
{
    const struct test_layer *l = user;
    const float *x = in->data, *w = c->values[0].data, *b = c->values[1].data;
    const int64_t rows = in->shape[0];
    const struct areas at = areas_of(c, rows);
    float *y = out->data;
    int err = 0;

    see(l->seen, &c->values[0]);
    if (l->fail_mb == c->mb_global + 1)
        return dp_callback_error(DP_EIO, "it was to fail at micro-batch %d", c->mb_global);
    for (int64_t r = 0; r < rows; r++)
        for (int o = 0; o < W; o++) {
            float sum = b[o];
            for (int i = 0; i < W; i++)
                sum += x[r * W + i] * w[i * W + o];
            y[r * W + o] = sum;
        }
    if (l->norm)
        err = dp_batch_norm_forward(c->norms[0],
                                    !c->training ? DP_BATCH_NORM_EVALUATE
                                    : c->again   ? DP_BATCH_NORM_RECOMPUTE
                                                 : DP_BATCH_NORM_TRAIN,
                                    c->mb_global, rows, y, c->values[2].data, c->values[3].data, y,
                                    at.xhat, at.rstd);
    for (int64_t i = 0; i < rows * W && !l->plain && !err; i++) {
        at.mask[i] = y[i] > 0;
        y[i] = x[i] + (y[i] > 0 ? y[i] : 0);
    }
    if (l->pop && !err) {
        const DLTensor *more = dp_layer_pop(c, l->pop);
        for (int64_t i = 0; more && i < rows * W; i++)
            y[i] += ((const float *)more->data)[i];
    }
    if (l->stash && !err)
        memcpy(dp_layer_stash(c, l->stash)->data, y, (size_t)(rows * W) * sizeof(float));
    return err;
}

static int weight(void *user, const struct dp_layer_call *c)
{
    const struct test_layer *l = user;
    const float *x = c->in->data;
    const int64_t rows = c->in->shape[0];
    const struct areas at = areas_of(c, rows);
    float *dw = c->grads[0].data, *db = c->grads[1].data;

    see(l->seen, &c->grads[0]);
    see(l->seen, &c->grads[1]);
    for (int o = 0; o < W; o++)
        for (int i = -1; i < (dw ? W : 0); i++) { /* no gradient is wanted of one that is frozen */
            float sum = 0;
            for (int64_t r = 0; r < rows; r++)
                sum += at.d[r * W + o] * (i < 0 ? 1 : x[r * W + i]);
            *(i < 0 ? &db[o] : &dw[i * W + o]) += sum;
        }
    if (l->norm)
        dp_batch_norm_weight(c->norms[0], rows, at.d_norm, at.xhat, c->grads[2].data,
                             c->grads[3].data);
    return 0;
}

static int backward(void *user, const struct dp_layer_call *c, const DLTensor *gout, DLTensor *gin,
                    enum dp_backward_mode mode)
{
    const struct test_layer *l = user;
    const int64_t rows = gout->shape[0];
    const struct areas at = areas_of(c, rows);
    const float *more = l->stash ? dp_layer_stash_gradient(c, l->stash)->data : NULL;
    const float *w = c->values[0].data;
    float *dx = gin->data, dy[64 * W];

    for (int64_t i = 0; i < rows * W; i++) {
        dy[i] = ((const float *)gout->data)[i] + (more ? more[i] : 0);
        at.d[i] = l->plain ? dy[i] : dy[i] * at.mask[i];
    }
    if (l->pop)
        memcpy(dp_layer_pop_gradient(c, l->pop)->data, dy, (size_t)(rows * W) * sizeof(float));
    if (l->norm) {
        memcpy(at.d_norm, at.d, (size_t)(rows * W) * sizeof(float));
        dp_batch_norm_backward(c->norms[0], rows, at.d_norm, c->values[2].data, at.xhat, at.rstd, at.d);
    }
    for (int64_t r = 0; dx && r < rows; r++)
        for (int i = 0; i < W; i++) {
            float sum = l->plain ? 0 : dy[r * W + i];
            for (int o = 0; o < W; o++)
                sum += at.d[r * W + o] * w[i * W + o];
            dx[r * W + i] = sum;
        }
    return mode == DP_BACKWARD_FULL ? weight(user, c) : 0;
}

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
