/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_net.c - the plugin over RDMA, beyond the conformance program: fused devices, flushes
 * of GPU memory, and a queue pair that fails with messages on it. Both sides are in this process;
 * the devices are those of the simulated libibverbs, which this program is linked with.
 */
#include "fake_fabric.h"
#include "scratch.h"
#include "verbs_pair.h"

#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/net/placement.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/ibv_qp.h"
#include "nccl-plugin/verbs/device.h"

static char counters[SCRATCH_LEN];

/* ---- cases ----------------------------------------------------------------------------------- */

CASE(fused_devices_use_all_rails_and_are_forgotten)
{
    const struct dpn_device *device;
    struct dpn_net *net;
    int count, dev;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    dev = pair_fuse_both();
    assert_int_equal(dev, 2);
    assert_int_equal(dpn_net_device(dev, &device), 0);
    assert_string_equal(device->name, "fake0+fake1");
    assert_int_equal(device->speed_mbps, 200000);
    struct pair p = pair_connect(dev);
    const struct dpn_verbs *v = p.sender->state;
    assert_int_equal(v->q.rail_count, 2);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    assert_int_equal(v->send.sends[0].count, 2); /* a stripe each */
    pair_end(&p);
    dpn_net_finalize(net);
    assert_int_equal(dpn_net_init(NULL, &net), 0); /* by an NCCL that has kept the plugin loaded */
    p = pair_connect(dev);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    pair_end(&p);
    dpn_net_finalize(net);
    assert_int_equal(dpn_net_count_devices(&count), 0); /* by one that has loaded it again */
    assert_int_equal(count, 2);
}

/* NCCL combines only NICs of one plane, and treats rails with the same number as one. */
CASE(a_fused_device_is_of_a_plane_only_if_all_its_ports_are)
{
    const struct dpn_device *members[2], *fused;
    struct dpn_net *net;

    for (int same = 0; same < 2; same++) {
        assert_int_equal(dpn_net_init(NULL, &net), 0);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(dpn_net_device(i, &members[i]), 0);
            ((struct dpn_device *)members[i])->plane = same ? 3 : i;
            ((struct dpn_device *)members[i])->rail = same ? i : 2;
        }
        assert_int_equal(dpn_net_device(pair_fuse_both(), &fused), 0);
        assert_int_equal(fused->plane, same ? 3 : NCCL_NET_ID_UNDEF);
        assert_int_equal(fused->rail, same ? NCCL_NET_ID_UNDEF : 2);
        dpn_net_finalize(net);
    }
    for (int i = 0; i < 2; i++)
        ((struct dpn_device *)members[i])->plane = ((struct dpn_device *)members[i])->rail =
            NCCL_NET_ID_UNDEF;
}

CASE(what_cannot_be_fused_is_an_error)
{
    const int nine[9] = {0};
    struct dpn_net *net;
    int dev;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    assert_int_equal(dpn_net_fuse(nine, 9, &dev), DP_EINVAL);
    assert_int_equal(dpn_net_fuse((int[]){0, 5}, 2, &dev), DP_EINVAL);
    assert_int_equal(dpn_net_fuse((int[]){0, pair_fuse_both()}, 2, &dev), DP_EINVAL);
    dpn_net_finalize(net);
}

CASE(a_message_goes_on_over_the_other_rail)
{
    struct dpn_net *net;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    struct pair p = pair_connect(pair_fuse_both());
    for (int qp = 0; qp < 2; qp++)
        pair_transfer(&p, NCCL_PTR_HOST, qp);
    pair_end(&p);
    dpn_net_finalize(net);
}

/* The second message reuses the slot of the first, whose acknowledgement is seen only then. */
CASE(a_late_acknowledgement_is_not_the_next_messages)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);

    memcpy(pair_from, "firstly secondly", 16);
    struct dpn_request *recv = pair_receive(&p, target, 8);
    struct dpn_request *first = pair_send(&p, source, pair_from, 8);
    pair_finish(recv, NULL);
    recv = pair_receive(&p, target, 8);
    assert_true(fake_verbs.hold(true));
    assert_true(fake_verbs.fail_send(pair_qp(p.sender, 0), 1, IBV_WC_RETRY_EXC_ERR, FAKE_ARRIVES_NEVER));
    struct dpn_request *second = pair_send(&p, source, pair_from + 8, 8);
    pair_finish(first, NULL);
    assert_true(fake_verbs.hold(false));
    pair_finish(second, recv);
    assert_memory_equal(pair_to, "secondly", 8);
}

