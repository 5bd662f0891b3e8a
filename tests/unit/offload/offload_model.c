/* SPDX-License-Identifier: Apache-2.0 */
#include "offload_model.h"

#include "optimizer/update.h"

#include <dualpipe/microbatch.h>

#include <stdlib.h>
#include <string.h>

static void sync(void *user, const struct dp_offload_call *call)
{
    const struct om_model *m = user;

    if (m->sync)
        m->sync(call->stream);
}

static int maybe_fail(void *user, const struct dp_offload_call *call)
{
    const struct om_model *m = user;

    return m->fail_layer == call->layer ? DP_ENOMEM : 0;
}

/* Where the CPU finds what the device has at ptr. */
static void *reach(void *user, const void *ptr)
{
    const struct om_model *m = user;

    return m->reach && ptr ? m->reach(ptr) : (void *)(uintptr_t)ptr;
}

static void *at(void *user, const DLTensor *t)
{
    return reach(user, t->data);
}

/* ---- mix ------------------------------------------------------------------------------------- */

static int mix_forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                       DLTensor *out)
{
    sync(user, call);
    const int64_t *ids = at(user, &in[0]);
    const float *x = at(user, &in[1]), *table = at(user, &call->values[0]);
    float *y = at(user, &out[0]), *skip = at(user, &out[1]);

    for (int64_t r = 0; r < call->rows; r++)
        for (int c = 0; c < OM_WIDTH; c++) {
            float sum = x[r * OM_WIDTH + c];
            for (int k = 0; k < OM_IDS; k++)
                sum += table[ids[r * OM_IDS + k] * OM_WIDTH + c];
            y[r * OM_WIDTH + c] = sum;
            skip[r * OM_WIDTH + c] = x[r * OM_WIDTH + c];
        }
    return maybe_fail(user, call);
}

static int mix_backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                        DLTensor *gin)
{
    sync(user, call);
    const int64_t *ids = at(user, &call->in[0]);
    const float *gy = at(user, &gout[0]), *gskip = at(user, &gout[1]);
    float *gx = at(user, &gin[1]), *gtable = at(user, &call->grads[0]);

    for (int64_t r = 0; r < call->rows; r++)
        for (int c = 0; c < OM_WIDTH; c++) {
            for (int k = 0; k < OM_IDS; k++)
                gtable[ids[r * OM_IDS + k] * OM_WIDTH + c] += gy[r * OM_WIDTH + c];
            gx[r * OM_WIDTH + c] = gy[r * OM_WIDTH + c] + gskip[r * OM_WIDTH + c];
        }
    return at(user, &gin[0]) ? DP_EINVAL : 0; /* ids have no gradient */
}

/* ---- linear ---------------------------------------------------------------------------------- */

static int linear_forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                          DLTensor *out)
{
    sync(user, call);
    const float *x = at(user, &in[0]), *w = at(user, &call->values[0]),
                *b = at(user, &call->values[1]);
    float *y = at(user, &out[0]);

    for (int64_t r = 0; r < call->rows; r++)
        for (int c = 0; c < OM_WIDTH; c++) {
            float sum = b[c];
            for (int k = 0; k < OM_WIDTH; k++)
                sum += x[r * OM_WIDTH + k] * w[k * OM_WIDTH + c];
            y[r * OM_WIDTH + c] = sum;
        }
    memcpy(at(user, &out[1]), at(user, &in[1]), (size_t)call->rows * OM_WIDTH * sizeof(float));
    return maybe_fail(user, call);
}

static void linear_gradients(void *user, const struct dp_offload_call *call, const float *gy)
{
    const float *x = at(user, &call->in[0]);
    float *gw = at(user, &call->grads[0]), *gb = at(user, &call->grads[1]);

    for (int64_t r = 0; r < call->rows; r++)
        for (int c = 0; c < OM_WIDTH; c++) {
            for (int k = 0; gw && k < OM_WIDTH; k++)
                gw[k * OM_WIDTH + c] += x[r * OM_WIDTH + k] * gy[r * OM_WIDTH + c];
            if (gb)
                gb[c] += gy[r * OM_WIDTH + c];
        }
}

