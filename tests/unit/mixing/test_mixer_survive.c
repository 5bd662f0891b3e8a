/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mixer_survive.c - mixers whose workers die: a process is killed by SIGKILL before the k-th message
 * that it would send, a thread leaves there; over threads, shared memory and TCP.
 */
#include "cmocka_all.h"
#include "mixing/internal.h"
#include "mixer_now.h"

#include "unit/comm/comm_cases.h"

#include "base/clock.h"
#include "comm/comm_core.h"
#include "comm/comm_ops.h"
#include "mixing/mixer_state.h"
#include "mixing/round.h"

#include <dualpipe/survival.h>

#include <stdatomic.h>
#include <sys/mman.h>

enum { MOST = 6, PARAMETERS = 3, ELEMENTS = 5, TOTAL = PARAMETERS * ELEMENTS, ROUNDS = 40 };

static const int64_t LONG_NS = 20 * DP_NS_PER_S;

/* ---- dying ------------------------------------------------------------------------------------- */

static bool is_thread(const struct dp_comm *comm)
{
    return !strcmp(dp_comm_name(comm), "threads");
}

/* By rank, of threads and processes: a progress thread sends for the rank, too. */
static struct dying {
    int messages_left; /* -1: it does not die */
    bool is_dead;
    const struct dp_comm_ops *real_ops;
    struct dp_comm_ops ops;
} dying[MOST];

static void die(struct dp_comm *comm)
{
    if (!is_thread(comm))
        raise(SIGKILL);
    dp_comm_threads_die(comm);
    dying[comm->rank].is_dead = true;
    for (struct dp_comm *c = comm; c; c = c->next)
        dp_comm_set_deadline(c, DP_NS_PER_MS); /* it waits in vain from now on */
}

static int send_or_die(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                       size_t len, struct dp_request *req)
{
    struct dying *d = &dying[comm->rank];

    if (!d->is_dead && d->messages_left-- == 0)
        die(comm);
    return d->is_dead ? DP_ECOMM : d->real_ops->isend(comm, peer, channel, tag, buf, len, req);
}

/* Of this communicator and all that are made of it. */
static void count_messages(struct dp_comm *comm)
{
    struct dying *d = &dying[comm->rank];

    *d = (struct dying){.messages_left = -1, .real_ops = comm->ops, .ops = *comm->ops};
    d->ops.isend = send_or_die;
    comm->ops = &d->ops;
}

/* ---- a worker ---------------------------------------------------------------------------------- */

struct job {
    const char *graph;
    int workers, dead[2], at[2]; /* the ranks that die, and before which message; at -1: none */
    enum dp_mixer_algorithm algorithm;
    enum dp_mixer_compression compression;
    int staleness;
    bool learns, averages; /* gradients are those of quadratics; averages now and then */
};

struct worker {
    struct dp_comm *comm;
    struct dp_graph *graph;
    struct dp_mixer *mixer;
    struct dp_parameter parameters[PARAMETERS];
    DLTensor values[PARAMETERS], grads[PARAMETERS];
    int64_t shape[1];
    double value[PARAMETERS][ELEMENTS], grad[PARAMETERS][ELEMENTS];
    int rank; /* that it began with */
    uint32_t partners[PARAMETERS][ROUNDS]; /* that gave something in a round that was used, as bits */
};

static double begin_value(int rank, int i)
{
    return (rank * 37 + i * 11) % 17 / 8.0 + rank;
}

static void describe(struct worker *w, struct dp_comm *comm, const struct job *job)
{
    static const char *const names[PARAMETERS] = {"a", "b", "c"};

    *w = (struct worker){.comm = comm, .shape = {ELEMENTS}, .rank = dp_comm_rank(comm)};
    for (int p = 0; p < PARAMETERS; p++) {
        w->values[p] = (DLTensor){.data = w->value[p], .device = {kDLCPU, 0}, .ndim = 1,
                                  .dtype = {kDLFloat, 64, 1}, .shape = w->shape};
        w->grads[p] = w->values[p];
        w->grads[p].data = w->grad[p];
        w->parameters[p] = (struct dp_parameter){.name = names[p], .value = &w->values[p],
                                                 .grad = &w->grads[p]};
    }
    if (dp_graph_new(&(struct dp_graph_spec){.name = job->graph, .workers = job->workers,
                                             .local = job->workers % 2 ? 1 : 2},
                     &w->graph))
        abort();
}

