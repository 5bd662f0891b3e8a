/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens when a rank fails, dies or stalls in the middle of a step: every rank learns which one
 * it was, none hangs, nothing is left over, and the next step is right to the last bit.
 *
 * Of the deaths and stalls at each message a seeded sample is tried; with DP_TEST_FULL all of them.
 * DP_TEST_JOBS (4) are tried at a time, as most of them wait for a deadline.
 */
#include "cmocka_all.h"

#include "comm/comm_ops.h"
#include "unit/comm/comm_group.h"
#include "jobs.h"
#include "pipeline_job.h"

#include <dualpipe/partition.h>
#include <dualpipe/random.h>

#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { RANKS = 4, MICROBATCHES = 8, FAILURE = -77 };
static const int64_t deadline_ns = INT64_C(20000000000);
/* On a busy machine another rank than the one that stalls may not run for the shorter one. */
static const int64_t short_deadlines_ns[] = {INT64_C(1000000000), INT64_C(15000000000)};

enum manner { FAIL, DIE, STALL };

/* Shared by all ranks, threads or processes. */
struct fault {
    enum manner manner;
    int every;              /* try each n-th callback */
    bool at_messages;       /* at posts of messages instead of callbacks */
    int culprit;
    atomic_int calls[RANKS]; /* callbacks of a step */
    atomic_int done;        /* ranks whose step has returned */
    _Atomic uint64_t doing; /* of the culprit, when it died or stalled */
};

struct fault_job {
    struct job job;
    struct fault *fault;
};

/* Of this rank, now. */
static _Thread_local int calls_left, calls_made;
static _Thread_local struct fault *the_fault;
static _Thread_local struct dp_comm *the_comm;

static int count_down_one(void)
{
    calls_made++;
    if (calls_left < 0 || calls_left-- > 0)
        return 0;
    if (the_fault->manner != FAIL)
        atomic_store(&the_fault->doing, atomic_load(the_comm->doing));
    if (the_fault->manner == DIE)
        raise(SIGKILL);
    /* The others' processor is left to them: they have a deadline to keep. */
    while (the_fault->manner == STALL && atomic_load(&the_fault->done) < RANKS - 1)
        poll(NULL, 0, 1);
    return the_fault->manner == FAIL ? dp_callback_error(FAILURE, "out of %s", "luck") : 0;
}

static int count_down(void *user, const struct dp_stage_call *call, const char *what)
{
    return the_fault->at_messages ? 0 : count_down_one();
}

/* A rank's communicator, which counts each message that is posted before it is. */
static _Thread_local const struct dp_comm_ops *real_ops;
static _Thread_local struct dp_comm_ops counted_ops;

static int counted_send(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                        size_t len, struct dp_request *req)
{
    (void)count_down_one();
    return real_ops->isend(comm, peer, channel, tag, buf, len, req);
}

static int counted_receive(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                           size_t len, struct dp_request *req)
{
    (void)count_down_one();
    return real_ops->irecv(comm, peer, channel, tag, buf, len, req);
}

static int counted_receive_any(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                               struct dp_request *req)
{
    (void)count_down_one();
    return real_ops->irecv_any(comm, peer, channel, buf, room, req);
}

static void count_messages(struct dp_comm *comm)
{
    real_ops = comm->ops;
    counted_ops = *real_ops;
    counted_ops.isend = counted_send;
    counted_ops.irecv = counted_receive;
    counted_ops.irecv_any = counted_receive_any;
    comm->ops = &counted_ops;
}

/* From here on; all ranks have opened their pipeline, whatever comes. */
static void arm(struct dp_comm *comm, const struct fault *fault)
{
    (void)dp_comm_barrier(comm);
    real_ops = comm->ops;
    if (dp_comm_rank(comm) != fault->culprit)
        return;
    calls_left = fault->every;
    if (fault->at_messages)
        count_messages(comm);
}

/* How many messages of a step this rank posts, for all ranks to know. */
static int measure_messages(struct dp_comm *comm, void *arg)
{
    struct fault_job *f = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    the_fault = f->fault;
    calls_left = -1;
    CHECK(!job_rank_open(&r, &f->job, comm));
    count_messages(comm);
    calls_made = 0;
    const int err = job_rank_step(&r);
    atomic_store(&f->fault->calls[dp_comm_rank(comm)], calls_made);
    comm->ops = real_ops;
    CHECK(!err);
    return 0;
}

