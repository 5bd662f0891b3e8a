/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_interfaces.c - which interfaces the plugin offers to NCCL, and their properties from
 * sysfs. The hosts are invented.
 */
#include "cmocka_all.h"
#include "scratch.h"

#include "nccl-plugin/net/devices.h"
#include "wire/tcp.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>

/* ---- names ------------------------------------------------------------------------------------ */

CASE(a_list_admits_what_it_names)
{
    static const struct {
        const char *list, *name;
        bool admitted;
    } cases[] = {
        {"eth", "eth0", true},       {"eth", "veth0", false},    {"eth0", "eth01", true},
        {"=eth0", "eth01", false},   {"=eth0", "eth0", true},    {"eth,ib", "ib0", true},
        {"eth,ib", "lo", false},     {"^eth", "eth0", false},    {"^eth", "lo", true},
        {"^docker,lo", "lo", false}, {"^docker,lo", "eth0", true}, {"^=eth0", "eth01", true},
        {"^=eth0", "eth0", false},   {"=eth0,eth1", "eth1", true}, {"=eth0,eth1", "eth10", false},
        {"eth0,,ib", "lo", false},   {",", "lo", false},         {"^", "lo", true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (dpn_interface_is_wanted(cases[i].list, cases[i].name) != cases[i].admitted)
            fail_msg("%s: %s", cases[i].list, cases[i].name);
}

/* ---- hosts ------------------------------------------------------------------------------------ */

enum { MOST = 8 };

/* "NAME ADDRESS/PREFIX", with ! before what is down, ~ before what has no carrier, and no address
 * of an interface that has none. */
struct host {
    struct ifaddrs list[MOST];
    struct sockaddr_storage addresses[MOST], masks[MOST];
    char names[MOST][IFNAMSIZ];
};

static void *bytes_of(struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET ? (void *)&((struct sockaddr_in *)(void *)a)->sin_addr
                                   : (void *)&((struct sockaddr_in6 *)(void *)a)->sin6_addr;
}

static void add(struct host *h, int at, const char *line)
{
    char address[64];
    int prefix;

    h->list[at].ifa_flags = *line == '!' ? 0 : *line == '~' ? IFF_UP : IFF_UP | IFF_RUNNING;
    h->list[at].ifa_name = h->names[at];
    if (at)
        h->list[at - 1].ifa_next = &h->list[at];
    const int read = sscanf(line + (*line == '!' || *line == '~'), "%15s %63[^/]/%d", h->names[at],
                            address, &prefix);
    if (read == 1)
        return;
    assert_int_equal(read, 3);
    const sa_family_t family = strchr(address, ':') ? AF_INET6 : AF_INET;
    h->addresses[at].ss_family = h->masks[at].ss_family = family;
    assert_int_equal(inet_pton(family, address, bytes_of(&h->addresses[at])), 1);
    for (int bit = 0; bit < prefix; bit++)
        ((unsigned char *)bytes_of(&h->masks[at]))[bit / 8] |= (unsigned char)(0x80 >> bit % 8);
    h->list[at].ifa_addr = (struct sockaddr *)&h->addresses[at];
    h->list[at].ifa_netmask = (struct sockaddr *)&h->masks[at];
}

/* The names and addresses that are chosen, as one line. */
static const char *choose(const char *const *lines, const char *list, const char *family,
                          const char *comm_id)
{
    const struct dpn_interface_rules rules = {list, family, comm_id};
    struct dpn_interface chosen[MOST];
    struct host h = {.list = {{.ifa_next = NULL}}};
    static char text[MOST * 80];

    for (int i = 0; lines[i]; i++)
        add(&h, i, lines[i]);
    const int count = dpn_interfaces_choose(h.list, &rules, chosen, MOST);
    char *at = text;
    *at = '\0';
    for (int i = 0; i < count; i++)
        at += sprintf(at, "%s%.15s %.47s", i ? ", " : "", chosen[i].name, chosen[i].address);
    return text;
}

static const char *const plain[] = {
    "lo 127.0.0.1/8", "eth0 10.0.0.1/24",     "eth1 10.0.1.1/24", "docker0 172.17.0.1/16",
    "lo ::1/128",     "eth0 fe80::1/64",      "eth1 fd00::1/64",  NULL,
};

CASE(without_a_rule_the_best_kind_is_taken)
{
    static const char *const with_ib[] = {"eth0 10.0.0.1/24", "ib0 10.1.0.1/24", "ib1 10.1.1.1/24",
                                          NULL};
    static const char *const docker_only[] = {"lo 127.0.0.1/8", "docker0 172.17.0.1/16",
                                              "virbr0 192.168.122.1/24", NULL};
    static const char *const virbr_only[] = {"virbr0 192.168.122.1/24", "!eth0 10.0.0.1/24", NULL};

    assert_string_equal(choose(plain, NULL, NULL, NULL), "eth0 10.0.0.1, eth1 10.0.1.1");
    assert_string_equal(choose(with_ib, NULL, NULL, NULL), "ib0 10.1.0.1, ib1 10.1.1.1");
    assert_string_equal(choose(docker_only, NULL, NULL, NULL), "docker0 172.17.0.1");
    assert_string_equal(choose(virbr_only, NULL, NULL, NULL), "virbr0 192.168.122.1");
}

CASE(the_best_kind_is_found_behind_more_than_are_taken)
{
    struct host h = {.list = {{.ifa_next = NULL}}};
    const struct dpn_interface_rules rules = {NULL, NULL, NULL};
    struct dpn_interface chosen[1];

    for (int i = 0; plain[i]; i++)
        add(&h, i, plain[i]);
    assert_int_equal(dpn_interfaces_choose(h.list, &rules, chosen, 1), 1);
    assert_string_equal(chosen[0].name, "eth0");
}

CASE(what_has_no_carrier_is_passed_over)
{
    static const char *const lines[] = {"lo 127.0.0.1/8", "~eno1 192.168.50.1/24",
                                        "eth0 10.78.0.1/24", "~docker0 172.17.0.1/16", NULL};

    assert_string_equal(choose(lines, NULL, NULL, NULL), "eth0 10.78.0.1");
    assert_string_equal(choose(lines, "^lo,docker,virbr", NULL, NULL), "eth0 10.78.0.1");
    assert_string_equal(choose(lines, "eno1,eth0", NULL, "192.168.50.2:1"), "eth0 10.78.0.1");
    assert_string_equal(choose(lines, "=eno1", NULL, NULL), "");
}

CASE(what_is_admitted_and_cannot_be_used_is_named)
{
    static const char *const lines[] = {
        "eth0",          "lo 127.0.0.1/8", "~eno1 192.168.50.1/24", "!eth3 10.0.0.1/24",
        "eth0 fe80::1/64", "eth1 10.0.1.1/24", "eth2",              "~eno1 fe80::2/64", NULL,
    };
    static const struct {
        const char *list, *family, *said;
    } cases[] = {
        {NULL, NULL, "eth0 (only a link-local address), eno1 (no carrier), eth2 (no address)"},
        {"=eth0", NULL, "eth0 (only a link-local address)"},
        {"eth", NULL, "eth0 (only a link-local address), eth3 (down), eth2 (no address)"},
        {"eth1", "AF_INET6", "eth1 (no address of NCCL_SOCKET_FAMILY)"},
        {"eth1,lo", NULL, ""},
    };
    struct host h = {.list = {{.ifa_next = NULL}}};
    char said[256];

    for (int i = 0; lines[i]; i++)
        add(&h, i, lines[i]);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct dpn_interface_rules rules = {cases[i].list, cases[i].family, NULL};
        dpn_interfaces_unusable(h.list, &rules, said, sizeof(said));
        assert_string_equal(said, cases[i].said);
    }
}

CASE(a_list_is_all_that_counts)
{
    assert_string_equal(choose(plain, "lo,docker", NULL, NULL), "lo 127.0.0.1, docker0 172.17.0.1");
    assert_string_equal(choose(plain, "^lo,docker", NULL, "127.0.0.1:1"),
                        "eth0 10.0.0.1, eth1 10.0.1.1");
    assert_string_equal(choose(plain, "=eth", NULL, NULL), "");
}

CASE(a_family_excludes_the_other)
{
    assert_string_equal(choose(plain, NULL, "AF_INET6", NULL), "eth1 fd00::1");
    assert_string_equal(choose(plain, NULL, "AF_INET", NULL), "eth0 10.0.0.1, eth1 10.0.1.1");
    assert_string_equal(choose(plain, "eth0", "AF_INET6", NULL), "");
}

CASE(the_subnet_of_the_communicator_is_preferred)
{
    assert_string_equal(choose(plain, NULL, NULL, "10.0.1.77:4000"), "eth1 10.0.1.1");
    assert_string_equal(choose(plain, NULL, NULL, "172.17.5.5:4000"), "docker0 172.17.0.1");
    assert_string_equal(choose(plain, NULL, NULL, "127.0.0.1:4000"), "lo 127.0.0.1");
    assert_string_equal(choose(plain, NULL, NULL, "[fd00::77]:4000"), "eth1 fd00::1");
}

CASE(another_subnet_changes_nothing)
{
    static const char *const ids[] = {"10.9.9.9:4000", "[fd01::1]:4000", "a-host:4000", "", "10.0.1.1",
                                      "[fd00::77:4000", "999.0.0.1:1"};

    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        assert_string_equal(choose(plain, NULL, NULL, ids[i]), "eth0 10.0.0.1, eth1 10.0.1.1");
}

CASE(infiniband_comes_before_the_subnet)
{
    static const char *const lines[] = {"eth0 10.0.0.1/24", "ib0 10.1.0.1/24", NULL};

    assert_string_equal(choose(lines, NULL, NULL, "10.0.0.2:1"), "ib0 10.1.0.1");
}

CASE(several_interfaces_of_one_subnet_are_several_devices)
{
    static const char *const lines[] = {"eth0 10.0.0.1/24", "eth1 10.0.0.2/24", "eth0 10.0.0.3/24",
                                        NULL};

    assert_string_equal(choose(lines, NULL, NULL, "10.0.0.9:1"), "eth0 10.0.0.1, eth1 10.0.0.2");
}

/* ---- sysfs ------------------------------------------------------------------------------------ */

static char root[SCRATCH_LEN];

static void in_root(const char *path, char out[512])
{
    snprintf(out, 512, "%s/%s", root, path);
}

/* A directory and all above it. */
static void make_dir(const char *path)
{
    char full[512];

    in_root(path, full);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(full, 0700);
    }
    mkdir(full, 0700);
}

