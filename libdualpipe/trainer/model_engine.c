/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/model_engine.h"

#include "base/fail.h"
#include "trainer/stage.h"

#include <dualpipe/batch_norm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model_engine {
    struct engine base;
    const struct model_info *model;
    struct stage *stages[DP_MAX_SLOTS];
    struct streamed *streamed; /* NULL: layers compute where their parameters live */
    struct dp_border *borders; /* [stages + 1] */
    struct dp_border labels;
    struct dp_tensor_spec *skips; /* of the schedule */
    struct dp_pipeline *pipeline;
    const struct dp_schedule *forward;
    int64_t rows;                       /* of a whole step */
    int64_t (*extents)[DP_MAX_EXTENTS]; /* [own micro-batches] */
    double *scales;                     /* the same, of those that end here */
};

/* ---- a batch --------------------------------------------------------------------------------- */

int64_t model_engine_rows(int64_t rows, int32_t microbatches, int32_t mb)
{
    return rows / microbatches + (mb < rows % microbatches);
}

/* Rows of all micro-batches before this one. */
static int64_t rows_before(int64_t rows, int32_t microbatches, int32_t mb)
{
    const int64_t more = rows % microbatches;

    return rows / microbatches * mb + (mb < more ? mb : more);
}

/* The micro-batches of one stream that begin or end here. */
struct part {
    struct dp_microbatches *cut;
    struct dp_tree leaves[DP_MAX_TENSORS];
    DLTensor tensors[DP_MAX_TENSORS];
    int64_t dims[DP_MAX_TENSORS][2 * DP_TREE_MAX_NDIM];
    struct dp_loader shifted;
    const struct dp_loader *loader; /* of all replicas */
    int32_t first;
};

static int load(void *user, int32_t mb, const struct dp_tree **args, const struct dp_tree **kwargs)
{
    const struct part *p = user;

    return p->loader->load(p->loader->user, p->first + mb, args, kwargs);
}

static void release(void *user, int32_t mb)
{
    const struct part *p = user;

    if (p->loader->release)
        p->loader->release(p->loader->user, p->first + mb);
}

/* Micro-batches first .. first + count - 1 of a tree of all rows. */
static int cut(const struct model_engine *e, const struct dp_tree *tree, int64_t rows,
               int32_t count, const char *what, struct part *p)
{
    const int32_t m = e->base.microbatches;
    const int64_t begin = rows_before(rows, m, p->first);
    const int64_t size = rows_before(rows, m, p->first + count) - begin;
    int err = 0;

    if ((tree->kind != DP_TREE_TUPLE && tree->kind != DP_TREE_LIST) || tree->count < 1 ||
        tree->count > DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL, "%s: expected a tuple or list of 1 to %d tensors", what,
                       DP_MAX_TENSORS);
    for (int32_t k = 0; k < tree->count && !err; k++) {
        const DLTensor *t = tree->items[k].kind == DP_TREE_TENSOR ? tree->items[k].tensor : NULL;
        if (!t || t->ndim < 1 || t->shape[0] != rows)
            return dp_fail(DP_EINVAL, "%s, tensor %d: expected one of %lld rows", what, k,
                           (long long)rows);
        err = dp_tensor_window(t, 0, begin, size, p->dims[k], &p->tensors[k]);
        p->leaves[k] = dp_tensor(&p->tensors[k]);
    }
    const struct dp_tree args = dp_tuple(tree->count, p->leaves);
    return err ? err : dp_split(&args, NULL, &(struct dp_split_options){.count = count}, &p->cut);
}

