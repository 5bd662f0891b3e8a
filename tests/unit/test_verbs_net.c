/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_net.c - the plugin over RDMA, as far as the conformance program does not see it: fused
 * devices, flushes of GPU memory, and a lane that is lost with messages on it. Both sides are this
 * process; the devices are those of the stand-in for libibverbs, which this program is linked with.
 */
#include "cmocka_all.h"
#include "fake_fabric.h"

#include "base/clock.h"
#include "nccl-plugin/net.h"
#include "nccl-plugin/net_comm.h"
#include "nccl-plugin/verbs/verbs_comm.h"
#include "nccl-plugin/verbs/verbs_state.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 300000 };

struct pair {
    struct dpn_net *net;
    struct dpn_listener *listener;
    struct dpn_comm *sender, *receiver;
};

/* Generous: the machine may be busy. */
static void must_be_in_time(int64_t since_ns)
{
    assert_true(dp_now_ns() - since_ns < 60 * DP_NS_PER_S);
}

static struct pair connect_over(int dev)
{
    struct pair p = {.net = NULL};
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    const int64_t began_ns = dp_now_ns();
    int err;

    assert_int_equal(dpn_net_init(NULL, &p.net), 0);
    assert_int_equal(dpn_net_listen(p.net, dev, handle, &p.listener), 0);
    while (!p.sender || !p.receiver) {
        must_be_in_time(began_ns);
        err = p.sender ? 0 : dpn_net_connect(p.net, dev, handle, &p.sender);
        assert_true(!err || err == DP_EAGAIN);
        err = p.receiver ? 0 : dpn_net_accept(p.listener, &p.receiver);
        assert_true(!err || err == DP_EAGAIN);
    }
    assert_ptr_equal(p.sender->transport, &dpn_verbs);
    return p;
}

static void end(struct pair *p)
{
    dpn_net_finalize(p->net);
}

static struct dpn_memory *reg(struct dpn_comm *comm, void *data, int type)
{
    struct dpn_memory *memory = NULL;

    assert_int_equal(
        dpn_net_register(comm, &(struct dpn_region){data, BYTES, type, -1, 0}, &memory), 0);
    return memory;
}

/* Test both until they are done; either may be NULL. */
static void finish(struct dpn_request *a, struct dpn_request *b)
{
    const int64_t began_ns = dp_now_ns();
    bool a_done = !a, b_done = !b;
    int sizes[DPN_MAX_RECEIVES];

    while (!a_done || !b_done) {
        must_be_in_time(began_ns);
        if (!a_done)
            assert_int_equal(dpn_net_test(a, &a_done, sizes), 0);
        if (!b_done)
            assert_int_equal(dpn_net_test(b, &b_done, sizes), 0);
    }
}

static char from[BYTES], to[BYTES];

/* One message of BYTES; lose: this lane of the sender, once the message is on it, -1 none. Returns the memory
 * that it went to. */
static struct dpn_memory *transfer(struct pair *p, int type, int lose)
{
    struct dpn_memory *source = reg(p->sender, from, NCCL_PTR_HOST);
    struct dpn_memory *target = reg(p->receiver, to, type);
    struct dpn_request *send = NULL, *recv = NULL;
    const int64_t began_ns = dp_now_ns();

    for (size_t i = 0; i < BYTES; i++)
        from[i] = (char)(i * 2654435761u >> 13);
    memset(to, 0, BYTES);
    assert_int_equal(dpn_net_irecv(p->receiver, 1, (void *[]){to}, (size_t[]){BYTES}, (int[]){7},
                                   &target, false, &recv), 0);
    while (!send) {
        must_be_in_time(began_ns);
        assert_int_equal(dpn_net_isend(p->sender, from, BYTES, 7, source, &send), 0);
    }
    if (lose >= 0) {
        struct dpn_verbs *v = p->sender->state;
        dpn_lane_fence(v, &v->lanes[lose], "test", "pulled", "");
    }
    finish(send, recv);
    assert_memory_equal(from, to, BYTES);
    return target;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int fuse_both(void)
{
    static char paths[2][32] = {"/sys/0000:01:00.0", "/sys/0000:02:00.0"};
    const struct dpn_device *device;
    int dev = -1;

    for (int i = 0; i < 2; i++) { /* only what has a place on the PCI bus is fused */
        assert_int_equal(dpn_net_device(i, &device), 0);
        ((struct dpn_device *)device)->pci_path = paths[i];
    }
    assert_int_equal(dpn_net_fuse((int[]){0, 1}, 2, &dev), 0);
    return dev;
}

static void fused_devices_use_all_rails_and_are_forgotten(void **state)
{
    const struct dpn_device *device;
    struct dpn_net *net;
    int count, dev;

    (void)state;
    assert_int_equal(dpn_net_init(NULL, &net), 0);
    dev = fuse_both();
    assert_int_equal(dev, 2);
    assert_int_equal(dpn_net_device(dev, &device), 0);
    assert_string_equal(device->name, "fake0+fake1");
    assert_int_equal(device->speed_mbps, 200000);
    struct pair p = connect_over(dev);
    const struct dpn_verbs *v = p.sender->state;
    assert_int_equal(v->rail_count, 2);
    transfer(&p, NCCL_PTR_HOST, -1);
    assert_int_equal(v->sends[0].count, 2); /* a stripe each */
    end(&p);
    dpn_net_finalize(net);
    assert_int_equal(dpn_net_devices(&count), 0);
    assert_int_equal(count, 2);
}

static void what_cannot_be_fused_is_said(void **state)
{
    const int nine[9] = {0};
    struct dpn_net *net;
    int dev;

    (void)state;
    assert_int_equal(dpn_net_init(NULL, &net), 0);
    assert_int_equal(dpn_net_fuse(nine, 9, &dev), DP_EINVAL);
    assert_int_equal(dpn_net_fuse((int[]){0, 5}, 2, &dev), DP_EINVAL);
    assert_int_equal(dpn_net_fuse((int[]){0, fuse_both()}, 2, &dev), DP_EINVAL);
    dpn_net_finalize(net);
}

static void a_message_goes_on_over_the_other_rail(void **state)
{
    struct dpn_net *net;

    (void)state;
    assert_int_equal(dpn_net_init(NULL, &net), 0);
    struct pair p = connect_over(fuse_both());
    for (int lane = 0; lane < 2; lane++)
        transfer(&p, NCCL_PTR_HOST, lane);
    end(&p);
    dpn_net_finalize(net);
}

static struct dpn_request *begin_receive(struct pair *p, struct dpn_memory *memory)
{
    struct dpn_request *recv = NULL;

