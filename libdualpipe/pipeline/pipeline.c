/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/pipeline.h>

#include "base/clock.h"
#include "base/fail.h"
#include "pipeline/recorder.h"
#include "pipeline/setup.h"
#include "pipeline/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- new ------------------------------------------------------------------------------------ */

static void *duplicate(const void *from, size_t count, size_t size)
{
    void *copy = calloc(count ? count : 1, size);
    if (copy && count)
        memcpy(copy, from, count * size);
    return copy;
}

static void take_config(struct dp_pipeline *pipe, const struct dp_pipeline_config *config)
{
    pipe->config = *config;
    if (!pipe->config.max_loss_values)
        pipe->config.max_loss_values = 1;
    if (pipe->config.loss_scale == 0)
        pipe->config.loss_scale = 1;
    if (config->label)
        pipe->label = *config->label;
    pipe->rank = dp_config_rank(config);
    pipe->ends.first_slot = dp_config_first_slot(config->schedule, pipe->rank);
    pipe->ends.last_slot = dp_config_last_slot(config->schedule, pipe->rank);
    pipe->staged = !pipe->device->host_accessible;
    pipe->deadline_ns = config->comm ? config->comm->deadline_ns : 60 * DP_NS_PER_S;
}

static int copy_config(struct dp_pipeline *pipe, const struct dp_pipeline_config *config)
{
    size_t slots = (size_t)config->schedule->slots_per_rank;
    size_t borders = (size_t)config->schedule->stages + 1;

    pipe->stages = duplicate(config->stages, slots, sizeof(*pipe->stages));
    pipe->borders = duplicate(config->borders, borders, sizeof(*pipe->borders));
    pipe->handed_out = duplicate(config->borders, borders, sizeof(*pipe->borders));
    pipe->layouts = calloc(borders, sizeof(*pipe->layouts));
    pipe->agreement = calloc((size_t)config->schedule->ranks, 2 * sizeof(*pipe->agreement));
    pipe->loss_memory = calloc((size_t)pipe->config.max_loss_values, sizeof(double));
    if (!pipe->stages || !pipe->borders || !pipe->handed_out || !pipe->layouts ||
        !pipe->agreement || !pipe->loss_memory)
        return dp_fail(DP_ENOMEM, "no memory for a pipeline of %zu borders", borders);
    for (size_t i = 0; i < borders; i++)
        dp_border_lay_out(&pipe->borders[i], &pipe->layouts[i]);
    pipe->config.stages = pipe->stages;
    pipe->config.borders = pipe->borders;
    return 0;
}

static int make_plan(struct dp_pipeline *pipe)
{
    const struct dp_plan_source source = {
        .schedule = pipe->config.schedule,
        .rank = pipe->rank,
        .stages = pipe->stages,
        .layouts = pipe->layouts,
        .copy_batch = pipe->config.batch_dim != 0,
        .fixed_order = pipe->config.fixed_order,
        .staged = pipe->staged,
    };
    return dp_plan_init(&pipe->plan, &source);
}

static int take_memory(struct dp_pipeline *pipe, enum dp_memory where, size_t bytes, char **out)
{
    void *memory;

    if (!bytes)
        return 0;
    int err = pipe->device->ops->alloc(pipe->device, where, bytes, &memory);
    if (err)
        return err;
    *out = memory;
    pipe->taken_bytes += bytes;
    return 0;
}

static size_t label_bytes(const struct dp_pipeline *pipe)
{
    bool needed = pipe->config.label && pipe->config.batch_dim && pipe->ends.last_slot >= 0;
    return needed ? dp_spec_bytes(&pipe->label) : 0;
}

static size_t reduce_bytes(const struct dp_pipeline *pipe)
{
    for (size_t i = 0; i < pipe->plan.count; i++)
        if (pipe->plan.ops[i].kind == DP_PLAN_REDUCE ||
            (pipe->plan.ops[i].kind == DP_PLAN_MERGE && pipe->staged))
            return dp_reduce_memory_bytes(pipe);
    return 0;
}

/* Shared with other ranks of this host, if some message is long enough for that to help. */
static enum dp_memory choose_memory(const struct dp_pipeline *pipe)
{
    const size_t least = pipe->config.comm ? pipe->config.comm->shared_bytes : 0;

    for (int i = 0; least && !pipe->staged && i <= pipe->config.schedule->stages; i++)
        if (pipe->layouts[i].activation.bytes >= least)
            return DP_MEMORY_SHARED;
    return DP_MEMORY_DEVICE;
}

/* What cannot be shared is as good, only slower. */
static int take_main_memory(struct dp_pipeline *pipe)
{
    pipe->memory_kind = choose_memory(pipe);
    int err = take_memory(pipe, pipe->memory_kind, pipe->plan.bytes, &pipe->memory);

    if (!err || pipe->memory_kind == DP_MEMORY_DEVICE)
        return err;
    dp_log(DP_LOG_WARN, "pipeline: going on with memory that ranks of this host do not share");
    pipe->memory_kind = DP_MEMORY_DEVICE;
    return take_memory(pipe, DP_MEMORY_DEVICE, pipe->plan.bytes, &pipe->memory);
}

