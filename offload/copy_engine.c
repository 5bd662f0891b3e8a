/* SPDX-License-Identifier: Apache-2.0
 *
 * copy_engine.c - copies between host and device as requests. For each direction and priority there
 * is a stream, into which a copy is queued chunk by chunk:
 *
 *      up, high        ....a..
 *      up, normal      b0 b1 b2 b3      a begins after the chunk of b that is at work: the device
 * takes up, low         .                the most urgent stream after every chunk down, ...
 *
 * Where nothing is paced all chunks are queued at once, and no call is needed for the copy to
 * go on. A paced copy is queued as far as may be whenever the engine is asked anything.
 */
#include "offload/streams.h"

#include "base/clock.h"
#include "base/fail.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_CHUNKS = 32, PRIORITIES = DP_PRIORITY_HIGH - DP_PRIORITY_LOW + 1 };
static const size_t default_chunk = (size_t)4 << 20;

/* A stream, and what is checked in it, one chunk after the other. */
struct queue {
    struct dp_device_stream *stream;
    struct dp_offload_copy *first, **last; /* that wait to be queued, in order */
    char *compare;                         /* check: a chunk of what is on the device */
    struct dpo_meter meter;
};

struct dp_offload_copy {
    struct dp_copy_engine *engine;
    struct dp_offload_copy *next; /* of the free ones, or of its queue */
    struct dp_copy_spec spec;
    struct queue *queue;
    size_t chunk, queued;
    struct dp_device_event *done;
    bool is_queued, detached;
    /* In the order of the queue's stream: */
    size_t checked;
    _Atomic bool wrong;
};

struct dp_copy_engine {
    struct dp_copy_engine_config config;
    struct queue queues[DP_COPY_DIRECTIONS][PRIORITIES];
    struct dp_offload_copy *copies, *free;
    struct dp_copy_stats stats;
    int32_t wrong; /* detached copies that have not arrived as they were sent */
    char *poison;  /* a chunk of it */
};

/* ---- a chunk --------------------------------------------------------------------------------- */

static void compare_chunk(void *user)
{
    struct dp_offload_copy *copy = user;
    size_t left = copy->spec.bytes - copy->checked, len = left < copy->chunk ? left : copy->chunk;

    const char *host = copy->spec.direction == DP_COPY_UP ? copy->spec.src : copy->spec.dst;

    if (memcmp(copy->queue->compare, host + copy->checked, len))
        atomic_store(&copy->wrong, true);
    copy->checked += len;
}

/* What is on the device is brought to the host once more, behind the copy, and compared with what
 * is there. */
static int check_chunk(struct dp_offload_copy *copy, const char *on_device, size_t len)
{
    struct queue *queue = copy->queue;
    int err = dp_device_copy(queue->stream, queue->compare, on_device, len);

    return err ? err : dp_device_call(queue->stream, compare_chunk, copy);
}

static int queue_chunk(struct dp_offload_copy *copy)
{
    const struct dp_copy_spec *spec = &copy->spec;
    struct dp_copy_engine *engine = copy->engine;
    size_t left = spec->bytes - copy->queued, len = left < copy->chunk ? left : copy->chunk;
    char *dst = (char *)spec->dst + copy->queued;
    const char *src = spec->src ? (const char *)spec->src + copy->queued : engine->poison;
    int err = dp_device_copy(copy->queue->stream, dst, src, len);

    if (!err && engine->config.check && spec->src)
        err = check_chunk(copy, spec->direction == DP_COPY_UP ? dst : src, len);
    copy->queued += len;
    return err;
}

/* ---- a copy ---------------------------------------------------------------------------------- */

void dpo_stamp_begin(void *user)
{
    struct dpo_meter *meter = user;

    meter->begun_ns = dp_now_ns();
}

/* The reader comes after an event of the stream; atomic for readers without one. */
void dpo_stamp_end(void *user)
{
    struct dpo_meter *meter = user;

    atomic_fetch_add_explicit(&meter->busy_ns, dp_now_ns() - meter->begun_ns, memory_order_relaxed);
}

static int stamp(struct dp_offload_copy *copy, void (*fn)(void *user))
{
    struct queue *queue = copy->queue;

    return copy->engine->config.measure ? dp_device_call(queue->stream, fn, &queue->meter)
                                        : 0;
}