static int expect_culprit(struct dp_comm *comm, int culprit, int error)
{
    struct dp_abort why;

    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == culprit);
    CHECK(why.error == error);
    if (error == DP_ECALLBACK)
        CHECK(strstr(why.text, "micro-batch") && strstr(why.text, "failed with -77") &&
              strstr(why.text, "out of luck"));
    return 0;
}

/* Its last op, also of a rank that was killed: told before each op here. */
static int expect_last_op(struct dp_comm *comm, uint64_t doing)
{
    struct dp_abort why;
    char text[80];

    CHECK(doing && dp_comm_aborted(comm, &why) && why.doing == doing);
    CHECK(strstr(dp_pipeline_doing_text(doing, text, sizeof(text)), " of micro-batch "));
    CHECK(strstr(text, ", step 0"));
    return 0;
}

/* One step in which rank `culprit` fails at its callback number `at`, then a good one. */
static int fail_once(struct dp_comm *comm, struct job_rank *r, int culprit, int at)
{
    calls_left = dp_comm_rank(comm) == culprit ? at : -1;
    int err = job_rank_step(r);
    calls_left = -1;
    if (err) {
        CHECK(err == (dp_comm_rank(comm) == culprit ? DP_ECALLBACK : DP_EABORTED));
        CHECK(!expect_culprit(comm, culprit, DP_ECALLBACK));
    }
    CHECK(job_rank_step(r) == DP_EABORTED || !err); /* until a reset, nothing goes */
    CHECK(!dp_comm_reset(comm));
    dp_pipeline_seek(r->pipe, 1);
    CHECK(!job_rank_step(r));
    return 0;
}

static int fail_everywhere(struct dp_comm *comm, void *arg)
{
    struct fault_job *f = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    the_fault = f->fault;
    calls_left = -1;
    CHECK(!job_rank_open(&r, &f->job, comm));
    calls_made = 0;
    CHECK(!job_rank_step(&r));
    atomic_store(&f->fault->calls[dp_comm_rank(comm)], calls_made);
    CHECK(!dp_comm_barrier(comm));
    for (int culprit = 0; culprit < RANKS; culprit++)
        for (int at = culprit % f->fault->every; at < atomic_load(&f->fault->calls[culprit]);
             at += f->fault->every)
            CHECK(!fail_once(comm, &r, culprit, at));
    return 0;
}

/* What follows holds whatever drives the ranks, whichever way messages take. */
enum way { BY_LIST, BY_MESSAGES, WITH_SKIPS, WITH_REUSE, WAYS };
static const char *const way_names[WAYS] = {"list", "messages", "messages with skips",
                                            "messages with a layer used again"};

/* Of the model's widths, stages 0 and S - 1 and 1 and S - 2 are joined, past the ranks between. */
static const struct dp_skip skips[] = {{.name = "far", .from = 0, .to = RANKS - 1},
                                       {.name = "near", .from = 1, .to = RANKS - 1}};

/* Ranks are visited in the order 0 1 0 2 0 3, so each waits for several others. */
static const int32_t reused[] = {0, 1, 0, 2, 0, 3}, one_each[] = {1, 1, 1, 1};

static struct dp_schedule *build(enum way way)
{
    struct dp_schedule_spec spec = {.kind = way == BY_LIST ? DP_SCHEDULE_DUALPIPE
                                                           : DP_SCHEDULE_ASYNC,
                                    .ranks = RANKS, .microbatches = MICROBATCHES,
                                    .mirror_reduce = true};
    OWNED(dp_partition) *p = NULL;
    struct dp_schedule *s = NULL;

    if (way == WITH_SKIPS) {
        spec.skips = skips;
        spec.skip_count = sizeof(skips) / sizeof(skips[0]);
    }
    if (way == WITH_REUSE)
        assert_int_equal(dp_partition_new(&(struct dp_partition_spec){.layers = reused,
                                                                      .layer_count = 6,
                                                                      .balance = one_each,
                                                                      .stages = RANKS},
                                          &p), 0);
    spec.partition = p;
    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    return s;
}

