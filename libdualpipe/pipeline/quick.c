/* SPDX-License-Identifier: Apache-2.0
 *
 * quick.c - a pipeline of equal stages in a few lines of the caller's: the schedule, borders, stages and
 * trees that pipeline.h wants, made of a few numbers and callbacks over plain arrays.
 */
#include <dualpipe/pipeline.h>

#include "base/fail.h"

#include <stdlib.h>

struct quick_stage {
    const struct dp_quick_model *model;
    int number;
    int64_t count; /* of parameters */
    float *parameters, *gradients;
    DLTensor value, grad;
    struct dp_parameter parameter;
};

/* The micro-batches of one end of this rank, views of the caller's whole batch. */
struct quick_end {
    DLTensor *tensors;
    struct dp_tree *leaves, *args;
    struct dp_microbatches mbs;
    int64_t values;
    int first; /* micro-batch of the whole batch; -1: no such end here */
};

struct dp_quick {
    struct dp_quick_model model;
    struct dp_comm *comm;
    struct dp_schedule *schedule;
    struct dp_pipeline *pipe;
    struct quick_stage stages[DP_MAX_SLOTS];
    int slots, rank; /* pipeline rank */
    struct quick_end inputs, labels;
    double *losses, *sums; /* [mb_per_stream], [ranks] */
};

/* ---- callbacks ------------------------------------------------------------------------------- */

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    const struct quick_stage *stage = user;

    (void)call;
    return stage->model->forward(stage->model->user, stage->parameters, in[0].data, out[0].data);
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout, DLTensor *gin,
                    enum dp_backward_mode mode)
{
    const struct quick_stage *stage = user;

    (void)mode; /* it is whole: no_split */
    return stage->model->backward(stage->model->user, stage->parameters, call->in[0].data,
                                  gout[0].data, gin[0].data, call->grads[0]->data);
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    const struct dp_quick_model *model = user;

    (void)call, (void)max;
    values[0] = model->loss(model->user, out[0].data, labels[0].data, NULL);
    *count = 1;
    return 0;
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *labels, double scale, DLTensor *gout)
{
    const struct dp_quick_model *model = user;
    float *gy = gout[0].data;

    (void)call;
    (void)model->loss(model->user, out[0].data, labels[0].data, gy);
    for (int32_t i = 0; i < model->values; i++)
        gy[i] *= (float)scale;
    return 0;
}

static const struct dp_stage_ops stage_ops = {.forward = forward, .backward = backward};
static const struct dp_loss_ops loss_ops = {loss, loss_backward};
static const DLDataType float32 = {kDLFloat, 32, 1};

/* ---- new ------------------------------------------------------------------------------------- */

static int check_model(const struct dp_quick_model *m, struct dp_quick **out)
{
    if (!m || !out)
        return dp_fail(DP_EINVAL, "dp_quick_new: expected a model and a place for the pipeline");
    const struct {
        const char *name;
        int32_t value;
    } sizes[] = {{"microbatches", m->microbatches}, {"values", m->values},
                 {"parameters", m->parameters}, {"label_values", m->label_values}};
    for (int i = 0; i < 4; i++)
        if (sizes[i].value < 1)
            return dp_fail(DP_EINVAL, "%s: %d, expected at least 1", sizes[i].name, sizes[i].value);
    return m->schedule && m->forward && m->backward && m->loss
               ? 0
               : dp_fail(DP_EINVAL, "a quick model: expected schedule, forward, backward and loss");
}

static int no_memory(void)
{
    return dp_fail(DP_ENOMEM, "no memory for a quick pipeline");
}

static int make_stage(struct quick_stage *stage, const struct dp_quick_model *model, int number)
{
    *stage = (struct quick_stage){.model = model, .number = number, .count = model->parameters,
                                  .parameters = calloc((size_t)model->parameters, sizeof(float)),
                                  .gradients = calloc((size_t)model->parameters, sizeof(float))};
    if (!stage->parameters || !stage->gradients)
        return no_memory();
    stage->value = (DLTensor){.data = stage->parameters, .device = {kDLCPU, 0}, .ndim = 1,
                              .dtype = float32, .shape = &stage->count};
    stage->grad = stage->value;
    stage->grad.data = stage->gradients;
    stage->parameter = (struct dp_parameter){.name = "parameters", .value = &stage->value,
                                             .grad = &stage->grad};
    const int err = model->start ? model->start(model->user, number, stage->parameters) : 0;
    return err ? dp_fail(DP_ECALLBACK, "start of stage %d failed with %d", number, err) : 0;
}

static int make_end(struct quick_end *end, int32_t count, int64_t values)
{
    const size_t n = (size_t)count;

    end->values = values;
    end->tensors = calloc(n, sizeof(*end->tensors));
    end->leaves = calloc(n, sizeof(*end->leaves));
    end->args = calloc(n, sizeof(*end->args));
    if (!end->tensors || !end->leaves || !end->args)
        return no_memory();
    for (size_t i = 0; i < n; i++) {
        end->tensors[i] = (DLTensor){.device = {kDLCPU, 0}, .ndim = 1, .dtype = float32,
                                     .shape = &end->values};
        end->leaves[i] = dp_tensor(&end->tensors[i]);
        end->args[i] = dp_tuple(1, &end->leaves[i]);
    }
    end->mbs = (struct dp_microbatches){.count = count, .args = end->args};
    return 0;
}