static bool sends_differences(const struct job *job)
{
    return job->compression || job->staleness;
}

/* Whether what came is the sum of what these neighbors gave: only then the numbers are the same. */
static bool is_sum_of(const struct dp_stale *s, const struct dp_stale_round *r, const double *received,
                      uint32_t set)
{
    const double *own = (const void *)s->block;

    for (int i = 0; i < ELEMENTS; i++) {
        double sum = 0;
        for (int32_t k = 0; k < r->count; k++)
            if (set >> k & 1)
                sum += r->neighbors[k].weight *
                       (((const double *)(const void *)(r->arrived + (size_t)k * s->bytes))[i] - own[i]);
        if (!(fabs(sum - received[i]) < 1e-12))
            return false;
    }
    return true;
}

/* Where one has left the round out, or is not heard of yet, there is what was in this memory before. */
static uint32_t find_blocks(const struct dp_stale *s, const struct dp_stale_round *r)
{
    uint32_t set = 0;

    for (int32_t k = 0; k < r->count; k++) {
        struct dp_received got = {0};
        if (!dp_comm_test(s->comm, &r->messages.list[k].request))
            dp_comm_received(s->comm, &r->messages.list[k].request, &got);
        set |= got.len ? 1u << k : 0;
    }
    return set;
}

/* Of a round in which some of them took part. */
static uint32_t find_givers(const struct dp_stale *s, int64_t t, const double *received)
{
    const struct dp_stale_round *r = &s->rounds[t % (s->staleness + 1)];
    const uint32_t blocks = find_blocks(s, r);
    uint32_t set = 0, workers = 0;

    while (set < 1u << r->count && (set & ~blocks || !is_sum_of(s, r, received, set)))
        set++;
    for (int32_t k = 0; k < r->count; k++)
        workers |= set >> k & 1 ? 1u << r->neighbors[k].worker : 0;
    return set < 1u << r->count ? workers : UINT32_MAX;
}

static int note_partners(void *user, const struct dp_mixer_average_info *info)
{
    struct worker *w = user;
    const struct dp_exchange *x = &w->mixer->buckets[info->bucket].exchange;
    struct dp_neighbor neighbors[MOST];

    if (mixer_now(w->mixer).graph != w->graph || info->round >= ROUNDS)
        return 0;
    uint32_t *partners = &w->partners[info->parameters[0]][info->round];
    if (x->stale)
        *partners = find_givers(x->stale, info->round, info->received[0]);
    for (int32_t k = dp_neighbors_from(w->graph, info->round, w->rank, neighbors); !x->stale && k--;)
        *partners |= 1u << neighbors[k].worker;
    return 0;
}

static struct dp_mixer_config config_of(struct worker *w, const struct job *job)
{
    const bool local = job->algorithm == DP_MIXER_LOCAL_SGD;

    return (struct dp_mixer_config){
        .parameters = w->parameters, .count = PARAMETERS,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_SGD), .rate = 0.125, .graph = w->graph,
        .comm = w->comm, .bucket_bytes = 1, .separate = true,
        /* So that no number of rounds reaches consensus. */
        .factor = 0.6, .compression = job->compression, .staleness = job->staleness,
        .pre_average = sends_differences(job) ? note_partners : NULL, .user = w,
        .algorithm = job->algorithm, .local_steps = local ? 2 : 0, .outer_rate = local ? 1 : 0,
        .survive = true,
    };
}

/* Where nothing is learned gradients are zero, so that only mixing changes values. */
static void set_gradients(struct worker *w, const struct job *job)
{
    for (int i = 0; i < TOTAL && job->learns; i++)
        w->grad[i / ELEMENTS][i % ELEMENTS] =
            w->value[i / ELEMENTS][i % ELEMENTS] - begin_value(w->rank, i);
}

/* A mixer makes values equal at its start: from here on they differ. */
static void set_values(struct worker *w)
{
    for (int i = 0; i < TOTAL; i++)
        w->value[i / ELEMENTS][i % ELEMENTS] = begin_value(w->rank, i);
}

static int iterate(struct worker *w, const struct job *job)
{
    int err = dp_mixer_forward(w->mixer, true);

    if (!err)
        set_gradients(w, job);
    for (int p = PARAMETERS - 1; p >= 0 && !err; p--)
        err = dp_mixer_ready(w->mixer, p);
    if (!err)
        err = dp_mixer_step(w->mixer);
    if (!err && job->averages && mixer_now(w->mixer).iterations % 3 == 0) {
        struct dp_mixer_average what = {.revert = mixer_now(w->mixer).iterations % 2};
        err = dp_mixer_average(w->mixer, &what);
        if (!err && what.revert)
            err = dp_mixer_revert(w->mixer);
    }
    return err;
}

