/* SPDX-License-Identifier: Apache-2.0
 *
 * test_controller.c - one process that tells the others what to do, on every communicator.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"

#include <dualpipe/asyncpipe.h>

#define DEADLINE_NS INT64_C(20000000000)
#define SHORT_NS INT64_C(300000000)

enum { SIZE = 4, LARGE = 3 << 20 };

/* ---- functions of workers -------------------------------------------------------------------- */

enum { FUNCTIONS = 6 };

struct worker {
    int rank, calls;
    struct dp_comm *comm;
    struct dp_worker_function functions[FUNCTIONS];
};

/* The own rank, and the argument backwards. */
static int reverse(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    struct worker *w = user;
    const char *text = arg;
    int err = dp_reply_put(reply, &w->rank, sizeof(w->rank));

    w->calls++;
    for (size_t i = len; i-- > 0 && !err;)
        err = dp_reply_put(reply, &text[i], 1);
    return err;
}

static int large(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    return dp_reply_put(reply, arg, len);
}

/* Fails on odd ranks, after it has put something. */
static int fail_on_odd_ranks(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    const struct worker *w = user;
    struct dp_comm *none;

    if (w->rank % 2 == 0)
        return 0;
    dp_reply_put(reply, "part", 4);
    return dp_comm_open(&(struct dp_comm_config){.rank = w->rank, .size = 9, .transport = "rpc"},
                        &none);
}

/* A collective of the job's communicator, in which the controller takes part. */
static int add_ranks(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    struct worker *w = user;
    int64_t sum = w->rank;
    struct dp_request req;
    int err = dp_comm_iallreduce(w->comm, &sum, &sum, 1, (DLDataType){kDLInt, 64, 1},
                                 DP_REDUCE_SUM, &req);

    if (!err)
        err = dp_comm_wait(w->comm, &req, -1);
    return err ? err : dp_reply_put(reply, &sum, sizeof(sum));
}

static int fail_the_group(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    const struct worker *w = user;

    return w->rank == 2 ? dp_comm_abort(w->comm, DP_EIO, "the disk is full") : 0;
}

/* Until the group ends: the message never comes. */
static int wait_for_the_end(struct dp_comm *comm, int peer)
{
    struct dp_request req;
    char none;
    int err = dp_comm_irecv(comm, peer, DP_CHANNEL_REDUCE, 0, &none, sizeof(none), &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

/* Longer than the controller waits. */
static int be_slow(void *user, const void *arg, size_t len, struct dp_reply *reply)
{
    const struct worker *w = user;

    return w->rank == 3 ? wait_for_the_end(w->comm, 0) : 0;
}

static int open_controller(struct dp_comm *comm, struct worker *w, struct dp_controller **out)
{
    *w = (struct worker){.rank = dp_comm_rank(comm), .comm = comm,
                         .functions = {{"reverse", reverse, w},
                                       {"large", large, w},
                                       {"odd", fail_on_odd_ranks, w},
                                       {"add ranks", add_ranks, w},
                                       {"fail", fail_the_group, w},
                                       {"slow", be_slow, w}}};
    return dp_controller_open(&(struct dp_controller_config){.comm = comm,
                                                             .functions = w->functions,
                                                             .function_count = FUNCTIONS,
                                                             .max_bytes = LARGE},
                              out);
}

/* ---- calls ------------------------------------------------------------------------------------- */

static int check_reversed(struct dp_comm *comm, const struct dp_answer *answers, int first)
{
    for (int rank = first; rank < SIZE; rank++) {
        int told;
        CHECK(!answers[rank].error && answers[rank].len == sizeof(told) + 3);
        memcpy(&told, answers[rank].data, sizeof(told));
        CHECK(told == rank);
        CHECK(!memcmp((const char *)answers[rank].data + sizeof(told), "cba", 3));
    }
    CHECK(!first || answers[0].error == DP_EAGAIN);
    return 0;
}

static int call_small_and_large(struct dp_comm *comm, struct dp_controller *c)
{
    struct dp_answer answers[SIZE];
    FREED char *bytes = malloc(LARGE);

    CHECK(bytes && !dp_controller_foreach(c, "reverse", "abc", 3, true, 0, answers));
    CHECK(!check_reversed(comm, answers, 0));
    CHECK(!dp_controller_foreach(c, "reverse", "abc", 3, false, 0, answers));
    CHECK(!check_reversed(comm, answers, 1));
    CHECK(!dp_controller_foreach(c, "reverse", NULL, 0, true, 0, NULL));
    for (size_t i = 0; i < LARGE; i++)
        bytes[i] = (char)(i % 251);
    CHECK(!dp_controller_foreach(c, "large", bytes, LARGE, true, 0, answers));
    for (int rank = 0; rank < SIZE; rank++)
        CHECK(answers[rank].len == LARGE && !memcmp(answers[rank].data, bytes, LARGE));
    for (int rank = 0; rank < SIZE; rank++) {
        CHECK(!dp_controller_call(c, rank, "large", bytes, 7, 0, &answers[0]));
        CHECK(answers[0].len == 7 && !memcmp(answers[0].data, bytes, 7));
    }
    return 0;
}

static int call_collectives(struct dp_comm *comm, struct dp_controller *c)
{
    struct dp_answer answers[SIZE];
    int64_t sum;

    for (int i = 0; i < 3; i++) {
        CHECK(!dp_controller_foreach(c, "add ranks", NULL, 0, true, 0, answers));
        memcpy(&sum, answers[SIZE - 1].data, sizeof(sum));
        CHECK(sum == SIZE * (SIZE - 1) / 2);
    }
    return 0;
}

static void run_everywhere(rank_fn fn)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed;
        if (kind->run(kind, SIZE, DEADLINE_NS, fn, NULL, &killed))
            fail_msg("%s", kind->name);
    }
}

