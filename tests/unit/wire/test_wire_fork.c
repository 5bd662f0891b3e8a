/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire_fork.c - a process with wires has forked a child, as a data loader's, which keeps
 * running when the process is killed: the other end of the wire still notices that at once.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "base/fail.h"
#include "wire/acceptor.h"
#include "wire/net.h"
#include "wire/sockets.h"
#include "wire/wire.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>

struct kind {
    const struct dp_wire_ops *ops;
    const char *sockets;
};
static const struct kind kinds[] = {
    {&dp_wire_shm, "0"},
    {&dp_wire_tcp, "1"},
    {&dp_wire_tcp, "4"},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), SOON_S = 10 };

static void must(bool so)
{
    if (!so)
        _exit(1);
}

static void must_be_soon(int64_t began_ns)
{
    assert_true(dp_now_ns() - began_ns < SOON_S * DP_NS_PER_S);
}

/* ---- a process that is killed while its child keeps running ---------------------------------- */

struct peer {
    pid_t pid;
    int to, from;
    int life; /* of its child, which ends once no process can write to it */
};

static void live_on(int life, int out)
{
    const pid_t self = getpid();
    char byte;

    alarm(120);
    must(write(out, &self, sizeof(self)) == sizeof(self));
    while (read(life, &byte, 1) > 0)
        ;
    _exit(0);
}

/* Never returns: what is connected stays so until the end. */
static void fork_and_be_killed(int life, int out)
{
    if (!fork())
        live_on(life, out);
    for (;;)
        pause();
}

typedef void (*peer_fn)(const struct kind *kind, int in, int out);

static struct peer start_peer(const struct kind *kind, peer_fn fn)
{
    int there[2], back[2], life[2];

