/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - the entries of a plan, one after the other.
 */
#include "pipeline/steps.h"

#include "base/clock.h"
#include "base/fail.h"
#include "pipeline/recorder.h"

#include <stdio.h>

static void note(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    if (!pipe->config.comm && !pipe->live)
        return;
    const uint64_t doing =
        pipe->slot_steps[op->slot].doing | (op->kind + UINT64_C(1)) << 60 | op->mb;
    if (pipe->config.comm)
        dp_comm_note(pipe->config.comm, doing);
    if (pipe->live)
        __atomic_store_n(&pipe->live->doing, doing, __ATOMIC_RELAXED);
}
_Static_assert(DP_PLAN_KINDS < 16, "a kind fits, and 0 is none");

const char *dp_pipeline_doing_text(uint64_t doing, char *text, size_t room)
{
    static const char *const names[16] = {
        "",         "receive",            "send",   "forward", "recomputed forward",
        "backward", "backward of inputs", "weight", "sum",     "sum",
        "reduction", "wait for the reduction", "eviction", "fetch", "sum"};

    if (!room)
        return text;
    text[0] = '\0';
    if (doing)
        snprintf(text, room, "%s of micro-batch %d in stage %d, step %d", names[doing >> 60],
                 (int)(doing & DP_MAX_MB), (int)(doing >> 20 & 0xffff),
                 (int)(doing >> 36 & 0xffffff));
    return text;
}

static int run_sum(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    if (pipe->now.args->accumulate && dp_plan_is_last(op))
        return 0;
    if (op->kind == DP_PLAN_REDUCE_WAIT)
        return dp_reduce_wait(pipe, op);
    const int err = dp_compute_settle(pipe, op->slot);
    if (err)
        return err;
    return op->kind == DP_PLAN_REDUCE ? dp_reduce_launch(pipe, op) : dp_sum_run(pipe, op);
}

static int run_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    if (!dp_plan_is_compute(op))
        return run_sum(pipe, op);
    dp_comm_progress_start(pipe->config.comm);
    return dp_compute_run(pipe, op);
}

/* Of a pair both. */
static int wait_for_save_areas(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err = op->evicted || op->fetched ? dp_evict_wait(pipe, op) : 0;

    return !err && op->pair && (op[1].evicted || op[1].fetched) ? dp_evict_wait(pipe, op + 1) : err;
}

int dp_pipeline_begin_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    note(pipe, op);
    return dp_pipeline_progress(pipe);
}

int dp_pipeline_progress(struct dp_pipeline *pipe)
{
    if (!pipe->config.comm)
        return 0;
    int err = dp_messages_start_copied(pipe);
    if (!err && dp_reduce_is_open(&pipe->reductions))
        err = dp_reduce_progress(pipe);
    return err ? err : dp_comm_progress(pipe->config.comm);
}

/* A REDUCE_WAIT waits while it runs: its time is what it took without that, at the end of it. */
static void record(struct dp_pipeline *pipe, const struct dp_plan_op *op, int64_t start_ns)
{
    struct dp_record entry = {.start_ns = start_ns,
                              .end_ns = dp_now_ns(),
                              .waited_ns = pipe->now.waited_ns,
                              .waited_for = pipe->now.waited_for,
                              .index = op->index & INT32_MAX,
                              .pair = op->pair};

    if (op->kind == DP_PLAN_REDUCE_WAIT)
        entry.start_ns += entry.waited_ns;
    dp_recorder_add(pipe->config.recorder, &entry);
}

/* A weight part that waited for its turn after a B is no op of its own, nor is a sum that the list does
 * not have. */
static bool is_recorded(const struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_op *listed = dp_schedule_ops(pipe->config.schedule, pipe->rank) + op->index;
    const bool sum = op->kind == DP_PLAN_REDUCE || op->kind == DP_PLAN_REDUCE_WAIT;
    const bool listed_sum = listed->kind == DP_OP_REDUCE || listed->kind == DP_OP_REDUCE_WAIT;
    return !dp_plan_is_sum(op) && !(op->kind == DP_PLAN_WEIGHT && listed->kind != DP_OP_W) &&
           sum == listed_sum;
}

int dp_pipeline_run_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const bool recording = pipe->recording && is_recorded(pipe, op);
    int64_t start_ns = recording ? dp_now_ns() : 0;
    int err = run_entry(pipe, op);

    if (!err && recording)
        record(pipe, op, start_ns);
    return err;
}

static int wait_for_inputs(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err = dp_pipeline_progress(pipe);

    pipe->now.waited_ns = pipe->now.longest_wait_ns = 0;
    pipe->now.waited_for = -1;
    if (!err)
        err = dp_messages_wait(pipe, op);
    if (!err && op->pair)
        err = dp_messages_wait(pipe, op + 1);
    return err ? err : wait_for_save_areas(pipe, op);
}

static int run_and_record(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    note(pipe, op);
    if (op->kind == DP_PLAN_EVICT || op->kind == DP_PLAN_FETCH)
        return dp_evict_run(pipe, op);
    int err = wait_for_inputs(pipe, op);
    return err ? err : dp_pipeline_run_entry(pipe, op);
}

static bool is_message(const struct dp_plan_op *op)
{
    return op->kind == DP_PLAN_RECV || op->kind == DP_PLAN_SEND;
}

static int start_message(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    return op->kind == DP_PLAN_RECV ? dp_messages_recv(pipe, op) : dp_messages_send(pipe, op);
}

/* Messages that nothing comes between are one launch where they are handed to a device. */
static int start_batch(struct dp_pipeline *pipe, const struct dp_plan_op **op,
                       const struct dp_plan_op *end)
{
    int err = dp_comm_begin(pipe->config.comm);

    if (err)
        return err;
    while (*op < end && is_message(*op) && !err)
        err = start_message(pipe, (*op)++);
    int committed = dp_comm_commit(pipe->config.comm);
    return err ? err : committed;
}

int dp_pipeline_run(struct dp_pipeline *pipe, size_t first, size_t last)
{
    const struct dp_plan_op *op = pipe->plan.ops + first, *end = pipe->plan.ops + last;
    int err = 0;

    while (op < end && !err) {
        if (is_message(op) && pipe->ordered) {
            err = start_batch(pipe, &op, end);
            continue;
        }
        err = is_message(op) ? start_message(pipe, op) : run_and_record(pipe, op);
        op += 1 + op->pair;
    }
    return err;
}
