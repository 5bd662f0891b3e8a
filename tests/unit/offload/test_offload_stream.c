/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that is streamed through the device computes what it computes in memory, to the last bit:
 * in every mode, with any number of shards, slots and micro-batches, on every kind of device,
 * whatever is late. And what cannot be is refused.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "offload_run.h"

/* ---- bits ------------------------------------------------------------------------------------ */

CASE(every_mode_is_the_resident_model_to_the_last_bit)
{
    static const int32_t microbatches[] = {1, 2, 5};

    for (int m = 0; m < 3; m++)
        for (int32_t slices = 1; slices <= OM_LAYERS; slices++)
            for (int how = 0; how < 3; how++)
                for (int32_t slots = 2; slots <= 4; slots++)
                    run_mode(&(struct mode){.slices = slices, .microbatches = microbatches[m],
                                            .slots = slots, .distance = (slices + m) % slots,
                                            .checkpoint = how > 0, .boundaries_down = how > 1,
                                            .check = (slices + slots) % 2,
                                            .update = (slices + m + slots) % 2,
                                            .frozen = slices % 3 == 0});
}

CASE(one_slot_and_no_reuse_are_enough)
{
    for (int how = 0; how < 4; how++)
        run_mode(&(struct mode){.slices = 4, .microbatches = 2, .slots = 1, .distance = 0,
                                .checkpoint = how % 2, .drop_at_once = how / 2, .check = true,
                                .update = true});
}

CASE(more_slots_than_shards_are_fine)
{
    run_mode(&(struct mode){.slices = 3, .microbatches = 2, .slots = 6, .distance = 5,
                            .checkpoint = true, .boundaries_down = true, .update = true});
}

CASE(only_slots_that_are_used_take_memory)
{
    const struct mode modes[] = {{.slices = 3, .slots = 3, .distance = 2},
                                 {.slices = 3, .slots = 20, .distance = 19}};
    struct dp_offload_memory enough, more;

    for (int i = 0; i < 2; i++) {
        ENDED_BY(end) struct run *run = begin(&modes[i]);
        dp_offload_memory(run->o, i ? &more : &enough);
    }
    assert_int_equal(more.slots, 3);
    assert_true(more.device_bytes == enough.device_bytes);
}

/* Sums of small whole numbers are the same in every order. */
CASE(tied_parameters_are_one_within_a_shard_and_between_shards)
{
    for (int32_t slices = 1; slices <= OM_LAYERS; slices++)
        run_mode(&(struct mode){.slices = slices, .microbatches = 2, .slots = 2, .distance = 1,
                                .checkpoint = slices % 2, .check = true, .exact = true,
                                .tied = true, .update = false});
}

CASE(tied_parameters_stay_equal_through_updates)
{
    for (int32_t slices = 1; slices <= OM_LAYERS; slices++)
        run_mode(&(struct mode){.slices = slices, .microbatches = 1, .slots = 3, .distance = 1,
                                .steps = 1, .checkpoint = true, .exact = true, .tied = true,
                                .update = true});
}

CASE(gradients_add_up_over_steps)
{
    for (int32_t slices = 1; slices <= 5; slices += 2)
        run_mode(&(struct mode){.slices = slices, .microbatches = 2, .slots = 2, .distance = 1,
                                .exact = true, .accumulate = true});
}

CASE(a_forward_alone_needs_no_memory_for_gradients)
{
    struct mode mode = {.slices = 4, .microbatches = 2, .slots = 2, .distance = 1};
    struct dp_offload_memory with, without;
    struct dp_offload *o;

    ENDED_BY(end) struct run *run = begin(&mode);
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
}

/* ---- memory and traffic ---------------------------------------------------------------------- */

CASE(the_peak_is_the_slots_and_the_activations)
{
    struct dp_device_usage before, after;
    struct dp_offload_memory memory;
    struct mode mode = {
        .slices = 6, .microbatches = 2, .slots = 3, .distance = 2, .checkpoint = true};

    dp_device_limit(dev, SIZE_MAX);
    dp_device_usage(dev, &before);
    ENDED_BY(end) struct run *run = begin(&mode);
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
}