static void by_messages(void *user, int rank, struct dp_pipeline_config *config)
{
    config->execution = DP_EXECUTE_MESSAGES;
}

static void fault_job_init(struct fault_job *f, enum manner manner, enum way way)
{
    f->job = job_make(build(way));
    f->job.before = count_down;
    if (way != BY_LIST)
        f->job.edit = by_messages;
    if (way == WITH_SKIPS) {
        f->job.model.skips = skips;
        f->job.model.skip_count = sizeof(skips) / sizeof(skips[0]);
    }
    job_begin(&f->job);
    f->fault = mmap(NULL, sizeof(*f->fault), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                    0);
    f->fault->manner = manner;
}

/* The step after the fault. Uses of one layer have one gradient, see test_pipeline_driven.c. */
static bool step_is_good(const struct fault_job *f, enum way way)
{
    return way == WITH_REUSE || job_result_is_sequential(&f->job, 1);
}

static void fault_job_fini(struct fault_job *f)
{
    job_end(&f->job);
    munmap(f->fault, sizeof(*f->fault));
    dp_schedule_free((struct dp_schedule *)(uintptr_t)f->job.schedule);
}

static void expect_failures(const struct comm_kind *kind, enum way way)
{
    struct fault_job f;
    int killed;

    fault_job_init(&f, FAIL, way);
    f.fault->every = kind->processes ? 7 : 1;
    assert_int_equal(kind->run(kind, RANKS, deadline_ns, fail_everywhere, &f, &killed), 0);
    assert_true(step_is_good(&f, way));
    fault_job_fini(&f);
}

CASE(a_callback_that_fails_ends_the_step_everywhere_and_the_next_is_right)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int i = 0; i < WAYS; i++)
            expect_failures(kind, (enum way)i);
}

/* ---- many trials ----------------------------------------------------------------------------- */

/* Of a rank that dies or stalls at a callback, or at a message. */
struct trial {
    const struct comm_kind *kind;
    enum way way;
    int culprit, at;
    bool at_message;
    bool (*try)(const struct trial *t); /* false: the result was another one, which it says */
};

static struct {
    struct trial *items;
    int count;
} trials;

static void add_trial(const struct trial *t)
{
    trials.items = realloc(trials.items, (size_t)(trials.count + 1) * sizeof(*trials.items));
    assert_non_null(trials.items);
    trials.items[trials.count++] = *t;
}

static bool say_wrong(const struct trial *t, const char *what)
{
    printf("%s, %s: rank %d at %s %d: %s\n", t->kind->name, way_names[t->way], t->culprit,
           t->at_message ? "message" : "callback", t->at, what);
    fflush(stdout);
    return false;
}

static int try_part(void *arg, int job, int jobs)
{
    int failed = 0;

    for (int i = job; i < trials.count; i += jobs)
        failed += !trials.items[i].try(&trials.items[i]);
    return failed;
}

/* Those that were added, which are forgotten. */
static void try_all(void)
{
    if (getenv("DP_TEST_FULL"))
        print_message("%d trials, %d at a time\n", trials.count, job_count());
    const int failed = run_jobs(try_part, NULL);
    free(trials.items);
    memset(&trials, 0, sizeof(trials));
    assert_int_equal(failed, 0);
}

/* ---- death ---------------------------------------------------------------------------------- */

/* A rank whose own part had ended before, as a last stage's has, learns of it with its next call. One
 * that stalled while the others met has all that it needs to have met them, too. */
static int step_and_meet(struct dp_comm *comm, struct job_rank *r)
{
    int err = job_rank_step(r);

    for (int i = 0; i < 2 && !err; i++)
        err = dp_comm_barrier(comm);
    return err;
}

