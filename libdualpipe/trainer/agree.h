/* SPDX-License-Identifier: Apache-2.0
 *
 * agree.h - ranks of a group that survives agree on how far they have come.
 *
 * The rule that keeps ranks from waiting for each other: each comes to agree_all exactly once after each
 * part that all carry out, whether it has got through or not.
 */
#ifndef DP_TRAINER_AGREE_H
#define DP_TRAINER_AGREE_H

#include <dualpipe/comm.h>

/* What a call that failed may have met is the death of a rank. */
bool may_be_death(int err);

/* A part has failed here for good: no rank waits for this one in comm or in groups[count], each of which
 * may be NULL. */
void agree_revoke(struct dp_comm *comm, struct dp_comm *const *groups, int count, int err);

/* Collective over the ranks of comm that live: err is what the part returned here. 0 on all of them: it
 * was 0 on all, and all live. DP_ECOMM on all that live where one is dead or its part has failed, unless
 * their own had failed already; an err that is no death is returned at once. */
int agree_all(struct dp_comm *comm, int err);

#endif
