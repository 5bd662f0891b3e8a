/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_lane.c - the lives of a lane.
 *
 *      sender                                     receiver
 *      DOWN                                       DOWN
 *      OPENING    -- OPEN -->                     OPENING   receives are posted
 *                 <-- OPENED --
 *      PROBING    -- an immediate over the lane ->  UP
 *      UP         <-- acknowledged
 *
 *      whoever sees an error                      the other
 *      FENCING    queue pair in error, drained
 *      DOWN       destroyed -- FENCED -->         FENCING
 *                 <-- FENCED --                   DOWN
 *
 * The first connection, and every attempt to take a lane back, is the same.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"
#include "nccl-plugin/verbs/verbs_load.h"
#include "nccl-plugin/verbs/verbs_qp.h"
#include "nccl-plugin/verbs/verbs_state.h"
#include "wire/net.h"

#include <stdio.h>
#include <string.h>

static const int64_t DRAIN_NS = 5 * DP_NS_PER_S;
enum { DRAIN_LOOKS = 1000 }; /* a process may have been stopped for all that time */
static const int64_t FIRST_RETRY_NS = 100 * DP_NS_PER_MS, LAST_RETRY_NS = 5 * DP_NS_PER_S;
enum { FAILURES_PER_LANE = 20 }; /* in a row, without one message done */

static const struct dpn_port *port_of(const struct dpn_verbs *v, const struct dpn_lane *lane)
{
    return v->rails[lane->rail].port;
}

static void set_state(struct dpn_verbs *v, struct dpn_lane *lane, enum dpn_lane_state state)
{
    const uint16_t bit = (uint16_t)(1u << dpn_lane_index(v, lane));

    lane->state = state;
    lane->since_ns = dp_now_ns();
    v->up = state == DPN_LANE_UP ? v->up | bit : v->up & (uint16_t)~bit;
    v->is_troubled = __builtin_popcount(v->up) < v->lane_count;
}

void dpn_lane_is_up(struct dpn_verbs *v, struct dpn_lane *lane)
{
    char ours[DPN_GID_TEXT], theirs[DPN_GID_TEXT];

    if (lane->state == DPN_LANE_UP)
        return;
    set_state(v, lane, DPN_LANE_UP);
    if (lane->has_been_up)
        dp_log(DP_LOG_INFO, "%s -> %s is in use again: %s -> %s", port_of(v, lane)->name,
               v->rails[lane->rail].peer, dpn_gid_text(&lane->gid, ours),
               dpn_gid_text(&lane->peer_gid, theirs));
    lane->has_been_up = true;
}

/* Try again later, and later each time. */
static void plan_retry(struct dpn_lane *lane)
{
    const int shift = lane->failures > 6 ? 6 : lane->failures > 0 ? lane->failures - 1 : 0;
    const int64_t wait_ns = FIRST_RETRY_NS << shift;

    lane->retry_ns = dp_now_ns() + (wait_ns < LAST_RETRY_NS ? wait_ns : LAST_RETRY_NS);
}

/* ---- a new life ------------------------------------------------------------------------------ */

static bool is_inline(const struct dpn_verbs *v)
{
    return v->is_sender || dpn_verbs_state.options.inlines_lines;
}

static int make_qp(struct dpn_verbs *v, struct dpn_lane *lane, struct dpn_talk_qp *ours)
{
    const struct dpn_rail *rail = &v->rails[lane->rail];
    const unsigned recvs = v->is_sender ? 1 : DPN_RECV_QUEUE;

    lane->inline_bytes = is_inline(v) ? DPN_INLINE_BYTES : 0;
    int err = dpn_qp_new(rail->port, &dpn_verbs_state.options, rail->cq, DPN_SEND_QUEUE, recvs,
                         v->any_order, &lane->inline_bytes, &lane->qp);
    if (!err)
        err = dp_random_bytes(&lane->psn, sizeof(lane->psn));
    if (err)
        return err;
    lane->psn &= 0xffffff;
    lane->sends_out = lane->requests_out = lane->recvs_out = lane->recvs_owed = 0;
    lane->unsignaled = lane->completed = lane->seen = lane->drain_looks = 0;
    lane->is_fenced_here = lane->is_fenced_there = lane->uses_ece = false;
    lane->retry_ns = 0;
    *ours = (struct dpn_talk_qp){
        .number = lane->qp->qp_num, .psn = lane->psn, .key = rail->block_mr->rkey,
        .address = (uintptr_t)v->block,
    };
    dpn_port_look(rail->port, &ours->lid, &ours->mtu);
    lane->mtu = ours->mtu;
    return 0;
}

