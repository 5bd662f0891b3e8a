/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_listen.c - where a TCP wire listens, and what it says of that to others.
 */
#include "wire/tcp.h"

#include "base/fail.h"
#include "wire/acceptor.h"
#include "wire/sockets.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* ---- addresses ----------------------------------------------------------------------------- */

static void pack_address(const union dp_sockaddr *place, struct dp_tcp_address *a)
{
    a->port = (uint16_t)dp_sockaddr_port(place);
    a->is_v6 = place->any.sa_family == AF_INET6;
    if (a->is_v6) {
        memcpy(a->ip, &place->v6.sin6_addr, 16);
        a->scope = place->v6.sin6_scope_id;
    } else {
        memcpy(a->ip, &place->v4.sin_addr, 4);
    }
}

static void unpack_address(const struct dp_tcp_address *a, union dp_sockaddr *place)
{
    memset(place, 0, sizeof(*place));
    if (a->is_v6) {
        place->v6.sin6_family = AF_INET6;
        memcpy(&place->v6.sin6_addr, a->ip, 16);
        place->v6.sin6_scope_id = a->scope;
    } else {
        place->v4.sin_family = AF_INET;
        memcpy(&place->v4.sin_addr, a->ip, 4);
    }
    dp_sockaddr_set_port(place, a->port);
}

void dp_wire_tcp_address(const union dp_sockaddr *place, const uint8_t cookie[DP_COOKIE_BYTES],
                         struct dp_wire_address *out)
{
    struct dp_tcp_address a = {.sockets = 1};

    pack_address(place, &a);
    memcpy(a.cookie, cookie, sizeof(a.cookie));
    memset(out, 0, sizeof(*out));
    memcpy(out, &a, sizeof(a));
}

int dp_wire_tcp_way(const struct dp_wire_address *address, union dp_sockaddr *place,
                    uint8_t cookie[DP_COOKIE_BYTES], int *sockets)
{
    uint8_t host_id[DP_HOST_ID_BYTES];
    struct dp_tcp_address a;
    int err = dp_host_id("", host_id);

    if (err)
        return err;
    memcpy(&a, address, sizeof(a));
    memcpy(cookie, a.cookie, sizeof(a.cookie));
    *sockets = a.sockets;
    unpack_address(&a, place);
    if (!a.hears_loopback || memcmp(host_id, a.host_id, sizeof(host_id)))
        return 0;
    memset(place, 0, sizeof(*place));
    place->v4.sin_family = AF_INET;
    place->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    dp_sockaddr_set_port(place, a.port);
    return 0;
}

void dp_wire_tcp_ask_for(struct dp_wire_address *address, int sockets)
{
    struct dp_tcp_address a;

    memcpy(&a, address, sizeof(a));
    a.sockets = (uint8_t)sockets;
    memcpy(address, &a, sizeof(a));
}

static bool is_link_local(const struct dp_tcp_address *a)
{
    return a->is_v6 && a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

void dp_wire_tcp_take_scope(struct dp_wire_address *address, const struct dp_wire_address *own)
{
    struct dp_tcp_address a, here;

    memcpy(&a, address, sizeof(a));
    memcpy(&here, own, sizeof(here));
    if (!is_link_local(&a) || !is_link_local(&here))
        return;
    a.scope = here.scope;
    memcpy(address, &a, sizeof(a));
}

/* ---- listening ----------------------------------------------------------------------------- */

static int bind_to(union dp_sockaddr *place, int *out)
{
    int one = 1, off = 0;
    int fd = dp_socket_open(place->any.sa_family);
    socklen_t len = sizeof(*place);

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (place->any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, &place->any, dp_sockaddr_len(place)) || listen(fd, SOMAXCONN) ||
        getsockname(fd, &place->any, &len)) {
        int err = -errno;
        dp_fd_close(fd);
        return err;
    }
    *out = fd;
    return 0;
}

