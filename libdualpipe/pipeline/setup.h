/* SPDX-License-Identifier: Apache-2.0
 *
 * setup.h - before a pipeline is made: is its config valid, and do all ranks have the same?
 */
#ifndef DP_PIPELINE_SETUP_H
#define DP_PIPELINE_SETUP_H

#include "pipeline/plan.h"
#include <dualpipe/comm.h>
#include <dualpipe/pipeline.h>

/* The pipeline rank of this rank, whose comm and schedule have been checked. */
int dp_config_rank(const struct dp_pipeline_config *config);

/* Whether steps sum the gradients of copies beyond what the schedule, one of the config's, says: it
 * trains, has no REDUCE, and the caller does not sum them. */
bool dp_config_adds_sums(const struct dp_pipeline_config *config, const struct dp_schedule *s);

/* All checks that need no other rank. device is the one the pipeline will use. */
int dp_config_check(const struct dp_pipeline_config *config, const struct dp_device *device);

/* Collective: tell each other how setting up went here (err, 0 or an error that has been described)
 * and what this rank's config is. Returns err; DP_EABORTED if it went wrong elsewhere, naming the
 * rank; DP_EMISMATCH where configs differ, naming the field, the ranks and the values. *digest stands
 * for all that was agreed on. */
int dp_config_agree(const struct dp_pipeline_config *config, int err, uint64_t *digest);

/* Collective, before every step: all ranks do the same. mine: number of the step, digest of the
 * pipeline, accumulate, digest of its extents[microbatches], which may be NULL, the number of its
 * program; all[DP_AGREED * size] is scratch. Where some ranks choose a forward-only program and others
 * one with backwards of the same micro-batches, *program becomes the former on all. DP_EMISMATCH. */
enum { DP_AGREED = 5 };
int dp_step_agree(struct dp_comm *comm, const uint64_t mine[DP_AGREED],
                  const int64_t (*extents)[DP_MAX_EXTENTS], const struct dp_program *programs,
                  uint64_t *all, int *program);

/* The same name, shapes and types; only the memory may differ. DP_EMISMATCH. */
int dp_config_same_parameter(const struct dp_parameter *has, const struct dp_parameter *wants);

/* The slot with a first (or last) stage of its stream on a rank, -1: none. */
int dp_config_first_slot(const struct dp_schedule *s, int rank);
int dp_config_last_slot(const struct dp_schedule *s, int rank);

/* ---- failures -----------------------------------------------------------------------------------
 * A rank that cannot go on tells the others, and why. */

/* The step of all ranks ends with `error`, described by dp_last_error, which stays. In a group that
 * survives only the communicator is revoked, otherwise the group is aborted. comm may be NULL. */
void dp_failure_tell(struct dp_comm *comm, int error);

#endif
