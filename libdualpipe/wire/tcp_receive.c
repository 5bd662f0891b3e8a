/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_receive.c - messages out of the sockets of a TCP wire. Each begins on socket 0; the pieces of
 * a long one are taken from all sockets as they come, straight to where they belong. What comes of
 * later messages stays in the socket.
 */
#include "wire/tcp_wire.h"

#include <string.h>

static int nonsense(struct dp_tcp_wire *w)
{
    dp_wire_fail(&w->base.wire, DP_EMISMATCH, "what arrived is no message");
    return DP_EMISMATCH;
}

/* An error of a socket is told once: when a send has met it, a receive finds the end of the stream.
 */
static void say_lost(struct dp_tcp_wire *w, int index, int error)
{
    if (error == EPIPE && w->send_error)
        error = w->send_error;
    char why[sizeof(w->base.wire.why)];

    dp_tcp_describe(w, index, error, why, sizeof(why));
    w->base.wire.is_closed = error == EPIPE; /* what was said to a peer that had left, too */
    w->base.wire.is_reset = error == ECONNRESET;
    dp_wire_fail(&w->base.wire, DP_ECOMM, "%s", why);
}

/* ---- bytes -------------------------------------------------------------------------------- */

/* How far ahead to read: only the next header behind a long part, and before one. How long one will
 * be is told by the receive, or, where that is aimed later, guessed from the frame before. */
static size_t ahead_limit(const struct dp_tcp_wire *w, const struct dp_tcp_socket *s)
{
    if (w->is_refused)
        return DP_TCP_READ_AHEAD;
    if (s != w->sockets)
        return sizeof(s->in);
    size_t len = s->has_in || w->base.wire.set_target ? dp_tcp_part(&s->in) : w->base.receives.head->len;
    return len > DP_TCP_READ_AHEAD ? sizeof(s->in) : DP_TCP_READ_AHEAD;
}

/* A peer that has sent all and closed ends the sockets one after the other: that counts where
 * something of this one is missing, or when there is no other one left, see check_hope. */
static int end_of(struct dp_tcp_wire *w, struct dp_tcp_socket *s)
{
    s->has_ended = true;
    if (w->has_message && !s->has_in && !dp_tcp_ahead(s))
        return DP_EAGAIN;
    say_lost(w, (int)(s - w->sockets), EPIPE);
    return DP_ECOMM;
}

/* 0, DP_EAGAIN, or the wire is lost. */
static int pull(struct dp_tcp_wire *w, struct dp_tcp_socket *s, char *buf, size_t len, size_t *n)
{
    if (s->has_ended)
        return end_of(w, s);
    const int err = dp_tcp_socket_pull(s, buf, len, ahead_limit(w, s), n);
    if (!err)
        w->base.moves++;
    if (!err || err == DP_EAGAIN)
        return err;
    if (err == -EPIPE)
        return end_of(w, s);
    say_lost(w, (int)(s - w->sockets), -err);
    return DP_ECOMM;
}

/* Garbage goes at its first four bytes: there may be no more of it. */
static bool begins_wrong(const struct dp_tcp_socket *s)
{
    const uint32_t magic = DP_TCP_MAGIC;

    return dp_tcp_ahead(s) >= sizeof(magic) &&
           memcmp(s->ahead + s->ahead_at, &magic, sizeof(magic));
}

static bool is_frame(const struct dp_tcp_wire *w, const struct dp_tcp_frame *f)
{
    return f->magic == DP_TCP_MAGIC && !f->zero && f->len <= DP_WIRE_MAX_BYTES &&
           f->offset <= f->len && f->rest <= f->len - f->offset &&
           (f->stripe ? w->count > 1 : dp_tcp_part(f) == f->len);
}

static int receive_header(struct dp_tcp_wire *w, struct dp_tcp_socket *s)
{
    size_t n;

    while (dp_tcp_ahead(s) < sizeof(s->in)) {
        int err = pull(w, s, NULL, 0, &n);
        if (begins_wrong(s))
            return nonsense(w);
        if (err)
            return err;
    }
    dp_tcp_socket_take(s, (char *)&s->in, sizeof(s->in));
    if (!is_frame(w, &s->in))
        return nonsense(w);
    s->has_in = true;
    s->in_got = 0;
    return 0;
}

/* The message is longer than the room for it: done as far as the receiver is concerned, but its
 * bytes must still be taken off the wire. */
static void refuse_message(struct dp_tcp_wire *w)
{
    struct dp_wire_request *req = w->base.receives.head;

    w->is_refused = true;
    w->base.skip = w->message.len;
    req->moved = w->message.len;
    req->tag = w->message.tag;
    dp_wire_finish_head(&w->base.receives, DP_EMISMATCH);
}

