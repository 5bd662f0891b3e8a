/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that is streamed through the device computes what it computes in memory, to the last bit:
 * in every mode, with any number of shards, slots and micro-batches, on every kind of device,
 * whatever is late. And what cannot be is refused.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "cmocka_all.h"

#include "base/bind.h"
#include "base/clock.h"
#include "base/fail.h"
#include "fake_device.h"
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif
#include "unit/offload_model.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 77, STEPS = 3 };

struct mode {
    int32_t slices, microbatches, slots, distance;
    uint64_t steps; /* 0: STEPS */
    bool checkpoint, boundaries_down, drop_at_once, check, exact, tied, frozen, update, accumulate;
    bool paced;
    double kept; /* share, where the CPU reaches the device */
    DLDataType values_type, grads_type;
};

static struct dp_device *dev;
static void (*sync_of_device)(void *stream);
static void *(*reach_of_device)(const void *ptr);

/* ---- a run, streamed and resident ------------------------------------------------------------ */

struct run {
    struct om_model streamed, resident;
    struct om_data data, expected;
    struct om_tensors tensors;
    struct dp_offload *o;
    const struct mode *mode;
    bool unchanged;
};

static int update(void *user, int32_t shard, const struct dp_parameter *parameters, int32_t count)
{
    (void)user;
    (void)shard;
    om_update(parameters, count);
    return 0;
}

/* One chunk in three may pass. */
static bool pace(void *user, enum dp_copy_direction direction, size_t bytes)
{
    static uint64_t seed;

    (void)user, (void)direction, (void)bytes;
    seed = seed * UINT64_C(6364136223846793005) + 1;
    return (seed >> 33) % 3 == 0;
}

static double share_of(const struct mode *mode)
{
    return dp_device_host_accessible(dev) ? mode->kept : 0;
}

static struct dp_offload_config config_of(struct om_model *m, const struct mode *mode)
{
    return (struct dp_offload_config){.device = dev,
                                      .layers = m->layers,
                                      .layer_count = OM_LAYERS,
                                      .input = &m->input,
                                      .slices = mode->slices,
                                      .microbatches = mode->microbatches,
                                      .slots = mode->slots,
                                      .distance = mode->distance,
                                      .checkpoint = mode->checkpoint,
                                      .boundaries_down = mode->boundaries_down,
                                      .drop_at_once = mode->drop_at_once,
                                      .check = mode->check,
                                      .seed = SEED,
                                      .pace = mode->paced ? pace : NULL,
                                      .kept_share = share_of(mode),
                                      .values_type = mode->values_type,
                                      .grads_type = mode->grads_type,
                                      .update = mode->update ? update : NULL};
}

static void begin(struct run *run, const struct mode *mode)
{
    run->mode = mode;
    om_model_init(&run->streamed, mode->exact, mode->tied, mode->frozen);
    om_model_init(&run->resident, mode->exact, mode->tied, mode->frozen);
    if (mode->values_type.bits || mode->grads_type.bits) {
        om_model_mix(&run->streamed, mode->values_type, mode->grads_type);
        om_model_mix(&run->resident, mode->values_type, mode->grads_type);
    }
    run->streamed.sync = sync_of_device;
    run->streamed.reach = reach_of_device;
    struct dp_offload_config config = config_of(&run->streamed, mode);
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
}

static void end(struct run *run)
{
    dp_offload_close(run->o);
    om_model_fini(&run->streamed);
    om_model_fini(&run->resident);
}

static void compare(const struct run *run, const char *what, const float *a, const float *b,
                    size_t count)
{
    const struct mode *m = run->mode;

    for (size_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)))
            fail_msg("%s[%zu] is %g, expected %g: %d slices, %d micro-batches, %d slots, %d ahead, "
                     "checkpoint %d, down %d",
                     what, i, (double)a[i], (double)b[i], m->slices, m->microbatches, m->slots,
                     m->distance, m->checkpoint, m->boundaries_down);
}

