/* SPDX-License-Identifier: Apache-2.0
 *
 * mapped.h - pages of one kind, of this user's processes that live. Those of the preload library
 * (offload/preload/page.h) and of the profiler plugin (nccl-plugin/profiler/page.h) are mapped here; a
 * page that is mapped stays readable when its process has ended.
 */
#ifndef DP_TOOLS_STAT_MAPPED_H
#define DP_TOOLS_STAT_MAPPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What pages of all kinds begin with. */
struct stat_mapped_head {
    char magic[8];
    uint32_t version, bytes; /* of all */
    int64_t pid;             /* as its process sees it */
};

struct stat_mapped_kind {
    const char *suffix, *magic;
    uint32_t version, bytes;
    const char *name; /* of a page, in messages */
};

/* Whether a page of this user can be read; -1: its process has ended; or an EXIT_ value after one
 * line. */
int stat_check_page(const struct stat_mapped_kind *kind, const char *directory, const char *file,
                    int fd);

/* Zeroed memory is an empty list. */
struct stat_mapped {
    const struct stat_mapped_kind *kind;
    int count;
    struct stat_mapped_page {
        char file[256]; /* of the directory */
        const void *page;
    } *pages;
};

/* Map the pages of processes that live, are not mapped yet and that `wants` wants (NULL: all).
 * `directory` NULL: where they are as a rule. Says nothing of pages that cannot be read. */
void stat_map(struct stat_mapped *m, const struct stat_mapped_kind *kind, const char *directory,
              bool (*wants)(int64_t pid));
void stat_mapped_fini(struct stat_mapped *m);

#endif
