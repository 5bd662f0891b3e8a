/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of mlp-bn against differences of its loss: a small step of one tensor along its own
 * gradient g changes the loss by |g|^2 for each unit.
 */
#include "cmocka_all.h"

#include "train/model.h"

#include <dualpipe/batch_norm.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 6, FEATURES = 5, CLASSES = 10, MAX_TENSOR = 70 };

static const struct gpt_config config = {.model = &mlp_bn_model,
                                         .layers = 3,
                                         .width = 7,
                                         .context = FEATURES,
                                         .batch = SAMPLES,
                                         .seed = 5,
                                         .microbatches = 1};

struct run {
    struct gpt_stage *g;
    uint8_t features[SAMPLES * FEATURES], labels[SAMPLES];
    real logits[SAMPLES * CLASSES], d_logits[SAMPLES * CLASSES];
    int64_t of_features[2], of_labels[2], of_logits[3];
    DLTensor in, label, out, gout;
    struct dp_stage_call call;
};

static void run_init(struct run *r)
{
    const DLDevice cpu = {kDLCPU, 0};

    *r = (struct run){.of_features = {SAMPLES, FEATURES},
                      .of_labels = {SAMPLES, 1},
                      .of_logits = {SAMPLES, 1, CLASSES}};
    assert_int_equal(gpt_stage_new(&config, 0, 1, &r->g), 0);
    for (int i = 0; i < SAMPLES * FEATURES; i++)
        r->features[i] = (uint8_t)(i * i * 37 % 256);
    for (int i = 0; i < SAMPLES; i++)
        r->labels[i] = (uint8_t)(3 * i % CLASSES);
    r->in = (DLTensor){r->features, cpu, 2, {kDLUInt, 8, 1}, r->of_features, NULL, 0};
    r->label = (DLTensor){r->labels, cpu, 2, {kDLUInt, 8, 1}, r->of_labels, NULL, 0};
    r->out = (DLTensor){r->logits, cpu, 3, {kDLFloat, 32, 1}, r->of_logits, NULL, 0};
    r->gout = r->out;
    r->gout.data = r->d_logits;
    r->call = (struct dp_stage_call){.save = malloc(r->g->save_bytes),
                                     .training = true,
                                     .in = &r->in,
                                     .grads = r->g->grads_list};
    assert_non_null(r->call.save);
}

static void run_fini(struct run *r)
{
    free(r->call.save);
    gpt_stage_free(r->g);
}

static double loss_of(struct run *r)
{
    double value;
    int32_t count;

    for (int i = 0; i < config.layers; i++)
        dp_batch_norm_forget(r->g->norms[i]);
    assert_int_equal(mlp_bn_model.ops->forward(r->g, &r->call, &r->in, &r->out), 0);
    assert_int_equal(gpt_loss_ops.loss(NULL, &r->call, &r->out, &r->label, &value, 1, &count), 0);
    return value;
}

static void backward(struct run *r, bool split)
{
    const struct dp_stage_ops *ops = mlp_bn_model.ops;

    memset(r->g->grads, 0, r->g->params.count * sizeof(real));
    loss_of(r);
    gpt_loss_ops.loss_backward(NULL, &r->call, &r->out, &r->label, 1, &r->gout);
    assert_int_equal(
        ops->backward(r->g, &r->call, &r->gout, NULL, split ? DP_BACKWARD_INPUT : DP_BACKWARD_FULL),
        0);
    if (split)
        assert_int_equal(ops->weight(r->g, &r->call), 0);
}

/* The loss after a step of a tensor along its gradient. */
static double loss_at(struct run *r, const struct tensor *t, double step)
{
    real *w = r->g->weights + t->offset, *g = r->g->grads + t->offset;
    const size_t count = tensor_count(t);
    real before[MAX_TENSOR];

    assert_true(count <= MAX_TENSOR);
    memcpy(before, w, count * sizeof(real));
    for (size_t i = 0; i < count; i++)
        w[i] = (real)(w[i] + step * g[i]);
    const double loss = loss_of(r);
    memcpy(w, before, count * sizeof(real));
    return loss;
}

static void gradients_are_what_the_loss_changes_by(void **state)
{
    struct run r;

    (void)state;
    run_init(&r);
    backward(&r, false);
    for (size_t i = 0; i < r.g->params.tensors_len; i++) {
        const struct tensor *t = &r.g->params.tensors[i];
        double squares = 0;
        for (size_t k = 0; k < tensor_count(t); k++)
            squares += pow(r.g->grads[t->offset + k], 2);
        const double unit = 1e-3 / sqrt(squares + 1e-4), /* a step of at most 0.001 */
            change = (loss_at(&r, t, unit) - loss_at(&r, t, -unit)) / (2 * unit);
        if (!(fabs(change - squares) <= 0.02 * squares + 1e-3 * sqrt(squares + 1e-4)))
            fail_msg("%s %d: the loss changes by %g, expected %g", t->name, t->group, change,
                     squares);
    }
    run_fini(&r);
}

static void a_backward_in_two_parts_gives_the_same_bits(void **state)
{
    struct run r;

    (void)state;
    run_init(&r);
    const size_t bytes = r.g->params.count * sizeof(real);
    real *whole = malloc(bytes);
    assert_non_null(whole);
    backward(&r, false);
    memcpy(whole, r.g->grads, bytes);
    backward(&r, true);
    assert_memory_equal(whole, r.g->grads, bytes);
    free(whole);
    run_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_what_the_loss_changes_by),
        cmocka_unit_test(a_backward_in_two_parts_gives_the_same_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
