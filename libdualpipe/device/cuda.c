/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.c - a CUDA device. Every call makes the device's primary context current and puts back what
 * the calling thread had, so that any thread may call, also one that works with another context.
 */
#include "device/cuda_device.h"

#include "base/clock.h"
#include "base/fail.h"
#include "topology/sysfs.h"

#include <ctype.h>
#include <stdlib.h>

struct cuda_event {
    struct dp_device_event base;
    CUevent event;
};

static struct cuda *cuda_of_stream(const struct dp_device_stream *stream)
{
    return dp_cuda_of(stream->dev);
}

static struct cuda *cuda_of_event(const struct dp_device_event *event)
{
    return dp_cuda_of(event->dev);
}

static CUevent native_event(const struct dp_device_event *event)
{
    return ((const struct cuda_event *)event)->event;
}

static CUdeviceptr address(const void *ptr)
{
    return (CUdeviceptr)(uintptr_t)ptr;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A size that no machine has is an invalid value for some drivers, and on failure a driver may write
 * NULL. */
static CUresult alloc(const struct dp_cuda_driver *cu, enum dp_memory where, size_t bytes, void **out)
{
    CUdeviceptr ptr = 0;
    void *pinned = NULL;
    CUresult result = where == DP_MEMORY_DEVICE
                          ? cu->cuMemAlloc(&ptr, bytes)
                          : cu->cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE);

    if (result == CUDA_SUCCESS)
        *out = where == DP_MEMORY_DEVICE ? (void *)(uintptr_t)ptr : pinned;
    return bytes > SIZE_MAX / 2 && result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_OUT_OF_MEMORY
                                                                     : result;
}

static int cuda_alloc(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out)
{
    struct cuda *cuda = dp_cuda_of(dev);
    const size_t ask = bytes ? bytes : 1; /* the driver takes 0 for a mistake */
    int err = dp_cuda_enter(cuda);

    if (err)
        return err;
    return dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, alloc(&cuda->cu, where, ask, out)),
                         "no %s memory for a buffer of %zu bytes",
                         where == DP_MEMORY_DEVICE ? "device" : "pinned", bytes);
}

static void cuda_free(struct dp_device *dev, enum dp_memory where, void *ptr)
{
    struct cuda *cuda = dp_cuda_of(dev);
    CUresult result;

    if (!ptr || dp_cuda_enter(cuda))
        return;
    if (where == DP_MEMORY_DEVICE)
        result = cuda->cu.cuMemFree(address(ptr));
    else
        result = cuda->cu.cuMemFreeHost(ptr);
    dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "freeing the buffer at %p", ptr);
}

static int cuda_register(struct dp_device *dev, void *ptr, size_t bytes)
{
    struct cuda *cuda = dp_cuda_of(dev);

    int err = dp_cuda_enter(cuda);
    if (err)
        return err;
    CUresult result = cuda->cu.cuMemHostRegister(ptr, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    return dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "pinning the %zu bytes at %p",
                         bytes, ptr);
}

static void cuda_unregister(struct dp_device *dev, void *ptr)
{
    struct cuda *cuda = dp_cuda_of(dev);

    if (!dp_cuda_enter(cuda))
        dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, cuda->cu.cuMemHostUnregister(ptr)),
                      "unpinning the memory at %p", ptr);
}

/* ---- streams --------------------------------------------------------------------------------- */

static const int64_t longest_drain_ns = 10 * DP_NS_PER_S;

/* CUDA's numbers are the other way round, and its default is the least urgent. */
static CUresult create_stream(const struct dp_cuda_driver *cu, enum dp_device_priority priority,
                              CUstream *out)
{
    int least = 0, greatest = 0;
    CUresult result = cu->cuCtxGetStreamPriorityRange(&least, &greatest);

    if (result != CUDA_SUCCESS)
        return result;
    return cu->cuStreamCreateWithPriority(out, CU_STREAM_NON_BLOCKING,
                                          priority == DP_PRIORITY_HIGH ? greatest : least);
}

