/* SPDX-License-Identifier: Apache-2.0
 *
 * handshake.c - how two connected sides agree on rails and queue pairs, before the first message.
 *
 *      sender                                        receiver
 *      its ports and options          -- hello -->
 *                                     <-- plan ---   pairs of ports, or a reason to decline
 *      queue pairs are opened and probed (verbs/qp.c)
 *      how many are up                -- ready -->   none: both decline, and there is no RDMA
 */
#include "base/fail.h"
#include "nccl-plugin/net/placement.h"
#include "nccl-plugin/verbs/comm.h"
#include "nccl-plugin/verbs/load.h"
#include "wire/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what queue pairs share ------------------------------------------------------------------ */

/* The block, and a completion queue for each rail. */

static size_t block_bytes(const struct dpn_queues *q)
{
    return sizeof(*q->block) + (q->is_sender ? 0 : dpn_eager_ring_bytes(q->eager_bytes));
}

static int open_rail(struct dpn_queues *q, struct dpn_rail *rail)
{
    const struct dpn_region block = {q->block, block_bytes(q), NCCL_PTR_HOST, -1, 0};
    const int room =
        q->qps_per_rail * (2 * DPN_SEND_QUEUE + 2 * DPN_RECV_QUEUE) + 2 * DPN_LOOP_QUEUE;
    int err = dpn_mr_get(rail->port->hca, &block, &rail->block_mr);

    if (err)
        return err;
    rail->cq = dpn_ibv.create_cq(rail->port->hca->context, room, NULL, NULL, 0);
    if (!rail->cq)
        return dp_fail(DP_EIO, "%s gives no completion queue of %d entries: %s (max_cq, max_cqe of "
                       "'ibv_devinfo -v', 'ulimit -l')", rail->port->name, room, strerror(errno));
    return q->is_sender ? 0 : dpn_loop_open(rail);
}

static bool is_adaptive(const struct dpn_port *port)
{
    const int wanted = dpn_verbs_state.options.adaptive_routing;

    return wanted == DPN_AUTO ? !port->is_ethernet : wanted;
}

static int open_rails(struct dpn_queues *q)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int err = 0;

    q->block = aligned_alloc(page, (block_bytes(q) + page - 1) / page * page);
    if (!q->block)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    memset(q->block, 0, block_bytes(q));
    for (int r = 0; r < q->rail_count && !err; r++) {
        q->rails[r].adaptive = is_adaptive(q->rails[r].port);
        err = open_rail(q, &q->rails[r]);
    }
    q->qp_count = q->rail_count * q->qps_per_rail;
    for (int i = 0; i < q->qp_count; i++)
        q->qps[i].rail = (uint8_t)(i % q->rail_count);
    q->is_degraded = true;
    return err;
}

void dpn_rails_close(struct dpn_queues *q)
{
    for (int r = 0; r < q->rail_count; r++) {
        if (q->rails[r].cq)
            dpn_ibv.destroy_cq(q->rails[r].cq);
        dpn_mr_put(q->rails[r].port->hca, q->rails[r].block_mr);
    }
}

/* ---- hello and plan -------------------------------------------------------------------------- */

static enum dpn_traffic traffic_of(const struct dpn_verbs *v)
{
    return dpn_traffic_of(v->q.comm->ops);
}

/* The placement's class overrides the common option, but not the option for this kind of traffic.
 */
static void choose_class(struct dpn_verbs *v)
{
    static const struct dpn_class none = {-1, -1};
    const struct dpn_verbs_options *o = &dpn_verbs_state.options;
    const int given = v->q.comm->traffic_class;
    const enum dpn_traffic traffic = traffic_of(v);
    const struct dpn_class *kind = traffic == DPN_TRAFFIC_PIPELINE   ? &dpn_options.pipeline
                                   : traffic == DPN_TRAFFIC_GRADIENT ? &dpn_options.gradient
                                                                     : &none;

    const int64_t wanted = kind->traffic_class < 0 && v->choice.placed_class
                               ? v->choice.placed_class
                               : kind->traffic_class;
    v->q.traffic_class = (uint8_t)dpn_traffic_choose(wanted, o->traffic_class, given, 255);
    v->q.service_level =
        (uint8_t)dpn_traffic_choose(kind->service_level, o->service_level, given, 15);
}