static int linear_backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                           DLTensor *gin)
{
    sync(user, call);
    const float *gy = at(user, &gout[0]), *w = at(user, &call->values[0]);
    float *gx = at(user, &gin[0]);

    linear_gradients(user, call, gy);
    for (int64_t r = 0; r < call->rows; r++)
        for (int k = 0; k < OM_WIDTH; k++) {
            float sum = 0;
            for (int c = 0; c < OM_WIDTH; c++)
                sum += gy[r * OM_WIDTH + c] * w[k * OM_WIDTH + c];
            gx[r * OM_WIDTH + k] = sum;
        }
    memcpy(at(user, &gin[1]), at(user, &gout[1]), (size_t)call->rows * OM_WIDTH * sizeof(float));
    return 0;
}

/* ---- drop: its mask is kept in the save area ------------------------------------------------- */

static int drop_forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                        DLTensor *out)
{
    sync(user, call);
    const float *x = at(user, &in[0]);
    float *y = at(user, &out[0]), *mask = reach(user, call->save);
    size_t count = (size_t)call->rows * OM_WIDTH;

    dp_random_uniform(call->random, 0, mask, count);
    for (size_t i = 0; i < count; i++) {
        mask[i] = !call->training ? 1.0f : mask[i] < 0.5f ? 2.0f : 0.0f;
        y[i] = x[i] * mask[i];
    }
    memcpy(at(user, &out[1]), at(user, &in[1]), count * sizeof(float));
    return maybe_fail(user, call);
}

static int drop_backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                         DLTensor *gin)
{
    sync(user, call);
    const float *gy = at(user, &gout[0]), *mask = reach(user, call->save);
    float *gx = at(user, &gin[0]);
    size_t count = (size_t)call->rows * OM_WIDTH;

    for (size_t i = 0; i < count; i++)
        gx[i] = gy[i] * mask[i];
    memcpy(at(user, &gin[1]), at(user, &gout[1]), count * sizeof(float));
    return 0;
}

/* ---- last: one column; it finds that skip has no gradient but ones --------------------------- */

static int last_forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                        DLTensor *out)
{
    sync(user, call);
    const float *x = at(user, &in[0]), *skip = at(user, &in[1]), *w = at(user, &call->values[0]);
    float *y = at(user, &out[0]);

    for (int64_t r = 0; r < call->rows; r++) {
        y[r] = 0;
        for (int c = 0; c < OM_WIDTH; c++)
            y[r] += x[r * OM_WIDTH + c] * w[c] + skip[r * OM_WIDTH + c];
    }
    return out[0].ndim == 2 && out[0].shape[1] == 1 ? maybe_fail(user, call) : DP_EINVAL;
}

static int last_backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                         DLTensor *gin)
{
    sync(user, call);
    const float *gy = at(user, &gout[0]), *x = at(user, &call->in[0]),
                *w = at(user, &call->values[0]);
    float *gx = at(user, &gin[0]), *gskip = at(user, &gin[1]), *gw = at(user, &call->grads[0]);

    for (int64_t r = 0; r < call->rows; r++)
        for (int c = 0; c < OM_WIDTH; c++) {
            gw[c] += gy[r] * x[r * OM_WIDTH + c];
            gx[r * OM_WIDTH + c] = gy[r] * w[c];
            gskip[r * OM_WIDTH + c] = gy[r];
        }
    return 0;
}

static const struct dp_offload_layer_ops mix = {mix_forward, mix_backward};
static const struct dp_offload_layer_ops linear = {linear_forward, linear_backward};
static const struct dp_offload_layer_ops drop = {drop_forward, drop_backward};
static const struct dp_offload_layer_ops last = {last_forward, last_backward};

/* mix, linear, drop, linear, linear, linear, drop, last */
static const struct dp_offload_layer_ops *const kinds[OM_LAYERS] = {
    &mix, &linear, &drop, &linear, &linear, &linear, &drop, &last};

/* ---- mixed precision: layers compute in float32 ---------------------------------------------- */

enum { MOST_ELEMENTS = OM_WIDTH * OM_WIDTH };

struct mixed {
    float value[2][MOST_ELEMENTS], grad[2][MOST_ELEMENTS];
    DLTensor values[2], grads[2];
    struct dp_offload_call call;
};

static void round_to(DLDataType type, size_t count, float *x)
{
    uint16_t bits[MOST_ELEMENTS];

    if (!type.bits)
        return;
    dp_real_store(type, count, bits, x, false);
    dp_real_load(type, count, bits, x, false);
}

