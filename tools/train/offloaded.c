/* SPDX-License-Identifier: Apache-2.0
 *
 * offloaded.c - every block of the model is a layer of dp_offload, the first one with the
 * embedding, the last one with the head and the loss. A layer has one parameter: all of its tensors
 * in a row, as gpt.h lays them out. The trainer sees the same tensors where they live, on the host.
 *
 *      tokens -> [embedding, block 1] -> x -> [block 2] -> x ... -> [block L, head, loss] -> losses
 */
#include "train/offloaded.h"

#include "clock.h"
#include "train/bfloat16.h"
#include "train/offload_cost.h"
#include "train/streamed.h"

#include <dualpipe/offload.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The stage of one block, and what dp_offload is told of it. */
struct layer {
    struct offloaded *e;
    struct gpt_stage *stage;
    DLTensor *tensors, **list; /* its gradients, during a call */
    struct dp_parameter parameter;
    DLTensor value;
    int64_t count;
    char name[24];
};

struct offloaded {
    struct engine base;
    struct dp_device *dev;
    struct dp_offload *o;
    struct dp_offload_config config;
    struct gpt_stage *model; /* base.stages[0]: tensors only */
    struct layer *parts;     /* [layers] */
    struct dp_offload_layer *layers;
    struct dp_border tokens, x, losses;
    real *scratch, *d_logits;     /* on the device */
    real *weights, *grads;        /* bf16: there, too, what a block computes with, and adds to */
    double *values;               /* of losses, a row for each sequence */
    const uint8_t *labels;        /* of the step */
    int (*update)(void *user);    /* a step late; NULL: the trainer does it */
    void *update_user;
    int32_t last_shard;
    bool changed;                 /* the weights, since they were last used */
    struct dp_offload_times busy; /* in training steps, */
    int64_t steps_ns;             /* which took so long */
};

/* ---- layers ---------------------------------------------------------------------------------- */

/* As the stages of a pipeline are called. */
static struct dp_stage_call call_of(const struct layer *p, const struct dp_offload_call *call)
{
    return (struct dp_stage_call){
        .mb = call->mb,
        .mb_global = call->mb,
        .step = call->step,
        .training = call->training,
        .random = {.key = p->e->base.config.seed},
        .save = call->save,
        .in = call->in,
        .grads = p->list,
    };
}

/* The logits of a micro-batch stay behind what the stage itself saves. */
static DLTensor logits_of(const struct layer *p, const struct dp_offload_call *call,
                          int64_t shape[3])
{
    const struct gpt_config *c = &p->e->base.config;

    memcpy(shape, (int64_t[]){c->batch, c->context, GPT_BYTES}, 3 * sizeof(*shape));
    return (DLTensor){.data = (char *)call->save + p->stage->save_bytes,
                      .device = {kDLCPU, 0},
                      .ndim = 3,
                      .dtype = {kDLFloat, 8 * sizeof(real), 1},
                      .shape = shape};
}

static DLTensor labels_of(const struct layer *p, const struct dp_offload_call *call,
                          int64_t shape[3])
{
    const struct gpt_config *c = &p->e->base.config;
    size_t at = (size_t)call->first_row * (size_t)c->context;

    return (DLTensor){.data = (uint8_t *)p->e->labels + at,
                      .device = {kDLCPU, 0},
                      .ndim = 2,
                      .dtype = {kDLUInt, 8, 1},
                      .shape = shape};
}

/* The loss of the micro-batch into the first of its rows. */
static int take_loss(const struct layer *p, const struct dp_offload_call *call,
                     const struct dp_stage_call *stage_call, const DLTensor *logits, DLTensor *out)
{
    DLTensor labels = labels_of(p, call, logits->shape);
    double *losses = out->data;
    int32_t count;

    memset(losses, 0, (size_t)call->rows * sizeof(*losses));
    return gpt_loss_ops.loss(NULL, stage_call, logits, &labels, losses, 1, &count);
}

/* What the stage computes with. */
static void take_weights(const struct layer *p, const struct dp_offload_call *call)
{
    p->stage->weights = call->values[0].data;
    if (!p->e->weights)
        return;
    bfloat16_load((size_t)p->count, call->values[0].data, p->e->weights);
    p->stage->weights = p->e->weights;
}

