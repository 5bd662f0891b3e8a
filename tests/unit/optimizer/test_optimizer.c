/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimizers over a list of parameters, against the formulas of optimizer.h written down plainly.
 */
#include "cmocka_all.h"
#include "optimizer/internal.h"
#include "unit/base/failing_memory.h"

#include "base/fp16.h"
#include "base/tensor.h"
#include "optimizer/kernels.h"

#include <dualpipe/optimizer.h>
#include <dualpipe/random.h>

#include <pthread.h>

enum { N = 1700, STEPS = 5 }; /* more than three blocks, and a piece */

static const DLDataType float16 = {kDLFloat, 16, 1}, bfloat16 = {kDLBfloat, 16, 1};
static const DLDataType float32 = {kDLFloat, 32, 1}, float64 = {kDLFloat, 64, 1};

/* One parameter with everything that may lie beside it, float64 at most. */
struct vector {
    int64_t count;
    double value[N], grad[N], buffer[N];
    DLTensor value_tensor, grad_tensor;
    struct dp_parameter parameter;
};

static void vector_init(struct vector *v, int64_t count, DLDataType type, DLDataType grad_type)
{
    v->count = count;
    v->value_tensor = (DLTensor){.data = v->value, .device = {kDLCPU, 0}, .ndim = 1, .dtype = type,
                                 .shape = &v->count};
    v->grad_tensor = v->value_tensor;
    v->grad_tensor.data = v->grad;
    v->grad_tensor.dtype = grad_type;
    v->parameter = (struct dp_parameter){.name = "w", .value = &v->value_tensor,
                                         .grad = &v->grad_tensor};
}

static void put(DLDataType type, void *array, int64_t i, double x)
{
    if (type.bits == 64)
        ((double *)array)[i] = x;
    else if (type.bits == 32)
        ((float *)array)[i] = (float)x;
    else
        ((uint16_t *)array)[i] = type.code == kDLBfloat ? dp_bfloat16_store((float)x)
                                                         : dp_float16_store((float)x);
}

static double get(DLDataType type, const void *array, int64_t i)
{
    if (type.bits == 64)
        return ((const double *)array)[i];
    if (type.bits == 32)
        return (double)((const float *)array)[i];
    uint16_t h = ((const uint16_t *)array)[i];
    return (double)(type.code == kDLBfloat ? dp_bfloat16_load(h) : dp_float16_load(h));
}

