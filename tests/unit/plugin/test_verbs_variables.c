/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_variables.c - NCCL's variables for RDMA: each sets its option, an invalid value is
 * reported and ignored, and the options take effect; and the traffic class of a communicator.
 */
#include "fake_fabric.h"
#include "verbs_pair.h"

#include "base/fail.h"
#include "nccl-plugin/verbs/options.h"
#include "nccl-plugin/verbs/device.h"

#include <arpa/inet.h>

/* ---- the log --------------------------------------------------------------------------------- */

static int warnings;
static char last_warning[256];

static void note_warning(void *none, enum dp_log_level level, const char *line)
{
    if (level != DP_LOG_WARN)
        return;
    warnings++;
    snprintf(last_warning, sizeof(last_warning), "%s", line);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A value that is not the default, and an invalid one; the member, a bool of size 1 or an int. */
struct variable {
    const char *name, *value, *wrong;
    size_t at, size;
    int usual, expected;
};
#define MEMBER(m) offsetof(struct dpn_verbs_options, m), sizeof(((struct dpn_verbs_options *)0)->m)
static const struct variable variables[] = {
    {"NCCL_IB_DISABLE", "1", "2", MEMBER(disabled), 0, 1},
    {"NCCL_IB_GID_INDEX", "3", "-2", MEMBER(gid_index), DPN_AUTO, 3},
    {"NCCL_IB_ROUTABLE_FLID_GID_INDEX", "4", "-1", MEMBER(flid_index), 1, 4},
    {"NCCL_IB_ROCE_VERSION_NUM", "1", "3", MEMBER(roce_version), DPN_AUTO, 1},
    {"NCCL_IB_ADDR_FAMILY", "AF_INET6", "6", MEMBER(family), AF_UNSPEC, AF_INET6},
    {"NCCL_IB_ADDR_FAMILY", "AF_INET", "inet", MEMBER(family), AF_UNSPEC, AF_INET},
    {"NCCL_IB_ADDR_RANGE", "10.0.0.0/8", "10.0.0.0", MEMBER(range.prefix), 0, 104},
    {"NCCL_IB_TIMEOUT", "14", "32", MEMBER(timeout), 20, 14},
    {"NCCL_IB_RETRY_CNT", "3", "8", MEMBER(retries), 7, 3},
    {"NCCL_IB_PKEY", "0x10", "65536", MEMBER(pkey_index), 0, 16},
    {"NCCL_IB_SL", "5", "16", MEMBER(service_level), DPN_AUTO, 5},
    {"NCCL_IB_TC", "96", "256", MEMBER(traffic_class), DPN_AUTO, 96},
    {"NCCL_IB_FIFO_TC", "184", "high", MEMBER(cts_class), DPN_AUTO, 184},
    {"NCCL_IB_USE_INLINE", "0", "yes", MEMBER(inlines_cts), 1, 0},
    {"NCCL_IB_QPS_PER_CONNECTION", "128", "129", MEMBER(qps), 1, 128},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", "1", "2", MEMBER(split), 0, 1},
    {"NCCL_IB_PCI_RELAXED_ORDERING", "0", "3", MEMBER(relaxed_ordering), 2, 0},
    {"NCCL_IB_ADAPTIVE_ROUTING", "1", "2", MEMBER(adaptive_routing), DPN_AUTO, 1},
    {"NCCL_IB_AR_THRESHOLD", "100", "8K", MEMBER(adaptive_bytes), 8192, 100},
    {"NCCL_IB_OOO_RQ", "1", "2", MEMBER(out_of_order), 0, 1},
    {"NCCL_IB_DATA_DIRECT", "2", "3", MEMBER(data_direct), DPN_AUTO, 2},
    {"NCCL_IB_ECE_ENABLE", "0", "2", MEMBER(ece), 1, 0},
    {"NCCL_IB_MERGE_VFS", "0", "2", MEMBER(merge_functions), 1, 0},
    {"NCCL_IB_MERGE_NICS", "0", "2", MEMBER(merge_nics), 1, 0},
    {"NCCL_IB_DEVICE_PCI_ORDER", "0", "2", MEMBER(sorts_by_pci), 1, 0},
    {"NCCL_IB_QUERY_PORT_SPEED", "0", "2", MEMBER(asks_kernel_speed), 1, 0},
    {"NCCL_IB_WARN_RAIL_LOCAL", "1", "2", MEMBER(warns_of_rails), 0, 1},
    {"NCCL_IB_SUBNET_AWARE_ROUTING", "1", "2", MEMBER(subnet_bits), 0, 24},
    {"NCCL_IB_SUBNET_PREFIX_LEN", "16", "33", MEMBER(subnet_bits), 0, 0},
    {"NCCL_IB_RETURN_ASYNC_EVENTS", "0", "2", MEMBER(handles_events), 1, 0},
    {"NCCL_GDR_FLUSH_DISABLE", "1", "2", MEMBER(flushes), 1, 0},
};
enum { VARIABLES = sizeof(variables) / sizeof(variables[0]) };

static int64_t value_of(const struct variable *v)
{
    struct dpn_verbs_options o;

    dpn_verbs_options_read(&o);
    const char *at = (const char *)&o + v->at;
    return v->size == sizeof(bool) ? *(const bool *)at : v->size == sizeof(int)
               ? *(const int *)(const void *)at : *(const int64_t *)(const void *)at;
}

CASE(every_variable_sets_what_it_should)
{
    warnings = 0;
    for (int i = 0; i < VARIABLES; i++) {
        const struct variable *v = &variables[i];
        assert_int_equal(value_of(v), v->usual);
        setenv(v->name, v->value, 1);
        assert_int_equal(value_of(v), v->expected);
        setenv(v->name, "", 1); /* as if it were not set */
        assert_int_equal(value_of(v), v->usual);
        unsetenv(v->name);
    }
    assert_int_equal(warnings, 0);
    setenv("NCCL_IB_SUBNET_PREFIX_LEN", "16", 1);
    setenv("NCCL_IB_SUBNET_AWARE_ROUTING", "1", 1);
    struct dpn_verbs_options o;
    dpn_verbs_options_read(&o);
    assert_int_equal(o.subnet_bits, 16);
    unsetenv("NCCL_IB_SUBNET_PREFIX_LEN");
    unsetenv("NCCL_IB_SUBNET_AWARE_ROUTING");
}

CASE(an_invalid_value_is_reported_and_ignored)
{
    char beginning[128];

    for (int i = 0; i < VARIABLES; i++) {
        const struct variable *v = &variables[i];
        warnings = 0;
        setenv(v->name, v->wrong, 1);
        assert_int_equal(value_of(v), v->usual);
        unsetenv(v->name);
        assert_int_equal(warnings, 1);
        snprintf(beginning, sizeof(beginning), "%s=%s: expected ", v->name, v->wrong);
        if (strncmp(last_warning, beginning, strlen(beginning)) != 0 ||
            !strstr(last_warning, "; going on with"))
            fail_msg("%s", last_warning);
    }
}

/* ---- effects --------------------------------------------------------------------------------- */

/* As if the process had started with it. */
static void set(const char *name, const char *value)
{
    setenv(name, value, 1);
    dpn_verbs_options_read(&dpn_verbs_state.options);
}

static void unset(const char *name)
{
    unsetenv(name);
    dpn_verbs_options_read(&dpn_verbs_state.options);
}

CASE(queue_pairs_are_made_as_they_say)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    set("NCCL_IB_SL", "5");
    set("NCCL_IB_TIMEOUT", "14");
    set("NCCL_IB_RETRY_CNT", "3");
    struct pair p = pair_connect(0);
    struct dpn_comm *const sides[] = {p.sender, p.receiver};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ibv_query_qp(pair_qp(sides[i], 0), &attr, 0, &init), 0);
        assert_int_equal(attr.ah_attr.sl, 5);
        assert_int_equal(attr.timeout, 14);
        assert_int_equal(attr.retry_cnt, 3);
    }
    pair_end(&p);
    unset("NCCL_IB_SL");
    unset("NCCL_IB_TIMEOUT");
    unset("NCCL_IB_RETRY_CNT");
}

