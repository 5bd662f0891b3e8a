/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: pthread_cond_clockwait */

#include "simcuda/sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct work {
    void (*run)(void *arg);
    struct work *next;
    _Alignas(64) char arg[];
};

struct sim_stream {
    struct sim_stream *next;
    struct work *first, **last;
    bool is_busy, is_started, is_ending;
    struct sim_graph *captured; /* what it is given goes there; NULL: it is done */
    pthread_t thread;
    unsigned long long id;
    int priority;
    unsigned flags;
};

/* One lock over all streams; `change` is broadcast when work comes and when it is done. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static struct sim_stream default_stream, *streams = &default_stream;
static unsigned long long stream_count;

/* Made outside the lock. */
static struct sim_stream *thread_stream(void)
{
    static _Thread_local struct sim_stream *own;

    if (!own && cudaStreamCreateWithFlags(&own, 0))
        sim_die("no memory for the stream of a thread");
    return own;
}

/* Other than in CUDA the default stream waits for no other one. */
static struct sim_stream *the_stream(struct sim_stream *handle)
{
    if (handle == SIM_STREAM_PER_THREAD)
        return thread_stream();
    return !handle || handle == SIM_STREAM_LEGACY ? &default_stream : handle;
}

static void do_first(struct sim_stream *stream)
{
    struct work *work = stream->first;

    stream->first = work->next;
    stream->is_busy = true;
    pthread_mutex_unlock(&lock);
    work->run(work->arg);
    free(work);
    pthread_mutex_lock(&lock);
    stream->is_busy = false;
    pthread_cond_broadcast(&change);
}

