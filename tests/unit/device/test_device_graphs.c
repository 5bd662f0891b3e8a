/* SPDX-License-Identifier: Apache-2.0
 *
 * What not every device has: graphs, sums by kernels, reaching another device. On the
 * simulated CUDA (tests/simcuda), and on the host as far as it has them; with DP_TEST_GPU=cuda on a GPU.
 */
#include "cmocka_all.h"
#include "scratch.h"
#include "use_sim_cuda.h"

#include "base/clock.h"
#include "base/fp16.h"
#include "device/device_ops.h"
#include "device/cuda_device.h"

#include <stdatomic.h>
#include <time.h>

static const int64_t long_enough_ns = 20 * DP_NS_PER_S;
static const DLDataType f32 = {kDLFloat, 32, 1}, f64 = {kDLFloat, 64, 1}, f16 = {kDLFloat, 16, 1},
                        bf16 = {kDLBfloat, 16, 1};

struct rig {
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
};

static void rig_open(struct rig *g, const char *name)
{
    assert_int_equal(dp_device_open(name, &g->dev), 0);
    assert_int_equal(dp_device_stream_new(g->dev, DP_PRIORITY_NORMAL, &g->stream), 0);
    assert_int_equal(dp_device_event_new(g->dev, &g->event), 0);
}

static void rig_close(struct rig *g)
{
    dp_device_event_free(g->event);
    dp_device_stream_free(g->stream);
    dp_device_close(g->dev);
}

static void finish(struct rig *g)
{
    assert_int_equal(dp_device_event_record(g->event, g->stream), 0);
    assert_int_equal(dp_device_event_wait(g->event, long_enough_ns), 0);
}

static void *take(struct rig *g, enum dp_memory where, size_t bytes)
{
    void *out = NULL;

    assert_int_equal(dp_device_alloc(g->dev, where, bytes, &out), 0);
    return out;
}

