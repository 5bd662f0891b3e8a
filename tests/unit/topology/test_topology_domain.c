/* SPDX-License-Identifier: Apache-2.0
 *
 * test_topology_domain.c - NVLink from host to host: what NVML and NCCL's files report of it,
 * clusters that are merged and divided, routes, and the resulting placement.
 */
#include "config.h"

#include "cmocka_all.h"
#include "topology_case.h"

#include <dualpipe/placement.h>

#define DOMAIN "5c9a1e00-7d3f-4b21-9e44-0123456789ab.32766"

static struct dp_topology *tray(const char *name, const char *gpus)
{
    return topology_unpacked_with(name, "fake_nvml", gpus);
}

static struct dp_topology *merged(struct dp_topology *const *parts, size_t count)
{
    struct dp_topology *t = NULL;

    if (dp_topology_merge((const struct dp_topology *const *)parts, count, &t))
        fail_msg("%s", dp_last_error());
    return t;
}

static void free_all(struct dp_topology **parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dp_topology_free(parts[i]);
}

static const char *domain_of(const struct dp_topology *t, const char *hub)
{
    return dp_topology_text(t, t->nodes[topology_node(t, hub)].name);
}

/* ---- reading -------------------------------------------------------------------------------- */

CASE(nvml_names_the_domain)
{
    struct dp_topology *t = tray("tray-a", "rack");

    assert_int_equal(topology_count(t, DP_TOPO_NVSWITCH), 1);
    assert_string_equal(domain_of(t, "nvswitch0"), DOMAIN);
    assert_true(topology_way(t, "gpu0", "gpu3").bytes_per_ns == 900);
    assert_int_equal(t->links[topology_way(t, "gpu0", "nvswitch0").links[0]].gen, 5);
    dp_topology_free(t);
}

CASE(switches_of_one_host_have_no_domain)
{
    static const char *const gpus[] = {"rack-alone", "rack-starting", "rack-failed"};

    for (size_t i = 0; i < 3; i++) {
        struct dp_topology *t = tray("tray-a", gpus[i]);
        assert_int_equal(topology_count(t, DP_TOPO_NVSWITCH), 1);
        assert_string_equal(domain_of(t, "nvswitch0"), "");
        dp_topology_free(t);
    }
    struct dp_topology *t = topology_unpacked_with("tray-a", "fake_nvml_old", "rack");
    assert_string_equal(domain_of(t, "nvswitch0"), "");
    dp_topology_free(t);
}

CASE(a_dump_of_nccl_has_several_hosts)
{
#ifdef HAVE_EXPAT
    char *xml = topology_file("nccl-rack.xml");
    struct dp_topology *t = topology_said(xml, DP_TOPOLOGY_NCCL_XML);

    assert_int_equal(t->host_count, 2);
    assert_int_equal(topology_node(t, "node1/0008:01:00.0"), topology_node(t, "node1/gpu0"));
    assert_int_equal(topology_count(t, DP_TOPO_NVSWITCH), 1);
    assert_int_equal(topology_way(t, "node0/gpu0", "node1/gpu0").class_, DP_TOPO_NV);
    assert_int_equal(topology_way(t, "node0/nic0", "node1/nic0").class_, DP_TOPO_RAILED);
    assert_int_equal(topology_way(t, "node0/numa0", "node0/numa1").class_, DP_TOPO_SYS);
    assert_int_equal(dp_topology_domain_count(t), 1);
    dp_topology_free(t);
    free(xml);
#else
    skip_because("this build has no expat");
#endif
}

/* ---- clusters ------------------------------------------------------------------------------- */

CASE(hosts_of_a_domain_share_its_switches)
{
    struct dp_topology *parts[] = {tray("tray-a", "rack"), tray("tray-b", "rack"),
                                   tray("tray-c", "rack-cut")};
    struct dp_topology *t = merged(parts, 3);
    struct dp_topo_path p = topology_way(t, "tray-a/gpu0", "tray-b/gpu3");

    assert_int_equal(p.class_, DP_TOPO_NV);
    assert_int_equal(p.hops, 2);
    assert_int_equal(p.nvlinks, 18);
    assert_true(p.bytes_per_ns == 900);
    assert_string_equal(dp_topology_text(t, t->nodes[p.nodes[1]].name), DOMAIN);
    assert_int_equal(t->nodes[p.nodes[1]].host, -1);
    /* Another clique: NVLink ends at the host. */
    assert_int_equal(topology_way(t, "tray-a/gpu0", "tray-c/gpu0").class_, DP_TOPO_RAILED);
    assert_int_equal(topology_way(t, "tray-c/gpu0", "tray-c/gpu3").class_, DP_TOPO_NV);
    assert_int_equal(t->nodes[topology_node(t, "tray-c/nvswitch0")].host, topology_node(t, "tray-c"));
    /* NICs and memory of one domain still meet over the network. */
    assert_int_equal(topology_way(t, "tray-a/mlx5_0", "tray-b/mlx5_0").class_, DP_TOPO_RAILED);
    assert_int_equal(topology_way(t, "tray-a/gpu0", "tray-b/numa0").class_, DP_TOPO_RAILED);
    assert_int_equal(topology_count(t, DP_TOPO_NVSWITCH), 2);
    assert_int_equal(dp_topo_domain(t, topology_node(t, "tray-b")), topology_node(t, "tray-a"));
    assert_int_equal(dp_topology_domain_count(t), 2);
    dp_topology_free(t);
    free_all(parts, 3);
}

