/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_grow.c - processes that join a group which has lost some; over threads, shared memory
 * and TCP. The new ones are always processes, and find the group by a store in shared memory.
 */
#include "cmocka_all.h"
#include "comm_cases.h"

#include "base/clock.h"
#include "comm/comm_core.h"

#include <dualpipe/survival.h>

#include <stdatomic.h>
#include <sys/mman.h>

static const int64_t LONG_NS = 60 * DP_NS_PER_S;
static const DLDataType int64 = {kDLInt, 64, 1};

enum { OLD = 4, NEW = 2, MAX_NEW = 4 };

/* ---- a store --------------------------------------------------------------------------------- */

struct store {
    atomic_size_t len; /* 0: empty */
    char value[1000];
};

static int put(void *user, const char *key, const void *value, size_t len)
{
    struct store *s = user;

    if (len > sizeof(s->value) || strcmp(key, "dualpipe/rendezvous"))
        return DP_EINVAL;
    memcpy(s->value, value, len);
    atomic_store(&s->len, len);
    return 0;
}

static int get(void *user, const char *key, void *value, size_t *len)
{
    struct store *s = user;
    const size_t there = atomic_load(&s->len);

    if (!there)
        return DP_EAGAIN;
    *len = there < *len ? there : *len;
    memcpy(value, s->value, *len);
    return 0;
}

/* What a case is about, in memory that all its processes share. */
struct grown {
    struct store store;
    unsigned dead; /* of the old ranks */
    int admitted;  /* how many new ones the old ranks expect */
};

