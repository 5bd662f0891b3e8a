/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm.c - messages and collectives of every communicator; each case runs over all of them.
 */
#include "cmocka_all.h"
#include "comm/internal.h"
#include "comm_cases.h"
#include "unit/base/failing_memory.h"

#include "base/clock.h"

#include <dualpipe/survival.h>

static const int64_t LONG_NS = 20 * DP_NS_PER_S;

/* ---- messages ------------------------------------------------------------------------------ */

static void fill(unsigned char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (unsigned char)(seed + i * 7 + (i >> 8) * 13);
}

static bool is_filled(const unsigned char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        if (buf[i] != (unsigned char)(seed + i * 7 + (i >> 8) * 13))
            return false;
    return true;
}

static int exchange_of_size(struct dp_comm *comm, size_t len)
{
    unsigned char *out = case_alloc(len), *in = case_alloc(len);
    const int peer = !dp_comm_rank(comm);
    struct dp_request send, receive;

    CHECK(out && in);
    fill(out, len, (unsigned)dp_comm_rank(comm));
    CHECK(!dp_comm_irecv(comm, peer, DP_CHANNEL_ACTIVATION, len, in, len, &receive));
    CHECK(!dp_comm_isend(comm, peer, DP_CHANNEL_ACTIVATION, len, out, len, &send));
    CHECK(!dp_comm_wait(comm, &receive, peer));
    CHECK(!dp_comm_wait(comm, &send, peer));
    CHECK(is_filled(in, len, (unsigned)peer));
    CHECK(in[len] == 0);
    case_free(in);
    case_free(out);
    return 0;
}

RANKS_CASE(messages_of_any_size_arrive_whole, on_all_kinds(2, LONG_NS, part, NULL))
{
    static const size_t sizes[] = {0, 1, 7, 8, 40, 41, 63, 64, 65, 1000, 1024, 1025, 4096, 8191,
                                   8192, 8193, 16384, 16385, 65536, 524288, 1048577, 4194303};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (exchange_of_size(comm, sizes[i]))
            return -1;
    return exchange_of_size(comm, (size_t)64 << 20);
}

enum { MANY = 200 };

/* Rank 0 sends numbers in order before rank 1 receives any, and the reverse. */
static int send_many(struct dp_comm *comm, void *arg)
{
    static const size_t len = 3000;
    const bool receive_first = *(const bool *)arg;
    struct dp_request *reqs = calloc(MANY, sizeof(*reqs));
    unsigned char *bufs = case_alloc(MANY * len);

    CHECK(reqs && bufs);
    if ((dp_comm_rank(comm) == 1) != receive_first)
        CHECK(!dp_comm_barrier(comm));
    for (unsigned i = 0; i < MANY; i++) {
        unsigned char *buf = bufs + i * len;
        fill(buf, len, dp_comm_rank(comm) ? 99 : i);
        if (dp_comm_rank(comm))
            CHECK(!dp_comm_irecv(comm, 0, DP_CHANNEL_GRADIENT, i, buf, len - i, &reqs[i]));
        else
            CHECK(!dp_comm_isend(comm, 1, DP_CHANNEL_GRADIENT, i, buf, len - i, &reqs[i]));
    }
    if ((dp_comm_rank(comm) == 1) == receive_first)
        CHECK(!dp_comm_barrier(comm));
    for (unsigned i = MANY; i-- > 0;)
        CHECK(!dp_comm_wait(comm, &reqs[i], !dp_comm_rank(comm)));
    for (unsigned i = 0; i < MANY; i++)
        CHECK(is_filled(bufs + i * len, len - i, i));
    case_free(bufs);
    free(reqs);
    return 0;
}

CASE(many_messages_in_flight_keep_their_order)
{
    bool receive_first = false;
    on_all_kinds(2, LONG_NS, send_many, &receive_first);
    receive_first = true;
    on_all_kinds(2, LONG_NS, send_many, &receive_first);
}

