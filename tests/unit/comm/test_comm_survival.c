/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_survival.c - groups that outlive their ranks; each case runs over every communicator. A
 * process is killed by SIGKILL, a thread returns.
 */
#include "cmocka_all.h"
#include "comm_cases.h"

#include "base/clock.h"
#include "base/fail.h"
#include "comm/comm_core.h"
#include "survival/survival.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/time.h>

static const int64_t LONG_NS = 20 * DP_NS_PER_S;
static const DLDataType int64 = {kDLInt, 64, 1};

/* ---- helpers --------------------------------------------------------------------------------- */

/* Run it on every kind; `deaths` of the ranks die. */
static void on_surviving_kinds(int size, int deaths, rank_fn fn, void *arg)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        if (kind->by_ring)
            continue;
        const int expected = kind->processes ? deaths : 0;
        int killed, failed = kind->run(kind, size, LONG_NS, fn, arg, &killed);
        if (failed != expected || killed != expected)
            fail_msg("%s: %d of %d ranks failed, %d were killed, expected %d", kind->name, failed,
                     size, killed, expected);
    }
}

/* Over MPI the group cannot survive, and the case ends here. */
static bool begin(struct dp_comm *comm, int *err)
{
    *err = dp_comm_survive(comm);
    return *err != DP_EUNSUPPORTED;
}

#define BEGIN(comm)                                                                                \
    do {                                                                                           \
        int err_;                                                                                  \
        if (!begin(comm, &err_))                                                                   \
            return 0;                                                                              \
        CHECK(!err_);                                                                              \
    } while (0)

static bool is_thread(const struct dp_comm *comm)
{
    return !strcmp(dp_comm_name(comm), "threads");
}

/* A thread returns from its function after this. */
static int die(struct dp_comm *comm)
{
    if (!is_thread(comm))
        raise(SIGKILL);
    dp_comm_threads_die(comm);
    return 0;
}

static int sum_of(struct dp_comm *comm, int64_t value, int64_t *sum)
{
    struct dp_request req;
    int err = dp_comm_iallreduce(comm, &value, sum, 1, int64, DP_REDUCE_SUM, &req);

    return err ? err : dp_comm_wait(comm, &req, -1);
}

/* Shrink until all members are alive: one may be killed after it took part in the agreement. A
 * barrier is not enough, as it may succeed on one rank and fail on another one; an agreement has
 * the same result on all. */
static int go_on(struct dp_comm *comm, struct dp_comm **out)
{
    for (int i = 0; i < 8; i++) {
        struct dp_comm *survivors;
        bool alive[8];
        int err = dp_comm_shrink(comm, &survivors);
        if (err)
            return err;
        err = dp_comm_agree_alive(survivors, alive);
        bool all = true;
        for (int rank = 0; rank < dp_comm_size(survivors); rank++)
            all &= alive[rank];
        if (!err && all) {
            *out = survivors;
            return 0;
        }
        dp_comm_close(survivors);
        if (err)
            return err;
    }
    return DP_ETIMEDOUT;
}

/* The survivors are those of world that are not in `dead`, in order; collectives and messages work
 * among them, and messages between them on the old communicator. */
static int check_survivors(struct dp_comm *comm, struct dp_comm *survivors, unsigned dead)
{
    const int size = dp_comm_size(survivors), rank = dp_comm_rank(survivors);
    const int next = (rank + 1) % size, back = (rank + size - 1) % size;
    int64_t sum = 0, expected = 0;
    int count = 0, token = rank, got = -1, alive[64];
    struct dp_request reqs[2];

    for (int i = 0; i < dp_comm_size(comm); i++)
        if (!(dead >> i & 1)) {
            expected += 1 << i;
            alive[count++] = i;
        }
    CHECK(size == count && alive[rank] == dp_comm_rank(comm));
    CHECK(!sum_of(survivors, 1 << dp_comm_rank(comm), &sum));
    CHECK(sum == expected);
    if (size == 1)
        return 0;
    CHECK(!dp_comm_isend(survivors, next, 0, 7, &token, sizeof(token), &reqs[0]));
    CHECK(!dp_comm_irecv(survivors, back, 0, 7, &got, sizeof(got), &reqs[1]));
    CHECK(!dp_comm_wait(survivors, &reqs[1], back) && got == back);
    CHECK(!dp_comm_wait(survivors, &reqs[0], next));
    CHECK(!dp_comm_isend(comm, alive[next], 1, 7, &token, sizeof(token), &reqs[0]));
    CHECK(!dp_comm_irecv(comm, alive[back], 1, 7, &got, sizeof(got), &reqs[1]));
    CHECK(!dp_comm_wait(comm, &reqs[1], alive[back]) && got == back);
    CHECK(!dp_comm_wait(comm, &reqs[0], alive[next]));
    return dp_comm_barrier(survivors);
}