/* The streamed parameters against the resident ones of the same name. */
static void compare_parameters(const struct run *run, bool grads)
{
    int32_t count;
    const struct dp_parameter *list = dp_offload_parameters(run->o, &count);

    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p =
            dp_parameters_find(run->resident.parameters, OM_PARAMETERS, list[i].name);
        size_t elements = (size_t)dp_parameter_elements(p);
        compare(run, p->name, list[i].value->data, p->value->data, elements);
        if (grads && list[i].grad)
            compare(run, "a gradient", list[i].grad->data, p->grad->data, elements);
    }
}

static void compare_step(const struct run *run, bool training)
{
    compare(run, "the output", run->data.y, run->expected.y, OM_ROWS);
    if (training)
        compare(run, "the input's gradient", run->data.gin, run->expected.gin, OM_ROWS * OM_WIDTH);
}

/* Gradients of the resident model begin at zero unless they are added to. */
static void zero_grads(struct run *run)
{
    for (int32_t i = 0; i < run->resident.parameter_count; i++)
        memset(run->resident.grad_data[i], 0, om_elements(&run->resident, i) * sizeof(float));
}

static void one_step(struct run *run, uint64_t step, bool training, bool accumulate)
{
    om_data_init(&run->data, 100 + step, run->mode->exact);
    run->expected = run->data;
    om_tensors_init(&run->tensors, &run->data);
    assert_int_equal(om_resident_step(&run->resident, &run->expected, run->mode->microbatches, step,
                                      SEED, training),
                     0);
    assert_int_equal(
        dp_offload_forward(run->o, &(struct dp_offload_step){.inputs = run->tensors.inputs,
                                                             .outputs = run->tensors.outputs,
                                                             .training = training,
                                                             .unchanged = run->unchanged}),
        0);
    if (training)
        assert_int_equal(
            dp_offload_backward(run->o, &(struct dp_offload_gradients){.gouts = run->tensors.gouts,
                                                                       .gins = run->tensors.gins,
                                                                       .accumulate = accumulate}),
            0);
    compare_step(run, training);
}

static void run_mode(const struct mode *mode)
{
    struct run *run = calloc(1, sizeof(*run));
    struct dp_device_usage before, after;

    uint64_t steps = mode->steps ? mode->steps : STEPS;

    begin(run, mode);
    dp_device_usage(dev, &before);
    for (uint64_t step = 0; step < steps; step++) {
        bool accumulate = mode->accumulate && step > 0;
        if (!mode->update && !accumulate)
            zero_grads(run);
        one_step(run, step, true, accumulate);
        if (mode->update)
            om_update(run->resident.parameters, OM_PARAMETERS);
        if (step + 1 < steps && mode->update)
            continue; /* the next forward begins while updates are at work */
        assert_int_equal(dp_offload_finish(run->o), 0);
        compare_parameters(run, true);
        one_step(run, step + 1, false, false);
    }
    dp_device_usage(dev, &after);
    assert_int_equal(after.allocations, before.allocations);
    end(run);
    free(run);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void every_mode_is_the_resident_model_to_the_last_bit(void **state)
{
    (void)state;
    static const int32_t microbatches[] = {1, 2, 5};

    for (int m = 0; m < 3; m++)
        for (int32_t slices = 1; slices <= OM_LAYERS; slices++)
            for (int how = 0; how < 3; how++)
                for (int32_t slots = 2; slots <= 4; slots++)
                    run_mode(&(struct mode){.slices = slices,
                                            .microbatches = microbatches[m],
                                            .slots = slots,
                                            .distance = (slices + m) % slots,
                                            .checkpoint = how > 0,
                                            .boundaries_down = how > 1,
                                            .check = (slices + slots) % 2,
                                            .update = (slices + m + slots) % 2,
                                            .frozen = slices % 3 == 0});
}

static void copies_that_the_pace_holds_up_change_nothing(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++)
        for (int more = 0; more < 4; more++) {
            const int32_t slots = 1 + (how + more) % 4;
            run_mode(&(struct mode){.slices = 4 + how,
                                    .microbatches = 2,
                                    .slots = slots,
                                    .distance = slots - 1,
                                    .checkpoint = how > 0,
                                    .boundaries_down = how > 1,
                                    .check = more % 2,
                                    .exact = true,
                                    .tied = more == 1,
                                    .update = more == 2,
                                    .accumulate = more == 3,
                                    .paced = true});
        }
}

