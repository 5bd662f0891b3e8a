/* SPDX-License-Identifier: Apache-2.0
 *
 * test_cma.c - cross-memory attach never accesses another process than the peer, even if the peer's
 * process ID is reused. (test_wire_large.c has the messages that are transferred so.)
 */
#include "cmocka_all.h"

#include "shm_pair.h"

#include "wire/cma.h"

#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { LEN = 1 << 20 };
static char out[LEN], in[LEN];

struct common {
    struct dp_cma_identity identities[2];
    struct dp_cma_transfer transfer;
};

/* A process with this number, or any if it is 0; DP_EUNSUPPORTED if that cannot be chosen. */
static pid_t fork_as(pid_t number)
{
    struct clone_args how = {
        .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1};

    fflush(NULL);
    const pid_t pid = number ? (pid_t)syscall(SYS_clone3, &how, sizeof(how)) : fork();
    return pid < 0 ? DP_EUNSUPPORTED : pid;
}

/* A process whose `in` is filled, at the address where this process has its own. Its exit status
 * tells whether `in` is unchanged when *go is closed. With an identity it publishes itself. */
static pid_t start_filled(pid_t number, struct dp_cma_identity *identity, int *go)
{
    static uint64_t token;
    int ready[2], ends[2];
    char byte;

    assert_true(!pipe(ready) && !pipe(ends));
    const pid_t pid = fork_as(number);
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[1]);
        fill(in, LEN, 7);
        token = identity ? 77 : 0;
        if (identity) {
            identity->pid = (uint32_t)getpid();
            identity->token_at = (uintptr_t)&token;
            identity->token = token;
            dp_cma_guards(identity->guards);
            atomic_store(&identity->ready, 1);
        }
        (void)!write(ready[1], "", 1);
        (void)!read(ends[0], &byte, 1);
        _exit(!is_filled(in, LEN, 7));
    }
    close(ready[1]);
    close(ends[0]);
    *go = ends[1];
    (void)!read(ready[0], &byte, 1); /* or its end */
    close(ready[0]);
    return pid;
}

static int end_of(pid_t pid, int go)
{
    int status;

    close(go);
    waitpid(pid, &status, 0);
    return status;
}

/* Push to `in` of the other process, and pull from there. */
static void copy_both_ways(struct dp_cma *cma, struct dp_cma_transfer *transfer,
                           struct dp_cma_part *push, struct dp_cma_part *pull, int *pulled)
{
    fill(out, LEN, 8);
    dp_cma_offer(push, transfer, out, LEN, false);
    push->there = (uintptr_t)in;
    assert_int_equal(dp_cma_push(cma, push), 0);
    dp_cma_offer(pull, transfer, out, LEN, false);
    dp_cma_take(pull, transfer, (uintptr_t)in, out, LEN, false);
    *pulled = dp_cma_pull(cma, pull);
}

/* n processes; each connection's first side is `from`, and the other one decides after it. Returns
 * how many connections have a side that lets the other in. */
static int count_reached(int n, int connections, const int (*pairs)[2])
{
    struct dp_cma_rights rights[8] = {{.pid = 0}};
    int count = 0;

    assert_in_range(n, 1, 8);
    for (int i = 0; i < connections; i++) {
        const int a = pairs[i][0], b = pairs[i][1];
        const uint32_t pid[2] = {100 + (uint32_t)a, 100 + (uint32_t)b};
        const bool first = dp_cma_choose(&rights[a], pid[0], pid[1], false);
        count += dp_cma_choose(&rights[b], pid[1], pid[0], first) || first;
    }
    return count;
}

CASE(under_yama_both_connections_of_a_process_in_a_ring_are_reached)
{
    static const int ring[][2] = {{0, 1}, {1, 2}, {2, 3}, {3, 0}};
    static const int mixed[][2] = {{0, 1}, {2, 1}, {2, 3}, {3, 0}};
    static const int star[][2] = {{0, 1}, {0, 2}, {0, 3}, {0, 4}};
    static const int all[][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};

    assert_int_equal(count_reached(4, 4, ring), 4);
    assert_int_equal(count_reached(4, 4, mixed), 3); /* not all to the next one */
    assert_int_equal(count_reached(5, 4, star), 4);
    assert_int_equal(count_reached(4, 6, all), 4); /* as many as processes */
}

CASE(under_yama_a_process_lets_in_one_other)
{
    struct dp_cma_rights r = {.pid = 0};

    assert_false(dp_cma_choose(&r, 10, 10, false)); /* itself needs no right */
    assert_false(dp_cma_choose(&r, 10, 11, true));  /* it lets us in */
    assert_false(dp_cma_choose(&r, 10, 11, false)); /* a second connection to it */
    assert_true(dp_cma_choose(&r, 10, 12, false));
    assert_true(dp_cma_choose(&r, 10, 12, false));
    assert_false(dp_cma_choose(&r, 10, 13, false));
    assert_false(dp_cma_release(&r, 20, 12)); /* a child of 10 closes its copy */
    assert_false(dp_cma_release(&r, 10, 12)); /* the first of two connections to it */
    assert_false(dp_cma_choose(&r, 10, 13, false));
    assert_true(dp_cma_release(&r, 10, 12));
    assert_true(dp_cma_choose(&r, 10, 13, false));
    assert_true(dp_cma_choose(&r, 20, 13, false)); /* a child of 10 */
}

CASE(a_process_that_has_got_the_peers_number_is_not_written_to)
{
    struct common *c =
        mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct dp_cma_part push, pull;
    int go, pulled;

    assert_ptr_not_equal(c, MAP_FAILED);
    const pid_t peer = start_filled(0, &c->identities[1], &go);
    struct dp_cma cma = {.pid = (uint32_t)getpid(), .peer_pid = (uint32_t)peer,
                         .mine = &c->identities[0], .theirs = &c->identities[1]};
    dp_cma_try(&cma);
    if (cma.reaches) {
        copy_both_ways(&cma, &c->transfer, &push, &pull, &pulled);
        assert_true(!pulled && push.done == push.count && pull.done == pull.count);
        assert_true(is_filled(out, LEN, 8));
    }
    assert_int_equal(end_of(peer, go), cma.reaches ? 1 << 8 : 0);
    const pid_t stranger = cma.reaches ? start_filled(peer, NULL, &go) : DP_EUNSUPPORTED;
    if (stranger == peer) {
        copy_both_ways(&cma, &c->transfer, &push, &pull, &pulled);
        assert_true(push.done == 0 && pull.done == 0);
        assert_int_equal(pulled, DP_ECOMM);
    }
    munmap(c, sizeof(*c));
    if (!cma.reaches)
        skip_because("processes may not copy from each other's memory here");
    if (stranger < 0)
        skip_because("this user may not choose the number of a process");
    assert_int_equal(stranger, peer);
    assert_int_equal(end_of(stranger, go), 0);
}