static int die_once(struct dp_comm *comm, void *arg)
{
    struct fault_job *f = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};
    const int culprit = f->fault->culprit;

    the_fault = f->fault;
    the_comm = comm;
    comm->tell_doing_ns = 0;
    calls_left = -1;
    CHECK(!job_rank_open(&r, &f->job, comm));
    arm(comm, f->fault);
    int err = step_and_meet(comm, &r);
    CHECK(err == DP_EABORTED || err == DP_ECOMM);
    CHECK(!expect_culprit(comm, culprit, DP_ECOMM));
    CHECK(f->fault->at_messages || !expect_last_op(comm, atomic_load(&f->fault->doing)));
    return 0;
}

static bool try_death(const struct trial *t)
{
    struct fault_job f;
    int killed;

    fault_job_init(&f, DIE, t->way);
    f.fault->every = t->at;
    f.fault->culprit = t->culprit;
    f.fault->at_messages = t->at_message;
    const int failed = t->kind->run(t->kind, RANKS, deadline_ns, die_once, &f, &killed);
    fault_job_fini(&f);
    if (failed != 1 || killed != 1)
        return say_wrong(t, killed == 1 ? "a rank that lives failed" : "expected it to be killed");
    return true;
}

/* At every sixth callback of a step, all with DP_TEST_FULL. One that messages drive has more. */
CASE(a_rank_that_dies_ends_the_step_of_the_others)
{
    const int every = getenv("DP_TEST_FULL") ? 1 : 6;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int at = 0; at < 22 && kind->processes; at += every)
            for (int i = at < 15 ? BY_LIST : BY_MESSAGES; i <= BY_MESSAGES; i++)
                add_trial(&(struct trial){kind, (enum way)i, 2, at, false, try_death});
    try_all();
}

/* Faults at every message of a step: a seeded sample of `wanted` of them, all with DP_TEST_FULL. */
static bool is_drawn(const int messages[RANKS], int wanted)
{
    static uint64_t drawn;
    float u;
    int all = 0;

    for (int rank = 0; rank < RANKS; rank++)
        all += messages[rank];
    dp_random_uniform(dp_random_key(13, 0, 0, 0), drawn++, &u, 1);
    return getenv("DP_TEST_FULL") || u * (float)all < (float)wanted;
}

static void count_all_messages(const struct comm_kind *kind, enum way way,
                               int messages[RANKS])
{
    struct fault_job f;
    int killed;

    fault_job_init(&f, FAIL, way);
    f.fault->at_messages = true;
    assert_int_equal(kind->run(kind, RANKS, deadline_ns, measure_messages, &f, &killed), 0);
    for (int rank = 0; rank < RANKS; rank++) {
        messages[rank] = atomic_load(&f.fault->calls[rank]);
        assert_true(messages[rank] >= MICROBATCHES);
    }
    fault_job_fini(&f);
}

/* A trial at each message that is drawn. */
static void add_trials(const struct comm_kind *kind, enum way way, int wanted,
                       bool (*try)(const struct trial *t))
{
    int messages[RANKS];

    count_all_messages(kind, way, messages);
    for (int culprit = 0; culprit < RANKS; culprit++)
        for (int at = 0; at < messages[culprit]; at++)
            if (is_drawn(messages, wanted))
                add_trial(&(struct trial){kind, way, culprit, at, true, try});
}

CASE(a_rank_that_dies_at_any_message_ends_the_step_of_the_others)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int i = 0; i < WAYS && kind->processes; i++)
            add_trials(kind, (enum way)i, i <= BY_MESSAGES ? 4 : 1, try_death);
    try_all();
}

/* ---- stall ---------------------------------------------------------------------------------- */

static int stall_once(struct dp_comm *comm, void *arg)
{
    struct fault_job *f = arg;
    struct dp_abort why;
    ENDED_BY(job_rank_close) struct job_rank r = {0};
    const int culprit = f->fault->culprit;

    the_fault = f->fault;
    the_comm = comm;
    comm->tell_doing_ns = 0;
    calls_left = -1;
    CHECK(!job_rank_open(&r, &f->job, comm));
    arm(comm, f->fault);
    int err = step_and_meet(comm, &r);
    comm->ops = real_ops;
    atomic_fetch_add(&f->fault->done, 1);
    /* One that stalls within a wait may find that its own deadline has passed. */
    CHECK(err == DP_EABORTED ||
          (err == DP_ETIMEDOUT && (f->fault->at_messages || dp_comm_rank(comm) != culprit)));
    CHECK(dp_comm_aborted(comm, &why) && why.error == DP_ETIMEDOUT);
    CHECK(why.rank == culprit);
    CHECK(f->fault->at_messages || !expect_last_op(comm, atomic_load(&f->fault->doing)));
    CHECK(!dp_comm_reset(comm));
    dp_pipeline_seek(r.pipe, 1);
    CHECK(!job_rank_step(&r));
    return 0;
}

