/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/steps.h"

#include "base/clock.h"
#include "base/fail.h"
#include "pipeline/recorder.h"

#include <stdio.h>

void dp_pipeline_describe(const struct dp_pipeline *pipe, const struct dp_plan_op *op, char *text,
                          size_t len)
{
    const struct dp_op *listed =
        dp_schedule_ops(pipe->config.schedule, pipe->rank) + op->index;

    snprintf(text, len, "rank %d, op %u: %s of micro-batch %u in slot %d (stage %d)", pipe->rank,
             op->index, dp_op_kind_name((enum dp_op_kind)listed->kind), op->mb, op->slot,
             dp_pipeline_slot(pipe, op->slot)->stage);
}

static int run_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    switch ((enum dp_plan_kind)op->kind) {
    case DP_PLAN_MERGE:
        return dp_reduce_merge(pipe, op);
    case DP_PLAN_REDUCE:
        return dp_reduce_run(pipe, op);
    default:
        dp_comm_away(pipe->config.comm);
        return dp_compute_run(pipe, op);
    }
}

static int wait_for_inputs(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err = dp_messages_progress(pipe);

    pipe->now.waited_ns = pipe->now.longest_wait_ns = 0;
    pipe->now.waited_for = -1;
    if (!err)
        err = dp_messages_wait(pipe, op);
    if (!err && op->pair)
        err = dp_messages_wait(pipe, op + 1);
    return err;
}

/* A reduce waits while it runs: its time is what it took without that, at the end of it. */
static void record(struct dp_pipeline *pipe, const struct dp_plan_op *op, int64_t start_ns)
{
    struct dp_record entry = {.start_ns = start_ns,
                              .end_ns = dp_now_ns(),
                              .waited_ns = pipe->now.waited_ns,
                              .waited_for = pipe->now.waited_for,
                              .index = op->index & INT32_MAX,
                              .pair = op->pair};

    if (op->kind == DP_PLAN_REDUCE)
        entry.start_ns += entry.waited_ns;
    dp_recorder_add(pipe->config.recorder, &entry);
}

static int run_and_record(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err = wait_for_inputs(pipe, op);

    if (err)
        return err;
    if (!pipe->recording)
        return run_entry(pipe, op);
    int64_t start_ns = dp_now_ns();
    err = run_entry(pipe, op);
    if (!err && op->kind != DP_PLAN_MERGE)
        record(pipe, op, start_ns);
    return err;
}

int dp_pipeline_run(struct dp_pipeline *pipe)
{
    const struct dp_plan_op *op = pipe->plan.ops, *end = op + pipe->plan.count;
    int err = 0;

    while (op < end && !err) {
        switch ((enum dp_plan_kind)op->kind) {
        case DP_PLAN_RECV:
            err = dp_messages_recv(pipe, op);
            break;
        case DP_PLAN_SEND:
            err = dp_messages_send(pipe, op);
            break;
        default:
            err = run_and_record(pipe, op);
            break;
        }
        op += 1 + op->pair;
    }
    return err ? err : dp_messages_finish(pipe);
}
