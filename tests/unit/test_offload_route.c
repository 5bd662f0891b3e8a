/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether copies go over another GPU's link, on machines that are described: only where the topology says
 * that it pays.
 */
#include "cmocka_all.h"

#include <dualpipe/offload.h>

#include <string.h>

static struct dp_topology *machine(const char *description)
{
    struct dp_topology *t = NULL;

    assert_int_equal(dp_topology_new_synthetic(description, &t), 0);
    return t;
}

static int32_t node(const struct dp_topology *t, const char *name)
{
    int32_t n;

    assert_int_equal(dp_topology_find(t, name, &n), 0);
    return n;
}

static struct dp_copy_route choose(const struct dp_topology *t, const char *gpu, const char *numa)
{
    struct dp_copy_route route;

    assert_int_equal(dp_copy_route_choose(t, node(t, gpu), node(t, numa), &route), 0);
    return route;
}

/* The link between a GPU and what it hangs on. */
static void narrow(struct dp_topology *t, const char *gpu, double by)
{
    const int32_t n = node(t, gpu);

    for (int32_t i = 0; i < t->link_count; i++)
        if (t->links[i].kind == DP_TOPO_PCI && t->links[i].b == n)
            t->links[i].bytes_per_ns /= by;
}

static void equal_links_are_used_directly(void **state)
{
    (void)state;
    static const char *const machines[] = {"dgx-h100", "hgx-a100", "numa:2 root:2 gpu:1 nvlink=mesh:4x25",
                                           "numa:1 root:2 gpu:2 pcie=unknown nvlink=mesh:4x25"};

    for (size_t i = 0; i < 4; i++) {
        struct dp_topology *t = machine(machines[i]);
        assert_int_equal(choose(t, "gpu0", "numa0").via, -1);
        assert_int_equal(choose(t, "gpu1", "numa0").via, -1);
        dp_topology_free(t);
    }
}

static void a_link_that_is_much_narrower_is_avoided(void **state)
{
    (void)state;
    struct dp_topology *t = machine("numa:1 root:4 gpu:1 pcie=5x16 nvlink=mesh:4x25");
    const struct dp_copy_route before = choose(t, "gpu0", "numa0");

    narrow(t, "gpu0", 4);
    const struct dp_copy_route route = choose(t, "gpu0", "numa0");
    assert_int_equal(route.via, node(t, "gpu1"));
    assert_true(route.direct_bytes_per_ns < before.direct_bytes_per_ns / 3.9);
    assert_true(route.bytes_per_ns > before.direct_bytes_per_ns / 2.1 &&
                route.bytes_per_ns < before.direct_bytes_per_ns / 1.9); /* half of the other's link */
    assert_int_equal(choose(t, "gpu2", "numa0").via, -1);
    narrow(t, "gpu1", 3);
    assert_int_equal(choose(t, "gpu0", "numa0").via, node(t, "gpu2"));
    dp_topology_free(t);
}

/* Half as wide is no better than half of the other one. */
static void a_little_is_not_worth_it(void **state)
{
    (void)state;
    struct dp_topology *t = machine("numa:1 root:4 gpu:1 pcie=5x16 nvlink=mesh:4x25");

    narrow(t, "gpu0", 2);
    assert_int_equal(choose(t, "gpu0", "numa0").via, -1);
    narrow(t, "gpu0", 1.2);
    assert_int_equal(choose(t, "gpu0", "numa0").via, -1);
    narrow(t, "gpu0", 1.1);
    assert_true(choose(t, "gpu0", "numa0").via >= 0);
    dp_topology_free(t);
}

static void without_nvlink_or_over_the_same_uplink_there_is_no_other_way(void **state)
{
    (void)state;
    struct dp_topology *t = machine("numa:1 root:4 gpu:1 pcie=5x16 nvlink=none");

    narrow(t, "gpu0", 8);
    assert_int_equal(choose(t, "gpu0", "numa0").via, -1);
    dp_topology_free(t);
    t = machine("numa:1 root:1 switch:1 gpu:2 pcie=5x16 uplink=3x4 nvlink=mesh:4x25");
    assert_int_equal(choose(t, "gpu0", "numa0").via, -1);
    dp_topology_free(t);
    t = machine("numa:1 root:4 gpu:1 pcie=5x16 nvlink=mesh:1x1"); /* NVLink that is as narrow */
    narrow(t, "gpu0", 8);
    assert_int_equal(choose(t, "gpu0", "numa0").via, -1);
    dp_topology_free(t);
}

static void what_is_no_gpu_and_no_memory_is_refused(void **state)
{
    (void)state;
    struct dp_topology *t = machine("host:2 numa:1 root:2 gpu:1");
    struct dp_copy_route route;

    assert_int_equal(dp_copy_route_choose(t, node(t, "numa0"), node(t, "gpu0"), &route), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "expected a GPU and a NUMA node of one host"));
    assert_int_equal(dp_copy_route_choose(t, node(t, "node0/gpu0"), node(t, "node1/numa0"), &route),
                     DP_EINVAL);
    assert_int_equal(dp_copy_route_choose(t, -1, 0, &route), DP_EINVAL);
    assert_int_equal(dp_copy_route_choose(t, t->node_count, 1, &route), DP_EINVAL);
    dp_topology_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_links_are_used_directly),
        cmocka_unit_test(a_link_that_is_much_narrower_is_avoided),
        cmocka_unit_test(a_little_is_not_worth_it),
        cmocka_unit_test(without_nvlink_or_over_the_same_uplink_there_is_no_other_way),
        cmocka_unit_test(what_is_no_gpu_and_no_memory_is_refused),
    };

    return cmocka_run_group_tests_name("routes of copies", tests, NULL, NULL);
}
