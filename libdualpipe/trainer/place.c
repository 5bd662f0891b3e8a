/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/place.h"

#include "base/fail.h"
#include "base/fp16.h"
#include "base/tensor.h"
#include "device/device_ops.h"

#include <stdlib.h>
#include <string.h>

static const int64_t timeout_ns = INT64_C(600000000000);

struct place {
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    struct dp_device_stream *second; /* of place_fork, with these between the two; NULL: none so far */
    struct dp_device_event *forked, *joined;
    bool owns_dev, owns_stream, apart; /* apart: the host does not reach its memory */
};

int place_new(struct dp_device *dev, struct dp_device_stream *stream, bool copies,
              struct place **out)
{
    struct place *p = calloc(1, sizeof(*p));
    int err = p ? 0 : dp_fail(DP_ENOMEM, "no memory for a place to train");

    if (err)
        return err;
    *p = (struct place){.dev = dev, .stream = stream, .owns_dev = !dev, .owns_stream = !stream};
    if (!dev)
        err = copies ? dp_device_open("host:2", &p->dev) : dp_device_host_open(0, &p->dev);
    if (!err)
        p->apart = !dp_device_host_accessible(p->dev);
    if (!err && !stream)
        err = dp_device_stream_new(p->dev, DP_PRIORITY_NORMAL, &p->stream);
    if (!err)
        err = dp_device_event_new(p->dev, &p->event);
    if (err)
        place_free(p);
    else
        *out = p;
    return err;
}

void place_free(struct place *p)
{
    if (!p)
        return;
    dp_device_event_free(p->joined);
    dp_device_event_free(p->forked);
    dp_device_stream_free(p->second);
    dp_device_event_free(p->event);
    if (p->owns_stream)
        dp_device_stream_free(p->stream);
    if (p->owns_dev)
        dp_device_close(p->dev);
    free(p);
}

static int make_second(struct place *p)
{
    int err = p->forked ? 0 : dp_device_event_new(p->dev, &p->forked); /* of a try that failed */

    if (!err && !p->joined)
        err = dp_device_event_new(p->dev, &p->joined);
    return err ? err : dp_device_stream_new(p->dev, DP_PRIORITY_NORMAL, &p->second);
}

static int follow(struct dp_device_event *event, struct dp_device_stream *first,
                  struct dp_device_stream *then)
{
    const int err = dp_device_event_record(event, first);

    return err ? err : dp_device_stream_wait(then, event);
}

int place_fork(struct place *p, struct dp_device_stream **second)
{
    int err = p->second ? 0 : make_second(p);

    if (!err)
        err = follow(p->forked, p->stream, p->second);
    *second = p->second;
    return err;
}

int place_join(struct place *p)
{
    return follow(p->joined, p->second, p->stream);
}

struct dp_device *place_device(const struct place *p)
{
    return p->apart ? p->dev : NULL;
}

struct dp_device *place_any_device(const struct place *p)
{
    return p->dev;
}

struct dp_device_stream *place_stream(const struct place *p)
{
    return p->apart ? p->stream : NULL;
}

DLDevice place_dl(const struct place *p)
{
    return dp_device_dl(p->dev);
}

bool place_has(const struct place *p, const DLTensor *t)
{
    const DLDevice dl = dp_device_dl(p->dev);

    return t->device.device_type == dl.device_type && t->device.device_id == dl.device_id;
}

int place_alloc(struct place *p, enum dp_memory where, size_t bytes, void **out)
{
    void *memory;
    int err = dp_device_alloc(p->dev, where, bytes, &memory);

    if (err)
        return err;
    *out = memory;
    if (where == DP_MEMORY_PINNED) { /* which may be freed with nothing to wait for */
        memset(memory, 0, bytes);
        return 0;
    }
    return dp_device_zero(p->stream, memory, bytes);
}

