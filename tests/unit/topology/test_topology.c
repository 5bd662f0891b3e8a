/* SPDX-License-Identifier: Apache-2.0
 *
 * test_topology.c - the model: descriptions, order, the checker, names, routes, JSON.
 */
#include "cmocka_all.h"
#include "topology_case.h"

#include "base/fail.h"
#include "topology/build.h"

#include <dualpipe/topology.h>

static void assert_route(const struct dp_topology *t, const char *a, const char *b,
                         enum dp_topo_class class_, double bytes_per_ns)
{
    struct dp_topo_path there = topology_way(t, a, b), back = topology_way(t, b, a);

    assert_string_equal(dp_name(DP_NAMES_PATH, there.class_), dp_name(DP_NAMES_PATH, class_));
    assert_int_equal(back.class_, class_);
    assert_true(fabs(there.bytes_per_ns - bytes_per_ns) < 0.05);
    assert_true(there.bytes_per_ns == back.bytes_per_ns);
}

/* ---- descriptions --------------------------------------------------------------------------- */

CASE(every_preset_is_a_topology)
{
    for (const struct dp_topology_preset *p = dp_topology_presets(); p->name; p++) {
        OWNED(dp_topology) *t = topology_made(p->name);
        assert_int_equal(dp_topo_check(t), 0);
        assert_true(topology_count(t, DP_TOPO_GPU) > 0);
    }
}

CASE(terms_nest_and_multiply)
{
    OWNED(dp_topology) *t = topology_made("host:3 numa:2 nic:1 root:2 switch:2 switch:2 gpu:2");

    assert_int_equal(t->host_count, 3);
    assert_int_equal(topology_count(t, DP_TOPO_NUMA), 6);
    assert_int_equal(topology_count(t, DP_TOPO_SWITCH), 3 * 2 * 2 * (2 + 4));
    assert_int_equal(topology_count(t, DP_TOPO_GPU), 3 * 2 * 2 * 2 * 2 * 2);
    assert_int_equal(topology_count(t, DP_TOPO_NIC), 6);
    assert_int_equal(topology_count(t, DP_TOPO_ROOT), 3 * 2 * (2 + 1));
    assert_int_equal(topology_count(t, DP_TOPO_RAIL), 2);
    assert_int_equal(topology_count(t, DP_TOPO_SPINE), 1);
}

CASE(later_terms_replace_those_of_a_preset)
{
    OWNED(dp_topology) *t = topology_made("dgx-h100 host:2 numa:1 root:2 net=100Gb/s");

    assert_int_equal(topology_count(t, DP_TOPO_GPU), 4);
    assert_route(t, "node0/gpu0", "node1/gpu0", DP_TOPO_RAILED, 12.5);
}

