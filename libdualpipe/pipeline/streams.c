/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.c - order between the streams of a pipeline, the stages and the host.
 */
#include "pipeline/steps.h"

int dp_compute_sync(struct dp_pipeline *pipe)
{
    if (pipe->native_stream)
        return 0;
    int err = dp_device_event_record(pipe->done, pipe->compute);
    return err ? err : dp_device_event_wait(pipe->done, pipe->deadline_ns);
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
    return err ? err : dp_device_event_wait(pipe->done, pipe->deadline_ns);
}