RANKS_CASE(a_function_is_called_on_every_worker_and_answers_come_in_order_of_ranks,
           run_everywhere(part))
{
    struct dp_controller *c;
    struct worker w;

    CHECK(!open_controller(comm, &w, &c));
    if (w.rank) {
        CHECK(!dp_controller_serve(c));
        CHECK(w.calls == 3);
    } else {
        CHECK(!call_small_and_large(comm, c));
        CHECK(!call_collectives(comm, c));
    }
    dp_controller_close(c);
    CHECK(!dp_comm_barrier(comm)); /* the communicator is as it was */
    return 0;
}

/* ---- errors of functions ----------------------------------------------------------------------- */

static int call_wrongly(struct dp_comm *comm, struct dp_controller *c)
{
    char name[DP_FUNCTION_NAME + 1];
    struct dp_answer a;

    memset(name, 'x', DP_FUNCTION_NAME);
    name[DP_FUNCTION_NAME] = '\0';
    CHECK(dp_controller_foreach(c, "", NULL, 0, true, 0, NULL) == DP_EINVAL);
    CHECK(dp_controller_foreach(c, name, NULL, 0, true, 0, NULL) == DP_EINVAL);
    CHECK_SAYS("expected a name of 1 to 63 characters");
    CHECK(dp_controller_foreach(c, "large", name, LARGE + 1, true, 0, NULL) == DP_EINVAL);
    CHECK_SAYS("expected at most 3145728");
    CHECK(dp_controller_call(c, SIZE, "large", NULL, 0, 0, &a) == DP_EINVAL);
    CHECK_SAYS("a call of rank 4, expected 0 to 3");
    CHECK(dp_controller_serve(c) == DP_ESTATE);
    return 0;
}

RANKS_CASE(a_function_that_fails_is_told_and_the_next_call_follows, run_everywhere(part))
{
    struct dp_answer answers[SIZE];
    struct dp_controller *c;
    struct worker w;

    CHECK(!open_controller(comm, &w, &c));
    if (w.rank) {
        CHECK(dp_controller_foreach(c, "odd", NULL, 0, true, 0, NULL) == DP_ESTATE);
        CHECK(!dp_controller_serve(c));
        dp_controller_close(c);
        return 0;
    }
    CHECK(!call_wrongly(comm, c));
    CHECK(dp_controller_foreach(c, "odd", NULL, 0, true, 0, answers) == DP_ECALLBACK);
    CHECK_SAYS("'odd' failed on 2 of 4 ranks, first on rank 1 with");
    CHECK_SAYS("transport 'rpc': expected auto, shm, tcp or mpi");
    for (int rank = 0; rank < SIZE; rank++) {
        CHECK(answers[rank].error == (rank % 2 ? DP_EINVAL : 0));
        CHECK(answers[rank].len == (rank % 2 ? 4 : 0));
        CHECK(!*answers[rank].text == !(rank % 2));
    }
    CHECK(dp_controller_call(c, 1, "nothing", NULL, 0, 0, NULL) == DP_ECALLBACK);
    CHECK_SAYS("rank 1 offers no function 'nothing'");
    CHECK(!dp_controller_foreach(c, "reverse", "abc", 3, false, 0, answers));
    CHECK(!check_reversed(comm, answers, 1));
    dp_controller_close(c);
    return 0;
}