CASE(what_comes_twice_is_received_once)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);

    for (size_t i = 0; i < 40; i++) { /* short ones that arrive first, and others */
        const size_t len = i % 2 ? 20000 : 100;
        struct dpn_request *recv = i % 4 < 2 ? pair_receive(&p, target, len) : NULL;
        assert_true(fake_verbs.fail_send(pair_qp(p.sender, 0), 1, IBV_WC_SUCCESS, FAKE_ARRIVES_TWICE));
        if (!recv && len > 1000)
            recv = pair_receive(&p, target, len);
        struct dpn_request *send = pair_send(&p, source, pair_from + i, len);
        pair_finish(send, recv ? recv : pair_receive(&p, target, len));
        assert_memory_equal(pair_to, pair_from + i, len);
    }
}

/* Its memory has been returned to its owner: the message may have overwritten something. */
CASE(what_comes_again_too_late_ends_the_connection)
{
    struct dpn_request *req = NULL;
    struct dpn_memory *target = NULL;

    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    for (int i = 0; i < 3; i++)
        target = pair_transfer(&p, NCCL_PTR_HOST, -1);
    struct dpn_verbs *v = p.receiver->state;
    pthread_mutex_lock(&p.receiver->lock);
    dpn_verbs_take_imm(&v->recv, 0, dpn_imm_pack((struct dpn_imm){.count = 1, .generation = 3}), PAIR_BYTES);
    pthread_mutex_unlock(&p.receiver->lock);
    const size_t len = 1;
    const int64_t began_ns = dp_now_ns();
    int err = 0;
    for (; !err; must_be_in_time(began_ns)) { /* its queue pairs are destroyed first */
        err = dpn_net_irecv(p.receiver, 1, (void *[]){pair_to}, &len, (int[]){7}, &target, false,
                            &req);
        assert_null(req);
    }
    assert_int_equal(err, DP_EMISMATCH);
    assert_non_null(strstr(dp_last_error(), "what arrived by fake0 belongs to no receive (0x00000003): "
                                            "it is for use 3 of receive 0, which is in use 3, and done; "
                                            "stripe 0 of 1, queue pair "));
    assert_non_null(strstr(dp_last_error(), ", epoch "));
}

CASE(the_only_queue_pair_is_opened_again_with_the_message)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    for (int i = 0; i < 3; i++)
        pair_transfer(&p, NCCL_PTR_HOST, 0);
}

/* For the device it is memory like any other. */
CASE(gpu_memory_is_flushed_and_host_memory_is_not)
{
    struct dpn_request *flush = NULL;
    const int size = PAIR_BYTES;
    struct dpn_net *net;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    for (int i = 0; i < dpn_verbs_state.ports.hca_count; i++)
        dpn_verbs_state.ports.hcas[i].pointers |= NCCL_PTR_CUDA;
    struct pair p = pair_connect(pair_fuse_both());
    struct dpn_memory *memory = pair_transfer(&p, NCCL_PTR_HOST, -1);
    assert_int_equal(dpn_net_iflush(p.receiver, 1, (void *[]){pair_to}, &size, &memory, &flush), 0);
    assert_null(flush);
    for (int i = 0; i < 40; i++) { /* more than there are at once */
        memory = pair_transfer(&p, NCCL_PTR_CUDA, -1);
        assert_int_equal(dpn_net_iflush(p.receiver, 1, (void *[]){pair_to}, &size, &memory, &flush), 0);
        assert_non_null(flush);
        pair_finish(flush, NULL);
    }
    pair_end(&p);
    dpn_net_finalize(net);
}

CASE(only_registered_memory_is_carried)
{
    struct dpn_request *req = NULL;

    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    struct dpn_memory *memory = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    assert_int_equal(dpn_net_isend(p.sender, pair_from + 1, PAIR_BYTES, 7, memory, &req), DP_EINVAL);
    assert_int_equal(dpn_net_isend(p.sender, pair_from, PAIR_BYTES, 7, NULL, &req), DP_EINVAL);
    assert_null(req);
}

