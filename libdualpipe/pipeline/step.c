/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c - a step from its arguments, over the entries of its plan one after the other, to its end or to
 * the failure that every rank is told of.
 */
#include <dualpipe/pipeline.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/internal.h"
#include "base/sized.h"
#include "comm/internal.h"
#include "pipeline/border.h"
#include "pipeline/internal.h"
#include "pipeline/recorder.h"
#include "pipeline/setup.h"
#include "pipeline/state.h"
#include "pipeline/steps.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- entries --------------------------------------------------------------------------------- */

static void note(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    if (!pipe->base.config.comm && !pipe->live)
        return;
    const uint64_t doing =
        pipe->slot_steps[op->slot].doing | (op->kind + UINT64_C(1)) << 60 | op->mb;
    if (pipe->base.config.comm)
        dp_comm_note(pipe->base.config.comm, doing);
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
        return dp_reduce_wait(pipe, op->slot);
    const int err = dp_compute_settle(pipe, op->slot);
    if (err)
        return err;
    if (op->kind == DP_PLAN_REDUCE)
        return dp_reduce_launch(pipe, op->slot);
    return dp_sum_run(pipe, op->slot, (enum dp_plan_kind)op->kind, op->set, op->from);
}

static int run_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    if (!dp_plan_is_compute(op))
        return run_sum(pipe, op);
    dp_comm_progress_start(pipe->base.config.comm);
    return dp_compute_run(pipe, op);
}

static int wait_for_copies(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const int64_t begun_ns = dp_now_ns();
    int err = dp_evict_wait(&pipe->evictions, pipe->base.compute, op->evicted, op->fetched);
    if (!err)
        err = dp_compute_sync(pipe);
    pipe->evictions.wait_ns += dp_now_ns() - begun_ns;
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

static int wait_for_save_areas(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const int err = op->evicted || op->fetched ? wait_for_copies(pipe, op) : 0;

    return !err && op->pair && (op[1].evicted || op[1].fetched) ? wait_for_copies(pipe, op + 1) : err;
}

/* Move what can be moved, without waiting for anything. */
static int move_on(struct dp_pipeline *pipe)
{
    if (!pipe->base.config.comm)
        return 0;
    int err = dp_messages_start_copied(pipe);
    if (!err && dp_reduce_is_open(&pipe->reductions))
        err = dp_reduce_progress(pipe);
    return err ? err : dp_comm_progress(pipe->base.config.comm);
}

int dp_pipeline_begin_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    note(pipe, op);
    return move_on(pipe);
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
    dp_recorder_add(pipe->base.config.recorder, &entry);
}

/* A weight part that waited for its turn after a B is no op of its own, nor is a sum that the list does
 * not have. */
static bool is_recorded(const struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    const struct dp_op *listed =
        dp_schedule_ops(pipe->base.config.schedule, pipe->base.rank) + op->index;
    const bool sum = op->kind == DP_PLAN_REDUCE || op->kind == DP_PLAN_REDUCE_WAIT;
    const bool listed_sum = listed->kind == DP_OP_REDUCE || listed->kind == DP_OP_REDUCE_WAIT;
    return !dp_plan_is_sum(op) && !(op->kind == DP_PLAN_WEIGHT && listed->kind != DP_OP_W) &&
           sum == listed_sum;
}

int dp_pipeline_run_entry(struct dp_pipeline *pipe, const struct dp_plan_op *op, bool again)
{
    const bool recording = pipe->recording && !again && is_recorded(pipe, op);
    int64_t start_ns = recording ? dp_now_ns() : 0;
    int err = run_entry(pipe, op);

    if (!err && recording)
        record(pipe, op, start_ns);
    pipe->now.waited_ns = pipe->now.longest_wait_ns = 0;
    pipe->now.waited_for = -1;
    return err;
}