static int forward(void *user, const struct dp_offload_call *call, const DLTensor *in,
                   DLTensor *out)
{
    const struct layer *p = user;
    struct dp_stage_call stage_call = call_of(p, call);
    int64_t shape[3];

    take_weights(p, call);
    if (!p->stage->has_head)
        return gpt_stage_ops.forward(p->stage, &stage_call, in, out);
    DLTensor logits = logits_of(p, call, shape);
    int err = gpt_stage_ops.forward(p->stage, &stage_call, in, &logits);
    return err || call->again ? err : take_loss(p, call, &stage_call, &logits, out);
}

static int differentiate(const struct layer *p, const struct dp_offload_call *call,
                         const DLTensor *gout, DLTensor *gin)
{
    struct dp_stage_call stage_call = call_of(p, call);
    int64_t shape[3];

    if (!p->stage->has_head)
        return gpt_stage_ops.backward(p->stage, &stage_call, gout, gin, DP_BACKWARD_FULL);
    DLTensor logits = logits_of(p, call, shape), d_logits = logits;
    DLTensor labels = labels_of(p, call, shape);
    d_logits.data = p->e->d_logits;
    int err = gpt_loss_ops.loss_backward(NULL, &stage_call, &logits, &labels,
                                         1.0 / p->e->base.microbatches, &d_logits);
    return err ? err
               : gpt_stage_ops.backward(p->stage, &stage_call, &d_logits, gin, DP_BACKWARD_FULL);
}

static int backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                    DLTensor *gin)
{
    const struct layer *p = user;
    real *grads = p->e->grads;

    take_weights(p, call);
    if (grads)
        memset(grads, 0, (size_t)p->count * sizeof(real));
    gpt_grads_view(p->stage, grads ? grads : call->grads[0].data, p->tensors, p->list);
    int err = differentiate(p, call, gout, gin);
    if (!err && grads)
        bfloat16_add((size_t)p->count, grads, call->grads[0].data);
    return err;
}

static const struct dp_offload_layer_ops layer_ops = {forward, backward};

/* ---- steps ----------------------------------------------------------------------------------- */