/* ---- failures of the group -------------------------------------------------------------------- */

/* An abort must not meet a rank that has not opened its controller yet. */
static int know_that_all_serve(struct dp_comm *comm, struct dp_controller *c)
{
    CHECK(!dp_controller_foreach(c, "large", NULL, 0, false, 0, NULL));
    return 0;
}

RANKS_CASE(a_group_that_failed_is_served_again_after_a_reset, run_everywhere(part))
{
    struct dp_answer answers[SIZE];
    struct dp_controller *c;
    struct worker w;

    CHECK(!open_controller(comm, &w, &c));
    if (w.rank) {
        CHECK(dp_controller_serve(c) == DP_EABORTED);
    } else {
        CHECK(!know_that_all_serve(comm, c));
        CHECK(dp_controller_foreach(c, "fail", NULL, 0, false, 0, answers) == DP_EABORTED);
    }
    CHECK(!dp_comm_reset(comm));
    if (w.rank)
        CHECK(!dp_controller_serve(c));
    else
        CHECK(!dp_controller_foreach(c, "add ranks", NULL, 0, true, 0, answers));
    dp_controller_close(c);
    return 0;
}

RANKS_CASE(a_worker_that_does_not_answer_in_time_is_named, run_everywhere(part))
{
    struct dp_answer answers[SIZE];
    struct dp_controller *c;
    struct worker w;

    CHECK(!open_controller(comm, &w, &c));
    if (w.rank) {
        CHECK(dp_controller_serve(c) == DP_EABORTED);
    } else {
        CHECK(!know_that_all_serve(comm, c));
        CHECK(dp_controller_foreach(c, "slow", NULL, 0, false, SHORT_NS, answers) ==
              DP_ETIMEDOUT);
        CHECK_SAYS("rank 3");
        CHECK(answers[0].error == DP_EAGAIN && !answers[2].error);
        CHECK(answers[3].error == DP_EAGAIN);
    }
    dp_controller_close(c);
    return 0;
}

RANKS_CASE(a_worker_waits_for_calls_no_longer_than_it_was_told, run_everywhere(part))
{
    struct dp_controller *c;

    CHECK(!dp_controller_open(
        &(struct dp_controller_config){.comm = comm, .idle_ns = SHORT_NS}, &c));
    (void)dp_comm_barrier(comm); /* all have opened; one may have ended it by now */
    if (dp_comm_rank(comm)) {
        const int err = dp_controller_serve(c);
        CHECK(err == DP_ETIMEDOUT || err == DP_EABORTED); /* one was first */
    } else {
        CHECK(wait_for_the_end(comm, 1) == DP_EABORTED);
    }
    dp_controller_close(c);
    return 0;
}

static int open_wrongly(struct dp_comm *comm, void *arg)
{
    static const struct dp_worker_function twice[] = {{"large", large, NULL},
                                                      {"large", large, NULL}};
    struct dp_controller *c = NULL;
    const int bad = dp_comm_rank(comm) == 1;

    int err = dp_controller_open(
        &(struct dp_controller_config){.comm = comm, .functions = twice,
                                       .function_count = bad ? 2 : 1},
        &c);
    CHECK(err == DP_EINVAL && !c);
    CHECK_SAYS("functions[1]: the name 'large' is there twice");
    const LATER(dp_controller_config) later = {{.comm = comm}, bad};
    CHECK(dp_controller_open_sized(&later.known, &c, sizeof(later)) == DP_EINVAL && !c);
    CHECK_SAYS("struct dp_controller_config of");
    CHECK(!dp_controller_open(&later.known, &c));
    dp_controller_close(c);
    return 0;
}

static int open_differently(struct dp_comm *comm, void *arg)
{
    struct dp_controller *c = NULL;

    CHECK(dp_controller_open(&(struct dp_controller_config){
                                 .comm = comm, .max_bytes = 1 + (size_t)dp_comm_rank(comm)},
                             &c) == DP_EMISMATCH);
    CHECK(!c);
    return 0;
}

CASE(what_is_wrong_with_a_controller_is_known_everywhere)
{
    assert_int_equal(comm_on_threads(SIZE, DEADLINE_NS, open_wrongly, NULL), 0);
    assert_int_equal(comm_on_threads(SIZE, DEADLINE_NS, open_differently, NULL), 0);
}

RUN_QUIET_CASES(NULL, NULL)
