/* SPDX-License-Identifier: Apache-2.0
 *
 * dial.h - somebody who has the cookie of a TCP listener, for the targets that say the rest.
 */
#ifndef DP_TESTS_FUZZ_DIAL_H
#define DP_TESTS_FUZZ_DIAL_H

#include "fuzz.h"
#include "wire/acceptor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

static const uint8_t fuzz_cookie[DP_COOKIE_BYTES] = "fuzz";

static inline bool fuzz_poll(struct pollfd *fd, int timeout_ms)
{
    int n;

    while ((n = poll(fd, 1, timeout_ms)) < 0 && errno == EINTR)
        ;
    return n == 1;
}

/* An interrupted connect goes on by itself, and is done when the socket can be written to. */
static inline bool fuzz_connect(int fd, const struct sockaddr_in *place)
{
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t len = sizeof(error);

    if (!connect(fd, (const struct sockaddr *)place, sizeof(*place)))
        return true;
    return errno == EINTR && fuzz_poll(&writable, 10000) &&
           !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) && !error;
}

/* A connection to a port of the loopback, the hello said. from: an address there to come from; 0: any. */
static inline int fuzz_dial(in_addr_t from, int port, uint64_t label, uint64_t extra)
{
    const struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(from)};
    const struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct dp_hello hello = {.magic = 0x44507731,
                             .version = DP_HELLO_VERSION,
                             .kind = DP_HELLO_TCP,
                             .label = label,
                             .extra = extra};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    memcpy(hello.cookie, fuzz_cookie, sizeof(fuzz_cookie));
    must(fd >= 0);
    must(!from || !bind(fd, (const struct sockaddr *)&here, sizeof(here)));
    must(fuzz_connect(fd, &place));
    must(send(fd, &hello, sizeof(hello), 0) == sizeof(hello));
    return fd;
}

#endif
