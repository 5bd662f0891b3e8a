/* SPDX-License-Identifier: Apache-2.0
 *
 * new.c - make a trainer: check what is asked for, the same on all ranks; the grid of ranks, the
 * schedule and the cut of the model that follow; then the parts.
 */
#include "comm/internal.h"
#include "mixing/internal.h"
#include "schedule/internal.h"
#include "trainer/measure.h"
#include "trainer/model_engine.h"
#include "trainer/saved.h"
#include "trainer/signals.h"
#include "trainer/trainer_state.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/sized.h"
#include "schedule/build.h"

#include <dualpipe/survival.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCKS = 64, DEFAULT_BLOCKS = 4 };

/* ---- what is asked for ----------------------------------------------------------------------- */

static int check_loss_scale(const struct dp_loss_scale *s)
{
    const bool sound = s->least > 0 && s->scale >= s->least && s->scale <= s->most &&
                       s->growth >= 1 && s->backoff > 0 && s->backoff <= 1 && s->interval > 0;

    return sound || s->scale == 0
               ? 0
               : dp_fail(DP_EINVAL,
                         "loss_scale: %g, expected %g to %g, by growth %g, backoff %g and "
                         "interval %d: 1 or more, above 0 to 1, 1 or more",
                         s->scale, s->least, s->most, s->growth, s->backoff, s->interval);
}

static int check_offload(const struct dp_trainer_config *c)
{
    const bool evicts = c->offload.activations;

    if (c->offload.device_bytes && !trainer_offloads(c))
        return dp_fail(DP_EINVAL, "offload.device_bytes: %zu, expected offload.parameters, activations "
                       "or optimizer, too", c->offload.device_bytes);
    if (evicts && !c->offload.device_bytes)
        return dp_fail(DP_EINVAL, "offload.activations: without offload.device_bytes, expected how much "
                       "may be on the device");
    if (evicts && (c->execution == DP_EXECUTE_MESSAGES || c->schedule.recompute))
        return dp_fail(DP_EINVAL, "offload.activations: with schedule.recompute or DP_EXECUTE_MESSAGES, "
                       "expected neither; what is evicted is chosen for one order of ops");
    if (c->offload.layers && (c->offload.layers < 2 || !c->offload.parameters))
        return dp_fail(DP_EINVAL, "offload.layers: %d, expected 2 or more with offload.parameters, "
                       "or 0", c->offload.layers);
    if (!(c->offload.kept_share >= 0 && c->offload.kept_share <= 1) ||
        (c->offload.kept_share > 0 && !c->offload.parameters))
        return dp_fail(DP_EINVAL, "offload.kept_share: %g, expected 0 to 1, with offload.parameters",
                       c->offload.kept_share);
    if (c->offload.folder && (!c->offload.optimizer || c->sums != DP_SUMS_ALL))
        return dp_fail(DP_EINVAL, "offload.folder: '%s', expected offload.optimizer and DP_SUMS_ALL "
                       "with it", c->offload.folder);
    return 0;
}

