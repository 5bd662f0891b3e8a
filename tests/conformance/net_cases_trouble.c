/* SPDX-License-Identifier: Apache-2.0
 *
 * net_cases_trouble.c - what goes wrong: handles that are none, strangers, peers that leave, memory
 * that is taken away, things left open. Nothing may crash, hang, or be taken for something good.
 */
#include "config.h" /* GNU extensions: memfd_create */

#include "fork_at_rest.h"
#include "net_cases.h"
#include "net_pair.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- handles --------------------------------------------------------------------------------- */

static void must_not_connect(void *ctx, char handle[NCCL_NET_HANDLE_MAXSIZE])
{
    ncclResult_t result = ncclSuccess;
    void *comm = NULL;

    while (result == ncclSuccess) {
        must(in_time());
        result = setup.net->connect(ctx, 0, handle, &comm);
        must(!comm);
    }
}

static void refuse_a_handle_that_is_none(void)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *ctx = net_init();
    uint32_t seed = 1;

    must_not_connect(ctx, handle);
    memset(handle, 0xff, sizeof(handle));
    must_not_connect(ctx, handle);
    for (int turn = 0; turn < 200; turn++) {
        for (size_t i = 0; i < sizeof(handle); i++)
            handle[i] = (char)((seed = seed * 1664525u + 1013904223u) >> 24);
        must_not_connect(ctx, handle);
    }
}

static void refuse_a_damaged_handle(void)
{
    struct pair p = {.ctx = net_init()};

    must_succeed(setup.net->listen(p.ctx, 0, p.handle, &p.listener));
    for (size_t i = 0; i < 32; i++) {
        p.handle[i] = (char)(p.handle[i] ^ 0x10);
        must_not_connect(p.ctx, p.handle);
        p.handle[i] = (char)(p.handle[i] ^ 0x10);
    }
    pair_connect(&p);
    pair_transfer(&p, 100, 1);
    pair_close(&p);
}

static void notice_that_nobody_listens(void)
{
    struct pair p = {.ctx = net_init()};

    must_succeed(setup.net->listen(p.ctx, 0, p.handle, &p.listener));
    must_succeed(setup.net->close_listen(p.listener));
    must_not_connect(p.ctx, p.handle);
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* Connect to everything that this process listens on, and say something. Returns how many. */
static int write_to_all_acceptors(const void *bytes, size_t len)
{
    int acceptors = 0;

    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage at;
        socklen_t at_len = sizeof(at), listens_len = sizeof(int);
        int listens = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_len) || !listens ||
            getsockname(fd, (struct sockaddr *)&at, &at_len))
            continue;
        int stranger = socket(at.ss_family, SOCK_STREAM, 0);
        must(!connect(stranger, (struct sockaddr *)&at, at_len));
        must(send(stranger, bytes, len, MSG_NOSIGNAL) == (ssize_t)len);
        acceptors++; /* and stays, silent */
    }
    return acceptors;
}

static void let_no_stranger_in(void)
{
    struct pair p = {.ctx = net_init()};
    char garbage[300];
    uint32_t seed = 7;

    must_succeed(setup.net->listen(p.ctx, 0, p.handle, &p.listener));
    for (int turn = 0; turn < 60; turn++) {
        for (size_t i = 0; i < sizeof(garbage); i++)
            garbage[i] = (char)((seed = seed * 1664525u + 1013904223u) >> 24);
        const size_t len = turn < 30 ? 3 : (size_t)turn * 4; /* too few to judge, or plenty */
        write_to_all_acceptors(garbage, len);
        must_succeed(setup.net->accept(p.listener, &p.receiver));
        must(!p.receiver);
    }
    pair_connect(&p);
    pair_transfer(&p, 100, 1);
    pair_close(&p);
}

/* ---- ends ---------------------------------------------------------------------------------- */

