/* SPDX-License-Identifier: Apache-2.0
 *
 * job_steps.c - the steps of a job, and what is told at the end.
 */
#include "train/job.h"

#include "train/memory.h"
#include "train/sample.h"

#include <math.h>
#include <stdlib.h>

enum { MEASURE_EVERY = 10 }; /* steps; collecting a step's times costs far less than a step */

/* ---- training ------------------------------------------------------------------------------- */

int job_watch(struct job *j)
{
    watcher_fini(&j->watcher);
    j->watched = j->parts.comm;
    return settings_survives_as_pipeline(j->s) && !j->parts.schedule
               ? 0 /* it is spare */
               : watcher_init(&j->watcher, j->s, &j->parts, j->comm, j->how);
}

/* After a call during which ranks may have died. */
static int look_around(struct job *j)
{
    if (!j->s->how.survive)
        return 0;
    job_take_parts(j);
    if (j->parts.comm == j->watched)
        return 0;
    job_note_sentence(j);
    j->watched = j->parts.comm;
    return settings_survives_as_pipeline(j->s) ? job_watch(j) : 0;
}

/* What ranks do together beside the steps, part(user). */
static int carry_out(struct job *j, int (*part)(void *user), void *user)
{
    return dp_trainer_carry_out(host_trainer(j->host), part, user);
}

struct measuring {
    struct job *j;
    bool all;                           /* of all replicas, not of the first alone */
    const char *const *files;           /* NULL: nothing is written */
    struct step_times times;            /* NAN where they are not known */
};

static int measure(void *user)
{
    struct measuring *m = user;
    struct job *j = m->j;

    m->times = (struct step_times){.bubble = NAN, .step_ms = NAN, .simulated_ms = NAN};
    job_take_parts(j);
    if (!j->parts.recorder || (!m->all && j->parts.replica))
        return 0;
    const int err =
        timeline_take(&j->parts, m->files, m->files ? NULL : j->watcher.watch, &m->times);
    /* A pipeline of those that live may have taken no step yet. */
    return err == DP_ESTATE && j->s->how.survive ? 0 : err;
}

/* After a step: what is worth a look now and then. */
static int look(struct job *j, struct progress *p)
{
    uint64_t every = (uint64_t)j->s->eval_every, steps = (uint64_t)j->s->steps;
    const bool links = watcher_paces(&j->watcher, j->parts.paces);
    const bool due = p->step % MEASURE_EVERY == 0 || report_due(j->s, p->step);
    struct measuring m = {.j = j, .all = links, .times.bubble = NAN};
    int err = links || due ? carry_out(j, measure, &m) : 0;

    if (due && j->parts.replica == 0)
        p->bubble = m.times.bubble;
    if (!err && (p->step == steps || (every && p->step % every == 0)))
        err = host_evaluate(j->host, &p->held_out);
    return err ? err : look_around(j);
}

struct slow_at {
    struct report *report;
    uint64_t step;
    bool shown;
};

static void tell_slow(void *user, const struct dp_slow *slow, bool begun)
{
    const struct slow_at *at = user;

    if (at->shown)
        report_slow(at->report, at->step, slow, begun);
}

static int save(struct job *j, uint64_t step)
{
    int err = dp_trainer_save(host_trainer(j->host), j->s->how.checkpoint.folder);

    if (!err)
        err = look_around(j);
    if (!err && job_is_first(j))
        report_saved(&j->report, step);
    return err;
}

/* The first rank may have died before it told of its last step. */
static bool is_to_tell(struct job *j)
{
    const bool first = job_is_first(j);

    if (first && !j->tells && j->last.step)
        report_progress(&j->report, &j->last);
    j->tells = first;
    return first;
}