static int wanted_qps(const struct dpn_verbs *v)
{
    const int ours = dpn_verbs_state.options.qps;
    const int wanted = v->choice.placed_qps > ours ? v->choice.placed_qps : ours;

    return wanted < DPN_MAX_QPS ? wanted : DPN_MAX_QPS;
}

/* The address to which the peer connects when it has lost the wire of this connection, or to see
 * whether this process is alive. The cookie in it is hidden: only the peer can read it. */
static bool open_acceptor(struct dpn_verbs *v, struct dp_wire_address *acceptor, uint64_t *label)
{
    v->control.channel.has_acceptor =
        !dpn_acceptor_use(v->choice.device->interface.address, acceptor, label);
    if (v->control.channel.has_acceptor)
        dp_wire_tcp_hide(v->q.comm->wire, v->q.is_sender, acceptor);
    else
        dp_log(DP_LOG_INFO, "%s: %s",
               v->q.is_sender ? "the peer cannot ask whether this process is there"
                              : "a control connection that is lost cannot be made again",
               dp_last_error());
    return v->control.channel.has_acceptor;
}

void dpn_verbs_release_acceptor(const struct dpn_verbs *v)
{
    if (v->control.channel.has_acceptor)
        dpn_acceptor_release(v->choice.device->interface.address);
}

static void place(struct dpn_verbs *v, int32_t from, int32_t to, enum dpn_traffic traffic)
{
    v->q.comm->counted_dev =
        dpn_choice_place(&v->choice, v->q.is_sender, from, to, traffic, v->q.comm->dev);
}

static void send_hello(struct dpn_verbs *v)
{
    uint64_t label;
    const int32_t worker = dpn_placement_worker();
    union dpn_control_body body;

    memset(&body, 0, sizeof(body));
    place(v, worker, v->q.comm->peer_worker, traffic_of(v));
    choose_class(v);
    body.hello = (struct dpn_hello){
        .version = DPN_CONTROL_VERSION,
        .port_count = (uint8_t)v->choice.device->rail_count,
        .qps = (uint8_t)wanted_qps(v),
        .traffic_class = v->q.traffic_class,
        .service_level = v->q.service_level,
        .max_message = dpn_choice_max_message(&v->choice),
        .other_count = (uint8_t)(v->choice.port_count - v->choice.device->rail_count),
        .eager_bytes = (uint32_t)dpn_options.eager_bytes,
        .subnet_bits = (uint8_t)dpn_verbs_state.options.subnet_bits,
        .worker = worker,
        .traffic = traffic_of(v),
    };
    body.hello.has_acceptor = open_acceptor(v, &body.hello.acceptor, &label);
    dpn_choice_describe(&v->choice, body.hello.ports);
    dpn_control_send(v, DPN_HELLO, &body);
}

static uint8_t qps_per_rail(const struct dpn_hello *hello, int rails)
{
    const int ours = dpn_verbs_state.options.qps;
    const int wanted = hello->qps > ours ? hello->qps : ours;

    return (uint8_t)(wanted * rails > DPN_MAX_QPS ? DPN_MAX_QPS / rails : wanted);
}

static void set_rail(struct dpn_verbs *v, int r, struct dpn_port *port,
                     const struct dpn_port_info *peer)
{
    if (dpn_verbs_state.options.warns_of_rails && strcmp(port->name, peer->name))
        dp_log(DP_LOG_WARN,
               "%s is connected to the peer's %s, which may be of another rail "
               "(NCCL_IB_WARN_RAIL_LOCAL)",
               port->name, peer->name);
    v->q.rails[r].port = port;
    snprintf(v->q.rails[r].peer, sizeof(v->q.rails[r].peer), "%s", peer->name);
    v->q.rails[r].speed_mbps =
        (int)peer->speed_mbps < port->speed_mbps ? (int)peer->speed_mbps : port->speed_mbps;
}

static uint32_t choose_eager(const struct dpn_verbs *v, const struct dpn_hello *hello)
{
    const uint32_t ours = (uint32_t)dpn_options.eager_bytes;

    if (!dpn_port_takes_eager(v->q.rails[0].port))
        return 0;
    return hello->eager_bytes < ours ? hello->eager_bytes : ours;
}

