/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp.c - a wire over TCP, IPv4 or IPv6. A message is a header and its bytes, handed to the kernel
 * in one call; a long one of a wire with several sockets is cut into such frames for all of them.
 * What is read ahead of the header that is being looked for goes into a small buffer; the rest of a
 * long message goes straight to where it belongs.
 */
#include "wire/tcp_wire.h"

#include "base/clock.h"
#include "base/fail.h"

#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { MOST_UNREAD = 4 << 20 }; /* a peer may go on sending while its input is thrown away */

/* ---- the end ---------------------------------------------------------------------------------- */

/* The system resets a connection that is closed with unread input, and drops what it has still to
 * send. */
static void discard_input(int fd)
{
    char unread[DP_TCP_READ_AHEAD];

    for (int i = 0; i < MOST_UNREAD / DP_TCP_READ_AHEAD; i++)
        if (recv(fd, unread, sizeof(unread), MSG_DONTWAIT) <= 0)
            return;
}

void dp_tcp_close(struct dp_wire *wire)
{
    struct dp_tcp_wire *w = dp_tcp_of(wire);

    for (int i = 0; i < w->count; i++) {
        dp_connector_fini(&w->sockets[i].connector);
        discard_input(w->sockets[i].fd);
        dp_fd_close(w->sockets[i].fd);
    }
    dp_fd_close(w->epoll_fd);
    free(w);
}

/* ---- connecting ------------------------------------------------------------------------------- */

void dp_tcp_put_socket(struct dp_tcp_wire *w, int index, int fd)
{
    w->sockets[index].fd = fd;
    dp_tcp_socket_tune(fd, w->buffer_kib, w->count > 1);
}

/* false: not yet, or never. */
static bool go_on_calling(struct dp_tcp_wire *w, int index)
{
    struct dp_connector *connector = &w->sockets[index].connector;
    int fd;

    if (!dp_connector_connect(connector, &w->base.wire, &fd))
        return false;
    dp_tcp_put_socket(w, index, fd);
    if (!index)
        memcpy(w->session, connector->session, sizeof(w->session));
    return true;
}

