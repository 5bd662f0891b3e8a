/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_wire.h - what a TCP wire is made of: one socket, or several that share its long messages.
 *
 *      socket 0   [frame: all of a short message][frame: first piece of a long one][a piece] ...
 *      socket 1                                  [a piece of it][a piece]  ...
 *      socket 2                                  [a piece of it]    ...
 *
 * A frame is a header and a part of a message. Each message begins on socket 0, which keeps the
 * order; so a wait for one looks at one socket only. The pieces of a long one then go wherever
 * there is room, and say themselves where they belong: a socket that is slow gets fewer.
 */
#ifndef DP_WIRE_TCP_WIRE_H
#define DP_WIRE_TCP_WIRE_H

#include "wire/acceptor.h"
#include "wire/base.h"
#include "wire/tcp.h"

enum {
    DP_TCP_READ_AHEAD = 8192, /* it is copied twice; a page and its header fit */
    DP_TCP_TOGETHER = 4096,   /* a part so short goes out as one piece of memory with its header */
    DP_TCP_PIECE = 64 << 10,
    DP_TCP_ENDS = 2 * DP_SOCKADDR_TEXT + 8,
    DP_TCP_LONG = 2 * DP_TCP_PIECE /* from here on a message goes over all sockets */
};

/* As long as a cache line: behind a shorter one the kernel copies a long message to odd addresses,
 * for which some processors take three times as long. */
struct dp_tcp_frame {
    uint32_t magic;
    uint32_t zero;
    uint64_t len; /* of the message */
    uint64_t tag;
    uint64_t offset; /* in the message, of the part behind this */
    uint64_t rest;   /* of the message, neither before nor in this part */
    uint64_t stripe; /* of a piece: the how-manieth long message it is of, from 1 on; else 0 */
    uint64_t padding[2];
};
_Static_assert(sizeof(struct dp_tcp_frame) == 64, "a header is one cache line");

static inline size_t dp_tcp_part(const struct dp_tcp_frame *f)
{
    return f->len - f->offset - f->rest;
}

/* A connection, and the frame in flight in each direction. */
struct dp_tcp_socket {
    int fd;              /* -1 until connected */
    struct dp_connector connector; /* until connected */
    bool has_ended;      /* the peer sends nothing more */
    uint32_t watched;    /* what the wire's epoll waits for here */

    struct dp_wire_request *sending; /* whose frame is in out, NULL: none */
    struct dp_tcp_frame out;
    size_t out_sent; /* bytes of header and part */

    bool has_in;
    struct dp_tcp_frame in;
    size_t in_got; /* bytes of the part */
    size_t ahead_at, ahead_end;
    char ahead[DP_TCP_READ_AHEAD];
};

/* Sends are counted from the wire's beginning: done <= begun, done <= cut. */
struct dp_tcp_wire {
    struct dp_wire_base base;
    int64_t buffer_kib; /* the user's option */
    int64_t timeout_ns; /* of the peer's host, 0: the system's; */
    int64_t looked_ns;  /* it was last looked at */
    int epoll_fd;       /* of several sockets; -1 */
    int broken;         /* the socket that takes nothing any more, and why: an errno; 0: none */
    int send_error;
    char ends[DP_TCP_ENDS]; /* "HERE to THERE", asked while the system still knows; "": not yet */
    char together[sizeof(struct dp_tcp_frame) + DP_TCP_TOGETHER];

    uint64_t done;               /* the number of base.sends.head */
    uint64_t begun;              /* the next that socket 0 begins */
    uint64_t cut;                /* the next that pieces are cut from, */
    size_t cut_offset;           /* and where */
    uint64_t begun_stripe, cut_stripe; /* how many long ones were before each of the two */
    bool in_a_hurry;             /* progress has had its turns, and there is more to send */

    bool has_message;            /* the first frame has been read of */
    struct dp_tcp_frame message; /* the message that base.receives.head gets, */
    bool is_refused;             /* or no receive */
    size_t got;
    uint64_t stripe; /* of the last long message that came */

    uint8_t session[DP_HMAC_BYTES]; /* of socket 0: a key that only the two sides know */

    /* While not all sockets are there: */
    uint64_t token;
    uint64_t label;
    int64_t until_ns;
    struct dp_tcp_wire *next_incomplete;

