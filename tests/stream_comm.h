/* SPDX-License-Identifier: Apache-2.0
 *
 * stream_comm.h - a stream-ordered communicator of threads, to prove what NCCL's will rely on: a
 * message is work in a stream of its link, from device memory to device memory, and begins and ends
 * in the order of streams. As with NCCL a send is done when the other rank has received it, what is
 * started between begin and commit moves only at the commit, and small messages of the host (the
 * channels of control and of collectives) go over a communicator of the host, that of threads.
 */
#ifndef DP_TESTS_STREAM_COMM_H
#define DP_TESTS_STREAM_COMM_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>

struct stream_group;

struct stream_group *stream_group_new(int size);
/* After all ranks have closed theirs. */
void stream_group_free(struct stream_group *group);
/* No message to `rank` arrives before that rank has started as many messages, of all that it has
 * ever started. */
void stream_group_hold(struct stream_group *group, int rank, long started);

/* This rank's, over `host`, which stays open; dev: what the messages' memory is on. */
int stream_comm_open(struct stream_group *group, struct dp_comm *host, struct dp_device *dev,
                     struct dp_comm **out);
/* Messages that this rank has started. */
long stream_comm_started(const struct dp_comm *comm);

#endif
