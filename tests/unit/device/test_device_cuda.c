/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device on the stand-in driver: what goes wrong, contexts, and waiting. Nothing here says
 * anything about a real GPU.
 */
#include "cmocka_all.h"
#include "device/internal.h"

#include "base/clock.h"
#include "fakes/use_fake_cuda.h"
#include "scratch.h"
#include <dualpipe/device.h>

#include <pthread.h>
#include <sys/mman.h>

static const struct fake_cuda *fake;
static const char *fake_file;

static int reset(void **state)
{
    fake->reset();
    setenv("DUALPIPE_DEVICE_CUDA_LIBRARY", fake_file, 1);
    return 0;
}

static void close_device(struct dp_device **dev)
{
    dp_device_close(*dev);
}

static struct dp_device *open_device(void)
{
    struct dp_device *dev = NULL;

    assert_int_equal(dp_device_open("cuda", &dev), 0);
    return dev;
}

static void expect_sentence(const char *part)
{
    if (!strstr(dp_last_error(), part))
        fail_msg("'%s' does not say '%s'", dp_last_error(), part);
}

/* ---- opening --------------------------------------------------------------------------------- */

CASE_BETWEEN(without_a_driver_the_loaders_reason_is_given, reset, NULL)
{
    struct dp_device *dev;

    setenv("DUALPIPE_DEVICE_CUDA_LIBRARY", "no-such-driver.so", 1);
    assert_int_equal(dp_device_open("cuda", &dev), DP_ENODEV);
    expect_sentence("cuda:0: no CUDA driver: no-such-driver.so: cannot open shared object file");
}

CASE_BETWEEN(a_library_that_is_no_driver_is_named_with_what_it_lacks, reset, NULL)
{
    struct dp_device *dev;

    setenv("DUALPIPE_DEVICE_CUDA_LIBRARY", "libc.so.6", 1);
    expect_error(dp_device_open("cuda", &dev), DP_ENODEV, "libc.so.6 has no cu");
}

CASE_BETWEEN(a_driver_that_does_not_start_is_an_error_with_a_reason, reset, NULL)
{
    struct dp_device *dev;

    fake->fail_call("cuInit", 1, CUDA_ERROR_NO_DEVICE);
    assert_int_equal(dp_device_open("cuda", &dev), DP_ENODEV);
    expect_sentence("does not start: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
}

CASE_BETWEEN(an_ordinal_beyond_the_last_device_is_refused_with_their_number, reset, NULL)
{
    struct dp_device *dev;

    assert_int_equal(dp_device_open("cuda:2", &dev), DP_ENODEV);
    expect_sentence("cuda:2: no such device; this machine has 2");
    assert_int_equal(dp_device_cuda_open(-1, &dev), DP_ENODEV);
}

CASE_BETWEEN(tensors_carry_the_ordinal, reset, NULL)
{
    struct dp_device *dev;

    assert_int_equal(dp_device_open("cuda:1", &dev), 0);
    assert_int_equal(dp_device_dl(dev).device_type, kDLCUDA);
    assert_int_equal(dp_device_dl(dev).device_id, 1);
    assert_false(dp_device_host_accessible(dev));
    dp_device_close(dev);
}

/* ---- failures -------------------------------------------------------------------------------- */

CASE_BETWEEN(errors_are_ours_and_sentences_the_drivers, reset, NULL)
{
    static const struct {
        CUresult result;
        int err;
        const char *name;
    } cases[] = {
        {CUDA_ERROR_OUT_OF_MEMORY, DP_ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"},
        {CUDA_ERROR_INVALID_VALUE, DP_EINVAL, "CUDA_ERROR_INVALID_VALUE (invalid argument)"},
        {CUDA_ERROR_NOT_SUPPORTED, DP_EUNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CUDA_ERROR_LAUNCH_FAILED, DP_EIO, "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)"},
        {(CUresult)12345, DP_EIO, "an error without a name (no explanation)"},
    };
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    void *ptr;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fake->fail_call("cuMemAlloc_v2", 1, cases[i].result);
        assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 1000, &ptr), cases[i].err);
        expect_sentence("cuda:0: no device memory for a buffer of 1000 bytes: ");
        expect_sentence(cases[i].name);
    }
}

CASE_BETWEEN(memory_runs_out_where_the_device_ends, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    void *half, *rest;

    assert_int_equal(
        dp_device_alloc(dev, DP_MEMORY_DEVICE, FAKE_CUDA_MEMORY_BYTES / 2 + 1, &half), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, FAKE_CUDA_MEMORY_BYTES / 2, &rest),
                     DP_ENOMEM);
    dp_device_free(dev, DP_MEMORY_DEVICE, half);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, FAKE_CUDA_MEMORY_BYTES / 2, &rest), 0);
    dp_device_free(dev, DP_MEMORY_DEVICE, rest);
}

