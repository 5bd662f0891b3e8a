/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline_wrong.h"

/* Under a sanitizer, too, an allocation that is too large returns NULL instead of ending the test.
 */
DP_PUBLIC const char *__asan_default_options(void);
DP_PUBLIC const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const struct dp_schedule_spec training = {
    .kind = DP_SCHEDULE_DUALPIPE, .ranks = RANKS, .microbatches = 4, .mirror_reduce = true};
const struct dp_schedule_spec one_stream = {
    .kind = DP_SCHEDULE_1F1B, .ranks = RANKS, .microbatches = 4};
const struct dp_schedule_spec inference = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = RANKS,
                                           .microbatches = 4, .forward_only = true,
                                           .return_outputs = true};

struct trial {
    const struct wrong *wrong;
    struct job *job;
};

void edit_config(void *user, int rank, struct dp_pipeline_config *config)
{
    const struct wrong *wrong = user;
    if (wrong->config && (wrong->rank == EVERYWHERE || wrong->rank == rank))
        wrong->config(rank, config);
}

static bool is_expected(const struct wrong *wrong, int rank, int err)
{
    bool here = wrong->rank == EVERYWHERE || wrong->rank == rank;
    const int expected = here ? wrong->error : wrong->elsewhere ? wrong->elsewhere : DP_EABORTED;
    bool right = err == expected &&
                 (!err || !wrong->sentence || strstr(dp_last_error(), wrong->sentence));

    if (!right)
        printf("%s: rank %d got %s, '%s'; expected %s, '%s'\n", wrong->what, rank, dp_strerror(err),
               dp_last_error(), dp_strerror(expected), wrong->sentence);
    return right;
}

static int try_it(struct dp_comm *comm, void *arg)
{
    const struct trial *trial = arg;
    const struct wrong *wrong = trial->wrong;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    int err = job_rank_open(&r, trial->job, comm);
    if (wrong->step && err != DP_EABORTED) { /* the other rank may have gone ahead and failed */
        CHECK(!err);
        if (wrong->rank == EVERYWHERE || wrong->rank == r.rank)
            wrong->step(&r);
        err = job_rank_step(&r);
    }
    CHECK(is_expected(wrong, r.rank, err));
    return 0;
}

void expect_wrong(const struct wrong *wrong, struct dp_schedule_spec spec)
{
    OWNED(dp_schedule) *s = case_schedule(spec);
    ENDED_BY(job_end) struct job job = job_make(s);
    struct trial trial = {wrong, &job};
    job_begin(&job);
    job.edit = edit_config;
    job.user = (void *)(uintptr_t)wrong;
    if (comm_on_threads(spec.ranks, WRONG_DEADLINE_NS, try_it, &trial))
        fail_msg("%s", wrong->what);
}

void expect_all_wrong(const struct wrong *wrong, size_t count, struct dp_schedule_spec spec)
{
    for (size_t i = 0; i < count; i++)
        expect_wrong(&wrong[i], spec);
}

