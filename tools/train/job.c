/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c - a job from its beginning to its end, or to the error that ends it: what ranks compare before
 * they begin, and those that are started again and come back. job_steps.c takes the steps.
 */
#include "train/job.h"

#include "launch.h"

#include <dualpipe/survival.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rank 0's text of an option is every rank's. A flag has no text, set or not. */
static int compare_option(const struct settings *s, struct dp_comm *comm, const char *name)
{
    char mine[RESUME_WORD] = "", first[RESUME_WORD], what[RESUME_WORD + 64];
    const char *text = settings_value(s, name, mine);

    if (!text || !*text)
        snprintf(mine, sizeof(mine), text ? "set" : "not set");
    memcpy(first, mine, sizeof(first));
    const int err = dp_comm_broadcast(comm, first, sizeof(first), 0);
    snprintf(what, sizeof(what), "--%s is %s, as rank 0 has it (1: yes, 0: no)", name, first);
    return err ? err : dp_comm_agree(comm, what, !strcmp(mine, first));
}

/* Ranks that were started apart from each other may have been told different things: DP_EMISMATCH on
 * all ranks of comm. */
static int compare(const struct job *j, struct dp_comm *comm)
{
    static const char *const options[] = {
        "replicas", "mix-algorithm", "spare", "local-steps", "outer-rate", "outer-momentum",
        "mix-factor", "mix-compress", "mix-staleness", "dtype", "microbatches", "slack", "layers",
        "width", "heads", "context", "tie-embeddings", "batch", "steps", "warmup", "seed",
        "eval-every", "sample", "temperature", "lr", "decay", "clip", "dropout", "delay-update",
        "any-order", "order-blocks", "save-every",
    };
    const struct settings *s = j->s;
    const struct { const char *what; uint64_t value;
    } others[] = {
        {"--mix", s->how.sums},
        {"--device", settings_on_cuda(s)},
        {"--transport nccl", settings_by_nccl(s)},
        {"length of --blocks", (uint64_t)s->blocks.count},
        {"--save", s->how.checkpoint.folder != NULL},
        {"--resume", s->from.step},
        {"length of --data", j->text->len},
    };
    uint64_t first = j->text->digest;
    char what[32];
    int err = 0;

    if (!comm)
        return 0;
    for (size_t i = 0; !err && i < sizeof(options) / sizeof(options[0]); i++)
        err = compare_option(s, comm, options[i]);
    for (size_t i = 0; !err && i < sizeof(others) / sizeof(others[0]); i++)
        err = dp_comm_agree(comm, others[i].what, others[i].value);
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

/* All ranks were told the same: else DP_EMISMATCH on all of them. Ranks that survive compare again among
 * those that live; the mixer or the trainer then goes on without the others. */
static int agree(const struct job *j)
{
    struct dp_comm *comm = j->comm, *next;
    bool all_live = true;
    int err = compare(j, comm);

    while (j->s->how.survive && (!err || may_be_death(err))) {
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

static int make_parts(struct job *j)
{
    const int err = host_new(j->s, j->text, j->comm, job_joins(j) ? j->how->rank : -1, &j->host);

    if (!err)
        job_take_parts(j);
    return err;
}

/* ---- replicas that come back ----------------------------------------------------------------- */

static struct dp_comm_config meeting_of(const struct job *j)
{
    return (struct dp_comm_config){.address = j->how->address,
                                   .transport = j->how->transport,
                                   .secret = j->how->secret,
                                   .timeout_ns = j->how->timeout_ns};
}

struct waiting {
    struct job *j;
    int32_t count;
};

/* The same on all that live, by the first of them, once none that has joined is said to wait. */
static int count_for_all(void *user)
{
    struct waiting *w = user;

    job_take_parts(w->j);
    struct dp_comm *comm = w->j->parts.comm;
    const int lost = (int)w->j->s->how.replicas - dp_comm_size(comm);
    const int err = dp_comm_barrier(comm);
    w->count = !err && dp_comm_rank(comm) == 0 ? launch_count_waiting(lost) : 0;
    return err ? err : dp_comm_broadcast(comm, &w->count, sizeof(w->count), 0);
}

int job_admit(struct job *j)
{
    struct waiting w = {.j = j};
    int err = 0, tries = 0;
    bool again = false; /* one that came has died before all knew that it had */

    while (!err && j->s->restarts &&
           (j->lost != job_count_lost(j) || (again && tries++ < j->s->restarts))) {
        j->lost = job_count_lost(j);
        again = false;
        err = dp_trainer_carry_out(host_trainer(j->host), count_for_all, &w);
        if (err || !w.count)
            continue;
        const struct dp_comm_config how = meeting_of(j);
        err = dp_trainer_admit(host_trainer(j->host), w.count, &how);
        again = err == DP_EAGAIN;
        err = again ? 0 : err;
        job_take_parts(j);
    }
    return err;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run(struct job *j)
{
    int err = job_joins(j) ? 0 : agree(j);
    if (!err)
        err = make_parts(j);
    if (!err)
        err = job_watch(j);
    if (!err)
        report_begin(&j->report, j->s, j->text, job_is_first(j));
    uint64_t step = j->s->from.step;
    if (!err && job_joins(j)) {
        step = dp_trainer_next_step(host_trainer(j->host));
        launch_admitted(j->how->rank);
        err = job_admit(j); /* a death meanwhile is one for all */
    }
    if (!err)
        err = job_train(j, step);
    return err ? err : job_finish(j);
}

/* If the library has said nothing since `before`, it was the job itself that failed. A rank of a
 * job that survives does not abort the others for want of files or memory: it leaves them. */
static void explain(const struct job *j, int err, struct dp_abort *why)
{
    const char *text = dp_last_error();

    if (!strcmp(text, j->before))
        text = err == DP_ENOMEM  ? "out of memory"
               : err == DP_EIO   ? "its output could not be written"
                                 : dp_strerror(err);
    *why = (struct dp_abort){.rank = j->how ? j->how->rank : 0, .error = err};
    snprintf(why->text, sizeof(why->text), "%s", text);
    if (j->comm && !job_leaves(j->s, err)) {
        dp_comm_abort(j->comm, err, why->text);
        dp_comm_aborted(j->comm, why); /* another rank may have been the first */
        if (why->rank < 0) /* one that is not of this group */
            why->rank = dp_comm_rank(j->comm);
    }
}

int job_run(const struct settings *s, const struct data *data, struct dp_comm *comm,
            const struct dp_comm_config *how, struct dp_abort *why)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j) {
        *why = (struct dp_abort){.error = DP_ENOMEM, .text = "out of memory"};
        return DP_ENOMEM;
    }
    *j = (struct job){.s = s, .text = data, .comm = comm, .how = how};
    job_note_sentence(j);
    int err = run(j);
    if (err)
        explain(j, err, why);
    host_free(j->host);
    watcher_fini(&j->watcher);
    free(j);
    return err;
}
