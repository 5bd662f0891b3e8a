/* SPDX-License-Identifier: Apache-2.0 */
#include "base/internal.h"
#include "device/internal.h"
#include "optimizer/internal.h"
#include "pipeline/internal.h"
#include "trainer/model_engine.h"

#include "base/clock.h"
#include "base/fail.h"
#include "trainer/batch.h"
#include "trainer/engine.h"
#include "trainer/links.h"
#include "trainer/norms.h"
#include "trainer/stage.h"

#include <dualpipe/batch_norm.h>
#include <dualpipe/memory.h>

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
    struct place *place; /* of batches and losses */
    struct place *work;  /* of stages: the same, or a part of the host's memory that is limited */
    size_t others_bytes; /* what the device of work had given before */
    int64_t steps_ns;    /* training steps took */
    struct batch_part *inputs,
        *labels_part; /* what begins and ends here; NULL: the model has no labels */
    double *losses,
        *read_losses;      /* [mb_per_stream] in the place's memory, and where they are read */
    struct dp_comm *links; /* what the pipeline's messages go by; NULL: base.comm */
    bool trains;           /* the step at hand */
};

/* ---- a step ---------------------------------------------------------------------------------- */

/* Of all micro-batches of this replica: their rows, where they differ from what is declared. */
static bool take_rows(struct model_engine *e, int64_t rows)
{
    const int32_t m = e->base.microbatches, own = engine_own_microbatches(&e->base);
    bool uneven = false;

    for (int32_t i = 0; i < own; i++) {
        const int64_t of_mb = batch_rows(rows, m, engine_first_mb(&e->base) + i);
        e->extents[i][0] = of_mb;
        uneven = uneven || of_mb != e->stages[0]->rows;
    }
    return uneven;
}

/* The upstream gradient of each micro-batch of a stream, so that the whole is the mean over rows.
 */
static void take_scales(struct model_engine *e, int64_t rows, int32_t first, int32_t count)
{
    const struct engine *b = &e->base;
    int64_t of = rows;

    if (b->replica.apart)
        of = batch_rows_before(rows, b->microbatches,
                               engine_first_mb(b) + engine_own_microbatches(b)) -
             batch_rows_before(rows, b->microbatches, engine_first_mb(b));
    for (int32_t i = 0; i < count; i++)
        e->scales[i] =
            b->loss_scale * (double)batch_rows(rows, b->microbatches, first + i) / (double)of;
}

static int end_of_loss(const struct model_engine *e, int call, int64_t begun_ns, int err)
{
    const struct stage *s = e->stages[0];

    return err || !s->times ? err : stage_note_time(s, s->layer_count, call, begun_ns);
}

/* The loss writes to the place's memory, in the order of the stream. */
static int take_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                     const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    const struct model_engine *e = user;
    const struct dp_model *m = &e->model->model;
    const int64_t begun_ns = e->stages[0]->times ? dp_now_ns() : 0;

    *values = 0;
    const int err =
        m->loss->loss(m->loss_user, call, out, labels, e->losses + call->mb, max, count);
    return end_of_loss(e, STAGE_FORWARD, begun_ns, err);
}

static int start_from_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                           const DLTensor *labels, double scale, DLTensor *gout)
{
    const struct model_engine *e = user;
    const struct dp_model *m = &e->model->model;
    const int64_t begun_ns = e->stages[0]->times ? dp_now_ns() : 0;
    const int err = m->loss->loss_backward(m->loss_user, call, out, labels, scale, gout);

    return end_of_loss(e, STAGE_BACKWARD, begun_ns, err);
}

static const struct dp_loss_ops loss_ops = {take_loss, start_from_loss};

/* What the host wants to know of a step. */
static int queue_numbers(void *user)
{
    struct model_engine *e = user;
    const int err = place_copy(e->place, e->read_losses, e->losses,
                               (size_t)e->base.schedule->mb_per_stream * sizeof(*e->losses));

    return err || !e->trains || !e->base.queued ? err : e->base.queued(e->base.queued_user);
}