/* All addresses of the host, IPv4 and IPv6 by one socket; only IPv4 where there is no IPv6. */
static int bind_to_all(union dp_sockaddr *place, int port, int *fd)
{
    memset(place, 0, sizeof(*place));
    place->v6.sin6_family = AF_INET6;
    place->v6.sin6_port = htons((uint16_t)port);
    int err = bind_to(place, fd);
    if (err != -EAFNOSUPPORT && err != -EADDRNOTAVAIL)
        return err;
    memset(place, 0, sizeof(*place));
    place->v4.sin_family = AF_INET;
    place->v4.sin_port = htons((uint16_t)port);
    return bind_to(place, fd);
}

static int say_bind_error(int err, const struct dp_wire_config *config)
{
    const char *where = config->interface ? config->interface : "all interfaces";

    if (err == -EADDRINUSE)
        return dp_fail(DP_ECOMM, "port %d on %s is in use by another program: choose another one",
                       config->port, where);
    if (err == -EACCES)
        return dp_fail(DP_ECOMM, "port %d on %s needs more rights: choose one above 1023",
                       config->port, where);
    return dp_fail(DP_ECOMM, "cannot listen on port %d of %s: %s", config->port, where,
                   dp_errno_text(-err));
}

/* What the others are told: the interface asked for, or how others know this host. */
static void find_reachable(const struct dp_wire_config *config, const union dp_sockaddr *bound,
                           bool hears_all, union dp_sockaddr *out)
{
    if (!hears_all)
        *out = *bound;
    else if (config->reached_by)
        memcpy(out, config->reached_by, sizeof(*out));
    else
        dp_interface_guess(out);
    dp_sockaddr_set_port(out, dp_sockaddr_port(bound));
}

static bool is_any(const union dp_sockaddr *a)
{
    return a->any.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr)
                                        : a->v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

/* It must be a listening TCP socket. */
static int adopt_socket(int fd, union dp_sockaddr *bound)
{
    int listens = 0;
    socklen_t len = sizeof(listens), room = sizeof(*bound);

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len))
        return dp_fail(DP_EINVAL, "descriptor %d: %s, expected a TCP socket that listens", fd,
                       dp_errno_text(errno));
    if (getsockname(fd, &bound->any, &room) ||
        (bound->any.sa_family != AF_INET && bound->any.sa_family != AF_INET6) || !listens)
        return dp_fail(DP_EINVAL, "descriptor %d: %s, expected a TCP socket that listens", fd,
                       listens ? "a socket of another kind" : "a socket that does not listen");
    if (fcntl(fd, F_SETFL, O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC))
        return dp_fail(DP_EIO, "descriptor %d: %s", fd, dp_errno_text(errno));
    return 0;
}

static int bind_as_told(const struct dp_wire_config *config, union dp_sockaddr *bound, int *fd)
{
    if (!config->interface)
        return bind_to_all(bound, config->port, fd);
    dp_sockaddr_set_port(bound, config->port);
    return bind_to(bound, fd);
}

int dp_wire_tcp_listen(const struct dp_wire_config *config, struct dp_wire_listener **out,
                       struct dp_wire_address *address)
{
    struct dp_tcp_address a = {0};
    struct dp_wire_options options;
    union dp_sockaddr bound, reachable;
    int fd = config->listener ? config->listener : -1;
    int err = dp_options_read(&dp_wire_option_area, &options);

    if (!err)
        err = dp_host_id("", a.host_id);
    if (!err)
        err = dp_acceptor_choose_cookie(config, a.cookie);
    if (!err && config->interface)
        err = dp_interface_address(config->interface, &bound);
    if (!err && config->listener)
        err = adopt_socket(fd, &bound);
    if (err) {
        dp_fd_close(fd);
        return err;
    }
    if (!config->listener)
        err = bind_as_told(config, &bound, &fd);
    if (err)
        return say_bind_error(err, config);
    a.hears_loopback = config->listener ? is_any(&bound) : !config->interface;
    err = dp_acceptor_open(fd, DP_HELLO_TCP, a.cookie, config, out);
    if (err)
        return err;
    (*out)->most_sockets = config->most_sockets ? config->most_sockets : DP_TCP_SOCKETS_MAX;
    find_reachable(config, &bound, a.hears_loopback, &reachable);
    pack_address(&reachable, &a);
    a.sockets = (uint8_t)options.tcp_sockets;
    memset(address, 0, sizeof(*address));
    memcpy(address, &a, sizeof(a));
    return 0;
}
