/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - a wire: messages between two processes, both ways, in order, each one whole. Over shared
 * memory (shm) or TCP (tcp); fault (fault.h) wraps another one and makes it worse.
 *
 *      process A                                   process B
 *      listen  -> listener, address
 *                     ----- the address, by any way ---->
 *                                                  connect(address, label) -> wire, usable at once
 *      accept  -> wire, label
 *      irecv, test, test ...                       isend, test, ...
 *
 * Nothing blocks. A request is queued in its wire, first come, first served, any number of them and
 * any length up to DP_WIRE_MAX_BYTES; progress moves what can be moved. What arrives without a
 * receive waits where it is, up to the wire's own buffer, and behind it the sender waits.
 *
 * The address holds a random cookie, and who does not show it when he connects is dropped: it keeps
 * out strangers and mistakes, not somebody who can read the network.
 *
 * Threads: one at a time per wire and per listener.
 */
#ifndef DP_WIRE_WIRE_H
#define DP_WIRE_WIRE_H

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
    const void *reached_by; /* tcp: struct sockaddr of this host that others know; NULL: find one */
    int port;               /* tcp; 0: any that is free */
    uint8_t cookie[DP_COOKIE_BYTES]; /* all 0: a random one */
    int64_t patience_ns;    /* who connects must show the cookie in this time; 0: 5 s */
};

/* A message on its way. The caller owns the memory, which stays until status tells that it is done. */
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

/* What a wire implements; every member is set. */
struct dp_wire_ops {
    const char *name;
    size_t address_bytes; /* of struct dp_wire_address, from its beginning, that are used */
    /* Errors: DP_EINVAL naming interface or port, DP_ECOMM (port in use), DP_EIO, DP_ENOMEM. */
    int (*listen)(const struct dp_wire_config *config, struct dp_wire_listener **out,
                  struct dp_wire_address *address);
    /* DP_EAGAIN: nobody is there who has shown the cookie. Never fails for what a stranger does. */
    int (*accept)(struct dp_wire_listener *listener, uint64_t *label, struct dp_wire **out);
    void (*unlisten)(struct dp_wire_listener *listener);
    /* The wire may be used at once; that nobody answers shows later, as its error. The label is for
     * the accepting side, to know who it is. DP_EUNSUPPORTED: it does not reach that far (shm to
     * another host); DP_EIO, DP_ENOMEM. */
    int (*connect)(const struct dp_wire_address *address, uint64_t label, struct dp_wire **out);
    /* Move what can be moved. Errors show in wire->error and in all requests. */
    void (*progress)(struct dp_wire *wire);
    /* About to sleep: say what to poll for. false: do not, there is something to do at once. Poll
     * or not, disarm comes next. */
    bool (*arm)(struct dp_wire *wire, struct pollfd *fd);
    void (*disarm)(struct dp_wire *wire, short revents);
    /* Requests are about to be dropped: see to it that nobody reads or writes their memory any more.
     * dp_wire_fail calls it. */
    void (*let_go)(struct dp_wire *wire);
    /* What was sent (status 0) still arrives. Lets go first. */
    void (*close)(struct dp_wire *wire);
};

/* The part that every wire begins with. */
struct dp_wire {
    const struct dp_wire_ops *ops;
    struct dp_wire_queue sends, receives;
    size_t skip;    /* bytes of a message that was too long for its receive, still to come */
    size_t buffer_bytes; /* about what a sender gets rid of before there is a receive */
    bool connected; /* the other side has let us in */
    unsigned moves; /* calls that have moved bytes: where there were some, more may be near */
    bool nothing_ahead; /* to look for a message takes a system call: a new receive waits for progress */
    /* shm and tcp; NULL as a rule, the user may set it: called when tag and length of a message are
     * known and before its first byte is stored, to say in the receive's buf and len where to. It may
     * be called twice for one message, and says the same then. */
    void (*aim)(struct dp_wire_request *receive, uint64_t tag, size_t message_len);
    bool is_closed; /* tcp, with an error: the peer has closed it, or ended; not lost on the way */
    bool is_refused; /* tcp, with an error: nobody listens there (any more) */
    int error;      /* 0 while it works: DP_ECOMM the peer is gone, DP_EMISMATCH nonsense arrived */
    char why[160];  /* the sentence of error, or of why sends fail */
};

extern const struct dp_wire_ops dp_wire_shm, dp_wire_tcp;

/* Queue a message and move what can be moved. Never fails: look at req->status. */
void dp_wire_isend(struct dp_wire *wire, uint64_t tag, const void *buf, size_t len,
                   struct dp_wire_request *req);
void dp_wire_irecv(struct dp_wire *wire, void *buf, size_t room, struct dp_wire_request *req);
/* wire may be NULL. Requests in flight are dropped. */
void dp_wire_close(struct dp_wire *wire);

/* Whether there is something to wait for from the other side. */
static inline bool dp_wire_wants_input(const struct dp_wire *wire)
{
    return wire->receives.head || wire->skip;
}

static inline bool dp_wire_is_busy(const struct dp_wire *wire)
{
    return wire->sends.head || dp_wire_wants_input(wire);
}

/* ---- for those who implement a wire --------------------------------------------------------- */

void dp_wire_init(struct dp_wire *wire, const struct dp_wire_ops *ops);
/* The head of the queue is done; 0 or DP_EMISMATCH. */
void dp_wire_finish_head(struct dp_wire_queue *queue, int status);
/* The peer takes nothing any more, but what it had sent before may still be received: finish the
 * sends with DP_ECOMM. `reason` becomes why, unless there is one. */
void dp_wire_fail_sends(struct dp_wire *wire, const char *reason);
/* Set error and why unless they are set; finish all requests. */
void dp_wire_fail(struct dp_wire *wire, int error, const char *fmt, ...) DP_PRINTF(3, 4);

#endif