static int begin_parts(struct model_engine *e, const struct dp_schedule *s,
                       const struct dp_batch *batch, int64_t rows, double *losses,
                       struct dp_step *step)
{
    int err = 0;

    for (int i = 0; i < e->base.part_count && !err; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, engine_rank(&e->base), i);
        const int32_t count = s->mb_per_stream,
                      first = engine_first_mb(&e->base) + slot->stream * count;
        if (dp_slot_is_first(slot))
            err =
                batch_part_begin(e->inputs, batch->inputs, batch->input_loader, rows, first, count);
        if (!dp_slot_is_last(slot) || err)
            continue;
        if (e->labels_part)
            err = batch_part_begin(e->labels_part, batch->labels, batch->label_loader, rows, first,
                                   count);
        take_scales(e, rows, first, count);
        step->losses = losses + first;
        step->loss_scales = s->forward_only ? NULL : e->scales;
    }
    return err;
}

static int run(struct engine *base, const struct dp_schedule *s, const struct dp_batch *batch,
               double *losses)
{
    struct model_engine *e = (struct model_engine *)base;
    const int64_t rows = batch->rows ? batch->rows : e->rows;
    struct dp_step step = {.schedule = s, .queued = queue_numbers, .queued_user = e};
    if (!e->pipeline)
        return 0;

    e->trains = !s->forward_only;
    if (e->streamed)
        streamed_begin(e->streamed, e->trains);
    if (take_rows(e, rows))
        step.extents = (const int64_t(*)[DP_MAX_EXTENTS])e->extents;
    int err = begin_parts(e, s, batch, rows, losses, &step);
    for (int i = 0; i < base->part_count && !err; i++) {
        err = stage_put(e->stages[i], false);
        if (!err)
            err = stage_round(e->stages[i]);
    }
    if (!err) {
        step.inputs = batch_part_cut(e->inputs);
        step.input_loader = batch_part_loader(e->inputs);
        step.labels = batch_part_cut(e->labels_part);
        step.label_loader = batch_part_loader(e->labels_part);
        err = dp_pipeline_step(e->pipeline, &step);
    }
    if (!err && step.losses)
        memcpy(step.losses, e->read_losses, (size_t)s->mb_per_stream * sizeof(*step.losses));
    batch_part_end(e->inputs);
    batch_part_end(e->labels_part);
    return err;
}

int model_engine_train(struct engine *e, const struct dp_batch *batch, double *losses)
{
    const int64_t begun_ns = dp_now_ns();

    dp_recorder_enable(e->recorder, true);
    const int err = run(e, e->schedule, batch, losses);
    ((struct model_engine *)e)->steps_ns += dp_now_ns() - begun_ns;
    return err;
}

int model_engine_evaluate(struct engine *e, const struct dp_batch *batch, double *losses)
{
    dp_recorder_enable(e->recorder, false);
    return run(e, ((struct model_engine *)e)->forward, batch, losses);
}

/* What the pipeline does with tied parameters it does where they compute. */
static int with_tied(struct engine *base, bool gradients, int (*act)(struct dp_pipeline *pipeline))
{
    struct model_engine *e = (struct model_engine *)base;
    int err = 0;

    for (int i = 0; i < base->part_count && !err; i++)
        err = stage_put(e->stages[i], gradients);
    if (!err && e->pipeline)
        err = act(e->pipeline);
    for (int i = 0; i < base->part_count && !err; i++)
        err = stage_fetch(e->stages[i], gradients);
    return err;
}

int model_engine_sum_tied(struct engine *e)
{
    return with_tied(e, true, dp_pipeline_sum_tied);
}

int model_engine_broadcast_tied(struct engine *e)
{
    return with_tied(e, false, dp_pipeline_broadcast_tied);
}

int model_engine_fetch(struct engine *e, int slot)
{
    return stage_fetch(((struct model_engine *)e)->stages[slot], true);
}

