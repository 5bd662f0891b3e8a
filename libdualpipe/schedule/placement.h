/* SPDX-License-Identifier: Apache-2.0
 *
 * placement.h - which slot holds which stage; who comes before and after it follows from that.
 */
#ifndef DP_SCHEDULE_PLACEMENT_H
#define DP_SCHEDULE_PLACEMENT_H

#include <dualpipe/schedule.h>

/* From stage and stream of every slot, fill in prev, next and mirror. DP_EINVAL, not logged, if a
 * stage of a stream is held twice or nowhere. */
int dp_placement_link(struct dp_schedule *s);

/* Is every stage of every stream held once, and are the neighbours right? DP_EINVAL, not logged. */
int dp_placement_check(const struct dp_schedule *s);

/* Is each of 0 .. count - 1 in map[count] once? DP_EINVAL, not logged: *bad is the first index
 * where it is not; DP_ENOMEM. */
int dp_permutation_check(const int *map, int count, int *bad);

/* Slot numbers of neighbours that are not there do not count. */
bool dp_slots_equal(const struct dp_slot *a, const struct dp_slot *b);

#endif
