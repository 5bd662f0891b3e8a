/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_late.c - a peer of the net plugin that is late is waited for, and one that is gone is
 * not. Both sides are in one process, one of them is not called for a while, and the clock is
 * simulated: it goes on at each call of the other one. What the kernel knows of a connection is
 * simulated, too.
 */
#include "fake_fabric.h"

#include "cmocka_all.h"

#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/verbs/comm.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

/* ---- what is simulated ----------------------------------------------------------------------- */

static _Atomic int64_t ahead_ns;
static bool is_host_silent;

int __real_clock_gettime(clockid_t id, struct timespec *out);
/* Visible, as libraries of sanitizers call these, too. */
__attribute__((visibility("default"))) int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
    const int err = __real_clock_gettime(id, out);
    const int64_t ns = out->tv_nsec + (id == CLOCK_MONOTONIC ? ahead_ns : 0);

    out->tv_sec += ns / DP_NS_PER_S;
    out->tv_nsec = ns % DP_NS_PER_S;
    return err;
}

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
__attribute__((visibility("default"))) int __wrap_getsockopt(int fd, int level, int name, void *value,
                                                             socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    const int err = __real_getsockopt(fd, level, name, value, len);
    struct tcp_info *info = value;

    if (err || level != IPPROTO_TCP || name != TCP_INFO || !is_host_silent)
        return err;
    info->tcpi_last_ack_recv = 121000;
    info->tcpi_retransmits = 9;
    info->tcpi_total_retrans = 17;
    return 0;
}

/* ---- both sides ------------------------------------------------------------------------------ */

static char said[1 << 16]; /* all lines of the log */

static void keep(void *user, enum dp_log_level level, const char *line)
{
    strncat(said, line, sizeof(said) - strlen(said) - 2);
    strcat(said, "\n");
}

/* In the child: report a condition that does not hold, and exit. */
#define must(so) must_be((so), #so, __LINE__)
static void must_be(bool so, const char *what, int line)
{
    if (so)
        return;
    printf("line %d: not so: %s (%s)\nthe plugin said: %s\n", line, what, dp_last_error(), said);
    fflush(stdout);
    _exit(1);
}

static bool by_verbs, by_shm;

enum { SENDER, RECEIVER };

struct both {
    struct dpn_net *net;
    struct dpn_listener *listener;
    struct dpn_comm *comms[2];
    char handle[NCCL_NET_HANDLE_MAXSIZE];
};

static void begin(struct both *b)
{
    *b = (struct both){.net = NULL};
    must(!dpn_net_init(NULL, &b->net));
    dp_log_set(keep, NULL, DP_LOG_WARN);
    must(!dpn_net_listen(b->net, 0, b->handle, &b->listener));
    said[0] = '\0';
}

/* By how many seconds the n-th sentence of a late peer says that it is late, 0 without it: a minute
 * each, and what the test itself was held up for. */
static long said_late_by(int n)
{
    static const char *const sentence = "is late by ";
    const char *at = said;

    for (int i = 0; i < n && at; i++)
        if ((at = strstr(at, sentence)))
            at += strlen(sentence);
    return at ? strtol(at, NULL, 10) : 0;
}

/* One call of NCCL's, as long as the side is not ready. */
static int call(struct both *b, int side)
{
    if (b->comms[side])
        return 0;
    return side == SENDER ? dpn_net_connect(b->net, 0, b->handle, &b->comms[SENDER])
                          : dpn_net_accept(b->listener, &b->comms[RECEIVER]);
}

static void must_go_on(struct both *b, int side)
{
    const int err = call(b, side);

    must(!err || err == DP_EAGAIN);
}

static bool is_ready(const struct both *b)
{
    return b->comms[SENDER] && b->comms[RECEIVER];
}

/* The RDMA part of a side; NULL: none yet. */
static const struct dpn_verbs *verbs_of(const struct both *b, int side)
{
    const struct dpn_comm *comm = b->comms[side];

    for (struct dpn_open *o = b->net->open; o && !comm; o = o->next)
        if (o != &b->listener->open && ((struct dpn_comm *)o)->is_sender == (side == SENDER))
            comm = (struct dpn_comm *)o;
    return comm && comm->transport == &dpn_verbs ? comm->state : NULL;
}

