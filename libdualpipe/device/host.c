/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: affinity of threads */

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

/* There is no device that would have to be told. */
static int host_register(struct dp_device *dev, void *ptr, size_t bytes)
{
    (void)dev;
    madvise(ptr, bytes, MADV_POPULATE_WRITE);
    return 0;
}

static void host_unregister(struct dp_device *dev, void *ptr)
{
    (void)dev;
    (void)ptr;
}

/* ---- streams and events ---------------------------------------------------------------------- */

static int new_stream(struct dp_device *dev, enum dp_device_priority priority,
                      struct dp_device_stream **out)
{
    struct host_stream *stream;
    int err = host_stream_new((struct host *)dev, priority, &stream);

    if (!err)
        *out = &stream->base;
    return err;
}

static void free_stream(struct dp_device_stream *stream)
{
    host_stream_free((struct host_stream *)stream);
}

static void *host_stream_native(struct dp_device_stream *stream)
{
    (void)stream;
    return NULL;
}

static int host_copy(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes)
{
    struct host_stream *s = (struct host_stream *)stream;

    if (host_stream_at_once(s, bytes))
        dp_copy(dst, src, bytes);
    else
        host_stream_give(s, &(struct op){.kind = OP_COPY,
                                         .dst = dst,
                                         .src = src,
                                         .bytes = bytes,
                                         .direction = host_link_direction(s->host, dst, src)});
    return 0;
}

static int host_zero(struct dp_device_stream *stream, void *dst, size_t bytes)
{
    struct host_stream *s = (struct host_stream *)stream;

    if (host_stream_at_once(s, bytes))
        memset(dst, 0, bytes);
    else
        host_stream_give(s, &(struct op){.kind = OP_ZERO, .dst = dst, .bytes = bytes});
    return 0;
}

static int host_call(struct dp_device_stream *stream, void (*fn)(void *user), void *user)
{
    struct host_stream *s = (struct host_stream *)stream;

    if (!s->host->workers)
        fn(user);
    else
        host_stream_give(s, &(struct op){.kind = OP_CALL, .fn = fn, .user = user});
    return 0;
}

static int host_event_new(struct dp_device *dev, bool timed, struct dp_device_event **out)
{
    struct host_event *event = calloc(1, sizeof(*event));

    (void)dev, (void)timed;
    if (!event)
        return dp_fail(DP_ENOMEM, "host: no memory for an event");
    *out = &event->base;
    return 0;
}

static void host_event_free(struct dp_device_event *event)
{
    free(event);
}

static void note_time(void *user)
{
    ((struct host_event *)user)->reached_ns = dp_now_ns();
}

static int host_event_record(struct dp_device_event *event, struct dp_device_stream *stream)
{
    struct host_event *e = (struct host_event *)event;

    if (event->timed)
        host_call(stream, note_time, e);
    e->stream = (struct host_stream *)stream;
    e->count = e->stream->given;
    return 0;
}

static int host_event_test(struct dp_device_event *event)
{
    struct host_event *e = (struct host_event *)event;
    bool reached = !e->stream || host_stream_reached(e->stream, e->count);

    return reached ? 0 : DP_EAGAIN;
}

static int host_event_wait(struct dp_device_event *event, int64_t timeout_ns)
{
    struct host_event *e = (struct host_event *)event;

    if (!host_event_test(event))
        return 0;
    int64_t now = dp_now_ns();
    int64_t deadline_ns = timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;

    if (!host_stream_reach(e->stream, e->count, deadline_ns))
        return 0;
    return dp_fail_quietly(DP_ETIMEDOUT, "host: an event was not reached within %lld ms",
                           (long long)(timeout_ns / DP_NS_PER_MS));
}

/* Both streams have passed note_time: its store is before what host_event_test reads. */
static int host_event_elapsed(struct dp_device_event *from, struct dp_device_event *to, double *ns)
{
    if (host_event_test(from) || host_event_test(to))
        return DP_EAGAIN;
    *ns = (double)(((struct host_event *)to)->reached_ns - ((struct host_event *)from)->reached_ns);
    return 0;
}

