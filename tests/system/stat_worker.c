/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#ifndef HAVE_VERBS
#define HAVE_VERBS 0
#endif

#include "cmocka_all.h"
#if HAVE_VERBS
#include "fakes/ibverbs/fake_verbs.h"
#endif
#include "nccl-plugin/net/caller.h"
#include "system/stat_command.h"
#include "system/stat_worker.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the worker: both ends of a connection. */
static const struct net_caller *net;
static void *ctx, *listener, *sender, *receiver, *memories[2];
static char buffer[2][STAT_LARGE];

static void must(bool so, const char *what)
{
    if (so)
        return;
    fprintf(stderr, "worker: %s\n", what);
    _exit(1);
}

static int lost_qps; /* that the plugin has told of */

__attribute__((format(printf, 5, 6)))
static void note_lost_qps(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                            const char *fmt, ...)
{
    char text[1024];
    va_list args;

    (void)level;
    (void)flags;
    (void)file;
    (void)line;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    lost_qps += strstr(text, "queue pairs are left") != NULL;
}

static void open_pair(void)
{
    static char handle[NCCL_NET_HANDLE_MAXSIZE];

    sender = receiver = NULL;
    must(!net->listen(ctx, 0, handle, &listener), "listen");
    while (!sender || !receiver) {
        must(sender || !net->connect(ctx, 0, handle, &sender), "connect");
        must(receiver || !net->accept(listener, &receiver), "accept");
    }
    must(!net->reg(sender, buffer[0], STAT_LARGE, NCCL_PTR_HOST, &memories[0]), "regMr");
    must(!net->reg(receiver, buffer[1], STAT_LARGE, NCCL_PTR_HOST, &memories[1]), "regMr");
}

static void close_pair(void)
{
    net->dereg(sender, memories[0]);
    net->dereg(receiver, memories[1]);
    net->close_send(sender);
    net->close_recv(receiver);
    net->close_listen(listener);
}

#if HAVE_VERBS
/* The port of the only RDMA device. */
static const struct fake_verbs *fake;
static bool is_port_down;

static void set_port(bool up)
{
    is_port_down = !up;
    must(fake->set_port("fake0", 1, up), "the port");
}

/* In place of the library of that name: the plugin finds it loaded. */
static void load_stand_in(void)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/tests/fakes/ibverbs/.libs/libibverbs.so.1",
             getenv("DP_TOP_BUILDDIR"));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    fake = library ? dlsym(library, "fake_verbs") : NULL;
    must(fake, "the stand-in for libibverbs");
}

/* The plugin has said that it cannot go on: from now on it can. */
static void mend_port(void)
{
    if (is_port_down && lost_qps)
        set_port(true);
}
#else
static void set_port(bool up)
{
    (void)up;
}

static void load_stand_in(void)
{
}

static void mend_port(void)
{
}
#endif

/* `n` messages of a size, as one group of receives; the first send is tried before there is one. */
static void transfer(int n, size_t size)
{
    void *data[8], *into[8], *recv = NULL, *send = NULL;
    size_t sizes[8];
    int tags[8] = {0, 1, 2, 3, 4, 5, 6, 7}, done = 0, got[8];

    for (int i = 0; i < n; i++) {
        data[i] = buffer[1];
        into[i] = memories[1];
        sizes[i] = size;
    }
    must(!net->isend(sender, buffer[0], size, 0, memories[0], &send) && !send, "a send has a grant");
    must(!net->irecv(receiver, n, data, sizes, tags, into, &recv) && recv, "irecv");
    for (int sent = 0; sent < n || !done;) {
        mend_port();
        if (sent < n && !send)
            must(!net->isend(sender, buffer[0], size, sent, memories[0], &send), "isend");
        if (send) {
            must(!net->test(send, &done, got), "test of a send");
            sent += done;
            send = done ? NULL : send;
            done = 0;
        }
        if (recv)
            must(!net->test(recv, &done, got), "test of a receive");
        recv = done ? NULL : recv;
        done = !recv;
    }
}

