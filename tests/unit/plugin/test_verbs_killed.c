/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_killed.c - the peer's process is killed before it has read all control messages. Its
 * host then resets the control connection, as if the network had lost it; that its acceptor no
 * longer listens shows that the process has ended, even if a child that it had forked, as a data
 * loader's, keeps running.
 */
#include "verbs_pair.h"

#include "fake_fabric.h"
#include "fork_at_rest.h"

#include <sys/prctl.h>

enum { TIMEOUT_S = 400 }; /* a peer that cannot be asked counts as gone after an eighth of it */

/* ---- a side in a process of its own ------------------------------------------------------------ */

struct child {
    pid_t pid;
    int to, from;
    /* pipe of the child that it has forked, if any, which ends once no process can write to it */
    int life;
};

/* [0] sends, [1] receives, [2] and [3] have a child of their own; started while the program has one
 * thread. */
static struct child children[4];

static void must(bool so)
{
    if (!so)
        _exit(1);
}

static void say(int fd, const void *bytes, size_t len)
{
    must(write(fd, bytes, len) == (ssize_t)len);
}

static void hear(int fd, void *bytes, size_t len)
{
    must(read(fd, bytes, len) == (ssize_t)len);
}

static struct dpn_comm *receive_from(struct dpn_net *net, int in, int out)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct dpn_listener *listener;
    struct dpn_comm *comm = NULL;

    must(!dpn_net_listen(net, 0, handle, &listener));
    say(out, handle, sizeof(handle));
    hear(in, handle, 1); /* the peer connects now */
    for (int err = DP_EAGAIN; err; must(!err || err == DP_EAGAIN))
        err = dpn_net_accept(listener, &comm);
    return comm;
}

static struct dpn_comm *send_to(struct dpn_net *net, int in)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct dpn_comm *comm = NULL;

    hear(in, handle, sizeof(handle));
    for (int err = DP_EAGAIN; err; must(!err || err == DP_EAGAIN))
        err = dpn_net_connect(net, 0, handle, &comm);
    return comm;
}

static void live_on(int life, int out)
{
    char byte;

    alarm(120);
    say(out, "", 1);
    while (read(life, &byte, 1) > 0)
        ;
    _exit(0);
}

/* Connected, and then idle until it is killed. */
static void be_child(bool sends, bool forks, int life, int in, int out)
{
    struct dpn_net *net;

    alarm(120);
    must(!dpn_net_init(NULL, &net));
    const struct dpn_comm *comm = sends ? send_to(net, in) : receive_from(net, in, out);
    if (forks && !fork_at_rest())
        live_on(life, out);
    if (!forks)
        say(out, "", comm != NULL);
    for (;;)
        pause();
}

static struct child start_child(bool sends, bool forks)
{
    int there[2], back[2], life[2];

