/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.c - the transport: how two sides agree on rails and lanes, when a request is done, and the end.
 */
#include "nccl-plugin/verbs/verbs.h"

#include "base/fail.h"
#include "nccl-plugin/net_placement.h"
#include "nccl-plugin/verbs/verbs_comm.h"
#include "nccl-plugin/verbs/verbs_door.h"
#include "nccl-plugin/verbs/verbs_load.h"
#include "nccl-plugin/verbs/verbs_qp.h"
#include "nccl-plugin/verbs/verbs_state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- failure --------------------------------------------------------------------------------- */

static void free_qps(struct dpn_verbs *v)
{
    for (int i = 0; i < DPN_MAX_LANES; i++) {
        dpn_qp_free(v->lanes[i].qp);
        v->lanes[i].qp = NULL;
        v->lanes[i].state = DPN_LANE_DOWN;
    }
    for (int r = 0; r < v->rail_count; r++)
        dpn_loop_close(&v->rails[r]);
    v->up = 0;
}

void dpn_verbs_fail(struct dpn_verbs *v, int error, const char *fmt, ...)
{
    va_list args;

    if (v->error)
        return;
    v->error = error;
    va_start(args, fmt);
    vsnprintf(v->why, sizeof(v->why), fmt, args);
    va_end(args);
    free_qps(v);
}

/* ---- rails ----------------------------------------------------------------------------------- */

static size_t block_bytes(const struct dpn_verbs *v)
{
    return sizeof(*v->block) + (v->is_sender ? 0 : dpn_eager_ring_bytes(v->eager_bytes));
}

static int open_rail(struct dpn_verbs *v, struct dpn_rail *rail)
{
    const struct dpn_region block = {v->block, block_bytes(v), NCCL_PTR_HOST, -1, 0};
    const int room = v->lanes_per_rail * (2 * DPN_SEND_QUEUE + 2 * DPN_RECV_QUEUE) +
                     2 * DPN_LOOP_QUEUE;
    int err = dpn_mr_get(rail->port->hca, &block, &rail->block_mr);

    if (err)
        return err;
    rail->cq = dpn_ibv.create_cq(rail->port->hca->context, room, NULL, NULL, 0);
    if (!rail->cq)
        return dp_fail(DP_EIO, "%s gives no completion queue of %d entries: %s (max_cq, max_cqe of "
                       "'ibv_devinfo -v', 'ulimit -l')", rail->port->name, room, strerror(errno));
    return v->is_sender ? 0 : dpn_loop_open(rail);
}

static bool is_adaptive(const struct dpn_port *port)
{
    const int wanted = dpn_verbs_state.options.adaptive_routing;

    return wanted == DPN_AUTO ? !port->is_ethernet : wanted;
}

static int open_rails(struct dpn_verbs *v)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int err = 0;

    v->block = aligned_alloc(page, (block_bytes(v) + page - 1) / page * page);
    if (!v->block)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    memset(v->block, 0, block_bytes(v));
    for (int r = 0; r < v->rail_count && !err; r++) {
        v->rails[r].adaptive = is_adaptive(v->rails[r].port);
        err = open_rail(v, &v->rails[r]);
    }
    v->lane_count = v->rail_count * v->lanes_per_rail;
    for (int i = 0; i < v->lane_count; i++)
        v->lanes[i].rail = (uint8_t)(i % v->rail_count);
    v->is_troubled = true;
    return err;
}

/* ---- agreement ------------------------------------------------------------------------------- */

static enum dpn_traffic traffic_of(const struct dpn_verbs *v)
{
    return dpn_traffic_of(v->comm->open.net->ops);
}