int trainer_check_config(const struct dp_trainer_config *c)
{
    if (c->schedule.partition || c->schedule.skips || c->schedule.microbatches ||
        c->schedule.reduce_all || c->schedule.forward_only || c->schedule.return_outputs ||
        c->schedule.mirror_reduce)
        return dp_fail(DP_EINVAL,
                       "schedule: microbatches, skips, partition, reduces, forward_only or "
                       "return_outputs are set, which are the trainer's to set");
    if (c->list && (c->list->forward_only || c->schedule.ranks || c->schedule.kind))
        return dp_fail(DP_EINVAL, "list: without backward, or beside a schedule; expected one for "
                                  "training alone");
    if (c->survive && (c->list || c->delay_update))
        return dp_fail(DP_EINVAL, "survive: with list or delay_update, expected neither");
    if (c->delay_update && c->sums != DP_SUMS_ALL)
        return dp_fail(DP_EINVAL, "delay_update: set, expected DP_SUMS_ALL with it");
    if (c->replicas < 0 || c->schedule.ranks < 0)
        return dp_fail(DP_EINVAL, "ranks: %d and replicas: %d, expected 0 or more",
                       c->schedule.ranks, c->replicas);
    if (c->microbatches < 0 || c->rows < 1)
        return dp_fail(DP_EINVAL,
                       "microbatches: %d and rows: %lld, expected 0 or more, and 1 or more",
                       c->microbatches, (long long)c->rows);
    if (c->sums > DP_SUMS_MIXING || c->balance > DP_BALANCE_MEASURED)
        return dp_fail(DP_EINVAL, "sums: %d and balance: %d, expected one of their enums", c->sums,
                       c->balance);
    if (!(c->clip >= 0))
        return dp_fail(DP_EINVAL, "clip: %g, expected 0 or more", c->clip);
    if (c->order_blocks < 0 || c->order_blocks & (c->order_blocks - 1) ||
        c->order_blocks > MAX_BLOCKS)
        return dp_fail(DP_EINVAL, "order_blocks: %d, expected a power of two to %d, or 0",
                       c->order_blocks, MAX_BLOCKS);
    if (c->survive && c->schedule.rank_map)
        return dp_fail(DP_EUNSUPPORTED, "survive: with schedule.rank_map, expected the order of ranks");
    if (c->survive && c->sums == DP_SUMS_MIXING && c->checkpoint.folder)
        return dp_fail(DP_EUNSUPPORTED, "survive: of replicas that mix with checkpoint.folder, expected "
                       "none, as a checkpoint has the state of each");
    if (c->checkpoint.keep < 0)
        return dp_fail(DP_EINVAL, "checkpoint.keep: %d, expected 0 or more", c->checkpoint.keep);
    if (c->checkpoint.resume && !c->checkpoint.folder)
        return dp_fail(DP_EINVAL, "checkpoint.resume: set, expected a checkpoint.folder");
    if (c->optimizer.groups || c->optimizer.memory || c->optimizer.stream)
        return dp_fail(DP_EINVAL, "optimizer: groups, memory or a stream are set, expected none");
    if (c->dtype.bits && (c->dtype.bits != 16 || c->dtype.lanes != 1 ||
                          (c->dtype.code != kDLBfloat && c->dtype.code != kDLFloat)))
        return dp_fail(DP_EINVAL, "dtype: of %d bits, expected bfloat16 or float16", c->dtype.bits);
    if (c->stream && !c->device)
        return dp_fail(DP_EINVAL, "stream: set, expected a device, too");
    if (c->nccl && (!c->device || dp_device_host_accessible(c->device)))
        return dp_fail(DP_EINVAL, "nccl: set, expected a device of CUDA");
    int err = check_loss_scale(&c->loss_scale);
    if (!err)
        err = check_offload(c);
    return err ? err : dp_rate_check(&c->rate);
}

static void take_defaults(struct dp_trainer_config *c)
{
    const bool local = c->mixing.algorithm == DP_MIXER_LOCAL_SGD;

    if (local && !c->mixing.local_steps)
        c->mixing.local_steps = 8;
    if (local && c->mixing.outer_rate == 0)
        c->mixing.outer_rate = 1;
}

static int take_copies(struct dp_trainer *t, const struct dp_trainer_config *config)
{
    t->config = *config;
    t->folder = config->checkpoint.folder ? strdup(config->checkpoint.folder) : NULL;
    t->about = config->checkpoint.about ? strdup(config->checkpoint.about) : NULL;
    t->config.checkpoint.folder = t->folder;
    t->config.checkpoint.about = t->about;
    take_defaults(&t->config);
    if (config->offload.folder && !(t->state_folder = strdup(config->offload.folder)))
        return dp_fail(DP_ENOMEM, "no memory for the name of a folder");
    t->config.offload.folder = t->state_folder;
    if ((config->checkpoint.folder && !t->folder) || (config->checkpoint.about && !t->about))
        return dp_fail(DP_ENOMEM, "no memory for the name of a folder");
    return 0;
}