static int wrap_stream(struct dp_device *dev, void *native, struct dp_device_stream **out)
{
    struct cuda_stream *stream = calloc(1, sizeof(*stream));

    if (!stream)
        return dp_fail(DP_ENOMEM, "cuda: no memory for a stream");
    *stream = (struct cuda_stream){.base = {dev}, .stream = native ? native : CU_STREAM_LEGACY,
                                   .is_wrapped = true};
    *out = &stream->base;
    return 0;
}

static int cuda_stream_new(struct dp_device *dev, enum dp_device_priority priority,
                           struct dp_device_stream **out)
{
    struct cuda *cuda = dp_cuda_of(dev);
    struct cuda_stream *stream = calloc(1, sizeof(*stream));

    if (!stream)
        return dp_fail(DP_ENOMEM, "cuda: no memory for a stream");
    stream->base.dev = dev;
    int err = dp_cuda_enter(cuda);
    if (!err)
        err = dp_cuda_check(
            &cuda->cu, dp_cuda_leave(cuda, create_stream(&cuda->cu, priority, &stream->stream)),
            "making a stream");
    if (err)
        free(stream);
    else
        *out = &stream->base;
    return err;
}

static int test_stream(void *arg)
{
    struct dp_device_stream *stream = arg;
    const CUresult result = cuda_of_stream(stream)->cu.cuStreamQuery(dp_cuda_stream_of(stream));

    return result == CUDA_SUCCESS ? 0 : result == CUDA_ERROR_NOT_READY ? DP_EAGAIN : DP_EIO;
}

static void cuda_stream_free(struct dp_device_stream *stream)
{
    struct cuda *cuda = stream ? cuda_of_stream(stream) : NULL;

    if (cuda && !((struct cuda_stream *)stream)->is_wrapped && !dp_cuda_enter(cuda)) {
        const int err = dp_cuda_poll(test_stream, stream, longest_drain_ns);
        if (err == DP_ETIMEDOUT)
            dp_log(DP_LOG_WARN, "cuda:%d: a stream is freed with work unfinished after 10 s",
                   cuda->cu.ordinal);
        dp_cuda_calls_end(cuda->calls, dp_cuda_stream_of(stream), !err);
        dp_cuda_check(&cuda->cu,
                      dp_cuda_leave(cuda, cuda->cu.cuStreamDestroy(dp_cuda_stream_of(stream))),
                      "freeing a stream");
    }
    free(stream);
}

static void *cuda_stream_native(struct dp_device_stream *stream)
{
    return dp_cuda_stream_of(stream);
}

/* Addresses are unified: the driver sees by itself which memory is where. */
static int cuda_copy(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes)
{
    struct cuda *cuda = cuda_of_stream(stream);

    int err = dp_cuda_enter(cuda);
    if (err)
        return err;
    CUresult result =
        cuda->cu.cuMemcpyAsync(address(dst), address(src), bytes, dp_cuda_stream_of(stream));
    return dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "copying %zu bytes from %p to %p",
                         bytes, src, dst);
}

static int cuda_zero(struct dp_device_stream *stream, void *dst, size_t bytes)
{
    struct cuda *cuda = cuda_of_stream(stream);

    int err = dp_cuda_enter(cuda);
    if (err)
        return err;
    CUresult result = cuda->cu.cuMemsetD8Async(address(dst), 0, bytes, dp_cuda_stream_of(stream));
    return dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "zeroing %zu bytes at %p", bytes,
                         dst);
}

static int cuda_call(struct dp_device_stream *stream, void (*fn)(void *user), void *user)
{
    struct cuda *cuda = cuda_of_stream(stream);
    int err = dp_cuda_enter(cuda);

    if (err)
        return err;
    err = dp_cuda_calls_add(cuda->calls, dp_cuda_stream_of(stream), fn, user);
    dp_cuda_leave(cuda, CUDA_SUCCESS);
    return err;
}

/* ---- events ---------------------------------------------------------------------------------- */

static int cuda_event_new(struct dp_device *dev, bool timed, struct dp_device_event **out)
{
    struct cuda *cuda = dp_cuda_of(dev);
    struct cuda_event *event = calloc(1, sizeof(*event));

    if (!event)
        return dp_fail(DP_ENOMEM, "cuda: no memory for an event");
    const unsigned flags = timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
    int err = dp_cuda_enter(cuda);
    if (!err)
        err = dp_cuda_check(&cuda->cu,
                            dp_cuda_leave(cuda, cuda->cu.cuEventCreate(&event->event, flags)),
                            "making an event");
    if (err)
        free(event);
    else
        *out = &event->base;
    return err;
}

