/* SPDX-License-Identifier: Apache-2.0
 *
 * test_topology_sysfs.c - machines as Linux describes them: a server, a virtual machine, a
 * container, and this one.
 */
#include "config.h" /* GNU extensions: cpu_set_t */

#include "cmocka_all.h"
#include "topology_case.h"
#include "unit/microbatch/tree.h"

#include <dualpipe/topology.h>

#include <pthread.h>
#include <sched.h>

static const struct dp_topo_link *uplink(const struct dp_topology *t, const char *name)
{
    int32_t n = topology_node(t, name);

    for (int32_t i = 0; i < t->link_count; i++)
        if (t->links[i].b == n && t->links[i].kind == DP_TOPO_PCI)
            return &t->links[i];
    fail_msg("%s has no link", name);
    return NULL;
}

static const char *text(const struct dp_topology *t, uint32_t at)
{
    return dp_topology_text(t, at);
}

CASE(a_server_is_read_whole)
{
    OWNED(dp_topology) *t = topology_unpacked("server");
    const struct dp_topo_node *host = &t->nodes[0], *numa = &t->nodes[topology_node(t, "numa1")];

    assert_string_equal(text(t, host->name), "server7");
    assert_string_equal(text(t, host->model), "Intel(R) Xeon(R) Platinum 8480+");
    assert_string_equal(text(t, host->vendor), "GenuineIntel");
    assert_string_equal(text(t, host->arch), "x86_64");
    assert_int_equal(host->family, 6);
    assert_int_equal(host->cpu_model, 143);
    assert_string_equal(text(t, numa->cpus), "4-7,12-15");
    assert_int_equal(numa->package, 1);
    assert_int_equal(numa->memory_bytes, UINT64_C(264206868) << 10);
    assert_int_equal(numa->cache_bytes, 107520 << 10);
    assert_string_equal(text(t, t->nodes[topology_node(t, "numa2")].cpus), "");
}

CASE(ports_of_a_switch_become_one_node)
{
    OWNED(dp_topology) *t = topology_unpacked("server");

    assert_int_equal(dp_topology_next(t, DP_TOPO_SWITCH, -1, 0), topology_node(t, "0000:16:00.0"));
    assert_int_equal(dp_topology_next(t, DP_TOPO_SWITCH, -1, topology_node(t, "16:00.0") + 1), -1);
    assert_int_equal(t->nodes[topology_node(t, "18:00.0")].parent, topology_node(t, "switch0"));
    assert_int_equal(topology_way(t, "gpu0", "mlx5_0").class_, DP_TOPO_PIX);
    assert_int_equal(topology_way(t, "gpu0", "gpu1").class_, DP_TOPO_SYS);
    assert_int_equal(topology_way(t, "gpu1", "ens2np0").class_, DP_TOPO_NODE);
    assert_int_equal(uplink(t, "gpu0")->gen, 5);
    assert_int_equal(uplink(t, "gpu0")->width, 16);
}

CASE(what_is_no_gpu_and_no_nic_is_left_out)
{
    OWNED(dp_topology) *t = topology_unpacked("server");

    assert_int_equal(topology_count(t, DP_TOPO_GPU), 2);
    assert_int_equal(topology_count(t, DP_TOPO_NIC), 3);
}

CASE(the_driver_names_its_gpus)
{
    OWNED(dp_topology) *t = topology_unpacked("server");
    const struct dp_topo_node *gpu = &t->nodes[topology_node(t, "gpu0")];

    assert_string_equal(text(t, gpu->model), "NVIDIA H100 80GB HBM3");
    assert_int_equal(topology_node(t, "GPU-11111111-2222-3333-4444-555555555555"), topology_node(t, "gpu0"));
    assert_int_equal(gpu->pci.subsystem_device_id, 0x16c1);
}

CASE(a_resting_link_of_a_gpu_counts_as_running)
{
    OWNED(dp_topology) *t = topology_unpacked("server");

    assert_int_equal(uplink(t, "gpu1")->gen, 5);
    assert_false(uplink(t, "gpu1")->flags & DP_TOPO_DEGRADED);
    assert_true(topology_notes(t, "NVLink is not known, the 2 GPUs"));
    assert_true(topology_notes(t, "0000:96:00.0: the link of the GPU rests at PCIe 1"));
}

CASE(a_narrow_link_of_a_nic_is_degraded)
{
    OWNED(dp_topology) *t = topology_unpacked("server");
    const struct dp_topo_link *l = uplink(t, "ens2np0");

    assert_true(l->flags & DP_TOPO_DEGRADED);
    assert_int_equal(l->gen_max, 4); /* the card's, although the slot could do 5 */
    assert_int_equal(l->width, 8);
    assert_int_equal(l->width_max, 16);
    assert_true(fabs(l->bytes_per_ns - 15.75) < 0.01);
}