/* P, D and M, as far as they were left open. */
int trainer_take_shape(struct dp_trainer *t)
{
    struct dp_trainer_config *c = &t->config;

    c->replicas = c->replicas ? c->replicas : 1;
    if (c->list)
        c->schedule.ranks = c->list->ranks;
    if (!c->schedule.ranks && t->ranks % c->replicas)
        return dp_fail(DP_EINVAL, "replicas: %d, expected a divisor of the %d ranks", c->replicas,
                       t->ranks);
    if (!c->schedule.ranks)
        c->schedule.ranks = t->ranks / c->replicas;
    const int placed = c->schedule.ranks * c->replicas;
    if (trainer_survives_apart(t) && c->schedule.ranks > 1)
        return dp_fail(DP_EUNSUPPORTED, "survive: with replicas of %d ranks that mix, expected those of "
                       "one rank", c->schedule.ranks);
    if (c->survive && c->sums != DP_SUMS_MIXING ? placed > t->ranks : placed != t->ranks)
        return dp_fail(DP_EINVAL,
                       "ranks: %d of each of %d replicas, expected together the %d ranks of "
                       "comm",
                       c->schedule.ranks, c->replicas, t->ranks);
    if (!c->list && (c->schedule.kind == DP_SCHEDULE_USER || c->schedule.ranks == 1))
        c->schedule.kind = DP_SCHEDULE_1F1B; /* of one rank: a micro-batch after the other */
    if (c->list && !c->microbatches)
        c->microbatches = c->list->microbatches * c->replicas;
    if (c->list && c->microbatches != c->list->microbatches * c->replicas)
        return dp_fail(DP_EINVAL,
                       "microbatches: %d, expected %d of the list on each of %d replicas",
                       c->microbatches, c->list->microbatches, c->replicas);
    if (!c->microbatches)
        c->microbatches = 2 * c->schedule.ranks * c->replicas;
    if (c->microbatches % c->replicas || c->microbatches > c->rows)
        return dp_fail(DP_EINVAL,
                       "microbatches: %d, expected a multiple of %d replicas, and %lld rows "
                       "or less",
                       c->microbatches, c->replicas, (long long)c->rows);
    c->schedule.microbatches = c->microbatches / c->replicas;
    t->given.kind = c->schedule.kind;
    t->given.ranks = c->schedule.ranks;
    t->given.replicas = c->replicas;
    if (c->survive && c->replicas == 1 && c->schedule.kind != DP_SCHEDULE_DUALPIPE)
        return dp_fail(DP_EINVAL, "survive: with one replica, expected 2 or more, or the schedule "
                                  "dualpipe, whose mirrors hold the stages of a rank that dies");
    return 0;
}

/* What must be the same on all ranks, beside what pointers say. */
#define MEMBERS(X)                                                                                 \
    X(schedule.kind) X(schedule.ranks) X(schedule.slack) X(schedule.virtual_stages)                \
    X(schedule.recompute) X(schedule.no_overlap) X(execution) X(replicas) X(microbatches) X(rows)  \
    X(sums) X(balance) X(mixing.algorithm) X(mixing.compression) X(mixing.staleness)               \
    X(mixing.local_steps) X(mixing.factor) X(mixing.outer_rate) X(mixing.outer_momentum)           \
    X(optimizer.kind) X(optimizer.beta1) X(optimizer.beta2) X(optimizer.epsilon)                   \
    X(optimizer.momentum) X(optimizer.weight_decay) X(rate.kind) X(rate.period) X(rate.warmup)     \
    X(rate.hold) X(rate.peak) X(rate.last) X(rate.factor) X(rate.warmup_factor) X(clip)            \
    X(delay_update) X(loss_scale.scale) X(loss_scale.growth) X(loss_scale.backoff)                 \
    X(loss_scale.least) X(loss_scale.most) X(loss_scale.interval) X(fixed_order) X(order_blocks)   \
    X(seed) X(dtype) X(nccl) X(survive) X(offload.parameters) X(offload.activations)               \
    X(offload.optimizer) X(offload.layers) X(offload.kept_share) X(offload.device_bytes)           \
    X(checkpoint.every) X(checkpoint.resume) X(checkpoint.on_signal)

static uint64_t config_digest(const struct dp_trainer_config *c)
{
    const struct dp_graph *made = c->mixing.made;
    const char *graph = made ? made->name : c->mixing.graph.name;
    const int64_t others[] = {
        made ? made->local : c->mixing.graph.local, made ? made->period : c->mixing.graph.rounds,
        made ? made->push_sum : (int64_t)c->mixing.graph.seed, c->checkpoint.folder != NULL,
        c->checkpoint.from != NULL, c->offload.folder != NULL,
        c->device && !dp_device_host_accessible(c->device)};
    uint64_t h = dp_hash_bytes(DP_HASH_BEGIN, others, sizeof(others));

#define ADD(member) h = dp_hash_bytes(h, &c->member, sizeof(c->member));
    MEMBERS(ADD)
#undef ADD
    return graph ? dp_hash_bytes(h, graph, strlen(graph)) : h;
}

/* ---- schedule and cut ------------------------------------------------------------------------ */

static int stage_of(const struct dp_trainer *t, int32_t layer)
{
    int stage = 0;

    while (t->first_layer[stage + 1] <= layer)
        stage++;
    return stage;
}

/* Those that go from stage to stage. */
static int list_skips(const struct dp_trainer *t, struct dp_skip **out, int *count)
{
    const struct dp_model *m = &t->model.model;
    struct dp_skip *list = calloc((size_t)m->skip_count + 1, sizeof(*list));

    if (!list)
        return dp_fail(DP_ENOMEM, "no memory for %d skips", m->skip_count);
    *count = 0;
    for (int32_t i = 0; i < m->skip_count; i++) {
        const int from = stage_of(t, m->skips[i].from), to = stage_of(t, m->skips[i].to);
        if (from == to)
            continue;
        struct dp_skip *s = &list[(*count)++];
        snprintf(s->name, sizeof(s->name), "%s", m->skips[i].name);
        s->from = from;
        s->to = to;
    }
    *out = list;
    return 0;
}

