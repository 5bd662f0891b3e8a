/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fake_ibverbs.c - the simulated libibverbs transfers messages as hardware does.
 */
#include "config.h" /* GNU extensions: memfd_create */

#include "cmocka_all.h"
#include "unit/plugin/fake_fabric.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

static struct end a, b;
static struct card of_a, of_b;

static int open_two(void **state)
{
    ends_open(&a, &b, &of_a, &of_b);
    return 0;
}

static int connect_two(void **state)
{
    open_two(state);
    ends_connect(&a, &b);
    return 0;
}

static int close_two(void **state)
{
    return ends_close(&a, &b);
}

static void fill(struct end *e, size_t at, size_t len, int value)
{
    memset(e->data + at, value, len);
}

static void assert_all(const struct end *e, size_t at, size_t len, int value)
{
    for (size_t i = at; i < at + len; i++)
        assert_int_equal((unsigned char)e->data[i], value);
}

static void assert_done(struct end *e, enum ibv_wc_status status)
{
    const struct ibv_wc wc = end_wait(e);

    assert_string_equal(ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    assert_int_equal(wc.qp_num, e->qp->qp_num);
}

/* ---- what there is --------------------------------------------------------------------------- */

CASE_BETWEEN(devices_ports_and_tables_are_those_of_the_configuration, open_two, close_two)
{
    struct ibv_device_attr_ex attr;
    struct ibv_port_attr port;
    struct ibv_gid_entry all[32];

    assert_string_equal(ibv_get_device_name(a.context->device), "fake0");
    assert_int_equal(ibv_query_device_ex(a.context, NULL, &attr), 0);
    assert_int_equal(attr.orig_attr.phys_port_cnt, 1);
    assert_int_equal(attr.phys_port_cnt_ex, 1);
    assert_int_equal(ibv_query_port(a.context, 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_ACTIVE);
    assert_int_equal(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    assert_int_equal(port.active_width, 2);
    assert_int_equal(port.active_speed, 32);
    assert_int_equal(ibv_query_port(a.context, 2, &port), EINVAL);
    assert_int_equal(ibv_query_gid_table(a.context, all, 2048, 0), -EINVAL);
    assert_int_equal(ibv_query_gid_table(a.context, all, 3, 0), -EINVAL);
    assert_int_equal(ibv_query_gid_table(a.context, all, 32, 0), 4);
    assert_int_equal(all[2].gid_type, IBV_GID_TYPE_ROCE_V1);
    assert_int_equal(all[3].gid_type, IBV_GID_TYPE_ROCE_V2);
    assert_memory_equal(all[3].gid.raw + 10, "\xff\xff\xc0\xa8\x00\x0a", 6);
    assert_int_equal(ibv_query_gid_ex(a.context, 1, 9, &all[0], 0), ENODATA);
}

/* ---- operations ------------------------------------------------------------------------------ */

CASE_BETWEEN(a_write_arrives_and_completes_here_only, connect_two, close_two)
{
    struct request r;

    fill(&a, 100, 5000, 0x11);
    request_init(&r, &a, IBV_WR_RDMA_WRITE, 100, 5000, &of_b);
    r.wr.wr_id = 42;
    assert_int_equal(end_post(&a, &r), 0);
    const struct ibv_wc wc = end_wait(&a);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_RDMA_WRITE);
    assert_int_equal(wc.wr_id, 42);
    assert_all(&b, 100, 5000, 0x11);
    assert_all(&b, 5100, 100, 0);
    assert_true(end_is_silent(&b));
}

CASE_BETWEEN(a_write_with_an_immediate_completes_on_both_sides, connect_two, close_two)
{
    struct request r;

    fill(&a, 0, 10, 0x22);
    assert_int_equal(end_post_recv(&b, 7, 0, 0), 0);
    request_init(&r, &a, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 10, &of_b);
    r.wr.imm_data = 0x12345678;
    assert_int_equal(end_post(&a, &r), 0);
    const struct ibv_wc wc = end_wait(&b);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_int_equal(wc.wr_id, 7);
    assert_int_equal(wc.byte_len, 10);
    assert_int_equal(wc.wc_flags, IBV_WC_WITH_IMM);
    assert_int_equal(wc.imm_data, 0x12345678);
    assert_all(&b, 0, 10, 0x22);
    assert_done(&a, IBV_WC_SUCCESS);
}

CASE_BETWEEN(a_send_is_scattered_over_the_places_of_the_receive, connect_two, close_two)
{
    struct ibv_sge places[2] = {{(uintptr_t)b.data + 10, 3, b.mr->lkey},
                                {(uintptr_t)b.data + 100, 50, b.mr->lkey}};
    struct ibv_recv_wr wr = {.sg_list = places, .num_sge = 2}, *bad;
    struct request r;

    fill(&a, 0, 20, 0x33);
    assert_int_equal(ibv_post_recv(b.qp, &wr, &bad), 0);
    request_init(&r, &a, IBV_WR_SEND, 0, 20, NULL);
    assert_int_equal(end_post(&a, &r), 0);
    assert_int_equal(end_wait(&b).byte_len, 20);
    assert_all(&b, 10, 3, 0x33);
    assert_all(&b, 13, 87, 0);
    assert_all(&b, 100, 17, 0x33);
    assert_all(&b, 117, 50, 0);
}

CASE_BETWEEN(a_read_brings_what_is_there, connect_two, close_two)
{
    struct request r;

    fill(&b, 0, 999, 0x44);
    request_init(&r, &a, IBV_WR_RDMA_READ, 0, 999, &of_b);
    assert_int_equal(end_post(&a, &r), 0);
    const struct ibv_wc wc = end_wait(&a);
    assert_int_equal(wc.opcode, IBV_WC_RDMA_READ);
    assert_int_equal(wc.byte_len, 999);
    assert_all(&a, 0, 999, 0x44);
}

CASE_BETWEEN(inline_bytes_are_copied_at_once, connect_two, close_two)
{
    struct request r;

    fake_verbs.hold(true);
    fill(&a, 0, END_INLINE, 0x55);
    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, END_INLINE, &of_b);
    r.wr.send_flags |= IBV_SEND_INLINE;
    r.sge.lkey = 0;
    assert_int_equal(end_post(&a, &r), 0);
    fill(&a, 0, END_INLINE, 0);
    fake_verbs.hold(false);
    assert_done(&a, IBV_WC_SUCCESS);
    assert_all(&b, 0, END_INLINE, 0x55);
    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, END_INLINE + 1, &of_b);
    r.wr.send_flags |= IBV_SEND_INLINE;
    assert_int_equal(end_post(&a, &r), EINVAL);
}

