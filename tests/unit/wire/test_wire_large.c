/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire_large.c - messages that two processes copy directly from one to the other, over shared
 * memory: either of them alone, both, neither; and what happens to the memory when one of them
 * ends. (test_wire.c has what every wire must do, with and without this.)
 */
#include "cmocka_all.h"

#include "shm_pair.h"

#include "base/clock.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void need_right(struct pair *p)
{
    if (goes_straight(p))
        return;
    free_pair(p);
    skip_because("processes may not copy from each other's memory here");
}

static char out[BIG], in[BIG];

/* ---- which side copies ----------------------------------------------------------------------- */

CASE(large_messages_go_straight)
{
    ENDED_BY(free_pair) struct pair p = make_pair();

    need_right(&p);
    assert_int_equal(send_sizes(&p, out, in), LENS);
}

CASE(the_user_may_forbid_it)
{
    setenv("DUALPIPE_WIRE_CMA", "0", 1);
    ENDED_BY(free_pair) struct pair p = make_pair();
    unsetenv("DUALPIPE_WIRE_CMA");

    assert_false(goes_straight(&p));
    assert_int_equal(send_sizes(&p, out, in), 0);
}

static void send_denied(void)
{
    deny_copies();
    ENDED_BY(free_pair) struct pair p = make_pair();
    if (goes_straight(&p))
        _exit(1);
    assert_int_equal(send_sizes(&p, out, in), 0);
}

static void send_denied_in_the_middle(void)
{
    ENDED_BY(free_pair) struct pair p = make_pair();
    assert_int_equal(send_sizes(&p, out, in), goes_straight(&p) ? LENS : 0);
    deny_copies();
    assert_int_equal(send_sizes(&p, out, in), 0);
}

CASE(where_the_system_denies_it_the_ring_serves)
{
    int status = run_in_child(send_denied);

    if (status == 77)
        skip_because("this system allows no seccomp filter, which would deny copies");
    assert_int_equal(status, 0);
    assert_int_equal(run_in_child(send_denied_in_the_middle), 0);
}

CASE(either_side_alone_moves_all_chunks)
{
    ENDED_BY(free_pair) struct pair p = make_pair();

    need_right(&p);
    move_alone(&p, out, in);
}

/* By these counts a rank knows that it should not sleep in the middle of a message. */
CASE(calls_that_move_bytes_are_counted)
{
    for (int direct = 0; direct < 2; direct++) {
        setenv("DUALPIPE_WIRE_CMA", direct ? "1" : "0", 1);
        ENDED_BY(free_pair) struct pair p = make_pair();
        unsetenv("DUALPIPE_WIRE_CMA");
        struct dp_wire_request send, receive;
        dp_wire_isend(p.a, 1, out, BIG, &send);
        dp_wire_irecv(p.b, in, BIG, &receive);
        finish(&p, &receive);
        finish(&p, &send);
        const unsigned a = dp_wire_moves(p.a), b = dp_wire_moves(p.b);
        assert_true(a > 1 && b > 1);
        for (int i = 0; i < 10; i++) {
            progress(p.a);
            progress(p.b);
        }
        assert_true(dp_wire_moves(p.a) == a && dp_wire_moves(p.b) == b);
    }
}

/* ---- memory that no other process can copy ------------------------------------------------------ */

static char *secret_memory(size_t len)
{
#ifdef SYS_memfd_secret
    int fd = (int)syscall(SYS_memfd_secret, 0);
    void *at = MAP_FAILED;

    if (fd >= 0 && !ftruncate(fd, (off_t)len))
        at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
#else
    return NULL;
#endif
}

