/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device_ops.h"

static const struct dp_option table[] = {
    {"WORKERS", DP_OPTION_INT, "0", "threads that copy for the host device",
     offsetof(struct dp_device_options, workers), .min = 0, .max = DP_HOST_MAX_WORKERS},
    {"LINK_MBS", DP_OPTION_INT, "0",
     "MB/s each way between host and device memory of the host device; 0: as fast as memory",
     offsetof(struct dp_device_options, link_mbs), .min = 0, .max = 10000000},
    {"CUDA_LIBRARY", DP_OPTION_STRING, NULL, "file of the CUDA driver, instead of libcuda.so.1",
     offsetof(struct dp_device_options, cuda_library), .is_code = true},
};
const struct dp_option_area dp_device_option_area = {"DEVICE", table, 3};
