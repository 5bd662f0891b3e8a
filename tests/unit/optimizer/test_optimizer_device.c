/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimizers and sums of squares in the memory of a device: the bits of the host's. On the simulated CUDA
 * the kernels are C, and their PTX is only assembled (test_device_graphs.c); with DP_TEST_GPU set it runs
 * on that GPU.
 */
#include "cmocka_all.h"
#include "optimizer/internal.h"
#include "use_sim_cuda.h"

#include <dualpipe/device.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/random.h>

enum { COUNT = 3, MOST = 70001, STEPS = 3 };
static const int64_t sizes[COUNT] = {MOST, 1, 1030}, timeout_ns = INT64_C(60000000000);

static struct dp_device *dev;
static struct dp_device_stream *stream;
static struct dp_device_event *event;

static void wait_for_all(void)
{
    assert_int_equal(dp_device_event_record(event, stream), 0);
    assert_int_equal(dp_device_event_wait(event, timeout_ns), 0);
}

static void copy(void *to, const void *from, size_t bytes)
{
    assert_int_equal(dp_device_copy(stream, to, from, bytes), 0);
    wait_for_all();
}

/* Parameters on the host, and the same ones on the device. */
struct list {
    double memory[2][COUNT][MOST]; /* values, gradients; of float or double */
    DLTensor tensors[2][2][COUNT]; /* host, device */
    struct dp_parameter parameters[2][COUNT];
};

static size_t bytes_of(const DLTensor *t)
{
    return (size_t)t->shape[0] * t->dtype.bits / 8;
}

static void draw(struct list *l, int which, int32_t i, uint32_t what)
{
    static float normal[MOST];
    const DLTensor *host = &l->tensors[0][which][i];

    dp_random_normal(dp_random_key(3, what, (uint32_t)i, (uint32_t)which), 0, normal, (size_t)sizes[i]);
    for (int64_t k = 0; k < sizes[i]; k++)
        if (host->dtype.bits == 64)
            ((double *)host->data)[k] = (double)normal[k];
        else
            ((float *)host->data)[k] = normal[k];
    copy(l->tensors[1][which][i].data, host->data, bytes_of(host));
}

static void open_list(struct list *l, int bits)
{
    static const char *const names[] = {"w", "b", "v"};

    for (int32_t i = 0; i < COUNT; i++)
        for (int where = 0; where < 2; where++) {
            for (int which = 0; which < 2; which++) {
                DLTensor *t = &l->tensors[where][which][i];
                *t = (DLTensor){l->memory[which][i], {kDLCPU, 0}, 1, {kDLFloat, (uint8_t)bits, 1},
                                (int64_t *)&sizes[i], NULL, 0};
                if (where) {
                    t->device = dp_device_dl(dev);
                    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, bytes_of(t), &t->data), 0);
                }
            }
            l->parameters[where][i] = (struct dp_parameter){
                .name = names[i], .flags = i == 1 ? DP_PARAMETER_NO_DECAY : 0,
                .value = &l->tensors[where][0][i], .grad = &l->tensors[where][1][i]};
        }
    for (int32_t i = 0; i < COUNT; i++)
        draw(l, 0, i, 0);
}

static void close_list(struct list *l)
{
    for (int32_t i = 0; i < COUNT; i++)
        for (int which = 0; which < 2; which++)
            dp_device_free(dev, DP_MEMORY_DEVICE, l->tensors[1][which][i].data);
}

static void assert_same(const DLTensor *host, const DLTensor *device)
{
    static char there[MOST * sizeof(double)];

    copy(there, device->data, bytes_of(host));
    assert_memory_equal(there, host->data, bytes_of(host));
}

