/* SPDX-License-Identifier: Apache-2.0
 *
 * copies.c [DEVICE [BYTES]] - GB/s of dp_device_copy from pinned memory to a device (cuda), back, and both
 * ways at once: what a link to the GPU gives to offloading. For run.sh.
 */
#include <dualpipe/device.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 10 };
static const int64_t deadline_ns = INT64_C(60000000000);

struct way {
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    void *from, *to;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int open_way(struct dp_device *dev, size_t bytes, bool up, struct way *w)
{
    int err = dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &w->stream);

    if (!err)
        err = dp_device_event_new(dev, &w->event);
    if (!err)
        err = dp_device_alloc(dev, up ? DP_MEMORY_PINNED : DP_MEMORY_DEVICE, bytes, &w->from);
    return err ? err
               : dp_device_alloc(dev, up ? DP_MEMORY_DEVICE : DP_MEMORY_PINNED, bytes, &w->to);
}

static void close_way(struct dp_device *dev, bool up, struct way *w)
{
    dp_device_free(dev, up ? DP_MEMORY_DEVICE : DP_MEMORY_PINNED, w->to);
    dp_device_free(dev, up ? DP_MEMORY_PINNED : DP_MEMORY_DEVICE, w->from);
    dp_device_event_free(w->event);
    dp_device_stream_free(w->stream);
}

/* Ways first .. last at once; GB/s of all together, 0 after a failure. */
static double measure(struct way ways[2], int first, int last, size_t bytes)
{
    const double began = now_s();
    int err = 0;

    for (int k = 0; k < ROUNDS && !err; k++)
        for (int i = first; i <= last && !err; i++)
            err = dp_device_copy(ways[i].stream, ways[i].to, ways[i].from, bytes);
    for (int i = first; i <= last && !err; i++) {
        err = dp_device_event_record(ways[i].event, ways[i].stream);
        if (!err)
            err = dp_device_event_wait(ways[i].event, deadline_ns);
    }
    return err ? 0 : 1e-9 * ROUNDS * (last - first + 1) * (double)bytes / (now_s() - began);
}

int main(int argc, char **argv)
{
    const size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : (size_t)256 << 20;
    struct way ways[2] = {{0}};
    struct dp_device *dev;

    if (dp_device_open(argc > 1 ? argv[1] : "cuda", &dev))
        return 77;
    int err = open_way(dev, bytes, true, &ways[0]);
    if (!err)
        err = open_way(dev, bytes, false, &ways[1]);
    if (!err) {
        measure(ways, 0, 1, bytes); /* all pages are there */
        const double up = measure(ways, 0, 0, bytes), down = measure(ways, 1, 1, bytes);
        const double both = measure(ways, 0, 1, bytes);
        err = up > 0 && down > 0 && both > 0 ? 0 : DP_EIO;
        printf("GB/s: %.1f %.1f %.1f\n", up, down, both);
    }
    for (int i = 0; i < 2; i++)
        close_way(dev, i == 0, &ways[i]);
    dp_device_close(dev);
    return err ? 1 : 0;
}