static int take(const struct model_engine *e, const struct dp_tree *tree,
                const struct dp_loader *loader, int64_t rows, int32_t count, const char *what,
                struct part *p)
{
    if (loader) {
        p->loader = loader;
        p->shifted = (struct dp_loader){load, release, p};
        return 0;
    }
    return tree ? cut(e, tree, rows, count, what, p) : 0; /* the pipeline says that it is missing */
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Of all micro-batches of this replica: their rows, where they differ from what is declared. */
static bool take_rows(struct model_engine *e, int64_t rows)
{
    const int32_t m = e->base.microbatches, own = engine_own_microbatches(&e->base);
    bool uneven = false;

    for (int32_t i = 0; i < own; i++) {
        const int64_t of_mb = model_engine_rows(rows, m, engine_first_mb(&e->base) + i);
        e->extents[i][0] = of_mb;
        uneven = uneven || of_mb != e->stages[0]->rows;
    }
    return uneven;
}

/* The upstream gradient of each micro-batch of a stream, so that the whole is the mean over rows. */
static void take_scales(struct model_engine *e, int64_t rows, int32_t first, int32_t count)
{
    const struct engine *b = &e->base;
    int64_t of = rows;

    if (b->replica.apart)
        of = rows_before(rows, b->microbatches, engine_first_mb(b) + engine_own_microbatches(b)) -
             rows_before(rows, b->microbatches, engine_first_mb(b));
    for (int32_t i = 0; i < count; i++)
        e->scales[i] = b->loss_scale * (double)model_engine_rows(rows, b->microbatches, first + i) /
                       (double)of;
}

static int run(struct engine *base, const struct dp_schedule *s, const struct dp_batch *batch,
               double *losses)
{
    struct model_engine *e = (struct model_engine *)base;
    const int64_t rows = batch->rows ? batch->rows : e->rows;
    struct dp_step step = {.schedule = s};
    struct part *in = calloc(2, sizeof(*in)), *labels = in + 1;
    int err = in ? 0 : dp_fail(DP_ENOMEM, "no memory for a step");

    if (e->streamed)
        streamed_begin(e->streamed);
    if (!err && take_rows(e, rows))
        step.extents = (const int64_t(*)[DP_MAX_EXTENTS])e->extents;
    for (int i = 0; i < base->part_count && !err; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, engine_rank(base), i);
        const int32_t count = s->mb_per_stream,
                      first = engine_first_mb(base) + slot->stream * count;
        if (dp_slot_is_first(slot)) {
            in->first = first;
            err = take(e, batch->inputs, batch->input_loader, rows, count, "inputs", in);
        }
        if (dp_slot_is_last(slot) && !err) {
            labels->first = first;
            err = take(e, batch->labels, batch->label_loader, rows, count, "labels", labels);
            take_scales(e, rows, first, count);
            step.losses = losses + first;
            step.loss_scales = s->forward_only ? NULL : e->scales;
        }
    }
    if (!err) {
        step.inputs = in->cut;
        step.input_loader = in->loader ? &in->shifted : NULL;
        step.labels = e->model->model.labels ? labels->cut : NULL;
        step.label_loader = e->model->model.labels && labels->loader ? &labels->shifted : NULL;
        err = dp_pipeline_step(e->pipeline, &step);
    }
    if (in) {
        dp_microbatches_free(in->cut);
        dp_microbatches_free(labels->cut);
    }
    free(in);
    return err;
}

static int train(struct engine *e, const struct dp_batch *batch, double *losses)
{
    dp_recorder_enable(e->recorder, true);
    return run(e, e->schedule, batch, losses);
}

static int evaluate(struct engine *e, const struct dp_batch *batch, double *losses)
{
    dp_recorder_enable(e->recorder, false);
    return run(e, ((struct model_engine *)e)->forward, batch, losses);
}

static int sum_tied(struct engine *e)
{
    return dp_pipeline_sum_tied(((struct model_engine *)e)->pipeline);
}

static int broadcast_tied(struct engine *e)
{
    return dp_pipeline_broadcast_tied(((struct model_engine *)e)->pipeline);
}

static bool owns(const struct engine *e, int slot, int parameter)
{
    return dp_pipeline_owns(((const struct model_engine *)e)->pipeline, slot, parameter);
}

static void seek(struct engine *e, uint64_t step)
{
    dp_pipeline_seek(((struct model_engine *)e)->pipeline, step);
}

static void engine_free(struct engine *base)
{
    struct model_engine *e = (struct model_engine *)base;

    dp_pipeline_free(e->pipeline);
    dp_recorder_free(base->recorder);
    streamed_free(e->streamed);
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        stage_free(e->stages[i]);
    for (int32_t i = 0; i < base->norm_count; i++)
        free((char *)base->norms[i].name);
    free(base->norms);
    free(e->borders);
    free(e->skips);
    free(e->extents);
    free(e->scales);
    free(e);
}

