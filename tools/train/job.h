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
 * 0 or a negative errno; whoever fails first has aborted comm. */
int job_run(const struct settings *s, const struct data *data, struct dp_comm *comm);

#endif