static void arm(struct dp_comm *comm, const struct job *job)
{
    for (int k = 0; k < 2; k++)
        if (job->at[k] >= 0 && dp_comm_rank(comm) == job->dead[k])
            dying[comm->rank].messages_left = job->at[k];
}

static int count_dead(const struct job *job)
{
    return (job->at[0] >= 0) + (job->at[1] >= 0);
}

static void finish(struct worker *w)
{
    dp_mixer_free(w->mixer);
    dp_graph_free(w->graph);
}

/* ---- what each worker must have ---------------------------------------------------------------- */

/* Values and push-sum weights of all workers after 0, 1, 2 ... rounds, of one element. */
struct model {
    double x[ROUNDS][MOST], mass[ROUNDS][MOST];
};

static void model_run(struct model *m, const struct worker *w, int i)
{
    const struct dp_graph *g = w->graph;

    for (int r = 0; r < g->workers; r++) {
        m->x[0][r] = begin_value(r, i);
        m->mass[0][r] = 1;
    }
    for (int t = 0; t + 1 < ROUNDS; t++)
        for (int r = 0; r < g->workers; r++) {
            double mass = 0, sum = 0;
            for (int s = 0; s < g->workers; s++) {
                mass += dp_graph_weight(g, t, r, s) * m->mass[t][s];
                sum += dp_graph_weight(g, t, r, s) * m->mass[t][s] * m->x[t][s];
            }
            m->mass[t + 1][r] = 0.4 * m->mass[t][r] + 0.6 * mass;
            m->x[t + 1][r] = (0.4 * m->mass[t][r] * m->x[t][r] + 0.6 * sum) / m->mass[t + 1][r];
        }
}

/* How many rounds a parameter's values have been through; -1: it is not any number of them. */
static int64_t find_rounds(const struct worker *w, int p)
{
    struct model m;

    for (int t = 0; t < ROUNDS; t++) {
        bool equal = true;
        for (int k = 0; k < ELEMENTS && equal; k++) {
            model_run(&m, w, p * ELEMENTS + k);
            equal = fabs(w->value[p][k] - m.x[t][w->rank]) < 1e-12;
        }
        if (equal)
            return t;
    }
    return -1;
}

static bool take_part_together(const struct dp_graph *g, int64_t t, int64_t a, int64_t b)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, (int32_t)a);

    return !group || group == dp_graph_group(g, t, (int32_t)b);
}

/* An exchange was used by all of those that took part and live, or by none. */
static int check_exchanges(const struct worker *w)
{
    struct dp_comm *comm = mixer_now(w->mixer).comm;
    int64_t mine[1 + PARAMETERS] = {w->rank}, all[MOST][1 + PARAMETERS];

    for (int p = 0; p < PARAMETERS; p++) {
        mine[1 + p] = find_rounds(w, p);
        CHECK(mine[1 + p] >= 0);
    }
    CHECK(!dp_comm_allgather(comm, mine, all, sizeof(mine)));
    for (int i = 0; i < dp_comm_size(comm); i++)
        for (int p = 0; p < PARAMETERS; p++)
            for (int64_t e = 0; e < ROUNDS; e++)
                if (take_part_together(w->graph, e, w->rank, all[i][0]))
                    CHECK((mine[1 + p] > e) == (all[i][1 + p] > e));
    return 0;
}

/* Of two that live both have added what the other one gave in a round, or neither has: then their mean
 * is what it was. */
static int check_partners(const struct worker *w)
{
    struct dp_comm *comm = mixer_now(w->mixer).comm;
    static _Thread_local uint32_t all[MOST][PARAMETERS][ROUNDS];
    int64_t ranks[MOST], rank = w->rank;

    CHECK(!dp_comm_allgather(comm, &rank, ranks, sizeof(rank)));
    CHECK(!dp_comm_allgather(comm, w->partners, all, sizeof(all[0])));
    for (int i = 0; i < dp_comm_size(comm); i++)
        for (int p = 0; p < PARAMETERS; p++)
            for (int t = 0; t < ROUNDS; t++) {
                CHECK(w->partners[p][t] != UINT32_MAX);
                CHECK((w->partners[p][t] >> ranks[i] & 1) == (all[i][p][t] >> rank & 1));
            }
    return 0;
}