static const struct engine_ops model_ops = {train, evaluate, sum_tied,   broadcast_tied,
                                            owns,  seek,     engine_free};

/* ---- making one ------------------------------------------------------------------------------ */

static int make_stages(struct model_engine *e, const struct model_engine_config *config)
{
    const struct dp_schedule *s = config->training;
    int err = 0;

    for (int i = 0; i < dp_schedule_slot_count(s, engine_rank(&e->base)) && !err; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, engine_rank(&e->base), i);
        err = stage_new(&(struct stage_config){.model = config->model,
                                               .stage = slot->stage,
                                               .first_layer = config->first_layer[slot->stage],
                                               .end_layer = config->first_layer[slot->stage + 1],
                                               .rows = model_engine_rows(config->how->rows,
                                                                         config->microbatches, 0),
                                               .microbatches = config->microbatches,
                                               .seed = config->how->seed},
                        &e->stages[i]);
        if (err)
            break;
        const struct stage *stage = e->stages[i];
        e->base.parts[i] = (struct engine_part){.parameters = stage->parameters,
                                                .count = stage->parameter_count,
                                                .layers = stage->layer_of,
                                                .stage = slot->stage,
                                                .second_copy = slot->stream > 0};
        e->base.part_count++;
    }
    return err;
}

/* All stages of this rank pass through the same windows. */
static int make_streamed(struct model_engine *e, const struct model_engine_config *config)
{
    size_t most = 0;

    for (int i = 0; i < e->base.part_count; i++) {
        const size_t bytes = stage_largest_bytes(e->stages[i]);
        most = bytes > most ? bytes : most;
    }
    const int err = config->how->offload.parameters
                        ? streamed_new(most, config->how->offload.device_bytes, &e->streamed)
                        : 0;
    for (int i = 0; i < e->base.part_count; i++)
        e->stages[i]->streamed = e->streamed;
    return err;
}

static struct dp_batch_norm *norm_here(const struct model_engine *e, int32_t layer, int32_t k)
{
    for (int i = 0; i < e->base.part_count; i++) {
        const struct stage *s = e->stages[i];
        if (layer >= s->first_layer && layer < s->first_layer + s->layer_count)
            return s->layers[layer - s->first_layer].norms[k];
    }
    return NULL;
}

/* "layer 3", or "layer 3 norm 1" of several; of a layer that is used again by its own place. */
static char *name_norm(const struct model_info *m, int32_t layer, int32_t k)
{
    const struct dp_layer *l = m->layers[layer];
    char name[DP_LAYER_NAME + 48], which[32] = "";
    bool again = false;

    for (int32_t i = 0; i < layer; i++)
        again = again || m->layers[i] == l;
    if (l->norm_count > 1)
        snprintf(which, sizeof(which), " norm %d", k);
    if (l->name && *l->name && !again)
        snprintf(name, sizeof(name), "%s%s", l->name, which);
    else
        snprintf(name, sizeof(name), "layer %d%s", layer, which);
    return strdup(name);
}

static int make_norms(struct model_engine *e)
{
    const struct model_info *m = e->model;
    int32_t count = 0;

    for (int32_t l = 0; l < m->model.layer_count; l++)
        count += m->layers[l]->norm_count;
    e->base.norms = calloc((size_t)count + 1, sizeof(*e->base.norms));
    if (!e->base.norms)
        return dp_fail(DP_ENOMEM, "no memory for %d norms", count);
    for (int32_t l = 0; l < m->model.layer_count; l++)
        for (int32_t k = 0; k < m->layers[l]->norm_count; k++) {
            struct engine_norm *n = &e->base.norms[e->base.norm_count];
            *n = (struct engine_norm){name_norm(m, l, k), l, k, m->layers[l]->norms[k].channels,
                                      norm_here(e, l, k)};
            if (!n->name)
                return dp_fail(DP_ENOMEM, "no memory for the name of a norm");
            e->base.norm_count++;
        }
    return 0;
}

