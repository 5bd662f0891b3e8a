/* SPDX-License-Identifier: Apache-2.0
 *
 * pages.h - the counters of the net plugin in this user's processes, read from their pages
 * (nccl-plugin/net/stat_page.h).
 */
#ifndef DP_TOOLS_STAT_PAGES_H
#define DP_TOOLS_STAT_PAGES_H

#include "nccl-plugin/net/stat_page.h"
#include "offload/preload/page.h"

#include <stdio.h>

/* ---- pages of one kind, mapped --------------------------------------------------------------- */

/* base/page_file.h, of this user's processes that live: one stays readable when its process has
 * ended. */

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

/* ---- the net plugin's counters --------------------------------------------------------------- */

/* One moment of a set of counters. */
struct stat_counts {
    uint64_t counts[DPN_STAT_WHATS];
    uint64_t sizes[DPN_STAT_SIZES], times[DPN_STAT_TIMES];
};

/* What all connections of a device have counted, open and closed. */
struct stat_device {
    char name[DPN_STAT_DEVICE_LEN];
    int speed_mbps;
    int open[DPN_STAT_WAYS]; /* connections */
    struct stat_counts ways[DPN_STAT_WAYS];
};

struct stat_connection {
    uint32_t number, device, way;
    int64_t opened_ns;
    char transport[16], peer[DPN_STAT_NAME_LEN];
    struct stat_counts counted;
};

struct stat_process {
    char file[256];                  /* of its page */
    int64_t pid, opened_ns, read_ns; /* CLOCK_REALTIME */
    char command[DPN_STAT_NAME_LEN];
    uint64_t opened, left_out;
    int device_count, connection_count;
    struct stat_device devices[DPN_STAT_DEVICES];
    struct stat_connection *connections; /* [connection_count], open ones by number */
};

struct stat_process *stat_process_new(void); /* NULL: no memory */
void stat_process_free(struct stat_process *p);

/* Zeroed memory is an empty list. */
struct stat_list {
    int count, refused; /* pages that could not be read; one line each has been printed */
    struct stat_process **processes;
};

/* "1.23 GB", in text, which is returned. */
const char *stat_bytes_text(double bytes, char *text, size_t len);
/* A text out of another process's memory: ended, UTF-8, without what a terminal would obey. */
void stat_text(const char *from, char *to, size_t len);
/* The two lines before the samples of a metric, dualpipe_<set>_<name>. */
void stat_put_head(FILE *to, const char *set, const char *name, const char *type, const char *help);
/* "send", "receive" */
const char *stat_way_name(uint32_t way);

void stat_counts_add(const struct stat_counts *from, struct stat_counts *to);

/* Devices, connections and totals of a page; p->connections has room for DPN_STAT_CONNECTIONS.
 * NULL, or why there is nothing to be had. */
const char *stat_page_read(const struct dpn_stat_page *page, struct stat_process *p);

/* All that live, by pid, as stat_map_all. */
int stat_read(const char *directory, struct stat_list *out);
void stat_list_fini(struct stat_list *list);

/* The same of pages that are mapped while a job runs: add what all devices of all pages have counted, by
 * name; `out` is zeroed or has such devices. Returns the number of pages that could be read. */
struct stat_sum {
    int device_count;
    struct stat_device devices[DPN_STAT_DEVICES];
};
int stat_pages_sum(const struct stat_mapped *m, struct stat_sum *out);
extern const struct dp_page_kind stat_net_kind;

/* ---- the preload library's counters ---------------------------------------------------------- */

extern const struct dp_page_kind stat_preload_kind;

/* A page of the list. */
const struct dpo_page *stat_preload_at(const struct stat_mapped *p, int i);
uint64_t stat_preload_count(const struct dpo_page *page, enum dpo_counter counter);
/* Add those of all pages. */
void stat_preload_sum(const struct stat_mapped *p, uint64_t counts[DPO_COUNTERS]);

/* One line of words: pinned memory, copies, staging; "" if nothing was counted. */
const char *stat_preload_text(const uint64_t counts[DPO_COUNTERS], char *text, size_t len);

#endif