CASE(memory_that_cannot_be_copied_straight_goes_through_the_ring)
{
    enum { LEN = 300000, TIMES = 6 };
    char *secret = secret_memory(LEN);
    struct pair p = make_pair();

    if (!secret) {
        free_pair(&p);
        skip_because("this kernel has no secret memory (memfd_secret)");
    }
    for (unsigned i = 0; i < 2 * TIMES; i++) {
        const bool from = i < TIMES;
        struct dp_wire_request send, receive;
        char *source = from ? secret : out, *target = from ? in : secret;
        fill(source, LEN, i);
        dp_wire_isend(p.a, i, source, LEN, &send);
        dp_wire_irecv(p.b, target, LEN, &receive);
        finish(&p, &receive);
        finish(&p, &send);
        assert_true(!send.status && !receive.status);
        assert_true(is_filled(target, LEN, i));
    }
    assert_int_equal(dp_shm_of(p.a)->by_cma, 0);
    munmap(secret, LEN);
    free_pair(&p);
}

/* ---- ends ---------------------------------------------------------------------------------- */

CASE(no_peer_writes_into_a_receive_that_was_dropped)
{
    ENDED_BY(free_pair) struct pair p = make_pair();

    need_right(&p);
    drop_receive(&p, out, in);
}

CASE(a_send_that_was_dropped_is_never_received)
{
    ENDED_BY(free_pair) struct pair p = make_pair();

    need_right(&p);
    drop_send(&p, out, in, NULL);
}

/* false: this process may not copy from and to the child's memory. */
static bool kill_in_the_middle(bool child_sends)
{
    const int64_t until = dp_now_ns() + LONG_NS;
    char *buf = mmap(NULL, HUGE_MESSAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct dp_wire_address address;
    struct pair p = {.listener = NULL};
    struct dp_wire_request req;
    int status;

    assert_ptr_not_equal(buf, MAP_FAILED);
    assert_int_equal(dp_wire_shm.listen(&(struct dp_wire_config){0}, &p.listener, &address), 0);
    pid_t child = start_child(&address, buf, child_sends);
    p.b = accept_one(p.listener, NULL);
    while (!dp_shm_of(p.b)->cma.tried && dp_now_ns() < until)
        progress(p.b);
    const bool reaches = dp_shm_of(p.b)->cma.reaches;
    if (child_sends)
        dp_wire_irecv(p.b, buf, HUGE_MESSAGE, &req);
    else
        dp_wire_isend(p.b, 1, buf, HUGE_MESSAGE, &req);
    while (reaches && !has_moved_some(dp_shm_of(p.b)) && dp_now_ns() < until)
        progress(p.b);
    assert_int_equal(req.status, DP_EAGAIN);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    finish(&p, &req);
    assert_int_equal(req.status, DP_ECOMM);
    free_pair(&p);
    munmap(buf, HUGE_MESSAGE);
    return reaches;
}

CASE(a_process_killed_in_the_middle_of_a_message_breaks_the_wire)
{
    if (!kill_in_the_middle(true) || !kill_in_the_middle(false))
        skip_because("processes may not copy from each other's memory here");
}

/* A child that inherits an end has other memory at the same addresses. */
CASE(a_child_that_inherits_a_wire_sends_and_receives_its_own_memory)
{
    ENDED_BY(free_pair) struct pair p = make_pair();
    struct dp_wire_request send, receive;
    int status;

    fill(out, BIG, 1);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dp_wire_irecv(p.b, in, BIG, &receive);
        while (receive.status == DP_EAGAIN)
            progress(p.b);
        bool good = !receive.status && is_filled(in, BIG, 1);
        fill(out, BIG, 2);
        dp_wire_isend(p.b, 1, out, BIG, &send);
        while (send.status == DP_EAGAIN)
            progress(p.b);
        _exit(!good || send.status);
    }
    dp_wire_close(p.b);
    p.b = NULL;
    dp_wire_isend(p.a, 1, out, BIG, &send);
    finish(&p, &send);
    dp_wire_irecv(p.a, in, BIG, &receive);
    finish(&p, &receive);
    assert_true(!send.status && !receive.status);
    assert_true(is_filled(in, BIG, 2));
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
}