/* Each rank has come this far when root goes on. */
static int gather_at(struct dp_comm *comm, int root)
{
    const int rank = dp_comm_rank(comm);
    char byte = 0;

    if (rank != root)
        return blocking_send(comm, root, 3, 1, &byte, 1);
    for (int peer = 0; peer < dp_comm_size(comm); peer++)
        if (peer != root)
            CHECK(!blocking_receive(comm, peer, 3, 1, &byte, 1));
    return 0;
}

/* ---- deaths ---------------------------------------------------------------------------------- */

/* Messages to and from the dead rank fail, one between two others goes on; collectives fail on all.
 */
static int lose_one(struct dp_comm *comm, void *arg)
{
    const int dead = *(const int *)arg, rank = dp_comm_rank(comm), size = dp_comm_size(comm);
    const int a = dead == 0, b = dead <= 1 ? 2 : 1; /* two others */
    struct dp_comm *survivors, *again;
    struct dp_request lost, kept, any;
    bool alive[8];
    char buf[8] = "", big[8];

    BEGIN(comm);
    if (rank == dead)
        return die(comm);
    if (rank == b)
        CHECK(!dp_comm_irecv(comm, a, 0, 1, buf, 5, &kept));
    CHECK(blocking_receive(comm, dead, 1, 1, big, sizeof(big)) == DP_ECOMM);
    CHECK(dp_comm_barrier(comm) == DP_ECOMM);
    CHECK(!dp_comm_aborted(comm, NULL));
    if (rank == a)
        CHECK(!blocking_send(comm, b, 0, 1, "kept", 5));
    if (rank == b) {
        CHECK(!dp_comm_wait(comm, &kept, a));
        CHECK(!strcmp(buf, "kept"));
        CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, 2, buf, sizeof(buf), &any));
    }
    uint64_t flags = UINT64_MAX - (UINT64_C(1) << rank), expected = UINT64_MAX;
    CHECK(!dp_comm_agree_flags(comm, &flags, alive));
    for (int i = 0; i < size; i++) {
        CHECK(alive[i] == (i != dead));
        expected -= i != dead ? UINT64_C(1) << i : 0;
    }
    CHECK(flags == expected);
    CHECK(!dp_comm_is_alive(comm, dead) && dp_comm_is_alive(comm, rank));
    CHECK(dp_comm_isend(comm, dead, 0, 1, buf, 5, &lost) == DP_ECOMM);
    CHECK(dp_comm_barrier(comm) == DP_ECOMM); /* also a later one */
    if (rank == a)
        CHECK(!blocking_send(comm, b, 2, 9, "any", 4));
    if (rank == b)
        CHECK(!dp_comm_wait(comm, &any, -1) && !strcmp(buf, "any"));
    CHECK(!dp_comm_shrink(comm, &survivors));
    CHECK(!check_survivors(comm, survivors, 1u << dead));
    /* Of survivors as of others. */
    CHECK(!dp_comm_shrink(survivors, &again));
    CHECK(dp_comm_size(again) == size - 1 && !dp_comm_barrier(again));
    dp_comm_close(survivors);
    CHECK(!dp_comm_split(again, 0, -rank, &survivors));
    CHECK(dp_comm_rank(survivors) == size - 2 - dp_comm_rank(again));
    CHECK(!dp_comm_barrier(survivors));
    CHECK(dp_comm_reset(comm) == DP_EUNSUPPORTED);
    dp_comm_close(again);
    dp_comm_close(survivors);
    return 0;
}

