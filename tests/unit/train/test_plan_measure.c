/* SPDX-License-Identifier: Apache-2.0
 *
 * What `dualpipe plan` measures of the layers of a model.
 */
#include "cmocka_all.h"

#include "unit/base/failing_memory.h"
#include "train/plan_measure.h"

enum { LAYERS = 2 };
static const struct gpt_config model = {
    .layers = LAYERS, .width = 8, .heads = 2, .context = 4, .batch = 1, .dropout = 0.1F, .seed = 1};

/* Embedding, blocks and head each compute, have a gradient and are updated. */
static void every_layer_takes_its_time(void **state)
{
    struct layer_times times[LAYERS + 2] = {0};

    (void)state;
    assert_int_equal(plan_measure(&model, times), 0);
    for (int i = 0; i < LAYERS + 2; i++) {
        assert_true(times[i].f_ns > 0 && times[i].i_ns >= 0 && times[i].w_ns > 0);
        assert_true(times[i].norm_ns > 0 && times[i].update_ns > 0);
    }
}

static void a_lack_of_memory_is_an_error(void **state)
{
    struct layer_times times[LAYERS + 2];
    int failures = 0, err;

    (void)state;
    for (bool done = false; !done; failures += !done) {
        until_no_memory = failures;
        err = plan_measure(&model, times);
        done = until_no_memory >= 0;
        until_no_memory = -1;
        assert_int_equal(err, done ? 0 : DP_ENOMEM);
    }
    assert_in_range(failures, 10, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_takes_its_time),
        cmocka_unit_test(a_lack_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
