/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_call.c - a thread for each stream that has calls.
 *
 *      stream   ... | reached = n | wait until done >= n | passed = n | ...
 *                         |              ^
 *      thread             +--> fn(user), done = n
 *
 * These numbers lie in pinned memory, and the stream writes and awaits them by itself (the driver's
 * stream memory operations). The thread polls, as the host does for events.
 */
#include "device/cuda_call.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 64 };
/* That a stream has to come behind its last call. */
static const int64_t LAST_NS = DP_NS_PER_S / 10;
enum { FIRST_ROOM = 32 }; /* a power of two, as numbers wrap around */
/* Of no call. The numbers behind it are soon 2^31 from 0, where one that is not kept up to date seems to
 * be ahead: in every process, and not only in one that has made so many calls. */
enum { FIRST_NUMBER = INT32_MAX - 8 };

struct turn {
    _Atomic uint32_t reached; /* written by the stream */
    _Atomic uint32_t done;    /* written by the thread */
    _Atomic uint32_t passed;  /* written by the stream: it looks at done no more */
};

struct call {
    void (*fn)(void *user); /* NULL: none */
    void *user;
};

struct caller {
    struct caller *next;
    CUstream stream; /* whose calls it makes; with the lock of all */
    bool is_adding;  /* one is being added to them; the same */
    struct turn *turn;
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    struct call *calls; /* [room] call n is calls[n % room] */
    uint32_t room, given, made;
    _Atomic uint32_t dropped; /* calls up to that one are not made any more */
    bool is_over;
};

struct dp_cuda_calls {
    const struct dp_cuda_driver *cu;
    struct turn *turns; /* [TURNS] one for each caller */
    pthread_mutex_t lock; /* of all below */
    struct caller *callers;
};

static bool has_come(uint32_t to, uint32_t n)
{
    return (int32_t)(to - n) >= 0;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Pairs with the stream's write, which follows all that the stream was given before. */
static bool is_reached(const struct caller *c, uint32_t n)
{
    return has_come(atomic_load_explicit(&c->turn->reached, memory_order_acquire), n);
}

static int test_next(void *arg)
{
    const struct caller *c = arg;
    const uint32_t next = c->made + 1; /* only this thread counts it up */

    return is_reached(c, next) || has_come(atomic_load(&c->dropped), next) ? 0 : DP_EAGAIN;
}

static void *serve(void *arg)
{
    struct caller *c = arg;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->made == c->given && !c->is_over)
            pthread_cond_wait(&c->changed, &c->lock);
        if (c->made == c->given)
            break;
        const uint32_t n = c->made + 1;
        const struct call call = c->calls[n % c->room];
        pthread_mutex_unlock(&c->lock);
        dp_cuda_poll(test_next, c, INT64_MAX);
        if (call.fn && is_reached(c, n))
            call.fn(call.user);
        /* What fn wrote is there before the stream goes on. */
        atomic_store_explicit(&c->turn->done, n, memory_order_release);
        pthread_mutex_lock(&c->lock);
        c->made = n;
        if (!has_come(c->dropped, n))
            c->dropped = n; /* or it would seem to be ahead 2^31 calls later */
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- a stream's caller ----------------------------------------------------------------------- */

static void free_memory(struct caller *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->calls);
    free(c);
}

static int new_caller(struct dp_cuda_calls *all, int number, struct caller **out)
{
    if (number == TURNS)
        return dp_fail(DP_ENOMEM, "cuda:%d: calls in more than %d streams at a time",
                       all->cu->ordinal, TURNS);
    struct caller *c = calloc(1, sizeof(*c));
    struct call *calls = calloc(FIRST_ROOM, sizeof(*calls));
    if (!c || !calls) {
        free(c);
        free(calls);
        return dp_fail(DP_ENOMEM, "cuda: no memory for calls in a stream");
    }
    c->turn = &all->turns[number];
    c->calls = calls;
    c->room = FIRST_ROOM;
    c->given = c->made = FIRST_NUMBER;
    *c->turn = (struct turn){FIRST_NUMBER, FIRST_NUMBER, FIRST_NUMBER};
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    const int error = dp_thread_start("dp-cuda-calls", serve, c, &c->thread);
    if (error) {
        free_memory(c);
        return dp_fail(DP_EIO, "cuda: no thread for calls: %s", strerror(error));
    }
    *out = c;
    return 0;
}

/* Whether its stream has come behind all calls, so that it may make those of another one. */
static int test_free(void *arg)
{
    const struct caller *c = arg;
    const uint32_t passed = atomic_load_explicit(&c->turn->passed, memory_order_acquire);

    return passed == c->given ? 0 : DP_EAGAIN;
}

/* The stream's; or one that is free, or a new one. */
static int take_caller(struct dp_cuda_calls *all, CUstream stream, struct caller **out)
{
    struct caller *c, *free_one = NULL;
    int number = 0, err = 0;

    pthread_mutex_lock(&all->lock);
    for (c = all->callers; c && c->stream != stream; c = c->next) {
        free_one = c->is_adding || test_free(c) ? free_one : c;
        number++;
    }
    c = c ? c : free_one;
    if (!c && !(err = new_caller(all, number, &c))) {
        c->next = all->callers;
        all->callers = c;
    }
    if (!err) {
        c->stream = stream;
        c->is_adding = true;
        *out = c;
    }
    pthread_mutex_unlock(&all->lock);
    return err;
}