/* Activations are sent first and received last. */
static int cross_channels(struct dp_comm *comm, void *arg)
{
    static const size_t len = 3 << 20;
    const size_t sizes[] = {len, 100};
    unsigned char *buf = case_alloc(len);
    struct dp_request reqs[2][3];

    CHECK(buf);
    memset(buf, 1, len);
    for (int s = 0; s < 2 && dp_comm_rank(comm) == 0; s++)
        for (int channel = 0; channel < 3; channel++)
            CHECK(!dp_comm_isend(comm, 1, channel, 5, buf, sizes[s], &reqs[s][channel]));
    for (int s = 0; s < 2; s++)
        for (int channel = 2; channel >= 0; channel--) {
            if (dp_comm_rank(comm))
                CHECK(!blocking_receive(comm, 0, channel, 5, buf, sizes[s]));
            else
                CHECK(!dp_comm_wait(comm, &reqs[s][channel], 1));
        }
    case_free(buf);
    return 0;
}

CASE(a_message_never_waits_for_one_on_another_channel)
{
    on_all_kinds(2, LONG_NS, cross_channels, NULL);
}

/* Every rank to every rank, on all channels at once, several rounds. */
static int all_pairs(struct dp_comm *comm, void *arg)
{
    enum { RANKS = 5, ROUNDS = 20, LEN = 5000 };
    unsigned char(*in)[3][LEN] = case_alloc(RANKS * sizeof(*in));
    unsigned char(*out)[3][LEN] = case_alloc(RANKS * sizeof(*out));
    struct dp_request sends[RANKS][3], receives[RANKS][3];

    CHECK(in && out);
    for (int round = 0; round < ROUNDS; round++) {
        for (int peer = 0; peer < RANKS; peer++)
            for (int c = 0; c < 3 && peer != dp_comm_rank(comm); c++) {
                size_t len = (size_t)(LEN - round * 250 - 1);
                fill(out[peer][c], len, (unsigned)(dp_comm_rank(comm) * 10 + peer + c + round));
                CHECK(!dp_comm_isend(comm, peer, c, 1, out[peer][c], len, &sends[peer][c]));
                CHECK(!dp_comm_irecv(comm, peer, c, 1, in[peer][c], len, &receives[peer][c]));
            }
        for (int peer = 0; peer < RANKS; peer++)
            for (int c = 0; c < 3 && peer != dp_comm_rank(comm); c++) {
                size_t len = (size_t)(LEN - round * 250 - 1);
                CHECK(!dp_comm_wait(comm, &receives[peer][c], peer));
                CHECK(!dp_comm_wait(comm, &sends[peer][c], peer));
                CHECK(is_filled(in[peer][c], len,
                                (unsigned)(peer * 10 + dp_comm_rank(comm) + c + round)));
            }
    }
    case_free(out);
    case_free(in);
    return 0;
}

CASE(all_ranks_send_to_all_at_once)
{
    on_all_kinds(5, LONG_NS, all_pairs, NULL);
}

static int mismatch(struct dp_comm *comm, void *arg)
{
    char buf[64] = "x";

    if (dp_comm_rank(comm) == 0) {
        CHECK(!blocking_send(comm, 1, 0, 7, buf, 16));
        CHECK(!blocking_send(comm, 1, 0, 8, buf, 64));
        CHECK(!blocking_send(comm, 1, 0, 9, buf, 8));
        return 0;
    }
    CHECK(blocking_receive(comm, 0, 0, 6, buf, 16) == DP_EMISMATCH);
    CHECK_SAYS("expected tag 6 and 16 bytes, it has tag 7 and 16 bytes");
    CHECK(blocking_receive(comm, 0, 0, 8, buf, 24) == DP_EMISMATCH);
    CHECK_SAYS("expected tag 8 and 24 bytes, it has tag 8 and 64 bytes");
    CHECK(!blocking_receive(comm, 0, 0, 9, buf, 8));
    return 0;
}

CASE(another_tag_or_length_than_expected_is_named)
{
    on_kinds_with(NEEDS_TAGS, 2, LONG_NS, mismatch, NULL);
}

