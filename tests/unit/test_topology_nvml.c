/* SPDX-License-Identifier: Apache-2.0
 *
 * test_topology_nvml.c - what NVML says of GPUs, told by a stand-in (tests/fakes/fake_nvml.c) that
 * reads tests/data/topology/nvml, about captured machines.
 */
#include "config.h" /* asprintf */

#include "cmocka_all.h"
#include "tree.h"

#include <dualpipe/topology.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void name_file(const char *variable, const char *top, const char *directory, const char *name,
                      const char *ending)
{
    char *path;

    assert_true(asprintf(&path, "%s/%s/%s.%s", top ? top : ".", directory, name, ending) > 0);
    setenv(variable, path, 1);
    free(path);
}

/* The machine of a tree with the GPUs that a library says there are. */
static struct dp_topology *read_with(const char *tree, const char *library, const char *gpus)
{
    struct dp_topology *t = NULL;
    char *root = tree_unpack(tree);

    name_file("DUALPIPE_TOPOLOGY_NVML_LIBRARY", getenv("DP_TOP_BUILDDIR"), "tests/fakes/.libs",
              library, "so");
    name_file("FAKE_NVML", getenv("DP_TEST_DATA"), "topology/nvml", gpus, "txt");
    int err = dp_topology_read_sysfs(root, &t);
    tree_remove(root);
    unsetenv("DUALPIPE_TOPOLOGY_NVML_LIBRARY");
    if (err)
        fail_msg("%s", dp_last_error());
    assert_int_equal(dp_topology_check(t), 0);
    return t;
}

static int32_t node(const struct dp_topology *t, const char *name)
{
    int32_t n = -1;

    if (dp_topology_find(t, name, &n))
        fail_msg("%s", dp_last_error());
    return n;
}

static bool notes(const struct dp_topology *t, const char *what)
{
    for (int32_t i = 0; i < t->note_count; i++)
        if (strstr(dp_topology_text(t, t->notes[i].text), what))
            return true;
    return false;
}

static int32_t count(const struct dp_topology *t, enum dp_topo_kind kind)
{
    int32_t n = 0;

    for (int32_t i = 0; i < t->node_count; i++)
        n += t->nodes[i].kind == kind;
    return n;
}

static int32_t count_links(const struct dp_topology *t, enum dp_topo_link_kind kind)
{
    int32_t n = 0;

    for (int32_t i = 0; i < t->link_count; i++)
        n += t->links[i].kind == kind;
    return n;
}

static struct dp_topo_path way(const struct dp_topology *t, const char *a, const char *b)
{
    struct dp_topo_path p;

    assert_int_equal(dp_topology_path(t, node(t, a), node(t, b), &p), 0);
    return p;
}

static void gpus_reach_each_other_through_switches(void **state)
{
    (void)state;
    static const char *const seen[] = {"nvswitch", "hidden-switch"};

    for (size_t i = 0; i < 2; i++) {
        struct dp_topology *t = read_with("hgx", "fake_nvml", seen[i]);
        struct dp_topo_path p = way(t, "gpu0", "gpu7");
        const struct dp_topo_node *gpu = &t->nodes[node(t, "gpu7")];
        assert_int_equal(p.class_, DP_TOPO_NV);
        assert_int_equal(p.nvlinks, 18);
        assert_true(p.bytes_per_ns == 450);
        assert_int_equal(t->links[p.bottleneck].flags, 0);
        assert_int_equal(count(t, DP_TOPO_NVSWITCH), 1);
        assert_int_equal(gpu->os_index, 7);
        assert_int_equal(gpu->sm, 90);
        assert_true(gpu->memory_bytes == UINT64_C(81559) << 20);
        assert_string_equal(dp_topology_text(t, gpu->model), "NVIDIA H100 80GB HBM3");
        assert_int_equal(node(t, "GPU-00000000-0000-0000-0000-000000000007"), node(t, "gpu7"));
        assert_false(notes(t, "NVLink"));
        dp_topology_free(t);
    }
}

static void gpus_are_joined_directly(void **state)
{
    (void)state;
    struct dp_topology *t = read_with("hgx", "fake_nvml", "mesh");
    struct dp_topo_path p = way(t, "gpu3", "gpu1");

    assert_int_equal(p.class_, DP_TOPO_NV);
    assert_int_equal(p.hops, 1);
    assert_int_equal(p.nvlinks, 4);
    assert_true(p.bytes_per_ns == 100);
    assert_int_equal(count(t, DP_TOPO_NVSWITCH), 0);
    assert_int_equal(count_links(t, DP_TOPO_NVLINK), 6);
    assert_true(notes(t, "NVML shows 4 of the 8 GPUs"));
    dp_topology_free(t);
}

static void a_gpu_that_sys_does_not_show_is_added(void **state)
{
    (void)state;
    struct dp_topology *t = read_with("container", "fake_nvml", "alone");
    int32_t gpu = node(t, "0000:1b:00.0");

    assert_int_equal(t->nodes[gpu].kind, DP_TOPO_GPU);
    assert_int_equal(t->nodes[gpu].parent, node(t, "numa0"));
    struct dp_topo_path p = way(t, "gpu0", "numa0");
    assert_true(fabs(p.bytes_per_ns - 31.5) < 0.1);
    assert_true(notes(t, "taken to stand right at the NUMA node that NVML names"));
    assert_false(notes(t, "NVLink"));
    dp_topology_free(t);
}