static void one_slot_and_no_reuse_are_enough(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++)
        run_mode(&(struct mode){.slices = 4,
                                .microbatches = 2,
                                .slots = 1,
                                .distance = 0,
                                .checkpoint = how % 2,
                                .drop_at_once = how / 2,
                                .check = true,
                                .update = true});
}

static void more_slots_than_shards_are_fine(void **state)
{
    (void)state;
    run_mode(&(struct mode){.slices = 3,
                            .microbatches = 2,
                            .slots = 6,
                            .distance = 5,
                            .checkpoint = true,
                            .boundaries_down = true,
                            .update = true});
}

static void only_slots_that_are_used_take_memory(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 3, .slots = 3, .distance = 2};
    struct dp_offload_memory enough, more;

    begin(run, &mode);
    dp_offload_memory(run->o, &enough);
    end(run);
    mode.slots = 20;
    mode.distance = 19;
    begin(run, &mode);
    dp_offload_memory(run->o, &more);
    assert_int_equal(more.slots, 3);
    assert_true(more.device_bytes == enough.device_bytes);
    end(run);
    free(run);
}

/* Sums of small whole numbers are the same in every order. */
static void tied_parameters_are_one_within_a_shard_and_between_shards(void **state)
{
    (void)state;
    for (int32_t slices = 1; slices <= OM_LAYERS; slices++)
        run_mode(&(struct mode){.slices = slices,
                                .microbatches = 2,
                                .slots = 2,
                                .distance = 1,
                                .checkpoint = slices % 2,
                                .check = true,
                                .exact = true,
                                .tied = true,
                                .update = false});
}

static void tied_parameters_stay_equal_through_updates(void **state)
{
    (void)state;
    for (int32_t slices = 1; slices <= OM_LAYERS; slices++)
        run_mode(&(struct mode){.slices = slices,
                                .microbatches = 1,
                                .slots = 3,
                                .distance = 1,
                                .steps = 1,
                                .checkpoint = true,
                                .exact = true,
                                .tied = true,
                                .update = true});
}

static void gradients_add_up_over_steps(void **state)
{
    (void)state;
    for (int32_t slices = 1; slices <= 5; slices += 2)
        run_mode(&(struct mode){.slices = slices,
                                .microbatches = 2,
                                .slots = 2,
                                .distance = 1,
                                .exact = true,
                                .accumulate = true});
}

static void a_forward_alone_needs_no_memory_for_gradients(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 4, .microbatches = 2, .slots = 2, .distance = 1};
    struct dp_offload_memory with, without;
    struct dp_offload *o;

    begin(run, &mode);
    one_step(run, 0, false, false);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    config.forward_only = true;
    assert_int_equal(dp_offload_open(&config, &o), 0);
    dp_offload_memory(run->o, &with);
    dp_offload_memory(o, &without);
    assert_true(without.slots_bytes == with.slots_bytes / 2);
    dp_offload_close(run->o);
    run->o = o;
    one_step(run, 0, false, false);
    assert_int_equal(dp_offload_forward(o, &(struct dp_offload_step){.training = true}), DP_EINVAL);
    end(run);
    free(run);
}

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

/* ---- updates a step late --------------------------------------------------------------------- */

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

/* ---- memory and traffic ---------------------------------------------------------------------- */

