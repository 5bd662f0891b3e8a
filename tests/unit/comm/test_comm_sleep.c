/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_sleep.c - a wait sleeps only on what has not come yet: what arrived during its last
 * poll would not wake it. Sleeps are counted, not timed.
 */
#include "cmocka_all.h"
#include "comm_group.h"

#include "base/clock.h"
#include "comm/comm_ops.h"
#include "wire/wire.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

static const int64_t deadline_ns = 20 * DP_NS_PER_S;
enum { MANY = 160 };

/* Seen by both ranks: the round whose receives are posted, and the one whose messages are on their
 * way. */
struct board {
    atomic_int posted, sent;
};
static struct board *board;

static bool wait_for_round(atomic_int *at, int round)
{
    const int64_t until_ns = dp_now_ns() + deadline_ns;

    while (atomic_load(at) < round && dp_now_ns() < until_ns)
        sched_yield();
    return atomic_load(at) >= round;
}

/* ---- a communicator that counts its sleeps --------------------------------------------------- */

static const struct dp_comm_ops *real_ops;
static struct dp_comm_ops counting_ops;
static const struct dp_request *awaited;
static int sleeps_in_vain;

static void count_sleep(struct dp_comm *comm, int64_t until_ns)
{
    if (real_ops->is_done(comm, awaited))
        sleeps_in_vain++;
    else
        real_ops->sleep(comm, until_ns);
}

static void look_at_sleeps(struct dp_comm *comm)
{
    real_ops = comm->ops;
    counting_ops = *real_ops;
    counting_ops.sleep = count_sleep;
    comm->ops = &counting_ops;
    dp_comm_set(comm, DP_COMM_SPIN, 0);
}

/* ---- the ranks ------------------------------------------------------------------------------ */

/* All messages have been sent before the first look at them; the last one is waited for. */
static int receive_round(struct dp_comm *comm, int count)
{
    static uint64_t words[MANY];
    static struct dp_request reqs[MANY];

    for (int i = 0; i < count; i++)
        CHECK(!dp_comm_irecv(comm, 1, DP_CHANNEL_ACTIVATION, (uint64_t)i, &words[i],
                             sizeof(words[i]), &reqs[i]));
    atomic_store(&board->posted, count);
    CHECK(wait_for_round(&board->sent, count));
    awaited = &reqs[count - 1];
    CHECK(!dp_comm_wait(comm, &reqs[count - 1], 1));
    for (int i = 0; i < count; i++)
        CHECK(!dp_comm_test(comm, &reqs[i]) && words[i] == (uint64_t)(count + i));
    return 0;
}

static int send_round(struct dp_comm *comm, int count)
{
    static uint64_t words[MANY];
    static struct dp_request reqs[MANY];

    CHECK(wait_for_round(&board->posted, count));
    for (int i = 0; i < count; i++) {
        words[i] = (uint64_t)(count + i);
        CHECK(!dp_comm_isend(comm, 0, DP_CHANNEL_ACTIVATION, (uint64_t)i, &words[i],
                             sizeof(words[i]), &reqs[i]));
    }
    atomic_store(&board->sent, count);
    for (int i = 0; i < count; i++)
        CHECK(!dp_comm_wait(comm, &reqs[i], 0));
    return 0;
}

static int exchange_rounds(struct dp_comm *comm, void *arg)
{
    if (!dp_comm_rank(comm))
        look_at_sleeps(comm);
    for (int count = 1; count <= MANY; count++)
        CHECK(!(dp_comm_rank(comm) ? send_round(comm, count) : receive_round(comm, count)));
    if (!dp_comm_rank(comm))
        comm->ops = real_ops;
    CHECK(!sleeps_in_vain);
    return 0;
}

CASE(a_wait_never_sleeps_on_what_has_come)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed;
        if (!kind->processes)
            continue;
        board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0);
        assert_ptr_not_equal(board, MAP_FAILED);
        int failed = kind->run(kind, 2, deadline_ns, exchange_rounds, NULL, &killed);
        munmap(board, sizeof(*board));
        if (failed)
            fail_msg("%s: %d of 2 ranks failed", kind->name, failed);
    }
}