CASE(a_wrong_term_is_named)
{
    static const struct {
        const char *description, *says;
    } cases[] = {
        {"gpus:8", "something like gpu"},
        {"dgx-h10", "something like dgx-h100"},
        {"gpu:8 laptop", "'laptop'"},
        {"pcie=9x16", "'pcie=9x16': expected a generation"},
        {"gpu:-1", "'gpu:-1': expected a number from 0"},
        {"numa:0", "'numa:0': expected a number from 1"},
        {"switch:2 numa:2", "'numa:2': expected numa, root and switch in this order"},
        {"net=fast", "'net=fast': expected a rate"},
        {"nvlink=ring:1x25", "'nvlink=ring:1x25': expected none, or a shape"},
        {"memory=12X", "expected a size"},
        {"host:1000000 gpu:8", "expected at most"},
        {"name=a/b", "expected a name"},
        {"rail:2", "'rail:2'"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_topology *t = NULL;
        assert_int_equal(dp_topology_new_synthetic(cases[i].description, &t), DP_EINVAL);
        assert_null(t);
        if (!strstr(dp_last_error(), cases[i].says))
            fail_msg("'%s' says: %s", cases[i].description, dp_last_error());
    }
}

/* ---- order ---------------------------------------------------------------------------------- */

CASE(nodes_stand_in_preorder_and_links_in_order)
{
    OWNED(dp_topology) *t = topology_made("hgx-a100 host:3");

    for (int32_t i = 1; i < t->node_count; i++) {
        assert_true(t->nodes[i].parent < i);
        assert_true(t->nodes[i].parent < 0 || t->nodes[t->nodes[i].parent].end >= t->nodes[i].end);
    }
    for (int32_t i = 1; i < t->link_count; i++)
        assert_true(t->links[i - 1].a <= t->links[i].a && t->links[i].a < t->links[i].b);
    for (int32_t n = 0; n < t->node_count; n++)
        for (int32_t k = t->first_around[n]; k < t->first_around[n + 1]; k++)
            assert_true(t->links[t->around[k]].a == n || t->links[t->around[k]].b == n);
    assert_int_equal(t->first_around[t->node_count], 2 * t->link_count);
}

/* ---- the checker ---------------------------------------------------------------------------- */

struct damage {
    const char *what;
    void (*do_it)(struct dp_topology *t);
    const char *says;
};

static void give_a_gpu_to_a_host(struct dp_topology *t)
{
    t->nodes[topology_node(t, "gpu0")].parent = 0;
}
static void take_a_host(struct dp_topology *t)
{
    t->nodes[0].kind = DP_TOPO_NUMA;
}
static void use_a_name_twice(struct dp_topology *t)
{
    t->nodes[topology_node(t, "node1")].name = t->nodes[topology_node(t, "node0")].name;
}
static void take_a_name(struct dp_topology *t)
{
    t->nodes[topology_node(t, "rail0")].name = 0;
}
static void make_pci_of_a_cpu_link(struct dp_topology *t)
{
    for (int32_t i = 0; i < t->link_count; i++)
        if (t->links[i].kind == DP_TOPO_CPU)
            t->links[i].kind = DP_TOPO_PCI;
}
static void make_a_rate_a_nan(struct dp_topology *t)
{
    t->links[3].bytes_per_ns = NAN;
}
static void lose_a_port(struct dp_topology *t)
{
    for (int32_t i = 0; i < t->link_count; i++)
        if (t->links[i].port >= 0)
            t->links[i].port = -1;
}
static void make_a_gpu_a_port(struct dp_topology *t)
{
    t->ports[0].nic = topology_node(t, "gpu0");
}
static void number_ports_alike(struct dp_topology *t)
{
    t->ports[1].nic = t->ports[0].nic;
    t->ports[1].number = t->ports[0].number;
    t->ports[1].rdma = t->ports[0].rdma;
    t->ports[1].net = t->ports[0].net;
}
static void leave_a_numa_node_alone(struct dp_topology *t)
{
    for (int32_t i = 0; i < t->link_count; i++)
        if (t->links[i].kind == DP_TOPO_CPU)
            memmove(&t->links[i], &t->links[i + 1],
                    (size_t)(--t->link_count - i) * sizeof(*t->links));
    for (int32_t i = 0; i <= t->node_count; i++)
        t->first_around[i] = 0;
}

CASE(the_checker_names_what_is_wrong)
{
    static const struct damage cases[] = {
        {"a GPU right below a host", give_a_gpu_to_a_host, "a gpu may not stand in a host"},
        {"no host first", take_a_host, "expected a host first"},
        {"two hosts of one name", use_a_name_twice, "two nodes are named 'node0'"},
        {"a rail without a name", take_a_name, "expected a name"},
        {"PCI between CPUs", make_pci_of_a_cpu_link, "a pci link cannot join node0/numa0 and"},
        {"a rate that is no number", make_a_rate_a_nan, "expected numbers that are not negative"},
        {"a link to a rail without a port", lose_a_port, "port -1, expected one of the NIC's"},
        {"a port of a GPU", make_a_gpu_a_port, "expected a NIC"},
        {"a port twice", number_ports_alike, "each once"},
        {"NUMA nodes apart", leave_a_numa_node_alone, "has no link to an earlier NUMA node"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        OWNED(dp_topology) *t = topology_made("host:2 numa:2 switch:1 gpu:1 nic:1");
        cases[i].do_it(t);
        assert_int_equal(dp_topo_check(t), DP_EINVAL);
        if (!strstr(dp_last_error(), cases[i].says))
            fail_msg("%s: %s", cases[i].what, dp_last_error());
    }
}

/* ---- names ---------------------------------------------------------------------------------- */

CASE(a_label_finds_its_node)
{
    OWNED(dp_topology) *t = topology_made("gb200-nvl72 host:3");
    char label[DP_TOPO_LABEL_LEN];

    for (int32_t i = 0; i < t->node_count; i++)
        assert_int_equal(topology_node(t, dp_topology_label(t, i, label)), i);
}

CASE(a_node_has_several_names)
{
    OWNED(dp_topology) *t = topology_made("dgx-h100 host:2");
    const struct dp_topo_pci *pci = &t->nodes[topology_node(t, "node1/gpu0")].pci;
    char address[32];

    assert_int_equal(topology_node(t, "gpu0"), topology_node(t, "node0/gpu0"));
    assert_int_equal(topology_node(t, "node1/mlx5_3"), topology_node(t, "node1/nic3"));
    snprintf(address, sizeof(address), "node1/%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->device,
             pci->function);
    assert_int_equal(topology_node(t, address), topology_node(t, "node1/gpu0"));
    assert_int_equal(topology_node(t, "rail7"), t->node_count - 2);
}

CASE(a_name_that_is_none_gets_the_nearest)
{
    OWNED(dp_topology) *t = topology_made("laptop");
    int32_t n = 77;

    assert_int_equal(dp_topology_find(t, "gpu1", &n), DP_EINVAL);
    assert_int_equal(n, 77);
    assert_non_null(strstr(dp_last_error(), "did you mean 'gpu0'?"));
    assert_int_equal(dp_topology_find(t, "", &n), DP_EINVAL);
}

/* ---- routes --------------------------------------------------------------------------------- */

CASE(classes_are_those_of_nvidia_smi)
{
    struct dp_topology *t = topology_made("numa:2 root:2 switch:1 switch:2 gpu:2 cpu=40 pcie=4x16");

    assert_route(t, "gpu0", "gpu0", DP_TOPO_SELF, 0);
    assert_route(t, "gpu0", "gpu1", DP_TOPO_PIX, 31.5);
    assert_route(t, "gpu0", "gpu2", DP_TOPO_PXB, 31.5);
    assert_route(t, "gpu0", "gpu4", DP_TOPO_NODE, 31.5);
    assert_route(t, "gpu0", "gpu8", DP_TOPO_SYS, 31.5);
    assert_route(t, "gpu0", "numa0", DP_TOPO_PHB, 31.5);
    assert_route(t, "gpu0", "numa1", DP_TOPO_SYS, 31.5);
    dp_topology_free(t);

    t = topology_made("root:1 switch:2 gpu:1");
    assert_route(t, "gpu0", "gpu1", DP_TOPO_PHB, 31.5);
    dp_topology_free(t);
}

CASE(nvlink_goes_before_pci)
{
    struct dp_topology *t = topology_made("dgx-h100");

    assert_route(t, "gpu0", "gpu7", DP_TOPO_NV, 450);
    assert_int_equal(topology_way(t, "gpu0", "gpu7").nvlinks, 18);
    assert_int_equal(topology_way(t, "gpu0", "gpu7").hops, 2);
    dp_topology_free(t);

    t = topology_made("gpu:4 nvlink=pair:4x25");
    assert_route(t, "gpu0", "gpu1", DP_TOPO_NV, 100);
    assert_route(t, "gpu1", "gpu2", DP_TOPO_NODE, 31.5);
    dp_topology_free(t);

    t = topology_made("gb200-nvl72");
    assert_route(t, "node0/gpu0", "node17/gpu3", DP_TOPO_NV, 900);
    dp_topology_free(t);
}

CASE(the_wider_of_two_routes_is_taken)
{
    OWNED(dp_topology) *t = topology_made("grace-hopper");

    assert_route(t, "gpu0", "numa0", DP_TOPO_CHIP, 450);
    assert_route(t, "gpu0", "nic0", DP_TOPO_PHB, 63);
}

CASE(the_bottleneck_is_the_slowest_link)
{
    OWNED(dp_topology) *t = topology_made("switch:2 gpu:2 pcie=5x16 uplink=4x8");
    struct dp_topo_path p = topology_way(t, "gpu0", "gpu3");

    assert_int_equal(t->links[p.bottleneck].kind, DP_TOPO_PCI);
    assert_int_equal(t->links[p.bottleneck].gen, 4);
    assert_int_equal(t->links[p.bottleneck].width, 8);
    assert_true(p.latency_ns > 0);
    for (int32_t i = 0; i < p.hops; i++)
        assert_int_equal(dp_topology_across(t, p.links[i], p.nodes[i]), p.nodes[i + 1]);
}

CASE(hosts_meet_on_a_rail)
{
    OWNED(dp_topology) *t = topology_made("dgx-h100 host:2");
    struct dp_topo_path p = topology_way(t, "node0/gpu5", "node1/gpu5");

    assert_int_equal(p.class_, DP_TOPO_RAILED);
    assert_true(p.bytes_per_ns == 50);
    assert_int_equal(t->nodes[p.nodes[2]].index, 5);
    assert_string_equal(dp_topology_text(t, t->nodes[p.nodes[3]].name), "rail5");
}

CASE(without_a_rail_in_common_the_spine_joins)
{
    struct dp_topology *t = topology_made("host:2 nic:2 gpu:2 spine=5");

    assert_route(t, "node0/nic0", "node1/nic1", DP_TOPO_SPINED, 5);
    assert_route(t, "node0/nic0", "node1/nic0", DP_TOPO_RAILED, 25);
    dp_topology_free(t);
    t = topology_made("host:2 nic:2 gpu:2 spine=none");
    assert_int_equal(topology_way(t, "node0/nic0", "node1/nic1").class_, DP_TOPO_NONE);
    assert_int_equal(topology_way(t, "node0/nic0", "node1/nic1").hops, 0);
    dp_topology_free(t);
    t = topology_made("host:2 gpu:2");
    assert_int_equal(topology_way(t, "node0/gpu0", "node1/gpu0").class_, DP_TOPO_NONE);
    dp_topology_free(t);
}

CASE(a_port_that_is_down_leads_nowhere)
{
    OWNED(dp_topology) *t = topology_made("host:2 nic:2 gpu:1");

    t->ports[0].up = false;
    struct dp_topo_path p = topology_way(t, "node0/gpu0", "node1/gpu0");
    assert_string_equal(dp_topology_text(t, t->nodes[t->links[p.links[p.hops / 2]].b].name), "rail1");
}

/* A host of more nodes than a search has stack space for. */
CASE(a_large_host_is_no_special_case)
{
    OWNED(dp_topology) *t = topology_made("numa:4 root:8 switch:4 gpu:2 nic:1");

    assert_true(t->nodes[0].end > 256);
    assert_route(t, "gpu0", "gpu255", DP_TOPO_SYS, 20);
}

/* Between all nodes of hosts of every kind, the second time out of what was kept. */
CASE(routes_that_are_kept_are_the_same)
{
    static const char *const descriptions[] = {
        "dgx-h100 host:2", "gb200-nvl72 host:2", "host:2 numa:2 root:1 switch:1 gpu:1 nic:2",
        "host:2 numa:1 gpu:1"}; /* no NIC: no route */
    struct dp_topo_path plain, kept;

    for (size_t d = 0; d < sizeof(descriptions) / sizeof(descriptions[0]); d++) {
        OWNED(dp_topology) *t = topology_made(descriptions[d]);
        struct dp_topo_exits *exits = dp_topo_exits_new(t);
        assert_non_null(exits);
        for (int32_t i = 0; i < t->node_count * t->node_count; i++) {
            const int32_t a = i / t->node_count, b = i % t->node_count;
            assert_int_equal(dp_topology_path(t, a, b, &plain), 0);
            for (int again = 0; again < 2; again++)
                assert_int_equal(dp_topo_path_by(t, exits, a, b, &kept), 0);
            assert_int_equal(plain.class_, kept.class_);
            assert_int_equal(plain.hops, kept.hops);
            assert_memory_equal(plain.links, kept.links, (size_t)plain.hops * sizeof(int32_t));
            assert_true(plain.latency_ns == kept.latency_ns);
        }
        dp_topo_exits_free(exits);
    }
}

CASE(what_is_no_node_has_no_route)
{
    OWNED(dp_topology) *t = topology_made("laptop");
    struct dp_topo_path p;

    assert_int_equal(dp_topology_path(t, 0, t->node_count, &p), DP_EINVAL);
    assert_int_equal(dp_topology_path(t, -1, 0, &p), DP_EINVAL);
}

/* ---- NICs ----------------------------------------------------------------------------------- */

CASE(a_gpu_gets_the_nearest_nics_first)
{
    OWNED(dp_topology) *t = topology_made("hgx-a100");
    int32_t nics[8], count, first[8];

    for (int32_t g = 0; g < 8; g++) {
        char name[16];
        snprintf(name, sizeof(name), "gpu%d", g);
        assert_int_equal(dp_topology_nics(t, topology_node(t, name), nics, 8, &count), 0);
        assert_int_equal(count, 8);
        first[g] = t->nodes[nics[0]].index;
        assert_int_equal(first[g] / 2, g / 2); /* on the same switch */
        assert_int_equal(t->nodes[nics[1]].index / 2, g / 2);
    }
    for (int32_t g = 0; g < 8; g += 2)
        assert_int_not_equal(first[g], first[g + 1]);
    assert_int_equal(dp_topology_nics(t, topology_node(t, "gpu0"), nics, 3, &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(dp_topology_nics(t, topology_node(t, "nic0"), nics, 3, &count), DP_EINVAL);
}

CASE(nics_that_are_down_are_left_out)
{
    OWNED(dp_topology) *t = topology_made("gpu:1 nic:2");
    int32_t nics[2], count;

    t->ports[0].up = false;
    assert_int_equal(dp_topology_nics(t, topology_node(t, "gpu0"), nics, 2, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(t->nodes[nics[0]].index, 1);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

CASE(json_gives_back_the_same)
{
    for (const struct dp_topology_preset *p = dp_topology_presets(); p->name; p++) {
        OWNED(dp_topology) *t = topology_made(p->name);
        topology_survives_json(t);
    }
}

CASE(errors_in_json_give_the_place)
{
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"{", "expected JSON"},
        {"{}", "dualpipe_topology: not there"},
        {"{\"dualpipe_topology\": 2}", "expected a whole number from 1 to 1"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{}], \"links\": [], \"ports\": []}",
         "nodes[0]: {}, expected a node"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"cpu\"}], \"links\": [], \"ports\": []}",
         "nodes[0].kind: \"cpu\", expected one of host, numa"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [], \"links\": [], \"ports\": []}",
         "expected a host first"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\"}, {\"kind\": "
         "\"numa\", \"parent\": 0}], \"links\": [{\"kind\": \"cpu\", \"a\": 0, \"b\": 7}], \"ports\": []}",
         "links[0].b: 7, expected a whole number from 0 to 1"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\", \"pci\": "
         "\"1b:zz\"}], \"links\": [], \"ports\": []}", "nodes[0].pci: \"1b:zz\", expected an address"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\", "
         "\"pci\": \"0000:1ff:00.0\"}], \"links\": [], \"ports\": []}",
         "nodes[0].pci: \"0000:1ff:00.0\", expected an address"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\", "
         "\"pci\": \"0000:-1:00.0\"}], \"links\": [], \"ports\": []}",
         "nodes[0].pci: \"0000:-1:00.0\", expected an address"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\", "
         "\"pci\": \"0:1b:0.0\", \"pci_class\": \"0302000\"}], \"links\": [], \"ports\": []}",
         "nodes[0].pci_class: \"0302000\", expected six hexadecimal digits"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\", "
         "\"pci\": \"0:1b:0.0\", \"pci_id\": \"110de:2330\"}], \"links\": [], \"ports\": []}",
         "nodes[0].pci_id: \"110de:2330\", expected two numbers"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\", "
         "\"pci\": \"0:1b:0.0\", \"pci_subsystem\": \"10de:-1\"}], \"links\": [], \"ports\": []}",
         "nodes[0].pci_subsystem: \"10de:-1\", expected two numbers"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\"}], \"links\": [], "
         "\"ports\": [{\"nic\": 0, \"number\": 1, \"guid\": \"-1\"}]}",
         "ports[0].guid: \"-1\", expected hexadecimal digits"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\"}], \"links\": [], "
         "\"ports\": [{\"nic\": 0, \"number\": 1, \"guid\": \"0x1\"}]}",
         "ports[0].guid: \"0x1\", expected hexadecimal digits"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\"}], \"links\": [], "
         "\"ports\": [{\"nic\": 0, \"number\": 1, \"guid\": \"11223344556677889\"}]}",
         "ports[0].guid: \"11223344556677889\", expected hexadecimal digits"},
        {"{\"dualpipe_topology\": 1, \"nodes\": [{\"kind\": \"host\", \"name\": \"a\"}], \"links\": [], "
         "\"ports\": [{\"nic\": 0, \"number\": 1, \"guid\": \"\"}]}",
         "ports[0].guid: \"\", expected hexadecimal digits"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_topology *t = NULL;
        assert_int_equal(dp_topology_read(cases[i].json, strlen(cases[i].json), DP_TOPOLOGY_JSON, &t),
                         DP_EINVAL);
        assert_null(t);
        if (!strstr(dp_last_error(), cases[i].says))
            fail_msg("%s", dp_last_error());
    }
}

CASE(a_thousand_hosts_are_built_read_and_searched)
{
    OWNED(dp_topology) *t = topology_made("dgx-h100 host:1024");

    assert_int_equal(topology_count(t, DP_TOPO_GPU), 8192);
    assert_route(t, "node0/gpu3", "node1023/gpu3", DP_TOPO_RAILED, 50);
    topology_survives_json(t);
}

int main(void)
{
    topology_quietly();
    return run_cases(NULL, NULL);
}
