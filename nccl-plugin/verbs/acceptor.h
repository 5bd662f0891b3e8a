/* SPDX-License-Identifier: Apache-2.0
 *
 * acceptor.h - where peers call that have lost the wire of a connection. Any thread.
 */
#ifndef DPN_VERBS_ACCEPTOR_H
#define DPN_VERBS_ACCEPTOR_H

#include "wire/wire.h"

/* Before a fork and after it; and, in the child, between: what it has inherited leads nowhere. */
void dpn_acceptors_lock(void);
void dpn_acceptors_unlock(void);
void dpn_acceptors_forget(void);

/* The acceptor on this interface, by its address; and a label, never 0, for one connection. Errors
 * are those of a wire's listen. */
int dpn_acceptor_use(const char *interface, struct dp_wire_address *address, uint64_t *label);
void dpn_acceptor_release(const char *interface);

/* DP_EAGAIN, or 0 with the wire of a caller, and the label of the connection that it means. */
int dpn_acceptor_accept(uint64_t *label, struct dp_wire **out);

#endif
