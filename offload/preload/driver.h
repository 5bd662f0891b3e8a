/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.h - the functions of CUDA's driver that staging calls. The driver and not the runtime,
 * also for copies of the runtime: it keeps no last error of the thread that a question would
 * change. Streams and contexts are the same in both. Numbers are those of CUDA's manuals; 0 is
 * success.
 */
#ifndef DPO_PRELOAD_DRIVER_H
#define DPO_PRELOAD_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPO_CUDA_NOT_READY = 600,
    DPO_CUDA_MEMORY_HOST = 1,
    DPO_CUDA_MEMORY_DEVICE = 2,
    DPO_CUDA_CAPTURE_RELAXED = 2
};
enum { DPO_CUDA_EVENT_WITHOUT_TIME = 2 };
/* CUpointer_attribute */
enum { DPO_CUDA_MEMORY_TYPE = 2, DPO_CUDA_IS_MANAGED = 8, DPO_CUDA_DEVICE_ORDINAL = 9 };
/* The default streams by name: of the process, and of the calling thread. */
#define DPO_CUDA_STREAM_LEGACY     ((void *)1)
#define DPO_CUDA_STREAM_PER_THREAD ((void *)2)

struct dpo_driver {
    int (*get_context)(void **context);
    int (*get_device)(int *device);
    int (*pointer_attributes)(unsigned count, const int *attributes, void **out, uintptr_t at);
    int (*stream_context)(void *stream, void **context);
    int (*is_capturing)(void *stream, int *status);
    int (*exchange_capture_mode)(int *mode);
    int (*stream_synchronize)(void *stream);
    int (*copy)(uintptr_t to, uintptr_t from, size_t bytes, void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_synchronize)(void *event);
    int (*host_register)(void *at, size_t bytes, unsigned flags);
    int (*host_unregister)(void *at);
    /* For pacing alone: NULL in a driver before CUDA 11.7. */
    int (*write_value)(void *stream, uintptr_t at, uint32_t value, unsigned flags);
    int (*wait_value)(void *stream, uintptr_t at, uint32_t value, unsigned flags);
};

/* NULL: not loaded, or one of the other functions is not there. `caller` as of dpo_real, when it is
 * asked for the first time. Any thread. */
const struct dpo_driver *dpo_driver(const void *caller);

/* ---- what kind of copy it is ----------------------------------------------------------------- */

enum { DPO_COPY_TO_DEVICE = 1, DPO_COPY_TO_HOST = 2, DPO_COPY_ANY = 4 }; /* cudaMemcpyKind */

struct dpo_copy {
    uintptr_t to, from;
    size_t bytes;
    int kind;
    void *stream;        /* by name where it is a default stream */
    bool is_synchronous; /* a call without a stream */
};

struct dpo_copy_kind {
    void *context; /* that is current, and the stream's */
    int direction;
    bool is_pageable; /* otherwise it is pinned, or registered */
};

/* false: another kind, or the stream is captured. Asks the driver only. */
bool dpo_copy_classify(const struct dpo_driver *driver, const struct dpo_copy *copy,
                       struct dpo_copy_kind *out);

#endif
