/* SPDX-License-Identifier: Apache-2.0
 *
 * net_comm.h - what net.h only names.
 */
#ifndef DPN_NET_COMM_H
#define DPN_NET_COMM_H

#include "nccl-plugin/net.h"
#include "nccl-plugin/net_grants.h"
#include "nccl-plugin/net_handle.h"

#include <pthread.h>

/* A part of whatever can be left open, in the list of its context. */
struct dpn_open {
    struct dpn_net *net;
    struct dpn_open *next, **link; /* *link is this one */
    void (*close)(struct dpn_open *self);
};

struct dpn_net {
    pthread_mutex_t lock;
    struct dpn_open *open; /* under lock */
};

struct dpn_listener {
    struct dpn_open open;
    int64_t waiting_since_ns; /* 0: accept has not been called for the next peer yet */
    struct dp_wire_listener *on[DPN_WIRES];
};

struct dpn_memory {
    struct dpn_memory *next;
};

/* One receive of a group. */
struct dpn_room {
    char *data;
    size_t size; /* the room; once done the message */
    int tag;
    bool done;
    const struct dpn_memory *memory;
};

/* In use from isend or irecv until test says done. */
struct dpn_request {
    struct dpn_comm *comm;
    struct dp_wire_request wire;        /* the message; of a receive the grant */
    const struct dpn_memory *memory;    /* of a send */
    unsigned count, left;               /* of a receive: rooms, and those not done */
    struct dpn_grant grant;
    struct dpn_room rooms[DPN_MAX_RECEIVES];
};

struct dpn_comm {
    struct dpn_open open;
    bool is_sender;
    int dev;

    /* While connecting: where the handle is and what is in it, to find this again. */
    const void *handle_at;
    uint8_t handle[NCCL_NET_HANDLE_MAXSIZE];
    int64_t until_ns;

    pthread_mutex_t lock; /* all below; nobody else wants it but who deregisters */
    struct dp_wire *wire;
    struct dpn_memory *memories;
    struct dp_wire_request incoming;
    struct dpn_grant arrived; /* sender: where incoming goes */
    struct dpn_grants grants; /* sender */
    struct dp_wire_request refusal;
    uint32_t free; /* a bit per request */
    struct dpn_request requests[NCCL_NET_MAX_REQUESTS];
};

extern struct dpn_net_options dpn_options;

void dpn_open_add(struct dpn_open *open, struct dpn_net *net);
void dpn_open_remove(struct dpn_open *open);

/* Wait for the first message from the other side. */
void dpn_comm_start(struct dpn_comm *comm);
/* Move what can be moved; the lock is held. */
void dpn_comm_progress(struct dpn_comm *comm);

#endif
