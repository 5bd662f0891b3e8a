/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/sums.h"

#include "base/fail.h"
#include "mixing/internal.h"
#include "trainer/links.h"
#include "trainer/model.h"

#include <stdlib.h>
#include <string.h>

static const struct engine_part *part_of(const struct sums *d, int slot)
{
    return &d->engine->parts[slot];
}

/* ---- a step --------------------------------------------------------------------------------- */

/* Tied parameters are summed over stages once each stage has the whole sum, and who updates a copy
 * needs the sums of that, too. */
static bool sums_are_whole(const struct sums *d)
{
    return d->kind != DP_SUMS_SHARDS || d->engine->tied || d->twice;
}

/* Sums of whole gradients do not begin while values are gathered. */
int sums_begin(struct sums *d)
{
    int err = 0;

    for (int i = 0; i < DP_MAX_SLOTS && !err; i++) {
        if (d->slots[i].mixer)
            err = dp_mixer_forward(d->slots[i].mixer, true);
        if (!err && d->slots[i].sums && sums_are_whole(d))
            err = dp_replicas_wait(d->slots[i].sums);
    }
    return err;
}

int sums_queue(struct sums *d, int slot, struct dp_device_stream *stream)
{
    struct dp_replicas *sums = d->slots[slot].sums;

    return sums_are_whole(d) ? dp_replicas_sum(sums, stream) : dp_replicas_scatter(sums, stream);
}

int sums_launch(struct sums *d, int slot)
{
    return sums_queue(d, slot, place_stream(d->place));
}

int sums_test(struct sums *d, int slot)
{
    return dp_replicas_test(d->slots[slot].sums);
}

int sums_wait(struct sums *d, int slot)
{
    return dp_replicas_wait(d->slots[slot].sums);
}

const struct dp_parameter *sums_summed(const struct sums *d, int slot, int32_t *count)
{
    if (!d->none && d->kind == DP_SUMS_SHARDS)
        return dp_replicas_shard(d->slots[slot].sums, count);
    *count = part_of(d, slot)->count;
    return part_of(d, slot)->parameters;
}

static int step_of(struct dp_optimizer *optimizer, const struct dp_mixer_update *update)
{
    return dp_optimizer_step(optimizer, &(struct dp_optimizer_step){.rate = update->rate,
                                                                    .scale = update->scale,
                                                                    .skip = update->skip,
                                                                    .zero_grads = true});
}

/* On a device the values are mixed, updated here, and sent. */
static int update_mixer(struct sums *d, int slot, const struct dp_mixer_update *update)
{
    const struct engine_part *part = part_of(d, slot);
    struct dp_mixer *mixer = d->slots[slot].mixer;
    int err = dp_mixer_set_update(mixer, update);

    for (int32_t k = part->count - 1; k >= 0 && !err; k--)
        if (!(part->parameters[k].flags & DP_PARAMETER_FROZEN))
            err = dp_mixer_ready(mixer, k);
    if (!err && d->slots[slot].optimizer)
        err = step_of(d->slots[slot].optimizer, update);
    return err ? err : dp_mixer_step(mixer);
}

static int update_shard(struct sums *d, int slot, const struct dp_mixer_update *update)
{
    const struct engine_part *part = part_of(d, slot);
    int err = step_of(d->slots[slot].optimizer, update);

    if (!err && d->twice)
        err = step_of(d->slots[slot].copies, update);
    /* what is not in the shard, too */
    return err ? err : place_zero_gradients(d->place, part->parameters, part->count);
}

int sums_update(struct sums *d, int slot, const struct dp_mixer_update *update)
{
    return d->kind == DP_SUMS_MIXING ? update_mixer(d, slot, update)
                                     : update_shard(d, slot, update);
}

/* In the order that both ranks of a pair of mirrors have. On a device the stream waits, not the
 * host. */
int sums_settle(struct sums *d)
{
    struct dp_device_stream *stream = place_stream(d->place);
    int err = 0;

    for (int i = 0; i < d->count && d->kind == DP_SUMS_SHARDS && !err; i++)
        err = dp_replicas_gather(d->slots[d->order[i]].sums, stream);
    for (int i = 0; i < d->count && d->kind == DP_SUMS_SHARDS && !stream && !err; i++)
        err = dp_replicas_wait(d->slots[d->order[i]].sums);
    return err;
}

/* ---- one model ------------------------------------------------------------------------------ */

/* The forward makes up for the update of the first step, if it is still to come. */
int sums_average(struct sums *d, bool revert)
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

int sums_revert(struct sums *d)
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
    for (int i = 0; i < e->part_count; i++)
        if (pair_of(e->schedule, engine_rank(e), i).slot == round)
            return i;
    return -1;
}

/* Ranks are in the order of replicas, and within one in that of the streams: the order in which the
 * pipeline adds blocks of micro-batches. Those that mix sum with their mirror only. */
static int make_copies_comm(struct sums *d, const struct sums_config *config, int round)
{
    const struct engine *e = d->engine;
    const int slot = slot_in_round(e, round);
    int color = 0, key = e->replica.index;
    struct dp_comm *comm;

    if (slot >= 0) {
        color = pair_of(e->schedule, engine_rank(e), slot).rank;
        key = key * e->schedule->streams +
              dp_schedule_slot(e->schedule, engine_rank(e), slot)->stream;
    }
    if (d->kind == DP_SUMS_MIXING)
        color += e->replica.index * e->schedule->ranks;
    int err = dp_comm_split(config->all, slot < 0 ? -1 : color, key, &comm);
    if (!err && slot >= 0) {
        d->slots[slot].same = comm;
        d->order[d->count++] = slot;
    }
    return err;
}

