/* SPDX-License-Identifier: Apache-2.0
 *
 * handle.h - the 128 bytes that NCCL carries from a listener to the process that is to connect to
 * it: which build made them, and the address of the listener on each wire that it accepts. The
 * addresses hold its 128-bit random cookie, which the peer must show.
 */
#ifndef DPN_NET_HANDLE_H
#define DPN_NET_HANDLE_H

#include "nccl-plugin/nccl_abi.h"
#include "wire/wire.h"

/* Best first. */
enum dpn_wire { DPN_SHM, DPN_TCP, DPN_WIRES };
extern const struct dp_wire_ops *const dpn_wires[DPN_WIRES];

/* What the connecting side says of what is to travel over the wire: messages, or the control messages
 * beside RDMA. */
enum dpn_label { DPN_BY_WIRE, DPN_BY_VERBS };

/* The addresses of a listener, as far as it has them. */
struct dpn_addresses {
    bool present[DPN_WIRES];
    bool offers_verbs; /* to a peer that connects over tcp with the label DPN_BY_VERBS */
    int32_t worker;    /* of the listener's process by its placement, -1: none */
    struct dp_wire_address on[DPN_WIRES];
};

/* DP_EINVAL if the addresses do not fit. */
int dpn_handle_write(const struct dpn_addresses *addresses, void *handle);
/* DP_EMISMATCH, with a sentence that says what differs from ours: another plugin, another version,
 * damage on the way. */
int dpn_handle_read(const void *handle, struct dpn_addresses *out);

#endif
