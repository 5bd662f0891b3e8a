/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp.c - a wire over TCP, IPv4 or IPv6. A message is a header and its bytes, handed to the kernel in
 * one call. What is read ahead of the header that is being looked for goes into a small buffer; the
 * rest of a long message goes straight to where it belongs.
 */
#include "wire/tcp.h"

#include "base/clock.h"
#include "base/fail.h"
#include "wire/door.h"
#include "wire/wire_options.h"

#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    READ_AHEAD = 8192, /* it is copied twice; a page and its header fit */
    TOGETHER = 4096,   /* a message so short goes out as one piece of memory with its header */
    TURNS = 16, /* system calls of one progress, so that one wire leaves time for the others */
    /* Between processes of one host: what is under way stays in the cache. A network wants the
     * kernel's own choice. */
    LOCAL_BUFFER_BYTES = 1 << 20,
    LEAST_BUFFER_BYTES = 64 << 10 /* what fits in any case */
};

/* Between processes of one host there is no congestion. Of the ways to control it this one is in every
 * kernel, free to all users, and lets go at once what may go; others (BBR) would space it out. */
static const char LOCAL_CONGESTION[] = "reno";

static const uint32_t MAGIC = 0x44507774; /* "DPwt" */

/* As long as a cache line: behind a shorter one the kernel copies a long message to odd addresses, for
 * which some processors take three times as long. */
struct header {
    uint32_t magic;
    uint32_t zero;
    uint64_t len;
    uint64_t tag;
    uint64_t padding[5];
};
_Static_assert(sizeof(struct header) == 64, "a header is one cache line");

struct tcp_wire {
    struct dp_wire base;
    struct dp_call call; /* until connected */
    int fd;              /* -1 until connected */
    int64_t buffer_kib;  /* the user's option */
    int send_error;      /* an errno: the peer takes nothing any more */

    struct header out; /* of sends.head */
    size_t out_sent;   /* bytes of header and message */
    char together[sizeof(struct header) + TOGETHER];

    struct header in; /* of receives.head, once has_in */
    bool has_in;
    size_t ahead_at, ahead_end;
    char ahead[READ_AHEAD];
};

static struct tcp_wire *of(struct dp_wire *wire)
{
    return (struct tcp_wire *)wire;
}

static int new_wire(struct tcp_wire **out)
{
    struct dp_wire_options options;
    int err = dp_options_read(&dp_wire_option_area, &options);

    if (err)
        return err;
    struct tcp_wire *w = calloc(1, sizeof(*w));
    if (!w)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    dp_wire_init(&w->base, &dp_wire_tcp);
    w->base.buffer_bytes = LEAST_BUFFER_BYTES;
    w->buffer_kib = options.tcp_buffer_kib;
    w->fd = -1;
    w->call.fd = w->call.passed_fd = -1;
    *out = w;
    return 0;
}

/* ---- sending ------------------------------------------------------------------------------- */

/* Over the loopback, or between two addresses of this host. */
static bool stays_here(int fd)
{
    union dp_sockaddr here = {.room = {0}}, there = {.room = {0}};
    socklen_t here_len = sizeof(here), there_len = sizeof(there);

    return !getsockname(fd, &here.any, &here_len) && !getpeername(fd, &there.any, &there_len) &&
           (dp_sockaddr_is_loopback(&there) || dp_sockaddr_is_same_ip(&here, &there));
}

/* Only what may be under way is limited. What the receiver takes is left to the kernel: with a small
 * buffer there it would offer less room than a segment is long, acknowledge late, and the sender would
 * wait for that. */
static void set_buffer(int fd, int bytes)
{
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

/* Where the system grants less (net.core.wmem_max), its own choice may become larger than that. */
static void set_local_buffer(int fd)
{
    int granted = 0;
    socklen_t len = sizeof(granted);

    set_buffer(fd, LOCAL_BUFFER_BYTES);
    getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &granted, &len);
#ifdef SO_BUF_LOCK
    const int unlock = 0;
    if (granted < LOCAL_BUFFER_BYTES)
        setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &unlock, sizeof(unlock));