static int wait_for_inputs(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    int err = move_on(pipe);

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
        return dp_evict_run(&pipe->evictions, pipe->base.compute, pipe->base.memory,
                            op->kind == DP_PLAN_EVICT, op->evicted, &op->copy);
    int err = wait_for_inputs(pipe, op);
    return err ? err : dp_pipeline_run_entry(pipe, op, false);
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
    int err = dp_comm_begin(pipe->base.config.comm);

    if (err)
        return err;
    while (*op < end && is_message(*op) && !err)
        err = start_message(pipe, (*op)++);
    int committed = dp_comm_commit(pipe->base.config.comm);
    return err ? err : committed;
}

/* Carry out entries first .. last - 1 of the plan. After a failure messages may be in flight. */
static int run_entries(struct dp_pipeline *pipe, size_t first, size_t last)
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

/* ---- extents -------------------------------------------------------------------------------- */

/* The end of the model that is taken over, for a slot's stream. */
struct end {
    struct dp_pipeline *pipe;
    const struct dp_border *declared;
    int stream;
    struct dp_border now;
};

static const struct dp_border *border_now(void *user, int32_t mb)
{
    struct end *end = user;
    const struct dp_pipeline *pipe = end->pipe;
    int32_t global = end->stream * pipe->base.config.schedule->mb_per_stream + mb;

    if (pipe->base.extents)
        dp_extents_apply(end->declared, pipe->base.config.max_extents, pipe->base.extents[global],
                         &end->now);
    return &end->now;
}

static int check_extents(const struct dp_pipeline *pipe)
{
    const struct dp_schedule *s = pipe->base.config.schedule;
    int err = 0;

    for (int32_t mb = 0; pipe->base.extents && mb < s->microbatches && !err; mb++)
        for (int i = 0; i <= s->stages && !err; i++)
            err = dp_extents_check(&pipe->declared[i], pipe->base.config.max_extents,
                                   pipe->base.extents[mb], mb);
    return err;
}

static uint64_t digest_extents(const struct dp_pipeline *pipe)
{
    uint64_t h = pipe->base.extents != NULL;

    for (int32_t mb = 0; pipe->base.extents && mb < pipe->base.config.schedule->microbatches; mb++)
        for (int e = 0; e < DP_MAX_EXTENTS; e++)
            h = (h ^ (uint64_t)pipe->base.extents[mb][e]) * UINT64_C(0x9E3779B97F4A7C15) + (h >> 29);
    return h;
}

/* Whole tensors again, after a step with smaller ones. */
static void restore_borders(struct dp_pipeline *pipe)
{
    size_t bytes = ((size_t)pipe->base.config.schedule->stages + 1) * sizeof(*pipe->borders);

    if (!pipe->base.extents)
        return;
    pipe->base.extents = NULL;
    memcpy(pipe->borders, pipe->declared, bytes);
    memcpy(pipe->handed_out, pipe->declared, bytes);
    pipe->labels = pipe->declared_labels;
}

/* ---- arguments ------------------------------------------------------------------------------ */

static int check_unused(const struct dp_pipeline *pipe, const void *given, const char *what,
                        const char *why)
{
    if (!given)
        return 0;
    return dp_fail(DP_EINVAL, "%s: given, expected NULL on rank %d: %s", what, pipe->base.rank, why);
}

static const char *why_none(const struct dp_pipeline *pipe, const char *other)
{
    return pipe->base.config.opaque_ends ? "the pipeline has opaque ends" : other;
}

/* The micro-batches that enter or end in a slot of this rank. */
static int take(struct dp_pipeline *pipe, struct dp_batch *batch, const struct dp_microbatches *mbs,
                const struct dp_border *declared, int slot, const char *what)
{
    struct end end = {pipe, declared, dp_pipeline_slot(pipe, slot)->stream, *declared};

    return dp_batch_take(batch, mbs, pipe->base.config.schedule->mb_per_stream, border_now, &end,
                         pipe->base.device, what);
}

static int check_loader(const struct dp_pipeline *pipe, const struct dp_loader *loader,
                        const struct dp_microbatches *given, const char *what, bool used,
                        const char *why)
{
    char name[32];

    if (!loader)
        return 0;
    snprintf(name, sizeof(name), "%s_loader", what);
    if (!used)
        return check_unused(pipe, loader, name, why);
    if (given)
        return dp_fail(DP_EINVAL, "%ss: given, expected NULL beside %s", what, name);
    DP_RESERVED(loader, name);
    return loader->load ? 0 : dp_fail(DP_EINVAL, "%s: no callback load", name);
}