/* The placement's class stands between the option for this kind and what holds for all. */
static void choose_class(struct dpn_verbs *v)
{
    static const struct dpn_class none = {-1, -1};
    const struct dpn_verbs_options *o = &dpn_verbs_state.options;
    const struct dpn_net *net = v->comm->open.net;
    const enum dpn_traffic traffic = traffic_of(v);
    const struct dpn_class *kind = traffic == DPN_TRAFFIC_PIPELINE   ? &dpn_options.pipeline
                                   : traffic == DPN_TRAFFIC_GRADIENT ? &dpn_options.gradient
                                                                     : &none;

    const int64_t wanted = kind->traffic_class < 0 && v->placed_class ? v->placed_class
                                                                       : kind->traffic_class;
    v->traffic_class = (uint8_t)dpn_traffic_choose(wanted, o->traffic_class, net->traffic_class,
                                                   255);
    v->service_level = (uint8_t)dpn_traffic_choose(kind->service_level, o->service_level,
                                                   net->traffic_class, 15);
}

static int wanted_qps(const struct dpn_verbs *v)
{
    const int ours = dpn_verbs_state.options.qps, wanted = v->placed_qps > ours ? v->placed_qps : ours;

    return wanted < DPN_MAX_LANES ? wanted : DPN_MAX_LANES;
}

/* Where the peer calls that has lost the wire of this connection, or asks whether we are there. */
static bool open_door(struct dpn_verbs *v, struct dp_wire_address *door, uint64_t *label)
{
    const struct dpn_device *device;

    if (dpn_net_device(v->comm->dev, &device))
        return false;
    v->words.has_door = !dpn_door_use(device->interface.address, door, label);
    if (!v->words.has_door)
        dp_log(DP_LOG_INFO, "%s: %s",
               v->is_sender ? "the peer cannot ask whether this process is there"
                            : "a control connection that is lost cannot be made again",
               dp_last_error());
    return v->words.has_door;
}

static void leave_door(const struct dpn_verbs *v)
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
    return open_rails(v);
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
    int err = open_rails(v);
    dpn_verbs_prefer_placed(v, plan);
    for (int i = 0; i < v->lane_count && !err; i++)
        dpn_lane_open(v, &v->lanes[i]);
    v->step = DPN_STEP_LANES;
    return err ? err : DP_EAGAIN;
}

/* ---- open ------------------------------------------------------------------------------------ */

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

static int step(struct dpn_verbs *v)
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

static struct dpn_verbs_request new_request(struct dpn_verbs *v, enum dpn_request_kind kind,
                                            unsigned index)
{
    return (struct dpn_verbs_request){.base = {.comm = v->comm}, .verbs = v, .kind = kind,
                                      .index = index};
}

/* Both sides begin alike. */
static void begin_to_count(struct dpn_verbs *v)
{
    const uint32_t n = dpn_verbs_state.count_from;

    v->words.said = v->words.confirmed = v->words.heard = n;
    v->lines_read = v->lines_made = v->lines_new = v->lines_sent = n;
    v->eager_sent = v->eager_seen = v->eager_taken = v->credited = n;
    v->rooms_made = v->rooms_closed = n;
    v->credit_every = DPN_EAGER_SLOTS / 2;
    for (int i = 0; i < DPN_MAX_LANES; i++)
        v->lanes[i].epoch = (uint16_t)n;
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
        v->recvs[i].generation = n % DPN_GENERATIONS;
    for (int r = 0; r < DPN_MAX_RAILS; r++) {
        v->rails[r].loop.epoch = (uint16_t)n;
        v->rails[r].loop.written = v->rails[r].loop.flushed = n;
    }
}

static int new_state(struct dpn_comm *comm)
{
    struct dpn_verbs *v = calloc(1, sizeof(*v));

    if (!v)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    v->comm = comm;
    v->is_sender = comm->is_sender;
    v->free = v->flushes_free = UINT32_MAX;
    v->words.is_greeted = true;
    begin_to_count(v);
    for (unsigned i = 0; i < NCCL_NET_MAX_REQUESTS; i++) {
        v->sends[i].base = new_request(v, DPN_SEND, i);
        v->recvs[i].base = new_request(v, DPN_RECV, i);
        v->flushes[i].base = new_request(v, DPN_FLUSH, i);
    }
    comm->state = v;
    int err = dpn_net_device(comm->dev, &v->device);
    if (!err)
        dpn_verbs_gather_ports(v);
    return err;
}

