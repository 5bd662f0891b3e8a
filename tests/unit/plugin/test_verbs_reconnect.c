/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_reconnect.c - the control connection of an RDMA connection is lost: messages continue,
 * it is made again, and control messages that waited are sent then. A peer that is gone is still
 * detected. Without an acceptor to connect to, the loss ends the connection.
 */
#include "verbs_pair.h"
#include "fake_fabric.h"

#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/device.h"
#include "wire/tcp.h"

static bool is_lost(struct dpn_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const struct dpn_verbs *v = comm->state;
    const bool lost = v->control.channel.is_lost;
    pthread_mutex_unlock(&comm->lock);
    return lost;
}

/* Transfer messages until both sides have the control connection. */
static void transfer_until_back(struct pair *p)
{
    const int64_t began_ns = dp_now_ns();

    do {
        must_be_in_time(began_ns);
        pair_transfer(p, NCCL_PTR_HOST, -1);
    } while (is_lost(p->sender) || is_lost(p->receiver));
}

/* When it was lost last. */
static int64_t lost_ns(struct dpn_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const int64_t ns = ((const struct dpn_verbs *)comm->state)->control.channel.since_ns;
    pthread_mutex_unlock(&comm->lock);
    return ns;
}

/* Until both sides have noticed, and have it again: both may be over before the first check. */
static void reset_and_transfer(struct pair *p, struct dpn_comm *comm)
{
    const int64_t began_ns = dp_now_ns();
    const int64_t sender_ns = lost_ns(p->sender), receiver_ns = lost_ns(p->receiver);

    for (pair_reset(comm); lost_ns(p->sender) == sender_ns || lost_ns(p->receiver) == receiver_ns;) {
        must_be_in_time(began_ns);
        pair_transfer(p, NCCL_PTR_HOST, -1);
    }
    transfer_until_back(p);
}

/* ---- it is made again ------------------------------------------------------------------------ */

CASE(a_reset_ends_nothing)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    for (int i = 0; i < 4; i++) {
        reset_and_transfer(&p, i % 2 ? p.sender : p.receiver);
    }
}

/* Its control messages have to wait. */
CASE(a_queue_pair_that_fails_meanwhile_is_opened_again)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    for (unsigned i = 0; i < 4; i++) {
        const unsigned epoch = pair_epoch(p.sender, 0);
        pair_reset(i % 2 ? p.sender : p.receiver);
        const int64_t began_ns = dp_now_ns();
        for (pair_transfer(&p, NCCL_PTR_HOST, 0); pair_epoch(p.sender, 0) == epoch;) {
            must_be_in_time(began_ns);
            pair_transfer(&p, NCCL_PTR_HOST, -1);
        }
        transfer_until_back(&p);
    }
}

struct body {
    uint32_t log_text, received;
};

static struct body counters_of(struct dpn_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const struct dpn_verbs *v = comm->state;
    const struct body body = {v->control.channel.sent, v->control.channel.received};
    pthread_mutex_unlock(&comm->lock);
    return body;
}

/* Control messages sent just before may have been lost, or may be sent twice. */
CASE(control_messages_are_neither_lost_nor_duplicated)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    for (unsigned i = 0; i < 8; i++) {
        struct dpn_request *recv = NULL, *send = NULL;
        struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
        struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
        const int64_t began_ns = dp_now_ns();
        recv = pair_receive(&p, target, PAIR_BYTES);
        send = pair_send(&p, source, pair_from, PAIR_BYTES);
        pair_lose(&p, 0);
        bool done = false;
        for (unsigned k = 0; k < i && !done; k++) {
            must_be_in_time(began_ns);
            assert_int_equal(dpn_net_test(recv, &done, NULL), 0);
        }
        pair_reset(i % 2 ? p.sender : p.receiver);
        pair_finish(send, done ? NULL : recv);
        transfer_until_back(&p);
    }
    const struct body from_sender = counters_of(p.sender), from_receiver = counters_of(p.receiver);
    assert_int_equal(from_sender.log_text, from_receiver.received);
    assert_int_equal(from_receiver.log_text, from_sender.received);
}

/* ---- it stays lost --------------------------------------------------------------------------- */

static int wait_for_error(struct dpn_request *req)
{
    bool done = false;
    int err = 0;

    WHILE_IN_TIME (!err) {
        err = dpn_net_test(req, &done, NULL);
        assert_false(done);
    }
    return err;
}

/* Without closing, as when its host fails; its acceptor is gone, too. */
CASE(a_peer_that_is_gone_is_found)
{
    const int64_t timeout_s = dpn_options.timeout_s;

    dpn_options.timeout_s = 8;
    struct pair p = pair_connect(0);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    const int64_t began_ns = dp_now_ns();
    pair_reset(p.sender);
    dpn_net_close(p.sender);
    assert_int_equal(wait_for_error(recv), DP_ECOMM);
    assert_true(dp_now_ns() - began_ns < dpn_options.timeout_s * DP_NS_PER_S);
    assert_non_null(strstr(dp_last_error(), "the peer is gone: no queue pair reaches it"));
    pair_end(&p);
    dpn_options.timeout_s = timeout_s;
}

/* Its process is alive, and does not know the connection. */
CASE(a_peer_that_has_closed_is_found_at_once)
{
    struct pair other = pair_connect(0), p = pair_connect(0);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    assert_non_null(recv);
    assert_true(fake_verbs.hold(true));
    struct dpn_request *send = pair_send(&p, source, pair_from, PAIR_BYTES);
    const int64_t began_ns = dp_now_ns();
    pair_reset(p.receiver);
    dpn_net_close(p.receiver);
    assert_int_equal(wait_for_error(send), DP_ECOMM);
    assert_true(dp_now_ns() - began_ns < 5 * DP_NS_PER_S);
    assert_non_null(strstr(dp_last_error(), "the peer is gone: "));
    assert_true(fake_verbs.hold(false));
    pair_end(&p);
    pair_end(&other);
}

