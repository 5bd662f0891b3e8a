/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_progress.c - transfers that go on while a rank computes (dp_comm_progress_start).
 */
#include "cmocka_all.h"
#include "comm_group.h"

#include "base/clock.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

static const int64_t deadline_ns = 20 * DP_NS_PER_S;
enum { LARGE = 8 << 20, ROUNDS = 12 };

/* Seen by all ranks, threads or processes: how many things have been done so far. */
static atomic_int *milestone;

static void on_kinds(int size, rank_fn fn, bool processes_only)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed, failed;
        if (processes_only && !kind->processes)
            continue;
        milestone = mmap(NULL, sizeof(*milestone), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        failed = kind->run(kind, size, deadline_ns, fn, NULL, &killed);
        munmap(milestone, sizeof(*milestone));
        if (failed)
            fail_msg("%s: %d of %d ranks failed", kind->name, failed, size);
    }
}

static void on_all_kinds(int size, rank_fn fn)
{
    on_kinds(size, fn, false);
}

/* "Compute", without a call, until the other rank has come that far. */
static bool compute_until(int reached)
{
    int64_t until_ns = dp_now_ns() + deadline_ns;

    while (atomic_load(milestone) < reached && dp_now_ns() < until_ns)
        sched_yield();
    return atomic_load(milestone) >= reached;
}

static void fill(unsigned char *buf, size_t len, size_t seed)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (unsigned char)(seed + i * 7 + (i >> 8) * 13);
}

static bool is_filled(const unsigned char *buf, size_t len, size_t seed)
{
    for (size_t i = 0; i < len; i++)
        if (buf[i] != (unsigned char)(seed + i * 7 + (i >> 8) * 13))
            return false;
    return true;
}

/* ---- one of the two is away ------------------------------------------------------------------ */

static int send_and_go(struct dp_comm *comm, unsigned char *buf)
{
    struct dp_request req;

    fill(buf, LARGE, 1);
    CHECK(!dp_comm_isend(comm, 1, DP_CHANNEL_ACTIVATION, 1, buf, LARGE, &req));
    dp_comm_progress_start(comm);
    CHECK(compute_until(1)); /* rank 1 has received it all */
    CHECK(!dp_comm_wait(comm, &req, 1));
    fill(buf, LARGE, 2);
    CHECK(!dp_comm_isend(comm, 1, DP_CHANNEL_ACTIVATION, 2, buf, LARGE, &req));
    CHECK(!dp_comm_wait(comm, &req, 1)); /* rank 1 is away */
    atomic_store(milestone, 2);
    return 0;
}

static int receive_and_go(struct dp_comm *comm, unsigned char *buf)
{
    struct dp_request req;

    CHECK(!dp_comm_irecv(comm, 0, DP_CHANNEL_ACTIVATION, 1, buf, LARGE, &req));
    CHECK(!dp_comm_wait(comm, &req, 0));
    CHECK(is_filled(buf, LARGE, 1));
    CHECK(!dp_comm_irecv(comm, 0, DP_CHANNEL_ACTIVATION, 2, buf, LARGE, &req));
    atomic_store(milestone, 1);
    dp_comm_progress_start(comm);
    CHECK(compute_until(2)); /* rank 0 has got rid of it all */
    CHECK(!dp_comm_wait(comm, &req, 0));
    CHECK(is_filled(buf, LARGE, 2));
    return 0;
}

RANKS_CASE(a_large_message_needs_only_one_of_its_ranks, on_all_kinds(2, part))
{
    unsigned char *buf = malloc(LARGE);

    CHECK(buf);
    int failed = dp_comm_rank(comm) ? receive_and_go(comm, buf) : send_and_go(comm, buf);
    free(buf);
    return failed;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static float value_of(size_t i, int rank)
{
    return (float)(i % 1000 + (size_t)rank);
}

static bool is_summed(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] != value_of(i, 0) + value_of(i, 1))
            return false;
    return true;
}