/* Resident values are float32, and rounded here. */
static void widen(struct mixed *x, const struct om_model *m, const struct dp_offload_call *call)
{
    x->call = *call;
    x->call.values = x->values;
    x->call.grads = x->grads;
    for (int32_t k = 0; k < m->layers[call->layer].parameter_count; k++) {
        const DLTensor *v = &call->values[k];
        size_t count = (size_t)(v->shape[0] * v->shape[1]);
        dp_real_load(v->dtype, count, reach((void *)(uintptr_t)m, v->data), x->value[k], false);
        round_to(m->value_type, count, x->value[k]);
        memset(x->grad[k], 0, count * sizeof(float));
        x->values[k] = x->grads[k] = *v;
        x->values[k].data = x->value[k];
        x->grads[k].data = call->grads[k].data ? x->grad[k] : NULL;
    }
}

static void add_back(struct mixed *x, const struct om_model *m, const struct dp_offload_call *call)
{
    float sum[MOST_ELEMENTS];

    for (int32_t k = 0; k < m->layers[call->layer].parameter_count; k++) {
        const DLTensor *g = &call->grads[k];
        size_t count = (size_t)(x->values[k].shape[0] * x->values[k].shape[1]);
        if (!g->data)
            continue;
        void *to = reach((void *)(uintptr_t)m, g->data);
        dp_real_load(g->dtype, count, to, sum, false);
        for (size_t i = 0; i < count; i++)
            sum[i] += x->grad[k][i];
        round_to(m->grad_type, count, sum);
        dp_real_store(g->dtype, count, to, sum, false);
    }
}

static int mixed_forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                         DLTensor *out)
{
    struct mixed x;

    sync(user, call);
    widen(&x, user, call);
    return kinds[call->layer]->forward(user, &x.call, in, out);
}

static int mixed_backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                          DLTensor *gin)
{
    struct mixed x;

    sync(user, call);
    widen(&x, user, call);
    int err = kinds[call->layer]->backward(user, &x.call, gout, gin);
    add_back(&x, user, call);
    return err;
}

static const struct dp_offload_layer_ops mixed_ops = {mixed_forward, mixed_backward};

void om_model_mix(struct om_model *m, DLDataType value_type, DLDataType grad_type)
{
    m->value_type = value_type;
    m->grad_type = grad_type;
    for (int l = 0; l < OM_LAYERS; l++)
        m->layers[l].ops = &mixed_ops;
}

/* ---- the model ------------------------------------------------------------------------------- */

static const DLDataType f32 = {kDLFloat, 32, 1}, i64 = {kDLInt, 64, 1};

static struct dp_tensor_spec spec(DLDataType dtype, int64_t columns, bool no_grad)
{
    return (struct dp_tensor_spec){
        .dtype = dtype, .ndim = 2, .shape = {OM_ROWS, columns}, .no_grad = no_grad};
}

static float draw(uint64_t *seed, bool exact)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    if (exact)
        return (float)((int)((*seed >> 40) % 3) - 1);
    return (float)((*seed >> 40) % 2001) / 4000.0f - 0.25f;
}

static void add_parameter(struct om_model *m, const char *name, int64_t rows, int64_t columns,
                          bool exact)
{
    int32_t i = m->parameter_count++;
    size_t count = (size_t)(rows * columns);
    uint64_t seed = (uint64_t)i + 1;

    m->shapes[i][0] = rows;
    m->shapes[i][1] = columns;
    m->value_data[i] = malloc(count * sizeof(float));
    m->grad_data[i] = calloc(count, sizeof(float));
    for (size_t k = 0; k < count; k++)
        m->value_data[i][k] = draw(&seed, exact);
    m->values[i] = (DLTensor){.data = m->value_data[i], .device = {kDLCPU, 0}, .ndim = 2,
                              .dtype = f32, .shape = m->shapes[i]};
    m->grads[i] = m->values[i];
    m->grads[i].data = m->grad_data[i];
    m->parameters[i] =
        (struct dp_parameter){.name = name, .value = &m->values[i], .grad = &m->grads[i]};
}