static void the_peak_is_the_slots_and_the_activations(void **state)
{
    (void)state;
    struct dp_device_usage before, after;
    struct dp_offload_memory memory;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {
        .slices = 6, .microbatches = 2, .slots = 3, .distance = 2, .checkpoint = true};

    dp_device_limit(dev, SIZE_MAX);
    dp_device_usage(dev, &before);
    begin(run, &mode);
    one_step(run, 0, true, false);
    assert_int_equal(dp_offload_finish(run->o), 0);
    dp_device_usage(dev, &after);
    dp_offload_memory(run->o, &memory);
    assert_true(after.peak_bytes - before.bytes == memory.device_bytes);
    assert_true(memory.slots_bytes <= 3 * memory.largest_shard_bytes);
    assert_true(memory.device_bytes == memory.slots_bytes + memory.activations_bytes);
    /* 2 n - K loads: the last K shards are still there when the backward begins. */
    assert_int_equal(memory.shards, 6);
    assert_int_equal(memory.loads, 2 * 6 - 3);
    end(run);
    free(run);
}

static void a_device_that_is_too_small_is_refused_before_the_first_step(void **state)
{
    (void)state;
    struct om_model m;
    struct mode mode = {.slices = 2};
    struct dp_device_usage now;
    struct dp_offload *o = NULL;

    om_model_init(&m, false, false, false);
    dp_device_usage(dev, &now);
    dp_device_limit(dev, now.bytes + 1000);
    struct dp_offload_config config = config_of(&m, &mode);
    assert_int_equal(dp_offload_open(&config, &o), DP_ENOMEM);
    assert_null(o);
    dp_device_limit(dev, SIZE_MAX);
    om_model_fini(&m);
}

/* ---- events ---------------------------------------------------------------------------------- */

struct events {
    struct dp_offload_event list[6 * OM_LAYERS];
    size_t count;
};

static void note(void *user, const struct dp_offload_event *event)
{
    struct events *events = user;

    events->list[events->count++] = *event;
}

/* With 4 shards and 2 slots, 2 are there when a step begins, and 2 when its backward does. */
static void what_is_still_there_is_loaded_again_only_if_it_may_have_changed(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 4, .microbatches = 1, .slots = 2, .distance = 1, .check = true};
    static const uint64_t loads[] = {6, 10, 16};
    struct dp_offload_memory memory;

    begin(run, &mode);
    for (uint64_t step = 0; step < 3; step++) {
        run->unchanged = step == 1;
        zero_grads(run);
        one_step(run, step, true, false);
        assert_int_equal(dp_offload_finish(run->o), 0);
        compare_parameters(run, true);
        dp_offload_memory(run->o, &memory);
        assert_int_equal(memory.loads, loads[step]);
    }
    end(run);
    free(run);
}

static void events_begin_in_the_order_of_the_plan(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 5, .microbatches = 2, .slots = 3, .distance = 1};
    struct events planned, seen = {.count = 0};

    begin(run, &mode);
    dp_offload_close(run->o);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    config.trace = note;
    config.trace_user = &seen;
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    one_step(run, 0, true, false);
    assert_int_equal(
        dp_offload_plan(&(struct dp_offload_plan){.shards = 5, .slots = 3, .distance = 1},
                        planned.list, 6 * OM_LAYERS, &planned.count),
        0);
    assert_int_equal(seen.count, planned.count);
    assert_memory_equal(seen.list, planned.list, seen.count * sizeof(seen.list[0]));
    end(run);
    free(run);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void a_failed_layer_is_named_and_the_step_can_be_repeated(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 4,
                        .microbatches = 2,
                        .slots = 2,
                        .distance = 1,
                        .checkpoint = true,
                        .check = true};

    begin(run, &mode);
    om_data_init(&run->data, 100, false);
    om_tensors_init(&run->tensors, &run->data);
    run->streamed.fail_layer = 4;
    struct dp_offload_step step = {.inputs = run->tensors.inputs, .training = true};
    struct dp_offload_gradients g = {.gouts = run->tensors.gouts};
    assert_int_equal(dp_offload_forward(run->o, &step), DP_ECALLBACK);
    assert_non_null(strstr(dp_last_error(), "layer 4, micro-batch 0: the forward failed"));
    assert_int_equal(dp_offload_backward(run->o, &g), DP_ESTATE);
    run->streamed.fail_layer = -1;
    one_step(run, 0, true, false);
    assert_int_equal(dp_offload_finish(run->o), 0);
    /* In the recomputation, too. */
    dp_offload_seek(run->o, 0);
    assert_int_equal(dp_offload_forward(run->o, &step), 0);
    run->streamed.fail_layer = 1;
    assert_int_equal(dp_offload_backward(run->o, &g), DP_ECALLBACK);
    run->streamed.fail_layer = -1;
    dp_offload_seek(run->o, 0);
    zero_grads(run);
    one_step(run, 0, true, false);
    assert_int_equal(dp_offload_finish(run->o), 0);
    compare_parameters(run, true);
    end(run);
    free(run);
}