/* How far its handshake has come, which takes any number of calls. */
static uint64_t progress_of(const struct both *b, int side)
{
    const struct dpn_verbs *v = verbs_of(b, side);
    uint64_t sum = b->comms[side] != NULL;

    if (!v)
        return sum;
    sum = sum * 31 + v->step;
    sum = sum * 31 + v->control.channel.sent - v->control.channel.received;
    for (int i = 0; i < v->q.qp_count; i++)
        sum = sum * 31 + v->q.qps[i].state;
    return sum;
}

/* Whether a device has something to do, for which the clock that is simulated does not go on. */
static bool is_device_busy(const struct both *b, int side)
{
    const struct dpn_verbs *v = verbs_of(b, side);
    bool busy = false;

    for (int i = 0; v && i < v->q.qp_count; i++)
        busy |= v->q.qps[i].state != DPN_QP_DOWN && v->q.qps[i].state != DPN_QP_OPENING &&
                v->q.qps[i].state != DPN_QP_UP;
    return busy;
}

/* One side is called no more, for so long. */
static void pause_side(struct both *b, int side, int64_t ns)
{
    const int64_t step_ns = 500 * DP_NS_PER_MS;

    for (int64_t at_ns = 0; at_ns < ns; at_ns += step_ns) {
        ahead_ns += step_ns;
        do
            must_go_on(b, !side);
        while (is_device_busy(b, !side));
    }
    must(ns < 60 * DP_NS_PER_S || b->comms[!side] || said_late_by(1) >= 60);
}

/* The n-th point of a side: its n-th call, or where RDMA has gone on for the n-th time. false: it
 * was ready before. */
static bool connect_with_pause(struct both *b, int side, int point, int64_t ns)
{
    const int64_t until_ns = dp_now_ns() + ns + 60 * DP_NS_PER_S;
    uint64_t before = UINT64_MAX;
    int points = 0;

    for (int turn = 0; !is_ready(b); turn++) {
        const int now = turn % 2;
        const uint64_t progress = by_verbs ? progress_of(b, side) : 0;
        if (now == side && !b->comms[side] && (!by_verbs || progress != before) &&
            points++ == point)
            pause_side(b, side, ns);
        before = now == side ? progress : before;
        must_go_on(b, now);
        must(dp_now_ns() < until_ns);
    }
    return points > point;
}

/* A message for which the receiver is late by two minutes and more. */
static void send_late(struct both *b)
{
    static char from[100000], to[100000];
    struct dpn_memory *memories[2];
    struct dpn_request *send = NULL, *receive = NULL;
    size_t size = sizeof(to);
    int tag = 1, sizes[1];
    bool sent = false, received = false;

    memset(from, 'x', sizeof(from));
    must(!dpn_net_register(b->comms[SENDER],
                           &(struct dpn_region){from, sizeof(from), NCCL_PTR_HOST, -1, 0},
                           &memories[SENDER]));
    must(!dpn_net_register(b->comms[RECEIVER],
                           &(struct dpn_region){to, sizeof(to), NCCL_PTR_HOST, -1, 0},
                           &memories[RECEIVER]));
    must(!dpn_net_irecv(b->comms[RECEIVER], 1, (void *[]){to}, &size, &tag, &memories[RECEIVER],
                        false, &receive) &&
         receive);
    said[0] = '\0';
    for (int i = 0; i < 130 * 1024; i++) { /* the sender is late, and the clock goes on a second for
                                            * as many tests as the clock is read after */
        if (i % 1024 == 0)
            ahead_ns += DP_NS_PER_S;
        must(!dpn_net_test(receive, &received, sizes) && !received);
    }
    must(said_late_by(1) >= 60 && said_late_by(2) - said_late_by(1) >= 60 - 1 && !said_late_by(4));
    must(strstr(said, " s: it sends nothing; waiting goes on") != NULL);
    must(strstr(said, by_shm ? "this host" : "127.0.0.1:") != NULL);
    while (!send)
        must(!dpn_net_isend(b->comms[SENDER], from, sizeof(from), 1, memories[SENDER], &send));
    while (!sent || !received) {
        must(sent || !dpn_net_test(send, &sent, sizes));
        must(received || !dpn_net_test(receive, &received, sizes));
    }
    must(!memcmp(from, to, sizeof(to)));
    must(!dpn_net_deregister(b->comms[SENDER], memories[SENDER]));
    must(!dpn_net_deregister(b->comms[RECEIVER], memories[RECEIVER]));
}

