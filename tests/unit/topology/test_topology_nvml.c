/* SPDX-License-Identifier: Apache-2.0
 *
 * test_topology_nvml.c - what NVML reports of GPUs, from a simulation (tests/fakes/fake_nvml.c)
 * that reads captured machines in tests/data/topology/nvml.
 */
#include "cmocka_all.h"
#include "topology_case.h"
#include "unit/microbatch/tree.h"

#include <dualpipe/topology.h>

CASE(gpus_reach_each_other_through_switches)
{
    static const char *const seen[] = {"nvswitch", "hidden-switch"};

    for (size_t i = 0; i < 2; i++) {
        struct dp_topology *t = topology_unpacked_with("hgx", "fake_nvml", seen[i]);
        struct dp_topo_path p = topology_way(t, "gpu0", "gpu7");
        const struct dp_topo_node *gpu = &t->nodes[topology_node(t, "gpu7")];
        assert_int_equal(p.class_, DP_TOPO_NV);
        assert_int_equal(p.nvlinks, 18);
        assert_true(p.bytes_per_ns == 450);
        assert_int_equal(t->links[p.bottleneck].flags, 0);
        assert_int_equal(topology_count(t, DP_TOPO_NVSWITCH), 1);
        assert_int_equal(gpu->os_index, 7);
        assert_int_equal(gpu->sm, 90);
        assert_true(gpu->memory_bytes == UINT64_C(81559) << 20);
        assert_string_equal(dp_topology_text(t, gpu->model), "NVIDIA H100 80GB HBM3");
        assert_int_equal(topology_node(t, "GPU-00000000-0000-0000-0000-000000000007"), topology_node(t, "gpu7"));
        assert_false(topology_notes(t, "NVLink"));
        dp_topology_free(t);
    }
}

CASE(gpus_are_joined_directly)
{
    struct dp_topology *t = topology_unpacked_with("hgx", "fake_nvml", "mesh");
    struct dp_topo_path p = topology_way(t, "gpu3", "gpu1");

    assert_int_equal(p.class_, DP_TOPO_NV);
    assert_int_equal(p.hops, 1);
    assert_int_equal(p.nvlinks, 4);
    assert_true(p.bytes_per_ns == 100);
    assert_int_equal(topology_count(t, DP_TOPO_NVSWITCH), 0);
    assert_int_equal(topology_count_links(t, DP_TOPO_NVLINK), 6);
    assert_true(topology_notes(t, "NVML shows 4 of the 8 GPUs"));
    dp_topology_free(t);
}

CASE(a_gpu_that_sys_does_not_show_is_added)
{
    struct dp_topology *t = topology_unpacked_with("container", "fake_nvml", "alone");
    int32_t gpu = topology_node(t, "0000:1b:00.0");

    assert_int_equal(t->nodes[gpu].kind, DP_TOPO_GPU);
    assert_int_equal(t->nodes[gpu].parent, topology_node(t, "numa0"));
    struct dp_topo_path p = topology_way(t, "gpu0", "numa0");
    assert_true(fabs(p.bytes_per_ns - 31.5) < 0.1);
    assert_true(topology_notes(t, "taken to stand right at the NUMA node that NVML names"));
    assert_false(topology_notes(t, "NVLink"));
    dp_topology_free(t);
}

CASE(a_divided_gpu_is_one_gpu_without_nvlink)
{
    struct dp_topology *t = topology_unpacked_with("hgx", "fake_nvml", "mig");

    assert_int_equal(topology_count(t, DP_TOPO_GPU), 8);
    assert_int_equal(topology_way(t, "gpu0", "gpu1").class_, DP_TOPO_NODE);
    assert_int_equal(topology_way(t, "gpu1", "gpu2").class_, DP_TOPO_NV);
    assert_true(topology_notes(t, "GPU 0 is divided (MIG)"));
    dp_topology_free(t);
}

CASE(links_that_the_driver_refuses_are_noted)
{
    struct dp_topology *t = topology_unpacked_with("hgx", "fake_nvml", "refused");
    struct dp_topo_path p = topology_way(t, "gpu0", "gpu1");

    assert_true(topology_notes(t, "the driver refuses it to them (status 4; is the fabric manager running?)"));
    assert_int_equal(p.nvlinks, 12);
    assert_true(fabs(p.bytes_per_ns - 12 * 13.281) < 1e-6); /* runs slower than usual */
    dp_topology_free(t);
}

