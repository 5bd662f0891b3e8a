/* SPDX-License-Identifier: Apache-2.0
 *
 * stat.h - what `dualpipe stat` shows, in three forms.
 */
#ifndef DP_TOOLS_STAT_STAT_H
#define DP_TOOLS_STAT_STAT_H

#include "nccl-plugin/profiler/page.h"
#include "stat/pages.h"
#include "stat/train_page.h"

#include <jansson.h>
#include <stdio.h>

enum { STAT_FORMAT = 1 }; /* of the JSON; man dualpipe-stat describes it */

/* A table for people. before: the last look, for rates; may be empty. */
void stat_print_table(const struct stat_list *list, const struct stat_list *before,
                      bool connections);
/* A line for each process with the preload library; none if there is no such process. */
void stat_print_preload(const struct stat_mapped *preload);

/* One JSON object, with `profiles` and `jobs`, which it takes over (NULL: no memory). DP_EIO,
 * DP_ENOMEM. */
int stat_print_json(const struct stat_list *list, const struct stat_mapped *preload,
                    json_t *profiles, json_t *jobs);

/* Prometheus' text format, by device. DP_EIO. */
int stat_print_prometheus(FILE *to, const struct stat_list *list,
                          const struct stat_mapped *preload,
                          const struct stat_mapped *profiles);

/* ---- the profiler plugin's counters: how much each rank sends to which, waiting for what --------- */

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

/* A table for people; nothing if there is no page. */
void stat_profile_print(const struct stat_mapped *profiles);
/* NULL: no memory. */
json_t *stat_profile_json(const struct stat_mapped *profiles);
/* Prometheus' text format. */
void stat_profile_prometheus(FILE *to, const struct stat_mapped *profiles);

/* ---- the training jobs of this user on this machine, from the pages of their processes ----------- */

struct stat_rank {
    char file[256];         /* of its page */
    struct train_page page; /* a moment of it */
};

/* Zeroed memory is an empty list. */
struct stat_jobs {
    int count, refused;      /* pages that could not be read; one line each has been printed */
    int64_t read_ns;         /* CLOCK_MONOTONIC */
    struct stat_rank *ranks; /* [count] by job and rank */
};

/* All that live; pages of processes that have ended are removed. `directory` as for stat_read. 0,
 * or an EXIT_ value after one line. */
int stat_jobs_read(const char *directory, struct stat_jobs *out);
void stat_jobs_fini(struct stat_jobs *jobs);

void stat_jobs_print(const struct stat_jobs *jobs);
/* An array of jobs; NULL: no memory. */
json_t *stat_jobs_json(const struct stat_jobs *jobs);
void stat_jobs_prometheus(FILE *to, const struct stat_jobs *jobs);

#endif
