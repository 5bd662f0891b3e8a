/* SPDX-License-Identifier: Apache-2.0 */
#include "train/job.h"

#include "command.h"
#include "launch.h"
#include "train/cuda/cuda_links.h"
#include "train/late.h"
#include "train/memory.h"
#include "train/offloaded.h"
#include "train/report.h"
#include "train/sample.h"
#include "train/saved.h"
#include "train/survivors.h"
#include "train/timeline.h"
#include "train/trainer.h"
#include "train/watcher.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEASURE_EVERY = 10 }; /* steps; collecting a step's times costs far less than a step */

struct job {
    const struct settings *s;
    const struct data *text;
    struct dp_comm *comm; /* of all ranks of all replicas; NULL: alone */
    const struct dp_comm_config *how; /* it was opened */
    struct dp_comm
        *data; /* the ranks that hold the same stages in the replicas; NULL: one replica */
    struct dp_comm *pipe; /* the ranks of this replica; NULL: one rank */
    struct replica replica;
    enum data_parallel_kind kind;
    struct engine *engine;
    struct trainer trainer;
    struct report report;
    struct watcher watcher;
    char device[CUDA_DEVICE_NAME]; /* of this rank, on CUDA */
    /* Of a pipeline that survives (survivors.h); comm is `team`, if this rank is in it. */
    struct dp_comm *all;             /* ranks that live, the spare ones too */
    bool owns_all;
    struct dp_comm *team;            /* ranks of all replicas; NULL: this one is spare */
    int *processes;                  /* [ranks of all] as they were started */
    bool begun;                      /* all have made their part: there is something to go on from */
    const struct settings *given;    /* at first */
    struct settings laid_out;        /* what s is once ranks have died */
    uint64_t step, trained, reported; /* the step at hand; steps whose weights are there; lines */
    uint64_t trained_before;         /* by the pipelines before this one */
    uint64_t repeated;               /* the last step that failed without a death, counted from 1 */
    struct step_result result;       /* of the last step that was trained */
};

/* This pipeline has taken the last step, and knows its times. */
static bool has_times(const struct job *j)
{
    return j->engine->recorder && j->trained > j->trained_before;
}

/* Is this rank's pipeline one that survives? Otherwise replicas that mix may. */
static bool is_survivor(const struct job *j)
{
    return settings_survives_as_pipeline(j->s);
}

static bool mixers_survive(const struct job *j)
{
    return j->s->survive && !is_survivor(j);
}

static bool is_first(const struct job *j)
{
    return !j->comm || dp_comm_rank(j->trainer.comm ? j->trainer.comm : j->comm) == 0;
}

/* ---- training ------------------------------------------------------------------------------- */

