/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_pool.c - memory of the device's pool, taken and given back in the order of a stream; and
 * memory of other devices, which copies and kernels of this one reach.
 */
#include "device/cuda_device.h"

#include "base/fail.h"

#include <stdint.h>

/* The pool keeps what was given back, instead of returning it to the system at the next wait. */
static CUresult keep_pool(struct cuda *cuda)
{
    const struct dp_cuda_driver *cu = &cuda->cu;
    cuuint64_t all = UINT64_MAX;
    CUmemoryPool pool;
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&cuda->base.lock);
    const bool kept = cuda->pool_kept;
    cuda->pool_kept = true;
    pthread_mutex_unlock(&cuda->base.lock);
    if (kept)
        return CUDA_SUCCESS;
    result = cu->cuDeviceGetDefaultMemPool(&pool, cuda->device);
    if (result == CUDA_SUCCESS)
        result = cu->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
    return result;
}

int dp_cuda_alloc_async(struct dp_device_stream *stream, size_t bytes, void **out)
{
    struct cuda *cuda = dp_cuda_of(stream->dev);
    const struct dp_cuda_driver *cu = &cuda->cu;
    CUdeviceptr ptr = 0;

    if (!cu->cuMemAllocAsync || !cu->cuMemFreeAsync || !cu->cuDeviceGetDefaultMemPool ||
        !cu->cuMemPoolSetAttribute)
        return dp_fail(DP_EUNSUPPORTED, "cuda:%d: the driver has no memory pools", cu->ordinal);
    int err = dp_cuda_enter(cuda);
    if (err)
        return err;
    CUresult result = keep_pool(cuda);
    if (result == CUDA_SUCCESS)
        result = cu->cuMemAllocAsync(&ptr, bytes ? bytes : 1, dp_cuda_stream_of(stream));
    err = dp_cuda_check(cu, dp_cuda_leave(cuda, result), "no memory in the pool for %zu bytes",
                        bytes);
    if (!err)
        *out = (void *)(uintptr_t)ptr;
    return err;
}

int dp_cuda_free_async(struct dp_device_stream *stream, void *ptr)
{
    struct cuda *cuda = dp_cuda_of(stream->dev);
    int err = dp_cuda_enter(cuda);

    if (err)
        return err;
    CUresult result =
        cuda->cu.cuMemFreeAsync((CUdeviceptr)(uintptr_t)ptr, dp_cuda_stream_of(stream));
    return dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "giving memory back to the pool");
}

int dp_cuda_reach(struct dp_device *dev, struct dp_device *other)
{
    struct cuda *cuda = dp_cuda_of(dev), *peer = dp_cuda_of(other);
    const struct dp_cuda_driver *cu = &cuda->cu;
    int can = 0;

    if (cuda->device == peer->device)
        return 0;
    if (!cu->cuDeviceCanAccessPeer || !cu->cuCtxEnablePeerAccess)
        return dp_fail(DP_EUNSUPPORTED, "cuda:%d: the driver has no functions for peers",
                       cu->ordinal);
    int err = dp_cuda_check(cu, cu->cuDeviceCanAccessPeer(&can, cuda->device, peer->device),
                            "asking whether it reaches cuda:%d", peer->cu.ordinal);
    if (!err && !can)
        err = dp_fail_quietly(DP_EUNSUPPORTED,
                              "cuda:%d does not reach the memory of cuda:%d; copies between them "
                              "pass through the host",
                              cu->ordinal, peer->cu.ordinal);
    if (!err)
        err = dp_cuda_enter(cuda);
    if (err)
        return err;
    CUresult result = dp_cuda_leave(cuda, cu->cuCtxEnablePeerAccess(peer->context, 0));
    if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        return 0;
    return dp_cuda_check(cu, result, "reaching the memory of cuda:%d", peer->cu.ordinal);
}