CASE(a_death_fails_only_the_requests_that_need_the_rank)
{
    for (int dead = 0; dead < 4; dead++)
        on_surviving_kinds(4, 1, lose_one, &dead);
}

/* Several at once, adjacent ranks among them, while the others are in the middle of a collective.
 */
static int lose_many(struct dp_comm *comm, void *arg)
{
    const unsigned dead = *(const unsigned *)arg;
    const bool is_mortal = dead >> dp_comm_rank(comm) & 1;
    struct dp_comm *survivors;
    int64_t sum;
    int err = 0;

    BEGIN(comm);
    for (int i = 0; i < 1000 && !err; i++) {
        if (i == 3 && is_mortal)
            break;
        err = sum_of(comm, i, &sum);
    }
    if (is_mortal)
        return die(comm);
    CHECK(err == DP_ECOMM);
    CHECK(!go_on(comm, &survivors));
    CHECK(!check_survivors(comm, survivors, dead));
    dp_comm_close(survivors);
    return 0;
}

CASE(two_and_more_ranks_may_die_at_once)
{
    static const struct {
        unsigned dead;
        int count;
    } cases[] = {{0x3, 2}, {0x12, 2}, {0x1f, 5}, {0xe, 3}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned dead = cases[i].dead;
        on_surviving_kinds(6, cases[i].count, lose_many, &dead);
    }
}

/* Killed at any instruction. A thread leaves between two steps. */
static void kill_itself(int signal)
{
    kill(getpid(), SIGKILL);
}

