/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - a wire: messages between two processes, in both directions, in order, each one whole.
 * Over shared memory (shm), TCP (tcp) or MPI (mpi.h).
 *
 *      process A                                   process B
 *      listen  -> listener, address
 *                     ----- the address, out of band ---->
 *                                                  connect(address, label) -> wire, usable at once
 *      accept  -> wire, label
 *      irecv, test, test ...                       isend, test, ...
 *
 * Nothing blocks. Requests are queued in their wire and served in order, any number of them and any
 * length up to DP_WIRE_MAX_BYTES; progress moves what can be moved. Data that arrives without a
 * receive stays in the wire's buffer; when that is full the sender waits.
 *
 * The address holds a random cookie. Both sides prove that they know it, without sending it (see
 * wire/acceptor.h); a connection that cannot is dropped. That keeps out strangers and mistakes, and
 * those who read the network but not the address. Messages are neither encrypted nor signed.
 *
 * A connection needs progress on both sides until it is there.
 *
 * Threads: one at a time per wire and per listener.
 */
#ifndef DP_WIRE_WIRE_H
#define DP_WIRE_WIRE_H

#include "base/options.h"
#include "wire/sockets.h"
#include <dualpipe/dualpipe.h>

#include <poll.h>

#define DP_WIRE_MAX_BYTES ((size_t)1 << 48)

enum { DP_COOKIE_BYTES = 16 };

/* Where a listener is. Plain bytes, to be sent or stored; fits into the handle of NCCL's plugins. */
struct dp_wire_address {
    uint8_t bytes[96];
};

/* How to listen. Zeroed memory will do. */
struct dp_wire_config {
    const char *interface; /* tcp: "eth0", or an address of this host; NULL: all */
    const void
        *reached_by; /* tcp: struct sockaddr of this host as others reach it; NULL: find one */
    int port;               /* tcp; 0: any that is free */
    int listener; /* tcp: a socket that listens already, and is taken, also on failure; 0: none */
    int most_sockets; /* tcp: a wire of more is refused; 0: of any number, where the cookie is secret */
    uint8_t cookie[DP_COOKIE_BYTES]; /* all 0: a random one */
    int64_t
        handshake_timeout_ns; /* a connection must prove the cookie within this time; 0: 5 s */
    bool needs_files; /* a connection that waits while no file may be opened is an error of accept;
                       * false: a warning, and accept goes on when there is room again */
};

/* A message in flight. The caller owns the memory, which stays until status tells that it is done.
 */
struct dp_wire_request {
    struct dp_wire_request *next;
    char *buf;      /* of a send only read */
    size_t len;     /* of a receive: the room in buf */
    size_t moved;   /* once done: the length of the message */
    uint64_t tag;   /* of a receive: the sender's, once done */
    int status;     /* DP_EAGAIN: in flight. 0: done. DP_EMISMATCH: the message was longer than the
                     * room, and is gone. Else the wire's error. */
};

struct dp_wire_queue {
    struct dp_wire_request *head, **end;
};

struct dp_wire;
struct dp_wire_listener;

/* How the peer finds memory that it was lent. Zeroed: it was not. */
struct dp_wire_loan {
    uint64_t words[2];
};

/* Memory of dp_shared_alloc that the peer reads and writes in place; each side lends one range at a
 * time. The loan travels as the user likes, and what the two do in turns is up to them: messages
 * order their accesses.
 *
 *      owner                       peer
 *      lend ----- the loan ----->  use, read and write, leave; any number of times
 *      end  <---- "done" --------
 */
struct dp_wire_loan_ops {
    /* false: this memory, or this wire, cannot be lent, or another range is. */
    bool (*lend)(struct dp_wire *wire, void *buf, size_t len, struct dp_wire_loan *out);
    /* After this the peer does not touch it; if the peer is between use and leave, wait for it.
     * Nothing lent: nothing done. */
    void (*end)(struct dp_wire *wire);
    /* Where the len bytes are in this process, until leave. NULL: not in reach, or ended; no leave
     * then. */
    char *(*use)(struct dp_wire *wire, const struct dp_wire_loan *loan, size_t len);
    void (*leave)(struct dp_wire *wire);
};