static int host_stream_wait(struct dp_device_stream *stream, struct dp_device_event *event)
{
    struct host_event *e = (struct host_event *)event;

    if (host_event_test(event))
        host_stream_give((struct host_stream *)stream,
                         &(struct op){.kind = OP_WAIT, .other = e->stream, .count = e->count});
    return 0;
}

/* ---- the device ------------------------------------------------------------------------------ */

static void host_close(struct dp_device *dev)
{
    struct host *host = (struct host *)dev;
    struct host_stream *next;

    host_workers_stop(host);
    for (struct host_stream *s = host->streams; s; s = next) {
        next = s->next_all;
        free(s);
    }
    pthread_cond_destroy(&host->progress);
    pthread_cond_destroy(&host->work);
    pthread_mutex_destroy(&host->lock);
    dp_device_fini(dev);
    free(host);
}

static int host_bind(struct dp_device *dev, const cpu_set_t *cpus)
{
    const struct host *host = (const struct host *)dev;
    int error = 0;

    for (int i = 0; i < host->workers && !error; i++)
        error = pthread_setaffinity_np(host->threads[i], sizeof(*cpus), cpus);
    return error;
}

static const struct dp_device_ops host_ops = {
    .name = "host",
    .alloc = host_alloc,
    .free = host_free,
    .register_memory = host_register,
    .unregister_memory = host_unregister,
    .stream_new = new_stream,
    .stream_free = free_stream,
    .stream_native = host_stream_native,
    .copy = host_copy,
    .zero = host_zero,
    .call = host_call,
    .event_new = host_event_new,
    .event_free = host_event_free,
    .event_record = host_event_record,
    .event_test = host_event_test,
    .event_wait = host_event_wait,
    .event_elapsed = host_event_elapsed,
    .stream_wait = host_stream_wait,
    .bind = host_bind,
    .close = host_close,
};

/* Deadlines are on the monotonic clock. */
static void init_locks(struct host *host)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->work, &monotonic);
    pthread_cond_init(&host->progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static int open_host(int workers, const struct dp_host_link *link, struct dp_device **out)
{
    struct host *host = calloc(1, sizeof(*host));

    if (!host)
        return dp_fail(DP_ENOMEM, "host: no memory for a device");
    dp_device_init(&host->base, &host_ops, (DLDevice){kDLCPU, 0}, true);
    host->link = *link;
    host->linked =
        link->up_bytes_per_s > 0 || link->down_bytes_per_s > 0 || link->most_delay_ns > 0;
    init_locks(host);
    int err = host_workers_start(host, workers);
    if (err) {
        host_close(&host->base);
        return err;
    }
    *out = &host->base;
    return 0;
}

static int check_workers(int workers, int least)
{
    if (workers >= least && workers <= DP_HOST_MAX_WORKERS)
        return 0;
    return dp_fail(DP_EINVAL, "host device with %d copy workers: expected %d to %d", workers, least,
                   DP_HOST_MAX_WORKERS);
}

int dp_device_host_open_link(int workers, const struct dp_host_link *link, struct dp_device **out)
{
    const struct dp_host_link none = {0};
    int err = check_workers(workers, link != NULL); /* a worker must finish what a slow link holds up */

    if (err)
        return err;
    link = link ? link : &none;
    if (!(link->up_bytes_per_s >= 0) || !(link->down_bytes_per_s >= 0) || link->most_delay_ns < 0)
        return dp_fail(DP_EINVAL,
                       "host device with a link of %g bytes/s up, %g down, %lld ns late: expected "
                       "0 or more",
                       link->up_bytes_per_s, link->down_bytes_per_s,
                       (long long)link->most_delay_ns);
    return open_host(workers, link, out);
}
