/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_agree.c - how two sides that have met agree on rails and lanes, before the first message.
 *
 *      sender                                        receiver
 *      its ports, and what it wants   -- hello -->
 *                                     <-- plan ---   pairs of ports, or why there are none
 *      lanes are opened and tried (verbs_lane.c)
 *      so many are up                 -- ready -->   none: both part, and there is no RDMA
 */
#include "base/fail.h"
#include "nccl-plugin/net_placement.h"
#include "nccl-plugin/verbs/verbs_comm.h"
#include "nccl-plugin/verbs/verbs_door.h"
#include "nccl-plugin/verbs/verbs_state.h"

#include <stdio.h>
#include <string.h>

/* ---- hello and plan -------------------------------------------------------------------------- */

static enum dpn_traffic traffic_of(const struct dpn_verbs *v)
{
    return dpn_traffic_of(v->comm->open.net->ops);
}

/* The placement's class stands between the option for this kind and what holds for all. */
static void choose_class(struct dpn_verbs *v)
{
    static const struct dpn_class none = {-1, -1};
    const struct dpn_verbs_options *o = &dpn_verbs_state.options;
    const int given = v->comm->traffic_class;
    const enum dpn_traffic traffic = traffic_of(v);
    const struct dpn_class *kind = traffic == DPN_TRAFFIC_PIPELINE   ? &dpn_options.pipeline
                                   : traffic == DPN_TRAFFIC_GRADIENT ? &dpn_options.gradient
                                                                     : &none;

    const int64_t wanted = kind->traffic_class < 0 && v->placed_class ? v->placed_class
                                                                       : kind->traffic_class;
    v->traffic_class = (uint8_t)dpn_traffic_choose(wanted, o->traffic_class, given, 255);
    v->service_level = (uint8_t)dpn_traffic_choose(kind->service_level, o->service_level, given,
                                                   15);
}

static int wanted_qps(const struct dpn_verbs *v)
{
    const int ours = dpn_verbs_state.options.qps;
    const int wanted = v->placed_qps > ours ? v->placed_qps : ours;

    return wanted < DPN_MAX_LANES ? wanted : DPN_MAX_LANES;
}

/* Where the peer calls that has lost the wire of this connection, or asks whether we are there. */
static bool open_door(struct dpn_verbs *v, struct dp_wire_address *door, uint64_t *label)
{
    const struct dpn_device *device;

    if (dpn_net_device(v->comm->dev, &device))
        return false;
    dpn_verbs_heed_forks();
    v->words.has_door = !dpn_door_use(device->interface.address, door, label);
    if (!v->words.has_door)
        dp_log(DP_LOG_INFO, "%s: %s",
               v->is_sender ? "the peer cannot ask whether this process is there"
                            : "a control connection that is lost cannot be made again",
               dp_last_error());
    return v->words.has_door;
}

void dpn_verbs_leave_door(const struct dpn_verbs *v)
{
    const struct dpn_device *device;

    if (v->words.has_door && !dpn_net_device(v->comm->dev, &device))
        dpn_door_leave(device->interface.address);
}

static void say_hello(struct dpn_verbs *v)
{
    uint64_t label;
    const int32_t worker = dpn_placement_worker();
    union dpn_talk talk;

    memset(&talk, 0, sizeof(talk));
    dpn_verbs_place(v, worker, v->comm->peer_worker, traffic_of(v));
    choose_class(v);
    talk.hello = (struct dpn_hello){
        .version = DPN_TALK_VERSION, .port_count = (uint8_t)v->device->rail_count,
        .qps = (uint8_t)wanted_qps(v), .traffic_class = v->traffic_class,
        .service_level = v->service_level, .max_message = dpn_verbs_max_message(v),
        .other_count = (uint8_t)(v->port_count - v->device->rail_count),
        .eager_bytes = (uint32_t)dpn_options.eager_bytes,
        .subnet_bits = (uint8_t)dpn_verbs_state.options.subnet_bits,
        .worker = worker, .traffic = traffic_of(v),
    };
    talk.hello.has_door = open_door(v, &talk.hello.door, &label);
    dpn_verbs_describe_ports(v, talk.hello.ports);
    dpn_verbs_say(v, DPN_HELLO, &talk);
}

