/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_module.h - kernels on CUDA, for the table in cuda.c. The device's context is current in all of
 * these.
 */
#ifndef DP_DEVICE_CUDA_MODULE_H
#define DP_DEVICE_CUDA_MODULE_H

#include "device/cuda_driver.h"
#include "device/device_ops.h"

int dp_cuda_module_new(const struct dp_cuda_driver *cu, struct dp_device *dev, const void *image,
                       struct dp_device_module **out);
void dp_cuda_module_free(const struct dp_cuda_driver *cu, struct dp_device_module *module);
int dp_cuda_kernel_find(const struct dp_cuda_driver *cu, struct dp_device_module *module,
                        const char *name, void **out);
int dp_cuda_launch(const struct dp_cuda_driver *cu, const struct dp_device_launch *launch);

#endif
