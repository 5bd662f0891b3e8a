/* SPDX-License-Identifier: Apache-2.0
 *
 * job_survive.c - pipelines that go on without ranks that have died (survivors.h).
 */
#include "train/job_state.h"

#include "command.h"
#include "train/saved.h"
#include "train/survivors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The pipelines of the first ranks of j->all: their communicator, and this rank's part of one. */
static int join_pipeline(struct job *j)
{
    const bool is_member = dp_comm_rank(j->all) < settings_processes(j->s);
    int err = dp_comm_split(j->all, is_member ? 0 : -1, 0, &j->team);

    j->comm = j->team ? j->team : j->all;
    return err || !j->team ? err : job_make_parts(j);
}

/* How far a rank has come. */
struct position {
    int process; /* as it was started */
    bool member; /* of the pipeline that lost a rank */
    bool first;  /* it tells of the steps */
    uint64_t step, trained, reported;
    struct step_result result;
};

/* All go on from the earliest step that is at hand on any; its weights may be there already. If the
 * rank is lost that tells of the steps, it may not have told of the last one. */
static int find_position(struct job *j, const struct job *old)
{
    const struct position mine = {.process = j->how->rank,
                                  .member = old->engine,
                                  .first = old->engine && dp_comm_rank(old->comm) == 0,
                                  .step = old->step,
                                  .trained = old->trained,
                                  .reported = old->reported,
                                  .result = old->result};
    const int size = dp_comm_size(j->all);
    struct position *all = calloc((size_t)size, sizeof(*all));
    int err = all ? dp_comm_allgather(j->all, &mine, all, sizeof(mine)) : survivors_no_memory();
    bool found = false, told = false;

    j->reported = old->reported;
    for (int rank = 0; rank < size && !err; rank++) {
        j->processes[rank] = all[rank].process;
        if (!all[rank].member)
            continue;
        j->step = found && j->step < all[rank].step ? j->step : all[rank].step;
        j->trained = all[rank].trained;
        j->result = all[rank].result;
        if (!mine.member && (!found || j->reported > all[rank].reported))
            j->reported = all[rank].reported;
        found = true;
        told = told || all[rank].first;
    }
    j->trained_before = j->trained;
    if (!told && j->trained > j->given->from.step)
        j->step = j->reported = j->trained - 1;
    free(all);
    return err;
}

/* So that no rank waits in them for one that has failed here. */
static void revoke_groups(struct job *j, int err)
{
    struct dp_comm *groups[] = {j->pipe, j->data, j->team};

    trainer_revoke(&j->trainer, err);
    for (int i = 0; i < 3; i++)
        if (groups[i])
            dp_comm_revoke(groups[i], err, dp_last_error());
}

/* What the ranks of a first pipeline begin with, or of one that takes its place before all had begun. */
static int begin(struct job *j)
{
    j->step = j->trained = j->trained_before = j->reported = j->given->from.step;
    return j->engine && j->step ? saved_read(&j->trainer, j->s->from.path, j->step) : 0;
}

/* The state of the pipeline before. */
static int take_over(struct job *j, struct job *old)
{
    int err = saved_move(j->all, old->engine ? &old->trainer : NULL, j->engine ? &j->trainer : NULL);

    if (!err && j->engine)
        j->engine->ops->seek(j->engine, j->trained);
    return err;
}

/* Where no rank is lost a step failed for a while of silence, which may be over: it is repeated once. */
static bool is_hopeless(struct job *j, const struct job *old)
{
    if (dp_comm_size(j->all) < dp_comm_size(old->all))
        return false;
    j->repeated = j->step + 1;
    return old->repeated == j->repeated;
}

/* The next pipelines of ranks that live. DP_ESTATE: the error before stays. */
static int lay_out_again(struct job *j, struct job *old, const struct settings *given)
{
    const int live = dp_comm_size(j->all), replicas = (int)given->replicas;
    const int ranks = survivors_ranks(live / replicas, (int)given->ranks);

    if (!ranks)
        return command_broke("%d of the ranks live, expected %d or more", live, replicas),
               DP_ENODEV;
    j->processes = calloc((size_t)live, sizeof(*j->processes));
    int err = j->processes ? settings_lay_out(given, ranks, &j->laid_out) : survivors_no_memory();
    if (j->processes && err == DP_ENOMEM) /* this rank's own: it leaves */
        err = survivors_no_memory();
    j->s = &j->laid_out;
    if (!err)
        err = join_pipeline(j);
    if (!err)
        err = find_position(j, old);
    if (!err && is_hopeless(j, old))
        return DP_ESTATE;
    if (!err)
        err = old->begun ? take_over(j, old) : begin(j);
    if (survivors_may_be(err))
        revoke_groups(j, err);
    return err;
}

