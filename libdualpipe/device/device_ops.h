/* SPDX-License-Identifier: Apache-2.0
 *
 * device_ops.h - for implementations of devices: the table of operations behind dualpipe/device.h, what
 * devices, streams and events begin with, and the devices' options (DUALPIPE_DEVICE_...).
 */
#ifndef DP_DEVICE_DEVICE_OPS_H
#define DP_DEVICE_DEVICE_OPS_H

#include "base/options.h"
#include <dualpipe/device.h>

#include <pthread.h>
#include <sched.h>

enum { DP_HOST_MAX_WORKERS = 64 };

/* Every member is set unless its comment says otherwise, and does what the function of the same
 * name in dualpipe/device.h promises. Counting device memory and keeping to its limit is not their
 * business. */
struct dp_device_ops {
    const char *name;

    /* Make it the current one of the calling thread for a library that goes by that, as CUDA's
     * runtime and NCCL do; and put back what the thread had. Both NULL where there is no such
     * thing. */
    int (*enter)(struct dp_device *dev);
    void (*leave)(struct dp_device *dev);

    int (*alloc)(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out);
    void (*free)(struct dp_device *dev, enum dp_memory where, void *ptr);
    int (*register_memory)(struct dp_device *dev, void *ptr, size_t bytes);
    void (*unregister_memory)(struct dp_device *dev, void *ptr);

    int (*stream_new)(struct dp_device *dev, enum dp_device_priority priority,
                      struct dp_device_stream **out);
    /* NULL: as stream_new. */
    int (*stream_wrap)(struct dp_device *dev, void *native, struct dp_device_stream **out);
    void (*stream_free)(struct dp_device_stream *stream);
    void *(*stream_native)(struct dp_device_stream *stream);

    int (*copy)(struct dp_device_stream *stream, void *dst, const void *src, size_t bytes);
    int (*zero)(struct dp_device_stream *stream, void *dst, size_t bytes);
    int (*call)(struct dp_device_stream *stream, void (*fn)(void *user), void *user);

    /* What it begins with is set by the caller. */
    int (*event_new)(struct dp_device *dev, bool timed, struct dp_device_event **out);
    void (*event_free)(struct dp_device_event *event);
    int (*event_record)(struct dp_device_event *event, struct dp_device_stream *stream);
    int (*event_test)(struct dp_device_event *event);
    int (*event_wait)(struct dp_device_event *event, int64_t timeout_ns);
    /* Both are timed, recorded, and of one device. */
    int (*event_elapsed)(struct dp_device_event *from, struct dp_device_event *to, double *ns);
    int (*stream_wait)(struct dp_device_stream *stream, struct dp_device_event *event);

    /* All NULL where there are no kernels. */
    int (*module_new)(struct dp_device *dev, const void *image, struct dp_device_module **out);
    void (*module_free)(struct dp_device_module *module);
    int (*kernel_find)(struct dp_device_module *module, const char *name, void **out);
    int (*launch)(struct dp_device *dev, const struct dp_device_launch *launch);

    /* NULL, or DP_EUNSUPPORTED, quietly, where the device does not add up: dp_device_add. */
    int (*add)(struct dp_device_stream *stream, DLDataType type, void *to, DLDataType from_type,
               const void *from, size_t count);

    /* The same: dp_device_mix. */
    int (*mix)(struct dp_device_stream *stream, DLDataType type, void *to, double keep,
               const void *from, double take, size_t count);

    /* NULL: there are none. */
    int (*own_kernel)(struct dp_device *dev, const char *name, void **out);

    /* All NULL where there are no graphs. */
    int (*capture_begin)(struct dp_device_stream *stream);
    int (*capture_end)(struct dp_device_stream *stream, struct dp_device_graph **out);
    int (*graph_launch)(struct dp_device_graph *graph, struct dp_device_stream *stream);
    void (*graph_free)(struct dp_device_graph *graph);

    /* Its own threads to these CPUs: 0 or an errno. NULL where there are none. */
    int (*bind)(struct dp_device *dev, const cpu_set_t *cpus);

    void (*close)(struct dp_device *dev);
};

/* One buffer of device memory. */
struct dp_device_buffer {
    struct dp_device_buffer *next;
    const char *ptr;
    size_t bytes;
    int (*free)(void *ptr);               /* of a source; NULL: it is not of one */
    struct dp_device_allocator allocator; /* of the program's; free NULL: it is not of one */
};

/* Another source of device memory; 0, or the device gives it. Called with the device entered. */
struct dp_device_source {
    int (*alloc)(void **out, size_t bytes);
    int (*free)(void *ptr);
};

/* What every device begins with. */
struct dp_device {
    const struct dp_device_ops *ops;
    DLDevice dl;
    bool host_accessible;
    int numa_node;
    pthread_mutex_t lock; /* of all below; dp_device_init and dp_device_fini */
    struct dp_device_usage usage;
    struct dp_device_buffer *buffers;
    struct dp_device_allocator allocator; /* alloc NULL: none */
    struct dp_device_source source; /* of DP_MEMORY_MESSAGES, without an allocator; NULL: none */
};

/* What every stream, event and module begins with. */
struct dp_device_stream {
    struct dp_device *dev;
};
struct dp_device_event {
    struct dp_device *dev;
    bool timed, recorded; /* recorded: at least once */
};
struct dp_device_module {
    struct dp_device *dev;
};

struct dp_device_graph {
    struct dp_device *dev;
};

/* to[i] += from[i] in the stream's order, both in device memory: float32, float64, bfloat16 or
 * float16 to the same, or float32 to bfloat16 or float16; 16 bits are added in float32 and rounded
 * once. DP_EUNSUPPORTED, quietly: the device has nothing to do it with; a count of 0 asks only
 * that, and loads the kernel. */
int dp_device_add(struct dp_device_stream *stream, DLDataType type, void *to, DLDataType from_type,
                  const void *from, size_t count);

/* to[i] = keep * to[i] + take * from[i] in the stream's order, of float32 or float64: the first product
 * is rounded, then the whole, as an optimizer mixes (optimizer/kernels.h). from may be to.
 * DP_EUNSUPPORTED as above. */
int dp_device_mix(struct dp_device_stream *stream, DLDataType type, void *to, double keep,
                  const void *from, double take, size_t count);

/* A kernel of the library's own (cuda_update.c). DP_EUNSUPPORTED: the device has none. */
int dp_device_own_kernel(struct dp_device *dev, const char *name, void **out);

/* Set all of the part that every device begins with; numa_node is -1. */
void dp_device_init(struct dp_device *dev, const struct dp_device_ops *ops, DLDevice dl,
                    bool host_accessible);
void dp_device_fini(struct dp_device *dev);
/* DP_MEMORY_MESSAGES of a MiB or more comes from there from now on: memory that a library of messages
 * can give to another device without a copy. */
void dp_device_set_source(struct dp_device *dev, struct dp_device_source source);
/* Whether ptr points into its device memory. */
bool dp_device_owns(struct dp_device *dev, const void *ptr);

struct dp_device_options {
    int64_t workers;
    int64_t link_mbs;
    const char *cuda_library; /* NULL: libcuda.so.1 */
};

extern const struct dp_option_area dp_device_option_area;

#endif
