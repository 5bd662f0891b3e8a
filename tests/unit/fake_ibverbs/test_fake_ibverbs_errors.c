/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fake_ibverbs_errors.c - the simulated libibverbs fails as hardware does, on both sides.
 */
#include "cmocka_all.h"
#include "unit/plugin/fake_fabric.h"

static struct end a, b;
static struct card of_a, of_b;

static int connect_two(void **state)
{
    ends_open(&a, &b, &of_a, &of_b);
    ends_connect(&a, &b);
    return 0;
}

static int close_two(void **state)
{
    return ends_close(&a, &b);
}

static void assert_done(struct end *e, enum ibv_wc_status status)
{
    assert_string_equal(ibv_wc_status_str(end_wait(e).status), ibv_wc_status_str(status));
}

static void assert_event(struct end *e, enum ibv_event_type type)
{
    struct ibv_async_event event;

    assert_int_equal(ibv_get_async_event(e->context, &event), 0);
    assert_string_equal(ibv_event_type_str(event.event_type), ibv_event_type_str(type));
    ibv_ack_async_event(&event);
}

static enum ibv_qp_state state_of(struct end *e)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    assert_int_equal(ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
}

/* ---- what must not be ------------------------------------------------------------------------ */

/* A write that the peer refuses: this side gets a failed completion, the peer an event, and nothing
 * is written. */
static void assert_refused(struct request *r, enum ibv_wc_status status, enum ibv_event_type event)
{
    assert_int_equal(end_post_recv(&b, 9, 0, 1), 0);
    memset(a.data, 0x77, END_BYTES);
    assert_int_equal(end_post(&a, r), 0);
    assert_done(&a, status);
    assert_event(&b, event);
    assert_int_equal(state_of(&a), IBV_QPS_ERR);
    assert_int_equal(state_of(&b), IBV_QPS_ERR);
    assert_done(&b, IBV_WC_WR_FLUSH_ERR);
    for (int i = 0; i < END_BYTES; i++)
        assert_int_equal(b.data[i], 0);
}

