/* SPDX-License-Identifier: Apache-2.0
 *
 * A model is cut so that it fits the memory of the device; what was at work, and how long, is
 * counted.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "offload_model.h"

static struct dp_offload_config config_of(struct om_model *m, struct dp_device *dev)
{
    return (struct dp_offload_config){.device = dev, .layers = m->layers, .layer_count = OM_LAYERS,
                                      .input = &m->input, .slices = 1, .microbatches = 3};
}

/* One step, and what it needed. */
static void step(const struct dp_offload_config *config, struct dp_offload_memory *memory)
{
    struct om_data *data = calloc(1, sizeof(*data));
    struct om_tensors t;
    struct dp_offload *o;

    om_data_init(data, 1, false);
    om_tensors_init(&t, data);
    assert_int_equal(dp_offload_open(config, &o), 0);
    assert_int_equal(dp_offload_forward(o, &(struct dp_offload_step){.inputs = t.inputs,
                                                                     .outputs = t.outputs,
                                                                     .training = true}),
                     0);
    assert_int_equal(
        dp_offload_backward(o, &(struct dp_offload_gradients){.gouts = t.gouts, .gins = t.gins}),
        0);
    assert_int_equal(dp_offload_finish(o), 0);
    dp_offload_memory(o, memory);
    dp_offload_close(o);
    free(data);
}

/* Each time with a little less than the last cut has used. */
CASE(less_memory_takes_more_copies_until_nothing_fits)
{
    struct dp_offload_memory memory = {.device_bytes = 1 << 20};
    struct dp_offload_config config;
    struct dp_device *dev;
    struct dp_device_usage usage;
    struct om_model m;
    uint64_t loads = 0;
    int cuts = 0;

    om_model_init(&m, false, false, false);
    assert_int_equal(dp_device_host_open(0, &dev), 0);
    for (;; cuts++) {
        config = config_of(&m, dev);
        dp_device_limit(dev, memory.device_bytes - (cuts ? 1 : 0));
        if (dp_offload_fit(&config, true))
            break;
        step(&config, &memory);
        dp_device_usage(dev, &usage);
        assert_true(usage.peak_bytes <= usage.limit_bytes);
        if (!cuts)
            assert_true(memory.shards == OM_LAYERS && memory.slots == OM_LAYERS &&
                        !config.checkpoint);
        if (!config.checkpoint) /* until then only copies are given up */
            assert_true(memory.loaded_bytes >= loads);
        loads = memory.loaded_bytes;
    }
    assert_true(cuts > 5 && memory.slots == 1);
    assert_int_equal(dp_offload_fit(&config, true), DP_ENOMEM);
    dp_device_close(dev);
    om_model_fini(&m);
}

CASE(the_limit_that_is_asked_for_is_enough)
{
    struct dp_offload_config config;
    struct dp_device *dev;
    struct dp_offload *o;
    struct om_model m;
    void *others;

    om_model_init(&m, false, false, false);
    assert_int_equal(dp_device_host_open(0, &dev), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 5000, &others), 0);
    for (int boundaries = 0; boundaries < 2; boundaries++) {
        config = config_of(&m, dev);
        dp_device_limit(dev, 4000);
        assert_int_equal(dp_offload_fit(&config, boundaries), DP_ENOMEM);
        const char *least = strstr(dp_last_error(), "at least ");
        assert_non_null(least);
        dp_device_limit(dev, (size_t)atol(least + 9));
        assert_int_equal(dp_offload_fit(&config, boundaries), 0);
        assert_int_equal(dp_offload_open(&config, &o), 0);
        assert_int_equal(config.boundaries_down, boundaries);
        dp_offload_close(o);
        dp_device_limit(dev, (size_t)atol(least + 9) - 1);
        config = config_of(&m, dev);
        assert_int_equal(dp_offload_fit(&config, boundaries), DP_ENOMEM);
    }
    dp_device_free(dev, DP_MEMORY_DEVICE, others);
    dp_device_close(dev);
    om_model_fini(&m);
}

CASE(what_is_given_is_kept)
{
    struct dp_offload_config config;
    struct dp_device_usage usage;
    struct dp_device *dev;
    struct om_model m;

    om_model_init(&m, false, false, false);
    assert_int_equal(dp_device_host_open(0, &dev), 0);
    dp_device_usage(dev, &usage);
    dp_device_limit(dev, usage.bytes + (48 << 10));
    for (int32_t distance = 0; distance < 2; distance++) {
        config = config_of(&m, dev);
        config.slots = 2;
        config.distance = distance;
        assert_int_equal(dp_offload_fit(&config, true), 0);
        assert_int_equal(config.slots, 2);
        assert_int_equal(config.distance, distance);
    }
    dp_device_close(dev);
    om_model_fini(&m);
}

CASE(what_cannot_be_cut_is_refused)
{
    struct dp_offload_config config;
    struct dp_device *dev;
    struct om_model m;
    int32_t first[2] = {0, OM_LAYERS};

    om_model_init(&m, false, false, false);
    assert_int_equal(dp_device_host_open(0, &dev), 0);
    config = config_of(&m, dev);
    config.first = first;
    assert_int_equal(dp_offload_fit(&config, true), DP_EINVAL);
    config = config_of(&m, NULL);
    assert_int_equal(dp_offload_fit(&config, true), DP_EINVAL);
    dp_device_close(dev);
    om_model_fini(&m);
}
