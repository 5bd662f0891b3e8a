/* SPDX-License-Identifier: Apache-2.0
 *
 * evict.c - save areas that wait on the host: copied down after the forward, up before the backward.
 */
#include "pipeline/evict.h"

#include "base/clock.h"
#include "base/fail.h"

#include <stdatomic.h>
#include <stdlib.h>

/* ---- a step ---------------------------------------------------------------------------------- */

static void begin(void *user)
{
    struct dp_copy_meter *meter = user;

    meter->begun_ns = dp_now_ns();
}

static void end(void *user)
{
    struct dp_copy_meter *meter = user;

    atomic_fetch_add_explicit(&meter->busy_ns, dp_now_ns() - meter->begun_ns, memory_order_relaxed);
}

static int copy(struct dp_evictions *e, char *memory, bool down, const struct dp_plan_copy *c)
{
    struct dp_device_stream *stream = down ? e->down : e->up;
    struct dp_copy_meter *meter = &e->meters[!down];
    int err = dp_device_call(stream, begin, meter);

    for (int i = 0; i < DP_PLAN_COPY_PARTS && !err; i++) {
        char *device = memory + c->device[i], *host = e->host + c->host[i];
        err = dp_device_copy(stream, down ? host : device, down ? device : host, c->bytes[i]);
    }
    return err ? err : dp_device_call(stream, end, meter);
}

int dp_evict_run(struct dp_evictions *e, struct dp_device_stream *compute, char *memory, bool down,
                 uint32_t after, const struct dp_plan_copy *c)
{
    struct dp_device_stream *stream = down ? e->down : e->up;
    int err = dp_device_event_record(e->compute, compute);

    if (!err)
        err = dp_device_stream_wait(stream, e->compute);
    if (!err && after)
        err = dp_device_stream_wait(stream, e->evicted[after - 1]);
    if (!err)
        err = copy(e, memory, down, c);
    return err ? err : dp_device_event_record((down ? e->evicted : e->fetched)[c->number], stream);
}

int dp_evict_wait(const struct dp_evictions *e, struct dp_device_stream *compute, uint32_t evicted,
                  uint32_t fetched)
{
    int err = evicted ? dp_device_stream_wait(compute, e->evicted[evicted - 1]) : 0;

    return err || !fetched ? err : dp_device_stream_wait(compute, e->fetched[fetched - 1]);
}

static void wait_for(struct dp_device_stream *stream, struct dp_device_event *done,
                     int64_t deadline_ns)
{
    if (stream && !dp_device_event_record(done, stream))
        dp_device_event_wait(done, deadline_ns);
}

void dp_evict_forget(const struct dp_evictions *e, struct dp_device_event *done, int64_t deadline_ns)
{
    wait_for(e->down, done, deadline_ns);
    wait_for(e->up, done, deadline_ns);
}

/* ---- making them ----------------------------------------------------------------------------- */

static int new_events(const struct dp_evictions *e, struct dp_device_event ***out)
{
    uint32_t count = e->count;
    int err = 0;

    *out = calloc(count, sizeof(struct dp_device_event *));
    if (!*out)
        return dp_fail(DP_ENOMEM, "no memory for %u evictions", count);
    for (uint32_t i = 0; i < count && !err; i++)
        err = dp_device_event_new(e->device, &(*out)[i]);
    return err;
}

static void free_events(const struct dp_evictions *e, struct dp_device_event **events)
{
    for (uint32_t i = 0; i < e->count && events; i++)
        dp_device_event_free(events[i]);
    free(events);
}

int dp_evictions_init(struct dp_evictions *e, struct dp_device *device, uint32_t count,
                      size_t host_bytes)
{
    void *host = NULL;
    int err = 0;

    e->device = device;
    e->count = count;
    if (!count)
        return 0;
    err = dp_device_alloc(device, DP_MEMORY_PINNED, host_bytes, &host);
    e->host = host;
    if (!err)
        err = dp_device_stream_new(device, DP_PRIORITY_NORMAL, &e->down);
    if (!err)
        err = dp_device_stream_new(device, DP_PRIORITY_HIGH, &e->up);
    if (!err)
        err = dp_device_event_new(device, &e->compute);
    if (!err)
        err = new_events(e, &e->evicted);
    return err ? err : new_events(e, &e->fetched);
}

void dp_evictions_fini(struct dp_evictions *e)
{
    dp_device_stream_free(e->down);
    dp_device_stream_free(e->up);
    dp_device_event_free(e->compute);
    free_events(e, e->evicted);
    free_events(e, e->fetched);
    if (e->device)
        dp_device_free(e->device, DP_MEMORY_PINNED, e->host);
}