static void pause_everywhere(void)
{
    static const int seconds[] = {1, 6, 130};
    struct both b;

    for (int i = 0; i < 3; i++)
        for (int side = SENDER; side <= RECEIVER; side++)
            for (int point = 0;; point++) {
                begin(&b);
                const bool reached = connect_with_pause(&b, side, point, seconds[i] * DP_NS_PER_S);
                if (!point)
                    send_late(&b);
                dpn_net_finalize(b.net);
                if (!reached)
                    break;
                must(point < 1000);
            }
}

/* Nobody listens there any more. */
static void refuse(void)
{
    struct both b;
    int err = DP_EAGAIN, calls = 0;

    begin(&b);
    dpn_net_close_listener(b.listener);
    while (err == DP_EAGAIN && calls++ < 1000) {
        ahead_ns += 100 * DP_NS_PER_MS;
        err = call(&b, SENDER);
    }
    must(err == DP_ECOMM);
    must(strstr(dp_last_error(), "refused") != NULL);
    dpn_net_finalize(b.net);
}

/* What an init has found lasts as long as its process. */
static void run_in_child(const char *wire, const char *sockets, void (*run)(void))
{
    int status;

    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        alarm(240);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
        setenv("DUALPIPE_NET_WIRE", wire, 1);
        setenv("DUALPIPE_WIRE_TCP_SOCKETS", sockets, 1);
        by_verbs = !strcmp(wire, "verbs");
        by_shm = !strcmp(wire, "shm");
        run();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* The peer's host does not answer any more. */
PART_CASE(a_silent_host_is_gone_after_the_timeout_and_the_sentence_has_the_facts,
          run_in_child("tcp", "0", part))
{
    struct dpn_request *receive = NULL;
    static char to[8];
    size_t size = sizeof(to);
    int tag = 1, err = 0;
    struct both b;
    bool done;

    begin(&b);
    must(!connect_with_pause(&b, SENDER, 1000000, 0));
    must(!dpn_net_irecv(b.comms[RECEIVER], 1, (void *[]){to}, &size, &tag, NULL, false, &receive));
    is_host_silent = true;
    for (int i = 0; i < 10 && !err; i++) {
        ahead_ns += DP_NS_PER_S;
        err = dpn_net_test(receive, &done, NULL);
    }
    is_host_silent = false;
    must(err == DP_ECOMM);
    must(strstr(dp_last_error(), "no sign of life for 120 s") != NULL);
    must(strstr(dp_last_error(), "127.0.0.1") && strstr(dp_last_error(), "17 retransmissions"));
    dpn_net_finalize(b.net);
}

/* ---- the tests ------------------------------------------------------------------------------- */

CASE(a_pause_at_any_point_is_waited_for_over_shm)
{
    run_in_child("shm", "0", pause_everywhere);
}

CASE(a_pause_at_any_point_is_waited_for_over_tcp)
{
    run_in_child("tcp", "0", pause_everywhere);
    run_in_child("tcp", "3", pause_everywhere);
}

CASE(a_pause_at_any_point_is_waited_for_over_verbs)
{
    fabric_begin();
    run_in_child("verbs", "0", pause_everywhere);
    fabric_end();
}

CASE(a_peer_that_refuses_is_gone)
{
    run_in_child("shm", "0", refuse);
    run_in_child("tcp", "0", refuse);
}
