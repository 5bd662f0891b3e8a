/* SPDX-License-Identifier: Apache-2.0
 *
 * What surrounds the model in `dualpipe train`: the bytes it learns from, AdamW, the learning rate.
 */
#include "cmocka_all.h"
#include "scratch.h"

#include "gpt_sequential.h"

#include <dualpipe/optimizer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- data ---------------------------------------------------------------------------------- */

/* A file of `len` bytes that count up from `first`; the caller unlinks it. */
static void make_file(char path[SCRATCH_LEN], size_t len, uint8_t first)
{
    FILE *f = scratch_file(path, "gpt") ? fopen(path, "wb") : NULL;

    assert_non_null(f);
    for (size_t i = 0; i < len; i++)
        fputc((uint8_t)(first + i), f);
    fclose(f);
}

static bool open_file(size_t len, int context, struct data *d)
{
    char path[SCRATCH_LEN];
    const char *paths[] = {path};

    make_file(path, len, 0);
    bool good = data_open(paths, 1, context, 1, d);
    unlink(path);
    return good;
}

CASE(files_are_read_one_after_the_other)
{
    char a[SCRATCH_LEN], b[SCRATCH_LEN];
    const char *paths[] = {a, b};
    struct data d;

    make_file(a, 100, 0);
    make_file(b, 50, 100);
    assert_true(data_open(paths, 2, 4, 1, &d));
    assert_int_equal(d.len, 150);
    for (size_t i = 0; i < 150; i++)
        assert_int_equal(d.bytes[i], i);
    data_close(&d);
    unlink(a);
    unlink(b);
}

/* Bytes count up, so a window's first byte tells its offset (in a file of 250 bytes). */
CASE(training_never_sees_what_is_held_out)
{
    enum { SEQUENCES = 64, CONTEXT = 5 };
    uint8_t tokens[SEQUENCES * CONTEXT], labels[SEQUENCES * CONTEXT];
    struct batch batch = {tokens, labels};
    bool trained[256] = {false};
    struct data d;

    assert_true(open_file(250, CONTEXT, &d));
    for (uint64_t step = 0; step < 100; step++) {
        data_batch(&d, DATA_TRAIN, step, SEQUENCES, &batch);
        for (size_t i = 0; i < sizeof(tokens); i++) {
            trained[tokens[i]] = trained[labels[i]] = true;
            assert_int_equal(labels[i], tokens[i] + 1);
        }
    }
    for (uint64_t number = 0; number < 100; number++) {
        data_batch(&d, DATA_HELD_OUT, number, SEQUENCES, &batch);
        for (size_t i = 0; i < sizeof(tokens); i++)
            assert_false(trained[tokens[i]] || trained[labels[i]]);
    }
    data_close(&d);
}

CASE(a_batch_is_the_same_whenever_it_is_drawn)
{
    uint8_t tokens[2][40], labels[2][40];
    struct data d;

    assert_true(open_file(200, 5, &d));
    for (int i = 0; i < 2; i++)
        data_batch(&d, DATA_TRAIN, 17, 8, &(struct batch){tokens[i], labels[i]});
    assert_memory_equal(tokens[0], tokens[1], 40);
    data_batch(&d, DATA_TRAIN, 18, 8, &(struct batch){tokens[1], labels[1]});
    assert_memory_not_equal(tokens[0], tokens[1], 40);
    data_close(&d);
}

CASE(every_length_from_the_least_on_can_be_cut)
{
    enum { CONTEXT = 3 };
    uint8_t tokens[8 * CONTEXT], labels[8 * CONTEXT];
    struct data d;

    for (size_t len = 2 * (CONTEXT + 1); len < 300; len++) {
        assert_true(open_file(len, CONTEXT, &d));
        assert_true(d.chunk_len - d.held_len >= d.window && d.held_len >= d.window);
        assert_true(d.chunks * d.chunk_len <= d.len);
        data_batch(&d, DATA_TRAIN, 0, 8, &(struct batch){tokens, labels});
        data_batch(&d, DATA_HELD_OUT, 0, 8, &(struct batch){tokens, labels});
        data_close(&d);
    }
    assert_false(open_file(2 * (CONTEXT + 1) - 1, CONTEXT, &d));
    assert_false(open_file(0, CONTEXT, &d));
}

CASE(what_is_no_file_is_refused)
{
    const char *missing[] = {"no/such/file"}, *directory[] = {"."};
    struct data d;

    assert_false(data_open(missing, 1, 4, 1, &d));
    assert_false(data_open(directory, 1, 4, 1, &d));
}

CASE(equally_frequent_bytes_cost_the_logarithm_of_their_number)
{
    struct data d;

    assert_true(open_file(128, 5, &d));
    assert_float_equal(data_entropy(&d), log(128), 1e-12);
    data_close(&d);
}

/* ---- the optimizer -------------------------------------------------------------------------- */

static const struct gpt_config tiny = {
    .layers = 2, .width = 4, .heads = 2, .context = 5, .batch = 2, .seed = 3};

CASE(the_first_step_moves_every_weight_by_the_rate_against_its_gradient)
{
    const double rate = 0.01, decay = 0.5;
    struct sequential *s, *before;
    struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    struct dp_optimizer *o;

    assert_int_equal(sequential_new(&tiny, 1, 1, &s), 0);
    assert_int_equal(sequential_new(&tiny, 1, 1, &before), 0);
    config.weight_decay = decay;
    assert_int_equal(
        dp_optimizer_new(&config, s->model.parameters, s->model.parameter_count, &o), 0);
    for (int32_t k = 0; k < s->model.parameter_count; k++)
        for (int64_t i = 0; i < dp_parameter_elements(&s->model.parameters[k]); i++)
            ((real *)s->model.parameters[k].grad->data)[i] = i % 2 ? -3 : 2;
    assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){
                                              .rate = rate, .scale = 0.1, .zero_grads = true}),
                     0);
    for (int32_t k = 0; k < s->model.parameter_count; k++) {
        const struct dp_parameter *p = &s->model.parameters[k];
        const real *now = p->value->data, *was = before->model.parameters[k].value->data;
        double keep = p->value->shape[0] > 1 ? 1 - rate * decay : 1; /* vectors do not decay */
        for (int64_t i = 0; i < dp_parameter_elements(p); i++) {
            assert_float_equal(now[i], was[i] * keep + (i % 2 ? rate : -rate), 1e-6);
            assert_true(((real *)p->grad->data)[i] == 0);
        }
    }
    dp_optimizer_free(o);
    sequential_free(s);
    sequential_free(before);
}

CASE(the_rate_rises_to_its_peak_and_falls_to_a_tenth)
{
    assert_float_equal(gpt_rate(0, 100, 10, 2), 0.2, 1e-12);
    assert_float_equal(gpt_rate(9, 100, 10, 2), 2, 1e-12);
    assert_float_equal(gpt_rate(10, 100, 10, 2), 2, 1e-12);
    assert_float_equal(gpt_rate(100, 100, 10, 2), 0.2, 1e-12);
    for (uint64_t step = 10; step < 99; step++)
        assert_true(gpt_rate(step + 1, 100, 10, 2) < gpt_rate(step, 100, 10, 2));
    assert_float_equal(gpt_rate(0, 1, 0, 2), 2, 1e-12);
    assert_true(gpt_rate(0, 1, 5, 2) > 0); /* a run shorter than its warm-up */
}