/* The mean of the survivors, by push-sum weights. */
static int find_mean(struct worker *w, double *mean)
{
    struct dp_comm *comm = mixer_now(w->mixer).comm;
    double mine[TOTAL], all[MOST][TOTAL];

    for (int i = 0; i < TOTAL; i++) {
        const struct dp_mixer *m = w->mixer;
        const int p = i / ELEMENTS;
        const double mass = m->started ? m->buckets[m->cut.bucket_of[p]].exchange.mass : 1;
        mine[i] = mass * w->value[p][i % ELEMENTS];
    }
    int err = dp_comm_allgather(comm, mine, all, sizeof(mine));
    for (int i = 0; i < TOTAL && !err; i++) {
        mean[i] = 0;
        for (int r = 0; r < dp_comm_size(comm); r++)
            mean[i] += all[r][i] / dp_comm_size(comm);
    }
    return err;
}

static bool are_near(const double *a, const double *b, double tolerance)
{
    for (int i = 0; i < TOTAL; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance))
            return false;
    return true;
}

/* ---- the whole --------------------------------------------------------------------------------- */

/* Iterate until a death has been survived; 1: this worker is the one. */
static int lose(struct worker *w, const struct job *job)
{
    struct dp_comm *comm = w->comm;
    int err = 0, lost = job->workers - dp_comm_size(mixer_now(w->mixer).comm);

    for (int t = 0; lost < count_dead(job); t++) {
        err = iterate(w, job);
        if (dying[w->rank].is_dead)
            return 1;
        CHECK(!err || err == DP_ECOMM);
        CHECK(t < 500);
        if (!err)
            continue;
        CHECK(!dp_mixer_survive(w->mixer) || dying[w->rank].is_dead);
        if (dying[w->rank].is_dead)
            return 1;
        lost = job->workers - dp_comm_size(mixer_now(w->mixer).comm);
    }
    return 0;
}

/* From here on the survivors' mean stays, and they come together. */
static int go_on(struct worker *w, const struct job *job)
{
    struct dp_comm *comm = w->comm;
    double first[TOTAL], mean[TOTAL];

    CHECK(!find_mean(w, first));
    for (int t = 0; t < 30; t++) {
        CHECK(!iterate(w, job));
        CHECK(!find_mean(w, mean));
        CHECK(job->learns || job->staleness || are_near(mean, first, 1e-12));
    }
    CHECK(!dp_mixer_average(w->mixer, NULL));
    CHECK(job->learns || are_near(w->value[0], first, 1e-12) || w->graph->push_sum);
    return 0;
}

static int survive(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w;

    if (dp_comm_survive(comm) == DP_EUNSUPPORTED)
        return 0;
    count_messages(comm);
    describe(&w, comm, job);
    const struct dp_mixer_config config = config_of(&w, job);
    int err = dp_mixer_new(&config, &w.mixer);
    CHECK(!err);
    set_values(&w);
    err = dp_comm_barrier(comm); /* all have made theirs; a victim may be gone already */
    CHECK(!err || err == DP_ECOMM);
    arm(comm, job);
    err = lose(&w, job);
    if (!err && count_dead(job) == 1 && !job->averages && !job->learns)
        err = sends_differences(job) ? check_partners(&w) : check_exchanges(&w);
    if (!err)
        err = go_on(&w, job);
    finish(&w);
    CHECK(err >= 0);
    return 0;
}

static void run_on_with(const struct comm_kind *kind, struct job *job,
                        int (*rank)(struct dp_comm *comm, void *arg))
{
    int killed, expected = kind->processes ? count_dead(job) : 0;
    int failed = kind->run(kind, job->workers, LONG_NS, rank, job, &killed);

    if (strcmp(kind->name, "mpi") && (failed != expected || killed != expected))
        fail_msg("%s, %s, compression %d, staleness %d, ranks %d and %d at messages %d and %d: %d of %d failed, "
                 "%d were killed", kind->name, job->graph, job->compression,
                 job->staleness, job->dead[0], job->dead[1], job->at[0], job->at[1], failed,
                 job->workers, killed);
}

static void run_on(const struct comm_kind *kind, struct job *job)
{
    run_on_with(kind, job, survive);
}

/* Numbers that look random and are the same in every run. */
static int draw(uint64_t *seed, int below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)(*seed >> 33) % below;
}

