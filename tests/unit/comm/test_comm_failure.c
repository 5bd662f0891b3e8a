/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_failure.c - aborts, stalls, deaths and ends of every communicator; each case runs over
 * all of them.
 */
#include "cmocka_all.h"
#include "comm_cases.h"

#include "base/clock.h"
#include "comm/comm_ops.h"
#include "comm/rendezvous.h"
#include "device/device_ops.h"

#include <dualpipe/nccl.h>

/* A rank that begins to wait only after another one has given up is taken for the culprit: a deadline
 * that leaves a busy machine time to start all of them. */
static const int64_t LONG_NS = 20 * DP_NS_PER_S, SHORT_NS = DP_NS_PER_S;

/* ---- failure ------------------------------------------------------------------------------- */

/* A traceback, as long as a record may have. */
static const char *long_text(void)
{
    static _Thread_local char text[DP_ABORT_TEXT];

    memset(text, 'x', sizeof(text) - 1);
    memcpy(text, "forward of stage 3 returned 7", 29);
    return text;
}

/* One rank fails, the others are in the middle of something. */
static int abort_from(struct dp_comm *comm, void *arg)
{
    const int culprit = *(const int *)arg, peer = (dp_comm_rank(comm) + 1) % dp_comm_size(comm);
    struct dp_abort why;
    char buf[100];

    if (dp_comm_rank(comm) == culprit) {
        CHECK(!dp_comm_abort(comm, DP_ECALLBACK, long_text()));
        CHECK(!dp_comm_abort(comm, DP_EINVAL, "a second thought"));
    } else {
        CHECK(blocking_receive(comm, peer, 0, 1, buf, sizeof(buf)) == DP_EABORTED);
        CHECK_SAYS(long_text());
    }
    CHECK(dp_comm_barrier(comm) == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == culprit && why.error == DP_ECALLBACK);
    CHECK(!strcmp(why.text, long_text()));
    return 0;
}

CASE(an_abort_of_any_rank_reaches_all)
{
    for (int culprit = 0; culprit < 4; culprit++)
        on_all_kinds(4, LONG_NS, abort_from, &culprit);
}

/* A user stops one rank: its poll function says so, with the error or with any number above 0. */
static int press_interrupt(void *user)
{
    return *(const int *)user;
}

static int interrupt_one(struct dp_comm *comm, void *arg)
{
    int answer = *(const int *)arg;
    const bool stops = dp_comm_rank(comm) == 1;
    struct dp_abort why;
    char buf[8];

    if (stops)
        dp_comm_set_poll(comm, press_interrupt, &answer);
    CHECK(blocking_receive(comm, (dp_comm_rank(comm) + 1) % dp_comm_size(comm), 0, 1, buf,
                           sizeof(buf)) == (stops ? DP_EINTERRUPTED : DP_EABORTED));
    dp_comm_set_poll(comm, NULL, NULL);
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 1 && why.error == DP_EINTERRUPTED);
    CHECK(!strcmp(dp_strerror(why.error), "DP_EINTERRUPTED"));
    return 0;
}

CASE(an_interrupt_of_one_rank_ends_all)
{
    int answers[] = {DP_EINTERRUPTED, 1};

    for (int i = 0; i < 2; i++)
        on_all_kinds(3, LONG_NS, interrupt_one, &answers[i]);
}

/* Every rank waits for the next one, but one makes no call at all until the others have given up.
 */
struct stall {
    int culprit;
    int done[2]; /* a pipe: a byte from each rank that gave up */
};

