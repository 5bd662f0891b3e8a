/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.c - what copies and updates on the host runs next to the memory that it works on.
 */
#include "config.h" /* GNU extensions: CPU sets */

#include "offload/state.h"

#include "base/bind.h"
#include "base/fail.h"
#include <dualpipe/memory.h>

#include <sched.h>
#include <stdatomic.h>

/* Where the system has put the pinned memory of a device that has no node of its own. */
static int node_of_values(const struct dp_offload *o)
{
    for (int32_t i = 0; i < o->streamed; i++)
        if (o->shards[i].host_value_bytes)
            return dp_memory_numa_node(o->shards[i].values, o->shards[i].host_value_bytes);
    return -1;
}

void dpo_threads_bind(struct dp_offload *o)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct dp_pinned_report report;

    dp_pinned_report(o->pinned, &report);
    o->node = report.numa_node >= 0 ? report.numa_node : node_of_values(o);
    if (o->node < 0 || !dp_device_bind(o->dev, o->node))
        return;
    o->node = -1;
    if (!atomic_flag_test_and_set(&said))
        dp_log(DP_LOG_WARN, "offload: copies and updates run on any CPU: %s", dp_last_error());
}

/* A thread of the driver's is bound once for each node. What the system refuses it can do without. */
void dpo_thread_bind(const struct dp_offload *o)
{
    static _Thread_local int bound = -1;
    cpu_set_t cpus, allowed;

    if (o->host || o->node < 0 || o->node == bound)
        return;
    bound = o->node;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) || !dp_node_cpus("", o->node, &cpus))
        return;
    CPU_AND(&cpus, &cpus, &allowed);
    if (CPU_COUNT(&cpus))
        sched_setaffinity(0, sizeof(cpus), &cpus);
}