static void draw(DLDataType type, void *array, int64_t count, uint32_t what)
{
    static float normal[N];

    dp_random_normal(dp_random_key(7, 0, what, 0), 0, normal, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        put(type, array, i, (double)normal[i]);
}

static struct dp_optimizer *must_make(const struct dp_optimizer_config *config, struct vector *v)
{
    struct dp_optimizer *o = NULL;

    if (dp_optimizer_new(config, &v->parameter, 1, &o))
        fail_msg("%s", dp_last_error());
    return o;
}

/* The state of one element, and its update. */
struct plain_float { float x, b, m, v, a; };
struct plain_double { double x, b, m, v, a; };

#define PLAIN(REAL, FMA, SQRT)                                                                     \
    static void plain_##REAL(const struct dp_optimizer_config *c, double rate, double scale,       \
                             int t, REAL grad, struct plain_##REAL *e)                             \
    {                                                                                              \
        const bool decoupled = c->kind == DP_OPTIMIZER_ADAMW || c->kind == DP_OPTIMIZER_ACCUM_ADAMW; \
        const int k = c->kind >= DP_OPTIMIZER_ACCUM_ADAM ? c->accumulation : 1, n = (t + k - 1) / k; \
        const REAL decay = decoupled ? 0 : (REAL)c->weight_decay, r = (REAL)rate;                  \
        const REAL keep = decoupled ? (REAL)(1 - rate * c->weight_decay) : 1;                      \
        const REAL b1 = (REAL)c->beta1, b2 = (REAL)c->beta2, eps = (REAL)c->epsilon;               \
        const double one = 1 - pow(c->beta1, n), two = 1 - pow(c->beta2, n);                       \
        REAL g = grad * (REAL)scale;                                                               \
        if (c->kind == DP_OPTIMIZER_SGD) {                                                         \
            g = FMA(decay, e->x, g);                                                               \
            e->b = (REAL)c->momentum * e->b + g;                                                   \
            e->x = FMA(-r, c->nesterov ? FMA((REAL)c->momentum, e->b, g) : e->b, e->x);            \
        } else if (c->kind < DP_OPTIMIZER_ACCUM_ADAM) {                                            \
            g = g + decay * e->x;                                                                  \
            e->m = b1 * e->m + (1 - b1) * g;                                                       \
            e->v = b2 * e->v + (1 - b2) * g * g;                                                   \
            e->x = e->x * keep - r * (e->m / (REAL)one / (SQRT(e->v / (REAL)two) + eps));          \
        } else {                                                                                   \
            const REAL rest1 = (REAL)(1 - c->beta1), rest2 = (REAL)(1 - c->beta2);                 \
            g = FMA(decay, e->x, g);                                                               \
            e->a = FMA((REAL)(1.0 / k), g, e->a);                                                  \
            REAL m = FMA(rest1, g, e->m), v = FMA(rest2 * g, g, e->v);                             \
            e->x = e->x * keep +                                                                   \
                   -(REAL)(rate / one) * m / (SQRT(v) / (REAL)sqrt(two) + eps);                    \
            if (t % k)                                                                             \
                return;                                                                            \
            e->m = FMA(rest1, e->a, e->m) * b1;                                                    \
            e->v = FMA(rest2 * e->a, e->a, e->v) * b2;                                             \
            e->a = 0;                                                                              \
        }                                                                                          \
    }
PLAIN(float, fmaf, sqrtf)
PLAIN(double, fma, sqrt)

static struct dp_optimizer_config config_of(int kind, bool nesterov)
{
    struct dp_optimizer_config c = dp_optimizer_defaults((enum dp_optimizer_kind)kind);

    c.weight_decay = 0.01;
    c.accumulation = 3;
    if (kind == DP_OPTIMIZER_SGD) {
        c.momentum = nesterov ? 0.9 : 0;
        c.nesterov = nesterov;
    }
    return c;
}

static void run_plain(const struct dp_optimizer_config *c, struct vector *v, DLDataType type)
{
    static struct plain_float f[N];
    static struct plain_double d[N];

    memset(f, 0, sizeof(f));
    memset(d, 0, sizeof(d));
    for (int64_t i = 0; i < v->count; i++) {
        d[i].x = get(type, v->value, i);
        f[i].x = (float)d[i].x;
    }
    for (int t = 1; t <= STEPS; t++) {
        draw(v->grad_tensor.dtype, v->grad, v->count, (uint32_t)t);
        for (int64_t i = 0; i < v->count; i++) {
            double g = get(v->grad_tensor.dtype, v->grad, i);
            if (type.bits == 64)
                plain_double(c, 0.01 / t, 0.5, t, g, &d[i]);
            else
                plain_float(c, 0.01 / t, 0.5, t, (float)g, &f[i]);
        }
    }
    for (int64_t i = 0; i < v->count; i++)
        put(type, v->value, i, type.bits == 64 ? d[i].x : (double)f[i].x);
}

static void run_ours(const struct dp_optimizer_config *c, struct vector *v, int parts)
{
    struct dp_optimizer *o = must_make(c, v);

    for (int t = 1; t <= STEPS; t++) {
        draw(v->grad_tensor.dtype, v->grad, v->count, (uint32_t)t);
        const struct dp_optimizer_step step = {.rate = 0.01 / t, .scale = 0.5};
        assert_int_equal(dp_optimizer_begin(o, &step), 0);
        for (int part = parts - 1; part >= 0; part--)
            dp_optimizer_run(o, part, parts);
    }
    dp_optimizer_free(o);
}

static void expect_formula(int kind, bool nesterov, int64_t count, DLDataType type,
                           DLDataType grad_type, int parts)
{
    static struct vector ours, plain;
    const struct dp_optimizer_config c = config_of(kind, nesterov);

    vector_init(&ours, count, type, grad_type);
    vector_init(&plain, count, type, grad_type);
    draw(type, ours.value, count, 0);
    draw(type, plain.value, count, 0);
    run_ours(&c, &ours, parts);
    run_plain(&c, &plain, type);
    if (memcmp(ours.value, plain.value, (size_t)count * type.bits / 8))
        fail_msg("%s, nesterov %d, %d elements of %d bits, %d parts: not by the formula",
                 dp_name(DP_NAMES_OPTIMIZER, c.kind), nesterov, (int)count, type.bits, parts);
}

CASE(every_optimizer_is_its_formula_to_the_last_bit)
{
    const DLDataType types[] = {float16, bfloat16, float32, float64};

    for (int kind = 0; kind < DP_OPTIMIZER_KINDS; kind++)
        for (int nesterov = 0; nesterov < (kind == DP_OPTIMIZER_SGD ? 2 : 1); nesterov++)
            for (int i = 0; i < 4; i++) {
                expect_formula(kind, nesterov, N, types[i], types[i], 1);
                expect_formula(kind, nesterov, N, types[i], i < 2 ? float32 : types[i], 3);
                expect_formula(kind, nesterov, 1, types[i], types[3 - i], 2);
                expect_formula(kind, nesterov, 513, types[i], types[(i + 1) % 4], 7);
            }
}

/* ---- instruction sets ------------------------------------------------------------------------ */

static void expect_same_bits(const struct dp_kernels *a, const struct dp_kernels *b, DLDataType type)
{
    static double x[2][N], g[N], s[2][3][N];
    const struct dp_numbers n = {.scale = 0.3, .decay = 0.02, .keep = 0.999, .rate = 0.01,
                                 .momentum = 0.9, .nesterov = true, .beta1 = 0.9, .beta2 = 0.99,
                                 .epsilon = 1e-8, .bias1 = 0.19, .bias2 = 0.0199, .step = 0.05,
                                 .share = 1.0 / 3, .fold = true};
    const struct dp_kernels *k[2] = {a, b};

    for (size_t count = 1; count < N; count = count * 2 + 5) {
        double sums[2][DP_LANES] = {0};
        for (int i = 0; i < 2; i++) {
            void *states[3] = {s[i][0], s[i][1], s[i][2]};
            for (uint32_t w = 0; w < 5; w++)
                draw(type, w < 3 ? (void *)s[i][w] : w == 3 ? (void *)x[i] : (void *)g, N, w);
            k[i]->mix(count, x[i], g, 0.3, 0.7);
            k[i]->sgd(&n, count, x[i], g, states);
            k[i]->sgd_momentum(&n, count, x[i], g, states);
            k[i]->squares(count, s[i][1], sums[i]);
            k[i]->scale(count, s[i][1], s[i][1], 0);
            k[i]->adam(&n, count, x[i], g, states);
            k[i]->accum(&n, count, x[i], g, states);
            k[i]->fold(&n, count, states);
            k[i]->scale(count, s[i][2], x[i], 1.1);
        }
        assert_memory_equal(x[0], x[1], sizeof(x[0]));
        assert_memory_equal(s[0], s[1], sizeof(s[0]));
        assert_memory_equal(sums[0], sums[1], sizeof(sums[0]));
    }
}

static void expect_same_halves(const struct dp_kernels *a, const struct dp_kernels *b)
{
    static uint16_t halves[65536], back[2][65536];
    static float x[2][65536];
    const struct dp_kernels *k[2] = {a, b};
    const size_t count = 0x7c00; /* without infinities and NaNs */

    for (size_t i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    for (int i = 0; i < 2; i++)
        k[i]->load_float16(count, x[i], halves);
    assert_memory_equal(x[0], x[1], sizeof(x[0]));
    for (size_t i = 0; i < count; i++)
        x[0][i] *= 1.0003f; /* between two of them */
    for (int i = 0; i < 2; i++)
        k[i]->store_float16(count, back[i], x[0]);
    assert_memory_equal(back[0], back[1], sizeof(back[0]));
    for (int i = 0; i < 2; i++)
        k[i]->load_bfloat16(count, x[i], halves);
    assert_memory_equal(x[0], x[1], sizeof(x[0]));
}

CASE(every_instruction_set_gives_the_same_bits)
{
    const struct dp_kernel_set *plain = dp_kernel_set_at(0), *set;

    assert_non_null(plain);
    for (int i = 1; (set = dp_kernel_set_at(i)); i++) {
        print_message("%s beside %s\n", set->name, plain->name);
        expect_same_bits(plain->float32, set->float32, float32);
        expect_same_bits(plain->float64, set->float64, float64);
        expect_same_halves(plain->float32, set->float32);
    }
}

/* ---- masters, mixing, state ------------------------------------------------------------------ */

CASE(a_gradient_may_move_between_steps)
{
    struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_SGD);
    float elsewhere[2] = {0, 1};
    static struct vector v;

    vector_init(&v, 1, float32, float32);
    struct dp_optimizer *o = must_make(&c, &v);
    v.grad_tensor.data = elsewhere;
    v.grad_tensor.byte_offset = sizeof(float);
    assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){.rate = 0.5, .scale = 1}), 0);
    assert_true(get(float32, v.value, 0) == -0.5);
    dp_optimizer_free(o);
}

