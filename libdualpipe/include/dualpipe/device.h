/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - where buffers live and who copies them: the host (memory and copy-worker threads) or a
 * CUDA device (its driver loaded at run time). Both behind one table.
 *
 * A *stream* of a device carries out copies in order; an *event* marks a point in a stream. Streams
 * do not wait for each other unless told to, by an event:
 *
 *      load   copy ---- record(loaded)
 *                            |
 *      compute          wait(loaded) ---- zero ---- copy
 *
 *      dev->ops->copy(load, slot, shard, bytes);
 *      dev->ops->event_record(loaded, load);
 *      dev->ops->stream_wait(compute, loaded);
 *
 * Neither call above waits: the calling thread goes on, and what a copy reads and writes must stay
 * until an event recorded behind it is reached.
 *
 * Threads: any number may use one device at once, one at a time one stream. An event may be tested
 * and waited for by several threads, but not while one records or frees it.
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
    DP_MEMORY_PINNED, /* host memory that the device copies from and to at full speed */
    DP_MEMORY_SHARED  /* the host: of dp_shared_alloc (memory.h); CUDA: pinned */
};

/* What a device implements. Every member is set. Sizes in bytes, 0 is legal. All but the frees and
 * close return 0 or a negative errno. DP_EIO: the device itself failed; on CUDA that may be the
 * fault of earlier work, and then every later call says so too. */
struct dp_device_ops {
    const char *name; /* "host", "cuda" */

    /* Memory aligned to 256 bytes at least, contents undefined. DP_ENOMEM. */
    int (*alloc)(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out);
    /* `where` as it was allocated. Nothing in flight may use it. ptr may be NULL. */
    void (*free)(struct dp_device *dev, enum dp_memory where, void *ptr);

    int (*stream_new)(struct dp_device *dev, struct dp_device_stream **out);
    /* Work in flight is finished first; a device that hangs is given 10 s. stream may be NULL. */
    void (*stream_free)(struct dp_device_stream *stream);
    /* What the device's own interface calls the stream, to queue other work in it: a CUstream; NULL
     * on the host. */
    void *(*stream_native)(struct dp_device_stream *stream);

    /* Copy between any two of host, pinned and device memory, in the stream's order. The two ranges
     * must not overlap. */
    int (*copy)(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes);
    int (*zero)(struct dp_device_stream *stream, void *dst, size_t bytes);

    int (*event_new)(struct dp_device *dev, struct dp_device_event **out);
    /* event may be NULL. Streams that were told to wait for it still do. */
    void (*event_free)(struct dp_device_event *event);
    /* From now on the event is the end of what `stream` has been given so far. */
    int (*event_record)(struct dp_device_event *event, struct dp_device_stream *stream);
    /* 0: reached (or never recorded). DP_EAGAIN: not yet. */
    int (*event_test)(struct dp_device_event *event);
    /* The same, but wait up to timeout_ns. DP_ETIMEDOUT. */
    int (*event_wait)(struct dp_device_event *event, int64_t timeout_ns);
    /* What `stream` is given from now on starts after the event as it is recorded now; an event never
     * recorded holds nothing back. The stream may belong to the event's device only. */
    int (*stream_wait)(struct dp_device_stream *stream, struct dp_device_event *event);

    void (*close)(struct dp_device *dev);
};

/* The part that every device begins with. */
struct dp_device {
    const struct dp_device_ops *ops;
    DLDevice dl;          /* what tensors on it carry: {kDLCPU, 0} or {kDLCUDA, ordinal} */
    bool host_accessible; /* its memory can be read and written by the CPU and by a wire */
};

/* The host. `workers` threads (0 to 64) copy for streams; with 0, copies are done in the calling
 * thread, at once. DP_EINVAL, DP_ENOMEM. */
DP_PUBLIC int dp_device_host_open(int workers, struct dp_device **out);
/* CUDA device `ordinal`. DP_ENODEV, with the reason, where there is no driver or no such device;
 * DP_EUNSUPPORTED where the library was built without CUDA. Uses the device's primary context; no
 * call leaves another context current in the calling thread than it found. */
DP_PUBLIC int dp_device_cuda_open(int ordinal, struct dp_device **out);
/* "host[:workers]" or "cuda[:ordinal]"; without a number, DUALPIPE_DEVICE_WORKERS and 0. */
DP_PUBLIC int dp_device_open(const char *name, struct dp_device **out);
/* Everything allocated from it, streams and events too, must have been freed. dev may be NULL. */
DP_PUBLIC void dp_device_close(struct dp_device *dev);

#ifdef __cplusplus
}
#endif
#endif
