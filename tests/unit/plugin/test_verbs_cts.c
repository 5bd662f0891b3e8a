/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_cts.c - CTS entries over several queue pairs: one is slow while another one fails.
 */
#include "verbs_pair.h"
#include "fake_fabric.h"

enum { LEN = 9000 /* such a message waits for its CTS entry, which is not delayed */ };

struct both {
    struct pair pair;
    struct dpn_memory *from, *to;
    struct dpn_request *recv, *send;
};

static void try_send(struct both *b)
{
    if (!b->send)
        assert_int_equal(dpn_net_isend(b->pair.sender, pair_from, LEN, 7, b->from, &b->send), 0);
}

/* Transfer until both sides use all queue pairs, this one in this epoch; the message is sent as
 * soon as possible. */
static void wait_for_qps(struct both *b, unsigned qp, unsigned epoch)
{
    const int64_t began_ns = dp_now_ns();
    bool done = false;

    while (pair_qps_up(b->pair.sender) != 7 || pair_qps_up(b->pair.receiver) != 7 ||
           pair_epoch(b->pair.sender, qp) != epoch) {
        must_be_in_time(began_ns);
        try_send(b);
        if (b->recv)
            assert_int_equal(dpn_net_test(b->recv, &done, NULL), 0);
        if (done)
            b->recv = NULL;
    }
}

static struct both connect_by_three_qps(void)
{
    struct both b = {.pair = pair_connect(0)};

    b.from = pair_reg(b.pair.sender, pair_from, NCCL_PTR_HOST);
    b.to = pair_reg(b.pair.receiver, pair_to, NCCL_PTR_HOST);
    wait_for_qps(&b, 0, 1);
    return b;
}

static void transfer(struct both *b)
{
    const int64_t began_ns = dp_now_ns();

    for (; !b->send; must_be_in_time(began_ns))
        try_send(b);
    pair_finish(b->send, b->recv);
    b->send = NULL;
}

/* A receive whose CTS entry goes over queue pair 1, as 0 has just failed, and is in flight while
 * that queue pair, which is returned, is held. */
static struct ibv_qp *send_cts_slowly(struct both *b)
{
    struct dpn_comm *comm = b->pair.receiver;
    struct dpn_piece piece = {pair_to, LEN, 7, b->to, false};

    pthread_mutex_lock(&comm->lock);
    struct dpn_verbs *v = comm->state;
    struct ibv_qp *slow = v->q.qps[1].ibv;
    assert_true(fake_verbs.hold_qp(slow, true));
    dpn_qp_fail(&v->q, &v->q.qps[0], "test", "pulled", "");
    assert_int_equal(dpn_verbs_irecv(&v->recv, 1, &piece, &b->recv), 0);
    pthread_mutex_unlock(&comm->lock);
    return slow;
}

/* The sender reports a failed queue pair. The slow entry must not be written again over the first
 * one: the slow one would arrive after the ring has wrapped, in place of an entry that is not read
 * yet. */
CASE(a_cts_entry_that_is_late_overwrites_no_other)
{
    struct both b = connect_by_three_qps();
    struct ibv_qp *slow = send_cts_slowly(&b);
    wait_for_qps(&b, 0, 2);
    pair_lose(&b.pair, 2);
    wait_for_qps(&b, 2, 2);
    if (!b.send)
        assert_true(fake_verbs.hold_qp(slow, false));
    for (int i = 0; i < DPN_CTS_ENTRIES; i++) {
        transfer(&b);
        b.recv = pair_receive(&b.pair, b.to, LEN);
    }
    assert_true(fake_verbs.hold_qp(slow, false));
    transfer(&b);
    pair_end(&b.pair);
}

