/* SPDX-License-Identifier: Apache-2.0
 *
 * rates.c - from a cluster to the few numbers that models of collectives count with.
 */
#include <dualpipe/topology.h>

/* One GPU to the next one of its host. */
static int inner_rate(const struct dp_topology *t, int32_t host, double *rate)
{
    struct dp_topo_path path;
    int32_t first = dp_topology_next(t, DP_TOPO_GPU, host, 0);
    int32_t second = first < 0 ? -1 : dp_topology_next(t, DP_TOPO_GPU, host, first + 1);

    *rate = 0;
    if (second < 0)
        return 0;
    int err = dp_topology_path(t, first, second, &path);
    if (!err)
        *rate = path.bytes_per_ns;
    return err;
}

/* All ports of a host that are not known to be down. */
static double outer_rate(const struct dp_topology *t, int32_t host)
{
    double sum = 0;
    int32_t first;

    for (int32_t nic = -1; (nic = dp_topology_next(t, DP_TOPO_NIC, host, nic + 1)) >= 0;) {
        int32_t count = dp_topology_ports(t, nic, &first);
        for (int32_t i = first; i < first + count; i++)
            sum += t->ports[i].up ? t->ports[i].bytes_per_ns : 0;
    }
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
