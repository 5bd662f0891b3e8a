/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.c - the streams of a streamed model: how long they are at work, by stamps in the order of
 * each; what the calling thread waits for, and for how long; and the CPUs that serve them.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "offload/streams.h"

#include "base/bind.h"
#include "base/clock.h"
#include "base/fail.h"

#include <sched.h>

int dpo_streams_open(struct dpo_streams *s)
{
    int err = dp_device_stream_new(s->dev, DP_PRIORITY_HIGH, &s->compute);

    if (!err)
        err = dp_device_stream_new(s->dev, DP_PRIORITY_LOW, &s->update);
    if (!err)
        s->host = !dp_device_stream_native(s->compute);
    return err;
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

void dpo_streams_bind(struct dpo_streams *s, int node)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;

    s->node = node;
    if (node < 0 || !dp_device_bind(s->dev, node))
        return;
    s->node = -1;
    if (!atomic_flag_test_and_set(&said))
        dp_log(DP_LOG_WARN, "offload: copies and updates run on any CPU: %s", dp_last_error());
}

/* A thread of the driver's is bound once for each node. What the system refuses it can do without.
 */
void dpo_thread_bind(const struct dpo_streams *s)
{
    static _Thread_local int bound = -1;
    cpu_set_t cpus, allowed;

    if (s->host || s->node < 0 || s->node == bound)
        return;
    bound = s->node;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) || !dp_node_cpus("", s->node, &cpus))
        return;
    CPU_AND(&cpus, &cpus, &allowed);
    if (CPU_COUNT(&cpus))
        sched_setaffinity(0, sizeof(cpus), &cpus);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* The host computes in the calling thread. */
static int stamp(struct dpo_streams *s, int meter, void (*fn)(void *user))
{
    if (!s->measure)
        return 0;
    if (meter != DPO_COMPUTE || !s->host)
        return dp_device_call(meter == DPO_COMPUTE ? s->compute : s->update, fn, &s->meters[meter]);
    fn(&s->meters[meter]);
    return 0;
}

int dpo_meter_begin(struct dpo_streams *s, int meter)
{
    return stamp(s, meter, dpo_stamp_begin);
}

int dpo_meter_end(struct dpo_streams *s, int meter)
{
    return stamp(s, meter, dpo_stamp_end);
}

int64_t dpo_meter_busy_ns(const struct dpo_streams *s, int meter)
{
    return atomic_load_explicit(&s->meters[meter].busy_ns, memory_order_relaxed);
}

/* ---- waiting --------------------------------------------------------------------------------- */

int dpo_wait(struct dpo_streams *s, struct dp_device_stream *stream)
{
    int err = dp_device_event_record(s->done, stream);
    int64_t begun_ns = dp_now_ns();

    if (!err)
        err = dp_device_event_wait(s->done, s->timeout_ns);
    s->wait_ns += dp_now_ns() - begun_ns;
    return err;
}

int dpo_wait_queued(struct dpo_streams *s, const struct dp_device_event *event)
{
    if (dpo_copy_is_queued(s->copies, event))
        return 0;
    int64_t begun_ns = dp_now_ns();
    int err = dpo_copy_wait_queued(s->copies, event, s->timeout_ns);
    s->wait_ns += dp_now_ns() - begun_ns;
    return err;
}

int dpo_stream_wait(struct dpo_streams *s, struct dp_device_stream *stream,
                    struct dp_device_event *event)
{
    int err = dpo_wait_queued(s, event);

    return err ? err : dp_device_stream_wait(stream, event);
}
