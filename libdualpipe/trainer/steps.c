/* SPDX-License-Identifier: Apache-2.0
 *
 * steps.c - one rank's share of a step, from a batch to better parameters.
 */
#include "optimizer/internal.h"
#include "trainer/batch.h"
#include "trainer/signals.h"
#include "trainer/trainer_state.h"

#include "base/fail.h"
#include "base/sized.h"

#include <dualpipe/survival.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- how far all have come ------------------------------------------------------------------ */

bool trainer_may_be_death(int err)
{
    return err == DP_ECOMM || err == DP_ETIMEDOUT || err == DP_EABORTED;
}

/* What mixers have in flight they complete after a death, of which their ranks hear from each other. */
void trainer_revoke(struct dp_trainer *t, int err)
{
    struct dp_comm *groups[4 + DP_MAX_SLOTS] = {t->comm, t->team, t->pipe, t->data};
    char text[DP_ABORT_TEXT];

    if (trainer_survives_apart(t))
        return;
    snprintf(text, sizeof(text), "%s", dp_last_error());
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        groups[4 + i] = t->sums.slots[i].same;
    for (int i = 0; i < 4 + DP_MAX_SLOTS; i++)
        if (groups[i])
            dp_comm_revoke(groups[i], err, text);
}

/* *done: on all that live it was true; *whole: all live. */
static int agree(struct dp_comm *comm, bool *done, bool *whole)
{
    const int size = dp_comm_size(comm);
    uint64_t flags = *done;
    bool *alive = calloc((size_t)size, sizeof(*alive));
    int err = alive ? dp_comm_agree_flags(comm, &flags, alive)
                    : dp_fail(DP_ENOMEM, "no memory for a list of %d ranks", size);

    *done = flags;
    *whole = !err;
    for (int rank = 0; rank < size && !err; rank++)
        *whole = *whole && alive[rank];
    free(alive);
    return err;
}

static int agree_all(struct dp_comm *comm, int err)
{
    bool done = !err, whole;
    const int agreed = agree(comm, &done, &whole);

    if (agreed || err)
        return agreed ? agreed : err;
    if (!done || !whole)
        return dp_fail_quietly(DP_ECOMM, "a rank has died, or has not got through");
    /* It keeps ranks from leaving before all have learnt that they may: one that has not would take
     * those that have left for dead. A death in it is found later. */
    dp_comm_barrier(comm);
    return 0;
}

int trainer_agree(struct dp_trainer *t, int err)
{
    if (!t->config.survive || t->failed)
        return err;
    if (err && trainer_may_be_death(err))
        trainer_revoke(t, err);
    if (!err || trainer_may_be_death(err))
        err = agree_all(t->comm, err);
    t->failed = err;
    return err;
}

void trainer_take_members(struct dp_trainer *t)
{
    struct dp_mixer_report mixer;

    dp_mixer_report(sums_mixer(&t->sums), &mixer);
    t->comm = mixer.comm;
    t->ranks = dp_comm_size(t->comm);
    t->engine->replica.first = dp_comm_rank(t->comm) == 0;
    t->failed = false;
}

/* ---- what all ranks must know ---------------------------------------------------------------- */

/* Add up values[count] over the ranks, in rank order; they stay in all_values. */
static int add_over_ranks(struct dp_trainer *t, double *values, size_t count)
{
    if (!t->comm)
        return 0;
    int err = dp_comm_allgather(t->comm, values, t->all_values, count * sizeof(double));
    if (err)
        return err;
    memset(values, 0, count * sizeof(double));
    for (int rank = 0; rank < t->ranks; rank++)
        for (size_t i = 0; i < count; i++)
            values[i] += t->all_values[(size_t)rank * count + i];
    return 0;
}

