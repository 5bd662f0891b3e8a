/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline_job.h - the model of pipeline_model.h trained by a pipeline: one rank's part, and a place
 * in shared memory where all ranks, threads or processes, leave what came out.
 */
#ifndef DP_TESTS_PIPELINE_JOB_H
#define DP_TESTS_PIPELINE_JOB_H

#include "later.h"
#include "pipeline_model.h"

/* What all ranks of one step leave. */
struct job_result {
    double *losses;        /* [microbatches * MODEL_LOSSES] */
    float *outputs;        /* in the order of the sequential loop */
    float **grads;         /* [slots of all ranks] */
    int32_t *counts;       /* [ranks] losses of a micro-batch */
    struct dp_pipeline_memory *memory; /* [ranks] */
    char *map;
    size_t bytes;
};

LATER(dp_pipeline_config);

struct job {
    const struct dp_schedule *schedule;
    struct model model;
    const struct dp_stage_ops *ops; /* NULL: model_ops */
    bool no_split, fixed_order, forward_loss;
    bool unsummed; /* copies, unless the schedule has REDUCEs */
    float tolerance; /* of gradients; 0: to the last bit */
    /* A test's changes to a rank's config, which is a later_dp_pipeline_config's; may be NULL. */
    void (*edit)(void *user, int rank, struct dp_pipeline_config *config);
    /* Called before every callback of a stage; may be NULL. */
    int (*before)(void *user, const struct dp_stage_call *call, const char *what);
    void *user;
    struct job_result *result;
};

struct job_rank {
    const struct job *job;
    int rank;
    struct model_stage stages[DP_MAX_SLOTS];
    struct dp_border *borders;
    struct dp_border labels;
    struct dp_tensor_spec skips[MODEL_SKIPS];
    struct dp_pipeline *pipe;
    struct model_batch in, label, out;
    struct dp_microbatches *in_mbs, *label_mbs, *out_mbs;
    struct dp_step step;
};

/* schedule with the model's stages = schedule->stages and micro-batches. */
struct job job_make(const struct dp_schedule *schedule);
/* Room for all results of the job, as job->result; until it is given back. A job that has none may end, too. */
void job_begin(struct job *job);
void job_end(struct job *job);

int job_rank_open(struct job_rank *r, const struct job *job, struct dp_comm *comm);
/* Cut the batches into micro-batches, again if their tensors have moved. */
void job_rank_split(struct job_rank *r);
/* Gradients from zero, one step, results to job->result. Returns what dp_pipeline_step did. */
int job_rank_step(struct job_rank *r);
/* The last part of that: results, which must be in host memory, to job->result. */
void job_rank_store(const struct job_rank *r);
void job_rank_close(struct job_rank *r); /* nothing, if it is zeroed */

/* Is the result what the sequential loop makes of this step, to the last bit? Gradients of a slot
 * are compared with the part that it should have by now. Says what differs. */
bool job_result_is_sequential(const struct job *job, uint64_t step);

#endif
