/* SPDX-License-Identifier: Apache-2.0
 *
 * step_cuda.c - the layers of `dualpipe train` on CUDA, with a timed event on either side of what
 * each op of the schedule queues:
 *
 *      compute stream   [begin F] kernels, loss [end F]   a message   [begin B] kernels [end B]
 *
 * A rank's callbacks come in the order of its list, so the next one belongs to the next compute op.
 */
#include "bench/step_cuda.h"

#include "clock.h"
#include "command.h"
#include "train/cuda/cuda_rank.h"
#include "train/settings.h"

#include <dualpipe/nccl.h>
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
    struct dp_stage stage;
    DLTensor **grads; /* [parameters] */
};

struct step_cuda {
    const struct dp_schedule *schedule;
    int rank; /* of the pipeline */
    struct gpt_config model;
    struct cuda_rank *cuda;
    struct gpt_layers *gpt;
    struct dp_layers *layers;
    struct dp_comm *nccl; /* NULL: messages pass through the host */
    struct dp_pipeline *pipeline;
    struct dp_border *borders; /* [stages + 1] */
    void *batch;               /* on the device: losses of a step, then its tokens and labels */
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

/* The stage's own call: the pipeline knows of no parameters. */
static struct dp_stage_call call_of(const struct timed_stage *t, const struct dp_stage_call *call)
{
    struct dp_stage_call own = *call;

    own.grads = t->grads;
    return own;
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    struct timed_stage *t = user;
    const struct dp_stage_call own = call_of(t, call);
    int err = begin(t->steps);

    return end(t->steps, err ? err : t->stage.ops->forward(t->stage.user, &own, in, out));
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    struct timed_stage *t = user;
    const struct dp_stage_call own = call_of(t, call);
    int err = begin(t->steps);

    return end(t->steps, err ? err : t->stage.ops->backward(t->stage.user, &own, gout, gin, mode));
}

static int weight(void *user, const struct dp_stage_call *call)
{
    struct timed_stage *t = user;
    const struct dp_stage_call own = call_of(t, call);
    int err = begin(t->steps);

    return end(t->steps, err ? err : t->stage.ops->weight(t->stage.user, &own));
}

/* Both ops of the list in one. */
static int fwd_bwd(const struct dp_pair *pair)
{
    const struct timed_stage *f = pair->forward.user, *b = pair->backward.user;
    const struct dp_stage_call f_call = call_of(f, pair->forward.call),
                               b_call = call_of(b, pair->backward.call);
    struct step_cuda *s = f->steps;
    struct dp_pair own = *pair;
    int err = begin(s);

    own.forward.user = f->stage.user;
    own.backward.user = b->stage.user;
    own.forward.call = &f_call;
    own.backward.call = &b_call;
    s->next += !err; /* the B */
    s->paired = true;
    err = err ? err : f->stage.ops->fwd_bwd(&own);
    s->paired = false;
    return end(s, err);
}

static const struct dp_stage_ops stage_ops = {
    .forward = forward, .backward = backward, .weight = weight, .fwd_bwd = fwd_bwd};

/* A loss is part of its forward, and stays on the device; */
static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    struct step_cuda *s = user;
    const struct dp_model *m = gpt_layers_model(s->gpt);
    double *there = (double *)s->batch + call->mb;
    int err = m->loss->loss(m->loss_user, call, out, labels, there, max, count);

    *values = 0;
    return s->paired ? err : end(s, err);
}