    assert_int_equal(pipe(there) || pipe(back) || pipe(life), 0);
    const struct child c = {fork_at_rest(), there[1], back[0], life[1]};
    if (!c.pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(there[1]);
        close(back[0]);
        close(life[1]);
        char go;
        hear(there[0], &go, 1);
        be_child(sends, forks, life[0], there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    close(life[0]);
    return c;
}

/* ---- cases ------------------------------------------------------------------------------------- */

static void stop(const struct child *c)
{
    int status;

    assert_int_equal(kill(c->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(c->pid, &status, WUNTRACED), c->pid);
    assert_true(WIFSTOPPED(status));
}

static bool has_sent_closed(struct dpn_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    struct dpn_verbs *v = comm->state;
    dpn_verbs_progress_all(v);
    const bool has = v->q.qps[0].is_closed_here && !dpn_control_is_sending(v);
    pthread_mutex_unlock(&comm->lock);
    return has;
}

/* It has not read the CLOSED message of this side. */
static void kill_child(const struct child *c, struct dpn_comm *comm)
{
    stop(c);
    pthread_mutex_lock(&comm->lock);
    struct dpn_verbs *v = comm->state;
    dpn_qp_fail(&v->q, &v->q.qps[0], "test", "pulled", "");
    pthread_mutex_unlock(&comm->lock);
    WHILE_IN_TIME (!has_sent_closed(comm))
        ;
    assert_int_equal(kill(c->pid, SIGKILL), 0);
    assert_int_equal(waitpid(c->pid, NULL, 0), c->pid);
}

static void must_be_gone(int err, int64_t killed_ns)
{
    assert_int_equal(err, DP_ECOMM);
    assert_true(dp_now_ns() - killed_ns < TIMEOUT_S / 8 * DP_NS_PER_S);
    assert_non_null(strstr(dp_last_error(), "the peer is gone: Connection reset by peer, and its "
                                            "acceptor no longer listens"));
}

static void kill_receiver(const struct child *c)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct dpn_request *req = NULL;
    struct dpn_comm *comm = NULL;
    struct dpn_net *net;
    const int64_t began_ns = dp_now_ns();
    int err;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    say(c->to, "", 1);
    hear(c->from, handle, sizeof(handle));
    say(c->to, "", 1);
    do {
        must_be_in_time(began_ns);
        err = dpn_net_connect(net, 0, handle, &comm);
    } while (err == DP_EAGAIN);
    assert_int_equal(err, 0);
    hear(c->from, handle, 1);
    struct dpn_memory *memory = pair_reg(comm, pair_from, NCCL_PTR_HOST);
    kill_child(c, comm);
    const int64_t killed_ns = dp_now_ns();
    while (!err) {
        must_be_in_time(killed_ns);
        err = dpn_net_isend(comm, pair_from, PAIR_BYTES, 7, memory, &req);
        assert_null(req);
    }
    must_be_gone(err, killed_ns);
    dpn_net_finalize(net);
    close(c->life);
}

static void kill_sender(const struct child *c)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct dpn_request *req = NULL;
    struct dpn_listener *listener;
    struct dpn_comm *comm = NULL;
    const size_t len = PAIR_BYTES;
    bool done = false;
    struct dpn_net *net;
    const int64_t began_ns = dp_now_ns();
    int err;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    assert_int_equal(dpn_net_listen(net, 0, handle, &listener), 0);
    say(c->to, "", 1);
    say(c->to, handle, sizeof(handle));
    do {
        must_be_in_time(began_ns);
        err = dpn_net_accept(listener, &comm);
    } while (err == DP_EAGAIN);
    assert_int_equal(err, 0);
    hear(c->from, handle, 1);
    struct dpn_memory *memory = pair_reg(comm, pair_to, NCCL_PTR_HOST);
    kill_child(c, comm);
    const int64_t killed_ns = dp_now_ns();
    assert_int_equal(dpn_net_irecv(comm, 1, (void *[]){pair_to}, &len, (int[]){7}, &memory, false,
                                   &req), 0);
    while (!err) {
        must_be_in_time(killed_ns);
        err = dpn_net_test(req, &done, NULL);
        assert_false(done);
    }
    must_be_gone(err, killed_ns);
    dpn_net_finalize(net);
    close(c->life);
}

CASE(a_receiver_that_is_killed_is_found_soon)
{
    kill_receiver(&children[1]);
}

CASE(a_sender_that_is_killed_is_found_soon)
{
    kill_sender(&children[0]);
}

CASE(a_receiver_is_found_though_its_child_runs)
{
    kill_receiver(&children[3]);
}

CASE(a_sender_is_found_though_its_child_runs)
{
    kill_sender(&children[2]);
}

static int set_up(void **state)
{
    char timeout_text[16];

    snprintf(timeout_text, sizeof(timeout_text), "%d", TIMEOUT_S);
    setenv("DUALPIPE_NET_TIMEOUT", timeout_text, 1);
    pair_set_up(state);
    for (int i = 0; i < 4; i++)
        children[i] = start_child(i % 2 == 0, i >= 2);
    return 0;
}

RUN_CASES(set_up, pair_tear_down)
