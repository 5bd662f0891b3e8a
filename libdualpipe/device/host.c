/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct host {
    struct dp_device base;
};

struct dp_device_stream {
    struct host *host;
};

struct dp_device_event {
    struct host *host;
};

enum { ALIGNMENT = 256 };
static const size_t huge_page = (size_t)2 << 20;

static size_t round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static int host_alloc(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out)
{
    bool large = bytes >= huge_page;
    size_t alignment = large ? huge_page : ALIGNMENT;
    void *ptr = NULL;

    (void)dev;
    (void)where;
    if (bytes <= SIZE_MAX - huge_page)
        ptr = aligned_alloc(alignment, round_up(bytes ? bytes : 1, alignment));
    if (!ptr)
        return dp_fail(DP_ENOMEM, "host: no memory for a buffer of %zu bytes", bytes);
    if (large)
        madvise(ptr, round_up(bytes, huge_page), MADV_HUGEPAGE); /* a wish; slower without */
    *out = ptr;
    return 0;
}

static void host_free(struct dp_device *dev, enum dp_memory where, void *ptr)
{
    (void)dev;
    (void)where;
    free(ptr);
}

static int host_stream_new(struct dp_device *dev, struct dp_device_stream **out)
{
    struct dp_device_stream *stream = calloc(1, sizeof(*stream));

    if (!stream)
        return dp_fail(DP_ENOMEM, "host: no memory for a stream");
    stream->host = (struct host *)dev;
    *out = stream;
    return 0;
}

static void host_stream_free(struct dp_device_stream *stream)
{
    free(stream);
}

static void *host_stream_native(struct dp_device_stream *stream)
{
    (void)stream;
    return NULL;
}

static int host_copy(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes)
{
    (void)stream;
    if (bytes)
        memcpy(dst, src, bytes);
    return 0;
}

static int host_zero(struct dp_device_stream *stream, void *dst, size_t bytes)
{
    (void)stream;
    if (bytes)
        memset(dst, 0, bytes);
    return 0;
}

static int host_event_new(struct dp_device *dev, struct dp_device_event **out)
{
    struct dp_device_event *event = calloc(1, sizeof(*event));

    if (!event)
        return dp_fail(DP_ENOMEM, "host: no memory for an event");
    event->host = (struct host *)dev;
    *out = event;
    return 0;
}

static void host_event_free(struct dp_device_event *event)
{
    free(event);
}

static int host_event_record(struct dp_device_event *event, struct dp_device_stream *stream)
{
    (void)event;
    (void)stream;
    return 0;
}

static int host_event_test(struct dp_device_event *event)
{
    (void)event;
    return 0;
}

static int host_event_wait(struct dp_device_event *event, int64_t timeout_ns)
{
    (void)event;
    (void)timeout_ns;
    return 0;
}

static int host_stream_wait(struct dp_device_stream *stream, struct dp_device_event *event)
{
    (void)stream;
    (void)event;
    return 0;
}

static void host_close(struct dp_device *dev)
{
    free(dev);
}

static const struct dp_device_ops host_ops = {
    .name = "host",
    .alloc = host_alloc,
    .free = host_free,
    .stream_new = host_stream_new,
    .stream_free = host_stream_free,
    .stream_native = host_stream_native,
    .copy = host_copy,
    .zero = host_zero,
    .event_new = host_event_new,
    .event_free = host_event_free,
    .event_record = host_event_record,
    .event_test = host_event_test,
    .event_wait = host_event_wait,
    .stream_wait = host_stream_wait,
    .close = host_close,
};

int dp_device_host_open(int workers, struct dp_device **out)
{
    if (workers < 0 || workers > DP_HOST_MAX_WORKERS)
        return dp_fail(DP_EINVAL, "host device with %d copy workers: expected 0 to %d", workers,
                       DP_HOST_MAX_WORKERS);
    if (workers > 0)
        return dp_fail(DP_EUNSUPPORTED, "host device: copy workers are not there yet");

    struct host *host = calloc(1, sizeof(*host));
    if (!host)
        return dp_fail(DP_ENOMEM, "host: no memory for a device");
    host->base = (struct dp_device){&host_ops, {kDLCPU, 0}, true};
    *out = &host->base;
    return 0;
}
