/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: CPU sets */
#include "device/internal.h"

#include "device/device_ops.h"

#include "base/bind.h"
#include "base/fail.h"
#include "base/options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number behind the colon of "cuda:1", or `fallback` if there is none. */
static int parse_number(const char *name, const char *text, int fallback, int *out)
{
    char *end;

    if (!*text) {
        *out = fallback;
        return 0;
    }
    long value = text[0] == ':' ? strtol(text + 1, &end, 10) : -1;
    if (value < 0 || value > 9999 || end == text + 1 || *end)
        return dp_fail(DP_EINVAL, "device '%s': expected host[:workers] or cuda[:ordinal]", name);
    *out = (int)value;
    return 0;
}

static int open_host(int workers, int64_t link_mbs, struct dp_device **out)
{
    double bytes_per_s = (double)link_mbs * 1e6;

    if (!link_mbs)
        return dp_device_host_open(workers, out);
    return dp_device_host_open_link(workers, &(struct dp_host_link){bytes_per_s, bytes_per_s, 0, 0},
                                    out);
}

int dp_device_open(const char *name, struct dp_device **out)
{
    struct dp_device_options options;
    int number = 0, err;

    err = dp_options_read(&dp_device_option_area, &options);
    if (err)
        return err;
    if (!name)
        return dp_fail(DP_EINVAL, "no device named: expected host[:workers] or cuda[:ordinal]");
    if (!strncmp(name, "cuda", 4)) {
        err = parse_number(name, name + 4, 0, &number);
        return err ? err : dp_device_cuda_open(number, out);
    }
    if (!strncmp(name, "host", 4)) {
        err = parse_number(name, name + 4, (int)options.workers, &number);
        return err ? err : open_host(number, options.link_mbs, out);
    }
    return dp_fail(DP_EINVAL, "device '%s': expected host[:workers] or cuda[:ordinal]", name);
}

void dp_device_close(struct dp_device *dev)
{
    if (dev)
        dev->ops->close(dev);
}

int dp_device_get(const struct dp_device *dev, enum dp_device_property property)
{
    switch (property) {
    case DP_DEVICE_TYPE: return (int)dev->dl.device_type;
    case DP_DEVICE_ORDINAL: return dev->dl.device_id;
    case DP_DEVICE_HOST_ACCESSIBLE: return dev->host_accessible;
    case DP_DEVICE_NUMA_NODE: return dev->numa_node;
    }
    return 0;
}

int dp_device_bind(struct dp_device *dev, int numa_node)
{
    cpu_set_t cpus, allowed;
    int error = 0;

    if (numa_node < 0 || numa_node >= DP_BIND_NODES || !dp_node_cpus("", numa_node, &cpus))
        return dp_fail_quietly(DP_ENODEV, "%s: this machine has no NUMA node %d", dev->ops->name,
                               numa_node);
    if (!sched_getaffinity(0, sizeof(allowed), &allowed))
        CPU_AND(&cpus, &cpus, &allowed);
    if (!CPU_COUNT(&cpus))
        return dp_fail_quietly(DP_ENODEV, "%s: this process may use no CPU of NUMA node %d",
                               dev->ops->name, numa_node);
    if (dev->ops->bind)
        error = dev->ops->bind(dev, &cpus);
    return error ? dp_fail_quietly(DP_EUNSUPPORTED, "%s: its threads are not bound to NUMA node %d: %s",
                                   dev->ops->name, numa_node, strerror(error))
                 : 0;
}

int dp_device_register(struct dp_device *dev, void *ptr, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (!ptr || !bytes || (uintptr_t)ptr % page || bytes % page)
        return dp_fail(DP_EINVAL, "%s: %zu bytes at %p are not whole pages, which only can be pinned",
                       dev->ops->name, bytes, ptr);
    return dev->ops->register_memory(dev, ptr, bytes);
}

void dp_device_unregister(struct dp_device *dev, void *ptr)
{
    if (ptr)
        dev->ops->unregister_memory(dev, ptr);
}

/* ---- streams and events: straight to the table ------------------------------------------------ */

int dp_device_stream_new(struct dp_device *dev, enum dp_device_priority priority,
                         struct dp_device_stream **out)
{
    if (priority < DP_PRIORITY_LOW || priority > DP_PRIORITY_HIGH)
        return dp_fail(DP_EINVAL, "%s: a stream of priority %d, expected %d to %d", dev->ops->name,
                       priority, DP_PRIORITY_LOW, DP_PRIORITY_HIGH);
    return dev->ops->stream_new(dev, priority, out);
}

int dp_device_stream_wrap(struct dp_device *dev, void *native, struct dp_device_stream **out)
{
    return dev->ops->stream_wrap ? dev->ops->stream_wrap(dev, native, out)
                                 : dev->ops->stream_new(dev, DP_PRIORITY_NORMAL, out);
}

void dp_device_stream_free(struct dp_device_stream *stream)
{
    if (stream)
        stream->dev->ops->stream_free(stream);
}

void *dp_device_stream_native(struct dp_device_stream *stream)
{
    return stream->dev->ops->stream_native(stream);
}

int dp_device_copy(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes)
{
    return bytes ? stream->dev->ops->copy(stream, dst, src, bytes) : 0;
}

int dp_device_zero(struct dp_device_stream *stream, void *dst, size_t bytes)
{
    return bytes ? stream->dev->ops->zero(stream, dst, bytes) : 0;
}

int dp_device_call(struct dp_device_stream *stream, void (*fn)(void *user), void *user)
{
    return stream->dev->ops->call(stream, fn, user);
}

int dp_device_event_make(struct dp_device *dev, bool timed, struct dp_device_event **out)
{
    int err = dev->ops->event_new(dev, timed, out);

    if (!err)
        **out = (struct dp_device_event){dev, timed, false};
    return err;
}

void dp_device_event_free(struct dp_device_event *event)
{
    if (event)
        event->dev->ops->event_free(event);
}

int dp_device_event_record(struct dp_device_event *event, struct dp_device_stream *stream)
{
    int err = event->dev->ops->event_record(event, stream);

    if (!err && event->timed)
        event->recorded = true;
    return err;
}

int dp_device_event_test(struct dp_device_event *event)
{
    return event->dev->ops->event_test(event);
}

int dp_device_event_wait(struct dp_device_event *event, int64_t timeout_ns)
{
    return event->dev->ops->event_wait(event, timeout_ns);
}

int dp_device_event_elapsed(struct dp_device_event *from, struct dp_device_event *to, double *ns)
{
    if (from->dev != to->dev || !from->timed || !to->timed || !from->recorded || !to->recorded)
        return dp_fail(DP_EINVAL, "%s: the time between two events: expected timed ones of one "
                                  "device that were recorded", from->dev->ops->name);
    return from->dev->ops->event_elapsed(from, to, ns);
}

int dp_device_stream_wait(struct dp_device_stream *stream, struct dp_device_event *event)
{
    if (event->dev != stream->dev)
        return dp_fail(DP_EINVAL, "%s: a stream cannot wait for another device's event",
                       stream->dev->ops->name);
    return stream->dev->ops->stream_wait(stream, event);
}