static uint8_t lanes_per_rail(const struct dpn_hello *hello, int rails)
{
    const int ours = dpn_verbs_state.options.qps;
    const int wanted = hello->qps > ours ? hello->qps : ours;

    return (uint8_t)(wanted * rails > DPN_MAX_LANES ? DPN_MAX_LANES / rails : wanted);
}

static void set_rail(struct dpn_verbs *v, int r, struct dpn_port *port,
                     const struct dpn_talk_port *peer)
{
    if (dpn_verbs_state.options.warns_of_rails && strcmp(port->name, peer->name))
        dp_log(DP_LOG_WARN, "%s talks to the peer's %s, which may be of another rail "
               "(NCCL_IB_WARN_RAIL_LOCAL)", port->name, peer->name);
    v->rails[r].port = port;
    snprintf(v->rails[r].peer, sizeof(v->rails[r].peer), "%s", peer->name);
    v->rails[r].speed_mbps = (int)peer->speed_mbps < port->speed_mbps ? (int)peer->speed_mbps
                                                                      : port->speed_mbps;
}

static uint32_t choose_eager(const struct dpn_verbs *v, const struct dpn_hello *hello)
{
    const uint32_t ours = (uint32_t)dpn_options.eager_bytes;

    if (!dpn_port_takes_eager(v->rails[0].port))
        return 0;
    return hello->eager_bytes < ours ? hello->eager_bytes : ours;
}

static int answer_hello(struct dpn_verbs *v, const struct dpn_hello *hello, struct dpn_plan *plan)
{
    struct dpn_talk_port ports[DPN_MAX_RAILS];

    dpn_verbs_place(v, hello->worker, dpn_placement_worker(), (enum dpn_traffic)hello->traffic);
    memset(ports, 0, sizeof(ports));
    dpn_verbs_describe_ports(v, ports);
    dpn_verbs_pair_ports(v, hello, ports, plan);
    if (!plan->rails)
        return dp_fail_quietly(DP_EUNSUPPORTED, "%s is of InfiniBand and %s of Ethernet, or the "
                               "other way round", v->device->rails[0]->name, hello->ports[0].name);
    plan->lanes_per_rail = lanes_per_rail(hello, plan->rails);
    plan->max_message = dpn_verbs_max_message(v);
    if (hello->max_message < plan->max_message)
        plan->max_message = hello->max_message;
    v->rail_count = plan->rails;
    v->lanes_per_rail = plan->lanes_per_rail;
    v->any_order = plan->max_message >= DPN_MAX_BYTES;
    v->traffic_class = hello->traffic_class;
    v->service_level = hello->service_level;
    for (int r = 0; r < plan->rails; r++) {
        const int own = plan->rail[r].receiver, s = plan->rail[r].sender;
        plan->ports[r] = ports[own];
        v->any_order &= ports[own].any_order && hello->ports[s].any_order;
        set_rail(v, r, v->ports[own], &hello->ports[s]);
    }
    plan->any_order = v->any_order;
    v->eager_bytes = plan->eager_bytes = choose_eager(v, hello);
    return dpn_verbs_open_rails(v);
}

/* The receiver's last word; after it there is none of ours on the wire. */
static void part(struct dpn_verbs *v, const char *reason)
{
    union dpn_talk talk;

    memset(&talk, 0, sizeof(talk));
    snprintf(v->reason, sizeof(v->reason), "%s", reason);
    snprintf(talk.plan.reason, sizeof(talk.plan.reason), "%.127s", reason);
    dpn_verbs_say(v, DPN_PLAN, &talk);
    v->step = DPN_STEP_PART;
}

static int take_hello(struct dpn_verbs *v)
{
    union dpn_talk talk;
    enum dpn_talk_kind kind;

    if (!dpn_verbs_hear(v, &kind))
        return DP_EAGAIN;
    if (kind != DPN_HELLO)
        return dp_fail(DP_EMISMATCH, "the peer does not begin with hello");
    memset(&talk, 0, sizeof(talk));
    if (answer_hello(v, &v->heard.hello, &talk.plan)) {
        part(v, dp_last_error());
        return DP_EAGAIN;
    }
    talk.plan.agreed = 1;
    v->words.door = v->heard.hello.door;
    v->words.peer_has_door = v->heard.hello.has_door;
    if (open_door(v, &talk.plan.door, &talk.plan.label)) /* else a wire that is lost is the end */
        v->words.label = talk.plan.label;
    dpn_verbs_say(v, DPN_PLAN, &talk);
    v->step = DPN_STEP_LANES;
    return DP_EAGAIN;
}

