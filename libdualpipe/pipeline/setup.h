/* SPDX-License-Identifier: Apache-2.0
 *
 * setup.h - before a pipeline is made: is its config right, and is it everybody's?
 */
#ifndef DP_PIPELINE_SETUP_H
#define DP_PIPELINE_SETUP_H

#include <dualpipe/pipeline.h>

/* The pipeline rank of this rank, whose comm and schedule have been checked. */
int dp_config_rank(const struct dp_pipeline_config *config);

/* All that can be said without asking another rank. device is the one the pipeline will use. */
int dp_config_check(const struct dp_pipeline_config *config, const struct dp_device *device);

/* Collective: tell each other how setting up went here (err, 0 or an error that has been described)
 * and what this rank's config is. Returns err; DP_EABORTED if it went wrong elsewhere, naming the
 * rank; DP_EMISMATCH where configs differ, naming the field, the ranks and the values. *digest stands
 * for all that was agreed on. */
int dp_config_agree(const struct dp_pipeline_config *config, int err, uint64_t *digest);

/* Collective, before every step: all ranks do this step of this pipeline. both[2 * size] is scratch.
 * DP_EMISMATCH. */
int dp_step_agree(struct dp_comm *comm, uint64_t step, uint64_t digest, uint64_t *both);

/* The slot with a first (or last) stage of its stream on a rank, -1: none. */
int dp_config_first_slot(const struct dp_schedule *s, int rank);
int dp_config_last_slot(const struct dp_schedule *s, int rank);

#endif
