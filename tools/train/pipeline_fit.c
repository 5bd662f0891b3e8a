/* SPDX-License-Identifier: Apache-2.0 */
#include "train/pipeline_fit.h"

#include "train/streamed.h"

#include <stdlib.h>

/* By which the choice is predicted: forward operations, and bytes each way, in a nanosecond. The same on
 * all ranks, so not measured; DUALPIPE_DEVICE_LINK_MBS is not asked. */
static const double flops_per_ns = 10, bytes_per_ns = 4;

static int stage_at(const struct pipeline_fit *fit, int rank, int slot)
{
    return dp_schedule_slot(fit->training, rank, slot)->stage;
}

static struct gpt_stage_size size_at(const struct pipeline_fit *fit, int rank, int slot)
{
    return gpt_stage_size(fit->model, stage_at(fit, rank, slot), fit->training->stages);
}

size_t pipeline_fit_state(const struct pipeline_fit *fit, int rank)
{
    size_t bytes = 0;

    for (int i = 0; !fit->optimizer && i < dp_schedule_slot_count(fit->training, rank); i++)
        bytes += 2 * size_at(fit, rank, i).param_count * sizeof(real);
    return bytes;
}

/* All but what the pipeline's plan has. stages: bare ones, of the rank's slots. */
static size_t bytes_beside(const struct pipeline_fit *fit, int rank,
                           struct gpt_stage *const *stages)
{
    size_t bytes = pipeline_fit_state(fit, rank);

    for (int i = 0; i < dp_schedule_slot_count(fit->training, rank); i++)
        bytes += fit->params ? size_at(fit, rank, i).scratch_bytes +
                                   param_stream_keep(stages[i], fit->device_share).bytes
                             : gpt_stage_memory(fit->model, stage_at(fit, rank, i),
                                                fit->training->stages);
    return bytes + (fit->params ? param_stream_bytes(fit->model) : 0);
}

static struct dp_cost cost_of(const struct pipeline_fit *fit)
{
    const struct gpt_config *c = fit->model;
    const int stages = fit->training->stages;
    struct gpt_stage_size size = gpt_stage_size(c, stages - 1, stages);
    double rows = (double)c->batch * c->context;
    double flops = rows * (2.0 * (double)size.param_count +
                           4.0 * c->context * c->width * c->layers / stages);
    double f_ns = flops / flops_per_ns, copy_ns = (double)size.save_bytes / bytes_per_ns;

    return (struct dp_cost){
        .f_ns = f_ns, .i_ns = f_ns, .w_ns = f_ns, .evict_ns = copy_ns, .fetch_ns = copy_ns};
}

/* ---- the choice ------------------------------------------------------------------------------ */

struct lists {
    struct dp_border *borders; /* [stages + 1] */
    struct gpt_stage **bare;   /* [slots of all ranks] */
    struct dp_stage *stages;   /* the same */
    size_t *beside;            /* [ranks] */
    size_t slots;
};

static int make_lists(const struct pipeline_fit *fit, struct lists *l)
{
    const struct dp_schedule *s = fit->training;
    int err = 0;

    l->slots = s->first_slot[s->ranks];
    l->borders = calloc((size_t)s->stages + 1, sizeof(*l->borders));
    l->bare = calloc(l->slots, sizeof(*l->bare));
    l->stages = calloc(l->slots, sizeof(*l->stages));
    l->beside = calloc((size_t)s->ranks, sizeof(*l->beside));
    if (!l->borders || !l->bare || !l->stages || !l->beside)
        return DP_ENOMEM;
    gpt_borders(fit->model, s->stages, l->borders);
    for (size_t i = 0; i < l->slots && !err; i++) {
        err = gpt_stage_new_bare(fit->model, s->slots[i].stage, s->stages, &l->bare[i]);
        if (!err)
            l->stages[i] = gpt_stage_view(l->bare[i]);
    }
    for (int rank = 0; rank < s->ranks && !err; rank++)
        l->beside[rank] = bytes_beside(fit, rank, l->bare + s->first_slot[rank]);
    return err;
}

static void free_lists(struct lists *l)
{
    for (size_t i = 0; l->bare && i < l->slots; i++)
        gpt_stage_free(l->bare[i]);
    free(l->borders);
    free(l->bare);
    free(l->stages);
    free(l->beside);
}

int pipeline_fit_choose(const struct pipeline_fit *fit, struct dp_offload_choice *out)
{
    const struct dp_cost cost = cost_of(fit);
    struct lists l = {0};
    int err = make_lists(fit, &l);

    if (!err)
        err = dp_offload_activations(fit->training,
                                     &(struct dp_offload_activations){
                                         .borders = l.borders,
                                         .stages = l.stages,
                                         .budget_bytes = fit->device_bytes,
                                         .beside_bytes = l.beside,
                                         .keep = !fit->activations,
                                         .sums = !fit->params,
                                         .also = fit->forward,
                                         .lead = 1,
                                         .order_blocks = fit->order_blocks,
                                         .cost = &cost,
                                     },
                                     out);
    free_lists(&l);
    return err;
}