static int take_inputs(struct dp_pipeline *pipe, const struct dp_step *step)
{
    int err = check_loader(pipe, step->input_loader, step->inputs, "input",
                           pipe->base.first_slot >= 0 && !pipe->base.config.opaque_ends,
                           why_none(pipe, "it holds no first stage"));

    if (err || step->input_loader)
        return err;
    if (pipe->base.first_slot < 0 || pipe->base.config.opaque_ends)
        return check_unused(pipe, step->inputs, "inputs", why_none(pipe, "it holds no first stage"));
    if (!step->inputs)
        return dp_fail(DP_EINVAL, "inputs: NULL, expected %d micro-batches of %d tensors",
                       pipe->ends.inputs.count, pipe->borders[0].count);
    return take(pipe, &pipe->ends.inputs, step->inputs, &pipe->declared[0], pipe->base.first_slot,
                "input");
}

static int take_labels(struct dp_pipeline *pipe, const struct dp_step *step)
{
    const bool used = pipe->base.last_slot >= 0 && pipe->base.config.loss && pipe->base.config.labels;
    int err = check_loader(pipe, step->label_loader, step->labels, "label", used,
                           "no loss with labels is taken here");

    pipe->ends.labels.given = step->label_loader != NULL;
    if (err || step->label_loader)
        return err;
    if (pipe->base.last_slot < 0 || !pipe->base.config.loss)
        return check_unused(pipe, step->labels, "labels", "no loss is taken here");
    if (!pipe->base.config.labels)
        return check_unused(pipe, step->labels, "labels", "the pipeline was made without labels");
    if (!step->labels)
        return dp_fail(DP_EINVAL, "labels: NULL, expected %d micro-batches of %d tensors",
                       pipe->ends.labels.count, pipe->labels.count);
    return take(pipe, &pipe->ends.labels, step->labels, &pipe->declared_labels,
                pipe->base.last_slot, "label");
}

static int check_losses(const struct dp_pipeline *pipe, const struct dp_step *step)
{
    const char *why = "no loss is taken here";
    int err;

    if (pipe->base.last_slot >= 0 && pipe->base.config.loss)
        return 0;
    err = check_unused(pipe, step->losses, "losses", why);
    return err ? err : check_unused(pipe, step->loss_scales, "loss_scales", why);
}

static int take_outputs(struct dp_pipeline *pipe, const struct dp_step *step)
{
    const struct dp_schedule *s = pipe->base.config.schedule;

    pipe->ends.outputs.given = pipe->ends.output_grads.given = false;
    if (pipe->base.last_slot < 0 || pipe->base.config.opaque_ends)
        return check_unused(pipe, step->outputs, "outputs", why_none(pipe, "it holds no last stage"));
    if (!step->outputs)
        return 0;
    return take(pipe, &pipe->ends.outputs, step->outputs, &pipe->declared[s->stages],
                pipe->base.last_slot, "output");
}

static int check_context(const struct dp_pipeline *pipe, const struct dp_step *step)
{
    const int32_t count = pipe->base.config.schedule->microbatches;

    if (!step->context || (step->context->count == count && step->context->kwargs))
        return 0;
    return dp_fail(DP_EINVAL, "context: %d micro-batches%s, expected the schedule's %d",
                   step->context->count, step->context->kwargs ? "" : " without kwargs", count);
}

static int take_args(struct dp_pipeline *pipe, struct dp_step *step)
{
    step->callback_error = 0;
    pipe->base.extents = step->extents;
    int err = check_extents(pipe);

    if (!err)
        err = take_inputs(pipe, step);
    if (!err)
        err = take_labels(pipe, step);
    if (!err)
        err = check_context(pipe, step);
    if (!err)
        err = check_losses(pipe, step);
    return err ? err : take_outputs(pipe, step);
}

/* ---- begin and end --------------------------------------------------------------------------- */

