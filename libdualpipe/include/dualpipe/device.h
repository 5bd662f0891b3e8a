/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - where buffers live and who copies them: the host (memory and copy-worker threads) or a
 * CUDA device (its driver loaded at run time). Both behind one table.
 *
 * A *stream* of a device carries out copies in order; an *event* marks a point in a stream. Neither
 * blocks: an event is tested, and a stream can be told to wait for another stream's event.
 */
#ifndef DUALPIPE_DEVICE_H
#define DUALPIPE_DEVICE_H

#include <dualpipe/dualpipe.h>
#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dp_device;
struct dp_device_stream;
struct dp_device_event;

enum dp_memory {
    DP_MEMORY_DEVICE, /* where the device computes */
    DP_MEMORY_PINNED  /* host memory that the device copies from and to at full speed */
};

/* What a device implements. Every member is set. Sizes in bytes. All return 0 or a negative errno
 * but the two frees. Memory is aligned to 256 bytes at least. */
struct dp_device_ops {
    const char *name; /* "host", "cuda" */
    int (*alloc)(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out);
    void (*free)(struct dp_device *dev, enum dp_memory where, void *ptr);
    int (*stream_new)(struct dp_device *dev, struct dp_device_stream **out);
    void (*stream_free)(struct dp_device_stream *stream);
    /* Copy between any two of host, pinned and device memory, in the stream's order. */
    int (*copy)(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes);
    int (*zero)(struct dp_device_stream *stream, void *dst, size_t bytes);
    int (*event_new)(struct dp_device *dev, struct dp_device_event **out);
    void (*event_free)(struct dp_device_event *event);
    int (*event_record)(struct dp_device_event *event, struct dp_device_stream *stream);
    /* 0: reached (or never recorded). DP_EAGAIN: not yet. */
    int (*event_test)(struct dp_device_event *event);
    int (*stream_wait)(struct dp_device_stream *stream, struct dp_device_event *event);
    void (*close)(struct dp_device *dev);
};

/* The part that every device begins with. */
struct dp_device {
    const struct dp_device_ops *ops;
    DLDevice dl;          /* what tensors on it carry: {kDLCPU, 0} or {kDLCUDA, ordinal} */
    bool host_accessible; /* its memory can be read and written by the CPU and by a wire */
};

/* The host. `workers` threads copy for streams (0: copies are done in the calling thread, at
 * once). */
DP_PUBLIC int dp_device_host_open(int workers, struct dp_device **out);
/* CUDA device `ordinal`. DP_ENODEV, with the reason, where there is no driver or no such device;
 * DP_EUNSUPPORTED where the library was built without CUDA. Uses the device's primary context. */
DP_PUBLIC int dp_device_cuda_open(int ordinal, struct dp_device **out);
/* "host" or "cuda[:ordinal]". */
DP_PUBLIC int dp_device_open(const char *name, struct dp_device **out);
/* Everything allocated from it must have been freed. dev may be NULL. */
DP_PUBLIC void dp_device_close(struct dp_device *dev);

/* Test until the event is reached; DP_ETIMEDOUT after timeout_ns. */
DP_PUBLIC int dp_device_event_wait(struct dp_device *dev, struct dp_device_event *event,
                                   int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