/* What messages drive is of one kind. */
static int make_forward(struct dp_trainer *t)
{
    const struct dp_schedule *list = t->training;
    const struct dp_schedule_spec spec = {.kind = list->kind,
                                          .ranks = list->ranks,
                                          .microbatches = list->microbatches,
                                          .rank_map = list->group_rank,
                                          .forward_only = true};

    return t->config.execution == DP_EXECUTE_MESSAGES ? dp_schedule_new(&spec, &t->forward)
                                                      : dp_schedule_new_forward(list, &t->forward);
}

/* Whether ranks of the layout have gradients to sum with others', or values to mix. */
static bool is_summed(const struct dp_trainer *t, const struct dp_schedule *s)
{
    return t->config.replicas > 1 || (t->config.sums == DP_SUMS_SHARDS && s->streams > 1);
}

static int take_list(struct dp_trainer *t)
{
    const struct dp_schedule *list = t->config.list;
    int err = 0;

    if (t->model.model.skip_count)
        err = dp_fail(DP_EUNSUPPORTED, "list: made without skips, expected a model without them");
    if (!err && is_summed(t, list) && list->streams > 1 && !dp_schedule_has(list, DP_OP_REDUCE))
        err = dp_fail(DP_EUNSUPPORTED, "list: %s without REDUCEs, expected dp_schedule_add_all_reduces, "
                      "as replicas or shards sum what mirrors have", dp_schedule_kind_name(list->kind));
    if (!err)
        err = model_cut(&t->model, &t->config, list, &t->first_layer);
    t->training = list;
    t->sums.none = !is_summed(t, list);
    return err ? err : make_forward(t);
}

/* Where parameters pass the device of a rank alone, each passes for all micro-batches at once. A mixer
 * that survives is of one stage. */
static bool takes_layers_in_turn(const struct dp_trainer *t)
{
    const struct dp_trainer_config *c = &t->config;

    return !trainer_survives_apart(t) && c->schedule.ranks == 1 && c->offload.parameters &&
           c->offload.device_bytes && c->execution == DP_EXECUTE_LIST && !c->schedule.recompute;
}

static int take_layers_in_turn(struct dp_trainer *t)
{
    struct dp_trainer_config *c = &t->config;
    struct dp_skip *skips = NULL;
    int count = 0;
    int err = fit_layers_in_turn(t->model.model.layer_count, c->schedule.microbatches, &t->made);

    if (err)
        return err;
    t->training = t->made;
    t->sums.none = !is_summed(t, t->made);
    c->balance = c->balance == DP_BALANCE_GIVEN ? DP_BALANCE_COST : c->balance; /* of one stage */
    err = model_cut(&t->model, c, t->made, &t->first_layer);
    if (!err)
        err = list_skips(t, &skips, &count);
    if (!err && count)
        err = dp_schedule_add_skips(t->made, skips, count);
    if (!err && !t->sums.none)
        err = dp_schedule_add_all_reduces(t->made);
    free(skips);
    return err ? err : make_forward(t);
}

/* The model is cut by an outline; the lists follow from the cut. */
static int make_schedules(struct dp_trainer *t)
{
    if (t->config.list)
        return take_list(t);
    if (takes_layers_in_turn(t))
        return take_layers_in_turn(t);
    struct dp_schedule_spec spec = t->config.schedule;
    struct dp_schedule *outline = NULL;
    struct dp_skip *skips = NULL;
    int err = dp_schedule_new_outline(&spec, &outline);

    if (!err)
        err = model_cut(&t->model, &t->config, outline, &t->first_layer);
    if (!err)
        err = list_skips(t, &skips, &spec.skip_count);
    if (!err) {
        t->sums.none = !is_summed(t, outline);
        spec.skips = spec.skip_count ? skips : NULL;
        spec.mirror_reduce = true;
        spec.reduce_all = !t->sums.none && !trainer_survives_apart(t);
        err = dp_schedule_new(&spec, &t->made);
        t->training = t->made;
    }
    if (!err)
        err = make_forward(t);
    dp_schedule_free(outline);
    free(skips);
    return err;
}

/* Every stream of every replica whose gradients are summed holds whole blocks of the fixed order.
 */