static struct grown *new_grown(unsigned dead, int admitted)
{
    struct grown *g =
        mmap(NULL, sizeof(*g), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(g, MAP_FAILED);
    g->dead = dead;
    g->admitted = admitted;
    return g;
}

static struct dp_comm_store store_of(struct grown *g)
{
    return (struct dp_comm_store){.user = &g->store, .put = put, .get = get};
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static bool is_thread(const struct dp_comm *comm)
{
    return !strcmp(dp_comm_name(comm), "threads");
}

static int die(struct dp_comm *comm)
{
    if (!is_thread(comm))
        raise(SIGKILL);
    dp_comm_threads_die(comm);
    return 0;
}

/* All ranks of a group are full members: collectives, messages both ways in the ring. */
static int check_members(struct dp_comm *comm, int size)
{
    const int rank = dp_comm_rank(comm), next = (rank + 1) % size, back = (rank + size - 1) % size;
    int64_t one = 1 + rank, sum = 0;
    struct dp_request reqs[2];
    int got = -1;

    CHECK(dp_comm_size(comm) == size);
    CHECK(!dp_comm_iallreduce(comm, &one, &sum, 1, int64, DP_REDUCE_SUM, &reqs[0]));
    CHECK(!dp_comm_wait(comm, &reqs[0], -1));
    CHECK(sum == (int64_t)size * (size + 1) / 2);
    CHECK(!dp_comm_isend(comm, next, 0, 7, &rank, sizeof(rank), &reqs[0]));
    CHECK(!dp_comm_irecv(comm, back, 0, 7, &got, sizeof(got), &reqs[1]));
    CHECK(!dp_comm_wait(comm, &reqs[1], back) && got == back);
    CHECK(!dp_comm_wait(comm, &reqs[0], next));
    return dp_comm_barrier(comm);
}

/* The grown group survives, too: the last of the new ranks dies, and the others go on. */
static int be_member(struct dp_comm *comm, int size)
{
    struct dp_comm *survivors;

    CHECK(!check_members(comm, size));
    CHECK(!dp_comm_survive(comm));
    if (dp_comm_rank(comm) == size - 1)
        raise(SIGKILL);
    CHECK(dp_comm_barrier(comm) == DP_ECOMM);
    CHECK(!dp_comm_shrink(comm, &survivors));
    CHECK(!check_members(survivors, size - 1));
    dp_comm_close(survivors);
    return 0;
}

static int count_live(unsigned dead)
{
    int live = 0;

    for (int i = 0; i < OLD; i++)
        live += !(dead >> i & 1);
    return live;
}

static int lose_and_grow(struct dp_comm *comm, void *arg)
{
    struct grown *g = arg;
    const struct dp_comm_store store = store_of(g);
    const struct dp_comm_config config = {
        .store = &store, .transport = is_thread(comm) ? "auto" : dp_comm_name(comm),
        .timeout_ns = LONG_NS,
    };
    const unsigned dead = g->dead, below = (1u << dp_comm_rank(comm)) - 1;
    struct dp_comm *grown;

    const int err = dp_comm_survive(comm);
    if (err == DP_EUNSUPPORTED) {
        CHECK_ERROR(dp_comm_grow(comm, 1, &config, &grown), DP_EUNSUPPORTED, "the transport mpi");
        return 0;
    }
    CHECK(!err);
    if (dead >> dp_comm_rank(comm) & 1)
        return die(comm);
    CHECK(!dead || dp_comm_barrier(comm) == DP_ECOMM);
    CHECK(!dp_comm_grow(comm, g->admitted, &config, &grown));
    CHECK(dp_comm_rank(grown) == dp_comm_rank(comm) - __builtin_popcount(dead & below));
    const int failed = be_member(grown, count_live(dead) + g->admitted);
    dp_comm_close(grown);
    CHECK(!failed);
    return 0;
}

/* ---- new processes --------------------------------------------------------------------------- */

static int be_new(struct grown *g, const char *transport)
{
    const struct dp_comm_store store = store_of(g);
    const struct dp_comm_config config = {
        .store = &store, .transport = transport, .timeout_ns = LONG_NS};
    struct dp_comm *comm;

    setenv("DUALPIPE_WIRE_MEASURE", "0", 1);
    if (dp_comm_join(&config, &comm)) {
        printf("a new process: %s\n", dp_last_error());
        return -1;
    }
    CHECK(dp_comm_rank(comm) >= count_live(g->dead));
    const int failed = be_member(comm, count_live(g->dead) + g->admitted);
    dp_comm_close(comm);
    return failed;
}

static void start_new(struct grown *g, const char *transport, pid_t *children)
{
    fflush(NULL);
    for (int i = 0; i < g->admitted; i++) {
        children[i] = fork();
        if (!children[i]) {
            const int failed = be_new(g, transport);
            fflush(NULL);
            _exit(failed ? 1 : 0);
        }
    }
}

/* One of them dies as it should. */
static void end_new(const struct grown *g, const pid_t *children)
{
    int killed = 0;

    for (int i = 0; i < g->admitted; i++) {
        int status = -1;
        waitpid(children[i], &status, 0);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            killed++;
        else
            assert_int_equal(status, 0);
    }
    assert_int_equal(killed, 1);
}

static void grow_on(const struct comm_kind *kind, unsigned dead, int admitted)
{
    struct grown *g = new_grown(dead, admitted);
    const int expected = kind->processes ? OLD - count_live(dead) : 0;
    pid_t children[MAX_NEW];
    int killed;
    const bool can_grow = strcmp(kind->name, "mpi");

    if (can_grow)
        start_new(g, kind->processes ? kind->name : "auto", children);
    const int failed = kind->run(kind, OLD, LONG_NS, lose_and_grow, g, &killed);
    if (failed != expected || killed != expected)
        fail_msg("%s: %d of %d ranks failed, %d were killed, expected %d", kind->name, failed, OLD,
                 killed, expected);
    if (can_grow)
        end_new(g, children);
    munmap(g, sizeof(*g));
}

CASE(new_processes_take_the_places_after_the_survivors)
{
    static const unsigned dead[] = {0, 1u << 0, 1u << 1 | 1u << 3};

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (size_t i = 0; i < sizeof(dead) / sizeof(dead[0]) && !kind->by_ring; i++)
            grow_on(kind, dead[i], NEW);
}

CASE(one_survivor_grows_to_a_group)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        if (kind->processes && !kind->by_ring)
            grow_on(kind, 1u << 0 | 1u << 1 | 1u << 2, 3);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Nobody joins, or one rank cannot. The old group is as it was. */
static int grow_in_vain(struct dp_comm *comm, void *arg)
{
    struct grown *g = arg;
    const struct dp_comm_store store = store_of(g);
    const struct dp_comm_config config = {.store = &store, .timeout_ns = DP_NS_PER_S};
    struct dp_comm *grown, *survivors;

    const int err = dp_comm_survive(comm);
    if (err == DP_EUNSUPPORTED)
        return 0;
    CHECK(!err);
    const LATER(dp_comm_config) later = {config, dp_comm_rank(comm) == 1};
    CHECK(dp_comm_grow_sized(comm, 1, &later.known, &grown, sizeof(later)) == DP_EINVAL);
    CHECK_SAYS(later.unknown ? "struct dp_comm_config of" : "another rank's config was refused");
    const int got = dp_comm_grow(comm, 1, &config, &grown);
    CHECK(got == DP_ETIMEDOUT || got == DP_ECOMM);
    CHECK(dp_comm_rank(comm) || got == DP_ETIMEDOUT);
    CHECK(!dp_comm_shrink(comm, &survivors));
    CHECK(!check_members(survivors, dp_comm_size(comm)));
    dp_comm_close(survivors);
    return 0;
}

CASE(without_a_new_process_the_deadline_ends_it_and_the_group_stays)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        struct grown *g = new_grown(0, 1);
        int killed;
        if (!kind->by_ring)
            assert_int_equal(kind->run(kind, OLD, LONG_NS, grow_in_vain, g, &killed), 0);
        munmap(g, sizeof(*g));
    }
}

