/* SPDX-License-Identifier: Apache-2.0 */
#include "train/offload_cost.h"

#include "clock.h"
#include "train/plan_measure.h"

#include <dualpipe/device.h>

#include <stdlib.h>
#include <string.h>

enum { COPY_BYTES = 4 << 20, COPIES = 3 };

/* ---- copies ---------------------------------------------------------------------------------- */

struct link {
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *done;
    void *host, *device;
};

static int copy(struct link *l, bool up)
{
    int err = dp_device_copy(l->stream, up ? l->device : l->host, up ? l->host : l->device,
                             COPY_BYTES);

    if (!err)
        err = dp_device_event_record(l->done, l->stream);
    return err ? err : dp_device_event_wait(l->done, device_timeout_ns);
}

/* Of the fastest copy. */
static int measure_copies(struct link *l, bool up, double *bytes_per_s)
{
    int64_t least = INT64_MAX;
    int err = 0;

    for (int i = 0; i < COPIES && !err; i++) {
        int64_t begun = now_ns();
        err = copy(l, up);
        int64_t took = now_ns() - begun;
        least = took < least ? took : least;
    }
    *bytes_per_s = COPY_BYTES * 1e9 / (double)(least > 0 ? least : 1);
    return err;
}

static int measure_link(struct dp_device *dev, struct dp_offload_cost *cost)
{
    struct link l = {.dev = dev};
    int err = dp_device_alloc(dev, DP_MEMORY_PINNED, COPY_BYTES, &l.host);

    if (!err)
        err = dp_device_alloc(dev, DP_MEMORY_DEVICE, COPY_BYTES, &l.device);
    if (!err) {
        memset(l.host, 0, COPY_BYTES);
        memset(l.device, 0, COPY_BYTES);
        err = dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &l.stream);
    }
    if (!err)
        err = dp_device_event_new(dev, &l.done);
    if (!err)
        err = measure_copies(&l, true, &cost->up_bytes_per_s);
    if (!err)
        err = measure_copies(&l, false, &cost->down_bytes_per_s);
    dp_device_stream_free(l.stream);
    dp_device_event_free(l.done);
    dp_device_free(dev, DP_MEMORY_DEVICE, l.device);
    dp_device_free(dev, DP_MEMORY_PINNED, l.host);
    return err;
}

/* ---- compute --------------------------------------------------------------------------------- */

/* times: embedding, blocks, head. */
static void add_layer(struct offload_cost *out, int layers, int l, const struct layer_times *t,
                      int microbatches)
{
    out->ns[l] += (int64_t)(t->f_ns * microbatches);
    out->ns[layers + l] += (int64_t)((t->i_ns + t->w_ns) * microbatches);
}

int offload_cost_measure(const struct gpt_config *config, int microbatches, struct dp_device *dev,
                         struct offload_cost *out)
{
    const int layers = config->layers;
    struct layer_times *times = calloc((size_t)layers + 2, sizeof(*times));

    *out = (struct offload_cost){.ns = calloc(2 * (size_t)layers, sizeof(*out->ns))};
    int err = times && out->ns ? plan_measure(config, times) : DP_ENOMEM;
    for (int i = 0; i < layers + 2 && !err; i++) {
        int block = i ? i - 1 : 0;
        add_layer(out, layers, block < layers ? block : layers - 1, &times[i], microbatches);
    }
    out->cost.forward_ns = out->ns;
    out->cost.backward_ns = out->ns ? out->ns + layers : NULL;
    if (!err)
        err = measure_link(dev, &out->cost);
    free(times);
    return err;
}

void offload_cost_free(struct offload_cost *cost)
{
    free(cost->ns);
}