/* Poll until the plugin says that it is broken; done is no answer. */
static void must_fail(struct message *m)
{
    for (ncclResult_t result = ncclSuccess; result == ncclSuccess;) {
        must(in_time());
        int done = 0;
        result = setup.net->test(m->req, &done, m->got);
        must(!done);
    }
}

static void close_with_requests_in_flight(void)
{
    struct pair p;

    for (int who = 0; who < 2; who++) {
        pair_open(&p, net_init());
        struct message recvs[20], sends[10];
        for (int i = 0; i < 20; i++) {
            recvs[i] = message_recv(p.receiver, 1000000, 1);
            message_poll(&recvs[i]);
        }
        for (int i = 0; i < 10; i++) {
            sends[i] = message_send(p.sender, 1000000, 1, 1);
            message_poll(&sends[i]);
        }
        if (who) {
            must_succeed(setup.net->close_send(p.sender));
            must_fail(&recvs[19]);
            must_succeed(setup.net->close_recv(p.receiver));
        } else {
            must_succeed(setup.net->close_recv(p.receiver));
            must_succeed(setup.net->close_send(p.sender));
        }
        must_succeed(setup.net->close_listen(p.listener));
        for (int i = 0; i < 20; i++)
            message_drop(&recvs[i]);
        for (int i = 0; i < 10; i++)
            message_drop(&sends[i]);
    }
}

static void deliver_what_was_sent_before_the_sender_left(void)
{
    struct pair p;

    pair_open(&p, net_init());
    struct message both[2] = {message_recv(p.receiver, 3000, 1), message_send(p.sender, 3000, 1, 8)};
    message_poll(&both[0]);
    messages_finish(&both[1], 1);
    message_free(&both[1]);
    must_succeed(setup.net->close_send(p.sender));
    messages_finish(both, 1);
    message_check(&both[0], 0, 3000, 8);
    message_free(&both[0]);
    must_succeed(setup.net->close_recv(p.receiver));
    must_succeed(setup.net->close_listen(p.listener));
}

/* A process with one end, that has a message of this size under way when it is killed. */
static void be_killed(bool sends, size_t size, int in, int out)
{
    struct pair p = {.ctx = net_init()};
    struct message m;
    char connected;

    if (!sends) {
        must_succeed(setup.net->listen(p.ctx, 0, p.handle, &p.listener));
        must(write(out, p.handle, sizeof(p.handle)) == sizeof(p.handle));
    } else {
        must(read(in, p.handle, sizeof(p.handle)) == sizeof(p.handle));
    }
    while (!p.sender && !p.receiver) {
        must(in_time());
        if (sends)
            must_succeed(setup.net->connect(p.ctx, 0, p.handle, &p.sender));
        else
            must_succeed(setup.net->accept(p.listener, &p.receiver));
    }
    if (!sends)
        must(read(in, &connected, 1) == 1); /* the other one, who may take a moment longer */
    m = sends ? message_send(p.sender, size, 1, 1) : message_recv(p.receiver, size, 1);
    for (message_poll(&m); sends && !m.req; message_poll(&m))
        must(in_time());
    must(write(out, "x", 1) == 1);
    raise(SIGKILL);
}

static struct message next_message(struct pair *p, bool receives, size_t size)
{
    return receives ? message_recv(p->receiver, size, 1) : message_send(p->sender, size, 1, 1);
}

