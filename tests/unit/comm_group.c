/* SPDX-License-Identifier: Apache-2.0 */
#include "comm_group.h"

#include <pthread.h>

enum { MAX_RANKS = 64 };

struct rank_thread {
    pthread_t thread;
    struct dp_comm *comm;
    rank_fn fn;
    void *arg;
    int result;
};

static void *run_rank(void *arg)
{
    struct rank_thread *t = arg;

    t->result = t->fn(t->comm, t->arg);
    dp_comm_close(t->comm);
    return NULL;
}

static int run_threads(const struct comm_kind *kind, int size, int64_t deadline_ns, rank_fn fn,
                       void *arg, int *killed)
{
    struct rank_thread ranks[MAX_RANKS];
    struct dp_comm *comms[MAX_RANKS];
    int failed = 0;

    (void)kind;
    *killed = 0;
    if (dp_comm_threads_new(size, comms))
        return size;
    for (int i = 0; i < size; i++) {
        ranks[i] = (struct rank_thread){.comm = comms[i], .fn = fn, .arg = arg};
        comms[i]->deadline_ns = deadline_ns;
    }
    for (int i = 0; i < size; i++)
        pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]);
    for (int i = 0; i < size; i++) {
        pthread_join(ranks[i].thread, NULL);
        failed += ranks[i].result != 0;
    }
    return failed;
}

const struct comm_kind comm_kinds[] = {
    {"threads", false, run_threads},
    {NULL, false, NULL},
};
