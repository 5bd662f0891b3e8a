/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline.c - new and free: what a pipeline keeps of its config, a plan for each schedule, and memory.
 */
#include <dualpipe/pipeline.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/sized.h"
#include "comm/internal.h"
#include "device/device_ops.h"
#include "pipeline/offsets.h"
#include "pipeline/recorder.h"
#include "pipeline/setup.h"
#include "pipeline/state.h"
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

static void take_config(struct dp_pipeline *pipe, const struct dp_pipeline_config *config, int rank)
{
    pipe->base.pipe = pipe;
    pipe->base.config = *config;
    if (!pipe->base.config.max_loss_values)
        pipe->base.config.max_loss_values = 1;
    if (pipe->base.config.loss_scale == 0)
        pipe->base.config.loss_scale = 1;
    if (pipe->base.config.fixed_order && !pipe->base.config.order_blocks)
        pipe->base.config.order_blocks = 2;
    if (!pipe->base.config.fixed_order)
        pipe->base.config.order_blocks = 0;
    if (config->labels)
        pipe->labels = pipe->declared_labels = *config->labels;
    dp_border_lay_out(&pipe->labels, &pipe->label_layout);
    pipe->base.rank = rank;
    pipe->base.slots = dp_schedule_slot_count(config->schedule, pipe->base.rank);
    pipe->base.first_slot = dp_config_first_slot(config->schedule, pipe->base.rank);
    pipe->base.last_slot = dp_config_last_slot(config->schedule, pipe->base.rank);
    pipe->base.out_of_reach = !dp_device_host_accessible(pipe->base.device);
    pipe->staged =
        pipe->base.out_of_reach && !(config->comm && dp_comm_caps(config->comm).device_memory);
    pipe->deadline_ns = config->comm ? dp_comm_deadline(config->comm) : 60 * DP_NS_PER_S;
}

static void describe_border(const struct dp_pipeline *pipe, size_t border)
{
    struct dp_border *b = &pipe->handed_out[border];

    for (int k = 0; k < b->count; k++)
        pipe->blanks[border * DP_MAX_TENSORS + (size_t)k] = (DLTensor){
            .device = dp_device_dl(pipe->base.device),
            .ndim = b->tensors[k].ndim,
            .dtype = b->tensors[k].dtype,
            .shape = b->tensors[k].shape,
        };
}

static int copy_config(struct dp_pipeline *pipe, const struct dp_pipeline_config *config)
{
    size_t slots = (size_t)dp_schedule_slot_count(config->schedule, pipe->base.rank);
    size_t borders = (size_t)config->schedule->stages + 1;

    pipe->base.stages = duplicate(config->stages, slots, sizeof(*pipe->base.stages));
    pipe->borders = duplicate(config->borders, borders, sizeof(*pipe->borders));
    pipe->declared = duplicate(config->borders, borders, sizeof(*pipe->declared));
    pipe->handed_out = duplicate(config->borders, borders, sizeof(*pipe->borders));
    pipe->blanks = calloc(borders, DP_MAX_TENSORS * sizeof(*pipe->blanks));
    pipe->layouts = calloc(borders, sizeof(*pipe->layouts));
    pipe->agreement = calloc((size_t)config->schedule->ranks, DP_AGREED * sizeof(*pipe->agreement));
    pipe->loss_memory = calloc((size_t)pipe->base.config.max_loss_values, sizeof(double));
    if (!pipe->base.stages || !pipe->borders || !pipe->declared || !pipe->handed_out || !pipe->blanks ||
        !pipe->layouts || !pipe->agreement || !pipe->loss_memory)
        return dp_fail(DP_ENOMEM, "no memory for a pipeline of %zu borders", borders);
    for (size_t i = 0; i < borders; i++) {
        dp_border_lay_out(&pipe->borders[i], &pipe->layouts[i]);
        describe_border(pipe, i);
    }
    pipe->base.config.stages = pipe->base.stages;
    pipe->base.config.borders = pipe->declared;
    return 0;
}

/* The most micro-batches of a stream that a step may have. */
static int32_t most_mb(const struct dp_pipeline *pipe)
{
    int32_t most = 0;

    for (int i = 0; i < pipe->base.program_count; i++)
        if (pipe->base.programs[i].schedule->mb_per_stream > most)
            most = pipe->base.programs[i].schedule->mb_per_stream;
    return most;
}

