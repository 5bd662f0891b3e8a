/* SPDX-License-Identifier: Apache-2.0
 *
 * test_topology_formats.c - NCCL's topology files, clusters out of machines and machines out of
 * clusters, virtual machines as seen from inside.
 */
#include "config.h"

#include "cmocka_all.h"
#include "same_topology.h"
#include "topology/build.h"
#include "topology_case.h"

#include <dualpipe/topology.h>

/* ---- what several forms have ---------------------------------------------------------------- */

CASE(a_gid_is_eight_groups_of_four_digits)
{
    static const char *const wrong[] = {
        "",
        "fe80",
        "fe80:0000:0000:0000:ba59:9f03:00d0:8f4",
        "fe80:0000:0000:0000:ba59:9f03:00d0:8f4a:",
        "fe80:0000:0000:0000:ba59:9f03:00d0:8f4a0",
        "fe80:0000:0000:0000:ba59:9f03: -d0:8f4a",
        "0x80:0000:0000:0000:ba59:9f03:00d0:8f4a",
    };
    uint8_t raw[16];

    assert_true(dp_topo_parse_gid("fe80:0000:0000:0000:ba59:9F03:00d0:8f4a", raw));
    assert_int_equal(raw[0], 0xfe);
    assert_int_equal(raw[10], 0x9f);
    assert_int_equal(raw[15], 0x4a);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (dp_topo_parse_gid(wrong[i], raw))
            fail_msg("'%s' is taken for a GID", wrong[i]);
}

/* ---- NCCL's files --------------------------------------------------------------------------- */

CASE(nccl_is_given_what_is_known)
{
    OWNED(dp_topology) *t = topology_made("grace-hopper fabric=infiniband nicname=a\"<&>b");
    char *xml = topology_written(t, DP_TOPOLOGY_NCCL_XML);
    static const char *const parts[] = {
        "<cpu numaid=\"0\" affinity=\"000000ff,ffffffff,ffffffff\" arch=\"arm64\" vendor=\"ARM\">",
        ("<pci busid=\"0000:01:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\" "
         "link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">"),
        "<gpu dev=\"0\" sm=\"90\">\n<c2c bw=\"450000\" count=\"1\"/>",
        "<net name=\"a&quot;&lt;&amp;&gt;b0\" speed=\"400000\" port=\"1\"",
    };

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (!strstr(xml, parts[i]))
            fail_msg("no %s in %s", parts[i], xml);
    free(xml);
}

CASE(a_file_of_nccl_is_one_host_on_pci)
{
    struct dp_topology *t = topology_made("laptop host:2");
    char *text = NULL;

    assert_int_equal(dp_topology_write(t, DP_TOPOLOGY_NCCL_XML, &text, NULL), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "this topology has 2"));
    dp_topology_free(t);
    t = topology_made("laptop");
    t->nodes[topology_node(t, "gpu0")].pci.known = false;
    assert_int_equal(dp_topology_write(t, DP_TOPOLOGY_NCCL_XML, &text, NULL), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "gpu0 has no PCI address"));
    assert_null(text);
    dp_topology_free(t);
}

#ifdef HAVE_EXPAT

CASE(routes_survive_a_file_of_nccl)
{
    static const char *const machines[] = {"dgx-h100", "hgx-a100", "pcie-server", "laptop",
                                           "gpu:4 sm=80 nvlink=pair:4x25", "gpu:4 sm=80 nvlink=mesh:2x25",
                                           "numa:2 switch:2 switch:2 gpu:2 nic:1 vendor=ARM"};

    for (size_t m = 0; m < sizeof(machines) / sizeof(machines[0]); m++) {
        OWNED(dp_topology) *t = topology_made(machines[m]);
        char *xml = topology_written(t, DP_TOPOLOGY_NCCL_XML);
        struct dp_topology *back = topology_said(xml, DP_TOPOLOGY_AUTO);
        assert_int_equal(t->node_count, back->node_count);
        for (int32_t i = 1; i < t->node_count; i++)
            for (int32_t k = 1; k < t->node_count; k++) {
                struct dp_topo_path p, q;
                assert_int_equal(t->nodes[i].kind, back->nodes[i].kind);
                assert_int_equal(dp_topology_path(t, i, k, &p), 0);
                assert_int_equal(dp_topology_path(back, i, k, &q), 0);
                assert_int_equal(p.class_, q.class_);
                assert_int_equal(p.nvlinks, q.nvlinks);
                assert_true(p.bytes_per_ns == q.bytes_per_ns);
            }
        char *again = topology_written(back, DP_TOPOLOGY_NCCL_XML);
        assert_string_equal(xml, again);
        free(again);
        free(xml);
        dp_topology_free(back);
    }
}