static int failing_update(void *user, int32_t shard, const struct dp_parameter *parameters,
                          int32_t count)
{
    (void)user, (void)parameters, (void)count;
    return shard == 1 ? DP_EIO : 0;
}

static void a_failed_update_is_reported_at_the_end(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 3, .slots = 2, .distance = 1};

    begin(run, &mode);
    dp_offload_close(run->o);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    config.update = failing_update;
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    run->mode = &(struct mode){.slices = 3, .microbatches = 1};
    one_step(run, 0, true, false);
    assert_int_equal(dp_offload_finish(run->o), DP_EIO);
    assert_non_null(strstr(dp_last_error(), "the update of a shard failed"));
    assert_int_equal(dp_offload_finish(run->o), 0);
    end(run);
    free(run);
}

struct bound {
    cpu_set_t cpus; /* of the node */
    _Atomic int inside, outside;
};

static int update_on_node(void *user, int32_t shard, const struct dp_parameter *parameters,
                          int32_t count)
{
    struct bound *b = user;
    cpu_set_t mine, both;

    (void)shard, (void)parameters, (void)count;
    if (sched_getaffinity(0, sizeof(mine), &mine))
        return DP_EIO;
    CPU_AND(&both, &mine, &b->cpus);
    atomic_fetch_add(CPU_EQUAL(&both, &mine) ? &b->inside : &b->outside, 1);
    return 0;
}

/* Where threads of the device's update; without such a thread it is the calling one. */
static void updates_run_on_the_node_of_the_pinned_memory(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct bound bound = {.inside = 0};
    struct mode mode = {.slices = 3, .microbatches = 1, .slots = 2, .distance = 1};
    const struct dp_pinned_config near = {.numa_node = 0};

    begin(run, &mode);
    dp_offload_close(run->o);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    config.pinned = &near;
    config.update = update_on_node;
    config.update_user = &bound;
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    one_step(run, 0, true, false);
    assert_int_equal(dp_offload_finish(run->o), 0);
    assert_int_equal(bound.inside + bound.outside, 3);
    if (dp_node_cpus("", 0, &bound.cpus)) {
        atomic_store(&bound.inside, 0);
        one_step(run, 1, true, false);
        assert_int_equal(dp_offload_finish(run->o), 0);
        assert_int_equal(bound.inside, 3);
    }
    end(run);
    free(run);
}

static void tensors_that_are_not_as_declared_are_refused(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 2};

    begin(run, &mode);
    om_tensors_init(&run->tensors, &run->data);
    struct dp_offload_step step = {.inputs = run->tensors.inputs};
    run->tensors.x.ndim = 1;
    assert_int_equal(dp_offload_forward(run->o, &step), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "input 1: expected"));
    run->tensors.inputs[0] = NULL;
    assert_int_equal(dp_offload_forward(run->o, &step), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "input 0 is missing"));
    end(run);
    free(run);
}