CASE(a_cluster_is_taken_apart_and_put_together)
{
    struct dp_topology *t = topology_made("gb200-nvl72 host:4 domain=2 rails=none"), *parts[4];

    for (int32_t i = 0, host = 0; i < 4; i++, host = t->nodes[host].end) {
        assert_int_equal(dp_topology_take_host(t, host, &parts[i]), 0);
        assert_int_equal(topology_way(parts[i], "gpu0", "gpu3").class_, DP_TOPO_NV);
        assert_string_equal(domain_of(parts[i], "nvswitch0"), i < 2 ? "domain0" : "domain1");
    }
    struct dp_topology *again = merged(parts, 4);
    assert_int_equal(topology_way(again, "node0/gpu0", "node1/gpu2").class_, DP_TOPO_NV);
    assert_int_equal(topology_way(again, "node1/gpu0", "node2/gpu0").class_, DP_TOPO_RAILED);
    assert_int_equal(topology_count(again, DP_TOPO_NVSWITCH), 2);
    assert_int_equal(topology_count_links(again, DP_TOPO_NVLINK),
                     topology_count_links(t, DP_TOPO_NVLINK));
    dp_topology_free(again);
    free_all(parts, 4);
    dp_topology_free(t);
}

CASE(json_keeps_domains)
{
    struct dp_topology *parts[] = {tray("tray-a", "rack"), tray("tray-b", "rack")};
    struct dp_topology *t = merged(parts, 2);
    char *text = topology_written(t, DP_TOPOLOGY_JSON);

    assert_non_null(strstr(text, "\"name\": \"" DOMAIN "\""));
    free(text);
    topology_survives_json(t);
    dp_topology_free(t);
    free_all(parts, 2);
}

CASE(a_node_of_nccl_is_a_domain)
{
    static const struct {
        const char *description;
        int32_t nodes;
        double inner, outer;
    } cases[] = {{"gb200-nvl72", 1, 900, 18 * 200}, {"gb200-nvl72 host:36", 2, 900, 18 * 200},
                 {"gb200-nvl72 host:3 domain=2", 2, 900, 400}, {"dgx-h100 host:3", 3, 450, 400},
                 {"host:4 gpu:1 nic:1 nvlink=domain:18x25 net=50", 1, 450, 200}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        OWNED(dp_topology) *t = topology_made(cases[i].description);
        double inner, outer;
        assert_int_equal(dp_topology_domain_count(t), cases[i].nodes);
        assert_int_equal(dp_topology_rates(t, &inner, &outer), 0);
        assert_true(inner == cases[i].inner);
        assert_true(fabs(outer - cases[i].outer) < 1e-9);
    }
}

/* ---- placement ------------------------------------------------------------------------------ */

/* Two pipelines of 8 ranks over four hosts, two of which are a domain each; the GPUs came so that
 * every second rank of a pipeline is in the other one. */
CASE(placement_keeps_a_pipeline_in_its_domain)
{
    const struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_1F1B, .ranks = 8, .microbatches = 16};
    OWNED(dp_topology) *t = topology_made("gb200-nvl72 host:4 domain=2");
    OWNED(dp_schedule) *schedule = NULL;
    OWNED(dp_placement) *p = NULL;
    int32_t gpus[16], count = 0;

    for (int32_t g = -1; (g = dp_topology_next(t, DP_TOPO_GPU, -1, g + 1)) >= 0; count++)
        gpus[count % 8 * 2 + count / 8] = g;
    assert_int_equal(dp_schedule_new(&spec, &schedule), 0);
    assert_int_equal(dp_placement_new(&(struct dp_placement_spec){
        .topology = t, .schedule = schedule, .replicas = 2, .activation_bytes = 64e6, .gpus = gpus,
        .parameter_bytes = 1}, &p), 0);
    for (int32_t i = 0; i < p->flow_count; i++)
        if (p->flows[i].kind != DP_FLOW_MIXING)
            assert_int_equal(p->flows[i].class_, DP_TOPO_NV);
    assert_true(p->after_ns < p->before_ns / 5);
}

int main(void)
{
    topology_quietly();
    return run_cases(NULL, NULL);
}
