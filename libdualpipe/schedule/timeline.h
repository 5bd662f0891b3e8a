/* SPDX-License-Identifier: Apache-2.0
 *
 * timeline.h - what follows from the spans of a simulation.
 */
#ifndef DP_SCHEDULE_TIMELINE_H
#define DP_SCHEDULE_TIMELINE_H

#include <dualpipe/schedule.h>

#define DP_NO_SPAN UINT32_MAX

/* Fill in sim->critical from sim->timeline. causes[timeline.count]: for each span the one that it
 * had to wait for, the one before it on its rank or the sender of its message; DP_NO_SPAN: none. */
int dp_trace_critical_path(struct dp_simulation *sim, const uint32_t *causes);

#endif
