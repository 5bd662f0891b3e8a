/* SPDX-License-Identifier: Apache-2.0
 *
 * survive.c - the calls that all ranks make, and how these go on without ranks that die: every stage is
 * held by several ranks, and what one that lives has of it moves to the layout of those that live.
 *
 *      comm        0  1  2  3      P = 2, D = 2
 *      2 dies:     0  1  .  2      P = 2, D = 1, and one rank that is spare
 *
 * Replicas that mix are each one rank with a state of its own: the others go on with the graph of those
 * that live (mixer.h), and admit ranks that come back.
 *
 * All that live agree at the end of every step, before parameters change: either all change them or none
 * does. So after a death all copies of a stage are of the same step, and what was cut off is repeated.
 */
#include "trainer/signals.h"
#include "trainer/trainer_state.h"

#include "base/fail.h"
#include "base/sized.h"

#include <dualpipe/pipeline.h>
#include <dualpipe/survival.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What has failed here for good ends all ranks, or, of ranks that survive, this one. */
static int end(struct dp_trainer *t, int err)
{
    if (!err || !t->config.survive)
        return trainer_fail(t, err);
    trainer_revoke(t, err);
    return err;
}

/* ---- the next layout ------------------------------------------------------------------------- */

static bool can_be(const struct dp_trainer *t, int ranks, int replicas)
{
    const int own = t->config.microbatches / replicas;

    return t->config.microbatches % replicas == 0 &&
           !(t->config.fixed_order && replicas & (replicas - 1)) &&
           (ranks == 1 || t->given.kind != DP_SCHEDULE_DUALPIPE ||
            (ranks % 2 == 0 && own % 2 == 0)) &&
           (ranks == 1 || t->given.kind != DP_SCHEDULE_INTERLEAVED || own % ranks == 0);
}

/* As many replicas as there can be; where there is not even one, one of fewer ranks. */
static void choose_layout(struct dp_trainer *t)
{
    struct dp_trainer_config *c = &t->config;

    c->schedule.ranks = t->given.ranks;
    c->replicas = t->given.replicas;
    if (trainer_survives_apart(t))
        return;
    while (c->replicas > 1 && (c->schedule.ranks * c->replicas > t->ranks ||
                               !can_be(t, c->schedule.ranks, c->replicas)))
        c->replicas--;
    while (c->schedule.ranks > t->ranks || !can_be(t, c->schedule.ranks, c->replicas))
        c->schedule.ranks--;
    c->schedule.kind = c->schedule.ranks == 1 ? DP_SCHEDULE_GPIPE : t->given.kind;
    c->schedule.microbatches = c->microbatches / c->replicas;
    if (c->schedule.ranks != t->given.ranks)
        c->balance = DP_BALANCE_COST;
}

/* Numbers of the ranks when the training began. */
static int exchange_names(struct dp_trainer *t)
{
    int32_t *names = calloc((size_t)t->ranks, sizeof(*names));
    int err = names ? dp_comm_allgather(t->comm, &t->name, names, sizeof(t->name))
                    : dp_fail(DP_ENOMEM, "no memory for a list of %d ranks", t->ranks);

    if (err) {
        free(names);
        return err;
    }
    free(t->names);
    t->names = names;
    t->name_count = t->ranks;
    return 0;
}

static int move_state(struct dp_trainer *t, const struct dp_trainer *old)
{
    struct saved_list has = {0}, wants = {0};
    int err = saved_list_new(old, SAVED_HELD, &has);

    if (!err)
        err = saved_list_new(t, SAVED_WANTED, &wants);
    if (!err)
        err = dp_pipeline_move_state(t->comm, has.tensors, has.count, wants.tensors, wants.count);
    saved_list_fini(&has);
    saved_list_fini(&wants);
    if (!err)
        trainer_seek(t, t->next);
    return err;
}