static void die_in(int64_t us)
{
    const struct itimerval timer = {.it_value = {.tv_usec = us}};

    signal(SIGALRM, kill_itself);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static int be_killed_at_any_moment(struct dp_comm *comm, void *arg)
{
    const uint64_t seed = *(const uint64_t *)arg;
    const int rank = dp_comm_rank(comm), size = dp_comm_size(comm);
    const int mortal = (int)(seed % (uint64_t)size);
    static int64_t mine[50000], sums[50000]; /* also messages in many pieces */
    struct dp_comm *at = comm, *next;
    bool has_shrunk = false;
    int64_t sum;

    BEGIN(comm);
    if (rank == mortal && !is_thread(comm))
        die_in(1 + (int64_t)(seed * 2654435761u % 20000));
    for (int i = 0; !has_shrunk; i++) {
        struct dp_request large;
        int err = sum_of(at, i, &sum);
        CHECK(err || sum == (int64_t)i * dp_comm_size(at));
        if (!err && !is_thread(comm)) {
            err = dp_comm_iallreduce(at, mine, sums, 50000, int64, DP_REDUCE_SUM, &large);
            if (!err)
                err = dp_comm_wait(at, &large, -1);
        }
        if (rank == mortal && is_thread(comm) && i == (int)(seed % 7))
            return die(comm);
        if (!err)
            continue;
        CHECK(err == DP_ECOMM);
        CHECK(!go_on(at, &next));
        at = next;
        has_shrunk = true;
    }
    CHECK(!check_survivors(comm, at, 1u << mortal));
    dp_comm_close(at);
    return 0;
}

CASE(a_rank_may_be_killed_at_any_moment)
{
    for (uint64_t seed = 0; seed < 12; seed++)
        on_surviving_kinds(5, 1, be_killed_at_any_moment, &seed);
}

RANKS_CASE(the_group_outlives_every_rank_but_the_last, on_surviving_kinds(5, 4, part, NULL))
{
    struct dp_comm *at = comm, *next;
    int64_t sum;

    BEGIN(comm);
    while (dp_comm_size(at) > 1) {
        if (dp_comm_rank(at) == 0) {
            die(comm);
            break;
        }
        CHECK(dp_comm_barrier(at) == DP_ECOMM);
        CHECK(!go_on(at, &next));
        if (at != comm)
            dp_comm_close(at);
        at = next;
    }
    if (dp_comm_size(at) == 1) {
        CHECK(dp_comm_rank(comm) == dp_comm_size(comm) - 1);
        CHECK(!sum_of(at, 5, &sum) && sum == 5);
    }
    if (at != comm)
        dp_comm_close(at);
    return 0;
}

/* ---- deaths during the agreement ------------------------------------------------------------- */

/* A rank that is killed after it has sent a given number of messages of the protocol. */
struct last_words {
    int rank, left;
};
static _Thread_local struct last_words *saying;
static _Thread_local const struct dp_survival_news *real_news;

static void send_value(struct dp_survival *s, int peer, const void *message, size_t len)
{
    if (saying->left-- > 0) {
        real_news->tell(s, peer, message, len);
        return;
    }
    die(s->world);
    dp_comm_set_deadline(s->world, DP_NS_PER_MS); /* a thread waits in vain from now on */
}

static void send_to_none(struct dp_survival *s, const void *message, size_t len)
{
}

static int die_in_agreement(struct dp_comm *comm, void *arg)
{
    struct last_words mine = *(const struct last_words *)arg;
    const int rank = dp_comm_rank(comm);
    struct dp_comm *survivors;
    struct dp_survival_news few;
    int64_t sum = 0;
    bool alive[8];

    BEGIN(comm);
    if (rank == mine.rank) {
        saying = &mine;
        real_news = comm->survival->news;
        few = *real_news;
        few.tell = send_value;
        few.tell_neighbors = send_to_none;
        comm->survival->news = &few;
        dp_comm_agree_alive(comm, alive);
        comm->survival->news = real_news;
        return die(comm);
    }
    CHECK(!dp_comm_agree_alive(comm, alive));
    CHECK(!go_on(comm, &survivors));
    CHECK(dp_comm_size(survivors) == dp_comm_size(comm) - 1);
    for (int i = 0; i < dp_comm_size(comm); i++)
        CHECK(alive[i] || i == mine.rank);
    CHECK(!sum_of(survivors, alive[mine.rank], &sum));
    CHECK(sum == (alive[mine.rank] ? dp_comm_size(survivors) : 0));
    dp_comm_close(survivors);
    return 0;
}

CASE(all_survivors_learn_the_same_whenever_the_coordinator_dies)
{
    for (int left = 0; left <= 6; left++) {
        struct last_words words = {0, left};
        on_surviving_kinds(4, 1, die_in_agreement, &words);
    }
}

CASE(all_survivors_learn_the_same_if_a_member_dies)
{
    struct last_words words = {2, 0};
    on_surviving_kinds(4, 1, die_in_agreement, &words);
}

/* ---- ranks that are busy --------------------------------------------------------------------- */

static bool sees_busy(struct dp_comm *comm, bool expected)
{
    const int64_t until_ns = dp_now_ns() + 2 * LONG_NS;

    while ((comm->ops->busy_until(comm->world) > dp_now_ns() + 100 * DP_NS_PER_S) != expected) {
        if (dp_comm_progress(comm) || dp_now_ns() > until_ns)
            return false;
        comm->ops->sleep(comm->world, dp_now_ns() + 20 * DP_NS_PER_MS);
    }
    return true;
}

/* The last rank announces that it is busy after rank 0 has died, then that it is not, then dies. */
RANKS_CASE(a_rank_can_say_that_it_is_busy_without_rank_0, on_surviving_kinds(6, 2, part, NULL))
{
    static const int64_t ns = 1000 * DP_NS_PER_S;
    const int last = dp_comm_size(comm) - 1, rank = dp_comm_rank(comm);
    struct dp_comm *survivors;

    BEGIN(comm);
    if (rank == 0)
        return die(comm);
    CHECK(!go_on(comm, &survivors));
    for (int is_busy = 1; is_busy >= 0; is_busy--) {
        if (rank == last)
            CHECK(!dp_comm_busy(comm, is_busy ? ns : 0));
        CHECK(sees_busy(comm, is_busy));
        const int err = is_busy ? dp_comm_barrier(survivors) : 0;
        CHECK(!err || err == DP_ECOMM); /* the last rank may be dead by now */
    }
    if (rank == last) {
        CHECK(!dp_comm_busy(comm, ns));
        dp_comm_close(survivors);
        return die(comm);
    }
    dp_comm_close(survivors);
    CHECK(!go_on(comm, &survivors));
    CHECK(sees_busy(comm, false));
    CHECK(!check_survivors(comm, survivors, 1u | 1u << last));
    dp_comm_close(survivors);
    return 0;
}

/* ---- ranks that are not dead ----------------------------------------------------------------- */

/* A rank that waits until it is let go on. */
struct pause {
    int go[2], gone[2]; /* pipes */
};

/* A process is stopped by a signal, at any place; a thread waits. */
static void be_stopped(const struct dp_comm *comm, const struct pause *p)
{
    char byte = 0;

    if (is_thread(comm)) {
        while (read(p->go[0], &byte, 1) < 0)
            ;
        return;
    }
    raise(SIGSTOP);
    while (write(p->gone[1], &byte, 1) < 0)
        ;
}

/* The signal may come before the process has stopped, and is sent again then. */
static void let_go_on(const struct dp_comm *comm, const struct pause *p, pid_t process)
{
    struct pollfd fd = {.fd = p->gone[0], .events = POLLIN};
    char byte = 0;

    if (is_thread(comm)) {
        while (write(p->go[1], &byte, 1) < 0)
            ;
        return;
    }
    while (poll(&fd, 1, 10) <= 0)
        kill(process, SIGCONT);
    while (read(p->gone[0], &byte, 1) < 0)
        ;
}

static int find_itself_excluded(struct dp_comm *comm, struct dp_request *pending, int peer)
{
    struct dp_comm *survivors;
    struct dp_abort why;
    bool alive[8];

    CHECK_ERROR(dp_comm_wait(comm, pending, peer), DP_EABORTED, "declared dead");
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == dp_comm_rank(comm) && why.error == DP_ETIMEDOUT);
    CHECK(dp_comm_agree_alive(comm, alive) == DP_EABORTED);
    CHECK(dp_comm_shrink(comm, &survivors) == DP_EABORTED);
    CHECK(dp_comm_barrier(comm) == DP_EABORTED);
    CHECK(!dp_comm_is_alive(comm, dp_comm_rank(comm)));
    CHECK(!dp_comm_abort(comm, DP_ECALLBACK, "it fails after that")); /* the others go on */
    return 0;
}