/* Of the messages that a connection has sent, the one with the most work requests. */
static const struct dpn_send *most_cut(const struct pair *p)
{
    const struct dpn_verbs *v = p->sender->state;
    const struct dpn_send *most = &v->send.sends[0];

    for (int i = 1; i < NCCL_NET_MAX_REQUESTS; i++)
        if (v->send.sends[i].count > most->count)
            most = &v->send.sends[i];
    assert_int_equal(most->size, PAIR_BYTES);
    return most;
}

CASE(messages_are_split_over_queue_pairs_if_asked)
{
    set("NCCL_IB_QPS_PER_CONNECTION", "3");
    for (int split = 0; split < 2; split++) {
        set("NCCL_IB_SPLIT_DATA_ON_QPS", split ? "1" : "0");
        ENDED_BY(pair_end) struct pair p = pair_connect(0);
        pair_transfer_until(&p, 7);
        pair_transfer(&p, NCCL_PTR_HOST, -1);
        assert_int_equal(most_cut(&p)->count, split ? 3 : 1);
    }
    unset("NCCL_IB_SPLIT_DATA_ON_QPS");
    unset("NCCL_IB_QPS_PER_CONNECTION");
}

CASE(asking_for_more_queue_pairs_than_there_can_be_gives_all)
{
    set("NCCL_IB_QPS_PER_CONNECTION", "100");
    struct pair p = pair_connect(0);
    const struct dpn_verbs *v = p.sender->state;
    assert_int_equal(v->q.qp_count, DPN_MAX_QPS / v->q.rail_count * v->q.rail_count);
    pair_transfer_until(&p, (1u << v->q.qp_count) - 1);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    pair_end(&p);
    unset("NCCL_IB_QPS_PER_CONNECTION");
}

