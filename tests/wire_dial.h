/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_dial.h - connections to a TCP listener of the same thread, made by hand: the handshake of
 * wire/acceptor.h is done, what follows is the test's.
 */
#ifndef DP_TESTS_WIRE_DIAL_H
#define DP_TESTS_WIRE_DIAL_H

#include "wire/acceptor.h"
#include "wire/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

struct dialer {
    struct dp_wire_listener *listener;
    const uint8_t *cookie;
    int port;
    in_addr_t from; /* an address of the loopback to come from; 0: any */
    /* The first wire of this label that is accepted meanwhile; others are closed. */
    uint64_t wanted;
    struct dp_wire *wire;
};

static inline bool dial_poll(struct pollfd *fd, int timeout_ms)
{
    int n;

    while ((n = poll(fd, 1, timeout_ms)) < 0 && errno == EINTR)
        ;
    return n == 1;
}

/* A connected socket, -1 if there is none. An interrupted connect goes on by itself, and is done when
 * the socket can be written to. */
static inline int dial_port(in_addr_t from, int port)
{
    const struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(from)};
    const struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), error = 0;
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    socklen_t len = sizeof(error);

    if ((!from || !bind(fd, (const struct sockaddr *)&here, sizeof(here))) &&
        (!connect(fd, (const struct sockaddr *)&place, sizeof(place)) ||
         (errno == EINTR && dial_poll(&writable, 10000) &&
          !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) && !error)))
        return fd;
    close(fd);
    return -1;
}

static inline void dial_accept(struct dialer *d)
{
    struct dp_wire *wire;
    uint64_t label;

    if (dp_wire_tcp.accept(d->listener, &label, &wire))
        return;
    if (!d->wire && label == d->wanted)
        d->wire = wire;
    else
        dp_wire_close(wire);
}

/* A hello of this version, with the nonce 0. */
static inline struct dp_hello dial_hello(uint64_t label, uint64_t extra)
{
    return (struct dp_hello){.magic = 0x44507731, .version = DP_HELLO_VERSION, .kind = DP_HELLO_TCP,
                             .label = label, .extra = extra};
}

/* Send the hello and receive the answer. false: closed. */
static inline bool dial_challenge(struct dialer *d, int fd, const struct dp_hello *hello,
                                  struct dp_challenge *out)
{
    ssize_t n = send(fd, hello, sizeof(*hello), MSG_NOSIGNAL);

    do {
        dial_accept(d);
        n = recv(fd, out, sizeof(*out), MSG_DONTWAIT);
    } while (n < 0 && (errno == EAGAIN || errno == EINTR));
    return n == sizeof(*out);
}

/* The socket, the proof sent: the listener has all that it needs. -1: there is no connection. */
static inline int dial(struct dialer *d, uint64_t label, uint64_t extra)
{
    const struct dp_hello hello = dial_hello(label, extra);
    struct dp_challenge challenge;
    uint8_t proof[DP_HMAC_BYTES];
    int fd = dial_port(d->from, d->port);

    if (fd >= 0 && dial_challenge(d, fd, &hello, &challenge)) {
        dp_hello_prove(DP_HELLO_CONNECTOR, d->cookie, &hello, challenge.nonce, proof);
        if (send(fd, proof, sizeof(proof), MSG_NOSIGNAL) == sizeof(proof))
            return fd;
    }
    close(fd);
    return -1;
}

#endif
