/* SPDX-License-Identifier: Apache-2.0
 *
 * ibv_qp.h - a reliable queue pair, from nothing to ready to send:
 *
 *      new (INIT)    ->    its number to the other side, and the other's here    ->    join (RTR, RTS)
 *
 * Nothing waits for the network.
 */
#ifndef DPN_VERBS_IBV_QP_H
#define DPN_VERBS_IBV_QP_H

#include "nccl-plugin/verbs/device.h"

/* What the two sides have to know of each other. */
struct dpn_path {
    const struct dpn_port *port;
    const struct dpn_verbs_options *options;
    bool is_loop; /* to itself, which may read what it has written; a peer may not */
    uint32_t peer_number, psn, peer_psn;
    uint16_t peer_lid;
    uint8_t mtu; /* of the smaller side */
    struct dpn_gid gid, peer_gid;
    uint8_t traffic_class, service_level;
    const struct ibv_ece *ece; /* the other's wish or answer; NULL: without */
};

/* Queues of so many work requests; any_order: what arrives may be in any order, both sides must
 * want it; *inline_bytes in: wanted, out: what there is, maybe 0. DP_EIO naming the limit that was
 * met, DP_ENOMEM. */
int dpn_ibv_qp_new(const struct dpn_port *port, const struct dpn_verbs_options *options,
               struct ibv_cq *cq, unsigned sends, unsigned recvs, bool any_order,
               unsigned *inline_bytes, struct ibv_qp **out);

/* DP_EIO, quietly, with a sentence. */
int dpn_ibv_qp_connect(struct ibv_qp *qp, const struct dpn_path *path);

/* From now on nothing moves; what is queued comes back. */
void dpn_ibv_qp_stop(struct ibv_qp *qp);

/* When it returns 0 the device touches nothing for it any more; otherwise an errno, and nothing is
 * known of what the device still does. NULL is fine. */
int dpn_ibv_qp_free(struct ibv_qp *qp);

#endif
