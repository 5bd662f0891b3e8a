/* SPDX-License-Identifier: Apache-2.0
 *
 * stat.h - what `dualpipe stat` shows, in three forms.
 */
#ifndef DP_TOOLS_STAT_STAT_H
#define DP_TOOLS_STAT_STAT_H

#include "stat/pages.h"
#include "stat/profile.h"

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

#endif
