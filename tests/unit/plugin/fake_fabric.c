/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_fabric.h"

#include "scratch.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void must(bool so, const char *what)
{
    if (so)
        return;
    perror(what);
    abort();
}

/* ---- the directory --------------------------------------------------------------------------- */

static char dir[SCRATCH_LEN];

void fabric_begin(void)
{
    must(scratch_directory(dir, "verbs"), "mkdtemp");
    setenv("FAKE_VERBS_FABRIC", dir, 1);
    setenv("DUALPIPE_NET_EAGER_GPU", "1", 0); /* which the stand-in's devices reach */
}

void fabric_end(void)
{
    DIR *d = opendir(dir);
    char path[600];

    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static const int all_rights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

static void open_device(struct end *e, int device)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    must(list && device < count, "ibv_get_device_list");
    e->context = ibv_open_device(list[device]);
    must(e->context, "ibv_open_device");
    ibv_free_device_list(list);
}

void end_open(struct end *e, int device, int gid_index)
{
    *e = (struct end){.gid_index = gid_index, .psn = 77u + (uint32_t)device};
    open_device(e, device);
    must((e->pd = ibv_alloc_pd(e->context)), "ibv_alloc_pd");
    must((e->cq = ibv_create_cq(e->context, 2 * END_ENTRIES, NULL, NULL, 0)), "ibv_create_cq");
    must((e->data = calloc(1, END_BYTES)), "calloc");
    must((e->mr = ibv_reg_mr(e->pd, e->data, END_BYTES, all_rights)), "ibv_reg_mr");
    struct ibv_qp_init_attr a = {.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
                                 .cap = {.max_send_wr = END_ENTRIES, .max_recv_wr = END_ENTRIES,
                                         .max_send_sge = 2, .max_recv_sge = 2,
                                         .max_inline_data = END_INLINE}};
    must((e->qp = ibv_create_qp(e->pd, &a)), "ibv_create_qp");
}

void end_close(struct end *e)
{
    must(!e->qp || !ibv_destroy_qp(e->qp), "ibv_destroy_qp");
    must(!e->mr || !ibv_dereg_mr(e->mr), "ibv_dereg_mr");
    must(!ibv_destroy_cq(e->cq), "ibv_destroy_cq");
    must(!ibv_dealloc_pd(e->pd), "ibv_dealloc_pd");
    must(!ibv_close_device(e->context), "ibv_close_device");
    free(e->data);
}

struct card end_card(const struct end *e)
{
    struct card c = {.qpn = e->qp->qp_num, .psn = e->psn, .rkey = e->mr->rkey,
                     .data = (uintptr_t)e->data};

    must(!ibv_query_gid(e->context, 1, e->gid_index, &c.gid), "ibv_query_gid");
    return c;
}

int end_to_init(struct end *e)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                            .qp_access_flags = (unsigned)all_rights};

    return ibv_modify_qp(e->qp, &a,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int end_to_rtr(struct end *e, const struct card *peer)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = peer->gid, .sgid_index = (uint8_t)e->gid_index, .hop_limit = 64}},
    };

    return ibv_modify_qp(e->qp, &a,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int end_to_rts(struct end *e)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                            .sq_psn = e->psn, .max_rd_atomic = 1};

    return ibv_modify_qp(e->qp, &a,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int end_to(struct end *e, enum ibv_qp_state state)
{
    struct ibv_qp_attr a = {.qp_state = state};

    return ibv_modify_qp(e->qp, &a, IBV_QP_STATE);
}

void end_connect(struct end *e, const struct card *peer)
{
    must(!end_to_init(e) && !end_to_rtr(e, peer) && !end_to_rts(e), "ibv_modify_qp");
}

void ends_connect(struct end *a, struct end *b)
{
    const struct card of_a = end_card(a), of_b = end_card(b);

    end_connect(a, &of_b);
    end_connect(b, &of_a);
}

void ends_open(struct end *a, struct end *b, struct card *of_a, struct card *of_b)
{
    enum { ROCE_V2 = 3 }; /* its place among the GIDs */

    end_open(a, 0, ROCE_V2);
    end_open(b, 1, ROCE_V2);
    *of_a = end_card(a);
    *of_b = end_card(b);
}

int ends_close(struct end *a, struct end *b)
{
    end_close(a);
    end_close(b);
    return fake_verbs.alive();
}

/* ---- messages -------------------------------------------------------------------------------- */

void request_init(struct request *r, const struct end *e, enum ibv_wr_opcode opcode, size_t at,
                  size_t len, const struct card *peer)
{
    *r = (struct request){
        .sge = {(uintptr_t)e->data + at, (uint32_t)len, e->mr->lkey},
        .wr = {.opcode = opcode, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED},
    };
    if (peer) {
        r->wr.wr.rdma.remote_addr = peer->data + at;
        r->wr.wr.rdma.rkey = peer->rkey;
    }
}

int end_post(struct end *e, struct request *r)
{
    struct ibv_send_wr *bad;

    r->wr.sg_list = &r->sge;
    return ibv_post_send(e->qp, &r->wr, &bad);
}

int end_post_recv(struct end *e, uint64_t wr_id, size_t at, size_t len)
{
    struct ibv_sge sge = {(uintptr_t)e->data + at, (uint32_t)len, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = len ? 1 : 0}, *bad;

    return ibv_post_recv(e->qp, &wr, &bad);
}

struct ibv_wc end_wait(struct end *e)
{
    const time_t until = time(NULL) + 30;
    struct ibv_wc wc;
    int n;

    while (!(n = ibv_poll_cq(e->cq, 1, &wc)))
        must(time(NULL) < until, "no completion within 30 s");
    must(n == 1, "ibv_poll_cq");
    return wc;
}

bool end_is_silent(struct end *e)
{
    struct ibv_wc wc;

    for (int i = 0; i < 100; i++)
        if (ibv_poll_cq(e->cq, 1, &wc))
            return false;
    return true;
}
