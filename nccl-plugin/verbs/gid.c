/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/gid.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct in6_addr *address(const struct dpn_gid *gid)
{
    return (const struct in6_addr *)(const void *)gid->raw.raw;
}

static int family(const struct dpn_gid *gid)
{
    return IN6_IS_ADDR_V4MAPPED(address(gid)) ? AF_INET : AF_INET6;
}

/* Addresses in 169.254.0.0/16 are link-local, too. */
static bool is_link_local(const struct dpn_gid *gid)
{
    const uint8_t *a = gid->raw.raw;

    return IN6_IS_ADDR_LINKLOCAL(address(gid)) ||
           (family(gid) == AF_INET && a[12] == 169 && a[13] == 254);
}

static int common_bits(const uint8_t *a, const uint8_t *b)
{
    int bits = 0;

    while (bits < 128 && !((a[bits / 8] ^ b[bits / 8]) >> (7 - bits % 8) & 1))
        bits++;
    return bits;
}

static bool is_in_range(const struct dpn_gid *gid, const struct dpn_range *range)
{
    return common_bits(gid->raw.raw, range->address.s6_addr) >= range->prefix;
}

static bool is_wanted_version(const struct dpn_gid *gid, const struct dpn_verbs_options *options)
{
    return gid->type == (options->roce_version == 1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2);
}

/* Greater is better; the first criterion is in the highest bit. */
static unsigned score(const struct dpn_gid *gid, const struct dpn_verbs_options *options)
{
    return (unsigned)is_in_range(gid, &options->range) << 5 | (unsigned)!gid->is_foreign << 4 |
           (unsigned)!is_link_local(gid) << 3 | (unsigned)is_wanted_version(gid, options) << 2 |
           (unsigned)(family(gid) == options->family) << 1 | (unsigned)(family(gid) == AF_INET);
}

/* ---- network namespaces ---------------------------------------------------------------------- */

static bool is_address(const struct sockaddr *at, const union ibv_gid *gid)
{
    if (at && at->sa_family == AF_INET6)
        return !memcmp(&((const struct sockaddr_in6 *)(const void *)at)->sin6_addr, gid, 16);
    return at && at->sa_family == AF_INET &&
           IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)gid->raw) &&
           !memcmp(&((const struct sockaddr_in *)(const void *)at)->sin_addr, &gid->raw[12], 4);
}

/* An index alone proves nothing: namespaces number their interfaces on their own. all NULL: nothing
 * is known of the interfaces. */
static bool is_foreign(const struct ibv_gid_entry *entry, const struct ifaddrs *all)
{
    const struct dpn_gid gid = {.raw = entry->gid};
    char name[IF_NAMESIZE];
    bool found = !all;

    if (!entry->ndev_ifindex || entry->gid_type == IBV_GID_TYPE_IB)
        return false;
    if (is_link_local(&gid))
        return !if_indextoname(entry->ndev_ifindex, name);
    for (; all && !found; all = all->ifa_next)
        found = is_address(all->ifa_addr, &entry->gid);
    return !found;
}

/* ---- GIDs of one port ------------------------------------------------------------------------ */

static void add(struct dpn_gids *gids, const struct dpn_gid *gid,
                const struct dpn_verbs_options *options)
{
    int at = gids->count;

    while (at > 0 && score(&gids->list[at - 1], options) < score(gid, options))
        at--;
    if (at == DPN_MAX_GIDS)
        return;
    if (gids->count < DPN_MAX_GIDS)
        gids->count++;
    memmove(&gids->list[at + 1], &gids->list[at],
            (size_t)(gids->count - at - 1) * sizeof(gids->list[0]));
    gids->list[at] = *gid;
}

uint16_t dpn_gid_flid(const struct dpn_gid *gid)
{
    return gid->type == IBV_GID_TYPE_IB ? (uint16_t)(gid->raw.raw[4] << 8 | gid->raw.raw[5]) : 0;
}

static bool is_routable(const struct dpn_gid *gid, const struct dpn_verbs_options *options)
{
    return options->gid_index < 0 && gid->index == options->flid_index && dpn_gid_flid(gid);
}

