/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that is streamed through the device in mixed precision: the bits of the resident model
 * that does the same.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "offload_run.h"

/* ---- mixed precision ------------------------------------------------------------------------- */

static const DLDataType as_is = {.bits = 0}, bf16 = {kDLBfloat, 16, 1}, f16 = {kDLFloat, 16, 1};

CASE(mixed_precision_is_the_resident_run_in_the_same_types)
{
    const DLDataType types[][2] = {{bf16, bf16}, {f16, f16}, {bf16, as_is}, {as_is, bf16}};

    for (int how = 0; how < 4; how++)
        for (int32_t slices = 1; slices <= OM_LAYERS; slices++) {
            const int32_t slots = 1 + (slices + how) % 3;
            run_mode(&(struct mode){.slices = slices, .microbatches = slots == 2 ? 2 : 5,
                                    .slots = slots, .distance = slots - 1,
                                    .checkpoint = slices % 3 > 0, .boundaries_down = slices % 3 > 1,
                                    .check = how % 2, .update = (slices + how) % 2,
                                    .frozen = slots == 3, .values_type = types[how][0],
                                    .grads_type = types[how][1]});
        }
}

/* With values in 16 bits shards are half as large on their way, and gradients too; but every parameter
 * begins at a multiple of 256 bytes. */
CASE(mixed_precision_copies_half_the_bytes)
{
    struct dp_offload_memory whole, mixed;
    struct mode mode = {.slices = 4, .microbatches = 1};

    for (int i = 0; i < 2; i++) {
        mode.values_type = mode.grads_type = i ? bf16 : as_is;
        ENDED_BY(end) struct run *run = begin(&mode);
        one_step(run, 0, true, false);
        assert_int_equal(dp_offload_finish(run->o), 0);
        dp_offload_memory(run->o, i ? &mixed : &whole);
    }
    assert_in_range(mixed.loaded_bytes, whole.loaded_bytes / 2, whole.loaded_bytes * 7 / 10);
    assert_in_range(mixed.down_bytes, whole.down_bytes / 2, whole.down_bytes * 7 / 10);
    assert_in_range(mixed.slots_bytes, whole.slots_bytes / 2, whole.slots_bytes * 7 / 10);
}

/* What comes down in 16 bits is added up in float32. */
CASE(gradients_of_steps_add_up_in_float32)
{
    struct mode mode = {.slices = 3, .microbatches = 2, .values_type = bf16, .grads_type = bf16};
    ENDED_BY(end) struct run *sums = begin(&mode), *each = begin(&mode);
    static float expected[OM_PARAMETERS][OM_WIDTH * OM_WIDTH];
    int32_t count;

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

CASE(float16_scales_the_loss_skips_what_overflows_and_clips_the_whole_gradient)
{
    struct mode mode = {.slices = 4, .microbatches = 2, .values_type = f16, .grads_type = f16};
    struct recipe streamed = {.scale = dp_loss_scale_defaults()}, resident;
    struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    int32_t count;

    streamed.scale.interval = 3;
    resident = streamed;
    ENDED_BY(end) struct run *run = begin(&mode);
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
}

int main(void)
{
    return run_on_all_devices();
}
