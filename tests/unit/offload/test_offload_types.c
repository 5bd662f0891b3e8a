/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that is streamed through the device in mixed precision, with a share that stays on the
 * device, or with updates a step late: the bits of the resident model that does the same.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "offload_run.h"

/* ---- mixed precision ------------------------------------------------------------------------- */

static const DLDataType as_is = {.bits = 0}, bf16 = {kDLBfloat, 16, 1}, f16 = {kDLFloat, 16, 1};

static void mixed_precision_is_the_resident_run_in_the_same_types(void **state)
{
    (void)state;
    const DLDataType types[][2] = {{bf16, bf16}, {f16, f16}, {bf16, as_is}, {as_is, bf16}};

    for (int how = 0; how < 4; how++)
        for (int32_t slices = 1; slices <= OM_LAYERS; slices++) {
            const int32_t slots = 1 + (slices + how) % 3;
            run_mode(&(struct mode){.slices = slices,
                                    .microbatches = slots == 2 ? 2 : 5,
                                    .slots = slots,
                                    .distance = slots - 1,
                                    .checkpoint = slices % 3 > 0,
                                    .boundaries_down = slices % 3 > 1,
                                    .check = how % 2,
                                    .update = (slices + how) % 2,
                                    .frozen = slots == 3,
                                    .paced = slices == 5,
                                    .values_type = types[how][0],
                                    .grads_type = types[how][1]});
        }
}

/* With values in 16 bits shards are half as large on their way, and gradients too; but every parameter
 * begins at a multiple of 256 bytes. */
static void mixed_precision_copies_half_the_bytes(void **state)
{
    (void)state;
    struct dp_offload_memory whole, mixed;
    struct mode mode = {.slices = 4, .microbatches = 1};

    for (int i = 0; i < 2; i++) {
        struct run *run = calloc(1, sizeof(*run));
        mode.values_type = mode.grads_type = i ? bf16 : as_is;
        begin(run, &mode);
        one_step(run, 0, true, false);
        assert_int_equal(dp_offload_finish(run->o), 0);
        dp_offload_memory(run->o, i ? &mixed : &whole);
        end(run);
        free(run);
    }
    assert_in_range(mixed.loaded_bytes, whole.loaded_bytes / 2, whole.loaded_bytes * 7 / 10);
    assert_in_range(mixed.down_bytes, whole.down_bytes / 2, whole.down_bytes * 7 / 10);
    assert_in_range(mixed.slots_bytes, whole.slots_bytes / 2, whole.slots_bytes * 7 / 10);
}

/* What comes down in 16 bits is added up in float32. */
static void gradients_of_steps_add_up_in_float32(void **state)
{
    (void)state;
    struct mode mode = {.slices = 3, .microbatches = 2, .values_type = bf16, .grads_type = bf16};
    struct run *sums = calloc(1, sizeof(*sums)), *each = calloc(1, sizeof(*each));
    static float expected[OM_PARAMETERS][OM_WIDTH * OM_WIDTH];
    int32_t count;

    begin(sums, &mode);
    begin(each, &mode);
    memset(expected, 0, sizeof(expected));
    for (uint64_t step = 0; step < STEPS; step++) {
        one_step(sums, step, true, step > 0);
        one_step(each, step, true, false);
        assert_int_equal(dp_offload_finish(sums->o), 0);
        assert_int_equal(dp_offload_finish(each->o), 0);
        const struct dp_parameter *a = dp_offload_parameters(sums->o, &count);
        const struct dp_parameter *b = dp_offload_parameters(each->o, &count);
        for (int32_t p = 0; p < count; p++)
            for (int64_t i = 0; i < dp_parameter_elements(&a[p]); i++) {
                float *sum = &expected[p][i];
                *sum += ((const float *)b[p].grad->data)[i];
                assert_memory_equal(sum, (const float *)a[p].grad->data + i, sizeof(float));
            }
    }
    end(sums);
    end(each);
    free(sums);
    free(each);
}

