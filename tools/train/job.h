/* SPDX-License-Identifier: Apache-2.0
 *
 * job.h - what one rank does: train, evaluate, write a sample, say how it went.
 */
#ifndef DP_TRAIN_JOB_H
#define DP_TRAIN_JOB_H

#include "train/data.h"
#include "train/settings.h"

#include <dualpipe/comm.h>

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

#endif
