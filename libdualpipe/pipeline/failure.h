/* SPDX-License-Identifier: Apache-2.0
 *
 * failure.h - a rank that cannot go on tells the others, and why.
 */
#ifndef DP_PIPELINE_FAILURE_H
#define DP_PIPELINE_FAILURE_H

#include <dualpipe/comm.h>

/* The step of all ranks ends with `error`, described by dp_last_error, which stays. In a group that
 * survives only the communicator is revoked, otherwise the group is aborted. comm may be NULL. */
void dp_failure_tell(struct dp_comm *comm, int error);

/* Why a callback has returned err, in the words that it gave dp_callback_error; "": in none. Until the
 * thread's next dp_callback_error. */
const char *dp_callback_reason(int err);

#endif
