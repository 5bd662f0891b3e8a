/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_device.h - what a CUDA device consists of, for the files that implement its operations: cuda.c
 * (memory, streams, events), cuda_module.c (kernels), cuda_sum.c and cuda_update.c (sums and updates by
 * kernels of the library's own), cuda_graph.c (graphs).
 */
#ifndef DP_DEVICE_CUDA_DEVICE_H
#define DP_DEVICE_CUDA_DEVICE_H

#include "device/cuda_call.h"
#include "device/cuda_driver.h"
#include "device/device_ops.h"

enum { DP_CUDA_SUMS = 8 };

struct cuda {
    struct dp_device base;
    struct dp_cuda_driver cu;
    CUdevice device;
    CUcontext context; /* the primary one; NULL: not retained yet */
    struct dp_device_module *sums; /* of dp_cuda_add; NULL: not loaded yet, or there are none */
    void *sum_kernels[DP_CUDA_SUMS];
    bool sums_tried; /* with base.lock */
    struct dp_device_module *updates; /* of dp_cuda_own_kernel; NULL: not loaded yet */
    struct dp_cuda_calls *calls;      /* NULL: its context is not retained yet */
};

struct cuda_stream {
    struct dp_device_stream base;
    CUstream stream;
    bool is_wrapped; /* the caller's */
};

static inline struct cuda *dp_cuda_of(struct dp_device *dev)
{
    return (struct cuda *)dev;
}

static inline CUstream dp_cuda_stream_of(const struct dp_device_stream *stream)
{
    return ((const struct cuda_stream *)stream)->stream;
}

static inline int dp_cuda_enter(struct cuda *cuda)
{
    return dp_cuda_check(&cuda->cu, cuda->cu.cuCtxPushCurrent(cuda->context),
                         "making its context current");
}

/* Hands the result of the call made inside through. */
static inline CUresult dp_cuda_leave(struct cuda *cuda, CUresult result)
{
    CUcontext context;

    cuda->cu.cuCtxPopCurrent(&context);
    return result;
}

/* The kernels of dp_cuda_add and dp_cuda_mix: PTX. */
extern const char dp_cuda_sum_ptx[];
extern const char dp_cuda_update_ptx[]; /* of dp_cuda_own_kernel */

/* As the members of dp_device_ops of these names. */
int dp_cuda_module_new(struct dp_device *dev, const void *image, struct dp_device_module **out);
void dp_cuda_module_free(struct dp_device_module *module); /* may be NULL */
int dp_cuda_kernel_find(struct dp_device_module *module, const char *name, void **out);
int dp_cuda_launch(struct dp_device *dev, const struct dp_device_launch *launch);
int dp_cuda_add(struct dp_device_stream *stream, DLDataType type, void *to, DLDataType from_type,
                const void *from, size_t count);
int dp_cuda_mix(struct dp_device_stream *stream, DLDataType type, void *to, double keep,
                const void *from, double take, size_t count);
int dp_cuda_own_kernel(struct dp_device *dev, const char *name, void **out);
int dp_cuda_capture_begin(struct dp_device_stream *stream);
int dp_cuda_capture_end(struct dp_device_stream *stream, struct dp_device_graph **out);
int dp_cuda_graph_launch(struct dp_device_graph *graph, struct dp_device_stream *stream);
void dp_cuda_graph_free(struct dp_device_graph *graph);

#endif