/* ---- O1 to O9 -------------------------------------------------------------------------------- */

static void expect_refused(const struct dp_offload_config *config, const char *sentence)
{
    struct dp_offload *o = NULL;

    assert_int_equal(dp_offload_open(config, &o), DP_EINVAL);
    assert_null(o);
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' was expected to hold '%s'", dp_last_error(), sentence);
}

static void O1_to_O6_what_no_model_and_no_cut_can_be(void **state)
{
    (void)state;
    struct om_model m;
    struct mode mode = {.slices = 2};
    static const struct dp_offload_layer_ops none = {0};
    static const int32_t backwards[] = {0, 5, 3, OM_LAYERS}, short_of[] = {0, 4, 7};

    om_model_init(&m, false, false, false);
    struct dp_offload_config good = config_of(&m, &mode), c = good;
    c.layers = NULL;
    expect_refused(&c, "no model"); /* O1 */
    c = good;
    c.layer_count = 0;
    expect_refused(&c, "no model"); /* O1: an empty one counts as none */
    c = good;
    c.device = NULL;
    expect_refused(&c, "no device"); /* O2 */
    m.layers[3].ops = &none;
    expect_refused(&good, "layer 3 has no forward"); /* O3 */
    m.layers[3].ops = m.layers[1].ops;
    c = good;
    c.slices = 3;
    c.first = backwards;
    expect_refused(&c, "ready-made shards are not the layers 0 to 7"); /* O3 */
    c.slices = 2;
    c.first = short_of;
    expect_refused(&c, "ready-made shards"); /* O3 */
    c = good;
    c.slices = 0;
    expect_refused(&c, "0 slices"); /* O6 */
    c.slices = -2;
    expect_refused(&c, "-2 slices"); /* O6 */
    c = good;
    c.slots = 2;
    c.distance = 2;
    expect_refused(&c, "2 shards loaded ahead, expected 0 to 1");
    c = good;
    c.boundaries_down = true;
    expect_refused(&c, "only with checkpoints");
    c = good;
    c.microbatches = -1;
    expect_refused(&c, "-1 micro-batches");
    c = good;
    c.kept_share = 1.5;
    expect_refused(&c, "kept_share: 1.5, expected 0 to 1");
    c = good;
    c.delay = true;
    expect_refused(&c, "delay: expected an update");
    c = good;
    c.values_type = (DLDataType){kDLInt, 8, 1};
    expect_refused(&c, "values_type or grads_type: expected bfloat16");
    m.inner.tensors[1].shape[0]++;
    expect_refused(&good, "tensor 1 has 12 rows");
    om_model_fini(&m);
}

/* O8, gradients by another call than backward, has no counterpart here. */
static void O4_O5_O7_a_host_device_micro_batches_without_checkpoints_several_inputs(void **state)
{
    (void)state;
    struct om_model m;
    struct mode mode = {.slices = 3, .microbatches = 5};

    om_model_init(&m, false, false, false);
    assert_int_equal(m.input.count, 2); /* O7, one of them of integers */
    om_model_fini(&m);
    assert_false(mode.checkpoint); /* O5 */
    run_mode(&mode);               /* O4: on each of the devices below */
}

static void O9_a_forward_alone_leaves_nothing_to_differentiate(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 3, .microbatches = 2, .checkpoint = true};

    begin(run, &mode);
    one_step(run, 0, false, false);
    struct dp_offload_gradients g = {.gouts = run->tensors.gouts};
    assert_int_equal(dp_offload_backward(run->o, &g), DP_ESTATE);
    assert_non_null(strstr(dp_last_error(), "without a training forward"));
    end(run);
    free(run);
}

