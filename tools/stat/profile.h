/* SPDX-License-Identifier: Apache-2.0
 *
 * profile.h - what the profiler plugin counts in this user's processes (nccl-plugin/profiler/page.h):
 * how much each rank sends to which, over which rail, waiting for what.
 */
#ifndef DP_TOOLS_STAT_PROFILE_H
#define DP_TOOLS_STAT_PROFILE_H

#include "nccl-plugin/profiler/page.h"
#include "stat/mapped.h"

#include <jansson.h>
#include <stdio.h>

extern const struct dp_page_kind stat_profile_kind;

enum { STAT_PROFILE_UNKNOWN = -1 };

/* All flows of a communicator, a way, a peer and a rail. */
struct stat_flow {
    int comm; /* of the profile's; STAT_PROFILE_UNKNOWN: another process's (PXN) */
    int peer, channels;
    bool is_send;
    char rail[DPN_PROFILE_RAIL_LEN]; /* "": not known */
    uint64_t bytes, operations, chunks, wait_ns[DPN_WAITS];
    int64_t waiting[DPN_WAITS];
    int64_t still_ns; /* since one of the chunks that wait last went on; 0: none waits */
};

struct stat_profile_comm {
    uint64_t hash;
    char name[DPN_PROFILE_NAME_LEN];
    int place; /* of the page */
    int rank, ranks, nodes;
    uint64_t calls[DPN_FUNCTIONS], bytes[DPN_FUNCTIONS];
};

struct stat_profile {
    int64_t pid;
    char command[DPN_PROFILE_NAME_LEN];
    uint64_t lost;
    int comm_count, flow_count;
    struct stat_profile_comm comms[DPN_PROFILE_COMMS];
    struct stat_flow flows[DPN_PROFILE_FLOWS]; /* by communicator, way, peer and rail */
};

/* One moment of a page. */
void stat_profile_read(const struct dpn_profile_page *page, struct stat_profile *out);

/* A table for people; nothing if there is no page. */
void stat_profile_print(const struct stat_mapped *profiles);
/* NULL: no memory. */
json_t *stat_profile_json(const struct stat_mapped *profiles);
/* Prometheus' text format. */
void stat_profile_prometheus(FILE *to, const struct stat_mapped *profiles);

#endif