    assert_int_equal(pipe(there) || pipe(back) || pipe(life), 0);
    fflush(NULL);
    const struct peer p = {fork(), there[1], back[0], life[1]};
    if (!p.pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(120);
        close(there[1]);
        close(life[1]);
        dp_sockets_stay();
        fn(kind, there[0], back[1]);
        fork_and_be_killed(life[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    close(life[0]);
    return p;
}

/* Its child, which keeps running. */
static pid_t kill_peer(const struct peer *p)
{
    pid_t child;

    assert_int_equal(read(p->from, &child, sizeof(child)), sizeof(child));
    assert_int_equal(kill(p->pid, SIGKILL), 0);
    assert_int_equal(waitpid(p->pid, NULL, 0), p->pid);
    assert_int_equal(kill(child, 0), 0);
    return child;
}

static void forget(const struct peer *p, pid_t child)
{
    assert_int_equal(kill(child, 0), 0);
    close(p->life);
    close(p->to);
    close(p->from);
}

/* other: the connecting side if it is in this process, or NULL. */
static struct dp_wire *accept_one(const struct dp_wire_ops *ops, struct dp_wire_listener *listener,
                                  struct dp_wire *other)
{
    const int64_t began_ns = dp_now_ns();
    struct dp_wire *wire;
    uint64_t label;

    while (ops->accept(listener, &label, &wire)) {
        must(dp_now_ns() - began_ns < SOON_S * DP_NS_PER_S);
        if (other)
            ops->progress(other);
    }
    return wire;
}

/* ---- it was connected -------------------------------------------------------------------------- */

static void connect_and_exchange(const struct kind *kind, int in, int out)
{
    struct dp_wire_request send;
    struct dp_wire_address address;
    struct dp_wire *wire;

    must(read(in, &address, sizeof(address)) == sizeof(address));
    must(!kind->ops->connect(&address, 1, &wire));
    dp_wire_isend(wire, 1, "last words", 11, &send);
    while (send.status == DP_EAGAIN)
        kind->ops->progress(wire);
    must(!send.status);
}

CASE(the_end_of_a_process_shows_though_its_child_runs)
{
    for (int k = 0; k < KINDS; k++) {
        const struct dp_wire_ops *ops = kinds[k].ops;
        struct dp_wire_request receives[2];
        struct dp_wire_listener *listener;
        struct dp_wire_address address;
        char words[11];

        setenv("DUALPIPE_WIRE_TCP_SOCKETS", kinds[k].sockets, 1);
        const struct peer peer = start_peer(&kinds[k], connect_and_exchange);
        assert_int_equal(ops->listen(&(struct dp_wire_config){0}, &listener, &address), 0);
        assert_int_equal(write(peer.to, &address, sizeof(address)), sizeof(address));
        struct dp_wire *wire = accept_one(ops, listener, NULL);
        const pid_t child = kill_peer(&peer);

        const int64_t killed_ns = dp_now_ns();
        for (int i = 0; i < 2; i++)
            dp_wire_irecv(wire, words, sizeof(words), &receives[i]);
        while (receives[1].status == DP_EAGAIN) {
            must_be_soon(killed_ns);
            ops->progress(wire);
        }
        assert_int_equal(receives[0].status, 0);
        assert_string_equal(words, "last words");
        assert_int_equal(receives[1].status, DP_ECOMM);
        forget(&peer, child);
        dp_wire_close(wire);
        ops->unlisten(listener);
    }
}

/* ---- it listened ------------------------------------------------------------------------------- */

static void listen_only(const struct kind *kind, int in, int out)
{
    struct dp_wire_listener *listener;
    struct dp_wire_address address;

    must(!kind->ops->listen(&(struct dp_wire_config){0}, &listener, &address));
    must(write(out, &address, sizeof(address)) == sizeof(address));
}

CASE(no_listener_outlives_its_process)
{
    for (int k = 0; k < KINDS; k++) {
        const struct dp_wire_ops *ops = kinds[k].ops;
        struct dp_wire_address address;
        struct dp_wire *wire;

        setenv("DUALPIPE_WIRE_TCP_SOCKETS", kinds[k].sockets, 1);
        const struct peer peer = start_peer(&kinds[k], listen_only);
        assert_int_equal(read(peer.from, &address, sizeof(address)), sizeof(address));
        const pid_t child = kill_peer(&peer);
        /* A connector that is refused tries again for a while, as a listener may be about to come. */
        const int64_t given_up_ns = dp_now_ns() + DP_CONNECTOR_RETRY_NS;
        assert_int_equal(ops->connect(&address, 1, &wire), 0);
        while (!wire->error) {
            must_be_soon(given_up_ns);
            ops->progress(wire);
        }
        assert_int_equal(wire->error, DP_ECOMM);
        assert_true(wire->is_refused || ops == &dp_wire_shm);
        forget(&peer, child);
        dp_wire_close(wire);
    }
}

/* ---- what the child has ------------------------------------------------------------------------ */

static bool is_network_socket(int fd)
{
    union dp_sockaddr at = {.room = {0}};
    socklen_t len = sizeof(at);

    if (getsockname(fd, &at.any, &len))
        return false;
    return at.any.sa_family == AF_INET || at.any.sa_family == AF_INET6 ||
           (at.any.sa_family == AF_UNIX && len > sizeof(sa_family_t));
}

/* Sockets with an address; of other kinds there are some that the system's library uses. No memory is
 * taken: a sanitizer's allocator may be closed for ever in a child, see fork_at_rest.h. */
static int count_network_sockets(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += is_network_socket(fd);
    return count;
}

static void use_inherited(const struct kind *kind, struct dp_wire_listener *listener,
                          struct dp_wire *ends[2])
{
    struct dp_wire_request receive, send;
    struct dp_wire *none;
    char byte;
    uint64_t label;

    alarm(60);
    must(!count_network_sockets());
    /* At once: over shared memory a message of the child would arrive as one of its parent's. */
    dp_wire_isend(ends[1], 1, "y", 1, &send);
    must(send.status == DP_ECOMM);
    must(strstr(ends[1]->why, "forked after the connection was made"));
    dp_wire_irecv(ends[0], &byte, 1, &receive);
    while (receive.status == DP_EAGAIN)
        kind->ops->progress(ends[0]);
    must(receive.status == DP_ECOMM);
    must(kind->ops->accept(listener, &label, &none) == DP_EAGAIN);
    const int own = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dp_wire_close(ends[0]);
    dp_wire_close(ends[1]);
    kind->ops->unlisten(listener);
    must(fcntl(own, F_GETFD) >= 0);
    _exit(0);
}

static void connect_pair(const struct dp_wire_ops *ops, struct dp_wire_listener *listener,
                         const struct dp_wire_address *address, struct dp_wire *ends[2])
{
    const int64_t began_ns = dp_now_ns();
    uint64_t label;

    assert_int_equal(ops->connect(address, 1, &ends[0]), 0);
    while (ops->accept(listener, &label, &ends[1])) {
        must_be_soon(began_ns);
        ops->progress(ends[0]);
    }
    while (!ends[0]->connected) {
        must_be_soon(began_ns);
        ops->progress(ends[0]);
    }
}

static void send_one(const struct dp_wire_ops *ops, struct dp_wire *ends[2])
{
    const int64_t began_ns = dp_now_ns();
    struct dp_wire_request send, receive;
    char byte = 0;

    dp_wire_isend(ends[0], 1, "x", 1, &send);
    dp_wire_irecv(ends[1], &byte, 1, &receive);
    while (receive.status == DP_EAGAIN) {
        must_be_soon(began_ns);
        ops->progress(ends[0]);
        ops->progress(ends[1]);
    }
    assert_true(!send.status && !receive.status && byte == 'x');
}

static void must_have_no_message(const struct dp_wire_ops *ops, struct dp_wire *end)
{
    ops->progress(end);
    assert_false(ops->has_message(end));
}

CASE(what_a_child_inherits_fails_and_is_closed_without_harm)
{
    dp_sockets_stay();
    dp_sockets_stay();
    for (int k = 0; k < KINDS; k++) {
        const struct dp_wire_ops *ops = kinds[k].ops;
        struct dp_wire_listener *listener;
        struct dp_wire_address address;
        struct dp_wire *ends[2];
        int status;

        setenv("DUALPIPE_WIRE_TCP_SOCKETS", kinds[k].sockets, 1);
        assert_int_equal(ops->listen(&(struct dp_wire_config){0}, &listener, &address), 0);
        connect_pair(ops, listener, &address, ends);
        fflush(NULL);
        const pid_t child = fork();
        if (!child)
            use_inherited(&kinds[k], listener, ends);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        send_one(ops, ends);
        must_have_no_message(ops, ends[0]);
        struct dp_wire *more[2];
        connect_pair(ops, listener, &address, more);
        send_one(ops, more);
        for (int i = 0; i < 2; i++) {
            dp_wire_close(ends[i]);
            dp_wire_close(more[i]);
        }
        ops->unlisten(listener);
    }
}

/* ---- forks at any moment ----------------------------------------------------------------------- */

static atomic_bool is_over;

static void *open_and_close(void *arg)
{
    const struct kind *kind = arg;
    struct dp_wire_listener *listener;
    struct dp_wire_address address;

    while (!is_over) {
        struct dp_wire *wire;
        assert_int_equal(kind->ops->listen(&(struct dp_wire_config){0}, &listener, &address), 0);
        assert_int_equal(kind->ops->connect(&address, 1, &wire), 0);
        dp_wire_close(accept_one(kind->ops, listener, wire));
        dp_wire_close(wire);
        kind->ops->unlisten(listener);
    }
    return NULL;
}

CASE(a_child_has_no_socket_whenever_it_is_forked)
{
    enum { FORKS = 100 };
    pthread_t threads[2];

    dp_sockets_stay();
    setenv("DUALPIPE_WIRE_TCP_SOCKETS", "1", 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, (void *)&kinds[i]), 0);
    for (int i = 0; i < FORKS; i++) {
        int status;
        fflush(NULL);
        const pid_t child = fork();
        if (!child) {
            alarm(60);
            _exit(count_network_sockets() != 0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    is_over = true;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}