/* its gradient of the backward that follows. */
static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *labels, double scale, DLTensor *gout)
{
    struct step_cuda *s = user;
    const struct dp_model *m = gpt_layers_model(s->gpt);
    int err = s->paired ? 0 : begin(s);

    return err ? err : m->loss->loss_backward(m->loss_user, call, out, labels, scale, gout);
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
        if (ops[i].flags & DP_OP_OVERLAP)
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

/* Callbacks have other memory where a step on zeros comes first. */
static int open_device(struct step_cuda *s, const struct step_cuda_config *c)
{
    const size_t layers =
        (size_t)dp_schedule_slot_count(c->schedule, s->rank) * ((size_t)c->layers + 1);
    int err = cuda_rank_new(
        &(struct cuda_rank_config){
            .device = c->device, .rank = dp_comm_rank(c->comm), .ranks = dp_comm_size(c->comm),
            .nccl = c->nccl, .image = c->image, .bf16 = c->bf16, .model = s->model,
            .callbacks = c->graphs ? 2 * layers * (size_t)c->schedule->mb_per_stream : 0},
        &s->cuda);

    if (!err)
        err = gpt_layers_new(&s->model, &s->cuda->compute, c->bf16, &s->gpt);
    if (err)
        return err;
    return dp_layers_new(
        &(struct dp_layers_config){.model = gpt_layers_model(s->gpt),
                                   .rows = c->batch,
                                   .seed = s->model.seed,
                                   .dtype = c->bf16 ? (DLDataType){kDLBfloat, 16, 1}
                                                    : (DLDataType){0},
                                   .device = s->cuda->dev,
                                   .stream = s->cuda->stream},
        &s->layers);
}

static int make_stage(struct step_cuda *s, int index, struct timed_stage *t)
{
    int first;
    const int count = gpt_layers_of_stage(&s->model, index, s->schedule->stages, &first);
    int err = dp_layers_add(s->layers, first, first + count, &t->stage);

    if (err)
        return err;
    t->steps = s;
    t->grads = calloc((size_t)t->stage.parameter_count + 1, sizeof(DLTensor *));
    for (int32_t i = 0; i < t->stage.parameter_count && t->grads; i++)
        t->grads[i] = t->stage.parameters[i].grad;
    return t->grads ? 0 : DP_ENOMEM;
}

static int make_stages(struct step_cuda *s)
{
    int err = 0;

    for (int i = 0; i < dp_schedule_slot_count(s->schedule, s->rank) && !err; i++)
        err = make_stage(s, dp_schedule_slot(s->schedule, s->rank, i)->stage,
                         &s->stages[s->stage_count++]);
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
        err = dp_device_event_make(s->cuda->dev, true, &s->spans[i].begin);
        if (!err)
            err = dp_device_event_make(s->cuda->dev, true, &s->spans[i].end);
    }
    return err;
}

/* Without parameters, as far as the pipeline knows: nothing is summed with a mirror. */
static int make_pipeline(struct step_cuda *s, struct dp_comm *comm)
{
    const struct dp_model *m = gpt_layers_model(s->gpt);
    struct dp_stage stages[DP_MAX_SLOTS];

    for (int i = 0; i < s->stage_count; i++) {
        stages[i] = s->stages[i].stage;
        stages[i].ops = &stage_ops;
        stages[i].user = &s->stages[i];
        stages[i].parameter_count = 0;
    }
    for (int stage = 0; stage <= s->schedule->stages; stage++) {
        int first = m->layer_count;
        if (stage < s->schedule->stages)
            gpt_layers_of_stage(&s->model, stage, s->schedule->stages, &first);
        s->borders[stage] = first ? *m->layers[first - 1]->out : *m->input;
        s->borders[stage].tensors[0].shape[0] = s->model.batch;
        s->borders[stage].tensors[0].extent[0] = 0;
    }
    return dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s->schedule,
                                                        .comm = comm,
                                                        .device = s->cuda->dev,
                                                        .stages = stages,
                                                        .borders = s->borders,
                                                        .labels = &s->borders[0],
                                                        .loss = &loss_ops,
                                                        .loss_user = s,
                                                        .stream = s->cuda->stream},
                           &s->pipeline);
}

/* A stream's part of the batch, as views. */
static int split(const struct step_cuda *s, int stream, uint8_t *bytes,
                 struct dp_microbatches **out)
{
    const int32_t count = s->schedule->mb_per_stream;
    int64_t shape[] = {(int64_t)count * s->model.batch, s->model.context};
    const DLTensor all = {bytes + (size_t)stream * (size_t)(shape[0] * shape[1]),
                          dp_device_dl(s->cuda->dev), 2, {kDLUInt, 8, 1}, shape, NULL, 0};
    struct dp_tree args = dp_tuple(1, (struct dp_tree[]){dp_tensor(&all)});

