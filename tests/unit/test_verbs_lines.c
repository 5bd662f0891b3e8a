/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_lines.c - clear-to-send over several lanes: one is slow while another one is lost.
 */
#include "unit/verbs_pair.h"
#include "fake_fabric.h"

#include <stdlib.h>

enum { LEN = 9000 /* such a message waits for its line, which is not held back */ };

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

/* Until both sides use all lanes, this one in this epoch; the message goes off as soon as it may. */
static void wait_for_lanes(struct both *b, unsigned lane, unsigned epoch)
{
    const int64_t began_ns = dp_now_ns();
    bool done = false;

    while (pair_lanes_up(b->pair.sender) != 7 || pair_lanes_up(b->pair.receiver) != 7 ||
           pair_epoch(b->pair.sender, lane) != epoch) {
        must_be_in_time(began_ns);
        try_send(b);
        if (b->recv)
            assert_int_equal(dpn_net_test(b->recv, &done, NULL), 0);
        if (done)
            b->recv = NULL;
    }
}

static struct both connect_by_three_lanes(void)
{
    struct both b = {.pair = pair_connect(0)};

    b.from = pair_reg(b.pair.sender, pair_from, NCCL_PTR_HOST);
    b.to = pair_reg(b.pair.receiver, pair_to, NCCL_PTR_HOST);
    wait_for_lanes(&b, 0, 1);
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

/* A receive whose line goes over lane 1, as lane 0 is lost just now, and is on its way until that
 * queue pair, which is returned, is held no more. */
static struct ibv_qp *send_line_slowly(struct both *b)
{
    struct dpn_comm *comm = b->pair.receiver;
    struct dpn_piece piece = {pair_to, LEN, 7, b->to, false};

    pthread_mutex_lock(&comm->lock);
    struct dpn_verbs *v = comm->state;
    struct ibv_qp *slow = v->lanes[1].qp;
    assert_true(fake_verbs.hold_qp(slow, true));
    dpn_lane_fence(v, &v->lanes[0], "test", "pulled", "");
    assert_int_equal(dpn_verbs_irecv(comm, 1, &piece, &b->recv), 0);
    pthread_mutex_unlock(&comm->lock);
    return slow;
}

/* What the sender says of a lost lane is no reason to write that line once more, over the first lane:
 * the slow one would come when the next lap has begun, in the place of a line that is not read yet. */
static void a_line_that_is_late_overwrites_no_other(void **state)
{
    (void)state;
    struct both b = connect_by_three_lanes();
    struct ibv_qp *slow = send_line_slowly(&b);
    wait_for_lanes(&b, 0, 2);
    pair_lose(&b.pair, 2);
    wait_for_lanes(&b, 2, 2);
    if (!b.send)
        assert_true(fake_verbs.hold_qp(slow, false));
    for (int i = 0; i < DPN_LINES; i++) {
        transfer(&b);
        b.recv = pair_receive(&b.pair, b.to, LEN);
    }
    assert_true(fake_verbs.hold_qp(slow, false));
    transfer(&b);
    pair_end(&b.pair);
}

/* An old word makes some lines be written once more that were read long ago. */
static void a_line_that_comes_again_late_overwrites_no_other(void **state)
{
    enum { AGAIN = 2 }; /* which are put into the work request */

    (void)state;
    struct both b = connect_by_three_lanes();
    for (int i = 0; i < AGAIN; i++) {
        b.recv = pair_receive(&b.pair, b.to, LEN); /* over lane 0 */
        transfer(&b);
    }
    pthread_mutex_lock(&b.pair.receiver->lock);
    struct dpn_verbs *v = b.pair.receiver->state;
    struct ibv_qp *slow = v->lanes[1].qp;
    assert_true(fake_verbs.hold_qp(slow, true));
    dpn_lane_fence(v, &v->lanes[0], "test", "pulled", "");
    dpn_verbs_rewind_lines(v, 0, v->lines_made - AGAIN);
    dpn_verbs_push_lines(v);
    pthread_mutex_unlock(&b.pair.receiver->lock);
    b.recv = NULL;
    wait_for_lanes(&b, 0, 2);
    for (int i = 0; i < DPN_LINES - AGAIN; i++) {
        b.recv = pair_receive(&b.pair, b.to, LEN);
        transfer(&b);
    }
    b.recv = pair_receive(&b.pair, b.to, LEN); /* in the place of the first of them */
    assert_true(fake_verbs.hold_qp(slow, false));
    transfer(&b);
    pair_end(&b.pair);
}

/* And only those. */
static void lines_of_a_lost_lane_are_written_again(void **state)
{
    (void)state;
    struct both b = connect_by_three_lanes();
    struct ibv_qp *slow = send_line_slowly(&b);
    struct dpn_request *first = b.recv;
    b.recv = NULL;
    wait_for_lanes(&b, 0, 2);
    struct dpn_request *second = pair_receive(&b.pair, b.to, LEN); /* over lane 0 */
    assert_null(b.send);
    assert_true(fake_verbs.hold_qp(slow, false));
    transfer(&(struct both){b.pair, b.from, b.to, first, NULL});
    transfer(&(struct both){b.pair, b.from, b.to, second, NULL});
    for (unsigned i = 0; i < 6; i++) {
        slow = send_line_slowly(&b);
        pair_lose(&b.pair, 1); /* with the line on it */
        transfer(&b);
        b.recv = NULL;
        wait_for_lanes(&b, 1, i + 2);
    }
    pair_end(&b.pair);
}

static int set_up(void **state)
{
    setenv("NCCL_IB_QPS_PER_CONNECTION", "3", 1);
    return pair_set_up(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_that_is_late_overwrites_no_other),
        cmocka_unit_test(a_line_that_comes_again_late_overwrites_no_other),
        cmocka_unit_test(lines_of_a_lost_lane_are_written_again),
    };
    return cmocka_run_group_tests(tests, set_up, pair_tear_down);
}