static int take_order(struct dp_trainer *t)
{
    const bool mixes = !t->sums.none && t->config.sums == DP_SUMS_MIXING;
    const int32_t replicas = mixes ? 1 : t->config.replicas,
                  least = t->training->streams * replicas;
    int32_t blocks = t->config.order_blocks;

    t->own_blocks = 0;
    if (!t->config.fixed_order)
        return 0;
    if (replicas & (replicas - 1))
        return dp_fail(DP_EINVAL, "replicas: %d, expected a power of two with fixed_order",
                       replicas);
    if (!blocks)
        blocks = least > DEFAULT_BLOCKS ? least : DEFAULT_BLOCKS;
    if (blocks < least || blocks > MAX_BLOCKS)
        return dp_fail(DP_EINVAL,
                       "order_blocks: %d, expected %d, one for each stream of each replica, to "
                       "%d",
                       blocks, least, MAX_BLOCKS);
    t->config.order_blocks = blocks; /* another layout keeps to it */
    t->own_blocks = blocks / replicas;
    return 0;
}

static int make_graph(struct dp_trainer *t)
{
    struct dp_graph_spec spec = t->config.mixing.graph;
    struct dp_graph *other;
    int err = 0;

    if (t->sums.none || t->config.sums != DP_SUMS_MIXING)
        return 0;
    t->graph = t->config.mixing.made;
    if (t->graph && t->graph->workers != t->config.replicas)
        return dp_fail(DP_EINVAL, "mixing.made: a graph of %d workers, expected %d, the replicas",
                       t->graph->workers, t->config.replicas);
    spec.name = spec.name ? spec.name : "ring";
    spec.workers = t->config.replicas;
    if (!t->graph)
        err = dp_graph_new(&spec, &t->made_graph);
    t->graph = t->graph ? t->graph : t->made_graph;
    if (err || t->ranks >= t->config.replicas)
        return err;
    err = dp_graph_of_size(t->graph, t->ranks, &other); /* some have died before */
    if (!err) {
        dp_graph_free(t->made_graph);
        t->graph = t->made_graph = other;
    }
    return err;
}

/* ---- the parts ------------------------------------------------------------------------------- */

static struct dp_comm *team_of(const struct dp_trainer *t)
{
    return t->team ? t->team : t->comm;
}

/* It has no place in the layout, and waits for one. */
static bool is_spare(const struct dp_trainer *t)
{
    return trainer_rank(t) >= t->config.schedule.ranks * t->config.replicas;
}

static int make_groups(struct dp_trainer *t)
{
    const struct dp_comm_axis axes[] = {{"data", t->config.replicas},
                                        {"pipe", t->config.schedule.ranks}};
    struct dp_comm *groups[2];
    int err = 0;

    if (trainer_survives_apart(t))
        return 0;
    if (t->ranks > t->config.schedule.ranks * t->config.replicas)
        err = dp_comm_split(t->comm, is_spare(t) ? -1 : 0, 0, &t->team);
    if (err || t->config.replicas == 1 || is_spare(t))
        return err;
    err = dp_comm_grid(team_of(t), axes, 2, groups);
    if (err)
        return err;
    t->data = groups[0];
    t->pipe = groups[1];
    return 0;
}

static struct model_engine_config describe(struct dp_trainer *t)
{
    const bool apart = trainer_survives_apart(t);
    const int index = apart ? t->name : t->data ? dp_comm_rank(t->data) : 0;
    const struct replica replica = {.index = index,
                                    .count = t->config.replicas,
                                    .first = index == 0,
                                    .apart = t->graph};

    return (struct model_engine_config){
        .how = &t->config,
        .model = &t->model,
        .training = t->training,
        .forward = t->forward,
        .first_layer = t->first_layer,
        .comm = apart ? NULL : t->pipe ? t->pipe : team_of(t),
        .spare = is_spare(t),
        .all = t->comm,
        .replica = replica,
        .place = t->place,
        .away = t->home != t->place && !t->config.offload.parameters,
        .microbatches = t->config.microbatches,
        .order_blocks = t->own_blocks,
        .reduce = t->sums.none || !dp_schedule_has(t->training, DP_OP_REDUCE) ? NULL
                  : t->home == t->place                      ? &trainer_reduce_ops
                                                             : &trainer_host_reduce_ops,
        .reduce_user = t,
        .rooms = t->fit.rooms};
}

/* Before there is a place to train, or a comm of a replica. */
static int fit(struct dp_trainer *t)
{
    struct model_engine_config config = describe(t);
    int err;

    if (!t->config.offload.device_bytes)
        return 0;
    config.bare = true;
    config.spare = false;
    config.comm = config.all = NULL;
    config.rank = 0;
    err = place_new(NULL, NULL, false, &config.place);
    if (!err)
        err = fit_device(&config, &t->fit);
    place_free(config.place);
    if (t->fit.training)
        t->training = t->fit.training;
    return err;
}