    return dp_split(&args, NULL, &(struct dp_split_options){.count = count}, out);
}

/* Queued, and waited for. */
static int copy_up(struct step_cuda *s, void *to, const void *from, size_t bytes)
{
    struct dp_device_event *done;
    int err = dp_device_event_new(s->cuda->dev, &done);

    if (err)
        return err;
    err = dp_device_copy(s->cuda->stream, to, from, bytes);
    if (!err)
        err = dp_device_event_record(done, s->cuda->stream);
    if (!err)
        err = dp_device_event_wait(done, device_timeout_ns);
    dp_device_event_free(done);
    return err;
}

/* One batch for all steps: labels are the bytes behind the tokens. */
static int make_batch(struct step_cuda *s)
{
    const size_t losses = (size_t)s->schedule->microbatches * sizeof(double);
    const size_t len = (size_t)s->schedule->microbatches * (size_t)s->model.batch *
                       (size_t)s->model.context;
    uint8_t *bytes = malloc(len + 1);

    if (!bytes)
        return DP_ENOMEM;
    for (size_t i = 0; i <= len; i++)
        bytes[i] = (uint8_t)(i * 37 + i / 5);
    int err = dp_device_alloc(s->cuda->dev, DP_MEMORY_DEVICE, losses + 2 * len, &s->batch);
    uint8_t *const tokens = (uint8_t *)s->batch + losses, *const labels = tokens + len;
    if (!err)
        err = copy_up(s, tokens, bytes, len);
    if (!err)
        err = copy_up(s, labels, bytes + 1, len);
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

/* The first launch of a kernel may load it, which may wait until the device is idle; a kernel of NCCL's
 * that waits for a message keeps it busy until another rank, which may be loading just as this one, has
 * sent it. So messages of the first step go by the host. Source: CUDA C++ Programming Guide, "Lazy
 * Loading", issues with concurrent execution. */
static int open_nccl(struct step_cuda *s, const struct step_cuda_config *c)
{
    struct dp_nccl_peer *peers = calloc((size_t)s->schedule->ranks, sizeof(*peers));
    struct dp_nccl_config nccl = {.device = s->cuda->dev, .peers = peers};
    int err = peers ? make_pipeline(s, c->comm) : DP_ENOMEM;

    if (!err)
        err = step_cuda_run(s);
    dp_pipeline_free(s->pipeline);
    s->pipeline = NULL;
    s->taken = 0;
    for (size_t i = 0; i < dp_schedule_count(s->schedule, s->rank); i++)
        s->spans[i].total_ns = 0;
    if (!err)
        nccl.peer_count = err = dp_pipeline_nccl_peers(s->schedule, s->rank, peers);
    if (err >= 0)
        err = dp_comm_nccl_open(c->comm, &nccl, &s->nccl);
    free(peers);
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
    s->borders = calloc((size_t)s->schedule->stages + 1, sizeof(*s->borders));
    int err = s->borders ? open_device(s, c) : DP_ENOMEM;
    if (!err)
        err = make_stages(s);
    if (!err)
        err = make_spans(s);
    if (!err)
        err = make_batch(s);
    if (!err && c->nccl)
        err = open_nccl(s, c);
    return err ? err : make_pipeline(s, s->nccl ? s->nccl : c->comm);
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
    dp_comm_close(s->nccl);
    dp_microbatches_free(s->labels_of_step);
    dp_microbatches_free(s->tokens_of_step);
    free(s->borders);
    if (s->cuda)
        dp_device_free(s->cuda->dev, DP_MEMORY_DEVICE, s->batch);
    for (int i = 0; i < s->stage_count; i++)
        free(s->stages[i].grads);
    dp_layers_free(s->layers);
    gpt_layers_free(s->gpt);
    cuda_rank_free(s->cuda);
    free(s);
}