static bool knows_ece(const struct dpn_lane *lane)
{
    return dpn_verbs_state.options.ece && dpn_ibv.query_ece && dpn_ibv.set_ece &&
           !lane->is_without_ece;
}

static void tell_ece(struct dpn_lane *lane, struct dpn_talk_qp *ours)
{
    struct ibv_ece ece;

    if (!knows_ece(lane) || dpn_ibv.query_ece(lane->qp, &ece))
        return;
    ours->has_ece = 1;
    ours->ece_vendor = ece.vendor_id;
    ours->ece_options = ece.options;
    ours->ece_mask = ece.comp_mask;
}

/* A receiver sends nothing but lines, and acknowledgements. */
static uint8_t class_of(const struct dpn_verbs *v)
{
    const int wanted = dpn_verbs_state.options.line_class;

    return v->is_sender || wanted == DPN_AUTO ? v->traffic_class : (uint8_t)wanted;
}

static int join(struct dpn_verbs *v, struct dpn_lane *lane, const struct dpn_talk_qp *peer)
{
    const struct dpn_port *port = port_of(v, lane);
    const struct ibv_ece ece = {peer->ece_vendor, peer->ece_options, peer->ece_mask};

    lane->uses_ece = peer->has_ece && knows_ece(lane);
    lane->peer_block = peer->address;
    lane->peer_key = peer->key;
    lane->peer_number = peer->number;
    dpn_quick_prepare(v, lane);
    return dpn_qp_join(lane->qp, &(struct dpn_path){
        .port = port, .options = &dpn_verbs_state.options, .peer_number = peer->number,
        .psn = lane->psn, .peer_psn = peer->psn, .peer_lid = peer->lid,
        .mtu = peer->mtu < lane->mtu ? peer->mtu : lane->mtu,
        .gid = lane->gid, .peer_gid = lane->peer_gid,
        .traffic_class = class_of(v), .service_level = v->service_level,
        .ece = lane->uses_ece ? &ece : NULL,
    });
}

static void give_up_opening(struct dpn_verbs *v, struct dpn_lane *lane, const char *reason)
{
    dpn_qp_free(lane->qp);
    lane->qp = NULL;
    set_state(v, lane, DPN_LANE_DOWN);
    lane->is_fenced_here = false;
    if (!lane->failures++)
        dp_log(DP_LOG_WARN, "%s -> %s: cannot connect: %s", port_of(v, lane)->name,
               v->rails[lane->rail].peer, reason);
    if (!v->is_sender)
        return;
    snprintf(v->reason, sizeof(v->reason), "%s", reason);
    plan_retry(lane);
}

void dpn_lane_open(struct dpn_verbs *v, struct dpn_lane *lane)
{
    union dpn_talk talk = {.open = {.lane = (uint8_t)dpn_lane_index(v, lane)}};

    lane->epoch++;
    talk.open.epoch = lane->epoch;
    if (make_qp(v, lane, &talk.open.qp)) {
        give_up_opening(v, lane, dp_last_error());
        return;
    }
    tell_ece(lane, &talk.open.qp);
    dpn_port_gids(port_of(v, lane), &dpn_verbs_state.options, &talk.open.gids);
    set_state(v, lane, DPN_LANE_OPENING);
    dpn_verbs_say(v, DPN_OPEN, &talk);
}

/* Over InfiniBand the LID will do. */
static int choose_gids(const struct dpn_verbs *v, struct dpn_lane *lane,
                       const struct dpn_gids *theirs)
{
    const struct dpn_port *port = port_of(v, lane);
    struct dpn_gids ours;

    lane->gid = lane->peer_gid = (struct dpn_gid){.index = 0};
    dpn_port_gids(port, &dpn_verbs_state.options, &ours);
    if (dpn_gids_match(&ours, theirs, &dpn_verbs_state.options, &lane->gid, &lane->peer_gid) ||
        !port->is_ethernet)
        return 0;
    return dp_fail_quietly(DP_EUNSUPPORTED,
                           "none of the %d GIDs of %s and the %d of the peer are of the same kind "
                           "and address family (show_gids; NCCL_IB_GID_INDEX, "
                           "NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE)",
                           ours.count, port->name, theirs->count);
}

