/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/profile.h"

#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/profiler/net_event.h"

#include <stdatomic.h>

enum { EVENT_START, EVENT_STOP };

static _Atomic(ncclProfilerCallback_t) callback;

void dpn_profile_use(ncclProfilerCallback_t use)
{
    atomic_store_explicit(&callback, dpn_options.profile ? use : NULL, memory_order_relaxed);
}

/* A handle means that the profiler wants to know of the end: this one is an event of a moment. */
void dpn_profile_message(const char *rail, void *event)
{
    ncclProfilerCallback_t call = atomic_load_explicit(&callback, memory_order_relaxed);
    void *handle = NULL;

    if (!call || !event)
        return;
    call(&handle, EVENT_START, event, DPN_PROFILE_NET_ID, (void *)(uintptr_t)rail);
    if (handle)
        call(&handle, EVENT_STOP, event, DPN_PROFILE_NET_ID, NULL);
}
