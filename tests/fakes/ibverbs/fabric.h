/* SPDX-License-Identifier: Apache-2.0
 *
 * fabric.h - what the processes share: a file in memory with ports, queue pairs, completion queues
 * and memory regions, and one lock over everything.
 *
 *      process A: send queues       | shared: ports, queue pairs with     |   process B
 *      post_send -> engine.c ------ |   receive queues, regions, ------>  |   poll_cq
 *                  copies the bytes |   completion queues, events         |
 *
 * The sender's process does all the work of a message, by the lock; so nothing that another process
 * may need lies in private memory, and all that refers to something is an index.
 */
#ifndef DP_TESTS_FABRIC_H
#define DP_TESTS_FABRIC_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    FV_NAME = IBV_SYSFS_NAME_MAX,
    FV_PORTS = 64,
    FV_GIDS = 16,
    FV_MAILBOXES = 1024,
    FV_LETTERS = 128,
    FV_CQS = 4096,
    FV_QPS = 4096, /* a power of two */
    FV_REGIONS = 1 << 15,
    FV_SGES = 16, /* of one work request */
};

struct fv_gid {
    bool used;
    union ibv_gid gid;
    enum ibv_gid_type type;
    int vlan, ifindex;
};

struct fv_port {
    bool used, up, needs_grh;
    char host[FV_NAME], device[FV_NAME];
    int number;
    int net; /* ports of one net reach each other */
    int link_layer, gbps, lid;
    enum ibv_mtu mtu;
    int64_t up_again_ns; /* 0: nobody has planned it */
    struct fv_gid gids[FV_GIDS];
};

/* News for one context or one channel: kept here, and a byte in a pipe that has a name, so that any
 * process can write it. */
struct fv_letter {
    uint64_t element; /* the receiver's pointer, or a port */
    int type;
};

struct fv_mailbox {
    bool used;
    char host[FV_NAME], device[FV_NAME]; /* of a context; "" of a channel */
    pid_t pid;
    unsigned head, count;
    struct fv_letter letters[FV_LETTERS];
};

struct fv_completion {
    struct ibv_wc wc;
    uint64_t sent; /* its place in the send queue; 0: a receive */
    int qp;
};

struct fv_cq {
    bool used, overrun;
    bool armed, armed_solicited_only;
    int mailbox, events; /* -1: no channel; mailbox of the context */
    uint64_t owner;      /* the struct ibv_cq, in its process */
    _Atomic uint32_t count;
    uint32_t room, head;
    uint64_t ring; /* struct fv_completion, fv_at() */
};

struct fv_receive {
    uint64_t wr_id;
    int count;
    struct ibv_sge sges[FV_SGES];
};

struct fv_qp {
    bool used;
    uint32_t number;
    enum ibv_qp_state state;
    pid_t pid;
    uint64_t probe; /* an address that can be read as long as the process lives */
    uint64_t owner; /* the struct ibv_qp, in its process */
    uint64_t pd;
    int port; /* index; -1: none yet */
    int send_cq, recv_cq, events;
    unsigned access;
    /* the path, as of RTR */
    bool is_global;
    struct fv_gid sgid;
    union ibv_gid dgid;
    uint16_t dlid;
    enum ibv_mtu mtu;
    uint32_t peer, rq_psn, sq_psn;
    uint8_t reads_in; /* max_dest_rd_atomic */
    /* receive queue */
    uint32_t room, head, count, max_sges;
    uint64_t ring; /* struct fv_receive */
};

struct fv_region {
    bool used;
    uint8_t age; /* the last byte of the key */
    pid_t pid;
    uint64_t pd, iova, len, at;
    unsigned access;
};

struct fv_fabric {
    pthread_mutex_t lock;
    uint64_t serial; /* gives numbers that nothing else has */
    uint64_t top, bytes;
    uint64_t free[40]; /* by the logarithm of the size */
    struct fv_port ports[FV_PORTS];
    struct fv_mailbox mailboxes[FV_MAILBOXES];
    struct fv_cq cqs[FV_CQS];
    struct fv_qp qps[FV_QPS];
    struct fv_region regions[FV_REGIONS];
};

extern struct fv_fabric *fv; /* NULL: no fabric was asked for, or it cannot be had */

/* Join, once per process. */
bool fv_join(void);
void fv_lock(void);
void fv_unlock(void);
int64_t fv_now_ns(void);

/* Blocks of the shared file; under the lock. 0: none left. */
uint64_t fv_alloc(size_t bytes);
void fv_free(uint64_t block, size_t bytes);
void *fv_at(uint64_t block);

/* mailbox.c; all under the lock but fv_wait_letter. */
int fv_mailbox_open(const char *host, const char *device, int *fd);
void fv_mailbox_close(int mailbox, int fd);
void fv_post_letter(int mailbox, int type, uint64_t element);
/* To every process that has the device open. */
void fv_post_port_event(const struct fv_port *port, enum ibv_event_type type);
bool fv_is_mailbox_of(int mailbox, pid_t pid, const char *device);
/* Nothing about this object is to be read any more: it goes away. */
void fv_forget_letters(int mailbox, uint64_t element);
/* Waits, unless the descriptor is set not to; -1 with errno. */
int fv_wait_letter(int mailbox, int fd, struct fv_letter *out);

#endif