int trainer_lay_out(struct dp_trainer *t)
{
    int err = make_schedules(t);

    if (!err)
        err = take_order(t);
    if (!err)
        err = make_graph(t);
    return err ? err : fit(t);
}

/* What fails on one rank in the middle of these ends all, which may be waiting for it. */
static int make_sums(struct dp_trainer *t)
{
    const struct sums_config config = {.none = t->sums.none || is_spare(t),
                                       .kind = t->config.sums,
                                       .all = t->joined ? t->joined : team_of(t),
                                       .survive = t->config.survive,
                                       .joins = t->joined,
                                       .data = t->data,
                                       .graph = t->graph,
                                       .place = t->home,
                                       .how = &t->config};

    /* A mixer that survives a death does so from its beginning on. */
    int err = trainer_survives_apart(t) && !t->joined ? trainer_agree(t, 0) : 0;

    if (!err)
        err = sums_init(&t->sums, &config, t->engine);
    if (!err && trainer_survives_apart(t))
        trainer_take_members(t);
    return trainer_fail(t, err);
}

int trainer_make_parts(struct dp_trainer *t)
{
    int err = trainer_fail(t, make_groups(t));

    const struct model_engine_config config = describe(t);
    if (!err)
        err = model_engine_new(&config, &t->engine);
    if (!err)
        err = make_sums(t);
    if (err)
        return err;
    err = trainer_make_room(t);
    if (!err)
        err = trainer_make_optimizers(t);
    if (!err && t->config.delay_update)
        err = late_new(t->engine->parts, t->engine->part_count, &t->late);
    return engine_share_error(t->comm, err);
}

/* What replicas do with each other is done on a device by NCCL, where a mixer of the device can: it does
 * D-PSGD and no more, and has no state to be saved. Otherwise parameters live on the host. */
static bool lives_on_host(const struct dp_trainer *t)
{
    const struct dp_trainer_config *c = &t->config;
    const bool plain = c->mixing.algorithm == DP_MIXER_DPSGD && !c->mixing.compression &&
                       !c->mixing.staleness && !c->checkpoint.folder && !c->checkpoint.from;

    if (c->offload.parameters || t->sums.none)
        return c->offload.parameters;
    return !c->nccl || (t->graph && (!plain || t->graph->push_sum));
}

static int make_place(struct dp_trainer *t)
{
    const struct dp_trainer_config *c = &t->config;
    int err = place_new(c->device, c->stream, false, &t->place);

    t->home = t->place;
    if (err || !place_device(t->place))
        return err;
    if (c->survive)
        return dp_fail(DP_EUNSUPPORTED, "survive: on a device of CUDA, expected none");
    if (c->offload.kept_share > 0 || (c->offload.optimizer && !c->offload.parameters))
        return dp_fail(DP_EUNSUPPORTED, "offload: optimizer or kept_share on a device of CUDA, expected "
                       "parameters, all of them");
    if (c->delay_update && !lives_on_host(t))
        return dp_fail(DP_EUNSUPPORTED, "delay_update: on a device of CUDA, expected "
                       "offload.parameters, or replicas without nccl");
    if (lives_on_host(t)) {
        t->home = NULL;
        err = place_new(NULL, NULL, false, &t->home);
    }
    t->config.optimizer.stream = t->home ? place_stream(t->home) : NULL;
    return err;
}

/* Ranks are known by their numbers here, however many die. */
static int name_ranks(struct dp_trainer *t)
{
    t->names = calloc((size_t)t->ranks, sizeof(*t->names));
    t->name = trainer_rank(t);
    for (int i = 0; i < t->ranks && t->names; i++)
        t->names[i] = i;
    t->name_count = t->ranks;
    return t->names ? 0 : dp_fail(DP_ENOMEM, "no memory for a list of %d ranks", t->ranks);
}

/* What each rank finds out by itself. */
int trainer_prepare(struct dp_trainer *t, const struct dp_trainer_config *config,
                    const struct dp_model *model)
{
    int err = trainer_check_config(config);

    if (!err)
        err = take_copies(t, config);
    if (!err)
        err = trainer_take_shape(t);
    if (!err)
        err = model_take(&t->model, model);
    if (!err) { /* before one rank's layout, or a checkpoint, has filled in what others' have not */
        t->digests[0] = config_digest(&t->config);
        t->digests[1] = model_digest(&t->model);
    }
    return err || !config->survive ? err : name_ranks(t);
}

