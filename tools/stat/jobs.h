/* SPDX-License-Identifier: Apache-2.0
 *
 * jobs.h - the training jobs of this user on this machine, read from the pages of their processes
 * (stat/train_page.h), and what of them is shown, in three forms.
 */
#ifndef DP_TOOLS_STAT_JOBS_H
#define DP_TOOLS_STAT_JOBS_H

#include "stat/train_page.h"

#include <jansson.h>
#include <stdio.h>

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