/* Several of NCCL's peers share a connection, each with the maximum number of requests. */
CASE(a_connection_has_as_many_sends_as_its_receives_have_places)
{
    enum { GROUP = DPN_MAX_RECEIVES, LEN = 9000 };
    struct dpn_request *recvs[NCCL_NET_MAX_REQUESTS], *sends[DPN_PLACES];
    void *data[GROUP];
    size_t sizes[GROUP];
    int tags[GROUP];
    struct dpn_memory *memories[GROUP];

    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    struct dpn_memory *from = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *to = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    for (int i = 0; i < GROUP; i++) {
        data[i] = pair_to + i * LEN;
        sizes[i] = LEN;
        tags[i] = i;
        memories[i] = to;
    }
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        recvs[i] = NULL;
        assert_int_equal(
            dpn_net_irecv(p.receiver, GROUP, data, sizes, tags, memories, false, &recvs[i]), 0);
    }
    const int64_t began_ns = dp_now_ns();
    for (int i = 0; i < DPN_PLACES; i++) {
        sends[i] = NULL;
        for (; !sends[i]; must_be_in_time(began_ns)) /* none of them is tested meanwhile */
            assert_int_equal(dpn_net_isend(p.sender, pair_from, LEN, i % GROUP, from, &sends[i]),
                             0);
    }
    for (int i = 0; i < DPN_PLACES; i++)
        pair_finish(sends[i], i % GROUP ? NULL : recvs[i / GROUP]);
}

/* Deadlines and control messages. */
CASE(a_connection_that_is_never_idle_is_looked_after)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    pthread_mutex_lock(&p.receiver->lock); /* so that the watchdog cannot */
    struct dpn_verbs *v = p.receiver->state;
    const int64_t before_ns = v->polled_ns, began_ns = dp_now_ns();
    while (dp_now_ns() - began_ns < 10 * DP_NS_PER_MS)
        ;
    for (int i = 0; i < 2048; i++) {
        v->idle = 0;
        v->q.is_degraded = false;
        dpn_verbs_progress(v);
    }
    assert_true(v->polled_ns > before_ns);
    pthread_mutex_unlock(&p.receiver->lock);
}

/* ---- NCCL_IB_*: attributes of queue pairs ---------------------------------------------------- */

struct made {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
};

static struct made made_of(struct dpn_comm *comm)
{
    struct made m;

    assert_int_equal(ibv_query_qp(pair_qp(comm, 0), &m.attr, 0, &m.init), 0);
    return m;
}

/* A peer has no right to read memory. */
CASE(only_a_loop_may_be_read_over)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    assert_int_equal(made_of(p.sender).attr.qp_access_flags, IBV_ACCESS_REMOTE_WRITE);
    assert_int_equal(made_of(p.receiver).attr.qp_access_flags, IBV_ACCESS_REMOTE_WRITE);
    struct ibv_qp *loop = ((struct dpn_verbs *)p.receiver->state)->q.rails[0].loop.qp;
    assert_int_equal(ibv_query_qp(loop, &attr, 0, &init), 0);
    assert_int_equal(attr.qp_access_flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
}

CASE(clear_to_send_has_a_class_of_its_own)
{
    struct dpn_verbs_options *o = &dpn_verbs_state.options;

    struct pair p = pair_connect(0);
    assert_int_equal(made_of(p.receiver).attr.ah_attr.grh.traffic_class, 0);
    pair_end(&p);
    o->traffic_class = 96;
    o->cts_class = 184;
    p = pair_connect(0);
    assert_int_equal(made_of(p.sender).attr.ah_attr.grh.traffic_class, 96);
    assert_int_equal(made_of(p.receiver).attr.ah_attr.grh.traffic_class, 184);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    pair_end(&p);
    o->traffic_class = o->cts_class = DPN_AUTO;
}