/* Room for what a step hands over. */
static int take_ends(struct dp_pipeline *pipe)
{
    const struct dp_schedule *s = pipe->base.config.schedule;
    int32_t count = most_mb(pipe);
    int err = 0;

    if (pipe->base.first_slot >= 0)
        err = dp_batch_init(&pipe->ends.inputs, count, &pipe->borders[0]);
    if (!err && pipe->base.last_slot >= 0)
        err = dp_batch_init(&pipe->ends.labels, count, &pipe->labels);
    if (!err && pipe->base.last_slot >= 0)
        err = dp_batch_init(&pipe->ends.outputs, count, &pipe->borders[s->stages]);
    if (!err && pipe->base.last_slot >= 0)
        err = dp_batch_init(&pipe->ends.output_grads, count, &pipe->borders[s->stages]);
    if (err)
        return err;
    size_t n = (size_t)pipe->base.slots * (size_t)count + 1;
    err = dp_pipeline_skips_take(&pipe->skips, count);
    if (err)
        return err;
    pipe->handles = calloc(n, sizeof(*pipe->handles));
    pipe->own = calloc(2 * n, sizeof(*pipe->own));
    pipe->slot_steps = calloc((size_t)pipe->base.slots + 1, sizeof(*pipe->slot_steps));
    return pipe->handles && pipe->own && pipe->slot_steps
               ? 0
               : dp_fail(DP_ENOMEM, "no memory for a pipeline's handles");
}

/* ---- programs: a plan for each schedule, all in the same memory ------------------------------ */

static void note_most(struct dp_plan *most, const struct dp_plan *plan)
{
#define NOTE(member) most->member = plan->member > most->member ? plan->member : most->member
    NOTE(bytes);
    NOTE(requests);
    NOTE(peak_activations);
    NOTE(evictions);
    NOTE(host_bytes);
    for (int part = 0; part < DP_PARTS; part++)
        NOTE(part_bytes[part]);
    for (int slot = 0; slot < DP_MAX_SLOTS; slot++)
        NOTE(sets[slot]);
#undef NOTE
}

static int make_plan(struct dp_pipeline *pipe, struct dp_program *program)
{
    const struct dp_plan_source source = {
        .schedule = program->schedule,
        .rank = pipe->base.rank,
        .stages = pipe->base.stages,
        .layouts = pipe->layouts,
        .skip_bytes = pipe->skips.bytes,
        .skip_gradient_bytes = pipe->skips.gradient_bytes,
        .copy_strided = pipe->base.config.copy_strided,
        .order_blocks = pipe->base.config.order_blocks,
        .driven = pipe->base.config.execution == DP_EXECUTE_MESSAGES,
        .staged = pipe->staged && !pipe->ordered,
        .ordered = pipe->ordered,
        .adds_sums = dp_config_adds_sums(&pipe->base.config, program->schedule),
        .reduced_outside = pipe->base.config.reduce,
    };
    int err = dp_plan_init(&program->plan, &source);

    if (!err && source.driven)
        err = dp_execute_messages.init(&pipe->base, program);
    if (!err)
        note_most(&pipe->most, &program->plan);
    return err;
}

