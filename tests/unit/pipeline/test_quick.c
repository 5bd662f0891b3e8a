/* SPDX-License-Identifier: Apache-2.0
 *
 * test_quick.c - what the pipeline of 40 lines (dualpipe.h) refuses; tests/system/quick.sh trains.
 */
#include "cmocka_all.h"

#include <dualpipe/dualpipe.h>

static int forward(void *user, const float *w, const float *x, float *y)
{
    *y = *w * *x;
    return *(const int *)user;
}

static int backward(void *user, const float *w, const float *x, const float *gy, float *gx, float *gw)
{
    *gw += *gy * *x;
    return 0;
}

static double loss(void *user, const float *y, const float *label, float *gy)
{
    if (gy)
        *gy = *y - *label;
    return 0.5 * (*y - *label) * (*y - *label);
}

static int start(void *user, int stage, float *w)
{
    *w = (float)stage + 3;
    return *(const int *)user;
}

static int answer; /* of callbacks */
static const struct dp_quick_model good = {.schedule = "1f1b", .microbatches = 2, .values = 1,
                                           .parameters = 1, .label_values = 1, .user = &answer,
                                           .start = start, .forward = forward,
                                           .backward = backward, .loss = loss};

static void refuse(struct dp_quick_model model, int err, const char *says)
{
    struct dp_quick *quick;

    assert_int_equal(dp_quick_new(&model, &quick), err);
    if (!strstr(dp_last_error(), says))
        fail_msg("'%s' does not say '%s'", dp_last_error(), says);
}

CASE(what_is_missing_is_named)
{
#define WITHOUT(member, value, says)                                                                \
    do {                                                                                           \
        struct dp_quick_model model = good;                                                        \
        model.member = value;                                                                      \
        refuse(model, DP_EINVAL, says);                                                            \
    } while (0)
    WITHOUT(microbatches, 0, "microbatches: 0, expected at least 1");
    WITHOUT(values, -1, "values: -1, expected at least 1");
    WITHOUT(parameters, 0, "parameters: 0, expected at least 1");
    WITHOUT(label_values, 0, "label_values: 0, expected at least 1");
    WITHOUT(schedule, NULL, "expected schedule, forward, backward and loss");
    WITHOUT(forward, NULL, "expected schedule, forward, backward and loss");
    WITHOUT(backward, NULL, "expected schedule, forward, backward and loss");
    WITHOUT(loss, NULL, "expected schedule, forward, backward and loss");
    WITHOUT(schedule, "rainbow", "'rainbow'");
    assert_int_equal(dp_quick_new(NULL, NULL), DP_EINVAL);
    answer = -5;
    refuse(good, DP_ECALLBACK, "start of stage 0 failed with -5");
    answer = 0;
}

CASE(one_process_trains_and_a_failed_callback_ends_the_step)
{
    const float x[] = {1, 2}, labels[] = {5, 10};
    struct dp_quick *quick;
    double now;
    int stage = -1;

    assert_int_equal(dp_quick_new(&good, &quick), 0);
    assert_true(*dp_quick_parameters(quick, 0, &stage) == 3 && stage == 0);
    assert_null(dp_quick_parameters(quick, 1, &stage));
    assert_null(dp_quick_parameters(quick, -1, &stage));
    assert_int_equal(dp_quick_step(quick, x, labels, 0.5f, &now), 0);
    assert_true(now == (2 + 8) / 2.); /* (3x - 5x)^2 / 2, the mean of two */
    assert_true(*dp_quick_parameters(quick, 0, &stage) == 3 + 0.5f * (2 + 8) / 2);
    answer = -7;
    assert_int_equal(dp_quick_step(quick, x, labels, 0.5f, &now), DP_ECALLBACK);
    answer = 0;
    assert_int_equal(dp_quick_step(quick, NULL, labels, 0.5f, &now), DP_EINVAL);
    dp_quick_free(quick);
    dp_quick_free(NULL);
}

int main(void)
{
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    log_nothing();
    return run_cases(NULL, NULL);
}
