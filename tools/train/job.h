/* SPDX-License-Identifier: Apache-2.0
 *
 * job.h - what one rank does: train, evaluate, write a sample, say how it went.
 */
#ifndef DP_TRAIN_JOB_H
#define DP_TRAIN_JOB_H

#include "train/host.h"
#include "train/report.h"
#include "train/watcher.h"

#include <dualpipe/comm.h>

#include <stdio.h>

/* Run the whole job on this rank; collective over comm, which is NULL for a rank that is alone.
 * how: comm was opened with it, and ranks that are started again are admitted with it; its size is 0
 * of such a rank, which goes on where the others are. 0, or a negative errno with *why saying which
 * rank failed and for what reason; then comm has been aborted, unless only this rank ends. */
int job_run(const struct settings *s, const struct data *data, struct dp_comm *comm,
            const struct dp_comm_config *how, struct dp_abort *why);

/* Whether a rank with this error ends alone: it has no files or no memory, and the others survive. */
static inline bool job_leaves(const struct settings *s, int err)
{
    return s->how.survive && (err == DP_EIO || err == DP_ENOMEM);
}

/* ---- what a rank has of its job ---------------------------------------------------------------- */

struct job {
    const struct settings *s;
    const struct data *text;
    struct dp_comm *comm; /* of all ranks that were started; NULL: alone */
    const struct dp_comm_config *how; /* it was opened */
    struct host *host;
    struct dp_trainer_parts parts; /* schedule and recorder NULL: no pipeline */
    struct report report;
    struct watcher watcher;
    const struct dp_comm *watched; /* the ranks that lived when the watcher began */
    int lost;                      /* ranks that had died when others were admitted last */
    bool tells;                    /* it was the first rank after the last step */
    struct progress last;          /* that step; step 0: none */
    struct summary summary;
    char before[1024];             /* the library's last sentence when it began, or went on */
};

/* The ranks that live. */
static inline struct dp_comm *job_comm(const struct job *j)
{
    return j->host ? j->parts.comm : j->comm;
}

static inline bool job_is_first(const struct job *j)
{
    return !j->comm || dp_comm_rank(job_comm(j)) == 0;
}

/* This rank was started again. */
static inline bool job_joins(const struct job *j)
{
    return j->how && j->how->size == 0;
}

static inline void job_note_sentence(struct job *j)
{
    snprintf(j->before, sizeof(j->before), "%s", dp_last_error());
}

/* What is there of its parts now: after a call during which ranks of a pipeline may have died. Without
 * a schedule there is a pipeline of one rank, of which nothing is told. */
static inline void job_take_parts(struct job *j)
{
    dp_trainer_parts(host_trainer(j->host), &j->parts);
    if (!j->s->training) {
        j->parts.schedule = NULL;
        j->parts.recorder = NULL;
    }
}

/* Replicas that mix: admit those that were killed and started again, once after each death. */
int job_admit(struct job *j);

/* ---- job_steps.c ----------------------------------------------------------------------------- */

int job_count_lost(const struct job *j);
/* From `step` to the last one. */
int job_train(struct job *j, uint64_t step);
/* What is measured and told once, at the end. */
int job_finish(struct job *j);
/* Watch the parts that are there now. */
int job_watch(struct job *j);

#endif