CASE_BETWEEN(zero_bytes_need_no_key, connect_two, close_two)
{
    struct request r;

    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 0, NULL);
    r.wr.num_sge = 0;
    assert_int_equal(end_post(&a, &r), 0);
    assert_done(&a, IBV_WC_SUCCESS);
}

CASE_BETWEEN(without_a_receive_a_message_waits, connect_two, close_two)
{
    struct request r;

    request_init(&r, &a, IBV_WR_SEND, 0, 4, NULL);
    assert_int_equal(end_post(&a, &r), 0);
    assert_true(end_is_silent(&a));
    assert_int_equal(end_post_recv(&b, 1, 0, 4), 0);
    assert_done(&b, IBV_WC_SUCCESS);
    assert_done(&a, IBV_WC_SUCCESS);
}

CASE_BETWEEN(one_queue_pair_keeps_the_order, connect_two, close_two)
{
    struct request r;

    for (uint64_t i = 0; i < 32; i++)
        assert_int_equal(end_post_recv(&b, i, i, 1), 0);
    for (uint64_t i = 0; i < 32; i++) {
        fill(&a, i, 1, (int)i);
        request_init(&r, &a, IBV_WR_SEND, i, 1, NULL);
        r.wr.wr_id = 100 + i;
        assert_int_equal(end_post(&a, &r), 0);
    }
    for (uint64_t i = 0; i < 32; i++) {
        assert_int_equal(end_wait(&a).wr_id, 100 + i);
        assert_int_equal(end_wait(&b).wr_id, i);
        assert_all(&b, i, 1, (int)i);
    }
}

CASE_BETWEEN(a_place_in_the_queue_is_free_once_its_completion_was_polled, connect_two, close_two)
{
    struct request r;

    for (int i = 0; i < END_ENTRIES; i++) {
        request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 1, &of_b);
        r.wr.send_flags = i == END_ENTRIES / 2 ? IBV_SEND_SIGNALED : 0;
        assert_int_equal(end_post(&a, &r), 0);
    }
    assert_int_equal(end_post(&a, &r), ENOMEM);
    assert_done(&a, IBV_WC_SUCCESS);
    for (int i = 0; i <= END_ENTRIES / 2; i++)
        assert_int_equal(end_post(&a, &r), 0);
    assert_int_equal(end_post(&a, &r), ENOMEM);
}

