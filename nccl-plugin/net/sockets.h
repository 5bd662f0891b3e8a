/* SPDX-License-Identifier: Apache-2.0
 *
 * sockets.h - how many sockets a connection over tcp has: what users have set for NCCL's own
 * Socket transport counts, unless DUALPIPE_WIRE_TCP_SOCKETS says something.
 */
#ifndef DPN_NET_SOCKETS_H
#define DPN_NET_SOCKETS_H

#include "wire/wire.h"

/* NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD, as far as they are set, and no more than there
 * may be; 0: no number is asked for. A value that is none is warned of, once. */
int dpn_sockets_asked_for(void);

/* Have a peer that connects to the address of a listener here told so. */
int dpn_sockets_tell(struct dp_wire_address *tcp);

#endif
