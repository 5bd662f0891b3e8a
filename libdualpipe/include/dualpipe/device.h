/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - where buffers live and what copies them: the host (memory and copy-worker threads) or a
 * CUDA device (its driver loaded at run time).
 *
 * A *stream* of a device carries out copies and calls in order; an *event* marks a point in a stream.
 * Streams do not wait for each other unless told to, by an event:
 *
 *      load   copy ---- record(loaded)
 *                            |
 *      compute          wait(loaded) ---- zero ---- call
 *
 *      dp_device_copy(load, slot, shard, bytes);
 *      dp_device_event_record(loaded, load);
 *      dp_device_stream_wait(compute, loaded);
 *
 * None of these calls waits: the calling thread goes on, and what a copy reads and writes must stay
 * until an event recorded behind it is reached.
 *
 * Sizes are in bytes, 0 is legal. All functions but the frees return 0 or a negative errno. DP_EIO: the
 * device itself failed; on CUDA that may be the fault of earlier work, and then every later call says
 * so too.
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

/* ---- devices --------------------------------------------------------------------------------- */

/* The host. `workers` threads (0 to 64) copy and compute for streams; with 0, both are done in the
 * calling thread, at once. DP_EINVAL, DP_ENOMEM. */
static inline int dp_device_host_open(int workers, struct dp_device **out);
/* CUDA device `ordinal`. DP_ENODEV, with the reason, where there is no driver or no such device;
 * DP_EUNSUPPORTED where the library was built without CUDA. Uses the device's primary context; no
 * call leaves another context current in the calling thread than it found. */
DP_PUBLIC int dp_device_cuda_open(int ordinal, struct dp_device **out);
/* How many CUDA devices there are: 1 or more. DP_ENODEV, DP_EUNSUPPORTED as above. */
DP_PUBLIC int dp_device_cuda_count(int *out);
/* "host[:workers]" or "cuda[:ordinal]"; without a number, DUALPIPE_DEVICE_WORKERS and 0. The link of
 * a host device is what DUALPIPE_DEVICE_LINK_MBS says. */
DP_PUBLIC int dp_device_open(const char *name, struct dp_device **out);
/* Everything allocated from it, streams and events too, must have been freed. dev may be NULL. */
DP_PUBLIC void dp_device_close(struct dp_device *dev);

/* A link between the host's memory and what the host device calls device memory, to try on a machine
 * without a GPU what a slow link does. Copies in one direction follow each other at its speed, as the
 * copy engine of a GPU does them; copies that stay on one side are not held up. */
struct dp_host_link {
    double up_bytes_per_s, down_bytes_per_s; /* to the device, from it; 0: as fast as memory */
    int64_t most_delay_ns;                   /* every copy is late by a random time up to this, */
    uint64_t delay_seed;                     /* to show what is not ordered by an event */
};
/* workers: 1 to 64. link NULL: as dp_device_host_open. DP_EINVAL, DP_ENOMEM. */
DP_PUBLIC int dp_device_host_open_link(int workers, const struct dp_host_link *link,
                                       struct dp_device **out);

static inline int dp_device_host_open(int workers, struct dp_device **out)
{
    return dp_device_host_open_link(workers, NULL, out);
}

/* What a device says of itself, a number each, for the functions below. */
enum dp_device_property {
    DP_DEVICE_TYPE,    /* DLDeviceType */
    DP_DEVICE_ORDINAL,
    DP_DEVICE_HOST_ACCESSIBLE,
    DP_DEVICE_NUMA_NODE
};
DP_PUBLIC int dp_device_get(const struct dp_device *dev, enum dp_device_property property);

/* "host", "cuda". */
static inline const char *dp_device_name(const struct dp_device *dev)
{
    return dp_device_get(dev, DP_DEVICE_TYPE) == kDLCPU ? "host" : "cuda";
}

/* What tensors on it carry: {kDLCPU, 0} or {kDLCUDA, ordinal}. */
static inline DLDevice dp_device_dl(const struct dp_device *dev)
{
    DLDevice dl = {(DLDeviceType)dp_device_get(dev, DP_DEVICE_TYPE),
                   dp_device_get(dev, DP_DEVICE_ORDINAL)};

    return dl;
}

/* Its memory can be read and written by the CPU and by a wire. */
static inline bool dp_device_host_accessible(const struct dp_device *dev)
{
    return dp_device_get(dev, DP_DEVICE_HOST_ACCESSIBLE) != 0;
}