/* The parts of this rank among those that live, in comm. */
static int build_again(struct dp_trainer *t, const struct dp_trainer *old, struct dp_comm *comm)
{
    trainer_clear_parts(t);
    t->comm = comm;
    t->ranks = dp_comm_size(comm);
    t->failed = false;
    choose_layout(t);
    int err = t->begun ? trainer_lay_out_all(t) : trainer_begin(t);
    if (!err && t->begun)
        err = trainer_make_parts(t);
    if (!err)
        err = exchange_names(t);
    return err || !t->begun ? err : move_state(t, old);
}

/* ---- replicas that mix ----------------------------------------------------------------------- */

/* How far a replica has come. */
struct progress {
    uint64_t next, digests[2];
    struct dp_loss_scale scale;
    struct dp_rate rate;
    bool ending;
};

/* One that has joined with another config or model leaves, and is dead to the others. */
static int compare(const struct dp_trainer *t, const struct progress *all, int with)
{
    for (int i = 0; i < t->ranks; i++) {
        if (!memcmp(all[i].digests, all[with].digests, sizeof(all[i].digests)))
            continue;
        if (i == trainer_rank(t))
            return dp_fail(DP_EMISMATCH, "the trainer's %s differs from that of the ranks that it "
                           "joins", all[i].digests[0] != all[with].digests[0] ? "config" : "model");
        return dp_fail_quietly(DP_ECOMM, "rank %d has joined with another config or model",
                               t->names[i]);
    }
    return 0;
}

/* One that has joined goes on with what the furthest knows beside its parameters. */
static int take_progress(struct dp_trainer *t, bool joins)
{
    struct progress mine = {.next = t->next, .digests = {t->digests[0], t->digests[1]},
                            .scale = t->config.loss_scale, .rate = t->config.rate,
                            .ending = t->ending};
    struct progress *all = calloc((size_t)t->ranks, sizeof(*all));
    int first = 0;
    int err = all ? exchange_names(t) : dp_fail(DP_ENOMEM, "no memory for a list of %d ranks", t->ranks);

    if (!err)
        err = dp_comm_allgather(t->comm, &mine, all, sizeof(mine));
    for (int i = 1; i < t->ranks && !err; i++)
        first = all[i].next > all[first].next ? i : first;
    if (!err)
        err = compare(t, all, first);
    if (!err) {
        t->config.loss_scale = all[first].scale;
        t->config.rate = all[first].rate;
        t->ending = all[first].ending;
        trainer_seek(t, all[first].next);
    }
    free(all);
    return err || !joins ? err : norms_share(&t->engine->norms, t->comm, first);
}

/* ---- after a death --------------------------------------------------------------------------- */

/* The last `count` of the lost ranks are those of now. */
static void say_how_it_goes_on(const struct dp_trainer *t, int32_t count)
{
    const struct dp_trainer_config *c = &t->config;
    char who[256] = "";
    size_t used = 0;

    for (int32_t i = t->lost_count - count; i < t->lost_count && used < sizeof(who); i++)
        used += (size_t)snprintf(who + used, sizeof(who) - used, "%s %d",
                                 used ? "," : " without rank", t->lost[i]);
    dp_log(DP_LOG_WARN, "training goes on%s from step %llu with P = %d and D = %d, %d spare", who,
           (unsigned long long)t->next + 1, c->schedule.ranks, c->replicas,
           t->ranks - c->schedule.ranks * c->replicas);
}

/* Of those that lived. */
static int note_losses(struct dp_trainer *t, const int32_t *names, int ranks)
{
    const int32_t before = t->lost_count;
    int32_t *lost = realloc(t->lost, (size_t)(t->lost_count + ranks) * sizeof(*lost));

    if (!lost)
        return dp_fail(DP_ENOMEM, "no memory for a list of lost ranks");
    t->lost = lost;
    for (int i = 0; i < ranks; i++) {
        int k = 0;
        while (k < t->name_count && t->names[k] != names[i])
            k++;
        if (k == t->name_count)
            lost[t->lost_count++] = names[i];
    }
    if (trainer_rank(t) == 0 && trainer_survives_apart(t) && !t->begun) /* later the mixer says it */
        dp_log(DP_LOG_WARN,
               "mixing goes on with %d of %d workers from iteration %llu on: graph %s of %d rounds",
               t->ranks, ranks, (unsigned long long)t->next, t->graph->name, t->graph->period);
    else if (trainer_rank(t) == 0 && !trainer_survives_apart(t))
        say_how_it_goes_on(t, t->lost_count - before);
    return 0;
}