static void with_pause(int size, rank_fn fn)
{
    struct pause p;

    assert_int_equal(pipe(p.go), 0);
    assert_int_equal(pipe(p.gone), 0);
    on_surviving_kinds(size, 0, fn, &p);
    for (int i = 0; i < 2; i++) {
        close(p.go[i]);
        close(p.gone[i]);
    }
}

RANKS_CASE(a_rank_that_was_stopped_and_declared_dead_learns_so, with_pause(4, part))
{
    enum { STOPPED = 2, BIG = 3 << 20 };
    const struct pause *p = arg;
    const int rank = dp_comm_rank(comm);
    int64_t process = getpid(), processes[8];
    struct dp_comm *survivors;
    struct dp_request send, receive;
    char *big = malloc(BIG);

    CHECK(big);
    memset(big, rank, BIG);
    int err = dp_comm_survive(comm);
    if (err == DP_EUNSUPPORTED) {
        free(big);
        return 0;
    }
    CHECK(!err);
    CHECK(!dp_comm_allgather(comm, &process, processes, sizeof(process)));
    if (rank == STOPPED) {
        CHECK(!dp_comm_isend(comm, 0, 0, 1, big, BIG, &send));
        CHECK(!dp_comm_irecv(comm, 0, 1, 1, big, BIG, &receive));
        err = gather_at(comm, 1);
        CHECK(!err || err == DP_EABORTED); /* it may notice at once */
        be_stopped(comm, p);
        CHECK(!find_itself_excluded(comm, &receive, 0));
        free(big);
        return 0;
    }
    if (rank == 0)
        CHECK(!dp_comm_irecv(comm, STOPPED, 0, 1, big, BIG, &receive));
    CHECK(!gather_at(comm, 1));
    if (rank == 1)
        dp_survival_declare(comm->survival, STOPPED);
    CHECK(!go_on(comm, &survivors));
    if (rank == 0) {
        err = dp_comm_wait(comm, &receive, STOPPED);
        CHECK(!err || err == DP_ECOMM);
        memset(big, 7, BIG); /* its own again */
        let_go_on(comm, p, (pid_t)processes[STOPPED]);
    }
    CHECK(!check_survivors(comm, survivors, 1u << STOPPED));
    for (int i = 0; rank == 0 && i < BIG; i++)
        CHECK(big[i] == 7);
    dp_comm_close(survivors);
    free(big);
    return 0;
}