CASE(sixteen_bit_parameters_do_not_lose_small_updates)
{
    struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_SGD);
    static struct vector v;

    vector_init(&v, 4, bfloat16, bfloat16);
    for (int i = 0; i < 4; i++) {
        put(bfloat16, v.value, i, 1);
        put(bfloat16, v.grad, i, 1);
    }
    struct dp_optimizer *o = must_make(&c, &v);
    for (int t = 0; t < 64; t++) /* each far below half a unit in the last place of 1 */
        assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){.rate = 0x1p-12, .scale = 1}),
                         0);
    assert_true(get(bfloat16, v.value, 0) == 1 - 64 * 0x1p-12);

    put(bfloat16, v.value, 0, 3);
    dp_optimizer_read_values(o);
    assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){.rate = 0, .scale = 1}), 0);
    assert_true(get(bfloat16, v.value, 0) == 3);
    dp_optimizer_free(o);
}

/* Mixing, update and copy as three sweeps over the same numbers. */
static void mix_apart(struct vector *v, struct dp_optimizer *o, const struct dp_optimizer_mix *mix)
{
    const DLDataType type = v->value_tensor.dtype;

    for (int64_t i = 0; i < v->count; i++) {
        double x = get(type, v->value, i), c = get(type, v->buffer, i);
        put(type, v->value, i, type.bits == 64
                                   ? fma(mix->take, c, mix->keep * x)
                                   : (double)fmaf((float)mix->take, (float)c, (float)mix->keep * (float)x));
    }
    assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){.rate = 0.1, .scale = 1}), 0);
    for (int64_t i = 0; i < v->count; i++)
        put(type, v->buffer, i, type.bits == 64 ? mix->put * get(type, v->value, i)
                                                : (double)((float)mix->put * (float)get(type, v->value, i)));
    memset(v->grad, 0, sizeof(v->grad));
}

