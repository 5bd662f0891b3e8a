/* SPDX-License-Identifier: Apache-2.0
 *
 * waits.c - what the calling thread waits for, and for how long.
 */
#include "offload/state.h"

#include "base/clock.h"

int dpo_wait(struct dp_offload *o, struct dp_device_stream *stream)
{
    int err = dp_device_event_record(o->done, stream);
    int64_t begun_ns = dp_now_ns();

    if (!err)
        err = dp_device_event_wait(o->done, o->config.timeout_ns);
    o->wait_ns += dp_now_ns() - begun_ns;
    return err;
}

int dpo_wait_queued(struct dp_offload *o, const struct dp_device_event *event)
{
    if (dpo_copy_is_queued(o->copies, event))
        return 0;
    int64_t begun_ns = dp_now_ns();
    int err = dpo_copy_wait_queued(o->copies, event, o->config.timeout_ns);
    o->wait_ns += dp_now_ns() - begun_ns;
    return err;
}

int dpo_stream_wait(struct dp_offload *o, struct dp_device_stream *stream,
                    struct dp_device_event *event)
{
    int err = dpo_wait_queued(o, event);

    return err ? err : dp_device_stream_wait(stream, event);
}
