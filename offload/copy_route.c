/* SPDX-License-Identifier: Apache-2.0
 *
 * copy_route.c - whether another GPU's link to the host is the better way for copies; pure.
 *
 *      gpu0 ===NVLink=== gpu1
 *       | x4              | x16         copies of gpu0 over gpu1, which keeps half of its link
 *      numa0 ----------- numa0
 */
#include <dualpipe/offload.h>

#include "base/fail.h"

static const double worth = 1.25, shared = 0.5; /* two hops cost more than one; of the other's link */

static bool share_a_link(const struct dp_topo_path *a, const struct dp_topo_path *b)
{
    for (int i = 0; i < a->hops; i++)
        for (int k = 0; k < b->hops; k++)
            if (a->links[i] == b->links[k])
                return true;
    return false;
}

/* Over that GPU; 0: there is no such way, or it is not known how wide it is. */
static int rate_over(const struct dp_topology *t, int32_t gpu, int32_t via, int32_t numa, double *out)
{
    struct dp_topo_path between, down;
    int err = dp_topology_path(t, gpu, via, &between);

    *out = 0;
    if (!err)
        err = dp_topology_path(t, via, numa, &down);
    if (err || between.class_ != DP_TOPO_NV || down.class_ == DP_TOPO_NONE ||
        share_a_link(&between, &down))
        return err;
    *out = shared * down.bytes_per_ns;
    if (between.bytes_per_ns < *out)
        *out = between.bytes_per_ns;
    return 0;
}

static bool is_kind(const struct dp_topology *t, int32_t node, enum dp_topo_kind kind)
{
    return node >= 0 && node < t->node_count && t->nodes[node].kind == kind;
}

int dp_copy_route_choose(const struct dp_topology *t, int32_t gpu, int32_t numa,
                         struct dp_copy_route *out)
{
    struct dp_copy_route best = {.via = -1};
    struct dp_topo_path direct;

    if (!is_kind(t, gpu, DP_TOPO_GPU) || !is_kind(t, numa, DP_TOPO_NUMA) ||
        t->nodes[gpu].host != t->nodes[numa].host)
        return dp_fail(DP_EINVAL,
                       "copies between nodes %d and %d: expected a GPU and a NUMA node of one host", gpu,
                       numa);
    const int32_t host = t->nodes[gpu].host;
    int err = dp_topology_path(t, gpu, numa, &direct);
    if (err)
        return err;
    best.bytes_per_ns = best.direct_bytes_per_ns = direct.bytes_per_ns;
    for (int32_t g = host; (g = dp_topology_next(t, DP_TOPO_GPU, host, g + 1)) >= 0 && !err;) {
        double rate = 0;
        if (g != gpu && direct.bytes_per_ns > 0)
            err = rate_over(t, gpu, g, numa, &rate);
        if (rate > worth * direct.bytes_per_ns && rate > best.bytes_per_ns)
            best = (struct dp_copy_route){g, direct.bytes_per_ns, rate};
    }
    if (!err)
        *out = best;
    return err;
}
