/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_fabric.h - two queue pairs on the devices of the simulated libibverbs, for its own tests.
 */
#ifndef DP_TESTS_FAKE_FABRIC_H
#define DP_TESTS_FAKE_FABRIC_H

#include "fakes/ibverbs/fake_verbs.h"

#include <stddef.h>

extern const struct fake_verbs fake_verbs;

enum { END_BYTES = 65536, END_ENTRIES = 64, END_INLINE = 64 };

/* One side of a connection. */
struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    int gid_index;
    uint32_t psn;
    char *data; /* [END_BYTES], registered with all rights */
};

/* What the other side must know. */
struct card {
    uint32_t qpn, psn, rkey;
    uint64_t data;
    union ibv_gid gid;
};

/* A new directory in FAKE_VERBS_FABRIC, removed by fabric_end(). */
void fabric_begin(void);
void fabric_end(void);

/* On the n-th device, at the GID of this index; crashes if something is wrong. */
void end_open(struct end *e, int device, int gid_index);
void end_close(struct end *e);
struct card end_card(const struct end *e);
/* Each step of the way, with what it takes; returns what ibv_modify_qp says. */
int end_to_init(struct end *e);
int end_to_rtr(struct end *e, const struct card *peer);
int end_to_rts(struct end *e);
int end_to(struct end *e, enum ibv_qp_state state);
/* All of them; must succeed. */
void end_connect(struct end *e, const struct card *peer);
void ends_connect(struct end *a, struct end *b);

/* What most tests have: an end on each of the first two devices, by RoCE v2. */
void ends_open(struct end *a, struct end *b, struct card *of_a, struct card *of_b);
/* Returns how many objects of verbs are left then, of all that there were. */
int ends_close(struct end *a, struct end *b);

/* A work request for the bytes [at, at + len) of data, to the same place over there. */
struct request {
    struct ibv_sge sge;
    struct ibv_send_wr wr;
};
void request_init(struct request *r, const struct end *e, enum ibv_wr_opcode opcode, size_t at,
                  size_t len, const struct card *peer);
int end_post(struct end *e, struct request *r);
int end_post_recv(struct end *e, uint64_t wr_id, size_t at, size_t len);
/* The next completion; crashes if none comes. */
struct ibv_wc end_wait(struct end *e);
/* Whether there is none, as far as one can see. */
bool end_is_silent(struct end *e);

#endif
