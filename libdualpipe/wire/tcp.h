/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp.h - what the parts of the TCP wire share, and what it has beside the table of wire.h.
 */
#ifndef DP_WIRE_TCP_H
#define DP_WIRE_TCP_H

#include "wire/net.h"
#include "wire/wire.h"

enum { DP_TCP_SOCKETS_MAX = 16 }; /* of a wire */

/* What struct dp_wire_address holds here. */
struct dp_tcp_address {
    uint8_t host_id[DP_HOST_ID_BYTES];
    uint8_t cookie[DP_COOKIE_BYTES];
    uint8_t ip[16];
    uint32_t scope;
    uint16_t port;
    uint8_t is_v6;
    uint8_t hears_loopback; /* on the same host, 127.0.0.1 is quicker and needs no network */
    uint8_t sockets;        /* that the listener was told a wire should have; 0: as the way wants it */
    uint8_t zero[3];
};
_Static_assert(sizeof(struct dp_tcp_address) <= sizeof(struct dp_wire_address), "an address fits");

/* The address of a listener at a known place with a known cookie, for wires of one socket. */
void dp_wire_tcp_address(const union dp_sockaddr *place, const uint8_t cookie[DP_COOKIE_BYTES],
                         struct dp_wire_address *out);

/* Where to connect to for an address, and with which cookie: over the loopback to a listener of
 * this host, if it hears that. *sockets as in struct dp_tcp_address. DP_EIO as dp_host_id. */
int dp_wire_tcp_way(const struct dp_wire_address *address, union dp_sockaddr *place,
                    uint8_t cookie[DP_COOKIE_BYTES], int *sockets);
/* Let connections to that listener have so many sockets. */
void dp_wire_tcp_ask_for(struct dp_wire_address *address, int sockets);
/* An IPv6 address of one link (fe80::) has the number of its host's interface: it becomes that of this
 * host's, to which `own` belongs. */
void dp_wire_tcp_take_scope(struct dp_wire_address *address, const struct dp_wire_address *own);

int dp_wire_tcp_listen(const struct dp_wire_config *config, struct dp_wire_listener **out,
                       struct dp_wire_address *address);

/* Hide the cookie of an address that is sent over a connected wire, or show what was hidden: the
 * same call on both sides. Once per wire and direction; by_connector: the connecting side sends. */
void dp_wire_tcp_hide(const struct dp_wire *wire, bool by_connector,
                      struct dp_wire_address *address);

/* This end of a connected wire. */
int dp_wire_tcp_local(const struct dp_wire *wire, union dp_sockaddr *out);
/* The other end. */
int dp_wire_tcp_peer(const struct dp_wire *wire, union dp_sockaddr *out);

/* Of how many sockets it is. */
int dp_wire_tcp_count(const struct dp_wire *wire);

/* Give up after this long without a sign of life from the peer's host. A peer that is stopped, or does
 * not read what was sent, has one that is alive. */
void dp_wire_tcp_set_timeout(struct dp_wire *wire, int64_t ns);
/* The two ends, bytes that the peer's host has not acknowledged, and retransmissions. true: the peer's
 * host does not answer what is sent again and again. */
bool dp_wire_tcp_tell(const struct dp_wire *wire, char *text, size_t room);

#endif