static void copy(struct rig *g, void *to, const void *from, size_t bytes)
{
    assert_int_equal(dp_device_copy(g->stream, to, from, bytes), 0);
    finish(g);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

CASE(a_graph_does_what_was_captured_as_often_as_it_is_launched)
{
    enum { COUNT = 1000 };
    const size_t bytes = COUNT * sizeof(float);
    struct dp_device_graph *graph = NULL;
    struct rig g;

    rig_open(&g, "cuda");
    float *pinned = take(&g, DP_MEMORY_PINNED, bytes);
    float *x = take(&g, DP_MEMORY_DEVICE, bytes), *y = take(&g, DP_MEMORY_DEVICE, bytes);
    for (int i = 0; i < COUNT; i++)
        pinned[i] = (float)i;
    copy(&g, x, pinned, bytes);
    copy(&g, y, pinned, bytes);
    assert_int_equal(dp_device_add(g.stream, f32, NULL, f32, NULL, 0), 0); /* loads the kernels */
    assert_int_equal(dp_device_capture_begin(g.stream), 0);
    assert_int_equal(dp_device_add(g.stream, f32, y, f32, x, COUNT), 0);
    assert_int_equal(dp_device_copy(g.stream, pinned, y, bytes), 0);
    assert_int_equal(dp_device_capture_end(g.stream, &graph), 0);
    finish(&g);
    assert_true(pinned[7] == 7); /* nothing was done */
    for (int k = 2; k <= 4; k++) {
        assert_int_equal(dp_device_graph_launch(graph, g.stream), 0);
        finish(&g);
        for (int i = 0; i < COUNT; i++)
            assert_true(pinned[i] == (float)(i * k));
    }
    dp_device_graph_free(graph);
    dp_device_graph_free(NULL);
    dp_device_free(g.dev, DP_MEMORY_DEVICE, y);
    dp_device_free(g.dev, DP_MEMORY_DEVICE, x);
    dp_device_free(g.dev, DP_MEMORY_PINNED, pinned);
    rig_close(&g);
}

CASE(an_event_is_no_part_of_a_graph_and_the_stream_goes_on)
{
    struct dp_device_graph *graph = NULL;
    struct rig g;

    if (getenv("DP_TEST_GPU"))
        skip_because("on a GPU an event may be captured, and is only not waited for");
    rig_open(&g, "cuda");
    assert_int_equal(dp_device_capture_begin(g.stream), 0);
    assert_true(dp_device_event_record(g.event, g.stream) < 0);
    assert_int_equal(dp_device_capture_end(g.stream, &graph), 0);
    dp_device_graph_free(graph);
    finish(&g);
    rig_close(&g);
}

static void count_up(void *user)
{
    ++*(int *)user;
}

CASE(a_call_is_no_part_of_a_graph_and_is_refused)
{
    struct dp_device_graph *graph = NULL;
    struct rig g;
    int calls = 0;

    rig_open(&g, "cuda");
    assert_int_equal(dp_device_capture_begin(g.stream), 0);
    assert_int_equal(dp_device_call(g.stream, count_up, &calls), DP_ESTATE);
    assert_non_null(strstr(dp_last_error(), "cuda:0: a call in a stream that is captured"));
    assert_int_equal(dp_device_capture_end(g.stream, &graph), 0);
    dp_device_graph_free(graph);
    assert_int_equal(dp_device_call(g.stream, count_up, &calls), 0);
    finish(&g);
    assert_int_equal(calls, 1);
    rig_close(&g);
}

CASE(the_host_has_no_graphs_and_adds_nothing_up)
{
    struct rig g;
    float x = 1, y = 2;

    rig_open(&g, "host:1");
    expect_error(dp_device_capture_begin(g.stream), DP_EUNSUPPORTED, "expected cuda");
    assert_int_equal(dp_device_add(g.stream, f32, &x, f32, &y, 1), DP_EUNSUPPORTED);
    rig_close(&g);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Until it may end, ten seconds at most; and 5 ms. */
static void hold_the_stream(void *user)
{
    atomic_bool *may_end = user;

    for (int i = 0; i < 2000 && !atomic_load(may_end); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

CASE(timed_events_tell_how_long_the_work_between_them_took)
{
    struct dp_device_event *from, *to;
    atomic_bool may_end = false;
    struct rig g;
    double ns = 0;

    rig_open(&g, "cuda");
    assert_int_equal(dp_device_event_make(g.dev, true, &from), 0);
    assert_int_equal(dp_device_event_make(g.dev, true, &to), 0);
    assert_int_equal(dp_device_event_record(from, g.stream), 0);
    assert_int_equal(dp_device_call(g.stream, hold_the_stream, &may_end), 0);
    assert_int_equal(dp_device_event_record(to, g.stream), 0);
    assert_int_equal(dp_device_event_elapsed(from, to, &ns), DP_EAGAIN);
    atomic_store(&may_end, true);
    finish(&g);
    assert_int_equal(dp_device_event_elapsed(from, to, &ns), 0);
    assert_true(ns >= 4.9e6 && ns < (double)long_enough_ns);
    assert_int_equal(dp_device_event_elapsed(from, g.event, &ns), DP_EINVAL);
    dp_device_event_free(to);
    dp_device_event_free(from);
    rig_close(&g);
}

/* ---- sums ------------------------------------------------------------------------------------ */

enum { SUMS = 3000 };

static void fill(DLDataType type, char *to, unsigned seed)
{
    for (unsigned i = 0; i < SUMS; i++) {
        const float x = (float)((i * 7919U + seed) % 4001U) / 17 - 100;
        if (type.bits == 64)
            ((double *)(void *)to)[i] = (double)x / 3;
        else if (type.bits == 32)
            ((float *)(void *)to)[i] = x;
        else
            ((uint16_t *)(void *)to)[i] =
                type.code == kDLBfloat ? dp_bfloat16_store(x) : dp_float16_store(x);
    }
}

static float narrow_load(DLDataType type, uint16_t x)
{
    return type.code == kDLBfloat ? dp_bfloat16_load(x) : dp_float16_load(x);
}

static void add_on_host(DLDataType type, char *to, DLDataType from_type, const char *from)
{
    uint16_t *narrow = (uint16_t *)(void *)to;
    const float *x = (const float *)(const void *)from;
    const uint16_t *narrow_x = (const uint16_t *)(const void *)from;

    for (int i = 0; i < SUMS; i++) {
        const float more = from_type.bits == 16   ? narrow_load(from_type, narrow_x[i])
                           : from_type.bits == 32 ? x[i]
                                                  : 0;
        if (type.bits == 64)
            ((double *)(void *)to)[i] += ((const double *)(const void *)from)[i];
        else if (type.bits == 32)
            ((float *)(void *)to)[i] += more;
        else if (type.code == kDLBfloat)
            narrow[i] = dp_bfloat16_store(dp_bfloat16_load(narrow[i]) + more);
        else
            narrow[i] = dp_float16_store(dp_float16_load(narrow[i]) + more);
    }
}

static void compare_sums(struct rig *g, DLDataType type, DLDataType from)
{
    static _Alignas(16) char to[SUMS * 8], other[SUMS * 8];
    const size_t bytes = SUMS * type.bits / 8U, from_bytes = SUMS * from.bits / 8U;
    void *x = take(g, DP_MEMORY_DEVICE, bytes), *y = take(g, DP_MEMORY_DEVICE, from_bytes);
    char *pinned = take(g, DP_MEMORY_PINNED, bytes);

    fill(type, to, 1);
    fill(from, other, 500);
    copy(g, x, to, bytes);
    copy(g, y, other, from_bytes);
    assert_int_equal(dp_device_add(g->stream, type, x, from, y, SUMS), 0);
    copy(g, pinned, x, bytes);
    add_on_host(type, to, from, other);
    assert_memory_equal(pinned, to, bytes);
    dp_device_free(g->dev, DP_MEMORY_PINNED, pinned);
    dp_device_free(g->dev, DP_MEMORY_DEVICE, y);
    dp_device_free(g->dev, DP_MEMORY_DEVICE, x);
}

/* The first product is rounded, then the whole; `to` may be `from`, too. */
static void compare_mixes(struct rig *g, DLDataType type)
{
    static _Alignas(16) char to[SUMS * 8], other[SUMS * 8];
    const size_t bytes = SUMS * type.bits / 8U;
    void *x = take(g, DP_MEMORY_DEVICE, bytes), *y = take(g, DP_MEMORY_DEVICE, bytes);
    char *pinned = take(g, DP_MEMORY_PINNED, bytes);
    const double keep = 0.7, take_of = 0.3;

    fill(type, to, 1);
    fill(type, other, 500);
    copy(g, x, to, bytes);
    copy(g, y, other, bytes);
    assert_int_equal(dp_device_mix(g->stream, type, x, keep, y, take_of, SUMS), 0);
    assert_int_equal(dp_device_mix(g->stream, type, x, keep, x, 0, SUMS), 0);
    copy(g, pinned, x, bytes);
    for (int i = 0; i < SUMS; i++) {
        double *a = (double *)(void *)to + i, b = ((double *)(void *)other)[type.bits == 64 ? i : 0];
        float *c = (float *)(void *)to + i, d = ((float *)(void *)other)[i];
        if (type.bits == 64)
            *a = keep * fma(take_of, b, keep * *a);
        else
            *c = (float)keep * fmaf((float)take_of, d, (float)keep * *c);
    }
    assert_memory_equal(pinned, to, bytes);
    dp_device_free(g->dev, DP_MEMORY_PINNED, pinned);
    dp_device_free(g->dev, DP_MEMORY_DEVICE, y);
    dp_device_free(g->dev, DP_MEMORY_DEVICE, x);
}

CASE(sums_of_the_device_are_those_of_the_host_to_the_last_bit)
{
    const DLDataType int32 = {kDLInt, 32, 1};
    struct rig g;

    rig_open(&g, "cuda");
    compare_sums(&g, f32, f32);
    compare_sums(&g, f64, f64);
    compare_sums(&g, bf16, f32);
    compare_sums(&g, f16, f32);
    compare_sums(&g, bf16, bf16);
    compare_sums(&g, f16, f16);
    compare_mixes(&g, f32);
    compare_mixes(&g, f64);
    assert_int_equal(dp_device_mix(g.stream, bf16, NULL, 1, NULL, 0, 0), DP_EUNSUPPORTED);
    assert_int_equal(dp_device_add(g.stream, int32, NULL, int32, NULL, 0), DP_EUNSUPPORTED);
    assert_int_equal(dp_device_add(g.stream, f32, NULL, f64, NULL, 0), DP_EUNSUPPORTED);
    assert_int_equal(dp_device_add(g.stream, f16, NULL, bf16, NULL, 0), DP_EUNSUPPORTED);
    rig_close(&g);
}

/* A GPU's driver does the same. */
CASE(the_kernels_of_sums_and_updates_compile_for_every_gpu)
{
    static const char *const ptxas[] = {"ptxas", "/usr/local/cuda/bin/ptxas"};
    static const char *const gpus[] = {"sm_80", "sm_90", "sm_100"};
    char command[512], file[SCRATCH_LEN];
    const char *use = NULL;

    for (int i = 0; i < 2 && !use; i++) {
        snprintf(command, sizeof(command), "%s --version >/dev/null 2>&1", ptxas[i]);
        use = system(command) ? NULL : ptxas[i];
    }
    if (!use)
        skip_because("no ptxas");
    for (int i = 0; i < 6; i++) {
        FILE *f = scratch_file(file, "sum") ? fopen(file, "w") : NULL;
        assert_non_null(f);
        assert_true(fputs(i % 2 ? dp_cuda_sum_ptx : dp_cuda_update_ptx, f) >= 0);
        assert_int_equal(fclose(f), 0);
        snprintf(command, sizeof(command), "%s -arch=%s -o /dev/null %s", use, gpus[i / 2], file);
        if (system(command))
            fail_msg("%s refuses the kernels for %s", use, gpus[i / 2]);
        unlink(file);
    }
}

/* ---- other devices --------------------------------------------------------------------------- */

CASE(devices_are_counted)
{
    int count = 0;

    assert_int_equal(dp_device_cuda_count(&count), 0);
    assert_true(count >= 1);
    assert_int_equal(dp_device_cuda_count(NULL), DP_EINVAL);
}

int main(void)
{
    const char *why = use_sim_cuda();

    if (why) {
        printf("skipped: %s\n", why);
        return 77;
    }
    return run_cases(NULL, NULL);
}
