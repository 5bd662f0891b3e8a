/* SPDX-License-Identifier: Apache-2.0
 *
 * offload_via.c - copies between host and device, both ways at once, directly and over another device's
 * link. With "auto" a topology decides (dp_copy_route_choose). Devices are GPUs; or those of the host,
 * whose links are as fast as the topology says, to see on any machine what a route would give.
 */
#include "bench/offload_via.h"

#include "command.h"
#include "commands.h"
#include "topo/topo.h"

#include <dualpipe/offload.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COPY_BYTES = 64 << 20, COPY_MS = 100, HOST_WORKERS = 2 };
enum way { DIRECT, OVER, WAYS };
static const int64_t deadline_ns = INT64_C(60) * 1000000000;

/* How copies are to go. */
struct route {
    char device[32], via[32];            /* via "": directly */
    double bytes_per_s, via_bytes_per_s; /* links of devices of the host */
};

struct copies {
    struct dp_device *dev, *via;
    struct dp_pinned *pool;
    struct dp_copy_engine *engines[WAYS]; /* the second one NULL: there is no other device */
    void *host[DP_COPY_DIRECTIONS], *device[DP_COPY_DIRECTIONS];
    enum way way; /* that times is found for */
    int times[WAYS];
};

/* ---- the route ------------------------------------------------------------------------------- */

static bool is_host(const char *device)
{
    return !strncmp(device, "host", 4);
}

/* That of the topology with the device's number, as NVML counts. */
static int find_gpu(const struct dp_topology *t, const struct bench_via *v, int32_t *gpu)
{
    char name[32];
    const char *number = strchr(v->device, ':');
    const long wanted = number && !is_host(v->device) ? strtol(number + 1, NULL, 10) : 0;

    snprintf(name, sizeof(name), "gpu%ld", wanted);
    return dp_topology_find(t, v->gpu ? v->gpu : name, gpu);
}

static void name_device(const struct dp_topology *t, int32_t gpu, const char *like, char *out,
                        size_t len)
{
    const struct dp_topo_node *node = &t->nodes[gpu];

    if (is_host(like))
        snprintf(out, len, "host:%d", HOST_WORKERS);
    else
        snprintf(out, len, "cuda:%d", node->os_index >= 0 ? node->os_index : node->index);
}

static int choose(const struct dp_topology *t, const struct bench_via *v, struct route *out)
{
    struct dp_copy_route chosen;
    char label[DP_TOPO_LABEL_LEN], other[DP_TOPO_LABEL_LEN];
    int32_t gpu;
    int err = find_gpu(t, v, &gpu);

    if (!err)
        err = dp_copy_route_choose(t, gpu, dp_topology_numa(t, gpu), &chosen);
    if (err)
        return command_failed(err);
    out->bytes_per_s = chosen.direct_bytes_per_ns * 1e9;
    out->via_bytes_per_s = chosen.bytes_per_ns * 1e9;
    if (is_host(v->device) && !(out->bytes_per_s > 0))
        return command_broke("%s: the topology does not say how fast its link to the host is; expected "
                             "rates, or --device cuda:N",
                             dp_topology_label(t, gpu, label));
    if (chosen.via < 0) {
        fprintf(stderr, "dualpipe: copies of %s go directly: no other link is a quarter wider\n",
                dp_topology_label(t, gpu, label));
        return EXIT_OK;
    }
    name_device(t, chosen.via, v->device, out->via, sizeof(out->via));
    fprintf(stderr, "dualpipe: copies of %s go over %s: %.1f GB/s instead of %.1f, says the topology\n",
            dp_topology_label(t, gpu, label), dp_topology_label(t, chosen.via, other),
            chosen.bytes_per_ns, chosen.direct_bytes_per_ns);
    return EXIT_OK;
}

static int read_topology(const struct bench_via *v, struct dp_topology **out)
{
    struct topo_args args = {0};

    if (v->topology && !access(v->topology, R_OK))
        args.inputs = (struct arg_list){1, {v->topology}};
    else
        args.synthetic = v->topology;
    return topo_load(&args, out);
}

