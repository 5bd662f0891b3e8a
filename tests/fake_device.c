/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_device.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUE = 4096, TESTS_TO_FINISH = 3 };

struct work {
    void *dst;
    const void *src; /* NULL: zeros */
    size_t bytes;
    struct dp_device_stream *after; /* nothing but a wait: for this stream ... */
    size_t position;                /* ... to come this far */
};

struct fake {
    struct dp_device base;
    int copies;
};

/* A ring: done and queued count up for ever. */
struct dp_device_stream {
    struct fake *fake;
    size_t done, queued;
    struct work work[QUEUE];
};

struct dp_device_event {
    struct dp_device_stream *stream; /* NULL: never recorded */
    size_t position;
    int tests;
};

static void carry_out(struct dp_device_stream *stream, size_t position)
{
    while (stream->done < position) {
        struct work *work = &stream->work[stream->done++ % QUEUE];
        if (work->after)
            carry_out(work->after, work->position);
        else if (work->src)
            memcpy(work->dst, work->src, work->bytes);
        else
            memset(work->dst, 0, work->bytes);
        stream->fake->copies++;
    }
}

static void queue(struct dp_device_stream *stream, struct work work)
{
    if (stream->queued - stream->done == QUEUE)
        carry_out(stream, stream->queued);
    stream->work[stream->queued++ % QUEUE] = work;
}

static int fake_alloc(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out)
{
    (void)dev;
    (void)where;
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    memset(*out, 0xAB, bytes);
    return *out ? 0 : DP_ENOMEM;
}

static void fake_free(struct dp_device *dev, enum dp_memory where, void *ptr)
{
    (void)dev;
    (void)where;
    free(ptr);
}

static int fake_stream_new(struct dp_device *dev, struct dp_device_stream **out)
{
    *out = calloc(1, sizeof(**out));
    (*out)->fake = (struct fake *)dev;
    return 0;
}

static void fake_stream_free(struct dp_device_stream *stream)
{
    if (stream)
        carry_out(stream, stream->queued);
    free(stream);
}

static void *fake_stream_native(struct dp_device_stream *stream)
{
    return stream;
}

static int fake_copy(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes)
{
    queue(stream, (struct work){.dst = dst, .src = src, .bytes = bytes});
    return 0;
}

static int fake_zero(struct dp_device_stream *stream, void *dst, size_t bytes)
{
    queue(stream, (struct work){.dst = dst, .bytes = bytes});
    return 0;
}

static int fake_event_new(struct dp_device *dev, struct dp_device_event **out)
{
    (void)dev;
    *out = calloc(1, sizeof(**out));
    return 0;
}

static void fake_event_free(struct dp_device_event *event)
{
    free(event);
}

static int fake_event_record(struct dp_device_event *event, struct dp_device_stream *stream)
{
    *event = (struct dp_device_event){.stream = stream, .position = stream->queued};
    return 0;
}

static int fake_event_wait(struct dp_device_event *event, int64_t timeout_ns)
{
    (void)timeout_ns;
    if (event->stream)
        carry_out(event->stream, event->position);
    return 0;
}

static int fake_event_test(struct dp_device_event *event)
{
    if (event->stream && event->stream->done < event->position && ++event->tests < TESTS_TO_FINISH)
        return DP_EAGAIN;
    return fake_event_wait(event, 0);
}

static int fake_stream_wait(struct dp_device_stream *stream, struct dp_device_event *event)
{
    if (event->stream)
        queue(stream, (struct work){.after = event->stream, .position = event->position});
    return 0;
}

static void fake_close(struct dp_device *dev)
{
    free(dev);
}

static const struct dp_device_ops fake_ops = {
    .name = "fake",
    .alloc = fake_alloc,
    .free = fake_free,
    .stream_new = fake_stream_new,
    .stream_free = fake_stream_free,
    .stream_native = fake_stream_native,
    .copy = fake_copy,
    .zero = fake_zero,
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

    fake->base = (struct dp_device){.ops = &fake_ops, .dl = {kDLCPU, 0}};
    *out = &fake->base;
    return 0;
}

void fake_device_sync(void *stream)
{
    struct dp_device_stream *s = stream;
    carry_out(s, s->queued);
}

int fake_device_copies(const struct dp_device *dev)
{
    return ((const struct fake *)dev)->copies;
}
