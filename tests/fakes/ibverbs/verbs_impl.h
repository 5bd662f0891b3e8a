/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_impl.h - what a process has for itself: the objects that libibverbs hands out, and its send
 * queues. All of it is under the fabric's lock.
 */
#ifndef DP_TESTS_VERBS_IMPL_H
#define DP_TESTS_VERBS_IMPL_H

#include "fabric.h"
#include "fabric_config.h"
#include "fake_verbs.h"
#include "faults.h"

struct fv_my_context {
    struct verbs_context verbs;
    struct fv_device *device;
    int mailbox;
};

struct fv_my_pd {
    struct ibv_pd ib;
    uint64_t id;
    int users;
};

struct fv_my_region {
    struct ibv_mr ib;
    void *mapped; /* of a dma-buf */
    size_t mapped_bytes;
};

struct fv_my_channel {
    struct ibv_comp_channel ib;
    int mailbox;
};

struct fv_my_cq {
    struct ibv_cq ib;
    int index, users;
    unsigned events_got, async_got;
    uint64_t ordinal, polls;
};

struct fv_send {
    uint64_t n; /* 1, 2, ... of its queue */
    uint64_t wr_id;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    uint32_t imm, rkey;
    uint64_t remote_addr;
    uint32_t len;
    int count;
    struct ibv_sge sges[FV_SGES];
    bool is_inline; /* the bytes are in the queue's own memory */

    uint64_t ready_tick;
    int64_t give_up_ns; /* 0: nothing was in its way so far */
    bool is_carried_out;
    enum ibv_wc_status fault; /* IBV_WC_SUCCESS: none */
    enum fake_verbs_arrival arrival;
};

struct fv_my_qp {
    struct ibv_qp ib;
    struct fv_my_qp *next, **link; /* all of the process */
    int index;
    uint64_t ordinal; /* of the process */
    unsigned async_got;
    struct ibv_qp_cap cap;
    bool signal_all;
    struct ibv_qp_attr attr;
    struct ibv_ece ece;
    /* Places run from 1: reclaimed <= ran <= posted. Between reclaimed and ran no completion has
     * been polled yet, so the place is taken. */
    uint64_t reclaimed, ran, posted;
    struct fv_send *sends; /* a ring of cap.max_send_wr */
    char *inline_bytes;
    /* ordered by a test */
    bool held;
    uint64_t fail_at; /* 0: nothing */
    enum ibv_wc_status fail_status;
    enum fake_verbs_arrival fail_arrival;
    uint64_t modified; /* how often to RTR */
};

struct fv_process {
    pid_t pid;
    struct fv_device devices[FV_DEVICES];
    int device_count;
    struct fv_my_qp *qps;
    uint64_t qp_serial, cq_serial, reg_serial;
    uint64_t tick;
    bool held;
    int alive;
    _Atomic int waiting; /* work requests, late packets and ports that somebody must look after */
};

extern struct fv_process fv_me;

static inline struct fv_my_context *fv_context(struct ibv_context *c)
{
    return (struct fv_my_context *)(void *)((char *)c - offsetof(struct fv_my_context, verbs.context));
}

static inline struct fv_qp *fv_shared(const struct fv_my_qp *q)
{
    return &fv->qps[q->index];
}

/* region.c: where the bytes are in the memory of its process, if all of this may be done; else 0. */
uint64_t fv_translate(uint32_t key, bool remote, pid_t pid, uint64_t pd, uint64_t addr, uint64_t len,
                      unsigned access);

/* completion.c */
void fv_complete(int cq, const struct fv_completion *c, bool is_solicited);
/* Drop what a queue pair has left there. */
void fv_forget_completions(int cq, int qp);
int fv_poll(struct ibv_cq *cq, int count, struct ibv_wc *out);
int fv_req_notify(struct ibv_cq *cq, int solicited_only);

/* qp.c: to ERR, and flush; qp_number and status of a completion that says nothing else. */
void fv_break(struct fv_qp *qp);
struct fv_completion fv_plain_completion(const struct fv_qp *qp, uint64_t wr_id,
                                         enum ibv_wc_status status);

/* path.c */
bool fv_ports_meet(const struct fv_port *a, const struct fv_port *b);
bool fv_knows_gid(const struct fv_port *port, const union ibv_gid *gid, const struct fv_gid *from);
/* Whether a packet comes from one to the other, and an answer back. */
bool fv_reaches(const struct fv_qp *from, const struct fv_qp *to);

/* responder.c: what the other side does with a message. */
struct fv_packet {
    enum ibv_wr_opcode opcode;
    bool is_solicited;
    uint32_t imm, rkey, len;
    uint64_t remote_addr;
    const struct iovec *parts; /* of this process: what is sent, or where to read to */
    int count;
};
enum fv_answer {
    FV_DONE,
    FV_SILENCE,  /* nobody there */
    FV_NOT_READY, /* no receive */
    FV_INVALID,
    FV_NO_ACCESS,
    FV_REMOTE_FAILED,
};
enum fv_answer fv_respond(const struct fv_qp *from, struct fv_qp *to, const struct fv_packet *p);

/* engine.c: carry out what can be. */
void fv_run(struct fv_my_qp *q);
void fv_progress(void);
/* See to it that the rest is carried out, too. */
void fv_wake(void);
void fv_plan_port_up(struct fv_port *port, unsigned ms);

/* post.c */
int fv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
char *fv_inline_bytes(const struct fv_my_qp *q, uint64_t n);

/* chance.c: what befalls a work request that is posted. */
void fv_tempt(struct fv_my_qp *q, struct fv_send *s);
void fv_kill_device(struct fv_device *d);
bool fv_move_gid(struct fv_port *port, int from, int to);

#endif