static void compare(struct list *l, struct dp_optimizer_config config)
{
    struct dp_optimizer *on[2];
    const int32_t states = 1 + (config.kind != DP_OPTIMIZER_SGD ? 2 : config.momentum > 0);

    for (int where = 0; where < 2; where++) {
        config.stream = where ? stream : NULL;
        assert_int_equal(dp_optimizer_new(&config, l->parameters[where], COUNT, &on[where]), 0);
    }
    for (int step = 0; step < STEPS; step++) {
        const struct dp_optimizer_step how = {.rate = 0.01 * step, .scale = 0.3, .skip = step == 1,
                                              .zero_grads = step != 2};
        for (int32_t i = 0; i < COUNT; i++)
            draw(l, 1, i, (uint32_t)step + 1);
        for (int where = 0; where < 2; where++)
            assert_int_equal(dp_optimizer_step(on[where], &how), 0);
        for (int32_t i = 0; i < 2 * COUNT; i++)
            assert_same(&l->tensors[0][i / COUNT][i % COUNT], &l->tensors[1][i / COUNT][i % COUNT]);
    }
    assert_int_equal(dp_optimizer_state_count(on[1]), states * COUNT);
    for (int32_t i = 0; i < states * COUNT; i++) {
        const struct dp_named_tensor *host = &dp_optimizer_state(on[0])[i],
                                     *device = &dp_optimizer_state(on[1])[i];
        assert_string_equal(host->name, device->name);
        if (i % states)
            assert_same(&host->tensor, &device->tensor);
        else /* steps, on the host on both */
            assert_int_equal(*(int64_t *)host->tensor.data, *(int64_t *)device->tensor.data);
    }
    dp_optimizer_free(on[1]);
    dp_optimizer_free(on[0]);
}

CASE(updates_have_the_bits_of_the_host)
{
    static struct list l;
    struct dp_optimizer_config sgd = dp_optimizer_defaults(DP_OPTIMIZER_SGD), momentum = sgd, nesterov;

    sgd.weight_decay = 0.2;
    momentum.momentum = 0.9;
    nesterov = momentum;
    nesterov.nesterov = true;
    for (int bits = 32; bits <= 64; bits *= 2) {
        open_list(&l, bits);
        compare(&l, sgd);
        compare(&l, momentum);
        compare(&l, nesterov);
        compare(&l, dp_optimizer_defaults(DP_OPTIMIZER_ADAM));
        compare(&l, dp_optimizer_defaults(DP_OPTIMIZER_ADAMW));
        close_list(&l);
    }
}

/* Another order of additions than the host's. */
CASE(squares_are_those_of_the_host)
{
    static struct list l;
    double host[COUNT], there[COUNT];
    void *room, *squares;

    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, dp_gradient_squares_room(COUNT), &room), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, sizeof(host), &squares), 0);
    for (int bits = 32; bits <= 64; bits *= 2) {
        open_list(&l, bits);
        for (int32_t i = 0; i < COUNT; i++)
            draw(&l, 1, i, 9);
        for (int32_t frozen = 0; frozen < 2; frozen++) {
            for (int where = 0; where < 2; where++)
                l.parameters[where][frozen].flags = DP_PARAMETER_FROZEN;
            assert_int_equal(dp_gradient_squares(l.parameters[0], COUNT, host), 0);
            assert_int_equal(dp_gradient_squares_queue(stream, l.parameters[1], COUNT, room, squares), 0);
            copy(there, squares, sizeof(there));
            for (int32_t i = 0; i < COUNT; i++)
                assert_true(i <= frozen ? there[i] == 0 : fabs(there[i] - host[i]) <= 1e-13 * host[i]);
        }
        close_list(&l);
    }
    dp_device_free(dev, DP_MEMORY_DEVICE, squares);
    dp_device_free(dev, DP_MEMORY_DEVICE, room);
}

CASE(what_is_for_the_host_is_refused_by_name)
{
    static struct list l;
    struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ACCUM_ADAM);
    OWNED(dp_optimizer) *o = NULL;

    open_list(&l, 32);
    config.stream = stream;
    assert_int_equal(dp_optimizer_new(&config, l.parameters[1], COUNT, &o), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "accum-adam of 32 bits"));
    config.kind = DP_OPTIMIZER_SGD;
    assert_int_equal(dp_optimizer_new(&config, l.parameters[0], COUNT, &o), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "parameter 'w'"));
    assert_int_equal(dp_optimizer_new(&config, l.parameters[1], COUNT, &o), 0);
    assert_int_equal(dp_optimizer_begin(o, &(struct dp_optimizer_step){0}), DP_EUNSUPPORTED);
    assert_int_equal(dp_optimizer_step(o, &(struct dp_optimizer_step){.mix = &(struct dp_optimizer_mix){
                         .buffers = (void *[]){NULL}}}), DP_EUNSUPPORTED);
    close_list(&l);
}

int main(void)
{
    const char *why = use_sim_cuda();

    if (!why && (dp_device_open(getenv("DP_TEST_GPU") ? getenv("DP_TEST_GPU") : "cuda", &dev) ||
                 dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &stream) ||
                 dp_device_event_new(dev, &event)))
        why = dp_last_error();
    if (why) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const int failed = run_cases(NULL, NULL);
    dp_device_event_free(event);
    dp_device_stream_free(stream);
    dp_device_close(dev);
    return failed;
}
