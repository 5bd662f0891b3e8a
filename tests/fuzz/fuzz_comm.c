/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_comm.c - what somebody sends who is let in as a rank, but is none. The first byte says whether
 * the root or a member hears it; the rest is what comes over the wire. It ends with the connection,
 * and the rank that sent it is gone.
 */
#include "fuzz.h"

#include "comm/rendezvous.h"
#include "wire_dial.h"

static const uint8_t fuzz_cookie[DP_COOKIE_BYTES] = "fuzz";

static struct dp_wire_listener *listen_somewhere(int *port)
{
    struct dp_wire_config config = {.interface = "127.0.0.1"};
    struct dp_wire_listener *listener = NULL;
    struct dp_wire_address address;

    memcpy(config.cookie, fuzz_cookie, sizeof(fuzz_cookie));
    for (config.port = 21000; config.port < 29000; config.port++)
        if (!dp_wire_tcp.listen(&config, &listener, &address))
            break;
    *port = config.port;
    return listener;
}

/* A closed connection keeps its port for a minute; other addresses of the loopback have others. */
static in_addr_t choose_address(void)
{
    static uint32_t runs;

    return INADDR_LOOPBACK + (runs++ >> 13 << 8);
}

/* The other end of the wire, with all that comes out of it already inside. */
static void send_all(struct dialer *d, const uint8_t *data, size_t size)
{
    d->from = choose_address();
    int fd = dial(d, 0, 0);

    must(fd >= 0);
    ssize_t n = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct dialer d = {.cookie = fuzz_cookie};
    struct dp_rendezvous *rendezvous;

    if (!d.listener)
        d.listener = listen_somewhere(&d.port);
    if (!d.listener || !size)
        return 0;
    send_all(&d, data + 1, size - 1);
    for (d.wire = NULL; !d.wire;)
        dial_accept(&d);
    const bool member = data[0] & 1;
    must(!dp_rendezvous_new(member ? 2 : 0, 4, 1000000, &rendezvous));
    struct dp_rendezvous_peer *peer = &rendezvous->peers[member ? 0 : 1];
    rendezvous->gather = 1;
    rendezvous->is_gathering = true;
    dp_rendezvous_adopt(rendezvous, peer, d.wire);
    while (!peer->is_gone)
        dp_rendezvous_poll(rendezvous);
    /* It has said that it leaves, or it is known to be dead; a member may have heard other news. */
    struct dp_abort why;
    const bool aborted = dp_abort_record_get(&rendezvous->abort_record, &why);
    must(aborted || rendezvous->ranks[member ? 0 : 1].left);
    must(!aborted || (why.rank >= 0 && why.rank < 4 && memchr(why.text, 0, sizeof(why.text))));
    dp_rendezvous_free(rendezvous);
    return 0;
}