bool model_engine_owns(const struct engine *e, int slot, int parameter)
{
    const struct dp_pipeline *pipeline = ((const struct model_engine *)e)->pipeline;
    const struct dp_parameter *p = &e->parts[slot].parameters[parameter];

    return pipeline ? dp_pipeline_owns(pipeline, slot, parameter)
                    : !p->tied || (!e->parts[slot].second_copy && !model_is_copy(p->name, p->tied));
}

void model_engine_seek(struct engine *e, uint64_t step)
{
    struct dp_pipeline *pipeline = ((struct model_engine *)e)->pipeline;

    if (pipeline)
        dp_pipeline_seek(pipeline, step);
}

void model_engine_free(struct engine *base)
{
    struct model_engine *e = (struct model_engine *)base;

    if (!e)
        return;
    dp_pipeline_free(e->pipeline);
    dp_comm_close(e->links);
    dp_recorder_free(base->recorder);
    streamed_free(e->streamed);
    batch_part_free(e->inputs);
    batch_part_free(e->labels_part);
    place_release(e->place, DP_MEMORY_DEVICE, e->losses);
    place_release(e->place, DP_MEMORY_PINNED, e->read_losses);
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        stage_free(e->stages[i]);
    if (e->work != e->place)
        place_free(e->work);
    for (int32_t i = 0; i < base->norms.count; i++)
        free((char *)base->norms.list[i].name);
    free(base->norms.list);
    free(e->borders);
    free(e->skips);
    free(e->extents);
    free(e->scales);
    free(e);
}

/* ---- making one ------------------------------------------------------------------------------ */

/* On the host what is called the device is memory that is counted, to which threads copy. */
static int open_work(struct model_engine *e, const struct model_engine_config *config)
{
    const struct device_room *room = config->rooms ? &config->rooms[engine_rank(&e->base)] : NULL;
    struct dp_device_usage usage;
    int err = 0;

    e->work = e->place;
    if (config->bare || !trainer_offloads(config->how))
        return 0;
    if (!place_device(e->place))
        err = place_new(NULL, NULL, true, &e->work);
    if (err)
        return err;
    dp_device_usage(place_any_device(e->work), &usage);
    e->others_bytes = usage.bytes;
    if (room && e->work != e->place)
        dp_device_limit(place_any_device(e->work), room->limit_bytes);
    return 0;
}

/* The last layers stay on the device that have no more than the share: of a stage, or of all of a rank
 * alone. */
static int32_t first_kept(const struct model_engine_config *config, int stage)
{
    const bool alone = config->training->ranks == 1;
    const int32_t *first = config->first_layer;
    const int32_t end = first[alone ? config->training->stages : stage + 1];
    const struct model_info *m = config->model;
    const double share = config->how->offload.kept_share;
    double left = 0;
    int32_t layer = end;

    for (int32_t k = m->first[first[alone ? 0 : stage]]; k < m->first[end]; k++)
        left += share * (double)m->parameters[k].bytes;
    while (share > 0 && layer > first[alone ? 0 : stage]) {
        for (int32_t k = m->first[layer - 1]; k < m->first[layer]; k++)
            left -= (double)m->parameters[k].bytes;
        if (left < 0)
            break;
        layer--;
    }
    return layer;
}

static int make_stages(struct model_engine *e, const struct model_engine_config *config)
{
    const struct dp_schedule *s = config->training;
    int err = 0;

    for (int i = 0; i < dp_schedule_slot_count(s, engine_rank(&e->base)) && !err; i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, engine_rank(&e->base), i);
        err = stage_new(
            &(struct stage_config){.bare = config->bare,
                                   .model = config->model,
                                   .stage = slot->stage,
                                   .first_layer = config->first_layer[slot->stage],
                                   .end_layer = config->first_layer[slot->stage + 1],
                                   .rows = batch_rows(config->how->rows, config->microbatches, 0),
                                   .microbatches = config->microbatches,
                                   .seed = config->how->seed,
                                   .dtype = config->how->dtype,
                                   .place = e->work,
                                   .away = config->away,
                                   .streams = config->how->offload.parameters,
                                   .first_kept = first_kept(config, slot->stage)},
            &e->stages[i]);
        if (err)
            break;
        const struct stage *stage = e->stages[i];
        e->base.parts[i] = (struct engine_part){.parameters = stage->homes,
                                                .count = stage->parameter_count,
                                                .streamed = stage->streamed_parameters,
                                                .layers = stage->layer_of,
                                                .stage = slot->stage,
                                                .second_copy = slot->stream > 0};
        e->base.stage_bytes += stage->memory_bytes + stage->passing_bytes;
        e->base.part_count++;
    }
    return err;
}