static void add_layer(struct om_model *m, int l, bool exact)
{
    static const char *const names[OM_LAYERS][2] = {
        {"table"},      {"1.w", "1.b"}, {0}, {"3.w", "3.b"},
        {"4.w", "4.b"}, {"5.w", "5.b"}, {0}, {"last"}};
    int32_t before = m->parameter_count;

    if (kinds[l] == &mix)
        add_parameter(m, names[l][0], OM_TABLE, OM_WIDTH, exact);
    if (kinds[l] == &last)
        add_parameter(m, names[l][0], OM_WIDTH, 1, exact);
    if (kinds[l] == &linear) {
        add_parameter(m, names[l][0], OM_WIDTH, OM_WIDTH, exact);
        add_parameter(m, names[l][1], 1, OM_WIDTH, exact);
    }
    m->layers[l] = (struct dp_offload_layer){
        .ops = kinds[l], .user = m, .parameters = &m->parameters[before],
        .parameter_count = m->parameter_count - before,
        .save_bytes = kinds[l] == &drop ? OM_ROWS * OM_WIDTH * sizeof(float) : 0,
        .out = l + 1 == OM_LAYERS ? &m->output : &m->inner};
}

void om_model_init(struct om_model *m, bool exact, bool tied, bool frozen)
{
    memset(m, 0, sizeof(*m));
    m->fail_layer = -1;
    m->input = (struct dp_border){2, {spec(i64, OM_IDS, true), spec(f32, OM_WIDTH, false)}};
    m->inner = (struct dp_border){2, {spec(f32, OM_WIDTH, false), spec(f32, OM_WIDTH, false)}};
    m->output = (struct dp_border){1, {spec(f32, 1, false)}};
    for (int l = 0; l < OM_LAYERS; l++)
        add_layer(m, l, exact);
    for (int k = 0; tied && k < 2; k++) {
        struct dp_parameter *first = &m->parameters[1 + k], *second = &m->parameters[7 + k];
        second->value = first->value;
        second->grad = first->grad;
    }
    if (frozen) {
        m->parameters[3].flags = DP_PARAMETER_FROZEN;
        m->parameters[3].grad = NULL;
    }
}

void om_model_fini(struct om_model *m)
{
    for (int32_t i = 0; i < m->parameter_count; i++) {
        free(m->value_data[i]);
        free(m->grad_data[i]);
    }
}

size_t om_elements(const struct om_model *m, int32_t parameter)
{
    return (size_t)(m->shapes[parameter][0] * m->shapes[parameter][1]);
}

void om_data_init(struct om_data *d, uint64_t seed, bool exact)
{
    memset(d, 0, sizeof(*d));
    for (size_t i = 0; i < OM_ROWS * OM_IDS; i++)
        d->ids[i] = (int64_t)(seed * 5 + i * i) % OM_TABLE;
    for (size_t i = 0; i < OM_ROWS * OM_WIDTH; i++)
        d->x[i] = draw(&seed, exact);
    for (size_t i = 0; i < OM_ROWS; i++)
        d->gout[i] = draw(&seed, exact);
}

void om_update(const struct dp_parameter *parameters, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p = &parameters[i];
        float *w = p->value->data, *g = p->grad ? p->grad->data : NULL;
        for (int64_t k = 0; g && k < p->value->shape[0] * p->value->shape[1]; k++) {
            w[k] -= g[k] / 8;
            g[k] = 0;
        }
    }
}

/* ---- in memory that is there all the time ---------------------------------------------------- */

struct resident {
    struct om_model *m;
    float y[OM_LAYERS][OM_ROWS * OM_WIDTH], skip[OM_LAYERS][OM_ROWS * OM_WIDTH];
    float save[OM_LAYERS][OM_ROWS * OM_WIDTH];
    float gy[2][OM_ROWS * OM_WIDTH], gskip[2][OM_ROWS * OM_WIDTH];
};

static void two(DLTensor t[2], void *a, DLDataType dtype, int64_t columns, void *b,
                int64_t shape[4], int64_t rows)
{
    shape[0] = shape[2] = rows;
    shape[1] = columns;
    shape[3] = OM_WIDTH;
    t[0] = (DLTensor){.data = a, .device = {kDLCPU, 0}, .ndim = 2, .dtype = dtype, .shape = shape};
    t[1] =
        (DLTensor){.data = b, .device = {kDLCPU, 0}, .ndim = 2, .dtype = f32, .shape = shape + 2};
}

static void input_of(struct resident *res, struct om_data *d, int l, int64_t first, int64_t rows,
                     DLTensor t[2], int64_t shape[4])
{
    if (l)
        two(t, res->y[l - 1], f32, OM_WIDTH, res->skip[l - 1], shape, rows);
    else
        two(t, d->ids + first * OM_IDS, i64, OM_IDS, d->x + first * OM_WIDTH, shape, rows);
}

