/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_pair.h - both sides of an RDMA connection in one process, on the devices of the simulated
 * libibverbs. A failure fails the test that calls.
 */
#ifndef DP_TESTS_VERBS_PAIR_H
#define DP_TESTS_VERBS_PAIR_H

#include "cmocka_all.h"

#include "base/clock.h"
#include "nccl-plugin/net/net.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/verbs/comm.h"

enum { PAIR_BYTES = 300000 };

struct pair {
    struct dpn_net *net;
    struct dpn_listener *listener;
    struct dpn_comm *sender, *receiver;
};

/* The buffers from which messages come, and to which they go. */
extern char pair_from[PAIR_BYTES], pair_to[PAIR_BYTES];

/* Generous: the machine may be busy. */
static inline void must_be_in_time(int64_t since_ns)
{
    assert_true(dp_now_ns() - since_ns < 60 * DP_NS_PER_S);
}

/* While this is so, which must not be for ever. */
#define WHILE_IN_TIME(condition)                                                                        \
    for (const int64_t began_ns = dp_now_ns(); condition; must_be_in_time(began_ns))

/* For the whole program: a fabric of its own, by loopback, over verbs only. */
int pair_set_up(void **state);
int pair_tear_down(void **state);

struct pair pair_connect(int dev);
struct pair pair_connect_between(int dev, int dev_there);
void pair_end(struct pair *p);
/* The first two devices as one; needs a context that is open. */
int pair_fuse_both(void);

/* data[PAIR_BYTES] of NCCL_PTR_HOST or another type. */
struct dpn_memory *pair_reg(struct dpn_comm *comm, void *data, int type);
/* len bytes to pair_to; len bytes from data. */
struct dpn_request *pair_receive(struct pair *p, struct dpn_memory *memory, size_t len);
struct dpn_request *pair_send(struct pair *p, struct dpn_memory *memory, const char *data,
                              size_t len);
/* Test both until they are done; either may be NULL. */
void pair_finish(struct dpn_request *a, struct dpn_request *b);

/* The state of a side's queue pairs, under its lock: the watchdog may poll the connection just now.
 */
unsigned pair_qps_up(struct dpn_comm *comm); /* a bit mask */
unsigned pair_epoch(struct dpn_comm *comm, unsigned qp);
struct ibv_qp *pair_qp(struct dpn_comm *comm, unsigned index);

/* Fail a queue pair of the sender; when this returns nothing more leaves it. */
void pair_lose(struct pair *p, unsigned qp);

/* Reset its control connection, as a middlebox does that has dropped its state: the peer gets a
 * reset. */
void pair_reset(struct dpn_comm *comm);

/* One message of PAIR_BYTES; lose: the queue pair of the sender that fails once the message is
 * posted to it, -1 none. Returns the memory that it went to. */
struct dpn_memory *pair_transfer(struct pair *p, int type, int lose);
/* Such messages, one at least, until both sides use these queue pairs, a bit mask. */
void pair_transfer_until(struct pair *p, unsigned qps);

#endif