static int begin_queueing(struct dp_offload_copy *copy)
{
    int err = 0;

    for (int32_t i = 0; i < copy->spec.after_count && !err; i++)
        err = dp_device_stream_wait(copy->queue->stream, copy->spec.after[i]);
    return err ? err : stamp(copy, dpo_stamp_begin);
}

static int end_queueing(struct dp_offload_copy *copy)
{
    int err = stamp(copy, dpo_stamp_end);

    if (!err && copy->spec.record)
        err = dp_device_event_record(copy->spec.record, copy->queue->stream);
    if (!err)
        err = dp_device_event_record(copy->done, copy->queue->stream);
    copy->is_queued = true;
    return err;
}

/* 0: the pace allows the next chunk now. */
static int ask_pace(const struct dp_offload_copy *copy)
{
    const struct dp_copy_engine_config *c = &copy->engine->config;
    size_t left = copy->spec.bytes - copy->queued;

    if (!c->pace || copy->spec.priority == DP_PRIORITY_HIGH || !copy->spec.src)
        return 0;
    return c->pace(c->pace_user, copy->spec.direction, left < copy->chunk ? left : copy->chunk)
               ? 0
               : DP_EAGAIN;
}

/* As far as the pace allows. DP_EAGAIN: not to its end. */
static int queue_copy(struct dp_offload_copy *copy)
{
    int err = 0;

    while (copy->queued < copy->spec.bytes && !err) {
        err = ask_pace(copy);
        if (!err && !copy->queued)
            err = begin_queueing(copy);
        if (!err)
            err = queue_chunk(copy);
    }
    return err ? err : end_queueing(copy);
}

static int advance_queue(struct queue *queue)
{
    struct dp_offload_copy *copy;
    int err = 0;

    while ((copy = queue->first) && !err) {
        err = queue_copy(copy);
        if (!err)
            queue->first = copy->next;
    }
    return err == DP_EAGAIN ? 0 : err;
}

static void give_back(struct dp_offload_copy *copy)
{
    copy->engine->wrong += copy->detached && atomic_load(&copy->wrong);
    copy->detached = false;
    copy->next = copy->engine->free;
    copy->engine->free = copy;
}

/* Detached copies that are done are free again. */
static void reap(struct dp_copy_engine *engine)
{
    for (int32_t i = 0; i < engine->config.copies; i++) {
        struct dp_offload_copy *copy = &engine->copies[i];
        if (copy->detached && copy->is_queued && !dp_device_event_test(copy->done))
            give_back(copy);
    }
}

int dp_copy_engine_progress(struct dp_copy_engine *engine)
{
    int err = 0;

    for (int direction = 0; direction < DP_COPY_DIRECTIONS; direction++)
        for (int level = PRIORITIES - 1; level >= 0 && !err; level--)
            err = advance_queue(&engine->queues[direction][level]);
    return err;
}

static int check_spec(const struct dp_copy_engine *engine, const struct dp_copy_spec *spec)
{
    bool known = spec->direction == DP_COPY_UP || spec->direction == DP_COPY_DOWN;

    if (!known || spec->priority < DP_PRIORITY_LOW || spec->priority > DP_PRIORITY_HIGH)
        return dp_fail(DP_EINVAL,
                       "copy engine: a copy in direction %d of priority %d, expected up "
                       "(%d) or down (%d), and %d to %d",
                       spec->direction, spec->priority, DP_COPY_UP, DP_COPY_DOWN, DP_PRIORITY_LOW,
                       DP_PRIORITY_HIGH);
    if (spec->after_count < 0 || spec->after_count > DP_COPY_MAX_AFTER)
        return dp_fail(DP_EINVAL, "copy engine: a copy after %d events, expected 0 to %d",
                       spec->after_count, DP_COPY_MAX_AFTER);
    if (spec->bytes && (!spec->dst || (!spec->src && !engine->config.check)))
        return dp_fail(DP_EINVAL, "copy engine: a copy of %zu bytes without a %s", spec->bytes,
                       spec->dst ? "source" : "destination");
    return 0;
}

static size_t chunk_of(const struct dp_copy_engine *engine, const struct dp_copy_spec *spec)
{
    size_t chunk = engine->config.chunk_bytes,
           least = (spec->bytes + MOST_CHUNKS - 1) / MOST_CHUNKS;

    if (engine->config.check || least < chunk)
        return chunk;
    return (least + 255) / 256 * 256;
}

