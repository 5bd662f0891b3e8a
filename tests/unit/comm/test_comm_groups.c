/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_groups.c - communicators made out of others, receives from any rank, and what a wait
 * looks after besides its request, on every communicator.
 */
#include "cmocka_all.h"
#include "comm_cases.h"
#include "open_files.h"

#include "base/clock.h"
#include <dualpipe/random.h>

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

static const int64_t LONG_NS = 60 * DP_NS_PER_S;
static const DLDataType int64 = {kDLInt, 64, 1};

static int sum_of(struct dp_comm *comm, int64_t value, int64_t *sum)
{
    struct dp_request req;
    int err = dp_comm_iallreduce(comm, &value, sum, 1, int64, DP_REDUCE_SUM, &req);

    return err ? err : dp_comm_wait(comm, &req, -1);
}

/* ---- split and grid -------------------------------------------------------------------------- */

/* Even and odd ranks, from the last one down. */
static int split_by_parity(struct dp_comm *comm, void *arg)
{
    const int rank = dp_comm_rank(comm), size = dp_comm_size(comm);
    struct dp_comm *half, *none;
    int64_t sum, expected = 0;

    CHECK(!dp_comm_split(comm, rank % 2, -rank, &half));
    for (int r = rank % 2; r < size; r += 2)
        expected += r;
    CHECK(dp_comm_size(half) == (size + 1 - rank % 2) / 2);
    CHECK(dp_comm_rank(half) == (size - 1 - rank) / 2);
    CHECK(!strcmp(dp_comm_name(half), dp_comm_name(comm)));
    CHECK(!sum_of(half, rank, &sum) && sum == expected);
    CHECK(!dp_comm_split(comm, rank ? -1 : 3, 0, &none));
    CHECK(rank ? !none : dp_comm_size(none) == 1);
    CHECK(dp_comm_deadline(half) == dp_comm_deadline(comm));
    dp_comm_close(none);
    CHECK(!sum_of(half, 1, &sum) && sum == dp_comm_size(half));
    dp_comm_close(half);
    return !sum_of(comm, 1, &sum) && sum == size ? 0 : -1;
}

CASE(a_split_orders_ranks_by_key)
{
    for (int size = 1; size <= 5; size += 2)
        on_kinds_with(NEEDS_PARTS, size, LONG_NS, split_by_parity, NULL);
}

/* The same two ranks, the same channel: sent first to the group, received first from the parent. */
RANKS_CASE(messages_of_two_communicators_never_match,
           on_kinds_with(NEEDS_PARTS, 2, LONG_NS, part, NULL))
{
    const int peer = !dp_comm_rank(comm);
    struct dp_comm *group, *nested;
    struct dp_request reqs[6];
    int64_t out[3] = {10, 20, 30}, in[3] = {0};

    CHECK(!dp_comm_split(comm, 7, dp_comm_rank(comm), &group));
    CHECK(!dp_comm_split(group, 0, dp_comm_rank(comm), &nested));
    struct dp_comm *const all[3] = {nested, group, comm};
    for (int i = 0; i < 3; i++)
        CHECK(!dp_comm_isend(all[i], peer, 0, 1, &out[i], 8, &reqs[i]));
    for (int i = 2; i >= 0; i--)
        CHECK(!dp_comm_irecv(all[i], peer, 0, 1, &in[i], 8, &reqs[3 + i]));
    for (int i = 0; i < 3; i++) {
        CHECK(!dp_comm_wait(all[i], &reqs[i], peer));
        CHECK(!dp_comm_wait(all[i], &reqs[3 + i], peer));
        CHECK(in[i] == out[i]);
    }
    dp_comm_close(group);
    CHECK(!dp_comm_barrier(nested));
    dp_comm_close(nested);
    return 0;
}

