/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/preload/driver.h"

#include "offload/preload/real.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { TRIES = 4 /* a search walks over all loaded libraries */ };

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
    {"cuLaunchHostFunc", offsetof(struct dpo_driver, launch)},
    {"cuEventCreate", offsetof(struct dpo_driver, event_create)},
    {"cuEventDestroy_v2", offsetof(struct dpo_driver, event_destroy)},
    {"cuEventRecord", offsetof(struct dpo_driver, event_record)},
    {"cuEventQuery", offsetof(struct dpo_driver, event_query)},
    {"cuEventSynchronize", offsetof(struct dpo_driver, event_synchronize)},
    {"cuMemHostRegister_v2", offsetof(struct dpo_driver, host_register)},
    {"cuMemHostUnregister", offsetof(struct dpo_driver, host_unregister)},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dpo_driver driver; /* complete before is_loaded is set */
static atomic_bool is_loaded;
static atomic_int tries;

static void load(const void *caller)
{
    struct dpo_driver found;
    size_t count = 0;

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dpo_real(functions[i].name, NULL, caller);
        memcpy((char *)&found + functions[i].offset, &function, sizeof(function));
        count += function != NULL;
    }
    if (count < sizeof(functions) / sizeof(functions[0]))
        return;
    pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&is_loaded, memory_order_relaxed)) {
        driver = found;
        atomic_store_explicit(&is_loaded, true, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

const struct dpo_driver *dpo_driver(const void *caller)
{
    if (!atomic_load_explicit(&is_loaded, memory_order_acquire) &&
        atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed) < TRIES)
        load(caller);
    return atomic_load_explicit(&is_loaded, memory_order_acquire) ? &driver : NULL;
}