CASE(clear_to_send_is_inline_unless_told_otherwise)
{
    dpn_verbs_state.options.inlines_cts = false;
    struct pair p = pair_connect(0);
    assert_int_equal(((struct dpn_verbs *)p.receiver->state)->q.qps[0].inline_bytes, 0);
    assert_true(((struct dpn_verbs *)p.sender->state)->q.qps[0].inline_bytes > 0);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    pair_end(&p);
    dpn_verbs_state.options.inlines_cts = true;
}

static int made_so; /* queue pairs for any order */

static struct ibv_qp *make_any_order(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                     struct dpn_mlx5_qp *own)
{
    struct ibv_qp_init_attr plain = {.send_cq = attr->send_cq, .recv_cq = attr->recv_cq,
                                     .cap = attr->cap, .qp_type = attr->qp_type};

    assert_true(attr->comp_mask == IBV_QP_INIT_ATTR_PD && attr->pd->context == context);
    assert_true(own->mask == 1 && own->flags == 1u << 7);
    made_so++;
    struct ibv_qp *qp = ibv_create_qp(attr->pd, &plain);
    attr->cap = plain.cap;
    return qp;
}

static struct ibv_qp *make_none(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                struct dpn_mlx5_qp *own)
{
    errno = EOPNOTSUPP;
    return NULL;
}

CASE(messages_overtake_each_other_if_both_sides_can)
{
    const struct {
        struct ibv_qp *(*make)(struct ibv_context *, struct ibv_qp_init_attr_ex *,
                               struct dpn_mlx5_qp *);
        bool any_order;
    } cases[] = {{make_any_order, true}, {make_none, false}, {NULL, false}};

    dpn_verbs_state.options.out_of_order = true;
    dpn_verbs_state.options.adaptive_routing = 1;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        dpn_mlx5.create_qp = cases[i].make;
        made_so = 0;
        ENDED_BY(pair_end) struct pair p = pair_connect(0);
        const struct dpn_verbs *sender = p.sender->state, *receiver = p.receiver->state;
        assert_int_equal(sender->q.any_order, cases[i].any_order);
        assert_int_equal(receiver->q.any_order, cases[i].any_order);
        assert_int_equal(made_so, cases[i].any_order ? 4 : 0); /* each side tries, and makes, one */
        pair_transfer(&p, NCCL_PTR_HOST, -1);
        assert_int_equal(sender->send.sends[0].has_record, !cases[i].any_order);
        pair_transfer(&p, NCCL_PTR_HOST, 0);
    }
    dpn_verbs_state.options.out_of_order = false;
    dpn_verbs_state.options.adaptive_routing = DPN_AUTO;
}

static void count_rails(void *user, enum dp_log_level level, const char *line)
{
    *(int *)user += level == DP_LOG_WARN && strstr(line, "NCCL_IB_WARN_RAIL_LOCAL");
}

CASE(ports_of_other_names_are_warned_of_if_asked)
{
    int warned = 0;

    dp_log_set(count_rails, &warned, DP_LOG_DEFAULT);
    dpn_verbs_state.options.warns_of_rails = true;
    struct pair p = pair_connect(0);
    pair_end(&p);
    assert_int_equal(warned, 0);
    p = pair_connect_between(0, 1);
    pair_end(&p);
    assert_int_equal(warned, 2); /* by each side */
    dpn_verbs_state.options.warns_of_rails = false;
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
}

/* fake0 and fake1 have different addresses. */
CASE(a_port_of_the_subnet_of_the_peer_stands_in)
{
    struct pair p = pair_connect_between(0, 1);
    const struct dpn_verbs *v = p.sender->state;
    assert_string_equal(v->q.rails[0].port->name, "fake0");
    pair_end(&p);
    dpn_verbs_state.options.subnet_bits = 32;
    p = pair_connect_between(0, 1);
    v = p.sender->state;
    assert_int_equal(v->q.rail_count, 1);
    assert_string_equal(v->q.rails[0].port->name, "fake1");
    pair_transfer(&p, NCCL_PTR_HOST, 0);
    pair_end(&p);
    dpn_verbs_state.options.subnet_bits = 24; /* its own port is near as well */
    p = pair_connect_between(0, 1);
    v = p.sender->state;
    assert_string_equal(v->q.rails[0].port->name, "fake0");
    pair_end(&p);
    dpn_verbs_state.options.subnet_bits = 0;
}

