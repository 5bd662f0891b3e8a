/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of `dualpipe train`, built with double, against finite differences: every op by itself,
 * then the whole model, cut into one stage and into several.
 */
#include "cmocka_all.h"

#include "gpt_sequential.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double step = 1e-5, tolerance = 1e-7;

static void fill(uint32_t what, size_t count, real *x)
{
    float normal[4096];

    assert_true(count <= 4096);
    dp_random_normal(dp_random_key(7, 0, what, 0), 0, normal, count);
    for (size_t i = 0; i < count; i++)
        x[i] = (real)normal[i];
}

static double dot(size_t count, const real *a, const real *b)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* A scalar function of everything that the test varies. */
typedef double (*scalar_fn)(void *user);

/* gradient[i] must be what f does when x[i] moves. */
static void assert_gradient(scalar_fn f, void *user, size_t count, real *x, const real *gradient)
{
    for (size_t i = 0; i < count; i++) {
        real at = x[i];
        x[i] = at + step;
        double up = f(user);
        x[i] = at - step;
        double down = f(user);
        x[i] = at;
        double expected = (up - down) / (2 * step);
        if (fabs(gradient[i] - expected) > tolerance * (1 + fabs(expected)))
            fail_msg("gradient %zu of %zu: %.10g, finite differences say %.10g", i, count,
                     gradient[i], expected);
    }
}

/* ---- op by op ------------------------------------------------------------------------------- */

enum { N = 6, IN = 5, OUT = 4 };

#define OPS compute_cpu.ops

struct linear {
    bool table; /* of an embedding, used as weights */
    real x[N * IN], w[IN * OUT], b[OUT], y[N * OUT], dy[N * OUT];
};

static double linear_value(void *user)
{
    struct linear *l = user;
    OPS->linear_forward(&compute_cpu, N, IN, OUT, l->table, l->x, l->w, l->b, l->y);
    return dot(N * OUT, l->y, l->dy);
}

static void assert_linear_gradients(bool table)
{
    struct linear l = {.table = table};
    real dx[N * IN], dw[IN * OUT] = {0}, db[OUT] = {0};

    fill(1, N * IN, l.x);
    fill(2, IN * OUT, l.w);
    fill(3, OUT, l.b);
    fill(4, N * OUT, l.dy);
    OPS->linear_backward(&compute_cpu, N, IN, OUT, table, l.dy, l.w, dx);
    OPS->linear_weight(&compute_cpu, N, IN, OUT, table, l.x, l.dy, dw, db);
    assert_gradient(linear_value, &l, N * IN, l.x, dx);
    assert_gradient(linear_value, &l, IN * OUT, l.w, dw);
    assert_gradient(linear_value, &l, OUT, l.b, db);
}

CASE(a_linear_layer_has_the_gradients_of_finite_differences)
{
    assert_linear_gradients(false);
}

/* Of a head that is the table of the embedding. */
CASE(a_layer_of_a_table_has_the_gradients_of_finite_differences)
{
    assert_linear_gradients(true);
}

struct norm {
    real x[N * IN], gain[IN], bias[IN], y[N * IN], xhat[N * IN], rstd[N], dy[N * IN];
};

static double norm_value(void *user)
{
    struct norm *l = user;
    OPS->norm_forward(&compute_cpu, N, IN, l->x, l->gain, l->bias, l->y, l->xhat, l->rstd);
    return dot(N * IN, l->y, l->dy);
}

CASE(a_norm_has_the_gradients_of_finite_differences)
{
    struct norm l;
    real dx[N * IN] = {0}, dgain[IN] = {0}, dbias[IN] = {0};

    fill(1, N * IN, l.x);
    fill(2, IN, l.gain);
    fill(3, IN, l.bias);
    fill(4, N * IN, l.dy);
    norm_value(&l);
    OPS->norm_backward(&compute_cpu, N, IN, l.dy, l.gain, l.xhat, l.rstd, dx);
    OPS->norm_weight(&compute_cpu, N, IN, l.dy, l.xhat, dgain, dbias);
    assert_gradient(norm_value, &l, N * IN, l.x, dx);
    assert_gradient(norm_value, &l, IN, l.gain, dgain);
    assert_gradient(norm_value, &l, IN, l.bias, dbias);
}

enum { SEQUENCES = 2, CONTEXT = 5, HEADS = 2, WIDTH = 6, TOKENS = SEQUENCES * CONTEXT };
static const struct attention attention = {SEQUENCES, CONTEXT, HEADS, WIDTH};