static void cuda_event_free(struct dp_device_event *event)
{
    struct cuda *cuda = event ? cuda_of_event(event) : NULL;

    if (cuda && !dp_cuda_enter(cuda))
        dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, cuda->cu.cuEventDestroy(native_event(event))),
                      "freeing an event");
    free(event);
}

static int cuda_event_record(struct dp_device_event *event, struct dp_device_stream *stream)
{
    struct cuda *cuda = cuda_of_event(event);

    int err = dp_cuda_enter(cuda);
    if (err)
        return err;
    return dp_cuda_check(
        &cuda->cu,
        dp_cuda_leave(cuda, cuda->cu.cuEventRecord(native_event(event), dp_cuda_stream_of(stream))),
        "recording an event");
}

static int cuda_event_test(struct dp_device_event *event)
{
    struct cuda *cuda = cuda_of_event(event);

    int err = dp_cuda_enter(cuda);
    if (err)
        return err;
    CUresult result = dp_cuda_leave(cuda, cuda->cu.cuEventQuery(native_event(event)));
    if (result == CUDA_ERROR_NOT_READY)
        return DP_EAGAIN; /* no failure: not a word of it */
    return dp_cuda_check(&cuda->cu, result, "the work before an event");
}

static int test_event(void *event)
{
    return cuda_event_test(event);
}

static int cuda_event_wait(struct dp_device_event *event, int64_t timeout_ns)
{
    int err = dp_cuda_poll(test_event, event, timeout_ns);

    if (err != DP_ETIMEDOUT)
        return err;
    return dp_fail_quietly(err, "cuda:%d: an event was not reached within %lld ms",
                           cuda_of_event(event)->cu.ordinal,
                           (long long)(timeout_ns / DP_NS_PER_MS));
}

static int cuda_event_elapsed(struct dp_device_event *from, struct dp_device_event *to, double *ns)
{
    struct cuda *cuda = cuda_of_event(from);
    float ms = 0;

    if (!cuda->cu.cuEventElapsedTime)
        return dp_fail(DP_EUNSUPPORTED, "cuda:%d: the driver does not tell the time between events",
                       cuda->cu.ordinal);
    int err = dp_cuda_enter(cuda);
    if (err)
        return err;
    CUresult result = dp_cuda_leave(
        cuda, cuda->cu.cuEventElapsedTime(&ms, native_event(from), native_event(to)));
    if (result == CUDA_ERROR_NOT_READY)
        return DP_EAGAIN;
    *ns = (double)ms * 1e6;
    return dp_cuda_check(&cuda->cu, result, "the time between two events");
}

static int cuda_stream_wait(struct dp_device_stream *stream, struct dp_device_event *event)
{
    struct cuda *cuda = cuda_of_stream(stream);

    int err = dp_cuda_enter(cuda);
    if (err)
        return err;
    return dp_cuda_check(&cuda->cu,
                         dp_cuda_leave(cuda, cuda->cu.cuStreamWaitEvent(dp_cuda_stream_of(stream),
                                                                        native_event(event), 0)),
                         "waiting for an event");
}

/* ---- the device ------------------------------------------------------------------------------ */

static void cuda_close(struct dp_device *dev)
{
    struct cuda *cuda = dp_cuda_of(dev);

    if (cuda->calls) {
        const bool entered = !dp_cuda_enter(cuda);
        dp_cuda_calls_free(cuda->calls);
        if (entered)
            dp_cuda_leave(cuda, CUDA_SUCCESS);
    }
    dp_cuda_module_free(cuda->sums);
    dp_cuda_module_free(cuda->updates);
    if (cuda->context)
        dp_cuda_check(&cuda->cu, cuda->cu.cuDevicePrimaryCtxRelease(cuda->device),
                      "releasing its context");
    dp_device_fini(dev);
    free(cuda);
}

static int cuda_enter(struct dp_device *dev)
{
    return dp_cuda_enter(dp_cuda_of(dev));
}

