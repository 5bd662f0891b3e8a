/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines on a communicator that is stream-ordered and reaches device memory: the stand-in of
 * stream_comm.h, on the stand-in for CUDA, whose copies and kernels come late by a random time.
 * Streams wait for messages, no host does.
 */
#include "base/clock.h"
#include "unit/device/cuda_case.h"
#include "stream_comm.h"

enum { STEPS = 2 };
static const int64_t deadline_ns = 20 * DP_NS_PER_S;
static const struct fake_cuda *fake;
static struct stream_group *group;
static _Thread_local struct dp_comm *streams; /* of this rank */

/* ---- a rank ---------------------------------------------------------------------------------- */

static void use_streams(void *user, int rank, struct dp_pipeline_config *config)
{
    cuda_job_edit(user, rank, config);
    if (!stream_comm_open(group, config->comm, config->device, &streams))
        config->comm = streams;
}

static void close_rank(struct job_rank *r)
{
    job_rank_close(r);
    dp_comm_close(streams);
    cuda_job_leave();
}

static struct job make_job(const struct dp_schedule *s)
{
    struct job job = job_make(s);

    job.ops = &cuda_job_ops;
    job.edit = use_streams;
    return job;
}

static void run_job(struct job *job, rank_fn fn, uint64_t last_step)
{
    group = stream_group_new(job->schedule->ranks);
    case_run(job, deadline_ns, fn, last_step);
    stream_group_free(group);
}

/* ---- the same numbers ------------------------------------------------------------------------ */

static int train(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!cuda_job_open(&r, arg, comm));
    for (int i = 0; i < STEPS; i++)
        CHECK(!cuda_job_step(&r));
    close_rank(&r);
    return 0;
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 3, .microbatches = 7},
    {.kind = DP_SCHEDULE_ZB1P, .ranks = 3, .microbatches = 6},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 6, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10, .return_outputs = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 3, .microbatches = 7, .return_outputs = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .forward_only = true},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

static void train_by_streams(struct dp_schedule_spec spec, int batch_dim, bool no_split)
{
    OWNED(dp_schedule) *s = case_schedule(spec);
    struct job job = make_job(s);

    job.model.batch_dim = batch_dim;
    job.no_split = no_split;
    run_job(&job, train, STEPS - 1);
}

CASE_BETWEEN(streams_that_wait_for_messages_change_no_number, NULL, cuda_case_clean_up)
{
    for (int i = 0; i < SHAPES; i++)
        train_by_streams(shapes[i], 0, false);
}

CASE_BETWEEN(streams_that_are_late_at_random_change_no_number, NULL, cuda_case_clean_up)
{
    for (int i = 0; i < SHAPES; i++) {
        fake->shake((uint64_t)i, 80);
        train_by_streams(shapes[i], i % 2, i % 3 == 2);
    }
}

/* A sum with the mirror in many pieces, whose memory is used again. */
CASE_BETWEEN(sums_of_many_pieces_change_no_number, NULL, cuda_case_clean_up)
{
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 4, .mirror_reduce = true});
    struct job job = make_job(s);

    job.model.width = 700;
    job.model.rows = 1;
    fake->shake(5, 80);
    run_job(&job, train, STEPS - 1);
}

/* ---- no host waits --------------------------------------------------------------------------- */

/* In the second step nothing arrives at rank 0 before that rank has started all messages of the
 * step. */
static int train_held_up(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!cuda_job_open(&r, arg, comm));
    const long before = stream_comm_started(streams);
    CHECK(!cuda_job_step(&r));
    const long after = stream_comm_started(streams);
    CHECK(after > before);
    if (!dp_comm_rank(comm))
        stream_group_hold(group, 0, after + (after - before));
    CHECK(!cuda_job_step(&r));
    close_rank(&r);
    return 0;
}

CASE_BETWEEN(a_rank_goes_through_its_step_before_anything_arrives, NULL, cuda_case_clean_up)
{
    static const struct dp_schedule_spec specs[] = {
        {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 6},
        {.kind = DP_SCHEDULE_1F1B, .ranks = 3, .microbatches = 7},
        {.kind = DP_SCHEDULE_ZB1P, .ranks = 3, .microbatches = 6},
    };

    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        OWNED(dp_schedule) *s = case_schedule(specs[i]);
        struct job job = make_job(s);
        job.fixed_order = false; /* whose sums take place on the host */
        run_job(&job, train_held_up, 1);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

static int fail_then_train(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!cuda_job_open(&r, arg, comm));
    CHECK(!cuda_case_fail_then_train(&r, streams, fake));
    close_rank(&r);
    return 0;
}

CASE_BETWEEN(a_step_that_failed_leaves_no_stream_waiting, NULL, cuda_case_clean_up)
{
    OWNED(dp_schedule) *s = case_schedule((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true});

    for (int n = 1; n <= 12; n += 4) {
        struct job job = make_job(s);
        job.user = &n;
        fake->shake((uint64_t)n, 2000);
        run_job(&job, fail_then_train, 0);
    }
}

int main(void)
{
    fake = cuda_job_init();
    if (!fake)
        return 1;
    return run_cases(NULL, NULL);
}