CASE(files_of_clouds_are_read)
{
    FREED char *xml = topology_file("nccl-vm.xml");
    struct dp_topology *t = topology_said(xml, DP_TOPOLOGY_NCCL_XML);

    assert_int_equal(topology_way(t, "0001:00:00.0", "0002:00:00.0").class_, DP_TOPO_PIX);
    assert_int_equal(topology_way(t, "0001:00:00.0", "0101:00:00.0").class_, DP_TOPO_PIX);
    assert_int_equal(topology_way(t, "gpu1", "eth0").class_, DP_TOPO_SYS);
    assert_int_equal(topology_way(t, "0003:00:00.0", "0001:00:00.0").nvlinks, 4);
    assert_string_equal(dp_topology_text(t, t->nodes[topology_node(t, "numa0")].cpus), "0-15,32-47");
    assert_int_equal(dp_topology_next(t, DP_TOPO_GPU, -1, topology_node(t, "gpu2") + 1), -1);
    dp_topology_free(t);
}

CASE(errors_in_a_file_of_nccl_give_the_place)
{
    static const struct {
        const char *xml, *says;
    } cases[] = {
        {"<system>", "expected XML"},
        {"<system><cpu></system>", "line 1, column 15: mismatched tag"},
        {"<machine/>", "line 1: <machine>: expected <system>"},
        {"<system/>", "has no <cpu>"},
        {"<system>\n<cpu><pci/></cpu></system>", "line 2: <pci>: expected a busid"},
        {"<system><cpu><pci busid=\"1:2:3\"/></cpu></system>", "expected a busid"},
        {"<system><cpu><pci busid=\"0000:01:00.0\" class=\"0x030200\"><gpu><nvlink target=\"x\"/></gpu>"
         "</pci></cpu></system>", "<nvlink>: expected a count"},
        {"<system><cpu familyid=\"-5\"/></system>", "negative"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_topology *t = NULL;
        assert_int_equal(dp_topology_read(cases[i].xml, strlen(cases[i].xml), DP_TOPOLOGY_AUTO, &t),
                         DP_EINVAL);
        assert_null(t);
        if (!strstr(dp_last_error(), cases[i].says))
            fail_msg("%s says: %s", cases[i].xml, dp_last_error());
    }
}

CASE(too_large_a_file_is_refused)
{
    char *xml = malloc(400000), *at = stpcpy(xml, "<system><cpu>");
    struct dp_topology *t = NULL;

    while (at < xml + 399900)
        at = stpcpy(at, "<pci busid=\"0:0:0.0\" class=\"0x03\"/>");
    assert_int_equal(dp_topology_read(xml, (size_t)(at - xml), DP_TOPOLOGY_AUTO, &t), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "more than 16384 devices"));
    free(xml);
}

CASE(too_deep_a_file_is_refused)
{
    char xml[2048] = "<system>";
    struct dp_topology *t = NULL;

    for (int i = 0; i < 100; i++)
        strcat(xml, "<a>");
    assert_int_equal(dp_topology_read(xml, strlen(xml), DP_TOPOLOGY_AUTO, &t), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "more than 64 elements"));
}

#else

CASE(without_expat_the_error_says_so)
{
    struct dp_topology *t = NULL;

    assert_int_equal(dp_topology_read("<system/>", 9, DP_TOPOLOGY_AUTO, &t), DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "has no expat"));
}

#endif

/* ---- hwloc ---------------------------------------------------------------------------------- */

#ifdef HAVE_HWLOC

