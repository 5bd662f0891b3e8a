/* SPDX-License-Identifier: Apache-2.0 */
#include "device/host.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/fail.h"
#include <dualpipe/memory.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels refuse it */
#endif

/* ---- memory ---------------------------------------------------------------------------------- */

enum { ALIGNMENT = 256 };
static const size_t huge_page = (size_t)2 << 20;

static size_t round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Two wishes that a kernel may refuse: fewer, larger pages; and pinned memory all there now, so
 * that no page fault falls into a copy. */
static void advise(void *ptr, size_t bytes, enum dp_memory where)
{
    madvise(ptr, bytes, MADV_HUGEPAGE);
    if (where == DP_MEMORY_PINNED)
        madvise(ptr, bytes, MADV_POPULATE_WRITE);
}

static int host_alloc(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out)
{
    size_t unit = bytes >= huge_page ? huge_page : ALIGNMENT;
    void *ptr = NULL;

    (void)dev;
    if (where == DP_MEMORY_SHARED)
        return dp_shared_alloc(bytes ? bytes : 1, -1, out);
    if (bytes <= SIZE_MAX - huge_page)
        ptr = aligned_alloc(unit, round_up(bytes ? bytes : 1, unit));
    if (!ptr)
        return dp_fail(DP_ENOMEM, "host: no memory for a buffer of %zu bytes", bytes);
    if (unit == huge_page)
        advise(ptr, round_up(bytes, unit), where);
    *out = ptr;
    return 0;
}

static void host_free(struct dp_device *dev, enum dp_memory where, void *ptr)
{
    (void)dev;
    if (where == DP_MEMORY_SHARED)
        dp_shared_free(ptr);
    else
        free(ptr);
}

/* ---- streams and events ---------------------------------------------------------------------- */

static void *host_stream_native(struct dp_device_stream *stream)
{
    (void)stream;
    return NULL;
}

static int host_copy(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes)
{
    if (!bytes)
        return 0;
    if (host_stream_at_once(stream, bytes))
        dp_copy(dst, src, bytes);
    else
        host_stream_give(stream, &(struct op){.kind = OP_COPY, .dst = dst, .src = src,
                                              .bytes = bytes});
    return 0;
}

static int host_zero(struct dp_device_stream *stream, void *dst, size_t bytes)
{
    if (!bytes)
        return 0;
    if (host_stream_at_once(stream, bytes))
        memset(dst, 0, bytes);
    else
        host_stream_give(stream, &(struct op){.kind = OP_ZERO, .dst = dst, .bytes = bytes});
    return 0;
}

static int host_event_new(struct dp_device *dev, struct dp_device_event **out)
{
    struct dp_device_event *event = calloc(1, sizeof(*event));

    (void)dev;
    if (!event)
        return dp_fail(DP_ENOMEM, "host: no memory for an event");
    *out = event;
    return 0;
}

static void host_event_free(struct dp_device_event *event)
{
    free(event);
}

static int host_event_record(struct dp_device_event *event, struct dp_device_stream *stream)
{
    event->stream = stream;
    event->count = stream->given;
    return 0;
}

static int host_event_test(struct dp_device_event *event)
{
    bool reached = !event->stream || host_stream_reached(event->stream, event->count);

    return reached ? 0 : DP_EAGAIN;
}

static int host_event_wait(struct dp_device_event *event, int64_t timeout_ns)
{
    if (!host_event_test(event))
        return 0;
    int64_t now = dp_now_ns();
    int64_t deadline_ns = timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;

    if (!host_stream_reach(event->stream, event->count, deadline_ns))
        return 0;
    return dp_fail_quietly(DP_ETIMEDOUT, "host: an event was not reached within %lld ms",
                           (long long)(timeout_ns / DP_NS_PER_MS));
}

static int host_stream_wait(struct dp_device_stream *stream, struct dp_device_event *event)
{
    if (event->stream && event->stream->host != stream->host)
        return dp_fail(DP_EINVAL, "host: a stream cannot wait for another device's event");
    if (host_event_test(event))
        host_stream_give(stream, &(struct op){.kind = OP_WAIT, .other = event->stream,
                                              .count = event->count});
    return 0;
}

/* ---- the device ------------------------------------------------------------------------------ */

static void host_close(struct dp_device *dev)
{
    struct host *host = (struct host *)dev;
    struct dp_device_stream *next;

    host_workers_stop(host);
    for (struct dp_device_stream *s = host->streams; s; s = next) {
        next = s->next_all;
        free(s);
    }
    pthread_cond_destroy(&host->progress);
    pthread_cond_destroy(&host->work);
    pthread_mutex_destroy(&host->lock);
    free(host);
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

/* Deadlines are on the monotonic clock. */
static void init_locks(struct host *host)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->work, NULL);
    pthread_cond_init(&host->progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

int dp_device_host_open(int workers, struct dp_device **out)
{
    if (workers < 0 || workers > DP_HOST_MAX_WORKERS)
        return dp_fail(DP_EINVAL, "host device with %d copy workers: expected 0 to %d", workers,
                       DP_HOST_MAX_WORKERS);

    struct host *host = calloc(1, sizeof(*host));
    if (!host)
        return dp_fail(DP_ENOMEM, "host: no memory for a device");
    host->base = (struct dp_device){&host_ops, {kDLCPU, 0}, true};
    init_locks(host);
    int err = host_workers_start(host, workers);
    if (err) {
        host_close(&host->base);
        return err;
    }
    *out = &host->base;
    return 0;
}