/* The NUMA node whose memory is nearest to the device; -1: not known, or all are alike. */
static inline int dp_device_numa_node(const struct dp_device *dev)
{
    return dp_device_get(dev, DP_DEVICE_NUMA_NODE);
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum dp_memory {
    DP_MEMORY_DEVICE, /* where the device computes */
    DP_MEMORY_PINNED, /* host memory that the device copies from and to at full speed */
    DP_MEMORY_SHARED, /* the host: of dp_shared_alloc (memory.h); CUDA: pinned */
    DP_MEMORY_MESSAGES /* as DP_MEMORY_DEVICE; from 1 MiB on NCCL's own, in whole pieces of its size
                        * (2 MiB or more), if a communicator by NCCL is open */
};

/* Memory aligned to 256 bytes at least, contents undefined. DP_ENOMEM. */
DP_PUBLIC int dp_device_alloc(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out);
/* `where` as it was allocated. Nothing in flight may use it. ptr may be NULL. */
DP_PUBLIC void dp_device_free(struct dp_device *dev, enum dp_memory where, void *ptr);

/* Another source of device memory, such as the caching allocator of a framework that computes on the
 * same device. Called with the device entered, by any thread that allocates or frees. */
struct dp_device_allocator {
    /* Aligned to 256 bytes. Not 0: the device itself is asked. */
    int (*alloc)(void *user, size_t bytes, void **out);
    void (*free)(void *user, void *ptr);
    void *user;
};
/* dp_device_alloc takes device memory, also for messages, from there from now on; what has been given
 * goes back to where it came from. Its contents are copied; NULL: the device's own memory. */
DP_PUBLIC void dp_device_set_allocator(struct dp_device *dev,
                                       const struct dp_device_allocator *allocator);

/* What dp_device_alloc has given of DP_MEMORY_DEVICE and DP_MEMORY_MESSAGES. */
struct dp_device_usage {
    size_t bytes, peak_bytes, limit_bytes;
    uint64_t allocations; /* so far; freed ones count */
};
DP_SIZED_REPORT(dp_device_usage, (dev, out, sizeof(struct dp_device_usage)), struct dp_device *dev,
                struct dp_device_usage *out);
/* Let dp_device_alloc give no more device memory than that (what it has given stays); and the peak is
 * from now on that since this call. SIZE_MAX: what the device has. */
DP_PUBLIC void dp_device_limit(struct dp_device *dev, size_t bytes);

/* ---- streams --------------------------------------------------------------------------------- */

enum dp_device_priority {
    DP_PRIORITY_LOW = -1, /* while nothing else wants to be done; on CUDA no less than normal */
    DP_PRIORITY_NORMAL,
    DP_PRIORITY_HIGH /* before all else that waits; what has begun is not interrupted */
};

DP_PUBLIC int dp_device_stream_new(struct dp_device *dev, enum dp_device_priority priority,
                                   struct dp_device_stream **out);
/* A stream of the caller's, as dp_device_stream_native has it: CUDA's default stream for NULL. It is
 * neither finished nor freed with the wrapper, and must outlive it. The host has no such thing: it
 * ignores `native`, and the stream is as of dp_device_stream_new. */
DP_PUBLIC int dp_device_stream_wrap(struct dp_device *dev, void *native,
                                    struct dp_device_stream **out);
/* Work in flight is finished first; a device that hangs is given 10 s. stream may be NULL. */
DP_PUBLIC void dp_device_stream_free(struct dp_device_stream *stream);
/* What the device's own interface calls the stream, to queue other work in it: a CUstream; NULL
 * on the host. */
DP_PUBLIC void *dp_device_stream_native(struct dp_device_stream *stream);

/* Copy between any two of host, pinned and device memory, in the stream's order. The two ranges
 * must not overlap. */
DP_PUBLIC int dp_device_copy(struct dp_device_stream *stream, void *dst, const void *src,
                             size_t bytes);
DP_PUBLIC int dp_device_zero(struct dp_device_stream *stream, void *dst, size_t bytes);
/* Have the CPU call fn(user) in the stream's order: on the host one of the workers does, for as long as
 * it runs, and this is how compute is queued; on CUDA a thread of the stream's own does. fn must not use
 * the device. On CUDA alone: DP_ENOMEM, 64 other streams have calls that are not done; DP_ESTATE, the
 * stream is captured; DP_EUNSUPPORTED, a driver whose streams do not wait for values. */
DP_PUBLIC int dp_device_call(struct dp_device_stream *stream, void (*fn)(void *user), void *user);

/* ---- events ---------------------------------------------------------------------------------- */

/* timed: it notes when it is reached, which takes a little of the stream's time. It must have been
 * reached before it is recorded again or freed. */
DP_PUBLIC int dp_device_event_make(struct dp_device *dev, bool timed, struct dp_device_event **out);

static inline int dp_device_event_new(struct dp_device *dev, struct dp_device_event **out)
{
    return dp_device_event_make(dev, false, out);
}

/* event may be NULL. Streams that were told to wait for it still do. */
DP_PUBLIC void dp_device_event_free(struct dp_device_event *event);
/* From now on the event is the end of what `stream` has been given so far. */
DP_PUBLIC int dp_device_event_record(struct dp_device_event *event,
                                     struct dp_device_stream *stream);
/* 0: reached (or never recorded). DP_EAGAIN: not yet. */
DP_PUBLIC int dp_device_event_test(struct dp_device_event *event);
/* The same, but wait up to timeout_ns. DP_ETIMEDOUT. */
DP_PUBLIC int dp_device_event_wait(struct dp_device_event *event, int64_t timeout_ns);
/* From one timed event to another of the same device, in ns by the device's clock (a GPU's counts in
 * about 500). DP_EAGAIN: not both have been reached. DP_EINVAL: one is not timed, was never recorded,
 * or is of another device; DP_EUNSUPPORTED: a driver that does not tell. */
DP_PUBLIC int dp_device_event_elapsed(struct dp_device_event *from, struct dp_device_event *to,
                                      double *ns);
/* What `stream` is given from now on starts after the event as it is recorded now; an event never
 * recorded holds nothing back. DP_EINVAL: the event of another device. */
DP_PUBLIC int dp_device_stream_wait(struct dp_device_stream *stream,
                                    struct dp_device_event *event);

/* ---- kernels: CUDA alone ----------------------------------------------------------------------- */

struct dp_device_module;

/* Load kernels: image is a cubin, a fatbin, or PTX (text that ends with 0), as of cuModuleLoadData.
 * DP_EUNSUPPORTED: the device is the host. DP_EIO: the image has nothing for this device. */
DP_PUBLIC int dp_device_module_new(struct dp_device *dev, const void *image,
                                   struct dp_device_module **out);
/* None of its kernels may be queued or running. module may be NULL. */
DP_PUBLIC void dp_device_module_free(struct dp_device_module *module);
/* The kernel of that name, for launches while the module is there. DP_EIO: it has none. */
DP_PUBLIC int dp_device_kernel_find(struct dp_device_module *module, const char *name, void **out);

struct dp_device_launch {
    void *kernel;
    void *stream;        /* native: dp_device_stream_native, or that of a stage's call */
    unsigned blocks[3];  /* 1 and more */
    unsigned threads;    /* of a block */
    size_t memory_bytes; /* of a block, beside what the kernel declares */
    const void *args;    /* what the kernel takes as its one argument; copied */
    size_t args_bytes;
};
/* Queue a kernel in a stream. Nothing waits. */
DP_PUBLIC int dp_device_launch(struct dp_device *dev, const struct dp_device_launch *launch);

/* ---- graphs: CUDA alone ------------------------------------------------------------------------ */

/* Work that is the same each time, queued by one call: what is queued in a stream between begin and end
 * (kernels, copies and zeroing of device and pinned memory) is not done, but becomes a graph, with the
 * arguments that it has now. One stream of a thread at a time; no events, no calls, nothing that waits.
 * After end, whatever it returns, the stream is as before. DP_EUNSUPPORTED: no graphs here, or something
 * was queued that cannot be part of one. */
struct dp_device_graph;
DP_PUBLIC int dp_device_capture_begin(struct dp_device_stream *stream);
DP_PUBLIC int dp_device_capture_end(struct dp_device_stream *stream, struct dp_device_graph **out);
/* In any stream of its device; not in two at once. */
DP_PUBLIC int dp_device_graph_launch(struct dp_device_graph *graph, struct dp_device_stream *stream);
/* It must not be under way. graph may be NULL. */
DP_PUBLIC void dp_device_graph_free(struct dp_device_graph *graph);

/* Make the device the calling thread's current one, for libraries that go by that (cuBLAS, CUDA's
 * runtime), until leave; in pairs. Nothing happens on the host. */
DP_PUBLIC int dp_device_enter(struct dp_device *dev);
DP_PUBLIC void dp_device_leave(struct dp_device *dev);

#ifdef __cplusplus
}
#endif
#endif
