/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_revoke.c - a rank of a surviving group that ends what a communicator is used for; each
 * case runs over every communicator.
 */
#include "cmocka_all.h"
#include "comm/internal.h"
#include "comm_cases.h"

#include "base/clock.h"
#include "comm/comm_core.h"
#include "comm/comm_ops.h"
#include "survival/survival.h"

static const int64_t LONG_NS = 20 * DP_NS_PER_S;
static const DLDataType float32 = {kDLFloat, 32, 1};

/* Run it on every kind; `deaths` of the ranks die. */
static void on_surviving_kinds(int size, int deaths, rank_fn fn, void *arg)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        const int expected = kind->processes ? deaths : 0;
        int killed, failed = kind->run(kind, size, LONG_NS, fn, arg, &killed);
        if (failed != expected || killed != expected)
            fail_msg("%s: %d of %d ranks failed, %d were killed, expected %d", kind->name, failed,
                     size, killed, expected);
    }
}

static int die(struct dp_comm *comm)
{
    if (strcmp(dp_comm_name(comm), "threads"))
        raise(SIGKILL);
    dp_comm_threads_die(comm);
    return 0;
}

/* Over MPI a group does not survive, and the case ends here. */
#define BEGIN(comm)                                                                                \
    do {                                                                                           \
        const int err_ = dp_comm_survive(comm);                                                    \
        if (err_ == DP_EUNSUPPORTED)                                                               \
            return 0;                                                                              \
        CHECK(!err_);                                                                              \
    } while (0)

static int expect_revoked(struct dp_comm *comm, int culprit, int error, const char *text)
{
    struct dp_request req;
    struct dp_abort why;
    char byte = 0;

    CHECK(dp_comm_get(comm, DP_COMM_REVOKED));
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == culprit && why.error == error && strstr(why.text, text));
    const int next = (dp_comm_rank(comm) + 1) % dp_comm_size(comm);
    CHECK(dp_comm_isend(comm, next, 0, 1, &byte, 1, &req) == DP_EABORTED);
    CHECK_SAYS(text);
    CHECK(dp_comm_irecv(comm, next, 0, 1, &byte, 1, &req) == DP_EABORTED);
    CHECK(dp_comm_irecv_any(comm, DP_ANY_SOURCE, 0, &byte, 1, &req) == DP_EABORTED);
    CHECK(dp_comm_progress(comm) == DP_EABORTED);
    CHECK(dp_comm_barrier(comm) == DP_EABORTED);
    CHECK(!dp_comm_revoke(comm, DP_EIO, "once more"));
    CHECK(dp_comm_aborted(comm, &why) && why.error == error);
    return 0;
}

/* The survivors are `size` ranks that can talk to each other. */
static int expect_survivors(struct dp_comm *comm, int size)
{
    struct dp_comm *survivors;

    CHECK(!dp_comm_shrink(comm, &survivors));
    CHECK(dp_comm_size(survivors) == size && !dp_comm_get(survivors, DP_COMM_REVOKED));
    CHECK(!dp_comm_aborted(survivors, NULL));
    CHECK(!dp_comm_barrier(survivors));
    dp_comm_close(survivors);
    return 0;
}

/* ---- what ends ------------------------------------------------------------------------------- */

enum { BIG = 3 << 20 };

