/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/in_stream.h"

#include "base/fail.h"
#include "device/device_ops.h"

int dp_stream_messages_await(const struct dp_stream_messages *m, int32_t first, struct dp_comm *comm,
                             struct dp_device_stream *stream)
{
    int err = 0;

    for (int32_t i = first; i < m->count && !err; i++)
        err = dp_comm_stream_wait(comm, &m->list[i].request, stream);
    return err;
}

int dp_stream_messages_end(struct dp_stream_messages *m, struct dp_comm *comm, bool wait)
{
    int err = 0;

    while (m->done < m->count && !err) {
        struct dp_stream_message *at = &m->list[m->done];
        err = wait ? dp_comm_wait(comm, &at->request, at->peer) : dp_comm_test(comm, &at->request);
        m->done += !err;
    }
    if (!err)
        m->count = m->done = 0;
    return err;
}

int dp_stream_arrivals_new(struct dp_comm *comm, struct dp_device *dev, size_t bytes, char **out)
{
    void *memory = NULL;
    int err = bytes ? dp_device_alloc(dev, DP_MEMORY_DEVICE, bytes, &memory) : 0;

    *out = memory;
    return err || !memory ? err : dp_comm_register(comm, memory, bytes);
}

void dp_stream_arrivals_free(struct dp_comm *comm, struct dp_device *dev, char *arrivals)
{
    if (arrivals)
        dp_comm_unregister(comm, arrivals);
    dp_device_free(dev, DP_MEMORY_DEVICE, arrivals);
}

bool dp_stream_takes(const struct dp_parameter *p)
{
    return !(p->flags & DP_PARAMETER_FROZEN) && dp_parameter_elements(p) > 0;
}

bool dp_stream_is_on(const struct dp_device *dev, const DLTensor *t)
{
    const DLDevice dl = dp_device_dl(dev);

    return t->device.device_type == dl.device_type && t->device.device_id == dl.device_id;
}

int dp_stream_check(struct dp_comm *comm, struct dp_device *dev, const char *what,
                    const struct dp_parameter *list, int32_t count,
                    int (*check)(const struct dp_parameter *p, const struct dp_device *dev,
                                 struct dp_device_stream *stream))
{
    const struct dp_comm_caps caps = dp_comm_caps(comm);
    struct dp_device_stream *stream;
    int err = dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &stream);

    if (err)
        return err;
    for (int32_t i = 0; i < count && !err; i++)
        if (dp_stream_takes(&list[i]))
            err = check(&list[i], dev, stream);
    dp_device_stream_free(stream);
    if (!err && !(caps.stream_ordered && caps.device_memory))
        err = dp_fail(DP_EUNSUPPORTED,
                      "%s in the order of a stream: the communicator '%s' has none, expected one of "
                      "NCCL (dualpipe/nccl.h)",
                      what, dp_comm_name(comm));
    return err;
}
