/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: struct ifaddrs' flags */

#include "nccl-plugin/net/devices.h"

#include "base/fail.h"
#include "base/text.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/verbs/verbs.h"
#include "wire/tcp.h"
#include "wire/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- interfaces ------------------------------------------------------------------------------ */

static bool begins_with(const char *name, const char *prefix, size_t len)
{
    return len && !strncmp(name, prefix, len);
}

bool dpn_interface_is_wanted(const char *list, const char *name)
{
    const bool excludes = *list == '^';
    bool is_listed = false;

    list += excludes;
    const bool whole = *list == '=';
    for (list += whole; *list; list += *list == ',') {
        const size_t len = strcspn(list, ",");
        is_listed |= begins_with(name, list, len) && (!whole || len == strlen(name));
        list += len;
    }
    return is_listed != excludes;
}

/* What is first where there is a choice: 0 ib*; 1 any other; 2 docker*; 3 lo*; 4 virbr*. */
static int group_of(const char *name)
{
    static const struct {
        const char *prefix;
        int group;
    } groups[] = {{"ib", 0}, {"docker", 2}, {"lo", 3}, {"virbr", 4}};

    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        if (begins_with(name, groups[i].prefix, strlen(groups[i].prefix)))
            return groups[i].group;
    return 1;
}

static const uint8_t *bytes_of(const struct sockaddr *a)
{
    return a->sa_family == AF_INET
               ? (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
               : (const void *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
}

static bool write_address(const struct sockaddr *a, char out[DPN_ADDRESS_TEXT])
{
    const void *ip = bytes_of(a);

    if (a->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)ip))
        return false; /* it means nothing without its scope */
    return inet_ntop(a->sa_family, ip, out, DPN_ADDRESS_TEXT);
}

static bool is_known(const struct dpn_interface *all, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(all[i].name, name))
            return true;
    return false;
}

/* ---- subnets --------------------------------------------------------------------------------- */

static bool is_near(const struct ifaddrs *i, const struct sockaddr *near)
{
    const size_t len = near->sa_family == AF_INET ? 4 : 16;

    if (i->ifa_addr->sa_family != near->sa_family || !i->ifa_netmask)
        return false;
    for (size_t k = 0; k < len; k++)
        if ((bytes_of(i->ifa_addr)[k] ^ bytes_of(near)[k]) & bytes_of(i->ifa_netmask)[k])
            return false;
    return true;
}

