/* SPDX-License-Identifier: Apache-2.0
 *
 * pages.h - what this user's processes tell in their pages (base/page_file.h), read and summed: the same
 * for every kind of page, of which there is a table.
 */
#ifndef DP_TOOLS_STAT_PAGES_H
#define DP_TOOLS_STAT_PAGES_H

#include "base/page_reader.h"

#include <jansson.h>
#include <stdio.h>

enum { STAT_VALUES = 96, STAT_TEXT = 3 * DP_PAGE_LABEL, STAT_FIELDS = 6, STAT_SUMS = 2 };

/* Rows whose labels begin alike, summed. */
struct stat_row {
    uint64_t use;
    int fields;
    size_t len;                   /* of the text */
    char text[STAT_TEXT];         /* fields of the label, each with its NUL; stat_field */
    uint64_t values[STAT_VALUES]; /* of the columns that the kind has */
};

/* Zeroed memory has none. */
struct stat_rows {
    int count;
    struct stat_row *list; /* in the order of their use */
};

/* How a metric of Prometheus is made of a column, dualpipe_<set>_<name>. */
struct stat_metric {
    const char *name, *type, *help;
    int value; /* the first of its column */
    int sum;   /* of a histogram */
    const char *(*place)(int place); /* NULL, or of a column with several places what each is for */
};

struct stat_kind {
    const struct dp_page_kind *page;
    int fields[STAT_SUMS];               /* by how many its rows are summed; the first for Prometheus */
    void (*settle)(struct stat_row *row); /* NULL, or before it is added */
    const char *set;
    bool has_process; /* as a label; without, the pages of all are one */
    const char *labels[STAT_FIELDS]; /* NULL: that field is none */
    const struct stat_metric *metrics;
    int metric_count;
};
extern const struct stat_kind stat_net, stat_preload, stat_profile, stat_train;

/* A moment of a page. */
struct stat_page {
    char file[64];
    int64_t pid, opened_ns, read_ns; /* CLOCK_REALTIME */
    char command[64];
    struct stat_rows sums[STAT_SUMS]; /* of rows with at least so many fields */
};

/* Zeroed memory is an empty list. */
struct stat_list {
    const struct stat_kind *kind;
    int count, refused; /* pages that could not be read; one line each has been printed */
    struct stat_page *pages;
};

/* All that live, by pid; pages of processes that have ended are removed. `directory` NULL or "": where
 * they are as a rule; where that does not exist the list is empty. 0, or an EXIT_ value after a line. */
int stat_read(const struct stat_kind *kind, const char *directory, struct stat_list *out);
void stat_list_fini(struct stat_list *list);

/* Add what all pages, mapped while a job runs, have. Returns how many could be read. */
int stat_total(const struct dp_pages *pages, const struct stat_kind *kind, struct stat_page *out);
void stat_page_fini(struct stat_page *page);

/* The row whose label is the same; NULL: there is none. */
const struct stat_row *stat_find(const struct stat_rows *rows, const struct stat_row *like);
/* Whether its label begins as that of the other one. */
bool stat_is_part(const struct stat_row *row, const struct stat_row *of);
const char *stat_field(const struct stat_row *row, int field);
double stat_real(const struct stat_row *row, int value);

/* "1.23 GB", in text, which is returned. */
const char *stat_bytes_text(double bytes, char *text, size_t len);
/* One line of words: pinned memory, copies, staging; "" if nothing was counted. */
const char *stat_preload_text(const struct stat_page *preload, char *text, size_t len);

/* ---- for programs ---------------------------------------------------------------------------- */

/* Add the columns from one value to another to an object: REAL ones that are not known are left out. */
void stat_json_values(json_t *to, const struct stat_kind *kind, const struct stat_row *row, int first,
                      int last);
/* Prometheus' text format, of the first sum. */
void stat_prometheus(FILE *to, const struct stat_list *list);

#endif