static int vendor_of_mlx5(struct ibv_context *context, struct ibv_device_attr *out)
{
    const int error = ibv_query_device(context, out);

    out->vendor_id = DPN_MLX5_VENDOR;
    return error;
}

static int no_direct(struct ibv_context *context, char *path, size_t room)
{
    snprintf(path, room, "/devices/pci0001:00/0001:00:00.0");
    return ENODEV;
}

static int a_direct(struct ibv_context *context, char *path, size_t room)
{
    return no_direct(context, path, room) != ENODEV;
}

static struct ibv_mr *no_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd,
                            int flags, int own)
{
    errno = EOPNOTSUPP;
    return NULL;
}

/* Find the same devices again; the result is thrown away. */
static struct dpn_hca look_again(const struct dpn_verbs_options *options)
{
    static struct dpn_ports ports;
    char why[256];

    memset(&ports, 0, sizeof(ports));
    dpn_ports_find(options, &ports, why, sizeof(why));
    assert_int_equal(ports.hca_count, 2);
    const struct dpn_hca first = ports.hcas[0];
    for (int i = 0; i < ports.hca_count; i++) {
        dpn_ibv.dealloc_pd(ports.hcas[i].pd);
        dpn_ibv.close_device(ports.hcas[i].context);
        if (i)
            free(ports.hcas[i].pci_path);
    }
    return first;
}

static bool finds_data_direct(const struct dpn_verbs_options *o)
{
    struct dpn_hca hca = look_again(o);

    return hca.has_data_direct;
}

CASE(a_device_is_where_its_data_direct_is)
{
    struct dpn_verbs_options o = dpn_verbs_state.options;

    dpn_ibv.query_device = vendor_of_mlx5;
    dpn_mlx5 = (struct dpn_mlx5){.get_data_direct_sysfs_path = a_direct, .reg_dmabuf_mr = no_mr};
    struct dpn_hca hca = look_again(&o);
    assert_true(hca.has_data_direct);
    assert_string_equal(hca.pci_path, "/sys/devices/pci0001:00/0001:00:00.0");
    free(hca.pci_path);
    o.data_direct = 0;
    assert_false(finds_data_direct(&o));
    o.data_direct = 1;
    dpn_mlx5.get_data_direct_sysfs_path = no_direct;
    assert_false(finds_data_direct(&o));
    dpn_ibv.query_device = ibv_query_device;
}

/* As NCCL's own transport offers them: "_dma" is the one with Data Direct. */
CASE(both_ways_of_a_device_may_be_offered)
{
    static const char *const names[] = {"fake0", "fake0_dma", "fake1", "fake1_dma"};
    struct dpn_verbs_options o = dpn_verbs_state.options;
    static struct dpn_ports ports;
    char why[256];

    dpn_ibv.query_device = vendor_of_mlx5;
    o.data_direct = 2;
    for (int has_direct = 0; has_direct < 2; has_direct++) {
        memset(&ports, 0, sizeof(ports));
        dpn_mlx5.get_data_direct_sysfs_path = has_direct ? a_direct : no_direct;
        dpn_mlx5.reg_dmabuf_mr = no_mr;
        dpn_ports_find(&o, &ports, why, sizeof(why));
        assert_string_equal(why, "2 of 2 RDMA devices have an active port");
        assert_int_equal(ports.count, has_direct ? 4 : 2);
        for (int i = 0; i < ports.count; i++) {
            struct dpn_hca *hca = ports.list[i].hca;
            assert_string_equal(ports.list[i].name, names[has_direct ? i : 2 * i]);
            assert_int_equal(hca->has_data_direct, has_direct && i % 2);
            assert_int_equal(hca->pci_path != NULL, hca->has_data_direct);
            dpn_ibv.dealloc_pd(hca->pd);
            dpn_ibv.close_device(hca->context);
            free(hca->pci_path);
        }
    }
    dpn_ibv.query_device = ibv_query_device;
}

extern const struct ncclNet_v9 ncclNetPlugin_v9;
extern const struct ncclNet_v12 ncclNetPlugin_v12;