static int take_step(struct job *j, uint64_t step)
{
    struct summary *summary = &j->summary;
    struct progress p = {.step = step + 1, .held_out = NAN, .bubble = NAN};
    int err = host_step(j->host, step, &p.result);

    if (!err)
        err = look_around(j);
    if (!err)
        err = look(j, &p);
    if (err)
        return err;
    if (step == j->s->from.step)
        summary->first_loss = p.result.loss;
    summary->last_loss = p.result.loss;
    summary->held_out = p.held_out;
    summary->skipped += p.result.skipped;
    watcher_tell(&j->watcher, &p, tell_slow,
                 &(struct slow_at){&j->report, p.step, job_is_first(j)});
    if (is_to_tell(j))
        report_progress(&j->report, &p);
    j->last = p;
    return settings_save_due(j->s, p.step) ? save(j, p.step) : 0;
}

int job_train(struct job *j, uint64_t step)
{
    int err = 0;

    while (!err && step < (uint64_t)j->s->steps) {
        err = take_step(j, step);
        if (!err)
            err = job_admit(j);
        step++;
    }
    return err;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* What each rank has; of offload that of the one that had the most on its device. */
static int weigh(void *user)
{
    struct job *j = user;
    struct summary *summary = &j->summary;
    job_take_parts(j);
    struct dp_comm *comm = job_comm(j);
    const int ranks = comm ? dp_comm_size(comm) : 1;
    struct memory_use *all = calloc((size_t)ranks, sizeof(*all));
    struct memory_use mine = {.peak_bytes = memory_peak(""), .held_bytes = (double)j->parts.bytes};

    free(summary->memory);
    summary->memory_bytes = 0;
    summary->memory = all;
    summary->memory_count = ranks;
    if (!all)
        return DP_ENOMEM;
    if (j->s->offload.text)
        dp_trainer_offload(host_trainer(j->host), &mine.offload);
    all[0] = mine;
    summary->offload = mine.offload;
    int err = comm ? dp_comm_allgather(comm, &mine, all, sizeof(mine)) : 0;
    for (int rank = 0; !err && rank < ranks; rank++) {
        if (all[rank].peak_bytes > summary->memory_bytes) {
            summary->memory_bytes = all[rank].peak_bytes;
            summary->memory_rank = rank;
        }
        if (all[rank].offload.device_bytes > summary->offload.device_bytes)
            summary->offload = all[rank].offload;
    }
    return err;
}

static int measure_step(struct job *j)
{
    struct measuring m = {.j = j, .files = j->s->drawn};
    const int err = carry_out(j, measure, &m);

    j->summary.step = m.times;
    return err;
}

/* Of what replicas mix into one that lives; otherwise of the first. */
static int sample(struct job *j, size_t count, uint8_t *text)
{
    const struct sample_spec spec = {.count = count, .temperature = j->s->temperature};

    return count ? host_sample(j->host, &spec, text) : 0;
}

static int describe(struct job *j, uint8_t *text)
{
    int err = sample(j, j->summary.sample_len, text);

    if (!err)
        err = carry_out(j, weigh, j);
    return err ? err : measure_step(j);
}

int job_count_lost(const struct job *j)
{
    const int32_t *lost;

    return dp_trainer_lost(host_trainer(j->host), &lost);
}

int job_finish(struct job *j)
{
    struct summary *summary = &j->summary;
    size_t len = (size_t)j->s->sample;
    uint8_t *text = malloc(len + 1);
    bool unwritten = false;
    int lost = -1;

    summary->sample_len = len;
    int err = text ? dp_trainer_finish(host_trainer(j->host)) : DP_ENOMEM;
    while (!err && lost != job_count_lost(j)) { /* what the first rank has died with */
        lost = job_count_lost(j);
        err = describe(j, text);
    }
    summary->sample = text;
    if (!err && is_to_tell(j))
        report_end(&j->report, summary);
    free(text);
    free(summary->memory);
    summary->memory = NULL;
    for (int i = 0; i < DRAWN; i++)
        unwritten = unwritten || summary->step.unwritten[i];
    return !err && unwritten ? DP_EIO : err; /* after the summary */
}