static void drop(struct dp_trainer *parts)
{
    if (parts->engine && parts->model.model.leave)
        parts->model.model.leave(parts->model.model.loss_user);
    trainer_free_parts(parts);
    dp_comm_close(parts->owned);
}

/* What it had before a try whose parts are dropped; what that has made beside parts stays. */
static void go_back(struct dp_trainer *t, const struct dp_trainer *old)
{
    const struct dp_trainer tried = *t;

    *t = *old;
    t->place = tried.place;
    t->home = tried.home;
    t->cut = tried.cut;
    t->model.costs = tried.model.costs;
}

/* Among the ranks that live; again and again while more die. */
static int lay_out_again(struct dp_trainer *t, int err)
{
    struct dp_trainer old = *t;
    struct dp_comm *comm, *from = t->comm;

    while (trainer_may_be_death(err)) {
        err = dp_comm_shrink(from, &comm);
        if (from != old.comm)
            drop(t);
        if (err) {
            go_back(t, &old);
            return err;
        }
        t->owned = from = comm;
        err = trainer_agree(t, build_again(t, &old, comm));
    }
    if (!err)
        err = note_losses(t, old.names, old.name_count);
    drop(&old);
    return err;
}

/* The same of replicas that mix. */
static int mix_on(struct dp_trainer *t, int err)
{
    const int32_t count = t->name_count;
    int32_t *names = t->names;

    t->names = NULL;
    t->name_count = 0;
    norms_commit(&t->engine->norms, t->engine->microbatches, NULL);
    while (trainer_may_be_death(err)) {
        err = dp_mixer_survive(sums_mixer(&t->sums));
        if (err)
            break;
        trainer_take_members(t);
        err = trainer_agree(t, take_progress(t, false));
    }
    if (!err)
        err = note_losses(t, names, count);
    free(names);
    return err;
}

/* Where none has died a step failed for a while of silence, which may be over: it is repeated once. */
static int go_on(struct dp_trainer *t, int before)
{
    const int ranks = t->ranks;
    int err = t->begun && trainer_survives_apart(t) ? mix_on(t, before) : lay_out_again(t, before);

    if (!err && t->ranks == ranks && t->repeated == t->next + 1)
        err = before;
    t->repeated = t->next + 1;
    return err;
}

/* If err may be due to a death: 0, and what was cut off can be repeated. */
static int survive(struct dp_trainer *t, int err)
{
    if (!t->config.survive || !trainer_may_be_death(err))
        return err;
    trainer_agree(t, err); /* where others are already, after the next part */
    return go_on(t, err);
}

/* After a death that trainer_begin met 0, once those that live have begun. */
static int begin(struct dp_trainer *t)
{
    const int ranks = t->ranks;
    int err = trainer_begin(t);

    if (t->config.survive && dp_comm_survives(t->comm)) { /* else a death has ended all */
        err = trainer_agree(t, err);
        if (trainer_may_be_death(err))
            err = go_on(t, err);
        else if (!err && t->ranks < ranks) /* a mixer has survived a death in its beginning */
            err = mix_on(t, DP_ECOMM);
        if (err)
            end(t, err);
    }
    t->begun = !err;
    return err;
}

/* Until all that live have got through. */
static int carry_out(struct dp_trainer *t, int (*part)(struct dp_trainer *t, void *arg), void *arg)
{
    int err = trainer_agree(t, part(t, arg));

    while (t->config.survive && trainer_may_be_death(err)) {
        const int survived = survive(t, err);
        if (survived)
            return survived;
        err = trainer_agree(t, part(t, arg));
    }
    return err;
}

struct user_part {
    int (*part)(void *user);
    void *user;
};

static int carry_out_of_user(struct dp_trainer *t, void *arg)
{
    const struct user_part *p = arg;

    (void)t;
    return p->part(p->user);
}

