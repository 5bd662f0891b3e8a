/* SPDX-License-Identifier: Apache-2.0 */
#include "fakes/fake_cuda_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- streams --------------------------------------------------------------------------------- */

static unsigned shake_us(void)
{
    uint64_t next = fake.shake_state * UINT64_C(6364136223846793005) + 1442695040888963407u;

    fake.shake_state = next;
    return fake.shake_most_us ? (unsigned)(next >> 33) % (fake.shake_most_us + 1) : 0;
}

static bool has_value(const struct work *w)
{
    return (int32_t)(__atomic_load_n((uint32_t *)w->dst, __ATOMIC_ACQUIRE) - (uint32_t)w->count) >= 0;
}

static bool may_go_on(CUstream s)
{
    struct work *w = s->first;

    if (!w || fake.held)
        return false;
    return w->kind == WORK_WAIT    ? w->other->done >= w->count
           : w->kind == WORK_AWAIT ? s->context->sticky != CUDA_SUCCESS || has_value(w)
                                   : true;
}

/* Nothing says when a value in memory has changed. */
static void sleep_until_change(CUstream s)
{
    struct timespec soon;

    if (!s->first || s->first->kind != WORK_AWAIT) {
        pthread_cond_wait(&fake.change, &fake.lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 50000;
    soon.tv_sec += soon.tv_nsec / 1000000000;
    soon.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&fake.change, &fake.lock, &soon);
}

/* Without the lock. Host functions are made one at a time, whatever their streams. */
static void carry_out(const struct work *w)
{
    static pthread_mutex_t host_functions = PTHREAD_MUTEX_INITIALIZER;

    switch (w->kind) {
    case WORK_COPY:
        memcpy(w->dst, w->src, w->bytes);
        break;
    case WORK_ZERO:
        memset(w->dst, w->value, w->bytes);
        break;
    case WORK_HOST:
        pthread_mutex_lock(&host_functions);
        w->fn(w->user);
        pthread_mutex_unlock(&host_functions);
        break;
    case WORK_WRITE:
        __atomic_store_n((uint32_t *)w->dst, (uint32_t)w->count, __ATOMIC_RELEASE);
        break;
    case WORK_WAIT:
    case WORK_AWAIT:
        break;
    }
}

static void do_first(CUstream s)
{
    struct work *w = s->first;
    unsigned us = shake_us();

    if (fake.fault.works && --fake.fault.works == 0)
        s->context->sticky = fake.fault.work_result;
    bool broken = s->context->sticky != CUDA_SUCCESS;
    pthread_mutex_unlock(&fake.lock);
    if (us)
        nanosleep(&(struct timespec){0, (long)us * 1000}, NULL);
    if (!broken)
        carry_out(w);
    pthread_mutex_lock(&fake.lock);
    s->first = w->next;
    s->done++;
    free(w);
    pthread_cond_broadcast(&fake.change);
}

static void *run_stream(void *arg)
{
    CUstream s = arg;

    pthread_mutex_lock(&fake.lock);
    while (!s->destroyed || s->first) {
        if (may_go_on(s))
            do_first(s);
        else
            sleep_until_change(s);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

static CUresult give(CUstream s, struct work work)
{
    struct work *w = malloc(sizeof(*w));

    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *w = work;
    if (s->first)
        *s->last = w;
    else
        s->first = w;
    s->last = &w->next;
    s->given++;
    pthread_cond_broadcast(&fake.change);
    return CUDA_SUCCESS;
}

int fake_busy(void)
{
    int busy = 0;

    for (CUstream s = fake.streams; s; s = s->next_all)
        busy += s->first != NULL;
    return busy;
}

static bool valid_stream(CUstream s)
{
    for (CUstream t = fake.streams; t; t = t->next_all)
        if (t == s)
            return !s->destroyed && s->context == fake_current();
    return false;
}

enum { LEAST = 0, GREATEST = -5 };

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    BEGIN(true)
    *least = LEAST;
    *greatest = GREATEST;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamGetPriority(CUstream s, int *priority)
{
    BEGIN(true)
    if (!valid_stream(s))
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    *priority = s->priority;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    pthread_t thread;

    (void)flags;
    BEGIN(true)
    CUstream s = calloc(1, sizeof(*s));
    if (!s || pthread_create(&thread, NULL, run_stream, s)) {
        free(s);
        return fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    pthread_detach(thread);
    s->context = fake_current();
    s->priority = priority > LEAST ? LEAST : priority < GREATEST ? GREATEST : priority;
    s->next_all = fake.streams;
    fake.streams = s;
    fake.alive++;
    *out = s;
    return fake_end(CUDA_SUCCESS);
}

/* Returns at once; what was given is still carried out. */
EXPORT CUresult cuStreamDestroy_v2(CUstream s)
{
    BEGIN(true)
    if (!valid_stream(s))
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    s->destroyed = true;
    fake.alive--;
    pthread_cond_broadcast(&fake.change);
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamQuery(CUstream s)
{
    BEGIN(true)
    if (!valid_stream(s))
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    return fake_end(s->first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
    void *to = (void *)(uintptr_t)dst, *from = (void *)(uintptr_t)src;

    BEGIN(true)
    if (!valid_stream(s))
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    if (!fake_accessible(s->context, to, bytes) || !fake_accessible(s->context, from, bytes))
        return fake_end(CUDA_ERROR_INVALID_VALUE);
    return fake_end(give(s, (struct work){.kind = WORK_COPY,
                                          .dst = fake_reach(to),
                                          .src = fake_reach(from),
                                          .bytes = bytes}));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream s)
{
    void *to = (void *)(uintptr_t)dst;

    BEGIN(true)
    if (!valid_stream(s))
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    if (!fake_accessible(s->context, to, bytes))
        return fake_end(CUDA_ERROR_INVALID_VALUE);
    return fake_end(give(s, (struct work){.kind = WORK_ZERO,
                                          .dst = fake_reach(to),
                                          .value = value,
                                          .bytes = bytes}));
}

EXPORT CUresult cuLaunchHostFunc(CUstream s, CUhostFn fn, void *user)
{
    BEGIN(true)
    if (!valid_stream(s))
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    return fake_end(give(s, (struct work){.kind = WORK_HOST, .fn = fn, .user = user}));
}

static CUresult give_value(CUstream s, int kind, CUdeviceptr at, cuuint32_t value)
{
    void *ptr = (void *)(uintptr_t)at;

    if (!valid_stream(s))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!fake_accessible(s->context, ptr, sizeof(value)))
        return CUDA_ERROR_INVALID_VALUE;
    return give(s, (struct work){.kind = kind, .dst = fake_reach(ptr), .count = value});
}

EXPORT CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    (void)flags;
    BEGIN(true)
    return fake_end(give_value(s, WORK_WRITE, at, value));
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    BEGIN(true)
    if (flags != CU_STREAM_WAIT_VALUE_GEQ)
        return fake_end(CUDA_ERROR_INVALID_VALUE);
    return fake_end(give_value(s, WORK_AWAIT, at, value));
}

/* ---- events ---------------------------------------------------------------------------------- */

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    (void)flags;
    BEGIN(true)
    CUevent e = calloc(1, sizeof(*e));
    if (!e)
        return fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    e->context = fake_current();
    e->next_all = fake.events;
    fake.events = e;
    fake.alive++;
    *out = e;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy_v2(CUevent e)
{
    BEGIN(true)
    CUevent *at = &fake.events;
    while (*at && *at != e)
        at = &(*at)->next_all;
    if (!*at)
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    *at = e->next_all;
    free(e);
    fake.alive--;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuEventRecord(CUevent e, CUstream s)
{
    BEGIN(true)
    if (!valid_stream(s) || e->context != s->context)
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    e->stream = s;
    e->count = s->given;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuEventQuery(CUevent e)
{
    BEGIN(true)
    bool reached = !e->stream || e->stream->done >= e->count;
    return fake_end(reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
    (void)flags;
    BEGIN(true)
    if (!valid_stream(s))
        return fake_end(CUDA_ERROR_INVALID_HANDLE);
    if (!e->stream)
        return fake_end(CUDA_SUCCESS);
    return fake_end(
        give(s, (struct work){.kind = WORK_WAIT, .other = e->stream, .count = e->count}));
}