/* Each rank has something of every sort in flight, with ranks that live. */
static int revoke_in_flight(struct dp_comm *comm, void *arg)
{
    const int culprit = *(const int *)arg, rank = dp_comm_rank(comm), size = dp_comm_size(comm);
    const int next = (rank + 1) % size, back = (rank + size - 1) % size;
    struct dp_request send, receive, any, sum, later, done;
    struct dp_comm *other;
    char *big = calloc(4, BIG);
    char got = 0;

    CHECK(big);
    const int survives = dp_comm_survive(comm);
    if (survives == DP_EUNSUPPORTED) {
        free(big);
        return 0;
    }
    CHECK(!survives && dp_comm_survives(comm));
    CHECK(!dp_comm_split(comm, 0, 0, &other));
    CHECK(!dp_comm_isend(comm, next, 1, 1, "x", 1, &done));
    CHECK(!blocking_receive(comm, back, 1, 1, &got, 1));
    CHECK(!dp_comm_wait(comm, &done, next));
    CHECK(!dp_comm_isend(comm, next, 0, 1, big, BIG, &send));
    CHECK(!dp_comm_irecv(comm, back, 1, 1, big + BIG, BIG, &receive));
    CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, 2, big + 2 * BIG, BIG, &any));
    if (rank != culprit) {
        CHECK(!dp_comm_iallreduce(comm, big + 3 * BIG, big + 3 * BIG, BIG / 4, float32,
                                  DP_REDUCE_SUM, &sum));
        CHECK(!dp_comm_iallgather(comm, NULL, NULL, 0, &later));
    }
    const int64_t start = dp_now_ns();
    CHECK(!dp_comm_barrier(other));
    if (rank == culprit)
        CHECK(!dp_comm_revoke(comm, DP_ECALLBACK, "the forward of stage 3 failed"));
    CHECK_ERROR(dp_comm_wait(comm, &receive, back), DP_EABORTED, "because of rank");
    const int sent = dp_comm_wait(comm, &send, next);
    CHECK(!sent || sent == DP_EABORTED); /* the system may have taken all of it */
    CHECK(dp_comm_wait(comm, &any, -1) == DP_EABORTED);
    if (rank != culprit) {
        CHECK(dp_comm_wait(comm, &later, -1) == DP_EABORTED);
        CHECK(dp_comm_wait(comm, &sum, -1) == DP_EABORTED);
    }
    CHECK(!dp_comm_test(comm, &done));
    CHECK(dp_now_ns() - start < LONG_NS / 2); /* not at the deadline */
    free(big); /* the caller's again */
    CHECK(!expect_revoked(comm, culprit, DP_ECALLBACK, "the forward of stage 3 failed"));
    CHECK(!dp_comm_get(other, DP_COMM_REVOKED) && !dp_comm_barrier(other));
    CHECK(!expect_survivors(comm, size));
    dp_comm_close(other);
    return 0;
}

CASE(a_revoke_by_any_rank_ends_all_requests_of_the_communicator_on_all)
{
    for (int culprit = 0; culprit < 5; culprit += 2)
        on_surviving_kinds(5, 0, revoke_in_flight, &culprit);
}

enum { LAST_NOTE = 4711 };

static bool is_neighbor(const struct dp_comm *comm, int a, int b)
{
    const int size = dp_comm_size(comm), ahead = (b - a + size) % size;

    return ahead && (ahead <= 2 || ahead >= size - 2);
}

/* The neighbors of `rank` say when they have its note. */
static int expect_told(struct dp_comm *comm, int rank)
{
    const int64_t until_ns = dp_now_ns() + LONG_NS;
    struct dp_request sent;
    char byte = 0;

    if (dp_comm_rank(comm) != rank && !is_neighbor(comm, dp_comm_rank(comm), rank))
        return 0;
    if (dp_comm_rank(comm) != rank) {
        while (dp_comm_last_note(comm, rank) != LAST_NOTE && dp_now_ns() < until_ns)
            CHECK(!dp_comm_progress(comm));
        CHECK(!dp_comm_isend(comm, rank, 0, 2, &byte, 1, &sent));
        return dp_comm_wait(comm, &sent, rank);
    }
    for (int peer = 0; peer < dp_comm_size(comm); peer++)
        CHECK(!is_neighbor(comm, rank, peer) || !blocking_receive(comm, peer, 0, 2, &byte, 1));
    return 0;
}

/* Rank 0 sees the death and gives its step up; rank 2 waits for rank 1, which waits for rank 0. All
 * learn what rank 3 did last. */
RANKS_CASE(all_learn_of_a_death_that_one_has_revoked_for, on_surviving_kinds(4, 1, part, NULL))
{
    const int rank = dp_comm_rank(comm);
    struct dp_abort why;
    char byte = 0;

    comm->tell_doing_ns = 0;
    BEGIN(comm);
    if (rank == 3)
        dp_comm_note(comm, LAST_NOTE);
    CHECK(!expect_told(comm, 3));
    if (rank == 3)
        return die(comm);
    const int err = blocking_receive(comm, rank ? rank - 1 : 3, 0, 1, &byte, 1);
    CHECK(err == (rank ? DP_EABORTED : DP_ECOMM));
    if (!rank)
        CHECK(!dp_comm_revoke(comm, err, dp_last_error()));
    CHECK(!expect_revoked(comm, 3, DP_ECOMM, "rank 3"));
    CHECK(!expect_survivors(comm, 3));
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 3 && why.doing == LAST_NOTE);
    CHECK(dp_comm_last_note(comm, 3) == LAST_NOTE && !dp_comm_last_note(comm, rank));
    return 0;
}