/* The same times on all ranks, those that rank 0 has measured. */
static int measure_costs(struct dp_trainer *t)
{
    const size_t count = (size_t)t->model.model.layer_count + 1;
    struct stage_times *times = calloc(count, sizeof(*times));
    int err = times ? 0 : dp_fail(DP_ENOMEM, "no memory for the times of layers");
    struct dp_busy *busy = dp_comm_busy_begin(t->comm);

    if (!err && trainer_rank(t) == 0)
        err = measure_layers(&t->config, &t->model, times);
    dp_comm_busy_end(busy);
    err = engine_share_error(t->comm, err);
    if (!err && t->comm)
        err = dp_comm_broadcast(t->comm, times, count * sizeof(*times), 0);
    if (!err)
        err = engine_share_error(t->comm, costs_of_times(&t->model, times));
    free(times);
    return err;
}

/* What was given is the caller's, and is read again once a rank has died. */
static int keep_cut(struct dp_trainer *t)
{
    const size_t bytes = (size_t)t->training->stages * sizeof(*t->cut);

    if (t->config.balance != DP_BALANCE_GIVEN || t->cut)
        return 0;
    if (!(t->cut = malloc(bytes)))
        return dp_fail(DP_ENOMEM, "no memory for the cut of %d stages", t->training->stages);
    memcpy(t->cut, t->config.layers_of_stage, bytes);
    t->config.layers_of_stage = t->cut;
    return 0;
}

int trainer_lay_out_all(struct dp_trainer *t)
{
    int err = t->config.balance == DP_BALANCE_MEASURED && !t->model.costs ? measure_costs(t) : 0;

    if (err)
        return err;
    err = trainer_lay_out(t);
    if (!err)
        err = keep_cut(t);
    if (!err && !t->place)
        err = make_place(t);
    return engine_share_error(t->comm, err);
}

static int compare(struct dp_trainer *t)
{
    if (!t->comm)
        return 0;
    int err = dp_comm_agree(t->comm, "digest of the trainer's config", t->digests[0]);

    if (!err)
        err = dp_comm_agree(t->comm, "digest of the model", t->digests[1]);
    return err || !t->config.survive || dp_comm_survives(t->comm) ? err : dp_comm_survive(t->comm);
}

int trainer_begin(struct dp_trainer *t)
{
    int err = dp_comm_share_error(t->comm, t->prepared);

    t->next = t->saved_step = 0;
    if (!err)
        err = compare(t);
    if (!err && t->folder) /* rather than after the first steps */
        err = dp_comm_share_error(t->comm, trainer_rank(t) ? 0 : folder_ready(t->folder));
    if (!err)
        err = trainer_lay_out_all(t);
    if (!err)
        err = trainer_make_parts(t);
    if (!err && t->config.checkpoint.resume)
        err = trainer_resume(t, NULL, true);
    if (!err && t->config.checkpoint.from && !t->saved_step)
        err = trainer_resume(t, t->config.checkpoint.from, false);
    return err;
}

/* Of a trainer before there is any rank of it: laid out, with a place. *out is freed by dp_trainer_free,
 * after an error, too. */
static int outline(const struct dp_trainer_config *config, const struct dp_model *model,
                   struct dp_trainer **out)
{
    struct dp_trainer *t = *out = calloc(1, sizeof(*t));

    if (!t)
        return dp_fail(DP_ENOMEM, "no memory for a trainer");
    t->ranks = (config->list ? config->list->ranks : config->schedule.ranks) *
               (config->replicas ? config->replicas : 1);
    const int err = trainer_prepare(t, config, model);
    return err ? err : trainer_lay_out_all(t);
}

/* The engine of a pipeline rank, bare. */
static int make_bare(struct dp_trainer *t, int rank, struct model_engine_config *config)
{
    *config = describe(t);
    config->bare = true;
    config->rank = rank;
    return model_engine_new(config, &t->engine);
}

int trainer_rank_memory(struct dp_trainer *t, int rank, size_t *bytes, size_t *saved)
{
    const bool shards = !t->sums.none && t->config.sums == DP_SUMS_SHARDS;
    const int share = shards ? t->config.replicas * t->training->streams : 1;
    const int held = t->config.survive && share > 1 ? 2 : 1; /* shares */
    struct model_engine_config config;
    size_t state = 0;

    int err = make_bare(t, rank, &config);
    if (err)
        return err;
    err = model_engine_memory(t->engine, &config, bytes, saved);
    if (!err)
        err = model_engine_state(t->engine, &t->config.optimizer, true, &state);
    if (!err)
        *bytes += state / (size_t)share * (size_t)held;
    model_engine_free(t->engine);
    t->engine = NULL;
    return err;
}

