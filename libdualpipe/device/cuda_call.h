/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_call.h - calls of the CPU in the order of CUDA streams, by a thread for each stream. The driver
 * makes its own host functions (cuLaunchHostFunc) in one thread for all streams: an update that
 * computes in one stream would hold back those of every other, also of other libraries.
 */
#ifndef DP_DEVICE_CUDA_CALL_H
#define DP_DEVICE_CUDA_CALL_H

#include "device/cuda_driver.h"

#include <stdbool.h>

struct dp_cuda_calls; /* of a device */

/* The device's context is current in all of these. Memory for the numbers of all streams is pinned at
 * once, because that may wait for the device. cu stays where it is. */
int dp_cuda_calls_new(const struct dp_cuda_driver *cu, struct dp_cuda_calls **out);
/* Calls that no stream has come to are not made any more. Memory that a stream may still use stays until
 * the context ends. */
void dp_cuda_calls_free(struct dp_cuda_calls *calls);
/* One thread at a time calls for a stream. */
int dp_cuda_calls_add(struct dp_cuda_calls *calls, CUstream stream, void (*fn)(void *user),
                      void *user);
/* Before the stream ends. Where it is not idle it failed: what it has not come to is not called any
 * more. */
void dp_cuda_calls_end(struct dp_cuda_calls *calls, CUstream stream, bool is_idle);

#endif
