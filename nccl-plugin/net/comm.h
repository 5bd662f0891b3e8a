/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.h - what net.h only names.
 */
#ifndef DPN_NET_COMM_H
#define DPN_NET_COMM_H

#include "nccl-plugin/net/net.h"
#include "nccl-plugin/net/stat.h"
#include "nccl-plugin/net/transport.h"
#include "wire/net.h"
#include "wire/sockets.h"
#include "wire/wire.h"

#include <pthread.h>
#include <stdint.h>

/* ---- handles ---------------------------------------------------------------------------------- */

/* The 128 bytes that NCCL carries from a listener to the process that is to connect to
 * it: which build made them, and the address of the listener on each wire that it accepts. The
 * addresses hold its 128-bit random cookie, which the peer must show.
 */

/* Best first. */
enum dpn_wire { DPN_SHM, DPN_TCP, DPN_WIRES };
extern const struct dp_wire_ops *const dpn_wires[DPN_WIRES];

/* What the connecting side says of what is to travel over the wire: messages, or the control messages
 * beside RDMA. */
enum dpn_label { DPN_BY_WIRE, DPN_BY_VERBS };

/* The addresses of a listener, as far as it has them. */
struct dpn_addresses {
    bool present[DPN_WIRES];
    bool offers_verbs; /* to a peer that connects over tcp with the label DPN_BY_VERBS */
    int32_t worker;    /* of the listener's process by its placement, -1: none */
    struct dp_wire_address on[DPN_WIRES];
};

/* DP_EINVAL if the addresses do not fit. */
int dpn_handle_write(const struct dpn_addresses *addresses, void *handle);
/* DP_EMISMATCH, with a sentence that says what differs from ours: another plugin, another version,
 * damage on the way. */
int dpn_handle_read(const void *handle, struct dpn_addresses *out);

/* ---- a peer that is waited for --------------------------------------------------------------- */

/* Zeroed: nothing is waited for. */
struct dpn_late {
    int64_t since_ns, said_ns;
    unsigned polls;
};

/* A poll was in vain; `what` the peer has not done, as "has not connected". */
void dpn_late_wait(struct dpn_late *late, const char *peer, const char *what);
/* The same, where polls are so many that the clock is read for few of them. */
static inline void dpn_late_test(struct dpn_late *late, const char *peer, const char *what)
{
    if (++late->polls % 1024 == 0)
        dpn_late_wait(late, peer, what);
}

/* A part of whatever can be left open, in the list of its context. */
struct dpn_open {
    struct dpn_net *net;
    struct dpn_open *next, **link; /* *link is this one */
    void (*close)(struct dpn_open *self);
};

struct dpn_net {
    int traffic_class; /* that NCCL was given for it; NCCL_NET_TRAFFIC_CLASS_UNDEF */
    unsigned forks;    /* dp_forks_passed when it was made */
    pthread_mutex_t lock;
    struct dpn_open *open; /* under lock */
};

struct dpn_listener {
    struct dpn_open open;
    int dev;
    struct dpn_late late;
    struct dpn_comm *pending; /* a peer that is in, but not ready yet */
    struct dp_wire_listener *on[DPN_WIRES];
};

/* A transport's begins with this. */
struct dpn_memory {
    struct dpn_memory *next;
};

/* A transport's begins with this. In use from isend, irecv or iflush until test says done. */
struct dpn_request {
    struct dpn_comm *comm;
    struct dpn_stat_mark mark; /* the core's */
};

struct dpn_comm {
    struct dpn_open open;
    bool is_sender;
    int dev;             /* that NCCL chose */
    int counted_dev;     /* that carries the bytes, as a placement may have it */
    int traffic_class;   /* as NCCL gave it */
    uint32_t ops;        /* what it is for, see options.h */
    int32_t peer_worker; /* see net/placement.h; -1: not known */

    /* While connecting: where the handle is and what is in it, to find this again. */
    const void *handle_at;
    uint8_t handle[NCCL_NET_HANDLE_MAXSIZE];
    int64_t polled_ns; /* the last call, and in how much time with calls the peer's host was silent */
    int64_t silent_ns;

    pthread_mutex_t lock; /* all below; only a deregistration wants it besides */
    struct dp_wire *wire;
    bool is_control_only;                        /* the wire is for words, messages go by RDMA */
    const struct dpn_transport *transport; /* NULL until the wire is connected */
    void *state;                           /* the transport's */
    struct dpn_memory *memories;
    struct dpn_stat stat;
    struct dpn_late late;        /* since the last request was done */
    char peer[DP_SOCKADDR_TEXT]; /* the other end, for people */
    char rail[DPN_STAT_DEVICE_LEN]; /* how a profiler calls what carries the bytes */
};

extern struct dpn_net_options dpn_options;
static inline int64_t dpn_timeout_ns(void)
{
    return dpn_options.timeout_s * DP_NS_PER_S;
}

/* Whether this process was forked after the context was made. What is open in it is the parent's
 * alone: the adapters are the same files, so that destroying a queue pair here would destroy the
 * parent's, they know only the parent's memory, and another thread may have held any of the locks.
 */
static inline bool dpn_is_inherited(const struct dpn_net *net)
{
    return net->forks != dp_forks_passed;
}

void dpn_open_add(struct dpn_open *open, struct dpn_net *net);
void dpn_open_remove(struct dpn_open *open);

/* What dpn_net_say_next said on this thread, and the traffic class, if need be the context's. */
uint32_t dpn_net_said(const struct dpn_net *net, int *traffic_class);

#endif