static void take_program(struct dp_pipeline *pipe, int index)
{
    const struct dp_program *program = &pipe->base.programs[index];

    pipe->base.config.schedule = program->schedule;
    pipe->plan = program->plan;
    pipe->driven = program->driven;
    pipe->skips.at = program->plan.skips;
}

/* The program of the step's schedule becomes the pipeline's. */
static int choose_program(struct dp_pipeline *pipe, const struct dp_step *step, int *index)
{
    for (*index = 0; *index < pipe->base.program_count; ++*index)
        if (!step->schedule || step->schedule == pipe->base.programs[*index].schedule) {
            take_program(pipe, *index);
            return 0;
        }
    return dp_fail(DP_EINVAL, "schedule of the step: expected one that the pipeline was made with");
}

static int begin_step(struct dp_pipeline *pipe, struct dp_step *step)
{
    bool clean = !pipe->accumulating && !pipe->base.config.schedule->forward_only;

    pipe->now = (struct dp_step_state){.args = step, .waited_for = -1};
    pipe->reductions.first = pipe->reductions.count = 0;
    pipe->reductions.used = 0;
    pipe->recording = dp_recorder_enabled(pipe->base.config.recorder);
    pipe->live = dp_recorder_live(pipe->base.config.recorder);
    dp_compute_begin(pipe);
    if (pipe->recording)
        dp_recorder_begin(pipe->base.config.recorder, pipe->step);
    if (!pipe->accumulator.bytes || !clean)
        return 0;
    int err = dp_device_zero(pipe->base.compute, pipe->accumulator.memory, pipe->accumulator.bytes);
    return err ? err : dp_compute_sync(pipe);
}

/* Handles that stages have left are theirs again. */
static void drop_handles(struct dp_pipeline *pipe)
{
    const int32_t mb_count = pipe->base.config.schedule->mb_per_stream;

    for (int slot = 0; slot < pipe->base.slots; slot++)
        for (int32_t mb = 0; mb < mb_count; mb++) {
            const size_t i = (size_t)slot * (size_t)mb_count + (size_t)mb;
            for (size_t k = 2 * i; k < 2 * i + 2; k++) {
                dp_compute_give_back(pipe, slot, pipe->own[k]);
                pipe->own[k] = NULL;
            }
            dp_compute_drop_handle(pipe, slot, mb);
        }
}

static void end_step(struct dp_pipeline *pipe)
{
    drop_handles(pipe);
    dp_load_drop(pipe);
    restore_borders(pipe);
    pipe->now.args->loss_values = pipe->now.loss_values;
    if (!pipe->base.config.schedule->forward_only)
        pipe->accumulating = pipe->now.args->accumulate;
    if (pipe->recording)
        dp_recorder_end(pipe->base.config.recorder);
    /* An evaluation between two training steps does not change their random numbers. */
    pipe->step += !pipe->base.config.schedule->forward_only;
    pipe->now = (struct dp_step_state){0};
}

/* Wait until the device uses no buffer any more. */
static int drain(struct dp_pipeline *pipe, bool has_failed)
{
    int err = dp_compute_join(pipe, pipe->base.compute, pipe->outgoing);

    if (!err && pipe->summing)
        err = dp_compute_join(pipe, pipe->base.compute, pipe->summing);
    if (!err && !has_failed)
        return dp_compute_finish(pipe);
    if (!err)
        err = dp_device_event_record(pipe->done, pipe->base.compute);
    return err ? err : dp_device_event_wait(pipe->done, pipe->deadline_ns);
}

const struct dp_pipeline_base *dp_base_of(const struct dp_pipeline *pipe)
{
    return &pipe->base;
}

const struct dp_step *dp_step_under_way(const struct dp_pipeline *pipe)
{
    return pipe->now.args;
}