static bool is_admitted(const struct dpn_gid *gid, const struct dpn_verbs_options *options)
{
    static const union ibv_gid none;

    return memcmp(&gid->raw, &none, sizeof(none)) &&
           (options->gid_index < 0 || options->gid_index == gid->index);
}

void dpn_gids_choose(const struct ibv_gid_entry *table, int count, int port,
                     const struct dpn_verbs_options *options, struct dpn_gids *out)
{
    struct ifaddrs *all = NULL;

    out->count = 0;
    if (getifaddrs(&all))
        all = NULL;
    for (int i = 0; i < count; i++) {
        const struct dpn_gid gid = {.raw = table[i].gid,
                                    .index = (uint16_t)table[i].gid_index,
                                    .type = (uint8_t)table[i].gid_type,
                                    .is_foreign = is_foreign(&table[i], all)};
        if ((int)table[i].port_num != port || !is_admitted(&gid, options))
            continue;
        if (is_routable(&gid, options)) {
            *out = (struct dpn_gids){.count = 1, .list = {gid}};
            break;
        }
        add(out, &gid, options);
    }
    freeifaddrs(all);
}

/* ---- a pair of ports ------------------------------------------------------------------------- */

/* The default prefix of an InfiniBand subnet looks like that of a link-local address. */
static bool can_reach(const struct dpn_gid *a, const struct dpn_gid *b,
                      const struct dpn_verbs_options *options)
{
    return a->type == b->type && family(a) == family(b) &&
           (a->type == IBV_GID_TYPE_IB || options->gid_index >= 0 ||
            is_link_local(a) == is_link_local(b));
}

struct score {
    unsigned score;
    int bits;
};

static struct score score_of(const struct dpn_gid *a, const struct dpn_gid *b,
                             const struct dpn_verbs_options *options)
{
    const unsigned mine = score(a, options), other = score(b, options);

    return (struct score){mine < other ? mine : other, common_bits(a->raw.raw, b->raw.raw)};
}

/* The address family is the last criterion, after the subnet. */
static bool is_better(struct score a, struct score b)
{
    if (a.score >> 1 != b.score >> 1)
        return a.score > b.score;
    return a.bits != b.bits ? a.bits > b.bits : a.score > b.score;
}

bool dpn_gids_match(const struct dpn_gids *ours, const struct dpn_gids *theirs,
                    const struct dpn_verbs_options *options, struct dpn_gid *our,
                    struct dpn_gid *their)
{
    struct score best = {0, -1};
    bool found = false;

    for (int i = 0; i < ours->count; i++)
        for (int k = 0; k < theirs->count; k++) {
            if (!can_reach(&ours->list[i], &theirs->list[k], options))
                continue;
            const struct score s = score_of(&ours->list[i], &theirs->list[k], options);
            if (found && !is_better(s, best))
                continue;
            best = s;
            found = true;
            *our = ours->list[i];
            *their = theirs->list[k];
        }
    return found;
}

/* Bytes 4 and 5 of the prefix are the FLID, which ports of one subnet need not share. */
bool dpn_gids_differ_in_subnet(const struct dpn_gid *a, const struct dpn_gid *b)
{
    return memcmp(a->raw.raw, b->raw.raw, 4) || memcmp(a->raw.raw + 6, b->raw.raw + 6, 2);
}

bool dpn_gids_are_near(const struct dpn_gid *a, const struct dpn_gid *b, int ipv4_bits)
{
    const int bits = family(a) == AF_INET ? 96 + ipv4_bits : 64;

    return a->type == b->type && family(a) == family(b) &&
           common_bits(a->raw.raw, b->raw.raw) >= bits;
}

const char *dpn_gid_text(const struct dpn_gid *gid, char text[DPN_GID_TEXT])
{
    static const char *const types[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
    char where[INET6_ADDRSTRLEN];

    if (family(gid) == AF_INET)
        inet_ntop(AF_INET, &gid->raw.raw[12], where, sizeof(where));
    else
        inet_ntop(AF_INET6, gid->raw.raw, where, sizeof(where));
    snprintf(text, DPN_GID_TEXT, "%.40s (index %u, %s%s)", where, gid->index,
             gid->type < 3 ? types[gid->type] : "?", gid->is_foreign ? ", other namespace" : "");
    return text;
}
