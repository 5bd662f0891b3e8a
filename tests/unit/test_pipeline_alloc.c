/* SPDX-License-Identifier: Apache-2.0
 *
 * A step allocates nothing: every function of the C library that gives or takes memory is ours here,
 * and counts while a step runs.
 */
#include "cmocka_all.h"

#include "comm_group.h"
#include "pipeline_job.h"
#include <dualpipe/trace.h>

#include <errno.h>
#include <stdlib.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS 1
#else
#define COUNTS 0 /* a sanitizer has its own */
#endif

static _Thread_local bool counting;
static _Thread_local int allocations;

#if COUNTS
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *ptr, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *ptr);

void *malloc(size_t bytes)
{
    allocations += counting;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations += counting;
    return __libc_calloc(count, bytes);
}

void *realloc(void *ptr, size_t bytes)
{
    allocations += counting;
    return __libc_realloc(ptr, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    allocations += counting;
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    allocations += counting;
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}

void free(void *ptr)
{
    allocations += counting;
    __libc_free(ptr);
}
#endif

static const int64_t deadline_ns = INT64_C(10000000000);
static _Thread_local struct dp_recorder *recorder;

static void set_recorder(void *user, int rank, struct dp_pipeline_config *config)
{
    (void)user;
    (void)rank;
    config->recorder = recorder;
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
    struct dp_schedule *s;
    struct job_result result;
    int killed;

    assert_int_equal(dp_schedule_new(&(struct dp_schedule_spec){.kind = schedule_kind,
                                                                .ranks = 4,
                                                                .microbatches = 12,
                                                                .return_outputs = true,
                                                                .mirror_reduce = true},
                                     &s),
                     0);
    struct job job = job_make(s);
    job_result_init(&result, &job);
    job.result = &result;
    job.edit = set_recorder;
    assert_int_equal(kind->run(kind, 4, deadline_ns, count_in_a_step, &job, &killed), 0);
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    if (!COUNTS)
        skip();
    counting = true; /* does the counter count? */
    free(malloc(1));
    counting = false;
    assert_int_equal(allocations, 2);
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int s = DP_SCHEDULE_GPIPE; s <= DP_SCHEDULE_DUALPIPEV; s++)
            expect_none(kind, (enum dp_schedule_kind)s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