/* Rank 0 starts the sum, and makes no call until rank 1 has all of it. */
static int sum_and_go(struct dp_comm *comm, void *arg)
{
    static const DLDataType f32 = {kDLFloat, 32, 1};
    const int rank = dp_comm_rank(comm);
    const size_t count = LARGE / sizeof(float) / 4;
    FREED float *values = malloc(count * sizeof(*values));
    struct dp_request req;

    CHECK(values);
    CHECK(!dp_comm_barrier(comm)); /* connected */
    for (size_t i = 0; i < count; i++)
        values[i] = value_of(i, rank);
    CHECK(!dp_comm_iallreduce(comm, values, values, count, f32, DP_REDUCE_SUM, &req));
    if (!rank) {
        dp_comm_progress_start(comm);
        CHECK(compute_until(1));
    }
    CHECK(!dp_comm_wait(comm, &req, -1));
    CHECK(is_summed(values, count));
    atomic_store(milestone, 1);
    return 0;
}

/* Of processes: a thread's collectives go on in its own calls only. */
CASE(a_collective_goes_on_while_a_rank_computes)
{
    on_kinds(2, sum_and_go, true);
}

/* ---- both are away, again and again ---------------------------------------------------------- */

static size_t length_of(int round)
{
    return (size_t)round * 250000;
}

RANKS_CASE(going_away_and_coming_back_disturbs_no_message, on_all_kinds(2, part))
{
    unsigned char *in = malloc(LARGE), *out = malloc(LARGE);
    int peer = 1 - dp_comm_rank(comm);

    CHECK(in && out);
    for (int round = 0; round < ROUNDS; round++) {
        size_t len = length_of(round), seed = (size_t)round + (size_t)dp_comm_rank(comm);
        struct dp_request send, recv;
        int err = DP_EAGAIN;
        fill(out, len, seed);
        CHECK(!dp_comm_irecv(comm, peer, DP_CHANNEL_GRADIENT, (uint64_t)round, in, len, &recv));
        CHECK(!dp_comm_isend(comm, peer, DP_CHANNEL_GRADIENT, (uint64_t)round, out, len, &send));
        for (int i = 0; err == DP_EAGAIN; i++) {
            dp_comm_progress_start(comm);
            for (int k = 0; k < i % 5; k++)
                sched_yield();
            err = dp_comm_test(comm, &recv);
            if (i > 1000)
                err = dp_comm_wait(comm, &recv, peer);
        }
        CHECK(!err);
        dp_comm_progress_start(comm);
        dp_comm_progress_start(comm); /* twice is once */
        CHECK(is_filled(in, len, (size_t)round + (size_t)peer));
        CHECK(!dp_comm_wait(comm, &send, peer));
    }
    dp_comm_progress_start(comm);
    CHECK(!dp_comm_barrier(comm));
    free(in);
    free(out);
    return 0;
}

/* ---- away when all ends ---------------------------------------------------------------------- */

RANKS_CASE(an_abort_a_reset_and_an_end_reach_a_rank_that_computes, on_all_kinds(3, part))
{
    static const unsigned char buf[LARGE]; /* is still being sent when the comm is closed */
    static _Thread_local struct dp_request req;
    struct dp_abort why;

    int next = (dp_comm_rank(comm) + 1) % 3;
    for (int i = 0; i < 3; i++) {
        int err = dp_comm_isend(comm, next, DP_CHANNEL_ACTIVATION, 1, buf, LARGE, &req);
        dp_comm_progress_start(comm);
        if (dp_comm_rank(comm) == i)
            CHECK(!dp_comm_abort(comm, DP_EIO, "enough"));
        CHECK((err ? err : dp_comm_wait(comm, &req, next)) == DP_EABORTED);
        CHECK(dp_comm_aborted(comm, &why) && why.rank == i);
        CHECK(!dp_comm_reset(comm));
    }
    CHECK(!dp_comm_isend(comm, next, DP_CHANNEL_ACTIVATION, 1, buf, LARGE, &req));
    CHECK(!dp_comm_barrier(comm));
    dp_comm_progress_start(comm); /* and closes its communicator in that state */
    return 0;
}

RUN_QUIET_CASES(NULL, NULL)
