/* SPDX-License-Identifier: Apache-2.0
 *
 * cts.h - what the receiver has granted to the sender: room for messages of certain tags.
 * Receives are in slots, which are used again; the oldest is not the one with the smallest number.
 */
#ifndef DPN_NET_CTS_H
#define DPN_NET_CTS_H

#include "nccl-plugin/net/net.h"

/* On the wire, in the host's byte order; only count of the buffers are sent. */
struct dpn_cts {
    uint32_t slot, count;
    struct {
        uint64_t bytes;
        int32_t tag;
        uint32_t zero;
    } buffers[DPN_MAX_RECEIVES];
};

/* One message's place: which receive of which group. */
struct dpn_place {
    unsigned slot, sub;
};

struct dpn_cts_list {
    int live;
    uint8_t order[NCCL_NET_MAX_REQUESTS]; /* slots, oldest first; [live] of them */
    struct {
        bool live;
        uint8_t open; /* a bit per room that is not taken yet */
        struct dpn_cts cts;
    } slots[NCCL_NET_MAX_REQUESTS];
};

size_t dpn_cts_len(unsigned count);
/* Take over what arrived. DP_EMISMATCH: it is no clear-to-send. */
int dpn_cts_list_add(struct dpn_cts_list *list, const struct dpn_cts *cts, size_t len);
/* The oldest room of this tag. */
bool dpn_cts_list_find(const struct dpn_cts_list *list, int tag, struct dpn_place *out);
size_t dpn_cts_list_room(const struct dpn_cts_list *list, struct dpn_place place);
void dpn_cts_list_take(struct dpn_cts_list *list, struct dpn_place place);

#endif
