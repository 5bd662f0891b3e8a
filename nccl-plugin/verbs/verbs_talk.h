/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_talk.h - what the two sides say to each other over the wire beside the queue pairs. All of it
 * is off the path of messages; only processes that know the cookie of the listener come so far.
 *
 *      sender                                   receiver
 *      HELLO  my ports                   ->
 *                                        <-     PLAN    which port with which, how many lanes; or no
 *      OPEN   lane, epoch, queue pair    ->             for every lane; all my GIDs
 *                                        <-     OPENED  queue pair, the GIDs to use; or no
 *      (a probe over the lane)
 *      READY  how many lanes came up     ->             none: PLAN says no once more, and
 *                                                       the wire is free for something else
 *      FENCED lane, epoch, lines read   <->     FENCED  lane, epoch, what arrived until then
 *      OPEN   lane, epoch + 1 ...        ->             as above, until it works again
 *      REFUSED  message too long         ->
 *      HEARD  what was said              <->    HEARD  so that it need not be kept
 *      RESUME  how many words were heard <->    RESUME  first over another wire: verbs_return.c
 *
 * A lane is a pair of queue pairs, and an epoch is one life of it. FENCED is said when the own queue
 * pair of that epoch is gone for good, so nothing of it can arrive or be read any more.
 */
#ifndef DPN_VERBS_TALK_H
#define DPN_VERBS_TALK_H

#include "nccl-plugin/net.h"
#include "nccl-plugin/net_options.h"
#include "nccl-plugin/verbs/verbs_gid.h"
#include "wire/wire.h"

enum {
    DPN_MAX_RAILS = NCCL_NET_MAX_DEVS_PER_NIC_V12,
    DPN_MAX_LANES = 16,
    DPN_TALK_NAME = 32,
    DPN_TALK_REASON = 128,
    DPN_TALK_VERSION = 8
};

enum dpn_talk_kind {
    DPN_HELLO = 1,
    DPN_PLAN,
    DPN_OPEN,
    DPN_OPENED,
    DPN_READY,
    DPN_FENCED_SENDER,
    DPN_FENCED_RECEIVER,
    DPN_REFUSED,
    DPN_RESUME,
    DPN_HEARD
};

struct dpn_talk_port {
    char name[DPN_TALK_NAME];
    uint8_t is_ethernet;
    uint8_t any_order; /* wants, and can make, such queue pairs: verbs_mlx5.h */
    uint8_t zero[2];
    uint32_t speed_mbps;
    struct dpn_gid gid; /* the best; says the subnet */
};

struct dpn_hello {
    uint32_t version;
    uint8_t port_count, qps;
    uint8_t traffic_class, service_level;
    uint32_t max_message;
    uint8_t other_count; /* ports that may stand in for one in another subnet; after the device's */
    uint8_t subnet_bits; /* of IPv4; 0: subnets are of no importance */
    uint8_t has_door;
    uint8_t zero;
    uint32_t eager_bytes; /* the longest message that may come unasked; 0: none */
    int32_t worker;   /* see net_placement.h */
    uint32_t traffic; /* enum dpn_traffic */
    struct dpn_talk_port ports[DPN_MAX_RAILS];
    struct dp_wire_address door; /* where to ask whether the process is there still */
};

struct dpn_plan {
    uint8_t agreed;
    uint8_t rails, lanes_per_rail;
    uint8_t any_order; /* of all lanes */
    uint32_t max_message;
    uint32_t eager_bytes; /* of both */
    struct {
        uint8_t sender, receiver; /* which port */
    } rail[DPN_MAX_RAILS];
    struct dpn_talk_port ports[DPN_MAX_RAILS]; /* the receiver's, by rail */
    struct dp_wire_address door; /* where to call if this wire is lost, */
    uint64_t label;              /* and for whom; 0: nowhere */
    char reason[DPN_TALK_REASON];
};

/* One side of a queue pair. */
struct dpn_talk_qp {
    uint32_t number, psn;
    uint16_t lid;
    uint8_t mtu; /* enum ibv_mtu */
    uint8_t has_ece;
    uint32_t ece_vendor, ece_options, ece_mask;
    uint32_t key;     /* of the block */
    uint64_t address; /* of the block, see verbs_comm.h */
};

struct dpn_open_lane {
    uint8_t lane, zero;
    uint16_t epoch;
    struct dpn_talk_qp qp;
    struct dpn_gids gids;
};

struct dpn_opened_lane {
    uint8_t lane, is_open;
    uint16_t epoch;
    struct dpn_talk_qp qp;
    struct dpn_gid sender, receiver; /* of RoCE the pair to use */
    char reason[DPN_TALK_REASON];
};

struct dpn_ready {
    uint32_t lanes;
};

struct dpn_fenced_sender {
    uint8_t lane, zero;
    uint16_t epoch;
    uint32_t lines_read;
};

/* What the receiver has of the receives that are granted. */
struct dpn_arrived {
    uint16_t generation;
    uint8_t is_open;                    /* else all of that generation has arrived */
    uint8_t count;
    uint16_t stripes[DPN_MAX_RECEIVES]; /* a bit each; all set: done */
};

struct dpn_fenced_receiver {
    uint8_t lane, zero;
    uint16_t epoch;
    uint32_t eager_seen, eager_taken; /* short messages: all before this came; were copied */
    uint32_t zero2;
    uint64_t eager_here;              /* of those later, a bit each by number % 64 */
    struct dpn_arrived arrived[NCCL_NET_MAX_REQUESTS];
};

struct dpn_refused {
    uint16_t generation;
    uint8_t slot, sub;
    uint32_t zero;
    uint64_t size;
};

struct dpn_resume {
    uint32_t heard; /* of HEARD 0: it is in the tag of every word, see verbs_control.c */
    uint32_t zero;
};

union dpn_talk {
    struct dpn_hello hello;
    struct dpn_plan plan;
    struct dpn_open_lane open;
    struct dpn_opened_lane opened;
    struct dpn_ready ready;
    struct dpn_fenced_sender fenced_sender;
    struct dpn_fenced_receiver fenced_receiver;
    struct dpn_refused refused;
    struct dpn_resume resume;
};

/* How long a message of a kind is, 0: no such kind. */
size_t dpn_talk_len(uint64_t kind);

/* Whether these bytes make sense: every index within bounds, every text ended. is_sender: who reads
 * them. DP_EMISMATCH, quietly, with a sentence. */
int dpn_talk_check(uint64_t kind, bool is_sender, const union dpn_talk *talk, size_t len);

#endif