static int stall(struct dp_comm *comm, void *arg)
{
    const struct stall *s = arg;
    struct dp_abort why;
    char buf[100];

    if (dp_comm_rank(comm) == s->culprit) {
        for (int others = dp_comm_size(comm) - 1; others > 0;) {
            ssize_t n = read(s->done[0], buf, (size_t)others);
            CHECK(n > 0);
            others -= (int)n;
        }
        CHECK(dp_comm_barrier(comm) == DP_EABORTED);
    } else {
        /* A rank that does not give up by itself waits for ever: the culprit waits for this byte.
         */
        int err = blocking_receive(comm, (dp_comm_rank(comm) + 1) % dp_comm_size(comm), 0, 1, buf,
                                   sizeof(buf));
        CHECK(write(s->done[1], "x", 1) == 1);
        CHECK(err == DP_ETIMEDOUT || err == DP_EABORTED);
    }
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.error == DP_ETIMEDOUT);
    CHECK(why.rank == s->culprit);
    CHECK(strstr(why.text, "in vain for rank"));
    return 0;
}

CASE(a_silent_rank_is_found_and_named)
{
    for (int culprit = 0; culprit < 4 && comm_kinds->shares_files; culprit += 2) {
        struct stall s = {.culprit = culprit};
        assert_int_equal(pipe(s.done), 0);
        on_all_kinds(4, SHORT_NS, stall, &s);
        close(s.done[0]);
        close(s.done[1]);
    }
}

/* Rank 0 waits for rank 1, which begins to wait for rank 2 so shortly before rank 0 gives up that it
 * has told no other: between processes a wait is reported when it has lasted a while, a thread says
 * it before it sleeps. Rank 2 makes no call until then. */
struct late_wait {
    int now[2], done[2]; /* pipes */
};
static const int64_t VAIN_NS = 300 * DP_NS_PER_MS, BEFORE_NS = 80 * DP_NS_PER_MS,
                     SPIN_NS = 130 * DP_NS_PER_MS;

/* The poll function of rank 0. */
struct starting_gun {
    int64_t at_ns;
    int fd;
};

static int fire(void *user)
{
    struct starting_gun *gun = user;

    if (!gun->at_ns || dp_now_ns() < gun->at_ns)
        return 0;
    gun->at_ns = 0;
    return write(gun->fd, "x", 1) == 1 ? 0 : DP_EIO;
}

static int wait_first(struct dp_comm *comm, const struct late_wait *l, int64_t *gave_up_ns)
{
    struct starting_gun gun = {dp_now_ns() + VAIN_NS - BEFORE_NS, l->now[1]};
    char buf[8];

    *gave_up_ns = dp_now_ns() + VAIN_NS;
    dp_comm_set_deadline(comm, VAIN_NS);
    dp_comm_set_poll(comm, fire, &gun);
    CHECK(blocking_receive(comm, 1, 0, 1, buf, sizeof(buf)) == DP_ETIMEDOUT);
    dp_comm_set_poll(comm, NULL, NULL);
    dp_comm_set_deadline(comm, LONG_NS);
    CHECK(!fire(&gun)); /* this rank has not run between the two times */
    CHECK(write(l->done[1], "x", 1) == 1);
    return 0;
}

static int wait_late(struct dp_comm *comm, const struct late_wait *l, int64_t *began_ns)
{
    const int64_t spin_ns = dp_comm_get(comm, DP_COMM_SPIN);
    char buf[8];

    if (!strcmp(dp_comm_name(comm), "threads"))
        dp_comm_set(comm, DP_COMM_SPIN, SPIN_NS);
    CHECK(read(l->now[0], buf, 1) == 1);
    *began_ns = dp_now_ns();
    CHECK(blocking_receive(comm, 2, 0, 1, buf, sizeof(buf)) == DP_EABORTED);
    dp_comm_set(comm, DP_COMM_SPIN, spin_ns);
    return 0;
}