static int take_plan(struct dpn_verbs *v)
{
    const struct dpn_plan *plan = &v->heard.plan;
    enum dpn_talk_kind kind;

    if (!dpn_verbs_hear(v, &kind))
        return DP_EAGAIN;
    if (kind != DPN_PLAN)
        return dp_fail(DP_EMISMATCH, "the peer does not answer with a plan");
    if (!plan->agreed) {
        snprintf(v->reason, sizeof(v->reason), "%s", plan->reason);
        v->step = DPN_STEP_PART;
        return DP_EAGAIN;
    }
    v->rail_count = plan->rails;
    v->lanes_per_rail = plan->lanes_per_rail;
    v->max_message = plan->max_message;
    v->any_order = plan->any_order;
    v->eager_bytes = plan->eager_bytes;
    v->words.door = plan->door;
    v->words.label = plan->label;
    v->words.peer_has_door = plan->label;
    for (int r = 0; r < plan->rails; r++) {
        if (plan->rail[r].sender >= v->port_count)
            return dp_fail(DP_EMISMATCH, "the peer's plan names port %u of %d",
                           plan->rail[r].sender, v->port_count);
        set_rail(v, r, v->ports[plan->rail[r].sender], &plan->ports[r]);
    }
    int err = dpn_verbs_open_rails(v);
    dpn_verbs_prefer_placed(v, plan);
    for (int i = 0; i < v->lane_count && !err; i++)
        dpn_lane_open(v, &v->lanes[i]);
    v->step = DPN_STEP_LANES;
    return err ? err : DP_EAGAIN;
}

/* ---- lanes, and the end of it ---------------------------------------------------------------- */

enum { ATTEMPTS = 5 }; /* to bring up a first lane, in some 2 s */

/* With one lane there is no hurry for the others; without any each is tried again. */
static bool are_all_tried(const struct dpn_verbs *v)
{
    const int enough = v->up ? 1 : ATTEMPTS;

    for (int i = 0; i < v->lane_count; i++)
        if (v->lanes[i].state != DPN_LANE_UP && v->lanes[i].failures < enough)
            return false;
    return true;
}

static int wait_for_lanes(struct dpn_verbs *v)
{
    union dpn_talk talk = {.ready = {.lanes = 0}};

    if (!v->is_sender || !are_all_tried(v))
        return DP_EAGAIN;
    talk.ready.lanes = (uint32_t)__builtin_popcount(v->up);
    dpn_verbs_say(v, DPN_READY, &talk);
    v->step = talk.ready.lanes ? DPN_STEP_READY : DPN_STEP_AGREE;
    return DP_EAGAIN;
}

/* The receiver says once more that there is nothing. */
static int agree_to_part(struct dpn_verbs *v)
{
    enum dpn_talk_kind kind;

    if (!v->is_sender) {
        part(v, v->reason[0] ? v->reason : "no lane came up; see the sender's log");
        return DP_EAGAIN;
    }
    while (v->step == DPN_STEP_AGREE && dpn_verbs_hear(v, &kind))
        if (kind == DPN_PLAN)
            v->step = DPN_STEP_PART;
    return DP_EAGAIN;
}

int dpn_verbs_agree(struct dpn_verbs *v)
{
    switch (v->step) {
    case DPN_STEP_BEGIN:
        if (v->is_sender)
            say_hello(v);
        v->step = DPN_STEP_PLAN;
        return DP_EAGAIN;
    case DPN_STEP_PLAN:
        return v->is_sender ? take_plan(v) : take_hello(v);
    case DPN_STEP_LANES:
        return wait_for_lanes(v);
    case DPN_STEP_AGREE:
        return agree_to_part(v);
    case DPN_STEP_PART:
        return dpn_verbs_is_talking(v)
                   ? DP_EAGAIN
                   : dp_fail_quietly(DP_EUNSUPPORTED, "no RDMA to the peer: %s", v->reason);
    case DPN_STEP_READY:
        dpn_verbs_keep(v);
        return 0;
    }
    return DP_EAGAIN;
}