/* The deadline itself is tested here. The silent rank makes no call until it is released. */
RANKS_CASE(a_silent_rank_fails_a_wait_and_is_declared_dead_by_an_agreement, with_pause(3, part))
{
    const struct pause *p = arg;
    struct dp_request pending;
    char buf[8];
    bool alive[8];

    BEGIN(comm);
    CHECK(!dp_comm_barrier(comm));
    if (dp_comm_rank(comm) == 2) {
        CHECK(!dp_comm_irecv(comm, 0, 2, 1, buf, sizeof(buf), &pending));
        while (read(p->go[0], buf, 1) < 0)
            ;
        CHECK(!find_itself_excluded(comm, &pending, 0));
        return 0;
    }
    dp_comm_set_deadline(comm, 100 * DP_NS_PER_MS); /* of what must reach it */
    CHECK(blocking_receive(comm, 2, 0, 1, buf, sizeof(buf)) == DP_ETIMEDOUT);
    CHECK_SAYS("in vain for rank 2");
    CHECK(!dp_comm_aborted(comm, NULL) && dp_comm_is_alive(comm, 2));
    /* The coordinator's decides, and begins to count when the other rank is about to answer. */
    dp_comm_set_deadline(comm, LONG_NS);
    if (dp_comm_rank(comm) == 0)
        CHECK(!blocking_receive(comm, 1, 3, 1, buf, 1));
    else
        CHECK(!blocking_send(comm, 0, 3, 1, "x", 1));
    if (dp_comm_rank(comm) == 0)
        dp_comm_set_deadline(comm, DP_NS_PER_S);
    CHECK(!dp_comm_agree_alive(comm, alive));
    CHECK(alive[0] && alive[1] && !alive[2]);
    dp_comm_set_deadline(comm, LONG_NS);
    if (dp_comm_rank(comm) == 0) {
        CHECK(write(p->go[1], "x", 1) == 1);
        CHECK(!blocking_send(comm, 1, 0, 1, "x", 1));
    } else {
        CHECK(!blocking_receive(comm, 0, 0, 1, buf, 1));
    }
    return 0;
}

/* Also with rank 0 dead, which otherwise distributes aborts. */
RANKS_CASE(an_abort_still_ends_the_whole_group, on_surviving_kinds(6, 1, part, NULL))
{
    struct dp_comm *survivors;
    struct dp_abort why;
    char buf[8];

    BEGIN(comm);
    if (dp_comm_rank(comm) == 0)
        return die(comm);
    CHECK(!go_on(comm, &survivors));
    const int err = gather_at(survivors, 1);
    CHECK(!err || err == DP_EABORTED);
    if (dp_comm_rank(survivors) == 1)
        CHECK(!dp_comm_abort(survivors, DP_EIO, "a disk is full"));
    CHECK(blocking_receive(survivors, (dp_comm_rank(survivors) + 1) % dp_comm_size(survivors), 0, 1,
                           buf, 1) == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == 2 && why.error == DP_EIO && !strcmp(why.text, "a disk is full"));
    dp_comm_close(survivors);
    return 0;
}

static int leave_in_turn(struct dp_comm *comm, void *arg)
{
    const int rank = dp_comm_rank(comm);
    char byte = 0;

    BEGIN(comm);
    for (int i = 0; i < 50; i++)
        CHECK(!dp_comm_barrier(comm));
    if (rank > 0)
        CHECK(!blocking_receive(comm, rank - 1, 0, 1, &byte, 1));
    if (rank < dp_comm_size(comm) - 1)
        CHECK(!blocking_send(comm, rank + 1, 0, 1, &byte, 1));
    return 0;
}

/* Rank 1 does not agree; rank 0's poll function ends its wait, and the group. */
static int count_down(void *user)
{
    return --*(int *)user ? 0 : -4;
}