CASE(mixing_in_the_sweep_is_mixing_before_it)
{
    static struct vector fused, apart;
    const DLDataType types[] = {float32, float64};

    for (int t = 0; t < 2; t++) {
        void *const buffers[] = {fused.buffer};
        const struct dp_optimizer_mix mix = {.keep = 0.3, .take = 0.9, .put = 0.7, .buffers = buffers};
        struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
        struct vector *both[] = {&fused, &apart};
        for (int i = 0; i < 2; i++) {
            vector_init(both[i], N, types[t], types[t]);
            draw(types[t], both[i]->value, N, 1);
            draw(types[t], both[i]->grad, N, 2);
            draw(types[t], both[i]->buffer, N, 3);
        }
        struct dp_optimizer *o = must_make(&c, &fused), *p = must_make(&c, &apart);
        assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){.rate = 0.1, .scale = 1,
                                                                         .zero_grads = true,
                                                                         .mix = &mix}),
                         0);
        mix_apart(&apart, p, &mix);
        const size_t bytes = N * (size_t)types[t].bits / 8;
        assert_memory_equal(fused.value, apart.value, bytes);
        assert_memory_equal(fused.buffer, apart.buffer, bytes);
        assert_memory_equal(fused.grad, apart.grad, bytes);
        dp_optimizer_free(o);
        dp_optimizer_free(p);
    }
}

CASE(mixing_of_16_bits_goes_through_the_master)
{
    static struct vector v;
    void *const buffers[] = {v.buffer};
    const struct dp_optimizer_mix mix = {.keep = 0.5, .take = 0.5, .put = 2, .buffers = buffers};
    struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_SGD);

    vector_init(&v, 600, float16, float32);
    for (int i = 0; i < 600; i++) {
        put(float16, v.value, i, i);
        put(float32, v.grad, i, 0);
        put(float16, v.buffer, i, i + 2);
    }
    struct dp_optimizer *o = must_make(&c, &v);
    assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){.scale = 1, .mix = &mix}), 0);
    for (int i = 0; i < 600; i++) {
        assert_true(get(float16, v.value, i) == i + 1);
        assert_true(get(float16, v.buffer, i) == 2 * (i + 1));
    }
    dp_optimizer_free(o);
}

