/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - what the devices share: their options (DUALPIPE_DEVICE_...).
 */
#ifndef DP_DEVICE_DEVICE_H
#define DP_DEVICE_DEVICE_H

#include "base/options.h"
#include <dualpipe/device.h>

enum { DP_HOST_MAX_WORKERS = 64 };

struct dp_device_options {
    int64_t workers;
    const char *cuda_library; /* NULL: libcuda.so.1 */
};

extern const struct dp_option_area dp_device_option_area;

#endif
