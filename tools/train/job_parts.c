/* SPDX-License-Identifier: Apache-2.0
 *
 * job_parts.c - what ranks compare before they begin, and what a rank makes of its settings.
 */
#include "train/job_state.h"


#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int job_compare(const struct job *j, struct dp_comm *comm)
{
    const struct settings *s = j->s;
    const struct { const char *what; int64_t value;
    } values[] = {
        {"--replicas", s->how.replicas},
        {"--mix", s->kind},
        {"--mix-algorithm", s->how.mixing.algorithm},
        {"--survive", s->how.survive},
        {"--spare", s->spares},
        {"--local-steps", s->how.mixing.local_steps},
        {"--outer-rate * 1e12", (int64_t)(s->how.mixing.outer_rate * 1e12)},
        {"--outer-momentum * 1e12", (int64_t)(s->how.mixing.outer_momentum * 1e12)},
        {"--mix-factor * 1e12", (int64_t)(s->how.mixing.factor * 1e12)},
        {"--mix-compress", s->how.mixing.compression},
        {"--mix-staleness", s->how.mixing.staleness},
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
        {"--warmup", s->how.rate.warmup},
        {"--seed", s->how.seed},
        {"length of --blocks", s->blocks.count},
        {"--eval-every", s->eval_every},
        {"--sample", s->sample},
        {"--temperature * 1e12", (int64_t)(s->temperature * 1e12)},
        {"--lr * 1e12", (int64_t)(s->how.rate.peak * 1e12)},
        {"--decay * 1e12", (int64_t)(s->how.optimizer.weight_decay * 1e12)},
        {"--clip * 1e6", (int64_t)(s->how.clip * 1e6)},
        {"--dropout * 1e12", (int64_t)(s->dropout * 1e12)},
        {"--delay-update", s->late},
        {"--any-order", s->any_order},
        {"--order-blocks", s->how.order_blocks},
        {"--save", s->how.checkpoint.folder != NULL},
        {"--save-every", s->how.checkpoint.every},
        {"--resume", (int64_t)s->from.step},
        {"length of --data", (int64_t)j->text->len},
    };
    uint64_t first = j->text->digest;
    char what[32];
    int err = 0;

    if (!comm)
        return 0;
    for (size_t i = 0; !err && i < sizeof(values) / sizeof(values[0]); i++)
        err = dp_comm_agree(comm, values[i].what, (uint64_t)values[i].value);
    for (int i = 0; !err && i < s->blocks.count; i++) {
        snprintf(what, sizeof(what), "--blocks, number %d", i);
        err = dp_comm_agree(comm, what, (uint64_t)s->blocks.items[i]);
    }
    if (!err)
        err = dp_comm_broadcast(comm, &first, sizeof(first), 0);
    return err ? err
               : dp_comm_agree(comm, "bytes of --data are those of rank 0 (1: yes, 0: no)",
                               j->text->digest == first);
}

static int make_groups(struct job *j)
{
    const struct settings *s = j->s;
    const struct dp_comm_axis axes[] = {{"data", (int)s->how.replicas}, {"pipe", (int)s->ranks}};
    struct dp_comm *groups[2];

    j->kind = s->kind;
    j->replica = (struct replica){.count = (int)s->how.replicas, .apart = s->graph};
    if (job_joins(j))
        j->replica.index = j->how->rank;
    if (job_mixers_survive(j) && !job_joins(j))
        j->replica.index = dp_comm_rank(j->comm);
    if (s->how.replicas == 1 || job_mixers_survive(j))
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

/* What survives without a schedule is a pipeline of one rank. */
static int make_lists(struct job *j)
{
    struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_1F1B,
                                    .ranks = 1,
                                    .microbatches = (int)(j->s->microbatches / j->s->how.replicas)};
    int err = j->s->training ? 0 : dp_schedule_new(&spec, &j->alone[0]);

    spec.forward_only = true;
    return err || j->s->training ? err : dp_schedule_new(&spec, &j->alone[1]);
}

static int make_engine(struct job *j)
{
    const struct settings *s = j->s;
    const int err = make_lists(j);

    if (err)
        return err;
    return pipelined_new(
        &(struct pipelined_config){
            .model = s->model,
            .training = s->training ? s->training : j->alone[0],
            .forward = s->training ? s->forward : j->alone[1],
            .comm = s->training ? pipe_of(j) : NULL,
            .reduce = s->training && settings_reduce_early(s) ? &train_reduce_ops : NULL,
            .reduce_user = &j->trainer,
            .any_order = s->any_order && s->training,
            .order_blocks = s->own_blocks,
            .replica = j->replica,
            .by_messages = !strcmp(s->execution, "messages"),
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
                            .warmup = (uint64_t)s->how.rate.warmup,
                            .rate = s->how.rate.peak,
                            .decay = s->how.optimizer.weight_decay,
                            .clip = s->how.clip,
                            .kind = j->kind,
                            .all = j->comm,
                            .pipe = j->pipe,
                            .data = j->data,
                            .graph = s->graph,
                            .how = &s->how,
                            .survive = job_mixers_survive(j),
                            .joins = job_joins(j),
                            .late = s->late,
                            .state_folder = s->offload.folder[0] ? s->offload.folder : NULL,
                        },
                        j->text, j->engine);
}

/* Without a schedule there is a pipeline of one rank, of which nothing is told. */
static void take_from_host(struct job *j)
{
    dp_trainer_parts(host_trainer(j->host), &j->parts);
    j->replica = (struct replica){.index = j->parts.replica, .count = j->parts.replicas};
    if (!j->s->training) {
        j->parts.schedule = NULL;
        j->parts.recorder = NULL;
    }
}

void job_take_parts(struct job *j)
{
    const struct engine *e = j->engine;

    if (j->host) {
        take_from_host(j);
        return;
    }
    j->parts = (struct dp_trainer_parts){.schedule = j->s->training,
                                         .recorder = j->s->training ? e->recorder : NULL,
                                         .pipe = e->comm,
                                         .replica = e->replica.index,
                                         .replicas = e->replica.count,
                                         .rank = engine_rank(e),
                                         .paces = j->trainer.paces};
}

int job_make_parts(struct job *j)
{
    const bool on_host = host_takes(j->s);
    int err = on_host ? host_new(j->s, j->text, j->comm, job_joins(j) ? j->how->rank : -1, &j->host)
                      : make_groups(j);

    if (on_host || err) {
        if (!err)
            job_take_parts(j);
        return err;
    }
    if (!err)
        err = make_engine(j);
    if (!err)
        err = make_trainer(j);
    if (!err)
        job_take_parts(j);
    return err;
}

void job_free(struct job *j)
{
    host_free(j->host);
    trainer_fini(&j->trainer);
    if (j->engine)
        j->engine->ops->free(j->engine);
    watcher_fini(&j->watcher);
    dp_schedule_free(j->alone[0]);
    dp_schedule_free(j->alone[1]);
    dp_comm_close(j->pipe);
    dp_comm_close(j->data);
    free(j);
}