int place_wait(struct place *p)
{
    const int err = dp_device_event_record(p->event, p->stream);

    return err ? err : dp_device_event_wait(p->event, timeout_ns);
}

/* A copy that was queued before something failed may still be under way: freeing memory of the device
 * waits for it, freeing pinned memory need not. */
void place_release(struct place *p, enum dp_memory where, void *memory)
{
    if (memory && where == DP_MEMORY_PINNED && p->apart)
        place_wait(p);
    dp_device_free(p->dev, where, memory);
}

int place_copy(struct place *p, void *to, const void *from, size_t bytes)
{
    return dp_device_copy(p->stream, to, from, bytes);
}

int place_round(struct place *p, size_t count, const float *from, DLDataType type, uint16_t *to)
{
    const bool brain = type.code == kDLBfloat;
    int err;

    if (p->apart) {
        err = dp_device_zero(p->stream, to, count * sizeof(*to));
        if (!err)
            err = dp_device_add(p->stream, type, to, (DLDataType){kDLFloat, 32, 1}, from, count);
        return err != DP_EUNSUPPORTED ? err : dp_fail(err, "the device has no sums to round by");
    }
    for (size_t i = 0; i < count; i++)
        to[i] = brain ? dp_bfloat16_store(from[i]) : dp_float16_store(from[i]);
    return 0;
}

int place_zero_gradients(struct place *p, const struct dp_parameter *list, int32_t count)
{
    int err = 0;

    for (int32_t i = 0; i < count && !err; i++)
        if (!(list[i].flags & DP_PARAMETER_FROZEN))
            err =
                dp_device_zero(p->stream, dp_tensor_address(list[i].grad),
                               dp_tensor_bytes(list[i].grad));
    return err;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static bool is_apart(const struct place *p, const struct dp_named_tensor *t)
{
    return p->apart && place_has(p, &t->tensor);
}

int place_bring(struct place *p, struct dp_named_tensor *list, int32_t count, bool read,
                struct place_copies *out)
{
    void *memory = NULL;
    size_t bytes = 0;
    int err = 0;

    *out = (struct place_copies){.count = count};
    for (int32_t i = 0; i < count; i++)
        bytes += is_apart(p, &list[i]) ? place_aligned(dp_tensor_bytes(&list[i].tensor)) : 0;
    if (!bytes)
        return 0;
    out->there = calloc((size_t)count, sizeof(*out->there));
    if (!out->there)
        return dp_fail(DP_ENOMEM, "no memory for copies of %d tensors", count);
    err = dp_device_alloc(p->dev, DP_MEMORY_PINNED, bytes, &memory);
    char *at = out->memory = err ? NULL : memory;
    for (int32_t i = 0; i < count && !err; i++) {
        DLTensor *t = &list[i].tensor;
        if (!is_apart(p, &list[i]))
            continue;
        out->there[i] = dp_tensor_address(t);
        if (read)
            err = place_copy(p, at, out->there[i], dp_tensor_bytes(t));
        t->data = at;
        t->byte_offset = 0;
        t->device = (DLDevice){kDLCPU, 0};
        at += place_aligned(dp_tensor_bytes(t));
    }
    const int waited = place_wait(p); /* also after an error: what is queued writes to memory */
    return err ? err : waited;
}

int place_put_back(struct place *p, const struct dp_named_tensor *list,
                   const struct place_copies *copies)
{
    int err = 0;

    for (int32_t i = 0; i < copies->count && copies->memory && !err; i++)
        if (copies->there[i])
            err = place_copy(p, copies->there[i], list[i].tensor.data, dp_tensor_bytes(&list[i].tensor));
    const int waited = copies->memory ? place_wait(p) : 0;
    return err ? err : waited;
}

void place_copies_free(struct place *p, struct place_copies *copies)
{
    if (copies->memory)
        place_release(p, DP_MEMORY_PINNED, copies->memory);
    free(copies->there);
    *copies = (struct place_copies){0};
}
