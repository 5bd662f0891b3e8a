/* SPDX-License-Identifier: Apache-2.0
 *
 * net_event.h - the event of this project's net plugin that goes through NCCL to the profiler plugin: a
 * message of a step is given to a device, whose name is the event's data.
 */
#ifndef DPN_PROFILER_NET_EVENT_H
#define DPN_PROFILER_NET_EVENT_H

/* A kind of plugin that no other one has taken, and version 1 of its events. */
enum { DPN_PROFILE_NET_ID = 0x4450 << 16 | 1 };

#endif
