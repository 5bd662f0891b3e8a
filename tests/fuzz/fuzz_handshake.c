/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_handshake.c - the handshake of a wire with a peer that does not know its cookie: the input is what
 * that peer sends to the acceptor or to the connector, as its first byte says. It is never let in.
 */
#include "fuzz.h"

#include "base/clock.h"
#include "wire_dial.h"

static const uint8_t cookie[DP_COOKIE_BYTES] = "not to be known";

/* The hello of the input, and behind it its proof; in between the acceptor challenges. */
static void to_acceptor(const uint8_t *data, size_t size)
{
    struct dp_wire_config config = {.interface = "127.0.0.1"};
    struct dialer d = {.cookie = cookie};
    struct dp_wire_address address;
    struct dp_tcp_address a;

    memcpy(config.cookie, cookie, sizeof(cookie));
    must(!dp_wire_tcp.listen(&config, &d.listener, &address));
    memcpy(&a, &address, sizeof(a));
    int fd = dial_port(0, a.port);
    must(fd >= 0);
    ssize_t n = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    do {
        uint64_t label;
        char answer[sizeof(struct dp_challenge)];
        must(dp_wire_tcp.accept(d.listener, &label, &d.wire) == DP_EAGAIN);
        n = recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
    } while (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)));
    close(fd);
    dp_wire_tcp.unlisten(d.listener);
}

static void to_connector(const uint8_t *data, size_t size)
{
    union dp_sockaddr place = {
        .v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd;
    struct dp_wire_address address;
    socklen_t len = sizeof(place);
    struct dp_wire *wire;

    must(!bind(listener, &place.any, sizeof(place.v4)) && !listen(listener, 1));
    must(!getsockname(listener, &place.any, &len));
    dp_wire_tcp_address(&place, cookie, &address);
    must(!dp_wire_tcp.connect(&address, 5, &wire));
    while ((fd = accept(listener, NULL, NULL)) < 0)
        must(errno == EINTR);
    close(listener);
    ssize_t n = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
    shutdown(fd, SHUT_WR);
    while (!wire->error && !wire->why[0]) /* or it tries again */
        wire->ops->progress(wire);
    must(!wire->connected);
    dp_wire_close(wire);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (data[0] & 1)
        to_connector(data + 1, size - 1);
    else
        to_acceptor(data + 1, size - 1);
    return 0;
}
