/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_choice.c - which ports are used, which of their GIDs towards a peer, and which traffic
 * class.
 */
#include "cmocka_all.h"

#include "nccl-plugin/options.h"
#include "nccl-plugin/verbs/options.h"
#include "nccl-plugin/verbs/gid.h"

#include <arpa/inet.h>

/* ---- NCCL_IB_HCA ----------------------------------------------------------------------------- */

CASE(the_filter_admits_what_it_names)
{
    static const struct {
        const char *list, *device;
        int port;
        bool admitted;
        int rail, plane;
    } cases[] = {
        {NULL, "mlx5_0", 1, true, -1, -1},
        {"", "mlx5_0", 1, true, -1, -1},
        {"mlx5", "mlx5_0", 1, true, -1, -1},
        {"mlx5", "bnxt_re0", 1, false, -1, -1},
        {"mlx5_1", "mlx5_10", 1, true, -1, -1},
        {"=mlx5_1", "mlx5_10", 1, false, -1, -1},
        {"=mlx5_1", "mlx5_1", 2, true, -1, -1},
        {"mlx5_0:1", "mlx5_0", 1, true, -1, -1},
        {"mlx5_0:1", "mlx5_0", 2, false, -1, -1},
        {"mlx5_0:1,mlx5_2:2", "mlx5_2", 2, true, -1, -1},
        {"^mlx5_2", "mlx5_2", 1, false, -1, -1},
        {"^mlx5_2", "mlx5_20", 1, false, -1, -1},
        {"^=mlx5_2", "mlx5_20", 1, true, -1, -1},
        {"^mlx5_2:1", "mlx5_2", 2, true, -1, -1},
        {"mlx5_0:1:3:2", "mlx5_0", 1, true, 3, 2},
        {"mlx5_0:1:3", "mlx5_0", 1, true, 3, -1},
        {"mlx5_0:x", "mlx5_0", 2, true, -1, -1},
        {",,", "mlx5_0", 1, false, -1, -1},
        {"^", "mlx5_0", 1, true, -1, -1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dpn_rail_place place;
        const bool admitted =
            dpn_verbs_filter(cases[i].list, cases[i].device, cases[i].port, &place);
        if (admitted != cases[i].admitted || place.rail != cases[i].rail ||
            place.plane != cases[i].plane)
            fail_msg("NCCL_IB_HCA=%s, %s port %d", cases[i].list, cases[i].device, cases[i].port);
    }
}

/* ---- options --------------------------------------------------------------------------------- */

CASE(a_range_is_an_address_and_a_number_of_bits)
{
    static const char *const wrong[] = {"", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "/8",
                                        "10.0.0.0/8x", "10.0.0/8", "fd00::/129", "fd00::/-1",
                                        "1234567890123456789012345678901234567890123456789/8"};
    struct dpn_range range;

    assert_int_equal(dpn_range_parse("10.1.0.0/16", &range), 0);
    assert_int_equal(range.prefix, 112);
    assert_int_equal(dpn_range_parse("fd00::/64", &range), 0);
    assert_int_equal(range.prefix, 64);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(dpn_range_parse(wrong[i], &range), DP_EINVAL);
}

/* ---- GIDs ------------------------------------------------------------------------------------ */

enum { V1 = IBV_GID_TYPE_ROCE_V1, V2 = IBV_GID_TYPE_ROCE_V2, IB = IBV_GID_TYPE_IB };

struct line {
    int index, type;
    const char *address;
};

static struct ibv_gid_entry entry(const struct line *line)
{
    struct ibv_gid_entry e = {.gid_index = (uint32_t)line->index, .port_num = 1,
                              .gid_type = (uint32_t)line->type};

    if (strchr(line->address, ':')) {
        assert_int_equal(inet_pton(AF_INET6, line->address, e.gid.raw), 1);
    } else {
        memset(&e.gid.raw[10], 0xff, 2);
        assert_int_equal(inet_pton(AF_INET, line->address, &e.gid.raw[12]), 1);
    }
    return e;
}

/* A line with a NULL address is the last. */
static struct dpn_gids gids(const struct line *lines, const struct dpn_verbs_options *options)
{
    struct ibv_gid_entry table[32];
    struct dpn_gids out;
    int count = 0;

    for (; lines[count].address; count++)
        table[count] = entry(&lines[count]);
    dpn_gids_choose(table, count, 1, options, &out);
    return out;
}

static struct dpn_verbs_options defaults(void)
{
    return (struct dpn_verbs_options){.gid_index = DPN_AUTO, .roce_version = DPN_AUTO};
}

/* As a RoCE adapter has them with one IPv4 address and one of IPv6. */
static const struct line two_addresses[] = {
    {0, V1, "fe80::1"}, {1, V2, "fe80::1"}, {2, V1, "10.0.0.1"}, {3, V2, "10.0.0.1"},
    {4, V1, "fd00::1"}, {5, V2, "fd00::1"}, {0, 0, NULL}};

static void must_choose(const struct line *ours, const struct line *theirs,
                        const struct dpn_verbs_options *options, int our, int their)
{
    const struct dpn_gids a = gids(ours, options), b = gids(theirs, options);
    struct dpn_gid x = {.index = 99}, y = {.index = 99};

    assert_int_equal(dpn_gids_match(&a, &b, options, &x, &y), our >= 0);
    if (our < 0)
        return;
    assert_int_equal(x.index, our);
    assert_int_equal(y.index, their);
}

CASE(version_2_over_ipv4_is_the_default_choice)
{
    struct dpn_verbs_options o = defaults();

    must_choose(two_addresses, two_addresses, &o, 3, 3);
    o.roce_version = 1;
    must_choose(two_addresses, two_addresses, &o, 2, 2);
}

CASE(link_local_is_used_only_without_another_address)
{
    static const struct line lonely[] = {{0, V2, "fe80::2"}, {0, 0, NULL}};
    static const struct line self_made[] = {{0, V2, "169.254.3.4"}, {1, V1, "10.0.0.2"}, {0, 0, NULL}};
    const struct dpn_verbs_options o = defaults();

    must_choose(two_addresses, lonely, &o, 1, 0);
    must_choose(two_addresses, self_made, &o, 2, 1); /* even if it takes version 1 */
}

CASE(the_subnet_of_the_peer_decides_among_equals)
{
    static const struct line many[] = {{0, V2, "192.168.7.1"}, {1, V2, "10.2.0.1"}, {2, V2, "10.1.0.1"},
                                       {0, 0, NULL}};
    static const struct line peer[] = {{4, V2, "172.16.0.9"}, {5, V2, "10.1.0.9"}, {0, 0, NULL}};
    const struct dpn_verbs_options o = defaults();

    must_choose(many, peer, &o, 2, 5);
}

CASE(the_order_of_the_table_is_of_no_importance)
{
    static const struct line shuffled[] = {{7, V2, "10.0.0.1"}, {0, V1, "10.0.0.1"}, {3, V2, "fe80::1"},
                                           {0, 0, NULL}};
    const struct dpn_verbs_options o = defaults();

    must_choose(shuffled, two_addresses, &o, 7, 3);
}

CASE(options_narrow_the_choice)
{
    struct dpn_verbs_options o = defaults();

    o.family = AF_INET6;
    must_choose(two_addresses, two_addresses, &o, 5, 5);
    o = defaults();
    o.gid_index = 1;
    must_choose(two_addresses, two_addresses, &o, 1, 1);
    o = defaults();
    assert_int_equal(dpn_range_parse("fd00::/16", &o.range), 0);
    must_choose(two_addresses, two_addresses, &o, 5, 5);
    o = defaults();
    o.gid_index = 77; /* no port has it */
    must_choose(two_addresses, two_addresses, &o, -1, -1);
}

CASE(a_gid_that_routers_know_stands_for_the_port)
{
    static const struct line far[] = {{0, IB, "fe80::2"}, {1, IB, "fe80:0:12:34::2"}, {0, 0, NULL}};
    static const struct line near[] = {{0, IB, "fe80::3"}, {1, IB, "fe80::1:0:0:0:3"}, {0, 0, NULL}};
    struct dpn_verbs_options o = defaults();

    o.flid_index = 1;
    must_choose(far, far, &o, 1, 1);
    must_choose(near, near, &o, 0, 0);
    assert_int_equal(dpn_gid_flid(&gids(far, &o).list[0]), 0x12);
    o.flid_index = 2;
    must_choose(far, near, &o, 0, 0);
    o.flid_index = 1;
    o.gid_index = 0; /* explicitly */
    must_choose(far, far, &o, 0, 0);
}

CASE(what_cannot_talk_is_not_joined)
{
    static const struct line v4[] = {{0, V2, "10.0.0.1"}, {0, 0, NULL}};
    static const struct line v6[] = {{0, V2, "fd00::1"}, {0, 0, NULL}};
    static const struct line ib[] = {{0, IB, "fe80::2"}, {0, 0, NULL}};
    const struct dpn_verbs_options o = defaults();

    must_choose(v4, v6, &o, -1, -1);
    must_choose(v4, ib, &o, -1, -1);
    must_choose(ib, ib, &o, 0, 0);
}

CASE(holes_are_left_out_and_the_best_of_many_stay)
{
    struct line lines[32] = {{0, V2, "::"}};
    const struct dpn_verbs_options o = defaults();

    for (int i = 1; i < 31; i++)
        lines[i] = (struct line){i, V1, "fe80::1"};
    lines[30] = (struct line){30, V2, "10.0.0.1"};
    const struct dpn_gids g = gids(lines, &o);
    assert_int_equal(g.count, DPN_MAX_GIDS);
    assert_int_equal(g.list[0].index, 30);
    for (int i = 0; i < g.count; i++)
        assert_int_not_equal(g.list[i].index, 0);
}

/* The address of the loopback is here; 203.0.113.77 is kept for documents, and nowhere. */
CASE(gids_of_other_network_namespaces_come_last)
{
    static const struct {
        struct line line;
        uint32_t ifindex;
        bool is_foreign;
    } cases[] = {
        {{0, V2, "127.0.0.1"}, 1, false},    {{1, V2, "203.0.113.77"}, 1, true},
        {{2, V2, "127.0.0.1"}, 7777, false}, {{3, V2, "203.0.113.77"}, 0, false},
        {{4, V2, "fe80::1"}, 1, false},      {{5, V2, "fe80::1"}, 7777777, true},
        {{6, V2, "2001:db8::77"}, 1, true},  {{7, IB, "2001:db8::77"}, 1, false},
    };
    enum { COUNT = sizeof(cases) / sizeof(cases[0]), FOREIGN = 3 };
    struct dpn_verbs_options o = defaults();
    struct ibv_gid_entry table[COUNT];
    char text[DPN_GID_TEXT];
    struct dpn_gids g;

    for (int i = 0; i < COUNT; i++) {
        table[i] = entry(&cases[i].line);
        table[i].ndev_ifindex = cases[i].ifindex;
    }
    dpn_gids_choose(table, COUNT, 1, &o, &g);
    assert_int_equal(g.count, COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(g.list[i].is_foreign, cases[g.list[i].index].is_foreign);
        assert_int_equal(g.list[i].is_foreign, i >= COUNT - FOREIGN);
    }
    o.gid_index = 1; /* the operator's choice */
    dpn_gids_choose(table, COUNT, 1, &o, &g);
    assert_int_equal(g.count, 1);
    assert_string_equal(dpn_gid_text(&g.list[0], text),
                        "203.0.113.77 (index 1, RoCE v2, other namespace)");
    o = defaults();
    assert_int_equal(dpn_range_parse("203.0.113.0/24", &o.range), 0);
    dpn_gids_choose(table, COUNT, 1, &o, &g);
    assert_int_equal(g.list[0].index, 3);
    assert_int_equal(g.list[1].index, 1);
}

/* A pair of one that is link-local with one that is not works, though it is never chosen. */
CASE(a_forced_gid_is_used_whatever_the_peer_has)
{
    static const struct line local[] = {{1, V2, "fe80::1"}, {0, 0, NULL}};
    static const struct line global[] = {{1, V2, "fd00::1"}, {0, 0, NULL}};
    struct dpn_verbs_options o = defaults();

    must_choose(local, global, &o, -1, -1);
    o.gid_index = 1;
    must_choose(local, global, &o, 1, 1);
}

CASE(infiniband_ports_of_two_subnets_are_joined)
{
    static const struct line ours[] = {{0, IB, "fe80::1"}, {0, 0, NULL}};
    static const struct line theirs[] = {{0, IB, "fec0:0:0:2::2"}, {0, 0, NULL}};
    static const struct line beside[] = {{0, IB, "fe80:0:77::2"}, {0, 0, NULL}};
    const struct dpn_verbs_options o = defaults();

    must_choose(ours, theirs, &o, 0, 0);
    assert_true(dpn_gids_differ_in_subnet(&gids(ours, &o).list[0], &gids(theirs, &o).list[0]));
    assert_false(dpn_gids_differ_in_subnet(&gids(ours, &o).list[0], &gids(beside, &o).list[0]));
}

CASE(a_gid_is_printed_with_index_and_kind)
{
    const struct dpn_verbs_options o = defaults();
    const struct dpn_gids g = gids(two_addresses, &o);
    char text[DPN_GID_TEXT];

    assert_string_equal(dpn_gid_text(&g.list[0], text), "10.0.0.1 (index 3, RoCE v2)");
}

/* ---- classes --------------------------------------------------------------------------------- */

CASE(connections_for_send_and_receive_are_the_pipelines)
{
    const uint32_t all_reduce = 1u << 4, send_recv = 1u << 5, send = 1u << 6, all_to_all = 1u << 8;

    assert_int_equal(dpn_traffic_of(send), DPN_TRAFFIC_PIPELINE);
    assert_int_equal(dpn_traffic_of(send_recv | send | all_to_all), DPN_TRAFFIC_PIPELINE);
    assert_int_equal(dpn_traffic_of(all_reduce), DPN_TRAFFIC_GRADIENT);
    assert_int_equal(dpn_traffic_of(all_reduce | send), DPN_TRAFFIC_GRADIENT);
    assert_int_equal(dpn_traffic_of(UINT32_MAX), DPN_TRAFFIC_ANY);
    assert_int_equal(dpn_traffic_of(0), DPN_TRAFFIC_ANY);
}

CASE(a_kinds_class_goes_before_the_operators_and_the_communicators)
{
    assert_int_equal(dpn_traffic_choose(96, 104, 8, 255), 96);
    assert_int_equal(dpn_traffic_choose(-1, 104, 8, 255), 104);
    assert_int_equal(dpn_traffic_choose(-1, -1, 8, 255), 8);
    assert_int_equal(dpn_traffic_choose(-1, -1, -1, 255), 0);
    assert_int_equal(dpn_traffic_choose(-1, -1, 104, 15), 0); /* no service level */
}
