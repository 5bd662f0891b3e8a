/* SPDX-License-Identifier: Apache-2.0
 *
 * results.h - what NCCL's tests measured: their output, text or JSON, as points. A point is a size of
 * a collective in a communicator, by one choice: NCCL's own, or a combination that it was made to
 * take.
 */
#ifndef DP_TOOLS_TUNE_RESULTS_H
#define DP_TOOLS_TUNE_RESULTS_H

#include "tune/tune.h"

/* What was measured where. Several measurements of the same become one, their mean. */
struct tune_point {
    int function;
    int64_t ranks, nodes, bytes;
    int algorithm, protocol; /* DP_TUNING_DEFAULT: NCCL's own choice */
    int channels;            /* 0: as many as NCCL likes */
    double sum_us;
    int count;
};

/* Zeroed memory is empty. */
struct tune_results {
    struct tune_point *points;
    size_t count, capacity;
    size_t measured; /* all that was read */
    struct tune_operation {
        char type[TUNE_CELL_LEN], op[TUNE_CELL_LEN]; /* "": not known */
    } operations[DP_TUNING_FUNCTIONS]; /* of what was read: there is one of each collective */
};

/* Of a whole output: what it says of itself, or what the user says of it. */
struct tune_run {
    const char *path;
    int function;         /* -1: not known */
    int64_t ranks, nodes; /* 0: not known */
    int algorithm, protocol, channels;
    bool is_labelled; /* the user says which choice it is */
};

/* Read "FILE" or "ALGORITHM/PROTOCOL[/CHANNELS]=FILE"; "default=FILE" is NCCL's own choice, which is
 * also what a file is that does not say something else of itself (NCCL_ALGO, NCCL_PROTO). `assumed`
 * comes before what the file says. 0, else an EXIT_ value; the sentence has been printed. */
int tune_results_read(const char *operand, const struct tune_run *assumed, struct tune_results *r);
void tune_results_fini(struct tune_results *r);

static inline double tune_point_us(const struct tune_point *p)
{
    return p->sum_us / p->count;
}

/* What tune_results_read does with the text of a file, which run.path names. */
int tune_read_text(char *text, struct tune_run *run, struct tune_results *r);
int tune_read_json(const char *text, size_t len, struct tune_run *run, struct tune_results *r);

/* By communicator, collective and size, NCCL's own choice first. */
void tune_results_sort(struct tune_results *r);

/* ---- from measurements to a table of rules --------------------------------------------------- */

/* A size at which NCCL's own choice was measured: points[first .. end) of the sorted results, the
 * first of them NCCL's own. */
struct tune_size {
    const struct tune_point *points;
    size_t count;
    const struct tune_point *choice; /* of the table; points[0] where NCCL's own is to stay */
};

struct tune_fit {
    struct tune_size *sizes;
    size_t count;
    size_t without_default; /* sizes that were left out, as NCCL's own choice was not measured */
    struct dp_tuning_table *table; /* a rule for each size */
};

/* Another choice than NCCL's own must take less than (1 - gain) of its time. A rule holds for its
 * size, and up to the middle between it and the next one where both change NCCL's choice. Sorts the
 * results and keeps pointers into them. 0, else an EXIT_ value; the sentence has been printed. */
int tune_fit(struct tune_results *results, double gain, struct tune_fit *fit);
void tune_fit_fini(struct tune_fit *fit);

/* Of the same collective in the same communicator. */
bool tune_is_same_place(const struct tune_point *a, const struct tune_point *b);

#endif
