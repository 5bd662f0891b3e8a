/* SPDX-License-Identifier: Apache-2.0
 *
 * timeline.h - what the last step looked like: how much of it was bubble, and files to look at.
 */
#ifndef DP_TRAIN_TIMELINE_H
#define DP_TRAIN_TIMELINE_H

#include <dualpipe/trainer.h>

struct step_times {
    double bubble; /* share of all ranks' time in which they did not compute */
    double step_ms, simulated_ms;
    bool untraced, undrawn, unpaged; /* a file could not be written; the sentence has been printed */
};

struct timeline_files {
    const char *trace, *timeline, *page;
};

/* Collective: collect the last step on rank 0 and measure it, and show `watch` (or NULL) its links. On
 * other ranks *times becomes NAN. DP_ENOMEM, or the errors of dp_recorder_gather. */
int timeline_measure(const struct dp_trainer_parts *p, struct dp_watch *watch,
                     struct step_times *times);

/* The same, and rank 0 writes the files; a name that is NULL asks for none. One that cannot be
 * written, as on a full disk, costs neither the others nor the figures: untraced, undrawn and unpaged
 * say so. */
int timeline_write(const struct dp_trainer_parts *p, const struct timeline_files *files,
                   struct step_times *times);

#endif
