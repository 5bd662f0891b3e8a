/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_open.c - how a wire over TCP comes to be. The address of a listener says how many sockets it
 * wants; the connecting side decides, opens them all at once, and each of them says its hello:
 * how many there are, which one it is, and a random token that those of one wire share. The
 * listener puts together what belongs together, and hands out a wire when it is whole.
 */
#include "wire/tcp_wire.h"

#include "base/clock.h"
#include "base/fail.h"
#include "wire/sockets.h"
#include "wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { LEAST_BUFFER_BYTES = 64 << 10 }; /* what fits in any case */

/* ---- a wire ------------------------------------------------------------------------------- */

static int new_wire(int count, struct dp_tcp_wire **out)
{
    struct dp_wire_options options;
    int err = dp_options_read(&dp_wire_option_area, &options);

    if (err)
        return err;
    struct dp_tcp_wire *w = calloc(1, sizeof(*w) + (size_t)count * sizeof(w->sockets[0]));
    if (!w)
        return dp_fail(DP_ENOMEM, "no memory for a connection");
    dp_wire_init(&w->base, &dp_wire_tcp);
    w->base.buffer_bytes = LEAST_BUFFER_BYTES;
    w->buffer_kib = options.tcp_buffer_kib;
    w->count = count;
    w->epoll_fd = -1;
    for (int i = 0; i < count; i++) {
        w->sockets[i].fd = -1;
        w->sockets[i].connector.fd = w->sockets[i].connector.passed_fd = -1;
    }
    if (count > 1)
        w->epoll_fd = dp_socket_epoll();
    if (count > 1 && w->epoll_fd < 0) {
        err = dp_fail(DP_EIO, "no epoll for a connection: %s", dp_errno_text(errno));
        dp_tcp_close(&w->base.wire);
        return err;
    }
    *out = w;
    return 0;
}

/* ---- what a hello says of its socket ------------------------------------------------------ */

static uint64_t make_extra(uint64_t token, int index, int count)
{
    return token << 16 | (uint64_t)index << 8 | (uint64_t)count;
}

static int count_of(const struct dp_hello *hello)
{
    const int count = (int)(hello->extra & 0xff);

    return count ? count : 1;
}

static int index_of(const struct dp_hello *hello)
{
    return (int)(hello->extra >> 8 & 0xff);
}

static uint64_t token_of(const struct dp_hello *hello)
{
    return hello->extra >> 16;
}

/* ---- connect ------------------------------------------------------------------------------ */

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* Of two that were told how many, the smaller number; otherwise that of the one that was told. */
static int choose_count(const union dp_sockaddr *place, int theirs, int64_t ours)
{
    int count = theirs;

    if (ours)
        count = theirs ? smaller(theirs, (int)ours) : (int)ours;
    if (!count)
        count = dp_tcp_route_sockets("", place);
    return smaller(count, DP_TCP_SOCKETS_MAX);
}

static int start_calls(struct dp_tcp_wire *w, const union dp_sockaddr *place,
                       const uint8_t cookie[DP_COOKIE_BYTES], struct dp_hello *hello)
{
    char address[DP_SOCKADDR_TEXT], where[DP_SOCKADDR_TEXT + 40];
    int err = 0;

    dp_sockaddr_text(place, address);
    for (int i = 0; i < w->count && !err; i++) {
        if (w->count == 1)
            snprintf(where, sizeof(where), "%s", address);
        else
            snprintf(where, sizeof(where), "%s, socket %d of %d", address, i + 1, w->count);
        hello->extra = make_extra(w->token, i, w->count);
        err = dp_connector_start(&w->sockets[i].connector, &place->any, dp_sockaddr_len(place),
                                 where, hello, cookie, -1);
    }
    return err;
}

static int tcp_connect(const struct dp_wire_address *address, uint64_t label, struct dp_wire **out)
{
    struct dp_hello hello = {.kind = DP_HELLO_TCP, .label = label};
    uint8_t cookie[DP_COOKIE_BYTES];
    struct dp_wire_options options;
    struct dp_tcp_wire *w;
    union dp_sockaddr place;
    int theirs, err = dp_options_read(&dp_wire_option_area, &options);

    if (!err)
        err = dp_wire_tcp_way(address, &place, cookie, &theirs);
    if (err)
        return err;
    err = new_wire(choose_count(&place, theirs, options.tcp_sockets), &w);
    if (err)
        return err;
    if (w->count > 1)
        err = dp_random_bytes(&w->token, sizeof(w->token));
    w->token >>= 16;
    if (!err)
        err = start_calls(w, &place, cookie, &hello);
    if (err)
        dp_wire_fail(&w->base.wire, err, "%s", dp_last_error());
    *out = &w->base.wire;
    return 0;
}

