/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer's config from the environment: every row of its table, what is refused, and what is said.
 */
#include "cmocka_all.h"

#include <dualpipe/trainer.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct setting {
    const char *name, *text, *wrong; /* another text, which is refused */
    const char *expected;            /* what is said of that */
} settings[] = {
    {"schedule", "zbv", "dualpip", "did you mean dualpipe?"},
    {"ranks", "2", "0", "a whole number from 1 to 1024"},
    {"replicas", "3", "3x", "a whole number from 1 to 1024"},
    {"microbatches", "0x10", "", "a whole number from 1 to 65536"},
    {"batch", "32", "-1", "a whole number from 1 to"},
    {"virtual-stages", "4", "99", "from 1 to"},
    {"slack", "1", "2", "from 0 to 1"},
    {"fixed-order", "yes", "maybe", "no, yes"},
    {"order-blocks", "4", "1", "from 2 to 64"},
    {"checkpoint", "except_last", "some", "one of never, except_last, always"},
    {"offload", "params", "activation", "one of params"},
    {"device-memory", "1.5KiB", "1Q", "a size such as"},
    {"device-share", "0.25", "2", "0 to 1"},
    {"delay-update", "true", "maybe", "false or true"},
    {"survive", "true", "maybe", "false or true"},
    {"mix", "one-peer-exp", "all-reduced", "did you mean all-reduce?"},
    {"mix-local", "2", "x", "from 1 to 1024"},
    {"mix-algorithm", "local-sgd", "sgd", "one of d-psgd, local-sgd"},
    {"mix-factor", "0.5", "0", "a number above 0, up to 1"},
    {"mix-compress", "int8", "int4", "one of none, int8"},
    {"mix-staleness", "2", "-2", "from 0 to 1024"},
    {"local-steps", "5", "0", "from 1 to"},
    {"outer-rate", "0.75", "inf", "a number above 0, up to 10"},
    {"outer-momentum", "0.25", "nan", "a number from 0 to 1"},
    {"optimizer", "accum-adamw", "adagrad", "one of sgd, adam, adamw"},
    {"decay", "0.125", "many", "a number from 0 to 10"},
    {"lr", "0.5", "0.5x", "a number from 0 to 10"},
    {"warmup", "7", "1.5", "a whole number from 0 to"},
    {"clip", "1.5", "-1", "a number from 0 to"},
    {"loss-scale", "1024", "1e9", "a number from 0 to 16777216"},
    {"dtype", "bf16", "int8", "one of f32, bf16, f16"},
    {"seed", "9000000000000000000", "-1", "a whole number from 0 to"},
    {"save", "there", NULL, NULL},
    {"save-every", "11", "x", "a whole number from 0 to"},
    {"save-keep", "3", "-3", "a whole number from 0 to"},
    {"save-on-signal", "on", "2", "no, yes"},
    {"resume", "here", NULL, NULL},
};
enum { SETTINGS = sizeof(settings) / sizeof(settings[0]) };

static void name_variable(const char *name, char out[64])
{
    snprintf(out, 64, "DUALPIPE_TRAIN_%s", name);
    for (char *c = out; *c; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

/* All of the table, by the environment; what is not set stays. */
CASE(the_environment_sets_a_config)
{
    struct dp_trainer_config c = {.rows = 7}, none = {.rows = 7};
    char variable[64];
    int32_t count;
    const struct dp_option *options = dp_trainer_options(&count);

    assert_int_equal(count, SETTINGS);
    assert_int_equal(dp_trainer_config_from_env(&c), 0);
    assert_memory_equal(&c, &none, sizeof(c));
    for (int32_t i = 0; i < count; i++) {
        assert_string_equal(options[i].name, settings[i].name);
        name_variable(settings[i].name, variable);
        setenv(variable, settings[i].text, 1);
    }
    assert_int_equal(dp_trainer_config_from_env(&c), 0);
    assert_true(c.schedule.kind == DP_SCHEDULE_ZBV && c.schedule.ranks == 2 && c.replicas == 3 &&
                c.microbatches == 16 && c.rows == 32 && c.schedule.virtual_stages == 4 &&
                c.schedule.slack == 1 && c.fixed_order && c.order_blocks == 4);
    assert_true(c.schedule.recompute == DP_RECOMPUTE_EXCEPT_LAST && c.sums == DP_SUMS_MIXING &&
                !strcmp(c.mixing.graph.name, "one-peer-exp") && c.mixing.graph.local == 2);
    assert_true(c.mixing.algorithm == DP_MIXER_LOCAL_SGD && c.mixing.factor == 0.5 &&
                c.mixing.compression == DP_COMPRESSION_INT8 && c.mixing.staleness == 2 &&
                c.mixing.local_steps == 5 && c.mixing.outer_rate == 0.75 &&
                c.mixing.outer_momentum == 0.25);
    assert_true(c.optimizer.kind == DP_OPTIMIZER_ACCUM_ADAMW && c.optimizer.weight_decay == 0.125 &&
                c.optimizer.beta1 > 0 && c.rate.peak == 0.5 && c.rate.warmup == 7 && c.clip == 1.5 &&
                c.seed == 9000000000000000000u);
    assert_string_equal(c.checkpoint.folder, "there");
    assert_string_equal(c.checkpoint.from, "here");
    assert_true(c.checkpoint.every == 11 && c.checkpoint.keep == 3 && c.checkpoint.on_signal &&
                c.survive && c.delay_update && c.offload.parameters && c.offload.kept_share == 0.25 &&
                c.offload.device_bytes == 1536 &&
                c.loss_scale.scale == 1024 && c.loss_scale.interval == 2000);
    for (int i = 0; i < SETTINGS; i++) {
        name_variable(settings[i].name, variable);
        unsetenv(variable);
    }
}

CASE(a_setting_that_cannot_be_is_refused_by_name)
{
    struct dp_trainer_config c = {0};
    char variable[64];

    for (int i = 0; i < SETTINGS; i++) {
        name_variable(settings[i].name, variable);
        if (!settings[i].wrong)
            continue;
        setenv(variable, settings[i].wrong, 1);
        assert_int_equal(dp_trainer_config_from_env(&c), DP_EINVAL);
        if (!strstr(dp_last_error(), variable) || !strstr(dp_last_error(), settings[i].expected))
            fail_msg("'%s' does not say '%s'", dp_last_error(), settings[i].expected);
        unsetenv(variable);
    }
    setenv("DUALPIPE_TRAIN_RANK", "2", 1);
    assert_int_equal(dp_trainer_config_from_env(&c), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "did you mean DUALPIPE_TRAIN_RANKS?"));
    unsetenv("DUALPIPE_TRAIN_RANK");
}
