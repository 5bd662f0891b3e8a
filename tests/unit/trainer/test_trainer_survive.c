/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer that survives: processes are killed before there is one, before a step, in a forward, in a
 * backward, in an evaluation and in what the program does itself, and those that live end with the
 * numbers of a run in which none was.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"
#include "trainer_models.h"

#include "base/clock.h"

#include <dualpipe/survival.h>
#include <dualpipe/trainer.h>

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_FIRST = 100, AT_LAST }; /* before the trainer is made; in the program's own part */
#define OTHER_RATE 0.01 /* which a program sets where a rank comes back */
enum { STEPS = 4, ROWS = 16, MICROBATCHES = 8, MAX_RANKS = 6, MAX_VALUES = 600, VICTIMS = 2 };
static const int64_t timeout_ns = INT64_C(20000000000);

/* What a rank has seen. */
struct seen {
    double losses[STEPS], norms[STEPS], held_out;
    int64_t step_ns;  /* of its last step */
    bool has_stepped; /* it died after the step in which it was to die */
    int32_t lost[STEPS + 1], lost_ranks[VICTIMS];
    float values[MAX_VALUES]; /* of the one to which they were gathered */
    bool gathered;
    int ranks; /* that the program has counted */
};

struct death {
    int rank;
    uint64_t step; /* from 1; STEPS + 1: the evaluation; AT_FIRST; AT_LAST; 0: none dies */
    int calls;     /* the call of a layer in it, from 1; 0: before the step */
    bool fails;    /* it is not killed: its layers fail at micro-batch 0, and it leaves */
    int after_us;  /* so long after the step began, or when it ends; 0: as `calls` says */
};

struct layout {
    enum dp_schedule_kind kind;
    int ranks, replicas, spare;
    const char *graph; /* replicas mix; NULL: gradients are summed */
    bool shards;       /* by shards, each of which two ranks have */
};

static int size_of(const struct layout *l)
{
    return l->ranks * l->replicas + l->spare;
}

struct job {
    enum model_kind model;
    struct layout layout;
    struct death deaths[VICTIMS];
    bool offloads;
    bool unclipped; /* norms of shards are added up in another order */
    const char *sentence; /* it cannot go on, and says so; NULL: it can */
    struct seen *seen;    /* [MAX_RANKS] in memory of all processes */
    struct meeting *meeting; /* the same: of the rank that comes back; NULL: none does */
    bool differs;            /* it does so with another config, and is sent away */
    enum dp_mixer_algorithm algorithm;
    int32_t staleness;
    enum dp_mixer_compression compression;
};

/* Where the workers are found by a rank that comes back. */
struct meeting {
    atomic_size_t len;
    char value[4096];
};

static int put(void *user, const char *key, const void *value, size_t len)
{
    struct meeting *m = user;

    if (len > sizeof(m->value))
        return DP_EINVAL;
    memcpy(m->value, value, len);
    atomic_store(&m->len, len);
    return 0;
}

static int get(void *user, const char *key, void *value, size_t *len)
{
    struct meeting *m = user;
    const size_t there = atomic_load(&m->len);

    if (!there)
        return DP_EAGAIN;
    *len = there < *len ? there : *len;
    memcpy(value, m->value, *len);
    return 0;
}

static int take_step(struct dp_trainer *t, enum model_kind model, uint64_t step,
                     struct dp_trainer_result *result, double *held_out)
{
    static const DLDataType f32 = {kDLFloat, 32, 1}, u8 = {kDLUInt, 8, 1};
    float x[ROWS][MODEL_WIDTH], y[ROWS][MODEL_WIDTH];
    uint8_t classes[ROWS];
    int64_t shape[] = {ROWS, MODEL_WIDTH};
    const DLDevice cpu = {kDLCPU, 0};
    const DLTensor in = {x, cpu, 2, f32, shape, NULL, 0}, wanted = {y, cpu, 2, f32, shape, NULL, 0},
                   labels = {classes, cpu, 1, u8, shape, NULL, 0};
    const struct dp_tree inputs = dp_tuple(1, (struct dp_tree[]){dp_tensor(&in)});
    const struct dp_tree out =
        dp_tuple(1, (struct dp_tree[]){dp_tensor(model == MODEL_TIED ? &labels : &wanted)});
    const struct dp_batch batch = {.inputs = &inputs, .labels = &out};

    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < MODEL_WIDTH; i++) {
            x[r][i] = sinf((float)(7 * r + 3 * i + 1) * (float)(step + 1));
            y[r][(i + 1) % MODEL_WIDTH] = x[r][i];
        }
        classes[r] = (uint8_t)((unsigned)r * (unsigned)(step + 3) % MODEL_WIDTH);
    }
    return held_out ? dp_trainer_evaluate(t, &batch, held_out)
                    : dp_trainer_step(t, &batch, result);
}