/* The receiver has all of the message, or only some, and the sender does not know. */
static void let_a_child_close(struct pair *p, bool has_all)
{
    struct dp_wire_request send, receive;
    int status;

    fill(out, BIG, 1);
    dp_wire_isend(p->a, 1, out, BIG, &send);
    dp_wire_irecv(p->b, in, BIG, &receive);
    while (has_all && receive.status == DP_EAGAIN)
        progress(p->b);
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        alarm(60);
        dp_wire_close(p->a);
        dp_wire_close(p->b);
        _exit(0);
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    finish(p, &receive);
    finish(p, &send);
    assert_true(!send.status && !receive.status && is_filled(in, BIG, 1));
}

CASE(a_child_that_closes_a_wire_leaves_its_parents_messages_alone)
{
    ENDED_BY(free_pair) struct pair p = make_pair();

    need_right(&p);
    for (unsigned i = 1; i <= 2; i++) {
        let_a_child_close(&p, i == 2);
        assert_int_equal(dp_shm_of(p.a)->by_cma, 2 * i - 1);
        send_one(&p, out, in, BIG, 2); /* and not the first one again */
    }
}

/* ---- a process whose first thread has ended ------------------------------------------------------ */

struct rest {
    struct dp_wire_address address;
    int in; /* ends once the first thread may */
};

static void *send_later(void *arg)
{
    const struct rest *rest = arg;
    struct dp_wire_request send;
    struct dp_wire *wire;

    if (dp_wire_shm.connect(&rest->address, 0, &wire))
        _exit(1);
    while (!wire->error && !dp_cma_works(&dp_shm_of(wire)->cma))
        progress(wire);
    dp_wire_isend(wire, 1, out, BIG, &send);
    while (send.status == DP_EAGAIN)
        progress(wire);
    _exit(send.status != 0);
}

static void leave_the_rest(struct rest *rest)
{
    pthread_t thread;
    char byte;

    alarm(60);
    if (pthread_create(&thread, NULL, send_later, rest))
        _exit(1);
    (void)!read(rest->in, &byte, 1);
    pthread_exit(NULL);
}

static bool has_first_thread(pid_t pid)
{
    char path[40], line[200] = "";

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    const char *name_end = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
    fclose(f);
    assert_non_null(name_end);
    return name_end[2] != 'Z';
}

/* The kernel returns for the memory of that process what it returns where there is none. */
CASE(a_process_whose_first_thread_has_ended_still_sends)
{
    const int64_t until = dp_now_ns() + LONG_NS;
    struct pair p = {.listener = NULL};
    struct dp_wire_request receive;
    struct rest rest;
    int ends[2], status;

    fill(out, BIG, 1);
    memset(in, 0, BIG);
    assert_int_equal(pipe(ends), 0);
    rest.in = ends[0];
    assert_int_equal(dp_wire_shm.listen(&(struct dp_wire_config){0}, &p.listener, &rest.address), 0);
    fflush(NULL);
    const pid_t child = fork();
    if (!child)
        leave_the_rest(&rest);
    p.b = accept_one(p.listener, NULL);
    while (!dp_shm_of(p.b)->cma.tried && dp_now_ns() < until)
        progress(p.b);
    const bool reaches = dp_shm_of(p.b)->cma.reaches;
    assert_int_equal(write(ends[1], "", 1), 1);
    while (has_first_thread(child))
        assert_true(dp_now_ns() < until);
    if (!reaches)
        kill(child, SIGKILL);
    dp_wire_irecv(p.b, in, BIG, &receive);
    finish(&p, &receive);
    free_pair(&p);
    waitpid(child, &status, 0);
    close(ends[0]);
    close(ends[1]);
    if (!reaches)
        skip_because("processes may not copy from each other's memory here");
    assert_int_equal(status, 0);
    assert_true(!receive.status && is_filled(in, BIG, 1));
}
