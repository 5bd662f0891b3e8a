/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs_pair.h"

#include "fake_fabric.h"
#include "wire/tcp.h"

char pair_from[PAIR_BYTES], pair_to[PAIR_BYTES];

int pair_set_up(void **state)
{
    fabric_begin();
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("DUALPIPE_NET_WIRE", "verbs", 1);
    return 0;
}

int pair_tear_down(void **state)
{
    fabric_end();
    return 0;
}

struct pair pair_connect_between(int dev, int dev_there)
{
    struct pair p = {.net = NULL};
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    int err;

    assert_int_equal(dpn_net_init(NULL, &p.net), 0);
    assert_int_equal(dpn_net_listen(p.net, dev_there, handle, &p.listener), 0);
    WHILE_IN_TIME (!p.sender || !p.receiver) {
        err = p.sender ? 0 : dpn_net_connect(p.net, dev, handle, &p.sender);
        assert_true(!err || err == DP_EAGAIN);
        err = p.receiver ? 0 : dpn_net_accept(p.listener, &p.receiver);
        assert_true(!err || err == DP_EAGAIN);
    }
    assert_ptr_equal(p.sender->transport, &dpn_verbs);
    return p;
}

struct pair pair_connect(int dev)
{
    return pair_connect_between(dev, dev);
}

void pair_end(struct pair *p)
{
    dpn_net_finalize(p->net);
}

struct dpn_memory *pair_reg(struct dpn_comm *comm, void *data, int type)
{
    struct dpn_memory *memory = NULL;

    assert_int_equal(
        dpn_net_register(comm, &(struct dpn_region){data, PAIR_BYTES, type, -1, 0}, &memory), 0);
    return memory;
}

void pair_finish(struct dpn_request *a, struct dpn_request *b)
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

int pair_fuse_both(void)
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

struct dpn_request *pair_receive(struct pair *p, struct dpn_memory *memory, size_t len)
{
    struct dpn_request *recv = NULL;

    assert_int_equal(dpn_net_irecv(p->receiver, 1, (void *[]){pair_to}, &len, (int[]){7}, &memory,
                                   false, &recv), 0);
    return recv;
}

struct dpn_request *pair_send(struct pair *p, struct dpn_memory *memory, const char *data,
                              size_t len)
{
    struct dpn_request *send = NULL;

    WHILE_IN_TIME (!send)
        assert_int_equal(dpn_net_isend(p->sender, data, len, 7, memory, &send), 0);
    return send;
}

unsigned pair_qps_up(struct dpn_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const unsigned up = ((const struct dpn_verbs *)comm->state)->q.up;
    pthread_mutex_unlock(&comm->lock);
    return up;
}

unsigned pair_epoch(struct dpn_comm *comm, unsigned qp)
{
    pthread_mutex_lock(&comm->lock);
    const unsigned epoch = ((const struct dpn_verbs *)comm->state)->q.qps[qp].epoch;
    pthread_mutex_unlock(&comm->lock);
    return epoch;
}

struct ibv_qp *pair_qp(struct dpn_comm *comm, unsigned index)
{
    pthread_mutex_lock(&comm->lock);
    struct ibv_qp *qp = ((const struct dpn_verbs *)comm->state)->q.qps[index].ibv;
    pthread_mutex_unlock(&comm->lock);
    return qp;
}

void pair_lose(struct pair *p, unsigned qp)
{
    struct dpn_verbs *v = p->sender->state;

    pthread_mutex_lock(&p->sender->lock);
    dpn_qp_fail(&v->q, &v->q.qps[qp], "test", "pulled", "");
    WHILE_IN_TIME (dpn_job_is_running(&v->q.qps[qp].job.base))
        ;
    pthread_mutex_unlock(&p->sender->lock);
}

static bool is_same(const union dp_sockaddr *a, const union dp_sockaddr *b)
{
    return dp_sockaddr_is_same_ip(a, b) && dp_sockaddr_port(a) == dp_sockaddr_port(b);
}

/* The socket of a wire. */
static int find_socket(const struct dp_wire *wire)
{
    union dp_sockaddr here, there, ours, theirs;

    assert_int_equal(dp_wire_tcp_local(wire, &here), 0);
    assert_int_equal(dp_wire_tcp_peer(wire, &there), 0);
    for (int fd = 3; fd < 1024; fd++) {
        socklen_t len = sizeof(ours), len2 = sizeof(theirs);
        if (!getsockname(fd, &ours.any, &len) && !getpeername(fd, &theirs.any, &len2) &&
            is_same(&ours, &here) && is_same(&theirs, &there))
            return fd;
    }
    fail_msg("the wire has no socket");
    return -1;
}

void pair_reset(struct dpn_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    assert_int_equal(connect(find_socket(comm->wire), &nobody, sizeof(nobody)), 0);
    pthread_mutex_unlock(&comm->lock);
}

struct dpn_memory *pair_transfer(struct pair *p, int type, int lose)
{
    struct dpn_memory *source = pair_reg(p->sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p->receiver, pair_to, type);

    for (size_t i = 0; i < PAIR_BYTES; i++)
        pair_from[i] = (char)(i * 2654435761u >> 13);
    memset(pair_to, 0, PAIR_BYTES);
    struct dpn_request *recv = pair_receive(p, target, PAIR_BYTES);
    struct dpn_request *send = pair_send(p, source, pair_from, PAIR_BYTES);
    if (lose >= 0)
        pair_lose(p, (unsigned)lose);
    pair_finish(send, recv);
    assert_memory_equal(pair_from, pair_to, PAIR_BYTES);
    return target;
}

void pair_transfer_until(struct pair *p, unsigned qps)
{
    const int64_t began_ns = dp_now_ns();

    do {
        must_be_in_time(began_ns);
        pair_transfer(p, NCCL_PTR_HOST, -1);
    } while (pair_qps_up(p->sender) != qps || pair_qps_up(p->receiver) != qps);
}
