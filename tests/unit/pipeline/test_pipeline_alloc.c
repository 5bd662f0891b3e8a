/* SPDX-License-Identifier: Apache-2.0
 *
 * A step allocates nothing: the test replaces every function of the C library that allocates or
 * frees memory by one that counts while a step runs.
 */
#include "cmocka_all.h"
#include "schedule/internal.h"

#include "unit/comm/comm_group.h"
#include "pipeline_job.h"
#include <dualpipe/trace.h>

#include <stdatomic.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS 1
#else
#define COUNTS 0 /* a sanitizer has its own */
#endif

static _Thread_local bool counting;
static _Thread_local int allocations;
static _Thread_local int left = -1; /* allocations until one fails; -1: none does */
static _Thread_local int held;      /* taken and not yet given back, while counting */

#if COUNTS
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *ptr, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *ptr);

static bool refuse(void)
{
    allocations += counting;
    return left >= 0 && left-- == 0;
}

static void *hold(void *ptr)
{
    held += counting && ptr;
    return ptr;
}

void *malloc(size_t bytes)
{
    return refuse() ? NULL : hold(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    return refuse() ? NULL : hold(__libc_calloc(count, bytes));
}

void *realloc(void *ptr, size_t bytes)
{
    if (refuse())
        return NULL;
    held -= counting && ptr;
    return hold(__libc_realloc(ptr, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return refuse() ? NULL : hold(__libc_memalign(alignment, bytes));
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    *out = refuse() ? NULL : hold(__libc_memalign(alignment, bytes));
    return *out ? 0 : ENOMEM;
}

void free(void *ptr)
{
    allocations += counting;
    held -= counting && ptr;
    __libc_free(ptr);
}
#endif

static const int64_t deadline_ns = INT64_C(20000000000);
static _Thread_local struct dp_recorder *recorder;

static void set_recorder(void *user, int rank, struct dp_pipeline_config *config)
{
    config->recorder = recorder;
    if (config->schedule->kind == DP_SCHEDULE_ASYNC)
        config->execution = DP_EXECUTE_MESSAGES;
}

static int count_in_a_step(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!dp_recorder_new(1000, 2, &recorder));
    CHECK(!job_rank_open(&r, arg, comm));
    for (int i = 0; i < 3; i++) {
        allocations = 0;
        counting = true;
        int err = job_rank_step(&r);
        counting = false;
        CHECK(!err);
        CHECK(allocations == 0);
    }
    job_rank_close(&r);
    dp_recorder_free(recorder);
    return 0;
}

static void expect_none(const struct comm_kind *kind, enum dp_schedule_kind schedule_kind)
{
    OWNED(dp_schedule) *s = NULL;
    int killed;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = schedule_kind, .ranks = 4,
                                                                .microbatches = 12,
                                                                .return_outputs = true,
                                                                .mirror_reduce = true},
                                     &s),
                     0);
    const struct dp_skip skips[] = {{.name = "a", .from = 0, .to = s->stages - 2},
                                    {.name = "b", .from = 1, .to = s->stages - 1}};
    assert_int_equal(dp_schedule_add_skips(s, skips, 2), 0);
    ENDED_BY(job_end) struct job job = job_make(s);
    job.model.skips = skips;
    job.model.skip_count = 2;
    job_begin(&job);
    job.edit = set_recorder;
    assert_int_equal(kind->run(kind, 4, deadline_ns, count_in_a_step, &job, &killed), 0);
}

CASE(a_step_allocates_nothing)
{
    if (!COUNTS)
        skip_because("the sanitizers have an allocator of their own");
    counting = true; /* does the counter count? */
    free(malloc(1));
    counting = false;
    assert_int_equal(allocations, 2);
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        for (int s = DP_SCHEDULE_GPIPE; s <= DP_SCHEDULE_DUALPIPEV; s++)
            expect_none(kind, (enum dp_schedule_kind)s);
        expect_none(kind, DP_SCHEDULE_ASYNC); /* driven by messages */
    }
}

/* ---- without memory -------------------------------------------------------------------------- */

static struct dp_pipeline_config kept;

static void keep_config(void *user, int rank, struct dp_pipeline_config *config)
{
    static struct dp_stage stages[2];

    kept = *config;
    stages[0] = config->stages[0];
    stages[1] = config->stages[1];
    kept.stages = stages;
}

/* Let the first allocation fail, then the second, and so on until none does. */
static int fail_each_allocation(struct dp_pipeline **pipe)
{
    int err = DP_ENOMEM, tries = 0;

    for (; err == DP_ENOMEM; tries++) {
        held = 0;
        counting = true;
        left = tries;
        err = dp_pipeline_new(&kept, pipe);
        counting = false;
        left = -1;
        assert_true(err == DP_ENOMEM ? held == 0 : !err);
    }
    return tries;
}

CASE(a_pipeline_that_gets_no_memory_fails_and_leaks_none)
{
    OWNED(dp_schedule) *s = NULL;
    struct job_rank r;
    struct dp_pipeline *pipe = NULL;

    if (!COUNTS)
        skip_because("the sanitizers have an allocator of their own");
    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = DP_SCHEDULE_DUALPIPEV,
                                                                .ranks = 1,
                                                                .microbatches = 4},
                                     &s),
                     0);
    const struct dp_skip skip = {.name = "a", .from = 0, .to = 1};
    assert_int_equal(dp_schedule_add_skips(s, &skip, 1), 0);
    ENDED_BY(job_end) struct job job = job_make(s);
    job.model.skips = &skip;
    job.model.skip_count = 1;
    job_begin(&job);
    job.edit = keep_config;
    assert_int_equal(job_rank_open(&r, &job, NULL), 0);
    log_nothing();
    assert_true(fail_each_allocation(&pipe) > 20);
    dp_pipeline_free(pipe);
    job_rank_close(&r);
}

/* Each rank has what the other one needs, so that none can end before the other. */
static int move_with(struct dp_comm *comm, int allocations_left)
{
    float own = 1, other = 0;
    int64_t shape = 1;
    const bool first = dp_comm_rank(comm) == 0;
    const DLTensor tensor = {.device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1},
                             .shape = &shape};
    struct dp_named_tensor has = {first ? "a" : "b", tensor}, wants = {first ? "b" : "a", tensor};

    has.tensor.data = &own;
    wants.tensor.data = &other;
    left = allocations_left;
    const int err = dp_pipeline_move_state(comm, &has, 1, &wants, 1);
    left = -1;
    return err ? err : other == 1 ? 0 : DP_EINVAL;
}

static int run_out_while_moving(struct dp_comm *comm, void *arg)
{
    atomic_int *failures = arg;
    int err = -1;

    for (int tries = 0; err && tries < 100; tries++) {
        err = move_with(comm, dp_comm_rank(comm) ? tries : -1);
        CHECK(!err || err == (dp_comm_rank(comm) ? DP_ENOMEM : DP_EABORTED));
        atomic_fetch_add(failures, err == DP_ENOMEM);
        CHECK(!err || !dp_comm_reset(comm));
    }
    CHECK(!err);
    return 0;
}

CASE(a_rank_that_gets_no_memory_for_state_to_move_tells_the_other)
{
    atomic_int failures = 0;

    if (!COUNTS)
        skip_because("the sanitizers have an allocator of their own");
    log_nothing();
    assert_int_equal(comm_on_threads(2, deadline_ns, run_out_while_moving, &failures), 0);
    assert_true(atomic_load(&failures) >= 5);
}