static int carry_out(struct offloaded *e, const struct batch *batch, bool training, double *losses)
{
    const struct gpt_config *c = &e->base.config;
    int64_t rows = (int64_t)c->batch * e->base.microbatches, shape[2] = {rows, c->context};
    DLTensor tokens = {batch->tokens, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
    DLTensor values = {e->values, {kDLCPU, 0}, 1, {kDLFloat, 64, 1}, shape, NULL, 0};
    const DLTensor *inputs[1] = {&tokens}, *none[1] = {NULL};
    DLTensor *outputs[1] = {&values};
    const struct dp_offload_step step = {inputs, outputs, training, !e->changed};

    e->labels = batch->labels;
    int err = dp_offload_forward(e->o, &step);
    e->changed = training;
    if (!err && training)
        err = dp_offload_backward(e->o, &(struct dp_offload_gradients){.gouts = none});
    if (!err && training)
        err = dp_offload_finish(e->o);
    for (int mb = 0; mb < e->base.microbatches && !err; mb++)
        losses[mb] = e->values[mb * c->batch];
    return err;
}

static int train(struct engine *engine, const struct batch *batch, double *losses)
{
    struct offloaded *e = (struct offloaded *)engine;
    struct dp_offload_times before, after;
    int64_t begun_ns = now_ns();

    dp_offload_times(e->o, &before);
    int err = carry_out(e, batch, true, losses);
    dp_offload_times(e->o, &after);
    e->steps_ns += now_ns() - begun_ns;
    e->busy.compute_ns += after.compute_ns - before.compute_ns;
    e->busy.up_ns += after.up_ns - before.up_ns;
    e->busy.down_ns += after.down_ns - before.down_ns;
    e->busy.wait_ns += after.wait_ns - before.wait_ns;
    e->busy.update_ns += after.update_ns - before.update_ns;
    return err;
}

static int evaluate(struct engine *engine, const struct batch *batch, double *losses)
{
    return carry_out((struct offloaded *)engine, batch, false, losses);
}

static int gather(struct engine *engine, real *weights)
{
    const struct offloaded *e = (struct offloaded *)engine;
    const struct params *params = &e->model->params;

    for (size_t i = 0; i < params->tensors_len; i++)
        memcpy(weights + params->tensors[i].offset, e->model->tensors[i].value.data,
               tensor_count(&params->tensors[i]) * sizeof(real));
    return 0;
}

static void seek(struct engine *engine, uint64_t step)
{
    dp_offload_seek(((struct offloaded *)engine)->o, step);
}

/* ---- late updates ---------------------------------------------------------------------------- */

/* All gradients are there before the first shard is updated, so that is when all are. */
static int update_late(void *user, int32_t shard, const struct dp_parameter *parameters,
                       int32_t count)
{
    const struct offloaded *e = user;

    (void)parameters, (void)count;
    return shard == e->last_shard ? e->update(e->update_user) : 0;
}

static bool is_offloaded(const struct engine *engine);

/* ---- what stays on the device ---------------------------------------------------------------- */

/* Blocks in the parameters of the library's list are layers; the tensors of each follow each other. */
static struct engine_kept find_kept(const struct offloaded *e)
{
    struct engine_kept kept = {0};
    int32_t layer;

    dp_offload_kept(e->o, &layer, &kept.state, &kept.state_bytes);
    for (int32_t l = e->base.config.layers - 1; l >= layer; l--)
        kept.count += e->parts[l].stage->params.tensors_len;
    return kept;
}

static double kept_share(const struct offloaded *e)
{
    int64_t kept = 0, all = 0;
    size_t bytes;
    int32_t layer;
    void *memory;

    dp_offload_kept(e->o, &layer, &memory, &bytes);
    for (int32_t l = 0; l < e->base.config.layers; l++) {
        all += e->parts[l].count;
        kept += l >= layer ? e->parts[l].count : 0;
    }
    return (double)kept / (double)all;
}

bool offloaded_updates_late(const struct engine *engine)
{
    return is_offloaded(engine) && ((const struct offloaded *)engine)->update;
}

void offloaded_set_due(struct engine *engine, bool due)
{
    dp_offload_set_due(((struct offloaded *)engine)->o, due);
}

int offloaded_catch_up(struct engine *engine)
{
    return dp_offload_catch_up(((struct offloaded *)engine)->o);
}

/* ---- figures --------------------------------------------------------------------------------- */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

const char *offloaded_limit_name(enum offloaded_limit limit)
{
    static const char *const names[LIMITS] = {"compute", "copies to the device",
                                              "copies from the device", "updates on the host"};
    return names[limit];
}

void offloaded_overlap(const struct offloaded_busy *b, struct offloaded_figures *out)
{
    const int64_t compute_ns = b->compute_ns ? b->compute_ns : b->steps_ns - b->wait_ns;
    const int64_t busy[LIMITS] = {compute_ns, b->up_ns, b->down_ns, b->update_ns};
    double sum = 0, most = 0, took = (double)(compute_ns + b->wait_ns);

    for (int i = 0; i < LIMITS; i++) {
        sum += (double)busy[i];
        if ((double)busy[i] >= most)
            out->limited_by = (enum offloaded_limit)i;
        most = larger(most, (double)busy[i]);
    }
    out->limit_share = b->steps_ns > 0 ? most / (double)b->steps_ns : 0;
    out->overlap = sum > most ? larger(0, (sum - larger(took, most)) / (sum - most)) : 1;
    out->overlap_share = b->steps_ns > 0 ? (sum - most) / (double)b->steps_ns : 0;
}

bool offloaded_figures(const struct engine *engine, struct offloaded_figures *out)
{
    const struct offloaded *e = (const struct offloaded *)engine;
    struct dp_device_usage usage;
    struct dp_offload_memory memory;

    if (!is_offloaded(engine))
        return false;
    dp_device_usage(e->dev, &usage);
    dp_offload_memory(e->o, &memory);
    *out = (struct offloaded_figures){
        .shards = memory.shards,
        .slots = memory.slots,
        .recomputes = e->config.checkpoint,
        .boundaries_down = e->config.boundaries_down,
        .kept = kept_share(e),
        .device_bytes = usage.peak_bytes,
    };
    offloaded_overlap(&(struct offloaded_busy){e->busy.compute_ns, e->busy.up_ns, e->busy.down_ns,
                                               e->busy.wait_ns, e->steps_ns,
                                               e->busy.update_ns},
                      out);
    return true;
}

/* ---- making one ------------------------------------------------------------------------------ */

static void set_borders(struct offloaded *e)
{
    struct gpt_config whole = e->base.config;
    struct dp_border borders[3];

    whole.batch *= e->base.microbatches;
    gpt_borders(&whole, 2, borders);
    e->tokens = borders[0];
    e->x = borders[1];
    e->losses = (struct dp_border){
        1, {{.dtype = {kDLFloat, 64, 1}, .ndim = 1, .shape = {whole.batch}, .no_grad = true}}};
}

/* The values are those of the whole model, whose tensors lie in the same order. */
static int set_part(struct offloaded *e, int l, size_t offset)
{
    const struct gpt_config *c = &e->base.config;
    struct layer *p = &e->parts[l];
    size_t logits = (size_t)c->batch * (size_t)c->context * GPT_BYTES;
    int err = gpt_stage_new_bare(c, l, c->layers, &p->stage);

    if (err)
        return err;
    const struct gpt_stage *g = p->stage;
    p->e = e;
    p->tensors = calloc(g->params.tensors_len, sizeof(*p->tensors));
    p->list = calloc(g->params.tensors_len, sizeof(DLTensor *));
    if (!p->tensors || !p->list)
        return DP_ENOMEM;
    gpt_stage_set_scratch(p->stage, e->scratch);
    snprintf(p->name, sizeof(p->name), "block %d", l + 1);
    p->count = (int64_t)g->params.count;
    p->value = (DLTensor){e->model->weights + offset,
                          {kDLCPU, 0},
                          1,
                          {kDLFloat, 8 * sizeof(real), 1},
                          &p->count,
                          NULL,
                          0};
    p->parameter = (struct dp_parameter){.name = p->name, .value = &p->value};
    e->layers[l] = (struct dp_offload_layer){
        .ops = &layer_ops,
        .user = p,
        .parameters = &p->parameter,
        .parameter_count = 1,
        .save_bytes = g->save_bytes + (g->has_head ? logits * sizeof(real) : 0),
        .kept_bytes = streamed_state_bytes(p->stage, 0),
        .out = g->has_head ? &e->losses : &e->x,
    };
    return 0;
}

static int set_parts(struct offloaded *e)
{
    size_t layers = (size_t)e->base.config.layers, offset = 0;
    int err = 0;

    e->parts = calloc(layers, sizeof(*e->parts));
    e->layers = calloc(layers, sizeof(*e->layers));
    e->values =
        calloc((size_t)e->base.config.batch * (size_t)e->base.microbatches, sizeof(*e->values));
    if (!e->parts || !e->layers || !e->values)
        return DP_ENOMEM;
    for (size_t l = 0; l < layers && !err; l++) {
        err = set_part(e, (int)l, offset);
        if (!err)
            offset += e->parts[l].stage->params.count;
    }
    return err;
}

/* Of the largest block. */
static size_t most_reals(const struct gpt_config *c)
{
    size_t most = 0;

    for (int l = 0; l < c->layers; l++) {
        size_t count = gpt_stage_size(c, l, c->layers).param_count;
        most = count > most ? count : most;
    }
    return most;
}

/* The scratch memory of compute is the device's, too; the limit comes later. */
static int open_device(struct offloaded *e, const struct offloaded_config *config)
{
    const struct gpt_config *c = &e->base.config;
    size_t block = config->bf16 ? most_reals(c) : 0;
    size_t logits = (size_t)c->batch * (size_t)c->context * GPT_BYTES * sizeof(real);
    size_t scratch = gpt_stage_size(c, 0, c->layers).scratch_bytes;
    void *memory = NULL;
    int err = dp_device_open("host:2", &e->dev);

    if (err)
        return err;
    err = dp_device_alloc(e->dev, DP_MEMORY_DEVICE, scratch + logits + 2 * block * sizeof(real),
                          &memory);
    if (err)
        return err;
    e->scratch = memory;
    e->d_logits = e->scratch + scratch / sizeof(real);
    e->weights = block ? e->d_logits + logits / sizeof(real) : NULL;
    e->grads = block ? e->weights + block : NULL;
    return 0;
}

static int open_model(struct offloaded *e, const struct offloaded_config *config)
{
    e->config = (struct dp_offload_config){
        .device = e->dev,
        .layers = e->layers,
        .layer_count = config->model.layers,
        .input = &e->tokens,
        .slices = 1,
        .microbatches = config->microbatches,
        .slots = config->buffers.count,
        .distance = config->buffers.count ? config->buffers.count - 1 : 0,
        .order_blocks = config->order_blocks,
        .measure = true,
        .values_type = {kDLBfloat, config->bf16 ? 16 : 0, 1},
        .grads_type = {kDLBfloat, config->bf16 ? 16 : 0, 1},
        .seed = config->model.seed,
        .update = config->update ? update_late : NULL,
        .update_user = e,
        .delay = config->update,
        .kept_share = config->device_share,
    };
    struct offload_cost cost = {0};
    struct dp_offload_memory memory;
    int err = config->buffers.measured
                  ? offload_cost_measure(&config->model, config->microbatches, e->dev, &cost)
                  : 0;

    dp_device_limit(e->dev, config->device_bytes);
    if (!err)
        err = dp_offload_fit(&e->config, config->activations,
                             config->buffers.measured ? &cost.cost : NULL);
    offload_cost_free(&cost);
    if (!err)
        err = dp_offload_open(&e->config, &e->o);
    if (err)
        return err;
    dp_offload_memory(e->o, &memory);
    e->last_shard = memory.shards - 1;
    return 0;
}

/* The tensors of the whole model to where they live now. */
static void move_tensors(struct offloaded *e)
{
    struct gpt_stage *model = e->model;
    const struct params *params = &model->params;
    int32_t count, l = 0;
    const struct dp_parameter *list = dp_offload_parameters(e->o, &count);
    size_t first = 0; /* offset of block l */

    gpt_stage_drop_memory(model);
    for (size_t i = 0; i < params->tensors_len; i++) {
        size_t offset = params->tensors[i].offset;
        while (offset - first >= (size_t)e->parts[l].count)
            first += (size_t)e->parts[l++].count;
        model->tensors[i].value.data = (real *)list[l].value->data + (offset - first);
        model->tensors[i].grad.data = (real *)list[l].grad->data + (offset - first);
    }
}

static void offloaded_free(struct engine *engine)
{
    struct offloaded *e = (struct offloaded *)engine;

    dp_offload_close(e->o);
    for (int l = 0; e->parts && l < e->base.config.layers; l++) {
        gpt_stage_free(e->parts[l].stage);
        free(e->parts[l].tensors);
        free(e->parts[l].list);
    }
    if (e->dev)
        dp_device_free(e->dev, DP_MEMORY_DEVICE, e->scratch);
    dp_device_close(e->dev);
    gpt_stage_free(e->model);
    free(e->parts);
    free(e->layers);
    free(e->values);
    free(e);
}

static const struct engine_ops offloaded_ops = {
    .name = "offloaded",
    .train = train,
    .evaluate = evaluate,
    .gather = gather,
    .seek = seek,
    .free = offloaded_free,
};

static bool is_offloaded(const struct engine *engine)
{
    return engine->ops == &offloaded_ops;
}

static int build(struct offloaded *e, const struct offloaded_config *config)
{
    int err = gpt_stage_new(&config->model, 0, 1, &e->model);

    if (!err)
        err = open_device(e, config);
    if (!err)
        err = set_parts(e);
    if (err)
        return err;
    set_borders(e);
    return open_model(e, config);
}

int offloaded_new(const struct offloaded_config *config, struct engine **out)
{
    struct offloaded *e = calloc(1, sizeof(*e));

    if (!e)
        return DP_ENOMEM;
    e->base = (struct engine){.ops = &offloaded_ops,
                              .config = config->model,
                              .microbatches = config->microbatches,
                              .replica = {.count = 1},
                              .stage_count = 1};
    e->changed = true;
    e->update = config->update;
    e->update_user = config->update_user;
    int err = build(e, config);
    if (err) {
        offloaded_free(&e->base);
        return err;
    }
    move_tensors(e);
    e->base.stages[0] = e->model;
    e->base.kept[0] = find_kept(e);
    *out = &e->base;
    return 0;
}
