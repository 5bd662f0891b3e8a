/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_oracle.h - a second checker of schedules, slow and simple, to test the first one.
 */
#ifndef DP_TESTS_SCHEDULE_ORACLE_H
#define DP_TESTS_SCHEDULE_ORACLE_H

#include <dualpipe/schedule.h>

/* Which rules the schedule breaks, a bit 1 << rule each; 0: none. Rules that only make sense where
 * others hold are looked at in three rounds: SHAPE, ONCE; then what concerns one rank's order; then
 * FIFO, DEADLOCK. The first round that finds something is the answer. Needs a right placement. */
unsigned oracle_broken_rules(const struct dp_schedule *s);

#endif