static int find_route(const struct bench_via *v, struct route *out)
{
    struct dp_topology *t;

    *out = (struct route){0};
    snprintf(out->device, sizeof(out->device), "%s", v->device);
    if (strcmp(v->via, "auto")) {
        snprintf(out->via, sizeof(out->via), "%s", v->via);
        return EXIT_OK;
    }
    int status = read_topology(v, &t);
    if (status)
        return status;
    status = choose(t, v, out);
    dp_topology_free(t);
    return status;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int copy_both_ways(void *user, int times, int64_t *ns)
{
    const struct copies *c = user;
    struct dp_copy_engine *engine = c->engines[c->way];
    int64_t began = bench_now_ns();
    int err = 0;

    for (int i = 0; i < times && !err; i++) {
        for (int d = 0; d < DP_COPY_DIRECTIONS && !err; d++) {
            const bool up = d == DP_COPY_UP;
            const struct dp_copy_spec spec = {.direction = (enum dp_copy_direction)d,
                                              .dst = up ? c->device[d] : c->host[d],
                                              .src = up ? c->host[d] : c->device[d],
                                              .bytes = COPY_BYTES};
            err = dp_copy_begin(engine, &spec, NULL);
        }
        if (!err)
            err = dp_copy_engine_drain(engine, deadline_ns);
    }
    *ns = bench_now_ns() - began;
    return err;
}

static int sample(void *user, double *figures)
{
    struct copies *c = user;
    const int ways = c->engines[OVER] ? WAYS : OVER;
    int err = 0;

    for (int way = 0; way < ways && !err; way++) {
        int64_t ns = 1;
        c->way = (enum way)way;
        err = c->times[way] ? 0 : bench_find_times(copy_both_ways, c, COPY_MS, &c->times[way]);
        if (!err)
            err = copy_both_ways(c, c->times[way], &ns);
        figures[way] = (double)DP_COPY_DIRECTIONS * COPY_BYTES * c->times[way] / (double)ns;
    }
    if (err)
        return command_failed(err), err;
    if (ways == WAYS)
        figures[WAYS] = figures[OVER] / figures[DIRECT];
    return 0;
}

static int open_device(const char *name, double bytes_per_s, struct dp_device **out)
{
    const struct dp_host_link link = {bytes_per_s, bytes_per_s, 0, 0};

    return is_host(name) && bytes_per_s > 0 ? dp_device_host_open_link(HOST_WORKERS, &link, out)
                                            : dp_device_open(name, out);
}

/* The bytes are of no interest, but pages that nothing was written to are not like others. */
static int take_memory(struct copies *c)
{
    struct dp_device_stream *stream = NULL;
    int err = dp_device_stream_new(c->dev, DP_PRIORITY_NORMAL, &stream);

    for (int d = 0; d < DP_COPY_DIRECTIONS && !err; d++) {
        err = dp_pinned_take(c->pool, COPY_BYTES, &c->host[d]);
        if (!err)
            err = dp_device_alloc(c->dev, DP_MEMORY_DEVICE, COPY_BYTES, &c->device[d]);
        if (!err)
            memset(c->host[d], 1, COPY_BYTES);
        if (!err)
            err = dp_device_zero(stream, c->device[d], COPY_BYTES);
    }
    dp_device_stream_free(stream);
    return err;
}

static int open_copies(struct copies *c, const struct route *route)
{
    int err = open_device(route->device, route->bytes_per_s, &c->dev);

    if (!err && route->via[0])
        err = open_device(route->via, route->via_bytes_per_s, &c->via);
    if (!err)
        err = dp_pinned_new(c->dev, NULL, &c->pool);
    if (!err)
        err = take_memory(c);
    for (int way = 0; way < (c->via ? WAYS : OVER) && !err; way++)
        err = dp_copy_engine_new(&(struct dp_copy_engine_config){.device = c->dev,
                                                                 .via = way ? c->via : NULL},
                                 &c->engines[way]);
    return err ? command_failed(err) : EXIT_OK;
}

static void close_copies(struct copies *c)
{
    for (int way = 0; way < WAYS; way++)
        dp_copy_engine_free(c->engines[way]);
    for (int d = 0; d < DP_COPY_DIRECTIONS && c->dev; d++)
        dp_device_free(c->dev, DP_MEMORY_DEVICE, c->device[d]);
    dp_pinned_free(c->pool);
    dp_device_close(c->via);
    dp_device_close(c->dev);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int measure(const struct route *route, const struct bench_options *options)
{
    struct copies c = {0};
    static struct bench_case cases[1] = {
        {.sample = sample,
         .figures = {{.what = "copies, directly", .unit = "GB/s"},
                     {.what = "copies over the other device", .unit = "GB/s"},
                     {.what = "over it, by directly", .unit = "x"}}}};
    char title[128];
    int status = open_copies(&c, route);

    cases[0].user = &c;
    cases[0].figure_count = c.via ? WAYS + 1 : OVER;
    if (!status && bench_run(cases, 1, options))
        status = EXIT_FAILED;
    snprintf(title, sizeof(title), "offload, copies of %s, both ways at once%s%s", route->device,
             route->via[0] ? ", over " : "", route->via);
    if (!status)
        bench_report(title, cases, 1, options);
    close_copies(&c);
    return status;
}

/* Before CUDA starts: its devices are counted as NVML counts them. */
static void count_as_nvml(const struct bench_via *v)
{
    if (!is_host(v->device))
        setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
}

int bench_offload_via(const struct bench_via *v, const struct bench_options *options)
{
    struct route route;

    if (is_host(v->device) && strcmp(v->via, "auto"))
        return command_misused("--via %s: expected auto with --device host, whose links are "
                               "those of a topology",
                               v->via);
    count_as_nvml(v);
    int status = find_route(v, &route);
    return status ? status : measure(&route, options);
}