/* "10.0.0.1:1234", "[fd00::1]:1234" */
static bool read_comm_id(const char *text, struct sockaddr_storage *out)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    const bool brackets = text && *text == '[';
    const char *host = brackets ? text + 1 : text;
    const char *end = host ? strchr(host, brackets ? ']' : ':') : NULL;
    struct addrinfo *found;
    char name[DPN_ADDRESS_TEXT];

    if (!end || (size_t)(end - host) >= sizeof(name))
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)(end - host), host);
    if (getaddrinfo(name, NULL, &hints, &found))
        return false;
    memcpy(out, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return true;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* Nothing is answered over a link without a carrier. */
static bool is_running(const struct ifaddrs *i)
{
    return (i->ifa_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
}

static bool admits_family(const struct dpn_interface_rules *rules, int family)
{
    return !rules->family || strcmp(rules->family, family == AF_INET ? "AF_INET6" : "AF_INET");
}

/* Append the interfaces that have an address of one family; near: in one subnet with it, if not
 * NULL. */
static int add_family(const struct ifaddrs *all, const char *list, int family,
                      const struct sockaddr *near, struct dpn_interface *out, int count, int max)
{
    for (const struct ifaddrs *i = all; i && count < max; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != family || !is_running(i) ||
            is_known(out, count, i->ifa_name) ||
            (list && !dpn_interface_is_wanted(list, i->ifa_name)) || (near && !is_near(i, near)))
            continue;
        if (!write_address(i->ifa_addr, out[count].address))
            continue;
        snprintf(out[count++].name, DPN_INTERFACE_NAME, "%s", i->ifa_name);
    }
    return count;
}

static int add_both(const struct ifaddrs *all, const struct dpn_interface_rules *rules,
                    const struct sockaddr *near, struct dpn_interface *out, int max)
{
    int count = 0;

    if (admits_family(rules, AF_INET))
        count = add_family(all, rules->list, AF_INET, near, out, count, max);
    if (admits_family(rules, AF_INET6))
        count = add_family(all, rules->list, AF_INET6, near, out, count, max);
    return count;
}

static int first_group(const struct dpn_interface *all, int count)
{
    int first = INT32_MAX;

    for (int i = 0; i < count; i++)
        if (group_of(all[i].name) < first)
            first = group_of(all[i].name);
    return first;
}

static int keep_group(struct dpn_interface *all, int count, int group)
{
    int kept = 0;

    for (int i = 0; i < count; i++)
        if (group_of(all[i].name) == group)
            all[kept++] = all[i];
    return kept;
}

static int choose_interfaces(const struct ifaddrs *all, const struct dpn_interface_rules *rules,
                             struct dpn_interface *out, int max)
{
    struct sockaddr_storage near;
    int count = add_both(all, rules, NULL, out, max);
    const int first = first_group(out, count);

    if (rules->list)
        return count;
    if (first > 0 && read_comm_id(rules->comm_id, &near)) {
        const int near_count = add_both(all, rules, (const struct sockaddr *)&near, out, max);
        if (near_count)
            return near_count;
        count = add_both(all, rules, NULL, out, max);
    }
    return keep_group(out, count, first);
}

/* The best may stand behind any number of bridges. */
int dpn_interfaces_choose(const struct ifaddrs *all, const struct dpn_interface_rules *rules,
                          struct dpn_interface *out, int max)
{
    struct dpn_interface good[1024];
    const int count = choose_interfaces(all, rules, good, sizeof(good) / sizeof(good[0]));
    const int kept = count < max ? count : max;

    memcpy(out, good, (size_t)kept * sizeof(good[0]));
    return kept;
}

/* ---- what is passed over --------------------------------------------------------------------- */

/* NULL: it can be used. */
static const char *find_fault(const struct ifaddrs *all, const struct dpn_interface_rules *rules,
                              const struct ifaddrs *interface)
{
    char text[DPN_ADDRESS_TEXT];
    const char *fault = "no address";

    if (!(interface->ifa_flags & IFF_UP))
        return rules->list ? "down" : NULL;
    if (!is_running(interface))
        return "no carrier";
    for (; all; all = all->ifa_next) {
        const int family = all->ifa_addr ? all->ifa_addr->sa_family : AF_UNSPEC;
        if (strcmp(all->ifa_name, interface->ifa_name) || (family != AF_INET && family != AF_INET6))
            continue;
        if (!admits_family(rules, family))
            fault = "no address of NCCL_SOCKET_FAMILY";
        else if (write_address(all->ifa_addr, text))
            return NULL;
        else
            fault = "only a link-local address";
    }
    return fault;
}

void dpn_interfaces_unusable(const struct ifaddrs *all, const struct dpn_interface_rules *rules,
                             char *out, size_t out_len)
{
    size_t at = 0;

    *out = '\0';
    for (const struct ifaddrs *i = all; i && at < out_len; i = i->ifa_next) {
        const struct ifaddrs *first = all;
        while (strcmp(first->ifa_name, i->ifa_name))
            first = first->ifa_next;
        const char *fault =
            first != i || (rules->list && !dpn_interface_is_wanted(rules->list, i->ifa_name))
                ? NULL
                : find_fault(all, rules, i);
        if (fault)
            at += (size_t)snprintf(out + at, out_len - at, "%s%s (%s)", at ? ", " : "", i->ifa_name,
                                   fault);
    }
}

/* What there is to choose on this host, and what is unusable. */
static int choose_here(const struct dpn_interface_rules *rules, struct dpn_interface *out, int max,
                       char *unusable, size_t unusable_len)
{
    struct ifaddrs *all = NULL;

    *unusable = '\0';
    if (getifaddrs(&all)) {
        dp_log(DP_LOG_WARN, "cannot list the network interfaces: %s", dp_errno_text(errno));
        return 0;
    }
    const int count = dpn_interfaces_choose(all, rules, out, max);
    dpn_interfaces_unusable(all, rules, unusable, unusable_len);
    freeifaddrs(all);
    return count;
}

/* ---- how many sockets a connection has ------------------------------------------------------- */

/* 0: not set, or left to NCCL. One that is wrong is said once, and not for each listener. */
static long number_of(const char *name, atomic_flag *is_said)
{
    const char *text = dp_foreign_variable(name);
    char *end;

    if (!text)
        return 0;
    const long number = strtol(text, &end, 10);
    if (*end || number < -2 || number > 64) {
        if (!atomic_flag_test_and_set(is_said))
            dp_log(DP_LOG_WARN, "%s=%s: expected a number up to 64; going on without", name, text);
        return 0;
    }
    return number > 0 ? number : 0;
}

/* NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD, as far as they are set, and no more than there
 * may be; 0: no number is asked for. A value that is none is warned of, once. */
static int sockets_asked_for(void)
{
    static atomic_flag threads_said = ATOMIC_FLAG_INIT, each_said = ATOMIC_FLAG_INIT;
    const long threads = number_of("NCCL_SOCKET_NTHREADS", &threads_said);
    const long each = number_of("NCCL_NSOCKS_PERTHREAD", &each_said);
    const long product = (threads ? threads : 1) * (each ? each : 1);

    if (!threads && !each)
        return 0;
    return product < DP_TCP_SOCKETS_MAX ? (int)product : DP_TCP_SOCKETS_MAX;
}

int dpn_sockets_tell(struct dp_wire_address *tcp)
{
    struct dp_wire_options options;
    const int err = dp_options_read(&dp_wire_option_area, &options);

    if (!err && !options.tcp_sockets)
        dp_wire_tcp_ask_for(tcp, sockets_asked_for());
    return err;
}

/* ---- devices --------------------------------------------------------------------------------- */

/* What NCCL assumes of a device that does not know; virtual ones say -1. */
enum { UNKNOWN_SPEED_MBPS = 10000 };

bool dpn_read_line(const char *dir, const char *file, char *line, int len)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir, file);
    FILE *f = fopen(path, "re");
    const bool has = f && fgets(line, len, f);
    if (f)
        fclose(f);
    if (has)
        line[strcspn(line, "\n")] = '\0';
    return has;
}