/* On a busy machine rank 1 may come after rank 0 has given up: such a try shows nothing. */
static int begin_to_wait_late(struct dp_comm *comm, void *arg)
{
    const struct late_wait *l = arg;
    const int rank = dp_comm_rank(comm);
    int64_t mine = 0, all[3];
    struct dp_abort why;
    char byte;

    for (int tries = 0; tries < 10; tries++) {
        if (rank == 0)
            CHECK(!wait_first(comm, l, &mine));
        else if (rank == 1)
            CHECK(!wait_late(comm, l, &mine));
        else
            CHECK(read(l->done[0], &byte, 1) == 1 && dp_comm_barrier(comm) == DP_EABORTED);
        CHECK(dp_comm_aborted(comm, &why) && why.error == DP_ETIMEDOUT);
        CHECK(!dp_comm_reset(comm));
        CHECK(!dp_comm_allgather(comm, &mine, all, sizeof(mine)));
        if (all[1] > all[0] - BEFORE_NS / 8)
            continue;
        CHECK(why.rank == 2);
        CHECK(strstr(why.text, "rank 1, which waits for rank 2"));
        return 0;
    }
    CHECK(!"rank 1 began in time");
    return 0;
}

CASE(a_rank_that_has_just_begun_to_wait_is_not_taken_for_the_culprit)
{
    struct late_wait l;

    if (!comm_kinds->shares_files)
        return;
    assert_int_equal(pipe(l.now) || pipe(l.done), 0);
    on_all_kinds(3, LONG_NS, begin_to_wait_late, &l);
    for (int i = 0; i < 2; i++) {
        close(l.now[i]);
        close(l.done[i]);
    }
}

/* Rank 0 waits for a collective that has not begun, as an earlier one waits for rank 1. */
static int stall_in_line(struct dp_comm *comm, void *arg)
{
    const struct stall *s = arg;
    static const DLDataType int64 = {kDLInt, 64, 1};
    struct dp_request earlier, later;
    struct dp_abort why;
    int64_t value = 1;
    char byte;

    if (dp_comm_rank(comm) == s->culprit) {
        CHECK(read(s->done[0], &byte, 1) == 1);
        CHECK(dp_comm_barrier(comm) == DP_EABORTED);
    } else {
        CHECK(!dp_comm_iallreduce(comm, &value, &value, 1, int64, DP_REDUCE_SUM, &earlier));
        CHECK(!dp_comm_iallgather(comm, NULL, NULL, 0, &later));
        dp_comm_set_deadline(comm, SHORT_NS);
        const int err = dp_comm_wait(comm, &later, -1);
        CHECK(write(s->done[1], "x", 1) == 1);
        CHECK(err == DP_ETIMEDOUT);
    }
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == s->culprit && why.error == DP_ETIMEDOUT);
    return 0;
}

CASE(a_wait_behind_another_collective_names_who_is_missing)
{
    struct stall s = {.culprit = 1};

    if (!comm_kinds->shares_files)
        return;
    assert_int_equal(pipe(s.done), 0);
    on_all_kinds(2, LONG_NS, stall_in_line, &s);
    close(s.done[0]);
    close(s.done[1]);
}

/* Rank 0 decides on the culprit, but for a rank 1 that has waited for its answer in vain. */
static int wait_for_any(struct dp_comm *comm, void *arg)
{
    const bool waits = dp_comm_rank(comm) == *(const int *)arg;
    struct dp_request req;
    struct dp_abort why;
    char buf[8];

    if (waits)
        dp_comm_set_deadline(comm, SHORT_NS);
    CHECK(!dp_comm_irecv_any(comm, DP_ANY_SOURCE, 0, buf, sizeof(buf), &req));
    CHECK(dp_comm_wait(comm, &req, -1) == (waits ? DP_ETIMEDOUT : DP_EABORTED));
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.error == DP_ETIMEDOUT && strstr(why.text, "in vain for a message of any rank"));
    CHECK(why.rank == -1 || (*(const int *)arg && why.rank == 0));
    return 0;
}

CASE(a_wait_for_any_rank_names_none)
{
    for (int rank = 0; rank < 2; rank++)
        on_kinds_with(NEEDS_ANY, 2, LONG_NS, wait_for_any, &rank);
}

struct death {
    int culprit;
    bool has_child; /* which outlives it, until the write end of `life` is closed */
    int life[2];
};