/* The child has come so far, and is gone. */
static bool is_killed(pid_t child, int from)
{
    struct pollfd fd = {.fd = from, .events = POLLIN};
    int status;

    if (poll(&fd, 1, 0) < 1)
        return false;
    must(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    return true;
}

/* What was all there may still be received; then there is an error. */
static void use_until_it_fails(struct pair *p, bool receives, size_t size, pid_t child, int from)
{
    bool killed = false;

    for (int i = 0;; i += killed) {
        struct message m = next_message(p, receives, size);
        while (!m.done) {
            must(in_time());
            killed = killed || is_killed(child, from);
            if (message_try(&m)) {
                message_drop(&m);
                must(killed || is_killed(child, from));
                return;
            }
        }
        must(i < 100);
        message_free(&m);
    }
}

static void lose_peer(bool child_sends, size_t size)
{
    int to_child[2], to_parent[2];

    must(!pipe(to_child) && !pipe(to_parent));
    fflush(stdout);
    pid_t child = fork_at_rest();
    must(child >= 0);
    if (!child) {
        alarm(120);
        be_killed(child_sends, size, to_child[0], to_parent[1]);
    }
    struct pair p = {.ctx = net_init()};
    if (child_sends) {
        must_succeed(setup.net->listen(p.ctx, 0, p.handle, &p.listener));
        must(write(to_child[1], p.handle, sizeof(p.handle)) == sizeof(p.handle));
    } else {
        must(read(to_parent[0], p.handle, sizeof(p.handle)) == sizeof(p.handle));
    }
    while (!p.sender && !p.receiver) {
        must(in_time());
        if (child_sends)
            must_succeed(setup.net->accept(p.listener, &p.receiver));
        else
            must_succeed(setup.net->connect(p.ctx, 0, p.handle, &p.sender));
    }
    must(child_sends || write(to_child[1], "x", 1) == 1);
    use_until_it_fails(&p, child_sends, size, child, to_parent[0]);
    must_succeed(setup.net->close_send(p.sender));
    must_succeed(setup.net->close_recv(p.receiver));
    must_succeed(setup.net->close_listen(p.listener));
    net_finalize(p.ctx);
}

static void notice_that_the_peer_was_killed(void)
{
    lose_peer(true, 1000);
    lose_peer(true, 1000000);
    lose_peer(false, 1000);
    lose_peer(false, 1000000);
}

/* As when NCCL gives up while it sets up: finalize has to close all that there is. */
static void finalize_while_half_connected(void)
{
    struct pair p = {.ctx = net_init()};

    must_succeed(setup.net->listen(p.ctx, 0, p.handle, &p.listener));
    for (unsigned i = 0; i < 3; i++) {
        must_succeed(setup.net->connect(p.ctx, 0, p.handle, &p.sender));
        must_succeed(setup.net->accept(p.listener, &p.receiver));
    }
    net_finalize(p.ctx);
}

static void close_while_half_connected(void)
{
    struct pair p = {.ctx = net_init()};

    must_succeed(setup.net->listen(p.ctx, 0, p.handle, &p.listener));
    must_succeed(setup.net->connect(p.ctx, 0, p.handle, &p.sender));
    must_succeed(setup.net->accept(p.listener, &p.receiver));
    must_succeed(setup.net->close_listen(p.listener));
    if (p.receiver)
        must_succeed(setup.net->close_recv(p.receiver));
    if (p.sender)
        must_succeed(setup.net->close_send(p.sender));
    net_finalize(p.ctx);
}

static void sweep_what_was_left_open(void)
{
    void *ctx = net_init();
    struct pair p;

    pair_open(&p, ctx);
    struct message m = message_recv(p.receiver, 100, 1);
    message_poll(&m);
    net_finalize(ctx);
    if (setup.net->version < 11)
        pair_close(&p);
    message_drop(&m);
    pair_open(&p, net_init());
    pair_transfer(&p, 100, 1);
    pair_close(&p);
}

/* ---- memory -------------------------------------------------------------------------------- */

/* What NCCL does on abort: deregister, free, close; here the other side goes on sending. */
static void touch_no_memory_after_deregistration(void)
{
    enum { BYTES = 1 << 20 };
    struct pair p;
    void *memory = NULL, *req = NULL;
    size_t size = BYTES;
    int tag = 1;

    pair_open(&p, net_init());
    void *data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(data != MAP_FAILED);
    must_succeed(setup.net->reg(p.receiver, data, BYTES, NCCL_PTR_HOST, &memory));
    while (!req)
        must_succeed(setup.net->irecv(p.receiver, 1, &data, &size, &tag, &memory, &req));
    struct message m = message_send(p.sender, BYTES, 1, 1);
    while (!m.req) {
        must(in_time());
        message_poll(&m);
    }
    must_succeed(setup.net->dereg(p.receiver, memory));
    munmap(data, BYTES);
    for (int i = 0; i < 100; i++) {
        int done = 0, got[8];
        if (setup.net->test(req, &done, got) || done)
            break;
        if (setup.net->test(m.req, &done, got))
            break;
    }
    must_succeed(setup.net->close_recv(p.receiver));
    must_succeed(setup.net->close_send(p.sender));
    must_succeed(setup.net->close_listen(p.listener));
    message_drop(&m);
}

static void write_nothing_beyond_the_room(void)
{
    struct pair p;
    int done = 0, got[8];

    pair_open(&p, net_init());
    struct message recv = message_recv(p.receiver, 4096, 1);
    struct message send = message_send(p.sender, 4096, 1, 1);
    recv.sizes[0] = 1000;
    message_poll(&recv);
    /* An error at either side, or the message cut off; not bytes where none may be. */
    while (!done && in_time()) {
        ncclResult_t result = send.req ? setup.net->test(send.req, &done, got)
                                       : setup.net->isend(p.sender, send.data[0], 4096, 1,
                                                          send.memories[0], &send.req);
        if (result != ncclSuccess)
            break;
    }
    for (int i = 0; i < 1000 && !recv.done; i++)
        if (setup.net->test(recv.req, &recv.done, recv.got))
            break;
    for (int i = 1000; i < 4096; i++)
        must(recv.data[0][i] == 0x5a);
    message_free(&recv);
    message_free(&send);
    pair_close(&p);
}

static void take_no_memory_that_they_do_not_offer(void)
{
    struct net_properties properties;
    struct pair p;
    char bytes[64];
    void *memory = NULL;

    pair_open(&p, net_init());
    must_succeed(setup.net->properties(0, &properties));
    if (!(properties.ptr_support & NCCL_PTR_CUDA))
        must(setup.net->reg(p.sender, bytes, sizeof(bytes), NCCL_PTR_CUDA, &memory) != ncclSuccess);
    if (!(properties.ptr_support & NCCL_PTR_DMABUF)) {
        int file = memfd_create("no dma-buf", 0);
        must(file >= 0 && !ftruncate(file, sizeof(bytes)));
        must(setup.net->reg_file(p.sender, bytes, sizeof(bytes), NCCL_PTR_CUDA, 0, file, &memory) !=
             ncclSuccess);
        must(!close(file)); /* it is still the caller's */
    }
    must_succeed(setup.net->dereg(p.sender, NULL));
    pair_transfer(&p, 100, 1);
    pair_close(&p);
}

const struct net_case net_trouble_cases[] = {
    {"refuse a handle that is none", refuse_a_handle_that_is_none},
    {"refuse a damaged handle", refuse_a_damaged_handle},
    {"notice that nobody listens", notice_that_nobody_listens},
    {"let no stranger in", let_no_stranger_in},
    {"close with requests in flight", close_with_requests_in_flight},
    {"deliver what was sent before the sender left",
     deliver_what_was_sent_before_the_sender_left},
    {"notice that the peer was killed", notice_that_the_peer_was_killed},
    {"close while half connected", close_while_half_connected},
    {"finalize while half connected", finalize_while_half_connected},
    {"sweep what was left open", sweep_what_was_left_open},
    {"touch no memory after deregistration", touch_no_memory_after_deregistration},
    {"write nothing beyond the room", write_nothing_beyond_the_room},
    {"take no memory that they do not offer", take_no_memory_that_they_do_not_offer},
    {NULL, NULL},
};
