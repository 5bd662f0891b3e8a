/* SPDX-License-Identifier: Apache-2.0
 *
 * topology.c - from a cluster to the few numbers that the model of the tuner counts with. The
 * first host stands for all of them.
 */
#include "tune/tune.h"

#include "command.h"
#include "topo/topo.h"

#include <unistd.h>

/* 0, else an EXIT_ value. */
static int load(const char *text, struct dp_topology **out)
{
    struct topo_args args = {.synthetic = text};

    if (!access(text, R_OK))
        args = (struct topo_args){.inputs = {1, {text}}};
    return topo_load(&args, out);
}

/* One GPU to the next one of its host. */
static int inner_rate(const struct dp_topology *t, int32_t host, double *gbs)
{
    struct dp_topo_path path;
    int32_t first = dp_topology_next(t, DP_TOPO_GPU, host, 0);
    int32_t second = first < 0 ? -1 : dp_topology_next(t, DP_TOPO_GPU, host, first + 1);

    if (second < 0)
        return 0;
    int err = dp_topology_path(t, first, second, &path);
    if (!err)
        *gbs = path.bytes_per_ns;
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

static int64_t count_gpus(const struct dp_topology *t)
{
    int64_t count = 0;

    for (int32_t gpu = -1; (gpu = dp_topology_next(t, DP_TOPO_GPU, -1, gpu + 1)) >= 0;)
        count++;
    return count;
}

int tune_read_topology(const char *text, struct dp_tuning_links *links, int64_t *ranks,
                       int64_t *nodes)
{
    struct dp_topology *t;
    int status = load(text, &t);

    if (status)
        return status;
    int32_t host = dp_topology_next(t, DP_TOPO_HOST, -1, 0);
    *links = (struct dp_tuning_links){.inter_gbs = outer_rate(t, host)};
    *ranks = count_gpus(t);
    *nodes = t->host_count;
    int err = inner_rate(t, host, &links->intra_gbs);
    dp_topology_free(t);
    return err ? command_failed(err) : EXIT_OK;
}
