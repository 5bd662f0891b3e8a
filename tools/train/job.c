/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c - a job from its beginning to its end, or to the error that ends it: what ranks compare before
 * they begin, and those that are started again and come back. job_steps.c takes the steps.
 */
#include "train/job.h"

#include "launch.h"

#include <dualpipe/survival.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPARED_LEN = 8192 };

/* A line for each option that all ranks must have the same: "--lr is 1". A flag has no text, set or not.
 */
static void list_options(const struct job *j, char text[static COMPARED_LEN])
{
    static const char *const sums[] = {"all-reduce", "reduce-scatter", "a graph"};
    const struct settings *s = j->s;
    char value[VALUE_LEN];
    int used = snprintf(text, COMPARED_LEN,
                        "--mix is %s\n--device is %s\n--transport is %s\nlength of --blocks is %d\n"
                        "--save is %s\nthe step of --resume is %" PRIu64 "\nlength of --data is %zu\n",
                        sums[s->how.sums], settings_on_cuda(s) ? "cuda" : "cpu",
                        settings_by_nccl(s) ? "nccl" : "another", s->blocks.count,
                        s->how.checkpoint.folder ? "set" : "not set", s->from.step, j->text->len);
    struct setting a;

    for (int i = 0; settings_option(i, &a); i++) {
        if (!(a.marks & (KEPT | COMPARED)))
            continue;
        const bool is_there = settings_value(&a, s, 17, value);
        used += snprintf(text + used, (size_t)(COMPARED_LEN - used), "--%s is %.64s\n", a.name,
                         !is_there ? "not set"
                         : *value  ? value
                                   : "set");
    }
}

/* The number of the first line that differs, INT32_MAX: none; *line: where it is in a. */
static int32_t find_difference(const char *a, const char *b, const char **line)
{
    int32_t number = 0;

    for (*line = a; *a || *b; a++, b++) {
        if (*a != *b)
            return number;
        if (*a == '\n')
            *line = a + 1, number++;
    }
    return INT32_MAX;
}

/* The first line that differs on any rank is the one that all agree about: rank 0's text is every
 * rank's. */
static int compare_options(const struct job *j, struct dp_comm *comm)
{
    const int size = dp_comm_size(comm);
    char *mine = calloc(2, COMPARED_LEN), *first = mine + COMPARED_LEN, what[COMPARED_LEN];
    int32_t *differs = calloc((size_t)size, sizeof(*differs)), own = INT32_MAX, least = INT32_MAX;
    const char *line;
    int err = mine && differs ? 0 : DP_ENOMEM;

    if (!err) {
        list_options(j, mine);
        memcpy(first, mine, COMPARED_LEN);
        err = dp_comm_broadcast(comm, first, COMPARED_LEN, 0);
    }
    if (!err) {
        own = find_difference(first, mine, &line);
        err = dp_comm_allgather(comm, &own, differs, sizeof(own));
    }
    for (int rank = 0; rank < size && !err; rank++)
        least = differs[rank] < least ? differs[rank] : least;
    if (!err && least < INT32_MAX) {
        line = first;
        for (int32_t i = 0; i < least; i++)
            line = strchr(line, '\n') + 1;
        snprintf(what, sizeof(what), "%.*s, as rank 0 has it (1: yes, 0: no)", (int)strcspn(line, "\n"),
                 line);
        err = dp_comm_agree(comm, what, own != least);
    }
    free(mine);
    free(differs);
    return err;
}

/* Ranks that were started apart from each other may have been told different things: DP_EMISMATCH on
 * all ranks of comm. */
static int compare(const struct job *j, struct dp_comm *comm)
{
    uint64_t first = j->text->digest;
    char what[32];
    int err = comm ? compare_options(j, comm) : 0;

    for (int i = 0; comm && !err && i < j->s->blocks.count; i++) {
        snprintf(what, sizeof(what), "--blocks, number %d", i);
        err = dp_comm_agree(comm, what, (uint64_t)j->s->blocks.items[i]);
    }
    if (!err && comm)
        err = dp_comm_broadcast(comm, &first, sizeof(first), 0);
    return err || !comm ? err
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
        text = err == DP_ENOMEM ? "out of memory"
               : err == DP_EIO  ? "its output could not be written"
                                : dp_strerror(err);
    *why = (struct dp_abort){.rank = j->how ? j->how->rank : 0, .error = err};
    snprintf(why->text, sizeof(why->text), "%s", text);
    if (j->comm && !job_leaves(j->s, err)) {
        dp_comm_abort(j->comm, err, why->text);
        dp_comm_aborted(j->comm, why); /* another rank may have been the first */
        if (why->rank < 0)             /* one that is not of this group */
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