RANKS_CASE(a_poll_function_ends_an_agreement, on_surviving_kinds(2, 0, part, NULL))
{
    const bool waits = !dp_comm_rank(comm);
    struct dp_comm *out;
    struct dp_abort why;
    int left = 3;
    char byte = 0;

    BEGIN(comm);
    if (waits) {
        CHECK(!blocking_receive(comm, 1, 0, 0, &byte, 1)); /* the other one has begun, too */
        dp_comm_set_poll(comm, count_down, &left);
        CHECK(dp_comm_shrink(comm, &out) == -4);
        CHECK(!left);
        CHECK_SAYS("interrupted");
        dp_comm_set_poll(comm, NULL, NULL);
    } else {
        CHECK(!blocking_send(comm, 0, 0, 0, &byte, 1));
        CHECK(blocking_receive(comm, 0, 0, 0, &byte, 1) == DP_EABORTED);
    }
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 0 && why.error == -4);
    return 0;
}

CASE(ranks_leave_in_order_and_what_they_sent_arrives)
{
    for (int size = 2; size <= 5; size += 3)
        on_surviving_kinds(size, 0, leave_in_turn, NULL);
}

/* ---- what is dropped ------------------------------------------------------------------------- */

/* Rank 0 sends messages of these lengths in turns, and drops those that have no receive by then. */
struct drop {
    size_t lens[3];
    bool cancels; /* gives one of them up; otherwise rank 0 leaves */
    bool any;     /* received with any tag */
};
enum { BEFORE = 6, AFTER = 4, DROPPED_MESSAGES = BEFORE + AFTER, LONGEST = 3 << 20 };

/* The first that is not on its way, if any: what a connection had no room for may find some meanwhile. */
static int give_one_up(struct dp_comm *comm, struct dp_request *reqs)
{
    const int64_t deadline_ns = dp_comm_deadline(comm);
    int err = 0;

    dp_comm_set_deadline(comm, DP_NS_PER_MS);
    for (int i = 0; i < DROPPED_MESSAGES && !err; i++)
        err = dp_comm_wait(comm, &reqs[i], 1);
    CHECK(!err || err == DP_ETIMEDOUT);
    dp_comm_set_deadline(comm, deadline_ns);
    return 0;
}

static int send_and_drop(struct dp_comm *comm, const struct drop *d)
{
    static struct dp_request reqs[DROPPED_MESSAGES + 1];
    static char bytes[LONGEST];
    char byte = 0;
    int result = 0;

    for (int i = 0; i < DROPPED_MESSAGES && !result; i++) {
        if (i == BEFORE) /* there is room again behind those that wait */
            result = blocking_receive(comm, 1, 1, 0, &byte, 1);
        if (!result)
            result = dp_comm_isend(comm, 1, 0, (uint64_t)i, bytes, d->lens[i % 3], &reqs[i]);
    }
    if (!result && d->cancels)
        result = give_one_up(comm, reqs);
    if (!result && d->cancels) { /* a later one fails, or is not sent if another one was dropped */
        dp_comm_isend(comm, 1, 0, DROPPED_MESSAGES, bytes, d->lens[0], &reqs[DROPPED_MESSAGES]);
        result = blocking_send(comm, 1, 2, 0, &byte, 1);
    }
    if (!result && d->cancels)
        result = blocking_receive(comm, 1, 1, 1, &byte, 1);
    return result;
}

static int receive_one(struct dp_comm *comm, const struct drop *d, int i, char *bytes)
{
    const size_t len = d->lens[i % 3];
    struct dp_received received;
    struct dp_request req;
    int err = d->any ? dp_comm_irecv_any(comm, 0, 0, bytes, len, &req)
                     : dp_comm_irecv(comm, 0, 0, (uint64_t)i, bytes, len, &req);

    if (!err)
        err = dp_comm_wait(comm, &req, 0);
    if (err || !d->any)
        return err;
    dp_comm_received(comm, &req, &received);
    return received.tag == (uint64_t)i && received.len == len ? 0 : DP_EMISMATCH;
}

