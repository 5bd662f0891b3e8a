/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_DEVICE_INTERNAL_H
#define DP_DEVICE_INTERNAL_H

#include <dualpipe/device.h>

/* Keep the device's own threads, which copy and carry out calls, to those CPUs of a NUMA node on which
 * the caller may run. Nothing happens where the device has none, as a GPU. DP_ENODEV: there is no such
 * node, or the caller may use none of its CPUs; DP_EUNSUPPORTED: the kernel refuses it. */
int dp_device_bind(struct dp_device *dev, int numa_node);
/* Make host memory that exists pinned memory, until it is unregistered; page aligned, `bytes` a
 * multiple of the page size. DP_EINVAL (not that, or registered already), DP_ENOMEM (more than may be
 * locked). */
int dp_device_register(struct dp_device *dev, void *ptr, size_t bytes);
/* Nothing in flight may use it. ptr may be NULL. */
void dp_device_unregister(struct dp_device *dev, void *ptr);

#endif
