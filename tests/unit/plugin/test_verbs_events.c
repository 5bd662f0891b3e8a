/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_events.c - failures of devices, ports, addresses and queue pairs while messages are
 * sent: the message arrives, and the log names device, port, peer and operation, and where to look.
 */
#include "fake_fabric.h"
#include "verbs_pair.h"

#include <pthread.h>

enum { INFINIBAND = 2 }; /* the device */
#define PORT_OF_FAKE0 "fake0 port 1 -> fake0, GID 192.168.0.10 (index 3, RoCE v2) -> 192.168.0.10 "

/* ---- the log --------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    size_t len;
    char text[1 << 16];
} log_text = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep_log(void *none, enum dp_log_level level, const char *line)
{
    pthread_mutex_lock(&log_text.lock);
    const size_t room = sizeof(log_text.text) - log_text.len;
    const int n = snprintf(log_text.text + log_text.len, room, "%s\n", line);
    log_text.len += (size_t)n < room ? (size_t)n : room - 1;
    pthread_mutex_unlock(&log_text.lock);
}

static bool was_logged(const char *words)
{
    pthread_mutex_lock(&log_text.lock);
    const bool was = strstr(log_text.text, words);
    pthread_mutex_unlock(&log_text.lock);
    return was;
}

static void must_be_logged(const char *words)
{
    if (!was_logged(words))
        fail_msg("not said: \"%s\"; but:\n%s", words, log_text.text);
}

static int forget_all(void **state)
{
    pthread_mutex_lock(&log_text.lock);
    log_text.len = 0;
    log_text.text[0] = '\0';
    pthread_mutex_unlock(&log_text.lock);
    return 0;
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

/* Events are read at intervals. */
static void transfer_until_logged(struct pair *p, const char *words)
{
    WHILE_IN_TIME (!was_logged(words))
        pair_transfer(p, NCCL_PTR_HOST, -1);
}

/* Over fake0 and fake1, which are fused in the context. */
static struct pair connect_over_both(struct dpn_net **context)
{
    assert_int_equal(dpn_net_init(NULL, context), 0);
    struct pair p = pair_connect(pair_fuse_both());
    pair_transfer_until(&p, 3);
    return p;
}

/* ---- cases ------------------------------------------------------------------------------------- */

CASE_BETWEEN(a_port_that_is_down_leaves_its_messages_to_the_other, forget_all, NULL)
{
    struct dpn_net *context;

    struct pair p = connect_over_both(&context);
    assert_true(fake_verbs.set_port("fake0", 1, false));
    pair_transfer_until(&p, 2);
    must_be_logged("fake0 port 1 is down: look at its cable and switch");
    must_be_logged(PORT_OF_FAKE0 "(index 3, RoCE v2): port: it is down: look at the cable and the "
                                 "switch; queue pair 0x");
    must_be_logged(", 1 of 2 queue pairs are left");
    assert_true(fake_verbs.set_port("fake0", 1, true));
    pair_transfer_until(&p, 3);
    must_be_logged("fake0 port 1 is up again");
    must_be_logged("fake0 -> fake0 is in use again: 192.168.0.10 (index 3, RoCE v2)");
    pair_end(&p);
    dpn_net_finalize(context);
}

CASE_BETWEEN(the_only_port_is_waited_for, forget_all, NULL)
{
    const int64_t began_ns = dp_now_ns();
    bool done = false;
    int size;

    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    assert_true(fake_verbs.set_port("fake0", 1, false));
    struct dpn_request *send = pair_send(&p, source, pair_from, PAIR_BYTES);
    while (!was_logged("fake0 port 1 is down")) {
        must_be_in_time(began_ns);
        assert_int_equal(dpn_net_test(send, &done, &size), 0);
        assert_false(done);
    }
    assert_true(fake_verbs.set_port("fake0", 1, true));
    pair_finish(send, recv);
    assert_int_equal(pair_epoch(p.sender, 0), 1);
}

CASE_BETWEEN(a_gid_that_has_moved_is_found_again, forget_all, NULL)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    assert_true(fake_verbs.move_gid("fake0", 1, 3, 6));
    pair_transfer(&p, NCCL_PTR_HOST, 0);
    pair_transfer_until(&p, 1);
    transfer_until_logged(&p, "fake0: GID table change");
    must_be_logged(
        "is in use again: 192.168.0.10 (index 6, RoCE v2) -> 192.168.0.10 (index 6, RoCE v2)");
    assert_true(fake_verbs.move_gid("fake0", 1, 6, 3));
}

CASE_BETWEEN(a_new_lid_is_sent_to_the_peer, forget_all, NULL)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(INFINIBAND);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    assert_true(fake_verbs.set_lid("ib0", 1, 99));
    struct dpn_request *send = pair_send(&p, source, pair_from, PAIR_BYTES);
    pair_lose(&p, 0); /* sooner than by its retries */
    pair_finish(send, recv);
    transfer_until_logged(&p, "ib0: LID change");
}