static int gather(struct dp_trainer *t, struct seen *seen)
{
    struct dp_named_tensor *all;
    int32_t count;
    size_t at = 0;
    int err = dp_trainer_gather(t, 0, &all, &count);

    for (int32_t i = 0; !err && i < count; i++) {
        size_t n = 1;
        for (int k = 0; k < all[i].tensor.ndim; k++)
            n *= (size_t)all[i].tensor.shape[k];
        memcpy(seen->values + at, all[i].tensor.data, n * sizeof(float));
        at += n;
    }
    seen->gathered = at;
    if (!err)
        dp_trainer_gathered_free(all);
    return err;
}

/* What a program does itself: all that live add one up. */
struct own_part {
    const struct dp_trainer *t;
    const struct death *own;
    int ranks;
};

static int count_ranks(void *user)
{
    struct own_part *p = user;
    struct dp_trainer_parts parts;
    const int32_t one = 1;
    int32_t ones[MAX_RANKS] = {0};

    if (p->own && p->own->step == AT_LAST)
        raise(SIGKILL);
    dp_trainer_parts(p->t, &parts);
    p->ranks = 0;
    const int err = parts.comm ? dp_comm_allgather(parts.comm, &one, ones, sizeof(one)) : 0;
    for (int i = 0; i < MAX_RANKS; i++)
        p->ranks += ones[i];
    return err;
}

/* First some ranks ask for what is not known. */
static int admit(struct dp_trainer *t, const struct job *job, int rank)
{
    const struct dp_comm_store store = {.user = job->meeting, .put = put, .get = get};
    const LATER(dp_comm_config) config = {
        {.store = &store, .transport = "shm", .timeout_ns = timeout_ns}, rank % 2};
    const int err = dp_trainer_admit_sized(t, 1, &config.known, sizeof(config));
    return err == DP_EINVAL ? dp_trainer_admit(t, 1, &config.known) : err;
}

/* A checkpoint that fails ends nothing, and no death is missed after it. */
static int save_in_vain(struct dp_trainer *t, const struct job *job)
{
    const char *why = job->layout.graph ? "a checkpoint of replicas that mix with survive" : "/dev/null";

    return dp_trainer_save(t, "/dev/null/none") < 0 && strstr(dp_last_error(), why)
               ? 0
               : dp_callback_error(DP_ESTATE, "saved in vain: %s", dp_last_error());
}

static void die(int number)
{
    raise(SIGKILL);
}