CASE(a_device_that_is_too_small_is_refused_before_the_first_step)
{
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
CASE(what_is_still_there_is_loaded_again_only_if_it_may_have_changed)
{
    struct mode mode = {.slices = 4, .microbatches = 1, .slots = 2, .distance = 1, .check = true};
    static const uint64_t loads[] = {6, 10, 16};
    struct dp_offload_memory memory;

    ENDED_BY(end) struct run *run = begin(&mode);
    for (uint64_t step = 0; step < 3; step++) {
        run->unchanged = step == 1;
        zero_grads(run);
        one_step(run, step, true, false);
        assert_int_equal(dp_offload_finish(run->o), 0);
        compare_parameters(run, true);
        dp_offload_memory(run->o, &memory);
        assert_int_equal(memory.loads, loads[step]);
    }
}

CASE(events_begin_in_the_order_of_the_plan)
{
    struct mode mode = {.slices = 5, .microbatches = 2, .slots = 3, .distance = 1};
    struct events planned, seen = {.count = 0};

    ENDED_BY(end) struct run *run = begin(&mode);
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
}

/* ---- failures -------------------------------------------------------------------------------- */

CASE(a_failed_layer_is_named_and_the_step_can_be_repeated)
{
    struct mode mode = {.slices = 4, .microbatches = 2, .slots = 2, .distance = 1,
                        .checkpoint = true, .check = true};

    ENDED_BY(end) struct run *run = begin(&mode);
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
}

static int failing_update(void *user, int32_t shard, const struct dp_parameter *parameters,
                          int32_t count)
{
    return shard == 1 ? DP_EIO : 0;
}

CASE(a_failed_update_is_reported_at_the_end)
{
    struct mode mode = {.slices = 3, .slots = 2, .distance = 1};

    ENDED_BY(end) struct run *run = begin(&mode);
    dp_offload_close(run->o);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    config.update = failing_update;
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    run->mode = &(struct mode){.slices = 3, .microbatches = 1};
    one_step(run, 0, true, false);
    expect_error(dp_offload_finish(run->o), DP_EIO, "the update of a shard failed");
    assert_int_equal(dp_offload_finish(run->o), 0);
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

    if (sched_getaffinity(0, sizeof(mine), &mine))
        return DP_EIO;
    CPU_AND(&both, &mine, &b->cpus);
    atomic_fetch_add(CPU_EQUAL(&both, &mine) ? &b->inside : &b->outside, 1);
    return 0;
}

/* Where threads of the device's update; without such a thread it is the calling one. */
CASE(updates_run_on_the_node_of_the_pinned_memory)
{
    struct bound bound = {.inside = 0};
    struct mode mode = {.slices = 3, .microbatches = 1, .slots = 2, .distance = 1};

    ENDED_BY(end) struct run *run = begin(&mode);
    dp_offload_close(run->o);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
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
}

CASE(tensors_that_are_not_as_declared_are_refused)
{
    struct mode mode = {.slices = 2};

    ENDED_BY(end) struct run *run = begin(&mode);
    om_tensors_init(&run->tensors, &run->data);
    struct dp_offload_step step = {.inputs = run->tensors.inputs};
    run->tensors.x.ndim = 1;
    expect_error(dp_offload_forward(run->o, &step), DP_EINVAL, "input 1: expected");
    run->tensors.inputs[0] = NULL;
    expect_error(dp_offload_forward(run->o, &step), DP_EINVAL, "input 0 is missing");
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

CASE(O1_to_O6_what_no_model_and_no_cut_can_be)
{
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
    m.layers[3].reserved[1] = 1;
    expect_refused(&good, "layer: reserved words are set, expected zeros");
    m.layers[3].reserved[1] = 0;
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
    c.values_type = (DLDataType){kDLInt, 8, 1};
    expect_refused(&c, "values_type or grads_type: expected bfloat16");
    m.inner.tensors[1].shape[0]++;
    expect_refused(&good, "tensor 1 has 12 rows");
    om_model_fini(&m);
}

/* O8, gradients by another call than backward, has no counterpart here. */
CASE(O4_O5_O7_a_host_device_micro_batches_without_checkpoints_several_inputs)
{
    struct om_model m;
    struct mode mode = {.slices = 3, .microbatches = 5};

    om_model_init(&m, false, false, false);
    assert_int_equal(m.input.count, 2); /* O7, one of them of integers */
    om_model_fini(&m);
    assert_false(mode.checkpoint); /* O5 */
    run_mode(&mode);               /* O4: on each of the devices below */
}

CASE(O9_a_forward_alone_leaves_nothing_to_differentiate)
{
    struct mode mode = {.slices = 3, .microbatches = 2, .checkpoint = true};

    ENDED_BY(end) struct run *run = begin(&mode);
    one_step(run, 0, false, false);
    struct dp_offload_gradients g = {.gouts = run->tensors.gouts};
    expect_error(dp_offload_backward(run->o, &g), DP_ESTATE, "without a training forward");
}

CASE(ready_made_shards_may_be_empty)
{
    static const int32_t first[] = {0, 0, 3, 3, 8, 8};
    struct mode mode = {.slices = 5, .microbatches = 2};
    struct dp_offload_memory memory;

    ENDED_BY(end) struct run *run = begin(&mode);
    dp_offload_close(run->o);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    config.first = first;
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    dp_offload_memory(run->o, &memory);
    assert_int_equal(memory.shards, 2);
    one_step(run, 0, true, false);
    assert_int_equal(dp_offload_finish(run->o), 0);
    compare_parameters(run, true);
}

CASE(layers_compute_in_a_stream_of_the_callers)
{
    struct mode mode = {.slices = 4, .microbatches = 2, .slots = 2, .distance = 1};
    struct dp_device_event *event;
    struct run *run = begin(&mode);

    dp_offload_close(run->o);
    struct dp_offload_config config = config_of(&run->streamed, &mode);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &config.stream), 0);
    assert_int_equal(dp_device_event_new(dev, &event), 0);
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    one_step(run, 0, true, false);
    assert_int_equal(dp_offload_finish(run->o), 0);
    compare_parameters(run, true);
    end(&run);
    assert_int_equal(dp_device_event_record(event, config.stream), 0); /* it is still the caller's */
    assert_int_equal(dp_device_event_wait(event, DP_NS_PER_S), 0);
    dp_device_event_free(event);
    dp_device_stream_free(config.stream);
}

int main(void)
{
    return run_on_all_devices();
}