/* The last of values, which is not a sum. */
static int compare_rows(const struct dp_trainer *t, int64_t rows, size_t count)
{
    for (int rank = 0; rank < t->ranks && t->comm; rank++) {
        const int64_t other = (int64_t)t->all_values[(size_t)rank * count + count - 1];
        if (other != rows)
            return dp_fail(DP_EMISMATCH,
                           "rows: %lld on rank %d and %lld on rank %d, expected the same",
                           (long long)other, rank, (long long)rows, trainer_rank(t));
    }
    return 0;
}

static bool lives(const struct dp_trainer *t, int32_t replica)
{
    bool found = !trainer_survives_apart(t);

    for (int i = 0; i < t->name_count && !found; i++)
        found = t->names[i] == replica;
    return found;
}

/* By rows: a mean over those of all micro-batches that are trained. */
static double mean_loss(const struct dp_trainer *t, int64_t rows)
{
    const int32_t m = t->engine->microbatches, own = engine_own_microbatches(t->engine);
    double sum = 0, of = 0;

    for (int32_t mb = 0; mb < m; mb++) {
        const double weight = rows % m ? (double)batch_rows(rows, m, mb) : 1;
        sum += t->values[mb] * weight;
        of += lives(t, mb / own) ? weight : 0;
    }
    return sum / of;
}

/* ---- norms of gradients ---------------------------------------------------------------------- */

/* The sums of squares of a replica, by layer. */
static double *squares_of(const struct dp_trainer *t, size_t replica)
{
    return t->values + (size_t)t->engine->microbatches + replica * (size_t)t->engine->layers;
}

static size_t own_column(const struct dp_trainer *t)
{
    return t->columns > 1 ? (size_t)t->engine->replica.index : 0;
}

/* The layer of a parameter, or of a piece of it: its name begins with that. */
static int32_t layer_of(const struct engine_part *part, const char *name, int32_t at)
{
    const size_t len = strcspn(name, "[");

    if (at < part->count && part->parameters[at].name == name)
        return part->layers[at];
    for (int32_t i = 0; i < part->count; i++)
        if (!strncmp(part->parameters[i].name, name, len) && !part->parameters[i].name[len])
            return part->layers[i];
    return 0;
}

/* Add the squares of a slot's gradients to those of their layers; *sum is that of all of them.
 * counted: they are part of the model's norm. */
static int add_squares(struct dp_trainer *t, int slot, bool counted, double *sum)
{
    const struct engine_part *part = &t->engine->parts[slot];
    double *layers = squares_of(t, own_column(t));
    int32_t count;
    const double *squares;
    const struct dp_parameter *list = sums_summed(&t->sums, slot, &count);
    int err = squares_take(t->squares, slot, list, count, &squares);

    if (err)
        return err;
    *sum = dp_gradient_sum(list, count, NULL, squares);
    for (int32_t first = 0, end; first < count && counted; first = end) {
        const int32_t layer = layer_of(part, list[first].name, first);
        for (end = first; end < count && layer_of(part, list[end].name, end) == layer;)
            end++;
        for (int32_t i = 0; i < count; i++)
            t->in_layer[i] = i >= first && i < end;
        layers[layer] += dp_gradient_sum(list, count, t->in_layer, squares);
    }
    return 0;
}

/* The whole gradient counts each parameter once, although DualPipe holds it twice and so do
 * replicas whose gradients are summed, and is added up layer by layer, so that its norm is the same
 * under every schedule. */
static bool counts(const struct dp_trainer *t, int slot)
{
    const struct engine *e = t->engine;

    if (!t->sums.none && t->sums.kind == DP_SUMS_SHARDS)
        return true; /* each rank has another part */
    return !e->parts[slot].second_copy && (t->columns > 1 || e->replica.first);
}

static double loss_scale(const struct dp_trainer *t)
{
    return t->config.loss_scale.scale > 0 ? t->config.loss_scale.scale : 1;
}

/* Those that mix, do not clip and have no loss scale need not know any norm but their own. */
static bool updates_at_once(const struct dp_trainer *t)
{
    return trainer_mixes(t) && t->config.clip == 0 && !(t->config.loss_scale.scale > 0);
}