    assert_int_equal(dpn_net_irecv(p->receiver, 1, (void *[]){to}, (size_t[]){8}, (int[]){7},
                                   &memory, false, &recv), 0);
    return recv;
}

static struct dpn_request *begin_send(struct pair *p, struct dpn_memory *memory, const char *data)
{
    struct dpn_request *req = NULL;
    const int64_t began_ns = dp_now_ns();

    while (!req) {
        must_be_in_time(began_ns);
        assert_int_equal(dpn_net_isend(p->sender, data, 8, 7, memory, &req), 0);
    }
    return req;
}

/* The second message takes the place of the first, whose acknowledgement is seen only then. */
static void a_late_acknowledgement_is_not_the_next_messages(void **state)
{
    (void)state;
    struct pair p = connect_over(0);
    struct dpn_memory *source = reg(p.sender, from, NCCL_PTR_HOST);
    struct dpn_memory *target = reg(p.receiver, to, NCCL_PTR_HOST);
    const struct dpn_verbs *v = p.sender->state;

    memcpy(from, "firstly secondly", 16);
    struct dpn_request *recv = begin_receive(&p, target);
    struct dpn_request *first = begin_send(&p, source, from);
    finish(recv, NULL);
    recv = begin_receive(&p, target);
    assert_true(fake_verbs.hold(true));
    assert_true(fake_verbs.fail_send(v->lanes[0].qp, 1, IBV_WC_RETRY_EXC_ERR, FAKE_ARRIVES_NEVER));
    struct dpn_request *second = begin_send(&p, source, from + 8);
    finish(first, NULL);
    assert_true(fake_verbs.hold(false));
    finish(second, recv);
    assert_memory_equal(to, "secondly", 8);
    end(&p);
}

static void the_only_lane_comes_back_with_the_message(void **state)
{
    (void)state;
    struct pair p = connect_over(0);
    for (int i = 0; i < 3; i++)
        transfer(&p, NCCL_PTR_HOST, 0);
    end(&p);
}

/* For the device it is memory like any other. */
static void gpu_memory_is_flushed_and_host_memory_is_not(void **state)
{
    struct dpn_request *flush = NULL;
    const int size = BYTES;
    struct dpn_net *net;

    (void)state;
    assert_int_equal(dpn_net_init(NULL, &net), 0);
    for (int i = 0; i < dpn_verbs_state.ports.hca_count; i++)
        dpn_verbs_state.ports.hcas[i].pointers |= NCCL_PTR_CUDA;
    struct pair p = connect_over(fuse_both());
    struct dpn_memory *memory = transfer(&p, NCCL_PTR_HOST, -1);
    assert_int_equal(dpn_net_iflush(p.receiver, 1, (void *[]){to}, &size, &memory, &flush), 0);
    assert_null(flush);
    memory = transfer(&p, NCCL_PTR_CUDA, -1);
    for (int i = 0; i < 100; i++) { /* more than there are at once */
        assert_int_equal(dpn_net_iflush(p.receiver, 1, (void *[]){to}, &size, &memory, &flush), 0);
        assert_non_null(flush);
        finish(flush, NULL);
    }
    end(&p);
    dpn_net_finalize(net);
}

static void only_registered_memory_is_carried(void **state)
{
    struct dpn_request *req = NULL;

    (void)state;
    struct pair p = connect_over(0);
    struct dpn_memory *memory = reg(p.sender, from, NCCL_PTR_HOST);
    assert_int_equal(dpn_net_isend(p.sender, from + 1, BYTES, 7, memory, &req), DP_EINVAL);
    assert_int_equal(dpn_net_isend(p.sender, from, BYTES, 7, NULL, &req), DP_EINVAL);
    assert_null(req);
    end(&p);
}

static int set_up(void **state)
{
    (void)state;
    fabric_begin();
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("DUALPIPE_NET_WIRE", "verbs", 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fabric_end();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_devices_use_all_rails_and_are_forgotten),
        cmocka_unit_test(what_cannot_be_fused_is_said),
        cmocka_unit_test(a_message_goes_on_over_the_other_rail),
        cmocka_unit_test(a_late_acknowledgement_is_not_the_next_messages),
        cmocka_unit_test(the_only_lane_comes_back_with_the_message),
        cmocka_unit_test(gpu_memory_is_flushed_and_host_memory_is_not),
        cmocka_unit_test(only_registered_memory_is_carried),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
