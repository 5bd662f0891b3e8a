/* SPDX-License-Identifier: Apache-2.0 */
#include "train/data_parallel.h"

#include <stdlib.h>

static const struct gpt_stage *stage_of(const struct data_parallel *d, int slot)
{
    return d->engine->stages[slot];
}

static int32_t tensor_count_of(const struct data_parallel *d, int slot)
{
    return (int32_t)stage_of(d, slot)->params.tensors_len;
}

/* ---- a step --------------------------------------------------------------------------------- */

int data_parallel_begin(struct data_parallel *d)
{
    int err = 0;

    for (int i = 0; i < DP_MAX_SLOTS && !err; i++)
        if (d->slots[i].mixer)
            err = dp_mixer_forward(d->slots[i].mixer, true);
    return err;
}

int data_parallel_sum(struct data_parallel *d, int slot)
{
    struct dp_replicas *sums = d->slots[slot].sums;

    if (!sums)
        return 0;
    return d->kind == DATA_PARALLEL_SHARD ? dp_replicas_scatter(sums, NULL)
                                          : dp_replicas_sum(sums, NULL);
}

int data_parallel_test(struct data_parallel *d, int slot)
{
    return d->slots[slot].sums ? dp_replicas_test(d->slots[slot].sums) : 0;
}

int data_parallel_wait(struct data_parallel *d, int slot)
{
    return d->slots[slot].sums ? dp_replicas_wait(d->slots[slot].sums) : 0;
}

const struct dp_parameter *data_parallel_summed(const struct data_parallel *d, int slot,
                                                int32_t *count)
{
    if (d->kind == DATA_PARALLEL_SHARD)
        return dp_replicas_shard(d->slots[slot].sums, count);
    *count = tensor_count_of(d, slot);
    return stage_of(d, slot)->parameters;
}

static int make_ready(struct data_parallel *d, int slot)
{
    int err = 0;

    for (int32_t k = tensor_count_of(d, slot) - 1; k >= 0 && !err; k--)
        err = dp_mixer_ready(d->slots[slot].mixer, k);
    return err;
}

static int update_mixer(struct data_parallel *d, int slot, const struct dp_mixer_update *update)
{
    int err = dp_mixer_set_update(d->slots[slot].mixer, update);

    if (!err)
        err = make_ready(d, slot);
    return err ? err : dp_mixer_step(d->slots[slot].mixer);
}

static int update_shard(struct data_parallel *d, int slot, const struct dp_mixer_update *update)
{
    struct data_parallel_slot *s = &d->slots[slot];
    const struct dp_optimizer_step step = {.rate = update->rate, .scale = update->scale};
    int err = update->skip ? 0 : dp_optimizer_step(s->optimizer, &step);

    if (!err) /* what is not in the shard, too */
        err = dp_gradients_zero(stage_of(d, slot)->parameters, tensor_count_of(d, slot));
    return err ? err : dp_replicas_gather(s->sums, NULL);
}

int data_parallel_update(struct data_parallel *d, int slot, const struct dp_mixer_update *update)
{
    return d->kind == DATA_PARALLEL_MIX ? update_mixer(d, slot, update)
                                        : update_shard(d, slot, update);
}

int data_parallel_settle(struct data_parallel *d)
{
    int err = 0;

    for (int i = 0; i < d->count && d->kind == DATA_PARALLEL_SHARD && !err; i++)
        err = dp_replicas_wait(d->slots[d->order[i]].sums);
    return err;
}

/* ---- one model ------------------------------------------------------------------------------ */

/* The forward makes up for the update of the first step, if it is still to come. */
int data_parallel_average(struct data_parallel *d, bool revert)
{
    struct dp_mixer_average what = {.revert = revert};
    int err = 0;

    for (int i = 0; i < DP_MAX_SLOTS && !err; i++) {
        if (!d->slots[i].mixer)
            continue;
        err = dp_mixer_forward(d->slots[i].mixer, false);
        if (!err)
            err = dp_mixer_average(d->slots[i].mixer, &what);
    }
    return err;
}

int data_parallel_revert(struct data_parallel *d)
{
    int err = 0;

    for (int i = 0; i < DP_MAX_SLOTS && !err; i++)
        if (d->slots[i].mixer)
            err = dp_mixer_revert(d->slots[i].mixer);
    return err;
}

/* ---- ranks that hold the same stage ---------------------------------------------------------- */

/* A slot and its mirror, named by the one on the lower rank. */
struct pair {
    int rank, slot;
};

static struct pair pair_of(const struct dp_schedule *s, int rank, int slot)
{
    const struct dp_slot *at = dp_schedule_slot(s, rank, slot);

    if (at->mirror >= 0 && at->mirror < rank)
        return (struct pair){at->mirror, at->mirror_slot};
    return (struct pair){rank, slot};
}