static const struct dp_named_tensor *state_named(const struct dp_optimizer *o, const char *name)
{
    const struct dp_named_tensor *list = dp_optimizer_state(o);

    for (int32_t i = 0; i < dp_optimizer_state_count(o); i++)
        if (!strcmp(list[i].name, name))
            return &list[i];
    fail_msg("no state '%s'", name);
    return NULL;
}

CASE(the_state_is_named_and_goes_on_where_it_was)
{
    static struct vector first, second;
    struct dp_optimizer_config c = config_of(DP_OPTIMIZER_ACCUM_ADAM, false);

    vector_init(&first, N, bfloat16, float32);
    vector_init(&second, N, bfloat16, float32);
    draw(bfloat16, first.value, N, 0);
    struct dp_optimizer *o = must_make(&c, &first), *p = must_make(&c, &second);
    assert_int_equal(dp_optimizer_state_count(o), 5);
    assert_true(dp_optimizer_state_bytes(o) >= 4 * N * sizeof(float));
    for (int t = 0; t < 8; t++) {
        draw(float32, first.grad, N, (uint32_t)t);
        memcpy(second.grad, first.grad, sizeof(first.grad));
        if (t == 4) { /* in the middle of an accumulation */
            memcpy(second.value, first.value, sizeof(first.value));
            for (int32_t i = 0; i < 5; i++) {
                const struct dp_named_tensor *from = &dp_optimizer_state(o)[i];
                const struct dp_named_tensor *to = state_named(p, from->name);
                memcpy(to->tensor.data, from->tensor.data, from->tensor.ndim ? N * sizeof(float) : 8);
            }
        }
        const struct dp_optimizer_step step = {.rate = 0.1, .scale = 1};
        assert_int_equal(dp_optimizer_step(o, &step), 0);
        if (t >= 4)
            assert_int_equal(dp_optimizer_step(p, &step), 0);
    }
    assert_int_equal(*(int64_t *)state_named(p, "w/step")->tensor.data, 8);
    assert_int_equal(state_named(p, "w/mean")->tensor.shape[0], N);
    assert_memory_equal(first.value, second.value, N * sizeof(uint16_t));
    assert_memory_equal(state_named(o, "w/master")->tensor.data,
                        state_named(p, "w/master")->tensor.data, N * sizeof(float));
    dp_optimizer_free(o);
    dp_optimizer_free(p);
}

struct worker {
    struct dp_optimizer *o;
    int part;
};

enum { THREADS = 4 };

static void *run_part(void *arg)
{
    const struct worker *w = arg;

    dp_optimizer_run(w->o, w->part, THREADS);
    return NULL;
}