int dp_trainer_measure_sized(const struct dp_trainer_config *config, const struct dp_model *model,
                             size_t *rank_bytes, size_t size)
{
    DP_TAKE(dp_trainer_config, config, size);
    struct dp_trainer *t;
    size_t saved = 0, *bytes = NULL;
    int err = outline(config, model, &t);
    const size_t count = err ? 0 : (size_t)t->config.schedule.ranks;

    if (!err && !(bytes = calloc(count, sizeof(*bytes))))
        err = dp_fail(DP_ENOMEM, "no memory for the bytes of %zu ranks", count);
    for (size_t rank = 0; !err && rank < count; rank++)
        err = trainer_rank_memory(t, (int)rank, &bytes[rank], &saved);
    if (!err)
        memcpy(rank_bytes, bytes, count * sizeof(*bytes));
    free(bytes);
    dp_trainer_free(t);
    return err;
}

/* t has only what a rank that is not there needs. */
static int verify_rank(struct dp_trainer *t, int rank, int replicas, const struct saved_search *s)
{
    struct model_engine_config config;
    int err = make_bare(t, rank, &config);

    for (int i = 0; !err && i < t->engine->part_count; i++)
        err = model_engine_optimizer(t->engine, &t->config.optimizer, i, true, &t->optimizers[i]);
    if (!err && replicas)
        saved_mixing_verify(t->engine, t->optimizers, replicas, s);
    if (!err)
        err = saved_verify(t, replicas > 0, s);
    for (int i = 0; i < DP_MAX_SLOTS; i++) {
        dp_optimizer_free(t->optimizers[i]);
        t->optimizers[i] = NULL;
    }
    model_engine_free(t->engine);
    t->engine = NULL;
    return err;
}

/* Only the state of replicas that mix is of a layout. */
int dp_trainer_verify_sized(const struct dp_trainer_config *config, const struct dp_model *model,
                            const struct dp_checkpoint *checkpoint,
                            void (*fault)(void *user, const char *sentence), void *user,
                            size_t size)
{
    DP_TAKE(dp_trainer_config, config, size);
    const struct saved_search s = {checkpoint, fault, user};
    const int replicas = config->replicas ? config->replicas : 1;
    const bool mixes = config->sums == DP_SUMS_MIXING && replicas > 1;
    struct dp_trainer_config one = {.rows = config->rows,
                                    .optimizer = config->optimizer,
                                    .delay_update = config->delay_update,
                                    .schedule.ranks = 1,
                                    .microbatches = 1};
    struct dp_trainer *t;

    if (mixes) {
        one.schedule = config->list ? (struct dp_schedule_spec){0} : config->schedule;
        one.list = config->list;
        one.balance = config->balance;
        one.layers_of_stage = config->layers_of_stage;
        one.microbatches = config->list ? 0 : config->microbatches / replicas;
    }
    int err = outline(&one, model, &t);
    for (int rank = 0; !err && rank < t->config.schedule.ranks; rank++)
        err = verify_rank(t, rank, mixes ? replicas : 0, &s);
    dp_trainer_free(t);
    return err;
}

void trainer_free_parts(struct dp_trainer *t)
{
    sums_fini(&t->sums);
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        dp_optimizer_free(t->optimizers[i]);
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        dp_offload_optimizer_free(t->in_files[i]);
    model_engine_free(t->engine);
    late_free(t->late);
    free(t->paces);
    free(t->norm_values);
    free(t->in_layer);
    squares_free(t->squares);
    free(t->all_values);
    free(t->values);
    dp_graph_free(t->made_graph);
    dp_schedule_free(t->forward);
    dp_schedule_free(t->made);
    free(t->first_layer);
    fit_fini(&t->fit);
    free(t->names);
    dp_comm_close(t->pipe);
    dp_comm_close(t->data);
    dp_comm_close(t->team);
}

/* What they are another trainer frees. */
void trainer_clear_parts(struct dp_trainer *t)
{
    const size_t first = offsetof(struct dp_trainer, team), end = offsetof(struct dp_trainer, place);

    memset((char *)t + first, 0, end - first);
}

void dp_trainer_free(struct dp_trainer *t)
{
    if (!t)
        return;
    if (t->watches)
        signals_end();
    trainer_free_parts(t);
    if (t->home != t->place)
        place_free(t->home);
    place_free(t->place);
    dp_comm_close(t->owned);
    model_fini(&t->model);
    free(t->lost);
    free(t->cut);
    free(t->folder);
    free(t->state_folder);
    free(t->about);
    free(t);
}