/* ---- accept ------------------------------------------------------------------------------- */

/* The wire that a pending's socket belongs to, new if it is the first one of it; NULL if it belongs
 * to none: such a wire is there, but not so. */
static int find_incomplete(struct dp_wire_listener *acceptor, const struct dp_hello *hello,
                           struct dp_tcp_wire **out)
{
    const int count = count_of(hello), index = index_of(hello);
    struct dp_tcp_wire *w = acceptor->incomplete;

    *out = NULL;
    if (count > acceptor->most_sockets || index >= count)
        return 0;
    while (w && (count == 1 || w->token != token_of(hello)))
        w = w->next_incomplete;
    if (w) {
        if (w->count == count && w->label == hello->label && w->sockets[index].fd < 0)
            *out = w;
        return 0;
    }
    int err = new_wire(count, &w);
    if (err)
        return err;
    w->token = token_of(hello);
    w->label = hello->label;
    w->until_ns = dp_now_ns() + acceptor->handshake_timeout_ns;
    w->next_incomplete = acceptor->incomplete;
    acceptor->incomplete = w;
    *out = w;
    return 0;
}

static struct dp_tcp_wire **link_of(struct dp_wire_listener *acceptor, const struct dp_tcp_wire *w)
{
    struct dp_tcp_wire **link = &acceptor->incomplete;

    while (*link != w)
        link = &(*link)->next_incomplete;
    return link;
}

static bool is_whole(const struct dp_tcp_wire *w)
{
    for (int i = 0; i < w->count; i++)
        if (w->sockets[i].fd < 0)
            return false;
    return true;
}

/* Takes the pending's files. *out stays NULL while the wire lacks others. */
static int attach(struct dp_wire_listener *acceptor, const struct dp_pending *pending,
                  struct dp_tcp_wire **out)
{
    struct dp_tcp_wire *w;
    const int err = find_incomplete(acceptor, &pending->hello, &w);

    dp_fd_close(pending->passed_fd);
    if (err || !w) {
        dp_fd_close(pending->fd);
        return err;
    }
    dp_tcp_put_socket(w, index_of(&pending->hello), pending->fd);
    if (!index_of(&pending->hello))
        memcpy(w->session, pending->session, sizeof(w->session));
    if (!is_whole(w))
        return 0;
    *link_of(acceptor, w) = w->next_incomplete;
    *out = w;
    return 0;
}

static void drop_incomplete(struct dp_wire_listener *acceptor, int64_t now_ns)
{
    for (struct dp_tcp_wire **link = &acceptor->incomplete; *link;) {
        struct dp_tcp_wire *w = *link;
        if (now_ns <= w->until_ns) {
            link = &w->next_incomplete;
            continue;
        }
        *link = w->next_incomplete;
        dp_tcp_close(&w->base.wire);
    }
}

static int tcp_accept(struct dp_wire_listener *listener, uint64_t *label, struct dp_wire **out)
{
    struct dp_tcp_wire *w = NULL;
    struct dp_pending pending;
    int err = 0;

    while (!err && !w) {
        err = dp_acceptor_admit(listener, &pending);
        if (!err)
            err = attach(listener, &pending, &w);
    }
    if (listener->incomplete)
        drop_incomplete(listener, dp_now_ns());
    if (err)
        return err;
    w->base.wire.connected = true;
    *label = w->label;
    *out = &w->base.wire;
    return 0;
}

static void tcp_unlisten(struct dp_wire_listener *listener)
{
    if (listener)
        drop_incomplete(listener, INT64_MAX);
    dp_acceptor_close(listener);
}

const struct dp_wire_ops dp_wire_tcp = {
    .name = "tcp",
    .address_bytes = sizeof(struct dp_tcp_address),
    .listen = dp_wire_tcp_listen,
    .accept = tcp_accept,
    .unlisten = tcp_unlisten,
    .connect = tcp_connect,
    .progress = dp_tcp_progress,
    .has_message = dp_tcp_has_message,
    .arm = dp_tcp_arm,
    .disarm = dp_tcp_disarm,
    .quiesce = dp_tcp_quiesce,
    .close = dp_tcp_close,
};
