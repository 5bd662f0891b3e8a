/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.h - what happened when: a ring of records, which keeps the latest, written as Perfetto JSON when
 * the process ends (DUALPIPE_PROFILER_TRACE). Any thread.
 */
#ifndef DPN_PROFILER_TRACE_H
#define DPN_PROFILER_TRACE_H

#include "nccl-plugin/profiler/page.h"

enum dpn_trace_kind { DPN_TRACE_QUEUED, DPN_TRACE_SEND, DPN_TRACE_RECEIVE };

struct dpn_trace_record {
    int64_t start_ns, end_ns; /* CLOCK_MONOTONIC */
    uint64_t bytes, sequence, chunks, wait_ns[DPN_WAITS];
    uint32_t comm;
    int32_t peer; /* -1: none */
    uint8_t kind, function, channel, rail;
};

/* A communicator of the trace; all of them are kept. */
uint32_t dpn_trace_comm(const struct dpn_profile_comm *comm);
void dpn_trace_add(const struct dpn_trace_record *record);
/* Add all of it to the file of the option, once; nothing without the option. */
void dpn_trace_write(void);

#endif