static int bad_arguments(struct dp_comm *comm, void *arg)
{
    struct dp_request req;
    char buf[8] = "";
    size_t offsets[4];
    int64_t ns;

    CHECK(dp_comm_isend(NULL, 0, 0, 0, buf, 8, &req) == DP_EINVAL);
    CHECK(dp_comm_isend(comm, !dp_comm_rank(comm), 0, 0, buf, 8, NULL) == DP_EINVAL);
    CHECK(dp_comm_isend(comm, dp_comm_rank(comm), 0, 0, buf, 8, &req) == DP_EINVAL);
    CHECK_SAYS("other than the own");
    CHECK(dp_comm_irecv(comm, 2, 0, 0, buf, 8, &req) == DP_EINVAL);
    CHECK_SAYS("peer 2: expected a rank from 0 to 1");
    CHECK(dp_comm_irecv(comm, !dp_comm_rank(comm), DP_CHANNELS, 0, buf, 8, &req) == DP_EINVAL);
    CHECK_SAYS("channel 5: expected 0 to 4");
    CHECK(dp_comm_isend(comm, !dp_comm_rank(comm), 1, 0, NULL, 8, &req) == DP_EINVAL);
    CHECK_SAYS("no buffer for a message of 8 bytes");
    CHECK(dp_comm_wait(comm, &req, -2) == DP_EINVAL);
    CHECK(dp_comm_wait(comm, NULL, 0) == DP_EINVAL);
    CHECK(dp_comm_test(comm, NULL) == DP_EINVAL);
    CHECK(dp_comm_abort(comm, 0, "no error") == DP_EINVAL);
    CHECK(dp_comm_broadcast(comm, buf, 8, 2) == DP_EINVAL);
    CHECK(dp_comm_allgather(comm, NULL, buf, 8) == DP_EINVAL);
    CHECK(dp_comm_allgatherv(comm, buf, 8, NULL, offsets) == DP_EINVAL);
    CHECK(dp_comm_agree(comm, NULL, 8) == DP_EINVAL);
    CHECK(dp_comm_clock_offset(comm, 0, &ns, &ns) == DP_EINVAL);
    CHECK(dp_comm_barrier(NULL) == DP_EINVAL);
    CHECK(dp_comm_reset(NULL) == DP_EINVAL);
    CHECK(!dp_comm_aborted(NULL, NULL));
    dp_comm_close(NULL);
    CHECK(!dp_comm_barrier(comm)); /* none of it did any harm */
    return 0;
}

CASE(bad_arguments_are_refused_in_a_sentence)
{
    struct dp_comm *comms[1];

    on_all_kinds(2, LONG_NS, bad_arguments, NULL);
    assert_int_equal(dp_comm_threads_new(0, comms), DP_EINVAL);
    assert_int_equal(dp_comm_threads_new(1, NULL), DP_EINVAL);
}

/* ---- memory -------------------------------------------------------------------------------- */

RANKS_CASE(messages_and_collectives_allocate_nothing, on_all_kinds(2, LONG_NS, part, NULL))
{
    const int peer = !dp_comm_rank(comm);
    enum { BYTES = 100000 };
    char *in = case_alloc(BYTES), *out = case_alloc(BYTES);
    struct dp_request send, receive;
    uint64_t all[2];

    CHECK(in && out);
    CHECK(allocations > 0 || dp_comm_size(comm) < 2 || !strcmp(dp_comm_name(comm), "threads"));
    /* The first message of a channel and the first collective allocate what later ones use. */
    CHECK(!exchange_of_size(comm, 8) && !dp_comm_barrier(comm));
    allocations = 0;
    for (size_t len = 0; len <= BYTES; len += 5000) {
        CHECK(!dp_comm_isend(comm, peer, 0, 1, out, len, &send));
        CHECK(!dp_comm_irecv(comm, peer, 0, 1, in, len, &receive));
        CHECK(!dp_comm_wait(comm, &receive, peer));
        CHECK(!dp_comm_wait(comm, &send, peer));
        CHECK(!dp_comm_agree(comm, "length", len));
        CHECK(!dp_comm_allgather(comm, &len, all, sizeof(len)));
    }
    CHECK(allocations == 0);
    case_free(out);
    case_free(in);
    return 0;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static int collectives(struct dp_comm *comm, void *arg)
{
    const int size = dp_comm_size(comm), rank = dp_comm_rank(comm);
    int64_t all[8], own = 100 + rank, root_value;
    size_t offsets[9];
    char *texts, text[8];

    CHECK(!dp_comm_barrier(comm));
    CHECK(!dp_comm_allgather(comm, &own, all, sizeof(own)));
    for (int i = 0; i < size; i++)
        CHECK(all[i] == 100 + i);

    memset(text, 'a' + rank, sizeof(text));
    CHECK(!dp_comm_allgatherv(comm, text, (size_t)rank, (void **)&texts, offsets));
    CHECK(offsets[size] == (size_t)(size * (size - 1) / 2));
    for (int i = 0; i < size; i++)
        for (size_t at = offsets[i]; at < offsets[i + 1]; at++)
            CHECK(texts[at] == 'a' + i);
    free(texts);

    for (int root = 0; root < size; root++) {
        root_value = rank == root ? root + 7 : -1;
        CHECK(!dp_comm_broadcast(comm, &root_value, sizeof(root_value), root));
        CHECK(root_value == root + 7);
    }
    CHECK(!dp_comm_agree(comm, "the answer", 42));
    return 0;
}

CASE(collectives_work_for_any_number_of_ranks)
{
    for (int size = 1; size <= 8; size++)
        on_all_kinds(size, LONG_NS, collectives, NULL);
}

static int disagree(struct dp_comm *comm, void *arg)
{
    CHECK(dp_comm_agree(comm, "micro-batches", dp_comm_rank(comm) >= 2 ? 10 : 8) == DP_EMISMATCH);
    CHECK_SAYS("micro-batches: all ranks must agree; rank 0 has 8, but rank 2 has 10, rank 3 has 10");
    const char *text = dp_comm_rank(comm) >= 2 ? "rate\t1\nsteps\t3\n" : "rate\t1\nsteps\t2\n";
    CHECK(dp_comm_agree_lines(comm, "options", text) == DP_EMISMATCH);
    CHECK_SAYS("steps: rank 2 has 3, rank 0 has 2");
    CHECK(!dp_comm_agree_lines(comm, "options", "rate\t1\n"));
    CHECK(dp_comm_agree_lines(comm, NULL, text) == DP_EINVAL);
    CHECK(!dp_comm_barrier(comm));
    return 0;
}

CASE(ranks_that_disagree_are_named_on_every_rank)
{
    on_all_kinds(4, LONG_NS, disagree, NULL);
}

RANKS_CASE(different_collectives_at_once_end_the_group, on_all_kinds(3, LONG_NS, part, NULL))
{
    int64_t value = 0;
    int err;

    err = dp_comm_rank(comm) ? dp_comm_broadcast(comm, &value, sizeof(value), 0)
                             : dp_comm_barrier(comm);
    while (!err)
        err = dp_comm_barrier(comm);
    CHECK(err == DP_EMISMATCH || err == DP_EABORTED);
    struct dp_abort why;
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.error == DP_EMISMATCH);
    return 0;
}