static int take_buffers(struct dp_pipeline *pipe)
{
    int err = take_main_memory(pipe);

    if (!err && pipe->staged)
        err = take_memory(pipe, DP_MEMORY_PINNED, pipe->plan.bytes, &pipe->pinned);
    pipe->wire = pipe->staged ? pipe->pinned : pipe->memory;
    if (!err)
        err = take_memory(pipe, DP_MEMORY_DEVICE, label_bytes(pipe), &pipe->label_memory);
    if (!err)
        err = take_memory(pipe, DP_MEMORY_PINNED, reduce_bytes(pipe), &pipe->reduce_memory);
    return err;
}

static int open_streams(struct dp_pipeline *pipe)
{
    const struct dp_device_ops *device = pipe->device->ops;
    int err = device->stream_new(pipe->device, &pipe->compute);

    if (!err)
        err = device->stream_new(pipe->device, &pipe->outgoing);
    if (!err)
        err = device->event_new(pipe->device, &pipe->done);
    if (!err)
        pipe->native_stream = device->stream_native(pipe->compute);
    return err;
}

static int take_messages(struct dp_pipeline *pipe)
{
    int err = 0;

    pipe->messages = calloc(pipe->plan.requests + 1, sizeof(*pipe->messages));
    if (!pipe->messages)
        return dp_fail(DP_ENOMEM, "no memory for %u requests", pipe->plan.requests);
    for (uint32_t i = 0; i < pipe->plan.requests && pipe->staged && !err; i++)
        err = pipe->device->ops->event_new(pipe->device, &pipe->messages[i].copied);
    return err;
}

static int open_device(struct dp_pipeline *pipe, struct dp_device *device)
{
    pipe->device = device;
    if (device)
        return 0;
    int err = dp_device_host_open(0, &pipe->device);
    pipe->owns_device = !err;
    return err;
}

/* All that this rank can do by itself. */
static int build(struct dp_pipeline *pipe, const struct dp_pipeline_config *config)
{
    int err = open_device(pipe, config->device);

    if (!err)
        err = dp_config_check(config, pipe->device);
    if (err)
        return err;
    take_config(pipe, config);
    err = copy_config(pipe, config);
    if (!err)
        err = make_plan(pipe);
    if (!err)
        err = open_streams(pipe);
    if (!err)
        err = take_buffers(pipe);
    if (!err)
        err = take_messages(pipe);
    if (!err)
        err = dp_halves_init(&pipe->halves, pipe->device, pipe->stages, pipe->plan.second_half,
                             config->schedule->slots_per_rank);
    return err;
}

int dp_pipeline_new(const struct dp_pipeline_config *config, struct dp_pipeline **out)
{
    if (!config || !out)
        return dp_fail(DP_EINVAL, "a pipeline without a %s", config ? "place for it" : "config");
    struct dp_pipeline *pipe = calloc(1, sizeof(*pipe));
    int err = pipe ? build(pipe, config) : dp_fail(DP_ENOMEM, "no memory for a pipeline");

    err = dp_config_agree(config, err, pipe ? &pipe->digest : NULL);
    if (err)
        dp_pipeline_free(pipe);
    else
        *out = pipe;
    return err;
}

/* ---- free ----------------------------------------------------------------------------------- */

static void free_messages(struct dp_pipeline *pipe)
{
    for (uint32_t i = 0; i < pipe->plan.requests && pipe->messages; i++)
        pipe->device->ops->event_free(pipe->messages[i].copied);
    free(pipe->messages);
}

static void free_device_parts(struct dp_pipeline *pipe)
{
    const struct dp_device_ops *device = pipe->device->ops;

    device->stream_free(pipe->outgoing);
    device->stream_free(pipe->compute);
    dp_halves_fini(&pipe->halves, pipe->device);
    free_messages(pipe);
    device->event_free(pipe->done);
    device->free(pipe->device, DP_MEMORY_PINNED, pipe->reduce_memory);
    device->free(pipe->device, DP_MEMORY_DEVICE, pipe->label_memory);
    device->free(pipe->device, DP_MEMORY_PINNED, pipe->pinned);
    device->free(pipe->device, pipe->memory_kind, pipe->memory);
    if (pipe->owns_device)
        dp_device_close(pipe->device);
}

void dp_pipeline_free(struct dp_pipeline *pipe)
{
    if (!pipe)
        return;
    if (pipe->device)
        free_device_parts(pipe);
    dp_plan_fini(&pipe->plan);
    free(pipe->agreement);
    free(pipe->loss_memory);
    free(pipe->layouts);
    free(pipe->handed_out);
    free(pipe->borders);
    free(pipe->stages);
    free(pipe);
}