static struct dp_offload_call call_of(struct resident *res, int l, int mb, int64_t rows,
                                      struct dp_random_key key, bool training, DLTensor *values,
                                      DLTensor *grads)
{
    const struct dp_offload_layer *layer = &res->m->layers[l];

    for (int32_t k = 0; k < layer->parameter_count; k++) {
        values[k] = *layer->parameters[k].value;
        grads[k] = layer->parameters[k].grad ? *layer->parameters[k].grad : (DLTensor){0};
    }
    return (struct dp_offload_call){.layer = l, .mb = mb, .rows = rows, .training = training,
                                    .random = key, .values = values, .grads = grads,
                                    .save = res->save[l]};
}

static int piece(struct resident *res, struct om_data *d, int mb, int64_t first, int64_t rows,
                 uint64_t step, uint64_t seed, bool training)
{
    DLTensor in[2], out[2], values[2], grads[2];
    int64_t in_shape[4], out_shape[4];
    int err = 0;

    for (int l = 0; l < OM_LAYERS && !err; l++) {
        struct dp_random_key key = dp_random_key(seed, step, (uint32_t)l, (uint32_t)mb);
        struct dp_offload_call call = call_of(res, l, mb, rows, key, training, values, grads);
        bool end = l + 1 == OM_LAYERS;
        input_of(res, d, l, first, rows, in, in_shape);
        two(out, end ? d->y + first : res->y[l], f32, end ? 1 : OM_WIDTH, res->skip[l], out_shape,
            rows);
        call.in = in;
        err = res->m->layers[l].ops->forward(res->m, &call, in, out);
    }
    for (int l = OM_LAYERS - 1; l >= 0 && training && !err; l--) {
        struct dp_random_key key = dp_random_key(seed, step, (uint32_t)l, (uint32_t)mb);
        struct dp_offload_call call = call_of(res, l, mb, rows, key, training, values, grads);
        bool end = l + 1 == OM_LAYERS;
        DLTensor gin[2];
        int64_t gin_shape[4];
        input_of(res, d, l, first, rows, in, in_shape);
        two(out, end ? d->gout + first : res->gy[(l + 1) % 2], f32, end ? 1 : OM_WIDTH,
            res->gskip[(l + 1) % 2], out_shape, rows);
        two(gin, l ? res->gy[l % 2] : NULL, f32, OM_WIDTH,
            l ? res->gskip[l % 2] : d->gin + first * OM_WIDTH, gin_shape, rows);
        call.in = in;
        err = res->m->layers[l].ops->backward(res->m, &call, out, gin);
    }
    return err;
}

int om_resident_step(struct om_model *m, struct om_data *d, int32_t microbatches, uint64_t step,
                     uint64_t seed, bool training)
{
    struct resident *res = calloc(1, sizeof(*res));
    int64_t sizes[OM_ROWS], first = 0;
    int32_t count;
    int err = dp_cut_sizes(DP_CUT_CHUNK, OM_ROWS, microbatches, sizes, &count);

    res->m = m;
    for (int mb = 0; mb < count && !err; mb++) {
        err = piece(res, d, mb, first, sizes[mb], step, seed, training);
        first += sizes[mb];
    }
    free(res);
    return err;
}

/* ---- tensors of a step ----------------------------------------------------------------------- */

static DLTensor tensor(void *data, DLDataType dtype, int64_t *shape, int64_t columns)
{
    shape[0] = OM_ROWS;
    shape[1] = columns;
    return (DLTensor){
        .data = data, .device = {kDLCPU, 0}, .ndim = 2, .dtype = dtype, .shape = shape};
}

void om_tensors_init(struct om_tensors *t, struct om_data *d)
{
    t->ids = tensor(d->ids, i64, t->ids_shape, OM_IDS);
    t->x = tensor(d->x, f32, t->x_shape, OM_WIDTH);
    t->y = tensor(d->y, f32, t->y_shape, 1);
    t->gin = tensor(d->gin, f32, t->x_shape, OM_WIDTH);
    t->gout = tensor(d->gout, f32, t->y_shape, 1);
    t->inputs[0] = &t->ids;
    t->inputs[1] = &t->x;
    t->outputs[0] = &t->y;
    t->gouts[0] = &t->gout;
    t->gins[0] = NULL;
    t->gins[1] = &t->gin;
}
