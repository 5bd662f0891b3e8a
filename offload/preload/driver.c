/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/preload/driver.h"

#include "offload/preload/real.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { TRIES = 4 /* a search walks over all loaded libraries */ };
enum { OPTIONAL = 2 /* the last of them */ };

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"cuCtxGetCurrent", offsetof(struct dpo_driver, get_context)},
    {"cuCtxGetDevice", offsetof(struct dpo_driver, get_device)},
    {"cuPointerGetAttributes", offsetof(struct dpo_driver, pointer_attributes)},
    {"cuStreamGetCtx", offsetof(struct dpo_driver, stream_context)},
    {"cuStreamIsCapturing", offsetof(struct dpo_driver, is_capturing)},
    {"cuThreadExchangeStreamCaptureMode", offsetof(struct dpo_driver, exchange_capture_mode)},
    {"cuStreamSynchronize", offsetof(struct dpo_driver, stream_synchronize)},
    {"cuMemcpyAsync", offsetof(struct dpo_driver, copy)},
    {"cuEventCreate", offsetof(struct dpo_driver, event_create)},
    {"cuEventDestroy_v2", offsetof(struct dpo_driver, event_destroy)},
    {"cuEventRecord", offsetof(struct dpo_driver, event_record)},
    {"cuEventQuery", offsetof(struct dpo_driver, event_query)},
    {"cuEventSynchronize", offsetof(struct dpo_driver, event_synchronize)},
    {"cuMemHostRegister_v2", offsetof(struct dpo_driver, host_register)},
    {"cuMemHostUnregister", offsetof(struct dpo_driver, host_unregister)},
    {"cuStreamWriteValue32_v2", offsetof(struct dpo_driver, write_value)},
    {"cuStreamWaitValue32_v2", offsetof(struct dpo_driver, wait_value)},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dpo_driver loaded; /* complete before is_loaded is set */
static atomic_bool is_loaded;
static atomic_int tries;

static void load(const void *caller)
{
    struct dpo_driver found;
    const size_t all = sizeof(functions) / sizeof(functions[0]);
    bool is_complete = true;

    for (size_t i = 0; i < all; i++) {
        void *function = dpo_real(functions[i].name, NULL, caller);
        memcpy((char *)&found + functions[i].offset, &function, sizeof(function));
        is_complete &= function || i >= all - OPTIONAL;
    }
    if (!is_complete)
        return;
    pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&is_loaded, memory_order_relaxed)) {
        loaded = found;
        atomic_store_explicit(&is_loaded, true, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

const struct dpo_driver *dpo_driver(const void *caller)
{
    if (!atomic_load_explicit(&is_loaded, memory_order_acquire) &&
        atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed) < TRIES)
        load(caller);
    return atomic_load_explicit(&is_loaded, memory_order_acquire) ? &loaded : NULL;
}

/* ---- what kind of copy it is ----------------------------------------------------------------- */

enum place { PAGEABLE, PINNED, ON_DEVICE, OTHER };

static bool look_at(const struct dpo_driver *driver, uintptr_t at, int device, enum place *out)
{
    static const int attributes[] = {DPO_CUDA_MEMORY_TYPE, DPO_CUDA_IS_MANAGED,
                                     DPO_CUDA_DEVICE_ORDINAL};
    unsigned type = 0, is_managed = 0; /* the driver writes one byte or four of the second */
    int of_device = -1;
    void *values[] = {&type, &is_managed, &of_device};

    if (!at || driver->pointer_attributes(3, attributes, values, at))
        return false;
    *out = is_managed                                              ? OTHER
           : !type                                                 ? PAGEABLE
           : type == DPO_CUDA_MEMORY_HOST                          ? PINNED
           : type == DPO_CUDA_MEMORY_DEVICE && of_device == device ? ON_DEVICE
                                                                   : OTHER;
    return true;
}

/* The first and the last byte: a range of which a part is registered is CUDA's. */
static enum place place_of(const struct dpo_driver *driver, uintptr_t at, size_t bytes, int device)
{
    enum place first, last;

    return look_at(driver, at, device, &first) && look_at(driver, at + bytes - 1, device, &last) &&
                   first == last
               ? first
               : OTHER;
}

static bool is_of_context(const struct dpo_driver *driver, void *stream, const void *context)
{
    void *of_stream = NULL;
    int status = 1;

    return !driver->is_capturing(stream, &status) && !status &&
           ((uintptr_t)stream <= (uintptr_t)DPO_CUDA_STREAM_PER_THREAD ||
            (!driver->stream_context(stream, &of_stream) && of_stream == context));
}

bool dpo_copy_classify(const struct dpo_driver *driver, const struct dpo_copy *copy,
                       struct dpo_copy_kind *out)
{
    int device;

    out->context = NULL;
    if (driver->get_context(&out->context) || !out->context || driver->get_device(&device) ||
        !is_of_context(driver, copy->stream, out->context))
        return false;
    const enum place from = place_of(driver, copy->from, copy->bytes, device);
    const enum place to = place_of(driver, copy->to, copy->bytes, device);
    const bool is_up = (from == PAGEABLE || from == PINNED) && to == ON_DEVICE;
    const bool is_down = from == ON_DEVICE && (to == PAGEABLE || to == PINNED);
    out->direction = is_up ? DPO_COPY_TO_DEVICE : DPO_COPY_TO_HOST;
    out->is_pageable = (is_up ? from : to) == PAGEABLE;
    return (is_up || is_down) && (copy->kind == DPO_COPY_ANY || copy->kind == out->direction);
}
