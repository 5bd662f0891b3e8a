/* SPDX-License-Identifier: Apache-2.0
 *
 * ibv_qp.h - a reliable connected queue pair, from creation to ready to send:
 *
 *      new (INIT)    ->    the two sides exchange numbers    ->    connect (RTR, RTS)
 *
 * No function waits for the network.
 */
#ifndef DPN_VERBS_IBV_QP_H
#define DPN_VERBS_IBV_QP_H

#include "nccl-plugin/verbs/device.h"

/* What the two sides have to know about each other. */
struct dpn_path {
    const struct dpn_port *port;
    const struct dpn_verbs_options *options;
    bool is_loop; /* connected to itself, with remote read access; a peer has none */
    uint32_t peer_number, psn, peer_psn;
    uint16_t peer_lid;
    uint8_t mtu; /* the smaller of both sides */
    struct dpn_gid gid, peer_gid;
    uint8_t needs_grh; /* one of the two ports needs a global route header */
    uint8_t traffic_class, service_level;
    const struct ibv_ece *ece; /* ECE options that the peer requests or accepted; NULL: none */
};

/* Create a queue pair with queues of this many work requests. any_order: messages may arrive in any
 * order, which both sides must request. *inline_bytes: in, how many are wanted; out, how many the
 * device supports, possibly 0. DP_EIO naming the limit that was hit, DP_ENOMEM. */
int dpn_ibv_qp_new(const struct dpn_port *port, const struct dpn_verbs_options *options,
               struct ibv_cq *cq, unsigned sends, unsigned recvs, bool any_order,
               unsigned *inline_bytes, struct ibv_qp **out);

/* DP_EIO, with an error text that is not logged. */
int dpn_ibv_qp_connect(struct ibv_qp *qp, const struct dpn_path *path);

/* Move it to the error state: nothing is transferred any more, and outstanding work requests are
 * flushed. */
void dpn_ibv_qp_stop(struct ibv_qp *qp);

/* Returns 0 if the device does not access memory for it any more; otherwise an errno, and the
 * device may still do so. NULL is fine. */
int dpn_ibv_qp_free(struct ibv_qp *qp);

#endif
