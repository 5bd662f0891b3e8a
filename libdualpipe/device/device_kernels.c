/* SPDX-License-Identifier: Apache-2.0
 *
 * device_kernels.c - what not every device has: kernels, graphs; and being the current
 * device of a thread.
 */
#include "device/device_ops.h"

#include "base/fail.h"

#include <string.h>

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

int dp_device_add(struct dp_device_stream *stream, DLDataType type, void *to, DLDataType from_type,
                  const void *from, size_t count)
{
    const struct dp_device_ops *ops = stream->dev->ops;

    if (!ops->add)
        return dp_fail_quietly(DP_EUNSUPPORTED, "%s: this device adds nothing up", ops->name);
    return ops->add(stream, type, to, from_type, from, count);
}

int dp_device_mix(struct dp_device_stream *stream, DLDataType type, void *to, double keep,
                  const void *from, double take, size_t count)
{
    const struct dp_device_ops *ops = stream->dev->ops;

    if (!ops->mix)
        return dp_fail_quietly(DP_EUNSUPPORTED, "%s: this device mixes nothing", ops->name);
    return ops->mix(stream, type, to, keep, from, take, count);
}

int dp_device_own_kernel(struct dp_device *dev, const char *name, void **out)
{
    if (!dev->ops->own_kernel)
        return dp_fail(DP_EUNSUPPORTED, "%s: this device has no kernels of the library's, expected cuda",
                       dev->ops->name);
    return dev->ops->own_kernel(dev, name, out);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

int dp_device_capture_begin(struct dp_device_stream *stream)
{
    const struct dp_device_ops *ops = stream->dev->ops;

    if (!ops->capture_begin)
        return dp_fail_quietly(DP_EUNSUPPORTED, "%s: this device has no graphs; expected cuda",
                               ops->name);
    return ops->capture_begin(stream);
}

int dp_device_capture_end(struct dp_device_stream *stream, struct dp_device_graph **out)
{
    const struct dp_device_ops *ops = stream->dev->ops;

    return ops->capture_end ? ops->capture_end(stream, out) : DP_EUNSUPPORTED;
}

int dp_device_graph_launch(struct dp_device_graph *graph, struct dp_device_stream *stream)
{
    return graph->dev->ops->graph_launch(graph, stream);
}

void dp_device_graph_free(struct dp_device_graph *graph)
{
    if (graph)
        graph->dev->ops->graph_free(graph);
}

/* ---- the current device ---------------------------------------------------------------------- */

int dp_device_enter(struct dp_device *dev)
{
    return dev->ops->enter ? dev->ops->enter(dev) : 0;
}

void dp_device_leave(struct dp_device *dev)
{
    if (dev->ops->leave)
        dev->ops->leave(dev);
}