static int answer_open(struct dpn_verbs *v, struct dpn_lane *lane, const struct dpn_open_lane *open,
                       struct dpn_talk_qp *ours)
{
    if (dpn_port_is_down(port_of(v, lane)))
        return dp_fail_quietly(DP_EIO, "%s is down", port_of(v, lane)->name);
    int err = make_qp(v, lane, ours);
    if (!err)
        err = choose_gids(v, lane, &open->gids);
    if (!err)
        err = join(v, lane, &open->qp);
    if (!err && lane->uses_ece)
        tell_ece(lane, ours);
    if (!err)
        err = dpn_lane_post_recvs(v, lane, DPN_RECV_QUEUE);
    return err;
}

void dpn_lane_take_open(struct dpn_verbs *v, const struct dpn_open_lane *open)
{
    struct dpn_lane *lane = &v->lanes[open->lane];
    union dpn_talk talk = {.opened = {.lane = open->lane, .epoch = open->epoch}};

    if (lane->state != DPN_LANE_DOWN) {
        dpn_verbs_fail(v, DP_EMISMATCH, "the peer opens lane %u, which is in use", open->lane);
        return;
    }
    lane->epoch = open->epoch;
    lane->is_fenced_here = false;
    talk.opened.is_open = !answer_open(v, lane, open, &talk.opened.qp);
    if (talk.opened.is_open) {
        talk.opened.sender = lane->peer_gid;
        talk.opened.receiver = lane->gid;
        set_state(v, lane, DPN_LANE_OPENING);
    } else {
        snprintf(talk.opened.reason, sizeof(talk.opened.reason), "%s", dp_last_error());
        give_up_opening(v, lane, dp_last_error());
    }
    dpn_verbs_say(v, DPN_OPENED, &talk);
}

/* An errno. */
static int write_nothing(struct dpn_verbs *v, struct dpn_lane *lane, enum dpn_work_kind kind,
                         enum ibv_wr_opcode opcode)
{
    struct ibv_send_wr *bad, wr = {
        .wr_id = dpn_work_pack((struct dpn_work){kind, dpn_lane_index(v, lane), lane->epoch, 0, 0, 1}),
        .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(DPN_GENERATIONS),
        .wr.rdma = {lane->peer_block, lane->peer_key},
    };

    lane->sends_out++;
    lane->requests_out++;
    int error = ibv_post_send(lane->qp, &wr, &bad);
    lane->sends_out -= error != 0; /* it will not complete */
    return error;
}

/* Bytes that have made the way are worth more than two queue pairs that believe in each other. */
static int probe(struct dpn_verbs *v, struct dpn_lane *lane)
{
    int error = write_nothing(v, lane, DPN_WORK_PROBE, IBV_WR_RDMA_WRITE_WITH_IMM);

    return error ? dp_fail_quietly(DP_EIO, "%s: cannot probe: %s", port_of(v, lane)->name,
                                   strerror(error)) : 0;
}

void dpn_lane_take_opened(struct dpn_verbs *v, const struct dpn_opened_lane *opened)
{
    struct dpn_lane *lane = &v->lanes[opened->lane];

    if (lane->state != DPN_LANE_OPENING || lane->epoch != opened->epoch)
        return;
    if (!opened->is_open) {
        give_up_opening(v, lane, opened->reason);
        return;
    }
    lane->gid = opened->sender;
    lane->peer_gid = opened->receiver;
    int err = join(v, lane, &opened->qp);
    if (!err)
        err = probe(v, lane);
    if (err)
        dpn_lane_fence(v, lane, "connecting", dp_last_error(), "");
    else
        set_state(v, lane, DPN_LANE_PROBING);
}

/* ---- the end of a life ----------------------------------------------------------------------- */

