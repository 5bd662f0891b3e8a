/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/preload/stage.h"

#include "offload/preload/copiers.h"
#include "offload/preload/driver.h"
#include "offload/preload/node.h"
#include "offload/preload/pace.h"
#include "offload/preload/ring.h"
#include "offload/preload/state.h"

#include <pthread.h>

/* A child that was forked has neither CUDA nor the threads that copy. */
static atomic_bool is_child;

static void after_fork(void)
{
    atomic_store(&is_child, true);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

/* ---- how ------------------------------------------------------------------------------------- */

struct staging {
    const struct dpo_driver *driver;
    const struct dpo_copy *copy;
    int threads;
    int count; /* chunks */
    struct dpo_chunk *chunks[DPO_RING_TAKE];
};

static size_t length_of(const struct staging *s, size_t part)
{
    const size_t left = s->copy->bytes - part * DPO_RING_CHUNK_BYTES;

    return left < DPO_RING_CHUNK_BYTES ? left : DPO_RING_CHUNK_BYTES;
}

static struct dpo_chunk *chunk_of(const struct staging *s, size_t part)
{
    return s->chunks[part % (size_t)s->count];
}

/* A part of the copy between its chunk and the device, and the event behind it. */
static bool queue(const struct staging *s, size_t part, int direction)
{
    const struct dpo_chunk *chunk = chunk_of(s, part);
    const uintptr_t at = (uintptr_t)chunk->at, offset = part * DPO_RING_CHUNK_BYTES;
    const bool is_up = direction == DPO_COPY_TO_DEVICE;

    return !s->driver->copy(is_up ? s->copy->to + offset : at, is_up ? at : s->copy->from + offset,
                            length_of(s, part), s->copy->stream) &&
           !s->driver->event_record(chunk->event, s->copy->stream);
}

static bool await(const struct staging *s, size_t part)
{
    return !s->driver->event_synchronize(chunk_of(s, part)->event);
}

static bool copy_up(const struct staging *s, size_t parts)
{
    for (size_t i = 0; i < parts; i++) {
        if (i >= (size_t)s->count && !await(s, i - (size_t)s->count))
            return false;
        dpo_copiers_copy(s->threads, chunk_of(s, i)->at,
                         (const char *)s->copy->from + i * DPO_RING_CHUNK_BYTES, length_of(s, i),
                         s->copy->bytes);
        if (!queue(s, i, DPO_COPY_TO_DEVICE))
            return false;
    }
    return true;
}

static bool copy_down(const struct staging *s, size_t parts)
{
    size_t queued = 0;

    for (size_t i = 0; i < parts; i++) {
        for (; queued < parts && queued < i + (size_t)s->count; queued++)
            if (!queue(s, queued, DPO_COPY_TO_HOST))
                return false;
        if (!await(s, i))
            return false;
        dpo_copiers_copy(s->threads, (char *)s->copy->to + i * DPO_RING_CHUNK_BYTES,
                         chunk_of(s, i)->at, length_of(s, i), s->copy->bytes);
    }
    return true;
}

static bool copy_by_ring(struct staging *s, int direction, void *context)
{
    const size_t parts = (s->copy->bytes + DPO_RING_CHUNK_BYTES - 1) / DPO_RING_CHUNK_BYTES;
    const bool is_up = direction == DPO_COPY_TO_DEVICE;
    bool is_good =
        !is_up || !s->copy->is_synchronous || !s->driver->stream_synchronize(s->copy->stream);

    if (is_good)
        is_good = is_up ? copy_up(s, parts) : copy_down(s, parts);
    dpo_ring_give(context, s->count, s->chunks, is_good);
    return is_good;
}

/* ---- a copy ---------------------------------------------------------------------------------- */

static void count(int direction, size_t bytes)
{
    const enum dpo_counter c =
        direction == DPO_COPY_TO_DEVICE ? DPO_STAGED_TO_DEVICE : DPO_STAGED_TO_HOST;

    dpo_count(c, 1);
    dpo_count(c + 1, bytes);
}

static bool stage(const struct dpo_preload_options *options, const struct dpo_driver *driver,
                  const struct dpo_copy *copy, const void *caller)
{
    struct staging s = {.driver = driver, .copy = copy, .threads = (int)options->stage_threads};
    struct dpo_copy_kind kind;

    if (!dpo_copy_classify(driver, copy, &kind))
        return false;
    if (!kind.is_pageable)
        return options->pace && dpo_pace(options, driver, copy, kind.direction);
    if (!options->stage || copy->bytes < (size_t)options->stage_min)
        return false;
    s.count = dpo_ring_take(driver, kind.context,
                            dpo_nearest_node(&dpo_driver_api, caller, options), s.chunks);
    const bool is_done = s.count > 0 && copy_by_ring(&s, kind.direction, kind.context);
    if (is_done)
        count(kind.direction, copy->bytes);
    else
        dpo_count(DPO_NOT_STAGED, 1);
    return is_done;
}

/* Another stream's capture must not notice what is asked and made here. */
bool dpo_stage(const struct dpo_preload_options *options, const struct dpo_copy *copy,
               const void *caller)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const struct dpo_driver *driver =
        atomic_load_explicit(&is_child, memory_order_relaxed) ? NULL : dpo_driver(caller);
    int mode = DPO_CUDA_CAPTURE_RELAXED;

    if (!driver)
        return false;
    pthread_once(&once, watch_forks);
    if (driver->exchange_capture_mode(&mode))
        return false;
    const bool is_done = stage(options, driver, copy, caller);
    driver->exchange_capture_mode(&mode);
    return is_done;
}
