/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_wire.c - what somebody sends who has the cookie of a TCP listener: frames over one to four
 * sockets, and a hello beside them that says anything of its socket. Nothing may be written but
 * into receives, and the wire ends with its connections.
 *
 *      sockets - 1; label and extra of the hello, 8 bytes each; {socket, length (2 bytes), bytes}...
 */
#include "fuzz.h"

#include "wire_dial.h"
#include "wire/tcp_wire.h"

static const uint8_t fuzz_cookie[DP_COOKIE_BYTES] = "fuzz";
enum { SOCKETS = 4, RECEIVES = 4, ROOM = 1000, TRIES = 100 };

static struct dp_wire_listener *listen_somewhere(int *port)
{
    struct dp_wire_config config = {.interface = "127.0.0.1"};
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
    struct dp_tcp_address a;

    memcpy(config.cookie, fuzz_cookie, sizeof(fuzz_cookie));
    must(!dp_wire_tcp.listen(&config, &listener, &address));
    memcpy(&a, &address, sizeof(a));
    *port = a.port;
    return listener;
}

static void send_records(const int *fds, int count, const uint8_t *data, size_t size)
{
    while (size >= 3) {
        const size_t asked = data[1] | (size_t)data[2] << 8, left = size - 3;
        const size_t len = asked < left ? asked : left;
        ssize_t n = send(fds[data[0] % count], data + 3, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)n;
        data += 3 + len;
        size -= 3 + len;
    }
}

static void receive_all(struct dp_wire *wire)
{
    struct dp_wire_request receives[RECEIVES];
    char *rooms[RECEIVES];

    for (int i = 0; i < RECEIVES; i++) {
        rooms[i] = malloc(ROOM);
        must(rooms[i]);
        dp_wire_irecv(wire, rooms[i], ROOM, &receives[i]);
    }
    while (receives[RECEIVES - 1].status == DP_EAGAIN) {
        struct pollfd fd;
        if (wire->ops->arm(wire, &fd))
            must(dial_poll(&fd, 10000)); /* what is there is never slept on */
        wire->ops->progress(wire);
    }
    for (int i = 0; i < RECEIVES; i++) {
        must(receives[i].status || receives[i].moved <= ROOM);
        free(rooms[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dialer d = {.cookie = fuzz_cookie, .wanted = 99};
    int fds[SOCKETS], other;
    uint64_t said[2];

    if (size < 1 + sizeof(said))
        return 0;
    d.listener = listen_somewhere(&d.port);
    const int count = data[0] % SOCKETS + 1;
    memcpy(said, data + 1, sizeof(said));
    other = dial(&d, said[0], said[1]);
    must(other >= 0);
    for (int i = 0; i < count; i++) {
        fds[i] = dial(&d, 99, (uint64_t)77 << 16 | (uint64_t)i << 8 | (uint64_t)count);
        must(fds[i] >= 0);
    }
    send_records(fds, count, data + 1 + sizeof(said), size - 1 - sizeof(said));
    for (int i = 0; i < count; i++)
        shutdown(fds[i], SHUT_WR);
    shutdown(other, SHUT_WR);
    /* The other hello may make a wire of its own, or be told to be the first socket of ours. */
    for (int tries = 0; !d.wire && tries < TRIES; tries++)
        dial_accept(&d);
    if (d.wire)
        receive_all(d.wire);
    dp_wire_close(d.wire);
    close(other);
    for (int i = 0; i < count; i++)
        close(fds[i]);
    dp_wire_tcp.unlisten(d.listener);
    return 0;
}
