/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_device.h"

#include "device/device_ops.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUE = 4096, TESTS_TO_FINISH = 3 };

struct work {
    void *dst;
    const void *src; /* NULL: zeros */
    size_t bytes;
    void (*fn)(void *user);
    void *user;
    struct stream *after; /* nothing but a wait: for this stream ... */
    size_t position;                /* ... to come this far */
};

struct fake {
    struct dp_device base;
    struct stream *freed;
    int copies;
    bool is_held;
};

/* A ring: done and queued count up for ever. */
struct stream {
    struct dp_device_stream base;
    struct fake *fake;
    struct stream *next; /* of those that were freed: others may still wait for them */
    size_t done, queued;
    struct work work[QUEUE];
};

struct event {
    struct dp_device_event base;
    struct stream *stream; /* NULL: never recorded */
    size_t position;
    int tests;
};

static void carry_out(struct stream *stream, size_t position)
{
    while (stream->done < position) {
        struct work *work = &stream->work[stream->done++ % QUEUE];
        if (work->after)
            carry_out(work->after, work->position);
        else if (work->fn)
            work->fn(work->user);
        else if (work->src)
            memcpy(work->dst, work->src, work->bytes);
        else
            memset(work->dst, 0, work->bytes);
        stream->fake->copies++;
    }
}

static void queue(struct stream *stream, struct work work)
{
    if (stream->queued - stream->done == QUEUE)
        carry_out(stream, stream->queued);
    stream->work[stream->queued++ % QUEUE] = work;
}

static int fake_alloc(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out)
{
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    memset(*out, 0xAB, bytes);
    return *out ? 0 : DP_ENOMEM;
}

static void fake_free(struct dp_device *dev, enum dp_memory where, void *ptr)
{
    free(ptr);
}

static int fake_register(struct dp_device *dev, void *ptr, size_t bytes)
{
    (void)dev, (void)ptr, (void)bytes;
    return 0;
}

static void fake_unregister(struct dp_device *dev, void *ptr)
{
    (void)dev, (void)ptr;
}

static int fake_stream_new(struct dp_device *dev, enum dp_device_priority priority,
                           struct dp_device_stream **out)
{
    struct stream *stream = calloc(1, sizeof(*stream));

    stream->base.dev = dev;
    stream->fake = (struct fake *)dev;
    *out = &stream->base;
    return 0;
}

static void fake_stream_free(struct dp_device_stream *stream)
{
    struct stream *s = (struct stream *)stream;

    fake_device_sync(stream);
    s->next = s->fake->freed;
    s->fake->freed = s;
}

static void *fake_stream_native(struct dp_device_stream *stream)
{
    return stream;
}

static int fake_copy(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes)
{
    queue((struct stream *)stream, (struct work){.dst = dst, .src = src, .bytes = bytes});
    return 0;
}

static int fake_zero(struct dp_device_stream *stream, void *dst, size_t bytes)
{
    queue((struct stream *)stream, (struct work){.dst = dst, .bytes = bytes});
    return 0;
}

static int fake_call(struct dp_device_stream *stream, void (*fn)(void *user), void *user)
{
    queue((struct stream *)stream, (struct work){.fn = fn, .user = user});
    return 0;
}

static int fake_event_new(struct dp_device *dev, bool timed, struct dp_device_event **out)
{
    struct event *event = calloc(1, sizeof(*event));

    (void)dev, (void)timed;
    *out = &event->base;
    return 0;
}

static void fake_event_free(struct dp_device_event *event)
{
    free(event);
}

static int fake_event_record(struct dp_device_event *event, struct dp_device_stream *stream)
{
    struct event *e = (struct event *)event;

    e->stream = (struct stream *)stream;
    e->position = e->stream->queued;
    e->tests = 0;
    return 0;
}

static bool is_held(const struct event *e)
{
    return e->stream && e->stream->done < e->position && e->stream->fake->is_held;
}

static int fake_event_wait(struct dp_device_event *event, int64_t timeout_ns)
{
    struct event *e = (struct event *)event;

    if (is_held(e))
        return DP_ETIMEDOUT;
    if (e->stream)
        carry_out(e->stream, e->position);
    return 0;
}

static int fake_event_test(struct dp_device_event *event)
{
    struct event *e = (struct event *)event;

    if (is_held(e) || (e->stream && e->stream->done < e->position && ++e->tests < TESTS_TO_FINISH))
        return DP_EAGAIN;
    return fake_event_wait(event, 0);
}

static int fake_stream_wait(struct dp_device_stream *stream, struct dp_device_event *event)
{
    struct event *e = (struct event *)event;

    if (e->stream)
        queue((struct stream *)stream,
              (struct work){.after = e->stream, .position = e->position});
    return 0;
}

static void fake_close(struct dp_device *dev)
{
    struct fake *fake = (struct fake *)dev;

    while (fake->freed) {
        struct stream *s = fake->freed;
        fake->freed = s->next;
        free(s);
    }
    dp_device_fini(dev);
    free(dev);
}

static const struct dp_device_ops fake_ops = {
    .name = "fake",
    .alloc = fake_alloc,
    .free = fake_free,
    .register_memory = fake_register,
    .unregister_memory = fake_unregister,
    .stream_new = fake_stream_new,
    .stream_free = fake_stream_free,
    .stream_native = fake_stream_native,
    .copy = fake_copy,
    .zero = fake_zero,
    .call = fake_call,
    .event_new = fake_event_new,
    .event_free = fake_event_free,
    .event_record = fake_event_record,
    .event_test = fake_event_test,
    .event_wait = fake_event_wait,
    .stream_wait = fake_stream_wait,
    .close = fake_close,
};

int fake_device_open(struct dp_device **out)
{
    struct fake *fake = calloc(1, sizeof(*fake));

    dp_device_init(&fake->base, &fake_ops, (DLDevice){kDLCPU, 0}, false);
    *out = &fake->base;
    return 0;
}

void fake_device_sync(void *stream)
{
    struct stream *s = stream;

    carry_out(s, s->queued);
}

void fake_device_hold(struct dp_device *dev, bool held)
{
    ((struct fake *)dev)->is_held = held;
}

int fake_device_copies(const struct dp_device *dev)
{
    return ((const struct fake *)dev)->copies;
}