/* The slot of this rank in round `round` of groups, in which each pair's lower rank has that slot;
 * -1: none. */
static int slot_in_round(const struct engine *e, int round)
{
    if (!e->schedule)
        return round == 0 ? 0 : -1;
    for (int i = 0; i < e->stage_count; i++)
        if (pair_of(e->schedule, engine_rank(e), i).slot == round)
            return i;
    return -1;
}

/* Ranks are in the order of replicas, and within one in that of the streams: the order in which the
 * pipeline adds blocks of micro-batches. Those that mix sum with their mirror only. */
static int make_copies_comm(struct data_parallel *d, const struct data_parallel_config *config,
                            int round)
{
    const struct engine *e = d->engine;
    const int ranks = e->schedule ? e->schedule->ranks : 1;
    const int slot = slot_in_round(e, round);
    int color = 0, key = e->replica.index;
    struct dp_comm *comm;

    if (e->schedule && slot >= 0) {
        color = pair_of(e->schedule, engine_rank(e), slot).rank;
        key = key * e->schedule->streams +
              dp_schedule_slot(e->schedule, engine_rank(e), slot)->stream;
    }
    if (d->kind == DATA_PARALLEL_MIX)
        color += e->replica.index * ranks;
    int err = dp_comm_split(config->all, slot < 0 ? -1 : color, key, &comm);
    if (!err && slot >= 0) {
        d->slots[slot].same = comm;
        d->order[d->count++] = slot;
    }
    return err;
}

static int make_comms(struct data_parallel *d, const struct data_parallel_config *config)
{
    const int rounds = d->engine->schedule ? d->engine->schedule->max_slots : 1;
    int err = 0;

    for (int i = 0; i < rounds && !err; i++)
        err = make_copies_comm(d, config, i);
    for (int i = 0; i < d->engine->stage_count && d->kind == DATA_PARALLEL_MIX && !err; i++)
        err = dp_comm_split(config->data, 0, d->engine->replica.index, &d->slots[i].data);
    return err;
}

/* ---- making one ----------------------------------------------------------------------------- */

static int make_mixer(struct data_parallel *d, const struct data_parallel_config *config, int slot)
{
    const struct dp_mixer_config mixer = {
        .parameters = stage_of(d, slot)->parameters,
        .count = tensor_count_of(d, slot),
        .optimizer = config->optimizer,
        .graph = config->graph,
        .comm = d->slots[slot].data,
        .separate = true, /* the model knows its weights by their place */
        .algorithm = config->how->mixing.algorithm,
        .local_steps = config->how->mixing.local_steps,
        .outer_rate = config->how->mixing.outer_rate,
        .outer_momentum = config->how->mixing.outer_momentum,
        .factor = config->how->mixing.factor,
        .compression = config->how->mixing.compression,
        .staleness = config->how->mixing.staleness,
    };

    return dp_mixer_new(&mixer, &d->slots[slot].mixer);
}

static int make_optimizer(struct data_parallel *d, const struct data_parallel_config *config,
                          int slot)
{
    int32_t count;
    const struct dp_parameter *shard = dp_replicas_shard(d->slots[slot].sums, &count);

    return dp_optimizer_new(&config->optimizer, shard, count, &d->slots[slot].optimizer);
}

static int make_slot(struct data_parallel *d, const struct data_parallel_config *config, int slot)
{
    int err = dp_replicas_new(stage_of(d, slot)->parameters, tensor_count_of(d, slot),
                              d->slots[slot].same, NULL, &d->slots[slot].sums);

    if (err || d->kind == DATA_PARALLEL_SUM)
        return err;
    return d->kind == DATA_PARALLEL_MIX ? make_mixer(d, config, slot)
                                        : make_optimizer(d, config, slot);
}

int data_parallel_init(struct data_parallel *d, const struct data_parallel_config *config,
                       struct engine *e)
{
    int err = 0;

    *d = (struct data_parallel){.kind = config->kind, .engine = e};
    if (d->kind == DATA_PARALLEL_NONE)
        return 0;
    err = make_comms(d, config);
    for (int i = 0; i < d->count && !err; i++)
        err = make_slot(d, config, d->order[i]);
    if (err)
        data_parallel_fini(d);
    return err;
}

void data_parallel_fini(struct data_parallel *d)
{
    for (int i = 0; i < DP_MAX_SLOTS; i++) {
        struct data_parallel_slot *s = &d->slots[i];
        dp_mixer_free(s->mixer);
        dp_replicas_free(s->sums);
        dp_optimizer_free(s->optimizer);
        dp_comm_close(s->same);
        dp_comm_close(s->data);
    }
    *d = (struct data_parallel){0};
}