static size_t largest_bytes(const struct model_engine *e)
{
    size_t most = 0;

    for (int i = 0; i < e->base.part_count; i++) {
        const size_t bytes = stage_largest_bytes(e->stages[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Threads that copy, to the node of the parameters; where that is not known, or refused, they run on any
 * CPU. */
static void bind_threads(const struct model_engine *e)
{
    const struct stage *s = e->stages[0];
    const int node = !s           ? -1
                     : s->passing ? dp_memory_numa_node(s->passing, s->passing_bytes)
                                  : dp_memory_numa_node(s->memory, s->memory_bytes);

    if (node >= 0)
        (void)dp_device_bind(place_any_device(e->work), node);
}

/* All stages of this rank pass through the same windows. */
static int make_streamed(struct model_engine *e, const struct model_engine_config *config)
{
    const struct device_room *room = config->rooms ? &config->rooms[engine_rank(&e->base)] : NULL;
    const size_t largest = largest_bytes(e);
    const size_t ops = dp_schedule_count(config->training, engine_rank(&e->base));
    int32_t layers = 0, most = 0;
    int err = 0;

    for (int i = 0; i < e->base.part_count; i++) {
        layers += e->stages[i]->streamed_layers;
        most = e->stages[i]->layer_count > most ? e->stages[i]->layer_count : most;
    }
    if (config->how->offload.layers && config->how->offload.layers < layers)
        layers = config->how->offload.layers;
    if (e->work != e->place)
        bind_threads(e);
    if (largest && !config->bare)
        err = streamed_new(e->work,
                           &(struct streamed_config){
                               .layers = layers,
                               .largest_bytes = largest,
                               .rounds = config->how->dtype,
                               .budget_bytes = room ? room->window_bytes : 0,
                               .uses = ops * (size_t)most,
                           },
                           &e->streamed);
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
    e->base.norms.list = calloc((size_t)count + 1, sizeof(*e->base.norms.list));
    if (!e->base.norms.list)
        return dp_fail(DP_ENOMEM, "no memory for %d norms", count);
    for (int32_t l = 0; l < m->model.layer_count; l++)
        for (int32_t k = 0; k < m->layers[l]->norm_count; k++) {
            struct engine_norm *n = &e->base.norms.list[e->base.norms.count];
            *n = (struct engine_norm){name_norm(m, l, k), l, k, m->layers[l]->norms[k].channels,
                                      norm_here(e, l, k)};
            if (!n->name)
                return dp_fail(DP_ENOMEM, "no memory for the name of a norm");
            e->base.norms.count++;
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

static int make_part(struct model_engine *e, const struct dp_border *border, const char *what,
                     struct batch_part **out)
{
    return batch_part_new(&(struct batch_part_config){.place = e->place,
                                                      .border = border,
                                                      .microbatches = e->base.microbatches,
                                                      .most = e->base.schedule->mb_per_stream,
                                                      .what = what},
                          out);
}

static int make_numbers(struct model_engine *e)
{
    const size_t bytes = (size_t)e->base.schedule->mb_per_stream * sizeof(double);
    void *memory[2] = {0};
    int err = make_part(e, &e->borders[0], "inputs", &e->inputs);

    if (!err && e->model->model.labels)
        err = make_part(e, &e->labels, "labels", &e->labels_part);
    if (!err)
        err = place_alloc(e->place, DP_MEMORY_DEVICE, bytes, &memory[0]);
    if (!err)
        err = place_alloc(e->place, DP_MEMORY_PINNED, bytes, &memory[1]);
    e->losses = memory[0];
    e->read_losses = memory[1];
    return err ? err : place_wait(e->place);
}

/* The sums of the fixed order are where gradients are that pass, if threads can add there. */
static bool sums_are_pinned(const struct dp_trainer_config *how)
{
    return how->offload.parameters && (!how->device || dp_device_host_accessible(how->device));
}

static struct dp_pipeline_config pipeline_of(struct model_engine *e,
                                             const struct model_engine_config *config,
                                             struct dp_stage stages[static DP_MAX_SLOTS])
{
    const struct dp_trainer_config *how = config->how;

    for (int i = 0; i < e->base.part_count; i++)
        stages[i] = stage_view(e->stages[i]);
    return (struct dp_pipeline_config){
        .schedule = config->training,
        .also = &e->forward,
        .also_count = 1,
        .device = e->work != e->place ? place_any_device(e->work) : place_device(e->place),
        .stream = place_stream(e->place),
        .stages = stages,
        .borders = e->borders,
        .skips = e->skips,
        .labels = config->model->model.labels ? &e->labels : NULL,
        .max_extents = {e->stages[0]->rows},
        .loss = &loss_ops,
        .loss_user = e,
        .copy_strided = true,
        .seed = how->seed,
        .fixed_order = config->order_blocks,
        .order_blocks = config->order_blocks,
        .pinned_sums = sums_are_pinned(how),
        .first_mb = engine_first_mb(&e->base),
        /* Each has a shard, or may be the last one. */
        .tied_copies = how->sums == DP_SUMS_SHARDS || how->survive,
        .execution = how->execution,
        .reduce_user = config->reduce_user,
        .recorder = e->base.recorder,
    };
}

static int make_pipeline(struct model_engine *e, const struct model_engine_config *config,
                         struct dp_comm *comm, const struct dp_reduce_ops *reduce)
{
    struct dp_stage stages[DP_MAX_SLOTS];
    struct dp_pipeline_config of = pipeline_of(e, config, stages);
    struct dp_pipeline_memory memory;

    of.comm = comm;
    of.reduce = reduce;
    int err = dp_pipeline_new(&of, &e->pipeline);
    if (err)
        return err;
    dp_pipeline_memory(e->pipeline, &memory);
    e->base.pipeline_bytes = memory.total_bytes - memory.evicted_bytes;
    return 0;
}

static int open_links(struct model_engine *e, const struct model_engine_config *config)
{
    const struct dp_schedule *const schedules[] = {config->training, config->forward};

    return links_of_pipeline(config->comm, place_device(e->place), schedules, engine_rank(&e->base),
                             e->base.tied, &e->links);
}

/* ---- every kernel once ----------------------------------------------------------------------- */

/* The first launch of a kernel may load it, and loading may wait until the device is idle; a kernel
 * of NCCL's that waits for a message keeps it busy until another rank, which may be loading just as
 * this one, has sent it. So the first step is taken on zeros, by a pipeline whose messages go by
 * the host; nothing of it stays. Source: CUDA C++ Programming Guide, "Lazy Loading", issues with
 * concurrent execution. */

static int no_sum(void *user, int slot)
{
    (void)user, (void)slot;
    return 0;
}

/* Zeros of a whole step, as one tensor for each of the border. */
struct zeros {
    void *memory[DP_MAX_TENSORS];
    int64_t shapes[DP_MAX_TENSORS][DP_MAX_DIMS];
    DLTensor tensors[DP_MAX_TENSORS];
    struct dp_tree leaves[DP_MAX_TENSORS], tree;
};

static int make_zeros(const struct dp_border *of_row, int64_t rows, struct zeros *z)
{
    for (int k = 0; of_row && k < of_row->count; k++) {
        struct dp_tensor_spec spec;
        model_spec(&of_row->tensors[k], rows, &spec);
        memcpy(z->shapes[k], spec.shape, sizeof(z->shapes[k]));
        z->memory[k] = calloc(1, model_spec_bytes(&spec));
        if (!z->memory[k])
            return dp_fail(DP_ENOMEM, "no memory for a batch of zeros");
        z->tensors[k] = (DLTensor){.data = z->memory[k],
                                   .device = {kDLCPU, 0},
                                   .ndim = spec.ndim,
                                   .dtype = spec.dtype,
                                   .shape = z->shapes[k]};
        z->leaves[k] = dp_tensor(&z->tensors[k]);
    }
    z->tree = dp_tuple(of_row ? of_row->count : 0, z->leaves);
    return 0;
}

static int forget(struct model_engine *e)
{
    int err = 0;

    for (int i = 0; i < e->base.part_count && !err; i++)
        err = place_zero_gradients(e->place, e->stages[i]->parameters, e->stages[i]->parameter_count);
    norms_commit(&e->base.norms, 0, NULL);
    dp_pipeline_free(e->pipeline);
    e->pipeline = NULL;
    return err;
}

static int step_on_zeros(struct model_engine *e, const struct model_engine_config *config,
                         struct zeros z[2])
{
    const struct dp_model *m = &e->model->model;
    double *losses = calloc((size_t)e->base.microbatches, sizeof(*losses));
    const struct dp_batch batch = {.inputs = &z[0].tree, .labels = &z[1].tree};
    int err = losses ? 0 : dp_fail(DP_ENOMEM, "no memory for losses");

    if (!err)
        err = make_zeros(m->input, config->how->rows, &z[0]);
    if (!err)
        err = make_zeros(m->labels, config->how->rows, &z[1]);
    if (!err)
        err = run(&e->base, e->base.schedule, &batch, losses);
    free(losses);
    return err;
}

static void free_zeros(struct zeros z[2])
{
    for (int i = 0; i < 2 * DP_MAX_TENSORS; i++)
        free(z[i / DP_MAX_TENSORS].memory[i % DP_MAX_TENSORS]);
    memset(z, 0, 2 * sizeof(*z));
}

static int warm(struct model_engine *e, const struct model_engine_config *config)
{
    static const struct dp_reduce_ops sums = {no_sum, no_sum, no_sum, NULL};
    struct zeros *z = calloc(2, sizeof(*z));
    int err = z ? 0 : dp_fail(DP_ENOMEM, "no memory for a step on zeros");

    if (!err)
        err = make_pipeline(e, config, config->comm, config->reduce ? &sums : NULL);
    if (!err)
        err = step_on_zeros(e, config, z);
    const int forgotten = forget(e);
    if (z)
        free_zeros(z);
    free(z);
    return err ? err : forgotten;
}

static int build(struct model_engine *e, const struct model_engine_config *config)
{
    const struct dp_schedule *s = config->training;
    int err = config->spare ? 0 : open_work(e, config);

    if (!err && !config->spare)
        err = make_stages(e, config);

    if (!err)
        err = make_streamed(e, config);
    if (!err)
        err = make_norms(e);
    if (!err && !config->spare)
        err = make_borders(e, config);
    if (!err && !config->spare)
        err = make_numbers(e);
    if (!err)
        err = dp_recorder_new(dp_schedule_count(s, engine_rank(&e->base)), 2, &e->base.recorder);
    err = engine_share_error(config->all, err);
    if (err)
        return err;
    /* A pipeline tells its own ranks at most, not those of other replicas. */
    if (config->how->nccl && config->all)
        err = engine_fail(config->all, warm(e, config));
    if (!err && config->how->nccl && config->comm)
        err = engine_fail(config->all, open_links(e, config));
    if (!err && !config->spare && !config->bare)
        err = engine_fail(config->all, make_pipeline(e, config, e->links ? e->links : config->comm,
                                                     config->reduce));
    return engine_share_error(config->all, err);
}

int model_engine_new(const struct model_engine_config *config, struct engine **out)
{
    const struct model_info *m = config->model;
    struct model_engine *e = calloc(1, sizeof(*e));

    if (!e)
        return engine_share_error(config->all, dp_fail(DP_ENOMEM, "no memory for an engine"));
    e->model = m;
    e->place = e->work = config->place;
    e->forward = config->forward;
    e->rows = config->how->rows;
    e->base = (struct engine){.microbatches = config->microbatches,
                              .replica = config->replica,
                              .layers = m->model.layer_count,
                              .comm = config->spare ? NULL : config->comm,
                              .rank = config->rank,
                              .schedule = config->training,
                              .reduces = config->reduce};
    for (int32_t i = 0; i < m->first[m->model.layer_count]; i++)
        e->base.tied = e->base.tied || m->parameters[i].tied;
    const int err = build(e, config);
    if (err)
        model_engine_free(&e->base);
    else
        *out = &e->base;
    return err;
}

/* Of parameters without values, of which an optimizer reads none; it only asks that there are some. */
int model_engine_optimizer(struct engine *base, const struct dp_optimizer_config *how, int slot,
                           bool all, struct dp_optimizer **out)
{
    static float none[64];
    const struct stage *s = ((struct model_engine *)base)->stages[slot];
    struct dp_parameter *owned = calloc((size_t)s->parameter_count + 1, sizeof(*owned));
    int32_t count = 0;
    int err = owned ? 0 : dp_fail(DP_ENOMEM, "no memory for %d parameters", s->parameter_count);

    *out = NULL;
    for (int32_t i = all ? 0 : base->parts[slot].streamed; i < s->parameter_count && !err; i++) {
        s->values[i].data = s->grads[i].data = none;
        if (model_engine_owns(base, slot, i))
            owned[count++] = s->parameters[i];
    }
    if (!err && count)
        err = dp_optimizer_new(how, owned, count, out);
    free(owned);
    return err;
}

int model_engine_state(struct engine *base, const struct dp_optimizer_config *how, bool all,
                       size_t *bytes)
{
    struct dp_optimizer *optimizer;
    int err = 0;

    for (int i = 0; i < base->part_count && !err; i++) {
        err = model_engine_optimizer(base, how, i, all, &optimizer);
        *bytes += optimizer ? dp_optimizer_state_bytes(optimizer) : 0;
        dp_optimizer_free(optimizer);
    }
    return err;
}

size_t model_engine_resident(const struct engine *e)
{
    size_t bytes = 0;

    for (int i = 0; i < e->part_count; i++)
        bytes += ((const struct model_engine *)e)->stages[i]->memory_bytes;
    return bytes;
}

size_t model_engine_windows(const struct engine *e, DLDataType rounds)
{
    return streamed_least(largest_bytes((const struct model_engine *)e), rounds);
}

void model_engine_offload(const struct engine *base, struct dp_trainer_offload *out)
{
    const struct model_engine *e = (const struct model_engine *)base;
    struct dp_pipeline_copies copies = {0};
    struct dp_device_usage usage;
    size_t streamed = 0, all = 0;

    for (int i = 0; i < base->part_count; i++) {
        streamed += e->stages[i]->passing_bytes / 2;
        all += e->stages[i]->values_bytes;
    }
    dp_device_usage(place_any_device(e->work), &usage);
    if (e->streamed)
        streamed_times(e->streamed, &out->up_ns, &out->down_ns, &out->wait_ns);
    if (e->pipeline)
        dp_pipeline_copies(e->pipeline, &copies);
    out->up_ns += copies.up_ns;
    out->down_ns += copies.down_ns;
    out->wait_ns += copies.wait_ns;
    out->steps_ns = e->steps_ns;
    out->device_bytes = usage.peak_bytes - e->others_bytes;
    out->kept = all ? 1 - (double)streamed / (double)all : 0;
}

static int measure_pipeline(struct model_engine *e, const struct model_engine_config *config,
                            const struct dp_schedule *training, struct dp_pipeline_memory *out)
{
    struct dp_stage stages[DP_MAX_SLOTS];
    struct dp_pipeline_config of = pipeline_of(e, config, stages);

    of.schedule = training;
    of.reduce = config->reduce;
    of.recorder = NULL;
    return dp_pipeline_measure(&of, config->rank, out);
}

int model_engine_planned(struct engine *base, const struct model_engine_config *config,
                         const struct dp_schedule *training, size_t *bytes)
{
    struct dp_pipeline_memory m;
    const int err = measure_pipeline((struct model_engine *)base, config, training, &m);

    if (err)
        return err;
    *bytes = m.total_bytes - m.evicted_bytes;
    if (sums_are_pinned(config->how))
        *bytes -= m.fixed_order_bytes;
    return 0;
}

int model_engine_memory(struct engine *base, const struct model_engine_config *config,
                        size_t *bytes, size_t *saved)
{
    struct model_engine *e = (struct model_engine *)base;
    struct dp_pipeline_memory memory;
    const int err = measure_pipeline(e, config, config->training, &memory);

    if (err)
        return err;
    *bytes = memory.total_bytes - memory.evicted_bytes;
    for (int i = 0; i < base->part_count; i++) {
        const struct dp_save_bytes *save = &e->stages[i]->save;
        const size_t all = save->whole + save->input + save->weight;
        *bytes += e->stages[i]->memory_bytes + e->stages[i]->passing_bytes;
        *saved = all > *saved ? all : *saved;
    }
    return 0;
}

static int take_steps_on_zeros(struct engine *base, const struct model_engine_config *config,
                               int steps, struct stage_times *times)
{
    struct model_engine *e = (struct model_engine *)base;
    struct zeros *z = calloc(2, sizeof(*z));
    int err = z ? 0 : dp_fail(DP_ENOMEM, "no memory for a step on zeros");

    e->stages[0]->times = times;
    base->loss_scale = 1;
    for (int i = 0; i < steps && !err; i++) {
        err = step_on_zeros(e, config, z);
        norms_commit(&base->norms, 0, NULL);
        free_zeros(z);
    }
    free(z);
    return err;
}

/* Where the host computes. The first of two touches the memory of the state. */
static int take_update(const struct stage *s, int32_t i, const struct dp_optimizer_config *how,
                       double *squares)
{
    const struct dp_optimizer_step step = {.rate = 1e-4, .scale = 1, .zero_grads = true};
    const struct dp_parameter *list = &s->parameters[s->layers[i].first];
    const int32_t count = s->layers[i].layer->parameter_count;
    struct dp_optimizer *optimizer;
    int err = dp_optimizer_new(how, list, count, &optimizer);

    if (err)
        return err;
    for (int k = 0; k < 2 && !err; k++) {
        const int64_t begun_ns = dp_now_ns();
        err = dp_gradient_squares(list, count, squares);
        if (!err)
            err = stage_note_time(s, i, STAGE_NORM, begun_ns);
        const int64_t between_ns = dp_now_ns();
        if (!err)
            err = dp_optimizer_step(optimizer, &step);
        if (!err)
            err = stage_note_time(s, i, STAGE_UPDATE, between_ns);
    }
    dp_optimizer_free(optimizer);
    return err;
}

static int take_updates(const struct stage *s, const struct dp_optimizer_config *how)
{
    double *squares = calloc((size_t)s->parameter_count + 1, sizeof(*squares));
    int err = squares ? 0 : dp_fail(DP_ENOMEM, "no memory for the squares of gradients");

    for (int32_t i = 0; i < s->layer_count && !err; i++)
        if (s->layers[i].layer->parameter_count && !place_device(s->place))
            err = take_update(s, i, how, squares);
    free(squares);
    return err;
}

int model_engine_measure(const struct model_engine_config *config, int steps,
                         struct stage_times *times)
{
    const int32_t last = config->model->model.layer_count - 1;
    struct engine *e;
    int err = model_engine_new(config, &e);

    if (err)
        return err;
    err = take_steps_on_zeros(e, config, steps, times);
    for (int call = 0; call < STAGE_CALLS && !err; call++)
        times[last].ns[call] += times[last + 1].ns[call];
    if (!err)
        err = take_updates(((struct model_engine *)e)->stages[0], &config->how->optimizer);
    model_engine_free(e);
    return err;
}