static void ready_made_shards_may_be_empty(void **state)
{
    (void)state;
    static const int32_t first[] = {0, 0, 3, 3, 8, 8};
    struct run *run = calloc(1, sizeof(*run));
    struct mode mode = {.slices = 5, .microbatches = 2};
    struct dp_offload_memory memory;

    begin(run, &mode);
    dp_offload_close(run->o);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    config.first = first;
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    dp_offload_memory(run->o, &memory);
    assert_int_equal(memory.shards, 2);
    one_step(run, 0, true, false);
    assert_int_equal(dp_offload_finish(run->o), 0);
    compare_parameters(run, true);
    end(run);
    free(run);
}

/* ---- devices --------------------------------------------------------------------------------- */

static int run_suite(const char *title, struct dp_device *device, void (*sync)(void *stream))
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_is_the_resident_model_to_the_last_bit),
        cmocka_unit_test(copies_that_the_pace_holds_up_change_nothing),
        cmocka_unit_test(one_slot_and_no_reuse_are_enough),
        cmocka_unit_test(more_slots_than_shards_are_fine),
        cmocka_unit_test(only_slots_that_are_used_take_memory),
        cmocka_unit_test(tied_parameters_are_one_within_a_shard_and_between_shards),
        cmocka_unit_test(tied_parameters_stay_equal_through_updates),
        cmocka_unit_test(gradients_add_up_over_steps),
        cmocka_unit_test(a_forward_alone_needs_no_memory_for_gradients),
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
        cmocka_unit_test(the_peak_is_the_slots_and_the_activations),
        cmocka_unit_test(a_device_that_is_too_small_is_refused_before_the_first_step),
        cmocka_unit_test(what_is_still_there_is_loaded_again_only_if_it_may_have_changed),
        cmocka_unit_test(events_begin_in_the_order_of_the_plan),
        cmocka_unit_test(a_failed_layer_is_named_and_the_step_can_be_repeated),
        cmocka_unit_test(a_failed_update_is_reported_at_the_end),
        cmocka_unit_test(updates_run_on_the_node_of_the_pinned_memory),
        cmocka_unit_test(tensors_that_are_not_as_declared_are_refused),
        cmocka_unit_test(O1_to_O6_what_no_model_and_no_cut_can_be),
        cmocka_unit_test(
            O4_O5_O7_a_host_device_micro_batches_without_checkpoints_several_inputs),
        cmocka_unit_test(O9_a_forward_alone_leaves_nothing_to_differentiate),
        cmocka_unit_test(ready_made_shards_may_be_empty),
    };

    dev = device;
    sync_of_device = sync;
    int failed = cmocka_run_group_tests_name(title, tests, NULL, NULL);
    dp_device_close(device);
    return failed;
}

#ifdef WITH_CUDA
static const struct fake_cuda *fake;

static void drain(void *stream)
{
    (void)stream;
    fake->drain();
}

/* Copies of the simulated driver are late, too; the CPU computes. */
static int run_on_cuda(void)
{
    struct dp_device *device;

    fake = use_fake_cuda();
    if (!fake || dp_device_open("cuda:0", &device))
        return 1;
    fake->shake(7, 30);
    reach_of_device = fake->reach;
    return run_suite("cuda on the stand-in, at random times", device, drain) + fake->alive();
}
#endif

int main(void)
{
    struct dp_host_link late = {0, 0, 100 * DP_NS_PER_US, 5};
    struct dp_device *device;
    int failed = 0;

    dp_log_set(NULL, NULL, DP_LOG_ERROR);
    failed += dp_device_host_open(0, &device) || run_suite("host", device, NULL);
    failed += dp_device_host_open(2, &device) || run_suite("host, 2 workers", device, NULL);
    failed += dp_device_host_open_link(2, &late, &device) ||
              run_suite("host, 2 workers, copies at random times", device, NULL);
    failed += fake_device_open(&device) ||
              run_suite("a device that does nothing before it is asked", device, fake_device_sync);
#ifdef WITH_CUDA
    failed += run_on_cuda();
#endif
    return failed;
}
