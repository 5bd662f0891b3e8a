/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp.h - beside the table of wire.h: addresses that did not come from a listener.
 */
#ifndef DP_WIRE_TCP_H
#define DP_WIRE_TCP_H

#include "wire/net.h"
#include "wire/wire.h"

/* The address of a listener at a known place with a known cookie. */
void dp_wire_tcp_address(const union dp_sockaddr *place, const uint8_t cookie[DP_COOKIE_BYTES],
                         struct dp_wire_address *out);

/* This end of a connected wire. */
int dp_wire_tcp_local(const struct dp_wire *wire, union dp_sockaddr *out);

/* Give up after this long without a sign of life from the peer's host. */
void dp_wire_tcp_set_patience(const struct dp_wire *wire, int64_t ns);

#endif