static int learn(struct dp_trainer *t, const struct job *job, int rank, struct seen *seen)
{
    const struct death *own = NULL;
    struct dp_trainer_result r;
    const int32_t *lost;
    int err = 0;

    for (int i = 0; i < VICTIMS; i++)
        if (job->deaths[i].step && job->deaths[i].rank == rank && !job->deaths[i].fails)
            own = &job->deaths[i];
    while (!err && dp_trainer_next_step(t) <= STEPS) {
        const uint64_t step = dp_trainer_next_step(t);
        err = save_in_vain(t, job);
        const bool dies = own && own->step == step + 1;
        if (dies && !own->calls && !own->after_us)
            raise(SIGKILL);
        if (err || step == STEPS)
            break;
        if (dies && own->after_us) {
            signal(SIGALRM, die);
            setitimer(ITIMER_REAL,
                      &(struct itimerval){
                          .it_value = {own->after_us / 1000000, own->after_us % 1000000}},
                      NULL);
        }
        const int64_t began_ns = dp_now_ns();
        err = take_step(t, job->model, step, &r, NULL);
        seen->step_ns = dp_now_ns() - began_ns;
        if (dies && own->after_us) {
            seen->has_stepped = true;
            raise(SIGKILL);
        }
        if (err)
            break;
        seen->losses[step] = r.loss;
        seen->norms[step] = r.norm;
        seen->lost[step] = r.lost;
        if (job->meeting && r.rate != OTHER_RATE)
            err = dp_callback_error(DP_ESTATE, "the rate of step %d is %g", (int)step, r.rate);
        if (!err && r.lost && job->meeting)
            err = admit(t, job, rank);
        if (job->differs && err == DP_EAGAIN)
            err = 0;
    }
    if (!err)
        err = take_step(t, job->model, STEPS, NULL, &seen->held_out);
    struct own_part part = {.t = t, .own = own};
    if (!err)
        err = dp_trainer_carry_out(t, count_ranks, &part);
    if (!err)
        err = dp_trainer_finish(t);
    seen->lost[STEPS] = dp_trainer_lost(t, &lost);
    seen->ranks = part.ranks;
    for (int i = 0; i < seen->lost[STEPS] && i < VICTIMS; i++)
        seen->lost_ranks[i] = lost[i];
    return err ? err : gather(t, seen);
}

static struct dp_trainer_config config_of(const struct job *job, const int32_t *layers)
{
    const bool cut = job->layout.kind == DP_SCHEDULE_1F1B;

    return (struct dp_trainer_config){
        .schedule.kind = job->layout.kind,
        .schedule.ranks = job->layout.ranks,
        .balance = cut ? DP_BALANCE_GIVEN : DP_BALANCE_COST,
        .layers_of_stage = layers,
        .replicas = job->layout.replicas,
        .microbatches = MICROBATCHES,
        .rows = ROWS,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW),
        .rate = {.peak = 0.02},
        .clip = job->unclipped ? 0 : 0.5,
        .fixed_order = true,
        .order_blocks = 8,
        .seed = 5,
        .sums = job->layout.graph ? DP_SUMS_MIXING : job->layout.shards ? DP_SUMS_SHARDS : DP_SUMS_ALL,
        .mixing.graph.name = job->layout.graph,
        .mixing.algorithm = job->algorithm,
        .mixing.staleness = job->staleness,
        .mixing.compression = job->compression,
        .survive = size_of(&job->layout) > 1,
        .offload.parameters = job->offloads,
        .offload.device_bytes = job->offloads ? 4 << 20 : 0,
    };
}

/* The first of the deaths comes back. */
static int rejoin(const struct job *job)
{
    const struct dp_comm_store store = {.user = job->meeting, .put = put, .get = get};
    const int rank = job->deaths[0].rank;
    struct dp_trainer_config config = config_of(job, NULL);
    struct job own = *job;
    struct dp_trainer *t;
    struct test_model m;
    struct dp_comm *comm;

    if (dp_comm_join(&(struct dp_comm_config){.store = &store,
                                              .transport = "shm",
                                              .timeout_ns = timeout_ns},
                     &comm))
        return -1;
    test_model_init(&m, job->model);
    memset(own.deaths, 0, sizeof(own.deaths));
    if (job->differs) {
        if (rank)
            config.seed++;
        else
            config.mixing.graph.name = strcmp(job->layout.graph, "ring") ? "ring" : "complete";
        CHECK(dp_trainer_join(&config, &m.model, comm, rank, &t) == DP_EMISMATCH);
        CHECK_SAYS("the trainer's config differs");
        dp_comm_close(comm);
        return 0;
    }
    CHECK(!dp_trainer_join(&config, &m.model, comm, rank, &t));
    CHECK(dp_trainer_next_step(t) == job->deaths[0].step);
    const int err = learn(t, &own, rank, &job->seen[rank]);
    dp_trainer_free(t);
    CHECK(!err);
    dp_comm_close(comm);
    return 0;
}

static void leave(void *user)
{
    ++*(int *)user;
}

