/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and shards under stress: a model is streamed through a device whose copies are late at
 * random and whose streams have random priorities, while another thread copies on the same device, up and
 * down, at random priorities, and checks every chunk. What comes out is what the resident model has, to the last bit. DP_TEST_SEED=n begins with that seed, which a
 * failure names; with DP_TEST_FULL there are twenty times as many.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "base/fail.h"
#include "device/device_ops.h"
#include "offload/streams.h"
#include "offload_model.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SEEDS = 48, STEPS = 3, IN_FLIGHT = 6, SPACE = 3000 };
static const int64_t timeout_ns = 60 * DP_NS_PER_S;

static uint64_t first_seed(void)
{
    const char *text = getenv("DP_TEST_SEED");

    return text ? strtoull(text, NULL, 0) : 1;
}

static int below(uint64_t *random, int n)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((*random >> 33) % (uint64_t)n);
}

static enum dp_device_priority any_priority(uint64_t *random)
{
    return (enum dp_device_priority)(DP_PRIORITY_LOW + below(random, 3));
}

/* ---- a device whose streams have any priority ------------------------------------------------- */

static const struct dp_device_ops *sound;
static _Atomic uint64_t priorities;

static int any_stream(struct dp_device *dev, enum dp_device_priority priority,
                      struct dp_device_stream **out)
{
    uint64_t random = atomic_fetch_add(&priorities, UINT64_C(0x9e3779b97f4a7c15));

    return sound->stream_new(dev, any_priority(&random), out);
}

static struct dp_device *open_device(uint64_t seed, struct dp_device_ops *ops)
{
    uint64_t random = seed;
    const struct dp_host_link late = {0, 0, (1 + below(&random, 60)) * DP_NS_PER_US, seed};
    struct dp_device *dev;

    assert_int_equal(dp_device_host_open_link(2 + below(&random, 2), &late, &dev), 0);
    atomic_store(&priorities, seed);
    sound = dev->ops;
    *ops = *sound;
    ops->stream_new = any_stream;
    dev->ops = ops;
    return dev;
}

static void close_device(struct dp_device *dev)
{
    dev->ops = sound;
    dp_device_close(dev);
}

/* ---- copies beside the model ------------------------------------------------------------------ */

/* Each goes up and, after that, down again; between the two is an event alone. */
struct there_and_back {
    char *source, *device, *target; /* [SPACE] */
    size_t bytes;
    struct dp_device_event *up_done;
};

struct stress {
    struct dp_device *dev;
    struct dpo_streams streams;
    struct there_and_back list[IN_FLIGHT];
    uint64_t random;
    _Atomic bool over;
    const char *wrong; /* NULL: nothing */
    int rounds;
};

static int begin_one(struct stress *s, struct there_and_back *t)
{
    t->bytes = (size_t)below(&s->random, SPACE + 1);
    for (size_t i = 0; i < t->bytes; i++)
        t->source[i] = (char)(s->random >> (i % 57));
    memset(t->target, 0, SPACE);
    return dpo_copy(&s->streams, &(struct dpo_copy){.stream = below(&s->random, 2) ? DPO_UP : DPO_UP_URGENT,
                                                    .dst = t->device, .src = t->source,
                                                    .bytes = t->bytes, .record = t->up_done});
}

static int turn_one(struct stress *s, const struct there_and_back *t)
{
    return dpo_copy(&s->streams, &(struct dpo_copy){.stream = DPO_DOWN, .dst = t->target,
                                                    .src = t->device, .bytes = t->bytes,
                                                    .after = {t->up_done}});
}

static int one_round(struct stress *s)
{
    int first = below(&s->random, IN_FLIGHT), err = 0;

    for (int i = 0; i < IN_FLIGHT && !err; i++)
        err = begin_one(s, &s->list[(first + i) % IN_FLIGHT]);
    for (int i = 0; i < IN_FLIGHT && !err; i++)
        err = turn_one(s, &s->list[(first + 5 * i) % IN_FLIGHT]);
    if (!err)
        err = dpo_copies_wait(&s->streams);
    for (int i = 0; i < IN_FLIGHT && !err; i++)
        if (memcmp(s->list[i].target, s->list[i].source, s->list[i].bytes))
            s->wrong = "a copy has not arrived as it was sent";
    return err;
}

static void *copy_until_over(void *user)
{
    struct stress *s = user;

    while (!s->wrong && (!atomic_load(&s->over) || !s->rounds)) {
        if (one_round(s))
            s->wrong = "a copy failed";
        s->rounds++;
    }
    return NULL;
}

static void *memory(struct dp_device *dev, enum dp_memory where)
{
    void *p;

    assert_int_equal(dp_device_alloc(dev, where, SPACE, &p), 0);
    return p;
}

static void stress_init(struct stress *s, struct dp_device *dev, uint64_t seed)
{
    *s = (struct stress){.dev = dev, .random = seed,
                         .streams = {.dev = dev, .timeout_ns = timeout_ns, .check = seed % 2}};
    assert_int_equal(dpo_streams_open(&s->streams), 0);
    for (int i = 0; i < IN_FLIGHT; i++) {
        struct there_and_back *t = &s->list[i];
        t->source = memory(dev, DP_MEMORY_PINNED);
        t->target = memory(dev, DP_MEMORY_PINNED);
        t->device = memory(dev, DP_MEMORY_DEVICE);
        assert_int_equal(dp_device_event_new(dev, &t->up_done), 0);
    }
}

