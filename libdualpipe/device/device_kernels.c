/* SPDX-License-Identifier: Apache-2.0
 *
 * device_kernels.c - kernels, where a device has such; and being the current device of a thread.
 */
#include "device/device_ops.h"

#include "base/fail.h"

int dp_device_module_new(struct dp_device *dev, const void *image, struct dp_device_module **out)
{
    if (!image)
        return dp_fail(DP_EINVAL, "%s: kernels without an image", dev->ops->name);
    if (!dev->ops->module_new)
        return dp_fail(DP_EUNSUPPORTED, "%s: this device has no kernels to load; expected cuda",
                       dev->ops->name);
    return dev->ops->module_new(dev, image, out);
}

void dp_device_module_free(struct dp_device_module *module)
{
    if (module)
        module->dev->ops->module_free(module);
}

int dp_device_kernel_find(struct dp_device_module *module, const char *name, void **out)
{
    return module->dev->ops->kernel_find(module, name, out);
}

int dp_device_launch(struct dp_device *dev, const struct dp_device_launch *launch)
{
    if (!dev->ops->launch)
        return dp_fail(DP_EUNSUPPORTED, "%s: this device launches no kernels", dev->ops->name);
    return dev->ops->launch(dev, launch);
}

int dp_device_enter(struct dp_device *dev)
{
    return dev->ops->enter ? dev->ops->enter(dev) : 0;
}

void dp_device_leave(struct dp_device *dev)
{
    if (dev->ops->leave)
        dev->ops->leave(dev);
}