CASE_BETWEEN(a_wrapped_stream_is_the_callers, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    struct dp_device_stream *own, *wrapped;
    struct dp_device_event *event;
    void *there;

    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 100, &there), 0);
    assert_int_equal(dp_device_event_new(dev, &event), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &own), 0);
    assert_int_equal(dp_device_stream_wrap(dev, dp_device_stream_native(own), &wrapped), 0);
    assert_ptr_equal(dp_device_stream_native(wrapped), dp_device_stream_native(own));
    fake->hold(true);
    assert_int_equal(dp_device_zero(wrapped, there, 100), 0);
    dp_device_stream_free(wrapped); /* does not wait for what was given */
    assert_int_equal(dp_device_event_record(event, own), 0);
    assert_int_equal(dp_device_event_test(event), DP_EAGAIN);
    fake->hold(false);
    assert_int_equal(dp_device_event_wait(event, 20 * DP_NS_PER_S), 0);
    assert_int_equal(dp_device_stream_wrap(dev, NULL, &wrapped), 0);
    assert_ptr_equal(dp_device_stream_native(wrapped), CU_STREAM_LEGACY);
    dp_device_stream_free(wrapped);
    dp_device_event_free(event);
    dp_device_stream_free(own);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
}

CASE_BETWEEN(a_failure_of_the_device_shows_in_the_event_and_stays, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    struct dp_device_stream *s;
    struct dp_device_event *event;
    void *there, *more;

    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 100, &there), 0);
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
    assert_int_equal(dp_device_event_new(dev, &event), 0);
    fake->hold(true);
    fake->fail_work(2, CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(dp_device_zero(s, there, 100), 0);
    assert_int_equal(dp_device_zero(s, there, 100), 0);
    assert_int_equal(dp_device_event_record(event, s), 0);
    assert_int_equal(dp_device_event_test(event), DP_EAGAIN);
    fake->hold(false);
    assert_int_equal(dp_device_event_wait(event, 20 * DP_NS_PER_S), DP_EIO);
    expect_sentence("cuda:0: the work before an event: CUDA_ERROR_LAUNCH_FAILED");
    assert_int_equal(dp_device_zero(s, there, 100), DP_EIO);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_PINNED, 100, &more), DP_EIO);
    fake->reset();
    dp_device_event_free(event);
    dp_device_stream_free(s);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
}

CASE_BETWEEN(copies_from_nowhere_are_refused, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    struct dp_device_stream *s;
    char host[64] = {0}, *there;

    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 512, (void **)&there), 0);
    expect_error(dp_device_copy(s, there + 500, host, 64), DP_EINVAL, "copying 64 bytes from");
    assert_int_equal(dp_device_copy(s, NULL, there, 64), DP_EINVAL);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
    assert_int_equal(dp_device_copy(s, host, there, 64), DP_EINVAL);
    dp_device_stream_free(s);
}

CASE_BETWEEN(what_a_driver_lacks_is_said, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    struct dp_device_stream *s;
    struct dp_device_event *event;
    double ns;

    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
    assert_int_equal(dp_device_event_make(dev, true, &event), 0);
    assert_int_equal(dp_device_event_record(event, s), 0);
    assert_int_equal(dp_device_event_elapsed(event, event, &ns), DP_EUNSUPPORTED);
    expect_sentence("cuda:0: the driver does not tell the time between events");
    dp_device_event_free(event);
    assert_int_equal(dp_device_capture_begin(s), DP_EUNSUPPORTED);
    expect_sentence("cuda:0: the driver has no functions for graphs");
    dp_device_stream_free(s);
}

static void no_work(void *user)
{
}

/* A copy of the stand-in, where one of its functions has another name. */
CASE_BETWEEN(a_driver_whose_streams_await_no_values_has_no_calls, reset, NULL)
{
    char file[SCRATCH_LEN], command[2048];
    struct dp_device_stream *s;

    assert_true(scratch_file(file, "driver"));
    snprintf(command, sizeof(command), "sed s/cuStreamWaitValue32_v2/cuStreamWaitValue32_v1/ '%s' > %s",
             fake_file, file);
    assert_int_equal(system(command), 0);
    setenv("DUALPIPE_DEVICE_CUDA_LIBRARY", file, 1);
    struct dp_device *dev = open_device();
    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
    assert_int_equal(dp_device_call(s, no_work, NULL), DP_EUNSUPPORTED);
    expect_sentence("cuda:0: the driver has no functions for calls in streams");
    dp_device_stream_free(s);
    dp_device_close(dev);
    unlink(file);
}

