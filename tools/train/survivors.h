/* SPDX-License-Identifier: Apache-2.0
 *
 * survivors.h - a pipeline of DualPipe that goes on without ranks that die (--survive).
 *
 *      all         0  1  2  3  4    ranks that live: the first ones are the pipeline, the rest are spare
 *      pipeline    0  1  2  3
 *      2 dies:     0  1  .  2  3    with the spare again a pipeline of four, without one of two
 *
 * All that live agree at the end of every step, before weights change: either all change them or
 * none does. So after a death the two copies of a stage are of the same step, and the state of every
 * stage is there as long as one of its two holders lives. It moves to the layout of the next pipeline
 * (dp_pipeline_move_state), which repeats the step that was cut off.
 *
 * The rule that keeps ranks from waiting for each other: each comes to survivors_agree exactly once
 * after each of these parts, whether it has got through or not.
 */
#ifndef DP_TRAIN_SURVIVORS_H
#define DP_TRAIN_SURVIVORS_H

#include <dualpipe/comm.h>

#include <stdbool.h>

/* What a call that failed may have met is the death of a rank. */
bool survivors_may_be(int err);

/* Collective over the ranks of comm that live: err is what the part returned here. 0 on all of them:
 * it was 0 on all, and all live. A rank whose part has failed revokes comm, so that the others come
 * here too. DP_ECOMM on all that live where one is dead, or its part has failed, unless their own part
 * had failed already; an err that is no death is returned at once. */
int survivors_agree(struct dp_comm *comm, int err);

/* The ranks of the next pipeline where `live` processes live: even, or one that holds all stages, and
 * at most as many as it had at first; 0: too few live. */
int survivors_ranks(int live, int most);

/* A spare rank waits: 0 once the run is over, survivors_may_be after a death. */
int survivors_wait(struct dp_comm *all);
/* The run is over, as all ranks of the pipeline have agreed: rank 0 tells the spares, which are the
 * ranks from `ranks` on. Collective over all. */
void survivors_dismiss(struct dp_comm *all, int ranks);

/* DP_ENOMEM, with its sentence in place of that of the loss before it. */
int survivors_no_memory(void);

#endif
