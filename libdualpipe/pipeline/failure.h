/* SPDX-License-Identifier: Apache-2.0
 *
 * failure.h - a rank that cannot go on tells the others, and why.
 */
#ifndef DP_PIPELINE_FAILURE_H
#define DP_PIPELINE_FAILURE_H

#include <dualpipe/comm.h>
#include <dualpipe/stage.h>

/* The step of all ranks ends with `error`, described by dp_last_error, which stays. In a group that
 * survives only the communicator is revoked, otherwise the group is aborted. comm may be NULL. */
void dp_failure_tell(struct dp_comm *comm, int error);

#endif