/* Of one message of PAIR_BYTES. */
static unsigned count_work_requests(struct pair *p)
{
    struct dpn_memory *source = pair_reg(p->sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p->receiver, pair_to, NCCL_PTR_HOST);
    struct dpn_request *recv = pair_receive(p, target, PAIR_BYTES);
    const struct dpn_verbs *v = p->sender->state;

    assert_true(fake_verbs.hold_qp(pair_qp(p->sender, 0), true));
    struct dpn_request *send = pair_send(p, source, pair_from, PAIR_BYTES);
    pthread_mutex_lock(&p->sender->lock);
    const unsigned count = v->q.qps[0].requests_out;
    pthread_mutex_unlock(&p->sender->lock);
    assert_true(fake_verbs.hold_qp(pair_qp(p->sender, 0), false));
    pair_finish(send, recv);
    return count;
}

/* Packets may arrive out of order: the end of a long message is a work request of its own. */
CASE(with_adaptive_routing_the_end_of_a_long_message_goes_by_itself)
{
    static const struct {
        const char *routing, *threshold;
        bool goes_by_itself;
    } cases[] = {{"0", "100", false}, {"1", "100", true}, {"1", "1000000", false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set("NCCL_IB_ADAPTIVE_ROUTING", cases[i].routing);
        set("NCCL_IB_AR_THRESHOLD", cases[i].threshold);
        ENDED_BY(pair_end) struct pair p = pair_connect(0);
        pair_transfer(&p, NCCL_PTR_HOST, -1);
        assert_int_equal(most_cut(&p)->has_record, cases[i].goes_by_itself);
        assert_int_equal(count_work_requests(&p), cases[i].goes_by_itself ? 2 : 1);
    }
    unset("NCCL_IB_ADAPTIVE_ROUTING");
    unset("NCCL_IB_AR_THRESHOLD");
}

CASE(ports_are_not_fused_if_they_may_not_be)
{
    struct dpn_net *net;
    int dev;

    set("NCCL_IB_MERGE_NICS", "0");
    setenv("NCCL_NET_FORCE_MERGE", "these", 1); /* though they are not on the PCI bus */
    assert_int_equal(dpn_net_init(NULL, &net), 0);
    expect_error_is(dpn_net_fuse((int[]){0, 1}, 2, &dev), DP_EUNSUPPORTED, "NCCL_IB_MERGE_NICS=0");
    dpn_net_finalize(net);
    unset("NCCL_NET_FORCE_MERGE");
    unset("NCCL_IB_MERGE_NICS");
}

/* A sender with nothing in flight that could fail, as there is no receive; one of two ports goes
 * down. */
static bool gives_up_a_port_that_is_down(int64_t wait_ns)
{
    const struct dpn_port *port = &dpn_verbs_state.ports.list[0];
    const int64_t began_ns = dp_now_ns();
    int64_t down_ns = 0;
    struct dpn_request *send;
    struct dpn_net *net;

    assert_int_equal(dpn_net_init(NULL, &net), 0);
    struct pair p = pair_connect(pair_fuse_both());
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    pair_transfer_until(&p, 3);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    assert_true(fake_verbs.set_port("fake0", 1, false));
    while (pair_qps_up(p.sender) == 3 && (!down_ns || dp_now_ns() - down_ns < wait_ns)) {
        must_be_in_time(began_ns);
        assert_int_equal(dpn_net_isend(p.sender, pair_from, PAIR_BYTES, 1, source, &send), 0);
        assert_null(send);
        if (!down_ns && dpn_port_is_down(port)) /* the event has been read */
            down_ns = dp_now_ns();
    }
    const bool gave_up = pair_qps_up(p.sender) != 3;
    assert_true(fake_verbs.set_port("fake0", 1, true));
    pair_end(&p);
    dpn_net_finalize(net);
    return gave_up;
}

CASE(a_port_that_is_down_may_be_left_until_its_work_fails)
{
    assert_true(gives_up_a_port_that_is_down(60 * DP_NS_PER_S));
    set("NCCL_IB_RETURN_ASYNC_EVENTS", "0");
    assert_false(gives_up_a_port_that_is_down(200 * DP_NS_PER_MS));
    unset("NCCL_IB_RETURN_ASYNC_EVENTS");
}

/* ---- traffic classes of a communicator ------------------------------------------------------- */

extern const struct ncclNet_v10 ncclNetPlugin_v10;
extern const struct ncclNet_v11 ncclNetPlugin_v11;

static void must_have_class(void *comm, int traffic_class)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    assert_int_equal(ibv_query_qp(pair_qp(comm, 0), &attr, 0, &init), 0);
    assert_int_equal(attr.ah_attr.grh.traffic_class, traffic_class);
}