RANKS_CASE(a_grid_has_a_communicator_for_each_axis,
           on_kinds_with(NEEDS_PARTS, 6, LONG_NS, part, NULL))
{
    const struct dp_comm_axis axes[] = {{"data", 2}, {"pipe", 0}};
    const struct dp_comm_axis twice[] = {{"data", 2}, {"data", 3}};
    const struct dp_comm_axis few[] = {{"data", 2}, {"pipe", 2}};
    const int rank = dp_comm_rank(comm);
    struct dp_comm *out[2];
    int64_t sum;

    CHECK(!dp_comm_grid(comm, axes, 2, out));
    CHECK(dp_comm_size(out[0]) == 2 && dp_comm_rank(out[0]) == rank / 3);
    CHECK(dp_comm_size(out[1]) == 3 && dp_comm_rank(out[1]) == rank % 3);
    CHECK(!sum_of(out[0], rank, &sum) && sum == rank % 3 + rank % 3 + 3);
    CHECK(!sum_of(out[1], rank, &sum) && sum == rank / 3 * 9 + 3);
    dp_comm_close(out[1]);
    dp_comm_close(out[0]);
    CHECK_ERROR(dp_comm_grid(comm, twice, 2, out), DP_EINVAL, "axis data is there twice");
    CHECK(dp_comm_grid(comm, few, 2, out) == DP_EINVAL);
    CHECK_SAYS("grid of 4 ranks: the communicator has 6");
    const struct dp_comm_axis turned[] = {{"data", rank == 4 ? 3 : 2}, {"pipe", 0}};
    CHECK(dp_comm_grid(comm, turned, 2, out) == DP_EMISMATCH);
    CHECK_SAYS("axis 0 of the grid: rank 4 has data of 3 ranks, rank 0 has data of 2 ranks");
    const struct dp_comm_axis more[] = {{"data", 0}, {"pipe", 1}};
    CHECK(dp_comm_grid(comm, more, rank == 5 ? 1 : 2, out) == DP_EMISMATCH);
    CHECK_SAYS("axes of the grid: rank 5 has 1, rank 0 has 2");
    return 0;
}

/* A failure in a group ends all of the family, and the culprit has its rank in each. */
RANKS_CASE(a_failure_in_a_group_ends_the_family, on_kinds_with(NEEDS_PARTS, 3, LONG_NS, part, NULL))
{
    struct dp_comm *group;
    struct dp_abort why;
    char byte;

    CHECK(!dp_comm_split(comm, 0, -dp_comm_rank(comm), &group));
    if (dp_comm_rank(comm) != 2) {
        const int err = blocking_send(comm, 2, 0, 0, "", 1);
        CHECK(!err || err == DP_EABORTED); /* it may be here already */
    }
    for (int r = 0; r < 2 && dp_comm_rank(comm) == 2; r++)
        CHECK(!blocking_receive(comm, r, 0, 0, &byte, 1));
    if (dp_comm_rank(comm) == 2) {
        CHECK(!dp_comm_abort(group, DP_EIO, "on purpose"));
    } else {
        CHECK(blocking_receive(group, 0, 0, 0, &byte, 1) == DP_EABORTED);
    }
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 2 && why.error == DP_EIO);
    CHECK(dp_comm_aborted(group, &why) && why.rank == 0);
    dp_comm_close(group);
    return 0;
}

/* ---- receives from any rank ------------------------------------------------------------------ */

enum { MESSAGES = 60, MOST = 90000 };

static size_t length_of(int sender, uint64_t index)
{
    static const size_t lens[] = {0, 8, 40, 1000, 5000, 66000, MOST};

    return lens[(index * 7 + (uint64_t)sender * 3) % 7];
}

static int send_in_any_rhythm(struct dp_comm *comm, int receiver, uint64_t seed)
{
    const int rank = dp_comm_rank(comm);
    unsigned char *buf = malloc(MOST);
    float pause[MESSAGES];

    CHECK(buf);
    memset(buf, rank, MOST);
    dp_random_uniform(dp_random_key(seed, (uint32_t)rank, 0, 0), 0, pause, MESSAGES);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        for (float turn = 0; turn < pause[i] * 20; turn++)
            sched_yield();
        CHECK(!blocking_send(comm, receiver, 0, i, buf, length_of(rank, i)));
    }
    free(buf);
    return 0;
}

