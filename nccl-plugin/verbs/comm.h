/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.h - a connection over RDMA.
 *
 *      rail        a port of this side and one of the peer
 *      queue pair  two connected queue pairs, one a side, on a rail; a rail may have several
 *      CTS entry   64 bytes that the receiver writes into the sender's memory: a receive buffer is
 *                  ready for one message (clear to send)
 *      slot, sub   index of a receive, and of a buffer of it
 *      stripe      the part of a message that goes over one queue pair
 *      block       the memory of a side that the peer writes to, and that it writes from
 *      eager       a short message that does not wait for its CTS entry: verbs/recv.c
 *      inline      a very short eager message, which is seen without a completion: verbs/queues.h
 *
 *      receiver                                             sender
 *      irecv: CTS entries -- RDMA write, any queue pair -->  its ring of CTS entries
 *      the receive buffer <-- RDMA write, a stripe per queue pair --  isend
 *      completion         <-- the immediate of each stripe: which message, which stripe of how many
 *
 * The receiver may delay CTS entries and write several at once (verbs/cts_write.c). The immediates
 * tell what has arrived, in whatever order. A stripe that is sent again, over another queue pair,
 * writes the same bytes to the same address. When a queue pair fails, each side destroys its own
 * one and then reports that (CLOSED); the receiver's report says what has arrived. Only then is the
 * rest sent over other queue pairs. So no write of the old queue pair can arrive after the receive
 * is done and its memory has been reused, and no buffer is read that was returned to its owner.
 *
 * A file calls only those in lines above its own:
 *
 *      worker, ibv_qp, qp                calls that may block; one queue pair, and how it fails
 *      flush, cts_write, eager_send      loopback; CTS entries; short messages
 *      send, recv                        one side each
 *      control                           messages beside the queue pairs
 *      qps                               completions; what both sides tell each other
 *      progress                          all of these, at intervals; stalls; the end of the connection
 *      memory, choice, handshake         registrations; ports; how it begins
 *      verbs                             the transport
 */
#ifndef DPN_VERBS_COMM_H
#define DPN_VERBS_COMM_H

#include "nccl-plugin/verbs/receiver.h"
#include "nccl-plugin/verbs/sender.h"
#include "nccl-plugin/verbs/verbs.h"

enum dpn_step {
    DPN_STEP_BEGIN,
    DPN_STEP_PLAN,
    DPN_STEP_QPS,
    DPN_STEP_NO_QPS,   /* no queue pair came up, both sides agree to decline */
    DPN_STEP_DECLINED, /* the wire is free for other use once the last control message is sent */
    DPN_STEP_READY
};

struct dpn_control_message; /* a control message in flight */

/* The control channel: the wire beside the queue pairs, and the state that outlives a lost wire.
 * See verbs/control.c. */
struct dpn_channel {
    uint32_t sent, acked, received;
    bool is_resumed; /* control messages may be sent over this wire */
    struct dpn_resume resume;
    struct dp_wire_request resume_req;

    struct dp_wire_address acceptor; /* of the peer's process */
    bool peer_has_acceptor, has_acceptor;
    uint64_t label;                     /* 0: a lost wire is not replaced */
    _Atomic(struct dp_wire *) accepted; /* receiver: a new wire that the watchdog accepted */
    struct dp_wire *attempt;            /* a connection attempt in progress, or NULL */
    bool is_lost, is_final;             /* the wire is lost; and no attempt will replace it */
    int64_t since_ns, lost_ns; /* when it was lost; for how long, counting only time with polls */
    int attempts, refusals;    /* refusals: consecutive */
    int64_t attempt_ns, attempt_until_ns, heartbeat_ns;
    char why[224];
};

/* Which ports this side offers. */
struct dpn_choice {
    struct dpn_device const *device; /* NCCL's device, or own_device */
    struct dpn_device own_device;    /* as the placement wants it */
    int placed_ports;                /* the first ports of own_device, which the placement names */
    int placed_qps, placed_class;
    /* the device's ports, then those that may replace them */
    struct dpn_port *ports[DPN_MAX_RAILS];
    int port_count;
};

/* The control messages of a connection. */
struct dpn_control {
    struct dp_wire_request incoming;
    union dpn_control_body received;
    bool is_receiving;    /* a receive for `incoming` is posted */
    bool has_peer_failed; /* the peer sent FAILED */
    struct dpn_control_message *unacked; /* oldest first */
    struct dpn_channel channel;
};

/* See verbs/progress.c. */
struct dpn_stall {
    bool has_moved;     /* something completed or arrived since the last poll */
    uint32_t moves;     /* number of polls with has_moved */
    int64_t stalled_ns; /* time without it while requests were open */
    /* receiver */
    int64_t reported_ns; /* stalled_ns at the last report */
    uint32_t number;     /* number of the control message with that report */
    /* sender */
    uint32_t peer_moves, cts_read; /* at the last report */
    unsigned reports;              /* consecutive reports with the same contents */
};

/* A part for each owner: memory of its own would cost a load on the way to it. */
struct dpn_verbs {
    union {
        struct dpn_queues q; /* with which each of the two begins */
        struct dpn_sender send;
        struct dpn_receiver recv;
    };
    enum dpn_step step;
    bool has_told; /* the peer knows */
    unsigned idle; /* consecutive polls that found nothing */
    unsigned polls; /* other polls; these check deadlines and control messages at intervals, too */
    struct dpn_control control;
    struct dpn_choice choice;
    struct dpn_stall stall;
    int64_t polled_ns, peer_gone_ns;
    bool is_watched; /* is in the watchdog's list; protected by the watchdog's lock */
    struct dpn_verbs *next_watched;
};