/* What a program does after a backward: the norm of the whole gradient, the factor that clips it, the
 * loss scale; no update after an overflow. */
struct recipe {
    struct dp_loss_scale scale;
    struct dp_optimizer *optimizer;
    int taken, skipped, clipped;
};

static void apply(struct recipe *r, const struct dp_parameter *list, int32_t count)
{
    double squares[OM_PARAMETERS];

    assert_int_equal(dp_gradient_squares(list, count, squares), 0);
    double norm = sqrt(dp_gradient_sum(list, count, NULL, squares)) / r->scale.scale;
    bool overflow = !isfinite(norm);
    double clip = overflow ? 1 : dp_clip_factor(norm, 2.0, 0);
    assert_int_equal(dp_optimizer_step(r->optimizer,
                                       &(struct dp_optimizer_step){.rate = 0.01,
                                                                   .scale = clip / r->scale.scale,
                                                                   .skip = overflow,
                                                                   .zero_grads = true}),
                     0);
    dp_loss_scale_update(&r->scale, overflow);
    r->skipped += overflow;
    r->taken += !overflow;
    r->clipped += clip < 1;
}

static void scaled_step(struct run *run, struct recipe *streamed, struct recipe *resident,
                        uint64_t step)
{
    int32_t count;
    const struct dp_parameter *list = dp_offload_parameters(run->o, &count);

    om_data_init(&run->data, 100 + step, false);
    for (int i = 0; i < OM_ROWS; i++)
        run->data.gout[i] *= (float)streamed->scale.scale;
    run->expected = run->data;
    om_tensors_init(&run->tensors, &run->data);
    assert_int_equal(om_resident_step(&run->resident, &run->expected, 2, step, SEED, true), 0);
    assert_int_equal(
        dp_offload_forward(run->o, &(struct dp_offload_step){.inputs = run->tensors.inputs,
                                                             .outputs = run->tensors.outputs,
                                                             .training = true}),
        0);
    assert_int_equal(
        dp_offload_backward(run->o, &(struct dp_offload_gradients){.gouts = run->tensors.gouts}), 0);
    assert_int_equal(dp_offload_finish(run->o), 0);
    compare(run, "the output", run->data.y, run->expected.y, OM_ROWS);
    apply(streamed, list, count);
    apply(resident, run->resident.parameters, OM_PARAMETERS);
    compare_parameters(run, false);
}

static void float16_scales_the_loss_skips_what_overflows_and_clips_the_whole_gradient(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 4, .microbatches = 2, .values_type = f16, .grads_type = f16};
    struct recipe streamed = {.scale = dp_loss_scale_defaults()}, resident;
    struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    int32_t count;

    streamed.scale.interval = 3;
    resident = streamed;
    begin(run, &mode);
    const struct dp_parameter *list = dp_offload_parameters(run->o, &count);
    assert_int_equal(dp_optimizer_new(&config, list, count, &streamed.optimizer), 0);
    assert_int_equal(
        dp_optimizer_new(&config, run->resident.parameters, OM_PARAMETERS, &resident.optimizer), 0);
    for (uint64_t step = 0; step < 16; step++)
        scaled_step(run, &streamed, &resident, step);
    assert_true(streamed.skipped > 0 && streamed.taken > 0 && streamed.clipped > 0);
    assert_int_equal(streamed.skipped, resident.skipped);
    dp_optimizer_free(streamed.optimizer);
    dp_optimizer_free(resident.optimizer);
    end(run);
    free(run);
}

/* ---- a share that stays on the device -------------------------------------------------------- */

