/* SPDX-License-Identifier: Apache-2.0
 *
 * stat.h - what `dualpipe stat` shows of each kind of page, to people and as JSON.
 */
#ifndef DP_TOOLS_STAT_STAT_H
#define DP_TOOLS_STAT_STAT_H

#include "stat/pages.h"

enum { STAT_FORMAT = 1 }; /* of the JSON; man dualpipe-stat describes it */

/* before: the last look, for rates; may be empty. */
void stat_net_print(const struct stat_list *list, const struct stat_list *before, bool connections);
/* A line for each process with the preload library; none if there is no such process. */
void stat_preload_print(const struct stat_list *list);
/* How much each rank sends to which, waiting for what. */
void stat_profile_print(const struct stat_list *list);
/* The training jobs of this user on this machine. */
void stat_jobs_print(const struct stat_list *list);

/* Arrays; NULL: no memory. */
json_t *stat_net_json(const struct stat_list *list);
json_t *stat_preload_json(const struct stat_list *list);
json_t *stat_profile_json(const struct stat_list *list);
json_t *stat_jobs_json(const struct stat_list *list);

#endif