CASE_BETWEEN(an_error_names_where_to_look, forget_all, NULL)
{
    static const struct {
        enum ibv_wc_status status;
        const char *hint;
    } errors[] = {
        {IBV_WC_RETRY_EXC_ERR, "the peer's port does not answer; look at the link, the switch"},
        {IBV_WC_WR_FLUSH_ERR, "the queue pair was closed by the device, or by the peer"},
        {IBV_WC_REM_ACCESS_ERR, "memory was deregistered or freed too early"},
        {IBV_WC_LOC_PROT_ERR, "memory was deregistered or freed too early"},
        {IBV_WC_LOC_QP_OP_ERR,
         "the port is down, or the device has failed; look at the kernel's log"},
        {IBV_WC_GENERAL_ERR,
         "the port is down, or the device has failed; look at the kernel's log"},
    };

    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        forget_all(state);
        assert_true(fake_verbs.fail_send(pair_qp(p.sender, 0), 1, errors[i].status,
                                         FAKE_ARRIVES_NEVER));
        pair_transfer_until(&p, 1);
        must_be_logged(PORT_OF_FAKE0 "(index 3, RoCE v2): send: ");
        must_be_logged(errors[i].hint);
    }
}

CASE_BETWEEN(a_full_queue_is_opened_again, forget_all, NULL)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    assert_true(fake_verbs.fail_call("ibv_post_send", 1, ENOMEM));
    pair_finish(pair_send(&p, source, pair_from, PAIR_BYTES), recv);
    must_be_logged("send: Cannot allocate memory: the send queue takes no more");
    assert_true(fake_verbs.fail_call("ibv_post_send", 1, ENOMEM));
    recv = pair_receive(&p, target, PAIR_BYTES);
    pair_finish(pair_send(&p, source, pair_from, PAIR_BYTES), recv);
    must_be_logged("clear-to-send: Cannot allocate memory: the send queue takes no more");
}

/* Until there is an error. */
static void must_fail(struct dpn_request *req, const char *why)
{
    bool done = false;
    int err = 0, size;

    WHILE_IN_TIME (!err) {
        err = dpn_net_test(req, &done, &size);
        assert_false(done);
    }
    assert_int_equal(err, DP_EIO);
    assert_non_null(strstr(dp_last_error(), why));
}

/* Its outstanding work may still be carried out, so it may not be sent over another one. */
CASE_BETWEEN(a_queue_pair_that_cannot_be_destroyed_ends_the_connection, forget_all, NULL)
{
    const int64_t began_ns = dp_now_ns();
    struct dpn_net *context;
    bool done = false;
    int err = 0, size;

    struct pair p = connect_over_both(&context);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    pthread_mutex_lock(&p.receiver->lock); /* so that the sender's queue pair is destroyed first */
    pair_lose(&p, 0);
    assert_true(fake_verbs.fail_call("ibv_destroy_qp", 1, EBUSY));
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    for (struct dpn_request *send = NULL; !err; must_be_in_time(began_ns)) {
        err = dpn_net_isend(p.sender, pair_from, PAIR_BYTES, 7, source, &send);
        if (send)
            err = dpn_net_test(send, &done, &size);
    }
    assert_int_equal(err, DP_EIO);
    assert_non_null(strstr(dp_last_error(), "which had failed, could not be destroyed (Device or "
                                            "resource busy), so it may still write or read"));
    assert_non_null(strstr(dp_last_error(), "test: pulled"));
    pthread_mutex_unlock(&p.receiver->lock);
    assert_non_null(recv);
    pair_end(&p);
    dpn_net_finalize(context);
}

/* The last case: failed devices stay failed. */
CASE_BETWEEN(devices_fail_one_after_the_other, forget_all, NULL)
{
    struct dpn_net *context;

    struct pair p = connect_over_both(&context);
    assert_true(fake_verbs.kill_device("fake1"));
    pair_transfer_until(&p, 1);
    transfer_until_logged(&p, "fake1 has failed: look at the kernel's log");
    must_be_logged("fake1 port 1 -> fake1, GID 192.168.0.11 ");
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(&p, target, PAIR_BYTES);
    assert_true(fake_verbs.kill_device("fake0"));
    must_fail(recv, "all its devices have failed: fake0 port 1 -> fake0");
    pair_end(&p);
    dpn_net_finalize(context);
}

/* A port that is down is noticed by its event, not by lost packets. */
static int set_up(void **state)
{
    const char *data = getenv("DP_TEST_DATA"), name[] = "/rdma/ethernet-and-infiniband";
    const size_t len = data ? strlen(data) : 0;
    char *path = data ? malloc(len + sizeof(name)) : NULL;

    if (!path)
        return -1;
    memcpy(path, data, len);
    memcpy(path + len, name, sizeof(name));
    setenv("FAKE_VERBS_DEVICES", path, 1);
    free(path);
    fabric_begin();
    setenv("FAKE_VERBS_RETRY_MS", "20000", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("DUALPIPE_NET_WIRE", "verbs", 1);
    dp_log_set(keep_log, NULL, DP_LOG_INFO);
    return 0;
}

static int tear_down(void **state)
{
    fabric_end();
    return 0;
}

RUN_CASES(set_up, tear_down)