/* Twenty times as many with DP_TEST_FULL. */
static int samples_of(const struct comm_kind *kind, int threads, int processes)
{
    const int samples = kind->by_ring ? 0 : kind->processes ? processes : threads;

    return getenv("DP_TEST_FULL") ? 20 * samples : samples;
}

static const char *const graphs[] = {"one-peer-exp", "complete", "alternating-exp-ring", "torus",
                                     "directed-exp", "ring", "star"};

CASE(a_worker_may_die_at_every_message)
{
    uint64_t seed = 12;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (size_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++)
            for (int k = 0; k < samples_of(kind, 12, 2); k++) {
                struct job job = {.graph = graphs[i], .workers = 4, .at = {0, -1}};
                job.dead[0] = draw(&seed, 4);
                job.at[0] = draw(&seed, kind->processes ? 90 : 40);
                run_on(kind, &job);
            }
}

/* What goes over the wire otherwise than as whole blocks. */
static void set_wire(struct job *job, int which)
{
    const bool compressed = which % 4 < 2;

    job->compression = compressed ? DP_COMPRESSION_INT8 : DP_COMPRESSION_NONE;
    job->staleness = compressed ? 0 : which % 4 == 2 ? 1 : 3;
}

CASE(differences_that_are_cut_off_leave_the_mean)
{
    static const char *const these[] = {"one-peer-exp", "complete", "torus", "ring", "star",
                                        "alternating-exp-ring"};
    uint64_t seed = 21;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (size_t i = 0; i < sizeof(these) / sizeof(these[0]); i++)
            for (int k = 0; k < samples_of(kind, 12, 2); k++) {
                struct job job = {.graph = these[i], .workers = 4, .at = {0, -1}};
                job.dead[0] = draw(&seed, 4);
                job.at[0] = draw(&seed, kind->processes ? 90 : 60);
                set_wire(&job, k + 2 * (int)i);
                run_on(kind, &job);
            }
}

CASE(two_workers_may_die_one_of_them_during_the_recovery)
{
    uint64_t seed = 99;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int k = 0; k < samples_of(kind, 24, 4); k++) {
            struct job job = {.graph = graphs[k / 2 % 4], .workers = 4};
            if (k % 2)
                set_wire(&job, k / 2);
            job.dead[0] = draw(&seed, 4);
            job.dead[1] = (job.dead[0] + 1 + draw(&seed, 3)) % 4;
            job.at[0] = draw(&seed, 40);
            job.at[1] = job.at[0] + draw(&seed, 20);
            run_on(kind, &job);
        }
}

CASE(an_average_that_is_cut_off_is_had_by_all_or_none)
{
    uint64_t seed = 5;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int k = 0; k < samples_of(kind, 16, 2); k++) {
            struct job job = {.graph = graphs[k % 3], .workers = 4, .at = {0, -1}, .averages = true};
            if (k % 2)
                set_wire(&job, k / 2);
            job.dead[0] = draw(&seed, 4);
            job.at[0] = draw(&seed, 60);
            run_on(kind, &job);
        }
}

/* ---- at the start ------------------------------------------------------------------------------- */

/* The worker dies before it has a mixer, or in the first iterations. */
static int begin_without(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w;
    double all[MOST][TOTAL];

    if (dp_comm_survive(comm) == DP_EUNSUPPORTED)
        return 0;
    count_messages(comm);
    describe(&w, comm, job);
    set_values(&w);
    arm(comm, job);
    const struct dp_mixer_config config = config_of(&w, job);
    int err = dp_mixer_new(&config, &w.mixer);
    if (err) {
        dp_graph_free(w.graph);
        CHECK(dying[w.rank].is_dead);
        return 0;
    }
    if (dp_comm_size(mixer_now(w.mixer).comm) < job->workers) {
        CHECK(mixer_now(w.mixer).graph->workers == job->workers - 1);
        CHECK(!dp_comm_allgather(mixer_now(w.mixer).comm, w.value, all, sizeof(all[0])));
        CHECK(are_near(w.value[0], all[0], 0));
    }
    err = lose(&w, job);
    if (!err)
        err = go_on(&w, job);
    finish(&w);
    CHECK(err >= 0);
    return 0;
}