/* Words while there are no lanes; then they are heard among the rest. */
static int open_verbs(struct dpn_comm *comm)
{
    int err = comm->state ? 0 : new_state(comm);
    struct dpn_verbs *v = comm->state;

    if (err)
        return err;
    if (v->step == DPN_STEP_LANES)
        dpn_verbs_progress(v);
    else
        comm->wire->ops->progress(comm->wire);
    if (v->error)
        return dp_fail(v->error, "connecting over RDMA: %s", v->why);
    err = step(v);
    if (err == DP_EAGAIN && comm->wire->error)
        return dp_fail(comm->wire->error, "connecting over RDMA: the peer is gone: %s",
                       comm->wire->why);
    return err;
}

static void close_verbs(struct dpn_comm *comm)
{
    struct dpn_verbs *v = comm->state;

    if (!v)
        return;
    dpn_verbs_unkeep(v);
    leave_door(v);
    dpn_words_end(v);
    free_qps(v);
    for (int r = 0; r < v->rail_count; r++) {
        if (v->rails[r].cq)
            dpn_ibv.destroy_cq(v->rails[r].cq);
        dpn_mr_put(v->rails[r].port->hca, v->rails[r].block_mr);
    }
    /* Words on their way, and the room for the next one, are the wire's until it is closed; if both
     * sides have parted there are none. */
    if (v->step != DPN_STEP_PART || dpn_verbs_is_talking(v)) {
        dpn_verbs_hear_out(v);
        dp_wire_close(comm->wire);
        comm->wire = NULL;
    }
    dpn_verbs_forget_letters(v);
    free(v->block);
    free(v);
    comm->state = NULL;
}

/* ---- test ------------------------------------------------------------------------------------ */

static bool is_free(const struct dpn_verbs_request *req)
{
    const struct dpn_verbs *v = req->verbs;

    return (req->kind == DPN_FLUSH ? v->flushes_free : v->free) >> req->index & 1;
}

static void finish(struct dpn_verbs_request *req, int *sizes)
{
    struct dpn_verbs *v = req->verbs;
    const uint32_t bit = 1u << req->index;

    if (req->kind == DPN_FLUSH) {
        v->flushes_free |= bit;
        return;
    }
    v->free |= bit;
    if (sizes && req->kind == DPN_SEND)
        sizes[0] = (int)v->sends[req->index].size;
    for (unsigned i = 0; sizes && req->kind == DPN_RECV && i < v->recvs[req->index].count; i++)
        sizes[i] = (int)v->recvs[req->index].rooms[i].size;
}

static int test(struct dpn_request *request, bool *done, int *sizes)
{
    static const char *const names[] = {"send", "receive", "flush"};
    struct dpn_verbs_request *req = (struct dpn_verbs_request *)request;
    struct dpn_verbs *v = req->verbs;

    if (is_free(req))
        return dp_fail(DP_EINVAL, "test of a request that is done already");
    if (req->left && !v->error)
        dpn_verbs_progress(v);
    *done = !req->left;
    if (*done)
        finish(req, sizes);
    else if (v->error)
        return dp_fail(v->error, "%s: %s", names[req->kind], v->why);
    return 0;
}

const struct dpn_transport dpn_verbs = {
    .name = "verbs",
    .open = open_verbs,
    .reg = dpn_verbs_reg,
    .dereg = dpn_verbs_dereg,
    .isend = dpn_verbs_isend,
    .irecv = dpn_verbs_irecv,
    .iflush = dpn_verbs_iflush,
    .test = test,
    .close = close_verbs,
};
