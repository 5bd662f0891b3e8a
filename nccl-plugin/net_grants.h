/* SPDX-License-Identifier: Apache-2.0
 *
 * net_grants.h - what the receiver has granted to the sender: room for messages of certain tags.
 * Receives are in slots, which are used again; the eldest is not the one with the smallest number.
 */
#ifndef DPN_NET_GRANTS_H
#define DPN_NET_GRANTS_H

#include "nccl-plugin/net.h"

/* On the wire, in the host's byte order; only count of the rooms are sent. */
struct dpn_grant {
    uint32_t slot, count;
    struct {
        uint64_t bytes;
        int32_t tag;
        uint32_t zero;
    } rooms[DPN_MAX_RECEIVES];
};

/* One message's place: which receive of which group. */
struct dpn_place {
    unsigned slot, sub;
};

struct dpn_grants {
    int live;
    uint8_t order[NCCL_NET_MAX_REQUESTS]; /* slots, eldest first; [live] of them */
    struct {
        bool live;
        uint8_t open; /* a bit per room that is not taken yet */
        struct dpn_grant grant;
    } slots[NCCL_NET_MAX_REQUESTS];
};

size_t dpn_grant_len(unsigned count);
/* Take over what arrived. DP_EMISMATCH: it is no grant. */
int dpn_grants_add(struct dpn_grants *grants, const struct dpn_grant *grant, size_t len);
/* The eldest room of this tag. */
bool dpn_grants_find(const struct dpn_grants *grants, int tag, struct dpn_place *out);
size_t dpn_grants_room(const struct dpn_grants *grants, struct dpn_place place);
void dpn_grants_take(struct dpn_grants *grants, struct dpn_place place);

#endif