static void what_stays_on_the_device_has_the_same_bits(void **state)
{
    (void)state;
    static const double shares[] = {0.2, 0.5, 0.8, 1};

    for (int how = 0; how < 3; how++)
        for (int32_t slices = 1; slices <= OM_LAYERS; slices++) {
            const int s = (slices + how) % 4, variant = (slices + 2 * how) % 5;
            run_mode(&(struct mode){.slices = slices,
                                    .microbatches = 1 + variant,
                                    .slots = 1 + (slices + s) % 3,
                                    .distance = (slices + s) % 3,
                                    .checkpoint = how > 0,
                                    .boundaries_down = how > 1,
                                    .check = s % 2,
                                    .frozen = variant == 0,
                                    .exact = variant >= 1 && variant <= 3,
                                    .tied = variant == 1,
                                    .accumulate = variant == 2,
                                    .update = variant != 1 && variant != 2,
                                    .paced = variant == 3,
                                    .kept = shares[s]});
        }
}

static void tied_parameters_may_stay_in_part(void **state)
{
    (void)state;
    for (int32_t slices = 2; slices <= OM_LAYERS; slices++)
        run_mode(&(struct mode){.slices = slices,
                                .microbatches = 1,
                                .slots = 2,
                                .distance = 1,
                                .steps = 1,
                                .checkpoint = true,
                                .exact = true,
                                .tied = true,
                                .update = true,
                                .kept = 0.5});
}

/* Shards 0 to 3 of one linear layer or so each, of which the last are not copied. */
static void what_stays_on_the_device_is_not_copied(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 4, .microbatches = 2, .slots = 2, .distance = 1, .update = true};
    struct dp_offload_memory all, some;
    struct dp_device_usage usage;
    size_t bytes;
    int32_t first, count;
    void *at;

    begin(run, &mode);
    one_step(run, 0, true, false);
    dp_offload_memory(run->o, &all);
    dp_offload_kept(run->o, &first, &at, &bytes);
    assert_true(first == OM_PARAMETERS && !at && !bytes && !all.kept && !all.kept_bytes);
    end(run);
    mode.kept = 0.6;
    begin(run, &mode);
    if (share_of(&mode) > 0) {
        dp_device_usage(dev, &usage);
        one_step(run, 0, true, false);
        dp_offload_memory(run->o, &some);
        assert_int_equal(some.shards, all.shards);
        assert_in_range(some.kept, 1, 3);
        assert_int_equal(some.loads, 2 * (some.shards - some.kept) - 2);
        assert_true(some.down_bytes < all.down_bytes && some.host_bytes < all.host_bytes);
        assert_true(some.device_bytes == some.slots_bytes + some.activations_bytes + some.kept_bytes);
        assert_true(usage.bytes >= some.device_bytes);
        dp_offload_kept(run->o, &first, &at, &bytes);
        dp_offload_parameters(run->o, &count);
        assert_in_range(first, 1, count - 1);
    }
    end(run);
    free(run);
}

static void what_layers_want_beside_is_on_the_device(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 4, .slots = 2, .distance = 1, .kept = 1};
    struct dp_offload_memory memory;
    size_t bytes;
    int32_t first;
    void *at;

    begin(run, &mode);
    dp_offload_close(run->o);
    for (int l = 0; l < OM_LAYERS; l++)
        run->streamed.layers[l].kept_bytes = 100;
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    if (!share_of(&mode)) {
        config.kept_share = 0.5;
        assert_int_equal(dp_offload_open(&config, &run->o), DP_EUNSUPPORTED);
        assert_non_null(strstr(dp_last_error(), "kept_share"));
        config.kept_share = 0;
    }
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    dp_offload_kept(run->o, &first, &at, &bytes);
    dp_offload_memory(run->o, &memory);
    if (share_of(&mode) > 0) {
        assert_int_equal(first, 0);
        assert_int_equal(bytes, OM_LAYERS * 256);
        assert_int_equal((uintptr_t)at % 256, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(((char *)at)[i], 0);
        assert_true(memory.kept == memory.shards && memory.slots_bytes == 0);
    }
    end(run);
    free(run);
}

/* ---- updates a step late --------------------------------------------------------------------- */

/* Gradients of the step before, which the resident model has not taken yet. */
struct late {
    float grads[OM_PARAMETERS][OM_WIDTH * OM_WIDTH];
    bool due;
};