CASE(a_worker_may_die_while_mixers_are_made)
{
    uint64_t seed = 7;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int k = 0; k < samples_of(kind, 24, 3); k++) {
            struct job job = {.graph = graphs[k % 4], .workers = 4, .dead = {k % 4}, .at = {0, -1}};
            if (k % 3 == 0)
                set_wire(&job, k / 3);
            job.at[0] = k / 4 * 3 + draw(&seed, 3);
            run_on_with(kind, &job, begin_without);
        }
}

/* ---- one that is stopped ------------------------------------------------------------------------ */

static const int64_t SHORT_NS = 600 * DP_NS_PER_MS;

struct stopped {
    struct job job;
    pid_t pid;
};

/* It is stopped by itself and killed by the others. */
static int stop_or_go_on(struct worker *w, const struct job *job, int t)
{
    if (w->rank == job->dead[0] && t == job->at[0])
        raise(SIGSTOP);
    return iterate(w, job);
}

static int lose_one_that_is_stopped(struct dp_comm *comm, void *arg)
{
    struct stopped *s = arg;
    static struct worker w;
    int64_t began_ns = 0;
    int err = 0;

    if (dp_comm_survive(comm) == DP_EUNSUPPORTED)
        return 0;
    describe(&w, comm, &s->job);
    const struct dp_mixer_config config = config_of(&w, &s->job);
    CHECK(!dp_mixer_new(&config, &w.mixer));
    set_values(&w);
    if (w.rank == s->job.dead[0])
        s->pid = getpid();
    CHECK(!dp_comm_barrier(comm));
    for (int t = 0; dp_comm_size(mixer_now(w.mixer).comm) == s->job.workers; t++) {
        for (struct dp_comm *c = comm; c && t == 3; c = c->next) /* all have begun */
            dp_comm_set_deadline(c, SHORT_NS);
        began_ns = dp_now_ns();
        err = stop_or_go_on(&w, &s->job, t);
        CHECK(!err || err == DP_ECOMM || err == DP_ETIMEDOUT);
        CHECK(!err || !dp_mixer_survive(w.mixer));
    }
    CHECK(dp_now_ns() - began_ns < SHORT_NS + DP_NS_PER_S);
    CHECK(dp_comm_size(mixer_now(w.mixer).comm) == s->job.workers - 1);
    CHECK(!check_exchanges(&w));
    CHECK(!go_on(&w, &s->job));
    kill(s->pid, SIGKILL);
    finish(&w);
    return 0;
}

CASE(one_that_is_stopped_is_given_up_within_a_second_of_the_deadline)
{
    struct stopped *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int killed;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        if (!kind->processes || kind->by_ring || !strcmp(kind->name, "mpi"))
            continue;
        s->job = (struct job){.graph = "one-peer-exp", .workers = 4, .dead = {0}, .at = {5, -1}};
        s->job.dead[0] = strcmp(kind->name, "shm") ? 0 : 2;
        const int failed = kind->run(kind, 4, LONG_NS, lose_one_that_is_stopped, s, &killed);
        if (failed != 1 || killed != 1)
            fail_msg("%s: %d of 4 failed, %d were killed", kind->name, failed, killed);
    }
    munmap(s, sizeof(*s));
}

/* ---- local SGD --------------------------------------------------------------------------------- */

/* Survivors come near the optimum of what is left. */
static int learn(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    static _Thread_local struct worker w;
    double best[TOTAL] = {0};

    CHECK(!dp_comm_survive(comm));
    count_messages(comm);
    describe(&w, comm, job);
    const struct dp_mixer_config config = config_of(&w, job);
    CHECK(!dp_mixer_new(&config, &w.mixer));
    int err = dp_comm_barrier(comm);
    CHECK(!err || err == DP_ECOMM);
    arm(comm, job);
    err = lose(&w, job);
    for (int t = 0; t < 300 && !err; t++)
        CHECK(!iterate(&w, job));
    CHECK(err || !dp_comm_barrier(mixer_now(w.mixer).comm)); /* one that leaves is missing to others */
    for (int r = 0; r < job->workers; r++)
        for (int i = 0; i < TOTAL; i++)
            best[i] += r == job->dead[0] ? 0 : begin_value(r, i) / (job->workers - 1);
    CHECK(err == 1 || are_near(w.value[0], best, 0.6));
    finish(&w);
    return 0;
}

CASE(survivors_learn_what_is_left_by_local_sgd)
{
    uint64_t seed = 3;

    for (int k = 0; k < 4; k++) {
        struct job job = {.graph = "complete", .algorithm = DP_MIXER_LOCAL_SGD, .workers = 4,
                          .learns = true, .at = {0, -1}};
        job.dead[0] = draw(&seed, 4);
        job.at[0] = draw(&seed, 60);
        if (comm_on_threads(4, LONG_NS, learn, &job))
            fail_msg("rank %d at message %d", job.dead[0], job.at[0]);
    }
}