CASE(files_of_hwloc_are_read)
{
    FREED char *xml = topology_file("hwloc.xml");
    struct dp_topology *t = topology_said(xml, DP_TOPOLOGY_AUTO);
    int32_t first;

    assert_string_equal(dp_topology_text(t, t->nodes[0].name), "server8");
    assert_string_equal(dp_topology_text(t, t->nodes[0].vendor), "GenuineIntel");
    assert_int_equal(t->nodes[0].cpu_model, 143);
    assert_string_equal(dp_topology_text(t, t->nodes[topology_node(t, "numa1")].cpus), "2-3");
    assert_int_equal(t->nodes[topology_node(t, "numa1")].cache_bytes, 32 << 20);
    assert_int_equal(t->nodes[topology_node(t, "gpu0")].parent, topology_node(t, "switch0"));
    assert_int_equal(topology_node(t, "GPU-11111111-2222-3333-4444-555555555555"), topology_node(t, "gpu0"));
    assert_int_equal(topology_way(t, "gpu0", "mlx5_0").class_, DP_TOPO_PIX);
    assert_int_equal(topology_way(t, "gpu0", "ens2np0").class_, DP_TOPO_SYS);
    assert_true(topology_way(t, "numa1", "ens2np0").bytes_per_ns > 15.7);
    assert_int_equal(dp_topology_ports(t, topology_node(t, "mlx5_0"), &first), 1);
    assert_true(t->ports[first].up && t->ports[first].fabric == DP_TOPO_INFINIBAND);
    assert_int_equal(t->ports[first].guid, UINT64_C(0x0c42a10300123450));
    assert_string_equal(dp_topology_text(t, t->ports[first].net), "ibs1");
    assert_int_equal(t->ports[first].gid_count, 1);
    assert_int_equal(t->gids[t->ports[first].first_gid].type, DP_TOPO_GID_IB);
    assert_int_equal(t->gids[t->ports[first].first_gid].raw[15], 0x50);
    dp_topology_free(t);
}

/* hwloc 2.9 ends with SIGSEGV for it. */
CASE(a_file_that_hwloc_does_not_survive_is_refused)
{
    FREED char *xml = topology_file("hwloc-short.xml");
    struct dp_topology *t;

    assert_int_equal(dp_topology_read(xml, strlen(xml), DP_TOPOLOGY_AUTO, &t), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "hwloc cannot read this"));
}

CASE(a_file_that_is_none_of_hwloc_is_refused)
{
    static const char xml[] = "<topology version=\"2.0\"><object type=\"Machine\"/></topology>";
    struct dp_topology *t = NULL;

    assert_int_equal(dp_topology_read(xml, sizeof(xml) - 1, DP_TOPOLOGY_AUTO, &t), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "expected XML of hwloc 2"));
    assert_null(t);
}

/* Two readers of one machine. */
CASE(hwloc_and_sysfs_see_the_same_machine)
{
    struct dp_topology *a = NULL, *b = NULL;

    assert_int_equal(dp_topology_read_hwloc(&a), 0);
    assert_int_equal(dp_topology_read_sysfs("", &b), 0);
    for (int32_t i = 0; i < b->node_count; i++)
        if (b->nodes[i].kind == DP_TOPO_GPU || b->nodes[i].kind == DP_TOPO_NIC) {
            char address[32];
            const struct dp_topo_pci *p = &b->nodes[i].pci;
            snprintf(address, sizeof(address), "%04x:%02x:%02x.%x", p->domain, p->bus, p->device,
                     p->function);
            int32_t same = -1;
            if (p->domain <= 0xffff && !dp_topology_find(a, address, &same))
                assert_int_equal(a->nodes[same].kind, b->nodes[i].kind);
        }
    dp_topology_free(a);
    dp_topology_free(b);
}

static void compare_text(const struct dp_topology *a, uint32_t x, const struct dp_topology *b,
                         uint32_t y)
{
    assert_string_equal(dp_topology_text(a, x), dp_topology_text(b, y));
}

static void compare_nodes(const struct dp_topology *a, int32_t i, const struct dp_topology *b)
{
    const struct dp_topo_node *x = &a->nodes[i], *y = &b->nodes[i];

    assert_int_equal(x->kind, y->kind);
    assert_int_equal(x->parent, y->parent);
    compare_text(a, x->name, b, y->name);
    compare_text(a, x->model, b, y->model);
    compare_text(a, x->cpus, b, y->cpus);
    compare_text(a, x->uuid, b, y->uuid);
    compare_text(a, x->arch, b, y->arch);
    compare_text(a, x->vendor, b, y->vendor);
    assert_int_equal(x->family, y->family);
    assert_int_equal(x->package, y->package);
    assert_int_equal(x->memory_bytes, y->memory_bytes);
    assert_int_equal(x->cache_bytes, y->cache_bytes);
    assert_int_equal(x->pci.domain, y->pci.domain);
    assert_int_equal(x->pci.bus, y->pci.bus);
    assert_int_equal(x->pci.class_code >> 8, y->pci.class_code >> 8);
    assert_int_equal(x->pci.device_id, y->pci.device_id);
}

