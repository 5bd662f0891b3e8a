/* SPDX-License-Identifier: Apache-2.0
 *
 * steps.h - what run.c calls for each entry of a plan. All return 0 or a negative errno whose
 * sentence has been said.
 */
#ifndef DP_PIPELINE_STEPS_H
#define DP_PIPELINE_STEPS_H

#include "pipeline/state.h"

/* ---- messages.c ----------------------------------------------------------------------------- */

int dp_messages_recv(struct dp_pipeline *pipe, const struct dp_plan_op *op);
int dp_messages_send(struct dp_pipeline *pipe, const struct dp_plan_op *op);
/* Wait for what the entry waits for, and add up the time in pipe->now. */
int dp_messages_wait(struct dp_pipeline *pipe, const struct dp_plan_op *op);
/* The sends still open at the end of a step. */
int dp_messages_finish(struct dp_pipeline *pipe);
/* After a failure: sends that wait for a copy are not sent any more. */
void dp_messages_forget(struct dp_pipeline *pipe);
/* Move what can be moved; for when nobody waits. */
int dp_messages_progress(struct dp_pipeline *pipe);
/* Wait for one request of this rank. peer: pipeline rank. */
int dp_messages_wait_request(struct dp_pipeline *pipe, struct dp_request *request, int peer);
/* The tag of a message: who made it, for which micro-batch, in which step. */
uint64_t dp_messages_tag(const struct dp_pipeline *pipe, int channel, int stage, uint32_t mb);

/* ---- compute.c ------------------------------------------------------------------------------ */

/* FORWARD, BACKWARD, INPUT, WEIGHT; a FORWARD with `pair` does op[1], its BACKWARD, too. */
int dp_compute_run(struct dp_pipeline *pipe, const struct dp_plan_op *op);
/* Where stages run in the calling thread and not in the stream: wait for what the stream was given,
 * which they are about to use. */
int dp_compute_settle(struct dp_pipeline *pipe);

/* ---- reduce.c ------------------------------------------------------------------------------- */

size_t dp_reduce_memory_bytes(const struct dp_pipeline *pipe);
int dp_reduce_run(struct dp_pipeline *pipe, const struct dp_plan_op *op);
int dp_reduce_merge(struct dp_pipeline *pipe, const struct dp_plan_op *op);

/* ---- run.c ---------------------------------------------------------------------------------- */

/* Carry out the plan. After a failure messages may be in flight. */
int dp_pipeline_run(struct dp_pipeline *pipe);

/* "rank 2, op 17: F of micro-batch 3 in slot 0 (stage 2)". */
void dp_pipeline_describe(const struct dp_pipeline *pipe, const struct dp_plan_op *op, char *text,
                          size_t len);

#endif
