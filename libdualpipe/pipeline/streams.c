/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.c - order between the streams of a pipeline, the stages and the host.
 */
#include "pipeline/steps.h"

#include "base/clock.h"
#include "comm/comm_core.h"

int dp_compute_wait(struct dp_pipeline *pipe, struct dp_device_event *event)
{
    struct dp_comm *comm = pipe->config.comm;
    const int64_t end_ns = dp_now_ns() + pipe->deadline_ns;

    if (!comm || !comm->world->poll)
        return dp_device_event_wait(event, pipe->deadline_ns);
    for (;;) {
        int err = dp_device_event_wait(event, DP_NS_PER_MS);
        if (err != DP_ETIMEDOUT || dp_now_ns() >= end_ns)
            return err;
        err = dp_comm_poll(comm);
        if (err)
            return err;
    }
}

int dp_compute_sync(struct dp_pipeline *pipe)
{
    if (pipe->native_stream)
        return 0;
    int err = dp_device_event_record(pipe->done, pipe->compute);
    return err ? err : dp_compute_wait(pipe, pipe->done);
}

int dp_compute_join(struct dp_pipeline *pipe, struct dp_device_stream *stream,
                    struct dp_device_stream *other)
{
    int err = dp_device_event_record(pipe->done, other);

    return err ? err : dp_device_stream_wait(stream, pipe->done);
}

int dp_compute_copy(struct dp_pipeline *pipe, void *dst, const void *src, size_t len)
{
    int err = dp_device_copy(pipe->compute, dst, src, len);

    if (!err)
        err = dp_device_event_record(pipe->done, pipe->compute);
    return err ? err : dp_compute_wait(pipe, pipe->done);
}
