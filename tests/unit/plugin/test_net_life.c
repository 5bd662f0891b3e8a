/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_life.c - the life cycle of the net plugin from its first init on: options, contexts, and
 * messages about errors. Its state lasts as long as the process, so each case has a process of its
 * own.
 */
#include "config.h" /* GNU extensions: unshare */

#include "cmocka_all.h"
#include "deny_memfd.h"

#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/net/comm.h"

#include <pthread.h>
#include <sched.h>

static char said[4096]; /* all lines of NCCL's log */
static int warnings;

__attribute__((format(printf, 5, 6)))
static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                   const char *fmt, ...)
{
    const size_t at = strlen(said);
    va_list args;

    warnings += level == NCCL_LOG_WARN;
    va_start(args, fmt);
    vsnprintf(said + at, sizeof(said) - at, fmt, args);
    va_end(args);
    strncat(said, "\n", sizeof(said) - strlen(said) - 1);
}

/* In the child: report a condition that does not hold, and exit. */
#define must(so) must_be((so), #so, __LINE__)
static void must_be(bool so, const char *what, int line)
{
    if (so)
        return;
    printf("line %d: not so: %s\nthe plugin said: %s\n", line, what, said);
    fflush(stdout);
    _exit(1);
}

static void run_in_child(void (*run)(void))
{
    int status;

    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        alarm(60);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
        setenv("NCCL_IB_DISABLE", "1", 1);
        unsetenv("NCCL_PROTO");
        run();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip_because("this process may not make a network namespace");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 78)
        skip_because("this process may not filter its system calls");
    assert_int_equal(status, 0);
}

/* ---- options --------------------------------------------------------------------------------- */

static void try_wrong(const char *name, const char *value, const char *expected)
{
    struct dpn_net *net = NULL;
    int count;

    said[0] = '\0';
    warnings = 0;
    setenv(name, value, 1);
    must(dpn_net_init(logger, &net) != 0 && !net);
    must(warnings == 1 && strstr(said, name) && strstr(said, value) && strstr(said, expected));
    must(dpn_net_devices(&count) == DP_ESTATE);
    unsetenv(name);
}

PART_CASE(a_wrong_option_is_one_sentence_and_can_be_put_right, run_in_child(part))
{
    struct dpn_net *net = NULL;

    try_wrong("DUALPIPE_NET_WIRE", "carrier", "expected one of auto, shm, tcp");
    try_wrong("DUALPIPE_NET_TIMEOUT", "0", "1");
    try_wrong("DUALPIPE_NET_DEVICES", "33", "32");
    try_wrong("DUALPIPE_NET_DEVICES", "many", "32");
    must(!dpn_net_init(logger, &net) && net);
    dpn_net_finalize(net);
}

PART_CASE(an_unknown_family_of_addresses_is_reported_and_ignored, run_in_child(part))
{
    struct dpn_net *net = NULL;
    int count = 0;

    setenv("NCCL_SOCKET_FAMILY", "inet", 1);
    must(!dpn_net_init(logger, &net) && !dpn_net_devices(&count) && count == 1);
    must(warnings == 1 && strstr(said, "NCCL_SOCKET_FAMILY=inet: expected AF_INET or AF_INET6"));
    dpn_net_finalize(net);
}

PART_CASE(a_misspelt_option_names_the_nearest, run_in_child(part))
{
    struct dpn_net *net = NULL;

    setenv("DUALPIPE_NET_WIER", "tcp", 1);
    must(dpn_net_init(logger, &net) == DP_EINVAL && !net);
    must(warnings == 1 && strstr(said, "DUALPIPE_NET_WIER") && strstr(said, "DUALPIPE_NET_WIRE"));
}

PART_CASE(without_devices_init_succeeds_and_logs_why, run_in_child(part))
{
    struct dpn_net *net = NULL;
    int count = -1;

    setenv("DUALPIPE_NET_DEVICES", "0", 1);
    must(!dpn_net_init(logger, &net) && net);
    must(!dpn_net_devices(&count) && count == 0);
    must(!warnings && strstr(said, "DUALPIPE_NET_DEVICES=0"));
    must(!getenv("NCCL_PROTO"));
    dpn_net_finalize(net);
}