static void stress_fini(struct stress *s)
{
    dpo_streams_close(&s->streams);
    for (int i = 0; i < IN_FLIGHT; i++) {
        dp_device_free(s->dev, DP_MEMORY_PINNED, s->list[i].source);
        dp_device_free(s->dev, DP_MEMORY_PINNED, s->list[i].target);
        dp_device_free(s->dev, DP_MEMORY_DEVICE, s->list[i].device);
        dp_device_event_free(s->list[i].up_done);
    }
}

/* ---- the model -------------------------------------------------------------------------------- */

struct run {
    struct om_model streamed, resident;
    struct om_data data, expected;
    struct om_tensors tensors;
    struct dp_offload *o;
    int32_t microbatches;
    bool update;
};

static int update(void *user, int32_t shard, const struct dp_parameter *parameters, int32_t count)
{
    om_update(parameters, count);
    return 0;
}

static struct dp_offload_config any_config(struct run *run, struct dp_device *dev, uint64_t *random)
{
    const int32_t slots = 1 + below(random, 4), mode = below(random, 3);

    run->microbatches = 1 + below(random, 5);
    run->update = below(random, 3) > 0;
    return (struct dp_offload_config){.device = dev, .layers = run->streamed.layers,
                                      .layer_count = OM_LAYERS, .input = &run->streamed.input,
                                      .slices = 1 + below(random, OM_LAYERS),
                                      .microbatches = run->microbatches, .slots = slots,
                                      .distance = below(random, slots),
                                      .drop_at_once = below(random, 4) == 0, .checkpoint = mode > 0,
                                      .boundaries_down = mode > 1, .check = below(random, 2),
                                      .update = run->update ? update : NULL, .seed = 7};
}

static void expect_bits(uint64_t seed, const char *what, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes))
        fail_msg("DP_TEST_SEED=%llu: %s is not what the resident model has",
                 (unsigned long long)seed, what);
}

static void expect_parameters(uint64_t seed, const struct run *run)
{
    int32_t count;
    const struct dp_parameter *list = dp_offload_parameters(run->o, &count);

    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p =
            om_parameter(run->resident.parameters, list[i].name);
        size_t bytes = (size_t)dp_parameter_elements(p) * sizeof(float);
        expect_bits(seed, p->name, list[i].value->data, p->value->data, bytes);
        if (!run->update)
            expect_bits(seed, "a gradient", list[i].grad->data, p->grad->data, bytes);
    }
}

static void one_step(uint64_t seed, struct run *run, uint64_t step)
{
    om_data_init(&run->data, 100 * seed + step, false);
    run->expected = run->data;
    om_tensors_init(&run->tensors, &run->data);
    for (int32_t i = 0; i < OM_PARAMETERS && !run->update; i++)
        memset(run->resident.grad_data[i], 0, om_elements(&run->resident, i) * sizeof(float));
    assert_int_equal(
        om_resident_step(&run->resident, &run->expected, run->microbatches, step, 7, true), 0);
    assert_int_equal(
        dp_offload_forward(run->o, &(struct dp_offload_step){.inputs = run->tensors.inputs,
                                                             .outputs = run->tensors.outputs,
                                                             .training = true}),
        0);
    assert_int_equal(
        dp_offload_backward(run->o, &(struct dp_offload_gradients){.gouts = run->tensors.gouts,
                                                                   .gins = run->tensors.gins}),
        0);
    if (run->update)
        om_update(run->resident.parameters, OM_PARAMETERS);
    expect_bits(seed, "the output", run->data.y, run->expected.y, sizeof(run->data.y));
    expect_bits(seed, "the input's gradient", run->data.gin, run->expected.gin,
                sizeof(run->data.gin));
}

static void one_seed(uint64_t seed)
{
    struct run *run = calloc(1, sizeof(*run));
    struct dp_device_ops ops;
    struct dp_device *dev = open_device(seed, &ops);
    struct stress stress;
    uint64_t random = seed * 31;
    pthread_t thread;

    om_model_init(&run->streamed, false, false, false);
    om_model_init(&run->resident, false, false, false);
    const struct dp_offload_config config = any_config(run, dev, &random);
    stress_init(&stress, dev, seed);
    assert_int_equal(dp_offload_open(&config, &run->o), 0);
    assert_int_equal(pthread_create(&thread, NULL, copy_until_over, &stress), 0);
    for (uint64_t step = 0; step < STEPS; step++)
        one_step(seed, run, step);
    assert_int_equal(dp_offload_finish(run->o), 0);
    expect_parameters(seed, run);
    atomic_store(&stress.over, true);
    pthread_join(thread, NULL);
    if (stress.wrong)
        fail_msg("DP_TEST_SEED=%llu: %s", (unsigned long long)seed, stress.wrong);
    assert_true(stress.rounds > 0);
    dp_offload_close(run->o);
    stress_fini(&stress);
    close_device(dev);
    om_model_fini(&run->streamed);
    om_model_fini(&run->resident);
    free(run);
}

CASE(late_copies_at_any_priority_change_nothing)
{
    const uint64_t first = first_seed(), count = getenv("DP_TEST_FULL") ? 20 * SEEDS : SEEDS;

    for (uint64_t seed = first; seed < first + count; seed++)
        one_seed(seed);
}

int main(void)
{
    dp_log_set(NULL, NULL, DP_LOG_ERROR);
    return run_cases(NULL, NULL);
}