/* One line with all that somebody needs who is to look for the reason. */
static void tell_end(struct dpn_verbs *v, const struct dpn_lane *lane, const char *what,
                     const char *status, const char *hint)
{
    const struct dpn_port *port = port_of(v, lane);
    char ours[DPN_GID_TEXT], theirs[DPN_GID_TEXT];
    const int left = __builtin_popcount(v->up);

    snprintf(v->reason, sizeof(v->reason), "%s port %d -> %s, GID %s -> %s: %s: %s%s",
             port->hca->name, port->number, v->rails[lane->rail].peer,
             dpn_gid_text(&lane->gid, ours), dpn_gid_text(&lane->peer_gid, theirs), what, status,
             hint);
    dp_log(lane->failures > 1 ? DP_LOG_INFO : DP_LOG_WARN, "%s; queue pair 0x%x -> 0x%x, "
           "%d of %d lanes are left", v->reason, lane->qp->qp_num, lane->peer_number, left,
           v->lane_count);
}

void dpn_lane_fence(struct dpn_verbs *v, struct dpn_lane *lane, const char *what, const char *status,
                    const char *hint)
{
    if (lane->state == DPN_LANE_DOWN || lane->state == DPN_LANE_FENCING)
        return;
    if (lane->uses_ece && lane->state != DPN_LANE_UP)
        lane->is_without_ece = true;
    lane->failures++;
    if (lane->state == DPN_LANE_UP) { /* an attempt may fail as often as it likes */
        v->failures += v->free != UINT32_MAX; /* while nothing is to be done a link may flap */
        dpn_stat_count(&v->comm->stat, DPN_STAT_FAILOVERS, 1);
    }
    set_state(v, lane, DPN_LANE_FENCING);
    tell_end(v, lane, what, status, hint);
    dpn_qp_stop(lane->qp);
    if (v->failures > FAILURES_PER_LANE * v->lane_count)
        dpn_verbs_fail(v, DP_ECOMM, "%d failures in a row, the last one: %s", v->failures,
                       v->reason);
}

void dpn_lane_beat(struct dpn_verbs *v, struct dpn_lane *lane)
{
    int error = lane->requests_out < DPN_SEND_QUEUE
                    ? write_nothing(v, lane, DPN_WORK_BEAT, IBV_WR_RDMA_WRITE) : 0;

    if (error)
        dpn_lane_fence(v, lane, "sign of life", strerror(error), ": the send queue takes no more");
}

static void say_fenced(struct dpn_verbs *v, struct dpn_lane *lane)
{
    const uint8_t index = (uint8_t)dpn_lane_index(v, lane);
    union dpn_talk talk;

    lane->is_fenced_here = true;
    memset(&talk, 0, sizeof(talk));
    if (v->is_sender) {
        talk.fenced_sender = (struct dpn_fenced_sender){index, 0, lane->epoch, v->lines_read};
        dpn_verbs_say(v, DPN_FENCED_SENDER, &talk);
    } else {
        talk.fenced_receiver.lane = index;
        talk.fenced_receiver.epoch = lane->epoch;
        dpn_verbs_report(v, &talk.fenced_receiver);
        dpn_verbs_say(v, DPN_FENCED_RECEIVER, &talk);
    }
}

/* Both queue pairs are gone: nothing of this life can happen any more. */
static void settle(struct dpn_verbs *v, struct dpn_lane *lane)
{
    if (!lane->is_fenced_here || !lane->is_fenced_there || !v->is_sender)
        return;
    lane->is_fenced_there = false;
    dpn_verbs_resend(v, dpn_lane_index(v, lane), &v->reports[dpn_lane_index(v, lane)]);
    plan_retry(lane);
}

void dpn_lane_take_fenced(struct dpn_verbs *v, unsigned index, unsigned epoch)
{
    struct dpn_lane *lane = &v->lanes[index];

    if (lane->epoch != epoch)
        return;
    lane->is_fenced_there = true;
    dpn_lane_fence(v, lane, "the peer gave the lane up", "see its log", "");
    if (lane->state == DPN_LANE_DOWN && !lane->is_fenced_here && !v->error)
        say_fenced(v, lane);
    settle(v, lane);
}

static bool is_drained(const struct dpn_verbs *v, const struct dpn_lane *lane)
{
    return v->is_sender ? !lane->sends_out : !lane->recvs_out;
}

/* What a device in trouble does not give back in time is taken for not done; then it will be done
 * twice, with the same bytes. */
