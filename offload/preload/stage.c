/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* a GNU extension: sched_getaffinity */

#include "offload/preload/stage.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/thread.h"
#include "offload/pacer.h"
#include "offload/preload/driver.h"
#include "offload/preload/node.h"
#include "offload/preload/options.h"
#include "offload/preload/ring.h"
#include "offload/preload/state.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- copies of pinned memory that give way to the network ------------------------------------ */

enum { NICS = 16, CONTEXTS = 16, TURNS = 512 };
/* Of cuMemHostRegister and cuStreamWaitValue32. */
enum { AT_LEAST = 0, ALREADY_REGISTERED = 712 };
static const size_t chunk_bytes = (size_t)4 << 20;

static struct dpo_pacer *pacer; /* NULL: none could be made */

/* The words of a list, in a copy of it that stays. */
static int split(const char *list, const char *out[NICS])
{
    char *rest = list ? strdup(list) : NULL;
    int count = 0;

    for (char *word; count < NICS && (word = strsep(&rest, ","));)
        if (*word)
            out[count++] = word;
    return count;
}

/* A chunk that waits in its stream: `reached` is its number once the stream has come to it, and the
 * stream goes on when `passed` is. One thread looks after all of them and waits for none alone. A
 * host function of the driver's (cuLaunchHostFunc) would hold back those of all streams. */
struct turn {
    _Atomic uint32_t reached, passed;
};
struct waiting {
    enum { FREE, TAKEN, QUEUED, ENDED } state; /* ENDED: the context went while it was taken */
    uint32_t number;
    int direction;
    size_t bytes;
    int64_t until_ns; /* no longer than it takes at a tenth of the least rate; 0: not reached yet */
};

/* The turns of a context are pages of their own (of 64 KiB at most), which are registered in it and
 * end with it. */
static struct page {
    struct turn turns[TURNS] __attribute__((aligned(64 << 10)));
} pages[CONTEXTS];
static struct lane {
    void *context; /* NULL: none yet */
    int device;
    bool is_pinned; /* not after the end of the context */
    int queued;
    struct waiting waiting[TURNS];
} lanes[CONTEXTS];

static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER; /* of all of this */
static pthread_cond_t turn_queued = PTHREAD_COND_INITIALIZER;
static int turns_queued;

static struct turn *turn_of(const struct lane *l, int i)
{
    return &pages[l - lanes].turns[i];
}

/* With the lock, as all below: the stream goes on, now or when it comes there. */
static void let_pass(struct lane *l, int i)
{
    struct waiting *w = &l->waiting[i];

    atomic_store_explicit(&turn_of(l, i)->passed, w->number, memory_order_release);
    l->queued -= w->state == QUEUED;
    turns_queued -= w->state == QUEUED;
    w->state = FREE;
}

static void look_after(struct lane *l, int i)
{
    struct waiting *w = &l->waiting[i];

    if (w->state != QUEUED ||
        atomic_load_explicit(&turn_of(l, i)->reached, memory_order_acquire) != w->number)
        return;
    const int64_t now_ns = dp_now_ns();
    if (!w->until_ns)
        w->until_ns = now_ns + (int64_t)w->bytes * 10;
    if (dpo_pacer_pass(pacer, w->direction, w->bytes) || now_ns >= w->until_ns)
        let_pass(l, i);
}