static void fork_child(const struct death *d)
{
    char byte;

    if (fork())
        return;
    alarm(60);
    close(d->life[1]);
    while (read(d->life[0], &byte, 1) > 0)
        ;
    _exit(0);
}

/* One rank is killed; the others are in the middle of something with it or with each other. */
/* Of a rank, which is a process. */
static char logged[2000];

static void keep_errors(void *user, enum dp_log_level level, const char *line)
{
    if (level == DP_LOG_ERROR)
        snprintf(logged + strlen(logged), sizeof(logged) - strlen(logged), "%s\n", line);
}

static int die(struct dp_comm *comm, void *arg)
{
    const struct death *d = arg;
    const int culprit = d->culprit;
    struct dp_abort why;
    char buf[100], sentence[80];

    dp_log_set(keep_errors, NULL, DP_LOG_DEFAULT);
    int err = dp_comm_barrier(comm);
    if (dp_comm_rank(comm) == culprit && d->has_child)
        fork_child(d);
    if (dp_comm_rank(comm) == culprit)
        raise(SIGKILL);
    const int64_t start = dp_now_ns();
    if (!err)
        err = blocking_receive(comm, (dp_comm_rank(comm) + 1) % dp_comm_size(comm), 0, 1, buf,
                               sizeof(buf));
    CHECK(err == DP_EABORTED);
    CHECK(dp_now_ns() - start < LONG_NS / 2); /* not at the deadline */
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == culprit && why.error == DP_ECOMM);
    CHECK(strstr(why.text, "has ended"));
    CHECK(dp_comm_barrier(comm) == DP_EABORTED);
    snprintf(sentence, sizeof(sentence), "the run was ended by rank %d (DP_ECOMM)", culprit);
    const char *said = strstr(logged, sentence); /* on every rank, once */
    CHECK(said && strstr(said, why.text) && !strstr(said + 1, sentence));
    CHECK(dp_comm_reset(comm) == DP_ECOMM);
    CHECK(dp_comm_aborted(comm, NULL));
    return 0;
}

static void kill_one_of_four(const struct comm_kind *kind, int culprit, bool has_child)
{
    struct death d = {.culprit = culprit, .has_child = has_child};
    int killed;

    assert_int_equal(pipe(d.life), 0);
    assert_int_equal(kind->run(kind, 4, LONG_NS, die, &d, &killed), 1);
    assert_int_equal(killed, 1);
    close(d.life[0]);
    close(d.life[1]);
}

CASE(a_killed_rank_is_named_on_all_others)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int culprit = 0; culprit < 4 && kind->processes; culprit++)
            kill_one_of_four(kind, culprit, false);
}

/* As that of a data loader. */
CASE(a_child_of_a_killed_rank_hides_nothing)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (int culprit = 0; culprit < 4 && kind->processes; culprit += 3)
            kill_one_of_four(kind, culprit, true);
}

