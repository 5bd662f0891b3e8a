/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_sites.c - adapters and fabrics as they are at sites: more ports than are used, iWARP,
 * containers, InfiniBand with several subnets, and jobs that fork. Each case has a process and a
 * fabric of its own.
 */
#include "fake_fabric.h"
#include "fork_at_rest.h"
#include "scratch.h"
#include "verbs_pair.h"

#include "base/fail.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/device.h"

static char said[8192];

static void keep_log(void *none, enum dp_log_level level, const char *line)
{
    const size_t at = strlen(said);

    snprintf(said + at, sizeof(said) - at, "%s\n", line);
}

static void must_be_said(const char *text)
{
    if (!strstr(said, text))
        fail_msg("'%s' is not in: %s", text, said);
}

/* With devices as the text says. A check that fails ends the process; the group of one test exists
 * so that cmocka's checks work there. */
static void with_devices(const char *devices, void (*run)(void **state))
{
    char path[SCRATCH_LEN];
    int status;

    assert_true(scratch_file(path, "devices"));
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(devices, f);
    fclose(f);
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(run)};
        alarm(200);
        setenv("FAKE_VERBS_DEVICES", path, 1);
        dp_log_set(keep_log, NULL, DP_LOG_INFO);
        const int failed = cmocka_run_group_tests(tests, pair_set_up, pair_tear_down);
        if (failed)
            print_message("%s", said);
        fflush(NULL);
        _exit(failed);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    unlink(path);
    assert_int_equal(status, 0);
}

/* ---- many ports ------------------------------------------------------------------------------ */

enum { PLAIN = 32, FUSED = 256, PER_FUSED = 8 };

static void fuse_all(void **state)
{
    const struct dpn_device *first, *last;
    int devs[PER_FUSED], count, dev;
    struct dpn_net *net;

    setenv("NCCL_NET_FORCE_MERGE", "these", 1); /* though they are not on the PCI bus */
    assert_int_equal(dpn_net_init(NULL, &net), 0);
    must_be_said("more than 32 ports are not used");
    assert_int_equal(dpn_net_devices(&count), 0);
    assert_int_equal(count, PLAIN);
    for (int i = 0; i < FUSED; i++) {
        for (int k = 0; k < PER_FUSED; k++)
            devs[k] = (i + k) % PLAIN;
        assert_int_equal(dpn_net_fuse(devs, PER_FUSED, &dev), 0);
        assert_int_equal(dev, PLAIN + i);
    }
    assert_int_equal(dpn_net_fuse(devs, PER_FUSED, &dev), DP_EUNSUPPORTED);
    assert_int_equal(dpn_net_device(PLAIN, &first), 0);
    assert_int_equal(dpn_net_device(PLAIN + 7, &last), 0);
    assert_int_equal(first->rail_count, PER_FUSED);
    assert_string_equal(strrchr(last->name, '+'), "+a_device_with_a_long_name_3:3");
    dpn_net_finalize(net);
    pair_connect_between(PLAIN + 1, PLAIN + 1);
}

CASE(ports_beyond_the_last_leave_room_for_fused_devices)
{
    char text[4096] = "";
    int at = 0;

    for (int d = 0; d < 10; d++) {
        at += sprintf(text + at, "device a_device_with_a_long_name_%d\n", d);
        for (int p = 1; p <= 4; p++)
            at += sprintf(text + at, "port %d\ngid 0 10.0.%d.%d\n", p, d, p);
    }
    with_devices(text, fuse_all);
}

/* ---- other protocols ------------------------------------------------------------------------- */

static void find_one(void **state)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);

    assert_string_equal(p.sender->rail, "fake0");
    must_be_said("1 of 3 RDMA devices have an active port; 2 of iWARP or other protocols");
}

CASE(iwarp_devices_are_no_rdma_devices)
{
    with_devices("device siw0 iwarp=1\nport 1\ngid 0 10.0.0.1\n"
                 "device fake0\nport 1\ngid 0 10.0.0.2\n"
                 "device iwp1 iwarp=1\nport 1\ngid 0 10.0.0.3\n", find_one);
}

