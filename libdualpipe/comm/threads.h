/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.h - what tests ask of the communicator of threads.
 */
#ifndef DP_COMM_THREADS_H
#define DP_COMM_THREADS_H

#include <dualpipe/comm.h>

/* For the others of a group that survives, this rank has died. Nothing but dp_comm_close comes
 * next. */
void dp_comm_threads_die(struct dp_comm *comm);

#endif