CASE(threads_may_share_a_step)
{
    static struct vector alone, shared;
    const struct dp_optimizer_config c = config_of(DP_OPTIMIZER_ACCUM_ADAMW, false);

    vector_init(&alone, N, bfloat16, bfloat16);
    vector_init(&shared, N, bfloat16, bfloat16);
    struct dp_optimizer *o = must_make(&c, &alone), *p = must_make(&c, &shared);
    for (uint32_t t = 0; t < 6; t++) {
        const struct dp_optimizer_step step = {.rate = 0.1, .scale = 1, .zero_grads = true};
        struct worker workers[THREADS];
        pthread_t threads[THREADS];
        draw(bfloat16, alone.grad, N, t);
        draw(bfloat16, shared.grad, N, t);
        assert_int_equal(dp_optimizer_step(o, &step), 0);
        assert_int_equal(dp_optimizer_begin(p, &step), 0);
        for (int i = 0; i < THREADS; i++) {
            workers[i] = (struct worker){p, i};
            assert_int_equal(pthread_create(&threads[i], NULL, run_part, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_memory_equal(alone.value, shared.value, N * sizeof(uint16_t));
    assert_memory_equal(alone.grad, shared.grad, N * sizeof(uint16_t));
    dp_optimizer_free(o);
    dp_optimizer_free(p);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Four parameters of one element, 1, without a gradient: what has changed is the weight decay. */
struct list {
    int64_t one;
    float values[4], grads[4];
    DLTensor tensors[8];
    struct dp_parameter p[4];
};

static void list_init(struct list *l)
{
    static const char *const names[] = {"fc.weight", "fc.bias", "bn1.weight", "fixed"};

    *l = (struct list){.one = 1};
    for (int i = 0; i < 4; i++) {
        l->values[i] = 1;
        for (int k = 0; k < 2; k++)
            l->tensors[2 * i + k] = (DLTensor){.data = k ? &l->grads[i] : &l->values[i],
                                               .device = {kDLCPU, 0}, .ndim = 1, .dtype = float32,
                                               .shape = &l->one};
        l->p[i] = (struct dp_parameter){.name = names[i], .value = &l->tensors[2 * i],
                                        .grad = &l->tensors[2 * i + 1]};
    }
    l->p[1].flags = l->p[2].flags = DP_PARAMETER_NO_DECAY;
    l->p[3].flags = DP_PARAMETER_FROZEN;
    l->p[3].grad = NULL;
}

static void expect_values(struct list *l, const struct dp_optimizer_config *c, const float *expected)
{
    struct dp_optimizer *o;

    if (dp_optimizer_new(c, l->p, 4, &o))
        fail_msg("%s", dp_last_error());
    assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){.rate = 0.5, .scale = 1}), 0);
    for (int i = 0; i < 4; i++)
        assert_true(l->values[i] == expected[i]);
    dp_optimizer_free(o);
}

CASE(weight_decay_is_for_those_that_are_meant_or_in_compat_for_the_others)
{
    struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_SGD);
    struct list l;

    c.weight_decay = 0.25;
    list_init(&l);
    expect_values(&l, &c, (const float[]){0.875f, 1, 1, 1});
    list_init(&l);
    c.decay_rule = DP_DECAY_COMPAT;
    expect_values(&l, &c, (const float[]){1, 0.875f, 0.875f, 1});
}

CASE(groups_of_the_callers_have_a_decay_and_a_rate_of_their_own)
{
    const struct dp_optimizer_group groups[] = {{0, 1}, {0.5, 1}, {0.5, 0.5}};
    struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_SGD);
    struct list l;

    c.groups = groups;
    c.group_count = 3;
    c.group_of = (const int32_t[]){2, 1, 0, 0};
    list_init(&l);
    expect_values(&l, &c, (const float[]){0.875f, 0.75f, 1, 1});
}

CASE(what_is_wrong_with_a_config_is_named)
{
    static const struct dp_optimizer_group bad[] = {{-1, 1}};
    static const int32_t none[4] = {0, 0, 0, 0}, beyond[4] = {0, 0, 1, 0};
    static const struct dp_optimizer_group good[] = {{0, 1}};
    const struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_ADAM);
    struct dp_optimizer_config cases[12];
    static const char *const says[] = {
        "kind: 5", "beta1: 1", "beta2: -0.5", "momentum: 1", "epsilon: -1", "weight_decay: inf",
        "nesterov: without momentum", "accumulation: 0", "decay_rule: 2",
        "groups: weight_decay: -1", "'bn1.weight' is of group 1, expected 0 to 0", "groups: 0",
    };
    struct dp_optimizer *o;
    struct list l;

    for (int i = 0; i < 12; i++)
        cases[i] = c;
    cases[0].kind = DP_OPTIMIZER_KINDS;
    cases[1].beta1 = 1;
    cases[2].beta2 = -0.5;
    cases[3].momentum = 1;
    cases[4].epsilon = -1;
    cases[5].weight_decay = HUGE_VAL;
    cases[6].nesterov = true;
    cases[7].accumulation = 0;
    cases[8].decay_rule = 2;
    cases[9].groups = bad, cases[9].group_count = 1, cases[9].group_of = none;
    cases[10].groups = good, cases[10].group_count = 1, cases[10].group_of = beyond;
    cases[11].groups = good, cases[11].group_of = none;
    list_init(&l);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(dp_optimizer_new(&cases[i], l.p, 4, &o), DP_EINVAL);
        if (!strstr(dp_last_error(), says[i]))
            fail_msg("says\n    %s\ninstead of\n    %s", dp_last_error(), says[i]);
    }
    l.tensors[2].device.device_type = l.tensors[3].device.device_type = kDLCUDA;
    assert_int_equal(dp_optimizer_new(&c, l.p, 4, &o), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "'fc.bias' lies on device 2:0, expected host memory"));
}

