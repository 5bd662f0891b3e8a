/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/pipeline.h>

#include "base/fail.h"
#include "pipeline/recorder.h"
#include "pipeline/setup.h"
#include "pipeline/steps.h"

#include <stdio.h>

/* ---- arguments ------------------------------------------------------------------------------ */

static int check_unused(const struct dp_pipeline *pipe, const void *given, const char *what,
                        const char *why)
{
    if (!given)
        return 0;
    return dp_fail(DP_EINVAL, "%s: given, expected NULL on rank %d: %s", what, pipe->rank, why);
}

static int check_batches(const struct dp_pipeline *pipe, int border, const DLTensor *const *batch,
                         const char *what)
{
    const struct dp_border *b = &pipe->borders[border];
    char name[32];
    int err = 0;

    if (!batch)
        return dp_fail(DP_EINVAL, "%ss: NULL, expected %d", what, b->count);
    for (int k = 0; k < b->count && !err; k++) {
        struct dp_batch_cut cut = {&b->tensors[k], pipe->config.batch_dim,
                                   pipe->config.schedule->mb_per_stream};
        snprintf(name, sizeof(name), "%s %d", what, k);
        err = dp_batch_check(&cut, batch[k], pipe->device, name);
    }
    return err;
}

static int check_inputs(const struct dp_pipeline *pipe, const struct dp_step *step)
{
    if (pipe->ends.first_slot < 0)
        return check_unused(pipe, step->inputs, "inputs", "it holds no first stage");
    return check_batches(pipe, 0, step->inputs, "input");
}

static int check_label(const struct dp_pipeline *pipe, const struct dp_step *step)
{
    struct dp_batch_cut cut = {&pipe->label, pipe->config.batch_dim,
                               pipe->config.schedule->mb_per_stream};

    if (pipe->ends.last_slot < 0 || !pipe->config.loss)
        return check_unused(pipe, step->label, "label", "no loss is taken here");
    if (!pipe->config.label)
        return check_unused(pipe, step->label, "label", "the pipeline was given no label spec");
    return dp_batch_check(&cut, step->label, pipe->device, "label");
}

static int check_losses(const struct dp_pipeline *pipe, const struct dp_step *step)
{
    const char *why = "no loss is taken here";
    int err;

    if (pipe->ends.last_slot >= 0 && pipe->config.loss)
        return 0;
    err = check_unused(pipe, step->losses, "losses", why);
    return err ? err : check_unused(pipe, step->loss_scales, "loss_scales", why);
}

static int check_outputs(const struct dp_pipeline *pipe, const struct dp_step *step)
{
    const struct dp_schedule *s = pipe->config.schedule;

    if (pipe->ends.last_slot < 0)
        return check_unused(pipe, step->outputs, "outputs", "it holds no last stage");
    if (!s->return_outputs)
        return check_unused(pipe, step->outputs, "outputs",
                            "the schedule was made without return_outputs");
    return check_batches(pipe, s->stages, (const DLTensor *const *)step->outputs, "output");
}

static int check_args(const struct dp_pipeline *pipe, const struct dp_step *step)
{
    int err = check_inputs(pipe, step);

    if (!err)
        err = check_label(pipe, step);
    if (!err)
        err = check_losses(pipe, step);
    return err ? err : check_outputs(pipe, step);
}

/* ---- begin and end --------------------------------------------------------------------------- */

static int begin_step(struct dp_pipeline *pipe, struct dp_step *step)
{
    pipe->now = (struct dp_step_state){.args = step, .waited_for = -1};
    pipe->recording = dp_recorder_enabled(pipe->config.recorder);
    if (pipe->recording)
        dp_recorder_begin(pipe->config.recorder, pipe->step);
    if (!pipe->halves.bytes)
        return 0;
    int err = pipe->device->ops->zero(pipe->compute, pipe->halves.memory, pipe->halves.bytes);
    return err ? err : dp_compute_settle(pipe);
}

static void end_step(struct dp_pipeline *pipe)
{
    pipe->now.args->loss_values = pipe->now.loss_values;
    if (pipe->recording)
        dp_recorder_end(pipe->config.recorder);
    pipe->step++;
    pipe->now = (struct dp_step_state){0};
}

/* The device lets go of the buffers. */
static int drain(struct dp_pipeline *pipe)
{
    const struct dp_device_ops *device = pipe->device->ops;
    int err = device->event_record(pipe->done, pipe->outgoing);

    if (!err)
        err = device->stream_wait(pipe->compute, pipe->done);
    if (!err)
        err = device->event_record(pipe->done, pipe->compute);
    return err ? err : device->event_wait(pipe->done, pipe->deadline_ns);
}

/* Tell the other ranks, or say what they told. Once the comm has said DP_EABORTED here, no request
 * is open any more. */
static int abort_step(struct dp_pipeline *pipe, int err)
{
    struct dp_comm *comm = pipe->config.comm;
    struct dp_abort why;
    char first[512];

    if (comm && err != DP_EABORTED)
        dp_comm_abort(comm, err, dp_last_error());
    if (comm)
        dp_comm_progress(comm);
    if (err == DP_EABORTED && dp_comm_aborted(comm, &why))
        dp_fail_quietly(err, "the step was ended by rank %d (%s): %s", why.rank,
                        dp_strerror(why.error), why.text);
    snprintf(first, sizeof(first), "%s", dp_last_error());
    dp_messages_forget(pipe);
    drain(pipe);
    pipe->now = (struct dp_step_state){0};
    return dp_fail_quietly(err, "%s", first); /* a broken device has failed once more since */
}

int dp_pipeline_step(struct dp_pipeline *pipe, struct dp_step *step)
{
    if (!pipe || !step)
        return dp_fail(DP_EINVAL, "a step without %s", pipe ? "arguments" : "a pipeline");
    bool alone = !pipe->config.comm || pipe->config.comm->size == 1;
    int err = check_args(pipe, step);
    if (err)
        return abort_step(pipe, err);
    if (!alone && !pipe->config.unchecked)
        err = dp_step_agree(pipe->config.comm, pipe->step, pipe->digest, pipe->agreement);
    if (err)
        return err == DP_EMISMATCH ? err : abort_step(pipe, err);
    err = begin_step(pipe, step);
    if (!err)
        err = dp_pipeline_run(pipe);
    if (!err)
        err = drain(pipe);
    if (err)
        return abort_step(pipe, err);
    end_step(pipe);
    return 0;
}

void dp_pipeline_seek(struct dp_pipeline *pipe, uint64_t step)
{
    pipe->step = step;
}

void dp_pipeline_memory(const struct dp_pipeline *pipe, struct dp_pipeline_memory *out)
{
    const size_t *part = pipe->plan.part_bytes;

    *out = (struct dp_pipeline_memory){
        .activations_bytes = part[DP_PART_IN] + part[DP_PART_OUT],
        .gradients_bytes = part[DP_PART_GOUT] + part[DP_PART_GIN],
        .save_bytes = part[DP_PART_SAVE],
        .fixed_order_bytes = pipe->halves.bytes,
        .total_bytes = pipe->taken_bytes + pipe->halves.bytes,
        .peak_activations = pipe->plan.peak_activations,
    };
}