/* In place of the acceptor there is a listening socket, which is returned, and never answers. */
static int lock_out(struct dpn_comm *comm)
{
    struct dpn_verbs *v = comm->state;
    struct dp_tcp_address *acceptor = (struct dp_tcp_address *)(void *)&v->control.channel.acceptor;
    union dp_sockaddr place = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(place.v4);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, &place.any, len) || listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, &place.any, &len), 0);
    pthread_mutex_lock(&comm->lock);
    acceptor->port = (uint16_t)dp_sockaddr_port(&place);
    pthread_mutex_unlock(&comm->lock);
    return fd;
}

/* No peer answers there. */
CASE(control_messages_do_not_wait_for_ever)
{
    const int64_t timeout_s = dpn_options.timeout_s;

    dpn_options.timeout_s = 2;
    struct dpn_net *context;
    assert_int_equal(dpn_net_init(NULL, &context), 0);
    struct pair p = pair_connect(pair_fuse_both());
    WHILE_IN_TIME (pair_qps_up(p.sender) != 3)
        pair_transfer(&p, NCCL_PTR_HOST, -1);
    const int silent = lock_out(p.sender);
    pair_reset(p.sender);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    assert_true(fake_verbs.hold(true));
    struct dpn_request *send = pair_send(&p, source, pair_from, PAIR_BYTES);
    pair_lose(&p, 0);
    assert_true(fake_verbs.hold(false));
    expect_error(wait_for_error(send), DP_ETIMEDOUT, "the control connection that both sides need");
    assert_true(wait_for_error(recv) < 0);
    close(silent);
    pair_end(&p);
    dpn_net_finalize(context);
    dpn_options.timeout_s = timeout_s;
}

/* ---- the acceptor ---------------------------------------------------------------------------- */

CASE(an_acceptor_listens_while_it_is_used)
{
    struct dp_wire_address one, two;
    uint64_t label, other;
    struct dp_wire *wire;

    assert_int_equal(dpn_acceptor_use("127.0.0.1", &one, &label), 0);
    assert_int_equal(dpn_acceptor_use("127.0.0.1", &two, &other), 0);
    assert_memory_equal(&one, &two, sizeof(one));
    assert_int_not_equal(label, other);
    assert_int_equal(dpn_acceptor_accept(&label, &wire), DP_EAGAIN);
    dpn_acceptor_release("127.0.0.1");
    dpn_acceptor_release("127.0.0.1");
    assert_int_equal(dpn_acceptor_use("127.0.0.1", &two, &other), 0);
    assert_memory_not_equal(&one, &two, sizeof(one)); /* another cookie */
    dpn_acceptor_release("127.0.0.1");
    assert_true(dpn_acceptor_use("no-such-interface", &two, &other) < 0);
}

/* ---- no acceptor ----------------------------------------------------------------------------- */

static int listens_left = -1; /* -1: as many as the system allows */
static char log_text[4096];

int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog)
{
    if (listens_left) {
        listens_left -= listens_left > 0;
        return __real_listen(fd, backlog);
    }
    errno = EMFILE;
    return -1;
}

static void take_entry(void *user, enum dp_log_level level, const char *line)
{
    strncat(log_text, line, sizeof(log_text) - strlen(log_text) - 2);
    strcat(log_text, "\n");
}

/* The connection's own listener is the last for which there is a file descriptor. */
static struct pair connect_without_acceptors(void)
{
    log_text[0] = '\0';
    dp_log_set(take_entry, NULL, DP_LOG_INFO);
    listens_left = 1;
    struct pair p = pair_connect(0);
    listens_left = -1;
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
    return p;
}

CASE(without_an_acceptor_messages_pass_and_the_log_names_the_cause)
{
    ENDED_BY(pair_end) struct pair p = connect_without_acceptors();
    assert_non_null(strstr(log_text, "Too many open files"));
    assert_non_null(strstr(log_text, "the peer cannot ask whether this process is there: "));
    assert_non_null(strstr(log_text, "a control connection that is lost cannot be made again: "));
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    const unsigned epoch = pair_epoch(p.sender, 0);
    const int64_t began_ns = dp_now_ns();
    for (pair_transfer(&p, NCCL_PTR_HOST, 0); pair_epoch(p.sender, 0) == epoch;) {
        must_be_in_time(began_ns);
        pair_transfer(&p, NCCL_PTR_HOST, -1);
    }
}

CASE(without_an_acceptor_a_lost_control_connection_is_the_end)
{
    ENDED_BY(pair_end) struct pair p = connect_without_acceptors();
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    assert_non_null(source);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    const int64_t began_ns = dp_now_ns();
    pair_reset(p.sender);
    expect_error(wait_for_error(recv), DP_ECOMM, "the peer is gone: ");
    assert_true(dp_now_ns() - began_ns < 5 * DP_NS_PER_S);
}

/* A later connection has one. */
CASE(an_acceptor_is_tried_again)
{
    struct pair without = connect_without_acceptors(), p = pair_connect(0);
    reset_and_transfer(&p, p.receiver);
    pair_transfer(&without, NCCL_PTR_HOST, -1);
    pair_end(&p);
    pair_end(&without);
}

int main(void)
{
    return run_cases(pair_set_up, pair_tear_down);
}