/* Without an adapter that accesses GPU memory all memory is the host's. Otherwise CTS entries tell
 * whether eager messages are allowed. */
static bool may_be_eager_at_once(const struct dpn_verbs *v)
{
    bool reaches_gpus = false;

    for (int r = 0; r < v->q.rail_count; r++)
        reaches_gpus |= dpn_port_reaches_gpus(v->q.rails[r].port);
    return !reaches_gpus || dpn_options.eager_gpu;
}

static int answer_hello(struct dpn_verbs *v, const struct dpn_hello *hello, struct dpn_plan *plan)
{
    struct dpn_port_info ports[DPN_MAX_RAILS];

    place(v, hello->worker, dpn_placement_worker(), (enum dpn_traffic)hello->traffic);
    memset(ports, 0, sizeof(ports));
    dpn_choice_describe(&v->choice, ports);
    dpn_choice_pair(&v->choice, hello, ports, plan);
    if (!plan->rails)
        return dp_fail_quietly(DP_EUNSUPPORTED,
                               "%s is of InfiniBand and %s of Ethernet, or the "
                               "reverse",
                               v->choice.device->rails[0]->name, hello->ports[0].name);
    plan->qps_per_rail = qps_per_rail(hello, plan->rails);
    plan->max_message = dpn_choice_max_message(&v->choice);
    if (hello->max_message < plan->max_message)
        plan->max_message = hello->max_message;
    v->q.rail_count = plan->rails;
    v->q.qps_per_rail = plan->qps_per_rail;
    v->q.any_order = plan->max_message >= DPN_MAX_BYTES;
    v->q.traffic_class = hello->traffic_class;
    v->q.service_level = hello->service_level;
    for (int r = 0; r < plan->rails; r++) {
        const int own = plan->rail[r].receiver, s = plan->rail[r].sender;
        plan->ports[r] = ports[own];
        v->q.any_order &= ports[own].any_order && hello->ports[s].any_order;
        set_rail(v, r, v->choice.ports[own], &hello->ports[s]);
    }
    plan->any_order = v->q.any_order;
    v->q.eager_bytes = plan->eager_bytes = choose_eager(v, hello);
    plan->may_eager = may_be_eager_at_once(v);
    return open_rails(&v->q);
}

/* The receiver's last message, after which this side sends nothing over the wire. */
static void decline(struct dpn_verbs *v, const char *reason)
{
    union dpn_control_body body;

    memset(&body, 0, sizeof(body));
    snprintf(v->q.reason, sizeof(v->q.reason), "%s", reason);
    snprintf(body.plan.reason, sizeof(body.plan.reason), "%.127s", reason);
    dpn_control_send(v, DPN_PLAN, &body);
    v->step = DPN_STEP_DECLINED;
}

static int take_hello(struct dpn_verbs *v)
{
    union dpn_control_body body;
    enum dpn_control_kind kind;

    if (!dpn_control_receive(v, &kind))
        return DP_EAGAIN;
    if (kind != DPN_HELLO)
        return dp_fail(DP_EMISMATCH, "the peer does not begin with hello");
    memset(&body, 0, sizeof(body));
    if (answer_hello(v, &v->control.received.hello, &body.plan)) {
        decline(v, dp_last_error());
        return DP_EAGAIN;
    }
    body.plan.agreed = 1;
    v->control.channel.acceptor = v->control.received.hello.acceptor;
    dp_wire_tcp_hide(v->q.comm->wire, true, &v->control.channel.acceptor);
    v->control.channel.peer_has_acceptor = v->control.received.hello.has_acceptor;
    if (open_acceptor(v, &body.plan.acceptor,
                      &body.plan.label)) /* otherwise losing the wire ends the connection */
        v->control.channel.label = body.plan.label;
    dpn_control_send(v, DPN_PLAN, &body);
    v->step = DPN_STEP_QPS;
    return DP_EAGAIN;
}

