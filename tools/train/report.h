/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h - what rank 0 tells about the run: for people, one line that changes in place on a
 * terminal and a line now and then elsewhere; for programs, one JSON object a line.
 */
#ifndef DP_TRAIN_REPORT_H
#define DP_TRAIN_REPORT_H

#include "train/data.h"
#include "train/settings.h"

#include <dualpipe/trace.h>
#include <dualpipe/trainer.h>

/* Numbers that are not known (yet) are NAN. */
struct progress {
    uint64_t step; /* steps done */
    struct dp_trainer_result result;
    double held_out, bubble;
};

/* Of a rank: the most that its process held, and what its parts have asked for. */
struct memory_use {
    double peak_bytes, held_bytes;
    struct dp_trainer_offload offload; /* with --offload */
};

struct step_times {
    double bubble;         /* share of all ranks' time in which they did not compute */
    double step_ms, simulated_ms;
    bool unwritten[DRAWN]; /* of the files; the sentence has been printed */
};

struct summary {
    double first_loss, last_loss, held_out;
    uint64_t skipped;                      /* steps whose gradient was not finite */
    struct step_times step;                /* the last one; NAN without a pipeline */
    double memory_bytes, memory_rank;      /* most that a rank held, and which */
    struct memory_use *memory;             /* [memory_count] of the ranks that are there at the end */
    int memory_count;
    struct dp_trainer_offload offload;
    const uint8_t *sample;                 /* [sample_len] */
    size_t sample_len;
};

struct report {
    const struct settings *settings;
    bool terminal;
    int64_t start_ns, shown_ns;
    uint64_t shown_step;
    double held_out, bubble; /* the last ones that were known */
};

/* Is this a step at which all ranks collect what a line wants to know? */
bool report_due(const struct settings *s, uint64_t step);

/* shown: this rank prints; another one may go on after it. */
void report_begin(struct report *r, const struct settings *s, const struct data *data, bool shown);
void report_progress(struct report *r, const struct progress *p);
/* Something holds the others up since this step, or no longer does. */
void report_slow(struct report *r, uint64_t step, const struct dp_slow *slow, bool begun);
/* What a saved model has written, with --prompt. */
void report_sample(const struct settings *s, const uint8_t *text, size_t len);
void report_end(struct report *r, const struct summary *summary);

#endif
