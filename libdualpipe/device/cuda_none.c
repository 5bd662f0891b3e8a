/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include <dualpipe/device.h>

int dp_device_cuda_count(int *out)
{
    (void)out;
    return dp_fail(DP_EUNSUPPORTED, "this library was built without CUDA (configure found no "
                                    "cuda.h; give it --with-cuda=DIR)");
}

int dp_device_cuda_open(int ordinal, struct dp_device **out)
{
    (void)out;
    return dp_fail(DP_EUNSUPPORTED,
                   "cuda:%d: this library was built without CUDA (configure found no cuda.h; "
                   "give it --with-cuda=DIR)",
                   ordinal);
}