    int count;
    struct dp_tcp_socket sockets[];
};

static inline struct dp_tcp_wire *dp_tcp_of(struct dp_wire *wire)
{
    return (struct dp_tcp_wire *)wire;
}

/* ---- one socket (tcp_socket.c) ------------------------------------------------------------ */

/* By where it leads to; buffer_kib is the option. */
void dp_tcp_socket_tune(int fd, int64_t buffer_kib, bool is_one_of_several);

/* "HERE to THERE" of a socket. */
void dp_tcp_socket_ends(int fd, char text[DP_TCP_ENDS]);

/* Let the system ask an idle peer's host for a sign of life, and give up after timeout_ns without. */
void dp_tcp_socket_keep_alive(int fd, int64_t timeout_ns);

/* What the system knows of a socket, by TCP_INFO. */
struct dp_tcp_life {
    bool is_unanswered; /* what was sent, or asked, again and again */
    int64_t silent_ns;  /* since the peer's host has said anything */
    unsigned unacked_bytes, retransmissions;
};
void dp_tcp_socket_look(int fd, struct dp_tcp_life *out);
/* The sentence of an error of the wire: the errno of a socket, or 0 for a silent host, with what the
 * system knows of the connection where the network may have lost it. */
void dp_tcp_describe(const struct dp_tcp_wire *w, int index, int error, char *text, size_t room);

static inline int dp_tcp_fd(const struct dp_tcp_socket *s)
{
    return s->fd >= 0 ? s->fd : s->connector.fd;
}

static inline size_t dp_tcp_ahead(const struct dp_tcp_socket *s)
{
    return s->ahead_end - s->ahead_at;
}

/* One call for the rest of what is being sent; room is for a short part. The bytes that went, or a
 * negative errno. */
ssize_t dp_tcp_socket_send(struct dp_tcp_socket *s, char *room);
/* One call: read into buf[len], where there is one, and behind it into the buffer ahead, up to
 * `limit` of that, which is empty or holds the beginning of a header. *n for buf. 0, DP_EAGAIN,
 * -EPIPE for the end, another negative errno. */
int dp_tcp_socket_pull(struct dp_tcp_socket *s, char *buf, size_t len, size_t limit, size_t *n);
/* Out of what was read ahead; buf may be NULL. */
size_t dp_tcp_socket_take(struct dp_tcp_socket *s, char *buf, size_t len);

/* ---- messages (tcp_send.c, tcp_receive.c) ------------------------------------------------- */

#define DP_TCP_MAGIC UINT32_C(0x44507774) /* "DPwt" */

/* System calls of one progress, so that one wire leaves time for the others. */
enum { DP_TCP_TURNS = 16 };

/* What the sockets take. An error of theirs is in w->send_error. */
void dp_tcp_send_all(struct dp_tcp_wire *w);
/* Up to one message for the first receive, or that much of one that no receive had room for.
 * DP_EAGAIN: nothing more to be had now; else the wire's error. */
int dp_tcp_receive_some(struct dp_tcp_wire *w);
/* Whether receiving depends on what comes by this socket. */
bool dp_tcp_is_wanted(const struct dp_tcp_wire *w, int index);

/* ---- a wire (tcp.c), as in struct dp_wire_ops --------------------------------------------- */

void dp_tcp_progress(struct dp_wire *wire);
bool dp_tcp_has_message(struct dp_wire *wire);
bool dp_tcp_arm(struct dp_wire *wire, struct pollfd *fd);
void dp_tcp_disarm(struct dp_wire *wire, short revents);
void dp_tcp_quiesce(struct dp_wire *wire);
void dp_tcp_close(struct dp_wire *wire);
/* It is connected. */
void dp_tcp_put_socket(struct dp_tcp_wire *w, int index, int fd);

/* ---- where to, and over how many (tcp_route.c) -------------------------------------------- */

/* Whether what is sent there does not leave this host; of a connection by its socket. */
bool dp_tcp_stays_here(int fd);
/* The number of sockets for the route to `place`. root: where /sys is, "" as a rule. */
int dp_tcp_route_sockets(const char *root, const union dp_sockaddr *place);

#endif
