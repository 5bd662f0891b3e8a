/* SPDX-License-Identifier: Apache-2.0
 *
 * step_cuda.c - the stages of `dualpipe train` on CUDA, with a timed event on either side of what
 * each op of the schedule queues:
 *
 *      compute stream   [begin F] kernels, loss [end F]   a message   [begin B] kernels [end B]
 *
 * A rank's callbacks come in the order of its list, so the next one belongs to the next compute op.
 */
#include "bench/step_cuda.h"

#include "clock.h"
#include "command.h"
#include "train/cuda/cuda_graphs.h"
#include "train/cuda/cuda_links.h"
#include "train/cuda/cuda_rank.h"
#include "train/settings.h"

#include <dualpipe/pipeline.h>

#include <stdlib.h>
#include <string.h>

struct span {
    struct dp_device_event *begin, *end; /* NULL: no compute */
    double total_ns;
    bool used; /* in the step at hand */
};

/* What the callbacks are given. */
struct timed_stage {
    struct step_cuda *steps;
    struct gpt_stage *stage;
};

struct step_cuda {
    const struct dp_schedule *schedule;
    int rank; /* of the pipeline */
    struct gpt_config model;
    struct cuda_rank *cuda;
    struct dp_comm *nccl; /* NULL: messages pass through the host */
    struct dp_pipeline *pipeline;
    struct dp_border *borders; /* [stages + 1] */
    struct dp_border labels;
    struct dp_microbatches *tokens_of_step, *labels_of_step;
    struct timed_stage stages[DP_MAX_SLOTS];
    int stage_count;
    struct span *spans; /* [ops of this rank] */
    size_t next;        /* the op from which on the next compute is looked for */
    struct span *at;    /* of the last callback */
    bool begun;         /* it has no end yet */
    bool paired;        /* the callbacks of losses are inside a pair */
    int taken;          /* steps since step_cuda_take_times */
};

/* ---- callbacks ----------------------------------------------------------------------------- */

static int begin(struct step_cuda *s)
{
    const size_t count = dp_schedule_count(s->schedule, s->rank);

    if (s->begun)
        return 0;
    while (s->next < count && !s->spans[s->next].begin)
        s->next++;
    if (s->next == count)
        return dp_callback_error(DP_ESTATE, "more callbacks than the schedule has ops");
    s->at = &s->spans[s->next++];
    s->begun = s->at->used = true;
    return dp_device_event_record(s->at->begin, s->cuda->stream);
}

static int end(struct step_cuda *s, int err)
{
    s->begun = false;
    return err ? err : dp_device_event_record(s->at->end, s->cuda->stream);
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    struct timed_stage *t = user;
    struct dp_stage_call own = *call;
    int err = begin(t->steps);

    own.grads = t->stage->grads_list;
    return end(t->steps, err ? err : cuda_stage_ops.forward(t->stage, &own, in, out));
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    struct timed_stage *t = user;
    struct dp_stage_call own = *call;
    int err = begin(t->steps);

    own.grads = t->stage->grads_list;
    return end(t->steps, err ? err : cuda_stage_ops.backward(t->stage, &own, gout, gin, mode));
}

static int weight(void *user, const struct dp_stage_call *call)
{
    struct timed_stage *t = user;
    struct dp_stage_call own = *call;
    int err = begin(t->steps);

    own.grads = t->stage->grads_list;
    return end(t->steps, err ? err : cuda_stage_ops.weight(t->stage, &own));
}

/* Both ops of the list in one. */
static int run_pair(struct step_cuda *s, const struct dp_pair *pair)
{
    int err = begin(s);

    if (err)
        return err;
    s->next++; /* the B */
    s->paired = true;
    err = cuda_stage_ops.fwd_bwd(pair);
    s->paired = false;
    return err;
}

static int fwd_bwd(const struct dp_pair *pair)
{
    const struct timed_stage *f = pair->forward.user, *b = pair->backward.user;
    struct dp_stage_call f_call = *pair->forward.call, b_call = *pair->backward.call;
    struct dp_pair own = *pair;

    own.forward.user = f->stage;
    own.backward.user = b->stage;
    f_call.grads = f->stage->grads_list;
    b_call.grads = b->stage->grads_list;
    own.forward.call = &f_call;
    own.backward.call = &b_call;
    return end(f->steps, run_pair(f->steps, &own));
}

static const struct dp_stage_ops stage_ops = {
    .forward = forward, .backward = backward, .weight = weight, .fwd_bwd = fwd_bwd};

/* A loss is part of its forward, */
static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    struct step_cuda *s = user;
    int err = gpt_loss_ops.loss(&s->cuda->compute, call, out, labels, s->cuda->numbers + call->mb, max,
                                count);

    *values = 0;

    return s->paired ? err : end(s, err);
}