RANKS_CASE(a_deadlock_ends_at_the_deadline, on_all_kinds(3, SHORT_NS, part, NULL))
{
    char buf[8];
    int err = blocking_receive(comm, (dp_comm_rank(comm) + 1) % dp_comm_size(comm), 0, 1, buf,
                               sizeof(buf));
    struct dp_abort why;

    CHECK(err == DP_ETIMEDOUT || err == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(strstr(why.text, "circle"));
    return 0;
}

/* A process that is stopped in a wait is still known as one that waits, here for a rank that waits for
 * it: the others answer when they are asked, it does not. */
struct stopped {
    const struct stall *stall;
    int64_t at_ns;
};
static const int64_t CIRCLE_NS = 500 * DP_NS_PER_MS, STOPPED_AFTER_NS = 200 * DP_NS_PER_MS;

static int stop_in_a_wait(void *user)
{
    struct stopped *s = user;
    char buf[8];

    if (!s->at_ns || dp_now_ns() < s->at_ns)
        return 0;
    s->at_ns = 0;
    for (int others = 2; others > 0;) {
        ssize_t n = read(s->stall->done[0], buf, (size_t)others);
        if (n <= 0)
            return DP_EIO;
        others -= (int)n;
    }
    return 0;
}

static int wait_in_a_circle_with_one_that_is_stopped(struct dp_comm *comm, void *arg)
{
    const struct stall *s = arg;
    struct stopped stopped = {.stall = s};
    const bool culprit = dp_comm_rank(comm) == s->culprit;
    struct dp_abort why;
    char buf[8];

    CHECK(!dp_comm_barrier(comm));
    stopped.at_ns = dp_now_ns() + STOPPED_AFTER_NS; /* it has told by then that it waits */
    if (culprit)
        dp_comm_set_poll(comm, stop_in_a_wait, &stopped);
    int err = blocking_receive(comm, (dp_comm_rank(comm) + 1) % dp_comm_size(comm), 0, 1, buf,
                               sizeof(buf));
    dp_comm_set_poll(comm, NULL, NULL);
    CHECK(culprit || write(s->done[1], "x", 1) == 1);
    CHECK(err == DP_ETIMEDOUT || err == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == s->culprit && why.error == DP_ETIMEDOUT && !strstr(why.text, "circle"));
    return 0;
}

static void stop_one_of_three(const struct comm_kind *kind, int culprit)
{
    struct stall s = {.culprit = culprit};
    int killed;

    assert_int_equal(pipe(s.done), 0);
    if (kind->run(kind, 3, CIRCLE_NS, wait_in_a_circle_with_one_that_is_stopped, &s, &killed))
        fail_msg("%s: rank %d stopped", kind->name, culprit);
    close(s.done[0]);
    close(s.done[1]);
}

/* Another one on each; with DP_TEST_FULL, each. */
CASE(a_rank_that_is_stopped_in_a_wait_is_named)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name && kind->shares_files; kind++)
        for (int culprit = 0; culprit < 3; culprit++)
            if (culprit == (kind + 1 - comm_kinds) % 2 || getenv("DP_TEST_FULL"))
                stop_one_of_three(kind, culprit);
}

/* Fail with messages in flight in all states, start a new communicator, and find nothing of them.
 */
static int fail_and_open_again(struct dp_comm *comm, void *arg)
{
    enum { BIG = 3 << 20 };
    const int culprit = *(const int *)arg;
    const int next = (dp_comm_rank(comm) + 1) % dp_comm_size(comm),
              back = (dp_comm_rank(comm) + dp_comm_size(comm) - 1) % dp_comm_size(comm);
    unsigned char *big = malloc(BIG);
    struct dp_request reqs[4];
    char buf[8] = "old";

    CHECK(big);
    for (int round = 0; round < 3; round++) {
        memset(big, 1, BIG);
        int err = dp_comm_barrier(comm);
        if (!err)
            err = dp_comm_isend(comm, next, 0, 1, buf, sizeof(buf), &reqs[0]);
        if (!err)
            err = dp_comm_isend(comm, next, 1, 1, big, BIG, &reqs[1]);
        if (!err)
            err = dp_comm_irecv(comm, back, 2, 1, buf, sizeof(buf), &reqs[2]);
        if (!err)
            err = dp_comm_irecv(comm, back, 1, 1, big, BIG / 2, &reqs[3]);
        CHECK(!err || err == DP_EABORTED);
        if (dp_comm_rank(comm) == culprit)
            CHECK(!dp_comm_abort(comm, DP_EIO, "on purpose"));
        CHECK(err || dp_comm_wait(comm, &reqs[2], back) == DP_EABORTED);
        memset(big, 2, BIG); /* returned to its owner: no rank reads or writes it any more */
        CHECK(!dp_comm_reset(comm));
        for (int i = 0; i < 4 && !err; i++) /* a request of before is over, and harms nothing */
            CHECK(dp_comm_test(comm, &reqs[i]) != DP_EAGAIN);
        CHECK(!dp_comm_aborted(comm, NULL));
        for (int channel = 0; channel < 3; channel++)
            if (dp_comm_rank(comm) % 2) {
                CHECK(!blocking_receive(comm, back, channel, 2, buf, 4));
                CHECK(!blocking_send(comm, next, channel, 2, "new", 4));
            } else {
                CHECK(!blocking_send(comm, next, channel, 2, "new", 4));
                CHECK(!blocking_receive(comm, back, channel, 2, buf, 4));
            }
        CHECK(!strcmp(buf, "new"));
    }
    free(big);
    return 0;
}