static void go_on_fencing(struct dpn_verbs *v, struct dpn_lane *lane, int64_t now_ns)
{
    const bool is_patient = now_ns - lane->since_ns < DRAIN_NS &&
                            !atomic_load(&port_of(v, lane)->hca->is_dead);

    if (!is_drained(v, lane) && (is_patient || lane->drain_looks++ < DRAIN_LOOKS))
        return;
    dpn_verbs_poll(v);
    if (v->error)
        return;
    dpn_qp_free(lane->qp);
    lane->qp = NULL;
    set_state(v, lane, DPN_LANE_DOWN);
    say_fenced(v, lane);
    settle(v, lane);
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool has_other_rail(const struct dpn_verbs *v, const struct dpn_lane *lane)
{
    for (int i = 0; i < v->lane_count; i++)
        if (v->up >> i & 1 && v->lanes[i].rail != lane->rail &&
            !dpn_port_is_down(port_of(v, &v->lanes[i])))
            return true;
    return false;
}

/* Without another rail it is better to wait: a link that is down for a moment costs some repeated
 * packets only. */
static void look_at_port(struct dpn_verbs *v, struct dpn_lane *lane)
{
    const struct dpn_port *port = port_of(v, lane);

    if (!dpn_port_is_down(port) || !dpn_verbs_state.options.heeds_events)
        return;
    if (atomic_load(&port->hca->is_dead))
        dpn_lane_fence(v, lane, "device", "it has failed", ": look at the kernel's log");
    else if (has_other_rail(v, lane))
        dpn_lane_fence(v, lane, "port", "it is down", ": look at the cable and the switch");
}

static void look_at_work(struct dpn_verbs *v, struct dpn_lane *lane, int64_t now_ns)
{
    if (lane->completed != lane->seen || !lane->sends_out) {
        lane->seen = lane->completed;
        lane->since_ns = now_ns;
    } else if (now_ns - lane->since_ns > dpn_options.timeout_s * DP_NS_PER_S / 2) {
        dpn_lane_fence(v, lane, "send", "no completion in half of DUALPIPE_NET_TIMEOUT",
                       ": is the way there, and the same MTU on all of it?");
    }
}

static void tend(struct dpn_verbs *v, struct dpn_lane *lane, int64_t now_ns)
{
    switch (lane->state) {
    case DPN_LANE_FENCING:
        go_on_fencing(v, lane, now_ns);
        break;
    case DPN_LANE_DOWN:
        if (v->is_sender && lane->retry_ns && now_ns >= lane->retry_ns && !v->words.is_lost &&
            !dpn_port_is_down(port_of(v, lane)))
            dpn_lane_open(v, lane);
        break;
    case DPN_LANE_UP:
    case DPN_LANE_PROBING:
        look_at_work(v, lane, now_ns);
        look_at_port(v, lane);
        break;
    case DPN_LANE_OPENING:
        break;
    }
}

/* A device that has failed does not come back in this process. */
static bool are_devices_dead(const struct dpn_verbs *v)
{
    for (int r = 0; r < v->rail_count; r++)
        if (!atomic_load(&v->rails[r].port->hca->is_dead))
            return false;
    return true;
}

/* Only time counts in which somebody looked: NCCL may have had nothing to do for an hour. */
static void look_at_clock(struct dpn_verbs *v, int64_t now_ns)
{
    const int64_t step_ns = now_ns - v->looked_ns;

    if (v->up)
        v->down_ns = 0;
    else
        v->down_ns += step_ns < DP_NS_PER_S ? step_ns : 0;
    if (are_devices_dead(v))
        dpn_verbs_fail(v, DP_EIO, "all its devices have failed: %s", v->reason);
    else if (v->down_ns > dpn_options.timeout_s * DP_NS_PER_S)
        dpn_verbs_fail(v, DP_ETIMEDOUT, "no lane for %lld s (DUALPIPE_NET_TIMEOUT): %s",
                       (long long)dpn_options.timeout_s, v->reason);
}

void dpn_lanes_tend(struct dpn_verbs *v, int64_t now_ns)
{
    for (int i = 0; i < v->lane_count && !v->error; i++)
        tend(v, &v->lanes[i], now_ns);
    if (!v->error)
        look_at_clock(v, now_ns);
}
