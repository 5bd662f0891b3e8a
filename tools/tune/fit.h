/* SPDX-License-Identifier: Apache-2.0
 *
 * fit.h - from measurements to a table of rules.
 */
#ifndef DP_TOOLS_TUNE_FIT_H
#define DP_TOOLS_TUNE_FIT_H

#include "tune/results.h"

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