/* What the first frame on socket 0 tells. */
static int learn_message(struct dp_tcp_wire *w)
{
    struct dp_tcp_socket *s = w->sockets;
    struct dp_wire_request *req = w->base.receives.head;
    const int err = s->has_in ? 0 : receive_header(w, s);

    if (err)
        return err;
    if (s->in.stripe && s->in.stripe != w->stripe + 1)
        return nonsense(w);
    w->stripe += s->in.stripe != 0;
    w->message = s->in;
    w->has_message = true;
    w->got = 0;
    if (w->base.wire.set_target)
        w->base.wire.set_target(req, w->message.tag, w->message.len);
    if (w->message.len > req->len)
        refuse_message(w);
    return 0;
}

/* Whether the socket's frame is one of the message's; what comes later stays where it is. */
static bool is_for_now(const struct dp_tcp_wire *w, const struct dp_tcp_socket *s)
{
    return s->in.stripe == w->message.stripe;
}

static bool fits(const struct dp_tcp_wire *w, const struct dp_tcp_frame *f)
{
    return f->len == w->message.len && f->tag == w->message.tag;
}

/* Of a part: out of what was read ahead, then one call for the rest. */
static int receive_part(struct dp_tcp_wire *w, struct dp_tcp_socket *s)
{
    const size_t part = dp_tcp_part(&s->in);
    char *to = w->is_refused ? NULL : w->base.receives.head->buf + s->in.offset;
    size_t n = dp_tcp_socket_take(s, to ? to + s->in_got : NULL, part - s->in_got), pulled = 0;
    int err = 0;

    s->in_got += n;
    if (s->in_got < part) {
        err = pull(w, s, to ? to + s->in_got : NULL, to ? part - s->in_got : 0, &pulled);
        s->in_got += pulled;
    }
    n += pulled;
    w->got += n;
    w->base.skip -= w->is_refused ? n : 0;
    s->has_in = s->in_got < part;
    return err == DP_EAGAIN && n ? 0 : err;
}

/* A frame, or some of it, of one socket. DP_EAGAIN: nothing more to be had there now. */
static int receive_on(struct dp_tcp_wire *w, struct dp_tcp_socket *s)
{
    const int err = s->has_in ? 0 : receive_header(w, s);

    if (err)
        return err;
    if (!is_for_now(w, s)) {
        /* The next ones may have come; those before, never again. */
        const bool later = s == w->sockets || s->in.stripe > w->message.stripe;
        return later ? DP_EAGAIN : nonsense(w);
    }
    if (!fits(w, &s->in) || w->got + dp_tcp_part(&s->in) - s->in_got > w->message.len)
        return nonsense(w);
    return receive_part(w, s);
}

/* No frame of it may be half read: two had claimed the same bytes. */
static int finish_message(struct dp_tcp_wire *w)
{
    struct dp_wire_request *req = w->base.receives.head;

    for (int i = 0; i < w->count; i++)
        if (w->sockets[i].has_in && is_for_now(w, &w->sockets[i]))
            return nonsense(w);
    w->has_message = false;
    if (w->is_refused) {
        w->is_refused = false;
        return 0;
    }
    req->moved = w->message.len;
    req->tag = w->message.tag;
    dp_wire_finish_head(&w->base.receives, 0);
    return 0;
}

bool dp_tcp_is_wanted(const struct dp_tcp_wire *w, int index)
{
    const struct dp_tcp_socket *s = &w->sockets[index];

    if (!dp_wire_listens(&w->base) || s->has_ended)
        return false;
    if (!w->has_message)
        return !index;
    return (!index || w->message.stripe) && (!s->has_in || is_for_now(w, s));
}

/* What is missing of the message must come by a socket that has neither ended nor got to a later
 * one. */
static int check_hope(struct dp_tcp_wire *w)
{
    int ended = -1;

    for (int i = 0; i < w->count; i++) {
        if (dp_tcp_is_wanted(w, i))
            return DP_EAGAIN;
        if (w->sockets[i].has_ended)
            ended = i;
    }
    if (ended < 0)
        return nonsense(w);
    say_lost(w, ended, EPIPE);
    return DP_ECOMM;
}

/* Up to one message for the first receive: a call for each socket that has some of it. DP_EAGAIN:
 * nothing more to be had now. */
int dp_tcp_receive_some(struct dp_tcp_wire *w)
{
    bool moved = false;
    int err = w->has_message ? 0 : learn_message(w);

    if (err)
        return err;
    const int count = w->message.stripe ? w->count : 1;
    for (int i = 0; i < count && (w->got < w->message.len || w->sockets[i].has_in); i++) {
        err = receive_on(w, &w->sockets[i]);
        if (err && err != DP_EAGAIN)
            return err;
        moved |= !err;
    }
    if (w->got == w->message.len)
        return finish_message(w);
    return moved ? 0 : check_hope(w);
}
