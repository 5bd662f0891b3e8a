/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_SURVIVAL_INTERNAL_H
#define DP_SURVIVAL_INTERNAL_H

#include <dualpipe/survival.h>

/* As dp_comm_wait, for a rank whose peer lives but may be waiting for a dead one: it also ends, with
 * DP_ECOMM, as soon as any rank of `group`, a communicator of the family, is dead or has left. Then,
 * and on the deadline, the request stays in flight: it may be waited for again, and ends at the
 * latest when its communicator is closed. In a group that does not survive it is dp_comm_wait. */
int dp_comm_wait_alive(struct dp_comm *comm, struct dp_request *req, int peer,
                       const struct dp_comm *group);
/* Where a wait of this rank has ended by its deadline: the rank that it was for is asked for a sign of
 * life, and declared dead for all if it gives none within half a second, or half of the deadline if that
 * is less. For callers all of whose ranks let the progress thread work while they compute. */
int dp_comm_settle_silence(struct dp_comm *comm);

#endif