PART_CASE(before_init_there_is_nothing, run_in_child(part))
{
    int count;

    must(dpn_net_devices(&count) == DP_ESTATE);
    must(!dpn_net_shared());
    dpn_net_finalize(NULL);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void *init_and_finalize(void *failures)
{
    for (int i = 0; i < 50; i++) {
        struct dpn_net *net = NULL;
        int count = 0;
        if (dpn_net_init(NULL, &net) || dpn_net_devices(&count) || count != 1)
            __atomic_fetch_add((int *)failures, 1, __ATOMIC_RELAXED);
        dpn_net_finalize(net);
    }
    return NULL;
}

PART_CASE(communicators_come_and_go_in_several_threads, run_in_child(part))
{
    pthread_t all[4];
    int failures = 0;

    for (int i = 0; i < 4; i++)
        must(!pthread_create(&all[i], NULL, init_and_finalize, &failures));
    for (int i = 0; i < 4; i++)
        must(!pthread_join(all[i], NULL));
    must(!failures);
}

PART_CASE(devices_are_looked_for_once, run_in_child(part))
{
    struct dpn_net *first = NULL, *second = NULL;
    const struct dpn_device *before = NULL, *after = NULL;

    must(!dpn_net_init(logger, &first) && !dpn_net_device(0, &before));
    said[0] = '\0';
    setenv("NCCL_SOCKET_IFNAME", "nothing", 1);
    must(!dpn_net_init(logger, &second) && second != first && !dpn_net_device(0, &after));
    must(before == after && !said[0]); /* NCCL keeps pointers into the first look */
    dpn_net_finalize(first);
    dpn_net_finalize(second);
    must(!dpn_net_device(0, &after) && before == after);
}

/* ---- messages -------------------------------------------------------------------------------- */

struct ends {
    struct dpn_net *net;
    struct dpn_listener *listener;
    struct dpn_comm *sender, *receiver;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
};

static void open_ends(struct ends *e)
{
    *e = (struct ends){.net = NULL};
    must(!dpn_net_init(logger, &e->net));
    must(!dpn_net_listen(e->net, 0, e->handle, &e->listener));
    while (!e->sender || !e->receiver) {
        int err = e->sender ? 0 : dpn_net_connect(e->net, 0, e->handle, &e->sender);
        must(!err || err == DP_EAGAIN);
        err = e->receiver ? 0 : dpn_net_accept(e->listener, &e->receiver);
        must(!err || err == DP_EAGAIN);
    }
}

PART_CASE(a_message_that_does_not_fit_is_an_error_on_both_sides, run_in_child(part))
{
    char there[100], here[101] = "";
    struct dpn_request *receive = NULL, *send = NULL;
    const size_t room = sizeof(there);
    void *data = there;
    struct ends e;
    bool done = false;
    int tag = 7, sizes[DPN_MAX_RECEIVES], err = 0;

    open_ends(&e);
    must(!dpn_net_irecv(e.receiver, 1, &data, &room, &tag, NULL, false, &receive) && receive);
    while (!err && !send)
        err = dpn_net_isend(e.sender, here, sizeof(here), tag, NULL, &send);
    must(err == DP_EMISMATCH && strstr(said, "send of 101 bytes (tag 7): the peer's receive has 100"));
    for (err = 0; !err && !done;)
        err = dpn_net_test(receive, &done, sizes);
    must(err && strstr(said, "101"));
    must(dpn_net_isend(e.sender, here, DPN_MAX_BYTES + 1, tag, NULL, &send) == DP_EINVAL);
    must(strstr(said, "1073741825"));
    dpn_net_finalize(e.net);
}

/* A network namespace of its own has a loopback that is down. */
static void be_alone(void)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) && unshare(CLONE_NEWNET))
        _exit(77);
    unsetenv("NCCL_SOCKET_IFNAME");
}