static int force_flush_of(int dev)
{
    struct ncclNetProperties_v12 props;
    struct ncclNetProperties_v9 older;

    assert_int_equal(ncclNetPlugin_v12.getProperties(dev, &props), ncclSuccess);
    assert_int_equal(ncclNetPlugin_v9.getProperties(dev, &older), ncclSuccess);
    assert_int_equal(older.forceFlush, props.forceFlush);
    return props.forceFlush;
}

/* Devices as a version of NCCL finds them, on an adapter that has Data Direct. */
static bool needs_flush(bool has_force_flush)
{
    static struct dpn_devices found;
    char why[256];

    dpn_verbs_find(&found, 2, has_force_flush, why, sizeof(why));
    assert_int_equal(found.count, 2);
    for (int i = 0; i < dpn_verbs_state.ports.hca_count; i++) {
        struct dpn_hca *hca = &dpn_verbs_state.ports.hcas[i];
        assert_int_equal(hca->has_data_direct, has_force_flush);
        dpn_ibv.dealloc_pd(hca->pd);
        dpn_ibv.close_device(hca->context);
        free(hca->pci_path);
    }
    return found.list[0].needs_flush;
}

/* NCCL flushes on Hopper only if it is told to; versions that cannot be told do not use Data
 * Direct. */
CASE(a_device_with_data_direct_is_always_flushed)
{
    const struct dpn_verbs_state before = dpn_verbs_state;
    const struct dpn_device *second;
    struct dpn_net *context;

    dpn_ibv.query_device = vendor_of_mlx5;
    dpn_mlx5 = (struct dpn_mlx5){.get_data_direct_sysfs_path = a_direct, .reg_dmabuf_mr = no_mr};
    assert_true(needs_flush(true));
    assert_false(needs_flush(false));
    dpn_ibv.query_device = ibv_query_device;
    dpn_verbs_state = before;

    assert_int_equal(dpn_net_init(NULL, &context), 0);
    assert_int_equal(dpn_net_device(1, &second), 0);
    ((struct dpn_device *)second)->needs_flush = true;
    const int fused = pair_fuse_both();
    assert_int_equal(force_flush_of(0), 0);
    assert_int_equal(force_flush_of(1), 1);
    assert_int_equal(force_flush_of(fused), 1); /* one member is enough */
    ((struct dpn_device *)second)->needs_flush = false;
    dpn_net_finalize(context);
}

static struct ibv_ah_attr asked; /* where the next queue pair is to send to */

static int take_address(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    if (mask & IBV_QP_AV)
        asked = attr->ah_attr;
    return 0;
}

CASE(routers_are_addressed_by_the_lid_they_know)
{
    struct dpn_port port = {.is_ethernet = false, .number = 1, .name = "ib0"};
    struct dpn_path path = {.port = &port, .options = &dpn_verbs_state.options, .peer_lid = 7,
                            .gid = {.raw.raw = {0xfe, 0x80, [7] = 8, [15] = 2}, .index = 1},
                            .peer_gid = {.raw.raw = {0xfe, 0x80, 0, 0, 0x12, 0x34, 0, 8, [15] = 1}}};
    int (*modify)(struct ibv_qp *, struct ibv_qp_attr *, int) = dpn_ibv.modify_qp;
    struct dpn_hca hca = {.is_soft = false};

    port.hca = &hca;
    dpn_ibv.modify_qp = take_address;
    assert_int_equal(dpn_ibv_qp_connect(NULL, &path), 0); /* both in subnet 8 */
    assert_true(asked.dlid == 7 && !asked.is_global);
    path.peer_gid.raw.raw[7] = 9;
    assert_int_equal(dpn_ibv_qp_connect(NULL, &path), 0);
    assert_true(asked.dlid == 0x1234 && asked.is_global && asked.grh.sgid_index == 1);
    path.peer_gid.raw.raw[4] = path.peer_gid.raw.raw[5] = 0; /* no router's LID is known */
    assert_int_equal(dpn_ibv_qp_connect(NULL, &path), 0);
    assert_true(asked.dlid == 7 && asked.is_global);
    path.peer_gid.raw.raw[7] = 8; /* one subnet again, where several ports share a LID */
    path.needs_grh = 1;
    assert_int_equal(dpn_ibv_qp_connect(NULL, &path), 0);
    assert_true(asked.dlid == 7 && asked.is_global);
    dpn_ibv.modify_qp = modify;
}