/* Two receives are always pending. */
static int receive_from_any(struct dp_comm *comm)
{
    const int total = MESSAGES * (dp_comm_size(comm) - 1);
    unsigned char *bufs[2] = {malloc(MOST), malloc(MOST)};
    uint64_t next[16] = {0};
    struct dp_request reqs[2];
    struct dp_received got;

    CHECK(bufs[0] && bufs[1]);
    for (int i = 0; i < total + 2; i++) {
        if (i >= 2) {
            CHECK(!dp_comm_wait(comm, &reqs[i % 2], -1));
            dp_comm_received(comm, &reqs[i % 2], &got);
            CHECK(got.peer > 0 && got.peer < dp_comm_size(comm));
            CHECK(got.tag == next[got.peer]++);
            CHECK(got.len == length_of(got.peer, got.tag));
            for (size_t b = 0; b < got.len; b++)
                CHECK(bufs[i % 2][b] == (unsigned char)got.peer);
        }
        if (i < total)
            CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, 0, bufs[i % 2], MOST, &reqs[i % 2]));
    }
    for (int r = 1; r < dp_comm_size(comm); r++)
        CHECK(next[r] == MESSAGES);
    free(bufs[0]);
    free(bufs[1]);
    return 0;
}

static int any_order(struct dp_comm *comm, void *arg)
{
    const uint64_t seed = *(const uint64_t *)arg;
    struct dp_comm *group;

    /* In the group rank 0 is the last one of the world. */
    CHECK(!dp_comm_split(comm, 0, -dp_comm_rank(comm), &group));
    int err = dp_comm_rank(group) ? send_in_any_rhythm(group, 0, seed) : receive_from_any(group);
    if (!err)
        err = dp_comm_barrier(group);
    dp_comm_close(group);
    return err;
}

CASE(messages_of_any_rank_arrive_in_the_order_of_their_sender)
{
    for (uint64_t seed = 0; seed < 3; seed++)
        on_kinds_with(NEEDS_ANY, seed ? 2 + (int)seed : 2, LONG_NS, any_order, &seed);
}

RANKS_CASE(a_receive_from_any_returns_its_source, on_kinds_with(NEEDS_ANY, 2, LONG_NS, part, NULL))
{
    char buf[32] = "abcdefgh";
    struct dp_request any, one;
    struct dp_received got;

    if (dp_comm_rank(comm)) {
        CHECK(!blocking_send(comm, 0, 0, 5, buf, 8));
        CHECK(!blocking_send(comm, 0, 0, 6, buf, 32));
        CHECK(!blocking_send(comm, 0, 0, 7, buf, 3));
        CHECK(!dp_comm_barrier(comm));
        return blocking_send(comm, 0, 0, 8, buf, 16);
    }
    /* Any tag of a given rank. */
    CHECK(!dp_comm_irecv_any(comm, 1, 0, buf, 16, &any));
    CHECK(!dp_comm_wait(comm, &any, 1));
    dp_comm_received(comm, &any, &got);
    CHECK(got.peer == 1 && got.tag == 5 && got.len == 8);
    CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, 0, buf, 16, &any));
    CHECK_ERROR(dp_comm_wait(comm, &any, -1), DP_EMISMATCH, "expected at most 16 bytes, it has 32");
    CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, 0, buf, 16, &any));
    CHECK(!dp_comm_wait(comm, &any, -1));
    CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, 0, buf, 16, &any));
    CHECK(dp_comm_irecv(comm, 1, 0, 1, buf, 8, &one) == DP_EINVAL);
    CHECK_SAYS("while one from any rank is pending");
    CHECK(dp_comm_irecv_any(comm, 2, 0, buf, 16, &one) == DP_EINVAL);
    CHECK(!dp_comm_barrier(comm));
    return dp_comm_wait(comm, &any, -1);
}