static void *serve(void *arg)
{
    struct sim_stream *stream = arg;

    pthread_mutex_lock(&lock);
    while (stream->first || !stream->is_ending) {
        if (stream->first)
            do_first(stream);
        else
            pthread_cond_wait(&change, &lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void start(struct sim_stream *stream)
{
    if (stream->is_started)
        return;
    if (pthread_create(&stream->thread, NULL, serve, stream))
        sim_die("no thread for a stream");
    stream->is_started = true;
}

void sim_stream_give(struct sim_stream *handle, void (*run)(void *arg), const void *arg,
                     size_t bytes)
{
    struct sim_stream *stream = the_stream(handle);
    size_t len = (sizeof(struct work) + bytes + 63) & ~(size_t)63;
    struct work *work = aligned_alloc(64, len);

    if (!work)
        sim_die("no memory for a stream's work");
    work->run = run;
    work->next = NULL;
    memcpy(work->arg, arg, bytes);
    pthread_mutex_lock(&lock);
    if (stream->captured) {
        sim_graph_add(stream->captured, run, arg, bytes);
        free(work);
    } else {
        start(stream);
        if (!stream->first)
            stream->last = &stream->first;
        *stream->last = work;
        stream->last = &work->next;
        pthread_cond_broadcast(&change);
    }
    pthread_mutex_unlock(&lock);
}

static bool is_idle(const struct sim_stream *stream)
{
    return !stream->first && !stream->is_busy;
}

void sim_stream_drain(struct sim_stream *handle)
{
    struct sim_stream *stream = the_stream(handle);

    pthread_mutex_lock(&lock);
    while (!is_idle(stream))
        pthread_cond_wait(&change, &lock);
    pthread_mutex_unlock(&lock);
}

static bool are_all_idle(void)
{
    for (struct sim_stream *s = streams; s; s = s->next)
        if (!is_idle(s))
            return false;
    return true;
}

bool sim_stream_drain_all_within(int seconds)
{
    struct timespec until;
    int error = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&lock);
    while (!are_all_idle() && !error)
        error = pthread_cond_clockwait(&change, &lock, CLOCK_MONOTONIC, &until);
    const bool is_idle_now = are_all_idle();
    pthread_mutex_unlock(&lock);
    return is_idle_now;
}

void sim_stream_drain_all(void)
{
    while (!sim_stream_drain_all_within(1))
        ;
}

/* ---- what CUDA calls it ---------------------------------------------------------------------- */

SIM_EXPORT int cudaStreamCreateWithPriority(struct sim_stream **out, unsigned flags, int priority)
{
    struct sim_stream *stream = calloc(1, sizeof(*stream));

    if (!stream)
        return SIM_OUT_OF_MEMORY;
    stream->flags = flags;
    stream->priority = priority;
    pthread_mutex_lock(&lock);
    stream->id = ++stream_count;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    *out = stream;
    return 0;
}

SIM_EXPORT int cudaStreamCreateWithFlags(struct sim_stream **out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

SIM_EXPORT int cudaStreamCreate(struct sim_stream **out)
{
    return cudaStreamCreateWithFlags(out, 0);
}

static void unlink_stream(struct sim_stream *stream)
{
    struct sim_stream **at = &streams;

    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
}

SIM_EXPORT int cudaStreamDestroy(struct sim_stream *stream)
{
    pthread_mutex_lock(&lock);
    stream->is_ending = true;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
    if (stream->is_started)
        pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&lock);
    unlink_stream(stream);
    pthread_mutex_unlock(&lock);
    free(stream);
    return 0;
}

SIM_EXPORT int cudaStreamSynchronize(struct sim_stream *stream)
{
    sim_stream_drain(stream);
    return 0;
}

SIM_EXPORT int cudaDeviceSynchronize(void)
{
    sim_stream_drain_all();
    return 0;
}

SIM_EXPORT int cudaStreamQuery(struct sim_stream *stream)
{
    stream = the_stream(stream);
    pthread_mutex_lock(&lock);
    bool idle = is_idle(stream);
    pthread_mutex_unlock(&lock);
    return idle ? 0 : SIM_NOT_READY;
}

SIM_EXPORT int cudaStreamGetPriority(struct sim_stream *stream, int *out)
{
    *out = the_stream(stream)->priority;
    return 0;
}

SIM_EXPORT int cudaStreamGetFlags(struct sim_stream *stream, unsigned *out)
{
    *out = the_stream(stream)->flags;
    return 0;
}

SIM_EXPORT int cudaStreamGetId(struct sim_stream *stream, unsigned long long *out)
{
    *out = the_stream(stream)->id;
    return 0;
}

SIM_EXPORT int cudaStreamGetDevice(struct sim_stream *stream, int *out)
{
    (void)stream;
    *out = 0;
    return 0;
}

SIM_EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return 0;
}

/* ---- capturing: sim_graph.c ------------------------------------------------------------------ */

bool sim_stream_captures(struct sim_stream *handle)
{
    const struct sim_stream *stream = the_stream(handle);

    pthread_mutex_lock(&lock);
    const bool captures = stream->captured;
    pthread_mutex_unlock(&lock);
    return captures;
}

struct sim_graph *sim_stream_capture(struct sim_stream *handle, struct sim_graph *graph)
{
    struct sim_stream *stream = the_stream(handle);

    pthread_mutex_lock(&lock);
    struct sim_graph *before = stream->captured;
    stream->captured = graph;
    pthread_mutex_unlock(&lock);
    return before;
}

SIM_EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    static _Thread_local int current;
    int before = current;

    current = *mode;
    *mode = before;
    return 0;
}

SIM_EXPORT int cudaStreamIsCapturing(struct sim_stream *stream, int *out)
{
    *out = sim_stream_captures(stream);
    return 0;
}

SIM_EXPORT int cudaStreamGetCaptureInfo(struct sim_stream *stream, int *status,
                                        unsigned long long *id, void **graph, const void **nodes,
                                        const void **edges, size_t *count)
{
    (void)stream, (void)id, (void)graph, (void)nodes, (void)edges, (void)count;
    *status = 0;
    return 0;
}

/* CUDA 12's, without edges. */
SIM_EXPORT int cudaStreamGetCaptureInfo_v2(struct sim_stream *stream, int *status,
                                           unsigned long long *id, void **graph, const void **nodes,
                                           size_t *count)
{
    return cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, NULL, count);
}

struct host_call {
    void (*run)(void *user);
    void *user;
};

/* One at a time, whatever their streams, as a driver may. */
static void call_host(void *arg)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    struct host_call *call = arg;

    pthread_mutex_lock(&one);
    call->run(call->user);
    pthread_mutex_unlock(&one);
}

SIM_EXPORT int cudaLaunchHostFunc(struct sim_stream *stream, void (*run)(void *user), void *user)
{
    sim_stream_give(stream, call_host, &(struct host_call){run, user}, sizeof(struct host_call));
    return 0;
}