/* Everything a device does, once. Whether all went well; all is undone in either case. */
static bool do_everything(void)
{
    struct dp_device *dev = NULL;
    struct dp_device_stream *s = NULL;
    struct dp_device_event *event = NULL;
    void *there = NULL, *pinned = NULL;

    if (dp_device_open("cuda", &dev))
        return false;
    /* A new page each time, never unmapped: one whose unregistering failed stays registered. */
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool registered = !dp_device_register(dev, page, 4096);
    bool well = registered && !dp_device_alloc(dev, DP_MEMORY_DEVICE, 100, &there) &&
                !dp_device_alloc(dev, DP_MEMORY_PINNED, 100, &pinned) &&
                !dp_device_stream_new(dev, DP_PRIORITY_HIGH, &s) &&
                !dp_device_event_new(dev, &event) && !dp_device_zero(s, there, 100) &&
                !dp_device_copy(s, pinned, there, 100) && !dp_device_event_record(event, s) &&
                !dp_device_stream_wait(s, event) && !dp_device_call(s, no_work, NULL) &&
                !dp_device_event_wait(event, 20 * DP_NS_PER_S);
    if (!well)
        fake->drain(); /* of work that was started, whatever failed behind it */
    dp_device_event_free(event);
    dp_device_stream_free(s);
    dp_device_free(dev, DP_MEMORY_PINNED, pinned);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
    if (registered)
        dp_device_unregister(dev, page);
    dp_device_close(dev);
    return well;
}

CASE_BETWEEN(whichever_call_of_the_driver_fails_is_reported_and_leaks_nothing, reset, NULL)
{
    int alive = fake->alive(), errors = 0;

    for (int n = 1; n < 1000; n++) {
        fake->fail_call(NULL, n, CUDA_ERROR_NOT_SUPPORTED);
        bool well = do_everything();
        if (fake->armed())
            break;
        /* A call that frees has no error to return, and what it did not free is alive. */
        if (well)
            alive = fake->alive();
        else
            assert_int_equal(fake->alive(), alive);
        errors += !well;
    }
    fake->reset();
    assert_true(do_everything());
    assert_int_equal(fake->alive(), alive);
    assert_true(errors >= 22); /* every call that makes or starts something */
}

/* ---- calls ----------------------------------------------------------------------------------- */

enum { CALLS = 40 }; /* more than there is room for at first */
struct calls {
    int count, in_order;
};
static struct calls made;

static void make_call(void *user)
{
    made.in_order += (intptr_t)user == made.count;
    made.count++;
}

static void queue_calls(struct dp_device_stream *s)
{
    made = (struct calls){0};
    for (intptr_t i = 0; i < CALLS; i++)
        assert_int_equal(dp_device_call(s, make_call, (void *)i), 0);
}

CASE_BETWEEN(any_number_of_calls_is_made_in_order, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    struct dp_device_stream *s;

    for (int round = 0; round < 3; round++) {
        assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
        fake->hold(true);
        queue_calls(s);
        fake->hold(false);
        dp_device_stream_free(s); /* waits for them */
        assert_int_equal(made.count, CALLS);
        assert_int_equal(made.in_order, CALLS);
    }
}

CASE_BETWEEN(calls_in_a_wrapped_stream_are_made_though_it_is_freed, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    struct dp_device_stream *own, *wrapped;

    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &own), 0);
    assert_int_equal(dp_device_stream_wrap(dev, dp_device_stream_native(own), &wrapped), 0);
    fake->hold(true);
    queue_calls(wrapped);
    dp_device_stream_free(wrapped);
    assert_int_equal(dp_device_call(own, make_call, (void *)CALLS), 0);
    fake->hold(false);
    dp_device_stream_free(own);
    assert_int_equal(made.count, CALLS + 1);
    assert_int_equal(made.in_order, CALLS + 1);
}

/* Whether or not the stream is one that is freed, nothing waits for them. */
CASE_BETWEEN(calls_behind_a_failure_are_not_made, reset, NULL)
{
    struct dp_device *dev = open_device();
    struct dp_device_stream *s, *wrapped;
    void *there;

    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
    assert_int_equal(dp_device_stream_wrap(dev, dp_device_stream_native(s), &wrapped), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 8, &there), 0);
    fake->hold(true);
    fake->fail_work(1, CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(dp_device_zero(s, there, 8), 0);
    queue_calls(s);
    assert_int_equal(dp_device_call(wrapped, make_call, NULL), 0);
    fake->hold(false);
    fake->drain();
    assert_int_equal(dp_device_call(s, make_call, NULL), DP_EIO);
    dp_device_stream_free(wrapped);
    dp_device_stream_free(s);
    fake->reset();
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
    dp_device_close(dev);
    assert_int_equal(made.count, 0);
}

