/* SPDX-License-Identifier: Apache-2.0
 *
 * job_state.h - what a rank has of its job. job_parts.c makes it, job_steps.c takes the steps.
 */
#ifndef DP_TRAIN_JOB_STATE_H
#define DP_TRAIN_JOB_STATE_H

#include "train/host.h"
#include "train/report.h"
#include "train/watcher.h"

#include <stdio.h>

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

/* ---- job_parts.c ----------------------------------------------------------------------------- */

/* All ranks were told the same: else DP_EMISMATCH on all of them. Ranks that survive compare again among
 * those that live; the mixer or the trainer then goes on without the others. */
int job_agree(const struct job *j);
/* The trainer of this rank, and its parts. */
int job_make_parts(struct job *j);
/* What is there of them now: after a call during which ranks of a pipeline may have died. */
void job_take_parts(struct job *j);
/* Replicas that mix: admit those that were killed and started again, once after each death. */
int job_admit(struct job *j);
void job_free(struct job *j);

/* ---- job_steps.c ----------------------------------------------------------------------------- */

int job_count_lost(const struct job *j);
/* From `step` to the last one. */
int job_train(struct job *j, uint64_t step, struct summary *summary);
/* What is measured and told once, at the end. */
int job_finish(struct job *j, struct summary *summary);
/* Watch the parts that are there now. */
int job_watch(struct job *j);

#endif
