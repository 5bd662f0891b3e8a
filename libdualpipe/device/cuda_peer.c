/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_peer.c - memory of other devices, which copies and kernels of this one reach.
 */
#include "device/cuda_device.h"

#include "base/fail.h"

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