/* After a step: what is worth a look now and then. */
static int look(struct job *j, struct progress *p)
{
    uint64_t every = (uint64_t)j->s->eval_every, steps = (uint64_t)j->s->steps;
    const bool links = watcher_paces(&j->watcher, j->trainer.paces);
    const bool due = j->replica.index == 0 &&
                     (p->step % MEASURE_EVERY == 0 || report_due(j->s, p->step));
    struct step_times times = {.bubble = NAN};
    int err = 0;

    if (has_times(j) && (links || due))
        err = timeline_measure(j->engine, j->watcher.watch, &times);
    if (due)
        p->bubble = times.bubble;
    if (err)
        return err;

    if (p->step == steps || (every && p->step % every == 0))
        err = trainer_evaluate(&j->trainer, &p->held_out);
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

static int save(struct job *j, uint64_t step)
{
    char *text = settings_text(j->s, step);
    int err = text ? saved_write(&j->trainer, j->s->save, step, text) : DP_ENOMEM;

    free(text);
    if (!err && is_first(j))
        report_saved(&j->report, step);
    return err;
}

/* After a death a step may be one whose weights are there already. */
static int learn(struct job *j, uint64_t step)
{
    j->step = step;
    if (is_survivor(j) && j->trained > step)
        return 0;
    struct step_result result; /* of a step that is cut off it is not used */
    int err = trainer_step(&j->trainer, step, &result);
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
    if (is_survivor(j) && j->reported > step) /* and has been told */
        return settings_save_due(j->s, p.step) ? save(j, p.step) : 0;
    j->reported = p.step;
    if (step == j->s->from.step)
        summary->first_loss = p.result.loss;
    summary->last_loss = p.result.loss;
    summary->held_out = p.held_out;
    summary->skipped += p.result.skipped;
    watcher_tell(&j->watcher, &p, tell_slow,
                 &(struct slow_at){&j->report, p.step, is_first(j)});
    if (is_first(j))
        report_progress(&j->report, &p);
    return settings_save_due(j->s, p.step) ? save(j, p.step) : 0;
}

/* This rank was started again. */
static bool joins(const struct job *j)
{
    return j->how && j->how->size == 0;
}

/* Whether all ranks of comm live: the same answer on all that do. */
static int find_all_alive(struct dp_comm *comm, bool *out)
{
    const int size = dp_comm_size(comm);
    bool *alive = calloc((size_t)size, sizeof(*alive));
    int err = alive ? dp_comm_agree_alive(comm, alive) : DP_ENOMEM;

    *out = !err;
    for (int i = 0; i < size && !err; i++)
        *out = *out && alive[i];
    free(alive);
    return err;
}

static bool may_be_death(int err)
{
    return err == DP_ECOMM || err == DP_ETIMEDOUT;
}

/* The same on all that live: how many wait, by the first of them. DP_ECOMM: one has died meanwhile. */
static int count_waiting(struct job *j, int *out)
{
    struct dp_comm *comm = j->trainer.comm;
    const int size = dp_comm_size(comm), lost = (int)j->s->replicas - size;
    int32_t count = dp_comm_rank(comm) == 0 ? launch_count_waiting(lost) : 0;
    bool all_live = false;
    int err = dp_comm_broadcast(comm, &count, sizeof(count), 0);

    if (!err || may_be_death(err)) {
        const int agreed = find_all_alive(comm, &all_live);
        err = agreed ? agreed : err;
    }
    *out = count;
    return err || all_live ? err : DP_ECOMM;
}

/* Those that were killed and started again. */
static int admit(struct job *j)
{
    int count = 0;
    int err = j->s->restarts && dp_comm_size(j->trainer.comm) < j->s->replicas
                  ? count_waiting(j, &count)
                  : 0;

    if (err || !count)
        return err;
    return trainer_admit(&j->trainer, count,
                         &(struct dp_comm_config){.address = j->how->address,
                                                  .transport = j->how->transport,
                                                  .secret = j->how->secret,
                                                  .timeout_ns = j->how->timeout_ns});
}

/* After a death: 0, with the step to go on with; the last one at most, whose held-out loss is wanted. */
static int survive(struct job *j, int err, uint64_t *step)
{
    const uint64_t last = (uint64_t)j->s->steps - 1;

    while (mixers_survive(j) && may_be_death(err)) {
        err = trainer_survive(&j->trainer, step);
        if (!err)
            err = admit(j);
    }
    if (!err && *step > last)
        *step = last;
    return err;
}

static int train(struct job *j, uint64_t step, struct summary *summary)
{
    int err = 0;

    while (!err && step < (uint64_t)j->s->steps) {
        err = take_step(j, step, summary);
        if (err)
            err = survive(j, err, &step);
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
    size_t bytes = e->pipeline_bytes;

    for (int i = 0; i < e->stage_count; i++) {
        bytes += gpt_stage_bytes(e->stages[i]);
        if (j->trainer.optimizers[i])
            bytes += dp_optimizer_state_bytes(j->trainer.optimizers[i]);
    }
    return (double)bytes;
}

static int measure_memory(struct job *j, struct summary *summary)
{
    const int ranks = j->comm ? dp_comm_size(j->trainer.comm) : 1;
    struct memory_use *all = calloc((size_t)ranks, sizeof(*all));

    summary->memory = all;
    summary->memory_count = ranks;
    if (!all)
        return DP_ENOMEM;
    all[0] = (struct memory_use){memory_peak(""), held_bytes(j)};
    struct memory_use mine = all[0];
    int err = j->comm ? dp_comm_allgather(j->trainer.comm, &mine, all, sizeof(mine)) : 0;
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
    int err = has_times(j) ? timeline_write(j->engine, j->s, &times) : 0;

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
    if (mixers_survive(j) ? !is_first(j) : j->replica.index > 0)
        return 0;
    int err = measure_step(j, summary);
    if (err || !summary->sample_len)
        return err;
    return sample_text(j->engine,
                       &(struct sample_spec){.count = summary->sample_len,
                                             .temperature = j->s->temperature},
                       text);
}

static int finish(struct job *j, struct summary *summary)
{
    size_t len = (size_t)j->s->sample;
    uint8_t *text = malloc(len + 1);

    summary->sample_len = len;
    int err = text ? trainer_finish(&j->trainer) : DP_ENOMEM;
    if (!err)
        err = measure_memory(j, summary);
    if (!err)
        err = describe(j, summary, text);
    if (!err)
        err = measure_offload(j, summary);
    err = trainer_agree(&j->trainer, err);
    summary->sample = text;
    if (!err && is_first(j))
        report_end(&j->report, summary);
    free(text);
    free(summary->memory);
    summary->memory = NULL;
    const bool unwritten = summary->untraced || summary->undrawn || summary->unpaged;
    return !err && unwritten ? DP_EIO : err; /* after the summary */
}

/* ---- setting up ---------------------------------------------------------------------------- */

/* Ranks that were started apart from each other may have been told different things. */
static int compare(struct job *j, struct dp_comm *comm)
{
    const struct settings *s = j->s;
    const struct { const char *what; int64_t value;
    } values[] = {
        {"--model", s->model.model != NULL},
        {"--replicas", s->replicas},
        {"--mix", s->kind},
        {"--mix-algorithm", s->method.algorithm},
        {"--survive", s->survive},
        {"--spare", s->spares},
        {"--local-steps", s->method.local_steps},
        {"--outer-rate", (int64_t)(s->method.outer_rate * 1e12)},
        {"--outer-momentum", (int64_t)(s->method.outer_momentum * 1e12)},
        {"--mix-factor", (int64_t)(s->method.factor * 1e12)},
        {"--mix-compress", s->method.compression.kind},
        {"share of --mix-compress", (int64_t)(s->method.compression.fraction * 1e12)},
        {"--mix-staleness", s->method.staleness},
        {"--device", settings_on_cuda(s)},
        {"--transport nccl", settings_by_nccl(s)},
        {"--dtype", !strcmp(s->dtype, "bf16")},
        {"--microbatches", s->microbatches},
        {"--slack", s->slack},
        {"--layers", s->layers},
        {"--width", s->width},
        {"--heads", s->heads},
        {"--context", s->context},
        {"--tie-embeddings", s->tied},
        {"--batch", s->batch},
        {"--steps", s->steps},
        {"--warmup", s->warmup},
        {"--seed", s->seed},
        {"--blocks", block_list_digest(&s->blocks)},
        {"--eval-every", s->eval_every},
        {"--sample", s->sample},
        {"--temperature", (int64_t)(s->temperature * 1e12)},
        {"--lr", (int64_t)(s->rate * 1e12)},
        {"--decay", (int64_t)(s->decay * 1e12)},
        {"--clip", (int64_t)(s->clip * 1e6)},
        {"--dropout", (int64_t)(s->dropout * 1e12)},
        {"--delay-update", s->late},
        {"--any-order", s->any_order},
        {"--order-blocks", s->order_blocks},
        {"--save", s->save != NULL},
        {"--save-every", s->save_every},
        {"--resume", (int64_t)s->from.step},
        {"length of --data", (int64_t)j->text->len},
    };
    int err = 0;

    for (size_t i = 0; comm && !err && i < sizeof(values) / sizeof(values[0]); i++)
        err = dp_comm_agree(comm, values[i].what, (uint64_t)values[i].value);
    return err;
}

/* Replicas that survive compare again among those that live; the mixer then goes on without the
 * others. */
static int agree(struct job *j)
{
    struct dp_comm *comm = j->comm, *next;
    bool all_live = true;
    int err = compare(j, comm);

    while (mixers_survive(j) && (!err || may_be_death(err))) {
        const int agreed = find_all_alive(comm, &all_live);
        if (agreed || all_live) {
            err = agreed ? agreed : err;
            break;
        }
        err = dp_comm_shrink(comm, &next);
        if (comm != j->comm)
            dp_comm_close(comm);
        comm = err ? j->comm : next;
        if (!err)
            err = compare(j, comm);
    }
    if (comm != j->comm)
        dp_comm_close(comm);
    return err;
}

static int make_groups(struct job *j)
{
    const struct settings *s = j->s;
    const struct dp_comm_axis axes[] = {{"data", (int)s->replicas}, {"pipe", (int)s->ranks}};
    struct dp_comm *groups[2];

    j->kind = s->kind;
    j->replica = (struct replica){.count = (int)s->replicas, .apart = s->graph};
    if (joins(j))
        j->replica.index = j->how->rank;
    if (mixers_survive(j) && !joins(j))
        j->replica.index = dp_comm_rank(j->comm);
    if (s->replicas == 1 || mixers_survive(j))
        return 0;
    int err = dp_comm_grid(j->comm, axes, 2, groups);
    if (err)
        return err;
    j->data = groups[0];
    j->pipe = groups[1];
    j->replica.index = dp_comm_rank(j->data);
    return 0;
}

/* The ranks of this replica. */
static struct dp_comm *pipe_of(const struct job *j)
{
    return j->data ? j->pipe : j->comm;
}

static int choose_device(struct job *j)
{
    const struct settings *s = j->s;
    const int rank = j->comm ? dp_comm_rank(j->comm) : 0;
    bool shared;

    if (!settings_on_cuda(s))
        return 0;
    if (settings_by_nccl(s)) /* counting devices begins CUDA */
        cuda_links_prepare(rank, false);
    int err = cuda_device_of_rank(s->device, rank, settings_processes(s), j->device, &shared);
    if (!err && settings_by_nccl(s))
        cuda_links_prepare(rank, shared);
    return err;
}

/* Sums of what is on the device are the device's, where it can reach the others. */
static const struct dp_reduce_ops *reduce_of(const struct settings *s)
{
    if (!settings_reduce_early(s))
        return NULL;
    return settings_sums_on_device(s) ? &trainer_queued_reduce_ops : &trainer_reduce_ops;
}

static int make_engine(struct job *j)
{
    const struct settings *s = j->s;

    if (s->offload.any && !s->training)
        return offloaded_new(
            &(struct offloaded_config){
                .model = s->model,
                .microbatches = (int)s->microbatches,
                .order_blocks = (int)s->order_blocks,
                .device_bytes = (size_t)s->device_memory,
                .activations = s->offload.activations,
                .buffers = s->buffers,
                .device_share = s->device_share,
                .update = s->late ? late_carry_out : NULL,
                .update_user = &j->trainer,
                .bf16 = !strcmp(s->dtype, "bf16"),
            },
            &j->engine);
    if (!s->training)
        return sequential_new(&(struct sequential_config){.model = s->model,
                                                          .microbatches = (int)s->microbatches,
                                                          .order_blocks = s->own_blocks,
                                                          .replica = j->replica,
                                                          .bf16 = !strcmp(s->dtype, "bf16")},
                              &j->engine);
    return pipelined_new(
        &(struct pipelined_config){
            .model = s->model,
            .training = s->training,
            .forward = s->forward,
            .comm = pipe_of(j),
            .reduce = reduce_of(s),
            .reduce_user = &j->trainer,
            .any_order = s->any_order,
            .early_weights = s->early_weights,
            .order_blocks = s->own_blocks,
            .replica = j->replica,
            .tied_copies = is_survivor(j),
            .by_messages = !strcmp(s->execution, "messages"),
            .device_bytes = (size_t)s->device_memory,
            .offload = s->offload,
            .device_share = s->device_share,
            .device = settings_on_cuda(s) ? j->device : NULL,
            .graphs = !s->no_graphs,
            .nccl = settings_by_nccl(s),
            .image = s->image,
            .bf16 = !strcmp(s->dtype, "bf16"),
        },
        &j->engine);
}

static int make_trainer(struct job *j)
{
    const struct settings *s = j->s;

    return trainer_init(&j->trainer,
                        &(struct trainer_config){
                            .sequences = (int)s->batch,
                            .steps = (uint64_t)s->steps,
                            .warmup = (uint64_t)s->warmup,
                            .rate = s->rate,
                            .decay = s->decay,
                            .clip = s->clip,
                            .kind = j->kind,
                            .all = j->comm,
                            .pipe = j->pipe,
                            .data = j->data,
                            .graph = s->graph,
                            .method = s->method,
                            .survive = mixers_survive(j),
                            .agrees = is_survivor(j),
                            .joins = joins(j),
                            .late = s->late,
                            .state_folder = s->offload.folder[0] ? s->offload.folder : NULL,
                        },
                        j->text, j->engine);
}

static int run(struct job *j)
{
    struct summary summary = {0};

    int err = joins(j) ? 0 : agree(j);
    if (!err)
        err = make_groups(j);
    if (!err)
        err = choose_device(j);
    if (!err)
        err = make_engine(j);
    if (!err)
        err = make_trainer(j);
    if (!err && j->s->from.step)
        err = saved_read(&j->trainer, j->s->from.path, j->s->from.step);
    if (!err)
        err = watcher_init(&j->watcher, j->s, j->engine, j->comm);
    if (!err)
        report_begin(&j->report, j->s, j->text, is_first(j));
    uint64_t step = j->s->from.step;
    if (!err && joins(j)) {
        step = trainer_next(&j->trainer);
        launch_admitted(j->how->rank);
    }
    while (!err) {
        err = train(j, step, &summary);
        if (!err)
            err = finish(j, &summary);
        if (!err)
            break;
        err = survive(j, err, &step);
    }
    return err;
}

/* ---- a pipeline that survives ----------------------------------------------------------------- */

static int make_parts(struct job *j)
{
    int err = make_groups(j);

    if (!err)
        err = choose_device(j);
    if (!err)
        err = make_engine(j);
    return err ? err : make_trainer(j);
}

/* The pipelines of the first ranks of j->all: their communicator, and this rank's part of one. */
static int join_pipeline(struct job *j)
{
    const bool is_member = dp_comm_rank(j->all) < settings_processes(j->s);
    int err = dp_comm_split(j->all, is_member ? 0 : -1, 0, &j->team);

    j->comm = j->team ? j->team : j->all;
    return err || !j->team ? err : make_parts(j);
}

static void free_parts(struct job *j)
{
    watcher_fini(&j->watcher);
    trainer_fini(&j->trainer);
    if (j->engine)
        j->engine->ops->free(j->engine);
    dp_comm_close(j->pipe);
    dp_comm_close(j->data);
    dp_comm_close(j->team);
    free(j->processes);
    settings_free_layout(&j->laid_out);
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
    int err = all ? dp_comm_allgather(j->all, &mine, all, sizeof(mine)) : DP_ENOMEM;
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
        return command_broke("%d of the ranks live, expected %d or more", live, 2 * replicas),
               DP_ENODEV;
    j->processes = calloc((size_t)live, sizeof(*j->processes));
    int err = j->processes ? settings_lay_out(given, ranks, &j->laid_out) : DP_ENOMEM;
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
    fprintf(stderr, " from step %" PRIu64 " with %s%d ranks, %d spare\n",
            (j->trained > j->step ? j->trained : j->step) + 1, replicas, (int)j->s->ranks,
            dp_comm_size(j->all) - settings_processes(j->s));
}

static void free_survivor(struct job *j)
{
    free_parts(j);
    if (j->owns_all)
        dp_comm_close(j->all);
    free(j);
}

/* Once among the ranks that live now; after an error `old` is as it was. */
static int try_again(struct job *old, struct dp_comm *all, struct job **out)
{
    struct job *j = calloc(1, sizeof(*j));

    if (!j) {
        dp_comm_close(all);
        return DP_ENOMEM;
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
        free_survivor(j);
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
    say_how_it_goes_on(old, next);
    free_survivor(old);
    *at = next;
    return next->engine ? watcher_init(&next->watcher, next->s, next->engine, next->comm) : 0;
}

static int take_part(struct job *j, struct summary *summary)
{
    if (!j->engine)
        return survivors_wait(j->all);
    int err = train(j, j->step, summary);
    if (!err)
        err = finish(j, summary);
    if (!err)
        survivors_dismiss(j->all, settings_processes(j->s));
    return err;
}

/* The first pipelines. All have them, or none goes on with them. */
static int make_first(struct job *j)
{
    const int size = dp_comm_size(j->all);
    int err = compare(j, j->all);

    j->processes = calloc((size_t)size, sizeof(*j->processes));
    for (int i = 0; i < size && j->processes; i++)
        j->processes[i] = i;
    if (!err)
        err = j->processes ? join_pipeline(j) : DP_ENOMEM;
    if (!err)
        err = begin(j);
    if (survivors_may_be(err))
        revoke_groups(j, err);
    err = survivors_agree(j->all, err);
    j->begun = !err;
    return err;
}

static int run_survivor(struct job **at)
{
    struct job *first = *at;
    struct summary summary = {0};

    int err = make_first(first);
    if (!err && first->engine)
        err = watcher_init(&first->watcher, first->s, first->engine, first->comm);
    else if (survivors_may_be(err))
        err = survive_as_pipeline(at, err);
    if (!err)
        report_begin(&(*at)->report, (*at)->given, (*at)->text, dp_comm_rank((*at)->all) == 0);
    while (!err && (err = take_part(*at, &summary)))
        err = survivors_may_be(err) ? survive_as_pipeline(at, err) : err;
    return err;
}

/* `before` was the library's last sentence when the job began: if there is no later one, it was the
 * job itself that failed. */
static void explain(const struct job *j, int err, const char *before, struct dp_abort *why)
{
    const char *text = dp_last_error();

    if (!strcmp(text, before))
        text = err == DP_ENOMEM  ? "out of memory"
               : err == DP_EIO   ? "its output could not be written"
                                 : dp_strerror(err);
    *why = (struct dp_abort){.rank = j->comm ? dp_comm_rank(j->comm) : 0, .error = err};
    snprintf(why->text, sizeof(why->text), "%s", text);
    if (j->comm) {
        dp_comm_abort(j->comm, err, why->text);
        dp_comm_aborted(j->comm, why); /* another rank may have been the first */
    }
}

int job_run(const struct settings *s, const struct data *data, struct dp_comm *comm,
            const struct dp_comm_config *how, struct dp_abort *why)
{
    struct job *j = calloc(1, sizeof(*j));
    char before[1024];

    if (!j) {
        *why = (struct dp_abort){.error = DP_ENOMEM, .text = "out of memory"};
        return DP_ENOMEM;
    }
    *j = (struct job){.given = s, .s = s, .text = data, .comm = comm, .all = comm, .how = how};
    snprintf(before, sizeof(before), "%s", dp_last_error());
    int err = comm && is_survivor(j) ? run_survivor(&j) : run(j);
    if (err)
        explain(j, err, before, why);
    free_survivor(j);
    return err;
}