static int make_comms(struct sums *d, const struct sums_config *config)
{
    int err = 0;

    for (int i = 0; i < d->engine->schedule->max_slots && !err; i++)
        err = make_copies_comm(d, config, i);
    for (int i = 0; i < d->engine->part_count && d->kind == DP_SUMS_MIXING && !err; i++)
        err = dp_comm_split(config->data, 0, d->engine->replica.index, &d->slots[i].data);
    return err;
}

/* ---- making one ----------------------------------------------------------------------------- */

static int make_mixer(struct sums *d, const struct sums_config *config, int slot)
{
    const struct dp_trainer_config *how = config->how;
    struct sums_slot *s = &d->slots[slot];
    struct dp_device *device = place_device(d->place);
    const int err = device ? links_of_replicas(s->data, device, config->graph, &s->data_links) : 0;
    const struct dp_mixer_config mixer = {
        .parameters = part_of(d, slot)->parameters,
        .count = part_of(d, slot)->count,
        .optimizer = how->optimizer,
        .graph = config->graph,
        .comm = device ? s->data_links : config->survive ? config->all : s->data,
        .device = device,
        .stream = place_stream(d->place),
        .separate = true, /* layers know their parameters by their place */
        .algorithm = how->mixing.algorithm,
        .local_steps = how->mixing.local_steps,
        .outer_rate = how->mixing.outer_rate,
        .outer_momentum = how->mixing.outer_momentum,
        .factor = how->mixing.factor,
        .compression = how->mixing.compression,
        .staleness = how->mixing.staleness,
        .survive = config->survive,
    };

    if (err)
        return err;
    return config->joins ? dp_mixer_join(&mixer, &s->mixer) : dp_mixer_new(&mixer, &s->mixer);
}

/* The parameter of which this is a piece, "NAME[first:end]". */
static const struct dp_parameter *whole_of(const struct engine_part *part, const char *piece)
{
    const size_t len = strcspn(piece, "[");
    int32_t i = 0;

    while (strncmp(part->parameters[i].name, piece, len) || part->parameters[i].name[len])
        i++;
    return &part->parameters[i];
}

/* Of a shard, or all of a stage that mixes, but for copies of tied parameters. */
static int make_optimizer(struct sums *d, const struct sums_config *config, int slot,
                          const struct dp_parameter *shard, int32_t count, struct dp_optimizer **out)
{
    int32_t own = 0;
    struct dp_parameter *list = calloc((size_t)count + 1, sizeof(*list));

    if (!list)
        return dp_fail(DP_ENOMEM, "no memory for a shard of %d pieces", count);
    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *whole = whole_of(part_of(d, slot), shard[i].name);
        if (!model_is_copy(whole->name, whole->tied))
            list[own++] = shard[i];
    }
    const int err = dp_optimizer_new(&config->how->optimizer, list, own, out);
    free(list);
    return err;
}

static int make_slot(struct sums *d, const struct sums_config *config, int slot)
{
    struct sums_slot *s = &d->slots[slot];
    struct dp_device *device = place_device(d->place);
    const struct dp_parameter *list;
    int32_t count, held;
    int err = device ? links_of_replicas(s->same, device, NULL, &s->same_links) : 0;

    if (!err)
        err = dp_replicas_new(part_of(d, slot)->parameters, part_of(d, slot)->count,
                              device ? s->same_links : s->same, device, &s->sums);
    if (!err && d->kind == DP_SUMS_MIXING)
        err = make_mixer(d, config, slot);
    if (!err && (d->kind == DP_SUMS_SHARDS || (d->kind == DP_SUMS_MIXING && device))) {
        list = sums_summed(d, slot, &count);
        err = make_optimizer(d, config, slot, list, count, &s->optimizer);
    }
    if (!err && d->twice) {
        list = dp_replicas_held(s->sums, &held);
        err = make_optimizer(d, config, slot, list + count, held - count, &s->copies);
    }
    return err;
}

int sums_init(struct sums *d, const struct sums_config *config, struct engine *e)
{
    int err = 0;

    *d = (struct sums){
        .none = config->none, .kind = config->kind, .engine = e, .place = config->place,
        .twice = !config->none && config->survive && config->kind == DP_SUMS_SHARDS};
    if (d->none)
        return 0;
    err = config->survive && config->kind == DP_SUMS_MIXING ? make_mixer(d, config, 0)
                                                           : make_comms(d, config);
    for (int i = 0; i < d->count && !err; i++)
        err = make_slot(d, config, d->order[i]);
    if (err)
        sums_fini(d);
    return err;
}

void sums_fini(struct sums *d)
{
    for (int i = 0; i < DP_MAX_SLOTS; i++) {
        struct sums_slot *s = &d->slots[i];
        dp_replicas_free(s->sums);
        dp_mixer_free(s->mixer);
        dp_optimizer_free(s->optimizer);
        dp_optimizer_free(s->copies);
        dp_comm_close(s->same_links);
        dp_comm_close(s->data_links);
        dp_comm_close(s->same);
        dp_comm_close(s->data);
    }
    *d = (struct sums){0};
}