static int make_parts(struct dp_quick *q)
{
    const struct dp_schedule *s = q->schedule;
    int err = make_end(&q->inputs, s->mb_per_stream, q->model.values);

    if (!err)
        err = make_end(&q->labels, s->mb_per_stream, q->model.label_values);
    q->inputs.first = q->labels.first = -1;
    while (s->group_rank[q->rank] != dp_comm_rank(q->comm))
        q->rank++;
    q->losses = calloc((size_t)s->mb_per_stream, sizeof(*q->losses));
    q->sums = calloc((size_t)s->ranks, sizeof(*q->sums));
    if (!err && (!q->losses || !q->sums))
        err = no_memory();
    for (int i = 0; i < dp_schedule_slot_count(s, q->rank) && !err; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, q->rank, i);
        err = make_stage(&q->stages[q->slots++], &q->model, slot->stage);
        if (dp_slot_is_first(slot))
            q->inputs.first = slot->stream * s->mb_per_stream;
        if (dp_slot_is_last(slot))
            q->labels.first = slot->stream * s->mb_per_stream;
    }
    return err;
}

static int make_pipeline(struct dp_quick *q)
{
    const struct dp_schedule *s = q->schedule;
    const struct dp_border one = {1, {{float32, .ndim = 1, .shape = {q->model.values}}}};
    const struct dp_border labels = {1, {{float32, .ndim = 1, .shape = {q->model.label_values}}}};
    struct dp_border *borders = calloc((size_t)s->stages + 1, sizeof(*borders));
    struct dp_stage stages[DP_MAX_SLOTS];

    for (int i = 0; borders && i <= s->stages; i++)
        borders[i] = one;
    for (int i = 0; i < q->slots; i++)
        stages[i] = (struct dp_stage){.ops = &stage_ops, .user = &q->stages[i], .no_split = true,
                                      .parameter_count = 1, .parameters = &q->stages[i].parameter};
    const struct dp_pipeline_config config = {.schedule = s, .comm = q->comm, .stages = stages,
                                              .borders = borders, .labels = &labels,
                                              .loss = &loss_ops, .loss_user = &q->model,
                                              .loss_scale = 1.0 / q->model.microbatches};
    const int err = borders ? dp_pipeline_new(&config, &q->pipe) : no_memory();
    free(borders);
    return err;
}

int dp_quick_new(const struct dp_quick_model *model, struct dp_quick **out)
{
    struct dp_schedule_spec spec = {0};
    int err = check_model(model, out);
    struct dp_quick *q = err ? NULL : calloc(1, sizeof(*q));

    if (!q)
        return err ? err : no_memory();
    q->model = *model;
    err = dp_schedule_kind_parse(model->schedule, &spec.kind);
    if (!err)
        err = dp_comm_open(&(struct dp_comm_config){0}, &q->comm);
    if (!err) {
        spec.ranks = dp_comm_size(q->comm);
        spec.microbatches = model->microbatches;
        err = dp_schedule_new(&spec, &q->schedule);
    }
    if (!err)
        err = make_parts(q);
    if (!err)
        err = make_pipeline(q);
    if (err)
        dp_quick_free(q);
    else
        *out = q;
    return err;
}

static void free_end(struct quick_end *end)
{
    free(end->tensors);
    free(end->leaves);
    free(end->args);
}

void dp_quick_free(struct dp_quick *q)
{
    if (!q)
        return;
    dp_pipeline_free(q->pipe);
    for (int i = 0; i < q->slots; i++) {
        free(q->stages[i].parameters);
        free(q->stages[i].gradients);
    }
    free_end(&q->inputs);
    free_end(&q->labels);
    free(q->losses);
    free(q->sums);
    dp_schedule_free(q->schedule);
    dp_comm_close(q->comm);
    free(q);
}

/* ---- steps ------------------------------------------------------------------------------------ */

/* NULL where this rank has no such end. */
static const struct dp_microbatches *take(struct quick_end *end, const float *all)
{
    for (int32_t i = 0; end->first >= 0 && i < end->mbs.count; i++)
        end->tensors[i].data =
            (void *)(uintptr_t)(all + (size_t)(end->first + i) * (size_t)end->values);
    return end->first < 0 ? NULL : &end->mbs;
}

static void update(struct quick_stage *stage, float rate)
{
    for (int64_t k = 0; k < stage->count; k++) {
        stage->parameters[k] -= rate * stage->gradients[k];
        stage->gradients[k] = 0;
    }
}

int dp_quick_step(struct dp_quick *q, const float *x, const float *labels, float rate, double *loss)
{
    if (!q || !x || !labels || !loss)
        return dp_fail(DP_EINVAL, "dp_quick_step: expected a pipeline, x, labels and a loss");
    const bool ends = q->labels.first >= 0;
    struct dp_step step = {.inputs = take(&q->inputs, x), .labels = take(&q->labels, labels),
                           .losses = ends ? q->losses : NULL};
    double sum = 0;
    int err = dp_pipeline_step(q->pipe, &step);

    for (int32_t i = 0; ends && i < q->labels.mbs.count; i++)
        sum += q->losses[i];
    if (!err)
        err = dp_comm_allgather(q->comm, &sum, q->sums, sizeof(sum));
    if (err)
        return err;
    for (int i = 0; i < q->slots; i++)
        update(&q->stages[i], rate);
    *loss = 0;
    for (int r = 0; r < q->schedule->ranks; r++)
        *loss += q->sums[r] / q->model.microbatches;
    return 0;
}

float *dp_quick_parameters(struct dp_quick *q, int slot, int *stage)
{
    if (slot < 0 || slot >= q->slots)
        return NULL;
    *stage = q->stages[slot].number;
    return q->stages[slot].parameters;
}
