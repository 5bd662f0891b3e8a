/* SPDX-License-Identifier: Apache-2.0
 *
 * offload_run.h - a run of a model that is streamed through a device, beside the same run in memory,
 * and the devices that it is tried on.
 */
#ifndef DP_TESTS_OFFLOAD_RUN_H
#define DP_TESTS_OFFLOAD_RUN_H

#include "cmocka_all.h"

#include "base/bind.h"
#include "base/clock.h"
#include "base/fail.h"
#include "fake_device.h"
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif
#include "offload_model.h"

#include <sched.h>
#include <stdatomic.h>

enum { SEED = 77, STEPS = 3 };

struct mode {
    int32_t slices, microbatches, slots, distance;
    uint64_t steps; /* 0: STEPS */
    bool checkpoint, boundaries_down, drop_at_once, check, exact, tied, frozen, update, accumulate;
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

static inline int update(void *user, int32_t shard, const struct dp_parameter *parameters,
                         int32_t count)
{
    om_update(parameters, count);
    return 0;
}

static inline struct dp_offload_config config_of(struct om_model *m, const struct mode *mode)
{
    return (struct dp_offload_config){.device = dev, .layers = m->layers, .layer_count = OM_LAYERS,
                                      .input = &m->input, .slices = mode->slices,
                                      .microbatches = mode->microbatches, .slots = mode->slots,
                                      .distance = mode->distance, .checkpoint = mode->checkpoint,
                                      .boundaries_down = mode->boundaries_down,
                                      .drop_at_once = mode->drop_at_once, .check = mode->check,
                                      .seed = SEED, .values_type = mode->values_type,
                                      .grads_type = mode->grads_type,
                                      .update = mode->update ? update : NULL};
}

static inline struct run *begin(const struct mode *mode)
{
    struct run *run = calloc(1, sizeof(*run));

    assert_non_null(run);
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
    return run;
}

static inline void end(struct run **run)
{
    dp_offload_close((*run)->o);
    om_model_fini(&(*run)->streamed);
    om_model_fini(&(*run)->resident);
    free(*run);
}

static inline void compare(const struct run *run, const char *what, const float *a, const float *b,
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
static inline void compare_parameters(const struct run *run, bool grads)
{
    int32_t count;
    const struct dp_parameter *list = dp_offload_parameters(run->o, &count);

    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p =
            om_parameter(run->resident.parameters, list[i].name);
        size_t elements = (size_t)dp_parameter_elements(p);
        compare(run, p->name, list[i].value->data, p->value->data, elements);
        if (grads && list[i].grad)
            compare(run, "a gradient", list[i].grad->data, p->grad->data, elements);
    }
}

static inline void compare_step(const struct run *run, bool training)
{
    compare(run, "the output", run->data.y, run->expected.y, OM_ROWS);
    if (training)
        compare(run, "the input's gradient", run->data.gin, run->expected.gin, OM_ROWS * OM_WIDTH);
}

/* Gradients of the resident model begin at zero unless they are added to. */
static inline void zero_grads(struct run *run)
{
    for (int32_t i = 0; i < run->resident.parameter_count; i++)
        memset(run->resident.grad_data[i], 0, om_elements(&run->resident, i) * sizeof(float));
}

static inline void one_step(struct run *run, uint64_t step, bool training, bool accumulate)
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

static inline void run_mode(const struct mode *mode)
{
    struct dp_device_usage before, after;

    uint64_t steps = mode->steps ? mode->steps : STEPS;

    ENDED_BY(end) struct run *run = begin(mode);
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
}

/* ---- devices --------------------------------------------------------------------------------- */

static inline int run_suite(const char *title, struct dp_device *device, void (*sync)(void *stream))
{
    dev = device;
    sync_of_device = sync;
    int failed = run_titled_cases(title);
    dp_device_close(device);
    return failed;
}

#ifdef WITH_CUDA
static const struct fake_cuda *fake;

static inline void drain(void *stream)
{
    fake->drain();
}

/* Copies of the simulated driver are late, too; the CPU computes. */
static inline int run_on_cuda(void)
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

/* Returns how many tests have failed. */
static inline int run_on_all_devices(void)
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

#endif
