/* SPDX-License-Identifier: Apache-2.0
 *
 * bind.c - a rank next to its GPU. Ranks of a launcher that is started here are bound as they begin, by
 * the preload library (offload/preload/bind.c).
 */
#include "config.h"

#include "run/run.h"

#include "command.h"

#include <dualpipe/assignment.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/topology.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char part[] = "CPUs";

/* Whether a launcher, taskset or numactl has given this process fewer CPUs than the machine has. */
static bool is_bound(int *count)
{
    cpu_set_t allowed;

    *count = 0;
    if (sched_getaffinity(0, sizeof(allowed), &allowed))
        return true;
    *count = CPU_COUNT(&allowed);
    return *count < sysconf(_SC_NPROCESSORS_ONLN);
}

static int32_t gpu_node(const struct dp_topology *t, int number)
{
    int32_t gpu = dp_topology_next(t, DP_TOPO_GPU, -1, 0);

    for (int i = 0; i < number && gpu >= 0; i++)
        gpu = dp_topology_next(t, DP_TOPO_GPU, -1, gpu + 1);
    return gpu;
}

static void bind_to_gpu(const struct dp_topology *t, int number, struct run_settings *s)
{
    const int32_t gpu = gpu_node(t, number);
    char label[DP_TOPO_LABEL_LEN];
    int cpus;

    if (gpu < 0) {
        run_say(s, part, "not bound: there is no GPU %d here", number);
        return;
    }
    if (dp_topology_bind(t, gpu, &cpus))
        run_say(s, part, "not bound: %s", dp_last_error());
    else
        run_say(s, part, "%d, and the memory, of NUMA node %d, next to %s", cpus,
                t->nodes[dp_topology_above(t, gpu, DP_TOPO_NUMA)].os_index,
                dp_topology_label(t, gpu, label));
}

/* Where the placement puts the worker that this process is. */
static void bind_by_placement(const char *path, int rank, struct run_settings *s)
{
    struct dp_assignment *assignment;

    if (dp_assignment_load(path, &assignment)) {
        run_say(s, part, "not bound: %s", dp_last_error());
        return;
    }
    const int32_t worker = dp_assignment_find(assignment, rank);
    if (worker < 0)
        run_say(s, part, "not bound: the placement has no worker for rank %d", rank);
    else if (dp_assignment_bind(assignment, worker))
        run_say(s, part, "not bound: %s", dp_last_error());
    else
        run_say(s, part, "those of worker %d of the placement, where it is on this host", worker);
    dp_assignment_free(assignment);
}

static void bind_by_launcher(const struct dp_process *process, struct run_settings *s)
{
    struct dp_topology *t;

    if (process->gpu < 0)
        run_say(s, part, "not bound: CUDA_VISIBLE_DEVICES=%s names no GPU %d by its number",
                getenv("CUDA_VISIBLE_DEVICES"), process->local_rank);
    else if (dp_topology_read_sysfs("/", &t))
        run_say(s, part, "not bound: %s", dp_last_error());
    else {
        bind_to_gpu(t, process->gpu, s);
        dp_topology_free(t);
    }
}

void run_bind(const struct run_values *v, const struct dp_process *process, struct run_settings *s)
{
    int count;

    command_mute(true);
    if (v->no_bind)
        run_say(s, part, "not bound: --no-bind");
    else if (process->local_rank < 0)
        run_say(s, part, "not bound: no launcher tells which of the host's ranks this is%s",
                s->preload ? "; those of one below are bound as they begin" : "");
    else if (is_bound(&count))
        run_say(s, part, "%d, as they were given before", count);
    else if (v->placement)
        bind_by_placement(v->placement, process->rank, s);
    else
        bind_by_launcher(process, s);
    command_mute(false);
}