/* A slot's gradients are summed over all that hold its stage. */
static int end_of_sum(struct dp_trainer *t, int slot)
{
    const bool counted = counts(t, slot), at_once = updates_at_once(t);
    double sum = 0;
    int err = counted || at_once ? add_squares(t, slot, counted, &sum) : 0;

    if (err || !at_once)
        return err;
    return sums_update(&t->sums, slot, &(struct dp_mixer_update){t->rate, 1, !isfinite(sum)});
}

/* Gradients of tied parameters are what they will be after sum_tied. */
static int end_of_step_sum(struct dp_trainer *t, int slot)
{
    return t->engine->tied ? 0 : end_of_sum(t, slot);
}

static int launch(struct dp_trainer *t, int slot)
{
    const int err = model_engine_fetch(t->engine, slot);

    return err ? err : sums_launch(&t->sums, slot);
}

static int reduce_launch(void *user, int slot)
{
    return launch(user, slot);
}

static int reduce_test(void *user, int slot)
{
    int err = sums_test(&((struct dp_trainer *)user)->sums, slot);

    return err ? err : end_of_step_sum(user, slot);
}

static int reduce_wait(void *user, int slot)
{
    int err = sums_wait(&((struct dp_trainer *)user)->sums, slot);

    return err ? err : end_of_step_sum(user, slot);
}

static int reduce_queue(void *user, int slot, struct dp_device_stream *stream)
{
    return sums_queue(&((struct dp_trainer *)user)->sums, slot, stream);
}

const struct dp_reduce_ops trainer_reduce_ops = {reduce_launch, reduce_test, reduce_wait,
                                                 reduce_queue};
const struct dp_reduce_ops trainer_host_reduce_ops = {reduce_launch, reduce_test, reduce_wait, NULL};

/* A step is queued on a device: what its gradients come to will be known when it ends. */
static int queue_squares(void *user)
{
    struct dp_trainer *t = user;
    const bool are_whole = !t->engine->tied && (t->engine->reduces || t->sums.none);
    int err = 0;

    for (int i = 0; i < t->engine->part_count && are_whole && !err; i++) {
        int32_t count;
        const struct dp_parameter *list = sums_summed(&t->sums, i, &count);
        if (counts(t, i) || updates_at_once(t))
            err = squares_queue(t->squares, i, list, count);
    }
    return err;
}

/* What the engine has not summed with others. */
static int end_of_sums(struct dp_trainer *t)
{
    int err = 0;

    for (int i = 0; i < t->sums.count && !t->engine->reduces && !err; i++) {
        err = launch(t, t->sums.order[i]);
        if (!err)
            err = sums_wait(&t->sums, t->sums.order[i]);
    }
    if (!err && t->engine->tied)
        err = model_engine_sum_tied(t->engine);
    for (int i = 0; i < t->engine->part_count && !err; i++)
        if (t->engine->tied || !t->engine->reduces)
            err = end_of_sum(t, i);
    return err;
}

static double norm_of(const struct dp_trainer *t, size_t replica)
{
    double sum = 0;

    for (int32_t l = 0; l < t->engine->layers; l++)
        sum += squares_of(t, replica)[l];
    return sqrt(sum) / loss_scale(t);
}