/* ---- new workers ------------------------------------------------------------------------------- */

/* A store of one value, in memory that all processes of a case share. */
struct admission {
    atomic_size_t len; /* 0: empty */
    char value[1000];
    struct job job;
    int count; /* new workers */
    bool other_list; /* theirs is not that of the others */
};

static int put(void *user, const char *key, const void *value, size_t len)
{
    struct admission *a = user;

    if (len > sizeof(a->value))
        return DP_EINVAL;
    memcpy(a->value, value, len);
    atomic_store(&a->len, len);
    return 0;
}

static int get(void *user, const char *key, void *value, size_t *len)
{
    struct admission *a = user;
    const size_t there = atomic_load(&a->len);

    if (!there)
        return DP_EAGAIN;
    *len = there < *len ? there : *len;
    memcpy(value, a->value, *len);
    return 0;
}

/* All are workers alike: the same iteration, values near the optimum of all, with Adam. */
static int go_on_with_all(struct worker *w, const struct admission *a)
{
    struct dp_comm *comm = mixer_now(w->mixer).comm;
    const int size = a->job.workers - count_dead(&a->job) + a->count;
    double mine[TOTAL], all[MOST][TOTAL];
    int64_t iterations[MOST], own = mixer_now(w->mixer).iterations;

    CHECK(dp_comm_size(comm) == size && mixer_now(w->mixer).graph->workers == size);
    CHECK(!dp_comm_allgather(comm, &own, iterations, sizeof(own)));
    memcpy(mine, w->value, sizeof(mine));
    CHECK(!dp_comm_allgather(comm, mine, all, sizeof(mine)));
    for (int r = size - a->count; r < size; r++)
        CHECK(iterations[r] == own && are_near(all[r], all[r % (size - a->count)], 0));
    for (int t = 0; t < 50; t++)
        CHECK(!iterate(w, &a->job));
    CHECK(!dp_mixer_average(w->mixer, NULL));
    CHECK(!dp_comm_allgather(comm, w->value, all, sizeof(mine)));
    for (int r = 1; r < size; r++)
        CHECK(are_near(all[r], all[0], 0));
    return dp_comm_barrier(comm);
}

static struct dp_mixer_config adam_of(struct worker *w, const struct job *job)
{
    struct dp_mixer_config config = config_of(w, job);

    config.optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAM);
    return config;
}

static int admit(struct dp_comm *comm, void *arg)
{
    struct admission *a = arg;
    const struct dp_comm_store store = {.user = a, .put = put, .get = get};
    const struct dp_comm_config how = {.store = &store,
                                       .transport = is_thread(comm) ? "auto" : dp_comm_name(comm),
                                       .timeout_ns = LONG_NS};
    static _Thread_local struct worker w;

    if (dp_comm_survive(comm) == DP_EUNSUPPORTED)
        return 0;
    count_messages(comm);
    describe(&w, comm, &a->job);
    const struct dp_mixer_config config = adam_of(&w, &a->job);
    CHECK(!dp_mixer_new(&config, &w.mixer));
    int err = dp_comm_barrier(comm);
    CHECK(!err || err == DP_ECOMM);
    arm(comm, &a->job);
    err = lose(&w, &a->job);
    while (!err && mixer_now(w.mixer).iterations < 30)
        CHECK(!iterate(&w, &a->job));
    if (!err) {
        const LATER(dp_comm_config) later = {how, dp_comm_rank(mixer_now(w.mixer).comm) == 0};
        CHECK(dp_mixer_admit_sized(w.mixer, a->count, &later.known, sizeof(later)) == DP_EINVAL);
        err = dp_mixer_admit(w.mixer, a->count, &how);
        CHECK(a->other_list ? err == DP_ECOMM : !err);
        if (a->other_list)
            CHECK(!dp_mixer_survive(w.mixer) && !iterate(&w, &a->job) &&
                  !dp_comm_barrier(mixer_now(w.mixer).comm));
        else
            CHECK(!go_on_with_all(&w, a));
    }
    finish(&w);
    return 0;
}