struct mix {
    real qkv[TOKENS * 3 * WIDTH], p[TOKENS * HEADS * CONTEXT], y[TOKENS * WIDTH];
    real dy[TOKENS * WIDTH];
};

static double mix_value(void *user)
{
    struct mix *m = user;
    OPS->attention_forward(&compute_cpu, &attention, m->qkv, m->p, m->y);
    return dot(TOKENS * WIDTH, m->y, m->dy);
}

CASE(attention_has_the_gradients_of_finite_differences)
{
    struct mix m;
    real dqkv[TOKENS * 3 * WIDTH], scratch[CONTEXT * CONTEXT];

    fill(1, TOKENS * 3 * WIDTH, m.qkv);
    fill(2, TOKENS * WIDTH, m.dy);
    mix_value(&m);
    OPS->attention_backward(&compute_cpu, &attention, m.qkv, m.p, m.y, m.dy, dqkv, scratch);
    assert_gradient(mix_value, &m, TOKENS * 3 * WIDTH, m.qkv, dqkv);
}

CASE(attention_does_not_look_into_the_future)
{
    struct mix m;
    real before[TOKENS * WIDTH];

    fill(1, TOKENS * 3 * WIDTH, m.qkv);
    fill(2, TOKENS * WIDTH, m.dy);
    mix_value(&m);
    memcpy(before, m.y, sizeof(before));
    fill(3, 3 * WIDTH, m.qkv + (CONTEXT - 1) * 3 * WIDTH); /* last position of sequence 0 */
    mix_value(&m);
    assert_memory_equal(before, m.y, (CONTEXT - 1) * WIDTH * sizeof(real));
    assert_memory_not_equal(before + (CONTEXT - 1) * WIDTH, m.y + (CONTEXT - 1) * WIDTH,
                            WIDTH * sizeof(real));
    assert_memory_equal(before + CONTEXT * WIDTH, m.y + CONTEXT * WIDTH,
                        CONTEXT * WIDTH * sizeof(real));
}

struct gelu {
    real x[N], slope[N], y[N], dy[N];
};

static double gelu_value(void *user)
{
    struct gelu *g = user;
    memcpy(g->slope, g->x, sizeof(g->x));
    OPS->gelu_forward(&compute_cpu, N, g->slope, g->y);
    return dot(N, g->y, g->dy);
}

CASE(gelu_has_the_gradients_of_finite_differences)
{
    struct gelu g = {.x = {-30, -1.5, -0.1, 0, 0.7, 30}};
    real dx[N];

    fill(1, N, g.dy);
    gelu_value(&g);
    memcpy(dx, g.dy, sizeof(dx));
    OPS->gelu_backward(&compute_cpu, N, g.slope, dx);
    assert_gradient(gelu_value, &g, N, g.x, dx);
}

struct entropy {
    real logits[3 * IN];
    uint8_t labels[3];
};

static double entropy_value(void *user)
{
    struct entropy *e = user;
    double value;

    OPS->entropy_forward(&compute_cpu, 3, IN, e->logits, e->labels, &value);
    return 0.25 * value;
}

CASE(cross_entropy_has_the_gradients_of_finite_differences)
{
    struct entropy e = {.labels = {0, 4, 2}};
    real d[3 * IN];

    fill(1, 3 * IN, e.logits);
    OPS->entropy_backward(&compute_cpu, 3, IN, e.logits, e.labels, 0.25, d);
    assert_gradient(entropy_value, &e, 3 * IN, e.logits, d);
}

CASE(cross_entropy_of_equal_logits_is_the_logarithm_of_their_number)
{
    struct entropy e = {.logits = {1000, 1000, 1000, 1000, 1000}, .labels = {3}};
    double value;

    OPS->entropy_forward(&compute_cpu, 1, IN, e.logits, e.labels, &value);
    assert_float_equal(value, log(IN), 1e-12);
}

CASE(dropout_keeps_the_mean_and_repeats_itself)
{
    enum { COUNT = 4096 };
    static real x[COUNT], again[COUNT];
    struct dp_random_key key = dp_random_key(1, 2, 3, 4);
    double sum = 0;

    for (int i = 0; i < COUNT; i++)
        x[i] = again[i] = 1;
    OPS->dropout(&compute_cpu, key, 0.25f, COUNT, x);
    OPS->dropout(&compute_cpu, key, 0.25f, COUNT, again);
    for (int i = 0; i < COUNT; i++)
        sum += x[i];
    assert_memory_equal(x, again, sizeof(x));
    assert_float_equal(sum / COUNT, 1, 0.05);
}