static void must_have_level(void *comm, int service_level)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    assert_int_equal(ibv_query_qp(pair_qp(comm, 0), &attr, 0, &init), 0);
    assert_int_equal(attr.ah_attr.sl, service_level);
}

/* From 2.28 on it comes with the context. */
CASE(a_context_has_the_class_that_its_user_chose)
{
    const struct ncclNet_v11 *net = &ncclNetPlugin_v11;
    struct ncclNetCommConfig_v10 config = {.trafficClass = 96};
    void *ctx = NULL, *listener, *sender = NULL, *receiver = NULL;
    char handle[NCCL_NET_HANDLE_MAXSIZE];

    assert_int_equal(net->init(&ctx, 1, &config, NULL, NULL), ncclSuccess);
    assert_int_equal(net->listen(ctx, 0, handle, &listener), ncclSuccess);
    WHILE_IN_TIME (!sender || !receiver) {
        assert_true(sender || !net->connect(ctx, 0, handle, &sender, NULL));
        assert_true(receiver || !net->accept(listener, &receiver, NULL));
    }
    must_have_class(sender, 96);
    assert_int_equal(net->finalize(ctx), ncclSuccess);
}

/* As NCCL's progress thread does while its service thread connects. */
static void *say_something_else(void *net)
{
    dpn_net_say_next(net, 1u << 2, 200);
    return NULL;
}

/* Sends and receives only are those between stages of a pipeline; a collective reduces gradients. */
CASE(stages_and_gradients_have_classes_of_their_own)
{
    static const struct {
        uint32_t ops;
        int traffic_class, service_level;
    } cases[] = {{1u << 6, 104, 3}, {1u << 4, 32, 1}, {UINT32_MAX, 8, 2}};
    const struct dpn_class pipeline = dpn_options.pipeline, gradient = dpn_options.gradient;

    set("NCCL_IB_TC", "8");
    set("NCCL_IB_SL", "2");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dpn_comm *sender = NULL, *receiver = NULL;
        char handle[NCCL_NET_HANDLE_MAXSIZE];
        struct dpn_listener *listener;
        struct dpn_net *net;
        assert_int_equal(dpn_net_init(NULL, &net), 0);
        dpn_options.pipeline = (struct dpn_class){104, 3};
        dpn_options.gradient = (struct dpn_class){32, 1};
        dpn_net_say_next(net, cases[i].ops, NCCL_NET_TRAFFIC_CLASS_UNDEF);
        assert_int_equal(dpn_net_listen(net, 0, handle, &listener), 0);
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, say_something_else, net), 0);
        pthread_join(other, NULL);
        WHILE_IN_TIME (!sender || !receiver) {
            assert_true(sender || dpn_net_connect(net, 0, handle, &sender) <= 0);
            dpn_net_say_next(net, 1u << 2, 200); /* it has begun */
            assert_true(receiver || dpn_net_accept(listener, &receiver) <= 0);
        }
        must_have_class(sender, cases[i].traffic_class);
        must_have_class(receiver, cases[i].traffic_class);
        must_have_level(sender, cases[i].service_level);
        must_have_level(receiver, cases[i].service_level);
        dpn_net_finalize(net);
    }
    dpn_options.pipeline = pipeline;
    dpn_options.gradient = gradient;
    unset("NCCL_IB_TC");
    unset("NCCL_IB_SL");
}

/* Before, with each connection. */
CASE(a_connection_has_the_class_that_its_user_chose)
{
    const struct ncclNet_v10 *net = &ncclNetPlugin_v10;
    struct ncclNetCommConfig_v10 config = {.trafficClass = 40};
    void *listener, *sender = NULL, *receiver = NULL;
    char handle[NCCL_NET_HANDLE_MAXSIZE];

    assert_int_equal(net->init(NULL, NULL), ncclSuccess);
    assert_int_equal(net->listen(0, handle, &listener), ncclSuccess);
    WHILE_IN_TIME (!sender || !receiver) {
        assert_true(sender || !net->connect(0, &config, handle, &sender, NULL));
        assert_true(receiver || !net->accept(listener, &receiver, NULL));
    }
    must_have_class(sender, 40);
    net->closeSend(sender);
    net->closeRecv(receiver);
    net->closeListen(listener);
}

static int set_up(void **state)
{
    dp_log_set(note_warning, NULL, DP_LOG_WARN);
    return pair_set_up(state);
}

static int tear_down(void **state)
{
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
    return pair_tear_down(state);
}

RUN_CASES(set_up, tear_down)