static int rank_learns(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    const int rank = dp_comm_rank(comm), ranks = job->layout.ranks;
    int32_t *layers = calloc(MODEL_LAYERS, sizeof(*layers)); /* which dp_trainer_new copies */
    const struct dp_trainer_config config = config_of(job, layers);
    struct dp_trainer *t;
    struct test_model m;
    struct test_kill kill = {0};
    bool fails = false;
    int left = 0;

    test_model_init(&m, job->model);
    m.model.leave = leave;
    m.model.loss_user = &left;
    for (int i = 0; i < VICTIMS; i++)
        if (job->deaths[i].step && job->deaths[i].rank == rank) {
            kill = (struct test_kill){job->deaths[i].step - 1, job->deaths[i].calls};
            fails = job->deaths[i].fails;
        }
    for (int l = 0; l < MODEL_LAYERS; l++) {
        m.users[l].kill = &kill;
        m.users[l].fail_mb = fails ? 1 : 0;
    }
    CHECK(layers);
    for (int s = 0; s < ranks; s++)
        layers[s] = s ? 1 : MODEL_LAYERS - ranks + 1;
    if (job->deaths[0].step == AT_FIRST) {
        CHECK(!dp_comm_survive(comm));
        if (job->deaths[0].rank == rank)
            raise(SIGKILL);
    }
    CHECK(!dp_trainer_new(&config, &m.model, comm, &t));
    free(layers);
    if (job->meeting)
        dp_trainer_set_rate(t, OTHER_RATE);
    const int err = learn(t, job, rank, &job->seen[rank]);
    const int32_t *lost;
    const bool moved = dp_trainer_lost(t, &lost) && job->deaths[0].step != AT_FIRST &&
                       !job->layout.graph && !job->layout.spare;
    dp_trainer_free(t);
    if (moved && !left)
        return dp_callback_error(DP_ESTATE, "its parts have gone without a word");
    if (job->sentence || fails) {
        CHECK(err);
        CHECK_SAYS(fails ? "it was to fail at micro-batch 0" : job->sentence);
        return 0;
    }
    CHECK(!err);
    return 0;
}

static const struct comm_kind *shm(void)
{
    const struct comm_kind *kind = comm_kinds;

    while (kind->name && strcmp(kind->name, "shm"))
        kind++;
    return kind;
}

static struct seen *seen;