/* ---- the whole model ------------------------------------------------------------------------ */

enum { MODEL_TOKENS = 2 * 4 };
static const struct gpt_config config = {
    .layers = 4, .width = 6, .heads = 2, .context = 4, .batch = 2, .dropout = 0.3f, .seed = 11};

/* The model as `stages` stages, one after the other in this thread, for one micro-batch. */
struct model {
    int stages;
    struct gpt_layers *gpt;
    struct dp_layers *layers;
    struct dp_stage stage[4];
    DLTensor **grads[4];
    void *save[4];
    real *x[5], *dx[5];
    DLTensor in[5], gout[5];
    int64_t shape[3];
    uint8_t tokens[MODEL_TOKENS], labels[MODEL_TOKENS];
};

static void stage_init(struct model *m, const struct gpt_config *c, int s)
{
    int first;
    const int count = gpt_layers_of_stage(c, s, m->stages, &first);

    assert_int_equal(dp_layers_add(m->layers, first, first + count, &m->stage[s]), 0);
    m->save[s] = malloc(m->stage[s].save_bytes);
    m->grads[s] = calloc((size_t)m->stage[s].parameter_count, sizeof(DLTensor *));
    for (int32_t i = 0; i < m->stage[s].parameter_count; i++)
        m->grads[s][i] = m->stage[s].parameters[i].grad;
}

static void model_init(struct model *m, const struct gpt_config *c, int stages)
{
    *m = (struct model){.stages = stages, .shape = {2, 4, GPT_BYTES}};
    for (int i = 0; i < MODEL_TOKENS; i++) {
        m->tokens[i] = (uint8_t)(37 * i);
        m->labels[i] = (uint8_t)(37 * (i + 1));
    }
    for (int s = 0; s <= stages; s++) {
        DLTensor t = {NULL, {kDLCPU, 0}, 3, {kDLFloat, 64, 1}, m->shape, NULL, 0};
        m->x[s] = calloc(MODEL_TOKENS * GPT_BYTES, sizeof(real));
        m->dx[s] = calloc(MODEL_TOKENS * GPT_BYTES, sizeof(real));
        m->in[s] = m->gout[s] = t;
        m->in[s].data = s ? (void *)m->x[s] : m->tokens;
        m->gout[s].data = s ? m->dx[s] : NULL;
    }
    assert_int_equal(gpt_layers_new(c, NULL, false, &m->gpt), 0);
    const struct dp_layers_config how = {
        .model = gpt_layers_model(m->gpt), .rows = c->batch, .seed = c->seed};
    assert_int_equal(dp_layers_new(&how, &m->layers), 0);
    for (int s = 0; s < stages; s++)
        stage_init(m, c, s);
}

static void model_fini(struct model *m)
{
    for (int s = 0; s <= m->stages; s++) {
        free(m->x[s]);
        free(m->dx[s]);
    }
    for (int s = 0; s < m->stages; s++) {
        free(m->save[s]);
        free(m->grads[s]);
    }
    dp_layers_free(m->layers);
    gpt_layers_free(m->gpt);
}

static struct dp_stage_call model_call(struct model *m, int s)
{
    return (struct dp_stage_call){.stage = s, .mb_global = 3, .step = 5, .training = true,
                                  .save = m->save[s], .in = &m->in[s], .grads = m->grads[s]};
}

static double model_value(void *user)
{
    struct model *m = user;
    DLTensor labels = {m->labels, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, m->shape, NULL, 0};
    double value;
    int32_t count;

    for (int s = 0; s < m->stages; s++) {
        struct dp_stage_call call = model_call(m, s);
        m->stage[s].ops->forward(m->stage[s].user, &call, &m->in[s], &m->in[s + 1]);
    }
    gpt_layers_model(m->gpt)->loss->loss(NULL, &(struct dp_stage_call){0}, &m->in[m->stages],
                                         &labels, &value, 1, &count);
    return value;
}