static int read_speed(const char *root, const char *name)
{
    char dir[PATH_MAX], text[32];

    snprintf(dir, sizeof(dir), "%s/sys/class/net/%s", root, name);
    const long mbps = dpn_read_line(dir, "speed", text, sizeof(text)) ? strtol(text, NULL, 10) : 0;
    return mbps > 0 && mbps < INT_MAX ? (int)mbps : UNKNOWN_SPEED_MBPS;
}

static char *find_pci_path(const char *root, const char *name)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/sys/class/net/%s/device", root, name);
    return dpn_pci_path(path);
}

static void say(const struct dpn_devices *d, const char *why)
{
    struct dp_text t = {0};

    for (int i = 0; i < d->count; i++) {
        const struct dpn_device *dev = &d->list[i];
        dp_text_addf(&t, "%s%s (%s%s, %d Mbit/s)", i ? ", " : "", dev->name,
                     dev->rail_count ? "RDMA, " : "",
                     *dev->interface.address ? dev->interface.address : "no address",
                     dev->speed_mbps);
    }
    dp_log(DP_LOG_INFO, "%d device%s: %s%s%s", d->count, d->count == 1 ? "" : "s",
           t.data ? t.data : "", d->count ? "; " : "", why);
    dp_text_fini(&t);
}

static bool wants(const struct dpn_net_options *options, const char *wire)
{
    return !strcmp(options->wire, "auto") || !strcmp(options->wire, wire);
}

/* NULL: both. */
static const char *wanted_family(void)
{
    const char *family = dp_foreign_variable("NCCL_SOCKET_FAMILY");

    if (!family || !strcmp(family, "AF_INET") || !strcmp(family, "AF_INET6"))
        return family;
    dp_log(DP_LOG_WARN, "NCCL_SOCKET_FAMILY=%s: expected AF_INET or AF_INET6; going on with both",
           family);
    return NULL;
}

