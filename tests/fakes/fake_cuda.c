/* SPDX-License-Identifier: Apache-2.0 */
#include "fakes/fake_cuda_impl.h"

#include <stdio.h>
#include <string.h>

struct fake_state fake = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .change = PTHREAD_COND_INITIALIZER,
};

/* Contexts that are current, the innermost last. In the thread's own block, as those of a library
 * are that is there from the start: blocks allocated later are freed by whichever thread comes
 * next, and the thread sanitizer takes that for a race. */
#define THREAD_LOCAL static _Thread_local __attribute__((tls_model("initial-exec")))
THREAD_LOCAL CUcontext stack[8];
THREAD_LOCAL int depth;

/* ---- every call begins here ------------------------------------------------------------------ */

/* "Any function" leaves out the one that a driver never fails and a caller could not make good. */
static bool strikes(const char *function)
{
    struct faults *f = &fake.fault;
    bool meant = f->function[0] ? !strcmp(f->function, function)
                                : strcmp(function, "cuCtxPopCurrent_v2") != 0;

    return f->calls && meant && --f->calls == 0;
}

CUresult fake_begin(const char *function, bool needs_context)
{
    pthread_mutex_lock(&fake.lock);
    if (strikes(function))
        return fake.fault.call_result;
    if (!fake.initialised && strcmp(function, "cuInit"))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!needs_context)
        return CUDA_SUCCESS;
    return depth ? stack[depth - 1]->sticky : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult fake_end(CUresult result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

CUcontext fake_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

/* ---- devices and contexts -------------------------------------------------------------------- */

EXPORT CUresult cuInit(unsigned flags)
{
    (void)flags;
    BEGIN(false)
    fake.initialised = true;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    BEGIN(false)
    *count = FAKE_CUDA_DEVICES;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    BEGIN(false)
    *device = ordinal;
    return fake_end(ordinal < FAKE_CUDA_DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device)
{
    BEGIN(false)
    snprintf(id, (size_t)len, "FFFF:%02X:00.0", (unsigned)device); /* of no machine */
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    BEGIN(false)
    struct CUctx_st *c = &fake.contexts[device];
    if (!c->memory && !fake_map_memory(c))
        return fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    c->retained++;
    fake.alive++;
    *out = c;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    BEGIN(false)
    if (!fake.contexts[device].retained)
        return fake_end(CUDA_ERROR_INVALID_CONTEXT);
    fake.contexts[device].retained--;
    fake.alive--;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    BEGIN(false)
    if (depth == (int)(sizeof(stack) / sizeof(stack[0])) || !context->retained)
        return fake_end(CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = context;
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    BEGIN(false)
    if (!depth)
        return fake_end(CUDA_ERROR_INVALID_CONTEXT);
    *out = stack[--depth];
    return fake_end(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
    BEGIN(false)
    *out = depth ? fake_current() : NULL;
    return fake_end(CUDA_SUCCESS);
}

static const struct {
    CUresult result;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "cuInit was not called"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
};

static CUresult look_up(CUresult result, const char **name, const char **text)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].result == result) {
            *name = errors[i].name;
            *text = errors[i].text;
            return CUDA_SUCCESS;
        }
    *name = *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult result, const char **out)
{
    const char *text;

    return look_up(result, out, &text);
}

EXPORT CUresult cuGetErrorString(CUresult result, const char **out)
{
    const char *name;

    return look_up(result, &name, out);
}

/* ---- for tests ------------------------------------------------------------------------------- */

static void set_hold(bool hold)
{
    pthread_mutex_lock(&fake.lock);
    fake.held = hold;
    pthread_cond_broadcast(&fake.change);
    pthread_mutex_unlock(&fake.lock);
}

static void set_shake(uint64_t seed, unsigned most_us)
{
    pthread_mutex_lock(&fake.lock);
    fake.shake_state = seed;
    fake.shake_most_us = most_us;
    pthread_mutex_unlock(&fake.lock);
}

static void fail_call(const char *function, int n, CUresult result)
{
    pthread_mutex_lock(&fake.lock);
    snprintf(fake.fault.function, sizeof(fake.fault.function), "%s", function ? function : "");
    fake.fault.calls = n;
    fake.fault.call_result = result;
    pthread_mutex_unlock(&fake.lock);
}

static void fail_work(int n, CUresult result)
{
    pthread_mutex_lock(&fake.lock);
    fake.fault.works = n;
    fake.fault.work_result = result;
    pthread_mutex_unlock(&fake.lock);
}

static bool is_armed(void)
{
    pthread_mutex_lock(&fake.lock);
    bool armed = fake.fault.calls || fake.fault.works;
    pthread_mutex_unlock(&fake.lock);
    return armed;
}

static int count_busy(void)
{
    pthread_mutex_lock(&fake.lock);
    int n = fake_busy();
    pthread_mutex_unlock(&fake.lock);
    return n;
}

static void drain(void)
{
    pthread_mutex_lock(&fake.lock);
    while (fake_busy())
        pthread_cond_wait(&fake.change, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
}

static void *reach_memory(const void *ptr)
{
    return fake_reach(ptr);
}

static int count_alive(void)
{
    pthread_mutex_lock(&fake.lock);
    int n = fake.alive;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

static void reset(void)
{
    pthread_mutex_lock(&fake.lock);
    memset(&fake.fault, 0, sizeof(fake.fault));
    fake.held = false;
    fake.shake_most_us = 0;
    for (int i = 0; i < FAKE_CUDA_DEVICES; i++)
        fake.contexts[i].sticky = CUDA_SUCCESS;
    pthread_cond_broadcast(&fake.change);
    pthread_mutex_unlock(&fake.lock);
}

extern const struct fake_cuda fake_cuda;
EXPORT const struct fake_cuda fake_cuda = {
    .reset = reset,
    .hold = set_hold,
    .shake = set_shake,
    .fail_call = fail_call,
    .fail_work = fail_work,
    .armed = is_armed,
    .busy = count_busy,
    .drain = drain,
    .reach = reach_memory,
    .alive = count_alive,
};