static int take_plan(struct dpn_verbs *v)
{
    const struct dpn_plan *plan = &v->control.received.plan;
    enum dpn_control_kind kind;

    if (!dpn_control_receive(v, &kind))
        return DP_EAGAIN;
    if (kind != DPN_PLAN)
        return dp_fail(DP_EMISMATCH, "the peer does not answer with a plan");
    if (!plan->agreed) {
        snprintf(v->q.reason, sizeof(v->q.reason), "%s", plan->reason);
        v->step = DPN_STEP_DECLINED;
        return DP_EAGAIN;
    }
    v->q.rail_count = plan->rails;
    v->q.qps_per_rail = plan->qps_per_rail;
    v->q.max_message = plan->max_message;
    v->q.any_order = plan->any_order;
    v->q.eager_bytes = plan->eager_bytes;
    v->send.may_eager = plan->may_eager;
    v->control.channel.acceptor = plan->acceptor;
    dp_wire_tcp_hide(v->q.comm->wire, false, &v->control.channel.acceptor);
    v->control.channel.label = plan->label;
    v->control.channel.peer_has_acceptor = plan->label;
    for (int r = 0; r < plan->rails; r++) {
        if (plan->rail[r].sender >= v->choice.port_count)
            return dp_fail(DP_EMISMATCH, "the peer's plan names port %u of %d",
                           plan->rail[r].sender, v->choice.port_count);
        set_rail(v, r, v->choice.ports[plan->rail[r].sender], &plan->ports[r]);
    }
    int err = open_rails(&v->q);
    dpn_choice_prefer(&v->choice, plan, &v->q);
    for (int i = 0; i < v->q.qp_count && !err; i++)
        dpn_qp_open(&v->q, &v->q.qps[i]);
    v->step = DPN_STEP_QPS;
    return err ? err : DP_EAGAIN;
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

enum { ATTEMPTS = 5 }; /* to bring up the first queue pair, about 2 s */

/* One queue pair is enough to begin: the others are tried once. Without any, each is tried again.
 */
static bool are_all_tried(const struct dpn_verbs *v)
{
    const int enough = v->q.up ? 1 : ATTEMPTS;

    for (int i = 0; i < v->q.qp_count; i++)
        if (v->q.qps[i].state != DPN_QP_UP && v->q.qps[i].failures < enough)
            return false;
    return true;
}

static int wait_for_qps(struct dpn_verbs *v)
{
    union dpn_control_body body = {.ready = {.qps = 0}};

    if (!v->q.is_sender || !are_all_tried(v))
        return DP_EAGAIN;
    body.ready.qps = (uint32_t)__builtin_popcount(v->q.up);
    dpn_control_send(v, DPN_READY, &body);
    v->step = body.ready.qps ? DPN_STEP_READY : DPN_STEP_NO_QPS;
    return DP_EAGAIN;
}

/* The receiver answers with a plan that declines. */
static int agree_to_decline(struct dpn_verbs *v)
{
    enum dpn_control_kind kind;

    if (!v->q.is_sender) {
        decline(v, v->q.reason[0] ? v->q.reason : "no queue pair came up; see the sender's log");
        return DP_EAGAIN;
    }
    while (v->step == DPN_STEP_NO_QPS && dpn_control_receive(v, &kind))
        if (kind == DPN_PLAN)
            v->step = DPN_STEP_DECLINED;
    return DP_EAGAIN;
}

int dpn_verbs_handshake(struct dpn_verbs *v)
{
    switch (v->step) {
    case DPN_STEP_BEGIN:
        if (v->q.is_sender)
            send_hello(v);
        v->step = DPN_STEP_PLAN;
        return DP_EAGAIN;
    case DPN_STEP_PLAN:
        return v->q.is_sender ? take_plan(v) : take_hello(v);
    case DPN_STEP_QPS:
        return wait_for_qps(v);
    case DPN_STEP_NO_QPS:
        return agree_to_decline(v);
    case DPN_STEP_DECLINED:
        return dpn_control_is_sending(v)
                   ? DP_EAGAIN
                   : dp_fail_quietly(DP_EUNSUPPORTED, "no RDMA to the peer: %s", v->q.reason);
    case DPN_STEP_READY:
        return 0;
    }
    return DP_EAGAIN;
}