static struct dp_offload_copy *take(struct dp_copy_engine *engine, const struct dp_copy_spec *spec)
{
    if (!engine->free)
        reap(engine);
    struct dp_offload_copy *copy = engine->free;
    if (!copy)
        return NULL;
    engine->free = copy->next;
    copy->next = NULL;
    copy->spec = *spec;
    copy->queue = &engine->queues[spec->direction][spec->priority - DP_PRIORITY_LOW];
    copy->chunk = chunk_of(engine, spec);
    copy->queued = copy->checked = 0;
    copy->is_queued = false;
    atomic_store(&copy->wrong, false);
    return copy;
}

static void append(struct dp_offload_copy *copy)
{
    struct queue *queue = copy->queue;

    if (queue->first)
        *queue->last = copy;
    else
        queue->first = copy;
    queue->last = &copy->next;
}

int dp_copy_begin(struct dp_copy_engine *engine, const struct dp_copy_spec *spec,
                  struct dp_offload_copy **out)
{
    int err = check_spec(engine, spec);

    if (err)
        return err;
    struct dp_offload_copy *copy = take(engine, spec);
    if (!copy)
        return DP_EAGAIN;
    engine->stats.copies[spec->direction]++;
    engine->stats.bytes[spec->direction] += spec->src ? spec->bytes : 0;
    append(copy);
    if (out)
        *out = copy;
    else
        copy->detached = true;
    return advance_queue(copy->queue);
}

static int result(struct dp_offload_copy *copy)
{
    bool wrong = atomic_load(&copy->wrong);
    size_t bytes = copy->spec.bytes;

    give_back(copy);
    return wrong
               ? dp_fail(DP_EIO, "copy engine: %zu bytes have not arrived as they were sent", bytes)
               : 0;
}

int dp_copy_test(struct dp_offload_copy *copy)
{
    int err = dp_copy_engine_progress(copy->engine);

    if (!err && !copy->is_queued)
        err = DP_EAGAIN;
    if (!err)
        err = dp_device_event_test(copy->done);
    return err ? err : result(copy);
}

/* Until the pace has let all of it pass. */
static int wait_queued(struct dp_copy_engine *engine, const bool *is_queued, int64_t deadline_ns)
{
    const struct timespec pause = {0, 50 * DP_NS_PER_US};
    int err = dp_copy_engine_progress(engine);

    while (!err && !*is_queued) {
        if (dp_now_ns() >= deadline_ns)
            return dp_fail_quietly(DP_ETIMEDOUT, "copy engine: the pace lets no chunk pass");
        nanosleep(&pause, NULL);
        err = dp_copy_engine_progress(engine);
    }
    return err;
}

static int64_t left_until(int64_t deadline_ns)
{
    int64_t left = deadline_ns - dp_now_ns();

    return left > 0 ? left : 0;
}

int dp_copy_wait(struct dp_offload_copy *copy, int64_t timeout_ns)
{
    int64_t deadline_ns = dp_now_ns() + timeout_ns;
    int err = wait_queued(copy->engine, &copy->is_queued, deadline_ns);

    if (!err)
        err = dp_device_event_wait(copy->done, left_until(deadline_ns));
    return err ? err : result(copy);
}

/* A copy that is to record the event, and waits to be queued. */
static struct dp_offload_copy *find_waiting(const struct dp_copy_engine *engine,
                                            const struct dp_device_event *event)
{
    for (int d = 0; d < DP_COPY_DIRECTIONS; d++)
        for (int level = 0; level < PRIORITIES; level++)
            for (struct dp_offload_copy *copy = engine->queues[d][level].first; copy;
                 copy = copy->next)
                if (copy->spec.record == event)
                    return copy;
    return NULL;
}

bool dpo_copy_is_queued(const struct dp_copy_engine *engine, const struct dp_device_event *event)
{
    return !find_waiting(engine, event);
}

int dpo_copy_wait_queued(struct dp_copy_engine *engine, const struct dp_device_event *event,
                         int64_t timeout_ns)
{
    int64_t deadline_ns = dp_now_ns() + timeout_ns;
    struct dp_offload_copy *copy;
    int err = 0;

    while (!err && (copy = find_waiting(engine, event)))
        err = wait_queued(engine, &copy->is_queued, deadline_ns);
    return err;
}

/* ---- all of them ----------------------------------------------------------------------------- */