static int make_programs(struct dp_pipeline *pipe)
{
    int err = 0;

    pipe->base.program_count = 1 + pipe->base.config.also_count;
    pipe->base.programs = calloc((size_t)pipe->base.program_count, sizeof(*pipe->base.programs));
    if (!pipe->base.programs)
        return dp_fail(DP_ENOMEM, "no memory for %d schedules", pipe->base.program_count);
    for (int i = 0; i < pipe->base.program_count && !err; i++) {
        pipe->base.programs[i].schedule = i ? pipe->base.config.also[i - 1] : pipe->base.config.schedule;
        err = make_plan(pipe, &pipe->base.programs[i]);
    }
    return err;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int take_memory(struct dp_pipeline *pipe, enum dp_memory where, size_t bytes, char **out)
{
    void *memory;

    if (!bytes)
        return 0;
    int err = dp_device_alloc(pipe->base.device, where, bytes, &memory);
    if (err)
        return err;
    *out = memory;
    pipe->taken_bytes += bytes;
    return 0;
}

static size_t label_bytes(const struct dp_pipeline *pipe)
{
    bool needed = pipe->base.config.copy_strided && pipe->base.last_slot >= 0;
    return needed ? 2 * dp_offset_align(pipe->label_layout.activation.bytes) : 0;
}

static bool needs_reduce_memory(const struct dp_pipeline *pipe, const struct dp_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        if (plan->ops[i].kind == DP_PLAN_REDUCE ||
            (dp_plan_is_sum(&plan->ops[i]) && pipe->base.out_of_reach))
            return true;
    return false;
}

static size_t reduce_bytes(const struct dp_pipeline *pipe)
{
    for (int i = 0; i < pipe->base.program_count; i++)
        if (needs_reduce_memory(pipe, &pipe->base.programs[i].plan))
            return (pipe->sums_there ? 0 : dp_reduce_pieces_bytes(pipe)) + dp_sum_memory_bytes(pipe);
    return 0;
}

/* Shared with other ranks of this host, if some message is long enough for that to help; but memory
 * that is limited must be the device's, whose is counted. */
static enum dp_memory choose_memory(const struct dp_pipeline *pipe)
{
    const size_t least = pipe->base.config.comm ? dp_comm_shared_bytes(pipe->base.config.comm) : 0;
    struct dp_device_usage usage;

    dp_device_usage(pipe->base.device, &usage);
    if (usage.limit_bytes != SIZE_MAX)
        return DP_MEMORY_MESSAGES;
    for (int i = 0; least && !pipe->base.out_of_reach && i <= pipe->base.config.schedule->stages; i++)
        if (pipe->layouts[i].activation.bytes >= least)
            return DP_MEMORY_SHARED;
    return DP_MEMORY_MESSAGES;
}

/* What cannot be shared is as good, only slower. A process that may open no more files (DP_EIO) would
 * fail at its next connection, with a worse reason. */
static int take_main_memory(struct dp_pipeline *pipe)
{
    pipe->memory_kind = choose_memory(pipe);
    int err = take_memory(pipe, pipe->memory_kind, pipe->most.bytes, &pipe->base.memory);

    if (!err || err == DP_EIO || pipe->memory_kind == DP_MEMORY_MESSAGES)
        return err;
    dp_log(DP_LOG_WARN, "pipeline: going on with memory that ranks of this host do not share");
    pipe->memory_kind = DP_MEMORY_MESSAGES;
    return take_memory(pipe, pipe->memory_kind, pipe->most.bytes, &pipe->base.memory);
}

static int take_landings(struct dp_pipeline *pipe)
{
    pipe->base.landing_bytes = dp_execute_messages.landing_bytes(&pipe->base);
    return take_memory(pipe, pipe->staged ? DP_MEMORY_PINNED : pipe->memory_kind,
                       DP_LANDINGS * pipe->base.landing_bytes, &pipe->base.landing_memory);
}

/* Where the device adds, pieces of mirrors arrive there. */
static int take_sums(struct dp_pipeline *pipe)
{
    const DLDataType f32 = {kDLFloat, 32, 1};
    size_t bytes;
    int err;

    pipe->sums_there = pipe->ordered && pipe->base.out_of_reach && !pipe->staged &&
                       !dp_device_add(pipe->base.compute, f32, NULL, f32, NULL, 0);
    bytes = reduce_bytes(pipe);
    err = take_memory(pipe, DP_MEMORY_PINNED, bytes, &pipe->reduce_memory);
    if (err || !pipe->sums_there || !bytes)
        return err;
    return take_memory(pipe, DP_MEMORY_DEVICE, dp_reduce_pieces_bytes(pipe), &pipe->arrivals);
}

static int take_buffers(struct dp_pipeline *pipe)
{
    int err = take_main_memory(pipe);

    if (!err && pipe->staged)
        err = take_memory(pipe, DP_MEMORY_PINNED, pipe->most.bytes, &pipe->pinned);
    pipe->wire = pipe->staged ? pipe->pinned : pipe->base.memory;
    if (!err)
        err = take_memory(pipe, DP_MEMORY_DEVICE, label_bytes(pipe), &pipe->label_memory);
    if (!err)
        err = take_sums(pipe);
    return err ? err : take_landings(pipe);
}

static int open_streams(struct dp_pipeline *pipe)
{
    struct dp_device_stream *given = pipe->base.config.stream;
    int err = 0;

    if (given && pipe->base.out_of_reach && given->dev != pipe->base.device)
        return dp_fail(DP_EINVAL, "stream: of another device, expected one of the pipeline's");
    pipe->owns_compute = !given || !pipe->base.out_of_reach;
    if (pipe->owns_compute)
        err = dp_device_stream_new(pipe->base.device, DP_PRIORITY_NORMAL, &pipe->base.compute);
    else
        pipe->base.compute = given;
    if (!err)
        err = dp_device_stream_new(pipe->base.device, DP_PRIORITY_NORMAL, &pipe->outgoing);
    if (!err)
        err = dp_device_event_new(pipe->base.device, &pipe->done);
    if (err)
        return err;
    pipe->native_stream = dp_device_stream_native(pipe->base.compute);
    /* Stages that compute in the calling thread need a message in hand: the host waits for it. */
    pipe->ordered = pipe->native_stream && pipe->base.config.comm &&
                    pipe->base.config.execution == DP_EXECUTE_LIST &&
                    dp_comm_caps(pipe->base.config.comm).stream_ordered;
    return pipe->ordered || dp_reduce_is_queued(pipe)
               ? dp_device_stream_new(pipe->base.device, DP_PRIORITY_NORMAL, &pipe->summing)
               : 0;
}

static int take_messages(struct dp_pipeline *pipe)
{
    int err = 0;

    pipe->messages = calloc(pipe->most.requests + 1, sizeof(*pipe->messages));
    if (!pipe->messages)
        return dp_fail(DP_ENOMEM, "no memory for %u requests", pipe->most.requests);
    for (uint32_t i = 0; i < pipe->most.requests && pipe->staged && !err; i++)
        err = dp_device_event_new(pipe->base.device, &pipe->messages[i].copied);
    return err;
}

static int open_device(struct dp_pipeline *pipe, struct dp_device *device)
{
    pipe->base.device = device;
    if (device)
        return 0;
    int err = dp_device_host_open(0, &pipe->base.device);
    pipe->owns_device = !err;
    return err;
}

/* What is decided before there is any memory for it. */
static int prepare(struct dp_pipeline *pipe, const struct dp_pipeline_config *config, int rank)
{
    take_config(pipe, config, rank);
    int err = copy_config(pipe, config);
    if (!err)
        err = dp_pipeline_skips_init(&pipe->skips, &pipe->base);
    if (!err)
        err = open_streams(pipe);
    return err ? err : make_programs(pipe);
}

/* All that this rank can do by itself. */
static int build(struct dp_pipeline *pipe, const struct dp_pipeline_config *config)
{
    int err = open_device(pipe, config->device);

    if (!err)
        err = dp_config_check(config, pipe->base.device);
    if (!err)
        err = prepare(pipe, config, dp_config_rank(config));
    if (!err)
        err = take_ends(pipe);
    if (!err)
        err = take_buffers(pipe);
    if (!err)
        err = take_messages(pipe);
    if (!err)
        err = dp_tied_new(&pipe->base, pipe->sums_there, &pipe->base.tied);
    if (!err)
        err = dp_evictions_init(&pipe->evictions, pipe->base.device, pipe->most.evictions,
                                pipe->most.host_bytes);
    if (!err && config->pinned_sums && pipe->base.out_of_reach)
        err = dp_fail(DP_EUNSUPPORTED, "pinned_sums: expected a device whose memory the CPU reaches");
    pipe->accumulator.kind = config->pinned_sums ? DP_MEMORY_PINNED : DP_MEMORY_DEVICE;
    if (!err)
        err = dp_accumulator_init(&pipe->accumulator, pipe->base.device, pipe->base.stages,
                                  pipe->most.sets, pipe->base.slots);
    return err ? err : dp_reduce_init(pipe);
}

/* What messages go from and to. Without it they are only slower. */
static void register_memory(struct dp_pipeline *pipe)
{
    pipe->registered = !dp_comm_register(pipe->base.config.comm, pipe->base.memory, pipe->most.bytes);
    if (!pipe->registered)
        dp_log(DP_LOG_WARN, "pipeline: going on with memory that is not registered");
}

int dp_pipeline_new_sized(const struct dp_pipeline_config *config, struct dp_pipeline **out,
                          size_t size)
{
    DP_TAKE_KNOWN(dp_pipeline_config, config, size);
    if (!config || !out)
        return dp_fail(DP_EINVAL, "a pipeline without a %s", config ? "place for it" : "config");
    struct dp_pipeline *pipe = calloc(1, sizeof(*pipe));
    int err = config_err;

    if (!err)
        err = pipe ? build(pipe, config) : dp_fail(DP_ENOMEM, "no memory for a pipeline");
    err = dp_config_agree(config, err, pipe ? &pipe->digest : NULL);
    if (!err)
        err = dp_copies_make_equal(pipe);
    if (!err)
        err = dp_links_make(pipe);
    if (!err)
        err = dp_tied_find(pipe->base.tied);
    if (!err && pipe->ordered && !pipe->staged && pipe->most.bytes)
        register_memory(pipe);
    if (err)
        dp_pipeline_free(pipe);
    else
        *out = pipe;
    return err;
}

/* ---- what it would take ---------------------------------------------------------------------- */

/* The sum of what build takes. */
static void count_memory(struct dp_pipeline *pipe)
{
    pipe->taken_bytes = pipe->most.bytes * (pipe->staged ? 2 : 1) + label_bytes(pipe) +
                        reduce_bytes(pipe) +
                        DP_LANDINGS * dp_execute_messages.landing_bytes(&pipe->base);
    pipe->accumulator.bytes = dp_accumulator_bytes(pipe->base.stages, pipe->most.sets, pipe->base.slots);
}

int dp_pipeline_measure_sized(const struct dp_pipeline_config *config, int rank,
                              struct dp_pipeline_memory *out, size_t size, size_t out_size)
{
    DP_TAKE(dp_pipeline_config, config, size);
    if (rank < 0 || rank >= config->schedule->ranks)
        return dp_fail(DP_EINVAL, "rank %d, expected 0 to %d", rank, config->schedule->ranks - 1);
    int err = dp_schedule_check(config->schedule, NULL, NULL);
    if (err)
        return err;
    struct dp_pipeline *pipe = calloc(1, sizeof(*pipe));
    err = pipe ? open_device(pipe, config->device) : dp_fail(DP_ENOMEM, "no memory for a pipeline");

    if (!err)
        err = prepare(pipe, config, rank);
    if (!err) {
        count_memory(pipe);
        dp_pipeline_memory_sized(pipe, out, out_size);
    }
    dp_pipeline_free(pipe);
    return err;
}

/* ---- free ----------------------------------------------------------------------------------- */

static void free_messages(struct dp_pipeline *pipe)
{
    for (uint32_t i = 0; i < pipe->most.requests && pipe->messages; i++)
        dp_device_event_free(pipe->messages[i].copied);
    free(pipe->messages);
    free(pipe->reductions.pieces);
}

static void free_device_parts(struct dp_pipeline *pipe)
{
    dp_device_stream_free(pipe->summing);
    dp_device_stream_free(pipe->outgoing);
    if (pipe->owns_compute)
        dp_device_stream_free(pipe->base.compute);
    dp_evictions_fini(&pipe->evictions);
    dp_accumulator_fini(&pipe->accumulator, pipe->base.device);
    dp_tied_free(pipe->base.tied);
    free_messages(pipe);
    dp_device_event_free(pipe->done);
    dp_device_free(pipe->base.device, DP_MEMORY_PINNED, pipe->reduce_memory);
    dp_device_free(pipe->base.device, DP_MEMORY_DEVICE, pipe->arrivals);
    dp_device_free(pipe->base.device, DP_MEMORY_DEVICE, pipe->label_memory);
    dp_device_free(pipe->base.device, DP_MEMORY_PINNED, pipe->pinned);
    dp_device_free(pipe->base.device, pipe->staged ? DP_MEMORY_PINNED : pipe->memory_kind,
                   pipe->base.landing_memory);
    dp_device_free(pipe->base.device, pipe->memory_kind, pipe->base.memory);
    if (pipe->owns_device)
        dp_device_close(pipe->base.device);
}

void dp_pipeline_free(struct dp_pipeline *pipe)
{
    if (!pipe)
        return;
    if (pipe->registered)
        dp_comm_unregister(pipe->base.config.comm, pipe->base.memory);
    if (pipe->base.device)
        free_device_parts(pipe);
    for (int i = 0; i < pipe->base.program_count && pipe->base.programs; i++) {
        dp_execute_messages.fini(&pipe->base.programs[i]);
        dp_plan_fini(&pipe->base.programs[i].plan);
    }
    free(pipe->base.programs);
    dp_pipeline_skips_fini(&pipe->skips);
    dp_batch_fini(&pipe->ends.inputs);
    dp_batch_fini(&pipe->ends.labels);
    dp_batch_fini(&pipe->ends.outputs);
    dp_batch_fini(&pipe->ends.output_grads);
    free(pipe->handles);
    free(pipe->slot_steps);
    free(pipe->own);
    free(pipe->agreement);
    free(pipe->loss_memory);
    free(pipe->layouts);
    free(pipe->handed_out);
    free(pipe->blanks);
    free(pipe->borders);
    free(pipe->declared);
    free(pipe->base.stages);
    free(pipe);
}