static void without_interfaces(void)
{
    struct ends e;

    be_alone();
    open_ends(&e);
    must(!warnings && strstr(said, "no interface is up: shared memory, for peers on this host only"));
    dpn_net_finalize(e.net);
}

static void without_interfaces_by_tcp(void)
{
    struct dpn_net *net = NULL;
    int count = 1;

    be_alone();
    setenv("DUALPIPE_NET_WIRE", "tcp", 1);
    must(!dpn_net_init(logger, &net) && !dpn_net_devices(&count) && !count);
    must(!warnings && strstr(said, "0 devices: no interface is up, and DUALPIPE_NET_WIRE is tcp"));
    dpn_net_finalize(net);
}

CASE(without_interfaces_there_is_shared_memory)
{
    run_in_child(without_interfaces);
    run_in_child(without_interfaces_by_tcp);
}

PART_CASE(where_memfd_is_denied_messages_go_by_tcp, run_in_child(part))
{
    struct ends e;

    if (!deny_memfd())
        _exit(78);
    for (int i = 0; i < 2; i++) {
        said[0] = '\0';
        open_ends(&e);
        must(!strcmp(e.sender->wire->ops->name, "tcp"));
        must(i == !strstr(said, "memfd_create is denied")); /* once is enough */
        dpn_net_finalize(e.net);
    }
    must(warnings == 1);
}

/* ---- a peer that is killed, while a child that it has forked keeps running ------------------- */

static void live_on(int life, int out)
{
    char byte;

    alarm(60);
    must(write(out, "", 1) == 1);
    while (read(life, &byte, 1) > 0)
        ;
    _exit(0);
}

static void be_peer(int life, int out)
{
    struct dpn_listener *listener;
    struct dpn_comm *comm = NULL;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct dpn_net *net = NULL;

    alarm(60);
    must(!dpn_net_init(logger, &net) && !dpn_net_listen(net, 0, handle, &listener));
    must(write(out, handle, sizeof(handle)) == sizeof(handle));
    for (int err = DP_EAGAIN; err; must(!err || err == DP_EAGAIN))
        err = dpn_net_accept(listener, &comm);
    if (!fork())
        live_on(life, out);
    for (;;)
        pause();
}

static void lose_peer(void)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE], byte;
    struct dpn_request *send = NULL;
    struct dpn_comm *comm = NULL;
    struct dpn_net *net = NULL;
    int from[2], life[2];

    must(!pipe(from) && !pipe(life));
    const pid_t peer = fork();
    if (!peer) {
        close(life[1]);
        be_peer(life[0], from[1]);
    }
    must(read(from[0], handle, sizeof(handle)) == sizeof(handle));
    must(!dpn_net_init(logger, &net));
    for (int err = DP_EAGAIN; err; must(!err || err == DP_EAGAIN))
        err = dpn_net_connect(net, 0, handle, &comm);
    must(read(from[0], &byte, 1) == 1);
    must(!kill(peer, SIGKILL) && waitpid(peer, NULL, 0) == peer);
    const int64_t killed_ns = dp_now_ns();
    while (!dpn_net_isend(comm, handle, DPN_MAX_BYTES, 7, NULL, &send))
        must(!send && dp_now_ns() - killed_ns < 10 * DP_NS_PER_S);
    dpn_net_finalize(net);
    close(life[1]);
}

static void lose_peer_over_shm(void)
{
    setenv("DUALPIPE_NET_WIRE", "shm", 1);
    lose_peer();
}

static void lose_peer_over_tcp(void)
{
    setenv("DUALPIPE_NET_WIRE", "tcp", 1);
    lose_peer();
}

CASE(a_killed_peer_is_found_though_its_child_runs)
{
    run_in_child(lose_peer_over_shm);
    run_in_child(lose_peer_over_tcp);
}
