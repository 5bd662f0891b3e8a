/* SPDX-License-Identifier: Apache-2.0
 *
 * events.h - the events of NCCL's profiler interface, read by tables of offsets: the descriptors of
 * the seven versions have the same members in other places.
 */
#ifndef DPN_PROFILER_EVENTS_H
#define DPN_PROFILER_EVENTS_H

enum { DPN_PROFILER_VERSIONS = 7 };

/* startEvent of a version: counts sends, collectives and what travels over the network, and writes
 * *handle. Any thread. */
void dpn_profiler_event(int version, void *context, void **handle, const void *descriptor);
/* recordEventState, whose arguments may be NULL. */
void dpn_profiler_state(void *handle, int state, const void *arguments);

#endif
