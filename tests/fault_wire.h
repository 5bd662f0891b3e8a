/* SPDX-License-Identifier: Apache-2.0
 *
 * fault_wire.h - a wire around another one, which a test cuts or makes silent.
 */
#ifndef DP_TESTS_FAULT_WIRE_H
#define DP_TESTS_FAULT_WIRE_H

#include "comm/comm_ops.h"
#include "wire/wire.h"

/* Takes inner. The address and the handshake are the inner wire's. DP_ENOMEM. */
int fault_wire_wrap(struct dp_wire *inner, struct dp_wire **out);
/* Of such a wire: end the connection now; or, silently, let nothing pass any more, either way, as a
 * network that drops all. */
void fault_wire_break(struct dp_wire *wire, bool silently);

/* Whether the wires of communicators that are opened from now on by this process are such ones. */
void fault_wires_use(bool on);
/* Break all of them to this peer of comm, until the next dp_comm_reset also those that are made later. */
void fault_wires_break(struct dp_comm *comm, int peer, bool silently);

#endif