/* What comes is the beginning of what was sent, without a gap. */
static int receive_what_is_left(struct dp_comm *comm, const struct drop *d)
{
    static char bytes[LONGEST];
    char byte = 0;
    int err = 0;

    CHECK(!receive_one(comm, d, 0, bytes));
    CHECK(!blocking_send(comm, 0, 1, 0, &byte, 1));
    CHECK(blocking_receive(comm, 0, 2, 0, &byte, 1) == (d->cancels ? 0 : DP_ECOMM));
    for (int i = 1; i < DROPPED_MESSAGES; i++) {
        const int before = err;
        err = receive_one(comm, d, i, bytes);
        CHECK(before ? err == DP_ECOMM : !err || err == DP_ECOMM);
    }
    return d->cancels ? blocking_send(comm, 0, 1, 1, &byte, 1) : 0;
}

static int drop_some(struct dp_comm *comm, void *arg)
{
    const struct drop *d = arg;

    if (d->cancels)
        BEGIN(comm);
    return dp_comm_rank(comm) ? receive_what_is_left(comm, d) : send_and_drop(comm, d);
}

/* A group over MPI survives no rank; what a rank has not sent when it leaves is dropped there, too. */
static bool is_mpi(void)
{
    return !strcmp(comm_kinds[0].name, "mpi");
}

CASE(after_the_first_message_that_is_dropped_none_arrives)
{
    static const size_t lens[][3] = {{64, 64, 64},     {256, 512, 768},   {64, 2000, 64},
                                     {2000, 64, 2000}, {1, LONGEST, 1}, {LONGEST, 1, 64}};

    for (unsigned i = 0; i < 4 * sizeof(lens) / sizeof(lens[0]); i++) {
        struct drop d = {.cancels = i & 1, .any = i & 2};
        if (d.cancels && is_mpi())
            continue;
        memcpy(d.lens, lens[i / 4], sizeof(d.lens));
        on_kinds_with(NEEDS_END | NEEDS_TAGS | NEEDS_ANY, 2, LONG_NS, drop_some, &d);
    }
}

/* ---- shortage -------------------------------------------------------------------------------- */

/* Rank 0 may open no file. Where it has no connection to rank 3 yet it cannot tell whether that lives, and in
 * any case none for a message to it. */
static int receive_without_files(struct dp_comm *comm)
{
    static struct dp_request receive, send;
    static char bytes[2];
    struct rlimit files, none;

    CHECK(!getrlimit(RLIMIT_NOFILE, &files));
    none = (struct rlimit){3, files.rlim_max};
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    int err = dp_comm_irecv(comm, 3, 2, 7, &bytes[0], 1, &receive);
    if (!err)
        err = dp_comm_isend(comm, 3, 2, 7, &bytes[1], 1, &send);
    if (!err)
        err = dp_comm_wait(comm, &send, 3);
    CHECK(!setrlimit(RLIMIT_NOFILE, &files));
    CHECK(err == DP_EIO && dp_comm_is_alive(comm, 3));
    CHECK_SAYS("Too many open files");
    return 0;
}

static int fail_for_memory(struct dp_comm *comm)
{
    struct dp_abort why;

    dp_comm_fail(comm, dp_fail(DP_ENOMEM, "no memory for a test"));
    CHECK(dp_comm_barrier(comm) == DP_EABORTED && dp_comm_aborted(comm, &why));
    CHECK(why.rank == 0 && why.error == DP_ENOMEM && !strcmp(why.text, "no memory for a test"));
    return 0;
}

RANKS_CASE(a_rank_without_files_fails_itself_and_no_other, on_surviving_kinds(6, 0, part, NULL))
{
    const int64_t until_ns = dp_now_ns() + LONG_NS;
    struct dp_comm *survivors;

    BEGIN(comm);
    CHECK(!gather_at(comm, 0));
    if (!dp_comm_rank(comm))
        return is_thread(comm) ? fail_for_memory(comm) : receive_without_files(comm);
    while (dp_comm_is_alive(comm, 0) && dp_now_ns() < until_ns) /* none connects to it meanwhile */
        CHECK(!dp_comm_progress(comm));
    CHECK(!go_on(comm, &survivors));
    CHECK(!check_survivors(comm, survivors, 1));
    dp_comm_close(survivors);
    return 0;
}

int main(void)
{
    if (is_mpi())
        cmocka_set_test_filter("after_the_first_message_that_is_dropped_*");
    return run_cases(NULL, NULL);
}