/* Once the comm has returned DP_EABORTED here, no request is open any more. */
int dp_step_abort(struct dp_pipeline *pipe, int err)
{
    struct dp_comm *comm = pipe->base.config.comm;
    struct dp_abort why;
    char first[DP_ABORT_TEXT], doing[80];

    dp_failure_tell(comm, err);
    if (comm)
        dp_comm_progress(comm);
    if (err == DP_EABORTED && dp_comm_aborted(comm, &why))
        dp_fail_quietly(err, "the step was ended by rank %d (%s): %s%s%s", why.rank,
                        dp_strerror(why.error), why.text, why.doing ? "; the last op known of it: " : "",
                        dp_pipeline_doing_text(why.doing, doing, sizeof(doing)));
    snprintf(first, sizeof(first), "%s", dp_last_error());
    dp_messages_forget(pipe);
    dp_evict_forget(&pipe->evictions, pipe->done, pipe->deadline_ns);
    drain(pipe, true);
    drop_handles(pipe);
    if (pipe->now.args)
        dp_load_drop(pipe);
    restore_borders(pipe);
    pipe->accumulating = false;
    pipe->now = (struct dp_step_state){0};
    return dp_fail_quietly(err, "%s", first); /* a broken device has failed once more since */
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Take the arguments over, agree with the other ranks, begin. */
static int start_step(struct dp_pipeline *pipe, struct dp_step *step)
{
    bool alone = !pipe->base.config.comm || dp_comm_size(pipe->base.config.comm) == 1;
    int chosen, err = choose_program(pipe, step, &chosen);
    int program = chosen;

    if (!err)
        err = take_args(pipe, step);
    if (err)
        return dp_step_abort(pipe, err);
    const uint64_t mine[DP_AGREED] = {
        pipe->step, pipe->digest, step->accumulate, digest_extents(pipe), (uint64_t)chosen};
    if (!alone && !pipe->base.config.unchecked)
        err = dp_step_agree(pipe->base.config.comm, mine, pipe->base.extents, pipe->base.programs,
                            pipe->agreement, &program);
    if (err)
        return err == DP_EMISMATCH ? err : dp_step_abort(pipe, err);
    if (program != chosen)
        take_program(pipe, program);
    step->forward_only = pipe->base.config.schedule->forward_only;
    err = begin_step(pipe, step);
    return err ? dp_step_abort(pipe, err) : 0;
}

static int finish_step(struct dp_pipeline *pipe, int err)
{
    for (int slot = 0; slot < pipe->base.slots && !err; slot++)
        err = dp_compute_settle(pipe, slot);
    if (!err && pipe->now.args->queued)
        err = pipe->now.args->queued(pipe->now.args->queued_user);
    if (!err)
        err = dp_messages_finish(pipe);
    if (!err && pipe->summing)
        err = dp_reduce_finish(pipe);
    if (!err)
        err = drain(pipe, false);
    if (err)
        return dp_step_abort(pipe, err);
    end_step(pipe);
    return 0;
}

static int check_call(const struct dp_pipeline *pipe, const struct dp_step *step, bool halfway)
{
    if (!pipe || !step)
        return dp_fail(DP_EINVAL, "a step without %s", pipe ? "arguments" : "a pipeline");
    if (halfway && pipe->now.args != step)
        return dp_fail(DP_ESTATE, "dp_pipeline_backward: expected the step of dp_pipeline_forward");
    if (!halfway && pipe->now.args)
        return dp_fail(DP_ESTATE, "a step after dp_pipeline_forward: expected "
                                  "dp_pipeline_backward first");
    DP_RESERVED(step, "step");
    return 0;
}

/* What there is to do of the step: its forwards, its backwards, or both. */
static int carry_out(struct dp_pipeline *pipe, bool forwards, bool backwards)
{
    const struct dp_plan *plan = &pipe->plan;

    if (pipe->driven)
        return dp_execute_messages.run(pipe->driven, forwards, backwards);
    return run_entries(pipe, forwards ? 0 : plan->first_backward,
                           backwards ? plan->count : plan->first_backward);
}

int dp_pipeline_step(struct dp_pipeline *pipe, struct dp_step *step)
{
    int err = check_call(pipe, step, false);

    if (!err)
        err = start_step(pipe, step);
    return err ? err : finish_step(pipe, carry_out(pipe, true, true));
}

int dp_pipeline_forward(struct dp_pipeline *pipe, struct dp_step *step)
{
    int err = check_call(pipe, step, false);

    if (!err)
        err = start_step(pipe, step);
    if (err)
        return err;
    if (!pipe->plan.in_two)
        err = dp_fail(DP_EUNSUPPORTED,
                      "dp_pipeline_forward: rank %d has a forward after a backward, "
                      "expected a schedule with all forwards first (GPipe)",
                      pipe->base.rank);
    if (!err)
        err = carry_out(pipe, true, false);
    if (!err)
        err = drain(pipe, false);
    if (err)
        return dp_step_abort(pipe, err);
    step->loss_values = pipe->now.loss_values;
    if (step->forward_only)
        return finish_step(pipe, 0);
    if (pipe->base.config.comm)
        dp_comm_progress_start(pipe->base.config.comm);
    return 0;
}

static int take_output_grads(struct dp_pipeline *pipe, const struct dp_step *step)
{
    const struct dp_schedule *s = pipe->base.config.schedule;

    if (pipe->base.last_slot < 0 || pipe->base.config.opaque_ends)
        return check_unused(pipe, step->output_grads, "output_grads",
                            why_none(pipe, "it holds no last stage"));
    if (!step->output_grads)
        return pipe->base.config.loss ? 0
                                 : dp_fail(DP_EINVAL,
                                           "output_grads: NULL, expected those of rank "
                                           "%d, which has no loss",
                                           pipe->base.rank);
    return take(pipe, &pipe->ends.output_grads, step->output_grads, &pipe->declared[s->stages],
                pipe->base.last_slot, "output gradient");
}

int dp_pipeline_backward(struct dp_pipeline *pipe, struct dp_step *step)
{
    int err = check_call(pipe, step, true);

    if (err)
        return err;
    err = take_output_grads(pipe, step);
    if (!err)
        err = carry_out(pipe, false, true);
    return finish_step(pipe, err);
}

int dp_pipeline_bind(struct dp_pipeline *pipe, int slot, const struct dp_parameter *parameters)
{
    if (!pipe || !parameters || slot < 0 || slot >= pipe->base.slots)
        return dp_fail(DP_EINVAL, "dp_pipeline_bind: slot %d, expected one of this rank", slot);
    if (pipe->now.args)
        return dp_fail(DP_ESTATE, "dp_pipeline_bind: a step is under way");
    struct dp_stage *stage = &pipe->base.stages[slot];
    int err = dp_parameters_check(parameters, stage->parameter_count);
    for (int32_t k = 0; k < stage->parameter_count && !err; k++)
        err = dp_config_same_parameter(&stage->parameters[k], &parameters[k]);
    if (err)
        return err;
    stage->parameters = parameters;
    dp_accumulator_bind(&pipe->accumulator, slot, stage);
    return 0;
}

struct dp_device_stream *dp_pipeline_stream(const struct dp_pipeline *pipe)
{
    return pipe->base.compute;
}

void dp_pipeline_seek(struct dp_pipeline *pipe, uint64_t step)
{
    pipe->step = step;
}

static void count_memory(const struct dp_pipeline *pipe, struct dp_pipeline_memory *out)
{
    const size_t *part = pipe->most.part_bytes;

    *out = (struct dp_pipeline_memory){
        .activations_bytes = part[DP_PART_IN] + part[DP_PART_OUT],
        .gradients_bytes = part[DP_PART_GOUT] + part[DP_PART_GIN],
        .save_bytes = part[DP_PART_SAVE],
        .fixed_order_bytes = pipe->accumulator.bytes,
        .total_bytes = pipe->taken_bytes + pipe->accumulator.bytes + pipe->most.host_bytes,
        .evicted_bytes = pipe->most.host_bytes,
        .peak_activations = pipe->most.peak_activations,
    };
}

void dp_pipeline_memory_sized(const struct dp_pipeline *pipe, struct dp_pipeline_memory *out,
                              size_t size)
{
    struct dp_pipeline_memory own;

    count_memory(pipe, &own);
    dp_sized_give(out, size, &own, sizeof(own));
}