CASE(chips_are_joined_to_their_cpu)
{
    struct dp_topology *t = topology_unpacked_with("hgx", "fake_nvml", "grace");
    struct dp_topo_path p = topology_way(t, "gpu0", "numa0");

    assert_int_equal(p.class_, DP_TOPO_CHIP);
    assert_true(fabs(p.bytes_per_ns - 448) < 1e-6);
    dp_topology_free(t);

    t = topology_unpacked_with("hgx", "fake_nvml", "power");
    p = topology_way(t, "gpu1", "numa0");
    assert_int_equal(p.class_, DP_TOPO_CHIP);
    assert_true(p.bytes_per_ns == 75);
    assert_true(topology_way(t, "gpu0", "gpu1").bytes_per_ns == 75);
    dp_topology_free(t);
}

CASE(links_are_as_fast_as_their_version)
{
    static const struct {
        int version, count;
        double rate;
    } expected[] = {{1, 4, 20}, {2, 6, 25}, {3, 4, 14.0625}, {3, 12, 25},
                    {4, 18, 25}, {5, 18, 50}, {5, 18, 26.562}, {0, 18, 50}};

    struct dp_topology *t = topology_unpacked_with("hgx", "fake_nvml", "versions");
    for (int i = 0; i < 8; i++) {
        char gpu[16];
        snprintf(gpu, sizeof(gpu), "gpu%d", i);
        struct dp_topo_path p = topology_way(t, gpu, "nvswitch0");
        const struct dp_topo_link *l = &t->links[p.links[0]];
        assert_int_equal(l->gen, expected[i].version);
        assert_int_equal(l->count, expected[i].count);
        assert_true(fabs(l->bytes_per_ns - expected[i].rate * expected[i].count) < 1e-6);
        assert_int_equal(l->flags, 0);
    }
    dp_topology_free(t);
}

CASE(what_nvml_refuses_is_left_out)
{
    static const char *const gpus[] = {"no-start", "no-answers", "lost", "not-there"};
    static const char *const note[] = {
        "fake_nvml.so does not start: Unknown Error", "", "NVML does not show its GPU 1: Unknown Error",
        "does not start: Unknown Error",
    };

    for (size_t i = 0; i < 4; i++) {
        struct dp_topology *t = topology_unpacked_with("hgx", "fake_nvml", gpus[i]);
        assert_int_equal(topology_count(t, DP_TOPO_GPU), 8);
        assert_int_equal(topology_count_links(t, DP_TOPO_NVLINK), 0);
        assert_true(!*note[i] || topology_notes(t, note[i]));
        dp_topology_free(t);
    }
}

CASE(an_old_library_reports_what_it_knows)
{
    struct dp_topology *t = topology_unpacked_with("hgx", "fake_nvml_old", "nvswitch");
    struct dp_topo_path p = topology_way(t, "gpu0", "gpu7");

    assert_int_equal(p.class_, DP_TOPO_NV);
    assert_true(p.bytes_per_ns == 450);
    assert_int_equal(t->links[p.bottleneck].flags, DP_TOPO_RATE_ASSUMED);
    dp_topology_free(t);
    t = topology_unpacked_with("container", "fake_nvml_old", "alone");
    assert_true(topology_notes(t, "taken to stand right at the first NUMA node"));
    dp_topology_free(t);
}

CASE(without_nvml_there_is_one_note)
{
    static const char *const libraries[] = {"no-such-nvml.so", "libc.so.6"};
    static const char *const reasons[] = {"no-such-nvml.so: cannot open", "too old, or no NVML"};
    char *root = tree_unpack("hgx");

    for (size_t i = 0; i < 2; i++) {
        OWNED(dp_topology) *t = NULL;
        setenv("DUALPIPE_TOPOLOGY_NVML_LIBRARY", libraries[i], 1);
        assert_int_equal(dp_topology_read_sysfs(root, &t), 0);
        assert_true(topology_notes(t, "NVLink is not known, the 8 GPUs are shown as if PCI alone joined them"));
        assert_true(topology_notes(t, reasons[i]));
    }
    unsetenv("DUALPIPE_TOPOLOGY_NVML_LIBRARY");
    tree_remove(root);
}

CASE(an_unknown_option_is_refused)
{
    struct dp_topology *t = NULL;

    setenv("DUALPIPE_TOPOLOGY_NVML_LIBARY", "x", 1);
    assert_int_equal(dp_topology_read_sysfs("", &t), DP_EINVAL);
    assert_null(t);
    assert_non_null(strstr(dp_last_error(), "NVML_LIBRARY"));
    unsetenv("DUALPIPE_TOPOLOGY_NVML_LIBARY");
}

int main(void)
{
    topology_quietly();
    return run_cases(NULL, NULL);
}