CASE_BETWEEN(a_dma_buf_is_memory_like_any_other, connect_two, close_two)
{
    const int fd = memfd_create("dma-buf", MFD_CLOEXEC);
    char bytes[100] = "";
    struct request r;

    assert_int_equal(ftruncate(fd, 16384), 0);
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(b.pd, 4096, 8192, 0x10000, fd,
                                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    assert_non_null(mr);
    assert_null(ibv_reg_dmabuf_mr(b.pd, 4096, 16384, 0x10000, fd, IBV_ACCESS_LOCAL_WRITE));
    assert_null(ibv_reg_dmabuf_mr(b.pd, 0, 0, 0, -1, 0));
    assert_int_equal(errno, EBADF);
    fill(&a, 0, 100, 0x66);
    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 100, &of_b);
    r.wr.wr.rdma.remote_addr = 0x10000 + 200;
    r.wr.wr.rdma.rkey = mr->rkey;
    assert_int_equal(end_post(&a, &r), 0);
    assert_done(&a, IBV_WC_SUCCESS);
    assert_int_equal(pread(fd, bytes, sizeof(bytes), 4096 + 200), 100);
    assert_memory_equal(bytes, a.data, 100);
    close(fd);
    assert_int_equal(ibv_dereg_mr(mr), 0);
}

CASE_BETWEEN(a_channel_tells_of_a_completion_once, connect_two, close_two)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(b.context);
    struct ibv_cq *cq = ibv_create_cq(b.context, 16, &b, channel, 0), *which;
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                    .cap = {4, 4, 1, 1, 0}};
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    struct end c = b;
    void *context;

    c.cq = cq;
    c.qp = ibv_create_qp(b.pd, &init);
    const struct card of_c = end_card(&c);
    assert_int_equal(end_to(&a, IBV_QPS_RESET), 0);
    end_connect(&c, &of_a);
    end_connect(&a, &of_c);
    assert_int_equal(ibv_req_notify_cq(cq, 0), 0);
    assert_int_equal(poll(&ready, 1, 0), 0);
    for (uint64_t i = 0; i < 2; i++) {
        struct request r;
        assert_int_equal(end_post_recv(&c, i, 0, 1), 0);
        request_init(&r, &a, IBV_WR_SEND, 0, 1, NULL);
        assert_int_equal(end_post(&a, &r), 0);
    }
    assert_int_equal(ibv_get_cq_event(channel, &which, &context), 0);
    assert_ptr_equal(which, cq);
    assert_ptr_equal(context, &b);
    assert_int_equal(poll(&ready, 1, 0), 0);
    ibv_ack_cq_events(cq, 1);
    assert_int_equal(ibv_destroy_qp(c.qp), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), EBUSY);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
}

/* ---- states ---------------------------------------------------------------------------------- */

CASE_BETWEEN(a_step_without_an_attribute_is_refused, open_two, close_two)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

    assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT),
                     EINVAL);
    assert_int_equal(end_to_rtr(&a, &of_b), EINVAL);
    assert_int_equal(end_to_init(&a), 0);
    assert_int_equal(end_to_rts(&a), EINVAL);
    assert_int_equal(end_to_rtr(&a, &of_b), 0);
    assert_int_equal(end_to(&a, IBV_QPS_RTS), EINVAL);
    assert_int_equal(end_to_rts(&a), 0);
    struct ibv_qp_init_attr init;
    assert_int_equal(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init), 0);
    assert_int_equal(attr.qp_state, IBV_QPS_RTS);
    assert_int_equal(attr.dest_qp_num, of_b.qpn);
}

CASE_BETWEEN(an_unknown_address_is_not_resolved, open_two, close_two)
{
    struct card wrong = of_b;

    wrong.gid.raw[15] = 99;
    assert_int_equal(end_to_init(&a), 0);
    assert_int_equal(end_to_rtr(&a, &wrong), ETIMEDOUT);
    a.gid_index = 2; /* RoCE v1 here, v2 there, and both addresses are the same */
    assert_int_equal(end_to_rtr(&a, &of_b), 0);
    a.gid_index = 1; /* link-local */
    assert_int_equal(end_to_rtr(&a, &of_b), EINVAL);
}

CASE_BETWEEN(a_post_in_the_wrong_state_is_refused, open_two, close_two)
{
    struct request r;

    request_init(&r, &a, IBV_WR_SEND, 0, 1, NULL);
    assert_int_equal(end_post_recv(&a, 1, 0, 1), EINVAL);
    assert_int_equal(end_post(&a, &r), EINVAL);
    assert_int_equal(end_to_init(&a), 0);
    assert_int_equal(end_post_recv(&a, 1, 0, 1), 0);
    assert_int_equal(end_post(&a, &r), EINVAL);
}

CASE_BETWEEN(what_is_in_use_cannot_be_given_back, open_two, close_two)
{
    assert_int_equal(ibv_dealloc_pd(a.pd), EBUSY);
    assert_int_equal(ibv_destroy_cq(a.cq), EBUSY);
}

int main(void)
{
    fabric_begin();
    const int failed = run_cases(NULL, NULL);
    fabric_end();
    return failed;
}