/* ---- a placement ------------------------------------------------------------------------------ */

/* This process is both ends of the flow. NCCL's choice will be fake0. */
static void place_on_fake1(char path[SCRATCH_LEN])
{
    char host[256] = "";
    FILE *file = scratch_file(path, "placed") ? fopen(path, "w") : NULL;

    assert_non_null(file);
    gethostname(host, sizeof(host) - 1);
    fprintf(file,
            "dualpipe assignment 1\nplacement ranks=1 replicas=1\nnode id=1 kind=gpu host=%s\n"
            "node id=2 kind=nic\nport number=1 rdma=fake1\n"
            "worker replica=0 rank=0 gpu=1 came_as=0 nics=2 qps=2\n"
            "flow kind=activation from=0 to=0 nic_from=2 nic_to=2 traffic_class=104\nend\n", host);
    fclose(file);
    setenv("DUALPIPE_PLACEMENT", path, 1);
    setenv("RANK", "0", 1);
    dpn_placement_open();
}

static void forget_placement(const char *path)
{
    unlink(path);
    unsetenv("DUALPIPE_PLACEMENT");
    unsetenv("RANK");
    dpn_placement_open();
}

/* With everything that opening queue pairs needs. */
static unsigned completed_on(struct dpn_comm *comm, int rail)
{
    unsigned completed = 0;
    bool is_open = false;

    WHILE_IN_TIME (!is_open) {
        pthread_mutex_lock(&comm->lock);
        struct dpn_verbs *v = comm->state;
        dpn_verbs_progress_all(v);
        is_open = !v->q.is_degraded;
        completed = 0;
        for (int i = 0; i < v->q.qp_count; i++)
            completed += v->q.qps[i].rail == rail ? v->q.qps[i].completed : 0;
        pthread_mutex_unlock(&comm->lock);
    }
    return completed;
}

CASE(a_placed_flow_goes_over_the_rail_of_the_placement)
{
    char path[SCRATCH_LEN];

    place_on_fake1(path);
    struct pair p = pair_connect(0);
    const struct dpn_verbs *v = p.sender->state;
    assert_string_equal(v->q.rails[0].port->name, "fake1");
    assert_string_equal(v->q.rails[0].peer, "fake1");
    assert_int_equal(v->q.qps_per_rail, 2);
    assert_int_equal(v->q.traffic_class, 104);
    const unsigned spare = completed_on(p.sender, 1);
    for (int i = 0; i < 3; i++)
        pair_transfer(&p, NCCL_PTR_HOST, -1);
    assert_int_equal(p.sender->stat.row / DPN_STAT_WAYS, 1);
    assert_int_equal(p.receiver->stat.row / DPN_STAT_WAYS, 1);
    assert_int_equal(atomic_load(&p.sender->stat.on->values[DPN_STAT_BYTES]), 3 * PAIR_BYTES);
    assert_int_equal(completed_on(p.sender, 1), spare);
    pair_end(&p);
    forget_placement(path);
}

/* NCCL's device is used instead, and the message arrives. */
CASE(a_placed_flow_goes_on_over_the_other_device)
{
    char path[SCRATCH_LEN];

    place_on_fake1(path);
    struct pair p = pair_connect(0);
    struct dpn_verbs *v = p.sender->state;
    assert_int_equal(v->q.rail_count, 2);
    assert_string_equal(v->q.rails[1].port->name, "fake0");
    for (int i = 0; i < v->q.qp_count; i++)
        if (v->q.qps[i].rail == 0 && pair_qps_up(p.sender) >> i & 1)
            pair_transfer(&p, NCCL_PTR_HOST, i);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    pair_end(&p);
    forget_placement(path);
}

static int set_up(void **state)
{
    fabric_begin();
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("DUALPIPE_NET_WIRE", "verbs", 1);
    if (!scratch_directory(counters, "counters"))
        return -1;
    setenv("DUALPIPE_NET_STAT", "1", 1);
    setenv("DUALPIPE_NET_STAT_DIR", counters, 1);
    return 0;
}

static int tear_down(void **state)
{
    fabric_end();
    return scratch_remove(counters);
}

RUN_CASES(set_up, tear_down)