CASE(after_a_reset_all_is_as_new)
{
    for (int culprit = 0; culprit < 4; culprit += 3)
        on_kinds_with(NEEDS_TAGS, 4, LONG_NS, fail_and_open_again, &culprit);
}

RANKS_CASE(a_reset_that_others_do_not_join_fails, on_kinds_with(NEEDS_END, 3, SHORT_NS, part, NULL))
{
    CHECK(!dp_comm_abort(comm, DP_EIO, "on purpose"));
    if (dp_comm_rank(comm) == 1) {
        int err = dp_comm_reset(comm);
        CHECK(err == DP_ETIMEDOUT || err == DP_ECOMM);
        CHECK(dp_comm_aborted(comm, NULL));
    } else {
        while (!dp_comm_aborted(comm, NULL))
            comm->ops->progress(comm, -1);
    }
    return 0;
}

/* Rank 0 leaves in the middle. What it had sent arrives, more does not come. */
RANKS_CASE(a_rank_may_leave_with_requests_in_flight,
           on_kinds_with(NEEDS_END, 2, LONG_NS, part, NULL))
{
    static struct dp_request reqs[3];
    static char big[3 << 20];
    char buf[8] = "";

    if (dp_comm_rank(comm) == 0) {
        CHECK(!blocking_send(comm, 1, 0, 1, "last", 5));
        CHECK(!dp_comm_irecv(comm, 1, 1, 1, big, 8, &reqs[0]));
        CHECK(!dp_comm_irecv(comm, 1, 2, 1, big, sizeof(big), &reqs[1]));
        CHECK(!dp_comm_isend(comm, 1, 3, 1, big, sizeof(big), &reqs[2]));
        return 0;
    }
    CHECK(!blocking_receive(comm, 0, 0, 1, buf, 5));
    CHECK(!strcmp(buf, "last"));
    CHECK_ERROR(blocking_receive(comm, 0, 0, 1, buf, 5), DP_ECOMM, "rank 0 has left");
    return 0;
}

/* Rank 0 gives up first: its wait leads to a circle, and none but those in that can be the culprit. */
RANKS_CASE(of_a_circle_that_a_wait_leads_to_one_rank_is_named, on_all_kinds(4, LONG_NS, part, NULL))
{
    const int rank = dp_comm_rank(comm), peer = rank == 3 ? 2 : rank + 1;
    struct dp_abort why;
    char byte;

    CHECK(!dp_comm_barrier(comm));
    if (!rank)
        dp_comm_set_deadline(comm, 500 * DP_NS_PER_MS);
    const int err = blocking_receive(comm, peer, 0, 0, &byte, 1);
    CHECK(err == (rank ? DP_EABORTED : DP_ETIMEDOUT));
    CHECK(dp_comm_aborted(comm, &why));
    CHECK(why.rank == 2 || why.rank == 3);
    CHECK(strstr(why.text, "rank 2, which waits for rank 3"));
    CHECK(strstr(why.text, "in a circle"));
    return 0;
}

/* ---- errors of a lost connection ------------------------------------------------------------- */

