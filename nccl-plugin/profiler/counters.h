/* SPDX-License-Identifier: Apache-2.0
 *
 * counters.h - the page of this process (profiler/page.h): its communicators, and the flows between
 * ranks. Without DUALPIPE_PROFILER_STAT it is memory of the process's own. Any thread.
 */
#ifndef DPN_PROFILER_COUNTERS_H
#define DPN_PROFILER_COUNTERS_H

#include "nccl-plugin/profiler/page.h"

struct dpn_profiled;

/* Of the page; DPN_PROFILE_COMMS: there is no place. */
unsigned dpn_counters_open(const struct dpn_profiled *like);
/* Its flows end too. */
void dpn_counters_close(unsigned comm);
/* The page's own, to count in; NULL for DPN_PROFILE_COMMS. */
struct dpn_profile_row *dpn_counters_comm(unsigned comm);

/* That of a key, made if need be; NULL: no place. */
struct dpn_profile_row *dpn_counters_flow(uint64_t key);
/* The flow's rail is called so. */
void dpn_counters_set_rail(struct dpn_profile_row *flow, const char *name);
/* rail: as a flow has it; "": not known. */
const char *dpn_counters_rail(uint64_t rail);
/* An event for which there was no place. */
void dpn_counters_lost(void);
/* Call it for every flow of the communicator. */
void dpn_counters_each(unsigned comm, void (*call)(const struct dpn_profile_row *flow, void *user),
                       void *user);

/* What would need an escape in JSON, or what a terminal would obey, is left out. */
void dpn_counters_name(char *to, unsigned len, const char *name);

#endif
