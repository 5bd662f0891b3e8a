/* SPDX-License-Identifier: Apache-2.0
 *
 * rates.c - from a cluster to the few numbers that models of collectives count with.
 */
#include "topology/build.h"

/* The NVSwitch of several hosts that the GPU is joined to; -1: none. */
static int32_t shared_switch(const struct dp_topology *t, int32_t gpu)
{
    for (int32_t k = t->first_around[gpu]; k < t->first_around[gpu + 1]; k++) {
        int32_t hub = dp_topology_across(t, t->around[k], gpu);
        if (t->nodes[hub].kind == DP_TOPO_NVSWITCH && t->nodes[hub].host < 0)
            return hub;
    }
    return -1;
}

/* A switch's links stand in the order of its GPUs, and so of its hosts. */
int32_t dp_topo_domain(const struct dp_topology *t, int32_t host)
{
    int32_t first = host;

    for (int32_t gpu = host; (gpu = dp_topology_next(t, DP_TOPO_GPU, host, gpu + 1)) >= 0;) {
        int32_t hub = shared_switch(t, gpu);
        int32_t other = hub < 0 ? host
                        : t->nodes[dp_topology_across(t, t->around[t->first_around[hub]], hub)].host;
        first = other < first ? other : first;
    }
    return first;
}

int32_t dp_topology_domain_count(const struct dp_topology *t)
{
    int32_t count = 0;

    for (int32_t host = -1; (host = dp_topology_next(t, DP_TOPO_HOST, -1, host + 1)) >= 0;)
        count += dp_topo_domain(t, host) == host;
    return count;
}

/* The GPU after this one among those of the host's node; -1: none. */
static int32_t next_gpu(const struct dp_topology *t, int32_t host, int32_t gpu)
{
    int32_t next = dp_topology_next(t, DP_TOPO_GPU, -1, gpu + 1);

    return next >= 0 && dp_topo_domain(t, t->nodes[next].host) == host ? next : -1;
}

/* One GPU to the next one. */
static int inner_rate(const struct dp_topology *t, int32_t host, double *rate)
{
    struct dp_topo_path path;
    int32_t first = dp_topology_next(t, DP_TOPO_GPU, host, 0);
    int32_t second = first < 0 ? -1 : next_gpu(t, host, first);

    *rate = 0;
    if (second < 0)
        return 0;
    int err = dp_topology_path(t, first, second, &path);
    if (!err)
        *rate = path.bytes_per_ns;
    return err;
}

/* All ports that are not known to be down, of a host. */
static double port_rate(const struct dp_topology *t, int32_t host)
{
    double sum = 0;
    int32_t first;

    for (int32_t nic = host; (nic = dp_topology_next(t, DP_TOPO_NIC, host, nic + 1)) >= 0;) {
        int32_t count = dp_topology_ports(t, nic, &first);
        for (int32_t i = first; i < first + count; i++)
            sum += t->ports[i].up ? t->ports[i].bytes_per_ns : 0;
    }
    return sum;
}

static double outer_rate(const struct dp_topology *t, int32_t first)
{
    double sum = 0;

    for (int32_t host = -1; (host = dp_topology_next(t, DP_TOPO_HOST, -1, host + 1)) >= 0;)
        sum += dp_topo_domain(t, host) == first ? port_rate(t, host) : 0;
    return sum;
}

int dp_topology_rates(const struct dp_topology *t, double *inner, double *outer)
{
    const int32_t host = dp_topology_next(t, DP_TOPO_HOST, -1, 0);
    double rate = 0;
    int err = host < 0 ? 0 : inner_rate(t, host, &rate);

    if (err)
        return err;
    *inner = rate;
    *outer = host < 0 ? 0 : outer_rate(t, host);
    return 0;
}
