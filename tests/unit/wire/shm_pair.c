/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "shm_pair.h"

#include "base/shared.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

void progress(struct dp_wire *wire)
{
    if (wire)
        wire->ops->progress(wire);
}

struct dp_wire *accept_one(struct dp_wire_listener *listener, struct dp_wire *other)
{
    const int64_t until = dp_now_ns() + LONG_NS;
    struct dp_wire *wire = NULL;
    uint64_t label;

    while (dp_wire_shm.accept(listener, &label, &wire) == DP_EAGAIN) {
        progress(other);
        assert_true(dp_now_ns() < until);
    }
    assert_non_null(wire);
    return wire;
}

struct pair make_pair(void)
{
    const int64_t until = dp_now_ns() + LONG_NS;
    struct dp_wire_address address;
    struct pair p = {.listener = NULL};

    /* otherwise the path of a message depends on the machine */
    setenv("DUALPIPE_WIRE_MEASURE", "0", 1);
    assert_int_equal(dp_wire_shm.listen(&(struct dp_wire_config){0}, &p.listener, &address), 0);
    assert_int_equal(dp_wire_shm.connect(&address, 0, &p.a), 0);
    p.b = accept_one(p.listener, p.a);
    while (!dp_shm_of(p.a)->cma.tried || !dp_shm_of(p.b)->cma.tried) {
        progress(p.a);
        progress(p.b);
        assert_true(dp_now_ns() < until);
    }
    return p;
}

void free_pair(struct pair *p)
{
    dp_wire_close(p->a);
    dp_wire_close(p->b);
    dp_wire_shm.unlisten(p->listener);
}

void finish(struct pair *p, const struct dp_wire_request *req)
{
    const int64_t until = dp_now_ns() + LONG_NS;

    while (req->status == DP_EAGAIN) {
        progress(p->a);
        progress(p->b);
        assert_true(dp_now_ns() < until);
    }
}

bool goes_straight(const struct pair *p)
{
    return dp_shm_of(p->a)->cma.reaches;
}

void fill(char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (char)(seed + i * 7 + (i >> 9) * 3);
}

bool is_filled(const char *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        if (buf[i] != (char)(seed + i * 7 + (i >> 9) * 3))
            return false;
    return true;
}

/* ---- messages -------------------------------------------------------------------------------- */

void send_one(struct pair *p, char *from, char *to, size_t len, unsigned seed)
{
    struct dp_wire_request send, receive;

    fill(from, len, seed);
    memset(to, 0, len);
    dp_wire_isend(p->a, seed, from, len, &send);
    dp_wire_irecv(p->b, to, len, &receive);
    finish(p, &receive);
    finish(p, &send);
    assert_true(!receive.status && !send.status);
    assert_int_equal(receive.moved, len);
    assert_int_equal(receive.tag, seed);
    assert_true(is_filled(to, len, seed));
}

unsigned send_sizes(struct pair *p, char *from, char *to)
{
    static const size_t lens[LENS] = {DP_SHM_LARGE, 200001, 524288, (1 << 20) + 1, 5000000, BIG};
    const unsigned before = dp_shm_of(p->a)->by_cma;

    for (unsigned i = 0; i < LENS; i++)
        send_one(p, from, to, lens[i], i);
    return dp_shm_of(p->a)->by_cma - before;
}

void move_alone(struct pair *p, char *from, char *to)
{
    struct dp_wire_request send, receive;

    fill(from, BIG, 1);
    dp_wire_isend(p->a, 1, from, BIG, &send);
    dp_wire_irecv(p->b, to, BIG, &receive);
    while (receive.status == DP_EAGAIN)
        progress(p->b); /* the sender computes */
    assert_true(is_filled(to, BIG, 1));
    assert_int_equal(send.status, DP_EAGAIN);
    finish(p, &send);

    fill(from, BIG, 2);
    dp_wire_isend(p->a, 1, from, BIG, &send);
    dp_wire_irecv(p->b, to, BIG, &receive); /* accepts, moves some, and then computes */
    assert_true(dp_shm_of(p->b)->is_taken);
    while (dp_cma_has_chunk(&dp_shm_of(p->a)->offered))
        progress(p->a);
    progress(p->b);
    assert_int_equal(receive.status, 0);
    assert_true(is_filled(to, BIG, 2));
    finish(p, &send);
}

void drop_receive(struct pair *p, char *from, char *to)
{
    struct dp_wire_request send, receive;

    fill(from, BIG, 1);
    dp_wire_isend(p->a, 1, from, BIG, &send);
    dp_wire_irecv(p->b, to, BIG, &receive);
    assert_true(dp_shm_of(p->b)->is_taken);
    progress(p->a);
    dp_wire_fail(p->b, DP_EABORTED, "aborted");
    memset(to, 'z', BIG);
    for (int i = 0; i < 100; i++)
        progress(p->a);
    for (size_t i = 0; i < BIG; i++)
        assert_int_equal(to[i], 'z');
    assert_int_equal(send.status, DP_EAGAIN);
    dp_wire_close(p->b);
    p->b = NULL;
    finish(p, &send);
    assert_int_equal(send.status, DP_ECOMM);
}

void drop_send(struct pair *p, char *from, char *to, void (*forget)(char *from))
{
    struct dp_wire_request send, receive;

    dp_wire_isend(p->a, 1, from, BIG, &send);
    dp_wire_irecv(p->b, to, BIG, &receive);
    dp_wire_fail(p->a, DP_EABORTED, "aborted");
    for (int i = 0; i < 100; i++)
        progress(p->b);
    assert_int_equal(receive.status, DP_EAGAIN);
    dp_wire_close(p->a);
    p->a = NULL;
    if (forget)
        forget(from);
    finish(p, &receive);
    assert_int_equal(receive.status, DP_ECOMM);
}

char *new_shared(size_t len)
{
    void *at;

    assert_int_equal(dp_shared_alloc(len, -1, &at), 0);
    return at;
}

pid_t start_child(const struct dp_wire_address *address, char *buf, bool sends)
{
    const bool is_shared = !buf;

    fflush(NULL);
    pid_t child = fork();
    if (child)
        return child;

    struct dp_wire_request req;
    struct dp_wire *wire;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is_shared)
        buf = new_shared(HUGE_MESSAGE);
    if (dp_wire_shm.connect(address, 0, &wire))
        _exit(1);
    while (!is_shared && !wire->error && !dp_cma_works(&dp_shm_of(wire)->cma))
        progress(wire);
    if (sends)
        dp_wire_isend(wire, 1, buf, HUGE_MESSAGE, &req);
    else
        dp_wire_irecv(wire, buf, HUGE_MESSAGE, &req);
    while (!wire->error && !dp_shm_of(wire)->is_taken && !dp_shm_of(wire)->is_offered)
        progress(wire);
    for (;;)
        pause();
}

bool has_moved_some(const struct dp_shm_wire *w)
{
    return (w->is_taken && w->taken.done) || (w->is_offered && w->offered.done);
}

void deny_copies(void)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof(steps) / sizeof(steps[0]), steps};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program, 0, 0))
        _exit(77);
}

int run_in_child(void (*fn)(void))
{
    int status;

    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