/* ---- what a wait looks after ----------------------------------------------------------------- */

/* Rank 1 waits for three deadlines before the message comes. The deadline is set once it knows that
 * rank 0 is busy, and the message is sent before that is over: how fast either runs does not matter. */
RANKS_CASE(a_busy_rank_is_waited_for, on_all_kinds(2, LONG_NS, part, NULL))
{
    static const int64_t deadline_ns = 300 * DP_NS_PER_MS;
    char byte = 1;

    if (dp_comm_rank(comm)) {
        CHECK(!dp_comm_barrier(comm));
        dp_comm_set_deadline(comm, deadline_ns);
        return blocking_receive(comm, 0, 0, 0, &byte, 1);
    }
    CHECK(!dp_comm_busy(comm, LONG_NS));
    CHECK(!dp_comm_barrier(comm));
    for (const int64_t until_ns = dp_now_ns() + 3 * deadline_ns; dp_now_ns() < until_ns;)
        sched_yield();
    CHECK(!blocking_send(comm, 1, 0, 0, &byte, 1));
    return dp_comm_busy(comm, 0);
}

static int count_down(void *user)
{
    return --*(int *)user ? 0 : -4;
}

RANKS_CASE(a_poll_function_ends_a_wait, on_all_kinds(2, LONG_NS, part, NULL))
{
    struct dp_abort why;
    int left = 3;
    char byte;

    if (!dp_comm_rank(comm))
        dp_comm_set_poll(comm, count_down, &left);
    int err = blocking_receive(comm, !dp_comm_rank(comm), 0, 0, &byte, 1);
    CHECK(err == (dp_comm_rank(comm) ? DP_EABORTED : -4));
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 0 && why.error == -4);
    return 0;
}

/* ---- few connections ------------------------------------------------------------------------- */

/* Rank 1 answers what it has received; rank 0 waits for that before anything has come. */
static int ask_and_answer(struct dp_comm *comm, void *arg)
{
    const bool asks = !dp_comm_rank(comm);
    struct dp_request receive;
    char byte = 0;
    int any = 0, before, opened;

    for (int channel = 0; channel < 2; channel++) {
        CHECK(!dp_comm_barrier(comm));
        before = count_files();
        if (asks && channel)
            CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, channel, &any, sizeof(any),
                                     &receive));
        else if (asks)
            CHECK(!dp_comm_irecv(comm, 1, channel, 0, &any, sizeof(any), &receive));
        if (asks)
            CHECK(!blocking_send(comm, 1, channel, 0, &byte, 1));
        else
            CHECK(!blocking_receive(comm, 0, channel, 0, &byte, 1));
        any = 7;
        if (asks)
            CHECK(!dp_comm_wait(comm, &receive, 1) && any == 7);
        else
            CHECK(!blocking_send(comm, 0, channel, 0, &any, sizeof(any)));
        opened = count_files() - before;
        CHECK(!asks || opened == 1);
    }
    return dp_comm_barrier(comm);
}

CASE(an_answer_comes_by_the_connection_of_the_question)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed;
        if (!strcmp(kind->name, "tcp"))
            assert_int_equal(kind->run(kind, 2, LONG_NS, ask_and_answer, NULL, &killed), 0);
    }
}

/* ---- rank 0 leaves ----------------------------------------------------------------------------- */

/* Rank 1 does not come to the reset, and has not left either. */
static int interrupt_reset(struct dp_comm *comm, void *arg)
{
    atomic_bool *is_over = arg;
    int left = 3;

    CHECK(!dp_comm_abort(comm, DP_EIO, "once more"));
    while (dp_comm_rank(comm) && !atomic_load(is_over))
        sched_yield();
    if (dp_comm_rank(comm))
        return 0;
    dp_comm_set_poll(comm, count_down, &left);
    CHECK(dp_comm_reset(comm) == -4);
    CHECK_SAYS("interrupted");
    CHECK(dp_comm_barrier(comm) == DP_EABORTED);
    dp_comm_set_poll(comm, NULL, NULL);
    atomic_store(is_over, true);
    return 0;
}

