/* SPDX-License-Identifier: Apache-2.0
 *
 * usage.c - the part that all devices have in common: how much device memory has been given, and
 * how much may be.
 */
#include "device/device_ops.h"

#include "base/fail.h"
#include "base/sized.h"

#include <stdlib.h>

void dp_device_init(struct dp_device *dev, const struct dp_device_ops *ops, DLDevice dl,
                    bool host_accessible)
{
    *dev = (struct dp_device){.ops = ops,
                              .dl = dl,
                              .host_accessible = host_accessible,
                              .numa_node = -1,
                              .usage.limit_bytes = SIZE_MAX};
    pthread_mutex_init(&dev->lock, NULL);
}

void dp_device_fini(struct dp_device *dev)
{
    struct dp_device_buffer *next;

    for (struct dp_device_buffer *b = dev->buffers; b; b = next) {
        next = b->next;
        free(b);
    }
    pthread_mutex_destroy(&dev->lock);
}

/* Room for `bytes` more, before they are asked for. */
static int reserve(struct dp_device *dev, size_t bytes)
{
    struct dp_device_usage *usage = &dev->usage;
    int err = 0;

    pthread_mutex_lock(&dev->lock);
    if (bytes > usage->limit_bytes || usage->bytes > usage->limit_bytes - bytes) {
        err = dp_fail(DP_ENOMEM,
                      "%s: no device memory for a buffer of %zu bytes: %zu of %zu are given",
                      dev->ops->name, bytes, usage->bytes, usage->limit_bytes);
    } else {
        usage->bytes += bytes;
    }
    pthread_mutex_unlock(&dev->lock);
    return err;
}

static void release(struct dp_device *dev, size_t bytes)
{
    pthread_mutex_lock(&dev->lock);
    dev->usage.bytes -= bytes;
    pthread_mutex_unlock(&dev->lock);
}

static void add(struct dp_device *dev, struct dp_device_buffer *buffer)
{
    struct dp_device_usage *usage = &dev->usage;

    pthread_mutex_lock(&dev->lock);
    usage->allocations++;
    if (usage->bytes > usage->peak_bytes)
        usage->peak_bytes = usage->bytes;
    buffer->next = dev->buffers;
    dev->buffers = buffer;
    pthread_mutex_unlock(&dev->lock);
}

static struct dp_device_buffer *take(struct dp_device *dev, const void *ptr)
{
    struct dp_device_buffer **at, *buffer;

    pthread_mutex_lock(&dev->lock);
    for (at = &dev->buffers; *at && (*at)->ptr != ptr; at = &(*at)->next)
        ;
    buffer = *at;
    if (buffer)
        *at = buffer->next;
    pthread_mutex_unlock(&dev->lock);
    return buffer;
}

void dp_device_set_source(struct dp_device *dev, struct dp_device_source source)
{
    pthread_mutex_lock(&dev->lock);
    dev->source = source;
    pthread_mutex_unlock(&dev->lock);
}

void dp_device_set_allocator(struct dp_device *dev, const struct dp_device_allocator *allocator)
{
    pthread_mutex_lock(&dev->lock);
    dev->allocator = allocator ? *allocator : (struct dp_device_allocator){0};
    pthread_mutex_unlock(&dev->lock);
}

static bool alloc_elsewhere(struct dp_device *dev, enum dp_memory where, size_t bytes,
                            struct dp_device_buffer *out)
{
    const size_t least = (size_t)1 << 20;
    void *ptr = NULL;

    pthread_mutex_lock(&dev->lock);
    const struct dp_device_allocator own = dev->allocator;
    const struct dp_device_source source = dev->source;
    pthread_mutex_unlock(&dev->lock);
    const bool is_lent = source.alloc && where == DP_MEMORY_MESSAGES && bytes >= least;
    if ((!own.alloc && !is_lent) || dp_device_enter(dev))
        return false;
    if (own.alloc && !own.alloc(own.user, bytes, &ptr))
        *out = (struct dp_device_buffer){.ptr = ptr, .bytes = bytes, .allocator = own};
    else if (!own.alloc && !source.alloc(&ptr, bytes))
        *out = (struct dp_device_buffer){.ptr = ptr, .bytes = bytes, .free = source.free};
    dp_device_leave(dev);
    return out->ptr;
}

static bool is_on_device(enum dp_memory where)
{
    return where == DP_MEMORY_DEVICE || where == DP_MEMORY_MESSAGES;
}

static int alloc_device(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out)
{
    struct dp_device_buffer *buffer = calloc(1, sizeof(*buffer));
    void *ptr = NULL;

    if (!buffer)
        return dp_fail(DP_ENOMEM, "%s: no memory for a buffer", dev->ops->name);
    int err = reserve(dev, bytes);
    if (!err && !alloc_elsewhere(dev, where, bytes, buffer)) {
        err = dev->ops->alloc(dev, DP_MEMORY_DEVICE, bytes, &ptr);
        *buffer = (struct dp_device_buffer){.ptr = ptr, .bytes = bytes};
        if (err)
            release(dev, bytes);
    }
    if (err) {
        free(buffer);
        return err;
    }
    *out = (void *)(uintptr_t)buffer->ptr;
    add(dev, buffer);
    return 0;
}

int dp_device_alloc(struct dp_device *dev, enum dp_memory where, size_t bytes, void **out)
{
    if (is_on_device(where))
        return alloc_device(dev, where, bytes, out);
    return dev->ops->alloc(dev, where, bytes, out);
}

void dp_device_free(struct dp_device *dev, enum dp_memory where, void *ptr)
{
    struct dp_device_buffer *buffer = ptr && is_on_device(where) ? take(dev, ptr) : NULL;

    if (!buffer || (!buffer->free && !buffer->allocator.free)) {
        dev->ops->free(dev, is_on_device(where) ? DP_MEMORY_DEVICE : where, ptr);
    } else if (!dp_device_enter(dev)) {
        if (buffer->free)
            buffer->free(ptr);
        else
            buffer->allocator.free(buffer->allocator.user, ptr);
        dp_device_leave(dev);
    }
    if (buffer)
        release(dev, buffer->bytes);
    free(buffer);
}

bool dp_device_owns(struct dp_device *dev, const void *ptr)
{
    const char *p = ptr;
    bool owns = false;

    pthread_mutex_lock(&dev->lock);
    for (struct dp_device_buffer *b = dev->buffers; b && !owns; b = b->next)
        owns = p >= b->ptr && p < b->ptr + b->bytes;
    pthread_mutex_unlock(&dev->lock);
    return owns;
}

static void read_usage(struct dp_device *dev, struct dp_device_usage *out)
{
    pthread_mutex_lock(&dev->lock);
    *out = dev->usage;
    pthread_mutex_unlock(&dev->lock);
}

void dp_device_usage_sized(struct dp_device *dev, struct dp_device_usage *out, size_t size)
{
    struct dp_device_usage own;

    read_usage(dev, &own);
    dp_sized_give(out, size, &own, sizeof(own));
}

void dp_device_limit(struct dp_device *dev, size_t bytes)
{
    pthread_mutex_lock(&dev->lock);
    dev->usage.limit_bytes = bytes;
    dev->usage.peak_bytes = dev->usage.bytes;
    pthread_mutex_unlock(&dev->lock);
}