static int find_interfaces(const struct dpn_net_options *options, struct dpn_interface *out,
                           char *why, size_t why_len)
{
    const char *list = dp_foreign_variable("NCCL_SOCKET_IFNAME");
    const char *family = wanted_family();
    const struct dpn_interface_rules rules = {list, family, dp_foreign_variable("NCCL_COMM_ID")};
    char unusable[256];
    int count = choose_here(&rules, out, DPN_MAX_PLAIN, unusable, sizeof(unusable));

    snprintf(why, why_len, "%s%s%s%s, DUALPIPE_NET_WIRE=%s", list ? "NCCL_SOCKET_IFNAME=" : "all "
             "interfaces of the best kind", list ? list : "", family ? ", " : "",
             family ? family : "", options->wire);
    if (!count && list) {
        snprintf(why, why_len, "NCCL_SOCKET_IFNAME=%s admits no interface%s", list,
                 *unusable ? " that can be used" : "");
    } else if (!count && wants(options, "shm")) {
        out[count++] = (struct dpn_interface){.name = "lo"};
        snprintf(why, why_len, "no interface %s: shared memory, for peers on this host only",
                 *unusable ? "can be used" : "is up");
    } else if (!count) {
        snprintf(why, why_len, "no interface %s, and DUALPIPE_NET_WIRE is %s",
                 *unusable ? "can be used" : "is up", options->wire);
    }
    if (*unusable)
        snprintf(why + strlen(why), why_len - strlen(why), "; passed over: %s", unusable);
    return count;
}

static void add_interfaces(const char *root, const struct dpn_interface *interfaces, int count,
                           struct dpn_devices *out)
{
    for (int i = 0; i < count; i++) {
        struct dpn_device *device = &out->list[out->count++];
        *device = (struct dpn_device){
            .interface = interfaces[i],
            .pci_path = find_pci_path(root, interfaces[i].name),
            .speed_mbps = read_speed(root, interfaces[i].name),
            .guid = (uint64_t)i, /* the same on all ranks, as NCCL_CROSS_NIC=0 wants it */
            .pointers = NCCL_PTR_HOST, .rail = NCCL_NET_ID_UNDEF, .plane = NCCL_NET_ID_UNDEF,
        };
        snprintf(device->name, sizeof(device->name), "%.*s", DPN_INTERFACE_NAME - 1,
                 interfaces[i].name);
    }
}

/* The wire beside the queue pairs goes over the first interface, as NCCL's own sockets do. */
static void add_ports(const struct dpn_interface *interface, const struct dpn_net_options *options,
                      struct dpn_devices *out, char *why, size_t why_len)
{
    dpn_verbs_find(out, (int)options->devices, options->has_force_flush, why, why_len);
    for (int i = 0; i < out->count; i++)
        out->list[i].interface = *interface;
}

static void name_members(struct dpn_devices *devices)
{
    for (int i = 0; i < devices->count; i++) {
        devices->list[i].member_count = 1;
        devices->list[i].members[0] = i;
    }
}

void dpn_devices_find(const char *root, const struct dpn_net_options *options,
                      struct dpn_devices *out)
{
    struct dpn_interface interfaces[DPN_MAX_PLAIN];
    char why[600], why_no_rdma[256] = "";

    out->count = 0;
    if (!options->devices) {
        say(out, "none, as DUALPIPE_NET_DEVICES=0 says; NCCL goes on with another net");
        return;
    }
    int count = find_interfaces(options, interfaces, why, sizeof(why));
    if (count > options->devices)
        count = (int)options->devices;
    if (wants(options, "verbs") && (!count || !*interfaces[0].address))
        snprintf(why_no_rdma, sizeof(why_no_rdma), "not used, as its control connections need a "
                                                   "network interface");
    else if (wants(options, "verbs"))
        add_ports(&interfaces[0], options, out, why_no_rdma, sizeof(why_no_rdma));
    if (!out->count && strcmp(options->wire, "verbs"))
        add_interfaces(root, interfaces, count, out);
    name_members(out);
    if (why_no_rdma[0])
        dp_log(DP_LOG_INFO, "RDMA: %s", why_no_rdma);
    say(out, why);
}

/* ---- where on the PCI bus something is ------------------------------------------------------- */

static bool is_pci(const char *dir)
{
    char link[PATH_MAX + 16], target[PATH_MAX];

    snprintf(link, sizeof(link), "%s/subsystem", dir);
    ssize_t n = readlink(link, target, sizeof(target) - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    const char *name = strrchr(target, '/');
    return name && !strcmp(name, "/pci");
}

/* The device itself, or the nearest above it on the PCI bus: a virtio device or a sub-function
 * stands below the function that NCCL knows. */
char *dpn_pci_path(const char *device)
{
    char *dir = realpath(device, NULL);

    while (dir && !is_pci(dir)) {
        char *slash = strrchr(dir, '/');
        if (slash && slash != dir) {
            *slash = '\0';
            continue;
        }
        free(dir);
        dir = NULL;
    }
    return dir;
}
