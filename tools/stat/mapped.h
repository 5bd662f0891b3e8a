/* SPDX-License-Identifier: Apache-2.0
 *
 * mapped.h - pages of one kind (base/page_file.h), of this user's processes that live, mapped: one stays
 * readable when its process has ended.
 */
#ifndef DP_TOOLS_STAT_MAPPED_H
#define DP_TOOLS_STAT_MAPPED_H

#include "base/page_file.h"

/* Zeroed memory is an empty list. */
struct stat_mapped {
    int count, refused; /* pages that could not be read; one line each has been printed */
    size_t bytes;       /* of each page */
    char directory[4096];
    struct stat_mapped_page {
        char file[256]; /* of the directory */
        const struct dp_page_head *head;
    } *pages;
};

/* Map the pages of processes that live, are not mapped yet and that `wants` wants. `directory` NULL or
 * "": where they are as a rule. Says nothing of pages that cannot be read. */
void stat_map(struct stat_mapped *m, const struct dp_page_kind *kind, const char *directory,
              bool (*wants)(int64_t pid));

/* Map all, and say and count what cannot be read; pages of processes that have ended are removed.
 * Where the usual directory does not exist the list is empty. 0, or an EXIT_ value after one line. */
int stat_map_all(struct stat_mapped *m, const struct dp_page_kind *kind, const char *directory);

void stat_mapped_fini(struct stat_mapped *m);

#endif
