/* SPDX-License-Identifier: Apache-2.0
 *
 * bind.c - a rank begins on the CPUs and the memory of the NUMA node next to its GPU. `dualpipe run`
 * binds a rank that it starts; below `dualpipe run -- torchrun ...` another program starts the ranks,
 * and each binds itself here, before its own code runs: by the placement, or by the order of the
 * host's GPUs.
 */
#include "config.h" /* GNU extensions: scandir's alphasort, sched_getaffinity */

#include "offload/preload/node.h"
#include "offload/preload/options.h"

#include "base/fail.h"
#include "base/launchers.h"

#include <dualpipe/assignment.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const char devices[] = "/sys/bus/pci/devices";

static unsigned read_id(const char *root, const char *device, const char *file)
{
    char path[512];
    unsigned id = 0;

    snprintf(path, sizeof(path), "%s%s/%s/%s", root, devices, device, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%x", &id) != 1)
        id = 0;
    fclose(f);
    return id;
}

/* As the readers of topologies have it: a VGA class alone may be a management console's. */
static bool is_gpu(const char *root, const char *device)
{
    const unsigned class_ = read_id(root, device, "class"), vendor = read_id(root, device, "vendor");

    return class_ >> 16 == 0x12 ||
           (class_ >> 16 == 0x03 && ((class_ >> 8 & 0xff) || vendor == 0x10de || vendor == 0x1002));
}

/* The node of a GPU, counted in the order of bus numbers, as CUDA counts equal ones. */
static int find_node(const char *root, int number)
{
    struct dirent **list;
    char path[512];
    int node = DPO_NO_NODE, found = 0;

    snprintf(path, sizeof(path), "%s%s", root, devices);
    const int count = scandir(path, &list, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (is_gpu(root, list[i]->d_name) && found++ == number)
            node = dpo_node_of_device(root, list[i]->d_name);
        free(list[i]);
    }
    if (count >= 0)
        free(list);
    return node;
}

static void bind_to_node(const char *root, int gpu, const cpu_set_t *allowed)
{
    const int node = gpu < 0 ? DPO_NO_NODE : find_node(root, gpu);
    cpu_set_t cpus;

    if (node == DPO_NO_NODE || !dp_node_cpus(root, node, &cpus)) {
        dp_log(DP_LOG_INFO, "preload: this rank is not bound: no NUMA node of GPU %d is known", gpu);
        return;
    }
    const bool has_cpus = CPU_COUNT(&cpus);
    CPU_AND(&cpus, &cpus, allowed);
    const int error = has_cpus && !CPU_COUNT(&cpus) ? EINVAL : dp_bind(&cpus, node);
    if (error)
        dp_log(DP_LOG_WARN, "preload: this rank is not bound to NUMA node %d of GPU %d: %s", node, gpu,
               strerror(error));
}

/* Whether a launcher, taskset or numactl, or the rank whose child this is, has chosen the CPUs. */
static bool is_bound(cpu_set_t *allowed)
{
    return sched_getaffinity(0, sizeof(*allowed), allowed) ||
           CPU_COUNT(allowed) < sysconf(_SC_NPROCESSORS_ONLN);
}

static int number_of(const char *variable)
{
    const char *text = variable ? dp_foreign_variable(variable) : NULL;

    return text && *text >= '0' && *text <= '9' ? atoi(text) : -1;
}

/* Most processes are no ranks, and read no option. */
__attribute__((constructor)) static void bind_rank(void)
{
    const char *asked = dp_foreign_variable("DUALPIPE_PRELOAD_BIND");
    const struct dp_launcher *launcher = asked ? dp_launcher_find(dp_foreign_variable) : NULL;
    const int local_rank = launcher ? number_of(launcher->local_rank) : -1;
    struct dpo_preload_options options;
    struct dp_assignment *assignment = NULL;
    cpu_set_t allowed;

    if (local_rank < 0 || getauxval(AT_SECURE) || is_bound(&allowed) ||
        dp_options_read(&dpo_preload_option_area, &options) || !options.bind ||
        dp_assignment_from_env(&assignment))
        return;
    const int worker = assignment ? dp_assignment_find(assignment, number_of(launcher->rank)) : -1;
    if (worker >= 0)
        dp_assignment_bind(assignment, worker);
    else if (!assignment)
        bind_to_node(options.root,
                     dp_launcher_gpu(local_rank, dp_foreign_variable("CUDA_VISIBLE_DEVICES")), &allowed);
    dp_assignment_free(assignment);
}