static void compare_ports(const struct dp_topology *a, const struct dp_topology *b)
{
    assert_int_equal(a->port_count, b->port_count);
    for (int32_t i = 0; i < a->port_count; i++) {
        const struct dp_topo_port *x = &a->ports[i], *y = &b->ports[i];
        assert_int_equal(x->nic, y->nic);
        assert_int_equal(x->fabric, y->fabric);
        assert_int_equal(x->rdma ? x->guid : 0, y->guid);
        compare_text(a, x->rdma, b, y->rdma);
        compare_text(a, x->net, b, y->net);
        compare_text(a, x->subnet, b, y->subnet);
        assert_true(x->up == y->up);
        assert_int_equal(x->gid_count, y->gid_count);
        for (int32_t k = 0; k < x->gid_count; k++) {
            const struct dp_topo_gid *g = &a->gids[x->first_gid + k], *h = &b->gids[y->first_gid + k];
            assert_int_equal(g->index, h->index);
            assert_int_equal(g->type, h->type);
            assert_memory_equal(g->raw, h->raw, sizeof(g->raw));
        }
    }
}

/* lstopo's file of a machine that a description makes as well. */
CASE(a_file_of_hwloc_has_all_devices)
{
    FREED char *xml = topology_file("hwloc-switches.xml");
    struct dp_topology *b = topology_said(xml, DP_TOPOLOGY_AUTO);
    struct dp_topology *a =
        topology_made("cpus=4 numa:4 root:1 switch:1 switch:2 gpu:1 nic:1 ports=2");

    assert_int_equal(b->node_count, a->node_count);
    for (int32_t i = 0; i < a->node_count; i++)
        compare_nodes(a, i, b);
    compare_ports(a, b);
    dp_topology_free(a);
    dp_topology_free(b);
}

CASE(files_of_hwloc_are_not_written)
{
    OWNED(dp_topology) *t = topology_made("laptop");
    char *xml = NULL;

    assert_int_equal(dp_topology_write(t, DP_TOPOLOGY_HWLOC_XML, &xml, NULL), DP_EINVAL);
    assert_null(xml);
    assert_non_null(strstr(dp_last_error(), "expected DP_TOPOLOGY_JSON or _NCCL_XML"));
}

#else

CASE(without_hwloc_the_error_says_so)
{
    struct dp_topology *t = NULL;

    assert_int_equal(dp_topology_read("<topology/>", 11, DP_TOPOLOGY_AUTO, &t), DP_EUNSUPPORTED);
    expect_error(dp_topology_read_hwloc(&t), DP_EUNSUPPORTED, "no hwloc");
}

#endif

/* ---- clusters ------------------------------------------------------------------------------- */

CASE(machines_become_a_cluster)
{
    struct dp_topology *a = topology_made("dgx-h100 name=a"), *b = topology_made("dgx-h100 name=b"), *c = NULL;
    const struct dp_topology *parts[] = {a, b};

    assert_int_equal(dp_topology_merge(parts, 2, &c), 0);
    assert_int_equal(c->host_count, 2);
    assert_int_equal(topology_way(c, "a/gpu3", "b/gpu3").class_, DP_TOPO_RAILED);
    assert_int_equal(topology_way(c, "a/nic0", "b/nic1").class_, DP_TOPO_SPINED);
    assert_true(topology_way(c, "a/nic0", "b/nic1").bytes_per_ns == 50);
    dp_topology_free(a);
    dp_topology_free(b);
    dp_topology_free(c);
}

CASE(a_cluster_like_the_described_one_comes_out)
{
    struct dp_topology *whole = topology_made("hgx-a100 host:2"), *parts[2], *merged = NULL;

    for (int32_t i = 0, host = 0; i < 2; i++, host = whole->nodes[host].end)
        assert_int_equal(dp_topology_take_host(whole, host, &parts[i]), 0);
    assert_int_equal(dp_topology_merge((const struct dp_topology *const *)parts, 2, &merged), 0);
    for (int32_t i = 0; i < merged->link_count; i++)
        if (merged->nodes[merged->links[i].b].kind == DP_TOPO_SPINE)
            merged->links[i].flags = 0; /* the merged file does not tell */
    assert_true(is_same_topology(whole, merged));
    dp_topology_free(parts[0]);
    dp_topology_free(parts[1]);
    dp_topology_free(merged);
    dp_topology_free(whole);
}