/* Of the sockets that are connected, one has been closed by the other side. */
static bool is_dropped(const struct dp_tcp_wire *w)
{
    bool is_open = true;
    char byte;

    for (int i = 0; i < w->count && is_open; i++) {
        const ssize_t n =
            w->sockets[i].fd < 0 ? 1 : recv(w->sockets[i].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        is_open = n > 0 || (n < 0 && errno == EAGAIN);
    }
    return !is_open;
}

/* The acceptor has not waited for the rest of the wire, as this side was stopped or held up. */
static void start_over(struct dp_tcp_wire *w)
{
    for (int i = 0; i < w->count && !w->base.wire.error; i++) {
        struct dp_connector before = w->sockets[i].connector;
        dp_connector_fini(&before);
        dp_fd_close(w->sockets[i].fd);
        w->sockets[i].fd = -1;
        if (dp_connector_start(&w->sockets[i].connector, (struct sockaddr *)&before.address,
                               before.address_len, before.where, &before.hello, before.cookie, -1))
            dp_wire_fail(&w->base.wire, DP_EIO, "%s", dp_last_error());
    }
}

static bool is_connected(struct dp_tcp_wire *w)
{
    int missing = 0;

    if (w->base.wire.connected)
        return true;
    w->base.wire.is_reached = true;
    w->base.wire.is_refused = false;
    for (int i = 0; i < w->count && !w->base.wire.error; i++)
        missing += w->sockets[i].fd < 0 && !go_on_calling(w, i);
    const bool some = w->count > 1 && missing < w->count && !w->base.wire.error;
    if (some && is_dropped(w)) {
        start_over(w);
        missing = w->count;
    }
    w->base.wire.connected = !missing && !w->base.wire.error;
    return w->base.wire.connected;
}

/* ---- signs of life -------------------------------------------------------------------------- */

/* Once a second of calls, while nothing moves. Connections that are still being made have sockets that
 * come and go. */
static void look_for_life(struct dp_tcp_wire *w)
{
    const int64_t now_ns = dp_now_ns();
    struct dp_tcp_life life;
    char why[sizeof(w->base.wire.why)];

    if (!w->timeout_ns || now_ns - w->looked_ns < DP_NS_PER_S)
        return;
    w->looked_ns = now_ns;
    for (int i = 0; i < w->count && !w->base.wire.error; i++) {
        if (!w->base.wire.connected)
            dp_tcp_socket_keep_alive(dp_tcp_fd(&w->sockets[i]), w->timeout_ns);
        dp_tcp_socket_look(dp_tcp_fd(&w->sockets[i]), &life);
        if (!life.is_unanswered || life.silent_ns <= w->timeout_ns)
            continue;
        dp_tcp_describe(w, i, 0, why, sizeof(why));
        dp_wire_fail(&w->base.wire, DP_ECOMM, "%s", why);
    }
}

void dp_wire_tcp_set_timeout(struct dp_wire *wire, int64_t ns)
{
    struct dp_tcp_wire *w = dp_tcp_of(wire);

    w->timeout_ns = ns;
    dp_tcp_socket_ends(dp_tcp_fd(w->sockets), w->ends);
    for (int i = 0; i < w->count; i++)
        dp_tcp_socket_keep_alive(dp_tcp_fd(&w->sockets[i]), ns);
}

/* ---- what the table has --------------------------------------------------------------------- */

/* Of one socket both ways go down together, and what had come may be read until then; of several,
 * the others might stay open for ever. */
static void give_up_sending(struct dp_tcp_wire *w, bool may_receive_more)
{
    char why[sizeof(w->base.wire.why)];

    dp_tcp_describe(w, w->broken, w->send_error, why, sizeof(why));
    dp_wire_fail_sends(&w->base, why);
    if (w->count > 1 && !may_receive_more)
        dp_wire_fail(&w->base.wire, DP_ECOMM, "%s", why);
}

void dp_tcp_progress(struct dp_wire *wire)
{
    struct dp_tcp_wire *w = dp_tcp_of(wire);
    const struct dp_tcp_socket *first = w->sockets;
    bool more = true;

    if (!dp_wire_may_progress(&w->base))
        return;
    if (!is_connected(w)) {
        look_for_life(w);
        return;
    }
    if (!w->send_error)
        dp_tcp_send_all(w);
    for (int i = 0; i < DP_TCP_TURNS && more && dp_wire_wants_input(&w->base); i++)
        more = !dp_tcp_receive_some(w);
    wire->nothing_ahead = !dp_tcp_ahead(first) && !first->has_ended &&
                          (w->has_message || !first->has_in);
    if (w->send_error)
        give_up_sending(w, more);
    else if (!more || w->base.sends.head)
        look_for_life(w);
}

/* ---- sleeping ----------------------------------------------------------------------------- */

/* What has been read ahead rings no bell: a progress that stopped because it had had its turns may
 * have left whole messages there, or nothing but the end of socket 0. */
static bool has_more_ahead(const struct dp_tcp_wire *w)
{
    if (w->sockets[0].has_ended && !w->has_message && dp_wire_wants_input(&w->base))
        return true;
    for (int i = 0; i < w->count; i++) {
        const struct dp_tcp_socket *s = &w->sockets[i];
        if (!dp_tcp_is_wanted(w, i))
            continue;
        if (s->has_in ? dp_tcp_ahead(s) || !w->has_message : dp_tcp_ahead(s) >= sizeof(s->in))
            return true;
    }
    return false;
}

static uint32_t events_of(const struct dp_tcp_wire *w, int index)
{
    return (dp_tcp_is_wanted(w, index) ? (uint32_t)EPOLLIN : 0) |
           (w->sockets[index].sending && !w->send_error ? (uint32_t)EPOLLOUT : 0);
}

/* One that nothing is wanted of is not there at all: that it has ended would always be news. false:
 * the system has no room for one more (fs.epoll.max_user_watches). */
static bool watch(struct dp_tcp_wire *w, struct dp_tcp_socket *s, uint32_t events)
{
    struct epoll_event event = {.events = events};

    if (events == s->watched)
        return true;
    if (epoll_ctl(w->epoll_fd, !events ? EPOLL_CTL_DEL : s->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
                  s->fd, &event))
        return false;
    s->watched = events;
    return true;
}

/* One socket is polled for itself, as it is while a rank waits for its next message. false: nothing to
 * sleep on. */
static bool arm_sockets(struct dp_tcp_wire *w, struct pollfd *fd)
{
    bool is_watched = true;
    int busy = 0, last = 0;

    for (int i = 0; i < w->count; i++)
        if (events_of(w, i)) {
            busy++;
            last = i;
        }
    const uint32_t events = events_of(w, last);
    *fd = (struct pollfd){.fd = w->sockets[last].fd,
                          .events = (short)((events & EPOLLIN ? POLLIN : 0) |
                                            (events & EPOLLOUT ? POLLOUT : 0))};
    if (busy <= 1)
        return true;
    for (int i = 0; i < w->count; i++)
        is_watched &= watch(w, &w->sockets[i], events_of(w, i));
    *fd = (struct pollfd){.fd = w->epoll_fd, .events = POLLIN};
    return is_watched;
}

/* The end of the stream is not looked at again, nor is it polled for. */
bool dp_tcp_has_message(struct dp_wire *wire)
{
    struct dp_tcp_wire *w = dp_tcp_of(wire);
    struct dp_tcp_socket *s = w->sockets;
    char byte;

    if (!wire->connected || w->base.receives.head || w->base.skip)
        return false;
    if (s->has_in || dp_tcp_ahead(s))
        return true;
    const ssize_t n = s->has_ended ? 0 : recv(s->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n < 0 && !w->send_error)
        w->send_error = errno;
    s->has_ended = n != 1;
    return n == 1;
}

bool dp_tcp_arm(struct dp_wire *wire, struct pollfd *fd)
{
    struct dp_tcp_wire *w = dp_tcp_of(wire);
    int calling = 0;

    if (wire->error || w->in_a_hurry || has_more_ahead(w))
        return false;
    if (wire->connected)
        return arm_sockets(w, fd);
    while (calling < w->count - 1 && w->sockets[calling].fd >= 0)
        calling++;
    *fd = dp_connector_poll(&w->sockets[calling].connector);
    return true;
}

void dp_tcp_disarm(struct dp_wire *wire, short revents)
{
    (void)wire;
    (void)revents;
}

/* Memory is read and written in progress only. */
void dp_tcp_quiesce(struct dp_wire *wire)
{
    (void)wire;
}

static int name_end(const struct dp_wire *wire, int (*name)(int, struct sockaddr *, socklen_t *),
                    union dp_sockaddr *out)
{
    socklen_t len = sizeof(*out);

    memset(out, 0, sizeof(*out));
    if (name(((const struct dp_tcp_wire *)wire)->sockets[0].fd, &out->any, &len))
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

int dp_wire_tcp_count(const struct dp_wire *wire)
{
    return ((const struct dp_tcp_wire *)wire)->count;
}

void dp_wire_tcp_hide(const struct dp_wire *wire, bool by_connector,
                      struct dp_wire_address *address)
{
    const struct dp_tcp_wire *w = (const struct dp_tcp_wire *)wire;
    const uint8_t direction = by_connector;
    struct dp_tcp_address a;
    uint8_t pad[DP_HMAC_BYTES];
    struct dp_hmac hmac;

    dp_hmac_begin(&hmac, w->session, sizeof(w->session));
    dp_hmac_add(&hmac, &direction, sizeof(direction));
    dp_hmac_end(&hmac, pad);
    memcpy(&a, address, sizeof(a));
    for (int i = 0; i < DP_COOKIE_BYTES; i++)
        a.cookie[i] ^= pad[i];
    memcpy(address, &a, sizeof(a));
}