#endif
}

static void set_options(struct tcp_wire *w)
{
    const bool here = stays_here(w->fd);
    const int one = 1;

    setsockopt(w->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (here)
        setsockopt(w->fd, IPPROTO_TCP, TCP_CONGESTION, LOCAL_CONGESTION, strlen(LOCAL_CONGESTION));
    if (here && w->buffer_kib < 0)
        set_local_buffer(w->fd);
    else if (w->buffer_kib > 0)
        set_buffer(w->fd, (int)w->buffer_kib << 10);
}

static int lost(struct tcp_wire *w, int error)
{
    dp_wire_fail(&w->base, DP_ECOMM, "%s", error ? strerror(error) : "the connection was closed");
    return DP_ECOMM;
}

/* Two pieces of memory for one call cost the kernel more than it does to copy a short one. */
static ssize_t send_short(struct tcp_wire *w, const struct dp_wire_request *req)
{
    memcpy(w->together, &w->out, sizeof(w->out));
    if (req->len)
        memcpy(w->together + sizeof(w->out), req->buf, req->len);
    return send(w->fd, w->together, sizeof(w->out) + req->len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t send_rest(struct tcp_wire *w, const struct dp_wire_request *req)
{
    const size_t header_sent = w->out_sent < sizeof(w->out) ? w->out_sent : sizeof(w->out);
    const size_t body_sent = w->out_sent - header_sent;
    struct iovec iov[2] = {
        {(char *)&w->out + header_sent, sizeof(w->out) - header_sent},
        {req->buf + body_sent, req->len - body_sent},
    };
    const struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

    return sendmsg(w->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* One call for the rest of the first message. false: the socket takes no more. */
static bool send_some(struct tcp_wire *w)
{
    const struct dp_wire_request *req = w->base.sends.head;

    if (!w->out_sent)
        w->out = (struct header){.magic = MAGIC, .len = req->len, .tag = req->tag};
    ssize_t n = !w->out_sent && req->len <= TOGETHER ? send_short(w, req) : send_rest(w, req);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            w->send_error = errno;
        return false;
    }
    w->base.moves++;
    w->out_sent += (size_t)n;
    if (w->out_sent < sizeof(w->out) + req->len)
        return false;
    w->out_sent = 0;
    dp_wire_finish_head(&w->base.sends, 0);
    return true;
}

/* ---- receiving ----------------------------------------------------------------------------- */

static size_t ahead_len(const struct tcp_wire *w)
{
    return w->ahead_end - w->ahead_at;
}

/* How far ahead to read: only the next header behind a long message, and before one. How long one will
 * be is told by the receive, or, where that is aimed later, guessed from the message before. */
static size_t ahead_limit(const struct tcp_wire *w)
{
    if (w->base.skip)
        return READ_AHEAD;
    size_t len = w->has_in || w->base.aim ? w->in.len : w->base.receives.head->len;
    return len > READ_AHEAD ? sizeof(struct header) : READ_AHEAD;
}

/* Read into buf[len], where there is one, and behind it into the buffer ahead, which is empty or
 * holds the beginning of a header. DP_EAGAIN, DP_ECOMM, or 0 and *n for buf. */
static int pull(struct tcp_wire *w, char *buf, size_t len, size_t *n)
{
    const size_t limit = ahead_limit(w);

    if (w->ahead_at) {
        memmove(w->ahead, w->ahead + w->ahead_at, ahead_len(w));
        w->ahead_end -= w->ahead_at;
        w->ahead_at = 0;
    }
    struct iovec iov[2] = {{buf, len}, {w->ahead + w->ahead_end, limit - w->ahead_end}};
    ssize_t got = len ? readv(w->fd, iov, 2)
                      : recv(w->fd, iov[1].iov_base, iov[1].iov_len, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return DP_EAGAIN;
    if (got <= 0)
        return lost(w, got ? errno : 0);
    w->base.moves++;
    *n = (size_t)got < len ? (size_t)got : len;
    w->ahead_end += (size_t)got - *n;
    return 0;
}

static size_t take_ahead(struct tcp_wire *w, char *buf, size_t len)
{
    size_t n = len < ahead_len(w) ? len : ahead_len(w);

    if (buf && n)
        memcpy(buf, w->ahead + w->ahead_at, n);
    w->ahead_at += n;
    return n;
}

static int nonsense(struct tcp_wire *w)
{
    dp_wire_fail(&w->base, DP_EMISMATCH, "what arrived is no message");
    return DP_EMISMATCH;
}

/* Garbage goes at its first four bytes: there may be no more of it. */
static bool begins_wrong(const struct tcp_wire *w)
{
    return ahead_len(w) >= sizeof(MAGIC) && memcmp(w->ahead + w->ahead_at, &MAGIC, sizeof(MAGIC));
}

static int receive_header(struct tcp_wire *w)
{
    size_t n;

    while (ahead_len(w) < sizeof(w->in)) {
        int err = pull(w, NULL, 0, &n);
        if (begins_wrong(w))
            return nonsense(w);
        if (err)
            return err;
    }
    take_ahead(w, (char *)&w->in, sizeof(w->in));
    if (w->in.magic != MAGIC || w->in.zero || w->in.len > DP_WIRE_MAX_BYTES)
        return nonsense(w);
    w->has_in = true;
    if (w->base.aim)
        w->base.aim(w->base.receives.head, w->in.tag, w->in.len);
    return 0;
}

/* The message is longer than the room for it: done as far as the receiver is concerned, but its bytes
 * must still be taken off the wire. */
static void refuse_message(struct tcp_wire *w)
{
    struct dp_wire_request *req = w->base.receives.head;

    w->base.skip = w->in.len;
    req->moved = w->in.len;
    req->tag = w->in.tag;
    w->has_in = false;
    dp_wire_finish_head(&w->base.receives, DP_EMISMATCH);
}

static int skip_message(struct tcp_wire *w)
{
    size_t n;

    for (;;) {
        w->base.skip -= take_ahead(w, NULL, w->base.skip);
        if (!w->base.skip)
            return 0;
        int err = pull(w, NULL, 0, &n);
        if (err)
            return err;
    }
}

/* Up to one message for the first receive. DP_EAGAIN: nothing more to be had now. */
static int receive_some(struct tcp_wire *w)
{
    struct dp_wire_request *req = w->base.receives.head;
    size_t n = 0;

    if (w->base.skip)
        return skip_message(w);
    int err = w->has_in ? 0 : receive_header(w);
    if (err)
        return err;
    if (w->in.len > req->len) {
        refuse_message(w);
        return 0;
    }
    req->moved += take_ahead(w, req->buf + req->moved, w->in.len - req->moved);
    if (req->moved < w->in.len) {
        err = pull(w, req->buf + req->moved, w->in.len - req->moved, &n);
        req->moved += n;
    }
    if (err || req->moved < w->in.len)
        return err;
    req->tag = w->in.tag;
    w->has_in = false;
    dp_wire_finish_head(&w->base.receives, 0);
    return 0;
}

/* ---- the table ----------------------------------------------------------------------------- */

static bool is_connected(struct tcp_wire *w)
{
    if (w->base.connected)
        return true;
    if (!dp_call_connect(&w->call, &w->base, &w->fd))
        return false;
    set_options(w);
    return true;
}

static void tcp_progress(struct dp_wire *wire)
{
    struct tcp_wire *w = of(wire);

    if (wire->error || !is_connected(w))
        return;
    for (int i = 0; i < TURNS && wire->sends.head && !w->send_error; i++)
        if (!send_some(w))
            break;
    for (int i = 0; i < TURNS && dp_wire_wants_input(wire); i++)
        if (receive_some(w))
            break;
    wire->nothing_ahead = !ahead_len(w);
    if (w->send_error)
        dp_wire_fail_sends(wire, strerror(w->send_error));
}

/* What has been read ahead rings no bell: a progress that stopped because it had had its turns may
 * have left whole messages there. */
static bool has_more_ahead(const struct tcp_wire *w)
{
    const bool in_message = w->has_in || w->base.skip;

    return dp_wire_wants_input(&w->base) && ahead_len(w) >= (in_message ? 1 : sizeof(w->in));
}

static bool tcp_arm(struct dp_wire *wire, struct pollfd *fd)
{
    struct tcp_wire *w = of(wire);

    if (wire->error || has_more_ahead(w))
        return false;
    if (!wire->connected) {
        *fd = dp_call_poll(&w->call);
        return true;
    }
    *fd = (struct pollfd){.fd = w->fd};
    if (dp_wire_wants_input(wire))
        fd->events |= POLLIN;
    if (wire->sends.head)
        fd->events |= POLLOUT;
    return true;
}

static void tcp_disarm(struct dp_wire *wire, short revents)
{
    (void)wire;
    (void)revents;
}

/* Memory is read and written in progress only. */
static void tcp_let_go(struct dp_wire *wire)
{
    (void)wire;
}

static void tcp_close(struct dp_wire *wire)
{
    struct tcp_wire *w = of(wire);

    dp_call_fini(&w->call);
    dp_fd_close(w->fd);
    free(w);
}

static int tcp_connect(const struct dp_wire_address *address, uint64_t label, struct dp_wire **out)
{
    union dp_sockaddr place;
    char where[DP_SOCKADDR_TEXT];
    struct dp_hello hello = {.kind = DP_HELLO_TCP, .label = label};

    dp_wire_tcp_way(address, &place, hello.cookie);
    dp_sockaddr_text(&place, where);
    struct tcp_wire *w;
    int err = new_wire(&w);
    if (err)
        return err;
    err = dp_call_start(&w->call, &place.any, dp_sockaddr_len(&place), where, &hello, -1);
    if (err)
        dp_wire_fail(&w->base, err, "%s", dp_last_error());
    *out = &w->base;
    return 0;
}

static int tcp_accept(struct dp_wire_listener *listener, uint64_t *label, struct dp_wire **out)
{
    struct dp_guest guest;
    int err = dp_door_admit(listener, &guest);

    if (err)
        return err;
    dp_fd_close(guest.passed_fd);
    struct tcp_wire *w;
    err = new_wire(&w);
    if (err) {
        close(guest.fd);
        return err;
    }
    w->fd = guest.fd;
    w->base.connected = true;
    set_options(w);
    *label = guest.hello.label;
    *out = &w->base;
    return 0;
}

static int name_end(const struct dp_wire *wire, int (*name)(int, struct sockaddr *, socklen_t *),
                    union dp_sockaddr *out)
{
    socklen_t len = sizeof(*out);

    memset(out, 0, sizeof(*out));
    if (name(((const struct tcp_wire *)wire)->fd, &out->any, &len))
        return dp_fail(DP_EIO, "no address of a connection: %s", strerror(errno));
    return 0;
}

int dp_wire_tcp_local(const struct dp_wire *wire, union dp_sockaddr *out)
{
    return name_end(wire, getsockname, out);
}

int dp_wire_tcp_peer(const struct dp_wire *wire, union dp_sockaddr *out)
{
    return name_end(wire, getpeername, out);
}

void dp_wire_tcp_set_patience(const struct dp_wire *wire, int64_t ns)
{
    const int fd = ((const struct tcp_wire *)wire)->fd, one = 1;
    const unsigned ms = (unsigned)(ns / DP_NS_PER_MS);
    const int idle_s = 10, interval_s = 5;

    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
}

const struct dp_wire_ops dp_wire_tcp = {
    .name = "tcp",
    .address_bytes = sizeof(struct dp_tcp_address),
    .listen = dp_wire_tcp_listen,
    .accept = tcp_accept,
    .unlisten = dp_door_close,
    .connect = tcp_connect,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .disarm = tcp_disarm,
    .let_go = tcp_let_go,
    .close = tcp_close,
};
