/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_door.h - where peers call that have lost the wire of a connection. Any thread.
 */
#ifndef DPN_VERBS_DOOR_H
#define DPN_VERBS_DOOR_H

#include "wire/wire.h"

/* Before a fork and after it; and, in the child, between: what it has inherited leads nowhere. */
void dpn_doors_lock(void);
void dpn_doors_unlock(void);
void dpn_doors_forget(void);

/* The door on this interface, by its address; and a label, never 0, for one connection. Errors are those
 * of a wire's listen. */
int dpn_door_use(const char *interface, struct dp_wire_address *address, uint64_t *label);
void dpn_door_leave(const char *interface);

/* DP_EAGAIN, or 0 with the wire of a caller, and the label of the connection that he means. */
int dpn_door_admit(uint64_t *label, struct dp_wire **out);

#endif
