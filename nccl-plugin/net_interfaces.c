/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: struct ifaddrs' flags */

#include "nccl-plugin/net_interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

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

int dpn_interface_group(const char *name)
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

static bool write_address(const struct sockaddr *a, char out[DPN_ADDRESS_TEXT])
{
    const void *ip = &((const struct sockaddr_in *)(const void *)a)->sin_addr;

    if (a->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(v6))
            return false;
        ip = v6;
    }
    return inet_ntop(a->sa_family, ip, out, DPN_ADDRESS_TEXT);
}

static bool is_known(const struct dpn_interface *all, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(all[i].name, name))
            return true;
    return false;
}

/* Append the interfaces that have an address of one family. */
static int add_family(const struct ifaddrs *all, const char *list, int family,
                      struct dpn_interface *out, int count, int max)
{
    for (const struct ifaddrs *i = all; i && count < max; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) ||
            is_known(out, count, i->ifa_name) ||
            (list && !dpn_interface_is_wanted(list, i->ifa_name)))
            continue;
        if (!write_address(i->ifa_addr, out[count].address))
            continue;
        snprintf(out[count++].name, DPN_INTERFACE_NAME, "%s", i->ifa_name);
    }
    return count;
}

static int keep_first_group(struct dpn_interface *all, int count)
{
    int first = INT32_MAX, kept = 0;

    for (int i = 0; i < count; i++)
        if (dpn_interface_group(all[i].name) < first)
            first = dpn_interface_group(all[i].name);
    for (int i = 0; i < count; i++)
        if (dpn_interface_group(all[i].name) == first)
            all[kept++] = all[i];
    return kept;
}

int dpn_interfaces_find(const char *list, const char *family, struct dpn_interface *out, int max)
{
    struct ifaddrs *all = NULL;
    int count = 0;

    if (getifaddrs(&all))
        return 0;
    if (!family || strcmp(family, "AF_INET6"))
        count = add_family(all, list, AF_INET, out, count, max);
    if (!family || strcmp(family, "AF_INET"))
        count = add_family(all, list, AF_INET6, out, count, max);
    freeifaddrs(all);
    return list ? count : keep_first_group(out, count);
}