static void model_gradients(struct model *m, enum dp_backward_mode mode)
{
    DLTensor labels = {m->labels, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, m->shape, NULL, 0};

    model_value(m);
    gpt_layers_model(m->gpt)->loss->loss_backward(NULL, &(struct dp_stage_call){0},
                                                  &m->in[m->stages], &labels, 1,
                                                  &m->gout[m->stages]);
    for (int s = m->stages - 1; s >= 0; s--) {
        struct dp_stage_call call = model_call(m, s);
        m->stage[s].ops->backward(m->stage[s].user, &call, &m->gout[s + 1], &m->gout[s], mode);
    }
    for (int s = 0; mode == DP_BACKWARD_INPUT && s < m->stages; s++) {
        struct dp_stage_call call = model_call(m, s);
        m->stage[s].ops->weight(m->stage[s].user, &call);
    }
}

CASE(the_whole_model_has_the_gradients_of_finite_differences)
{
    struct model m;

    model_init(&m, &config, 2);
    model_gradients(&m, DP_BACKWARD_FULL);
    for (int s = 0; s < m.stages; s++)
        for (int32_t i = 0; i < m.stage[s].parameter_count; i++) {
            const struct dp_parameter *p = &m.stage[s].parameters[i];
            const size_t count = (size_t)dp_parameter_elements(p);
            /* Some of each tensor: all would take a minute. */
            assert_gradient(model_value, &m, count < 20 ? count : 20, p->value->data,
                            p->grad->data);
        }
    model_fini(&m);
}

/* All of its parameters or gradients. */
static real *model_read(const struct model *m, bool gradients, size_t *count)
{
    real *all = calloc(gpt_parameter_count(&config), sizeof(*all));

    assert_non_null(all);
    *count = 0;
    for (int s = 0; s < m->stages; s++)
        *count += sequential_read(&m->stage[s], gradients, all + *count);
    assert_int_equal(*count, gpt_parameter_count(&config));
    return all;
}

static void assert_same(const struct model *a, const struct model *b, bool gradients)
{
    size_t count;
    real *of_a = model_read(a, gradients, &count), *of_b = model_read(b, gradients, &count);

    assert_memory_equal(of_a, of_b, count * sizeof(real));
    free(of_a);
    free(of_b);
}

CASE(a_split_backward_leaves_the_same_gradients_as_a_full_one)
{
    struct model full, split;

    model_init(&full, &config, 2);
    model_init(&split, &config, 2);
    model_gradients(&full, DP_BACKWARD_FULL);
    model_gradients(&split, DP_BACKWARD_INPUT);
    assert_same(&full, &split, true);
    model_fini(&full);
    model_fini(&split);
}

CASE(the_model_is_the_same_however_it_is_cut)
{
    struct model whole;

    model_init(&whole, &config, 1);
    model_gradients(&whole, DP_BACKWARD_FULL);
    for (int stages = 2; stages <= 4; stages += 2) {
        struct model cut;
        model_init(&cut, &config, stages);
        model_gradients(&cut, DP_BACKWARD_INPUT);
        assert_same(&cut, &whole, false);
        assert_same(&cut, &whole, true);
        model_fini(&cut);
    }
    model_fini(&whole);
}

/* ---- the baseline --------------------------------------------------------------------------- */

CASE(the_baseline_takes_the_mean_over_its_micro_batches)
{
    enum { M = 5 };
    uint8_t tokens[M * MODEL_TOKENS], labels[M * MODEL_TOKENS];
    struct batch batch = {tokens, labels};
    double losses[M], mean = 0;
    struct sequential *s;
    struct model m;
    struct gpt_config plain = config;

    plain.dropout = 0;
    model_init(&m, &plain, 1);
    for (int mb = 0; mb < M; mb++) {
        memcpy(tokens + mb * MODEL_TOKENS, m.tokens, MODEL_TOKENS);
        memcpy(labels + mb * MODEL_TOKENS, m.labels, MODEL_TOKENS);
    }
    assert_int_equal(sequential_new(&plain, M, 2, &s), 0);
    assert_int_equal(sequential_train(s, &batch, losses), 0);
    /* All micro-batches are equal, so their mean gradient is that of the first. */
    model_gradients(&m, DP_BACKWARD_FULL);
    size_t count;
    real *right = model_read(&m, true, &count), *mean_of = calloc(count, sizeof(*mean_of));
    assert_int_equal(sequential_read(&s->model, true, mean_of), count);
    for (size_t i = 0; i < count; i++)
        assert_float_equal(mean_of[i], right[i], 1e-12);
    for (int mb = 0; mb < M; mb++)
        mean += losses[mb] / M;
    assert_float_equal(mean, model_value(&m), 1e-12);
    free(right);
    free(mean_of);
    sequential_free(s);
    model_fini(&m);
}