static int be_new(struct admission *a, const char *transport)
{
    const struct dp_comm_store store = {.user = a, .put = put, .get = get};
    static struct worker w;
    struct dp_comm *comm;

    setenv("DUALPIPE_WIRE_MEASURE", "0", 1);
    if (dp_comm_join(&(struct dp_comm_config){.store = &store, .transport = transport,
                                              .timeout_ns = LONG_NS},
                     &comm))
        return -1;
    describe(&w, comm, &a->job);
    struct dp_mixer_config config = adam_of(&w, &a->job);
    config.graph = NULL;
    config.count -= a->other_list;
    int err = dp_mixer_join(&config, &w.mixer);
    if (a->other_list) {
        CHECK_ERROR(err, DP_EMISMATCH, "a list of 2 parameters");
    } else {
        CHECK(!err);
        CHECK(!go_on_with_all(&w, a));
    }
    finish(&w);
    dp_comm_close(comm);
    return 0;
}

static void admit_on(const struct comm_kind *kind, const struct admission *which)
{
    struct admission *a =
        mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int expected = kind->processes ? count_dead(&which->job) : 0;
    pid_t children[MOST];
    int killed, status;

    if (kind->by_ring || !strcmp(kind->name, "mpi"))
        return;
    memcpy(&a->job, &which->job, sizeof(a->job));
    a->count = which->count;
    a->other_list = which->other_list;
    fflush(NULL);
    for (int i = 0; i < a->count; i++)
        if (!(children[i] = fork())) {
            const int failed = be_new(a, kind->processes ? kind->name : "auto");
            fflush(NULL);
            _exit(failed ? 1 : 0);
        }
    const int failed = kind->run(kind, a->job.workers, LONG_NS, admit, a, &killed);
    if (failed != expected || killed != expected)
        fail_msg("%s, %s: %d failed, %d were killed, expected %d", kind->name, a->job.graph, failed,
                 killed, expected);
    for (int i = 0; i < a->count; i++) {
        waitpid(children[i], &status, 0);
        assert_int_equal(status, 0);
    }
    munmap(a, sizeof(*a));
}

CASE(new_workers_catch_up_from_a_neighbour)
{
    static const struct admission cases[] = {
        {.job = {.graph = "one-peer-exp", .workers = 4, .dead = {1}, .at = {9, -1}}, .count = 1},
        {.job = {.graph = "ring", .workers = 2, .at = {-1, -1}}, .count = 3},
        {.job = {.graph = "directed-exp", .workers = 3, .at = {-1, -1}}, .count = 1},
        {.job = {.graph = "torus", .workers = 3, .at = {-1, -1}, .algorithm = DP_MIXER_LOCAL_SGD},
         .count = 2},
        {.job = {.graph = "one-peer-exp", .workers = 4, .dead = {0}, .at = {9, -1},
                 .compression = DP_COMPRESSION_INT8}, .count = 1},
        {.job = {.graph = "complete", .workers = 3, .dead = {2}, .at = {12, -1}, .staleness = 2},
         .count = 2},
    };

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct admission a = {.job = cases[i].job, .count = cases[i].count};
            a.job.learns = true;
            admit_on(kind, &a);
        }
}

CASE(a_new_worker_with_other_parameters_is_refused_and_the_others_go_on)
{
    struct admission a = {.job = {.graph = "ring", .workers = 2, .at = {-1, -1}, .learns = true},
                          .count = 1, .other_list = true};

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        admit_on(kind, &a);
}

static int refuse(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct worker w;
    const struct job *job = arg;

    describe(&w, comm, job);
    struct dp_mixer_config config = config_of(&w, job);
    struct dp_mixer *unused;
    config.survive = false;
    CHECK(!dp_mixer_new(&config, &w.mixer));
    CHECK_ERROR(dp_mixer_survive(w.mixer), DP_ESTATE, "config.survive");
    int err = dp_comm_barrier(comm);
    CHECK(!err || err == DP_EABORTED);
    config.survive = config.compat = true;
    err = dp_mixer_new(&config, &unused);
    CHECK(err == DP_EINVAL || err == DP_EABORTED);
    config.compat = false;
    CHECK_ERROR(dp_mixer_new(&config, &unused), DP_EINVAL, "dp_comm_survive");
    finish(&w);
    return 0;
}

CASE(a_mixer_that_cannot_survive_says_so)
{
    struct job job = {.graph = "ring", .workers = 2};

    assert_int_equal(comm_on_threads(2, LONG_NS, refuse, &job), 0);
}

RUN_QUIET_CASES(NULL, NULL)