static int make_borders(struct model_engine *e, const struct model_engine_config *config)
{
    const struct dp_schedule *s = config->training;
    const struct dp_model *m = &config->model->model;
    const int64_t rows = e->stages[0]->rows;
    const size_t own = (size_t)engine_own_microbatches(&e->base);

    e->borders = calloc((size_t)s->stages + 1, sizeof(*e->borders));
    e->skips = calloc((size_t)s->skip_count + 1, sizeof(*e->skips));
    e->extents = calloc(own, sizeof(*e->extents));
    e->scales = calloc(own, sizeof(*e->scales));
    if (!e->borders || !e->skips || !e->extents || !e->scales)
        return dp_fail(DP_ENOMEM, "no memory for the borders of %d stages", s->stages);
    model_border(m->input, rows, &e->borders[0]);
    for (int32_t i = 1; i <= s->stages; i++)
        model_border(m->layers[config->first_layer[i] - 1]->out, rows, &e->borders[i]);
    if (m->labels)
        model_border(m->labels, rows, &e->labels);
    for (int32_t i = 0; i < s->skip_count; i++)
        for (int32_t k = 0; k < m->skip_count; k++)
            if (!strcmp(m->skips[k].name, s->skips[i].name))
                model_spec(&m->skips[k].tensor, rows, &e->skips[i]);
    return 0;
}

static int make_pipeline(struct model_engine *e, const struct model_engine_config *config)
{
    struct dp_stage stages[DP_MAX_SLOTS];
    const struct dp_model *m = &config->model->model;

    for (int i = 0; i < e->base.part_count; i++)
        stages[i] = stage_view(e->stages[i]);
    return dp_pipeline_new(&(struct dp_pipeline_config){.schedule = config->training,
                                                        .also = &e->forward,
                                                        .also_count = 1,
                                                        .comm = config->comm,
                                                        .stages = stages,
                                                        .borders = e->borders,
                                                        .skips = e->skips,
                                                        .labels = m->labels ? &e->labels : NULL,
                                                        .max_extents = {e->stages[0]->rows},
                                                        .loss = m->loss,
                                                        .loss_user = m->loss_user,
                                                        .copy_strided = true,
                                                        .seed = config->how->seed,
                                                        .fixed_order = config->order_blocks,
                                                        .order_blocks = config->order_blocks,
                                                        .pinned_sums = e->streamed,
                                                        .first_mb = engine_first_mb(&e->base),
                                                        .tied_copies = /* each has a shard */
                                                        config->how->sums == DP_SUMS_SHARDS,
                                                        .reduce = config->reduce,
                                                        .reduce_user = config->reduce_user,
                                                        .recorder = e->base.recorder},
                           &e->pipeline);
}

static int build(struct model_engine *e, const struct model_engine_config *config)
{
    const struct dp_schedule *s = config->training;
    int err = make_stages(e, config);

    if (!err)
        err = make_streamed(e, config);
    if (!err)
        err = make_norms(e);
    if (!err)
        err = make_borders(e, config);
    if (!err)
        err = dp_recorder_new(dp_schedule_count(s, engine_rank(&e->base)), 2, &e->base.recorder);
    err = dp_comm_share_error(config->all, err);
    if (err)
        return err;
    /* A pipeline tells its own ranks at most, not those of other replicas. */
    err = engine_fail(config->all, make_pipeline(e, config));
    return dp_comm_share_error(config->all, err);
}

int model_engine_new(const struct model_engine_config *config, struct engine **out)
{
    const struct model_info *m = config->model;
    struct model_engine *e = calloc(1, sizeof(*e));

    if (!e)
        return dp_comm_share_error(config->all, dp_fail(DP_ENOMEM, "no memory for an engine"));
    e->model = m;
    e->forward = config->forward;
    e->rows = config->how->rows;
    e->base = (struct engine){.ops = &model_ops,
                              .microbatches = config->microbatches,
                              .replica = config->replica,
                              .layers = m->model.layer_count,
                              .comm = config->comm,
                              .schedule = config->training,
                              .reduces = config->reduce};
    for (int32_t i = 0; i < m->first[m->model.layer_count]; i++)
        e->base.tied = e->base.tied || m->parameters[i].tied;
    const int err = build(e, config);
    if (err)
        engine_free(&e->base);
    else
        *out = &e->base;
    return err;
}