CASE(what_cannot_be_merged_is_refused)
{
    struct dp_topology *a = topology_made("laptop"), *b = topology_made("laptop"), *c = topology_made("laptop host:2"), *out = NULL;

    assert_int_equal(dp_topology_merge((const struct dp_topology *const[]){a, b}, 2, &out), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "two nodes are named 'node'"));
    assert_int_equal(dp_topology_merge((const struct dp_topology *const[]){a, c}, 2, &out), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "rail0 joins its hosts already"));
    assert_int_equal(dp_topology_merge(NULL, 0, &out), DP_EINVAL);
    assert_int_equal(dp_topology_take_host(a, 1, &out), DP_EINVAL);
    assert_null(out);
    dp_topology_free(a);
    dp_topology_free(b);
    dp_topology_free(c);
}

/* ---- guests --------------------------------------------------------------------------------- */

CASE(a_guest_has_what_was_passed_on)
{
    struct dp_topology *t = topology_made("hgx-a100"), *guest = NULL;

    assert_int_equal(dp_topology_remap(t, "# two GPUs, a NIC\r\ngpu0 0001:00:00.0\n\n"
                                          "gpu1\t 0002:00:00.0 # the second\nmlx5_1 0101:00:00.1\n"
                                          "gpu7 0003:00:00.0\nnuma0 0-47\n", &guest), 0);
    assert_int_equal(dp_topology_next(guest, DP_TOPO_GPU, -1, topology_node(guest, "gpu2") + 1), -1);
    assert_int_equal(topology_way(guest, "0001:00:00.0", "0101:00:00.1").class_, DP_TOPO_PIX);
    assert_int_equal(topology_way(guest, "gpu0", "nic0").class_, DP_TOPO_PIX);
    assert_int_equal(topology_way(guest, "gpu0", "0003:00:00.0").nvlinks, 12);
    assert_string_equal(dp_topology_text(guest, guest->nodes[topology_node(guest, "numa0")].cpus), "0-47");
    assert_int_equal(guest->nodes[topology_node(guest, "switch0")].pci.domain, 0xffff);
    assert_int_equal(guest->nodes[topology_node(guest, "gpu2")].os_index, -1);
    int32_t nic;
    assert_int_equal(dp_topology_find(guest, "mlx5_1", &nic), DP_EINVAL);
    dp_topology_free(guest);
    dp_topology_free(t);
}

CASE(errors_in_a_map_give_the_line)
{
    static const struct {
        const char *map, *says;
    } cases[] = {
        {"gpu0", "line 1 of the map: expected two words"},
        {"\ngpu0 0001:00:00.0 x", "line 2 of the map: expected two words"},
        {"gpu99 0001:00:00.0", "'gpu99' is no node"},
        {"gpu0 0000:-1:00.0", "expected an address"},
        {"gpu0 1", "line 1 of the map: '1', expected an address"},
        {"gpu0 0001:00:00.0\ngpu0 0002:00:00.0", "line 2 of the map: gpu0 or 0002:00:00.0 is there twice"},
        {"gpu0 0001:00:00.0\ngpu1 0001:00:00.0", "is there twice"},
        {"numa0 all", "expected CPUs"},
        {"switch0 0001:00:00.0", "switch0 is a switch, expected a GPU"},
    };

    struct dp_topology *t = topology_made("hgx-a100"), *guest = NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(dp_topology_remap(t, cases[i].map, &guest), DP_EINVAL);
        if (!strstr(dp_last_error(), cases[i].says))
            fail_msg("%s says: %s", cases[i].map, dp_last_error());
    }
    dp_topology_free(t);
    t = topology_made("laptop host:2");
    assert_int_equal(dp_topology_remap(t, "", &guest), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "a topology of 2 hosts, expected the one"));
    assert_null(guest);
    dp_topology_free(t);
}

int main(void)
{
    topology_quietly();
    return run_cases(NULL, NULL);
}