CASE(a_step_with_numbers_that_are_none_changes_nothing)
{
    const struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_ADAM);
    const struct dp_optimizer_mix mix = {.keep = NAN, .take = 1, .put = 1};
    const struct dp_optimizer_step wrong[] = {
        {.rate = NAN, .scale = 1}, {.rate = -1, .scale = 1}, {.rate = 1, .scale = HUGE_VAL},
        {.rate = 1, .scale = 1, .mix = &mix}};
    struct dp_optimizer *o;
    struct list l;

    list_init(&l);
    assert_int_equal(dp_optimizer_new(&c, l.p, 4, &o), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(dp_optimizer_step(o, &wrong[i]), DP_EINVAL);
    assert_int_equal(*(int64_t *)state_named(o, "fc.bias/step")->tensor.data, 0);
    assert_true(l.values[0] == 1);
    dp_optimizer_free(o);
}

static int make_and_step(void)
{
    const struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_ACCUM_ADAM);
    struct dp_optimizer *o;
    struct list l;

    list_init(&l);
    int err = dp_optimizer_new(&c, l.p, 4, &o);
    if (err)
        return err;
    err = dp_optimizer_step(o, &(struct dp_optimizer_step){.rate = 1, .scale = 1});
    dp_optimizer_free(o);
    return err;
}

CASE(without_memory_nothing_is_made_and_nothing_leaked)
{
    expect_every_failure_reported(make_and_step, 7);
    dp_optimizer_free(NULL);
}

CASE(the_state_lies_where_the_caller_says)
{
    static _Alignas(256) char memory[8192];
    struct dp_optimizer_config c = dp_optimizer_defaults(DP_OPTIMIZER_ADAM);
    struct dp_optimizer *here, *elsewhere;
    struct list a, b;

    list_init(&a);
    list_init(&b);
    memset(memory, 1, sizeof(memory));
    assert_int_equal(dp_optimizer_new(&c, a.p, 4, &elsewhere), 0);
    const size_t bytes = dp_optimizer_state_bytes(elsewhere);
    assert_in_range(bytes, 256, sizeof(memory) - 1);
    assert_int_equal(bytes % 256, 0);
    c.memory = memory;
    c.memory_bytes = bytes - 1;
    expect_error(dp_optimizer_new(&c, b.p, 4, &here), DP_ENOMEM, "bytes of the caller's memory");
    c.memory_bytes = bytes;
    assert_int_equal(dp_optimizer_new(&c, b.p, 4, &here), 0);
    assert_int_equal(dp_optimizer_state_bytes(here), bytes);
    for (int step = 0; step < 3; step++) {
        const struct dp_optimizer_step s = {.rate = 0.1, .scale = 1};
        assert_int_equal(dp_optimizer_step(here, &s), 0);
        assert_int_equal(dp_optimizer_step(elsewhere, &s), 0);
    }
    for (int32_t i = 0; i < dp_optimizer_state_count(here); i++) {
        const DLTensor *t = &dp_optimizer_state(here)[i].tensor;
        const DLTensor *u = &dp_optimizer_state(elsewhere)[i].tensor;
        assert_true(t->ndim == 0 || ((char *)t->data >= memory && (char *)t->data < memory + bytes));
        assert_memory_equal(t->data, u->data, (size_t)dp_tensor_numel(t) * t->dtype.bits / 8);
    }
    assert_int_equal(memory[bytes], 1);
    dp_optimizer_free(here);
    dp_optimizer_free(elsewhere);
}

CASE(kinds_have_names)
{
    enum dp_optimizer_kind kind;

    for (int i = 0; i < DP_OPTIMIZER_KINDS; i++) {
        assert_int_equal(dp_optimizer_kind_find(dp_name(DP_NAMES_OPTIMIZER, (enum dp_optimizer_kind)i),
                                                &kind),
                         0);
        assert_int_equal(kind, i);
    }
    expect_error(dp_optimizer_kind_find("adamm", &kind), DP_EINVAL, "did you mean 'adam'?");
    expect_error(dp_optimizer_kind_find("adafactor", &kind), DP_EINVAL, "expected sgd");
}