static int compare_clocks(struct dp_comm *comm, void *arg)
{
    int64_t offset_ns = -1, error_ns = -1;

    CHECK(!dp_comm_clock_offset(comm, 20, &offset_ns, &error_ns));
    /* The clocks are one and the same here. */
    CHECK(error_ns >= 0 && error_ns < LONG_NS);
    CHECK(offset_ns >= -error_ns && offset_ns <= error_ns);
    CHECK(dp_comm_rank(comm) || (offset_ns == 0 && error_ns == 0));
    return 0;
}

CASE(clocks_are_compared_within_the_stated_error)
{
    on_all_kinds(3, LONG_NS, compare_clocks, NULL);
}

/* The cases of groups that survive are in test_comm_survival.c, which MPI's ranks do not run. */
RANKS_CASE(only_groups_over_mpi_and_nccl_cannot_survive, on_all_kinds(3, LONG_NS, part, NULL))
{
    bool alive[8];

    if (!strcmp(dp_comm_name(comm), "mpi") || !strcmp(dp_comm_name(comm), "nccl")) {
        CHECK(dp_comm_survive(comm) == DP_EUNSUPPORTED);
        CHECK_SAYS("ends with the first process that dies");
        CHECK(dp_comm_agree_alive(comm, alive) == DP_EINVAL);
    } else {
        CHECK_ERROR(dp_comm_agree_alive(comm, alive), DP_EINVAL, "dp_comm_survive");
        CHECK(!dp_comm_survive(comm) && !dp_comm_survive(comm));
    }
    return dp_comm_barrier(comm);
}

/* ---- parts of a group ------------------------------------------------------------------------ */

CASE(all_of_it_holds_in_a_part_of_a_group)
{
    static bool receive_first[] = {false, true};
    static const struct comm_case cases[] = {
        {2, send_many, &receive_first[0]}, {2, send_many, &receive_first[1]},
        {2, cross_channels, NULL},         {5, all_pairs, NULL},
        {2, mismatch, NULL},               {3, collectives, NULL},
        {4, disagree, NULL},               {3, compare_clocks, NULL},
    };

    on_parts_of_all_kinds(LONG_NS, cases, sizeof(cases) / sizeof(*cases));
}