static void cuda_leave(struct dp_device *dev)
{
    dp_cuda_leave(dp_cuda_of(dev), CUDA_SUCCESS);
}

static const struct dp_device_ops cuda_ops = {
    .name = "cuda",
    .enter = cuda_enter,
    .leave = cuda_leave,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .register_memory = cuda_register,
    .unregister_memory = cuda_unregister,
    .stream_new = cuda_stream_new,
    .stream_wrap = wrap_stream,
    .stream_free = cuda_stream_free,
    .stream_native = cuda_stream_native,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .call = cuda_call,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_test = cuda_event_test,
    .event_wait = cuda_event_wait,
    .event_elapsed = cuda_event_elapsed,
    .stream_wait = cuda_stream_wait,
    .module_new = dp_cuda_module_new,
    .module_free = dp_cuda_module_free,
    .kernel_find = dp_cuda_kernel_find,
    .launch = dp_cuda_launch,
    .add = dp_cuda_add,
    .mix = dp_cuda_mix,
    .own_kernel = dp_cuda_own_kernel,
    .capture_begin = dp_cuda_capture_begin,
    .capture_end = dp_cuda_capture_end,
    .graph_launch = dp_cuda_graph_launch,
    .graph_free = dp_cuda_graph_free,
    .close = cuda_close,
};

static int retain_context(struct cuda *cuda)
{
    const struct dp_cuda_driver *cu = &cuda->cu;
    CUcontext context;
    int count, err;

    err = dp_cuda_check(cu, cu->cuDeviceGetCount(&count), "counting devices");
    if (err)
        return err;
    if (cu->ordinal < 0 || cu->ordinal >= count)
        return dp_fail(DP_ENODEV, "cuda:%d: no such device; this machine has %d", cu->ordinal,
                       count);
    err = dp_cuda_check(cu, cu->cuDeviceGet(&cuda->device, cu->ordinal), "finding the device");
    if (err)
        return err;
    err = dp_cuda_check(cu, cu->cuDevicePrimaryCtxRetain(&context, cuda->device),
                        "retaining its context");
    if (err)
        return err;
    cuda->context = context;
    err = dp_cuda_enter(cuda);
    if (err)
        return err;
    err = dp_cuda_calls_new(cu, &cuda->calls);
    dp_cuda_leave(cuda, CUDA_SUCCESS);
    return err;
}

/* What sysfs says of its PCI function; -1: nothing. */
static int find_numa_node(struct cuda *cuda)
{
    char id[32] = "";

    if (cuda->cu.cuDeviceGetPCIBusId(id, sizeof(id), cuda->device) != CUDA_SUCCESS)
        return -1;
    for (char *c = id; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return (int)dp_sysfs_number("", -1, "/sys/bus/pci/devices/%s/numa_node", id);
}

int dp_device_cuda_count(int *out)
{
    struct dp_device_options options;
    struct dp_cuda_driver cu;
    int count = 0;

    if (!out)
        return dp_fail(DP_EINVAL, "the number of CUDA devices without a place for it");
    int err = dp_options_read(&dp_device_option_area, &options);
    if (!err)
        err = dp_cuda_driver_load(options.cuda_library, 0, &cu);
    if (!err)
        err = dp_cuda_check(&cu, cu.cuDeviceGetCount(&count), "counting devices");
    if (!err && count < 1)
        err = dp_fail(DP_ENODEV, "this machine has no CUDA device");
    if (!err)
        *out = count;
    return err;
}

int dp_device_cuda_open(int ordinal, struct dp_device **out)
{
    struct dp_device_options options;
    int err = dp_options_read(&dp_device_option_area, &options);
    if (err)
        return err;

    struct cuda *cuda = calloc(1, sizeof(*cuda));
    if (!cuda)
        return dp_fail(DP_ENOMEM, "cuda: no memory for a device");
    dp_device_init(&cuda->base, &cuda_ops, (DLDevice){kDLCUDA, ordinal}, false);
    err = dp_cuda_driver_load(options.cuda_library, ordinal, &cuda->cu);
    if (!err)
        err = retain_context(cuda);
    if (!err)
        cuda->base.numa_node = find_numa_node(cuda);
    if (err)
        cuda_close(&cuda->base);
    else
        *out = &cuda->base;
    return err;
}