/* A group of one, in this process, grows by a process that has its secret. */
CASE(a_process_with_another_secret_is_refused)
{
    struct grown *g = new_grown(0xe, 1);
    const struct dp_comm_store store = store_of(g);
    struct dp_comm_config config = {.store = &store, .timeout_ns = LONG_NS, .secret = "abc"};
    struct dp_comm *alone, *comm;
    int status;

    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        config.secret = "xyz";
        const int refused = dp_comm_join(&config, &comm);
        const bool says = strstr(dp_last_error(), "the secret is not the same");
        config.secret = "abc";
        const int err = dp_comm_join(&config, &comm);
        if (!err)
            dp_comm_close(comm);
        _exit(refused == DP_EMISMATCH && says && !err ? 0 : 1);
    }
    assert_int_equal(dp_comm_threads_new(1, &alone), 0);
    assert_int_equal(dp_comm_survive(alone), 0);
    assert_int_equal(dp_comm_grow(alone, 1, &config, &comm), 0);
    assert_int_equal(dp_comm_size(comm), 2);
    dp_comm_close(comm);
    dp_comm_close(alone);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    munmap(g, sizeof(*g));
}

CASE(bad_arguments_are_refused)
{
    struct dp_comm_config config = {.address = "127.0.0.1:1", .timeout_ns = DP_NS_PER_S};
    struct dp_comm *alone, *comm;

    assert_int_equal(dp_comm_threads_new(1, &alone), 0);
    assert_int_equal(dp_comm_grow(alone, 1, &config, &comm), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "expected a group that survives"));
    assert_int_equal(dp_comm_survive(alone), 0);
    assert_int_equal(dp_comm_grow(NULL, 1, &config, &comm), DP_EINVAL);
    assert_int_equal(dp_comm_grow(alone, 0, &config, &comm), DP_EINVAL);
    assert_int_equal(dp_comm_grow(alone, 1, NULL, &comm), DP_EINVAL);
    assert_int_equal(dp_comm_grow(alone, 1, &config, NULL), DP_EINVAL);
    assert_int_equal(dp_comm_join(NULL, &comm), DP_EINVAL);
    config.size = 2;
    assert_int_equal(dp_comm_grow(alone, 1, &config, &comm), DP_EINVAL);
    expect_error(dp_comm_join(&config, &comm), DP_EINVAL, "rank, size and listener 0");
    config.size = 0;
    config.transport = "mpi";
    assert_int_equal(dp_comm_join(&config, &comm), DP_EUNSUPPORTED);
    config.transport = "pigeon";
    assert_int_equal(dp_comm_join(&config, &comm), DP_EINVAL);
    config = (struct dp_comm_config){.timeout_ns = DP_NS_PER_S};
    expect_error(dp_comm_join(&config, &comm), DP_EINVAL, "no address");
    dp_comm_close(alone);
}