int dp_copy_engine_drain(struct dp_copy_engine *engine, int64_t timeout_ns)
{
    int64_t deadline_ns = dp_now_ns() + timeout_ns;
    int err = 0;

    for (int32_t i = 0; i < engine->config.copies && !err; i++) {
        struct dp_offload_copy *copy = &engine->copies[i];
        if (!copy->detached)
            continue;
        err = wait_queued(engine, &copy->is_queued, deadline_ns);
        if (!err)
            err = dp_device_event_wait(copy->done, left_until(deadline_ns));
        if (!err)
            give_back(copy);
    }
    if (err || !engine->wrong)
        return err;
    int32_t wrong = engine->wrong;
    engine->wrong = 0;
    return dp_fail(DP_EIO, "copy engine: %d copies have not arrived as they were sent", wrong);
}

void dp_copy_engine_stats(const struct dp_copy_engine *engine, struct dp_copy_stats *out)
{
    *out = engine->stats;
    for (int d = 0; d < DP_COPY_DIRECTIONS; d++)
        for (int level = 0; level < PRIORITIES; level++)
            out->busy_ns[d] += atomic_load(&engine->queues[d][level].meter.busy_ns);
}

/* ---- making one ------------------------------------------------------------------------------ */

static int take_pinned(struct dp_copy_engine *engine, char **out)
{
    void *memory;
    int err = dp_device_alloc(engine->config.device, DP_MEMORY_PINNED, engine->config.chunk_bytes,
                              &memory);

    if (!err)
        *out = memory;
    return err;
}

static int new_queue(struct dp_copy_engine *engine, int direction, int level)
{
    struct queue *queue = &engine->queues[direction][level];
    const enum dp_device_priority priority = (enum dp_device_priority)(level + DP_PRIORITY_LOW);
    int err = dp_device_stream_new(engine->config.device, priority, &queue->stream);

    return err || !engine->config.check ? err : take_pinned(engine, &queue->compare);
}

static int new_copies(struct dp_copy_engine *engine)
{
    int32_t count = engine->config.copies;
    int err = 0;

    engine->copies = calloc((size_t)count, sizeof(*engine->copies));
    if (!engine->copies)
        return dp_fail(DP_ENOMEM, "copy engine: no memory for %d copies", count);
    for (int32_t i = count - 1; i >= 0 && !err; i--) {
        struct dp_offload_copy *copy = &engine->copies[i];
        err = dp_device_event_new(engine->config.device, &copy->done);
        copy->engine = engine;
        give_back(copy);
    }
    return err;
}

static int build(struct dp_copy_engine *engine)
{
    int err = new_copies(engine);

    for (int d = 0; d < DP_COPY_DIRECTIONS; d++)
        for (int level = 0; level < PRIORITIES && !err; level++)
            err = new_queue(engine, d, level);
    if (!err && engine->config.check)
        err = take_pinned(engine, &engine->poison);
    if (!err && engine->poison)
        memset(engine->poison, 0xFF, engine->config.chunk_bytes); /* NaNs of every format */
    return err;
}

int dp_copy_engine_new(const struct dp_copy_engine_config *config, struct dp_copy_engine **out)
{
    if (!config->device)
        return dp_fail(DP_EINVAL, "copy engine: no device");
    if (config->copies < 0)
        return dp_fail(DP_EINVAL, "copy engine: %d copies at once, expected at least 1",
                       config->copies);
    struct dp_copy_engine *engine = calloc(1, sizeof(*engine));
    if (!engine)
        return dp_fail(DP_ENOMEM, "copy engine: no memory for an engine");
    engine->config = *config;
    engine->config.copies = config->copies ? config->copies : 64;
    engine->config.chunk_bytes = config->chunk_bytes ? config->chunk_bytes : default_chunk;
    int err = build(engine);
    if (err)
        dp_copy_engine_free(engine);
    else
        *out = engine;
    return err;
}

/* Freeing a stream finishes what is in it. */
void dp_copy_engine_free(struct dp_copy_engine *engine)
{
    if (!engine)
        return;
    for (int d = 0; d < DP_COPY_DIRECTIONS; d++)
        for (int level = 0; level < PRIORITIES; level++) {
            struct queue *queue = &engine->queues[d][level];
            dp_device_stream_free(queue->stream);
            dp_device_free(engine->config.device, DP_MEMORY_PINNED, queue->compare);
        }
    for (int32_t i = 0; engine->copies && i < engine->config.copies; i++)
        dp_device_event_free(engine->copies[i].done);
    dp_device_free(engine->config.device, DP_MEMORY_PINNED, engine->poison);
    free(engine->copies);
    free(engine);
}