/* its gradient of the backward that follows. */
static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *labels, double scale, DLTensor *gout)
{
    struct step_cuda *s = user;
    int err = s->paired ? 0 : begin(s);

    return err ? err
               : gpt_loss_ops.loss_backward(&s->cuda->compute, call, out, labels, scale, gout);
}

static const struct dp_loss_ops loss_ops = {loss, loss_backward};

/* ---- a step -------------------------------------------------------------------------------- */

static int read_times(struct step_cuda *s)
{
    double ns = 0;
    int err = s->at ? dp_device_event_wait(s->at->end, device_timeout_ns) : 0;

    for (size_t i = 0; i < dp_schedule_count(s->schedule, s->rank) && !err; i++) {
        struct span *span = &s->spans[i];
        if (!span->used)
            continue;
        err = dp_device_event_elapsed(span->begin, span->end, &ns);
        span->total_ns += ns;
        span->used = false;
    }
    return err;
}

int step_cuda_run(struct step_cuda *s)
{
    struct dp_step step = {.inputs = s->tokens_of_step, .labels = s->labels_of_step};

    s->next = 0;
    s->begun = false;
    s->taken++;
    int err = dp_pipeline_step(s->pipeline, &step);
    return err ? err : read_times(s);
}

void step_cuda_take_times(struct step_cuda *s, int64_t *op_ns)
{
    const size_t count = dp_schedule_count(s->schedule, s->rank);
    const struct dp_op *ops = dp_schedule_ops(s->schedule, s->rank);

    for (size_t i = 0; i < count; i++) {
        double total = s->spans[i].total_ns;
        if (ops[i].overlap)
            total += s->spans[i + 1].total_ns; /* where the two were not one call */
        op_ns[i] = s->taken ? (int64_t)(total / s->taken) : 0;
    }
    for (size_t i = 0; i < count; i++)
        s->spans[i].total_ns = 0;
    s->taken = 0;
}

/* ---- setting up ---------------------------------------------------------------------------- */

bool step_cuda_prepare(const struct step_cuda_config *config, const char *file, const void **image,
                       void **read)
{
    if (!settings_is_cuda(config->device))
        return command_misused("--device %s: expected cpu, cuda or cuda:N", config->device), false;
    if (config->width > 64 && config->width % 64)
        return command_misused("--width %d: expected at most 64, or a multiple of it: heads are 64 "
                               "wide", config->width), false;
    return settings_take_image(config->device, file, image, read);
}

static struct gpt_config model_of(const struct step_cuda_config *c)
{
    return (struct gpt_config){.layers = c->layers * c->schedule->stages, .width = c->width,
                               .heads = c->width > 64 ? c->width / 64 : 1, .context = c->context,
                               .batch = c->batch, .seed = 1};
}

/* The GPU, and NCCL between them. */
static int open_device(struct step_cuda *s, const struct step_cuda_config *c)
{
    char name[CUDA_DEVICE_NAME];
    bool shared;

    if (c->nccl)
        cuda_links_prepare(s->rank, false); /* counting devices begins CUDA */
    int err = cuda_device_of_rank(c->device, dp_comm_rank(c->comm), dp_comm_size(c->comm), name,
                                  &shared);
    if (err)
        return err;
    if (c->nccl)
        cuda_links_prepare(s->rank, shared);
    err = cuda_rank_new(&(struct cuda_rank_config){.device = name, .image = c->image,
                                                   .bf16 = c->bf16,
                                                   .microbatches = c->schedule->mb_per_stream,
                                                   .model = s->model,
                                                   .model_microbatches = c->schedule->microbatches},
                        &s->cuda);
    if (err)
        return err;
    s->model.compute = &s->cuda->compute;
    if (c->graphs)
        err = cuda_graphs_new((size_t)dp_schedule_slot_count(c->schedule, s->rank) *
                                  (size_t)c->schedule->mb_per_stream,
                              &s->cuda->graphs);
    if (err || !c->nccl)
        return err;
    return cuda_links_open(&(struct cuda_links_config){.host = c->comm, .device = s->cuda->dev,
                                                       .schedules = {c->schedule, c->schedule},
                                                       .rank = s->rank},
                           &s->nccl);
}

static int make_stages(struct step_cuda *s)
{
    int err = 0;

    for (int i = 0; i < dp_schedule_slot_count(s->schedule, s->rank) && !err; i++) {
        s->stages[i].steps = s;
        err = cuda_rank_add_stage(s->cuda, &s->model,
                                  dp_schedule_slot(s->schedule, s->rank, i)->stage,
                                  s->schedule->stages, &s->stages[i].stage);
        s->stage_count += s->stages[i].stage != NULL;
    }
    return err;
}

static bool computes(const struct dp_op *op)
{
    return op->kind == DP_OP_F || op->kind == DP_OP_B || op->kind == DP_OP_I || op->kind == DP_OP_W;
}

