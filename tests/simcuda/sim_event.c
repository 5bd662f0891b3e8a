/* SPDX-License-Identifier: Apache-2.0 */
#include "simcuda/sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* An event outlives cudaEventDestroy while streams still have to record it or wait for it. */
struct sim_event {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int users;
    uint64_t recorded, done;
    double done_ms;
};

/* A stream's work: record or wait for one round of an event. */
struct round {
    struct sim_event *event;
    uint64_t number;
};

static struct round take(struct sim_event *event, bool is_new)
{
    pthread_mutex_lock(&event->lock);
    event->users++;
    event->recorded += is_new;
    struct round round = {event, event->recorded};
    pthread_mutex_unlock(&event->lock);
    return round;
}

static void put(struct sim_event *event)
{
    pthread_mutex_lock(&event->lock);
    int left = --event->users;
    pthread_mutex_unlock(&event->lock);
    if (left)
        return;
    pthread_cond_destroy(&event->change);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static double now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void record(void *arg)
{
    struct round *round = arg;
    struct sim_event *event = round->event;

    pthread_mutex_lock(&event->lock);
    event->done = round->number;
    event->done_ms = now_ms();
    pthread_cond_broadcast(&event->change);
    pthread_mutex_unlock(&event->lock);
    put(event);
}

static void await(void *arg)
{
    struct round *round = arg;
    struct sim_event *event = round->event;

    pthread_mutex_lock(&event->lock);
    while (event->done < round->number)
        pthread_cond_wait(&event->change, &event->lock);
    pthread_mutex_unlock(&event->lock);
    put(event);
}

/* ---- what CUDA calls it ------------------------------------------------------------------------
 */

SIM_EXPORT int cudaEventCreateWithFlags(struct sim_event **out, unsigned flags)
{
    struct sim_event *event = calloc(1, sizeof(*event));

    (void)flags;
    if (!event)
        return SIM_OUT_OF_MEMORY;
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->change, NULL);
    event->users = 1;
    *out = event;
    return 0;
}

SIM_EXPORT int cudaEventCreate(struct sim_event **out)
{
    return cudaEventCreateWithFlags(out, 0);
}

SIM_EXPORT int cudaEventDestroy(struct sim_event *event)
{
    put(event);
    return 0;
}

SIM_EXPORT int cudaEventRecord(struct sim_event *event, struct sim_stream *stream)
{
    struct round round = take(event, true);

    sim_stream_give(stream, record, &round, sizeof(round));
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
    struct round round = take(event, false);

    (void)flags;
    sim_stream_give(stream, await, &round, sizeof(round));
    return 0;
}

SIM_EXPORT int cudaEventSynchronize(struct sim_event *event)
{
    struct round round = take(event, false);

    await(&round);
    return 0;
}

SIM_EXPORT int cudaEventQuery(struct sim_event *event)
{
    pthread_mutex_lock(&event->lock);
    bool is_done = event->done >= event->recorded;
    pthread_mutex_unlock(&event->lock);
    return is_done ? 0 : SIM_NOT_READY;
}

SIM_EXPORT int cudaEventElapsedTime(float *out_ms, struct sim_event *from, struct sim_event *to)
{
    *out_ms = (float)(to->done_ms - from->done_ms);
    return 0;
}
