/* SPDX-License-Identifier: Apache-2.0
 *
 * acceptor.h - listens for peers that have lost the control wire of a connection. Any thread.
 */
#ifndef DPN_VERBS_ACCEPTOR_H
#define DPN_VERBS_ACCEPTOR_H

#include "wire/wire.h"

/* Called before and after a fork. Between the two the child calls dpn_acceptors_forget: the
 * listeners that it inherited stay with its parent. */
void dpn_acceptors_lock(void);
void dpn_acceptors_unlock(void);
void dpn_acceptors_forget(void);

/* The address of the acceptor on this interface, and a label, never 0, for one connection. Errors
 * are those of a wire's listen. */
int dpn_acceptor_use(const char *interface, struct dp_wire_address *address, uint64_t *label);
void dpn_acceptor_release(const char *interface);

/* DP_EAGAIN; or 0 with an accepted wire and the label of the connection that it is for. */
int dpn_acceptor_accept(uint64_t *label, struct dp_wire **out);

#endif