CASE_BETWEEN(a_wrong_remote_key_is_refused, connect_two, close_two)
{
    struct request r;

    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 100, &of_b);
    r.wr.wr.rdma.rkey ^= 1;
    assert_refused(&r, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

CASE_BETWEEN(a_local_key_is_no_remote_key, connect_two, close_two)
{
    struct request r;

    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 100, &of_b);
    r.wr.wr.rdma.rkey = b.mr->lkey;
    assert_refused(&r, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

CASE_BETWEEN(a_write_beyond_the_end_is_refused, connect_two, close_two)
{
    struct request r;

    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 100, &of_b);
    r.wr.wr.rdma.remote_addr = of_b.data + END_BYTES - 99;
    assert_refused(&r, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

CASE_BETWEEN(a_write_where_only_reading_is_allowed_is_refused, connect_two, close_two)
{
    struct ibv_mr *mr =
        ibv_reg_mr(b.pd, b.data, END_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    struct request r;

    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 100, &of_b);
    r.wr.wr.rdma.rkey = mr->rkey;
    assert_refused(&r, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    assert_int_equal(ibv_dereg_mr(mr), 0);
}

CASE_BETWEEN(the_key_of_a_deregistered_region_is_refused, connect_two, close_two)
{
    struct ibv_mr *mr =
        ibv_reg_mr(b.pd, b.data, END_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    const uint32_t rkey = mr->rkey;
    struct request r;

    assert_int_equal(ibv_dereg_mr(mr), 0);
    mr = ibv_reg_mr(b.pd, b.data, END_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 100, &of_b);
    r.wr.wr.rdma.rkey = rkey;
    assert_refused(&r, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    assert_int_equal(ibv_dereg_mr(mr), 0);
}

CASE_BETWEEN(a_queue_pair_without_the_right_to_be_written_refuses, connect_two, close_two)
{
    struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_READ};
    struct request r;

    assert_int_equal(ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 100, &of_b);
    assert_refused(&r, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

CASE_BETWEEN(a_wrong_local_key_fails_here_only, connect_two, close_two)
{
    struct request r;

    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 100, &of_b);
    r.sge.lkey = a.mr->rkey;
    assert_int_equal(end_post(&a, &r), 0);
    assert_done(&a, IBV_WC_LOC_PROT_ERR);
    assert_int_equal(state_of(&b), IBV_QPS_RTS);
}

CASE_BETWEEN(a_message_longer_than_the_receive_fails_on_both_sides, connect_two, close_two)
{
    struct request r;

    assert_int_equal(end_post_recv(&b, 1, 0, 99), 0);
    request_init(&r, &a, IBV_WR_SEND, 0, 100, NULL);
    assert_int_equal(end_post(&a, &r), 0);
    assert_done(&a, IBV_WC_REM_INV_REQ_ERR);
    assert_done(&b, IBV_WC_LOC_LEN_ERR);
}

CASE_BETWEEN(an_error_flushes_everything_in_order, connect_two, close_two)
{
    struct request r;

    fake_verbs.hold(true);
    for (uint64_t i = 0; i < 5; i++) {
        request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 1, &of_b);
        r.wr.wr_id = i;
        r.wr.send_flags = 0;
        assert_int_equal(end_post(&a, &r), 0);
        assert_int_equal(end_post_recv(&a, 10 + i, 0, 1), 0);
    }
    fake_verbs.hold(false);
    fake_verbs.hold(true);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(end_post(&a, &r), 0);
    assert_int_equal(end_to(&a, IBV_QPS_ERR), 0);
    fake_verbs.hold(false);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(end_wait(&a).wr_id, 10 + i);
    for (uint64_t i = 0; i < 5; i++)
        assert_done(&a, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_post_recv(&a, 20, 0, 1), 0);
    assert_done(&a, IBV_WC_WR_FLUSH_ERR);
    assert_true(end_is_silent(&a));
}

/* ---- no peer --------------------------------------------------------------------------------- */

static void assert_unanswered(void)
{
    struct request r;

    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 1, &of_b);
    assert_int_equal(end_post(&a, &r), 0);
    assert_done(&a, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(b.data[0], 0);
}

CASE_BETWEEN(a_queue_pair_in_error_does_not_answer, connect_two, close_two)
{
    a.data[0] = 1;
    assert_int_equal(end_to(&b, IBV_QPS_ERR), 0);
    assert_unanswered();
}

CASE_BETWEEN(another_sequence_number_is_not_answered, connect_two, close_two)
{
    a.data[0] = 1;
    assert_int_equal(end_to(&a, IBV_QPS_RESET), 0);
    a.psn++;
    end_connect(&a, &of_b);
    assert_unanswered();
}

CASE_BETWEEN(a_port_that_is_down_does_not_answer, connect_two, close_two)
{
    struct ibv_port_attr port;

    a.data[0] = 1;
    assert_true(fake_verbs.set_port("fake1", 1, false));
    assert_event(&b, IBV_EVENT_PORT_ERR);
    assert_int_equal(ibv_query_port(b.context, 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_DOWN);
    assert_unanswered();
    assert_true(fake_verbs.set_port("fake1", 1, true));
    assert_event(&b, IBV_EVENT_PORT_ACTIVE);
}

CASE_BETWEEN(a_port_that_returns_in_time_is_not_noticed, connect_two, close_two)
{
    struct request r;

    setenv("FAKE_VERBS_RETRY_MS", "30000", 1);
    assert_true(fake_verbs.set_port("fake1", 1, false));
    a.data[0] = 1;
    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 1, &of_b);
    assert_int_equal(end_post(&a, &r), 0);
    assert_true(end_is_silent(&a));
    assert_true(fake_verbs.set_port("fake1", 1, true));
    assert_done(&a, IBV_WC_SUCCESS);
    assert_int_equal(b.data[0], 1);
    unsetenv("FAKE_VERBS_RETRY_MS");
}

/* ---- on demand ------------------------------------------------------------------------------- */

static void fail_one(enum fake_verbs_arrival arrival)
{
    struct request r;

    a.data[0] = 1;
    assert_true(fake_verbs.fail_send(a.qp, 2, IBV_WC_RETRY_EXC_ERR, arrival));
    for (size_t i = 1; i < 4; i++) {
        a.data[i] = (char)i;
        request_init(&r, &a, IBV_WR_RDMA_WRITE, i, 1, &of_b);
        assert_int_equal(end_post(&a, &r), 0);
    }
    assert_done(&a, IBV_WC_SUCCESS);
    assert_done(&a, IBV_WC_RETRY_EXC_ERR);
    assert_done(&a, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(b.data[1], 1);
    assert_int_equal(b.data[3], 0);
}

static void wait_for_all(void)
{
    struct ibv_wc wc;

    while (fake_verbs.waiting())
        assert_int_equal(ibv_poll_cq(a.cq, 1, &wc), 0);
}

CASE_BETWEEN(what_failed_may_not_have_arrived, connect_two, close_two)
{
    fail_one(FAKE_ARRIVES_NEVER);
    assert_int_equal(b.data[2], 0);
}

CASE_BETWEEN(what_failed_may_have_arrived, connect_two, close_two)
{
    fail_one(FAKE_ARRIVES_BEFORE);
    assert_int_equal(b.data[2], 2);
}

CASE_BETWEEN(what_failed_may_arrive_after, connect_two, close_two)
{
    fail_one(FAKE_ARRIVES_AFTER);
    wait_for_all();
    assert_int_equal(b.data[2], 2);
}

CASE_BETWEEN(what_failed_does_not_arrive_at_a_destroyed_queue_pair, connect_two, close_two)
{
    fail_one(FAKE_ARRIVES_AFTER);
    b.data[2] = 0;
    assert_int_equal(end_to(&b, IBV_QPS_ERR), 0);
    wait_for_all();
    assert_int_equal(b.data[2], 0);
}

CASE_BETWEEN(a_call_fails_when_it_is_told_to, connect_two, close_two)
{
    fake_verbs.fail_call("ibv_reg_mr", 2, ENOMEM);
    struct ibv_mr *mr = ibv_reg_mr(a.pd, a.data, 10, 0);
    assert_non_null(mr);
    assert_null(ibv_reg_mr(a.pd, a.data, 10, 0));
    assert_int_equal(errno, ENOMEM);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    fake_verbs.fail_call("ibv_modify_qp", 1, ETIMEDOUT);
    assert_int_equal(end_to(&a, IBV_QPS_ERR), ETIMEDOUT);
    assert_int_equal(end_to(&a, IBV_QPS_ERR), 0);
}

CASE_BETWEEN(memory_that_is_not_there_is_not_registered, connect_two, close_two)
{
    assert_null(ibv_reg_mr(a.pd, (void *)4096, 10, 0));
    assert_int_equal(errno, EFAULT);
    assert_null(ibv_reg_mr(a.pd, a.data, 10, IBV_ACCESS_REMOTE_WRITE));
    assert_int_equal(errno, EINVAL);
}

CASE_BETWEEN(a_gid_that_moves_is_found_at_its_new_place, connect_two, close_two)
{
    union ibv_gid before, after;

    assert_int_equal(ibv_query_gid(a.context, 1, 3, &before), 0);
    assert_true(fake_verbs.move_gid("fake0", 1, 3, 7));
    assert_event(&a, IBV_EVENT_GID_CHANGE);
    assert_int_equal(ibv_query_gid(a.context, 1, 7, &after), 0);
    assert_memory_equal(&before, &after, sizeof(before));
    assert_true(fake_verbs.move_gid("fake0", 1, 7, 3));
    assert_event(&a, IBV_EVENT_GID_CHANGE);
}

/* Last, as nothing works any more afterwards. */
CASE_BETWEEN(a_device_that_dies_takes_all_with_it, connect_two, close_two)
{
    assert_int_equal(end_post_recv(&a, 1, 0, 1), 0);
    assert_true(fake_verbs.kill_device("fake0"));
    assert_event(&a, IBV_EVENT_DEVICE_FATAL);
    assert_done(&a, IBV_WC_WR_FLUSH_ERR);
    assert_null(ibv_reg_mr(a.pd, a.data, 1, 0));
    assert_int_equal(errno, EIO);
}

int main(void)
{
    fabric_begin();
    const int failed = run_cases(NULL, NULL);
    fabric_end();
    return failed;
}