static double largest_norm(const struct dp_trainer *t)
{
    double norm = norm_of(t, 0);

    for (size_t i = 1; i < t->columns && isfinite(norm); i++) {
        double other = norm_of(t, i);
        norm = norm >= other ? norm : other; /* a NaN stays */
    }
    return norm;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static int update_slot(struct dp_trainer *t, int slot, const struct dp_mixer_update *update)
{
    const struct engine_part *part = &t->engine->parts[slot];
    const struct dp_optimizer_step step = {
        .rate = update->rate, .scale = update->scale, .zero_grads = true};

    if (!t->sums.none && t->sums.kind != DP_SUMS_ALL)
        return sums_update(&t->sums, slot, update);
    if (update->skip)
        return place_zero_gradients(t->home, part->parameters, part->count);
    int err = t->in_files[slot] ? dp_offload_optimizer_step(t->in_files[slot], &step) : 0;
    if (!err && t->optimizers[slot])
        err = dp_optimizer_step(t->optimizers[slot], &step);
    return err;
}

static int update_slots(struct dp_trainer *t, const struct dp_mixer_update *how)
{
    int err = 0;

    for (int i = 0; i < t->engine->part_count && !err; i++)
        err = update_slot(t, i, how);
    return err;
}

/* With the gradients that were kept, which leaves zeros, as they are before the first. */
static int update_late(struct dp_trainer *t, const struct dp_mixer_update *next)
{
    const struct dp_mixer_update due = late_due(t->late);
    const bool is_due = late_is_due(t->late);

    late_swap(t->late, t->engine->parts, t->engine->part_count);
    late_set(t->late, next);
    return is_due ? update_slots(t, &due) : 0;
}

/* All ranks know all norms, so all of them leave out the same steps. */
int trainer_update(struct dp_trainer *t, bool skipped)
{
    const double scale = dp_clip_factor(norm_of(t, own_column(t)), t->config.clip, 0);
    const struct dp_mixer_update how = {t->rate, skipped ? 1 : scale / loss_scale(t), skipped};
    int err = 0;

    if (t->late)
        err = update_late(t, &how);
    else if (!updates_at_once(t))
        err = update_slots(t, &how);
    if (!err)
        err = sums_settle(&t->sums);
    return err || !t->engine->tied ? err : model_engine_broadcast_tied(t->engine);
}

static int check_batch(const struct dp_trainer *t, const struct trainer_step *step, int64_t *rows)
{
    const struct dp_batch *batch = step->batch;

    if (step->err)
        return step->err;
    if (!batch)
        return dp_fail(DP_EINVAL, "batch: NULL");
    *rows = batch->rows ? batch->rows : t->config.rows;
    if (*rows < t->engine->microbatches || *rows > t->config.rows)
        return dp_fail(DP_EINVAL,
                       "rows of a batch: %lld, expected %d, one for each micro-batch, to the "
                       "config's %lld",
                       (long long)*rows, t->engine->microbatches, (long long)t->config.rows);
    return 0;
}

enum { OF_EACH = 4 }; /* at the end of values: compute_ns, step_ns, told to end, rows */

/* How fast this rank was. */
static int put_pace(struct dp_trainer *t)
{
    const struct engine *e = t->engine;
    struct dp_rank_pace pace;
    int err = 0;

    if (!e->part_count) /* a spare rank */
        return 0;
    err = dp_recorder_pace(e->recorder, e->schedule, engine_rank(e), &pace);
    if (err)
        return err;
    if (place_device(t->place)) /* where ops are only queued */
        pace.compute_ns = pace.step_ns;
    t->values[t->sums_len - OF_EACH] = pace.compute_ns;
    t->values[t->sums_len - OF_EACH + 1] = pace.step_ns;
    return 0;
}

static void take_paces(struct dp_trainer *t)
{
    for (int rank = 0; rank < t->ranks; rank++) {
        const double *all = t->comm ? t->all_values + (size_t)rank * t->sums_len : t->values;
        t->paces[rank] = (struct dp_rank_pace){.compute_ns = all[t->sums_len - OF_EACH],
                                               .step_ns = all[t->sums_len - OF_EACH + 1],
                                               .waited_for = -1};
    }
}

int trainer_learn(struct dp_trainer *t, void *arg)
{
    struct trainer_step *step = arg;
    const struct dp_batch *batch = step->batch;
    int64_t rows = 0;
    int err = check_batch(t, step, &rows);

    memset(t->values, 0, t->sums_len * sizeof(double));
    t->rate = dp_rate_at(&t->config.rate, (int64_t)t->next);
    t->engine->loss_scale = loss_scale(t);
    if (!err)
        err = sums_begin(&t->sums);
    if (!err && t->engine->tied &&
        trainer_mixes(t)) /* the first update comes with the second step */
        err = model_engine_broadcast_tied(t->engine);
    if (!err)
        err = model_engine_train(t->engine, batch, t->values);
    if (!err)
        err = end_of_sums(t);
    t->values[t->sums_len - 2] = t->config.checkpoint.on_signal && signals_raised();
    t->values[t->sums_len - 1] = (double)rows;
    if (!err)
        err = put_pace(t);
    if (!err)
        err = add_over_ranks(t, t->values, t->sums_len);
    if (!err)
        err = compare_rows(t, rows, t->sums_len);
    if (err)
        return err;
    take_paces(t);
    const double norm = largest_norm(t);
    step->result = (struct dp_trainer_result){.loss = mean_loss(t, rows),
                                              .norm = norm,
                                              .rate = t->rate,
                                              .loss_scale = loss_scale(t),
                                              .skipped = !isfinite(norm),
                                              .ending = t->values[t->sums_len - 2] > 0,
                                              .step = t->next};
    return norms_sum(&t->engine->norms, t->engine->microbatches, t->comm, t->norm_values);
}

static int evaluate(struct dp_trainer *t, struct trainer_step *step)
{
    const size_t m = (size_t)t->engine->microbatches;
    int64_t rows = 0;
    int err = check_batch(t, step, &rows);

    memset(t->values, 0, t->sums_len * sizeof(double));
    if (!err)
        err = model_engine_evaluate(t->engine, step->batch, t->values);
    t->values[m] = (double)rows;
    if (!err)
        err = add_over_ranks(t, t->values, m + 1);
    if (!err)
        err = compare_rows(t, rows, m + 1);
    if (!err)
        step->result.loss = mean_loss(t, rows);
    return err;
}

int trainer_evaluate(struct dp_trainer *t, void *arg)
{
    int err = sums_average(&t->sums, true);

    if (!err)
        err = evaluate(t, arg);
    return err ? err : sums_revert(&t->sums);
}

int trainer_catch_up(struct dp_trainer *t)
{
    int err = t->late ? update_late(t, NULL) : 0;

    return err || !t->late || !t->engine->tied ? err : model_engine_broadcast_tied(t->engine);
}

void dp_trainer_set_rate(struct dp_trainer *t, double rate)
{
    t->config.rate = (struct dp_rate){.peak = rate};
}

static void list_parts(const struct dp_trainer *t, struct dp_trainer_parts *out)
{
    const struct engine *e = t->engine;

    *out = (struct dp_trainer_parts){.schedule = e->part_count ? e->schedule : NULL,
                                     .recorder = e->part_count ? e->recorder : NULL,
                                     .comm = t->comm,
                                     .pipe = e->comm,
                                     .replica = e->replica.index,
                                     .replicas = e->replica.count,
                                     .rank = engine_rank(e),
                                     .paces = t->paces,
                                     .queued = place_device(t->place),
                                     .bytes = e->stage_bytes + e->pipeline_bytes};
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        if (t->optimizers[i])
            out->bytes += dp_optimizer_state_bytes(t->optimizers[i]);
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        for (int k = 0; k < 2; k++) {
            struct dp_optimizer *o = k ? t->sums.slots[i].copies : t->sums.slots[i].optimizer;
            out->bytes += o ? dp_optimizer_state_bytes(o) : 0;
        }
}

void dp_trainer_parts_sized(const struct dp_trainer *t, struct dp_trainer_parts *out, size_t size)
{
    struct dp_trainer_parts own;

    list_parts(t, &own);
    dp_sized_give(out, size, &own, sizeof(own));
}

static void count_offload(const struct dp_trainer *t, struct dp_trainer_offload *out)
{
    *out = (struct dp_trainer_offload){.sets = t->fit.choice.sets,
                                       .evicted = t->fit.choice.evicted,
                                       .recomputed = t->fit.choice.recomputed,
                                       .streamed = t->config.offload.parameters};
    if (t->engine->part_count)
        model_engine_offload(t->engine, out);
    if (t->fit.rooms)
        out->device_bytes += t->config.offload.device_bytes -
                             t->fit.rooms[engine_rank(t->engine)].limit_bytes;
}

void dp_trainer_offload_sized(const struct dp_trainer *t, struct dp_trainer_offload *out, size_t size)
{
    struct dp_trainer_offload own;

    count_offload(t, &own);
    dp_sized_give(out, size, &own, sizeof(own));
}

/* ---- making one ------------------------------------------------------------------------------ */

/* Of tied parameters only the owner's is updated. With offload.folder those that live on the host have
 * their state in a file. */
static int make_optimizer(struct dp_trainer *t, int slot)
{
    const struct engine_part *part = &t->engine->parts[slot];
    const struct dp_offload_optimizer_config file = {.optimizer = t->config.optimizer,
                                                     .folder = t->state_folder};
    const int32_t end = !file.folder                    ? 0
                        : t->config.offload.parameters ? part->streamed
                                                       : part->count;
    struct dp_parameter *owned = calloc((size_t)part->count + 1, sizeof(*owned));
    int32_t count = 0, in_file = 0;
    int err = 0;

    if (!owned)
        return dp_fail(DP_ENOMEM, "no memory for a list of %d parameters", part->count);
    for (int32_t i = 0; i < part->count; i++)
        if (!t->engine->tied || model_engine_owns(t->engine, slot, i)) {
            owned[count++] = part->parameters[i];
            in_file += i < end;
        }
    if (in_file)
        err = dp_offload_optimizer_new(&file, owned, in_file, &t->in_files[slot]);
    if (!err && count > in_file)
        err = dp_optimizer_new(&t->config.optimizer, owned + in_file, count - in_file,
                               &t->optimizers[slot]);
    free(owned);
    return err;
}

int trainer_make_optimizers(struct dp_trainer *t)
{
    int err = 0;

    for (int i = 0; i < t->engine->part_count && !err; i++)
        if (t->sums.none || t->sums.kind == DP_SUMS_ALL)
            err = make_optimizer(t, i);
    return err;
}

int trainer_make_room(struct dp_trainer *t)
{
    struct engine *e = t->engine;
    const size_t ranks = (size_t)(t->ranks > t->config.replicas ? t->ranks : t->config.replicas);
    int32_t most = 0;

    t->columns = trainer_mixes(t) ? (size_t)e->replica.count : 1;
    t->sums_len = (size_t)e->microbatches + t->columns * (size_t)e->layers + OF_EACH;
    for (int i = 0; i < e->part_count; i++) {
        int32_t count;
        sums_summed(&t->sums, i, &count);
        most = count > most ? count : most;
    }
    t->values = calloc(t->sums_len, sizeof(double));
    t->all_values = calloc(t->sums_len * ranks, sizeof(double));
    t->in_layer = calloc((size_t)most + 1, sizeof(*t->in_layer));
    t->norm_values = calloc(norms_room(&e->norms, e->microbatches) + 1, sizeof(*t->norm_values));
    t->paces = calloc(ranks, sizeof(*t->paces));
    if (!t->values || !t->all_values || !t->in_layer || !t->norm_values || !t->paces)
        return dp_fail(DP_ENOMEM, "no memory for what %zu ranks tell each other", ranks);
    e->queued = queue_squares;
    e->queued_user = t;
    int err = squares_new(t->home, most, e->part_count, &t->squares);
    if (!err)
        err = queue_squares(t); /* on a device this loads the kernels, before NCCL's keep it busy */
    const int waited = place_wait(t->home);
    return err ? err : waited;
}
