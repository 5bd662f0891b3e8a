/* SPDX-License-Identifier: Apache-2.0
 *
 * gid.h - which GID of a port to use towards a peer. A RoCE port has one for each address of its
 * interface and each version of RoCE, at indices that change from boot to boot; an InfiniBand port
 * is reached by its LID, and index 0 is enough within a subnet.
 *
 * Peers exchange all of their GIDs, so nothing is guessed: of all pairs that can reach each other
 * (same kind, same address family, RoCE: both link-local or neither) the best is chosen by these
 * criteria:
 *
 *      both in NCCL_IB_ADDR_RANGE
 *      of an interface in this network namespace
 *      not link-local
 *      of the wanted version of RoCE (default 2)
 *      of the wanted address family
 *      the longest common prefix of both addresses: the same subnet
 *      IPv4 before IPv6
 *      the smaller indices
 */
#ifndef DPN_VERBS_GID_H
#define DPN_VERBS_GID_H

#include "nccl-plugin/verbs/options.h"

#include <infiniband/verbs.h>

enum { DPN_MAX_GIDS = 16, DPN_GID_TEXT = 80 };

struct dpn_gid {
    union ibv_gid raw;
    uint16_t index;
    uint8_t type;    /* enum ibv_gid_type */
    /* Of an interface in another network namespace: the kernel lists those of all, and may refuse
     * them or never get an answer. Containers that share the devices of the host may have no
     * others. */
    uint8_t is_foreign;
    uint8_t zero[4]; /* explicit padding: all bytes are sent to peers */
};

struct dpn_gids {
    int count;
    struct dpn_gid list[DPN_MAX_GIDS];
};

/* The GIDs of a table that may be used: NCCL_IB_GID_INDEX admits one, whatever it is; on InfiniBand
 * the one at NCCL_IB_ROUTABLE_FLID_GID_INDEX replaces all others if it has a FLID. Empty entries
 * are left out; of more than DPN_MAX_GIDS the best stay. */
void dpn_gids_choose(const struct ibv_gid_entry *table, int count, int port,
                     const struct dpn_verbs_options *options, struct dpn_gids *out);

/* The best pair. false: no GID of one side reaches one of the other. */
bool dpn_gids_match(const struct dpn_gids *ours, const struct dpn_gids *theirs,
                    const struct dpn_verbs_options *options, struct dpn_gid *our,
                    struct dpn_gid *their);

/* Whether two addresses are in one subnet: the first ipv4_bits bits of IPv4, 64 bits of IPv6 and
 * InfiniBand. */
bool dpn_gids_are_near(const struct dpn_gid *a, const struct dpn_gid *b, int ipv4_bits);

/* The LID by which InfiniBand routers know the port; 0: none. */
uint16_t dpn_gid_flid(const struct dpn_gid *gid);

/* Whether two GIDs of InfiniBand are of different subnets. */
bool dpn_gids_differ_in_subnet(const struct dpn_gid *a, const struct dpn_gid *b);

/* "10.0.0.1 (index 3, RoCE v2)". Returns text. */
const char *dpn_gid_text(const struct dpn_gid *gid, char text[DPN_GID_TEXT]);

#endif