static void a_divided_gpu_is_one_gpu_without_nvlink(void **state)
{
    (void)state;
    struct dp_topology *t = read_with("hgx", "fake_nvml", "mig");

    assert_int_equal(count(t, DP_TOPO_GPU), 8);
    assert_int_equal(way(t, "gpu0", "gpu1").class_, DP_TOPO_NODE);
    assert_int_equal(way(t, "gpu1", "gpu2").class_, DP_TOPO_NV);
    assert_true(notes(t, "GPU 0 is divided (MIG)"));
    dp_topology_free(t);
}

static void links_that_the_driver_refuses_are_noted(void **state)
{
    (void)state;
    struct dp_topology *t = read_with("hgx", "fake_nvml", "refused");
    struct dp_topo_path p = way(t, "gpu0", "gpu1");

    assert_true(notes(t, "the driver refuses it to them (status 4; is the fabric manager running?)"));
    assert_int_equal(p.nvlinks, 12);
    assert_true(fabs(p.bytes_per_ns - 12 * 13.281) < 1e-6); /* runs slower than usual */
    dp_topology_free(t);
}

static void chips_are_joined_to_their_cpu(void **state)
{
    (void)state;
    struct dp_topology *t = read_with("hgx", "fake_nvml", "grace");
    struct dp_topo_path p = way(t, "gpu0", "numa0");

    assert_int_equal(p.class_, DP_TOPO_CHIP);
    assert_true(fabs(p.bytes_per_ns - 448) < 1e-6);
    dp_topology_free(t);

    t = read_with("hgx", "fake_nvml", "power");
    p = way(t, "gpu1", "numa0");
    assert_int_equal(p.class_, DP_TOPO_CHIP);
    assert_true(p.bytes_per_ns == 75);
    assert_true(way(t, "gpu0", "gpu1").bytes_per_ns == 75);
    dp_topology_free(t);
}

static void what_nvml_refuses_is_left_out(void **state)
{
    (void)state;
    static const char *const gpus[] = {"no-start", "no-answers", "lost", "not-there"};
    static const char *const note[] = {
        "fake_nvml.so does not start: Unknown Error", "", "NVML does not show its GPU 1: Unknown Error",
        "does not start: Unknown Error",
    };

    for (size_t i = 0; i < 4; i++) {
        struct dp_topology *t = read_with("hgx", "fake_nvml", gpus[i]);
        assert_int_equal(count(t, DP_TOPO_GPU), 8);
        assert_int_equal(count_links(t, DP_TOPO_NVLINK), 0);
        assert_true(!*note[i] || notes(t, note[i]));
        dp_topology_free(t);
    }
}

static void an_old_library_says_what_it_knows(void **state)
{
    (void)state;
    struct dp_topology *t = read_with("hgx", "fake_nvml_old", "nvswitch");
    struct dp_topo_path p = way(t, "gpu0", "gpu7");

    assert_int_equal(p.class_, DP_TOPO_NV);
    assert_true(p.bytes_per_ns == 450);
    assert_int_equal(t->links[p.bottleneck].flags, DP_TOPO_RATE_ASSUMED);
    dp_topology_free(t);
    t = read_with("container", "fake_nvml_old", "alone");
    assert_true(notes(t, "taken to stand right at the first NUMA node"));
    dp_topology_free(t);
}

static void without_nvml_one_note_says_so(void **state)
{
    (void)state;
    static const char *const libraries[] = {"no-such-nvml.so", "libc.so.6"};
    static const char *const reasons[] = {"no-such-nvml.so: cannot open", "too old, or no NVML"};
    char *root = tree_unpack("hgx");

    for (size_t i = 0; i < 2; i++) {
        struct dp_topology *t = NULL;
        setenv("DUALPIPE_TOPOLOGY_NVML_LIBRARY", libraries[i], 1);
        assert_int_equal(dp_topology_read_sysfs(root, &t), 0);
        assert_true(notes(t, "NVLink is not known, the 8 GPUs are shown as if PCI alone joined them"));
        assert_true(notes(t, reasons[i]));
        dp_topology_free(t);
    }
    unsetenv("DUALPIPE_TOPOLOGY_NVML_LIBRARY");
    tree_remove(root);
}

static void an_unknown_option_is_refused(void **state)
{
    (void)state;
    struct dp_topology *t = NULL;

    setenv("DUALPIPE_TOPOLOGY_NVML_LIBARY", "x", 1);
    assert_int_equal(dp_topology_read_sysfs("", &t), DP_EINVAL);
    assert_null(t);
    assert_non_null(strstr(dp_last_error(), "NVML_LIBRARY"));
    unsetenv("DUALPIPE_TOPOLOGY_NVML_LIBARY");
}

static void drop(void *user, enum dp_log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_reach_each_other_through_switches),
        cmocka_unit_test(gpus_are_joined_directly),
        cmocka_unit_test(a_gpu_that_sys_does_not_show_is_added),
        cmocka_unit_test(a_divided_gpu_is_one_gpu_without_nvlink),
        cmocka_unit_test(links_that_the_driver_refuses_are_noted),
        cmocka_unit_test(chips_are_joined_to_their_cpu),
        cmocka_unit_test(what_nvml_refuses_is_left_out),
        cmocka_unit_test(an_old_library_says_what_it_knows),
        cmocka_unit_test(without_nvml_one_note_says_so),
        cmocka_unit_test(an_unknown_option_is_refused),
    };

    dp_log_set(drop, NULL, DP_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
