/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_flush.c - what the device has written to a GPU may still be under way when its completion is
 * seen. A read of the last place, from the same device, comes back only after it: over a queue pair
 * that is connected with itself, one for each rail.
 */
#include "base/fail.h"
#include "nccl-plugin/verbs/verbs_comm.h"
#include "nccl-plugin/verbs/verbs_qp.h"
#include "nccl-plugin/verbs/verbs_state.h"

#include <string.h>

enum { LOOP_QUEUE = NCCL_NET_MAX_REQUESTS + DPN_EAGER_SLOTS };

static bool reaches_gpus(const struct dpn_rail *rail)
{
    return rail->port->hca->pointers & (NCCL_PTR_CUDA | NCCL_PTR_DMABUF);
}

bool dpn_port_takes_eager(const struct dpn_port *port)
{
    const bool reaches_gpu = port->hca->pointers & (NCCL_PTR_CUDA | NCCL_PTR_DMABUF);

    return !reaches_gpu || dpn_verbs_state.options.flushes;
}

int dpn_rail_open_flush(struct dpn_verbs *v, struct dpn_rail *rail)
{
    struct dpn_path path = {.port = rail->port, .options = &dpn_verbs_state.options,
                            .peer_lid = rail->port->lid, .mtu = rail->port->mtu};
    struct dpn_gids gids;
    unsigned inline_bytes = 0;

    (void)v;
    if (!reaches_gpus(rail) || !dpn_verbs_state.options.flushes)
        return 0;
    dpn_port_gids(rail->port, &dpn_verbs_state.options, &gids);
    dpn_gids_match(&gids, &gids, &dpn_verbs_state.options, &path.gid, &path.peer_gid);
    int err = dpn_qp_new(rail->port, &dpn_verbs_state.options, rail->cq, LOOP_QUEUE, 1,
                         false, &inline_bytes, &rail->flush_qp);
    if (err)
        return err;
    path.peer_number = rail->flush_qp->qp_num;
    return dpn_qp_join(rail->flush_qp, &path);
}

static int read_back(struct dpn_verbs *v, struct dpn_verbs_request *req, int r,
                     const struct dpn_piece *piece)
{
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)piece->memory;
    struct ibv_sge sge = {(uintptr_t)v->block->scratch, 1, v->rails[r].block_mr->lkey};
    struct ibv_send_wr *bad, wr = {
        .wr_id = dpn_work_pack((struct dpn_work){DPN_WORK_FLUSH, (unsigned)r, 0, req->index, 0, 1}),
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {(uintptr_t)piece->data, memory->mrs[r]->rkey},
    };
    int error = ibv_post_send(v->rails[r].flush_qp, &wr, &bad);

    if (error)
        return dp_fail(DP_EIO, "flush on %s: %s", v->rails[r].port->name, strerror(error));
    req->left++;
    return 0;
}

/* The CPU may not reach that memory, the device does: from itself to itself. */
void dpn_verbs_copy_to_gpu(struct dpn_verbs *v, struct dpn_recv *recv, unsigned sub, const void *from,
                           unsigned slot)
{
    const struct dpn_room *room = &recv->rooms[sub];
    const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)room->memory;
    struct ibv_sge sge = {(uintptr_t)from, (uint32_t)room->size, v->rails[0].block_mr->lkey};
    struct ibv_send_wr *bad, wr = {
        .wr_id = dpn_work_pack((struct dpn_work){DPN_WORK_COPY, 0, 0, recv->base.index, sub, slot}),
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {(uintptr_t)room->data, memory->mrs[0]->rkey},
    };
    int error = ibv_post_send(v->rails[0].flush_qp, &wr, &bad);

    if (error)
        dpn_verbs_fail(v, DP_EIO, "copy on %s: %s", v->rails[0].port->name, strerror(error));
}

/* The last piece is enough: reads do not pass writes. */
static const struct dpn_piece *find_gpu_piece(int n, const struct dpn_piece *pieces)
{
    for (int i = n - 1; i >= 0; i--) {
        const struct dpn_verbs_memory *memory = (const struct dpn_verbs_memory *)pieces[i].memory;
        if (memory && memory->type == NCCL_PTR_CUDA && pieces[i].size)
            return &pieces[i];
    }
    return NULL;
}

int dpn_verbs_iflush(struct dpn_comm *comm, int n, const struct dpn_piece *pieces,
                     struct dpn_request **out)
{
    struct dpn_verbs *v = comm->state;
    const struct dpn_piece *piece = find_gpu_piece(n, pieces);
    int err = 0;

    if (v->error)
        return dp_fail(v->error, "flush: %s", v->why);
    if (!piece || !v->flushes_free)
        return piece ? dp_fail(DP_EINVAL, "more than %d flushes at once", NCCL_NET_MAX_REQUESTS) : 0;
    struct dpn_verbs_request *req = &v->flushes[__builtin_ctz(v->flushes_free)];
    req->left = 0;
    for (int r = 0; r < v->rail_count && !err; r++)
        if (v->rails[r].flush_qp)
            err = read_back(v, req, r, piece);
    if (err)
        dpn_verbs_fail(v, err, "%s", dp_last_error());
    if (err || !req->left)
        return err;
    v->flushes_free &= ~(1u << req->index);
    *out = &req->base;
    return 0;
}