static int make_spans(struct step_cuda *s)
{
    const size_t count = dp_schedule_count(s->schedule, s->rank);
    const struct dp_op *ops = dp_schedule_ops(s->schedule, s->rank);
    int err = 0;

    s->spans = calloc(count + 1, sizeof(*s->spans));
    if (!s->spans)
        return DP_ENOMEM;
    for (size_t i = 0; i < count && !err; i++) {
        if (!computes(&ops[i]))
            continue;
        err = dp_device_event_new_timed(s->cuda->dev, &s->spans[i].begin);
        if (!err)
            err = dp_device_event_new_timed(s->cuda->dev, &s->spans[i].end);
    }
    return err;
}

/* Without parameters, as far as the pipeline knows: nothing is summed with a mirror. */
static int make_pipeline(struct step_cuda *s, const struct step_cuda_config *c)
{
    struct dp_stage stages[DP_MAX_SLOTS];

    s->borders = calloc((size_t)s->schedule->stages + 1, sizeof(*s->borders));
    if (!s->borders)
        return DP_ENOMEM;
    gpt_borders(&s->model, s->schedule->stages, s->borders);
    s->labels = s->borders[0];
    for (int i = 0; i < s->stage_count; i++) {
        stages[i] = gpt_stage_view(s->stages[i].stage);
        stages[i].ops = &stage_ops;
        stages[i].user = &s->stages[i];
        stages[i].parameter_count = 0;
    }
    int err = dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s->schedule,
                                                           .comm = s->nccl ? s->nccl : c->comm,
                                                           .device = s->cuda->dev,
                                                           .stages = stages,
                                                           .borders = s->borders,
                                                           .labels = &s->labels,
                                                           .loss = &loss_ops,
                                                           .loss_user = s},
                              &s->pipeline);
    if (!err)
        err = cuda_rank_use_stream(s->cuda, dp_pipeline_stream(s->pipeline));
    return err || !s->nccl ? err : cuda_rank_warm(s->cuda, s->borders, &s->labels);
}

/* A stream's part of the batch, as views. */
static int split(const struct step_cuda *s, int stream, uint8_t *bytes,
                 struct dp_microbatches **out)
{
    const int32_t count = s->schedule->mb_per_stream;
    int64_t shape[] = {(int64_t)count * s->model.batch, s->model.context};
    const DLTensor all = {bytes + (size_t)stream * (size_t)(shape[0] * shape[1]),
                          s->cuda->compute.dl, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
    struct dp_tree args = dp_tuple(1, (struct dp_tree[]){dp_tensor(&all)});

    return dp_split(&args, NULL, &(struct dp_split_options){.count = count}, out);
}

/* One batch for all steps. */
static int make_batch(struct step_cuda *s)
{
    const size_t len = (size_t)s->schedule->microbatches * (size_t)s->model.batch *
                       (size_t)s->model.context;
    uint8_t *bytes = malloc(len + 1), *tokens = NULL, *labels = NULL;

    if (!bytes)
        return DP_ENOMEM;
    for (size_t i = 0; i <= len; i++)
        bytes[i] = (uint8_t)(i * 37 + i / 5);
    int err = cuda_rank_begin(s->cuda, bytes, len, bytes + 1, len, &tokens, &labels);
    if (!err)
        err = cuda_rank_wait(s->cuda);
    free(bytes);
    for (int i = 0; i < s->stage_count && !err; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s->schedule, s->rank, i);
        if (dp_slot_is_first(slot))
            err = split(s, slot->stream, tokens, &s->tokens_of_step);
        if (dp_slot_is_last(slot) && !err)
            err = split(s, slot->stream, labels, &s->labels_of_step);
    }
    return err;
}

int step_cuda_open(const struct step_cuda_config *c, struct step_cuda **out)
{
    struct step_cuda *s = calloc(1, sizeof(*s));

    *out = s;
    if (!s)
        return DP_ENOMEM;
    s->schedule = c->schedule;
    s->model = model_of(c);
    while (c->schedule->group_rank[s->rank] != dp_comm_rank(c->comm))
        s->rank++;
    int err = open_device(s, c);
    if (!err)
        err = make_stages(s);
    if (!err)
        err = make_spans(s);
    if (!err)
        err = make_pipeline(s, c);
    return err ? err : make_batch(s);
}

void step_cuda_close(struct step_cuda *s)
{
    if (!s)
        return;
    dp_pipeline_free(s->pipeline);
    for (size_t i = 0; s->spans && i < dp_schedule_count(s->schedule, s->rank); i++) {
        dp_device_event_free(s->spans[i].end);
        dp_device_event_free(s->spans[i].begin);
    }
    free(s->spans);
    if (s->cuda)
        cuda_graphs_free(s->cuda->graphs);
    dp_comm_close(s->nccl);
    dp_microbatches_free(s->labels_of_step);
    dp_microbatches_free(s->tokens_of_step);
    free(s->borders);
    for (int i = 0; i < s->stage_count; i++)
        gpt_stage_free(s->stages[i].stage);
    cuda_rank_free(s->cuda);
    free(s);
}