CASE_BETWEEN(streams_beyond_those_that_may_have_calls_are_refused, reset, NULL)
{
    enum { STREAMS = 65 };
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    struct dp_device_stream *s[STREAMS];

    fake->hold(true);
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s[i]), 0);
        assert_int_equal(dp_device_call(s[i], no_work, NULL), i < 64 ? 0 : DP_ENOMEM);
    }
    expect_sentence("cuda:0: calls in more than 64 streams at a time");
    fake->hold(false);
    fake->drain();
    assert_int_equal(dp_device_call(s[64], no_work, NULL), 0);
    for (int i = 0; i < STREAMS; i++)
        dp_device_stream_free(s[i]);
}

/* ---- contexts and threads -------------------------------------------------------------------- */

typedef CUresult (*get_current_fn)(CUcontext *out);
typedef CUresult (*push_current_fn)(CUcontext context);
typedef CUresult (*retain_fn)(CUcontext *out, CUdevice device);
typedef CUresult (*release_fn)(CUdevice device);

static void *driver_symbol(const char *name)
{
    void *handle = dlopen(fake_file, RTLD_NOW | RTLD_LOCAL), *symbol = dlsym(handle, name);

    assert_non_null(symbol);
    return symbol;
}

CASE_BETWEEN(the_callers_context_is_current_again_after_every_call, reset, NULL)
{
    get_current_fn get_current;
    push_current_fn push_current;
    retain_fn retain;
    release_fn release;
    CUcontext other, now;

    *(void **)&get_current = driver_symbol("cuCtxGetCurrent");
    *(void **)&push_current = driver_symbol("cuCtxPushCurrent_v2");
    *(void **)&retain = driver_symbol("cuDevicePrimaryCtxRetain");
    *(void **)&release = driver_symbol("cuDevicePrimaryCtxRelease_v2");

    assert_true(do_everything());
    assert_int_equal(get_current(&now), CUDA_SUCCESS);
    assert_null(now);
    assert_int_equal(retain(&other, 1), CUDA_SUCCESS);
    assert_int_equal(push_current(other), CUDA_SUCCESS);
    assert_true(do_everything());
    assert_int_equal(get_current(&now), CUDA_SUCCESS);
    assert_ptr_equal(now, other);
    *(void **)&get_current = driver_symbol("cuCtxPopCurrent_v2");
    get_current(&now);
    release(1);
}

static void *do_everything_in_a_thread(void *arg)
{
    *(bool *)arg = do_everything();
    return NULL;
}

CASE_BETWEEN(any_thread_may_call, reset, NULL)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    bool well[THREADS];

    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, do_everything_in_a_thread, &well[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(well[i]);
    }
}

/* ---- waiting --------------------------------------------------------------------------------- */

CASE_BETWEEN(a_wait_for_the_device_ends_at_its_deadline, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    struct dp_device_stream *s;
    struct dp_device_event *event;
    char *there;

    assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &s), 0);
    assert_int_equal(dp_device_event_new(dev, &event), 0);
    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 8, (void **)&there), 0);
    fake->hold(true);
    assert_int_equal(dp_device_zero(s, there, 8), 0);
    assert_int_equal(dp_device_event_record(event, s), 0);
    int64_t start = dp_now_ns();
    assert_int_equal(dp_device_event_wait(event, 3 * DP_NS_PER_MS), DP_ETIMEDOUT);
    assert_true(dp_now_ns() - start >= 3 * DP_NS_PER_MS);
    expect_sentence("cuda:0: an event was not reached within 3 ms");
    fake->hold(false);
    assert_int_equal(dp_device_event_wait(event, 20 * DP_NS_PER_S), 0);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
    dp_device_event_free(event);
    dp_device_stream_free(s);
}

CASE_BETWEEN(the_cpu_cannot_touch_device_memory, reset, NULL)
{
    ENDED_BY(close_device) struct dp_device *dev = open_device();
    char *there;
    int status;

    assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, 8, (void **)&there), 0);
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL); /* cmocka and the sanitizers would make much of it */
        there[0] = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
    dp_device_free(dev, DP_MEMORY_DEVICE, there);
}

int main(void)
{
    fake = use_fake_cuda();
    if (!fake)
        return 1;
    fake_file = strdup(getenv("DUALPIPE_DEVICE_CUDA_LIBRARY"));
    int failed = run_cases(NULL, NULL);
    free((char *)fake_file);
    return failed;
}