static void *serve_turns(void *unused)
{
    const struct timespec pause = {.tv_nsec = 50 * DP_NS_PER_US};

    (void)unused;
    for (;;) {
        pthread_mutex_lock(&turn_lock);
        while (!turns_queued)
            pthread_cond_wait(&turn_queued, &turn_lock);
        for (struct lane *l = lanes; l < lanes + CONTEXTS; l++)
            for (int i = 0; l->queued && i < TURNS; i++)
                look_after(l, i);
        pthread_mutex_unlock(&turn_lock);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* That of the context; else one that had none; else one whose context has ended; or NULL. */
static struct lane *find_lane(const void *context)
{
    struct lane *ended = NULL;

    for (struct lane *l = lanes; l < lanes + CONTEXTS; l++) {
        if (!l->context || l->context == context)
            return l;
        if (!l->is_pinned && !l->queued)
            ended = l;
    }
    return ended;
}

static bool pin(const struct dpo_driver *driver, struct lane *l, void *context)
{
    if (l->is_pinned)
        return true;
    const int error = driver->get_device(&l->device)
                          ? -1
                          : driver->host_register(turn_of(l, 0), sizeof(pages[0]), 0);
    l->context = context;
    /* Registered already: a write failed, but the context is still there. */
    l->is_pinned = !error || error == ALREADY_REGISTERED;
    return l->is_pinned;
}

static void make_pacer(void)
{
    const struct dpo_preload_options *asked = dpo_preload_options();
    const char *nics[NICS];
    const struct dpo_pacer_config config = {
        .directory = asked->stat_dir && *asked->stat_dir ? asked->stat_dir : NULL,
        .device_count = split(asked->pace_nics, nics),
        .devices = nics,
        .switch_bytes_per_s = 1e6 * (double)asked->pace_mbs,
    };

    if (dpo_pacer_new(&config, &pacer) || dp_thread_start("dualpipe-pace", serve_turns, NULL, NULL))
        pacer = NULL; /* said once */
}

/* TURNS: all are in use; -1: the driver cannot have them. */
static int take_turn(const struct dpo_driver *driver, void *context, size_t bytes, int direction,
                     struct lane **out)
{
    int i = 0;

    pthread_mutex_lock(&turn_lock);
    struct lane *l = *out = find_lane(context);
    if (!l || !pin(driver, l, context))
        i = -1;
    while (i >= 0 && i < TURNS && l->waiting[i].state != FREE)
        i++;
    if (i >= 0 && i < TURNS)
        l->waiting[i] = (struct waiting){TAKEN, l->waiting[i].number + 1, direction, bytes, 0};
    pthread_mutex_unlock(&turn_lock);
    return i;
}

/* The thread looks after it from now on; or it is not to, as its stream never comes to it. */
static void give_turn(struct lane *l, int i, bool comes)
{
    pthread_mutex_lock(&turn_lock);
    l->is_pinned &= comes;
    if (comes && l->waiting[i].state == TAKEN) {
        l->waiting[i].state = QUEUED;
        l->queued++;
        turns_queued++;
        pthread_cond_signal(&turn_queued);
    } else {
        let_pass(l, i);
    }
    pthread_mutex_unlock(&turn_lock);
}

/* The chunk that is queued next waits for its turn; where there are too many that do it does not.
 */
static bool queue_turn(const struct dpo_driver *driver, const struct dpo_copy *copy, void *context,
                       size_t bytes, int direction)
{
    struct lane *l;
    const int i = take_turn(driver, context, bytes, direction, &l);

    if (i < 0 || i == TURNS)
        return i > 0;
    const uint32_t number = l->waiting[i].number;
    struct turn *turn = turn_of(l, i);
    const bool comes = !driver->write_value(copy->stream, (uintptr_t)&turn->reached, number, 0);
    const bool waits =
        comes && !driver->wait_value(copy->stream, (uintptr_t)&turn->passed, number, AT_LEAST);
    give_turn(l, i, comes);
    return waits;
}

/* The driver may wait for the context's streams, so they pass; others are paced as before. */
void dpo_pace_drop(const void *context, int device)
{
    pthread_mutex_lock(&turn_lock);
    for (struct lane *l = lanes; l < lanes + CONTEXTS; l++) {
        if (!l->is_pinned || (context ? l->context != context : l->device != device))
            continue;
        l->is_pinned = false;
        for (int i = 0; i < TURNS; i++)
            if (l->waiting[i].state == TAKEN)
                l->waiting[i].state = ENDED;
            else if (l->waiting[i].state == QUEUED)
                let_pass(l, i);
    }
    pthread_mutex_unlock(&turn_lock);
}

/* true: done, or queued in its stream, as the real call would have done it. false: as of dpo_stage.
 */
static bool dpo_pace(const struct dpo_driver *driver, const struct dpo_copy *copy, void *context,
                     int direction)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (copy->bytes < 2 * chunk_bytes || !driver->write_value || !driver->wait_value)
        return false;
    pthread_once(&once, make_pacer);
    bool is_good = pacer != NULL;
    for (size_t at = 0, len; is_good && at < copy->bytes; at += len) {
        len = copy->bytes - at < chunk_bytes ? copy->bytes - at : chunk_bytes;
        is_good = queue_turn(driver, copy, context, len, direction == DPO_COPY_TO_HOST) &&
                  !driver->copy(copy->to + at, copy->from + at, len, copy->stream);
    }
    if (is_good && copy->is_synchronous)
        is_good = !driver->stream_synchronize(copy->stream);
    dpo_count(DPO_PACED, is_good);
    dpo_count(DPO_PACED_BYTES, is_good ? copy->bytes : 0);
    return is_good;
}

/* ---- memcpy by several threads --------------------------------------------------------------- */

enum { THREADS_MAX = 16, DEFAULT_THREADS = 4 };
static const size_t piece_bytes = (size_t)256 << 10;

/* One copy at a time, whose caller holds `in_use`. Its pieces are taken by number. A thread joins
 * it under the lock while it is open, so it sees the copy; the caller closes it when no piece is
 * left, and waits for those that have joined, not for those that are still waking up. */
static pthread_mutex_t in_use = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begins = PTHREAD_COND_INITIALIZER, ends = PTHREAD_COND_INITIALIZER;
static unsigned long number; /* of the copy */
static bool is_open;
static int started, joined; /* threads that there are, and those at work on this copy */
static struct {
    char *to;
    const char *from;
    size_t bytes, whole;
} shared;
static atomic_size_t next_piece;

static void copy_pieces(void)
{
    for (;;) {
        const size_t at = piece_bytes * atomic_fetch_add(&next_piece, 1);
        if (at >= shared.bytes)
            return;
        const size_t left = shared.bytes - at;
        dp_copy_piece(shared.to + at, shared.from + at, left < piece_bytes ? left : piece_bytes,
                      shared.whole);
    }
}

static void *serve(void *unused)
{
    unsigned long done = 0;

    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!is_open || number == done)
            pthread_cond_wait(&begins, &lock);
        done = number;
        joined++;
        pthread_mutex_unlock(&lock);
        copy_pieces();
        pthread_mutex_lock(&lock);
        if (!--joined)
            pthread_cond_signal(&ends);
    }
    return NULL;
}

