/* SPDX-License-Identifier: Apache-2.0
 *
 * bind.c - a thread next to a device: the CPUs and the memory of the NUMA node that it hangs from.
 */
#include "config.h" /* GNU extensions: cpu_set_t */
#include "topology/internal.h"

#include "base/bind.h"
#include "base/fail.h"

#include <dualpipe/topology.h>

#include <string.h>

int dp_topology_bind(const struct dp_topology *t, int32_t node, int *cpu_count)
{
    cpu_set_t cpus, allowed;

    if (!t || node < 0 || node >= t->node_count)
        return dp_fail(DP_EINVAL, "bind to node %d: expected one of a topology", node);
    const int32_t numa = dp_topology_above(t, node, DP_TOPO_NUMA);
    if (numa < 0)
        return dp_fail(DP_EINVAL, "bind to node %d, a %s: expected one that hangs from a NUMA node",
                       node, dp_topo_kind_name(t->nodes[node].kind));
    const struct dp_topo_node *at = &t->nodes[numa];
    if (at->os_index < 0 || at->os_index >= DP_BIND_NODES)
        return dp_fail(DP_EUNSUPPORTED, "the kernel's number of NUMA node %d is not known",
                       at->index);
    if (!dp_cpus_parse(dp_topology_text(t, at->cpus), &cpus))
        return dp_fail(DP_EINVAL, "the CPUs of NUMA node %d are '%s': expected as in 0-55,112-167",
                       at->os_index, dp_topology_text(t, at->cpus));
    const bool has_cpus = CPU_COUNT(&cpus) > 0;
    if (sched_getaffinity(0, sizeof(allowed), &allowed))
        return dp_fail(-errno, "the CPUs of this thread: %s", strerror(errno));
    CPU_AND(&cpus, &cpus, &allowed);
    if (has_cpus && !CPU_COUNT(&cpus))
        return dp_fail(DP_EUNSUPPORTED, "this thread may use no CPU of NUMA node %d", at->os_index);
    const int error = dp_bind(&cpus, at->os_index);
    if (error)
        return dp_fail(-error, "NUMA node %d: %s", at->os_index, strerror(error));
    if (cpu_count)
        *cpu_count = CPU_COUNT(has_cpus ? &cpus : &allowed);
    return 0;
}