CASE(ports_have_rates_states_and_gids)
{
    OWNED(dp_topology) *t = topology_unpacked("server");
    int32_t first;

    assert_int_equal(dp_topology_ports(t, topology_node(t, "mlx5_0"), &first), 1);
    const struct dp_topo_port *p = &t->ports[first];
    assert_true(p->up && p->fabric == DP_TOPO_INFINIBAND && p->bytes_per_ns == 50);
    assert_string_equal(text(t, p->net), "ibs1f0");
    assert_int_equal(p->guid, UINT64_C(0x0c42a10300123450));
    assert_int_equal(p->gid_count, 1); /* the other is a hole */
    assert_int_equal(t->gids[p->first_gid].type, DP_TOPO_GID_IB);

    assert_int_equal(dp_topology_ports(t, topology_node(t, "mlx5_1"), &first), 1);
    p = &t->ports[first];
    assert_true(!p->up && p->fabric == DP_TOPO_ETHERNET && p->mtu_bytes == 9000);
    assert_string_equal(text(t, p->net), "ens1f1np1");
    assert_int_equal(p->gid_count, 2);
    assert_int_equal(t->gids[p->first_gid].type, DP_TOPO_GID_ROCE_V1);
    assert_int_equal(t->gids[p->first_gid + 1].type, DP_TOPO_GID_ROCE_V2);
    assert_int_equal(t->gids[p->first_gid + 1].index, 3);
    assert_int_equal(t->gids[p->first_gid + 1].raw[15], 7);
}

CASE(a_virtual_machine_has_notes_on_what_is_unknown)
{
    OWNED(dp_topology) *t = topology_unpacked("vm");
    int32_t first;

    assert_string_equal(text(t, t->nodes[0].arch), "aarch64");
    assert_string_equal(text(t, t->nodes[topology_node(t, "numa0")].cpus), "0-7");
    assert_int_equal(t->nodes[topology_node(t, "numa0")].memory_bytes, UINT64_C(32778032) << 10);
    assert_int_equal(topology_way(t, "gpu0", "gpu1").class_, DP_TOPO_NODE); /* of two domains */
    assert_true(uplink(t, "gpu0")->flags & DP_TOPO_RATE_UNKNOWN);
    assert_int_equal(dp_topology_ports(t, topology_node(t, "eth0"), &first), 1);
    assert_true(t->ports[first].up && t->ports[first].bytes_per_ns == 0);
    assert_true(topology_notes(t, "taken to be one NUMA node"));
    assert_true(topology_notes(t, "do not say how fast they are"));
}

CASE(memory_without_cpus_is_memory)
{
    OWNED(dp_topology) *t = topology_unpacked("grace");
    const struct dp_topo_node *gpu = &t->nodes[topology_node(t, "gpu0")];
    const struct dp_topo_node *far = &t->nodes[topology_node(t, "numa1")];

    assert_int_equal(topology_count(t, DP_TOPO_NUMA), 2);
    assert_int_equal(gpu->memory_node, 1);
    assert_int_equal(gpu->memory_bytes, 99614720ull << 10);
    assert_int_equal(far->os_index, 9);
    assert_string_equal(text(t, far->cpus), "");
    assert_true(topology_way(t, "gpu0", "numa1").bytes_per_ns == 0);
    assert_int_equal(topology_count_links(t, DP_TOPO_CPU), 1);
    assert_true(topology_notes(t, "2 NUMA nodes have neither CPUs nor memory"));
    topology_survives_json(t);
}

CASE(a_container_without_devices_is_a_host)
{
    OWNED(dp_topology) *t = topology_unpacked("container");

    assert_int_equal(t->node_count, 2);
    assert_string_equal(text(t, t->nodes[0].name), "node");
    assert_true(topology_notes(t, "no PCI devices are seen"));
    assert_true(topology_notes(t, "/proc/cpuinfo cannot be read"));
}

static int32_t rail_of(const struct dp_topology *t, const char *nic)
{
    int32_t first;

    assert_int_equal(dp_topology_ports(t, topology_node(t, nic), &first), 1);
    return t->ports[first].rail;
}

static const char *subnet_of(const struct dp_topology *t, const char *nic)
{
    int32_t first;

    assert_int_equal(dp_topology_ports(t, topology_node(t, nic), &first), 1);
    return text(t, t->ports[first].subnet);
}

CASE(ports_have_subnets)
{
    OWNED(dp_topology) *t = topology_unpacked("rails-a");

    assert_string_equal(subnet_of(t, "mlx5_0"), "10.1.0.0/16");
    assert_string_equal(subnet_of(t, "mlx5_2"), "fe80:0000:0000:0000 sm 1");
    assert_string_equal(subnet_of(t, "mlx5_4"), "172.16.5.0/24");
    assert_string_equal(subnet_of(t, "eth9"), "192.168.7.0/24");
    assert_true(topology_notes(t, "172.16.5.9 of mlx5_4: its network is taken to be as long as three bytes"));
    assert_false(topology_notes(t, "10.1.0.5"));
    topology_survives_json(t);
}