/* After an outdated report some entries are written again that were read long ago. */
CASE(a_cts_entry_that_comes_again_late_overwrites_no_other)
{
    enum { AGAIN = 2 }; /* which are put into the work request */

    struct both b = connect_by_three_qps();
    for (int i = 0; i < AGAIN; i++) {
        b.recv = pair_receive(&b.pair, b.to, LEN); /* over queue pair 0 */
        transfer(&b);
    }
    pthread_mutex_lock(&b.pair.receiver->lock);
    struct dpn_verbs *v = b.pair.receiver->state;
    struct ibv_qp *slow = v->q.qps[1].ibv;
    assert_true(fake_verbs.hold_qp(slow, true));
    dpn_qp_fail(&v->q, &v->q.qps[0], "test", "pulled", "");
    dpn_cts_rewind(&v->recv, 0, v->recv.cts_made - AGAIN);
    dpn_cts_push(&v->recv);
    pthread_mutex_unlock(&b.pair.receiver->lock);
    b.recv = NULL;
    wait_for_qps(&b, 0, 2);
    for (int i = 0; i < DPN_CTS_ENTRIES - AGAIN; i++) {
        b.recv = pair_receive(&b.pair, b.to, LEN);
        transfer(&b);
    }
    b.recv = pair_receive(&b.pair, b.to, LEN); /* reuses the place of the first of them */
    assert_true(fake_verbs.hold_qp(slow, false));
    transfer(&b);
    pair_end(&b.pair);
}

/* Others are not written again. */
CASE(cts_entries_of_a_lost_queue_pair_are_written_again)
{
    struct both b = connect_by_three_qps();
    struct ibv_qp *slow = send_cts_slowly(&b);
    struct dpn_request *first = b.recv;
    b.recv = NULL;
    wait_for_qps(&b, 0, 2);
    struct dpn_request *second = pair_receive(&b.pair, b.to, LEN); /* over queue pair 0 */
    assert_null(b.send);
    assert_true(fake_verbs.hold_qp(slow, false));
    transfer(&(struct both){b.pair, b.from, b.to, first, NULL});
    transfer(&(struct both){b.pair, b.from, b.to, second, NULL});
    for (unsigned i = 0; i < 6; i++) {
        slow = send_cts_slowly(&b);
        pair_lose(&b.pair, 1); /* with the entry on it */
        transfer(&b);
        b.recv = NULL;
        wait_for_qps(&b, 1, i + 2);
    }
    pair_end(&b.pair);
}

static int set_up(void **state)
{
    setenv("NCCL_IB_QPS_PER_CONNECTION", "3", 1);
    return pair_set_up(state);
}

/* The receiver's lock is held when this returns, and it has not polled the probe. */
static struct dpn_verbs *lock_receiver_while_opening(struct both *b, unsigned qp, unsigned epoch)
{
    struct dpn_comm *comm = b->pair.receiver;
    const int64_t began_ns = dp_now_ns();

    for (;; must_be_in_time(began_ns)) {
        pthread_mutex_lock(&comm->lock);
        struct dpn_verbs *v = comm->state;
        if (v->q.qps[qp].state == DPN_QP_OPENING && v->q.qps[qp].epoch == epoch)
            return v;
        dpn_verbs_progress_all(v);
        pthread_mutex_unlock(&comm->lock);
        try_send(b);
    }
}

CASE(a_probe_that_is_polled_late_does_not_revive_a_queue_pair)
{
    struct both b = connect_by_three_qps();
    pair_lose(&b.pair, 0);
    struct dpn_verbs *v = lock_receiver_while_opening(&b, 0, 2);
    WHILE_IN_TIME (pair_qps_up(b.pair.sender) != 7)
        try_send(&b);
    dpn_qp_fail(&v->q, &v->q.qps[0], "test", "pulled", "");
    const int failures = v->q.qps[0].failures;
    dpn_verbs_poll(v); /* the probe; and, after it, flushed receives, which would fail it again */
    assert_int_equal(v->q.qps[0].state, DPN_QP_STOPPING);
    assert_int_equal(v->q.qps[0].failures, failures);
    pthread_mutex_unlock(&b.pair.receiver->lock);
    wait_for_qps(&b, 0, 3);
    b.recv = pair_receive(&b.pair, b.to, LEN);
    transfer(&b);
    pair_end(&b.pair);
}

int main(void)
{
    return run_cases(set_up, pair_tear_down);
}