/* " without rank 1 and 3": those of the pipelines before that are not among the next. */
static void say_who_is_lost(const struct job *old, const struct job *j)
{
    const char *before = " without rank ";

    for (int i = 0; i < dp_comm_size(old->all); i++) {
        int k = 0;
        while (k < dp_comm_size(j->all) && j->processes[k] != old->processes[i])
            k++;
        if (k < dp_comm_size(j->all))
            continue;
        fprintf(stderr, "%s%d", before, old->processes[i]);
        before = ", ";
    }
}

static void say_how_it_goes_on(const struct job *old, const struct job *j)
{
    char replicas[32] = "";

    if (dp_comm_rank(j->all))
        return;
    if (j->s->replicas > 1)
        snprintf(replicas, sizeof(replicas), "%d replicas of ", (int)j->s->replicas);
    fprintf(stderr, "dualpipe: training goes on");
    say_who_is_lost(old, j);
    fprintf(stderr, " from step %" PRIu64 " with %s%d rank%s, %d spare\n",
            (j->trained > j->step ? j->trained : j->step) + 1, replicas, (int)j->s->ranks,
            j->s->ranks > 1 ? "s" : "", dp_comm_size(j->all) - settings_processes(j->s));
}

/* Once among the ranks that live now; after an error `old` is as it was. */
static int try_again(struct job *old, struct dp_comm *all, struct job **out)
{
    struct job *j = calloc(1, sizeof(*j));

    if (!j) {
        dp_comm_close(all);
        return survivors_no_memory();
    }
    *j = (struct job){.given = old->given,
                      .s = old->given,
                      .text = old->text,
                      .how = old->how,
                      .comm = all,
                      .all = all,
                      .owns_all = true,
                      .report = old->report};
    int err = survivors_agree(all, lay_out_again(j, old, old->given));
    if (!err)
        *out = j;
    else
        job_free(j);
    return err;
}

/* After an error that may be a death: *at becomes the part of this rank in what goes on. The error
 * stays where no rank has died and the step has failed so before. */
static int survive_as_pipeline(struct job **at, int err)
{
    struct job *old = *at, *next = NULL;
    const int before = err;
    int size = dp_comm_size(old->all), vain = 0;
    struct dp_comm *all;

    dp_comm_revoke(old->all, err, dp_last_error()); /* for spare ranks */
    if (old->engine && old->begun)
        trainer_agree(&old->trainer, err);
    while (survivors_may_be(err)) {
        const int shrunk = dp_comm_shrink(old->all, &all);
        if (shrunk)
            return shrunk;
        vain = dp_comm_size(all) < size ? 0 : vain + 1;
        size = dp_comm_size(all);
        if (vain > 1)
            dp_comm_close(all);
        err = vain > 1 ? DP_ESTATE : try_again(old, all, &next);
    }
    if (err)
        return err == DP_ESTATE ? before : err;
    next->begun = true;
    job_note_sentence(next);
    say_how_it_goes_on(old, next);
    job_free(old);
    *at = next;
    return next->engine
               ? watcher_init(&next->watcher, next->s, &next->parts, next->comm, next->how)
               : 0;
}

static int take_part(struct job *j, struct summary *summary)
{
    if (!j->engine)
        return survivors_wait(j->all);
    int err = job_train(j, j->step, summary);
    if (!err)
        err = job_finish(j, summary);
    if (!err)
        survivors_dismiss(j->all, settings_processes(j->s));
    return err;
}

/* The first pipelines. All have them, or none goes on with them. */
static int make_first(struct job *j)
{
    const int size = dp_comm_size(j->all);
    int err = job_compare(j, j->all);

    j->processes = calloc((size_t)size, sizeof(*j->processes));
    for (int i = 0; i < size && j->processes; i++)
        j->processes[i] = i;
    if (!err)
        err = j->processes ? join_pipeline(j) : survivors_no_memory();
    if (!err)
        err = begin(j);
    if (survivors_may_be(err))
        revoke_groups(j, err);
    err = survivors_agree(j->all, err);
    j->begun = !err;
    return err;
}

int job_run_survivor(struct job **at)
{
    struct job *first = *at;
    struct summary summary = {0};

    int err = make_first(first);
    if (!err && first->engine)
        err = watcher_init(&first->watcher, first->s, &first->parts, first->comm, first->how);
    else if (survivors_may_be(err))
        err = survive_as_pipeline(at, err);
    if (!err)
        report_begin(&(*at)->report, (*at)->given, (*at)->text, dp_comm_rank((*at)->all) == 0);
    while (!err && (err = take_part(*at, &summary)))
        err = survivors_may_be(err) ? survive_as_pipeline(at, err) : err;
    return err;
}