CASE(a_poll_function_ends_a_reset)
{
    atomic_bool *is_over = mmap(NULL, sizeof(*is_over), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed;
        atomic_store(is_over, false);
        if (kind->shares_files) /* and memory */
            assert_int_equal(kind->run(kind, 2, LONG_NS, interrupt_reset, is_over, &killed), 0);
    }
    munmap(is_over, sizeof(*is_over));
}

/* Rank 0 is not in the part, and has closed its communicators when rank 1 aborts. */
RANKS_CASE(an_abort_in_a_part_is_heard_after_rank_0_has_left,
           on_kinds_with(NEEDS_END, 4, LONG_NS, part, NULL))
{
    const int rank = dp_comm_rank(comm);
    struct dp_comm *part;
    struct dp_abort why;
    char byte;

    CHECK(!dp_comm_split(comm, rank ? 1 : -1, 0, &part));
    if (!rank)
        return 0;
    CHECK_ERROR(blocking_receive(comm, 0, 0, 0, &byte, 1), DP_ECOMM, "rank 0 has left");
    const int err = dp_comm_barrier(part);
    CHECK(!err || (err == DP_EABORTED && rank > 1)); /* rank 1 may be ahead */
    if (rank == 1)
        CHECK(!dp_comm_abort(part, DP_EIO, "no paper"));
    else
        CHECK(blocking_receive(part, 0, 0, 0, &byte, 1) == DP_EABORTED);
    CHECK(dp_comm_aborted(part, &why));
    CHECK(why.rank == 0 && why.error == DP_EIO && !strcmp(why.text, "no paper"));
    dp_comm_close(part);
    return 0;
}

/* Of a length that no buffer holds, to a rank that has never used the channel. */
RANKS_CASE(a_long_send_to_a_rank_that_has_left_fails,
           on_kinds_with(NEEDS_END, 2, LONG_NS, part, NULL))
{
    enum { LONG = 4 << 20 };
    char *buf = calloc(1, LONG);
    int err = 0;

    CHECK(buf);
    if (dp_comm_rank(comm)) {
        err = blocking_send(comm, 0, 1, 0, buf, LONG);
        CHECK_ERROR(err, DP_ECOMM, "rank 0 has left");
    }
    free(buf);
    return 0;
}

/* ---- many ranks ------------------------------------------------------------------------------ */

/* Files are counted where a rank is a process: with threads those that others count by would be, too. */
static int pass_around(struct dp_comm *comm, void *arg)
{
    const struct comm_kind *kind = arg;
    const int size = dp_comm_size(comm), next = (dp_comm_rank(comm) + 1) % size;
    const int previous = (dp_comm_rank(comm) + size - 1) % size;
    struct dp_request send, receive;
    int out = dp_comm_rank(comm), in = -1;

    const int before = count_files();
    CHECK(!dp_comm_isend(comm, next, 0, 0, &out, sizeof(out), &send));
    CHECK(!dp_comm_irecv(comm, previous, 0, 0, &in, sizeof(in), &receive));
    CHECK(!dp_comm_wait(comm, &receive, previous));
    CHECK(!dp_comm_wait(comm, &send, next));
    CHECK(in == previous);
    const int opened = count_files() - before;
    CHECK(!dp_comm_barrier(comm));
    /* Some of ranks that are in the barrier already: 6 rounds for 64 ranks. */
    CHECK(!kind->processes || opened <= 20);
    return 0;
}

CASE(a_ring_of_many_ranks_opens_files_for_neighbours_only)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed;
        if (!kind->by_ring)
            assert_int_equal(
                kind->run(kind, 64, LONG_NS, pass_around, (void *)(uintptr_t)kind, &killed), 0);
    }
}