static int default_threads(void)
{
    cpu_set_t allowed;
    const int cpus = sched_getaffinity(0, sizeof(allowed), &allowed) ? 2 : CPU_COUNT(&allowed);

    return cpus < 2 ? 1 : cpus / 2 < DEFAULT_THREADS ? cpus / 2 : DEFAULT_THREADS;
}

/* By the caller that holds in_use. */
static void start(int threads)
{
    static bool was_tried;

    if (was_tried)
        return;
    was_tried = true;
    if (!threads)
        threads = default_threads();
    while (started < threads - 1 && started < THREADS_MAX &&
           !dp_thread_start("dualpipe-copy", serve, NULL, NULL))
        started++;
}

static void copy_together(char *to, const char *from, size_t bytes, size_t whole)
{
    pthread_mutex_lock(&lock);
    shared.to = to;
    shared.from = from;
    shared.bytes = bytes;
    shared.whole = whole;
    atomic_store(&next_piece, 0);
    number++;
    is_open = true;
    pthread_cond_broadcast(&begins);
    pthread_mutex_unlock(&lock);
    copy_pieces();
    pthread_mutex_lock(&lock);
    is_open = false;
    while (joined)
        pthread_cond_wait(&ends, &lock);
    pthread_mutex_unlock(&lock);
}

/* Copy with `threads` of them, the calling one included; 0: half of the processors that it may use,
 * 1 to 4. `whole` as of dp_copy_piece. If the others are at work for another caller, or cannot be
 * started, the calling thread copies alone. Any thread; not in a child that was forked. */
static void dpo_copiers_copy(int threads, void *to, const void *from, size_t bytes, size_t whole)
{
    if (threads == 1 || bytes <= piece_bytes || pthread_mutex_trylock(&in_use)) {
        dp_copy_piece(to, from, bytes, whole);
        return;
    }
    start(threads);
    copy_together(to, from, bytes, whole);
    pthread_mutex_unlock(&in_use);
}

static atomic_bool is_child;

bool dpo_is_child(void)
{
    return atomic_load_explicit(&is_child, memory_order_relaxed);
}

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
    const enum dpo_value c =
        direction == DPO_COPY_TO_DEVICE ? DPO_STAGED_TO_DEVICE : DPO_STAGED_TO_HOST;

    dpo_count(c, 1);
    dpo_count(c + 1, bytes);
}

static bool stage(const struct dpo_driver *driver, const struct dpo_copy *copy, const void *caller)
{
    const struct dpo_preload_options *options = dpo_preload_options();
    struct staging s = {.driver = driver, .copy = copy, .threads = (int)options->stage_threads};
    struct dpo_copy_kind kind;

    if (!dpo_copy_classify(driver, copy, &kind))
        return false;
    if (!kind.is_pageable)
        return options->pace && dpo_pace(driver, copy, kind.context, kind.direction);
    if (!options->stage || copy->bytes < (size_t)options->stage_min)
        return false;
    s.count = dpo_ring_take(driver, kind.context,
                            dpo_nearest_node(&dpo_driver_api, caller, options->node, options->root),
                            s.chunks);
    const bool is_done = s.count > 0 && copy_by_ring(&s, kind.direction, kind.context);
    if (is_done)
        count(kind.direction, copy->bytes);
    else
        dpo_count(DPO_NOT_STAGED, 1);
    return is_done;
}

/* Another stream's capture must not notice what is asked and made here. */
bool dpo_stage(const struct dpo_copy *copy, const void *caller)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const struct dpo_driver *driver = dpo_is_child() ? NULL : dpo_driver(caller);
    int mode = DPO_CUDA_CAPTURE_RELAXED;

    if (!driver)
        return false;
    pthread_once(&once, watch_forks);
    if (driver->exchange_capture_mode(&mode))
        return false;
    const bool is_done = stage(driver, copy, caller);
    driver->exchange_capture_mode(&mode);
    return is_done;
}
