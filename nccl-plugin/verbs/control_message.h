/* SPDX-License-Identifier: Apache-2.0
 *
 * control_message.h - the messages of the control channel, a wire beside the queue pairs. Data does
 * not pass through it. The wire is open only to processes that know the listener's cookie.
 *
 *      sender                                   receiver
 *      HELLO   ports                     ->
 *                                        <-     PLAN    pairs of ports, number of queue pairs; or
 *                                                       a reason to decline
 *      OPEN    index, epoch, queue pair  ->             for each queue pair; all GIDs of the port
 *                                        <-     OPENED  queue pair, the GIDs to use; or a reason
 *      (a probe over the queue pair)
 *      READY   how many came up          ->             if none did, a PLAN that declines follows,
 *                                                       and the wire is free for other use
 *      CLOSED  index, epoch, CTS read   <->     CLOSED  index, epoch, what has arrived
 *      OPEN    index, epoch + 1 ...      ->             as above, until it works again
 *      REFUSED message too long          ->
 *      ACK     lower numbers received   <->     ACK     so that they need not be kept
 *                                        <-     STALLED what has arrived, as nothing more does
 *      FAILED  reason                   <->     FAILED  the last one: the connection has ended
 *      RESUME  lower numbers received   <->     RESUME  the first over a new wire, the receiver's
 *                                                       before the sender's: verbs/control.c
 *
 * An index names two connected queue pairs, one a side; an epoch counts how often they were opened.
 * A side sends CLOSED once its queue pair of that epoch is destroyed, so that nothing of the epoch
 * can arrive or be read any more.
 */
#ifndef DPN_VERBS_CONTROL_MESSAGE_H
#define DPN_VERBS_CONTROL_MESSAGE_H

#include "nccl-plugin/net/net.h"
#include "nccl-plugin/options.h"
#include "nccl-plugin/verbs/gid.h"
#include "wire/wire.h"

enum {
    DPN_MAX_RAILS = NCCL_NET_MAX_DEVS_PER_NIC_V12,
    DPN_MAX_QPS = 16,
    DPN_CONTROL_NAME = 32,
    DPN_CONTROL_REASON = 128,
    DPN_CONTROL_VERSION = 11
};

enum dpn_control_kind {
    DPN_HELLO = 1,
    DPN_PLAN,
    DPN_OPEN,
    DPN_OPENED,
    DPN_READY,
    DPN_CLOSED_SENDER,
    DPN_CLOSED_RECEIVER,
    DPN_REFUSED,
    DPN_RESUME,
    DPN_ACK,
    DPN_STALLED,
    DPN_FAILED
};

struct dpn_port_info {
    char name[DPN_CONTROL_NAME];
    uint8_t is_ethernet;
    uint8_t any_order; /* requests and supports such queue pairs: verbs/load.h */
    uint8_t zero[2];
    uint32_t speed_mbps;
    struct dpn_gid gid; /* the preferred one; tells the subnet */
};

struct dpn_hello {
    uint32_t version;
    uint8_t port_count, qps;
    uint8_t traffic_class, service_level;
    uint32_t max_message;
    /* ports that may replace one in another subnet; they follow the device's */
    uint8_t other_count;
    uint8_t subnet_bits; /* prefix length for IPv4; 0: subnets are ignored */
    uint8_t has_acceptor;
    uint8_t zero;
    uint32_t eager_bytes; /* largest eager message; 0: none */
    int32_t worker;   /* see net/placement.h */
    uint32_t traffic; /* enum dpn_traffic */
    struct dpn_port_info ports[DPN_MAX_RAILS];
    struct dp_wire_address acceptor; /* connecting there shows whether the process is alive */
};

struct dpn_plan {
    uint8_t agreed;
    uint8_t rails, qps_per_rail;
    uint8_t any_order; /* for all queue pairs */
    uint32_t max_message;
    uint32_t eager_bytes; /* the smaller of both sides */
    uint8_t may_eager;    /* eager messages may be sent before the first CTS entry */
    uint8_t zero[3];
    struct {
        uint8_t sender, receiver; /* index of the port */
    } rail[DPN_MAX_RAILS];
    struct dpn_port_info ports[DPN_MAX_RAILS]; /* the receiver's ports, by rail */
    struct dp_wire_address acceptor;           /* where to reconnect if this wire is lost, */
    uint64_t label;                            /* naming this connection; 0: not possible */
    char reason[DPN_CONTROL_REASON];
};

/* One side of a queue pair. */
struct dpn_qp_info {
    uint32_t number, psn;
    uint16_t lid;
    uint8_t mtu; /* enum ibv_mtu */
    uint8_t has_ece;
    uint32_t ece_vendor, ece_options, ece_mask;
    uint32_t key;     /* of the block */
    uint8_t needs_grh; /* its port */
    uint8_t zero[3];
    uint64_t address; /* of the block, see verbs/comm.h */
};

struct dpn_open_qp {
    uint8_t index, zero;
    uint16_t epoch;
    struct dpn_qp_info qp;
    struct dpn_gids gids;
};

struct dpn_opened_qp {
    uint8_t index, is_open;
    uint16_t epoch;
    struct dpn_qp_info qp;
    struct dpn_gid sender, receiver; /* for RoCE, the pair of GIDs to use */
    char reason[DPN_CONTROL_REASON];
};

struct dpn_ready {
    uint32_t qps;
};

struct dpn_closed_sender {
    uint8_t index, zero;
    uint16_t epoch;
    uint32_t cts_read;
};

/* What has arrived for a receive that is cleared to send. */
struct dpn_arrived {
    uint16_t generation;
    uint8_t is_open; /* otherwise everything of that generation has arrived */
    uint8_t count;
    uint16_t stripes[DPN_MAX_RECEIVES]; /* bit masks; all bits set: done */
};

struct dpn_closed_receiver {
    uint8_t index, zero;
    uint16_t epoch;
    /* eager messages: all before eager_seen have arrived; number copied */
    uint32_t eager_seen, eager_taken;
    uint32_t zero2;
    uint64_t eager_arrived; /* bit mask of later ones that have arrived, by number % 64 */
    struct dpn_arrived arrived[NCCL_NET_MAX_REQUESTS];
};

struct dpn_stalled {
    uint32_t cts_made, moves; /* see verbs/progress.c */
    struct dpn_closed_receiver has;
};

struct dpn_failed {
    char reason[2 * DPN_CONTROL_REASON];
};

struct dpn_refused {
    uint16_t generation;
    uint8_t slot, sub;
    uint32_t zero;
    uint64_t size;
};

struct dpn_resume {
    uint32_t received; /* in ACK 0: the count is in the tag of every message, see verbs/control.c */
    uint32_t zero;
};

union dpn_control_body {
    struct dpn_hello hello;
    struct dpn_plan plan;
    struct dpn_open_qp open;
    struct dpn_opened_qp opened;
    struct dpn_ready ready;
    struct dpn_closed_sender closed_sender;
    struct dpn_closed_receiver closed_receiver;
    struct dpn_refused refused;
    struct dpn_resume resume;
    struct dpn_stalled stalled;
    struct dpn_failed failed;
};

/* Length of a message of this kind in bytes; 0: no such kind. */
size_t dpn_control_len(uint64_t kind);

/* Check a message that was received: every index is within bounds, every text is terminated.
 * is_sender: the message was received by the sender. DP_EMISMATCH, with an error text that is not
 * logged. */
int dpn_control_check(uint64_t kind, bool is_sender, const union dpn_control_body *body,
                      size_t len);

#endif