CASE(only_the_end_of_its_stream_says_that_a_process_has_ended)
{
    static const struct {
        struct dp_wire wire;
        const char *says;
    } cases[] = {
        {{.error = DP_ECOMM, .is_closed = true, .why = "the connection was closed"},
         "the process of rank 2 has ended (the connection was closed)"},
        {{.error = DP_ECOMM, .is_reset = true, .why = "Connection reset by peer"},
         "the process of rank 2 has ended, or the network has dropped its connection (Connection "
         "reset by peer)"},
        {{.error = DP_ECOMM, .why = "Connection timed out"},
         "the connection to rank 2 was lost (Connection timed out): its host or the network "
         "between "
         "is down"},
        {{.error = 0}, "rank 2 sent an invalid message"},
    };
    char text[232];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_wire wire = cases[i].wire;
        const struct dp_rendezvous_peer peer = {.wire = &wire};
        dp_rendezvous_describe_loss(&peer, 2, text, sizeof(text));
        assert_string_equal(text, cases[i].says);
    }
}

/* One rank returns from main after its last step, without a close; the others go on for a while. */
static int return_from_main(struct dp_comm *comm, void *arg)
{
    const int leaver = *(const int *)arg, rank = dp_comm_rank(comm);
    const int peer = 3 - leaver - rank; /* the third one */
    char byte = 0;

    CHECK(!dp_comm_barrier(comm));
    if (rank == leaver) {
        CHECK(!blocking_send(comm, (rank + 1) % 3, 0, 1, "last", 5));
        exit(0);
    }
    if (rank == (leaver + 1) % 3) {
        char last[5];
        CHECK(!blocking_receive(comm, leaver, 0, 1, last, 5) && !strcmp(last, "last"));
    }
    CHECK_ERROR(blocking_receive(comm, leaver, 1, 1, &byte, 1), DP_ECOMM, "has left the group");
    for (int i = 0; i < 100; i++) {
        CHECK(rank > peer || !blocking_send(comm, peer, 2, (uint64_t)i, &byte, 1));
        CHECK(!blocking_receive(comm, peer, 2, (uint64_t)i, &byte, 1));
        CHECK(rank < peer || !blocking_send(comm, peer, 2, (uint64_t)i, &byte, 1));
    }
    return 0;
}

static int fail_in_main(struct dp_comm *comm, void *arg)
{
    struct dp_abort why;
    char byte;

    if (dp_comm_rank(comm) == 1)
        exit(3);
    CHECK(blocking_receive(comm, 1, 0, 1, &byte, 1) == DP_EABORTED);
    CHECK(dp_comm_aborted(comm, &why) && why.rank == 1 && strstr(why.text, "has ended"));
    return 0;
}

CASE(a_rank_that_returns_from_main_has_left_unless_it_fails)
{
    int killed;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        for (int leaver = 0; kind->processes && leaver < 3; leaver++)
            assert_int_equal(kind->run(kind, 3, LONG_NS, return_from_main, &leaver, &killed), 0);
        if (kind->processes)
            assert_int_equal(kind->run(kind, 3, LONG_NS, fail_in_main, NULL, &killed), 1);
    }
}

/* One rank asks NCCL for what this release does not know; without a GPU none gets beyond that. */
static int open_nccl_of_a_later_release(struct dp_comm *comm, void *arg)
{
    const LATER(dp_nccl_config) config = {{.device = arg}, dp_comm_rank(comm) == 1};
    struct dp_comm *out;

    const int err = dp_comm_nccl_open_sized(comm, &config.known, &out, sizeof(config));
    CHECK(err == (config.unknown ? DP_EINVAL : DP_EABORTED));
    CHECK_SAYS("struct dp_nccl_config of");
    CHECK(!dp_comm_reset(comm));
    return dp_comm_barrier(comm);
}

CASE(what_nccl_is_asked_for_and_not_known_fails_on_all_ranks)
{
    struct dp_device device;

    dp_device_init(&device, NULL, (DLDevice){kDLCUDA, 0}, false);
    assert_int_equal(comm_on_threads(2, LONG_NS, open_nccl_of_a_later_release, &device), 0);
}
