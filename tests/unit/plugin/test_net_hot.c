/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_hot.c - transferring a message allocates no memory, over any wire, and over shared
 * memory makes no system call either: the kernel kills a process that makes one. The exception is a
 * check, once in thousands of polls without result, whether the peer is alive. What a waiting
 * thread asks the scheduler once a tick (net/slice.h) is left out here.
 */
#include "config.h" /* HAVE_VERBS */

#include "cmocka_all.h"
#include "unit/base/failing_memory.h"

#include "base/clock.h"
#include "nccl-plugin/net/net.h"
#ifdef HAVE_VERBS
#include "fake_fabric.h"
#endif

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_INSTRUMENTED true /* a sanitizer makes calls of its own */
#else
#define IS_INSTRUMENTED false
#endif

/* In the child: report a condition that does not hold, and exit. */
#define must(so) must_be((so), #so, __LINE__)
static void must_be(bool so, const char *what, int line)
{
    if (so)
        return;
    printf("line %d: not so: %s: %s\n", line, what, dp_last_error());
    fflush(stdout);
    _exit(1);
}

/* ---- polls of the peer ----------------------------------------------------------------------- */

static _Thread_local unsigned calls, looks;

ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
__attribute__((visibility("default"))) ssize_t
__wrap_recvmsg(int fd, struct msghdr *message, int flags);

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    looks++;
    return __real_recvmsg(fd, message, flags);
}

/* ---- messages ---------------------------------------------------------------------------------- */

enum { BYTES = 1 << 20, GROUP = 4, TURNS = 300 };
static char from[BYTES], to[GROUP][BYTES];

struct pair {
    struct dpn_net *net;
    struct dpn_listener *listener;
    struct dpn_comm *sender, *receiver;
    struct dpn_memory *source, *target;
    int64_t until_ns;
};

static void in_time(const struct pair *p)
{
    must(dp_now_ns() < p->until_ns);
}

static struct dpn_memory *reg(struct dpn_comm *comm, void *data, size_t size)
{
    const struct dpn_region region = {data, size, NCCL_PTR_HOST, -1, 0};
    struct dpn_memory *memory = NULL;

    must(!dpn_net_register(comm, &region, &memory));
    return memory;
}

static struct pair connect_pair(void)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct pair p = {.until_ns = dp_now_ns() + 60 * DP_NS_PER_S};

    must(!dpn_net_init(NULL, &p.net) && !dpn_net_listen(p.net, 0, handle, &p.listener));
    while (!p.sender || !p.receiver) {
        int err = p.sender ? 0 : dpn_net_connect(p.net, 0, handle, &p.sender);
        must(!err || err == DP_EAGAIN);
        err = p.receiver ? 0 : dpn_net_accept(p.listener, &p.receiver);
        must(!err || err == DP_EAGAIN);
        in_time(&p);
    }
    p.source = reg(p.sender, from, sizeof(from));
    p.target = reg(p.receiver, to, sizeof(to));
    return p;
}

/* A group of receives, and their messages; the first is tried before there is a receive. */
static void transfer(struct pair *p, size_t size)
{
    struct dpn_request *recv = NULL, *sends[GROUP] = {NULL};
    struct dpn_memory *memories[GROUP];
    void *data[GROUP];
    size_t sizes[GROUP];
    bool done[GROUP] = {false}, received = false;
    int tags[GROUP], got[DPN_MAX_RECEIVES], left = GROUP;

    for (int i = 0; i < GROUP; i++) {
        memories[i] = p->target;
        data[i] = to[i];
        sizes[i] = size;
        tags[i] = i;
    }
    must(!dpn_net_isend(p->sender, from, size, 0, p->source, &sends[0]));
    while (!recv)
        must(!dpn_net_irecv(p->receiver, GROUP, data, sizes, tags, memories, false, &recv));
    while (left || !received) {
        in_time(p);
        calls += GROUP + 1;
        for (int i = 0; i < GROUP; i++) {
            if (!sends[i] && !done[i])
                must(!dpn_net_isend(p->sender, from, size, i, p->source, &sends[i]));
            if (!sends[i] || done[i])
                continue;
            must(!dpn_net_test(sends[i], &done[i], NULL));
            left -= done[i];
        }
        if (!received)
            must(!dpn_net_test(recv, &received, got));
    }
    for (int i = 0; i < GROUP; i++)
        must(got[i] == (int)size);
}

static void transfer_all(struct pair *p, int turns, size_t longest)
{
    for (int i = 0; i < turns; i++)
        for (size_t size = 1; size <= longest; size *= 8)
            transfer(p, size - 1);
}

/* ---- cases ------------------------------------------------------------------------------------- */

static void take_no_memory(void)
{
    struct pair p = connect_pair();

    transfer_all(&p, 3, BYTES);
    const int before = allocations;
    must(before > 0); /* what was taken to connect is counted */
    transfer_all(&p, TURNS / 10, BYTES);
    must(allocations == before);
    dpn_net_finalize(p.net);
}

/* From here on: clocks, looks at the peer, what is printed, the end. */
static void allow_no_calls(void)
{
#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), 0, 1), \
                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_clock_gettime), /* where it is one */
        ALLOW(SYS_recvmsg),
        ALLOW(SYS_write),
        ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    const struct sock_fprog program = {sizeof(steps) / sizeof(steps[0]), steps};

    fflush(stdout);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program, 0, 0))
        _exit(77);
}

/* Longer ones are copied by the kernel, where it may. */
static void make_no_calls(void)
{
    struct pair p = connect_pair();

    transfer_all(&p, 3, 1 << 15);
    allow_no_calls();
    calls = looks = 0;
    transfer_all(&p, TURNS, 1 << 15);
    must(looks <= calls / 1000);
    _exit(0);
}

static void make_one_call(void)
{
    allow_no_calls();
    _exit(getppid() != 0);
}

static int run_in_child(void (*run)(void), const char *wire)
{
    int status;

    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        alarm(100);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
        setenv("DUALPIPE_NET_WIRE", wire, 1);
        setenv("DUALPIPE_NET_SLICE", "0", 1);
        run();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

CASE(a_message_takes_no_memory)
{
    assert_int_equal(run_in_child(take_no_memory, "shm"), 0);
    assert_int_equal(run_in_child(take_no_memory, "tcp"), 0);
#ifdef HAVE_VERBS
    fabric_begin();
    assert_int_equal(run_in_child(take_no_memory, "verbs"), 0);
    fabric_end();
#endif
}

CASE(a_message_in_shared_memory_makes_no_system_call)
{
    if (IS_INSTRUMENTED)
        skip_because("a sanitizer makes calls of its own");
    const int status = run_in_child(make_one_call, "shm");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip_because("this system allows no seccomp filter");
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS); /* or the next says nothing */
    assert_int_equal(run_in_child(make_no_calls, "shm"), 0);
}
