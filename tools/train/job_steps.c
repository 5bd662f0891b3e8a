/* SPDX-License-Identifier: Apache-2.0
 *
 * job_steps.c - the steps of a job, and what is told at the end.
 */
#include "train/job_state.h"

#include "train/memory.h"
#include "train/offloaded.h"
#include "train/sample.h"
#include "train/saved.h"
#include "train/timeline.h"

#include <math.h>
#include <stdlib.h>

enum { MEASURE_EVERY = 10 }; /* steps; collecting a step's times costs far less than a step */

/* ---- training ------------------------------------------------------------------------------- */

/* After a step: what is worth a look now and then. */
static int look(struct job *j, struct progress *p)
{
    uint64_t every = (uint64_t)j->s->eval_every, steps = (uint64_t)j->s->steps;
    const bool links = watcher_paces(&j->watcher, j->parts.paces);
    const bool due = j->replica.index == 0 &&
                     (p->step % MEASURE_EVERY == 0 || report_due(j->s, p->step));
    struct step_times times = {.bubble = NAN};
    int err = 0;

    if (job_has_times(j) && (links || due))
        err = timeline_measure(&j->parts, j->watcher.watch, &times);
    if (due)
        p->bubble = times.bubble;
    if (err)
        return err;

    if (p->step == steps || (every && p->step % every == 0))
        err = j->host ? host_evaluate(j->host, &p->held_out)
                      : trainer_held_out(&j->trainer, &p->held_out);
    return err;
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

static int write_state(struct job *j, uint64_t step)
{
    char *text = settings_text(j->given, step, j->text->digest);
    int err = text ? saved_write(&j->trainer, j->s->save, step, text) : DP_ENOMEM;

    free(text);
    return err;
}

static int save(struct job *j, uint64_t step)
{
    int err = j->host ? dp_trainer_save(host_trainer(j->host), j->s->save) : write_state(j, step);

    if (!err && job_is_first(j))
        report_saved(&j->report, step);
    return err;
}

/* After a death a step may be one whose weights are there already. */
static int learn(struct job *j, uint64_t step)
{
    j->step = step;
    if (job_is_survivor(j) && j->trained > step)
        return 0;
    struct step_result result; /* of a step that is cut off it is not used */
    int err = j->host ? host_step(j->host, step, &result) : trainer_step(&j->trainer, step, &result);
    if (err)
        return err;
    j->trained = step + 1;
    j->result = result;
    return 0;
}

static int take_step(struct job *j, uint64_t step, struct summary *summary)
{
    struct progress p = {.step = step + 1, .held_out = NAN, .bubble = NAN};
    int err = learn(j, step);

    p.result = j->result;
    if (!err)
        err = look(j, &p);
    if (err)
        return err;
    if (job_is_survivor(j) && j->reported > step) /* and has been told */
        return settings_save_due(j->s, p.step) ? save(j, p.step) : 0;
    j->reported = p.step;
    if (step == j->s->from.step)
        summary->first_loss = p.result.loss;
    summary->last_loss = p.result.loss;
    summary->held_out = p.held_out;
    summary->skipped += p.result.skipped;
    watcher_tell(&j->watcher, &p, tell_slow,
                 &(struct slow_at){&j->report, p.step, job_is_first(j)});
    if (job_is_first(j))
        report_progress(&j->report, &p);
    return settings_save_due(j->s, p.step) ? save(j, p.step) : 0;
}

int job_train(struct job *j, uint64_t step, struct summary *summary)
{
    int err = 0;

    while (!err && step < (uint64_t)j->s->steps) {
        err = take_step(j, step, summary);
        if (err)
            err = job_survive_mixing(j, err, &step);
        else
            step++;
    }
    return err;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* What this rank has asked for: the pipeline's memory, its stages and the optimizers' state. */
static double held_bytes(const struct job *j)
{
    const struct engine *e = j->engine;
    size_t bytes = j->host ? j->parts.bytes : e->pipeline_bytes;

    for (int i = 0; !j->host && i < e->stage_count; i++) {
        bytes += gpt_stage_bytes(e->stages[i]);
        if (j->trainer.optimizers[i])
            bytes += dp_optimizer_state_bytes(j->trainer.optimizers[i]);
    }
    return (double)bytes;
}

static int measure_memory(struct job *j, struct summary *summary)
{
    struct dp_comm *comm = j->trainer.comm ? j->trainer.comm : j->comm;
    const int ranks = comm ? dp_comm_size(comm) : 1;
    struct memory_use *all = calloc((size_t)ranks, sizeof(*all));

    summary->memory = all;
    summary->memory_count = ranks;
    if (!all)
        return DP_ENOMEM;
    all[0] = (struct memory_use){memory_peak(""), held_bytes(j)};
    struct memory_use mine = all[0];
    int err = comm ? dp_comm_allgather(comm, &mine, all, sizeof(mine)) : 0;
    for (int rank = 0; !err && rank < ranks; rank++)
        if (all[rank].peak_bytes > summary->memory_bytes) {
            summary->memory_bytes = all[rank].peak_bytes;
            summary->memory_rank = rank;
        }
    return err;
}

/* Of the rank that had the most on its device. */
static int measure_offload(struct job *j, struct summary *summary)
{
    struct offloaded_figures mine, *all;

    if (!j->s->offload.any)
        return 0;
    summary->offloaded = offloaded_figures(j->engine, &summary->offload) ||
                         pipelined_figures(j->engine, &summary->offload);
    if (!summary->offloaded || !j->comm)
        return 0;
    const int ranks = dp_comm_size(j->trainer.comm);
    all = calloc((size_t)ranks, sizeof(*all));
    if (!all)
        return DP_ENOMEM;
    mine = summary->offload;
    int err = dp_comm_allgather(j->trainer.comm, &mine, all, sizeof(mine));
    for (int rank = 0; rank < ranks && !err; rank++)
        if (all[rank].device_bytes > summary->offload.device_bytes)
            summary->offload = all[rank];
    free(all);
    return err;
}

static int measure_step(struct job *j, struct summary *summary)
{
    struct step_times times = {.bubble = NAN, .step_ms = NAN, .simulated_ms = NAN};
    const struct timeline_files files = {j->s->trace, j->s->timeline, j->s->page};
    int err = job_has_times(j) ? timeline_write(&j->parts, &files, &times) : 0;

    summary->bubble = times.bubble;
    summary->step_ms = times.step_ms;
    summary->simulated_ms = times.simulated_ms;
    summary->untraced = times.untraced;
    summary->undrawn = times.undrawn;
    summary->unpaged = times.unpaged;
    return err;
}

/* What one replica tells for all: one that lives. */
static int describe(struct job *j, struct summary *summary, uint8_t *text)
{
    const struct sample_spec spec = {.count = summary->sample_len,
                                     .temperature = j->s->temperature};
    int err = 0;

    if (j->host && spec.count)
        err = host_sample(j->host, &spec, text);
    if (err)
        return err;
    if (job_mixers_survive(j) ? !job_is_first(j) : j->replica.index > 0)
        return 0;
    err = measure_step(j, summary);
    return err || !spec.count || j->host ? err : sample_text(j->engine, &spec, text);
}

int job_finish(struct job *j, struct summary *summary)
{
    size_t len = (size_t)j->s->sample;
    uint8_t *text = malloc(len + 1);

    summary->sample_len = len;
    int err = !text     ? DP_ENOMEM
              : j->host ? dp_trainer_finish(host_trainer(j->host))
                        : trainer_finish(&j->trainer);
    if (!err)
        err = measure_memory(j, summary);
    if (!err)
        err = describe(j, summary, text);
    if (!err)
        err = measure_offload(j, summary);
    err = trainer_agree(&j->trainer, err);
    summary->sample = text;
    if (!err && job_is_first(j))
        report_end(&j->report, summary);
    free(text);
    free(summary->memory);
    summary->memory = NULL;
    const bool unwritten = summary->untraced || summary->undrawn || summary->unpaged;
    return !err && unwritten ? DP_EIO : err; /* after the summary */
}