/* The update of the step before, after the gradients of this one. */
static void update_late(struct om_model *m, struct late *late)
{
    for (int32_t p = 0; p < m->parameter_count; p++)
        for (size_t i = 0; i < om_elements(m, p); i++) {
            float now = m->grad_data[p][i];
            if (late->due)
                m->value_data[p][i] -= late->grads[p][i] / 8;
            late->grads[p][i] = now;
            m->grad_data[p][i] = 0;
        }
    late->due = true;
}

static void open_delayed(struct run *run)
{
    struct dp_offload_config config = config_of(&run->streamed, run->mode);

    config.delay = true;
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
}

/* What a checkpoint has, into a model that is new. */
static void go_on_in_another(struct run *run)
{
    struct dp_offload *before = run->o;
    int32_t count;
    const struct dp_parameter *from = dp_offload_parameters(before, &count);

    assert_true(dp_offload_due(before));
    open_delayed(run);
    const struct dp_parameter *to = dp_offload_parameters(run->o, &count);
    for (int32_t i = 0; i < count; i++) {
        size_t bytes = (size_t)dp_parameter_elements(&from[i]) * sizeof(float);
        memcpy(to[i].value->data, from[i].value->data, bytes);
        memcpy(to[i].grad->data, from[i].grad->data, bytes);
    }
    assert_false(dp_offload_due(run->o));
    dp_offload_set_due(run->o, true);
    dp_offload_close(before);
}

static void run_delayed(const struct mode *mode, uint64_t saved_at)
{
    struct run *run = calloc(1, sizeof(*run));
    struct late *late = calloc(1, sizeof(*late));

    begin(run, mode);
    dp_offload_close(run->o);
    open_delayed(run);
    for (uint64_t step = 0; step < 5; step++) {
        if (step == saved_at) {
            assert_int_equal(dp_offload_finish(run->o), 0);
            go_on_in_another(run);
            dp_offload_seek(run->o, step);
        }
        one_step(run, step, true, false);
        update_late(&run->resident, late);
    }
    assert_int_equal(dp_offload_finish(run->o), 0);
    compare_parameters(run, false); /* all but the last update */
    one_step(run, 5, false, false);
    assert_int_equal(dp_offload_catch_up(run->o), 0);
    assert_false(dp_offload_due(run->o));
    update_late(&run->resident, late);
    compare_parameters(run, false);
    one_step(run, 5, false, false);
    free(late);
    end(run);
    free(run);
}

static void an_update_that_is_delayed_is_seen_a_step_later(void **state)
{
    (void)state;
    for (int32_t slices = 1; slices <= OM_LAYERS; slices++)
        run_delayed(&(struct mode){.slices = slices,
                                   .microbatches = 2,
                                   .slots = 1 + slices % 3,
                                   .distance = slices % 3,
                                   .checkpoint = slices % 2,
                                   .check = slices % 4 == 1,
                                   .update = true,
                                   .paced = slices == 6,
                                   .kept = slices % 3 ? 0 : 0.5,
                                   .values_type = slices == 4 || slices == 6 ? bf16 : as_is},
                    slices % 2 ? 2 : 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_precision_is_the_resident_run_in_the_same_types),
        cmocka_unit_test(mixed_precision_copies_half_the_bytes),
        cmocka_unit_test(gradients_of_steps_add_up_in_float32),
        cmocka_unit_test(
            float16_scales_the_loss_skips_what_overflows_and_clips_the_whole_gradient),
        cmocka_unit_test(an_update_that_is_delayed_is_seen_a_step_later),
        cmocka_unit_test(what_stays_on_the_device_has_the_same_bits),
        cmocka_unit_test(tied_parameters_may_stay_in_part),
        cmocka_unit_test(what_stays_on_the_device_is_not_copied),
        cmocka_unit_test(what_layers_want_beside_is_on_the_device),
    };

    return run_on_all_devices(tests, sizeof(tests) / sizeof(tests[0]));
}