/* Ranks 0 and 6 are no neighbors of rank 3. */
RANKS_CASE(all_that_agree_know_what_a_dead_rank_did_last, on_surviving_kinds(7, 1, part, NULL))
{
    struct dp_comm *survivors;
    bool alive[7];

    comm->tell_doing_ns = 0;
    BEGIN(comm);
    if (dp_comm_rank(comm) == 3)
        dp_comm_note(comm, LAST_NOTE);
    CHECK(!expect_told(comm, 3));
    if (dp_comm_rank(comm) == 3)
        return die(comm);
    do
        CHECK(!dp_comm_agree_alive(comm, alive));
    while (alive[3]);
    CHECK(dp_comm_last_note(comm, 3) == LAST_NOTE);
    CHECK(!dp_comm_shrink(comm, &survivors));
    CHECK(dp_comm_last_note(comm, 3) == LAST_NOTE && !dp_comm_last_note(survivors, 3));
    CHECK(!dp_comm_barrier(survivors));
    dp_comm_close(survivors);
    return 0;
}

/* ---- which communicator ---------------------------------------------------------------------- */

/* Those of one split are told apart, though they use the same lanes. */
RANKS_CASE(a_revoke_ends_no_other_communicator_of_the_split, on_surviving_kinds(4, 0, part, NULL))
{
    const int rank = dp_comm_rank(comm);
    struct dp_comm *part;
    char byte = 0;

    BEGIN(comm);
    CHECK(!dp_comm_split(comm, rank % 2, 0, &part));
    CHECK(!dp_comm_barrier(comm));
    if (rank == 3)
        CHECK(!dp_comm_revoke(part, DP_EIO, "a disk is full"));
    if (rank == 1)
        CHECK(blocking_receive(part, 1, 0, 1, &byte, 1) == DP_EABORTED);
    if (rank % 2)
        CHECK(!expect_revoked(part, 1, DP_EIO, "a disk is full"));
    CHECK(!dp_comm_barrier(comm));
    if (rank % 2 == 0)
        CHECK(!dp_comm_get(part, DP_COMM_REVOKED) && !dp_comm_barrier(part));
    CHECK(!expect_survivors(part, 2));
    dp_comm_close(part);
    return 0;
}

/* The news may come before the rank has made the communicator that it is about. */
RANKS_CASE(a_communicator_may_be_revoked_before_all_have_made_it,
           on_surviving_kinds(4, 0, part, NULL))
{
    struct dp_comm *at = comm, *next;

    BEGIN(comm);
    for (int i = 0; i < 10; i++) {
        CHECK(!dp_comm_shrink(at, &next));
        if (at != comm)
            dp_comm_close(at);
        at = next;
        if (dp_comm_rank(at) == i % dp_comm_size(at))
            CHECK(!dp_comm_revoke(at, DP_EIO, "at once"));
        CHECK(dp_comm_barrier(at) == DP_EABORTED);
        CHECK(!expect_revoked(at, i % dp_comm_size(at), DP_EIO, "at once"));
    }
    CHECK(!dp_comm_get(comm, DP_COMM_REVOKED) && !dp_comm_barrier(comm));
    dp_comm_close(at);
    return 0;
}

/* ---- refusals -------------------------------------------------------------------------------- */

RANKS_CASE(only_a_group_that_survives_can_be_revoked, on_all_kinds(2, LONG_NS, part, NULL))
{
    CHECK(!dp_comm_survives(comm));
    CHECK(dp_comm_revoke(comm, DP_EIO, "no") == DP_EUNSUPPORTED);
    CHECK_SAYS(strcmp(dp_comm_name(comm), "mpi") ? "dp_comm_survive" : "transport mpi");
    CHECK(dp_comm_revoke(NULL, DP_EIO, "no") == DP_EINVAL);
    CHECK_ERROR(dp_comm_revoke(comm, 0, "no"), DP_EINVAL, "expected a comm and a negative error");
    CHECK(!dp_comm_get(comm, DP_COMM_REVOKED) && !dp_comm_aborted(comm, NULL));
    CHECK(!dp_comm_survives(NULL));
    return dp_comm_barrier(comm);
}
