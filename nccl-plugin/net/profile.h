/* SPDX-License-Identifier: Apache-2.0
 *
 * profile.h - with DUALPIPE_NET_PROFILE NCCL's profiler is told over which device each message goes.
 * NCCL passes the event on to the profiler plugin (nccl-plugin/profiler/net_event.h). Any thread.
 */
#ifndef DPN_NET_PROFILE_H
#define DPN_NET_PROFILE_H

#include "nccl-plugin/nccl_abi.h"

/* NCCL's callback, which may be NULL, with what is initialized. */
void dpn_profile_use(ncclProfilerCallback_t callback);
/* A request of a connection over this rail was made for NCCL's event, which may be NULL. */
void dpn_profile_message(const char *rail, void *event);

#endif