CASE(hosts_that_are_merged_find_their_rails)
{
    struct dp_topology *a = topology_unpacked("rails-a"), *b = topology_unpacked("rails-b"), *t = NULL;
    const struct dp_topology *parts[] = {a, b};

    assert_int_equal(dp_topology_merge(parts, 2, &t), 0);
    assert_int_equal(rail_of(t, "a/mlx5_0"), rail_of(t, "b/mlx5_1"));
    assert_int_equal(rail_of(t, "a/mlx5_1"), rail_of(t, "b/mlx5_0"));
    assert_int_not_equal(rail_of(t, "a/mlx5_0"), rail_of(t, "a/mlx5_1"));
    assert_int_equal(rail_of(t, "a/mlx5_2"), rail_of(t, "b/mlx5_2"));
    assert_int_equal(rail_of(t, "a/mlx5_3"), rail_of(t, "b/mlx5_3"));
    assert_int_not_equal(rail_of(t, "a/mlx5_2"), rail_of(t, "a/mlx5_3"));
    assert_int_equal(rail_of(t, "a/mlx5_4"), rail_of(t, "b/mlx5_4"));
    assert_int_equal(rail_of(t, "a/eth9"), rail_of(t, "b/eth9")); /* the sixth of each */
    assert_int_equal(topology_way(t, "a/mlx5_0", "b/mlx5_1").class_, DP_TOPO_RAILED);
    assert_int_equal(topology_way(t, "a/mlx5_0", "b/mlx5_0").class_, DP_TOPO_SPINED);
    assert_int_equal(topology_way(t, "a/mlx5_2", "b/mlx5_3").class_, DP_TOPO_SPINED);
    assert_int_equal(topology_way(t, "a/mlx5_1", "b/mlx5_2").class_, DP_TOPO_NONE); /* two fabrics */
    dp_topology_free(a);
    dp_topology_free(b);
    dp_topology_free(t);
}

CASE(what_is_no_tree_is_refused)
{
    struct dp_topology *t = NULL;

    assert_int_equal(dp_topology_read_sysfs("/nowhere", &t), DP_ENOENT);
    assert_null(t);
    assert_non_null(strstr(dp_last_error(), "/nowhere/sys"));
}

CASE(this_machine_is_a_topology)
{
    OWNED(dp_topology) *t = NULL;

    assert_int_equal(dp_topology_read_sysfs("", &t), 0);
    assert_int_equal(dp_topo_check(t), 0);
    assert_int_equal(t->host_count, 1);
}

/* A thread that ends takes its binding with it. */
static void *bind_beside_each_numa_node(void *arg)
{
    const struct dp_topology *t = arg;
    cpu_set_t before, after;

    sched_getaffinity(0, sizeof(before), &before);
    for (int32_t n = -1; (n = dp_topology_next(t, DP_TOPO_NUMA, 0, n + 1)) >= 0;) {
        int cpus = -1, err = dp_topology_bind(t, n, &cpus);
        if (err == DP_EUNSUPPORTED || err == -EPERM || err == -ENOSYS)
            continue; /* a container may have no CPU of it, or not be let choose memory */
        sched_getaffinity(0, sizeof(after), &after);
        if (err || cpus != CPU_COUNT(&after))
            return "bound, but not to what was said";
        CPU_OR(&after, &after, &before);
        if (!CPU_EQUAL(&after, &before))
            return "bound to CPUs that the thread did not have";
        sched_setaffinity(0, sizeof(before), &before);
    }
    return NULL;
}

CASE(a_thread_is_bound_beside_a_device)
{
    struct dp_topology *t, *server = topology_unpacked("server");
    pthread_t thread;
    void *flaw;

    assert_int_equal(dp_topology_above(server, topology_node(server, "gpu0"), DP_TOPO_NUMA),
                     topology_node(server, "numa0"));
    assert_int_equal(dp_topology_above(server, 0, DP_TOPO_NUMA), -1);
    assert_int_equal(dp_topology_bind(server, 0, NULL), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "a host: expected one that hangs from a NUMA node"));
    assert_int_equal(dp_topology_bind(server, server->node_count, NULL), DP_EINVAL);
    dp_topology_free(server);
    assert_int_equal(dp_topology_read_sysfs("/", &t), 0);
    assert_int_equal(pthread_create(&thread, NULL, bind_beside_each_numa_node, t), 0);
    pthread_join(thread, &flaw);
    if (flaw)
        fail_msg("%s", (const char *)flaw);
    dp_topology_free(t);
}

int main(void)
{
    topology_quietly();
    return run_cases(NULL, NULL);
}
