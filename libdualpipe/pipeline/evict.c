/* SPDX-License-Identifier: Apache-2.0
 *
 * evict.c - save areas that wait on the host: copied down after the forward, up before the backward.
 */
#include "pipeline/internal.h"
#include "pipeline/state.h"

#include "base/clock.h"
#include "base/fail.h"
#include "pipeline/steps.h"

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

static int copy(struct dp_pipeline *pipe, struct dp_device_stream *stream,
                const struct dp_plan_op *op)
{
    const struct dp_plan_copy *c = &op->copy;
    bool evicts = op->kind == DP_PLAN_EVICT;
    struct dp_copy_meter *meter = &pipe->evictions.meters[!evicts];
    int err = dp_device_call(stream, begin, meter);

    for (int i = 0; i < DP_PLAN_COPY_PARTS && !err; i++) {
        char *device = pipe->memory + c->device[i], *host = pipe->evictions.host + c->host[i];
        err = dp_device_copy(stream, evicts ? host : device, evicts ? device : host, c->bytes[i]);
    }
    return err ? err : dp_device_call(stream, end, meter);
}

int dp_evict_run(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct dp_evictions *e = &pipe->evictions;
    bool evicts = op->kind == DP_PLAN_EVICT;
    struct dp_device_stream *stream = evicts ? e->down : e->up;
    int err = dp_device_event_record(e->compute, pipe->compute);

    if (!err)
        err = dp_device_stream_wait(stream, e->compute);
    if (!err && op->evicted)
        err = dp_device_stream_wait(stream, e->evicted[op->evicted - 1]);
    if (!err)
        err = copy(pipe, stream, op);
    return err ? err
               : dp_device_event_record((evicts ? e->evicted : e->fetched)[op->copy.number], stream);
}

int dp_evict_wait(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct dp_evictions *e = &pipe->evictions;
    int64_t begun_ns;
    int err = 0;

    if (!op->evicted && !op->fetched)
        return 0;
    begun_ns = dp_now_ns();
    if (op->evicted)
        err = dp_device_stream_wait(pipe->compute, e->evicted[op->evicted - 1]);
    if (!err && op->fetched)
        err = dp_device_stream_wait(pipe->compute, e->fetched[op->fetched - 1]);
    if (!err)
        err = dp_compute_sync(pipe);
    e->wait_ns += dp_now_ns() - begun_ns;
    return err;
}

void dp_pipeline_copies(const struct dp_pipeline *pipe, struct dp_pipeline_copies *out)
{
    const struct dp_evictions *e = &pipe->evictions;

    *out = (struct dp_pipeline_copies){
        .down_ns = atomic_load_explicit(&e->meters[0].busy_ns, memory_order_relaxed),
        .up_ns = atomic_load_explicit(&e->meters[1].busy_ns, memory_order_relaxed),
        .wait_ns = e->wait_ns,
    };
}

static void wait_for(struct dp_pipeline *pipe, struct dp_device_stream *stream)
{
    if (stream && !dp_device_event_record(pipe->done, stream))
        dp_device_event_wait(pipe->done, pipe->deadline_ns);
}

void dp_evict_forget(struct dp_pipeline *pipe)
{
    wait_for(pipe, pipe->evictions.down);
    wait_for(pipe, pipe->evictions.up);
}

/* ---- making them ----------------------------------------------------------------------------- */

static int new_events(struct dp_pipeline *pipe, struct dp_device_event ***out)
{
    uint32_t count = pipe->evictions.count;
    int err = 0;

    *out = calloc(count, sizeof(struct dp_device_event *));
    if (!*out)
        return dp_fail(DP_ENOMEM, "no memory for %u evictions", count);
    for (uint32_t i = 0; i < count && !err; i++)
        err = dp_device_event_new(pipe->device, &(*out)[i]);
    return err;
}

static void free_events(const struct dp_evictions *e, struct dp_device_event **events)
{
    for (uint32_t i = 0; i < e->count && events; i++)
        dp_device_event_free(events[i]);
    free(events);
}

int dp_evictions_init(struct dp_pipeline *pipe)
{
    struct dp_evictions *e = &pipe->evictions;
    void *host = NULL;
    int err = 0;

    if (!pipe->most.evictions)
        return 0;
    e->count = pipe->most.evictions;
    err = dp_device_alloc(pipe->device, DP_MEMORY_PINNED, pipe->most.host_bytes, &host);
    e->host = host;
    if (!err)
        err = dp_device_stream_new(pipe->device, DP_PRIORITY_NORMAL, &e->down);
    if (!err)
        err = dp_device_stream_new(pipe->device, DP_PRIORITY_HIGH, &e->up);
    if (!err)
        err = dp_device_event_new(pipe->device, &e->compute);
    if (!err)
        err = new_events(pipe, &e->evicted);
    return err ? err : new_events(pipe, &e->fetched);
}

void dp_evictions_fini(struct dp_pipeline *pipe)
{
    struct dp_evictions *e = &pipe->evictions;

    dp_device_stream_free(e->down);
    dp_device_stream_free(e->up);
    dp_device_event_free(e->compute);
    free_events(e, e->evicted);
    free_events(e, e->fetched);
    dp_device_free(pipe->device, DP_MEMORY_PINNED, e->host);
}