static int make_memory(void **state)
{
    seen = mmap(NULL, MAX_RANKS * sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    return seen == MAP_FAILED ? -1 : 0;
}

static void run_again(struct job *job, int expected_deaths)
{
    const int size = size_of(&job->layout);
    int killed;

    const int failed = shm()->run(shm(), size, timeout_ns, rank_learns, job, &killed);
    if (failed != expected_deaths || killed != expected_deaths)
        fail_msg("%d of %d ranks failed, of which %d were killed, expected %d", failed, size, killed,
                 expected_deaths);
}

static void run(struct job job, int expected_deaths)
{
    memset(seen, 0, MAX_RANKS * sizeof(*seen));
    job.seen = seen;
    run_again(&job, expected_deaths);
}

static void assert_same(const struct seen *expected, const struct job *job, int deaths)
{
    const int size = size_of(&job->layout);
    bool gathered = false;

    for (int rank = 0; rank < size; rank++) {
        bool died = false;
        for (int i = 0; i < VICTIMS; i++)
            died = died || (job->deaths[i].step && job->deaths[i].rank == rank);
        if (died)
            continue;
        assert_memory_equal(expected->losses, seen[rank].losses, sizeof(expected->losses));
        assert_memory_equal(&expected->held_out, &seen[rank].held_out, sizeof(double));
        for (int step = 0; step < STEPS; step++) /* of shards it is added up in another order */
            assert_true(fabs(expected->norms[step] - seen[rank].norms[step]) <=
                        1e-9 * expected->norms[step]);
        assert_int_equal(seen[rank].lost[STEPS], deaths);
        assert_int_equal(seen[rank].ranks, size - deaths);
        assert_int_equal(seen[rank].lost_ranks[0], job->deaths[0].rank);
        if (deaths > 1)
            assert_int_equal(seen[rank].lost_ranks[1], job->deaths[1].rank);
        if (seen[rank].gathered)
            assert_memory_equal(expected->values, seen[rank].values, sizeof(expected->values));
        gathered = gathered || seen[rank].gathered;
    }
    assert_true(gathered);
}

static const struct layout one = {DP_SCHEDULE_GPIPE, 1, 1, 0, NULL};
static const struct layout layouts[] = {
    {DP_SCHEDULE_DUALPIPE, 2, 1, 1, NULL}, {DP_SCHEDULE_DUALPIPE, 4, 1, 0, NULL},
    {DP_SCHEDULE_1F1B, 2, 2, 2, NULL},     {DP_SCHEDULE_GPIPE, 1, 2, 0, NULL},
    {DP_SCHEDULE_DUALPIPE, 2, 2, 1, NULL}, {DP_SCHEDULE_ZBV, 2, 2, 0, NULL},
};
enum { LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };
static const struct layout shards[] = {
    {DP_SCHEDULE_GPIPE, 1, 4, 0, .shards = true}, {DP_SCHEDULE_DUALPIPE, 4, 1, 0, .shards = true},
    {DP_SCHEDULE_1F1B, 2, 2, 1, .shards = true},  {DP_SCHEDULE_DUALPIPE, 2, 2, 1, .shards = true},
};

/* Each of several ranks, at each of several moments. */
static void kill_at_each_moment(const struct layout *list, int count)
{
    static const struct death when[] = {
        {.step = 1},          {.step = 1, .calls = 1}, {.step = 2, .calls = 8}, {.step = 3, .calls = 3},
        {.step = 4, .calls = 20}, {.step = STEPS + 1},     {.step = STEPS + 1, .calls = 2},
        {.step = AT_FIRST},   {.step = AT_LAST},
    };
    enum { WHEN = sizeof(when) / sizeof(when[0]) };

    struct seen expected[MODEL_KINDS];

    for (enum model_kind model = 0; model < MODEL_KINDS; model++) {
        run((struct job){.model = model, .layout = one, .unclipped = list->shards}, 0);
        expected[model] = seen[0];
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < WHEN; k++) {
            const enum model_kind model = (enum model_kind)((i + k) % MODEL_KINDS);
            struct job job = {.model = model, .layout = list[i], .deaths = {when[k]},
                              .offloads = k == 2, .unclipped = list[i].shards};
            const int placed = size_of(&job.layout) - (when[k].calls ? job.layout.spare : 0);
            job.deaths[0].rank = (i + k / 2) % placed;
            printf("model %d, layout %d%s, death %d of rank %d\n", model, i,
                   list->shards ? " of shards" : "", k, job.deaths[0].rank);
            run(job, 1);
            assert_same(&expected[model], &job, 1);
        }
}

static void those_that_live_learn_what_all_would_have(void **state)
{
    kill_at_each_moment(layouts, LAYOUTS);
}

static void what_is_in_shards_is_on_two_ranks(void **state)
{
    kill_at_each_moment(shards, sizeof(shards) / sizeof(shards[0]));

    run((struct job){.model = MODEL_SKIPS, .layout = shards[0],
                     .deaths = {{.rank = 0, .step = 2}, {.rank = 3, .step = 2}},
                     .sentence = "if those that held it have died, only a checkpoint brings it back"},
        2);
}

/* Whether that is while gradients are summed, parts agree, values change or are gathered. */
static void the_moment_does_not_matter(void **state)
{
    static const struct layout *const of[] = {&shards[0], &layouts[2], &shards[2], &shards[3],
                                              &layouts[3]};
    int64_t step_ns[5];
    int inside = 0;

    run((struct job){.model = MODEL_SKIPS, .layout = one, .unclipped = true}, 0);
    const struct seen expected = seen[0];
    for (int i = 0; i < 5; i++) {
        run((struct job){.model = MODEL_SKIPS, .layout = *of[i], .unclipped = true}, 0);
        step_ns[i] = seen[0].step_ns;
    }
    for (int i = 0; i < 60; i++) {
        struct job job = {.model = MODEL_SKIPS, .layout = *of[i % 5], .unclipped = true};
        job.deaths[0] = (struct death){.rank = i / 5 % (job.layout.ranks * job.layout.replicas),
                                       .step = (uint64_t)(1 + i % 3),
                                       .after_us = 1 + (int)(step_ns[i % 5] * (i * 7 % 60) / 60000)};
        printf("layout %d, rank %d dies in step %d, after %d us\n", i % 5, job.deaths[0].rank,
               (int)job.deaths[0].step, job.deaths[0].after_us);
        run(job, 1);
        assert_same(&expected, &job, 1);
        inside += !seen[job.deaths[0].rank].has_stepped;
    }
    printf("%d of 60 died before their step was over\n", inside);
    assert_true(inside);
}

/* One after the other, or at once, down to one rank. */
static void several_may_die(void **state)
{
    static const struct {
        struct layout layout;
        struct death deaths[VICTIMS];
    } rows[] = {
        {{DP_SCHEDULE_GPIPE, 1, 4, 0, NULL}, {{0, 2, 3, false}, {3, 3, 0, false}}},
        {{DP_SCHEDULE_DUALPIPE, 4, 1, 0, NULL}, {{1, 2, 5, false}, {2, 4, 2, false}}},
        {{DP_SCHEDULE_1F1B, 2, 2, 0, NULL}, {{0, 1, 1, false}, {3, 1, 4, false}}},
        {{DP_SCHEDULE_ZBV, 2, 2, 0, NULL}, {{0, 3, 0, false}, {3, 3, 2, false}}},
        {{DP_SCHEDULE_GPIPE, 1, 4, 0, .shards = true}, {{0, 2, 0, false}, {2, 2, 0, false}}},
        {{DP_SCHEDULE_GPIPE, 1, 4, 0, .shards = true}, {{1, 1, 3, false}, {0, 3, 2, false}}},
        {{DP_SCHEDULE_1F1B, 2, 2, 0, .shards = true}, {{1, 2, 0, false}, {2, 2, 0, false}}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job job = {.model = MODEL_TIED, .layout = rows[i].layout,
                          .unclipped = rows[i].layout.shards};
        memcpy(job.deaths, rows[i].deaths, sizeof(job.deaths));
        printf("row %zu\n", i);
        run((struct job){.model = job.model, .layout = one, .unclipped = job.unclipped}, 0);
        const struct seen expected = seen[0];
        run(job, 2);
        assert_same(&expected, &job, 2);
    }
}

/* It has said why where it happened, and to the others it is dead. */
static void a_rank_whose_layer_fails_leaves(void **state)
{
    run((struct job){.model = MODEL_SKIPS, .layout = one}, 0);
    const struct seen expected = seen[0];

    for (int i = 0; i < LAYOUTS; i++) {
        const struct job job = {.model = MODEL_SKIPS,
                                .layout = layouts[i],
                                .deaths = {{.rank = 0, .step = 1, .fails = true}}};
        run(job, 0);
        assert_same(&expected, &job, 1);
    }
}

/* ---- replicas that mix ----------------------------------------------------------------------- */

static const struct mixing {
    struct layout layout;
    enum dp_mixer_algorithm algorithm;
    int32_t staleness;
    enum dp_mixer_compression compression;
} mixings[] = {
    {.layout = {DP_SCHEDULE_GPIPE, 1, 4, 0, "ring"}},
    {.layout = {DP_SCHEDULE_GPIPE, 1, 4, 0, "one-peer-exp"}, .staleness = 2},
    {.layout = {DP_SCHEDULE_GPIPE, 1, 2, 0, "complete"}, .algorithm = DP_MIXER_LOCAL_SGD},
    {.layout = {DP_SCHEDULE_GPIPE, 1, 4, 0, "directed-exp"}},
    {.layout = {DP_SCHEDULE_GPIPE, 1, 4, 0, "torus"}, .compression = DP_COMPRESSION_INT8},
};
enum { MIXINGS = sizeof(mixings) / sizeof(mixings[0]) };

static struct job job_of(const struct mixing *m, enum model_kind model)
{
    return (struct job){.model = model,
                        .layout = m->layout,
                        .algorithm = m->algorithm,
                        .staleness = m->staleness,
                        .compression = m->compression};
}

/* All that end know the same, and up to the death what would have been without it. */
static void assert_together(const struct seen *expected, const struct job *job, uint64_t until,
                            bool is_back)
{
    const int dead = job->deaths[0].rank, first = dead == 0 && !is_back;

    /* What comes late is mixed later. */
    for (uint64_t step = 0; step < until && step < (job->staleness ? 1 : STEPS); step++)
        assert_true(seen[first].losses[step] == expected->losses[step]);
    for (int rank = first; rank < size_of(&job->layout); rank++) {
        if (rank == dead && !is_back)
            continue;
        const uint64_t from = rank == dead ? job->deaths[0].step : 0;
        for (uint64_t step = from; step < STEPS; step++)
            assert_true(seen[rank].losses[step] == seen[first].losses[step] ||
                        (dead == 0 && step < job->deaths[0].step));
        assert_true(isfinite(seen[rank].held_out) && seen[rank].held_out == seen[first].held_out);
        assert_int_equal(seen[rank].ranks, size_of(&job->layout) - !is_back);
        if (rank == dead)
            continue;
        assert_int_equal(seen[rank].lost[STEPS], 1);
        assert_int_equal(seen[rank].lost_ranks[0], dead);
    }
}

static void replicas_that_mix_go_on_without_one_that_dies(void **state)
{
    static const struct death when[] = {
        {.step = 1, .calls = 1}, {.step = 2, .calls = 8}, {.step = 3}, {.step = STEPS + 1, .calls = 2},
        {.step = AT_FIRST},      {.step = AT_LAST},
    };
    enum { WHEN = sizeof(when) / sizeof(when[0]) };

    for (int i = 0; i < MIXINGS; i++)
        for (int k = 0; k < WHEN; k++) {
            struct job job = job_of(&mixings[i], (enum model_kind)((i + k) % MODEL_KINDS));
            run(job, 0);
            const struct seen expected = seen[0];
            job.deaths[0] = when[k];
            job.deaths[0].rank = k % job.layout.replicas;
            job.offloads = k == 1;
            printf("graph %s, death %d of rank %d\n", job.layout.graph, k, job.deaths[0].rank);
            run(job, 1);
            assert_together(&expected, &job, when[k].step == AT_FIRST ? 0 : when[k].step - 1, false);
        }
}

/* It goes on with the step that the others have come to. */
static void a_replica_that_comes_back_is_admitted(void **state)
{
    struct meeting *meeting =
        mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(meeting, MAP_FAILED);
    for (int i = 0; i < 2 * MIXINGS; i++) {
        struct job job = job_of(&mixings[i / 2], (enum model_kind)(i / 2 % MODEL_KINDS));
        int status;
        run(job, 0);
        const struct seen expected = seen[0];
        memset(meeting, 0, sizeof(*meeting));
        memset(seen, 0, MAX_RANKS * sizeof(*seen));
        job.seen = seen;
        job.meeting = meeting;
        job.differs = i % 2;
        job.deaths[0] = (struct death){.rank = i / 2 % 2, .step = 2, .calls = 2};
        printf("graph %s, %s config\n", job.layout.graph, job.differs ? "another" : "the same");
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            const int failed = rejoin(&job);
            fflush(NULL);
            _exit(failed ? 1 : 0);
        }
        run_again(&job, 1);
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
        assert_together(&expected, &job, 1, !job.differs);
    }
    munmap(meeting, sizeof(*meeting));
}

/* Both holders of a stage. */
static void a_stage_that_is_lost_ends_all(void **state)
{
    for (int i = 0; i < 4; i++) /* at once, or the last that has it in a later step; with shards, too */
        run((struct job){.model = MODEL_MLP,
                         .layout = {DP_SCHEDULE_1F1B, 2, 2, 0, .shards = i % 2},
                         .deaths = {{1, 2, 0, false}, {i < 2 ? 3 : 0, i < 2 ? 2 : 3, 0, false}},
                         .sentence = "no rank has"},
            2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_live_learn_what_all_would_have),
        cmocka_unit_test(what_is_in_shards_is_on_two_ranks),
        cmocka_unit_test(the_moment_does_not_matter),
        cmocka_unit_test(several_may_die),
        cmocka_unit_test(a_rank_whose_layer_fails_leaves),
        cmocka_unit_test(a_stage_that_is_lost_ends_all),
        cmocka_unit_test(replicas_that_mix_go_on_without_one_that_dies),
        cmocka_unit_test(a_replica_that_comes_back_is_admitted),
    };
    return cmocka_run_group_tests(tests, make_memory, NULL);
}
