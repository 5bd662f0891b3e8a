/* SPDX-License-Identifier: Apache-2.0
 *
 * device_kernels.c - what not every device has: kernels, graphs, a pool, peers; and being the current
 * device of a thread.
 */
#include "device/device_ops.h"

#include "base/fail.h"

#include <stdlib.h>
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

/* ---- a pool, and peers ----------------------------------------------------------------------- */

struct given_back {
    struct dp_device *dev;
    void *ptr;
};

static void free_now(void *user)
{
    struct given_back *g = user;

    dp_device_free(g->dev, DP_MEMORY_DEVICE, g->ptr);
    free(g);
}

int dp_device_alloc_async(struct dp_device_stream *stream, size_t bytes, void **out)
{
    if (!stream->dev->ops->alloc_async)
        return dp_device_alloc(stream->dev, DP_MEMORY_DEVICE, bytes, out);
    return stream->dev->ops->alloc_async(stream, bytes, out);
}

int dp_device_free_async(struct dp_device_stream *stream, void *ptr)
{
    struct given_back *g;

    if (!ptr)
        return 0;
    if (stream->dev->ops->free_async)
        return stream->dev->ops->free_async(stream, ptr);
    g = malloc(sizeof(*g));
    if (!g)
        return dp_fail(DP_ENOMEM, "%s: no memory to give a buffer back", stream->dev->ops->name);
    *g = (struct given_back){stream->dev, ptr};
    int err = dp_device_call(stream, free_now, g);
    if (err)
        free(g);
    return err;
}

int dp_device_reach(struct dp_device *dev, struct dp_device *other)
{
    if (!dev || !other || strcmp(dev->ops->name, other->ops->name))
        return dp_fail(DP_EINVAL, "reaching the memory of a device: expected two of one kind, not "
                                  "%s and %s",
                       dev ? dev->ops->name : "none", other ? other->ops->name : "none");
    return dev->ops->reach ? dev->ops->reach(dev, other) : 0;
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
