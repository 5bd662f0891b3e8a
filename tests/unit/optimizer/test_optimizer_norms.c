/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning rates, norms, clipping and loss scales.
 */
#include "base/internal.h"
#include "cmocka_all.h"

#include "base/fp16.h"

#include <dualpipe/optimizer.h>

/* ---- rates ----------------------------------------------------------------------------------- */

static void assert_rate(const struct dp_rate *r, int64_t step, double expected)
{
    double rate = dp_rate_at(r, step);

    if (!(fabs(rate - expected) <= 1e-14 * fabs(expected)))
        fail_msg("step %d: %.17g, expected %.17g", (int)step, rate, expected);
}

/* As torch's SequentialLR of LinearLR and CosineAnnealingLR: see Decent-DP. */
CASE(decent_dps_rate_warms_up_and_follows_a_cosine_that_comes_back)
{
    struct dp_rate r = dp_rate_defaults(0.5, 10, 20);

    assert_int_equal(dp_rate_check(&r), 0);
    assert_rate(&r, 0, 0.005);
    assert_rate(&r, 4, 0.5 * (0.01 + 0.99 * 0.4));
    assert_rate(&r, 10, 0.5);
    assert_rate(&r, 20, (0.5 + 1e-6) / 2);
    assert_rate(&r, 30, 1e-6);
    assert_rate(&r, 50, 0.5);
    r.hold = true;
    assert_rate(&r, 20, (0.5 + 1e-6) / 2);
    assert_rate(&r, 50, 1e-6);
    r.warmup = 0;
    assert_rate(&r, 0, 0.5);
}

CASE(the_other_rates_are_what_they_are_called)
{
    const struct dp_rate constant = {.kind = DP_RATE_CONSTANT, .peak = 2, .warmup = 2};
    const struct dp_rate linear = {.kind = DP_RATE_LINEAR, .peak = 2, .last = 1, .period = 4};
    const struct dp_rate stairs = {.kind = DP_RATE_STEP, .peak = 2, .factor = 0.1, .period = 3,
                                   .warmup = 1, .warmup_factor = 0.5};

    assert_int_equal(dp_rate_check(&constant) | dp_rate_check(&linear) | dp_rate_check(&stairs), 0);
    assert_rate(&constant, 1, 1);
    assert_rate(&constant, 1000, 2);
    assert_rate(&linear, 1, 1.75);
    assert_rate(&linear, 40, 1);
    assert_rate(&stairs, 0, 1);
    assert_rate(&stairs, 3, 2);
    assert_rate(&stairs, 4, 0.2);
    assert_rate(&stairs, 7, 0.02);
}

CASE(a_rate_that_is_none_is_refused)
{
    const struct dp_rate good = dp_rate_defaults(1, 2, 3);
    struct dp_rate cases[] = {good, good, good, good, good, good, good};
    static const char *const says[] = {"kind 4",     "peak -1",   "last nan", "factor inf",
                                       "warmup_factor -1", "warmup -1", "period 0"};

    cases[0].kind = DP_RATE_STEP + 1;
    cases[1].peak = -1;
    cases[2].last = NAN;
    cases[3].factor = HUGE_VAL;
    cases[4].warmup_factor = -1;
    cases[5].warmup = -1;
    cases[6].period = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(dp_rate_check(&cases[i]), DP_EINVAL);
        if (!strstr(dp_last_error(), says[i]))
            fail_msg("says\n    %s\ninstead of\n    %s", dp_last_error(), says[i]);
    }
}

/* ---- norms ----------------------------------------------------------------------------------- */

enum { COUNT = 5, N = 1001 };

/* Gradients of the four types and a frozen parameter; the first two are tied. */
struct list {
    int64_t shape[1];
    double grads[COUNT][N];
    DLTensor values[COUNT], tensors[COUNT];
    struct dp_parameter p[COUNT];
};

static void put(DLTensor *t, int i, float x)
{
    if (t->dtype.bits == 64)
        ((double *)t->data)[i] = (double)x;
    else if (t->dtype.bits == 32)
        ((float *)t->data)[i] = x;
    else
        ((uint16_t *)t->data)[i] = t->dtype.code == kDLBfloat ? dp_bfloat16_store(x)
                                                               : dp_float16_store(x);
}

static void list_init(struct list *l)
{
    static const DLDataType types[COUNT] = {
        {kDLFloat, 32, 1}, {kDLFloat, 32, 1}, {kDLFloat, 64, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}};
    static const char *const names[COUNT] = {"a", "b", "c", "d", "e"};

    memset(l, 0, sizeof(*l));
    l->shape[0] = N;
    for (int i = 0; i < COUNT; i++) {
        l->tensors[i] = l->values[i] = (DLTensor){.data = l->grads[i], .device = {kDLCPU, 0}, .ndim = 1,
                                                  .dtype = types[i], .shape = l->shape};
        l->p[i] = (struct dp_parameter){.name = names[i], .value = &l->values[i],
                                        .grad = &l->tensors[i]};
        for (int k = 0; k < N; k++)
            put(&l->tensors[i], k, (float)((k % 7 - 3) * (i + 1)) / 4);
    }
    l->p[0].tied = l->p[1].tied = "table";
}

