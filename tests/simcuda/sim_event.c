/* SPDX-License-Identifier: Apache-2.0 */
#include "simcuda/sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* One recording of an event. Streams that wait for it go on by this one alone: another stream may
 * record the event anew meanwhile, and come to that earlier. It outlives the event while a stream
 * still has to reach it or waits for it. */
struct recording {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int users;
    bool is_done;
    double done_ms;
};

struct sim_event {
    pthread_mutex_t lock;
    struct recording *last;
};

static void use(struct recording *r)
{
    pthread_mutex_lock(&r->lock);
    r->users++;
    pthread_mutex_unlock(&r->lock);
}

static void put(struct recording *r)
{
    pthread_mutex_lock(&r->lock);
    const int left = --r->users;
    pthread_mutex_unlock(&r->lock);
    if (left)
        return;
    pthread_cond_destroy(&r->change);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static struct recording *new_recording(bool is_done)
{
    struct recording *r = calloc(1, sizeof(*r));

    if (!r)
        sim_die("no memory for an event");
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->change, NULL);
    r->users = 1;
    r->is_done = is_done;
    return r;
}

/* The event's newest, for a user that puts it back. */
static struct recording *take_last(struct sim_event *event)
{
    pthread_mutex_lock(&event->lock);
    struct recording *r = event->last;
    use(r);
    pthread_mutex_unlock(&event->lock);
    return r;
}

static void replace_last(struct sim_event *event, struct recording *r)
{
    pthread_mutex_lock(&event->lock);
    struct recording *before = event->last;
    event->last = r;
    pthread_mutex_unlock(&event->lock);
    put(before);
}

static double now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- a stream's work: reach a recording, or wait for one ------------------------------------- */

static void reach(void *arg)
{
    struct recording *r = *(struct recording **)arg;

    pthread_mutex_lock(&r->lock);
    r->is_done = true;
    r->done_ms = now_ms();
    pthread_cond_broadcast(&r->change);
    pthread_mutex_unlock(&r->lock);
    put(r);
}

static void await(void *arg)
{
    struct recording *r = *(struct recording **)arg;

    pthread_mutex_lock(&r->lock);
    while (!r->is_done)
        pthread_cond_wait(&r->change, &r->lock);
    pthread_mutex_unlock(&r->lock);
    put(r);
}

/* ---- what CUDA calls it ---------------------------------------------------------------------- */

SIM_EXPORT int cudaEventCreateWithFlags(struct sim_event **out, unsigned flags)
{
    struct sim_event *event = calloc(1, sizeof(*event));

    (void)flags;
    if (!event)
        return SIM_OUT_OF_MEMORY;
    pthread_mutex_init(&event->lock, NULL);
    event->last = new_recording(true); /* as CUDA has it: nothing to wait for */
    *out = event;
    return 0;
}

SIM_EXPORT int cudaEventCreate(struct sim_event **out)
{
    return cudaEventCreateWithFlags(out, 0);
}

SIM_EXPORT int cudaEventDestroy(struct sim_event *event)
{
    put(event->last);
    pthread_mutex_destroy(&event->lock);
    free(event);
    return 0;
}

SIM_EXPORT int cudaEventRecord(struct sim_event *event, struct sim_stream *stream)
{
    struct recording *r;

    if (sim_stream_captures(stream))
        return SIM_CAPTURE_UNSUPPORTED;
    r = new_recording(false);
    use(r);
    replace_last(event, r);
    sim_stream_give(stream, reach, &r, sizeof(r));
    return 0;
}

SIM_EXPORT int cudaEventRecordWithFlags(struct sim_event *event, struct sim_stream *stream,
                                        unsigned flags)
{
    (void)flags;
    return cudaEventRecord(event, stream);
}

SIM_EXPORT int cudaStreamWaitEvent(struct sim_stream *stream, struct sim_event *event,
                                   unsigned flags)
{
    struct recording *r;

    (void)flags;
    if (sim_stream_captures(stream))
        return SIM_CAPTURE_UNSUPPORTED;
    r = take_last(event);
    sim_stream_give(stream, await, &r, sizeof(r));
    return 0;
}

SIM_EXPORT int cudaEventSynchronize(struct sim_event *event)
{
    struct recording *r = take_last(event);

    await(&r);
    return 0;
}

static bool is_done(struct recording *r, double *at_ms)
{
    pthread_mutex_lock(&r->lock);
    const bool done = r->is_done;
    *at_ms = r->done_ms;
    pthread_mutex_unlock(&r->lock);
    return done;
}

SIM_EXPORT int cudaEventQuery(struct sim_event *event)
{
    struct recording *r = take_last(event);
    double at_ms;
    const bool done = is_done(r, &at_ms);

    put(r);
    return done ? 0 : SIM_NOT_READY;
}

SIM_EXPORT int cudaEventElapsedTime(float *out_ms, struct sim_event *from, struct sim_event *to)
{
    double from_ms, to_ms;
    const bool done = is_done(from->last, &from_ms) && is_done(to->last, &to_ms);

    if (!done)
        return SIM_NOT_READY;
    *out_ms = (float)(to_ms - from_ms);
    return 0;
}
