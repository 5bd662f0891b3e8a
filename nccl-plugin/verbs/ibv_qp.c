/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/ibv_qp.h"

#include "base/fail.h"
#include "nccl-plugin/verbs/load.h"

#include <errno.h>
#include <string.h>

static struct ibv_qp *create(const struct dpn_port *port, struct ibv_cq *cq, unsigned sends,
                             unsigned recvs, bool any_order, unsigned *inline_bytes)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = sends, .max_recv_wr = recvs, .max_send_sge = 2, .max_recv_sge = 1,
                .max_inline_data = *inline_bytes},
    };

    struct ibv_qp *qp = any_order ? dpn_mlx5_new_qp(port->hca->pd, &attr)
                                  : dpn_ibv.create_qp(port->hca->pd, &attr);
    *inline_bytes = qp ? attr.cap.max_inline_data : 0;
    return qp;
}

static int move_to_init(struct ibv_qp *qp, const struct dpn_port *port,
                        const struct dpn_verbs_options *options)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .pkey_index = (uint16_t)options->pkey_index,
        .port_num = (uint8_t)port->number,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };

    return dpn_ibv.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                            IBV_QP_ACCESS_FLAGS);
}

int dpn_ibv_qp_new(const struct dpn_port *port, const struct dpn_verbs_options *options,
               struct ibv_cq *cq, unsigned sends, unsigned recvs, bool any_order,
               unsigned *inline_bytes, struct ibv_qp **out)
{
    errno = 0;
    struct ibv_qp *qp = create(port, cq, sends, recvs, any_order, inline_bytes);
    if (!qp && errno == EINVAL) /* the device does not support inline data */
        qp = create(port, cq, sends, recvs, any_order, inline_bytes);
    if (!qp)
        return dp_fail_quietly(errno == ENOMEM ? DP_ENOMEM : DP_EIO,
                               "%s gives no queue pair of %u + %u work requests: %s (max_qp, "
                               "max_qp_wr of 'ibv_devinfo -v', 'ulimit -l', or fewer of "
                               "NCCL_IB_QPS_PER_CONNECTION)",
                               port->name, sends, recvs, strerror(errno));
    int error = move_to_init(qp, port, options);
    if (error) {
        dpn_ibv.destroy_qp(qp);
        return dp_fail_quietly(DP_EIO, "%s does not initialize a queue pair (P_Key index %d): %s",
                               port->name, options->pkey_index, strerror(error));
    }
    *out = qp;
    return 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* An InfiniBand router is found by the FLID in the peer's GID; without one the peer's LID has to
 * do. Both need a global route header, as do ports that share a LID or have none. */
static struct ibv_ah_attr address(const struct dpn_path *path)
{
    const bool is_far =
        !path->port->is_ethernet && dpn_gids_differ_in_subnet(&path->gid, &path->peer_gid);
    const uint16_t router = is_far ? dpn_gid_flid(&path->peer_gid) : 0;
    struct ibv_ah_attr ah = {.port_num = (uint8_t)path->port->number,
                             .dlid = router ? router : path->peer_lid,
                             .sl = path->service_level};

    if (path->port->is_ethernet || is_far || path->needs_grh || !path->peer_lid) {
        ah.is_global = 1;
        ah.grh = (struct ibv_global_route){.dgid = path->peer_gid.raw, .hop_limit = 255,
                                           .sgid_index = (uint8_t)path->gid.index,
                                           .traffic_class = path->traffic_class};
    }
    return ah;
}

static int move_to_rtr(struct ibv_qp *qp, const struct dpn_path *path)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)path->mtu,
        .dest_qp_num = path->peer_number,
        .rq_psn = path->peer_psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12 /* 0.64 ms */,
        .ah_attr = address(path),
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (path->is_loop ? IBV_ACCESS_REMOTE_READ : 0u),
    };

    return dpn_ibv.modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
                                 IBV_QP_ACCESS_FLAGS);
}

/* Soft-RoCE treats 7 retries as no limit. */
static uint8_t retries(const struct dpn_path *path)
{
    const int wanted = path->options->retries;

    return (uint8_t)(path->port->hca->is_soft && wanted > 6 ? 6 : wanted);
}

static int move_to_rts(struct ibv_qp *qp, const struct dpn_path *path)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)path->options->timeout,
        .retry_cnt = retries(path),
        .rnr_retry = 7 /* no limit: a receive is posted soon */,
        .sq_psn = path->psn,
        .max_rd_atomic = 1,
    };

    return dpn_ibv.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                            IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                            IBV_QP_MAX_QP_RD_ATOMIC);
}

static int fail_connect(const struct dpn_path *path, const char *what, int error)
{
    char ours[DPN_GID_TEXT], theirs[DPN_GID_TEXT];

    return dp_fail_quietly(DP_EIO, "%s: %s from %s to %s, LID %u: %s%s", path->port->name, what,
                           dpn_gid_text(&path->gid, ours), dpn_gid_text(&path->peer_gid, theirs),
                           path->peer_lid, strerror(error),
                           error == ETIMEDOUT ? "; does the address answer to ping?" : "");
}

int dpn_ibv_qp_connect(struct ibv_qp *qp, const struct dpn_path *path)
{
    struct ibv_ece ece;
    int error;

    if (path->ece) {
        ece = *path->ece;
        if (dpn_ibv.set_ece(qp, &ece))
            return dp_fail_quietly(DP_EIO, "%s does not take the peer's ECE options",
                                   path->port->name);
    }
    if ((error = move_to_rtr(qp, path)))
        return fail_connect(path, "no route", error);
    if ((error = move_to_rts(qp, path)))
        return fail_connect(path, "cannot send", error);
    return 0;
}

/* ---- destroying ------------------------------------------------------------------------------ */

void dpn_ibv_qp_stop(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    /* fails for a dead device, which transfers nothing */
    dpn_ibv.modify_qp(qp, &attr, IBV_QP_STATE);
}

int dpn_ibv_qp_free(struct ibv_qp *qp)
{
    return qp ? dpn_ibv.destroy_qp(qp) : 0;
}