/* What a wire implements; every member is set unless its comment says that it may be NULL. */
struct dp_wire_ops {
    const char *name;
    size_t address_bytes; /* of struct dp_wire_address, from its beginning, that are used */
    /* Errors: DP_EINVAL naming interface or port, DP_ECOMM (port in use), DP_EUNSUPPORTED (shm, said
     * quietly: no folder for its socket), DP_EIO, DP_ENOMEM. */
    int (*listen)(const struct dp_wire_config *config, struct dp_wire_listener **out,
                  struct dp_wire_address *address);
    /* DP_EAGAIN: no connection has presented the cookie yet. Never fails for what a stranger does.
     * DP_EIO: too few open files for a connection that waits, which is accepted by a later call if
     * there is room by then. */
    int (*accept)(struct dp_wire_listener *listener, uint64_t *label, struct dp_wire **out);
    void (*unlisten)(struct dp_wire_listener *listener);
    /* The wire may be used at once; a missing answer shows later, as its error. The label
     * identifies this side to the accepting one. DP_EUNSUPPORTED: it does not reach that far (shm
     * to another host); DP_EIO, DP_ENOMEM. */
    int (*connect)(const struct dp_wire_address *address, uint64_t label, struct dp_wire **out);
    /* Move what can be moved. Errors show in wire->error and in all requests. */
    void (*progress)(struct dp_wire *wire);
    /* Whether a message, or its beginning, is there that no receive has been queued for. */
    bool (*has_message)(struct dp_wire *wire);
    /* About to sleep: say what to poll for. false: do not, there is something to do at once. Poll
     * or not, disarm comes next. */
    bool (*arm)(struct dp_wire *wire, struct pollfd *fd);
    void (*disarm)(struct dp_wire *wire, short revents);
    /* Requests are about to be dropped: after this no process reads or writes their memory.
     * dp_wire_fail calls it. */
    void (*quiesce)(struct dp_wire *wire);
    /* What was sent (status 0) still arrives. Quiesces first. */
    void (*close)(struct dp_wire *wire);
    const struct dp_wire_loan_ops *loans; /* NULL: no memory is lent */
};

/* What a wire tells its users, who see no more of it: it begins a struct dp_wire_base (wire/base.h). */
struct dp_wire {
    const struct dp_wire_ops *ops;
    /* shm and tcp; NULL as a rule, the user may set it: called when tag and length of a message are
     * known and before its first byte is stored, to say in the receive's buf and len where to. It
     * may be called twice for one message, and says the same then. */
    void (*set_target)(struct dp_wire_request *receive, uint64_t tag, size_t message_len);
    bool connected;     /* the handshake is done; MPI has none: the peer has given a sign */
    bool nothing_ahead; /* polling takes a system call: a new receive waits for progress */
    bool is_closed;  /* tcp, with an error: the peer has closed it or ended, as opposed to a lost
                        connection */
    bool is_reset; /* tcp, with an error: a reset came: the peer has ended without having read all,
                      or something between has dropped the connection */
    bool is_refused; /* no process listens there (any more); for a while it is tried again */
    bool is_reached; /* the peer's system has answered, the peer itself may be late */
    int error; /* 0 while it works: DP_ECOMM: the connection is gone; DP_EMISMATCH: malformed data
                  arrived */
    char why[224];  /* the sentence of error, of why sends fail, or of the last attempt to connect */
};

extern const struct dp_wire_ops dp_wire_shm, dp_wire_tcp;

/* Whether a process that listens at `from` reaches a listener of another one, at `to`. Zeroed: it does
 * not listen. */
bool dp_wire_shm_reaches(const struct dp_wire_address *from, const struct dp_wire_address *to);

/* Queue a message and move what can be moved. Never fails: look at req->status. */
void dp_wire_isend(struct dp_wire *wire, uint64_t tag, const void *buf, size_t len,
                   struct dp_wire_request *req);
void dp_wire_irecv(struct dp_wire *wire, void *buf, size_t room, struct dp_wire_request *req);
/* wire may be NULL. Requests in flight are dropped. */
void dp_wire_close(struct dp_wire *wire);

/* Set error and why unless they are set; finish all requests. */
void dp_wire_fail(struct dp_wire *wire, int error, const char *fmt, ...) DP_PRINTF(3, 4);
/* Wake up for a message without a receive, see has_message. */
void dp_wire_expect(struct dp_wire *wire, bool expects);
/* Whether there is a send that is not done; that, or a message of the other side would be news. */
bool dp_wire_is_sending(const struct dp_wire *wire);
bool dp_wire_is_busy(const struct dp_wire *wire);
/* Whether a request waits that is more than the wire takes without progress here. */
bool dp_wire_needs_progress(const struct dp_wire *wire);
/* Calls that have moved bytes. */
unsigned dp_wire_moves(const struct dp_wire *wire);
/* After so long a pending connection may lose its place to a new one, see wire/acceptor.h. */
#define DP_ACCEPTOR_EVICT_NS INT64_C(500000000)
/* About to sleep: what to poll for at a listener. false: connections are pending, look again soon. */
bool dp_acceptor_arm(const struct dp_wire_listener *acceptor, struct pollfd *fd);

/* ---- wire options ---------------------------------------------------------------------------- */

/* DUALPIPE_WIRE_*: options of all wires. Read whenever a wire is created. */

struct dp_wire_options {
    bool cma;
    bool measure;
    int64_t tcp_buffer_kib; /* 0: the kernel's choice; -1: ours */
    int64_t tcp_sockets;    /* 0: by route */
};

extern const struct dp_option_area dp_wire_option_area;

#endif