static void load(void)
{
    char path[4096];

    setenv("DUALPIPE_NET_EAGER", "0", 1); /* so that the first send of a group stalls */
    if (getenv("FAKE_VERBS_FABRIC"))
        load_stand_in();

    snprintf(path, sizeof(path), "%s/nccl-plugin/.libs/libnccl-net-dualpipe.so",
             getenv("DP_TOP_BUILDDIR"));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    must(library, "the plugin");
    net = net_caller_find(library, NEWEST_VERSION);
    must(net && !net->init(&ctx, note_lost_qps), "init");
}

static void transfer_all(void)
{
    for (int i = 0; i < STAT_SMALLS; i++)
        transfer(1, STAT_SMALL);
    for (int i = 0; i < STAT_LARGES; i++)
        transfer(1, STAT_LARGE);
    transfer(4, STAT_SMALL);
}

/* Its child may not listen in its parent's context; in its own it opens a connection, and counts on a
 * page of its own. */
static void fork_another(void)
{
    static char handle[NCCL_NET_HANDLE_MAXSIZE];
    void *inherited;
    pid_t child = fork();

    must(child >= 0, "fork");
    if (child)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(net->listen(ctx, 0, handle, &inherited), "the parent's context is refused");
    must(!net->init(&ctx, note_lost_qps), "init after a fork");
    open_pair();
    transfer(1, STAT_SMALL);
    for (;;)
        pause();
}

/* Orders: t transfer, b one message more, over a port that is down for a while, c close, f fork, e
 * end by itself. Each is answered when it is done. */
static void serve(int orders, int answers)
{
    char order;

    load();
    open_pair();
    must(write(answers, "o", 1) == 1, "answer");
    while (read(orders, &order, 1) == 1) {
        if (order == 't')
            transfer_all();
        if (order == 'b') {
            set_port(false);
            transfer(1, STAT_SMALL);
        }
        if (order == 'c')
            close_pair();
        if (order == 'f')
            fork_another();
        if (order == 'e')
            exit(0);
        must(write(answers, &order, 1) == 1, "answer");
    }
    _exit(0);
}

static void expect(const struct stat_worker *w, char answer)
{
    char c = 0;

    assert_int_equal(read(w->answers, &c, 1), 1);
    assert_int_equal(c, answer);
}

void stat_tell(const struct stat_worker *w, char order)
{
    assert_int_equal(write(w->orders, &order, 1), 1);
    expect(w, order);
}

/* The worker has an RDMA device, of the stand-in for libibverbs. */
static void add_rdma(void)
{
    char fabric[SCRATCH_LEN + 16];

    snprintf(fabric, sizeof(fabric), "%s/fabric", stat_work);
    mkdir(fabric, 0700);
    setenv("FAKE_VERBS_FABRIC", fabric, 1);
    setenv("FAKE_VERBS_RETRY_MS", "1", 1);
}

struct stat_worker stat_start(const char *wire, const char *directory)
{
    int orders[2], answers[2];

    assert_int_equal(pipe(orders), 0);
    assert_int_equal(pipe(answers), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(STAT_DEADLINE_S);
        close(orders[1]);
        close(answers[0]);
        setenv("DUALPIPE_NET_STAT", "1", 1);
        setenv("DUALPIPE_NET_STAT_DIR", directory, 1);
        setenv("DUALPIPE_NET_WIRE", wire, 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
        if (!strcmp(wire, "verbs"))
            add_rdma();
        serve(orders[0], answers[1]);
    }
    assert_true(pid > 0);
    close(orders[0]);
    close(answers[1]);
    struct stat_worker w = {pid, orders[1], answers[0]};
    expect(&w, 'o');
    return w;
}

void stat_stop(struct stat_worker *w)
{
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    close(w->orders);
    close(w->answers);
}