static void make_file(const char *path, const char *text)
{
    char full[512];

    in_root(path, full);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void make_link(const char *path, const char *to)
{
    char full[512];

    in_root(path, full);
    assert_int_equal(symlink(to, full), 0);
}

/* An interface lo of a card, as /sys shows a virtio device: a step below the PCI function. */
static int make_root(void **state)
{
    if (!scratch_directory(root, "net-sysfs"))
        return -1;
    make_dir("sys/devices/pci0000:00/0000:00:03.0/virtio0/net/lo");
    make_dir("sys/bus/pci");
    make_dir("sys/bus/virtio");
    make_dir("sys/class/net");
    make_link("sys/devices/pci0000:00/0000:00:03.0/subsystem", "../../../bus/pci");
    make_link("sys/devices/pci0000:00/0000:00:03.0/virtio0/subsystem", "../../../../bus/virtio");
    make_link("sys/class/net/lo", "../../devices/pci0000:00/0000:00:03.0/virtio0/net/lo");
    make_link("sys/devices/pci0000:00/0000:00:03.0/virtio0/net/lo/device", "../../../virtio0");
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    return 0;
}

static int remove_root(void **state)
{
    unsetenv("NCCL_SOCKET_IFNAME");
    return scratch_remove(root);
}

static struct dpn_device find_lo(void)
{
    const struct dpn_net_options options = {.devices = 4, .wire = "auto"};
    static struct dpn_devices found;

    dpn_devices_find(root, &options, &found);
    assert_int_equal(found.count, 1);
    assert_string_equal(found.list[0].interface.name, "lo");
    return found.list[0];
}

CASE_BETWEEN(the_pci_function_is_found_above_a_virtual_device, make_root, remove_root)
{
    struct dpn_device d = find_lo();
    char wanted[512];

    in_root("sys/devices/pci0000:00/0000:00:03.0", wanted);
    assert_string_equal(d.pci_path, wanted);
    free(d.pci_path);
}

CASE_BETWEEN(an_unknown_speed_is_what_nccl_assumes, make_root, remove_root)
{
    static const struct {
        const char *text;
        int speed_mbps;
    } cases[] = {{"100000\n", 100000}, {"-1\n", 10000}, {"", 10000}, {"fast\n", 10000},
                 {"99999999999\n", 10000}, {"0\n", 10000}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_file("sys/class/net/lo/speed", cases[i].text);
        struct dpn_device d = find_lo();
        assert_int_equal(d.speed_mbps, cases[i].speed_mbps);
        free(d.pci_path);
    }
}

CASE_BETWEEN(what_is_not_on_the_bus_has_no_path, make_root, remove_root)
{
    char path[512];

    in_root("sys/devices/pci0000:00/0000:00:03.0/subsystem", path);
    unlink(path);
    assert_null(find_lo().pci_path);
}

CASE(with_no_devices_wanted_none_is_looked_for)
{
    const struct dpn_net_options options = {.devices = 0, .wire = "auto"};
    static struct dpn_devices found;

    dpn_devices_find("", &options, &found);
    assert_int_equal(found.count, 0);
}

CASE(a_list_that_admits_nothing_leaves_no_device)
{
    const struct dpn_net_options options = {.devices = 4, .wire = "auto"};
    static struct dpn_devices found;

    setenv("NCCL_SOCKET_IFNAME", "=nothing", 1);
    dpn_devices_find("", &options, &found);
    unsetenv("NCCL_SOCKET_IFNAME");
    assert_int_equal(found.count, 0);
}

static int sockets_of(const char *threads, const char *each, const char *ours)
{
    struct dp_wire_address address = {{0}};
    struct dp_tcp_address a;

    setenv("NCCL_SOCKET_NTHREADS", threads, 1);
    setenv("NCCL_NSOCKS_PERTHREAD", each, 1);
    setenv("DUALPIPE_WIRE_TCP_SOCKETS", ours, 1);
    assert_int_equal(dpn_sockets_tell(&address), 0);
    unsetenv("NCCL_SOCKET_NTHREADS");
    unsetenv("NCCL_NSOCKS_PERTHREAD");
    unsetenv("DUALPIPE_WIRE_TCP_SOCKETS");
    memcpy(&a, &address, sizeof(a));
    return a.sockets;
}

CASE(sockets_of_nccls_variables_count_unless_ours_are_set)
{
    assert_int_equal(sockets_of("", "", "0"), 0);
    assert_int_equal(sockets_of("2", "3", "0"), 6);
    assert_int_equal(sockets_of("", "4", "0"), 4);
    assert_int_equal(sockets_of("0", "2", "0"), 2); /* the caller's own thread is one, too */
    assert_int_equal(sockets_of("4", "", "0"), 4);
    assert_int_equal(sockets_of("16", "4", "0"), DP_TCP_SOCKETS_MAX);
    assert_int_equal(sockets_of("many", "2", "0"), 2);
    assert_int_equal(sockets_of("2", "3", "5"), 0); /* the listener has put it into the address */
}

static void count_warning(void *user, enum dp_log_level level, const char *line)
{
    if (level == DP_LOG_WARN && strstr(line, "NCCL_NSOCKS_PERTHREAD=few: expected a number"))
        ++*(int *)user;
}

CASE(invalid_sockets_are_reported_once)
{
    int count = 0;

    dp_log_set(count_warning, &count, DP_LOG_WARN);
    assert_int_equal(sockets_of("2", "few", "0"), 2);
    assert_int_equal(sockets_of("2", "few", "0"), 2);
    dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
    assert_int_equal(count, 1);
}
