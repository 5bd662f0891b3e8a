/* SPDX-License-Identifier: Apache-2.0
 *
 * job_mix.c - replicas that mix, and go on without workers that have died.
 */
#include "train/job_state.h"

#include "launch.h"

#include <stdlib.h>

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
    int err = 0;

    while (!err && j->s->restarts && j->host && j->lost != job_count_lost(j)) {
        j->lost = job_count_lost(j);
        err = dp_trainer_carry_out(host_trainer(j->host), count_for_all, &w);
        if (err || !w.count)
            continue;
        const struct dp_comm_config how = meeting_of(j);
        err = dp_trainer_admit(host_trainer(j->host), w.count, &how);
        err = err == DP_EAGAIN ? 0 : err;
        job_take_parts(j);
    }
    return err;
}

int job_agree(const struct job *j)
{
    struct dp_comm *comm = j->comm, *next;
    bool all_live = true;
    int err = job_compare(j, comm);

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
            err = job_compare(j, comm);
    }
    if (comm != j->comm)
        dp_comm_close(comm);
    return err;
}