/* ---- containers ------------------------------------------------------------------------------ */

/* The address and the interface are nowhere in this network namespace. */
static void use_the_hosts_gid(void **state)
{
    for (int forced = 0; forced < 2; forced++) {
        if (forced)
            setenv("NCCL_IB_GID_INDEX", "5", 1);
        ENDED_BY(pair_end) struct pair p = pair_connect(0);
        pair_transfer(&p, NCCL_PTR_HOST, -1);
        const struct dpn_qp *qp = &((const struct dpn_verbs *)p.sender->state)->q.qps[0];
        assert_int_equal(qp->gid.index, 5);
        assert_true(qp->gid.is_foreign && qp->peer_gid.is_foreign);
    }
}

CASE(gids_of_another_namespace_are_better_than_none)
{
    with_devices("device fake0\nport 1\ngid 5 203.0.113.77 ifindex=7777777\n", use_the_hosts_gid);
}

static ssize_t (*real_table)(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t,
                             size_t);

/* As the kernel: 300 entries of another port before those that there are, and none at all without
 * room. */
static ssize_t table_of_300(struct ibv_context *context, struct ibv_gid_entry *out, size_t room,
                            uint32_t flags, size_t len)
{
    if (room < 300)
        return -EINVAL;
    for (int i = 0; i < 300; i++)
        out[i] = (struct ibv_gid_entry){.gid.raw = {1}, .port_num = 2};
    return 300 + real_table(context, out + 300, room - 300, flags, len);
}

static void find_behind_300(void **state)
{
    struct dpn_net *net;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    real_table = dpn_ibv.query_gid_table;
    dpn_ibv.query_gid_table = table_of_300;
    struct pair p = pair_connect(0);
    pair_end(&p);
    dpn_net_finalize(net);
}

CASE(a_long_table_of_gids_is_read_whole)
{
    with_devices("device fake0\nport 1\ngid 3 10.0.0.1\n", find_behind_300);
}

static int readable; /* times */

static ssize_t table_for_a_while(struct ibv_context *context, struct ibv_gid_entry *out, size_t room,
                                 uint32_t flags, size_t len)
{
    return readable-- > 0 ? real_table(context, out, room, flags, len) : -EACCES;
}

/* At each of the places in turn where a connection reads it, until it is read everywhere. */
static void connect_without_gids(void **state)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    bool connects = false;
    int times = 0;

    for (; !connects; times++) {
        struct pair p = {.net = NULL};
        int err = 0;
        said[0] = '\0';
        assert_int_equal(dpn_net_init(NULL, &p.net), 0);
        assert_int_equal(dpn_net_listen(p.net, 0, handle, &p.listener), 0);
        real_table = times ? real_table : dpn_ibv.query_gid_table;
        dpn_ibv.query_gid_table = table_for_a_while;
        readable = times;
        WHILE_IN_TIME ((!err || err == DP_EAGAIN) && !connects) {
            err = p.sender ? 0 : dpn_net_connect(p.net, 0, handle, &p.sender);
            if ((!err || err == DP_EAGAIN) && !p.receiver)
                err = dpn_net_accept(p.listener, &p.receiver);
            connects = p.sender && p.receiver;
        }
        if (!connects)
            must_be_said("the GIDs of fake0 cannot be read: Permission denied");
        dpn_net_finalize(p.net);
    }
    assert_true(times > 2);
}

CASE(a_table_of_gids_that_cannot_be_read_is_said_to_be_so)
{
    with_devices("device fake0\nport 1\ngid 3 10.0.0.1\n", connect_without_gids);
}

/* ---- InfiniBand ------------------------------------------------------------------------------ */

static struct ibv_ah_attr address_of(struct dpn_comm *comm)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    assert_int_equal(ibv_query_qp(pair_qp(comm, 0), &attr, 0, &init), 0);
    return attr.ah_attr;
}

