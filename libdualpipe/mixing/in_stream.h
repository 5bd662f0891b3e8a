/* SPDX-License-Identifier: Apache-2.0
 *
 * in_stream.h - what sums (replicas.c) and mixing (mixer_device.c) in the order of a stream have
 * in common: messages that a stream waits for, memory that they arrive in, and what is checked
 * before.
 */
#ifndef DP_MIXING_IN_STREAM_H
#define DP_MIXING_IN_STREAM_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/parameter.h>

struct dp_stream_messages {
    struct dp_stream_message {
        struct dp_request request;
        int peer;
    } *list;
    int32_t count, done; /* the first `done` of them have come */
};
/* The stream waits for messages first .. count - 1. */
int dp_stream_messages_await(const struct dp_stream_messages *m, int32_t first, struct dp_comm *comm,
                             struct dp_device_stream *stream);
/* The list is empty once all have come. DP_EAGAIN: not yet, and the host is not to wait. */
int dp_stream_messages_end(struct dp_stream_messages *m, struct dp_comm *comm, bool wait);

/* Of the device, and known to the communicator. No bytes: NULL. */
int dp_stream_arrivals_new(struct dp_comm *comm, struct dp_device *dev, size_t bytes, char **out);
void dp_stream_arrivals_free(struct dp_comm *comm, struct dp_device *dev, char *arrivals);

/* Whether it is trained and has elements. */
bool dp_stream_takes(const struct dp_parameter *p);
bool dp_stream_is_on(const struct dp_device *dev, const DLTensor *t);
/* Of all that are taken, with a stream of the device; then of the communicator. `what` is wanted. */
int dp_stream_check(struct dp_comm *comm, struct dp_device *dev, const char *what,
                    const struct dp_parameter *list, int32_t count,
                    int (*check)(const struct dp_parameter *p, const struct dp_device *dev,
                                 struct dp_device_stream *stream));

#endif