/* verbs/choice.c. Collect the device's ports and, if the sender has to match the receiver's subnet,
 * others that may replace them. */
void dpn_choice_gather(struct dpn_choice *c, bool is_sender);
void dpn_choice_describe(const struct dpn_choice *c, struct dpn_port_info *ports);
/* The largest work request that all ports carry, in bytes. */
uint32_t dpn_choice_max_message(const struct dpn_choice *c);
/* Pair ports of the same link layer; ports of the side that has fewer are used several times, in
 * turn. */
void dpn_choice_pair(const struct dpn_choice *c, const struct dpn_hello *hello,
                     const struct dpn_port_info *own, struct dpn_plan *plan);
/* Before a side describes its ports: choose those that the placement names for a flow between two
 * workers. Returns the device that counts its bytes, dev where the placement names none. The sender
 * prefers the queue pairs of these, once there are some. */
int dpn_choice_place(struct dpn_choice *c, bool is_sender, int32_t from, int32_t to,
                     enum dpn_traffic traffic, int dev);
void dpn_choice_prefer(const struct dpn_choice *c, const struct dpn_plan *plan,
                       struct dpn_queues *q);

/* verbs/control.c: the control messages. */
void dpn_control_send(struct dpn_verbs *v, enum dpn_control_kind kind,
                      const union dpn_control_body *body);
/* Receive the next message into v->control.received. false: there is none. */
bool dpn_control_receive(struct dpn_verbs *v, enum dpn_control_kind *kind);
/* Whether a control message of this side is still being sent. */
bool dpn_control_is_sending(struct dpn_verbs *v);
/* Whether the next one, which the next poll takes, tells that the peer has ended the connection. */
bool dpn_control_tells_the_end(struct dpn_verbs *v);
void dpn_control_free_all(struct dpn_verbs *v);
/* Send FAILED with the reason. */
void dpn_control_send_failed(struct dpn_verbs *v);
/* Read what is left, before the wire is closed. */
void dpn_control_drain(struct dpn_verbs *v);
/* Process the peer's RESUME, after which both sides send again. */
void dpn_control_take_resume(struct dpn_verbs *v, const struct dpn_resume *resume);
/* Replace the wire when it is lost. */
void dpn_channel_poll(struct dpn_verbs *v, int64_t now_ns);
void dpn_channel_close(struct dpn_verbs *v);

/* Its acceptors listen for peers that have lost the control wire of a connection. Any thread. */

/* Called before and after a fork. Between the two the child calls dpn_acceptors_forget: the
 * listeners that it inherited stay with its parent. */
void dpn_acceptors_lock(void);
void dpn_acceptors_unlock(void);
void dpn_acceptors_forget(void);

/* The address of the acceptor on this interface, and a label, never 0, for one connection. Errors
 * are those of a wire's listen. */
int dpn_acceptor_use(const char *interface, struct dp_wire_address *address, uint64_t *label);
void dpn_acceptor_release(const char *interface);

/* DP_EAGAIN; or 0 with an accepted wire and the label of the connection that it is for. */
int dpn_acceptor_accept(uint64_t *label, struct dp_wire **out);

/* verbs/handshake.c. Continue the handshake. 0: there are queue pairs; DP_EAGAIN: call again;
 * otherwise there is no RDMA to this peer. */
int dpn_verbs_handshake(struct dpn_verbs *v);
/* The peer does not connect here any more. */
void dpn_verbs_release_acceptor(const struct dpn_verbs *v);
/* The completion queues and the registered block of each rail, whose queue pairs are all gone. */
void dpn_rails_close(struct dpn_queues *q);

/* verbs/qps.c: what both sides tell each other about them. */
void dpn_qp_take_open(struct dpn_verbs *v, const struct dpn_open_qp *open);
void dpn_qp_take_opened(struct dpn_verbs *v, const struct dpn_opened_qp *opened);
void dpn_qp_take_closed(struct dpn_verbs *v, unsigned qp, unsigned epoch);
/* Finish draining, retry, and check deadlines. */
void dpn_qps_poll(struct dpn_verbs *v, int64_t now_ns);
/* Whether one is being connected, or destroyed: dpn_qps_poll soon has something to do. */
bool dpn_qps_are_changing(const struct dpn_verbs *v);

/* verbs/progress.c */
void dpn_verbs_progress(struct dpn_verbs *v);
/* The same, with everything that is otherwise done only at intervals. */
void dpn_verbs_progress_all(struct dpn_verbs *v);
/* Tell the receiver of a message that was too long for its buffer, if there was one. */
void dpn_verbs_send_refusal(struct dpn_verbs *v);
/* After an error, call again until this is true: the peer is told, and all queue pairs are
 * destroyed, so that no memory is accessed any more, and the error may be reported. After
 * DUALPIPE_NET_TIMEOUT it is true in any case. */
bool dpn_verbs_has_ended(struct dpn_verbs *v);

/* verbs/qps.c: process completions only. Returns whether there were any. */
bool dpn_verbs_poll(struct dpn_verbs *v);
/* The same without looking for inline messages. */
bool dpn_verbs_poll_queues(struct dpn_verbs *v);

#endif