static const char *stall_within(const struct trial *t, int64_t limit_ns)
{
    struct fault_job f;
    int killed;

    fault_job_init(&f, STALL, t->way);
    f.fault->every = t->at;
    f.fault->culprit = t->culprit;
    f.fault->at_messages = t->at_message;
    const int failed = t->kind->run(t->kind, RANKS, limit_ns, stall_once, &f, &killed);
    const bool good = failed || step_is_good(&f, t->way);
    fault_job_fini(&f);
    return failed ? "a rank failed" : good ? NULL : "the next step is not that of one process";
}

static bool try_stall(const struct trial *t)
{
    const char *wrong = stall_within(t, short_deadlines_ns[0]);

    if (wrong)
        wrong = stall_within(t, short_deadlines_ns[1]);
    if (wrong)
        return say_wrong(t, wrong);
    return true;
}

/* In the middle of a step, and where the others wait for it in a collective already, as its last
 * weight parts follow its last message; with DP_TEST_FULL, in every callback of a step that messages
 * drive. */
CASE(a_rank_that_stalls_is_named_by_all_that_wait)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        add_trial(&(struct trial){kind, BY_LIST, 1, 9, false, try_stall});
        add_trial(&(struct trial){kind, BY_MESSAGES, 1, 20, false, try_stall});
        for (int at = 0; at < 22 && getenv("DP_TEST_FULL"); at++)
            add_trial(&(struct trial){kind, BY_MESSAGES, 1, at, false, try_stall});
    }
    try_all();
}

/* Each takes the deadline. */
CASE(a_rank_that_stalls_at_any_message_ends_the_step_of_all)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int i = 0; i < WAYS; i++)
            add_trials(kind, (enum way)i, 1, try_stall);
    try_all();
}

/* ---- callbacks that break their contract ----------------------------------------------------- */

/* Wraps the model's callbacks and spoils what they leave, on stage 1 and micro-batch 1. */
struct spoiler {
    const char *what;
    int error; /* 0: the step succeeds */
    const char *sentence;
};
static _Thread_local const struct spoiler *spoiler;
static int64_t other_shape[2] = {1, 1};

static bool spoils(const struct dp_stage_call *call, const char *what)
{
    return call->stage == 1 && call->mb_global == 1 && !strcmp(what, spoiler->what);
}

static int spoiled_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                           DLTensor *out)
{
    int err = model_ops.forward(user, call, in, out);

    if (spoils(call, "output at an offset"))
        out[0].byte_offset = 4;
    if (spoils(call, "output of other shape"))
        out[0].shape = other_shape;
    if (spoils(call, "output with a shape written over"))
        out[0].shape[0]++;
    if (spoils(call, "output of other type"))
        out[1].dtype.bits = 64;
    return err;
}

static int spoiled_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                            DLTensor *gin, enum dp_backward_mode mode)
{
    int err = model_ops.backward(user, call, gout, gin, mode);

    if (spoils(call, "input gradient of other dimensions"))
        gin[2].ndim = 1;
    if (spoils(call, "input gradient missing"))
        gin[0].data = gin[2].data = NULL;
    return err;
}

static int spoiled_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                        const DLTensor *label, double *values, int32_t max, int32_t *count)
{
    int err = model_loss.loss(user, call, out, label, values, max, count);

    if (spoils(call, "fewer losses"))
        *count = 1;
    if (spoils(call, "too many losses"))
        *count = max + 1;
    if (spoils(call, "loss fails"))
        return -5;
    return err;
}

static int spoiled_loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                                 const DLTensor *label, double scale, DLTensor *gout)
{
    int err = model_loss.loss_backward(user, call, out, label, scale, gout);

    if (spoils(call, "loss_backward fails"))
        return -5;
    if (spoils(call, "loss gradient missing"))
        gout[0].data = gout[2].data = NULL;
    return err;
}