/* A message to a GPU, and the flush after it, which the port sends to itself. */
static void transfer_to_gpu(struct pair *p)
{
    struct dpn_memory *memory = pair_transfer(p, NCCL_PTR_CUDA, -1);
    struct dpn_request *flush = NULL;
    int size = PAIR_BYTES;

    assert_int_equal(
        dpn_net_iflush(p->receiver, 1, (void *[]){pair_to}, &size, &memory, &flush), 0);
    assert_non_null(flush);
    pair_finish(flush, NULL);
}

/* ib0 and ib1 are in one subnet, and only ib1 needs a global header; ib2 is in another. */
static void cross(void **state)
{
    static const struct {
        int from, to, dlid;
        bool is_global;
    } cases[] = {{0, 0, 1, false}, {0, 1, 2, true}, {1, 0, 1, true}, {1, 1, 2, true},
                 {0, 2, 3, true},  {2, 0, 1, true}, {2, 2, 3, false}};

    struct dpn_net *net;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    for (int i = 0; i < dpn_verbs_state.ports.hca_count; i++)
        dpn_verbs_state.ports.hcas[i].pointers |= NCCL_PTR_CUDA;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pair p = pair_connect_between(cases[i].from, cases[i].to);
        const struct ibv_ah_attr ah = address_of(p.sender);
        assert_int_equal(ah.dlid, cases[i].dlid);
        assert_int_equal(ah.is_global, cases[i].is_global);
        assert_int_equal(address_of(p.receiver).is_global, cases[i].is_global);
        transfer_to_gpu(&p);
        pair_end(&p);
    }
    dpn_net_finalize(net);
}

CASE(global_headers_are_sent_where_they_are_needed)
{
    with_devices("device ib0\nport 1 link=infiniband lid=1\ngid 0 fe80::1:1\n"
                 "device ib1\nport 1 link=infiniband lid=2 grh=1\ngid 0 fe80::1:2\n"
                 "device ib2\nport 1 link=infiniband lid=3\ngid 0 fec0:0:0:2::1:3\n", cross);
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* As a worker that was forked to load data and calls ncclCommDestroy of what it has inherited,
 * while another thread of its parent had every lock. */
static void be_child(struct pair *p, struct dpn_memory *memory)
{
    const int alive = fake_verbs.alive();
    struct dpn_memory *none;

    if (dpn_net_deregister(p->receiver, memory) ||
        dpn_net_register(p->sender, &(struct dpn_region){pair_from, 1, NCCL_PTR_HOST, -1, 0},
                         &none) != DP_ECOMM)
        _exit(1);
    dpn_net_close(p->sender);
    dpn_net_close(p->receiver);
    dpn_net_close_listener(p->listener);
    dpn_net_finalize(p->net);
    if (fake_verbs.alive() != alive)
        _exit(2);
#ifndef __SANITIZE_THREAD__ /* which ends a forked child that starts threads */
    struct pair own = pair_connect(0);
    pair_transfer(&own, NCCL_PTR_HOST, -1);
    pair_end(&own);
#endif
    _exit(0);
}

static void fork_and_go_on(void **state)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    struct dpn_memory *memory = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    int status;

    pair_transfer(&p, NCCL_PTR_HOST, -1);
    fflush(NULL);
    pthread_mutex_lock(&p.sender->lock);
    pthread_mutex_lock(&p.receiver->lock);
    pthread_mutex_lock(&p.net->lock);
    const pid_t child = fork_at_rest();
    if (!child) {
        alarm(60);
        be_child(&p, memory);
    }
    pthread_mutex_unlock(&p.net->lock);
    pthread_mutex_unlock(&p.receiver->lock);
    pthread_mutex_unlock(&p.sender->lock);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    assert_int_equal(pair_qps_up(p.sender), 1);
    assert_int_equal(pair_epoch(p.sender, 0), 1);
    assert_int_equal(dpn_net_deregister(p.receiver, memory), 0);
}

CASE(a_forked_child_leaves_what_is_its_parents)
{
    with_devices("device fake0\nport 1\ngid 0 10.0.0.1\n", fork_and_go_on);
}