/* Sums of squares of (k % 7 - 3) / 4 are whole in units of 1/16, so no rounding enters. */
static double expected_square(int i)
{
    double sum = 0;

    for (int k = 0; k < N; k++)
        sum += (k % 7 - 3) * (k % 7 - 3);
    return sum * (i + 1) * (i + 1) / 16;
}

CASE(every_parameter_counts_once)
{
    static struct list l;
    double squares[COUNT];
    const bool counted[COUNT] = {true, true, false, true, true};

    list_init(&l);
    assert_int_equal(dp_parameters_check(l.p, COUNT), 0);
    assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
    for (int i = 0; i < COUNT; i++)
        assert_true(squares[i] == expected_square(i));
    assert_true(dp_gradient_sum(l.p, COUNT, NULL, squares) ==
                squares[0] + squares[2] + squares[3] + squares[4]);
    assert_true(dp_gradient_sum(l.p, COUNT, counted, squares) ==
                squares[0] + squares[3] + squares[4]);
    l.p[4].flags = DP_PARAMETER_FROZEN;
    l.p[4].grad = NULL;
    assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
    assert_true(squares[4] == 0);
}

CASE(what_is_not_finite_is_not_lost_in_the_sum)
{
    static struct list l;
    double squares[COUNT];
    const float bad[] = {NAN, INFINITY, -INFINITY};

    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < 3; k++)
            for (int at = 0; at < N; at += N / 2) {
                list_init(&l);
                l.p[0].tied = l.p[1].tied = NULL;
                put(&l.tensors[i], at, bad[k]);
                assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
                assert_false(isfinite(dp_gradient_sum(l.p, COUNT, NULL, squares)));
            }
}

CASE(large_float32_gradients_are_no_overflow)
{
    static struct list l;
    double squares[COUNT];

    list_init(&l);
    put(&l.tensors[0], 0, 3e38f);
    assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
    assert_true(isfinite(squares[0]));
}

CASE(clipping_brings_the_norm_to_its_limit)
{
    static struct list l;
    double squares[COUNT], norm;

    assert_true(dp_clip_factor(5, 0, 0) == 1);
    assert_true(dp_clip_factor(5, 6, 0) == 1);
    assert_true(dp_clip_factor(0, 6, 0) == 1);
    assert_true(dp_clip_factor(8, 2, 0) == 0.25);
    assert_true(dp_clip_factor(8, 2, 1e-6) == 2 / (8 + 1e-6));
    list_init(&l);
    assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
    norm = sqrt(dp_gradient_sum(l.p, COUNT, NULL, squares));
    assert_int_equal(dp_gradients_scale(l.p, COUNT, dp_clip_factor(norm, 1, 0)), 0);
    assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
    assert_true(fabs(sqrt(dp_gradient_sum(l.p, COUNT, NULL, squares)) - 1) < 1e-3);
    assert_int_equal(dp_gradients_zero(l.p, COUNT), 0);
    assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
    assert_true(dp_gradient_sum(l.p, COUNT, NULL, squares) == 0);
}

/* As torch does, so that what has overflowed is seen after a clip, too. */
CASE(zero_times_what_is_not_finite_is_no_number_and_zeroing_is_no_product)
{
    static struct list l;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    double squares[COUNT];

    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < 3; k++) {
            list_init(&l);
            put(&l.tensors[i], N / 2, bad[k]);
            assert_int_equal(dp_gradients_scale(l.p, COUNT, 0), 0);
            assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
            for (int other = 0; other < COUNT; other++)
                assert_true(other == i ? isnan(squares[i]) : squares[other] == 0);
            assert_int_equal(dp_gradients_zero(l.p, COUNT), 0);
            assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), 0);
            assert_true(squares[i] == 0);
        }
}

CASE(gradients_on_a_device_are_refused_by_name)
{
    static struct list l;
    double squares[COUNT];

    list_init(&l);
    l.tensors[2].device = (DLDevice){kDLCUDA, 1};
    assert_int_equal(dp_gradient_squares(l.p, COUNT, squares), DP_EUNSUPPORTED);
    assert_int_equal(dp_gradients_zero(l.p, COUNT), DP_EUNSUPPORTED);
    assert_int_equal(dp_gradients_scale(l.p, COUNT, 2), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "'c': its gradient lies on device 2:1"));
}

/* ---- loss scale ------------------------------------------------------------------------------ */

CASE(the_loss_scale_grows_after_good_steps_and_backs_off_after_an_overflow)
{
    struct dp_loss_scale s = dp_loss_scale_defaults();

    assert_true(s.scale == 65536);
    s.interval = 3;
    for (int i = 0; i < 3; i++)
        dp_loss_scale_update(&s, false);
    assert_true(s.scale == 131072);
    dp_loss_scale_update(&s, false);
    dp_loss_scale_update(&s, true);
    assert_true(s.scale == 65536 && s.good == 0);
    for (int i = 0; i < 40; i++)
        dp_loss_scale_update(&s, true);
    assert_true(s.scale == 1);
    for (int i = 0; i < 300; i++)
        dp_loss_scale_update(&s, false);
    assert_true(s.scale == 0x1p24);
}