int dp_trainer_carry_out(struct dp_trainer *t, int (*part)(void *user), void *user)
{
    struct user_part p = {part, user};

    return end(t, carry_out(t, carry_out_of_user, &p));
}

int dp_trainer_lost(const struct dp_trainer *t, const int32_t **ranks)
{
    *ranks = t->lost;
    return t->lost_count;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct dp_trainer *prepare(int err, const struct dp_trainer_config *config,
                                  const struct dp_model *model, struct dp_comm *comm, int ranks)
{
    struct dp_trainer *t = calloc(1, sizeof(*t));

    if (!t) {
        dp_fail(DP_ENOMEM, "no memory for a trainer");
        return NULL;
    }
    t->comm = comm;
    t->ranks = ranks;
    if (config->checkpoint.on_signal)
        signals_begin();
    t->watches = config->checkpoint.on_signal;
    t->prepared = err ? err : trainer_prepare(t, config, model);
    return t;
}

static int hand_out(struct dp_trainer *t, int err, struct dp_trainer **out)
{
    if (err)
        dp_trainer_free(t);
    else
        *out = t;
    return err;
}

int dp_trainer_new_sized(const struct dp_trainer_config *config, const struct dp_model *model,
                         struct dp_comm *comm, struct dp_trainer **out, size_t size)
{
    DP_TAKE_KNOWN(dp_trainer_config, config, size);
    struct dp_trainer *t =
        prepare(config_err, config, model, comm, comm ? dp_comm_size(comm) : 1);

    return t ? hand_out(t, begin(t), out) : dp_comm_share_error(comm, DP_ENOMEM);
}

/* ---- ranks that come back -------------------------------------------------------------------- */

/* Those of before and the new ones, once these have what is the mixer's. *again: there was a death, or
 * one that was waited for has not come. */
static int go_on_together(struct dp_trainer *t, int err, bool *again)
{
    const int32_t count = t->name_count;
    int32_t *names = t->names;

    t->names = NULL;
    t->name_count = 0;
    trainer_take_members(t);
    err = trainer_agree(t, err);
    if (!err)
        err = trainer_agree(t, take_progress(t, true));
    if (err) { /* to some it may be known who came, but not to all */
        free(t->names);
        t->names = names;
        t->name_count = count;
    } else {
        free(names);
    }
    *again = err;
    err = survive(t, err);
    t->repeated = 0; /* no step was */
    return err;
}

int dp_trainer_admit_sized(struct dp_trainer *t, int count, const struct dp_comm_config *config,
                           size_t size)
{
    const int room = t->config.replicas - t->ranks;

    if (!trainer_survives_apart(t))
        return dp_fail(DP_EUNSUPPORTED, "ranks that come to a pipeline, expected config.survive and "
                       "replicas that mix");
    if (count < 1 || count > room)
        return dp_fail(DP_EINVAL, "count: %d, expected 1 to %d, as many as are lost", count, room);
    bool again;
    int err = dp_mixer_admit_sized(sums_mixer(&t->sums), count, config, size);
    err = go_on_together(t, err, &again);
    if (err)
        return end(t, err);
    return again ? dp_fail_quietly(DP_EAGAIN, "a rank has died, or has not come, while others were "
                                   "admitted") : 0;
}

/* By itself, until the mixer knows the others. */
static int join(struct dp_trainer *t, struct dp_comm *comm)
{
    bool again;
    int err = t->prepared;

    t->joined = comm;
    if (!err && !trainer_survives_apart(t))
        err = dp_fail(DP_EUNSUPPORTED, "a rank that comes to a pipeline, expected config.survive and "
                      "replicas that mix");
    if (!err)
        err = trainer_lay_out_all(t);
    if (!err)
        err = trainer_make_parts(t);
    t->begun = !err;
    return err ? err : go_on_together(t, 0, &again);
}

int dp_trainer_join_sized(const struct dp_trainer_config *config, const struct dp_model *model,
                          struct dp_comm *comm, int rank, struct dp_trainer **out, size_t size)
{
    DP_TAKE(dp_trainer_config, config, size);
    struct dp_trainer *t = prepare(0, config, model, NULL, config->replicas);

    if (!t)
        return DP_ENOMEM;
    t->name = rank;
    if (!t->prepared && (rank < 0 || rank >= config->replicas))
        t->prepared = dp_fail(DP_EINVAL, "rank: %d, expected 0 to %d", rank, config->replicas - 1);
    return hand_out(t, join(t, comm), out);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* ends: it is the first step in which a rank was told to end. */
static bool is_due(const struct dp_trainer *t, bool ends)
{
    const uint64_t every = t->config.checkpoint.every;

    return t->config.checkpoint.folder && (ends || (every && t->next % every == 0));
}

/* Values move to another layout as they were before the step. Replicas that mix keep theirs, whether
 * they were updated in a step that is repeated or not, so that all learn of a death in the same call. */
static int learn(struct dp_trainer *t, void *arg)
{
    const int err = trainer_learn(t, arg);

    return err || !trainer_survives_apart(t)
               ? err
               : trainer_update(t, ((struct trainer_step *)arg)->result.skipped);
}

int dp_trainer_step_sized(struct dp_trainer *t, const struct dp_batch *batch,
                          struct dp_trainer_result *result, size_t size, size_t result_size)
{
    DP_TAKE_KNOWN(dp_batch, batch, size);
    struct trainer_step step = {.batch = batch, .err = batch_err};
    const int32_t lost = t->lost_count;
    int err = carry_out(t, learn, &step);

    if (err)
        return end(t, err);
    norms_commit(&t->engine->norms, t->engine->microbatches,
                 step.result.skipped ? NULL : t->norm_values);
    t->next++;
    if (!trainer_survives_apart(t)) /* values are there, but for copies */
        err = survive(t, trainer_update(t, step.result.skipped));
    if (err)
        return end(t, err);
    if (t->config.loss_scale.scale > 0)
        dp_loss_scale_update(&t->config.loss_scale, step.result.skipped);
    const bool ends = step.result.ending && !t->ending;
    t->ending = step.result.ending;
    if (is_due(t, ends))
        err = dp_trainer_save(t, NULL);
    step.result.lost = t->lost_count - lost;
    if (!err && result)
        dp_sized_give(result, result_size, &step.result, sizeof(step.result));
    return err;
}

int dp_trainer_evaluate_sized(struct dp_trainer *t, const struct dp_batch *batch, double *loss,
                              size_t size)
{
    DP_TAKE_KNOWN(dp_batch, batch, size);
    struct trainer_step step = {.batch = batch, .err = batch_err};
    const int err = carry_out(t, trainer_evaluate, &step);

    if (!err)
        *loss = step.result.loss;
    return end(t, err);
}

uint64_t dp_trainer_next_step(const struct dp_trainer *t)
{
    return t->next;
}

int dp_trainer_save(struct dp_trainer *t, const char *folder)
{
    struct trainer_saving s = {.folder = folder};

    if (trainer_survives_apart(t))
        return dp_fail(DP_EUNSUPPORTED, "a checkpoint of replicas that mix with survive, expected "
                       "none, as it has the state of each");
    const int err = carry_out(t, trainer_save, &s);
    return err || !s.err ? err : dp_fail_quietly(s.err, "%s", s.why);
}

static int average(struct dp_trainer *t, void *arg)
{
    (void)arg;
    return sums_average(&t->sums, false);
}

int dp_trainer_finish(struct dp_trainer *t)
{
    int err = 0;

    if (t->config.checkpoint.folder && t->saved_step != t->next)
        err = dp_trainer_save(t, NULL);
    if (!err)
        err = carry_out(t, average, NULL);
    if (!err)
        err = trainer_catch_up(t);
    return end(t, err);
}

int dp_trainer_gather(struct dp_trainer *t, int rank, struct dp_named_tensor **out, int32_t *count)
{
    struct trainer_gathered g = {.rank = rank};
    const int err = carry_out(t, trainer_gather, &g);

    if (err)
        return end(t, err);
    *out = g.tensors;
    *count = g.count;
    return 0;
}