static const struct dp_stage_ops spoiled_ops = {.forward = spoiled_forward,
                                                .backward = spoiled_backward};
static const struct dp_loss_ops spoiled_loss_ops = {spoiled_loss, spoiled_loss_backward};

static void spoil_config(void *user, int rank, struct dp_pipeline_config *config)
{
    config->loss = &spoiled_loss_ops;
}

static const struct spoiler *expected; /* by the test's thread, before there are others */

static int run_spoiled(struct dp_comm *comm, void *arg)
{
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    spoiler = expected;
    CHECK(!job_rank_open(&r, arg, comm));
    int err = job_rank_step(&r);
    if (r.rank == 1 || !spoiler->error) {
        CHECK(err == spoiler->error);
        CHECK(!err || strstr(dp_last_error(), spoiler->sentence));
    } else {
        CHECK(err == DP_EABORTED);
        CHECK_SAYS(spoiler->sentence);
    }
    return 0;
}

static const struct spoiler spoilers[] = {
    {"output at an offset", DP_EMISMATCH, "stage left tensor 0 of its output"},
    {"output of other shape", DP_EMISMATCH, "float32 [1, 1], or changed its description, expected float32 "},
    {"output with a shape written over", DP_EMISMATCH, "[4, 4], or changed"},
    {"output of other type", DP_EMISMATCH, "tensor 1 of its output as int64"},
    {"input gradient of other dimensions", DP_EMISMATCH, "tensor 2 of its input gradient"},
    {"fewer losses", DP_EINVAL, "the loss gave 1 values, expected as for other micro-batches 2"},
    {"too many losses", DP_EINVAL, "the loss gave 3 values, expected as"},
    {"loss fails", DP_ECALLBACK, "callback loss failed with -5"},
    {"loss_backward fails", DP_ECALLBACK, "callback loss_backward failed with -5"},
    {"input gradient missing", 0, NULL},
    {"loss gradient missing", 0, NULL},
};

static void expect_spoiled(const struct spoiler *one, rank_fn run)
{
    OWNED(dp_schedule) *s = NULL;

    expected = one;
    assert_int_equal(
        dp_schedule_new(&(struct dp_schedule_spec){
                            .kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4}, &s), 0);
    ENDED_BY(job_end) struct job job = job_make(s);
    job.ops = &spoiled_ops;
    job.edit = spoil_config;
    job_begin(&job);
    if (comm_on_threads(2, deadline_ns, run, &job))
        fail_msg("%s", one->what);
}

CASE(a_callback_that_breaks_its_contract_is_named)
{
    for (size_t i = 0; i < sizeof(spoilers) / sizeof(*spoilers); i++)
        expect_spoiled(&spoilers[i], run_spoiled);
}

/* A loss gradient that is missing counts as one of zeros. */
RANKS_CASE(a_missing_gradient_counts_as_zeros, expect_spoiled(&spoilers[0], part))
{
    static const struct spoiler nothing = {"nothing", 0, NULL};
    static const struct spoiler loss_missing = {"loss gradient missing", 0, NULL};
    static const double scales[] = {1, 0, 1, 1};
    ENDED_BY(job_rank_close) struct job_rank r = {0};
    float grads[2][64];

    CHECK(!job_rank_open(&r, arg, comm));
    CHECK(model_grad_count(&r.job->model, r.rank) <= 64);
    for (int i = 0; i < 2; i++) {
        spoiler = i ? &nothing : &loss_missing;
        r.step.loss_scales = i && r.step.labels ? scales : NULL;
        dp_pipeline_seek(r.pipe, 0);
        CHECK(!job_rank_step(&r));
        memcpy(grads[i], r.stages[0].gw,
               model_grad_count(&r.job->model, r.rank) * sizeof(float));
    }
    CHECK(!memcmp(grads[0], grads[1], model_grad_count(&r.job->model, r.rank) * sizeof(float)));
    return 0;
}

int main(void)
{
    log_nothing();
    return run_cases(NULL, NULL);
}