static void drop_calls(struct caller *c, bool is_over)
{
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->dropped, c->given);
    c->is_over = is_over;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void dp_cuda_calls_end(struct dp_cuda_calls *all, CUstream stream, bool is_idle)
{
    pthread_mutex_lock(&all->lock);
    for (struct caller *c = all->callers; c; c = c->next)
        if (c->stream == stream && is_idle)
            atomic_store(&c->turn->passed, c->given); /* also behind a call that could not be queued */
        else if (c->stream == stream)
            drop_calls(c, false);
    pthread_mutex_unlock(&all->lock);
}

/* ---- of a device ----------------------------------------------------------------------------- */

int dp_cuda_calls_new(const struct dp_cuda_driver *cu, struct dp_cuda_calls **out)
{
    struct dp_cuda_calls *all = calloc(1, sizeof(*all));
    void *turns;

    if (!all)
        return dp_fail(DP_ENOMEM, "cuda: no memory for calls in streams");
    int err = dp_cuda_check(
        cu, cu->cuMemHostAlloc(&turns, TURNS * sizeof(*all->turns), CU_MEMHOSTALLOC_PORTABLE),
        "pinned memory for calls in streams");
    if (err) {
        free(all);
        return err;
    }
    all->cu = cu;
    all->turns = turns;
    pthread_mutex_init(&all->lock, NULL);
    *out = all;
    return 0;
}

void dp_cuda_calls_free(struct dp_cuda_calls *all)
{
    bool in_use = false; /* a stream may still read and write the numbers */

    while (all->callers) {
        struct caller *c = all->callers;
        all->callers = c->next;
        drop_calls(c, true);
        pthread_join(c->thread, NULL);
        in_use |= dp_cuda_poll(test_free, c, LAST_NS) != 0;
        free_memory(c);
    }
    if (!in_use)
        dp_cuda_check(all->cu, all->cu->cuMemFreeHost(all->turns), "freeing memory for calls");
    pthread_mutex_destroy(&all->lock);
    free(all);
}

/* ---- a call ---------------------------------------------------------------------------------- */

static int make_room(struct caller *c)
{
    int err = 0;

    pthread_mutex_lock(&c->lock);
    if (c->given - c->made == c->room) {
        struct call *more = calloc(2 * (size_t)c->room, sizeof(*more));
        for (uint32_t n = c->made + 1; more && n != c->given + 1; n++)
            more[n % (2 * c->room)] = c->calls[n % c->room];
        if (more) {
            free(c->calls);
            c->calls = more;
            c->room *= 2;
        } else {
            err = dp_fail(DP_ENOMEM, "cuda: no memory for %u calls in a stream", 2 * c->room);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

static CUdeviceptr address(const void *ptr)
{
    return (CUdeviceptr)(uintptr_t)ptr;
}

/* Without the lock: the driver may wait until the stream has room, and that for an earlier call. */
static CUresult queue_turn(const struct dp_cuda_driver *cu, struct caller *c, struct call call)
{
    const uint32_t n = c->given + 1;
    CUresult result =
        cu->write_value(c->stream, address(&c->turn->reached), n, CU_STREAM_WRITE_VALUE_DEFAULT);

    if (result != CUDA_SUCCESS)
        return result;
    result = cu->wait_value(c->stream, address(&c->turn->done), n, CU_STREAM_WAIT_VALUE_GEQ);
    const bool waits = result == CUDA_SUCCESS;
    /* The number is used up: where the stream does not wait, it is that of no call. */
    pthread_mutex_lock(&c->lock);
    c->calls[n % c->room] = waits ? call : (struct call){0};
    c->given = n;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return waits ? cu->write_value(c->stream, address(&c->turn->passed), n,
                                   CU_STREAM_WRITE_VALUE_DEFAULT)
                 : result;
}

/* A graph that is launched again would write numbers that are used up. */
static int check_stream(const struct dp_cuda_driver *cu, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    if (!cu->wait_value || !cu->write_value)
        return dp_fail(DP_EUNSUPPORTED,
                       "cuda:%d: the driver has no functions for calls in streams: expected "
                       "cuStreamWaitValue32_v2 and cuStreamWriteValue32_v2",
                       cu->ordinal);
    int err = cu->cuStreamIsCapturing
                  ? dp_cuda_check(cu, cu->cuStreamIsCapturing(stream, &status), "queueing a call")
                  : 0;
    if (!err && status != CU_STREAM_CAPTURE_STATUS_NONE)
        err = dp_fail(DP_ESTATE, "cuda:%d: a call in a stream that is captured; a graph has none",
                      cu->ordinal);
    return err;
}

int dp_cuda_calls_add(struct dp_cuda_calls *all, CUstream stream, void (*fn)(void *user),
                      void *user)
{
    const struct call call = {fn, user};
    struct caller *c;
    int err = check_stream(all->cu, stream);

    if (!err)
        err = take_caller(all, stream, &c);
    if (err)
        return err;
    err = make_room(c);
    if (!err)
        err = dp_cuda_check(all->cu, queue_turn(all->cu, c, call), "queueing a call");
    pthread_mutex_lock(&all->lock);
    c->is_adding = false;
    pthread_mutex_unlock(&all->lock);
    return err;
}
